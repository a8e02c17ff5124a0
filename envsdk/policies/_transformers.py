"""A policy that samples from a transformers model on this machine, with a KV cache that honors `keep` and `base`.

This module imports torch and transformers only when a policy is created.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np

from .._packages import load
from .._visible import brief, type_of
from ..contexts._protocol import Action, FinishReason
from ..errors import ConfigError
from ..images import PlacedImage
from ..rendering._model_images import ModelImages
from ..rendering._vision import Vision
from ..rendering.tokenizers import Tokenizer, load_tokenizer
from ..rendering.tokenizers._load import local_tokenizer
from ._grammar import GrammarState
from ._kv_cache import CacheKind, KVCache
from ._model_sequence import ModelSequence
from ._sampling import Sampling, draw, why_refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_CACHE_BYTES = 2 << 30
_ADVICE = "pip install 'envsdk[torch]'"


@dataclass(slots=True)
class CacheStatistics:
    """Token counts of a policy since it was created."""

    replies: int = 0
    """Replies that were started."""
    sampled: int = 0
    """Sampled tokens."""
    computed: int = 0
    """Tokens that the model processed."""
    reused: int = 0
    """Prompt tokens that were in the KV cache."""
    recomputed: int = 0
    """Prompt tokens that an observation kept but that were no longer in the cache. The last token of a reply does not
    count, because the model processes it only as part of the next prompt."""

    def to_dict(self) -> dict[str, int]:
        """Return the counts as a dict, for JSON."""
        return asdict(self)


class TransformersPolicy:
    """Sample replies from a causal language model: `envsdk.rollout(env, policy=TransformersPolicy(model))`.

    The log-probabilities of an `Action` belong to the distribution that was sampled from: after the temperature,
    and renormalized over the tokens that a grammar, `top_k` and `top_p` keep. A trainer that computes log-probabilities
    from all logits divided by the temperature gets the same values if `top_k` and `top_p` have their defaults and there
    is no grammar. For a reply with a grammar (`Turn(schema=)`, `extra["grammar"]`), `grammar_masks` returns the masks.

    The same seed, episode id, context, prompt and `policy_version` give the same reply, regardless of the order of
    episodes. Concurrent calls alternate token by token, so that time limits hold. `refresh` ends the replies that are
    being sampled with the finish reason `abort`; the episodes continue with the new weights.

    Args:
        model: A causal language model of transformers, in evaluation mode.
        tokenizer: The tokenizer that the model was trained with: anything that `load_tokenizer` accepts. A rollout
            compares it with the environment's; stop strings need it; the model's vocabulary must not be smaller. The
            default is the tokenizer in the folder, or of the cached Hugging Face id, that the model was loaded from.
            If there is none, the tokenizer is unknown, and nothing is compared.
        seed: A different seed gives different replies.
        temperature: See `Sampling`. The parameters in an environment's `Turn(sampling=...)` take precedence.
        top_k: See `Sampling`.
        top_p: See `Sampling`.
        max_tokens: The maximum number of tokens in a reply, in addition to the environment's limits.
        cache: What to keep between replies; see `CacheKind`. Nothing is kept for models with recurrent or convolution
            layers, because their state cannot be cropped to a prefix.
        max_cache_bytes: The maximum size of the KV cache between replies, in bytes. The least recently used contexts
            are dropped first.
        policy_version: The version of the weights, which each action records.
        vision: The image processor of a vision model: `renderer.vision`, of the environment's renderer. By default,
            the processor in the folder that the model was loaded from. The policy takes images for Qwen's vision
            models; the images that are in the KV cache are not computed again.

    Raises:
        ConfigError: If an option is not valid, or the model's vocabulary is smaller than the tokenizer's.
        ImportError: If torch or transformers is not installed.
    """

    streams = True

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
        vision: Vision | None = None,
    ) -> None:
        self._torch = _torch()
        config: Any = getattr(model, "config", None)
        if not callable(model) or not hasattr(config, "get_text_config"):
            raise ConfigError(
                f"model is {type_of(model)}; expected a causal language model of transformers, such as the "
                "result of AutoModelForCausalLM.from_pretrained(...)"
            )
        if getattr(config, "is_encoder_decoder", False):
            raise ConfigError("the model is an encoder-decoder; expected a decoder-only model")
        self._config = config.get_text_config(decoder=True)
        known = None if tokenizer is None else load_tokenizer(tokenizer)
        named = 0 if known is None else 1 + max(known.control_tokens.values(), default=-1)  # padding rows come last
        if known is not None and self._config.vocab_size < named:
            raise ConfigError(
                f"the model has {self._config.vocab_size} token ids, but the tokenizer {known.name!r} has {named}: it "
                "belongs to a different family, or the model's embedding was not resized"
            )
        if max_tokens is not None and max_tokens < 1:
            raise ConfigError(f"max_tokens is {max_tokens}; expected None or at least 1")
        if max_cache_bytes < 0:
            raise ConfigError(f"max_cache_bytes is {max_cache_bytes}; expected at least 0")
        if cache not in get_args(CacheKind):
            raise ConfigError(f"cache is {cache!r}; expected one of {get_args(CacheKind)}")
        self.model: Any = model
        self.statistics = CacheStatistics()
        self._tokenizer = known
        self._is_found = known is not None
        self._seed = seed
        self._sampling = Sampling(temperature, top_k, top_p)
        self._max_tokens = max_tokens
        self._policy_version = policy_version
        self._refreshed = self._aborted = 0
        self._cache = KVCache(model, cache, max_cache_bytes)
        self._images = ModelImages(model, vision)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the model, which rollouts compare with the environment's; None if it is unknown."""
        if not self._is_found:
            self._tokenizer, self._is_found = local_tokenizer(str(getattr(self.model, "name_or_path", ""))), True
        return self._tokenizer

    @property
    def policy_version(self) -> int | None:
        """The version of the weights, which each action records. Setting it calls `refresh`."""
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: int | None) -> None:
        self.refresh(version)

    def refresh(self, policy_version: int | None = None) -> None:
        """Announce that the weights have changed: clear the KV cache and abort the replies that are being sampled.

        The policy detects in-place changes (an optimizer step, `load_state_dict`) between two replies by itself, so the
        cache is never stale. But without `refresh`, replies that are being sampled continue, and `policy_version` does
        not change.

        Args:
            policy_version: The new version. By default, the old one plus 1, if there was one.
        """
        following = None if self._policy_version is None else self._policy_version + 1
        self._policy_version = following if policy_version is None else policy_version
        self._refreshed += 1
        self._cache.clear()

    def abort(self) -> None:
        """End the replies that are being sampled, each with the tokens sampled so far and the finish reason `abort`."""
        self._aborted += 1

    def forget(self, episode_id: str) -> None:
        """Drop the cache entries of an episode. Otherwise they stay until the cache is full."""
        self._cache.forget(episode_id)

    @property
    def cache_bytes(self) -> int:
        """The current size of the KV cache, in bytes."""
        return self._cache.nbytes

    def refuses_sampling(self, name: str, value: Any) -> str | None:
        """Return why a sampling parameter is not honored; see `Policy`."""
        return why_refused(self._chosen, name, value)

    def _chosen(self, sampling: Mapping[str, Any]) -> Sampling:
        chosen = self._sampling.updated(sampling, "TransformersPolicy")
        if chosen.grammar is not None and self.tokenizer is None:
            raise ConfigError("a grammar needs a tokenizer: TransformersPolicy(model, tokenizer)")
        return chosen

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
        media: Sequence[PlacedImage] = (),
        on_tokens: Callable[[Sequence[int]], bool | None] | None = None,
        **_: Any,
    ) -> Action:
        """Sample a reply; see `Policy`.

        Raises:
            ConfigError: If the prompt is empty, is too long for the model, or has a token that the model lacks; if
                there are stop strings or a grammar but no tokenizer; if the model takes no images, or its image
                processor makes other tokens of one; or if a sampling parameter is not valid.
            UnknownName: If the environment requests an unknown sampling parameter.
            MissingPackage: If there is a grammar, but llguidance is not installed.
        """
        chosen = self._chosen(sampling)
        room = self._checked_room(prompt, max_tokens)
        if stop and self.tokenizer is None:
            raise ConfigError(f"the stop strings {brief(stop)} need a tokenizer: TransformersPolicy(model, tokenizer)")
        state = None
        if chosen.grammar is not None and self.tokenizer is not None:
            state = GrammarState(self.tokenizer, chosen.grammar, stop_token_ids)
            state.accept(*prompt[len(prompt) - chosen.grammar_sampled :].tolist())
        version = self._policy_version
        name = repr((self._seed, version, episode_id, context)).encode()
        digest = hashlib.blake2b(name + np.ascontiguousarray(prompt, dtype="<i4").tobytes(), digest_size=16)
        rng = np.random.default_rng(int.from_bytes(digest.digest(), "little"))
        key = (episode_id, context)
        sequence = ModelSequence(self._torch, self._images, prompt, media)
        computed = self._cache.take(key, base, keep, sequence.prompt_keys, self._weights())
        reused = len(computed.tokens)
        self.statistics.replies += 1
        self.statistics.reused += reused
        self.statistics.recomputed += max(0, min(keep, len(prompt) - 1) - reused - 1)
        tokens: list[int] = []
        logprobs: list[float] = []
        stops = tuple(map(str.encode, stop))
        seen = max(map(len, stops), default=1) - 1  # bytes of a stop string in earlier tokens
        text, begun, finish_reason = b"", (self._refreshed, self._aborted), cast("FinishReason", "length")
        try:
            while len(tokens) < room:
                if self.model.training:
                    raise ConfigError(
                        "the model is in training mode, where dropout changes its output: call model.eval()"
                    )
                start = len(computed.tokens) if computed.layers is not None else 0
                inputs = sequence.inputs(start, self.model.device)
                use_cache = {"past_key_values": computed.layers, "use_cache": computed.layers is not None}
                with self._torch.no_grad():
                    logits = self.model(**inputs, logits_to_keep=1, **use_cache).logits
                computed.tokens += sequence.keys[len(computed.tokens) :]
                self.statistics.computed += len(sequence) - start
                scores = logits[0, -1].float()
                if state is not None:
                    allowed = np.zeros(len(scores), dtype=np.bool_)
                    known = state.allowed()[: len(scores)]  # a model may have fewer ids than its tokenizer, or more
                    allowed[: len(known)] = known
                    scores = scores.masked_fill(~self._torch.from_numpy(allowed).to(scores.device), -float("inf"))
                sampled, logprob = draw(scores, chosen, rng.random())
                if state is not None:
                    state.accept(sampled)
                tokens.append(sampled)
                logprobs.append(logprob)
                is_enough = on_tokens is not None and on_tokens([sampled]) is True
                piece = self._tokenizer.token_bytes(np.array([sampled], dtype=np.int32))[0] if self._tokenizer else b""
                text = text[max(0, len(text) - seen) :] + piece
                # Text after a stop string in the same token is kept.
                if is_enough or sampled in stop_token_ids or any(one in text for one in stops):
                    finish_reason = "stop"
                    break
                sequence.append(sampled)
                await asyncio.sleep(0)
                if (self._refreshed, self._aborted) != begun:
                    finish_reason = "abort"
                    break
        finally:
            if computed.weights == self._weights():
                self._cache.put(key, computed)
        self.statistics.sampled += len(tokens)
        return Action(
            np.array(tokens, dtype=np.int32),
            np.array(logprobs, dtype=np.float32),
            finish_reason,
            chosen.temperature,
            version,
            {} if chosen.grammar is None else {"grammar": chosen.grammar},
        )

    def _weights(self) -> tuple[int, int]:
        """Return an identifier of the current weights, from torch's count of in-place changes to each tensor."""
        changes = (p._version for p in self.model.parameters() if not p.is_inference())
        return self._refreshed, sum(changes)

    def _checked_room(self, prompt: "NDArray[np.int32]", max_tokens: int | None) -> int:
        """Check a prompt, and return the maximum number of tokens in its reply: the smallest of all limits."""
        rows: int = self._config.vocab_size
        if not len(prompt):
            raise ConfigError("the prompt is empty; expected at least one token")
        if not 0 <= prompt.min() <= prompt.max() < rows:
            raise ConfigError(
                f"the prompt has the token id {prompt.max()}, but the model has the ids 0 to {rows - 1}: the model and "
                "the environment's tokenizer belong to different families"
            )
        length = len(prompt)
        positions: int | None = getattr(self._config, "max_position_embeddings", None)
        if positions is not None and length >= positions:
            raise ConfigError(
                f"the prompt has {length} tokens, but the model has {positions} positions: limit contexts with "
                f"Limits(max_context_tokens={positions}) or a history policy"
            )
        limits = (max_tokens, self._max_tokens, None if positions is None else positions - length)
        room = min((limit for limit in limits if limit is not None), default=None)
        if room is None:
            raise ConfigError(
                "the reply has no length limit, not even the model's number of positions: set one with "
                "TransformersPolicy(max_tokens=...), Limits(...), or Turn(max_tokens=...)"
            )
        return room


def load_model(folder: str | Path, *, dtype: str = "float32") -> Any:
    """Load a causal language model of transformers from a folder, in evaluation mode. Nothing is downloaded.

    A vision model is loaded with its vision part.

    Args:
        folder: The folder, as `save_pretrained` writes it.
        dtype: The type of the weights: `float32`, `bfloat16` or `float16`.

    Raises:
        ConfigError: If the type is not one of these, or the folder has no such model.
        MissingPackage: If torch or transformers is not installed.
    """
    torch = _torch()
    if dtype not in ("float32", "bfloat16", "float16"):
        raise ConfigError(f"dtype is {dtype!r}; expected 'float32', 'bfloat16' or 'float16'")
    if not (Path(folder) / "config.json").is_file():
        raise ConfigError(
            f"{str(folder)!r} has no config.json; expected the folder of a model, as save_pretrained writes it"
        )
    transformers = load("transformers", "TransformersPolicy needs", _ADVICE)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        sees = getattr(config, "vision_config", None) is not None
        auto = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
        return auto.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True).eval()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ConfigError(f"transformers cannot load a causal language model from {str(folder)!r}: {error}") from error


def _torch() -> Any:
    needed = ("transformers", "torch")
    return [load(module, "TransformersPolicy needs", _ADVICE) for module in needed][-1]
