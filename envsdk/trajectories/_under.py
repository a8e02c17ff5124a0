"""An episode under another history policy: its messages and sampled tokens, replayed in fresh contexts."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from .._visible import brief
from ..contexts._context import Context, Delta
from ..contexts._edits import Edit
from ..contexts._history import POLICIES, SUMMARY, HistoryPolicy, SummaryRequest, get_history, is_summary_of
from ..contexts._notes import Notes
from ..contexts._protocol import Break
from ..contexts._roles import RoleLog
from ..contexts._side_data import Aligned
from ..errors import CannotReplay, EnvsdkError
from ..limits import StopReason
from ..messages import Message
from ..rendering.renderer import Renderer
from ._context_log import ContextLog, logged
from ._steps import Origin, Step


class _Recorded(Protocol):
    """The fields of a `Trajectory` that a replay reads."""

    id: str
    contexts: dict[str, ContextLog]
    steps: list[Step]
    history: dict[str, Any]
    stop_reason: str
    origins: list[Origin]
    final_break: Break | None
    final_turn: dict[str, Any]


_CHANGES = {"edit", "system", "tools_before", "cut", "continues"}
"""The items of `Step.turn` that may cause a break `edit` or `fold`."""
REJECTED = "the summary was rejected"
"""How the error of a summary begins whose text was rejected."""


@dataclass(eq=False)
class _Replayed:
    """A context that is replayed.

    Attributes:
        log: Its record.
        context: The same context under the other policy.
        tools: The tools that it has now, and after each change of them.
        limit: The largest length of the context, in tokens; None for no limit.
        notes: The notes that it shares with its branches.
        conversation: The conversation as it was recorded. It is shorter than the context's if folds are not replayed.
        read: The number of messages of the log that were used.
        added: The number of those that the last observation added.
        requests: The summary that the policy requests after the last reply (None: none), once it was asked.
        summary: The context of the summary that the model wrote since the last reply, or None.
        summaries: The number of summaries that were recorded before the last reply.
    """

    log: ContextLog
    context: Context
    tools: list[list[dict[str, Any]]]
    limit: int | None
    notes: Notes = field(default_factory=Notes)
    conversation: list[Message] = field(default_factory=list[Message])
    read: int = 0
    added: int = 0
    requests: list[SummaryRequest | None] = field(default_factory=list[SummaryRequest | None])
    summary: str | None = None
    summaries: int = 0

    def request(self) -> SummaryRequest | None:
        """Return the summary that the policy requests after the last reply. The policy is asked once."""
        if not self.requests:
            self.requests.append(self.context.request())
        return self.requests[0]


class Replay:
    """The replay of an episode under another history policy, step by step.

    Args:
        trajectory: The episode.
        policy: The history policy of the agent that was reset. Sub-agents keep theirs.
        renderer_of: Returns the renderer of a context.
        limit: The largest length of the contexts of that agent, in tokens; None for no limit.
        folds: Whether folds by the model are replayed; otherwise, what they folded stays.
    """

    def __init__(
        self,
        trajectory: _Recorded,
        policy: HistoryPolicy,
        renderer_of: Callable[[ContextLog], Renderer],
        limit: int | None,
        *,
        folds: bool,
    ) -> None:
        self._trajectory, self._policy, self._renderer_of = trajectory, policy, renderer_of
        self._limit, self._folds = limit, folds
        self._contexts: dict[str, _Replayed] = {}
        self._skipped: set[str] = set()
        self._unanswered: dict[str, ContextLog] = {}  # summaries that were requested without a reply
        self._steps: list[Step] = []
        self._moved: dict[tuple[str, int], int] = {}  # positions in the logs of contexts: recorded, and now
        self._left_out: list[str] = []
        self._next: dict[int, Step] = {}  # the step that follows each step in its context
        self._tools_before: dict[str, list[list[dict[str, Any]]]] = {}  # by context, the tools before each change
        before: dict[str, int] = {}
        for index, step in enumerate(trajectory.steps):
            if step.context in before:
                self._next[before[step.context]] = step
            before[step.context] = index
            if "tools_before" in step.turn:
                self._tools_before.setdefault(step.context, []).append(step.turn["tools_before"])
        self._last = before
        self._final: Step | None = None  # the turn after the last reply, if it was rendered
        if (name := trajectory.final_turn.get("context")) in before:
            turn = {key: value for key, value in trajectory.final_turn.items() if key != "context"}
            self._final = Step(name, name, 0, False, 0, 0, break_=trajectory.final_break, turn=turn)
            self._next[before[name]] = self._final
            if "tools_before" in turn:
                self._tools_before.setdefault(name, []).append(turn["tools_before"])

    def run(self) -> dict[str, Any]:
        """Return the fields of the trajectory that change.

        Raises:
            CannotReplay: See `Trajectory.under`.
        """
        steps, final = self._trajectory.steps, self._final
        ending: dict[str, Any] = {}
        for index, step in enumerate(steps):
            if step.context in self._skipped or not self._exists(step):
                self._skipped.add(step.context)
                continue
            is_new = step.context not in self._contexts
            delta, break_, turn = self._observe(step, index)
            if delta.full is not None:
                left = [one for one in steps[index:] if one.context not in self._skipped]
                sampled = sum(one.stop - one.action_start for one in left)
                self._left_out.append(
                    f"{step.context}: the prompt of step {index + 1} does not fit ({delta.full}); the last {len(left)} "
                    f"replies have {sampled} sampled tokens"
                )
                ending = {"status": "truncated", "stop_reason": str(delta.full), "error": None, "error_kind": None}
                ending |= {"final_break": break_, "final_turn": {} if is_new else {"context": step.context, **turn}}
                break
            self._act(index, delta, break_, turn)
        else:
            reason = self._trajectory.stop_reason
            if self._steps and final is None and reason in (StopReason.CUT, StopReason.MAX_CONTEXT_TOKENS):
                last = self._contexts[self._steps[-1].context]  # its last reply was cut, with or without room
                is_full = last.limit is not None and len(last.context) >= last.limit
                ending = {"stop_reason": str(StopReason.MAX_CONTEXT_TOKENS if is_full else StopReason.CUT)}
            if final is not None and final.context in self._contexts:
                delta, break_, turn = self._observe(final, len(steps))
                ending = {"final_break": break_, "final_turn": {"context": final.context, **turn}}
                if delta.full is not None:
                    ending["stop_reason"] = str(delta.full)
                else:
                    if "continues" in turn:  # the reply that would go on stays as it is
                        replayed = self._contexts[final.context]
                        replayed.context.messages.append(replayed.log.messages[replayed.read - 1])
                    self._left_out.append(f"{final.context}: there is room for another reply, which was not sampled")
        origins = [
            replace(origin, tokens={name: self._moved.get((name, at), at) for name, at in origin.tokens.items()})
            for origin in self._trajectory.origins
        ]
        contexts = [replayed.context for replayed in self._contexts.values()]
        return {
            "history": self._policy.specification(),
            "contexts": self._logs(is_whole="status" not in ending),
            "steps": self._steps,
            "origins": origins,
            "renderer_rewrites": next((one.rewriting for one in contexts if one.steps > 1 and one.rewriting), ""),
            "left_out": self._left_out,
            **ending,
        }

    def _exists(self, step: Step) -> bool:
        """Return whether the context of a step exists under the other policy: a summary may not be requested."""
        logs = self._trajectory.contexts
        if step.base in self._skipped:
            return False
        if step.context in self._contexts or not is_summary_of(step.context, step.base):
            return True
        above = self._contexts[step.base]
        if logs[step.context].role != above.log.role:
            return True
        above.summaries += 1
        request = above.request()
        if request is not None and request.writer is None:
            above.summary = step.context
            return True
        sampled = sum(one.stop - one.action_start for one in self._trajectory.steps if one.context == step.context)
        self._left_out.append(f"{step.context}: this summary is not requested; it has {sampled} sampled tokens")
        return False

    def _made(self, name: str) -> _Replayed:
        """Make a context without messages."""
        trajectory, log, policy = self._trajectory, self._trajectory.contexts[name], self._policy
        own = log.history or (trajectory.history if log.stop_reason else policy.specification())
        if own != policy.specification():
            try:
                policy = get_history(own)
            except EnvsdkError as error:
                raise CannotReplay(f"the history policy of {name!r} cannot be made from its record: {error}") from error
        context = Context(name, log.role, self._renderer_of(log), policy, parent=log.parent)
        context.roles = None if log.roles is None else RoleLog()
        tools = [*self._tools_before.get(name, []), log.tools]
        return _Replayed(log, context, tools, None if log.stop_reason else self._limit)

    def _observe(self, step: Step, index: int) -> tuple[Delta, Break | None, dict[str, Any]]:
        """Take the turn of a step; return its delta, its break, and how it was made."""
        name, turn, was = step.context, step.turn, step.break_
        is_new = name not in self._contexts
        replayed = self._made(name) if is_new else self._contexts[name]
        self._contexts[name] = replayed
        context, limit = replayed.context, replayed.limit
        if was is not None and was.reason in ("edit", "fold") and not turn.keys() & _CHANGES:
            own = replayed.log.history or self._trajectory.history
            if own.get("name") in (*POLICIES,):  # one of the author's own may declare edits, too
                raise CannotReplay(
                    f"step {index + 1} of {self._trajectory.id!r} cannot be replayed: its record lacks how the break "
                    f"{was.reason!r} was made, as one does that an older version of envsdk wrote: play it again"
                )
        if "continues" in turn:
            self._check(index, not is_new, "its turn continues a reply, and there is none")
            replayed.conversation.pop()
            replayed.added = 0
            addition = _read(turn["continues"])
            assert addition is not None
            delta = context.go_on(addition, max_tokens=limit)
            return delta, delta.break_, context.turn
        prefill = _read(turn.get("prefill"))
        above = None if step.base == name else self._contexts[step.base]
        if above is not None:
            replayed.notes = above.notes
            replayed.conversation, context.conversation = list(above.conversation), list(above.context.conversation)
            replayed.read = len(above.context.messages)
            if "edit" in turn:
                edit = turn["edit"]
                kept = above.conversation[edit["start"] : edit["keep"]]
                replayed.read = len(kept) + sum(place is not None for place in edit["messages"])
        is_next = step.reply is None or step.reply >= replayed.read
        self._check(index, is_next, f"its reply is the message {step.reply}, and {replayed.read} came before it")
        new = replayed.log.messages[replayed.read : step.reply]
        self._check(index, bool(new) or not is_new or above is not None, "its context has no message before it")
        if is_new and above is None:
            replayed.conversation = list(new)
            delta = context.open(new, replayed.tools[0], max_tokens=limit, prefill=prefill)
        else:
            options: dict[str, Any] = {"max_tokens": limit, "prefill": prefill}
            is_system = [message.role == "system" for message in new[:1]]
            self._check(index, "system" not in turn or any(is_system), "its turn has no system message")
            system = new[0] if "system" in turn else None
            if "tools_before" in turn:
                del replayed.tools[0]
                options["tools"] = replayed.tools[0]
            unknown = new if system is None else new[1:]
            if "edit" in turn:
                places, start, keep = (turn["edit"][key] for key in ("messages", "start", "keep"))
                count, known = len(replayed.conversation), [place for place in places if place is not None]
                is_legal = start <= keep <= count and max(known, default=0) < count and (places or start < keep)
                is_legal = is_legal and len(places) - len(known) == len(unknown)
                self._check(index, is_legal, f"its edit does not fit {count} messages and {len(unknown)} new ones")
            messages, options["edit"] = self._messages(replayed, turn, unknown, system)
            if "notes" in turn:
                noted, count = turn["notes"], len(replayed.notes.texts)
                is_legal = noted["start"] <= count and (bool(messages) or "repeated" not in noted)
                self._check(index, is_legal, f"its notes do not fit the {count} that came before")
                (context if above is None else above.context).notes = replayed.notes
                replayed.notes.take(noted, messages[-1] if messages else None)
            if system is not None:
                options["system"] = system.content
            if above is not None:
                delta = context.open_on(above.context, messages, **options)
            else:
                context.skips_rewrite = "skips_rewrite" in turn
                edit = options["edit"]
                is_fold = edit is not None and edit.reason == "fold"  # then no summary is requested
                delta = context.observe(messages, summary=None if is_fold else self._summary(replayed), **options)
        replayed.read, replayed.added = replayed.read + len(new), len(new)
        if is_new:
            return delta, was and replace(was, kept=delta.keep), context.turn
        is_return = "returns" in turn or (was is not None and was.reason == "return")
        before = index
        while before and self._trajectory.steps[before - 1].context in self._skipped:
            before -= 1
        if before < index and self._trajectory.steps[before - 1].context == name:
            is_return = False  # only a summary was written, which is not requested
        switch = Break("switch", "return", name, name, delta.keep, 0) if is_return else None
        if delta.break_ is not None and is_return:
            context.turn["returns"] = True
        return delta, delta.break_ or switch, context.turn

    def _check(self, index: int, is_legal: bool, problem: str) -> None:
        """Check what a damaged record may have wrong.

        Raises:
            CannotReplay: If it is wrong.
        """
        if not is_legal:
            raise CannotReplay(
                f"step {index + 1} of {self._trajectory.id!r} cannot be replayed: {problem}. The record is damaged, or "
                "lacks how its turns were made, as one that was imported from a log"
            )

    def _messages(
        self, replayed: _Replayed, turn: Mapping[str, Any], new: list[Message], system: Message | None
    ) -> tuple[list[Message], Edit | None]:
        """Return the messages of a turn and its edit, in terms of the replayed conversation."""
        before, actual = replayed.conversation, replayed.context.conversation
        after = list(before)
        if system is not None:
            after[: bool(before) and before[0].role == "system"] = [system]
        if "edit" not in turn:
            replayed.conversation = [*after, *new]
            return new, None
        edit: dict[str, Any] = turn["edit"]
        indices: list[int | None] = edit["messages"]
        unknown, start, keep = iter(new), edit["start"], edit["keep"]
        given = [next(unknown) if index is None else before[index] for index in indices]
        replayed.conversation = [*after[start:keep], *given]
        if edit["reason"] == "fold" and not self._folds:
            return new, None
        if len(before) != len(actual):  # earlier folds were not replayed
            places = {id(message): place for place, message in enumerate(actual)}
            moved = len(after) - len(before)
            for at in range(len(before)):
                bounds = places[id(before[at])] + moved
                keep = bounds + 1 if at + moved == edit["keep"] - 1 else keep
                start = bounds if at + moved == edit["start"] and at else start
        return given, Edit(keep, edit["detail"], start, edit["reason"])

    def _summary(self, replayed: _Replayed) -> str | None:
        """Return the summary that the policy gets with the next turn of a context, or None."""
        request = replayed.request()
        if request is None:
            return None
        if request.writer is None:
            name = f"{replayed.context.name}/{SUMMARY}-{replayed.summaries + 1}"
            if (written := replayed.summary) is not None:
                return self._accepted(replayed.context, self._contexts[written])
            if name in self._trajectory.contexts and name not in self._last:
                self._unanswered[name] = self._trajectory.contexts[name]  # it had no room for a reply
                replayed.summaries += 1
            else:
                steps = replayed.context.steps
                self._left_out.append(f"{replayed.context.name}: no summary was written after reply {steps}")
            return None
        written = request.writer(request.messages)
        if inspect.isawaitable(written):
            if inspect.iscoroutine(written):
                written.close()
            raise CannotReplay("the summarizer is async, and the replay is not: give the policy a plain function")
        if not (written is None or isinstance(written, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CannotReplay(f"a summarizer returns a string, or None for no summary, got {brief(written)}")
        return None if written is None or replayed.context.rejects(written) else written

    def _accepted(self, context: Context, written: _Replayed) -> str | None:
        """Return a summary that the model wrote if the policy accepts it, or None; its log gets the reason."""
        log, last = written.log, self._trajectory.steps[self._last[written.context.name]]
        is_whole = log.stop_reason == StopReason.TERMINATED and last.finish_reason != "length"
        if not is_whole or not (log.error or REJECTED).startswith(REJECTED):
            return None
        own = (message.content for message in reversed(log.messages) if message.role == "assistant")
        summary = next(own, "")
        reason = context.rejects(summary)
        written.log = replace(log, error=reason and f"{REJECTED}: {reason}")
        return summary if reason is None else None

    def _act(self, index: int, delta: Delta, break_: Break | None, turn: dict[str, Any]) -> None:
        """Add a step with its recorded reply."""
        step = self._trajectory.steps[index]
        replayed, following = self._contexts[step.context], self._next.get(index)
        context, log = replayed.context, replayed.log
        stop = len(context.log_tokens)
        start, moved = stop - len(delta.tokens), stop - step.action_start
        extends = bool(start) and break_ is None
        is_same = np.array_equal(delta.tokens, log.tokens[step.start : step.action_start])
        new_messages = log.messages[replayed.read - replayed.added : replayed.read]
        shows_all = all(one is other for one, other in zip(new_messages[::-1], context.view[::-1], strict=False))
        # Built-in policies change no new message but an assistant's.
        are_built_in = all(name in (*POLICIES,) for name in (self._trajectory.history.get("name"), self._policy.name))
        is_plain = shows_all and are_built_in and all(message.role != "assistant" for message in new_messages)
        is_first = start == step.start == 0 and step.base == step.context
        if (is_first or (extends and step.extends)) and is_plain and not is_same:
            raise CannotReplay(
                f"step {index + 1} of {self._trajectory.id!r} cannot be replayed: its messages give other tokens than "
                "were recorded. The renderer, its options or its version differ from those of the episode"
            )
        parts = [replace(part, stop=part.stop + moved) for part in step.parts]
        if parts and not is_same:  # rows of side data over the prompt are of the recorded one
            own = {
                key: value.take(slice(len(value) - (parts[0].stop - stop), None))
                for key, value in parts[0].extra.items()
                if isinstance(value, Aligned) and value.over == "all"
            }
            parts[0] = replace(parts[0], extra={**parts[0].extra, **own})
        new = replace(
            step,
            keep=delta.keep,
            extends=extends,
            start=start,
            action_start=stop,
            parts=tuple(parts),
            masked=tuple([(first + moved, last + moved) for first, last in step.masked]),
            break_=break_,
            turn=turn,
        )
        self._steps.append(new)
        places = {step.start: start, step.action_start: stop, step.stop: new.stop}
        self._moved |= {(step.context, recorded): place for recorded, place in places.items()}
        context.act(log.tokens[step.action_start : step.stop], log.logprobs[step.action_start : step.stop])
        replayed.requests, replayed.summary = [], None
        turn_after = {} if following is None else following.turn
        is_continued = "continues" in turn_after
        if step.reply is None and not is_continued:
            return  # it was never finished
        # A reply that goes on is in the record as a whole.
        known = None if is_continued and following is not self._final else step.reply
        context.take_reply(known=None if known is None else log.messages[known])
        new.reply = None if step.reply is None else len(context.messages) - 1
        if "cut" in turn_after:
            count = len(context.reply_tokens()[1])
            is_legal = turn_after["cut"] <= count
            self._check(index, is_legal, f"{turn_after['cut']} of its {count} sampled tokens are dropped")
            context.cut_reply(turn_after["cut"])
        replayed.conversation.append(context.conversation[-1])
        if step.reply is not None:
            replayed.read = step.reply + 1

    def _logs(self, *, is_whole: bool) -> dict[str, ContextLog]:
        """Return the logs of the contexts. If the episode is not whole, those that were not reached are left out."""
        logs, ends = dict[str, ContextLog](), {step.context: step.stop for step in self._steps}
        before, after = self._trajectory.history, self._policy.specification()
        for name, log in self._trajectory.contexts.items():
            if log.stop_reason:  # a sub-agent's, whose policy is recorded where it is not the episode's
                own = log.history or before
                log = replace(log, history={} if own == after else own)
            if name not in self._contexts:
                is_reached = is_whole and name not in self._skipped and not is_summary_of(name, log.parent)
                if name in self._unanswered or is_reached:
                    logs[name] = log
                continue
            replayed = self._contexts[name]
            left = log.messages[replayed.read :] if is_whole else []
            found = logged(replayed.context, ends.get(name, 0))
            logs[name] = replace(log, messages=[*replayed.context.messages, *left], error=replayed.log.error, **found)
        return logs


def _read(text: str | dict[str, Any] | None) -> str | Message | None:
    return Message.model_validate(text) if isinstance(text, dict) else text
