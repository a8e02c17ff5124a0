"""A model of transformers on this machine as a policy, with a KV cache that honours `keep` and `base`.

torch and transformers are imported only when a policy is made.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from ..contexts.protocol import Action, FinishReason
from ..errors import ConfigError
from ..packages import load
from ..rendering.tokenizers import Tokenizer, load_tokenizer, local_tokenizer
from .kv_cache import CacheKind, Computed, KVCache
from .sampling import Sampling, draw

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_CACHE_BYTES = 2 << 30


@dataclass(slots=True)
class Statistics:
    """What a policy did so far, in tokens."""

    replies: int = 0
    sampled: int = 0
    computed: int = 0
    """Tokens that went through the model."""
    reused: int = 0
    """Tokens of prompts that the KV cache had."""
    recomputed: int = 0
    """Tokens that were to be kept and that the cache did not have any more. A reply's last token never counts: the
    model has not read it before the next prompt."""

    def to_dict(self) -> dict[str, int]:
        """As plain values for JSON."""
        return asdict(self)


class TransformersPolicy:
    """Samples replies from a causal language model: `envsdk.rollout(env, policy=TransformersPolicy(model))`.

    The log-probabilities of an `Action` are of the distribution that was sampled from: after the temperature, and
    normalised again over what `top_k` and `top_p` leave. A trainer that takes them from all logits, divided by the
    temperature, has the same where `top_k` and `top_p` leave everything, which is the default.

    The same seed, episode id, context, prompt and `policy_version` give the same reply, in whatever order episodes
    come. Concurrent calls take turns token by token, so that time limits hold. A `refresh` ends replies that are under
    way as `abort`; they go on with the new weights.

    Args:
        model: A causal language model of transformers, in evaluation mode.
        tokenizer: The tokenizer that the model was trained with: what `load_tokenizer` takes. A rollout compares it
            with that of the environment; stop strings need it; the model's vocabulary may not be smaller than it.
            By default the one in the folder, or the cached Hugging Face id, that the model was loaded from; if there
            is none, it is not known, and nothing is compared.
        seed: Another seed gives other replies.
        temperature: See `Sampling`; what an environment asks for by `Turn(sampling=...)` goes first.
        top_k: See `Sampling`.
        top_p: See `Sampling`.
        max_tokens: A limit for the length of replies beside that of the environment.
        cache: What is kept between replies, for each context: see `CacheKind`. Of layers with a state (recurrent,
            convolution) nothing is kept, since a state has no prefix to go back to.
        max_cache_bytes: How much is kept; the contexts used longest ago go first.
        policy_version: What actions say about the weights.

    Raises:
        ConfigError: If an option is not valid, or the vocabulary is too small for the tokenizer.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        max_tokens: int | None = None,
        cache: CacheKind = "full",
        max_cache_bytes: int = _MAX_CACHE_BYTES,
        policy_version: int | None = None,
    ) -> None:
        self._torch = _torch()
        self._config = _text_config(model)
        known = None if tokenizer is None else load_tokenizer(tokenizer)
        if known is not None:
            _check_vocabulary(known, self._config.vocab_size)
        if max_tokens is not None and max_tokens < 1:
            raise ConfigError(f"max_tokens is {max_tokens}; expected None or at least 1")
        if max_cache_bytes < 0:
            raise ConfigError(f"max_cache_bytes is {max_cache_bytes}; expected at least 0")
        if cache not in get_args(CacheKind):
            raise ConfigError(f"cache is {cache!r}; expected one of {get_args(CacheKind)}")
        self.model = model
        self.statistics = Statistics()
        self._tokenizer = known
        self._is_found = known is not None
        self._seed = seed
        self._sampling = Sampling(temperature, top_k, top_p)
        self._max_tokens = max_tokens
        self._policy_version = policy_version
        self._refreshed = 0
        self._cache = KVCache(model, cache, max_cache_bytes)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the model, which rollouts compare with the environment's; None if it is not known."""
        if not self._is_found:
            self._tokenizer, self._is_found = local_tokenizer(str(getattr(self.model, "name_or_path", ""))), True
        return self._tokenizer

    @property
    def policy_version(self) -> int | None:
        """What actions say about the weights; setting it is a `refresh`."""
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: int | None) -> None:
        self.refresh(version)

    def refresh(self, policy_version: int | None = None) -> None:
        """Say that the weights have changed: nothing computed so far is used again.

        Changes in place (an optimizer's step, `load_state_dict`) between two replies are noticed without it, so that
        no cache is stale; but replies that are under way go on, and actions do not tell the new weights apart.

        Args:
            policy_version: What actions say from now on; by default, one more if there was a version.
        """
        following = None if self._policy_version is None else self._policy_version + 1
        self._policy_version = following if policy_version is None else policy_version
        self._refreshed += 1
        self._cache.clear()

    def forget(self, episode_id: str) -> None:
        """Drop what is kept of an episode that is over; without it, that goes when the cache is full."""
        self._cache.forget(episode_id)

    @property
    def cache_bytes(self) -> int:
        """How much is kept between replies at present."""
        return self._cache.nbytes

    async def __call__(
        self,
        prompt: "NDArray[np.int32]",
        *,
        episode_id: str,
        context: str,
        base: str,
        keep: int,
        stop_token_ids: tuple[int, ...],
        stop: tuple[str, ...],
        max_tokens: int | None,
        sampling: Mapping[str, Any],
        **_: Any,
    ) -> Action:
        """Sample a reply; see `Policy`.

        Raises:
            ConfigError: If the prompt has a token that the model lacks or is too long for it, there are stop strings
                and no tokenizer, or a sampling parameter is not valid.
            UnknownName: If the environment asks for a sampling parameter that there is none of.
        """
        chosen = self._sampling.updated(sampling)
        self._check(prompt, stop)
        reply = _Reply(stop_token_ids, tuple(map(str.encode, stop)), self._room(len(prompt), max_tokens))
        rng, version = self._rng(episode_id, context, prompt), self._policy_version
        key = (episode_id, context)
        computed = self._cache.take(key, base, keep, prompt, self._weights())
        self._count(len(computed.tokens), min(keep, len(prompt) - 1))
        try:
            await self._sample(reply, prompt[len(computed.tokens) :].tolist(), computed, chosen, rng)
        finally:
            if computed.weights == self._weights():
                self._cache.put(key, computed)
        self.statistics.sampled += len(reply.tokens)
        return Action(
            np.array(reply.tokens, dtype=np.int32),
            np.array(reply.logprobs, dtype=np.float32),
            reply.finish_reason,
            chosen.temperature,
            version,
        )

    async def _sample(
        self, reply: "_Reply", new: list[int], computed: Computed, sampling: Sampling, rng: np.random.Generator
    ) -> None:
        refreshed = self._refreshed
        while reply.has_room:
            token, logprob = draw(self._logits(new, computed), sampling, rng.random())
            piece = self._tokenizer.token_bytes(np.array([token], dtype=np.int32))[0] if self._tokenizer else b""
            if reply.add(token, logprob, piece):
                return
            new = [token]
            await asyncio.sleep(0)
            if self._refreshed != refreshed:
                reply.finish_reason = "abort"
                return
        reply.finish_reason = "length"

    def _logits(self, new: list[int], computed: Computed) -> Any:
        """The logits behind tokens that the model reads now: float32, shape (vocabulary,)."""
        if self.model.training:
            raise ConfigError("the model is in training mode, where dropout changes what it says: call model.eval()")
        tokens = new if computed.layers is not None else [*computed.tokens, *new]
        ids = self._torch.tensor([tokens], device=self.model.device)
        use_cache = {"past_key_values": computed.layers, "use_cache": computed.layers is not None}
        with self._torch.no_grad():
            logits = self.model(input_ids=ids, logits_to_keep=1, **use_cache).logits
        computed.tokens += new
        self.statistics.computed += len(tokens)
        return logits[0, -1].float()

    def _weights(self) -> tuple[int, int]:
        """What tells the weights from others: torch counts the changes of each tensor."""
        changes = (p._version for p in self.model.parameters() if not p.is_inference())
        return self._refreshed, sum(changes)

    def _rng(self, episode_id: str, context: str, prompt: "NDArray[np.int32]") -> np.random.Generator:
        name = repr((self._seed, self._policy_version, episode_id, context)).encode()
        digest = hashlib.blake2b(name + np.ascontiguousarray(prompt, dtype="<i4").tobytes(), digest_size=16)
        return np.random.default_rng(int.from_bytes(digest.digest(), "little"))

    def _count(self, reused: int, kept: int) -> None:
        self.statistics.replies += 1
        self.statistics.reused += reused
        self.statistics.recomputed += max(0, kept - reused - 1)

    def _check(self, prompt: "NDArray[np.int32]", stop: tuple[str, ...]) -> None:
        rows: int = self._config.vocab_size
        if not len(prompt):
            raise ConfigError("the prompt is empty: there is nothing that the model could go on with")
        if not 0 <= prompt.min() <= prompt.max() < rows:
            raise ConfigError(
                f"the prompt has the token {prompt.max()}, but the model has the ids 0 to {rows - 1}: it is of another "
                "family than the environment's tokenizer"
            )
        if stop and self.tokenizer is None:
            raise ConfigError(f"stop strings {stop!r:.80} need the tokenizer: TransformersPolicy(model, tokenizer)")

    def _room(self, length: int, max_tokens: int | None) -> int:
        """How many tokens a reply may have: the least of all limits."""
        positions: int | None = getattr(self._config, "max_position_embeddings", None)
        if positions is not None and length >= positions:
            raise ConfigError(
                f"the prompt has {length} tokens and the model {positions} positions: keep contexts shorter with "
                f"Limits(max_context_tokens={positions}) or a history policy"
            )
        limits = (max_tokens, self._max_tokens, None if positions is None else positions - length)
        room = min((limit for limit in limits if limit is not None), default=None)
        if room is None:
            raise ConfigError(
                "nothing limits the reply, not even the model's positions: TransformersPolicy(max_tokens=...), a limit "
                "of the episode, or Turn(max_tokens=...)"
            )
        return room


class _Reply:
    """A reply as it grows."""

    def __init__(self, stop_token_ids: tuple[int, ...], stop: tuple[bytes, ...], room: int) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.finish_reason: FinishReason = "stop"
        self._stop_token_ids = frozenset(stop_token_ids)
        self._stop = stop
        self._seen = max(map(len, stop), default=1) - 1  # so much of a stop string may stand in earlier tokens
        self._tail = b""
        self._room = room

    @property
    def has_room(self) -> bool:
        return len(self.tokens) < self._room

    def add(self, token: int, logprob: float, piece: bytes) -> bool:
        """Add a token; whether it ends the reply. Tokens stay as sampled, also what stands behind a stop string."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        text = self._tail + piece
        self._tail = text[len(text) - self._seen :] if self._seen else b""
        return token in self._stop_token_ids or any(name in text for name in self._stop)


def _torch() -> Any:
    needed = ("transformers", "torch")
    return [load(module, "TransformersPolicy needs", "pip install 'envsdk[torch]'") for module in needed][-1]


def _text_config(model: Any) -> Any:
    config = getattr(model, "config", None)
    if not callable(model) or not hasattr(config, "get_text_config"):
        raise ConfigError(
            f"model is a {type(model).__name__}; expected a causal language model of transformers, such as "
            "AutoModelForCausalLM.from_pretrained(...) loads"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError("the model is an encoder with a decoder; expected a decoder alone")
    return getattr(config, "get_text_config")(decoder=True)  # noqa: B009 - its type is not known


def _check_vocabulary(tokenizer: Tokenizer, rows: int) -> None:
    named = 1 + max(tokenizer.control_tokens.values(), default=-1)  # padding behind the last name is never rendered
    if rows < named:
        raise ConfigError(
            f"the model has {rows} ids, but the tokenizer {tokenizer.name!r} names {named}: it is of another family, "
            "or its embedding was not enlarged"
        )
