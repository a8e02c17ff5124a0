"""The contexts of a session, and the rules for what a request may be in one of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from ._normalized import Entry, Setting
from ._placements import Continues, Opens
from ._reading import Reading
from ._requests import ModelRequest


@dataclass(eq=False, slots=True)
class Context:
    """A context of a session.

    Attributes:
        name: Its name.
        role: Its role.
        setting: Its system message and its tools.
        base: The context that it begins with, or None.
        is_side: Whether it is a side branch of its base.
        record: Its conversation, which ends with the last reply.
        pending: The request that waits for a reply, or None.
        answered: The last request that got one; None if that is long ago.
        answered_at: How many replies the session had then.
    """

    name: str
    role: str
    setting: Setting
    base: "Context | None" = None
    is_side: bool = False
    record: Reading = field(default_factory=Reading)
    pending: "Placed | None" = None
    answered: "Placed | None" = None
    answered_at: int = 0

    @property
    def newest(self) -> Reading:
        """What is recorded and asked."""
        return self.pending.reading if self.pending else self.record

    @property
    def bases(self) -> "list[Context]":
        """The base, the base of that, ..."""
        bases: list[Context] = []
        while base := (bases[-1] if bases else self).base:
            bases.append(base)
        return bases

    def position(self, messages: int) -> int:
        """Return a number of messages with the system message."""
        setting = self.pending.setting if self.pending else self.setting
        return messages + (setting.system is not None)


@dataclass(eq=False, slots=True)
class Placed:
    """A request in its context, with its retries, and the contexts of its further replies."""

    requests: list[ModelRequest]
    placement: Continues | Opens
    context: Context
    reading: Reading
    setting: Setting
    branches: list[Context] = field(default_factory=list[Context])


@dataclass(frozen=True, slots=True)
class Fit:
    """A request, read as the continuation of a context.

    Attributes:
        context: The context.
        reading: The conversation of the request.
        reach: How many messages of it are explained if it continues the context; -1 if it does not.
        changed: What changed first, if anything did.
        is_alike: Whether it has the role, the system message and the tools of the context.
    """

    context: Context
    reading: Reading
    reach: int = -1
    changed: str = ""
    is_alike: bool = False

    @property
    def rank(self) -> tuple[int, bool, bool]:
        """How well it fits."""
        return self.reach, self.is_alike, not self.changed

    @property
    def is_plain(self) -> bool:
        """Whether the request only adds messages of the program to the context, after its last reply.

        A context fits better or equally well only if its first `reach` messages are those of the request: what follows
        in the request has no assistant message, and so no reply of another context.
        """
        starts = self.reading.starts
        return self.rank == (self.reading.keep, True, True) and bool(starts) and starts[-1][1] == self.reach - 1


def setting_of(request: ModelRequest) -> Setting:
    """Return the system message and the tools of a request."""
    return Setting(request.system, tuple(request.tools))


def givers(request: ModelRequest, contexts: Sequence[Context]) -> list[Context]:
    """Return the bases of contexts that are alike to a request."""
    return [base for context in contexts for base in context.bases if is_alike(request, base)]


def is_alike(request: ModelRequest, context: Context) -> bool:
    """Return whether a request has the role, the system message and the tools of a context."""
    return request.role in (None, context.role) and setting_of(request).is_same(context.setting)


def may_change_setting(context: Context, request: ModelRequest) -> bool:
    """Return whether a request with another system message or other tools may continue a context.

    Both are other in another conversation. Fewer tools and an instruction, or another system message without any tools,
    are those of a side request, such as for a title.
    """
    old, new = context.setting, setting_of(request)
    if new.has_tools_of(old):
        return new.has_system_of(old) or bool(new.tools) or new.resembles(old)
    is_instructed = not request.messages or request.messages[-1].message.role != "tool"
    return new.has_system_of(old) and bool(new.tools) and (new.extends_tools_of(old) or not is_instructed)


def is_longer(sent: Entry, recorded: Entry) -> bool:
    """Return whether a message is another one to which text was added: programs merge messages of one role."""
    return sent.form[:-1] == recorded.form[:-1] and sent.text.startswith(recorded.text) and not sent.is_assistant


def same_end(whole: Sequence[Entry], path: Sequence[Entry]) -> list[Entry]:
    """Return the messages at the ends that are the same."""
    pairs = zip(reversed(whole), reversed(path), strict=False)
    return [entry for entry, _ in takewhile(lambda pair: pair[0].form == pair[1].form, pairs)]


def difference(context: Context, reading: Reading) -> str:
    """Return what changed first, for people. Messages are counted like `keep`."""
    keep, first = reading.keep, context.position(reading.keep)
    dropped, following = context.record.path[keep:], reading.path[keep:]
    if following and following[0] not in dropped:
        is_inserted = dropped[:1] == following[1:2]
        return f"message {first} ({following[0].message.role}) {'was inserted' if is_inserted else 'differs'}"
    last = first - 1 + (dropped.index(following[0]) if following else len(dropped))
    return f"message {first} was left out" if last == first else f"messages {first} to {last} were left out"


def shares_history(fit: Fit, setting: Setting) -> bool:
    """Return whether a request begins with messages of a context, and not only with the question to another agent."""
    reading, base = fit.reading, fit.context.setting
    has_reply = bool(reading.starts) and reading.starts[0][1] < reading.keep
    is_asked_again = setting.has_system_of(base) and (setting.has_tools_of(base) or not setting.tools)
    return reading.keep > 0 and (has_reply or is_asked_again)


def closeness(context: Context, setting: Setting) -> tuple[int, bool, int]:
    """Return by what contexts with the same messages are told apart as a base."""
    return -len(context.bases), setting.is_same(context.setting), context.answered_at


def kind_of(base: Context | None, setting: Setting) -> str:
    """Return what a new context is: a branch of its base, a side branch of it, or another agent's conversation."""
    if base is None:
        return "agent"
    if setting.is_same(base.setting):
        return "branch"
    return "side" if not setting.tools or setting.has_system_of(base.setting) else "agent"
