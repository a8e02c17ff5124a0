"""The policy on vLLM servers, tested with vLLM 0.27, 0.31 and 0.32."""

import base64
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, cast

import numpy as np
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from .._visible import brief
from ..contexts._side_data import Ragged
from ..errors import ConfigError, EngineDead, PolicyUnavailable, RequestRefused, ServerMismatch, ServerReplyError
from ..images import rgb_image
from ._client import AttemptFailure, ModelServer, ServerClient, dead
from ._sampling import Sampling
from ._served import ServedPolicy
from ._server_replies import (
    OnTokens,
    ServerReply,
    ServerRequest,
    ServerUsage,
    TokenId,
    Weights,
    WeightSpan,
    check_named,
    cut_reply,
    read_response,
    routed_experts,
)

_GENERATE, _COMPLETIONS, _ABORT = "/inference/v1/generate", "/v1/completions", "/inference/v1/abort_requests"
_ID_PREFIX = "generate-tokens-"  # vLLM's engine puts it before the id of a request to _GENERATE
_MISSING = (403, 404, 405, 501)  # 403 without --enable-scale-out
_ID_IN_NAME = "token_id:"
_LEAST_TEMPERATURE = 0.01


class VLLM(ServedPolicy):
    """Sample replies on vLLM servers: `envsdk.rollout(env, policy=VLLM("http://localhost:8000"))`.

    Start a server with `vllm serve MODEL --logprobs-mode processed_logprobs --enable-scale-out`. Without
    `--enable-scale-out` (or with an older vLLM), the policy uses `/v1/completions` with token ids. There, a reply has
    no weight versions and cannot be aborted: `abort()` waits until it has ended.

    A reply ends only at the environment's stop tokens and strings: the end-of-sequence token of the model's
    configuration has no effect. If weights change while a reply is sampled, each version's tokens are a part with their
    `policy_version`, if vLLM's name of the version is a number; any other name is in `extra["weight_version"]`. Experts
    (`--enable-return-routed-experts`) are in `extra["routed_experts"]`: `Aligned` over the prompt and the reply, int32
    of shape (n, layers, experts), with -1 for the last token, which the model has not processed. The ids that sampling
    was restricted to are in `extra["sampling_mask"]`: `Ragged`, one list for each token.

    Images need a server whose `/inference/v1/generate` has the fields `content_parts` and `return_token_ids`, as in
    vLLM 0.32. The prompt is sent with one placeholder for each image, and the server's processor writes the others; if
    the returned prompt differs from the requested one in any token, the reply is refused. `/v1/completions` takes
    no images.

    Tokens are reported while they are sampled if the reply is read at the same time; see `Policy`. A request whose
    tokens were reported is not retried: if it fails, it raises `PolicyUnavailable`. The tokens of a reply of several
    versions are reported when the first part is sampled. Streams of `/v1/completions` have no experts.

    The arguments are those of `ServedPolicy`.
    """

    name: ClassVar[str] = "VLLM"
    streams: ClassVar[bool] = True
    flags: ClassVar[Mapping[str, str]] = {
        "model": "start vLLM with --served-model-name {}",
        "models": "If it needs a key (--api-key), pass api_key",
        "length": "start vLLM with --max-model-len {}",
        "logprobs": "Start vLLM with --logprobs-mode processed_logprobs",
        "top_logprobs": "Start vLLM with --max-logprobs 5 or more",
        "tokenize": "Start vLLM without --skip-tokenizer-init",
        "vocabulary": "Start vLLM with the model, or the --tokenizer, that belongs to the environment",
        "grammar": "start vLLM with --structured-outputs-config.backend guidance, and without --reasoning-parser",
    }

    def check_sampling(self, sampling: Sampling) -> None:
        """Refuse temperatures that vLLM changes.

        Raises:
            ConfigError: If the temperature is between 0 and 0.01.
        """
        if 0 < sampling.temperature < _LEAST_TEMPERATURE:
            raise ConfigError(
                f"temperature is {sampling.temperature}, which vLLM would raise to {_LEAST_TEMPERATURE}; expected 0, "
                f"or at least {_LEAST_TEMPERATURE}"
            )

    async def generate(
        self, client: ServerClient, server: ModelServer, request: ServerRequest, on_tokens: OnTokens | None = None
    ) -> ServerReply:
        """Request a reply from a server: with its endpoint for token ids, or else with `/v1/completions`."""
        streamed = None if on_tokens is None else TokenStream(on_tokens, request.max_tokens)

        async def ask(path: str, body: dict[str, Any]) -> Any:
            if streamed is None:
                return await client.request(server, "POST", path, body, id=request.id)

            async def read(event: Any) -> bool:
                assert streamed is not None
                if not streamed.add(event):
                    return True
                if path == _GENERATE:  # the last event has the versions of the weights
                    await self.abort_requests(client, server, [request.id])
                return path == _GENERATE

            options = {"stream": True, "stream_options": {"include_usage": True}}
            await client.stream(server, path, {**body, **options}, read, id=request.id)
            return streamed.response()

        try:
            reply = await self._ask(server, request, ask)
        except AttemptFailure as failure:
            if streamed is None or not streamed.count:
                raise
            if failure.is_dead:
                raise EngineDead(dead(server, failure)) from failure
            raise PolicyUnavailable(
                f"{server.url} failed after {streamed.count} tokens of the reply {request.id} were reported, so it is "
                f"not requested again; the cause is {failure.cause}: {failure}. Check the server's log, or repeat the "
                "episode"
            ) from failure
        return reply if streamed is None or streamed.length is None else cut_reply(reply, streamed.length)

    async def _ask(
        self, server: ModelServer, request: ServerRequest, ask: Callable[[str, dict[str, Any]], Awaitable[Any]]
    ) -> ServerReply:
        if not server.lacks_token_endpoint:
            parameters = _parameters(request)
            if request.max_tokens is not None:  # without it, the reply may fill the context
                parameters["max_tokens"] = request.max_tokens
            if request.seed is not None:
                parameters["seed"] = request.seed
            body = {**self._shared(request), "token_ids": request.prompt, "sampling_params": parameters}
            if request.media:
                # `content_parts` of vLLM 0.32, whose processor writes the placeholders of each image in place of one,
                # so the others are left out. It would blend transparent parts, which other processors do not.
                is_sent = np.ones(len(request.prompt), dtype=np.bool_)
                for placed in request.media:
                    is_sent[placed.start + 1 : placed.stop] = False
                parts = [{"type": "image_url", "url": rgb_image(placed.image).url} for placed in request.media]
                body |= {"token_ids": request.prompt[is_sent], "content_parts": parts, "return_token_ids": True}
            try:
                response = await ask(_GENERATE, body)
            except RequestRefused as error:
                if error.status not in _MISSING:
                    raise
                if request.media:
                    raise _no_images(server) from error
            else:
                return _of_generation(read_response(_GenerateResponse, response), request)
        if request.media:
            raise _no_images(server)
        parameters = {**_parameters(request), "max_tokens": request.max_tokens, "seed": request.seed}
        ids = {"return_token_ids": True, "return_tokens_as_token_ids": bool(request.top_logprobs)}
        body = {**self._shared(request), **parameters, **ids, "prompt": request.prompt}
        response = await ask(_COMPLETIONS, body)  # it reports whether the model is missing
        response = read_response(_Completion, response)
        choice = response.choices[0]
        top = choice.logprobs.top_logprobs or []
        reply = ServerReply(
            tokens=choice.token_ids,
            logprobs=choice.logprobs.token_logprobs,
            finish_reason=choice.finish_reason,
            stop_string=choice.stop_reason if isinstance(choice.stop_reason, str) else None,
            extra=_experts(choice, request),
            counts=(response.usage or ServerUsage()).cache_counts(),
            top_logprobs=[list((values or {}).values()) for values in top],
        )
        server.lacks_token_endpoint = True
        return reply

    async def abort_requests(self, client: ServerClient, server: ModelServer, ids: Sequence[str]) -> None:
        """Ask a server to end requests, which then return the tokens sampled so far."""
        if not server.lacks_token_endpoint:
            body = {"request_ids": [_ID_PREFIX + one for one in ids]}
            await client.request(server, "POST", _ABORT, body, has_value=False)

    def _shared(self, request: ServerRequest) -> dict[str, Any]:
        body: dict[str, Any] = {"request_id": request.id}
        if self.model is not None:
            body["model"] = self.model
        if request.priority is not None:
            body["priority"] = request.priority
        if request.cache_key is not None:
            body["cache_salt"] = request.cache_key
        return body


def _parameters(request: ServerRequest) -> dict[str, Any]:
    """Return all parameters that shape the distribution, so that no default of the server or the model applies."""
    grammar = request.sampling.grammar
    return {
        **({} if grammar is None else {"structured_outputs": {"grammar": grammar}}),
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "top_k": request.sampling.top_k or 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": request.stop_token_ids,
        "stop": request.stop,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "logprobs": request.top_logprobs,
    }


def _no_images(server: ModelServer) -> ServerMismatch:
    return ServerMismatch(
        f"the prompt has an image, and {server.url} has no {_GENERATE}, which takes them: start vLLM with "
        "--enable-scale-out, in a version with the field content_parts, such as 0.32"
    )


def _token_id(named: object) -> object:
    """Return the id in the name `token_id:504`, the only form of vLLM before 0.32."""
    if not isinstance(named, str):
        return named
    if not named.startswith(_ID_IN_NAME):
        raise ValueError(f"the token is {brief(named, 40)}; expected its id, such as '{_ID_IN_NAME}504'")
    return named.removeprefix(_ID_IN_NAME)


class _Logprob(BaseModel):
    token_id: Annotated[TokenId, BeforeValidator(_token_id), Field(validation_alias=AliasChoices("token_id", "token"))]
    logprob: float
    top_logprobs: "list[_Logprob]" = []


class _Logprobs(BaseModel):
    content: list[_Logprob]


class _GenerationChoice(BaseModel):
    token_ids: list[TokenId]
    logprobs: _Logprobs
    finish_reason: str
    stop_reason: int | str | None = None
    routed_experts: str | None = None
    sampling_mask: list[list[TokenId]] | None = None
    weight_versions: list[WeightSpan] | None = None


class _GenerateResponse(BaseModel):
    choices: list[_GenerationChoice] = Field(min_length=1, max_length=1)
    usage: ServerUsage | None = None
    prompt_token_ids: list[TokenId] | None = None


class _CompletionLogprobs(BaseModel):
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float] | None] | None = None


class _CompletionChoice(BaseModel):
    token_ids: list[TokenId]
    logprobs: _CompletionLogprobs
    finish_reason: str
    stop_reason: int | str | None = None
    routed_experts: str | None = None


class _Completion(BaseModel):
    choices: list[_CompletionChoice] = Field(min_length=1, max_length=1)
    usage: ServerUsage | None = None


def _of_generation(response: _GenerateResponse, request: ServerRequest) -> ServerReply:
    if request.media:
        check_prompt(response.prompt_token_ids, request)
    choice = response.choices[0]
    content = choice.logprobs.content
    check_named([entry.token_id for entry in content], choice.token_ids)
    extra = _experts(choice, request)
    if choice.sampling_mask is not None:
        extra["sampling_mask"] = Ragged.of(choice.sampling_mask)
    return ServerReply(
        tokens=choice.token_ids,
        logprobs=[entry.logprob for entry in content],
        finish_reason=choice.finish_reason,
        stop_string=choice.stop_reason if isinstance(choice.stop_reason, str) else None,
        weights=[Weights(span.version, span.start, span.end) for span in choice.weight_versions or ()],
        extra=extra,
        counts=(response.usage or ServerUsage()).cache_counts(),
        top_logprobs=[[top.logprob for top in entry.top_logprobs] for entry in content],
    )


def _experts(choice: _GenerationChoice | _CompletionChoice, request: ServerRequest) -> dict[str, Any]:
    if choice.routed_experts is None or not choice.token_ids:
        return {}
    try:
        file = io.BytesIO(base64.b64decode(choice.routed_experts, validate=True))
        array: Any = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError) as error:
        raise ServerReplyError(f"routed_experts is not a base64 string of an .npy file: {error}") from error
    return {"routed_experts": routed_experts(array, len(request.prompt), len(choice.token_ids))}


def check_prompt(tokens: Sequence[int] | None, request: ServerRequest) -> None:
    """Check that the prompt that a server sampled from is the requested one.

    Raises:
        ServerReplyError: If it differs, or the server did not return it.
    """
    if tokens is None:
        raise ServerReplyError(
            "the server did not return prompt_token_ids, so the tokens of the images cannot be checked: use a version "
            "of vLLM whose /inference/v1/generate has content_parts and return_token_ids, such as 0.32"
        )
    expected: list[int] = request.prompt.tolist()
    if list(tokens) == expected:
        return
    pairs = enumerate(zip(tokens, expected, strict=False))
    first = next((index for index, (found, own) in pairs if found != own), min(len(tokens), len(expected)))
    raise ServerReplyError(
        f"the server sampled from a different prompt: it has {len(tokens)} tokens, and the first that differs is at "
        f"position {first}; expected {len(expected)} tokens. Start vLLM with the image processor of the environment's "
        "renderer (--mm-processor-kwargs), such as the same limits of pixels"
    )


# Streams of vLLM 0.32's `/inference/v1/generate` and `/v1/completions`: lists come in parts; anything else comes once.


class _StreamChoice(BaseModel):
    model_config = ConfigDict(extra="allow")

    token_ids: list[TokenId] | None = None
    logprobs: dict[str, Any] | None = None


class _StreamEvent(BaseModel):
    choices: list[_StreamChoice] = Field(max_length=1)
    usage: dict[str, Any] | None = None
    prompt_token_ids: list[TokenId] | None = None


@dataclass(eq=False, repr=False)
class TokenStream:
    """A reply that is being streamed, whose tokens are reported as they arrive.

    Args:
        on_tokens: Called with the tokens.
        max_tokens: The maximum number of tokens that were requested.

    Attributes:
        count: The number of tokens that were reported.
        length: The number of tokens after which `on_tokens` ended the reply, or None; later ones are not reported.
    """

    _on_tokens: OnTokens
    _max_tokens: int | None
    _choice: dict[str, Any] = field(default_factory=dict[str, Any])
    _usage: dict[str, Any] | None = None
    _prompt: list[int] | None = None
    count: int = 0
    length: int | None = None

    def add(self, event: Any) -> bool:
        """Add an event; return whether the reply ended with it, so that the server should stop.

        Raises:
            ServerReplyError: If it does not have the fields of an event, or there are more tokens than requested.
        """
        read = read_response(_StreamEvent, event)
        self._usage = read.usage or self._usage
        self._prompt = read.prompt_token_ids or self._prompt  # in the first event, if it was requested
        for choice in read.choices:
            given = {**choice.__dict__, **(choice.model_extra or {})}
            _join(self._choice, {name: value for name, value in given.items() if value is not None})
            if self._max_tokens is not None and len(self._choice.get("token_ids", ())) > self._max_tokens:
                raise ServerReplyError(f"the reply has more tokens than max_tokens={self._max_tokens}")
            if choice.token_ids and self.length is None:
                self.count += len(choice.token_ids)
                if self._on_tokens(choice.token_ids) is True:
                    self.length = self.count
                    return "finish_reason" not in self._choice
        return False

    def response(self) -> dict[str, Any]:
        """Return the whole response, after the last event.

        Raises:
            ServerReplyError: If the reply did not end.
        """
        if "finish_reason" not in self._choice and self.length is None:
            raise ServerReplyError("the stream has no finish reason")
        choice: dict[str, Any] = {"token_ids": [], **self._choice}
        choices = [{"finish_reason": "stop", **choice}]
        return {"choices": choices, "usage": self._usage, "prompt_token_ids": self._prompt}


def _join(joined: dict[str, Any], part: dict[str, Any]) -> None:
    """Add a part of a JSON object: lists and objects are joined, and any other value replaces the earlier one."""
    for name, value in part.items():
        known = joined.get(name)
        if isinstance(value, dict):
            _join(joined.setdefault(name, {}), cast("dict[str, Any]", value))
        elif isinstance(value, list) and isinstance(known, list):
            cast("list[Any]", known).extend(cast("list[Any]", value))
        else:
            joined[name] = list(cast("list[Any]", value)) if isinstance(value, list) else value
