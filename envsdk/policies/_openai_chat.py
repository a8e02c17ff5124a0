"""A policy on any server with OpenAI's Chat Completions, which exchanges messages: for evaluation and for judges."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel, Field, ValidationError

from .._describing import what_is_invalid
from ..authoring._env import Env
from ..contexts._protocol import Action
from ..errors import ConfigError, PolicyError, RenderError, ServerReplyError, UnknownName
from ..messages import Message, ToolSchema
from ._client import MAX_REPLY_BYTES, ModelServer, ServerClient, Usage, checked_url
from ._sampling import is_neutral, why_refused
from ._server_replies import ServerUsage, read_response
from ._vocabularies import ANY_TOKENIZER

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PARAMETERS = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "reasoning_effort")
_COMPLETE = ("stop", "tool_calls", "function_call")
_OPENAI = "https://api.openai.com/v1"


class OpenAIChat:
    """Reply with the messages of a chat model: `envsdk.rollout(env, policy=OpenAIChat(url, "model"))`.

    The model receives the messages and the tools that the acting context shows now, after its history policy. Its reply
    becomes tokens with the context's renderer. These are not the tokens that the model sampled, so there are no
    log-probabilities, and the trajectories give no samples.

    The API returns a reply without its stop string. It cannot continue a reply: an environment that uses
    `Turn(prefill=)` or `Turn(continues=True)` raises a `PolicyError`.

    Args:
        base_url: The base URL, with its path. None for `OPENAI_BASE_URL`, or else `https://api.openai.com/v1`.
        model: The name of the model.
        api_key: The key; by default `OPENAI_API_KEY`. Most local servers need none.
        temperature: The temperature; None for the server's default. The parameters in `Turn(sampling=...)` take
            precedence.
        top_p: As `temperature`.
        seed: The seed of all requests, for servers that take one.
        max_tokens: The maximum number of tokens in a reply, in addition to the environment's limits.
        max_tokens_name: The server's name for that limit: `max_completion_tokens` for OpenAI's reasoning models.
        price: The price of a million tokens of prompts, and of a million tokens of replies. `usage.price` adds it up.
        send_reasoning: Whether to send the reasoning of earlier replies as `reasoning_content`.
        timeout_s: The maximum duration of a request, in seconds.
        max_retries: How often a request is retried; see `ServedPolicy`.
        max_in_flight: The maximum number of requests at the same time, in each event loop.
        max_reply_bytes: The maximum size of a response of the server, in bytes.
        headers: Additional headers of each request.
        extra_body: Additional fields of each request, for servers with fields that OpenAI does not have.

    Raises:
        MissingPackage: If httpx is not installed.
        ConfigError: If an argument is not valid.
    """

    tokenizer: ClassVar[str] = ANY_TOKENIZER
    """Any tokenizer: the policy exchanges text."""
    trainable: ClassVar[bool] = False
    """False: its trajectories give no samples."""

    def __init__(
        self,
        base_url: str | None,
        model: str,
        *,
        api_key: str | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        max_tokens: int | None = None,
        max_tokens_name: str = "max_tokens",
        price: tuple[float, float] | None = None,
        send_reasoning: bool = False,
        timeout_s: float = 600.0,
        max_retries: int = 10,
        max_in_flight: int = 64,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if max_retries < 0 or max_in_flight < 1 or not timeout_s > 0:
            raise ConfigError(
                f"max_retries is {max_retries}, max_in_flight is {max_in_flight} and timeout_s is {timeout_s}; "
                "expected at least 0, at least 1, and more than 0"
            )
        self.model = model
        self.usage = Usage()
        self._base_url = checked_url(base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI)
        self._sampling = {"temperature": temperature, "top_p": top_p, "seed": seed}
        self._max_tokens, self._max_tokens_name = max_tokens, max_tokens_name
        self._price = price
        self._send_reasoning = send_reasoning
        self._extra_body = dict(extra_body or {})
        key = api_key or os.environ.get("OPENAI_API_KEY")
        sent_headers = {**({} if key is None else {"Authorization": f"Bearer {key}"}), **(headers or {})}
        self._client = ServerClient(
            [self._base_url], self.usage, sent_headers, timeout_s, max_retries, max_in_flight, max_reply_bytes
        )

    def __repr__(self) -> str:
        return f"OpenAIChat({self._base_url!r}, {self.model!r})"

    def for_episode(self, env: Env, seed: int | None) -> "ChatEpisode":
        """Return the policy that plays one episode of an environment, whose contexts it reads."""
        return ChatEpisode(self, env)

    async def __call__(self, prompt: "NDArray[Any]", **request: Any) -> Action:
        """Refuse a prompt of tokens: the messages come from the environment.

        Raises:
            PolicyError: Always.
        """
        raise PolicyError(
            "OpenAIChat takes messages, not tokens: pass it to a rollout, or call policy.for_episode(env, seed), which "
            "reads the messages of the environment's contexts"
        )

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        stop: tuple[str, ...] = (),
        max_tokens: int | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> "ChatReply":
        """Return the model's reply to messages.

        Args:
            messages: The conversation.
            tools: The tools that the model may call.
            stop: Strings that end the reply.
            max_tokens: The maximum number of tokens in the reply.
            sampling: Sampling parameters, which take precedence over those of the policy.

        Raises:
            PolicyUnavailable: If the server does not answer.
            ServerReplyError: If the answer is not a message, or the server refuses the request (`RequestRefused`).
            UnknownName: If a sampling parameter is unknown.
        """
        wanted = {**self._sampling, **_honored(sampling or {})}
        limits = [count for count in (max_tokens, self._max_tokens) if count is not None]
        body = {
            "model": self.model,
            "messages": chat_messages(messages, with_reasoning=self._send_reasoning),
            **{name: value for name, value in wanted.items() if value is not None},
        }
        if limits:
            body[self._max_tokens_name] = min(limits)
        if stop:
            body["stop"] = list(stop)
        if tools:
            body["tools"] = [
                dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)} for tool in tools
            ]
        body |= self._extra_body

        async def attempt(server: ModelServer) -> ChatReply:
            return self._read(await self._client.request(server, "POST", "/chat/completions", body))

        return await self._client.call(attempt)

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The policy may be used again, with new ones."""
        await self._client.aclose()

    def _read(self, response: Any) -> "ChatReply":
        where = f"the answer of {self._base_url}"
        try:
            completion = read_response(_ChatCompletion, response)
        except ServerReplyError as error:
            raise ServerReplyError(f"{where} is not a chat completion: {error}") from error
        choice = completion.choices[0]
        if choice.finish_reason not in (*_COMPLETE, "length"):
            raise ServerReplyError(
                f"{where} has the finish reason {choice.finish_reason!r}; expected one of {(*_COMPLETE, 'length')}"
            )
        given = choice.message
        reasoning = given.reasoning_content or given.reasoning
        calls = [call.model_dump() for call in given.tool_calls or ()]
        data: dict[str, Any] = {"role": "assistant", "content": given.content or "", "tool_calls": calls}
        try:
            message = Message.from_openai({**data, "reasoning": reasoning} if isinstance(reasoning, str) else data)
        except (ValidationError, RecursionError) as error:
            why = what_is_invalid(error) if isinstance(error, ValidationError) else "it is nested too deeply"
            raise ServerReplyError(f"{where} is not a message: {why}") from error
        usage = completion.usage or _Usage()
        reported = {
            "prompt_tokens": usage.prompt_tokens,
            "sampled_tokens": usage.completion_tokens,
            "cached_tokens": usage.cache_counts().get("cached_tokens"),
        }
        counts = {name: count for name, count in reported.items() if count is not None}  # a missing count is not 0
        prompt, sampled = counts.get("prompt_tokens", 0), counts.get("sampled_tokens", 0)
        price = None if self._price is None else (prompt * self._price[0] + sampled * self._price[1]) / 1e6
        self.usage.answered(prompt, sampled, price or 0.0, counts.get("cached_tokens"))
        extra = {"request_id": completion.id, **counts}
        return ChatReply(
            message, choice.finish_reason == "length", extra if price is None else {**extra, "price": price}
        )


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A reply of a chat model.

    Attributes:
        message: The message.
        is_cut: Whether it reached `max_tokens`.
        extra: The id of the request, the numbers of its tokens that the server reported (`prompt_tokens`,
            `sampled_tokens`, `cached_tokens`), and their price if prices were given.
    """

    message: Message
    is_cut: bool
    extra: Mapping[str, Any]


@dataclass(eq=False, repr=False)
class ChatEpisode:
    """An `OpenAIChat` that plays one episode."""

    tokenizer: ClassVar[str] = ANY_TOKENIZER
    trainable: ClassVar[bool] = False

    _policy: Any
    _env: Env

    def refuses_sampling(self, name: str, value: Any) -> str | None:
        """Return why a sampling parameter is not sent; see `Policy`."""
        return why_refused(_honored, name, value)

    async def __call__(
        self,
        prompt: "NDArray[Any]",
        *,
        context: str,
        max_tokens: int | None,
        sampling: Mapping[str, Any],
        **_: Any,
    ) -> Action:
        """Return the tokens of the model's reply to the messages of a context.

        Raises:
            PolicyError: If the environment began the reply itself, which a chat API cannot continue.
            Exception: See `OpenAIChat.reply`.
        """
        pending = self._env.episode.pending_reply(context)
        turn, shown = pending.turn, pending.context
        if turn.prefill is not None or turn.continuation is not None:
            raise PolicyError(
                "the environment began the reply (Turn(prefill=) or Turn(continues=True)), and a chat API cannot "
                "continue it: use a policy that exchanges tokens, such as VLLM"
            )
        answer = await self._policy.reply(
            list(shown.view), shown.tools, stop=tuple(turn.stop), max_tokens=max_tokens, sampling=sampling
        )
        renderer = shown.renderer
        try:
            tokens = renderer.reply(answer.message)
        except RenderError as error:
            raise ServerReplyError(
                f"the renderer {renderer.name!r} cannot express the model's reply: {error}"
            ) from error
        if answer.is_cut and len(tokens) and int(tokens[-1]) in renderer.stop_token_ids:
            tokens = tokens[:-1]
        is_cut = answer.is_cut or (max_tokens is not None and len(tokens) > max_tokens)
        return Action(tokens[:max_tokens], None, "length" if is_cut else "stop", extra=answer.extra)


def chat_messages(messages: Sequence[Message], *, with_reasoning: bool = False) -> list[dict[str, Any]]:
    """Return messages as OpenAI's chat API accepts them: arguments are JSON strings, and calls and results have ids.

    Args:
        messages: The messages. Calls without an id get one; results without one answer the calls in order.
        with_reasoning: Whether to keep the reasoning, which the API does not define, as `reasoning_content`.
    """
    unanswered: list[str] = []
    sent: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        data = message.to_openai()
        if not with_reasoning:
            data.pop("reasoning_content", None)
        if message.tool_calls:
            calls = [call.id or f"call_{index}_{number}" for number, call in enumerate(message.tool_calls)]
            for call, name in zip(cast("list[dict[str, Any]]", data["tool_calls"]), calls, strict=True):
                arguments: Any = call["function"]["arguments"]
                if not isinstance(arguments, str):
                    call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False)
                call["id"] = name
            unanswered = list(calls)
        elif message.role == "tool":
            answered = message.tool_call_id or (unanswered[0] if unanswered else f"call_{index}")
            data["tool_call_id"] = answered
            data.pop("name", None)
            unanswered = [name for name in unanswered if name != answered]
        sent.append(data)
    return sent


def _honored(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters to send: the known ones. Unknown ones with a neutral value are left out.

    Raises:
        UnknownName: If one is unknown.
    """
    for name, value in sampling.items():
        if name not in _PARAMETERS and not is_neutral(name, value):
            raise UnknownName.of("sampling parameter of OpenAIChat", name, _PARAMETERS)
    return {name: value for name, value in sampling.items() if name in _PARAMETERS}


class _Function(BaseModel):
    name: str
    arguments: str


class _ChatCall(BaseModel):
    id: str | None = None
    type: str = "function"
    function: _Function


class _Message(BaseModel):
    content: str | None = None
    tool_calls: list[_ChatCall] | None = None
    reasoning_content: Any = None
    reasoning: Any = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(ServerUsage):
    completion_tokens: int | None = None


class _ChatCompletion(BaseModel):
    id: str | None = None
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None
