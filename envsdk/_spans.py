"""What an episode spends its time on, recorded as a tree of spans. Outside of a span, nothing is recorded.

No module here imports OpenTelemetry: `envsdk/rollouts/_otel.py` makes its spans from these, once an episode has ended.
"""

import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

SpanKind: TypeAlias = Literal["episode", "agent", "step", "policy", "method", "tool", "program", "request"]


@dataclass(slots=True, eq=False)
class EpisodeSpan:
    """A part of an episode: something that took time.

    Attributes:
        kind: What it is: the `episode`, an `agent` (a sub-agent), a `step`, a call of the `policy`, of a `method` or of
            a `tool`, the run of a `program`, or its `request` to the gateway.
        name: The name of the episode, the agent, the model, the method, the tool, or the route.
        has_content: Whether `facts` may have messages, arguments and results.
        facts: What else is known about it, by name.
        began_s: When it began, in seconds since the epoch.
        ended_s: When it ended; None before.
        error: The name of the exception that ended it, or None.
        children: The spans inside it, in the order in which they began.
        root: The span of the episode; None if it is this one.
    """

    kind: SpanKind
    name: str
    has_content: bool = False
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    began_s: float = field(default_factory=time.time)
    ended_s: float | None = None
    error: str | None = None
    children: "list[EpisodeSpan]" = field(default_factory=list["EpisodeSpan"])
    root: "EpisodeSpan | None" = None

    def child(self, kind: SpanKind, name: str, **facts: Any) -> "EpisodeSpan":
        """Begin a span inside this one, in any thread."""
        self.children.append(span := EpisodeSpan(kind, name, self.has_content, facts, root=self.root or self))
        return span


current_span: ContextVar[EpisodeSpan | None] = ContextVar("current_span", default=None)
"""The span that the code which is running belongs to; threads of methods and tasks inherit it."""


@contextmanager
def inside(span: EpisodeSpan | None) -> Generator[EpisodeSpan | None]:
    """Make a span the current one, yield it, and end it at the end of the `with` block; None changes nothing."""
    if span is None:
        yield None
        return
    before = current_span.set(span)
    try:
        yield span
    except BaseException as error:
        span.error = type(error).__name__
        raise
    finally:
        span.ended_s = time.time()
        current_span.reset(before)


def recorded(kind: SpanKind, name: str, **facts: Any) -> AbstractContextManager[EpisodeSpan | None]:
    """Record a `with` block as a span inside the current one; it gets the span, or None if nothing is recorded."""
    parent = current_span.get()
    return inside(None if parent is None else parent.child(kind, name, **facts))
