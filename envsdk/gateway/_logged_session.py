"""From the exchanges of a session to contexts, steps and supervised samples."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..contexts._edits import among
from ..errors import InvalidRecord, RenderError
from ..images import PlacedImage
from ..messages import Message, ToolSchema
from ..trainers._log_fields import LARGEST_ID, LoggedReply, checked_reply
from ..trainers._logged import Change, ImportNote, LogWriter, NoteKind, finish_reason_of
from ..trainers._logged_texts import TextReplies
from ._conversations import Continues, Conversations, Opens, Repeats
from ._records import Exchange, LoggedAnswer
from ._requests import ModelReply


@dataclass(slots=True)
class _Spoken:
    """The conversation of a context.

    Attributes:
        messages: The messages as the last request has them, and the reply.
        tools: The tools.
        change: What changed since the last step.
        untrained: The indices of the replies without ids that are not trained yet.
    """

    messages: list[Message]
    tools: Sequence[ToolSchema]
    change: Change
    untrained: list[int] = field(default_factory=list[int])


class LoggedSession:
    """The exchanges of a session, one after another.

    Args:
        conversations: Recognizes what the requests mean.
        texts: Takes the replies without token ids.
        trainable_roles: The roles whose contexts are trained; None trains all.
        vocab_size: The size of the vocabulary; 0 if it is unknown.
        temperature: The sampling temperature of requests that name none.
        renamed: The ids of calls that the log has, by the unique ones that the exchanges have instead.
    """

    def __init__(
        self,
        conversations: Conversations,
        texts: TextReplies,
        trainable_roles: Collection[str] | None,
        vocab_size: int,
        temperature: float,
        renamed: Mapping[str, str],
    ) -> None:
        self.writer = LogWriter()
        self.notes: list[ImportNote] = []
        self._conversations, self._texts = conversations, texts
        self._trainable_roles = trainable_roles
        self._vocab_size, self._temperature = vocab_size or LARGEST_ID, temperature
        self._renamed = renamed
        self._restored: dict[int, tuple[Message, Message]] = {}
        self._spoken: dict[str, _Spoken] = {}
        self._replies: dict[str, str] = {}  # the ids of replies by those of their responses
        self._count = 0

    def add(self, exchange: Exchange) -> None:
        """Add an exchange."""
        if not exchange.answers:
            self._note("left_out", exchange, exchange.left_out)
            return
        request = replace(exchange.request, previous=self._replies.get(exchange.request.previous or ""))
        placed = self._conversations.place(request)
        assert not isinstance(placed, Repeats)  # no request is reported as failed
        if placed.was_choice:
            text = f"it fits several contexts; it was read as part of {placed.context!r}, the one that replied last"
            self._note("ambiguous", exchange, text)
        replies: list[ModelReply] = []
        for answer in exchange.answers:
            if replies:
                placed = self._conversations.branch(request)
            if isinstance(placed, Continues):
                self._continue(placed)
            else:
                self._open(placed)
            self._answer(exchange, answer, placed.context)
            replies.append(self._reply(answer))
        self._conversations.answer(request, replies)
        if exchange.id is not None:
            self._replies[exchange.id] = replies[0].id
        self.writer.earn(exchange.rewards)

    def end(self) -> None:
        """Train the replies without ids that are left."""
        for name in self._spoken:
            self._train(name)

    def _note(self, kind: NoteKind, exchange: Exchange, text: str) -> None:
        self.notes.append(ImportNote(kind, exchange.where, text))

    def _reply(self, answer: LoggedAnswer) -> ModelReply:
        self._count += 1
        return ModelReply(f"reply_{self._count}", answer.message, "stop", 0, ())

    # Contexts.

    def _continue(self, placed: Continues) -> None:
        """Continue the conversation of a context."""
        spoken, log = self._spoken[placed.context], self.writer.log(placed.context)
        changed = [name for name, value in (("system", placed.system), ("tools", placed.tools)) if value is not None]
        reasons = [f"new {' and '.join(changed)}"] if changed else []
        if placed.keep is not None:
            reasons.append(placed.changed)
        if reasons:
            self._train(placed.context)
        messages = [self._as_logged(message) for message in placed.messages]
        new = among(messages, spoken.messages, are=False)
        del spoken.messages[len(spoken.messages) if placed.keep is None else placed.keep :]
        if placed.system is not None:
            log.messages += _set_system(spoken.messages, placed.system)
        if placed.tools is not None:
            spoken.tools = placed.tools
            log.tools = [dict(tool) for tool in placed.tools]
        spoken.messages += messages
        log.messages += new
        if reasons:
            before = spoken.change.detail if spoken.change.reason else ""
            spoken.change = Change("edit", "; ".join([before, *reasons] if before else reasons))

    def _open(self, placed: Opens) -> None:
        """Open a context, with the beginning of its base."""
        roles = self._trainable_roles
        log = self.writer.open(
            placed.context,
            placed.role,
            placed.base,
            is_handoff=bool(self._spoken),
            is_trainable=roles is None or placed.role in roles,
        )
        messages = list(self._spoken[placed.base].messages[: placed.keep]) if placed.base is not None else []
        log.messages += messages
        if not messages or messages[0].role != "system" or messages[0].content != placed.system:
            log.messages += _set_system(messages, placed.system or "")
        new = [self._as_logged(message) for message in placed.messages]
        messages += new
        log.messages += new
        log.tools = [dict(tool) for tool in placed.tools]
        self._spoken[placed.context] = _Spoken(messages, placed.tools, Change(detail=placed.detail))

    def _as_logged(self, message: Message) -> Message:
        """Return a message with the ids of calls that the log has. The same message is the same object."""
        if not self._renamed:
            return message
        known = self._restored.get(id(message))
        if known is None:
            known = self._restored[id(message)] = message, self._with_logged_ids(message)
        return known[1]

    def _with_logged_ids(self, message: Message) -> Message:
        ids, answered = self._renamed, message.tool_call_id or ""
        if answered in ids:
            return message.model_copy(update={"tool_call_id": ids[answered]})
        if not any(call.id in ids for call in message.tool_calls):
            return message
        calls = [call.model_copy(update={"id": ids.get(call.id or "", call.id)}) for call in message.tool_calls]
        return message.model_copy(update={"tool_calls": tuple(calls)})

    # Replies.

    def _answer(self, exchange: Exchange, answer: LoggedAnswer, context: str) -> None:
        """Add a reply to its context: as a step if its ids were logged, else as a text."""
        message, spoken = self._as_logged(answer.message), self._spoken[context]
        spoken.messages.append(message)
        reply = self._logged(exchange, answer)
        log = self.writer.log(context)
        if reply is not None:
            media = self._images_in(exchange, reply, spoken.messages[:-1])
            self.writer.add(context, reply, message, base=log.parent, change=spoken.change, media=media)
            spoken.change = Change()
            return
        log.messages.append(message)
        spoken.untrained.append(len(spoken.messages) - 1)

    def _logged(self, exchange: Exchange, answer: LoggedAnswer) -> LoggedReply | None:
        """Return a reply with its ids, or None with a note."""
        ids = answer.ids
        missing = [found.where for found in (ids.prompt, ids.tokens) if found.value is None]
        if missing:
            self._note(
                "no_ids", exchange, f"{' and '.join(missing)} are missing, so its text is all that can be trained"
            )
            return None
        if ids.logprobs.value is None:
            self._note("no_logprobs", exchange, "the log-probabilities of its tokens are missing")
        return checked_reply(
            ids.prompt,
            ids.tokens,
            ids.logprobs,
            message=answer.message,
            vocab_size=self._vocab_size,
            renderer=self._texts.renderer,
            finish_reason=finish_reason_of(answer.finish_reason),
            temperature=self._temperature if exchange.temperature is None else exchange.temperature,
            policy_version=exchange.policy_version,
        )

    def _images_in(self, exchange: Exchange, reply: LoggedReply, messages: Sequence[Message]) -> list[PlacedImage]:
        """Return where the images of a conversation are in a logged prompt: at the placeholders of the processor.

        Raises:
            InvalidRecord: If the prompt does not have as many placeholders as the renderer's processor makes.
        """
        images = [image for message in messages for image in message.images]
        if not images:
            return []
        renderer = self._texts.renderer
        if renderer is None or renderer.vision is None:
            raise InvalidRecord(
                f"{exchange.where}: the request has images, whose tokens in the logged prompt are found with the "
                "model's processor: pass renderer= of a vision model with processor="
            )
        try:
            return renderer.vision.places(reply.prompt, images)
        except RenderError as error:
            raise InvalidRecord(
                f"{exchange.where}: the logged prompt has other tokens for its images than the renderer's processor: "
                f"{error}"
            ) from error

    def _train(self, context: str) -> None:
        """Make supervised samples of the replies without ids in a conversation, before it changes."""
        spoken, log = self._spoken[context], self.writer.log(context)
        indices, spoken.untrained = spoken.untrained, []
        if log.is_trainable:
            self._texts.train(context, log.role, spoken.messages, spoken.tools, indices)


def _set_system(messages: list[Message], system: str) -> list[Message]:
    """Replace the system message of a conversation; an empty text removes it. Returns the new one."""
    new = [Message(role="system", content=system)] if system else []
    messages[: bool(messages) and messages[0].role == "system"] = new
    return new
