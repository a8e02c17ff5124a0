"""The cost of a set of trajectories, in tokens, and the cache hits that servers reported."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, fields
from operator import add
from typing import Any, cast

from .._visible import type_of
from ..errors import ConfigError
from ..trajectories._steps import Step
from ..trajectories._tally import Tally
from ..trajectories._trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class CacheHits:
    """The cache hits that servers reported (`usage.prompt_tokens_details.cached_tokens`), over the calls that have it.

    Attributes:
        calls: The number of calls of a server for which it reported the tokens that it read from its cache. vLLM needs
            `--enable-prompt-tokens-details`, and some versions report nothing where nothing was cached.
        prompt_tokens: The tokens of their prompts, as the servers count them; our own count where one gave none.
        cached_tokens: The tokens of these prompts that the servers read from their caches.
        prompts: The tokens of the same prompts in our own count, which differs for a chat API.
        kept: The tokens of these prompts that were observed or sampled before, and that a cache could hold.
        cached_share: `cached_tokens / prompt_tokens`.
        kept_share: `kept / prompts`, which `cached_share` reaches if the caches hold all that was seen before. Prompts
            that several episodes share, such as a system message, may even raise it above.
    """

    calls: int
    prompt_tokens: int
    cached_tokens: int
    prompts: int
    kept: int

    def __add__(self, other: "CacheHits") -> "CacheHits":
        return CacheHits(*map(add, astuple(self), astuple(other)))

    @property
    def cached_share(self) -> float:
        """The share of the prompts that the servers read from their caches; 0.0 without prompts."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def kept_share(self) -> float:
        """The share of the prompts that the observations kept; 0.0 without prompts."""
        return self.kept / self.prompts if self.prompts else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the shares as plain values for JSON."""
        return {**asdict(self), "cached_share": self.cached_share, "kept_share": self.kept_share}

    def __str__(self) -> str:
        return (
            f"servers read {self.cached_tokens:,} of {self.prompt_tokens:,} prompt tokens ({self.cached_share:.0%}) "
            f"from their caches in {self.calls:,} calls; {self.kept_share:.0%} were kept"
        )


@dataclass(frozen=True, slots=True)
class BreakCost:
    """The cost of the breaks with one reason, in tokens.

    Attributes:
        breaks: The number of breaks.
        dropped: The tokens of the contexts that were dropped.
        kept: The tokens of the prompts after the breaks that a KV cache holds already.
        observed: The tokens that were observed at the breaks: rewritten ones and new ones.
    """

    breaks: int = 0
    dropped: int = 0
    kept: int = 0
    observed: int = 0

    def __add__(self, other: "BreakCost") -> "BreakCost":
        return BreakCost(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a set of trajectories, in tokens. The sum of two costs is that of both sets.

    `samples`, `trained`, `as_samples` and `as_tree` leave out failed episodes and failed sub-agents.

    Attributes:
        episodes: The number of episodes.
        failed: The number of episodes that failed.
        contexts: The number of contexts.
        steps: The number of steps.
        sampled: The tokens that the policy sampled.
        observed: The tokens of all observations, which a sampler with a KV cache has to process.
        kept: The tokens of prompts that a KV cache holds already, of the same context or of its base.
        samples: The number of samples.
        trained: The tokens with mask True.
        as_samples: The tokens that a trainer processes if each sample is a separate sequence.
        as_tree: The tokens that a trainer processes if the samples of each episode are one prefix tree.
        breaks: The cost of the breaks, by their reason.
        cache: The cache hits that servers reported; None if they reported nothing.
        images: The images of all observations, each as often as it was observed.
        image_tokens: Their tokens, which are part of `observed`.
        prompts: The tokens of all prompts, `kept + observed`, which a sampler without a KV cache has to process.
    """

    episodes: int
    failed: int
    contexts: int
    steps: int
    sampled: int
    observed: int
    kept: int
    samples: int
    trained: int
    as_samples: int
    as_tree: int
    breaks: dict[str, BreakCost]
    cache: CacheHits | None = None
    images: int = 0
    image_tokens: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        counts = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        breaks = dict(self.breaks)
        for reason, part in other.breaks.items():
            breaks[reason] = breaks.get(reason, BreakCost()) + part
        cache = self.cache or other.cache
        if self.cache is not None and other.cache is not None:
            cache = self.cache + other.cache
        return Cost(**counts, breaks=breaks, cache=cache)

    @property
    def prompts(self) -> int:
        """The tokens of all prompts, which a sampler without a KV cache has to process."""
        return self.kept + self.observed

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and `prompts` as plain values for JSON."""
        cache = None if self.cache is None else self.cache.to_dict()
        return {**asdict(self), "cache": cache, "prompts": self.prompts}

    def __str__(self) -> str:
        failed = f" ({self.failed} failed)" if self.failed else ""
        kept = f"{self.kept / self.prompts:.0%}" if self.prompts else "none"
        counts = f"{self.contexts:,} contexts, {self.steps:,} steps, {self.samples:,} samples"
        lines = [
            f"{self.episodes:,} episodes{failed}, {counts}",
            f"sampled {self.sampled:,} tokens, observed {self.observed:,}",
            f"prompts {self.prompts:,} tokens, {kept} of them kept by the KV cache",
            f"trained {self.trained:,} tokens: {self.as_samples:,} as samples, {self.as_tree:,} as trees",
        ]
        if self.image_tokens:
            lines[1] += f", {self.image_tokens:,} of them of {self.images:,} image{'s' * (self.images > 1)}"
        if self.cache is not None:
            lines.insert(3, str(self.cache))
        for reason, part in sorted(self.breaks.items()):
            lines.append(
                f"{part.breaks:,} {reason}: {part.dropped:,} tokens dropped, {part.kept:,} kept, {part.observed:,} "
                "observed there"
            )
        return "\n".join(lines)


_COUNTS = tuple(field.name for field in fields(Cost) if field.type is int)


def cost(trajectories: Trajectory | Iterable[Trajectory]) -> Cost:
    """Count the tokens of trajectories.

    Args:
        trajectories: One trajectory, or several. A failed one counts up to its failure, and none of its tokens are
            trained. A fork counts from the fork on.

    Raises:
        ConfigError: If an item is not a Trajectory.
        UndeclaredBreak: If a step drops tokens without a declared break.
    """
    is_several = isinstance(trajectories, Iterable)  # pyright: ignore[reportUnknownVariableType]
    episodes: list[Any] = list(cast("Any", trajectories)) if is_several else [trajectories]
    total = Tally()
    samples = trained = as_samples = as_tree = 0
    breaks = dict[str, BreakCost]()
    steps: list[Step] = []
    for index, trajectory in enumerate(episodes):
        if not isinstance(trajectory, Trajectory):
            raise ConfigError(f"trajectory {index} is {type_of(trajectory)}; expected a Trajectory")
        segments = trajectory.segments()  # checks the record
        total += Tally.of(trajectory, copied=False)
        samples += len(segments)
        trained += sum(segment.trained for segment in segments)
        as_samples += sum(len(segment.tokens) for segment in segments)
        as_tree += trajectory.tree_size()
        own = [step for step in trajectory.steps if not trajectory.is_copied(step)]
        steps += own
        found = [(step.break_, step.keep, step.action_start - step.start) for step in own]
        for break_, kept, observed in [*found, (trajectory.final_break, 0, 0)]:  # the policy never read the last one
            if break_ is not None:
                added = BreakCost(1, break_.dropped, kept, observed)
                breaks[break_.reason] = breaks.get(break_.reason, BreakCost()) + added
    return Cost(
        episodes=total.episodes,
        failed=total.failed,
        contexts=total.contexts,
        steps=total.steps,
        sampled=total.sampled_tokens,
        observed=total.observed_tokens,
        kept=total.kept_tokens,
        samples=samples,
        trained=trained,
        as_samples=as_samples,
        as_tree=as_tree,
        breaks=breaks,
        cache=cache_hits(steps),
        images=total.images,
        image_tokens=total.image_tokens,
    )


def cache_hits(steps: Iterable[Step]) -> CacheHits | None:
    """Add up the cache hits that servers reported in the calls of some steps; None if they reported none."""

    def count(extra: Mapping[str, Any], name: str, missing: int) -> int:
        value: Any = extra.get(name)  # a policy may write anything in `Action.extra`
        return value if type(value) is int and value >= 0 else missing

    total: CacheHits | None = None
    for step in steps:
        start = step.action_start
        for index, part in enumerate(step.parts):  # each is one call; a later part kept all before it
            prompt = step.keep + start - step.start
            cached = count(part.extra, "cached_tokens", -1)
            if cached >= 0:
                kept = prompt if index else step.keep
                call = CacheHits(1, count(part.extra, "prompt_tokens", prompt), cached, prompt, kept)
                total = call if total is None else total + call
            start = part.stop
    return total
