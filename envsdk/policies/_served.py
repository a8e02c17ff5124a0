"""The base class of policies on model servers: one call of a server for each reply, with retries and typed errors.

A subclass implements the endpoints of one kind of server. Startup checks find out whether a server is set up so that
its replies can be trained on. Each check that fails raises `ServerMismatch`, which names the server's flag.
"""

import asyncio
import hashlib
import math
import time
import uuid
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from pydantic import BaseModel, Field

from .._describing import around_difference
from .._visible import brief
from ..authoring._env import Env
from ..contexts._protocol import Action
from ..errors import ConfigError, RequestRefused, ServerMismatch, ServerReplyError
from ..images import PlacedImage
from ..limits import Limits
from ..rendering.renderer import Renderer
from ..rendering.tokenizers import Tokenizer, load_tokenizer
from ._client import MAX_REPLY_BYTES, ModelServer, ServerClient, Usage, base_urls
from ._grammar import GrammarState
from ._sampling import Sampling, why_refused
from ._server_replies import (
    OnTokens,
    ServerReply,
    ServerRequest,
    actions_of,
    checked_tokens,
    read_response,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_REMAINDERS = 10_000
_MAX_SEED = 2**31
_ABORT_AGAIN_S = 0.2
_NO_LIMITS = Limits()
_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  two  spaces,\ttabs\nand\r\n\nlines ",
    "1234567890 3.14159 1,000,000 0x7f",
    "def f(x: int) -> str:\n    return f'{x!r}' if x != 0 else \"\"",
    '{"name": "search", "arguments": {"query": "naïve café"}}',
    "Größe, façade, żółw, Ελληνικά, русский, עברית, العربية, हिन्दी",
    "语言模型从文本中学习。日本語の文章。한국어 문장입니다.",
    "🙂🚀 ∑∫√ ≤ ≠ → ™",
    "ANTIDISESTABLISHMENTARIANISM xqzvwk aaaaaaaaaaaaaaaa",
)
"""Strings that different vocabularies split differently."""
_MAX_CONTROL_TOKENS = 64
_PROBE_TOKENS = 64  # of a prompt
_TOP = 5
_TEMPERATURE = 2.0
_IS_RAW = 0.75  # the ratio of differences is 1 / _TEMPERATURE if log-probabilities are processed, else 1
_SUM_TOLERANCE = 0.02


class ServedPolicy(ABC):
    """A policy that samples from a model server which takes and returns token ids.

    A grammar (`Turn(schema=)`) is enforced by the server with llguidance, on the prompt of ids, and compared with the
    reply. A reply that was interrupted, by `abort` or an update of the weights, cannot go on under a grammar.

    If the server reports how many tokens of a prompt it read from its cache, `Action.extra` has `cached_tokens`, and
    `prompt_tokens` as the server counted them; `diagnostics.cost` adds them up.

    Args:
        url: The base URL of the server, or those of several servers with the same model. An episode stays on one
            server and moves to another one when that fails.
        model: The name of the model; None for the server's only one.
        tokenizer: The tokenizer of the model: anything that `load_tokenizer` accepts. Rollouts compare it with the
            environment's, and the startup checks compare it with the server's. By default, the startup checks compare
            the environment's tokenizer with the server's.
        temperature: See `Sampling`. The parameters in an environment's `Turn(sampling=...)` take precedence. At 0,
            log-probabilities are 0, because the most likely token is chosen.
        top_p: See `Sampling`.
        top_k: See `Sampling`.
        max_tokens: The maximum number of tokens in a reply, in addition to the environment's limits.
        seed: Requests have seeds that are derived from it, from the id of the episode, the name of the context, and
            the length of the prompt. None sends no seed.
        api_key: The key for the header `Authorization`.
        timeout_s: The maximum duration of a request, in seconds.
        max_retries: The number of times that a call is tried again after a connection error, a timeout, a partial
            response, or a response with the status 408, 429 or 5xx. The time between attempts grows to 30 s;
            `Retry-After` is honored. A server that was never reached is not retried.
        max_in_flight: The maximum number of calls that are being answered at the same time, in each event loop.
        max_reply_bytes: The maximum size of a response, in bytes. Routed experts of long prompts may need more.
        priority: The priority of the requests, for a server that schedules by priority.
        headers: Additional headers of each request.
        check: Whether to check each server before its first reply, and again after it could not be reached.

    Raises:
        ConfigError: If an argument is not valid.
        MissingPackage: If httpx is not installed.
    """

    trainable: ClassVar[bool] = True
    name: ClassVar[str]
    """The name in error messages."""
    streams: ClassVar[bool] = False
    """Whether it reports tokens while they are sampled; see `Policy`."""
    flags: ClassVar[Mapping[str, str]]
    """The change to the server that fixes a check that fails, by the name of the check."""
    why_no_images: ClassVar[str] = ""
    """The reason why prompts with images are refused; empty if they are not."""
    spare_tokens: ClassVar[int] = 0
    """The number of tokens of a context that the server keeps free."""

    def __init__(
        self,
        url: str | Sequence[str],
        model: str | None = None,
        *,
        tokenizer: Any = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        max_retries: int = 10,
        max_in_flight: int = 256,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        priority: int | None = None,
        headers: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> None:
        for argument, value, least in (
            ("max_tokens", max_tokens, 1),
            ("max_retries", max_retries, 0),
            ("max_in_flight", max_in_flight, 1),
            ("max_reply_bytes", max_reply_bytes, 1),
        ):
            if value is not None and value < least:
                raise ConfigError(f"{argument} is {value}; expected at least {least}")
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s is {timeout_s}; expected more than 0")
        self.model = model
        self.usage = Usage()
        self._urls = base_urls(url)
        self.tokenizer = tokenizer
        """The tokenizer that was given, which rollouts compare with the environment's; else None."""
        self._sampling = Sampling(temperature, top_k, top_p)
        self.check_sampling(self._sampling)
        self._max_tokens = max_tokens
        self._seed = seed
        self._priority = priority
        self._checks = check
        self._name_of_run = uuid.uuid4().hex  # another run may have had the same versions of other weights
        self._cache_key: str | None = None
        self._remainders: OrderedDict[tuple[str, str], tuple[bytes, list[Action]]] = OrderedDict()
        sent_headers = {**({} if api_key is None else {"Authorization": f"Bearer {api_key}"}), **(headers or {})}
        self._client = ServerClient(
            self._urls, self.usage, sent_headers, timeout_s, max_retries, max_in_flight, max_reply_bytes
        )

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(self._urls)}, model={self.model!r})"

    # Methods that depend on the kind of server.

    @abstractmethod
    async def generate(
        self, client: ServerClient, server: ModelServer, request: ServerRequest, on_tokens: OnTokens | None = None
    ) -> ServerReply:
        """Request a reply from a server, in one attempt.

        Args:
            client: Sends the request.
            server: The server.
            request: The request.
            on_tokens: A function that gets the tokens while they are sampled; only if `streams`.

        Raises:
            PolicyUnavailable: If the attempt failed after tokens were reported, so that it cannot be repeated.
        """

    @abstractmethod
    async def abort_requests(self, client: ServerClient, server: ModelServer, ids: Sequence[str]) -> None:
        """Ask a server to end requests, which then return the tokens sampled so far."""

    def check_sampling(self, sampling: Sampling) -> None:  # noqa: B027 - a kind of server may have no restriction
        """Refuse sampling parameters that the server would change, or whose log-probabilities it does not return.

        Raises:
            ConfigError: If a parameter is refused.
        """

    # The methods of a policy.

    def for_episode(self, env: Env, seed: int | None) -> "ServedEpisode":
        """Return the policy that plays one episode; it compares the environment's limits with the server's."""
        return ServedEpisode(self, env)

    def refuses_sampling(self, name: str, value: Any) -> str | None:
        """Return why a sampling parameter is not honored; see `Policy`."""
        return why_refused(self._chosen, name, value)

    def _chosen(self, sampling: Mapping[str, Any]) -> Sampling:
        chosen = self._sampling.updated(sampling, self.name)
        self.check_sampling(chosen)
        return chosen

    async def __call__(self, prompt: "NDArray[np.int32]", **request: Any) -> Action:
        """Sample a reply; see `Policy`.

        Raises:
            PolicyUnavailable: If no server answers.
            EngineDead: If a server reports that its engine has died.
            ServerReplyError: If a server's reply is not valid, or it refuses the request (`RequestRefused`).
            ServerMismatch: If a startup check fails, or the reply does not follow its grammar.
            ConfigError: If a sampling parameter is not valid, the prompt has images that the servers do not take, or an
                interrupted reply has a grammar.
            UnknownName: If the environment requests an unknown sampling parameter.
        """
        return await self.sample(prompt, None, _NO_LIMITS, **request)

    async def sample(
        self,
        prompt: "NDArray[np.int32]",
        renderer: Renderer | None,
        limits: Limits,
        *,
        episode_id: str,
        context: str,
        stop_token_ids: tuple[int, ...],
        stop: tuple[str, ...],
        max_tokens: int | None,
        sampling: Mapping[str, Any],
        media: Sequence[PlacedImage] = (),
        on_tokens: OnTokens | None = None,
        **_: Any,
    ) -> Action:
        """Sample a reply for an environment with that renderer and those limits; see `__call__`."""
        if media and self.why_no_images:
            raise ConfigError(f"the prompt has an image: {self.why_no_images}")
        chosen = self._chosen(sampling)
        # A reply of several weight versions continues without a call of the server.
        digest, waiting = self._remainders.pop((episode_id, context), (b"", []))
        if waiting and digest == _digest(prompt):
            return self._with_remainder((episode_id, context), prompt, waiting)
        if chosen.grammar_sampled:
            raise ConfigError(
                f"a reply with a grammar was interrupted after {chosen.grammar_sampled} tokens, and {self.name} cannot "
                "continue it inside its grammar: do not abort such replies, or use TransformersPolicy"
            )
        room = min((count for count in (max_tokens, self._max_tokens) if count is not None), default=None)
        seed = None
        if self._seed is not None:
            name = repr((self._seed, episode_id, context, len(prompt))).encode()
            seed = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") % _MAX_SEED
        request = ServerRequest(
            id=uuid.uuid4().hex,
            prompt=np.ascontiguousarray(prompt, dtype=np.int32),
            sampling=chosen,
            max_tokens=room,
            stop_token_ids=stop_token_ids,
            stop=stop,
            seed=seed,
            priority=self._priority,
            cache_key=self._cache_key,
            media=media,
        )
        if renderer is not None:
            tokenizer = renderer.tokenizer
        else:
            tokenizer = None if self.tokenizer is None else load_tokenizer(self.tokenizer)
        is_text = np.ones(len(prompt), dtype=np.bool_)
        for placed in media:
            is_text[placed.start : placed.stop] = False

        async def attempt(server: ModelServer) -> list[Action]:
            if self._checks:
                await self._check(server, tokenizer, prompt[is_text])
            wanted, longest = limits.max_context_tokens, server.max_model_len
            if wanted is not None and longest is not None and wanted > longest:
                raise ServerMismatch(
                    f"the environment's contexts may have {wanted} tokens (Limits.max_context_tokens), but "
                    f"{server.url} takes at most {longest}: {self.flags['length'].format(wanted)}, or lower the limit"
                )
            vocab_size = None if tokenizer is None else tokenizer.vocab_size
            return await self._reply(server, request, vocab_size, on_tokens)

        actions = await self._client.call(attempt, episode_id=episode_id)
        if chosen.grammar is not None and tokenizer is not None:
            sampled: list[int] = np.concatenate([action.tokens for action in actions]).tolist()
            state = await asyncio.to_thread(GrammarState, tokenizer, chosen.grammar, stop_token_ids)
            if (count := state.accept(*sampled)) < len(sampled):
                raise ServerMismatch(
                    f"token {count} of the reply does not follow the grammar that was requested of {self!r}: "
                    f"{self.flags['grammar']}"
                )
        return self._with_remainder((episode_id, context), prompt, actions)

    async def acheck(self, renderer: Renderer) -> None:
        """Make the startup checks of all servers now, with a renderer's tokenizer.

        Raises:
            ServerMismatch: If one fails. The error names the server's flag.
            PolicyUnavailable: If a server does not answer.
        """
        probe = renderer.tokenizer.encode("The capital of France is")

        async def attempt(server: ModelServer) -> None:
            server.is_checked = False
            server.tokenizers.clear()
            await self._check(server, renderer.tokenizer, probe)

        for server in self._client.servers:
            await self._client.call(attempt, only=server)

    async def abort(self) -> None:
        """End the replies that are being sampled, with the tokens sampled so far, and wait until they have ended.

        A server without a token endpoint (`/v1/completions`) cannot end a reply early: this method waits for it.
        """
        left = dict(self._client.in_flight)
        while left:
            servers = {server: [one for one, its in left.items() if its is server] for server in set(left.values())}
            await asyncio.gather(
                *(self.abort_requests(self._client, server, ids) for server, ids in servers.items()),
                return_exceptions=True,  # a server that is down has nothing to abort
            )
            deadline = time.monotonic() + _ABORT_AGAIN_S  # a request may reach the server after its abort
            while left and time.monotonic() < deadline:
                await asyncio.sleep(_ABORT_AGAIN_S / 20)
                left = {one: server for one, server in dict(self._client.in_flight).items() if one in left}

    def use_weights(self, version: int) -> None:
        """Keep the next requests from reading cached prefixes that other weights computed.

        vLLM keeps its prefix cache when weights are updated, so later tokens would depend on the old weights, too.
        SGLang empties its cache. `Rollouts.resume(policy_version=...)` calls this method.

        Args:
            version: The version of the new weights.
        """
        self._cache_key = f"{self._name_of_run}-{version}"

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The policy may be used again, with new ones."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # One attempt.

    async def _check(self, server: ModelServer, tokenizer: Tokenizer | None, prompt: "NDArray[np.int32]") -> None:
        is_known = tokenizer is None or tokenizer.fingerprint in server.tokenizers
        if server.is_checked and is_known:
            return
        async with self._client.here().checks:
            if not server.is_checked:
                await check_model(self, self._client, server)
                await _check_logprobs(self, self._client, server, prompt[-_PROBE_TOKENS:])
                server.is_checked = True
            if tokenizer is not None and tokenizer.fingerprint not in server.tokenizers:
                await check_vocabulary(self, self._client, server, tokenizer)

    async def _reply(
        self, server: ModelServer, request: ServerRequest, vocab_size: int | None, on_tokens: OnTokens | None
    ) -> list[Action]:
        if server.max_model_len is not None and len(request.prompt) < server.max_model_len:
            left = server.max_model_len - len(request.prompt)
            request = replace(request, max_tokens=left if request.max_tokens is None else min(request.max_tokens, left))

        def report(tokens: Sequence[int]) -> bool | None:  # only those that are in the vocabulary
            assert on_tokens is not None
            return on_tokens(checked_tokens(tokens, vocab_size).tolist())

        self._client.in_flight[request.id] = server
        try:
            reply = await self.generate(self._client, server, request, report if on_tokens is not None else None)
            self.usage.answered(len(request.prompt), len(reply.tokens), cached_tokens=reply.counts.get("cached_tokens"))
            return actions_of(reply, request, vocab_size)
        except RequestRefused:
            raise
        except (ServerReplyError, RecursionError) as error:  # RecursionError: it is nested too deeply
            raise ServerReplyError(f"{server.url} returned an invalid reply to {request.id}: {error}") from error
        finally:
            self._client.in_flight.pop(request.id, None)

    def _with_remainder(self, key: tuple[str, str], prompt: "NDArray[np.int32]", actions: Sequence[Action]) -> Action:
        """Return the first action; keep the others for the call that continues the reply."""
        first, *others = actions
        if others:
            continued = np.concatenate([prompt, np.asarray(first.tokens, dtype=np.int32)])
            self._remainders[key] = _digest(continued), others
            if len(self._remainders) > _MAX_REMAINDERS:
                self._remainders.popitem(last=False)  # the server then samples the rest again
        return first


class ServedEpisode:
    """A `ServedPolicy` that plays one episode."""

    def __init__(self, policy: ServedPolicy, env: Env) -> None:
        self.name = policy.name
        self.tokenizer: Any = policy.tokenizer
        self.trainable = policy.trainable
        self.streams = policy.streams
        self.refuses_sampling = policy.refuses_sampling
        self._policy = policy
        self._env = env

    def __call__(self, prompt: "NDArray[np.int32]", *, context: str, **request: Any) -> Awaitable[Action]:
        """Sample a reply."""
        renderer = self._env.episode.pending_reply(context).context.renderer
        return self._policy.sample(prompt, renderer, self._env.limits, context=context, **request)


def _digest(tokens: "NDArray[np.int32]") -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(tokens, dtype="<i4").tobytes(), digest_size=16).digest()


# Startup checks.


class _Model(BaseModel):
    id: str
    max_model_len: int | None = None
    parent: str | None = None


class _Models(BaseModel):
    data: list[_Model] = Field(min_length=1)


class _Tokens(BaseModel):
    tokens: list[int]


async def check_vocabulary(
    policy: ServedPolicy, client: ServerClient, server: ModelServer, tokenizer: Tokenizer
) -> None:
    """Check that a server's model has the same vocabulary as a tokenizer, with a few dozen strings and control tokens.

    Raises:
        ServerMismatch: If a string has other ids, or the server does not tokenize.
        AttemptFailure: If the server cannot be reached.
    """
    model = {} if policy.model is None else {"model": policy.model}
    names = list(tokenizer.control_tokens)[:_MAX_CONTROL_TOKENS]
    expected = {text: tokenizer.encode(text).tolist() for text in _TEXTS}
    expected |= {name: [tokenizer.token_id(name)] for name in names}
    for text, ids in expected.items():
        body = {"prompt": text, "add_special_tokens": False, **model}
        try:
            found = read_response(_Tokens, await client.request(server, "POST", "/tokenize", body))
        except RequestRefused as error:
            raise ServerMismatch(
                f"{server.url} cannot tokenize, so its vocabulary cannot be compared with that of the tokenizer "
                f"{tokenizer.name!r}: {error}. {policy.flags['tokenize']}, or pass check=False"
            ) from error
        if found.tokens != ids:
            there, here = around_difference(str(found.tokens), str(ids), 80)
            raise ServerMismatch(
                f"the model of {server.url} does not have the vocabulary of the environment's tokenizer "
                f"{tokenizer.name!r}: the string {brief(text, 60)} has the ids {there} on the server and "
                f"{here} in the environment. {policy.flags['vocabulary']}, or pass the model's "
                "tokenizer to the environment"
            )
    server.tokenizers.add(tokenizer.fingerprint)


async def check_model(policy: ServedPolicy, client: ServerClient, server: ModelServer) -> None:
    """Check that a server has the policy's model, and read the length of its contexts and whether it is an adapter.

    Raises:
        ServerMismatch: If it does not list the model.
        AttemptFailure: If the server cannot be reached.
    """
    try:
        response = await client.request(server, "GET", "/v1/models")
    except RequestRefused as error:
        raise ServerMismatch(f"{server.url} does not list its models: {error}. {policy.flags['models']}") from error
    models = read_response(_Models, response).data
    named = [model for model in models if policy.model in (None, model.id)]
    if not named:
        raise ServerMismatch(
            f"{server.url} has no model named {policy.model!r}, only {[model.id for model in models]}: pass one of "
            f"these as `model`, or {policy.flags['model'].format(policy.model)}"
        )
    lengths = [model.max_model_len for model in (named[0], *models) if model.max_model_len is not None]
    if lengths:  # an adapter has the length of its base model
        server.max_model_len = lengths[0] - policy.spare_tokens
    is_adapter = named[0].parent is not None or named[0] is not models[0]
    server.adapter = policy.model if is_adapter else None
    server.has_model = True


async def _check_logprobs(
    policy: ServedPolicy, client: ServerClient, server: ModelServer, prompt: "NDArray[np.int32]"
) -> None:
    """Check that a server's log-probabilities belong to the distribution that it samples from.

    At temperature T, the difference of two log-probabilities is 1/T of that at temperature 1. And if only the most
    likely tokens are sampled from, their probabilities add up to 1.
    """
    top_k: int | None = _TOP
    try:
        policy.check_sampling(Sampling(top_k=_TOP))
    except ConfigError:
        top_k = None
    plain = await _probe(policy, client, server, prompt, Sampling(1.0, top_k))
    heated = await _probe(policy, client, server, prompt, Sampling(_TEMPERATURE, top_k))
    spread, heated_spread = plain[0] - plain[-1], heated[0] - heated[-1]
    is_raw = spread > 0 and heated_spread / spread > _IS_RAW
    sums = [sum(map(math.exp, values)) for values in (plain, heated)]
    is_cut = top_k is not None and any(abs(total - 1) > _SUM_TOLERANCE for total in sums)
    if is_raw or is_cut:
        seen = f"at temperatures 1 and {_TEMPERATURE:g}, the log-probabilities of the {len(plain)} most likely tokens "
        raise ServerMismatch(
            f"the log-probabilities of {server.url} do not belong to the distribution that it samples from: {seen}"
            f"range over {spread:.3f} and {heated_spread:.3f}, expected {spread / _TEMPERATURE:.3f} for the latter"
            + (
                f"; sampled with top_k={top_k}, their probabilities add up to {sums[0]:.3f}, expected 1"
                if is_cut
                else ""
            )
            + f". {policy.flags['logprobs']}"
        )


async def _probe(
    policy: ServedPolicy, client: ServerClient, server: ModelServer, prompt: "NDArray[np.int32]", sampling: Sampling
) -> Sequence[float]:
    """Return the largest log-probabilities of the first token after a prompt, in descending order."""
    request = ServerRequest(id="envsdk-probe", prompt=prompt, sampling=sampling, max_tokens=1, top_logprobs=_TOP)
    try:
        reply = await policy.generate(client, server, request)
    except RequestRefused as error:
        raise ServerMismatch(
            f"{server.url} does not return the {_TOP} largest log-probabilities, which check=True needs: {error}. "
            f"{policy.flags['top_logprobs']}, or pass check=False"
        ) from error
    except ServerReplyError as error:
        raise ServerMismatch(
            f"{server.url} answers in a form that {policy.name} cannot read: {error}. Use a version of the server "
            "that docs/how-to/servers.md lists"
        ) from error
    values = sorted(reply.top_logprobs[0] if reply.top_logprobs else (), reverse=True)[:_TOP]
    if len(values) < _TOP:
        raise ServerMismatch(
            f"{server.url} returned {len(values)} of the {_TOP} largest log-probabilities. "
            f"{policy.flags['top_logprobs']}, or pass check=False"
        )
    return values
