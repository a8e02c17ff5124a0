"""A KV cache that keeps each context's attention keys and values from one reply to the next.

This module handles the cache objects of transformers, and does not depend on sampling. It imports torch only when it
creates a cache.
"""

import copy
import importlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ..episodes._episode import FORK

if TYPE_CHECKING:
    from numpy.typing import NDArray

CacheKind: TypeAlias = Literal["full", "window", "off"]
"""`full` keeps every token of every layer, so any prefix can be reused. `window` drops the tokens outside the window of
sliding-window layers: it takes less memory, but the dropped tokens are computed again after a rewrite. `off` keeps
nothing between replies."""
Key: TypeAlias = tuple[str, str]
"""The id of an episode, and the name of a context."""

# Layers with separate keys and values for each token. Other layers (recurrent, convolution) have a state.
_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "attention"}


@dataclass(eq=False, repr=False, slots=True)
class Computed:
    """The tokens of one context that a model has processed, with their keys and values."""

    layers: Any
    """A `Cache` of transformers, or None if nothing is cached."""
    weights: object
    """An identifier of the weights that computed the keys and values."""
    tokens: list[int] = field(default_factory=list[int])
    """The tokens, with a negative number in place of the placeholders of an image; see `keyed`."""
    nbytes: int = 0
    """The size of the keys and values when they were put into the cache, in bytes."""

    def copy(self) -> "Computed":
        """Return a copy for another context. It shares the tensors, because a layer that grows allocates new ones."""
        other = Computed(copy.copy(self.layers), self.weights)
        other.tokens = list(self.tokens)
        if self.layers is not None:
            other.layers.layers = [copy.copy(layer) for layer in self.layers.layers]
        return other

    def crop(self, length: int) -> bool:
        """Keep only the first `length` tokens.

        Returns:
            False, without a change, if a layer has already dropped some of these tokens.
        """
        known = [layer for layer in _layers(self) if layer.keys is not None]
        if length < len(self.tokens) and any(one.get_seq_length() > one.keys.shape[-2] for one in known):
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


class KVCache:
    """Keys and values of each context, up to a total size. The least recently used contexts are dropped first.

    Args:
        model: A model of transformers.
        kind: See `CacheKind`.
        max_bytes: The maximum size between replies, in bytes.
    """

    def __init__(self, model: Any, kind: CacheKind, max_bytes: int) -> None:
        self._config = model.config.get_text_config(decoder=True)
        self._kind = kind
        self._max_bytes = max_bytes
        layers: list[str] = getattr(self._config, "layer_types", None) or []
        has_state = getattr(model, "_is_stateful", False) or not set(layers) <= _ATTENTION
        self._outlives_reply = kind != "off" and not has_state
        self._entries: OrderedDict[Key, Computed] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """The size of the cache, in bytes. Tensors that contexts share are counted once for each context."""
        return sum(computed.nbytes for computed in self._entries.values())

    def take(self, key: Key, base: str, keep: int, prompt: "NDArray[np.integer[Any]]", weights: object) -> Computed:
        """Take the cached prefix of a prompt out of the cache. The caller owns it until it calls `put`.

        Entries include their tokens, which are compared with the prompt. So a wrong `keep` costs time, never
        exactness.

        Args:
            key: The episode and context of the prompt.
            base: The context whose prefix the prompt starts with.
            keep: The number of tokens in that prefix.
            prompt: The whole prompt, integers of shape (n,): for a prompt with images, the result of `keyed`, so images
                are compared as well.
            weights: An identifier of the current weights.

        Returns:
            The entry, cropped to the tokens that the prompt and `base` share, and to at most n - 1 tokens, so that at
            least one token is left to compute. It has each image as a whole or not at all. It is empty if they share
            none, if the weights have changed, or if a layer has dropped tokens of the prefix.
        """
        found = self._entries.pop(key, None) if base == key[1] else None
        # A fork starts with the contexts of its original.
        shared_with = [(key[0], base), (key[0].rpartition(FORK)[0], base)]
        others = (self._entries.get(other) for other in shared_with)
        computed = found or next((other.copy() for other in others if other is not None), None)
        if computed is not None and computed.weights == weights:
            usable = min(keep, len(prompt) - 1, len(computed.tokens))
            differs = np.asarray(computed.tokens[:usable], dtype=np.int64) != prompt[:usable]
            shared = int(np.argmax(differs)) if differs.any() else usable
            while shared > 0 and prompt[shared] < 0 and prompt[shared] == prompt[shared - 1]:
                shared -= 1  # it is inside an image
            if computed.crop(shared):
                return computed
        if self._kind == "off":
            return Computed(None, weights)
        dynamic_cache: Any = importlib.import_module("transformers").DynamicCache
        is_full = self._kind == "full" and self._outlives_reply
        return Computed(dynamic_cache() if is_full else dynamic_cache(config=self._config), weights)

    def put(self, key: Key, computed: Computed) -> None:
        """Put an entry into the cache, and drop the least recently used entries that exceed its size."""
        self._entries.pop(key, None)
        if not self._outlives_reply or not computed.tokens:
            return
        parts = [part for layer in _layers(computed) for part in (layer.keys, layer.values) if part is not None]
        computed.nbytes = sum(part.numel() * part.element_size() for part in parts)
        self._entries[key] = computed
        while self.nbytes > self._max_bytes:
            self._entries.popitem(last=False)

    def forget(self, episode_id: str) -> None:
        """Drop all contexts of an episode."""
        for key in [key for key in self._entries if key[0] == episode_id]:
            del self._entries[key]

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()
