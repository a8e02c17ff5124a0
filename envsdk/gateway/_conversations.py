"""Decides which conversation of a session each request of a program belongs to. It does no I/O and sees no tokens.

The rules, from DESIGN and FIELD, section 12, in their order: what the program names (a context, the reply that it
continues); the ids that the gateway issued; the meaning of the messages; the previous request without our reply; a
retry; other tools or another system message; a summary in the place of what it summarizes. Two conversations are never
taken for one: in doubt, a request opens a context, whose `base` is the conversation that it begins with.
"""

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from ..messages import Message
from ._normalized import Entry, entry_of, is_edited_reply, is_long, is_quoted, without_stop
from ._placements import Continues, Opens, Repeats
from ._reading import Reading, Replies, is_repeated, keeps, read
from ._requests import ModelReply, ModelRequest, ReceivedMessage
from ._rules import (
    Context,
    Fit,
    Placed,
    closeness,
    difference,
    givers,
    is_alike,
    is_longer,
    kind_of,
    may_change_setting,
    same_end,
    setting_of,
    shares_history,
)

_RETRIED = 64  # requests that are remembered for a retry
_RECENT = 8  # replies that may be the summary with which a request begins


class Conversations:
    """The conversations of a session.

    `place` decides what a request is. The request is then pending in its context until `answer` or `fail` is called
    with it. After `fail`, its context is as it was before `place`, so the same request again is placed as before.

    Args:
        role_of: Returns the role of a new context, given its messages with the system message first, or None.
        reasoning_tags: The tags in which the model's family writes reasoning, which programs may put into the text of a
            reply; None for the well-known ones only.
    """

    def __init__(
        self,
        role_of: Callable[[Sequence[Message]], str | None] | None = None,
        reasoning_tags: tuple[str, str] | None = None,
    ) -> None:
        self._role_of = role_of
        self._contexts: dict[str, Context] = {}
        self._placed: dict[int, Placed] = {}  # by the identity of each request
        self._answered: deque[Placed] = deque()
        self._failed: deque[Placed] = deque(maxlen=_RETRIED)
        self._opened: dict[str, int] = {}  # contexts by role
        self._replies = Replies(reasoning_tags)
        self._owners: dict[Entry, Context] = {}  # of the replies
        self._meanings: dict[Hashable, dict[Context, Entry]] = {}  # assistant messages by their calls and their text
        self._asked: dict[Hashable, dict[Context, None]] = {}  # by the last assistant message of a request
        self._clock = 0

    def place(self, request: ModelRequest) -> Continues | Opens | Repeats:
        """Return what a request is, and keep it pending until it is answered or fails."""
        failed = self._take_failed(request)
        if failed and failed.context.answered is failed:
            failed.requests.append(request)
            self._placed[id(request)] = failed
            return Repeats(failed.requests[0])
        fits = self._fits(request)
        best = self._best(request, fits)
        if best is None:
            placed = self._open(request, fits, failed)
        else:
            placed = _continue(request, best, was_choice=sum(fit.rank == best.rank for fit in fits) > 1)
        placed.context.pending = self._placed[id(request)] = placed
        for key in _last_assistant(placed.reading):
            self._asked.setdefault(key, {})[placed.context] = None
        return placed.placement

    def branch(self, request: ModelRequest) -> Opens:
        """Open a context for a further reply to a pending request (`n`), which `answer` then expects."""
        placed = self._pending(request)
        base, setting = placed.context, placed.setting
        name = self._name(base.role)
        context = Context(name, base.role, setting, base, base.is_side, pending=placed)
        self._contexts[name] = context
        placed.branches.append(context)
        keep = base.position(len(placed.reading.path))
        return Opens(name, base.role, (), setting.system, setting.tools, base.name, keep)

    def answer(self, request: ModelRequest, replies: Sequence[ModelReply]) -> None:
        """Record the replies to a pending request: that of its context, then those of its branches in their order.

        Raises:
            ValueError: If the request is not pending, or has another number of replies.
        """
        placed = self._pending(request)
        contexts = [placed.context, *placed.branches]
        if len(replies) != len(contexts):
            raise ValueError(
                f"got {len(replies)} replies to a request with {len(contexts) - 1} branches; expected one for the "
                "request and one for each branch: call branch() for each further reply before answer()"
            )
        for context, reply in zip(contexts, replies, strict=True):
            self._record(context, placed, entry_of(reply.message, reply.id))
        self._answered.append(placed)
        if len(self._answered) > _RETRIED:
            self._forget(self._answered.popleft())

    def fail(self, request: ModelRequest) -> None:
        """Note that a request got no reply, or that its reply did not reach the program.

        Without a reply, its context is as it was before `place`, and a context that it opened is gone. With a reply,
        the context keeps it. In both cases the same request again is a retry.
        """
        placed = self._placed.get(id(request))
        if placed is None:
            raise ValueError("the request is neither pending nor one of the last that were answered")
        self._failed.append(placed)
        if placed.context.pending is not placed:
            return
        self._forget(placed)
        opened = [*placed.branches, *([placed.context] if isinstance(placed.placement, Opens) else [])]
        for context in opened:
            del self._contexts[context.name]
            for key in _last_assistant(placed.reading):
                self._asked[key].pop(context, None)
        placed.context.pending = None

    def _pending(self, request: ModelRequest) -> Placed:
        placed = self._placed.get(id(request))
        if placed is None or placed.context.pending is not placed:
            raise ValueError("the request is not pending: place it first, and answer it once")
        return placed

    def _forget(self, placed: Placed) -> None:
        """Let go of a request, which is large."""
        for request in placed.requests:
            self._placed.pop(id(request), None)
        if placed.context.answered is placed:
            placed.context.answered = None

    def _take_failed(self, request: ModelRequest) -> Placed | None:
        """Return the failed request that a request repeats, once."""
        for placed in self._failed:
            if request.repeats(placed.requests[0]):
                self._failed.remove(placed)
                return placed
        return None

    def _record(self, context: Context, placed: Placed, reply: Entry) -> None:
        self._clock += 1
        context.record = replace(placed.reading, path=(*placed.reading.path, reply))
        context.setting, context.pending = placed.setting, None
        context.answered, context.answered_at = placed, self._clock
        self._replies.add(reply)
        self._owners[reply] = context
        for entry in (*placed.reading.path[placed.reading.keep :], reply):
            for meaning in _meanings(entry):
                self._meanings.setdefault(meaning, {})[context] = entry

    # Which contexts a request may belong to.

    def _fits(self, request: ModelRequest) -> list[Fit]:
        """Return how a request fits the contexts that share its last known reply, or at least its first message."""
        fits: dict[Context, Fit] = {}

        def find(index: int, contexts: Iterable[Context]) -> bool:
            new = dict.fromkeys(context for context in contexts if context not in fits)
            fits.update(self._fits_in([c for c in new if self._contexts.get(c.name) is c], request))
            return any(fit.reach >= 0 or (index >= 0 and fit.reading.knows(index)) for fit in fits.values())

        for index, contexts in self._candidates(request):
            others = [context for context in contexts if not is_alike(request, context)]
            is_found = find(-1, contexts) or find(-1, givers(request, others))  # an agent may get a conversation back
            if is_found or find(index, ()) or find(index, self._branches(contexts)):
                break
        return list(fits.values())

    def _fits_in(self, contexts: Sequence[Context], request: ModelRequest) -> dict[Context, Fit]:
        """Return how a request fits contexts; only those that fit best if it continues one of them without a change.

        The others have to share as many messages with it, so it is not read against them beyond the first that differs.
        """
        likely = next((context for context in contexts if is_repeated(request, context.newest)), None)
        fit = None if likely is None else self._fit(likely, request)
        least = fit.reach if fit is not None and fit.is_plain else 0
        return {
            context: fit if fit is not None and context is likely else self._fit(context, request)
            for context in contexts
            if context is likely or not least or keeps(request, context.newest, self._replies, least)
        }

    def _branches(self, contexts: Sequence[Context]) -> list[Context]:
        """Return the branches of contexts, and theirs."""
        bases = set(contexts)
        return [c for c in self._contexts.values() if not bases.isdisjoint(c.bases)] if bases else []

    def _candidates(self, request: ModelRequest) -> Iterator[tuple[int, list[Context]]]:
        """Yield contexts with the index of the message that they may share with the request, the last one first."""
        if request.context in self._contexts:
            yield 0, [self._contexts[request.context]]
            return
        if (reply := self._replies.get(request.previous)) is not None:
            yield 0, self._around(reply, self._owners[reply])
            return
        for index in reversed(range(len(request.messages))):
            if request.messages[index].message.role == "assistant":
                yield index, self._with(request.messages[index], request.stop)
        if request.messages:
            yield 0, list(self._asked.get(_first_line(request.messages[0].message), ()))

    def _with(self, received: ReceivedMessage, stop: Sequence[str]) -> list[Context]:
        """Return the contexts with an assistant message."""
        if reply := self._replies.named(received):
            return self._around(reply, self._owners[reply])
        entry = entry_of(received.message, tags=self._replies.tags)
        texts = (without_stop(entry.text, stop), entry.tagged[1])
        meanings = dict.fromkeys([*_meanings(entry), *texts])
        found = [pair for meaning in meanings for pair in self._meanings.get(meaning, {}).items()]
        if not found and (reply := self._replies.written(received.message)):
            return self._around(reply, self._owners[reply])
        return [near for context, known in found for near in self._around(known, context)]

    def _around(self, entry: Entry, owner: Context) -> list[Context]:
        return [owner, *self._asked.get(entry, ())]

    def _best(self, request: ModelRequest, fits: Sequence[Fit]) -> Fit | None:
        """Return the context that a request continues, or None if it opens one."""
        if request.context is not None and request.context not in self._contexts:
            return None
        best = max(fits, key=lambda fit: (*fit.rank, fit.context.answered_at), default=None)
        if best is not None and best.reach >= 0:
            return best
        shared = max((fit.reading.keep for fit in fits), default=0)
        return self._compacted(request, shared) if request.context is None else None

    def _compacted(self, request: ModelRequest, shared: int) -> Fit | None:
        """Return the context of which a request has only a summary, which a side branch of it or itself replied.

        Args:
            request: The request.
            shared: How many messages it shares with any context. What it shares with another one is no summary.
        """
        recent = heapq.nlargest(_RECENT, self._contexts.values(), key=lambda context: context.answered_at)
        for context in recent:
            whole = context.base if context.is_side else context
            if whole is None or self._contexts.get(whole.name) is not whole:  # the request that opened it failed
                continue
            if context.pending or whole.pending or not is_alike(request, whole):
                continue
            reading = read(request, whole.record, self._replies)
            new = [entry.text for entry in reading.path[reading.keep :][:3] if not entry.is_assistant]
            is_its_own = reading.keep >= shared and (context.is_side or reading.keep)
            if is_its_own and is_quoted(context.record.path[-1], new):
                return Fit(whole, reading, 0, f"compacted: the reply of {context.name!r} is in the place of messages")
        return None

    def _fit(self, context: Context, request: ModelRequest) -> Fit:
        """Return whether a request continues a context, and what it changes."""
        reading = read(request, context.newest, self._replies)
        is_same, is_named = is_alike(request, context), request.context == context.name
        fit, whole, keep = Fit(context, reading, is_alike=is_same), context.record.path, reading.keep
        if context.pending or request.role not in (None, context.role):
            return fit
        if keep == len(whole):
            return replace(fit, reach=keep) if is_same or is_named or may_change_setting(context, request) else fit
        changed, head, following = difference(context, reading), whole[-1], reading.path[keep:]
        last = head if head in following else reading.changed.get(head)
        if last in following:
            reach = reading.path.index(last) + 1
            is_known = (head in reading.named or last is not head) and may_change_setting(context, request)
            if is_named or is_known or (is_same and self._is_evidence(same_end(whole, reading.path[:reach]), keep)):
                return replace(fit, reach=reach, changed=changed)
        elif is_same and following and keep == len(whole) - 2 and is_longer(following[0], whole[keep]):
            return replace(fit, reach=keep, changed=f"the reply {context.position(keep + 1)} was left out")
        elif is_same and following and keep == len(whole) - 1:
            if not following[0].is_assistant:
                return replace(fit, reach=keep, changed=f"the reply {context.position(keep)} was left out")
            if is_edited_reply(following[0], head):
                return replace(fit, reach=keep + 1, changed=changed)
        return replace(fit, reach=0, changed=changed) if is_named else fit

    def _is_evidence(self, run: Sequence[Entry], shared: int) -> bool:
        """Return whether messages at the end are those of a context, of which a request shares others at the start."""
        is_unique = all(len(self._meanings[meaning]) == 1 for meaning in _meanings(run[0]))
        return (len(run) > 1 or (is_unique and shared > 0)) and is_long(run)

    # Opening a context.

    def _open(self, request: ModelRequest, fits: Sequence[Fit], failed: Placed | None) -> Placed:
        setting = setting_of(request)
        shared = [fit for fit in fits if shares_history(fit, setting)]
        best = max(shared, key=lambda fit: (fit.reading.keep, *closeness(fit.context, setting)), default=None)
        reading = best.reading if best else read(request, Reading(), self._replies)
        base, keep = (best.context, best.reading.keep) if best else (None, 0)
        others = [
            fit
            for fit in shared
            if fit.reading.keep == keep and fit.reading.path[keep - 1] is not reading.path[keep - 1]
        ]
        kind = kind_of(base, setting) if self._contexts else "main"
        role = request.role or self._given_role(request) or (base.role if base and kind == "branch" else kind)
        context = Context(self._new_name(request, role, failed), role, setting, base, kind == "side")
        self._contexts[context.name] = context
        opens = Opens(
            context=context.name,
            role=role,
            messages=_messages(reading.path[keep:]),
            system=setting.system,
            tools=setting.tools,
            base=base.name if base else None,
            keep=base.position(keep) if base else 0,
            was_choice=bool(others),
        )
        return Placed([request], opens, context, reading, setting)

    def _given_role(self, request: ModelRequest) -> str | None:
        if self._role_of is None:
            return None
        system = [] if request.system is None else [Message(role="system", content=request.system)]
        return self._role_of([*system, *(received.message for received in request.messages)])

    def _new_name(self, request: ModelRequest, role: str, failed: Placed | None) -> str:
        if request.context is not None and request.context not in self._contexts:
            return request.context
        if failed and isinstance(failed.placement, Opens) and failed.context.name not in self._contexts:
            return failed.context.name
        return self._name(role) if self._contexts else "main"

    def _name(self, role: str) -> str:
        """Return a name that no context had."""
        while True:
            self._opened[role] = number = self._opened.get(role, 0) + 1
            if (name := f"main/{role}-{number}") not in self._contexts:
                return name


def _continue(request: ModelRequest, fit: Fit, *, was_choice: bool) -> Placed:
    context, reading, setting = fit.context, fit.reading, setting_of(request)
    is_edit = reading.keep < len(context.record.path)
    continues = Continues(
        context=context.name,
        messages=_messages(reading.path[reading.keep :]),
        keep=context.position(reading.keep) if is_edit else None,
        changed=fit.changed,
        system=None if setting.has_system_of(context.setting) else setting.system or "",
        tools=None if setting.has_tools_of(context.setting) else setting.tools,
        was_choice=was_choice,
    )
    return Placed([request], continues, context, reading, setting)


def _messages(path: Sequence[Entry]) -> tuple[Message, ...]:
    return tuple(entry.message for entry in path)


def _meanings(entry: Entry) -> list[Hashable]:
    """Return the keys under which an assistant message is found: its calls, and its text."""
    return [key for key in (entry.calls, entry.text) if key and entry.is_assistant]


def _last_assistant(reading: Reading) -> list[Hashable]:
    """Return the last assistant message of a request, and the reply in whose place it is, if the program changed it.

    Without such a message it is the first line of its first message.
    """
    if not reading.starts:
        return [_first_line(reading.path[0].message)] if reading.path else []
    last = reading.path[reading.starts[-1][1]]
    return [last, *(reply for reply, changed in reading.changed.items() if changed is last)]


def _first_line(message: Message) -> tuple[str, str]:
    """Return what stays the same of a first message to which text is added."""
    return message.role, message.content.strip().partition("\n")[0]
