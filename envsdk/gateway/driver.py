"""The driver of a `ProgramEnv`: it turns the program's requests into turns, and the model's replies into answers."""

import asyncio
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from typing_extensions import override

from ..authoring.machinery import EnvConfig, EnvDriver
from ..contexts.edits import Edit
from ..episodes.turn import Opening, Turn
from ..errors import EpisodeError, RenderError, RequestError, message_of
from ..messages import Message, ToolCall
from .background import background_server
from .conversations import Continues, Conversations, Opens, Repeats
from .programs import CommandProgram, Endpoint, Program, ThreadProgram, as_json
from .requests import ModelReply, ModelRequest
from .session import Asked, Ended, ProgramSession

if TYPE_CHECKING:
    from .program import ProgramEnv

_OVER = RequestError("the episode is over", 400, "episode_over")


class ProgramDriver(EnvDriver):
    """Meets the program's requests in a session, and recognizes what they mean."""

    env: "ProgramEnv"
    may_be_async: ClassVar[tuple[str, ...]] = ("start", "respond")
    why_no_fork: ClassVar[str | None] = "its program runs; play the episode again with the same seed"

    @override
    def _read_config(self, config: Mapping[str, Any]) -> EnvConfig:
        self._session: ProgramSession | None = None
        self._program: Program | None = None
        return super()._read_config(config)

    # Episodes.

    async def first(self) -> Turn:
        """Start the program, and return the turn of its first request.

        Raises:
            EpisodeError: If it ends without a request.
        """
        self.end_program()
        self._conversations = Conversations(self.env.role_of)
        self._inner: dict[int, tuple[Message, Message]] = {}
        self._calls: dict[str, ToolCall] = {}
        self._replies: list[ModelReply] = []
        self._cut: list[tuple[Any, list[ModelReply]]] = []
        self._asked: Asked | None = None
        seed = self.running_episode.seed
        self._salt = secrets.token_hex(8) if seed is None else f"{self.running_episode.id} {seed}"
        self._ids = 0
        self._session = self.new_session()
        self.open_session(self._session)
        event = await self._next()
        if isinstance(event, Ended):
            raise EpisodeError(f"the program ended without a request to the model: it returned {event.outcome!r:.200}")
        return self._turn(event)

    async def following(self, reply: Message) -> Turn:
        """Give the program its reply, and return the turn of its next request, or of its end."""
        asked = self._asked
        assert asked is not None
        self._replies.append(self._outer_reply(reply))
        if len(self._replies) < asked.request.n and self.running.limit_now() is None:
            return self._branch(asked.request)
        replies, self._replies, self._asked = self._replies, [], None
        self._conversations.answer(asked.request, replies)
        if not asked.answer(replies):
            self._cut.append((asked.request.body, replies))
        event = await self._next()
        if isinstance(event, Ended):
            return self._last_turn(event)
        return self._turn(event)

    def new_session(self) -> ProgramSession:
        """Return the session of an episode."""
        return ProgramSession(self.count_tokens)

    def open_session(self, session: ProgramSession) -> None:
        """Serve the session, and start the program."""
        server = background_server()
        server.add(session)
        endpoint = Endpoint(
            base_url=server.openai_base_url(session),
            anthropic_base_url=server.anthropic_base_url(session),
            api_key=session.key,
            seed=self.running_episode.seed,
        )
        if self.env.command is None:
            self._program = ThreadProgram(lambda: self.env.run(endpoint), session.end)
        else:
            environ = endpoint.environ()
            if self.env.task is not None:
                environ["ENVSDK_TASK"] = as_json(self.env.task)
            self._program = CommandProgram(
                lambda: self.env.command, self.env.prepare, self.env.score, environ, session.end, session.id
            )

    def end_program(self, error: RequestError = _OVER) -> None:
        """End the program, if it runs, and refuse its requests."""
        session, program = self._session, self._program
        self._session = self._program = None
        if session is not None:
            session.close(error)
            self.close_session(session)
        if program is not None:
            program.kill()

    def close_session(self, session: ProgramSession) -> None:
        """Serve the session no more."""
        background_server().remove(session)

    @override
    def end_tasks(self) -> None:
        self._end_asked()
        self.end_program(self._why_it_ended())
        super().end_tasks()

    @override
    async def aend_tasks(self) -> None:
        self._end_asked()
        await asyncio.to_thread(self.end_program, self._why_it_ended())
        await super().aend_tasks()

    def _end_asked(self) -> None:
        """Refuse the request that is being answered."""
        asked, self._asked = getattr(self, "_asked", None), None
        if asked is not None:
            asked.refuse(self._why_it_ended())

    def _why_it_ended(self) -> RequestError:
        trajectory = self.env.trajectory
        if trajectory is None or trajectory.status == "error":
            return RequestError("the episode failed", 500, "episode_failed")
        return _OVER

    # Requests.

    async def _next(self) -> Asked | Ended:
        """Wait for a request that needs a reply, or for the program's end."""
        session, program = self._session, self._program
        assert session is not None
        limit, deadline, now = None, None, asyncio.get_running_loop().time
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    event = await session.next()
            except TimeoutError:
                return Ended()
            if isinstance(event, Ended):
                if event.error is not None and limit is None:
                    raise event.error
                return event
            limit = self.running.limit_now() if self.running.current is not None else None
            if limit is not None:
                grace_s = self.env.limit_grace_s
                deadline = deadline or (None if grace_s is None else now() + grace_s)
                event.refuse(RequestError(f"the episode ends here: {limit}", 400, str(limit)))
                if program is not None:
                    program.stop()
            elif not event.is_abandoned and not self._was_answered(event):
                return event

    def _was_answered(self, asked: Asked) -> bool:
        """Answer a request again whose first answer did not reach the program."""
        for index, (body, replies) in enumerate(self._cut):
            if body == asked.request.body:
                del self._cut[index]
                asked.answer(replies)
                return True
        return False

    def _turn(self, asked: Asked) -> Turn:
        request = asked.request
        placed = self._conversations.place(request)
        assert not isinstance(placed, Repeats)
        self._asked = asked
        return self._turn_of(request, placed)

    def _branch(self, request: ModelRequest) -> Turn:
        return self._turn_of(request, self._conversations.branch(request))

    def _turn_of(self, request: ModelRequest, placed: Continues | Opens) -> Turn:
        options: dict[str, Any] = {
            "system": placed.system,
            "tools": placed.tools,
            "context": placed.context,
            "stop": request.stop,
            "max_tokens": request.max_tokens,
            "sampling": request.sampling,
            "metrics": {"ambiguous_contexts": 1.0} if placed.was_choice else None,
        }
        if isinstance(placed, Opens):
            roles = self.env.trainable_roles
            options["opening"] = Opening(
                placed.role,
                placed.base,
                placed.keep,
                f"{placed.role}: a conversation of its own" if placed.base is None else f"from {placed.base}",
                is_trainable=roles is None or placed.role in roles,
            )
        elif placed.system == "":
            return self._turn_without_system(placed, options)
        elif placed.keep is not None:
            options["edit"] = Edit(placed.keep, placed.changed)
        return Turn([self._inner_message(message) for message in placed.messages], **options)

    def _turn_without_system(self, placed: Continues, options: dict[str, Any]) -> Turn:
        """Return the turn of a request that leaves out the system message, which is an edit from there on."""
        left = self.running.contexts[placed.context].conversation[1:]
        messages = [*left[: placed.keep], *map(self._inner_message, placed.messages)]
        changed = "; ".join(text for text in ("the system message was left out", placed.changed) if text)
        return Turn(messages, **{**options, "system": None, "edit": Edit(0, changed)})

    def _last_turn(self, ended: Ended) -> Turn:
        outcome = ended.outcome
        is_limited = self.running.limit_now() is not None
        if isinstance(outcome, Turn):
            outcome.terminated = not (is_limited or outcome.truncated)
            return outcome
        reward = cast("float | Mapping[str, float] | None", outcome)
        return Turn(reward=reward, terminated=not is_limited)

    # Messages: the program knows a reply by the ids of the gateway, the context by those of the model family.

    def _inner_message(self, message: Message) -> Message:
        known = self._inner.get(id(message))
        if known is not None:
            return known[1]
        inner = message
        if message.role == "tool" and message.tool_call_id in self._calls:
            call = self._calls[message.tool_call_id]
            inner = message.model_copy(update={"tool_call_id": call.id, "name": call.name or None})
        self._inner[id(message)] = message, inner
        return inner

    def _outer_reply(self, reply: Message) -> ModelReply:
        agent = self.running
        context, step, asked = agent.context, agent.last_step, self._asked
        assert step is not None and asked is not None
        recorded = context.conversation[-1]
        calls: list[ToolCall] = []
        texts = [recorded.content]
        for call in recorded.tool_calls:
            if not call.name:
                texts.append(call.raw if call.raw is not None else str(call.arguments))
                continue
            outer = ToolCall(name=call.name, arguments=call.arguments, id=self._new_id("call"))
            self._calls[str(outer.id)] = call
            calls.append(outer)
        content = _until_stop("\n".join(text for text in texts if text), asked.request.stop)
        message = Message(role="assistant", content=content, reasoning=recorded.reasoning, tool_calls=tuple(calls))
        self._inner[id(message)] = message, recorded
        tokens = context.log_tokens.copy(step.action_start, step.stop)
        logprobs = context.log_logprobs.copy(step.action_start, step.stop)
        is_known = bool(len(logprobs)) and not bool((logprobs != logprobs).any())
        body = cast("Mapping[str, Any]", asked.request.body or {})
        decode = context.renderer.tokenizer.token_bytes
        return ModelReply(
            id=self._new_id("reply"),
            message=message,
            finish_reason="length" if step.finish_reason == "length" else "tool_calls" if calls else "stop",
            prompt_tokens=len(context) - len(tokens),
            tokens=tokens.tolist(),
            logprobs=logprobs.tolist() if is_known else None,
            texts=[piece.decode(errors="replace") for piece in decode(tokens)] if body.get("logprobs") else (),
        )

    def _new_id(self, kind: str) -> str:
        self._ids += 1
        return f"{kind}_{hashlib.sha256(f'{self._salt} {self._ids}'.encode()).hexdigest()[:24]}"

    def count_tokens(self, request: ModelRequest) -> int:
        """Return how many tokens the prompt of a request has, if it were the first.

        Raises:
            RequestError: If the model family cannot express it.
        """
        system = [] if request.system is None else [Message(role="system", content=request.system)]
        messages = [*system, *(received.message for received in request.messages)]
        try:
            return len(self.renderer.render(messages, tools=request.tools, history="keep").tokens)
        except RenderError as error:
            raise RequestError(f"the model family cannot express the request: {message_of(error)}") from error


def _until_stop(text: str, stops: Sequence[str]) -> str:
    """Return a text without the stop string that ended it, as servers do."""
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text
