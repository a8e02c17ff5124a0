"""Decides which conversation of a session each request of a program belongs to. It does no I/O and sees no tokens.

The rules of FIELD, section 12, in their order:

1. A request that repeats one whose reply did not reach the program is a retry (`place`).
2. Find the conversations that it may continue (`_candidates`): the context that it names; the reply that it names;
   the last known assistant message, by the ids that the gateway issued, by its meaning, or by ids in its text; else the
   conversations with the same beginning.
3. Decide whether it continues one of them, and what it changes (`_fit`): it extends the record; or the last reply is
   in it, and other messages were changed; or the program left out or edited the last reply; or it replaced the
   beginning and left out the end.
4. Detect a summary in place of the messages that it summarizes (`_compacted`).
5. Otherwise, open a context (`_opening`): a branch of the conversation that it begins with, a side request (fewer
   tools, an instruction), or another agent's conversation (other tools and another system message).

Ids come before content, content before sessions (`Lineage`), and sessions before the system message and the tools.

Two conversations are never merged: in doubt, a request opens a context.
"""

import heapq
import re
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import TypeAlias

from ..messages import Message, ToolSchema
from ._lineage import Lineage
from ._normalized import RecordedMessage, Setting, entry_of, is_start, without_stop
from ._reading import Replies, RequestReading, read
from ._requests import ModelReply, ModelRequest

_EVIDENCE = 24  # characters: a shorter text may be in two conversations by chance
_TAG_OR_LINE = re.compile(r"<[^<>\n]*>|\n")
_WORD = re.compile(r"\w+")
_RETRIED = 64  # requests that are remembered for a retry
_RECENT = 8  # replies that may be the summary with which a request begins


@dataclass(frozen=True, slots=True)
class Continues:
    """A request that continues a conversation.

    Attributes:
        context: The name of its context.
        messages: The messages after `keep`. One that is recorded already, such as a reply, is the recorded object.
        keep: None if the whole conversation stays and `messages` follow; else how many of its messages stay, including
            its system message if it has one: `messages` replace the others.
        changed: The first change, as a phrase; empty if `keep` is None.
        system: The new system text, empty if it was left out; None if it is the context's.
        tools: The new tools; None if they are the context's.
        was_choice: Whether it fits other contexts equally well.
    """

    context: str
    messages: tuple[Message, ...]
    keep: int | None = None
    changed: str = ""
    system: str | None = None
    tools: tuple[ToolSchema, ...] | None = None
    was_choice: bool = False


@dataclass(frozen=True, slots=True)
class Opens:
    """A request that opens a context.

    Attributes:
        context: Its name, which is unique.
        role: Its role.
        messages: The messages after the first `keep` of `base`, without the system message.
        system: The text of its system message, which replaces that of `base`; None without any.
        tools: Its tools.
        base: The context whose messages it begins with; None if it shares none.
        keep: How many messages of `base` it begins with, including the system message of `base` if that has one. They
            may include those of a request to which no reply was given yet.
        was_choice: Whether it begins with other contexts equally well.
        parent: The context whose program started this one, if it has no `base`; None if it is not known.
        why: How the parent is known, as a phrase.
    """

    context: str
    role: str
    messages: tuple[Message, ...]
    system: str | None
    tools: tuple[ToolSchema, ...]
    base: str | None = None
    keep: int = 0
    was_choice: bool = False
    parent: str | None = None
    why: str = ""

    @property
    def detail(self) -> str:
        """The reason for opening the context, for people."""
        if self.base is not None:
            return f"from {self.base}"
        below = "" if self.parent is None else f" below {self.parent}: {self.why}"
        return f"{self.role}: a separate conversation{below}"


@dataclass(frozen=True, slots=True)
class Repeats:
    """A retry of a request whose reply did not reach the program.

    Attributes:
        request: The earlier request; its replies are the answer.
    """

    request: ModelRequest


@dataclass(eq=False, slots=True)
class ProgramConversation:
    """The conversation of a context.

    Attributes:
        name: The name of the context.
        role: Its role.
        setting: Its system message and its tools.
        base: The conversation that it begins with, or None.
        kind: `branch` or `side`, of its base; `agent`, or empty for the first one.
        is_ruled: Whether the built-in rule gives its role.
        lineage: The ids of its session, as its last request had them.
        parent: The conversation whose program started it, or None.
        steps: The number of its replies.
        record: Its messages, which end with the last reply.
        pending: The request that is waiting for a reply, or None.
        answered: The last request that was answered; None if it was forgotten.
        answered_at: The number of replies in the session at that time.
    """

    name: str
    role: str
    setting: Setting
    base: "ProgramConversation | None" = None
    kind: str = ""
    is_ruled: bool = False
    lineage: Lineage = field(default_factory=Lineage)
    parent: "ProgramConversation | None" = None
    steps: int = 0
    record: RequestReading = field(default_factory=RequestReading)
    pending: "PlacedRequest | None" = None
    answered: "PlacedRequest | None" = None
    answered_at: int = 0

    @property
    def newest(self) -> RequestReading:
        """The recorded messages, and those of the pending request."""
        return self.pending.reading if self.pending else self.record

    @property
    def bases(self) -> "list[ProgramConversation]":
        """The base, the base of that, ..."""
        bases: list[ProgramConversation] = []
        while base := (bases[-1] if bases else self).base:
            bases.append(base)
        return bases

    def position(self, messages: int) -> int:
        """Return a number of messages with the system message."""
        setting = self.pending.setting if self.pending else self.setting
        return messages + (setting.system is not None)

    def is_alike(self, request: ModelRequest) -> bool:
        """Return whether a request has its role, its system message and its tools."""
        return request.role in (None, self.role) and Setting.of(request).is_same(self.setting)


@dataclass(eq=False, slots=True)
class PlacedRequest:
    """A request in a conversation, with its retries, and the conversations of its further replies (`n`).

    Once it is answered, it has its replies, and `is_cut` if they were not sampled to their end, because the program no
    longer waited for them.
    """

    requests: list[ModelRequest]
    placement: Continues | Opens
    reading: RequestReading
    setting: Setting
    lineage: Lineage
    replies: list[RecordedMessage] = field(default_factory=list[RecordedMessage])
    is_cut: bool = False
    branches: list[ProgramConversation] = field(default_factory=list[ProgramConversation])


@dataclass(frozen=True, slots=True)
class Fit:
    """A request, read as the continuation of a conversation.

    Attributes:
        conversation: The conversation.
        reading: The messages of the request.
        reach: How many of them the conversation explains; -1 if the request does not continue it.
        changed: The first change, or an empty string.
        is_alike: Whether it has the role, the system message and the tools of the conversation.
        shares_session: Whether both name the same session.
    """

    conversation: ProgramConversation
    reading: RequestReading
    reach: int = -1
    changed: str = ""
    is_alike: bool = False
    shares_session: bool = False

    @property
    def rank(self) -> tuple[int, bool, bool, bool]:
        """A key by which fits are compared: a larger one fits better."""
        return self.reach, self.shares_session, self.is_alike, not self.changed


FitsIn: TypeAlias = dict[ProgramConversation, Fit]


class Conversations:
    """The conversations of a session.

    `place` decides what a request is. The request is then pending in its context until `answer` or `fail` is called
    with it. After `fail`, its context is as it was before `place`, so the same request again is placed as before.

    Args:
        role_of: Returns the role of a new context, given its request, or None for the built-in rule.
        reasoning_tags: The tags in which the model's family writes reasoning, which programs may put into the text of a
            reply; None for the well-known ones only.
    """

    def __init__(
        self,
        role_of: Callable[[ModelRequest], str | None] | None = None,
        reasoning_tags: tuple[str, str] | None = None,
    ) -> None:
        self._role_of = role_of
        self._open: dict[str, ProgramConversation] = {}  # by the names of their contexts
        self._placed: dict[int, tuple[ProgramConversation, PlacedRequest]] = {}  # by the identity of each request
        self._answered: deque[tuple[ProgramConversation, PlacedRequest]] = deque()
        self._failed: deque[tuple[ProgramConversation, PlacedRequest]] = deque(maxlen=_RETRIED)
        self._opened: dict[str, int] = {}  # contexts by role
        self._replies = Replies(reasoning_tags)
        self._owners: dict[RecordedMessage, ProgramConversation] = {}  # of the replies
        self._meanings: dict[
            Hashable, dict[ProgramConversation, RecordedMessage]
        ] = {}  # assistant messages by calls, and by text
        self._asked: dict[Hashable, dict[ProgramConversation, None]] = {}  # by the last assistant message of a request
        self._clock = 0
        self._beginnings: set[tuple[ProgramConversation, Hashable]] = set()  # the first messages that requests had
        self._streamed: set[RecordedMessage] = set()  # the replies of which a program may have read a part
        self._received: dict[RecordedMessage, int] = {}  # the characters that it read of those that were cut

    def place(self, request: ModelRequest) -> Continues | Opens | Repeats:
        """Return the place of a request in the conversations, and keep it pending until it is answered or fails."""
        failed = self._retried(request)
        is_last = failed is not None and failed[0].answered is failed[1]  # nothing was asked after it
        if failed is not None and is_last and not failed[1].is_cut:
            failed[1].requests.append(request)
            for reply in failed[1].replies:
                self._received.pop(reply, None)
            self._placed[id(request)] = failed
            return Repeats(failed[1].requests[0])
        lineage = Lineage.of(request)
        shares = {one: lineage.shares_session(one.lineage) for one in self._open.values()}
        fits = [replace(fit, shares_session=shares[fit.conversation]) for fit in self._fits(request)]
        if failed is not None and is_last:
            conversation, reading = failed[0], replace(failed[1].reading, keep=len(failed[1].reading.path))
            gone = conversation.position(reading.keep)
            fits = [Fit(conversation, reading, reading.keep, f"the reply {gone} was cut, and is asked for again")]
        best = max(fits, key=lambda fit: (*fit.rank, fit.conversation.answered_at), default=None)
        if request.context is not None and request.context not in self._open:
            best = None
        elif (
            best is not None
            and best.changed
            and any(fit.is_alike and len(fit.reading.path) == fit.reading.keep > best.reach >= 0 for fit in fits)
        ):
            best = None  # it repeats a part of another conversation, from which it branches
        elif best is None or best.reach < 0:
            shared = max((fit.reading.keep for fit in fits), default=0)
            best = self._compacted(request, shared, lineage) if request.context is None else None
        if best is None:
            conversation, placed = self._opening(request, fits, failed, lineage)
        else:
            conversation, setting = best.conversation, Setting.of(request)
            keep = best.reading.keep
            placement = Continues(
                context=conversation.name,
                messages=tuple(entry.message for entry in best.reading.path[keep:]),
                keep=conversation.position(keep) if keep < len(conversation.record.path) else None,
                changed=best.changed,
                system=None if setting.has_system_of(conversation.setting) else setting.system or "",
                tools=None if setting.has_tools_of(conversation.setting) else setting.tools,
                was_choice=sum(fit.rank == best.rank for fit in fits) > 1,
            )
            placed = PlacedRequest([request], placement, best.reading, setting, lineage)
        conversation.pending = placed
        self._placed[id(request)] = conversation, placed
        self._note_received(conversation, placed.reading)
        for key in _last_assistant(placed.reading):
            self._asked.setdefault(key, {})[conversation] = None
        self._beginnings |= {(conversation, _forms(placed.reading.path[:count])) for count in (1, 2)}
        return placed.placement

    def _retried(self, request: ModelRequest) -> tuple[ProgramConversation, PlacedRequest] | None:
        """Return the same request as it was placed before, if it failed or the client says that this is a retry."""
        is_retry = request.headers.get("x-stainless-retry-count", "0") != "0"
        earlier = [*self._failed, *(self._answered if is_retry else ())]
        found = next((one for one in earlier if request.repeats(one[1].requests[0])), None)
        if found in self._failed:
            self._failed.remove(found)
        return found

    def branch(self, request: ModelRequest) -> Opens:
        """Open a context for a further reply to a pending request (`n`), which `answer` then expects."""
        base, placed = self._pending(request)
        branch = ProgramConversation(
            *(self._new_name(base.role), base.role, placed.setting, base),
            *("side" if base.kind == "side" else "branch", base.is_ruled, placed.lineage),
            pending=placed,
        )
        self._open[branch.name] = branch
        placed.branches.append(branch)
        keep = base.position(len(placed.reading.path))
        return Opens(branch.name, base.role, (), placed.setting.system, placed.setting.tools, base.name, keep)

    def answer(self, request: ModelRequest, replies: Sequence[ModelReply], *, is_cut: bool = False) -> None:
        """Record the replies to a pending request: that of its context, then those of its branches in their order.

        Args:
            request: The request.
            replies: Its replies.
            is_cut: Whether the program went away, so that they are not complete.

        Raises:
            ValueError: If the request is not pending, or the number of replies is wrong.
        """
        conversation, placed = self._pending(request)
        conversations = [conversation, *placed.branches]
        if len(replies) != len(conversations):
            raise ValueError(
                f"got {len(replies)} replies to a request with {len(conversations) - 1} branches; expected one for the "
                "request and one for each branch: call branch() for each further reply before answer()"
            )
        placed.branches, placed.is_cut = [], is_cut
        for answered, reply in zip(conversations, replies, strict=True):
            entry = entry_of(reply.message, reply.id, self._replies.tags)
            placed.replies.append(entry)
            self._clock += 1
            answered.record = replace(placed.reading, path=(*placed.reading.path, entry))
            answered.setting, answered.pending = placed.setting, None
            answered.answered, answered.answered_at = placed, self._clock
            answered.steps += 1
            answered.lineage = placed.lineage
            if request.is_streamed:
                self._streamed.add(entry)
            self._replies.add(entry)
            self._owners[entry] = answered
            for new in (*placed.reading.path[placed.reading.keep :], entry):
                for meaning in _meanings(new):
                    self._meanings.setdefault(meaning, {})[answered] = new
        self._answered.append((conversation, placed))
        if len(self._answered) > _RETRIED:
            self._forget(*self._answered.popleft())

    def fail(self, request: ModelRequest) -> None:
        """Record that a request got no reply, or that its reply did not reach the program.

        Without a reply, its context is as it was before `place`, and a context that it opened is gone. With a reply,
        the context keeps it. In both cases the same request again is a retry.

        Raises:
            ValueError: If the request is neither pending nor one of the last that were answered.
        """
        if id(request) not in self._placed:
            raise ValueError("the request is neither pending nor one of the last that were answered")
        conversation, placed = self._placed[id(request)]
        self._failed.append((conversation, placed))
        if conversation.pending is not placed:
            is_last = conversation.answered is placed and conversation.pending is None
            for reply in placed.replies:  # unless a later request shows what the program has of it
                if is_last or reply not in conversation.newest.path:
                    self._received.setdefault(reply, 0)
            return
        self._forget(conversation, placed)
        opened = [*placed.branches, *([conversation] if isinstance(placed.placement, Opens) else [])]
        for gone in opened:
            del self._open[gone.name]
            for key in _last_assistant(placed.reading):
                self._asked[key].pop(gone, None)
        placed.branches = []
        conversation.pending = None

    @property
    def received(self) -> Mapping[str, int]:
        """How many characters of its text a program read of each reply that was cut on its way, by the reply's id."""
        return {reply.reply: characters for reply, characters in self._received.items() if reply.reply is not None}

    def roles(self) -> Mapping[str, str]:
        """Return the roles that the built-in rule gives to contexts, now that all requests are known.

        `main` is, of the conversations that nothing else started, one with tools if there is one, and of these the one
        with the most replies. Others are `side` if they have no tools, but `main` has.
        """
        ruled = [one for one in self._open.values() if one.is_ruled]
        whole = [one for one in ruled if one.base is None]
        main = max(whole, key=lambda one: (bool(one.setting.tools), not one.parent, one.steps), default=None)
        roles: dict[str, str] = {}
        for one in ruled:  # each comes after its base
            if one is main:
                roles[one.name] = "main"
            elif one.kind == "branch" and one.base is not None:
                roles[one.name] = roles.get(one.base.name, one.base.role)
            else:
                is_aside = one.kind == "side" or (main is not None and main.setting.tools and not one.setting.tools)
                roles[one.name] = "side" if is_aside else "agent"
        return roles

    def _note_received(self, conversation: ProgramConversation, reading: RequestReading) -> None:
        """Record which replies a program has received after all, and which it has received in part."""
        for reply in [reply for reply in self._received if reply in reading.path]:
            del self._received[reply]
        first = slice(reading.keep, reading.keep + 1)
        own = zip(conversation.record.path[first], reading.path[first], strict=False)
        for reply, sent in chain(reading.changed.items(), own):
            if reply in self._streamed and sent.is_assistant and is_start(sent, reply):
                self._received[reply] = len(sent.text)

    def _pending(self, request: ModelRequest) -> tuple[ProgramConversation, PlacedRequest]:
        found = self._placed.get(id(request))
        if found is None or found[0].pending is not found[1]:
            raise ValueError("the request is not pending: place it first, and answer it once")
        return found

    def _forget(self, conversation: ProgramConversation, placed: PlacedRequest) -> None:
        """Release a request, which is large."""
        for request in placed.requests:
            self._placed.pop(id(request), None)
        if conversation.answered is placed:
            conversation.answered = None

    # Find the conversations that a request may continue.

    def _fits(self, request: ModelRequest) -> list[Fit]:
        """Fit a request to the conversations that share its last known reply, or at least its beginning."""
        fits: FitsIn = {}
        for index, candidates in self._candidates(request):
            for step in range(3):
                if step == 0:
                    near = candidates
                elif step == 1:  # the bases from which the request may get its conversation back
                    others = [candidate for candidate in candidates if not candidate.is_alike(request)]
                    near = [base for other in others for base in other.bases if base.is_alike(request)]
                else:  # the branches
                    bases = set(candidates)
                    near = [one for one in self._open.values() if not bases.isdisjoint(one.bases)] if bases else []
                new = [one for one in dict.fromkeys(near) if one not in fits and self._open.get(one.name) is one]
                fits |= self._fits_in(new, request)
                for fit in fits.values():
                    keep = fit.reading.keep
                    if fit.reach >= 0 or (step and dict(fit.reading.starts).get(index, keep) < keep):
                        return list(fits.values())
        return list(fits.values())

    def _fits_in(self, conversations: Sequence[ProgramConversation], request: ModelRequest) -> FitsIn:
        """Fit a request to conversations.

        If it only adds messages of the program to one of them, after its last reply, then others that do not share all
        messages up to that reply are left out: they fit less well, and reading a request against each of many long
        conversations would take long.
        """
        likely = next(
            (one for one in conversations if 0 < len(one.newest.sent) == one.newest.repeated_by(request)), None
        )
        fit = self._fit(likely, request) if likely else None
        known: Sequence[RecordedMessage] = ()  # the messages that another conversation must have, too
        is_plain = fit is not None and fit.reach == fit.reading.keep and fit.is_alike and not fit.changed
        if fit is not None and is_plain and fit.reading.starts and fit.reading.starts[-1][1] == fit.reach - 1:
            known = fit.reading.path[: fit.reach]
        forms = [entry.form for entry in known]
        return {
            one: fit if fit is not None and one is likely else self._fit(one, request)
            for one in conversations
            if one is likely or [entry.form for entry in one.newest.path[: len(known)]] == forms
        }

    def _candidates(self, request: ModelRequest) -> Iterator[tuple[int, Sequence[ProgramConversation]]]:
        """Yield conversations with the index of the message that they may share with a request, the last one first."""
        if request.context in self._open:
            yield 0, [self._open[request.context]]
            return
        if (reply := self._replies.get(request.previous)) is not None:
            yield 0, self._around(reply, self._owners[reply])
            return
        for index in reversed(range(len(request.messages))):
            received = request.messages[index]
            if received.message.role != "assistant":
                continue
            found: list[tuple[ProgramConversation, RecordedMessage]] = []
            reply = self._replies.named(received)
            if reply is None:
                entry = entry_of(received.message, tags=self._replies.tags)
                meanings = dict.fromkeys([*_meanings(entry), without_stop(entry.text, request.stop), entry.tagged[1]])
                found = [pair for meaning in meanings for pair in self._meanings.get(meaning, {}).items()]
                reply = None if found else self._replies.written(received.message)
            if reply is not None:
                found = [(self._owners[reply], reply)]
            yield index, [near for owner, known in found for near in self._around(known, owner)]
        if request.messages:
            yield 0, list(self._asked.get(_first_line(request.messages[0].message), ()))

    def _around(self, entry: RecordedMessage, owner: ProgramConversation) -> list[ProgramConversation]:
        """Return the conversation of an assistant message, and those whose last request ended with it."""
        return [owner, *self._asked.get(entry, ())]

    # Decide whether a request continues a conversation.

    def _fit(self, conversation: ProgramConversation, request: ModelRequest) -> Fit:
        """Fit a request to a conversation: whether it continues it, and what it changes."""
        reading = read(request, conversation.newest, self._replies)
        is_same, is_named = conversation.is_alike(request), request.context == conversation.name
        fit, whole, keep = Fit(conversation, reading, is_alike=is_same), conversation.record.path, reading.keep
        if conversation.pending or request.role not in (None, conversation.role):
            return fit
        is_instructed = not request.messages or request.messages[-1].message.role != "tool"
        may_follow = Setting.of(request).may_replace(conversation.setting, is_instructed=is_instructed)
        if keep == len(whole):  # it extends the record
            return replace(fit, reach=keep) if is_same or is_named or may_follow else fit
        changed, following = _difference(conversation, reading), reading.path[keep:]
        if self._received.get(whole[-1]) == 0:  # the program continues from the last reply that it received
            gone = f"the reply {conversation.position(len(whole) - 1)} was left out"
            ends = (i + 1 for i, entry in enumerate(whole) if entry.is_assistant and self._received.get(entry) != 0)
            whole = whole[: max(ends, default=len(whole))]
            if len(whole) <= keep and (is_same or may_follow):
                is_answered = bool(following) and following[0].is_assistant
                return replace(fit, reach=keep, changed=changed if is_answered else gone)
        head = whole[-1]
        last = head if head in following else reading.changed.get(head)
        if last in following:  # the last reply is in it, perhaps changed
            reach = reading.path.index(last) + 1
            is_known = (head in reading.named or last is not head) and may_follow
            if is_named or is_known or (is_same and self._is_evidence(whole, reading.path[:reach], keep)):
                return replace(fit, reach=reach, changed=changed)
        elif is_same and _are_extended(whole[keep:-1], following):  # programs merge messages of one role
            return replace(fit, reach=keep, changed=f"the reply {conversation.position(len(whole) - 1)} was left out")
        elif is_same and following and keep == len(whole) - 1:
            if not following[0].is_assistant:
                return replace(fit, reach=keep, changed=f"the reply {conversation.position(keep)} was left out")
            short, long = sorted((following[0].text, head.text), key=len)
            if (short and short in long) or set(following[0].calls) & set(head.calls):  # extended, or a part of it
                return replace(fit, reach=keep + 1, changed=changed)
        elif may_follow:
            by_text = is_same and "compacted" in changed
            if (reach := self._known_after(conversation, reading, by_text=by_text)) > 0:
                return replace(fit, reach=reach, changed=changed)
        return replace(fit, reach=0, changed=changed) if is_named else fit

    def _known_after(self, conversation: ProgramConversation, reading: RequestReading, *, by_text: bool) -> int:
        """Return how many of a conversation's messages follow a new beginning in a request, whose end was left out.

        Args:
            conversation: The conversation.
            reading: The request.
            by_text: Whether a reply without an id counts, if no other conversation has it.

        Returns:
            The number; 0 if the beginning is not new, or no reply that follows is the conversation's.
        """
        keep, following = reading.keep, reading.path[reading.keep :]
        is_answered = bool(following) and following[0].is_assistant
        if keep > 1 or is_answered or (conversation, _forms(reading.path[: keep + 1])) in self._beginnings:
            return 0
        known = [entry for entry in reading.path if entry in conversation.record.path]
        sent = {**{reply: reply for reply in reading.named}, **reading.changed}
        own = [reply for reply in sent if self._owners[reply] is conversation and sent[reply] in following]
        if len(known) <= keep:  # a reply that was changed counts with what followed it only
            own = [reply for reply in own if sent[reply] is reply]
        is_known = bool(own) or (by_text and any(self._is_only_here(entry) for entry in known[keep:]))
        return max(len(known), len(own)) if is_known else 0

    def _is_evidence(self, whole: Sequence[RecordedMessage], path: Sequence[RecordedMessage], shared: int) -> bool:
        """Return whether the last messages of a record and of a request are equal by more than chance.

        They are if the last reply, which no other conversation has, is at its place after replies that are the same.
        """
        pairs = takewhile(lambda pair: pair[0].form == pair[1].form, zip(reversed(whole), reversed(path), strict=False))
        run = [entry for entry, _ in pairs]
        is_unique = self._is_only_here(run[0])
        if is_unique and len(path) == len(whole) and any(entry.is_assistant for entry in whole[:shared]):
            return True
        if is_unique:
            run += [entry for entry in path[shared:] if entry.is_assistant and entry in whole and entry not in run]
        texts = (text for entry in run for text in (entry.text, *chain.from_iterable(entry.calls)))
        is_first = shared > 0 or len(path) == 1  # it is not the question to another agent that contains it
        return (len(run) > 1 or (is_unique and is_first)) and sum(map(len, texts)) >= _EVIDENCE

    def _is_only_here(self, entry: RecordedMessage) -> bool:
        """Return whether a message is the assistant's, and no other conversation has one with its text or its calls."""
        return entry.is_assistant and all(len(self._meanings[meaning]) == 1 for meaning in _meanings(entry))

    def _compacted(self, request: ModelRequest, shared: int, lineage: Lineage) -> Fit | None:
        """Return the conversation that a request has only a summary of, written by the conversation or a side request.

        Programs remove the tags around a summary, quote a part of it, or put it into other words around it.

        Args:
            request: The request.
            shared: The most messages that it shares with a conversation. Shared messages are not a summary.
            lineage: Its session.
        """
        recent = heapq.nlargest(_RECENT, self._open.values(), key=lambda conversation: conversation.answered_at)
        for writer in recent:
            whole = writer.base if writer.kind == "side" else writer
            if whole is writer and not writer.setting.tools and not writer.is_alike(request):
                alike = (one for one in recent if one.is_alike(request) and one.lineage.shares_session(lineage))
                whole = next(alike, None)
            if whole is None or self._open.get(whole.name) is not whole:  # the request that opened it failed
                continue
            if writer.pending or whole.pending or not whole.is_alike(request):
                continue
            reading = read(request, whole.record, self._replies)
            new = [entry.text for entry in reading.path[reading.keep :][:3] if not entry.is_assistant]
            is_its_own = whole is not writer or reading.keep or whole.lineage.shares_session(lineage)
            summary = writer.record.path[-1].text
            if reading.keep >= shared and is_its_own and any(_quotes(text, summary) for text in new):
                return Fit(whole, reading, 0, f"compacted: the reply of {writer.name!r} is in the place of messages")
        return None

    # Opening a context.

    def _opening(
        self,
        request: ModelRequest,
        fits: Sequence[Fit],
        failed: tuple[ProgramConversation, PlacedRequest] | None,
        lineage: Lineage,
    ) -> tuple[ProgramConversation, PlacedRequest]:
        """Open a context for a request, based on the conversation with which it shares most."""
        setting = Setting.of(request)
        shared: list[tuple[tuple[int, int, bool, int], Fit]] = []  # the fits that share messages, by their closeness
        for fit in fits:
            known, of = fit.reading, fit.conversation
            has_reply = bool(known.starts) and known.starts[0][1] < known.keep
            is_asked_again = setting.has_system_of(of.setting) and (
                setting.has_tools_of(of.setting) or not setting.tools
            )
            # The question to another agent, with another system message or other tools, is not enough.
            if known.keep > 0 and (has_reply or is_asked_again):
                # Conversations with the same messages differ in their depth and their setting.
                closeness = known.keep, -len(of.bases), setting.is_same(of.setting), of.answered_at
                shared.append((closeness, fit))
        _, best = max(shared, key=lambda pair: pair[0], default=(None, None))
        reading = best.reading if best else read(request, RequestReading(), self._replies)
        base, keep = (best.conversation, reading.keep) if best else (None, 0)
        kind = "agent" if self._open else ""
        if base and setting.is_same(base.setting):
            kind = "branch"
        elif base and (not setting.tools or setting.has_system_of(base.setting)):
            kind = "side"
        given = request.role or (None if self._role_of is None else self._role_of(request))
        is_aside = kind == "agent" and not setting.tools and any(one.setting.tools for one in self._open.values())
        role = given or (base.role if base and kind == "branch" else "side" if is_aside else kind or "main")
        if request.context is not None and request.context not in self._open:
            name = request.context
        elif failed and isinstance(failed[1].placement, Opens) and failed[0].name not in self._open:
            name = failed[0].name
        else:
            name = self._new_name(role) if self._open else "main"
        parent, why = self._parent(request, lineage) if base is None else (None, "")
        is_ruled = not given and (kind != "branch" or (base is not None and base.is_ruled))
        conversation = ProgramConversation(name, role, setting, base, kind, is_ruled, lineage, parent)
        self._open[name] = conversation
        others = (fit.reading for _, fit in shared if fit.reading.keep == keep)
        placement = Opens(
            context=name,
            role=role,
            messages=tuple(entry.message for entry in reading.path[keep:]),
            system=setting.system,
            tools=setting.tools,
            base=base.name if base else None,
            keep=base.position(keep) if base else 0,
            was_choice=any(other.path[keep - 1] is not reading.path[keep - 1] for other in others),
            parent=None if parent is None else parent.name,
            why=why,
        )
        return conversation, PlacedRequest([request], placement, reading, setting, lineage)

    def _parent(self, request: ModelRequest, lineage: Lineage) -> tuple[ProgramConversation | None, str]:
        """Return the conversation whose program started that of a request, and how it is known.

        It has a reply that is in the request; or a header names it; or the arguments of one of its last calls are in
        the request (a sub-agent in the background has an answered one); or its call is the only one in flight.
        """
        for received in request.messages:
            if (reply := self._replies.named(received)) is not None:
                return self._owners[reply], "its replies are in it"
        recent = sorted(self._open.values(), key=lambda one: one.answered_at, reverse=True)
        for one in recent:
            if one.answered_at and (why := lineage.why_child_of(one.lineage)):
                return one, why
        flying = [one for one in recent if one.record.path and one.record.path[-1].calls and not one.pending]
        texts = [received.message.content.strip() for received in request.messages]
        whole = "\n".join(texts)
        last = [(one, entry) for one in recent for entry in one.record.path[: -_RECENT - 1 : -1]]
        for one, entry in [*((one, one.record.path[-1]) for one in flying), *last]:
            for call in entry.message.tool_calls:
                given = call.arguments.values() if isinstance(call.arguments, dict) else ()
                told = [value.strip() for value in given if isinstance(value, str) and value.strip()]
                is_flying = one in flying and entry is one.record.path[-1]
                is_told = any(len(value) >= _EVIDENCE and value in whole for value in told)
                if is_told or (is_flying and not set(texts).isdisjoint(told)):
                    return one, f"the arguments of its call of {call.name!r} are in it"
        if len(flying) == 1:
            return flying[0], f"its call of {flying[0].record.path[-1].message.tool_calls[0].name!r} is in flight"
        return None, ""

    def _new_name(self, role: str) -> str:
        """Return a new name for a context."""
        while True:
            self._opened[role] = number = self._opened.get(role, 0) + 1
            if (name := f"main/{role}-{number}") not in self._open:
                return name


def _difference(conversation: ProgramConversation, reading: RequestReading) -> str:
    """Describe the first change. Messages are counted like `keep`."""
    keep, first = reading.keep, conversation.position(reading.keep)
    dropped, following = conversation.record.path[keep:], reading.path[keep:]
    places = {entry: place for place, entry in enumerate(dropped)}
    new = next((index for index, entry in enumerate(following) if entry in places), 0)
    old = places[following[new]] if new else 0
    if keep <= 1 and len(dropped) > 2 and not any(entry in places for entry in following):  # all of it
        new, old = len(following), len(dropped)
    replies = [sum(entry.is_assistant for entry in part) for part in (following[:new], dropped[:old])]
    if old > new > 0 and replies[0] < replies[1]:
        return f"compacted: messages {first} to {first + old - 1} were replaced by {new}"
    if following and dropped and is_start(following[0], dropped[0]) and following[0].is_assistant:
        return f"message {first} (assistant) was cut"
    if following and following[0] not in dropped:
        is_inserted = dropped[:1] == following[1:2]
        return f"message {first} ({following[0].message.role}) {'was inserted' if is_inserted else 'differs'}"
    last = first - 1 + (dropped.index(following[0]) if following else len(dropped))
    return f"message {first} was left out" if last == first else f"messages {first} to {last} were left out"


def _are_extended(old: Sequence[RecordedMessage], new: Sequence[RecordedMessage]) -> bool:
    """Return whether messages are those that were asked, each perhaps with more text at its end, without a reply."""
    pairs = list(zip(old, new, strict=False))
    is_whole = 0 < len(pairs) == len(old) and not any(entry.is_assistant for entry in new[: len(old)])
    return is_whole and all(b.form[:-1] == a.form[:-1] and b.text.startswith(a.text) for a, b in pairs)


def _quotes(text: str, summary: str) -> bool:
    """Return whether a text contains a summary, or a part of it, or most of its words in their order."""
    longest = max((piece.strip() for piece in _TAG_OR_LINE.split(summary)), key=len)
    if len(longest) >= _EVIDENCE and longest in text:
        return True
    words = [_WORD.findall(one) for one in (text, summary)]
    one, other = (set(zip(each, each[1:], each[2:], strict=False)) for each in words)
    return len(one & other) >= max(_EVIDENCE // 2, min(len(one), len(other)) / 2)


def _forms(path: Sequence[RecordedMessage]) -> Hashable:
    return tuple(entry.form for entry in path)


def _meanings(entry: RecordedMessage) -> list[Hashable]:
    """Return the keys under which an assistant message is found: its calls, and its text."""
    return [key for key in (entry.calls, entry.text) if key and entry.is_assistant]


def _last_assistant(reading: RequestReading) -> list[Hashable]:
    """Return keys for the last assistant message of a request, and for the reply that it replaces, if it was changed.

    Without such a message it is the first line of its first message.
    """
    if not reading.starts:
        return [_first_line(reading.path[0].message)] if reading.path else []
    last = reading.path[reading.starts[-1][1]]
    return [last, *(reply for reply, changed in reading.changed.items() if changed is last)]


def _first_line(message: Message) -> tuple[str, str]:
    """Return the part of a first message that stays the same if text is added to it."""
    return message.role, message.content.strip().partition("\n")[0]
