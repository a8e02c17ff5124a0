"""The policy on SGLang servers, written for SGLang's public interface: `/generate`, `/tokenize`, `/abort_request`."""

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field

from ..errors import ConfigError, ServerReplyError
from ._client import ModelServer, ServerClient
from ._sampling import Sampling
from ._served import ServedPolicy, check_model
from ._server_replies import (
    OnTokens,
    ServerReply,
    ServerRequest,
    TokenId,
    Weights,
    WeightSpan,
    cache_counts,
    check_named,
    read_response,
    routed_experts,
)

_LEAST_TEMPERATURE = 1e-6
_ALL = -1  # the top_k by which SGLang samples from all tokens


class SGLang(ServedPolicy):
    """Sample replies on SGLang servers: `envsdk.rollout(env, policy=SGLang("http://localhost:30000"))`.

    SGLang computes log-probabilities after the temperature, but before top-k and top-p. They belong to the sampled
    distribution only without these, so `top_k` and `top_p` are refused. Seeds need a server with
    `--enable-deterministic-inference`.

    A reply may also end at an end-of-sequence token of the model's configuration. If weights change while a reply is
    sampled, each version's tokens are a part, as with `VLLM`; a version that is not a number is in
    `extra["weight_version"]`. SGLang before `weight_versions` reports only one version, that of the last token.
    `routed_experts` needs a server with `--enable-return-routed-experts`.

    Prompts with images are refused: SGLang may decode their tokens and encode the text again. Newer versions return the
    tokens that they got from a prompt (`return_prompt_token_ids`), but this class does not compare them yet.

    This class is tested with a local server that follows SGLang's public interface, and was run on SGLang 0.5.23 on the
    CPU, with PyTorch in place of its kernels.

    Args:
        url: See `ServedPolicy`.
        model: See `ServedPolicy`. It may be a LoRA adapter that the server has loaded.
        routed_experts: Whether to request the experts of each token. They are in `extra["routed_experts"]`:
            `Aligned` over the prompt and the reply, int32 of shape (n, layers * experts), with -1 for the last token.
        options: The other arguments are those of `ServedPolicy`.
    """

    name: ClassVar[str] = "SGLang"
    why_no_images: ClassVar[str] = (
        "SGLang's /generate may decode the tokens of a prompt with images and encode the text again, so the model's "
        "tokens may differ from those that are trained. Use VLLM or TransformersPolicy"
    )
    spare_tokens: ClassVar[int] = 1  # prompt and reply together must be shorter than the context
    flags: ClassVar[Mapping[str, str]] = {
        "model": "start SGLang with --served-model-name {}",
        "models": "If it needs a key (--api-key), pass api_key",
        "length": "start SGLang with --context-length {}",
        "logprobs": "Start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB in its environment",
        "top_logprobs": "Use a version of SGLang whose /generate returns output_top_logprobs",
        "tokenize": "Start SGLang without --skip-tokenizer-init, in a version with /tokenize",
        "vocabulary": "Start SGLang with the --model-path, or the --tokenizer-path, of the environment's model",
        "grammar": "start SGLang with --grammar-backend llguidance, and without --reasoning-parser",
    }

    def __init__(
        self, url: str | Sequence[str], model: str | None = None, *, routed_experts: bool = False, **options: Any
    ) -> None:
        super().__init__(url, model, **options)
        self._routed_experts = routed_experts

    def check_sampling(self, sampling: Sampling) -> None:
        """Refuse parameters that SGLang's log-probabilities do not reflect.

        Raises:
            ConfigError: If `top_k` or `top_p` is set, or the temperature is between 0 and 1e-6.
        """
        if 0 < sampling.temperature < _LEAST_TEMPERATURE:
            raise ConfigError(
                f"temperature is {sampling.temperature}, which SGLang would treat as 0; expected 0, or at least "
                f"{_LEAST_TEMPERATURE:g}"
            )
        if sampling.top_k is not None or sampling.top_p < 1:
            raise ConfigError(
                f"top_k is {sampling.top_k} and top_p is {sampling.top_p}; expected None and 1.0, because SGLang "
                "returns log-probabilities of the distribution before they apply"
            )

    async def generate(
        self, client: ServerClient, server: ModelServer, request: ServerRequest, on_tokens: OnTokens | None = None
    ) -> ServerReply:
        """Request a reply from a server."""
        if self.model is not None and not server.has_model:  # without the startup checks
            await check_model(self, client, server)
        if request.max_tokens is None:
            raise ConfigError(
                f"the reply has no length limit, not even the context of {server.url}: set one with "
                "SGLang(max_tokens=...), Limits(...), or Turn(max_tokens=...)"
            )
        # All parameters that shape the distribution, so that no default of the server or the model applies.
        parameters: dict[str, Any] = {
            "max_new_tokens": request.max_tokens,
            "temperature": request.sampling.temperature,
            "top_p": request.sampling.top_p,
            "top_k": request.sampling.top_k or _ALL,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": request.stop_token_ids,
            "stop": request.stop,
            "skip_special_tokens": False,
            "no_stop_trim": True,
        }
        if request.seed is not None:
            parameters["sampling_seed"] = request.seed
        if request.sampling.grammar is not None:
            parameters["ebnf"] = request.sampling.grammar
        body: dict[str, Any] = {
            "rid": request.id,
            "input_ids": request.prompt,
            "sampling_params": parameters,
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": request.top_logprobs,
            "stream": False,
        }
        if server.adapter is not None:
            body["lora_path"] = server.adapter
        if self._routed_experts:
            body["return_routed_experts"] = True
        if request.priority is not None:
            body["priority"] = request.priority
        response = await client.request(server, "POST", "/generate", body, id=request.id)
        return _reply_of(read_response(_SGLangReply, response), request)

    async def abort_requests(self, client: ServerClient, server: ModelServer, ids: Sequence[str]) -> None:
        """Ask a server to end requests, which then return the tokens sampled so far."""
        bodies = [{"rid": one, "abort_all": False} for one in ids]
        calls = (client.request(server, "POST", "/abort_request", body, has_value=False) for body in bodies)
        await asyncio.gather(*calls)


class _FinishReason(BaseModel):
    type: Literal["stop", "length", "abort"]
    matched: int | str | list[int] | None = None


_Logprob = tuple[float, TokenId, str | None]


class _MetaInfo(BaseModel):
    finish_reason: _FinishReason
    output_token_logprobs: list[_Logprob] | None = None
    output_top_logprobs: list[list[_Logprob] | None] | None = None
    prompt_tokens: Annotated[int, Field(ge=0)] | None = None
    completion_tokens: int | None = None
    cached_tokens: Annotated[int, Field(ge=0)] | None = None
    weight_version: str | int | None = None
    weight_versions: list[WeightSpan] | None = None
    routed_experts: str | None = None


class _SGLangReply(BaseModel):
    meta_info: _MetaInfo
    output_ids: list[TokenId] | None = None


def _reply_of(response: _SGLangReply, request: ServerRequest) -> ServerReply:
    found = response.meta_info
    reason, sampled = found.finish_reason, found.output_token_logprobs
    if sampled is None:
        if reason.type != "abort" or response.output_ids:
            raise ServerReplyError("the response of SGLang has no output_token_logprobs, although they were requested")
        sampled = []  # it was aborted before its first token
    named = [token for _, token, _ in sampled]
    tokens = named if response.output_ids is None else response.output_ids
    check_named(named, tokens)
    extra: dict[str, Any] = {}
    if found.routed_experts is not None and tokens:
        rows = len(request.prompt) + len(tokens) - 1
        try:  # it is a base64 string of an int32 array, which does not contain its shape
            experts = np.frombuffer(base64.b64decode(found.routed_experts, validate=True), dtype=np.int32)
            experts = experts.reshape(rows, -1)
        except ValueError as error:
            raise ServerReplyError(f"routed_experts is not a base64 string of {rows} rows of int32: {error}") from error
        extra["routed_experts"] = routed_experts(experts, len(request.prompt), len(tokens))
    spans = [Weights(span.version, span.start, span.end) for span in found.weight_versions or ()]
    if not spans and found.weight_version not in (None, ""):
        spans = [Weights(str(found.weight_version), 0, len(tokens))]
    return ServerReply(
        tokens=tokens,
        logprobs=[logprob for logprob, _, _ in sampled],
        finish_reason=reason.type,
        stop_string=reason.matched if isinstance(reason.matched, str) else None,
        stop_token=reason.matched if isinstance(reason.matched, int) else None,
        weights=spans,
        extra=extra,
        counts=cache_counts(found.cached_tokens, found.prompt_tokens),
        top_logprobs=[[logprob for logprob, _, _ in top or ()] for top in found.output_top_logprobs or ()],
    )
