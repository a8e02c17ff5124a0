"""What a model computed for the tokens of contexts, kept between replies: the keys and values of its attention.

Knows transformers' cache objects, and nothing of sampling. torch is imported only when a cache is made.
"""

import copy
import importlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ..episodes.episode import FORK

if TYPE_CHECKING:
    from numpy.typing import NDArray

CacheKind: TypeAlias = Literal["full", "window", "off"]
"""`full` keeps every token of every layer, so that any prefix can be used again. `window` drops what sliding-window
layers do not see any more: less memory, but what was dropped is computed again after a rewrite. `off` keeps nothing."""
Key: TypeAlias = tuple[str, str]
"""An episode's id, and a context."""

# Layers whose keys and values stand for themselves, token by token. Others (recurrent, convolution) have a state.
_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "attention"}


class Computed:
    """The tokens of one context that a model has read, and what it keeps of them."""

    __slots__ = ("layers", "tokens", "weights")

    def __init__(self, layers: Any, weights: object) -> None:
        self.layers = layers
        """A `Cache` of transformers, or None where nothing is kept."""
        self.tokens: list[int] = []
        self.weights = weights
        """What tells the weights that computed it from others."""

    @property
    def nbytes(self) -> int:
        """How many bytes the keys and values have."""
        parts = [part for layer in _layers(self) for part in (layer.keys, layer.values) if part is not None]
        return sum(part.numel() * part.element_size() for part in parts)

    def copy(self) -> "Computed":
        """The same for another context. Tensors are shared: a layer that grows makes new ones."""
        other = Computed(copy.copy(self.layers), self.weights)
        other.tokens = list(self.tokens)
        if self.layers is not None:
            other.layers.layers = [copy.copy(layer) for layer in self.layers.layers]
        return other

    def crop(self, length: int) -> bool:
        """Drop all but the first `length` tokens; False, and nothing is done, where a layer lacks some of those."""
        if any(_has_dropped(layer) for layer in _layers(self)) and length < len(self.tokens):
            return False
        for layer in _layers(self):
            if layer.keys is not None:
                layer.keys, layer.values = layer.keys[..., :length, :], layer.values[..., :length, :]
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length = length
        del self.tokens[length:]
        return True


def _layers(computed: Computed) -> list[Any]:
    return [] if computed.layers is None else computed.layers.layers


def _has_dropped(layer: Any) -> bool:
    return layer.keys is not None and layer.get_seq_length() > layer.keys.shape[-2]


class KVCache:
    """What was computed for each context, up to a size; what was used longest ago goes first.

    Args:
        model: A model of transformers.
        kind: See `CacheKind`.
        max_bytes: How much is kept between replies.
    """

    def __init__(self, model: Any, kind: CacheKind, max_bytes: int) -> None:
        self._config = model.config.get_text_config(decoder=True)
        self._kind = kind
        self._max_bytes = max_bytes
        self._outlives_reply = kind != "off" and _is_attention_alone(model, self._config)
        self._entries: OrderedDict[Key, Computed] = OrderedDict()
        self._sizes: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """How many bytes are kept. What contexts share counts for each."""
        return sum(self._sizes.values())

    def take(self, key: Key, base: str, keep: int, prompt: "NDArray[np.int32]", weights: object) -> Computed:
        """Take out what is there of a prompt; it belongs to the caller until it is `put` back.

        What is kept holds its tokens, too, so a wrong `keep` costs time and never exactness.

        Args:
            key: Whose prompt it is.
            base: The context whose beginning it has.
            keep: How many tokens of it.
            prompt: The whole prompt, shape (n,).
            weights: What tells the weights from others.

        Returns:
            Less than the prompt, such that a token is left to compute: as many tokens as prompt and base share, or
            none if they cannot be had.
        """
        found = self._remove(key) if base == key[1] else None
        shared_with = [(key[0], base), (key[0].rpartition(FORK)[0], base)]  # a fork begins with all of its original
        others = (self._entries.get(other) for other in shared_with)
        computed = found or next((other.copy() for other in others if other is not None), None)
        if computed is None or computed.weights != weights:
            return self._empty(weights)
        usable = min(keep, len(prompt) - 1, len(computed.tokens))
        differs = np.asarray(computed.tokens[:usable], dtype=np.int32) != prompt[:usable]
        shared = int(np.argmax(differs)) if differs.any() else usable
        return computed if computed.crop(shared) else self._empty(weights)

    def put(self, key: Key, computed: Computed) -> None:
        """Keep what was computed, and drop what is too much."""
        self._remove(key)
        if not self._outlives_reply or not computed.tokens:
            return
        self._entries[key], self._sizes[key] = computed, computed.nbytes
        while self.nbytes > self._max_bytes:
            self._remove(next(iter(self._entries)))

    def forget(self, episode_id: str) -> None:
        """Drop an episode's contexts."""
        for key in [key for key in self._entries if key[0] == episode_id]:
            self._remove(key)

    def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self._sizes.clear()

    def _remove(self, key: Key) -> Computed | None:
        self._sizes.pop(key, None)
        return self._entries.pop(key, None)

    def _empty(self, weights: object) -> Computed:
        if self._kind == "off":
            return Computed(None, weights)
        dynamic_cache: Any = importlib.import_module("transformers").DynamicCache
        is_full = self._kind == "full" and self._outlives_reply
        return Computed(dynamic_cache() if is_full else dynamic_cache(config=self._config), weights)


def _is_attention_alone(model: Any, config: Any) -> bool:
    layers: list[str] | None = getattr(config, "layer_types", None)
    return not getattr(model, "_is_stateful", False) and set(layers or ()) <= _ATTENTION
