"""The driver of a `ProgramEnv`: it turns the program's requests into turns, and the model's replies into answers."""

import asyncio
import contextlib
import hashlib
import json
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from .._describing import message_of
from .._spans import EpisodeSpan, current_span
from .._visible import brief, shorten
from ..authoring._context_tools import ContextTools
from ..authoring._driver import Driver
from ..authoring._mistakes import warn_at, where
from ..authoring._tool_env import ToolEnvConfig, ToolRunner
from ..contexts._context import Context, SampledText
from ..contexts._edits import Edit
from ..contexts._roles import reply_spans
from ..episodes._recording import task_as_json
from ..episodes._turn import Opening, Turn
from ..errors import (
    ConfigError,
    DeadlineExceeded,
    EpisodeError,
    MissingPackage,
    RenderError,
    RequestError,
    TokenizerError,
    TurnError,
)
from ..limits import StopReason
from ..messages import Message, ToolCall
from ..rendering._reply_grammar import reply_grammar
from ..rendering.emission import Emission
from ..rendering.family import FamilyRenderer
from ..rendering.renderer import TokenIds, as_given, check_image, refuse_images
from ..trajectories._steps import Step
from ._agents import CONTEXT_TOKENS, AgentConfig, prepared_agent
from ._conversations import Continues, Conversations, Opens, Repeats
from ._exchange import Refusal
from ._lineage import role_rules
from ._live import LiveReply
from ._programs import CommandProgram, Endpoint, ThreadProgram
from ._requests import ModelReply, ModelRequest
from ._serving import background_server
from ._session import PendingRequest, ProgramEnd, ProgramSession, until_done

_REMEMBERED = 64
"""The number of answers that are kept for a program that did not get them, and asks again."""
_CONTEXT_IS_FULL = (StopReason.MAX_CONTEXT_TOKENS, StopReason.CONTEXT_FULL)
_NO_RETRY = {"x-should-retry": "false"}
"""The header that tells the clients of OpenAI and Anthropic not to retry: the episode is over."""
_TOO_LONG = 32
"""An episode ends after this many requests in a row that did not fit into their context."""
_NOT_ALONE = "Error: it was not run: call it again, in a reply without the tools for your own context"
_OVER = RequestError("the episode is over", 400, "episode_over")


@dataclass(frozen=True, slots=True)
class FullContext:
    """A request that was refused because it did not fit into its context, since the last one that was answered."""

    turn: Turn
    reason: StopReason
    times: int
    """The number of requests that were refused for that since then."""


class ProgramDriver:
    """Takes the program's requests from a session, and finds the context that each one continues or opens.

    Args:
        driver: The driver of the environment that the program plays.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.env = driver.env
        self._session: ProgramSession | None = None
        self._program: ThreadProgram | CommandProgram | None = None
        self._asked: PendingRequest | None = None  # the request that is being answered
        self._placed: deque[tuple[PendingRequest, Turn]] = deque()  # requests whose turns come next
        self._tools: ContextTools | None = None
        self._hidden: dict[int, tuple[Message, list[Message]]] = {}
        """By its identity, each message of context tools, and the program's messages in whose place it is."""

    # Episodes.

    async def first(self) -> Turn:
        """Start the program, and return the turn of its first request.

        If it ends after requests that did not fit into their context, that is the turn of the last one, and ends the
        episode.

        Raises:
            EpisodeError: If it ends without a request that can be answered.
        """
        self.end_program()
        self.forget()
        seed = self.driver.running_episode.seed
        self._salt = secrets.token_hex(8) if seed is None else f"{self.driver.running_episode.id} {seed}"
        self._ids = 0
        self._full: FullContext | None = None
        session = self.open_session()
        turn = await self._next()
        if not isinstance(turn, ProgramEnd):
            return turn
        if self._full is not None:
            return self._full.turn
        if session.refused:
            raise EpisodeError(
                f"the program ended without a reply of the model: {session.refused} requests were refused, "
                f"the last one because: {shorten(session.refusal, 500)}"
            )
        raise EpisodeError(
            f"{self._name_of_program()} ended without a request to the model: it returned "
            f"{brief(turn.outcome, 200)}. Its client must send its requests to base_url of the endpoint that run() "
            "gets, or to OPENAI_BASE_URL"
        )

    def _name_of_program(self) -> str:
        cls = cast("type[Any]", type(self.env))
        return where(cls, "run") if isinstance(self._program, ThreadProgram) else "the program"

    def forget(self) -> None:
        """Release the requests and replies of the last episode."""
        by_rule = role_rules(self.env.roles)

        def role_of(request: ModelRequest) -> str | None:
            role = self.env.role_of(request.all_messages) or by_rule(request)
            return role if role is not None or self._session is None else self._session.role

        self._tools = ContextTools(self.env) if getattr(self.driver.config, "context_tools", ()) else None
        self._hidden = {}
        self._sampled: dict[str, tuple[Context, Step, str]] = {}  # by the id of each reply; with its text
        self._conversations = Conversations(role_of, self.driver.renderer.reasoning_in_content)
        self._inner: dict[int, tuple[Message, Message]] = {}
        self._calls: dict[str, ToolCall] = {}
        self._replies: list[ModelReply] = []
        self._is_given_up = False
        self._live: LiveReply | None = None
        self._has_heard = False
        self._issued: list[str] = []  # the id of the reply, and those of its calls
        self._answers: OrderedDict[int, tuple[ModelRequest, list[ModelReply]]] = OrderedDict()

    async def following(self, reply: Message) -> Turn:
        """Give the program its reply, and return the turn of its next request, or of its end."""
        asked = self._asked
        assert asked is not None
        if (turn := await self._hidden_turn(reply)) is not None:
            return turn
        self._replies.append(self._outer_reply(reply))
        if len(self._replies) < asked.request.n and self._limit() is None and not self._is_given_up:
            branch = self._in_context(self._conversations.branch(asked.request))
            return self._taken(asked, self._turn_of(asked.request, branch))
        replies, self._replies, self._asked = self._replies, [], None
        self._conversations.answer(asked.request, replies, is_cut=self._is_given_up)
        if (begun := asked.request.prefill) is not None:  # the program has the beginning
            for index, answer in enumerate(replies):
                whole = answer.message.content
                rest = whole.removeprefix(begun if whole.startswith(begun) else begun.strip())
                replies[index] = replace(answer, message=answer.message.model_copy(update={"content": rest}))
        if not self._is_given_up:
            self._answers[id(asked.request)] = asked.request, replies
        if len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)
        asked.answer(replies)
        turn = await self._next()
        if not isinstance(turn, ProgramEnd):
            return turn
        self._settle()
        self.driver.running.full = None if self._full is None else self._full.reason
        is_limited, outcome = self.driver.running.limit_now() is not None, turn.outcome
        run, is_run = cast("Any", type(self.env)).run, isinstance(self._program, ThreadProgram)
        says_none = run.__annotations__.get("return", "") in (None, "None")
        if outcome is None and is_run and not (says_none or is_limited or turn.error):
            what = f"{self._name_of_program()} returned None, so the episode is not scored: return its reward"
            warn_at([run], f"{what}, or annotate it with -> None")
        if isinstance(outcome, Turn):
            outcome.terminated = not (is_limited or outcome.truncated)
            return outcome
        return Turn(reward=cast("float | Mapping[str, float] | None", outcome), terminated=not is_limited)

    async def _hidden_turn(self, reply: Message) -> Turn | None:
        """Answer the calls of context tools, and return the turn after which the model replies to the program.

        Returns:
            None if the reply has no such call, or the model cannot go on after it.
        """
        tools, running, before = self._tools, self.driver.running, self.driver.running.turn
        if tools is None:
            return None
        tools.take(reply.tool_calls)
        known, context = tools.tools(), running.context
        if not known.keys() & {call.name for call in reply.tool_calls} or self._limit() or self._is_given_up:
            return None
        count = len(reply.tool_calls)
        runner = ToolRunner(self.env, known, ToolEnvConfig(), (Exception,))
        answers = await runner.run(reply.tool_calls, running.tool_calls_left(count))
        results: list[Message] = []
        for call, answer in zip(reply.tool_calls, answers, strict=True):
            content = answer.content if call.name in known else _NOT_ALONE
            results.append(Message(role="tool", content=content, name=call.name or None, tool_call_id=call.id))
        turn = Turn(
            tools.answered(results),
            stop=before.stop,
            max_tokens=before.max_tokens,
            prefill=before.prefill,
            sampling=before.sampling,
            metrics={"tool_calls": count, "tool_errors": sum(answer.is_error for answer in answers)},
        )
        turn = tools.applied(turn)
        if self.driver.running_episode.why_full(running, turn) is not None:
            return None
        conversation = context.conversation
        folded = [] if turn.edit is None else self._outer(conversation[turn.edit.keep : -1])
        self._hidden |= {id(message): (message, []) for message in (conversation[-1], *results)}
        self._hidden[id(results[0])] = results[0], folded
        return turn

    def _outer(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that the program knows, for a part of a context's conversation."""
        known = [self._hidden[id(message)][1] if id(message) in self._hidden else [message] for message in messages]
        return [message for part in known for message in part]

    def _in_context(self, placed: Continues | Opens) -> Continues | Opens:
        """Return a placement whose `keep` counts the context's own messages, among them those of context tools.

        If messages that the model has folded are the last that stay, they are shown again.
        """
        name = placed.base if isinstance(placed, Opens) else placed.context
        if not self._hidden or name is None or placed.keep is None:
            return placed
        conversation = self.driver.running.contexts[name].conversation
        pairs = [(at, outer, outer is one) for at, one in enumerate(conversation) for outer in self._outer([one])]
        kept = pairs[: placed.keep]
        last = max((index for index, (_, _, is_shown) in enumerate(kept) if is_shown), default=-1)
        again = [message for _, message, _ in kept[last + 1 :]]
        return replace(placed, keep=kept[last][0] + 1 if last >= 0 else 0, messages=(*again, *placed.messages))

    def _settle(self) -> None:
        """Give the contexts their roles, and exclude from training what the program did not receive."""
        contexts, trained = self.driver.running.contexts, self.env.trainable_roles
        if self._session is not None:
            self._note_abandoned(self._session.take_abandoned())
        for name, role in self._conversations.roles().items():
            if name in contexts and contexts[name].role != role:
                contexts[name].role, contexts[name].is_trainable = role, trained is None or role in trained
        if self.env.train_unseen:
            return
        for reply, characters in self._conversations.received.items():
            context, step, text = self._sampled[reply]
            sampled = SampledText(context.renderer, np.asarray(context.log_tokens[step.action_start : step.stop]))
            whole = str(sampled)
            start = whole.rfind(text) + characters if characters and text in whole else 0
            first = sampled.tokens_of(start, len(whole))[0] if start < len(whole) else sampled.body
            step.masked = (*step.masked, (step.action_start + first, step.stop))

    def open_session(self) -> ProgramSession:
        """Serve the session of an episode, and start the program."""
        session = self._session = ProgramSession(self.count_tokens, partial(check_image, self.driver.renderer))
        if (span := current_span.get()) is not None:
            session.span = (span.root or span).child("program", self.env.name)
        server = background_server()
        server.sessions.add(session)
        endpoint = Endpoint(
            base_url=f"{server.base_url(session)}/v1",
            anthropic_base_url=server.base_url(session),
            api_key=session.key,
            seed=self.driver.running_episode.seed,
        )
        config = self.driver.config
        agent = config.agent if isinstance(config, AgentConfig) else None
        if self.env.command is None and agent is None and self.env._envsdk_has_run:
            self._program = ThreadProgram(lambda: self.env.run(endpoint), session.put)
            return session
        environ: dict[str, str] = {}
        task: Any = task_as_json(self.env.task)
        if task is not None:
            environ["ENVSDK_TASK"] = json.dumps(task, default=str)
        recipe = None
        if agent is not None:
            prompt = config.task or (
                cast("Mapping[str, Any]", task).get("prompt") if isinstance(task, Mapping) else task
            )
            if not isinstance(prompt, str):
                raise ConfigError(
                    f"agent {agent!r} has no task: give task=, or tasks= whose rows have a field 'prompt'"
                )
            tokens = self.driver.running.limits.max_context_tokens or CONTEXT_TOKENS
            recipe = partial(prepared_agent, agent, prompt, endpoint, tokens)
        self._program = CommandProgram(self.env, endpoint, environ, session.put, recipe)
        return session

    def end_program(self, error: RequestError = _OVER) -> None:
        """End the program, if it runs, and refuse its requests, including those that are being answered or waiting."""
        session, program = self._session, self._program
        asked = [*([] if self._asked is None else [self._asked]), *(placed for placed, _ in self._placed)]
        self._session = self._program = self._asked = None
        self._placed.clear()
        for each in asked:
            each.answer(error)
        if session is not None:
            session.close(error)
            if session.span is not None:
                session.span.ended_s = time.time()
            self.close_session(session)
        if program is not None:
            program.kill()

    def close_session(self, session: ProgramSession) -> None:
        """Stop serving the session."""
        background_server().sessions.remove(session.id)

    def end(self, error: BaseException | None) -> None:
        """End the program because its episode has ended, or failed with an error."""
        trajectory, agent, why = self.env.trajectory, self.driver.agent, _OVER
        if trajectory is None and error is not None:
            why = failure(error, is_of_policy=agent is not None and agent.due is not None)
        elif trajectory is not None and trajectory.stop_reason in _CONTEXT_IS_FULL:
            why = _at_limit(f"the episode is over: {trajectory.stop_reason}", trajectory.stop_reason)
        self.end_program(why)

    # What a rollout asks for while it samples a reply.

    def listener(self) -> Callable[[TokenIds], bool | None] | None:
        """Return a callback for the tokens of the next reply while they are sampled, or None.

        If the callback returns True, the rest of the reply is not needed.
        """
        asked = self._asked
        on_piece = None if asked is None else asked.request.on_piece
        if asked is None or on_piece is None or asked.request.n > 1 or asked.request.prefill is not None:
            return None
        if self._tools is not None:  # whether the program may see a reply is known at its end
            return None
        if self._live is None:
            context = self.driver.running.context
            reader, events = context.read_reply()
            message = Message(role="assistant")
            on_piece(ModelReply(self._id(), message, "stop", prompt_tokens=len(context), tokens=()))
            call_id = self._id if asked.request.takes_calls else None
            self._live = LiveReply(reader, on_piece, asked.request.stop, call_id)
            self._live.give(events)
        live = self._live

        def hear(tokens: TokenIds) -> bool:
            self._has_heard = True
            live.give(live.reader.feed(tokens))
            self._is_given_up = asked.is_abandoned
            return self._is_given_up

        return hear

    def until_unwanted(self, turn: Turn | None = None) -> Awaitable[None] | None:
        """Return an awaitable that ends when the reply to a turn is not needed anymore, so that sampling is cancelled.

        Args:
            turn: A turn of `ahead`; None for the one that is due.

        Returns:
            None if the reply is needed in any case.
        """
        asked = self._request_of(turn)

        async def until_left(asked: PendingRequest) -> None:
            await until_done(asked.replies)
            # The part of a streamed reply that a program received stays in the conversation: the listener ends it.
            if turn is None and self._has_heard:
                await asyncio.Event().wait()

        return None if asked is None else until_left(asked)

    def span_of(self, turn: Turn | None = None) -> EpisodeSpan | None:
        """Return the span of the request of a turn, as in `until_unwanted`; None if it has none."""
        asked = self._request_of(turn)
        return None if asked is None else asked.span

    def _request_of(self, turn: Turn | None) -> PendingRequest | None:
        return self._asked if turn is None else next((one for one, its in self._placed if its is turn), None)

    async def is_wanted_again(self) -> bool:
        """Wait, and return whether the reply that is due is needed after all, after its sampling was cancelled."""
        session, asked = self._session, self._asked
        assert asked is not None
        while session is not None and not self._placed:
            event = await session.next()
            if isinstance(event, PendingRequest) and event.request.repeats(asked.request):
                self._asked = replace(event, request=asked.request)
                return True
            if not isinstance(event, PendingRequest) or not event.is_abandoned:
                session.put_back(event)
                break
        self._is_given_up = True
        return False

    # Requests.

    async def _next(self) -> Turn | ProgramEnd:
        """Wait for the turn of the next request that needs a reply, or for the program's end."""
        session, program = self._session, self._program
        assert session is not None
        limit, deadline, now = None, None, asyncio.get_running_loop().time
        while True:
            if self._placed:
                asked, turn = self._placed.popleft()
                if self._limit() is None and not asked.is_abandoned:
                    return self._taken(asked, turn)
                self._conversations.fail(asked.request)
                session.put_back(asked)
            try:
                async with asyncio.timeout_at(deadline):
                    event = await session.next()
            except TimeoutError:
                return ProgramEnd()
            if isinstance(event, ProgramEnd):
                if event.error is not None and limit is None and self._full is None:
                    raise event.error
                return event
            limit = self._limit()
            if limit is not None:
                grace_s = self.env.limit_grace_s
                deadline = deadline or (None if grace_s is None else now() + grace_s)
                event.answer(_at_limit(f"the episode ends here: {limit}", limit))
                if isinstance(program, CommandProgram):
                    program.stop()
            elif not event.is_abandoned and (turn := self._turn(event, session.take_abandoned())) is not None:
                return self._taken(event, turn)

    async def ahead(self) -> AsyncIterator[Turn]:
        """Yield the turns of requests that arrive while another one is answered: their contexts are parallel.

        A request that repeats a waiting one waits for the same reply.
        """
        session, asked = self._session, self._asked
        if session is None or asked is None or asked.request.n > 1 or self._tools is not None:
            return
        waiting = [asked.request, *(placed.request for placed, _ in self._placed)]
        while True:
            event = await session.next()
            is_new = isinstance(event, PendingRequest) and not any(
                event.request.repeats(request) for request in waiting
            )
            if not isinstance(event, PendingRequest) or not is_new or session.abandoned or self._limit() is not None:
                session.put_back(event)
                return
            if not event.is_abandoned and (turn := self._turn(event, ())) is not None:
                self._placed.append((event, turn))
                waiting.append(event.request)
                yield turn

    def _taken(self, asked: PendingRequest, turn: Turn) -> Turn:
        """Take the turn of a request, which is answered next: what was full before does not end the episode."""
        self._asked, self._full = asked, None
        self._is_given_up, self._live, self._has_heard = False, None, False
        self._issued = []
        if self.driver.running.cut == StopReason.MAX_CONTEXT_TOKENS:
            self.driver.running.cut = None
        return turn

    def _turn(self, asked: PendingRequest, cut: Sequence[ModelRequest]) -> Turn | None:
        """Return the turn of a request; None if it needs no turn: it was answered before, or is refused.

        Args:
            asked: The request.
            cut: Earlier requests whose answers did not reach the program.
        """
        self._note_abandoned(cut)
        try:
            placed = self._conversations.place(asked.request)
        except Exception:  # of the author's role_of(): the program is told when the episode fails
            if self._session is not None:
                self._session.put_back(asked)
            raise
        if isinstance(placed, Repeats):
            asked.answer(self._answers[id(placed.request)][1])
            return None
        placed = self._in_context(placed)
        turn = self._turn_of(asked.request, placed)
        try:
            role = placed.role if isinstance(placed, Opens) else self.driver.running.contexts[placed.context].role
            wanted = dict(turn.sampling) if self.env.sampling is None else {}  # else they are the author's
            if (grammar := self._grammar(asked.request)) is not None:
                wanted["grammar"] = turn.sampling["grammar"] = grammar
            refuses = self.driver.why_not_sampled
            for name, value in wanted.items():
                if refuses is None or (why := refuses(role, name, value)) is None:
                    continue
                if name != "seed":
                    raise RequestError(f"{name}: {why}", field=name)
                del turn.sampling[name]  # a client can only hope that it is honored
            self._check_expressible(placed, turn.messages)
            longest = [self.driver.running.limits.max_context_tokens, self.driver.history.full_beyond]
            limit = min((tokens for tokens in longest if tokens is not None), default=None)
            reason = None if limit is None else self.driver.running_episode.why_full(self.driver.running, turn)
            if reason is not None:
                self._full = FullContext(turn, reason, 1 if self._full is None else self._full.times + 1)
                text = f"This model's maximum context length is {limit} tokens; the messages leave no room for a reply"
                raise _at_limit(text, reason)
        except RequestError as error:
            self._conversations.fail(asked.request)
            asked.answer(error)
            if self._session is not None:
                self._session.note_refusal(error)
            return None
        return turn

    def _note_abandoned(self, requests: Sequence[ModelRequest]) -> None:
        """Note that the answers to requests did not reach the program."""
        for request in requests:
            with contextlib.suppress(ValueError):  # not one of the last, or not asked yet
                self._conversations.fail(request)

    def _limit(self) -> StopReason | None:
        """Return the limit that ends the episode. A full context does not: the program may go on with less in it."""
        if self._full is not None and self._full.times >= _TOO_LONG:
            return self._full.reason
        if self.driver.running.current is None:
            return None
        limit = self.driver.running.limit_now()
        return self.driver.running.limit_reached() if limit == StopReason.MAX_CONTEXT_TOKENS else limit

    def _check_expressible(self, placed: Continues | Opens, messages: Sequence[Message]) -> None:
        """Check that the model family can express a request. Nothing is tokenized.

        A continuation costs O(new messages). For a renderer of whole conversations, only images are checked, because it
        would render at each request.

        Args:
            placed: The place of the request in the conversations.
            messages: Its messages after those that are kept.

        Raises:
            RequestError: If it cannot be expressed.
        """
        renderer, contexts = self.driver.renderer, self.driver.running.contexts
        name = placed.base if isinstance(placed, Opens) else placed.context
        known = [] if name is None else contexts[name].conversation
        if isinstance(placed, Continues) and placed.system is None:
            system = [message for message in known[:1] if message.role == "system"]
        else:
            system = [Message(role="system", content=placed.system)] if placed.system else []
        first = len(system) if name is None else len(known) if placed.keep is None else placed.keep
        try:
            refuse_images(renderer, messages, first)
            for image in (image for message in messages for image in message.images):
                check_image(renderer, image)  # the processor's results are cached
            if not isinstance(renderer, FamilyRenderer):
                return
            out = Emission(renderer.encoder)
            if isinstance(placed, Continues) and (placed.keep, placed.system, placed.tools) == (None, None, None):
                renderer.emit_conversation(out, [known[-1], *messages], first=1)
                return
            kept = known[: placed.keep]
            rest = kept[1:] if kept and kept[0].role == "system" else kept
            tools = contexts[placed.context].tools if placed.tools is None else placed.tools
            renderer.emit_conversation(out, [*system, *rest, *messages], tools=tools)
        except RenderError as error:
            raise _inexpressible(error) from error

    def _grammar(self, request: ModelRequest) -> str | None:
        """Return the grammar of the reply that a request asks for; None if it asks for any reply.

        Raises:
            RequestError: If there is no such grammar.
        """
        choice, names = request.tool_choice, None
        if not isinstance(choice, str):
            choice, names = choice.get("mode", "required"), choice.get("names") or [choice["name"]]
        is_any = request.schema is None and choice != "required" and names is None
        if is_any or "grammar" in (self.env.sampling or ()):  # else the author decides
            return None
        tools = [tool for tool in request.tools if names is None or tool["function"]["name"] in names]
        options: dict[str, Any] = {"schema": request.schema, "tools": tools, "choice": choice}
        try:
            return reply_grammar(self.driver.renderer, is_parallel=request.is_parallel, **options)
        except (RenderError, TurnError, MissingPackage) as error:
            raise RequestError(f"the reply cannot be constrained: {message_of(error)}") from error

    def _turn_of(self, request: ModelRequest, placed: Continues | Opens) -> Turn:
        known = placed.base if isinstance(placed, Opens) else placed.context
        has_system = known is not None and self.driver.running.contexts[known].conversation[0].role == "system"
        tools = placed.tools
        if tools is not None and self._tools is not None:
            tools = self._tools.added_to(tools, "the program")
        options: dict[str, Any] = {
            "system": placed.system,
            "tools": tools,
            "context": placed.context,
            "stop": request.stop,
            "max_tokens": request.max_tokens,
            "prefill": None if request.prefill is None else Message(role="assistant", content=request.prefill),
            "sampling": request.sampling if self.env.sampling is None else self.env.sampling,
            "metrics": {"ambiguous_contexts": 1.0} if placed.was_choice else None,
        }
        if isinstance(placed, Opens):
            roles = self.env.trainable_roles
            options["opening"] = Opening(
                placed.role,
                placed.base,
                placed.keep,
                placed.detail,
                is_trainable=roles is None or placed.role in roles,
                start=int(has_system and placed.system is None),
                parent=placed.parent,
            )
        elif placed.system == "" and has_system:
            keep = (
                len(self.driver.running.contexts[placed.context].conversation) - 1
                if placed.keep is None
                else placed.keep
            )
            changed = "; ".join(text for text in ("the system message was left out", placed.changed) if text)
            options |= {"system": None, "edit": Edit(keep + 1, changed, start=1)}
        elif placed.keep is not None:
            options["edit"] = Edit(placed.keep, placed.changed)
        return Turn([self._inner_message(message) for message in placed.messages], **options)

    # Messages: the program knows a reply by the ids of the gateway, the context by those of the model family.

    def _inner_message(self, message: Message) -> Message:
        known = self._inner.get(id(message))
        if known is not None:
            return known[1]
        inner = as_given(self.driver.renderer, message)
        if message.role == "developer" and "developer" not in self.driver.renderer.roles:
            inner = inner.model_copy(update={"role": "system"})  # most families have one name for both
        named = [(call.id, call.name) for call in message.tool_calls]
        ids: list[str | None] = []
        for outer, name in [(message.tool_call_id, message.name)] if message.role == "tool" else named:
            call = self._calls.get(outer or "")
            ids.append(outer if call is None or call.name != name else call.id)  # the program may rename a call
        if message.role == "tool":
            inner = inner.model_copy(update={"tool_call_id": ids[0]})
        elif ids:  # a reply that the program changed, or wrote
            calls = [call.model_copy(update={"id": own}) for call, own in zip(message.tool_calls, ids, strict=True)]
            inner = inner.model_copy(update={"tool_calls": tuple(calls)})
        self._inner[id(message)] = message, inner
        return inner

    def _outer_reply(self, reply: Message) -> ModelReply:
        agent = self.driver.running
        context, step, asked = agent.context, agent.last_step, self._asked
        assert step is not None and asked is not None
        wanted = dict(asked.request.sampling)
        notes: dict[str, Any] = {"left_out": list(asked.request.left_out)}
        sampled = {name: value for name, value in agent.turn.sampling.items() if name != "grammar"}
        notes["sampling"] = wanted if sampled != wanted else None
        if noted := {key: note for key, note in notes.items() if note}:
            last = replace(step.parts[-1], extra={**step.parts[-1].extra, "request": noted})
            step.parts = (*step.parts[:-1], last)
        recorded = context.conversation[-1]
        calls: list[ToolCall] = []
        texts = [recorded.content]
        known = {} if self._tools is None else self._tools.tools()
        given = [call for call in recorded.tool_calls if call.name not in known]
        is_asked = asked.request.takes_calls or len(given) < len(recorded.tool_calls)
        if given and not is_asked:  # a server does not read calls that nobody asked for
            _, closing = context.renderer.reasoning_in_content or ("", "")
            whole = str(context.new_text(step.stop - step.action_start))
            texts = [whole.rpartition(closing)[2].strip() if closing else whole.strip()]
        for call in given if asked.request.takes_calls else ():
            if not call.name:
                texts.append(call.raw if call.raw is not None else str(call.arguments))
                continue
            outer = ToolCall(name=call.name, arguments=call.arguments, id=self._id(len(calls)))
            self._calls[str(outer.id)] = call
            calls.append(outer)
        content = "\n".join(text for text in texts if text)
        begun = len(asked.request.prefill or "")
        found = [(at, stop) for stop in asked.request.stop if (at := content.find(stop, begun)) >= 0]
        end, stop = min(found, default=(None, None))  # without the stop string, as servers do
        content = content[:end]
        message = Message(role="assistant", content=content, reasoning=recorded.reasoning, tool_calls=tuple(calls))
        self._inner[id(message)] = message, recorded
        tokens = np.asarray(context.log_tokens[step.action_start : step.stop])
        logprobs = np.asarray(context.log_logprobs[step.action_start : step.stop])
        is_known = bool(len(logprobs)) and not bool((logprobs != logprobs).any())
        decode = context.renderer.tokenizer.token_bytes
        self._sampled[self._id()] = context, step, content.strip()
        spans = reply_spans(context.renderer, tokens, recorded) if recorded.reasoning else ()
        return ModelReply(
            id=self._id(),
            message=message,
            finish_reason="length" if step.finish_reason == "length" else "tool_calls" if calls else "stop",
            stop_sequence=stop,
            prompt_tokens=len(context) - len(tokens),
            cached_tokens=step.parts[0].extra.get("cached_tokens", 0),
            tokens=tokens.tolist(),
            reasoning_tokens=sum(span.stop - span.start for span in spans if span.label == "reasoning"),
            logprobs=logprobs.tolist() if is_known else None,
            texts=[piece.decode(errors="replace") for piece in decode(tokens)] if asked.request.logprobs else (),
        )

    def _id(self, call: int | None = None) -> str:
        """Return the id of the current reply, or of one of its calls.

        The ids are the same whether the reply is streamed or not.
        """
        index = 0 if call is None else call + 1
        while len(self._issued) <= index:
            self._ids += 1
            kind = "call" if self._issued else "reply"
            digest = hashlib.sha256(f"{self._salt} {self._ids}".encode()).hexdigest()
            self._issued.append(f"{kind}_{digest[:24]}")
        return self._issued[index]

    def count_tokens(self, request: ModelRequest) -> int:
        """Return how many tokens the prompt of a request would have if it were the first request.

        Raises:
            RequestError: If the model family cannot express it.
        """
        try:
            rendered = self.driver.renderer.render(
                request.all_messages, tools=request.tools, generation_prompt=True, history="keep"
            )
        except (RenderError, TokenizerError) as error:
            raise _inexpressible(error) from error
        return len(rendered.tokens)


def _inexpressible(error: RenderError | TokenizerError) -> RequestError:
    """Return the error of a request that a model family cannot express."""
    return RequestError(f"the model family cannot express the request: {message_of(error)}")


def _at_limit(text: str, limit: str | None) -> RequestError:
    """Return the error for a program at a limit. Its code is the limit's name, or the code that clients know for it."""
    return RequestError(text, 400, "context_length_exceeded" if limit in _CONTEXT_IS_FULL else str(limit))


def failure(error: BaseException, *, is_of_policy: bool) -> RequestError:
    """Return the error for a program whose episode failed. The cause, which may quote a message, is only in the record.

    Args:
        error: The exception.
        is_of_policy: Whether a reply of the policy was due.
    """
    if isinstance(error, DeadlineExceeded) or (is_of_policy and isinstance(error, TimeoutError)):
        return Refusal(504, "deadline_exceeded", "the policy or the episode took too long", _NO_RETRY)
    if is_of_policy and isinstance(error, Exception):
        return Refusal(502, "policy_failed", "the policy failed", _NO_RETRY)
    return Refusal(500, "episode_failed", "the episode failed", _NO_RETRY)
