"""Scorers made of other scorers: weighted and named parts, a part of the reply, the best of several targets."""

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..errors import ConfigError, TaskError
from .scorer import AsyncScorer, Scorer, check_count, check_number, check_score, check_scorer, compiled

S = TypeVar("S", Scorer, "Scorer | AsyncScorer")


class _Weighted(Generic[S]):
    """Named scorers with their weights."""

    def __init__(self, **parts: tuple[float, S]) -> None:
        if not parts:
            raise ConfigError("no part is given; expected name=(weight, scorer), such as correct=(1.0, exact())")
        for name, part in parts.items():
            if not isinstance(part, tuple) or len(part) != 2:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{name} is {part!r:.80}; expected a weight and a scorer, such as (0.5, exact())")
            check_number(f"the weight of {name}", part[0])
            check_scorer(f"the scorer of {name}", part[1])
        self.parts: Mapping[str, tuple[float, S]] = parts

    @property
    def reward_range(self) -> tuple[float, float]:
        """The least and the most that the rewards can add up to, if each part is scored."""
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
                rewards[name] = weight * score + 0.0  # no -0.0 of a negative weight
        return rewards or None


class weighted(_Weighted[Scorer]):  # noqa: N801 - it is called like a function
    """The named rewards of a reply: for each part its weight times its score.

    A part that was not scored (None) is left out; if none was, there is None in place of the rewards. Both are what
    `Turn(reward=...)` takes.

    Args:
        **parts: For each name a weight and a scorer: `correct=(0.8, numeric())`. A negative weight is a penalty.

    Raises:
        ConfigError: If there is no part, a weight is not finite, or a scorer is none.
    """

    def __init__(self, **parts: tuple[float, Scorer]) -> None:
        super().__init__(**parts)
        for name, (_, scorer) in parts.items():
            if _is_async(scorer):
                raise ConfigError(
                    f"the scorer of {name} has to be waited for: take aweighted, and await what it returns"
                )

    def __call__(self, reply: str, target: Any = None, /) -> dict[str, float] | None:
        """The rewards of a reply, by name.

        Raises:
            ConfigError: If a scorer returns anything but a number from 0 to 1, or None.
            TaskError: If the target does not fit a scorer.
        """
        return self._rewards({name: scorer(reply, target) for name, (_, scorer) in self.parts.items()})


class aweighted(_Weighted[Scorer | AsyncScorer]):  # noqa: N801 - it is called like a function
    """As `weighted`, to be awaited: some of its scorers may be async, such as `judge`; they go on side by side.

    Args:
        **parts: For each name a weight and a scorer, plain or async.

    Raises:
        ConfigError: If there is no part, a weight is not finite, or a scorer is none.
    """

    async def __call__(self, reply: str, target: Any = None, /) -> dict[str, float] | None:
        """The rewards of a reply, by name; see `weighted`.

        Raises:
            Exception: Whatever a scorer raises; the others are cancelled.
        """
        tasks = [asyncio.ensure_future(_score(scorer, reply, target)) for _, scorer in self.parts.values()]
        try:
            scores = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self._rewards(dict(zip(self.parts, scores, strict=True)))


@dataclass(frozen=True, slots=True)
class extract:  # noqa: N801 - it is called like a function
    r"""Scores a part of the reply: what a regular expression finds there last. 0 if it finds nothing.

    `extract(r"<answer>(.*?)</answer>", numeric())` scores what stands between the last two tags.

    Attributes:
        pattern: A regular expression of Python's `re`; its first group is scored, or all of it if it has none. See
            `regex` for patterns that take long.
        scorer: What scores it.
        max_chars: A longer reply scores 0.

    Raises:
        ConfigError: If the pattern is none, or the scorer.
    """

    pattern: str
    scorer: Scorer
    max_chars: int = field(default=10_000, kw_only=True)

    def __post_init__(self) -> None:
        compiled(self.pattern)
        check_scorer("the scorer of extract", self.scorer)
        check_count("max_chars", self.max_chars)

    def __call__(self, reply: str, target: Any = None, /) -> float | None:
        """Score a reply; the target is that of the scorer."""
        if len(reply) > self.max_chars:
            return 0.0
        found = None
        for match in compiled(self.pattern).finditer(reply):
            found = match[1] if match.re.groups else match[0]
        return 0.0 if found is None else self.scorer(found, target)


@dataclass(frozen=True, slots=True)
class best:  # noqa: N801 - it is called like a function
    """The best score of several targets, any of which is right. None if the reply is not scored with any.

    Attributes:
        scorer: What scores the reply with each of them.

    Raises:
        ConfigError: If the scorer is none.
    """

    scorer: Scorer

    def __post_init__(self) -> None:
        check_scorer("the scorer of best", self.scorer)

    def __call__(self, reply: str, target: Any = None, /) -> float | None:
        """Score a reply; the target is a list of targets.

        Raises:
            TaskError: If it is no list, or an empty one.
        """
        if not isinstance(target, (list, tuple)) or not target:
            raise TaskError(f"the target of best is {target!r:.80}; expected a list of targets")
        scores = [self.scorer(reply, one) for one in target]  # pyright: ignore[reportUnknownVariableType]
        return max((score for score in scores if score is not None), default=None)


@dataclass(frozen=True, slots=True)
class in_thread:  # noqa: N801 - it is called like a function
    """Runs a scorer that takes its time, such as `unit_tests`, in a thread, so that other episodes go on meanwhile.

    It is to be awaited, by itself or in `aweighted`.

    Attributes:
        scorer: What scores the reply.

    Raises:
        ConfigError: If the scorer is none.
    """

    scorer: Scorer

    def __post_init__(self) -> None:
        check_scorer("the scorer of in_thread", self.scorer)

    async def __call__(self, reply: str, target: Any = None, /) -> float | None:
        """Score a reply; the target is that of the scorer."""
        return await asyncio.to_thread(self.scorer, reply, target)


def _is_async(scorer: object) -> bool:
    return inspect.iscoroutinefunction(scorer) or inspect.iscoroutinefunction(type(scorer).__call__)


async def _score(scorer: Scorer | AsyncScorer, reply: str, target: Any) -> float | None:
    score = scorer(reply, target)
    return await score if inspect.isawaitable(score) else score
