"""Scorers that combine other scorers: weighted parts, a part of the reply, the best of several targets."""

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from .._visible import brief
from ..authoring._concurrent import run_all
from ..errors import ConfigError, TaskError
from ._scorer import AsyncScorer, Scorer, check_count, check_number, check_score, check_scorer, compiled

S = TypeVar("S", Scorer, "Scorer | AsyncScorer")


class _Weighted(Generic[S]):
    """Named scorers with their weights."""

    _takes_async: ClassVar[bool]

    def __init__(self, **parts: tuple[float, S]) -> None:
        if not parts:
            raise ConfigError("there are no parts; expected name=(weight, scorer), such as correct=(1.0, exact())")
        for name, part in parts.items():
            if not isinstance(part, tuple) or len(part) != 2:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{name} is {brief(part)}; expected a weight and a scorer, such as (0.5, exact())")
            check_number(f"the weight of {name}", part[0])
            scorer = part[1]
            check_scorer(f"the scorer of {name}", scorer)
            is_async = inspect.iscoroutinefunction(scorer) or inspect.iscoroutinefunction(type(scorer).__call__)
            if is_async and not self._takes_async:
                raise ConfigError(
                    f"the scorer of {name} is async; expected a plain one. Use aweighted, and await its result"
                )
        self.parts: Mapping[str, tuple[float, S]] = parts

    @property
    def reward_range(self) -> tuple[float, float]:
        """The minimum and maximum of the summed rewards, if each part is scored."""
        weights = [weight for weight, _ in self.parts.values()]
        return sum(min(weight, 0.0) for weight in weights), sum(max(weight, 0.0) for weight in weights)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}=({weight}, {scorer!r})" for name, (weight, scorer) in self.parts.items())
        return f"{type(self).__name__}({parts})"

    def _rewards(self, scores: Mapping[str, Any]) -> dict[str, float] | None:
        rewards: dict[str, float] = {}
        for name, (weight, _) in self.parts.items():
            score = check_score(f"of {name}", scores[name])
            if score is not None:
                rewards[name] = weight * score + 0.0  # turns the -0.0 of a negative weight into 0.0
        return rewards or None


class weighted(_Weighted[Scorer]):  # noqa: N801 - it is called like a function
    """Score a reply by named parts: the reward of each part is its weight times its score.

    The result is a dict from names to rewards. It leaves out parts that were not scored (None), and is None if no part
    was scored. `Turn(reward=...)` accepts both.

    Args:
        **parts: A weight and a scorer for each name: `correct=(0.8, numeric())`. A negative weight is a penalty.

    Raises:
        ConfigError: If there are no parts, a weight is not finite, or a scorer is not a scorer or is async.
    """

    _takes_async = False

    def __call__(self, reply: str, target: Any = None, /) -> dict[str, float] | None:
        """Return the rewards of a reply by name.

        Raises:
            ConfigError: If a scorer returns anything but a number from 0 to 1 or None.
            TaskError: If the target is not valid for a scorer.
        """
        return self._rewards({name: scorer(reply, target) for name, (_, scorer) in self.parts.items()})


class aweighted(_Weighted[Scorer | AsyncScorer]):  # noqa: N801 - it is called like a function
    """Score a reply by named parts, some of which may be async, such as `judge`.

    It works like `weighted`, but its result has to be awaited. Async scorers run concurrently.

    Args:
        **parts: A weight and a scorer, plain or async, for each name.

    Raises:
        ConfigError: If there are no parts, a weight is not finite, or a scorer is not a scorer.
    """

    _takes_async = True

    async def __call__(self, reply: str, target: Any = None, /) -> dict[str, float] | None:
        """Return the rewards of a reply by name; see `weighted`.

        Raises:
            Exception: Any exception of a scorer; the other scorers are cancelled.
        """
        scores = await run_all(_score(scorer, reply, target) for _, scorer in self.parts.values())
        return self._rewards(dict(zip(self.parts, scores, strict=True)))


@dataclass(frozen=True, slots=True)
class extract:  # noqa: N801 - it is called like a function
    r"""Score a part of the reply: the last match of a regular expression. Without a match, the score is 0.

    `extract(r"<answer>(.*?)</answer>", numeric())` scores the text in the last pair of tags.

    Attributes:
        pattern: A regular expression of Python's `re`. Its first group is scored, or the whole match if it has no
            groups. See `regex` for patterns that take exponential time.
        scorer: The scorer of the matched text.
        max_chars: The maximum length of a reply, in characters. A longer reply scores 0.

    Raises:
        ConfigError: If the pattern is not a regular expression, or the scorer is not a scorer.
    """

    pattern: str
    scorer: Scorer
    max_chars: int = field(default=10_000, kw_only=True)

    def __post_init__(self) -> None:
        compiled(self.pattern)
        check_scorer("the scorer of extract", self.scorer)
        check_count("max_chars", self.max_chars)

    def __call__(self, reply: str, target: Any = None, /) -> float | None:
        """Score a reply. The target is passed on to the scorer."""
        if len(reply) > self.max_chars:
            return 0.0
        found = None
        for match in compiled(self.pattern).finditer(reply):
            found = match[1] if match.re.groups else match[0]
        return 0.0 if found is None else self.scorer(found, target)


@dataclass(frozen=True, slots=True)
class best:  # noqa: N801 - it is called like a function
    """Score a reply against several correct targets, and take the best score.

    The score is None if the reply is not scored against any of them.

    Attributes:
        scorer: The scorer that compares the reply with each target.

    Raises:
        ConfigError: If the scorer is not a scorer.
    """

    scorer: Scorer

    def __post_init__(self) -> None:
        check_scorer("the scorer of best", self.scorer)

    def __call__(self, reply: str, target: Any = None, /) -> float | None:
        """Score a reply. The target is a list of targets.

        Raises:
            TaskError: If the target is not a list or tuple, or is empty.
        """
        if not isinstance(target, (list, tuple)) or not target:
            raise TaskError(f"the target of best is {brief(target)}; expected a non-empty list of targets")
        scores = [self.scorer(reply, one) for one in target]  # pyright: ignore[reportUnknownVariableType]
        return max((score for score in scores if score is not None), default=None)


@dataclass(frozen=True, slots=True)
class in_thread:  # noqa: N801 - it is called like a function
    """Run a slow scorer, such as `unit_tests`, in a thread, so that other episodes are not blocked.

    The result has to be awaited, directly or through `aweighted`.

    Attributes:
        scorer: The scorer, a plain function.

    Raises:
        ConfigError: If the scorer is not a scorer.
    """

    scorer: Scorer

    def __post_init__(self) -> None:
        check_scorer("the scorer of in_thread", self.scorer)

    async def __call__(self, reply: str, target: Any = None, /) -> float | None:
        """Score a reply. The target is passed on to the scorer."""
        return await asyncio.to_thread(self.scorer, reply, target)


async def _score(scorer: Scorer | AsyncScorer, reply: str, target: Any) -> float | None:
    score = scorer(reply, target)
    return await score if inspect.isawaitable(score) else score
