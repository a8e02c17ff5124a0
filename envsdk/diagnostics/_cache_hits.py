"""The prefixes that servers read from their caches, as they count them, next to what the observations kept."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..trajectories._steps import Step


@dataclass(frozen=True, slots=True)
class CacheHits:
    """What servers reported of their caches (`usage.prompt_tokens_details.cached_tokens`), over the calls that have it.

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
        return CacheHits(
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            prompts=self.prompts + other.prompts,
            kept=self.kept + other.kept,
        )

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
        counts = {name: getattr(self, name) for name in ("calls", "prompt_tokens", "cached_tokens", "prompts", "kept")}
        return {**counts, "cached_share": self.cached_share, "kept_share": self.kept_share}

    def __str__(self) -> str:
        return (
            f"servers read {self.cached_tokens:,} of {self.prompt_tokens:,} prompt tokens ({self.cached_share:.0%}) "
            f"from their caches in {self.calls:,} calls; {self.kept_share:.0%} were kept"
        )


class _Call(NamedTuple):
    """One call of a server, which reported its cache hits."""

    extra: Mapping[str, Any]
    prompt: int
    kept: int


def cache_hits(steps: Iterable[Step]) -> CacheHits | None:
    """Add up what servers reported of their caches in the calls of some steps; None if they reported nothing."""
    calls = [call for step in steps for call in _calls(step)]
    if not calls:
        return None
    return CacheHits(
        calls=len(calls),
        prompt_tokens=sum(_count(call.extra, "prompt_tokens", call.prompt) for call in calls),
        cached_tokens=sum(_count(call.extra, "cached_tokens", 0) for call in calls),
        prompts=sum(call.prompt for call in calls),
        kept=sum(call.kept for call in calls),
    )


def _calls(step: Step) -> Iterator[_Call]:
    """Yield the calls of a step that reported their hits: one for each part. A later part kept all before it."""
    start = step.action_start
    for index, part in enumerate(step.parts):
        prompt = step.keep + start - step.start
        if _count(part.extra, "cached_tokens", -1) >= 0:
            yield _Call(part.extra, prompt, prompt if index else step.keep)
        start = part.stop


def _count(extra: Mapping[str, Any], name: str, missing: int) -> int:
    """Return a count of `Action.extra`, in which a policy may write anything."""
    value: Any = extra.get(name)
    return value if type(value) is int and value >= 0 else missing
