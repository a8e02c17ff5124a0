"""What the policies on model servers share: one call of a server for each reply, with everything that can go wrong.

A subclass knows the endpoints of one kind of server.
"""

import asyncio
import hashlib
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ..authoring._env import Env
from ..contexts._protocol import Action
from ..errors import ConfigError, RequestRefused, ServerReplyError
from ..images import PlacedImage
from ..limits import Limits
from ..rendering.renderer import Renderer
from ..rendering.tokenizers import Tokenizer, load_tokenizer
from ._client import MAX_REPLY_BYTES, Client
from ._sampling import Sampling, why_refused
from ._server_checks import check_length, check_server, check_vocabulary
from ._server_replies import OnTokens, ServerReply, ServerRequest, actions_of, checked_tokens
from ._servers import Server, Servers, base_urls
from ._usage import Usage

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_REMAINDERS = 10_000
_MAX_SEED = 2**31
_ABORT_AGAIN_S = 0.2
_NO_LIMITS = Limits()


class ServedPolicy(ABC):
    """A policy that samples from a model server which takes and returns token ids.

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
        timeout_s: The longest duration of a request, in seconds.
        max_retries: How often a call is tried again after a connection error, a timeout, a partial response, or a
            response with the status 408, 429 or 5xx. The time between attempts grows to 30 s; `Retry-After` holds. A
            server that was never reached is not tried again.
        max_in_flight: The maximum number of calls that are being answered at the same time, in each event loop.
        max_reply_bytes: The longest response of a server, in bytes. Routed experts of long prompts may need more.
        priority: The priority of the requests, for a server that schedules by priority.
        headers: More headers of each request.
        check: Whether to check each server before its first reply, and again after it could not be reached.

    Raises:
        ConfigError: If an argument is not valid.
        MissingPackage: If httpx or tenacity is not installed.
    """

    trainable: ClassVar[bool] = True
    name: ClassVar[str]
    """The name in error messages."""
    streams: ClassVar[bool] = False
    """Whether it reports tokens while they are sampled; see `Policy`."""
    spare_tokens: ClassVar[int] = 0
    """How many tokens of a context the server keeps free."""

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
        self._given_tokenizer = tokenizer
        self._sampling = self._checked(Sampling(temperature, top_k, top_p))
        self._max_tokens = max_tokens
        self._seed = seed
        self._headers = {**({} if api_key is None else {"Authorization": f"Bearer {api_key}"}), **(headers or {})}
        self._timeout_s, self._max_retries, self._max_in_flight = timeout_s, max_retries, max_in_flight
        self._max_reply_bytes = max_reply_bytes
        self._priority = priority
        self._checks = check
        self._name_of_run = uuid.uuid4().hex  # another run may have had the same versions of other weights
        self._cache_key: str | None = None
        self._open()

    def _open(self) -> None:
        """Create what belongs to this process."""
        self._servers = Servers(self._urls)
        self._client = Client(
            self._servers,
            self.usage,
            headers=self._headers,
            timeout_s=self._timeout_s,
            max_retries=self._max_retries,
            max_in_flight=self._max_in_flight,
            max_reply_bytes=self._max_reply_bytes,
        )
        self._tokenizer: Tokenizer | None = None
        self._in_flight: dict[str, Server] = {}
        self._remainders: OrderedDict[tuple[str, str], tuple[bytes, list[Action]]] = OrderedDict()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        own = {"_servers", "_client", "_tokenizer", "_in_flight", "_remainders", "_lock"}
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._open()

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(self._urls)}, model={self.model!r})"

    # What a kind of server specifies.

    @abstractmethod
    async def generate(self, client: Client, server: Server, request: ServerRequest) -> ServerReply:
        """Let a server sample a reply, in one attempt."""

    async def stream(self, client: Client, server: Server, request: ServerRequest, on_tokens: OnTokens) -> ServerReply:
        """Do the same, and report the tokens while they are sampled; only if `streams`.

        Raises:
            PolicyUnavailable: If the attempt failed after tokens were reported, so that it cannot be repeated.
        """
        raise NotImplementedError(f"{self.name} does not report tokens while they are sampled")

    @abstractmethod
    async def abort_requests(self, client: Client, server: Server, ids: Sequence[str]) -> None:
        """Let a server end requests, which then return what was sampled so far."""

    @property
    @abstractmethod
    def flags(self) -> Mapping[str, str]:
        """What to change on the server if a check fails, by the name of the check."""

    def check_sampling(self, sampling: Sampling) -> None:  # noqa: B027 - a kind of server may have no restriction
        """Refuse sampling parameters that the server would change, or whose log-probabilities it does not return.

        Raises:
            ConfigError: If a parameter is refused.
        """

    def check_images(self) -> None:
        """Refuse prompts with images.

        Raises:
            ConfigError: If the servers take none, or do not let their tokens be checked.
        """
        raise ConfigError(
            f"the prompt has an image, which {self.name} does not take: use a policy that does, such as "
            "TransformersPolicy or VLLM, or remove the images"
        )

    # What a policy has.

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that was given, which rollouts compare with the environment's; else None."""
        return self._given_tokenizer

    def for_episode(self, env: Env, seed: int | None) -> "ServedEpisode":
        """Return the policy that plays one episode; it compares the environment's limits with the server's."""
        return ServedEpisode(self, env)

    def refuses_sampling(self, name: str, value: Any) -> str | None:
        """Return why a sampling parameter is not honored; see `Policy`."""
        return why_refused(self._chosen, name, value)

    def _chosen(self, sampling: Mapping[str, Any]) -> Sampling:
        return self._checked(self._sampling.updated(sampling, self.name))

    async def __call__(self, prompt: "NDArray[np.int32]", **request: Any) -> Action:
        """Sample a reply; see `Policy`.

        Raises:
            PolicyUnavailable: If no server answers.
            EngineDead: If a server reports that its engine has died.
            ServerReplyError: If a server's reply is not valid, or it refuses the request (`RequestRefused`).
            ServerMismatch: If a startup check fails.
            ConfigError: If a sampling parameter is not valid, or the prompt has images that the servers do not take.
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
        if media:
            self.check_images()
        chosen = self._chosen(sampling)
        waiting = self._take_remainder((episode_id, context), prompt)
        if waiting:
            return self._with_remainder((episode_id, context), prompt, waiting)
        room = min((count for count in (max_tokens, self._max_tokens) if count is not None), default=None)
        request = ServerRequest(
            id=uuid.uuid4().hex,
            prompt=np.ascontiguousarray(prompt, dtype=np.int32),
            sampling=chosen,
            max_tokens=room,
            stop_token_ids=stop_token_ids,
            stop=stop,
            seed=self._seed_of(episode_id, context, len(prompt)),
            priority=self._priority,
            cache_key=self._cache_key,
            media=media,
        )
        tokenizer = self._own_tokenizer() if renderer is None else renderer.tokenizer

        async def attempt(server: Server) -> list[Action]:
            if self._checks:
                await self._check(server, tokenizer, _text_of(prompt, media))
            check_length(server, limits, self.flags)
            vocab_size = None if tokenizer is None else tokenizer.vocab_size
            return await self._reply(server, request, vocab_size, on_tokens)

        actions = await self._client.call(lambda: self._servers.of(episode_id), attempt)
        return self._with_remainder((episode_id, context), prompt, actions)

    async def acheck(self, renderer: Renderer) -> None:
        """Make the startup checks of all servers now, with a renderer's tokenizer.

        Raises:
            ServerMismatch: If one fails. The error names the server's flag.
            PolicyUnavailable: If a server does not answer.
        """
        probe = renderer.tokenizer.encode("The capital of France is")

        async def attempt(server: Server) -> None:
            server.is_checked = False
            server.tokenizers.clear()
            await self._check(server, renderer.tokenizer, probe)

        for server in self._servers.all:
            await self._client.call(partial(_same, server), attempt)

    async def abort(self) -> None:
        """End the replies that are being sampled, with what was sampled so far, and wait until they have ended.

        A server without a token endpoint (`/v1/completions`) cannot end a reply early: this waits for it.
        """
        with self._lock:
            left = dict(self._in_flight)
        while left:
            servers = {server: [one for one, its in left.items() if its is server] for server in set(left.values())}
            await asyncio.gather(
                *(self.abort_requests(self._client, server, ids) for server, ids in servers.items()),
                return_exceptions=True,  # a server that is down has nothing to abort
            )
            deadline = time.monotonic() + _ABORT_AGAIN_S  # a request may reach the server after its abort
            while left and time.monotonic() < deadline:
                await asyncio.sleep(_ABORT_AGAIN_S / 20)
                with self._lock:
                    left = {one: server for one, server in self._in_flight.items() if one in left}

    def use_weights(self, version: int) -> None:
        """Let the next requests read no prefix from a server's cache that other weights computed.

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

    async def _check(self, server: Server, tokenizer: Tokenizer | None, prompt: "NDArray[np.int32]") -> None:
        is_known = tokenizer is None or tokenizer.fingerprint in server.tokenizers
        if server.is_checked and is_known:
            return
        async with self._client.checking():
            if not server.is_checked:
                await check_server(self, self._client, server, prompt)
            if tokenizer is not None and tokenizer.fingerprint not in server.tokenizers:
                await check_vocabulary(self, self._client, server, tokenizer)

    async def _reply(
        self, server: Server, request: ServerRequest, vocab_size: int | None, on_tokens: OnTokens | None
    ) -> list[Action]:
        if server.max_model_len is not None and len(request.prompt) < server.max_model_len:
            left = server.max_model_len - len(request.prompt)
            request = replace(request, max_tokens=left if request.max_tokens is None else min(request.max_tokens, left))
        with self._lock:
            self._in_flight[request.id] = server
        try:
            if on_tokens is None:
                reply = await self.generate(self._client, server, request)
            else:
                report = _checked(on_tokens, vocab_size)
                reply = await self.stream(self._client, server, request, report)
            self.usage.answered(len(request.prompt), len(reply.tokens), cached_tokens=reply.counts.get("cached_tokens"))
            return actions_of(reply, request, vocab_size)
        except RequestRefused:
            raise
        except (ServerReplyError, RecursionError) as error:  # or it is nested too deeply
            raise ServerReplyError(f"{server.url} gave a reply to {request.id} that is not valid: {error}") from error
        finally:
            with self._lock:
                self._in_flight.pop(request.id, None)

    def _checked(self, sampling: Sampling) -> Sampling:
        self.check_sampling(sampling)
        return sampling

    def _own_tokenizer(self) -> Tokenizer | None:
        if self._tokenizer is None and self._given_tokenizer is not None:
            self._tokenizer = load_tokenizer(self._given_tokenizer)
        return self._tokenizer

    def _seed_of(self, episode_id: str, context: str, length: int) -> int | None:
        if self._seed is None:
            return None
        digest = hashlib.blake2b(repr((self._seed, episode_id, context, length)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % _MAX_SEED

    # Replies of several weight versions: one call of the server answers several calls of the policy.

    def _with_remainder(self, key: tuple[str, str], prompt: "NDArray[np.int32]", actions: Sequence[Action]) -> Action:
        """Return the first action; keep the others for the call that continues the reply."""
        first, *others = actions
        if others:
            continued = np.concatenate([prompt, np.asarray(first.tokens, dtype=np.int32)])
            with self._lock:
                self._remainders[key] = _digest(continued), others
                if len(self._remainders) > _MAX_REMAINDERS:
                    self._remainders.popitem(last=False)  # the server then samples the rest again
        return first

    def _take_remainder(self, key: tuple[str, str], prompt: "NDArray[np.int32]") -> list[Action]:
        if not self._remainders:
            return []
        with self._lock:
            digest, actions = self._remainders.pop(key, (b"", []))
        return actions if digest == _digest(prompt) else []


class ServedEpisode:
    """A `ServedPolicy` that plays one episode."""

    def __init__(self, policy: ServedPolicy, env: Env) -> None:
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


def _same(server: Server) -> Server:
    return server


def _checked(on_tokens: OnTokens, vocab_size: int | None) -> OnTokens:
    """Return a function that reports only tokens that are in the vocabulary."""
    return lambda tokens: on_tokens(checked_tokens(tokens, vocab_size).tolist())


def _text_of(prompt: "NDArray[np.int32]", media: Sequence[PlacedImage]) -> "NDArray[np.int32]":
    """Return the tokens of a prompt that are not placeholders of images."""
    is_text = np.ones(len(prompt), dtype=np.bool_)
    for placed in media:
        is_text[placed.start : placed.stop] = False
    return prompt[is_text]


def _digest(tokens: "NDArray[np.int32]") -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(tokens, dtype="<i4").tobytes(), digest_size=16).digest()
