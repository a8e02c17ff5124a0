"""The generated tasks of reasoning-gym, as single-turn environments.

There are three differences to the package itself. First, each task has its own seed; in the package, the tasks of a
data set use consecutive seeds, so neighboring seeds share tasks. Second, a reply scores 1 or 0; the package's scorers
give partial credit for text that only looks like an answer. Third, scorers that run a reply as code, or give full
credit to wrong replies, are not used (see `reasoning_gym_scorers`).
"""

import importlib
import json
import sys
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from pydantic import Field, JsonValue, field_validator

from ...episodes._turn import Turn
from ...errors import ConfigError, UnknownName
from ...limits import Limits
from ...messages import Message
from .._env import Env, EnvConfig
from .._trust import NeedsTrust
from ..tasks import Split, draw_in_split
from ._random_state import GlobalRandom
from ._reasoning_gym_scorers import may_score

_BEGIN, _END = "<answer>", "</answer>"
_SYSTEM = f"Think, then give the answer alone between {_BEGIN} and {_END}."
_SEEDS = 2**32

# These read files when they are created. So one object is cached, and gets a new seed, on which its tasks depend.
_CACHED = frozenset(
    (
        "arc_agi",
        "caesar_cipher",
        "emoji_mystery",
        "figlet_font",
        "group_anagrams",
        "letter_counting",
        "letter_jumble",
        "n_queens",
        "rush_hour",
        "sentence_reordering",
        "spell_backward",
        "word_ladder",
        "word_sequence_reversal",
        "word_sorting",
    )
)
# These draw from sets of strings, whose order differs from process to process.
_UNORDERED = frozenset(("isomorphic_strings", "polynomial_multiplication", "ransom_note"))
_EXAMPLES = ("example_answer", "possible_answer", "example_correct_answer")


class ReasoningGymConfig(EnvConfig):
    """The data set, its options, and the split."""

    dataset: str
    """The name of the data set, such as `"chain_sum"`."""
    options: Annotated[dict[str, JsonValue], NeedsTrust("paths")] = Field(default_factory=dict[str, JsonValue])
    """The options of the data set, such as `{"min_terms": 3}`, which set the difficulty. Some name a file to read, such
    as `data_file` of `spell_backward`."""
    split: Split = "train"
    """The split that the tasks are drawn from."""
    trust_scorer: Annotated[bool, NeedsTrust("isolation")] = False
    """True to use the data set's scorer for every reply. Some scorers run the reply as code in this process, so set
    it only for replies that you trust."""

    @field_validator("options")
    @classmethod
    def _has_no_own_options(cls, options: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if own := options.keys() & {"seed", "size"}:
            raise ValueError(f"{', '.join(sorted(own))} is set by the adapter; remove it from options")
        return options


class ReasoningGym(Env):
    """Answer a generated question of reasoning-gym.

    Exercises: the skills that the data set tests. Reward: `correct`, 1 if the text between the last `<answer>` and
    `</answer>` is the data set's own answer, or another one to which its scorer gives full credit, else 0.
    """

    Config: ClassVar[type[EnvConfig]] = ReasoningGymConfig
    default_limits: ClassVar[Limits] = Limits(max_steps=1)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.entry: dict[str, Any] = {}
        if self.config.dataset in _UNORDERED and sys.flags.hash_randomization:
            raise ConfigError(
                f"the tasks of {self.config.dataset} depend on the order of sets, which differs between processes; "
                "set PYTHONHASHSEED=0 to get the same tasks in each process"
            )
        self._dataset()  # raises now if the data set or an option is unknown

    def start(self) -> Turn:
        """Ask the question."""
        self.entry = draw_in_split(
            self.config.split,
            lambda: self._draw(int(self.np_random.integers(0, _SEEDS))),
            lambda entry: str(entry["question"]),
        )
        return Turn(self.entry["question"], system=_SYSTEM)

    def respond(self, reply: Message) -> Turn:
        """Score the answer."""
        end = reply.content.rfind(_END)
        begin = reply.content.rfind(_BEGIN, 0, max(end, 0))
        answer = None if begin < 0 else reply.content[begin + len(_BEGIN) : end].strip()
        is_right = answer is not None and self._is_right(answer)
        metrics = {"answered": float(answer is not None)}
        return Turn(reward={"correct": float(is_right)}, metrics=metrics, terminated=True)

    def reference_reply(self) -> str:
        """Return the data set's own answer, or an example of one."""
        examples = (self.entry["metadata"].get(name) for name in _EXAMPLES)
        answer = next((one for one in (self.entry["answer"], *examples) if one is not None), None)
        if answer is None:
            raise NotImplementedError(f"{self.config.dataset} has no answers, only a scorer")
        return f"{_BEGIN}{answer if isinstance(answer, str) else json.dumps(answer)}{_END}"

    def null_reply(self) -> str:
        """Return a reply without an answer."""
        return "I do not know."

    def _is_right(self, answer: str) -> bool:
        config: ReasoningGymConfig = self.config
        own: object = self.entry["answer"]
        if own is not None and answer == str(own).strip():
            return True
        if not config.trust_scorer and not may_score(config.dataset, answer):
            return False
        try:
            with GlobalRandom(0).active():
                return self._dataset().score_answer(answer, self.entry) >= 1.0
        except Exception:  # a scorer may raise anything for a reply that it cannot parse
            return False

    def _draw(self, seed: int) -> dict[str, Any]:
        """Return the task of a seed."""
        config: ReasoningGymConfig = self.config
        with GlobalRandom(seed).active():
            if config.dataset not in _CACHED:
                return _make(config.dataset, config.options, seed)[0]
            data = self._dataset()
            data.seed, data.size = seed, 1  # a data set that finds no task changes its size
            return data[0]

    def _dataset(self) -> Any:
        """Return the cached data set with these options, which may have any seed."""
        config: ReasoningGymConfig = self.config
        with GlobalRandom(0).active():
            return _make_cached(config.dataset, json.dumps(config.options, sort_keys=True))


@lru_cache(maxsize=128)
def _make_cached(name: str, options: str) -> Any:
    return _make(name, json.loads(options), 0)


def _make(name: str, options: dict[str, Any], seed: int) -> Any:
    """Create a data set of one task."""
    try:
        package: Any = importlib.import_module("reasoning_gym")
        known: dict[str, Any] = package.factory.DATASETS
    except ImportError as error:
        raise ConfigError("reasoning-gym is not installed: pip install 'envsdk[reasoning-gym]'") from error
    if name not in known:
        raise UnknownName.of("data set of reasoning-gym", name, known)
    try:
        return package.create_dataset(name, **{**options, "seed": seed, "size": 1})
    except (ValueError, TypeError, AssertionError, AttributeError) as error:
        raise ConfigError(f"reasoning-gym cannot create {name!r} with {options}: {error}") from error
