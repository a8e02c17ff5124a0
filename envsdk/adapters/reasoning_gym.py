"""The generated tasks of reasoning-gym, as single-turn environments.

Three things differ from calling the package yourself. Its data sets count on from their seed, so that neighbouring
seeds share tasks: here each task has a seed of its own. Its scorers give parts of a point for what only looks like an
answer: here a reply scores 1 or 0. And some of them run a reply as code, or give full marks to wrong ones: here they
are not asked (see `reasoning_gym_scorers`).
"""

import contextlib
import importlib
import io
import json
import random
import sys
import threading
from collections.abc import Generator
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, JsonValue, field_validator

from ..authoring.env import Env
from ..authoring.machinery import EnvConfig
from ..authoring.tasks import Split, draw_in_split
from ..episodes.turn import Turn
from ..errors import ConfigError, unknown_name
from ..limits import Limits
from ..messages import Message
from .reasoning_gym_scorers import may_be_asked

_BEGIN, _END = "<answer>", "</answer>"
_SYSTEM = f"Think, then give the answer alone between {_BEGIN} and {_END}."
_SEEDS = 2**32

# These read files when they are made, so one object is kept and given another seed: all that it does depends on that.
_KEPT = frozenset(
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
# These draw from sets of texts, whose order Python changes from process to process.
_UNORDERED = frozenset(("isomorphic_strings", "polynomial_multiplication", "ransom_note"))
_EXAMPLES = ("example_answer", "possible_answer", "example_correct_answer")
_lock = threading.RLock()


class ReasoningGymConfig(EnvConfig):
    """Which data set, and of which tasks."""

    dataset: str
    """Its name, such as `"chain_sum"`."""
    options: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """What it takes, such as `{"min_terms": 3}`: how difficult tasks are."""
    split: Split = "train"
    trust_scorer: bool = False
    """Whether the data set's scorer is asked about every reply. Some run it as code, with all that this process may do:
    only for replies that you trust."""

    @field_validator("options")
    @classmethod
    def _has_no_own_options(cls, options: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if own := options.keys() & {"seed", "size"}:
            raise ValueError(f"{', '.join(sorted(own))} is set by the adapter")
        return options


class ReasoningGym(Env):
    """Answer a generated question of reasoning-gym.

    Exercises: what the data set does. Reward: `correct`, 1 if what stands between the last `<answer>` and `</answer>`
    is the data set's own answer, or another that its scorer takes as wholly right, else 0.
    """

    Config: ClassVar[type[EnvConfig]] = ReasoningGymConfig
    default_limits: ClassVar[Limits] = Limits(max_steps=1)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.entry: dict[str, Any] = {}
        if self.config.dataset in _UNORDERED and sys.flags.hash_randomization:
            raise ConfigError(
                f"the tasks of {self.config.dataset} depend on the order of sets, which Python changes from process to "
                "process: set PYTHONHASHSEED=0 for the same tasks everywhere"
            )
        self._kept()  # an unknown data set or option is told now

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
        answer = _answer_in(reply.content)
        is_right = answer is not None and self._is_right(answer)
        metrics = {"answered": float(answer is not None)}
        return Turn(reward={"correct": float(is_right)}, metrics=metrics, terminated=True)

    def reference_reply(self) -> str:
        """The data set's own answer, or an example of one."""
        examples = (self.entry["metadata"].get(name) for name in _EXAMPLES)
        answer = next((one for one in (self.entry["answer"], *examples) if one is not None), None)
        if answer is None:
            raise NotImplementedError(f"{self.config.dataset} knows no answer, it only scores them")
        return f"{_BEGIN}{answer if isinstance(answer, str) else json.dumps(answer)}{_END}"

    def null_reply(self) -> str:
        """Decline."""
        return "I do not know."

    def _is_right(self, answer: str) -> bool:
        config: ReasoningGymConfig = self.config
        own: object = self.entry["answer"]
        if own is not None and answer == str(own).strip():
            return True
        if not config.trust_scorer and not may_be_asked(config.dataset, answer):
            return False
        try:
            with _on_its_own(0):
                return self._kept().score_answer(answer, self.entry) >= 1.0
        except Exception:  # a scorer reads what it expects; what it cannot read is no answer
            return False

    def _draw(self, seed: int) -> dict[str, Any]:
        """The task of a seed."""
        config: ReasoningGymConfig = self.config
        with _on_its_own(seed):
            if config.dataset not in _KEPT:
                return _make(config.dataset, config.options, seed)[0]
            data = self._kept()
            data.seed, data.size = seed, 1  # a data set that finds no task changes its size
            return data[0]

    def _kept(self) -> Any:
        """A data set with these options, whichever its seed is."""
        config: ReasoningGymConfig = self.config
        with _on_its_own(0):
            return _make_once(config.dataset, json.dumps(config.options, sort_keys=True))


def _answer_in(reply: str) -> str | None:
    """What stands in the last pair of tags."""
    end = reply.rfind(_END)
    begin = reply.rfind(_BEGIN, 0, max(end, 0))
    return None if begin < 0 else reply[begin + len(_BEGIN) : end].strip()


@lru_cache(maxsize=128)
def _make_once(name: str, options: str) -> Any:
    return _make(name, json.loads(options), 0)


def _make(name: str, options: dict[str, Any], seed: int) -> Any:
    """A data set of one task."""
    try:
        package: Any = importlib.import_module("reasoning_gym")
        known: dict[str, Any] = package.factory.DATASETS
    except ImportError as error:
        raise ConfigError("reasoning-gym is not installed: pip install 'envsdk[reasoning-gym]'") from error
    if name not in known:
        raise unknown_name("data set of reasoning-gym", name, known)
    try:
        return package.create_dataset(name, **{**options, "seed": seed, "size": 1})
    except (ValueError, TypeError, AssertionError, AttributeError) as error:
        raise ConfigError(f"reasoning-gym cannot make {name!r} with {options}: {error}") from error


@contextlib.contextmanager
def _on_its_own(seed: int) -> Generator[None]:
    """Let data sets neither use nor change what others use.

    What they take from the global random generators depends on the seed, these are as before afterwards, and nothing is
    printed. One thread at a time, as all of this belongs to the process.
    """
    with _lock, contextlib.redirect_stdout(io.StringIO()):
        python, legacy = random.getstate(), np.random.get_state(legacy=False)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)
