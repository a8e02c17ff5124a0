"""Which key each query of a tree sees, as attention masks; and for which models that is exact.

Knows nothing of samples. torch is imported only where a function needs it.
"""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from ..errors import ConfigError, TreeTooLarge, TreeUnsupported
from ..packages import load

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_DENSE_TOKENS = 16_384
"""The largest tree of which a dense mask is made, unless another size is given."""

_BLOCK = 128  # FlexAttention's own size

FULL, SLIDING = "full_attention", "sliding_attention"
_LAYER_LISTS = ("layer_types", "layers_block_type", "block_types", "attention_layers")
# Layers that mix tokens by attention alone, and those that mix none.
_EXACT_LAYERS = {FULL, SLIDING, "attention", "global", "moe", "mlp", "dense", "sparse"}
# Fields of configurations that have no list of layers, or whose list does not tell.
_STATE = re.compile(
    r"^(mamba_|ssm_|lru_width|linear_attn_config|linear_conv_|conv_kernel|conv_L_cache|short_?conv|state_size$|"
    r"hybrid_override_pattern|hybrid_layer_ids|attn_layer_(indices|period)|full_attn_idxs|mlstm|xlstm)"
)
_STATE_MODELS = re.compile(r"mamba|rwkv|recurrent_gemma|xlstm|retnet|hyena|jamba|zamba|bamba|falcon_h1|^lfm")
_STATE_MODULES = re.compile(
    "^(Conv1d|LSTM|GRU|RNN)$|SSM|"
    "(?i:mamba|deltanet|rglru|rwkv|xlstm|recurrent|shortconv|linearattention|lightningattention)"
)
_ROPE_BY_LENGTH = ("dynamic", "longrope")
_DROPOUT = re.compile(r"dropout|pdrop$|drop_rate$|layerdrop$|jitter")
_NOT_THE_MODELS = re.compile(r"classifier|summary|vision|encoder_|seq_classif")


class Tree(Protocol):
    """What a mask is made of; see `TreeBatch`."""

    tokens: "NDArray[np.int32]"
    position_ids: "NDArray[np.int32]"
    exit: "NDArray[np.int32]"


def dense_mask(
    tree: Tree, sliding_window: int | None, *, max_tokens: int
) -> "NDArray[np.bool_] | dict[str, NDArray[np.bool_]]":
    """See `TreeBatch.dense_mask`."""
    _check_window(sliding_window)
    full = _full_mask(tree, max_tokens)
    return full if sliding_window is None else {FULL: full, SLIDING: full & _is_near(tree, sliding_window)}


def _full_mask(tree: Tree, max_tokens: int) -> "NDArray[np.bool_]":
    count = len(tree.tokens)
    if count > max_tokens:
        raise TreeTooLarge(
            f"a dense mask of a tree of {count:,} tokens takes {count**2 / 1e9:.2g} GB; the limit is "
            f"max_tokens={max_tokens:,}: use tree.split({max_tokens}), or tree.block_mask() with attention by "
            '`attn_implementation="flex_attention"`, or give a larger limit'
        )
    index = np.arange(count, dtype=np.int32)
    return (index <= index[:, None]) & (index[:, None] < tree.exit)


def _check_window(window: int | None) -> None:
    if window is not None and window < 1:
        raise ConfigError(f"sliding_window is {window}; a query sees at least itself, which is a window of 1")


def _is_near(tree: Tree, window: int) -> "NDArray[np.bool_]":
    return tree.position_ids[:, None] - tree.position_ids < window


def block_mask(tree: Tree, sliding_window: int | None, *, device: Any) -> Any:
    """See `TreeBatch.block_mask`."""
    _check_window(sliding_window)
    full = _block_mask(tree, None, device)
    return full if sliding_window is None else {FULL: full, SLIDING: _block_mask(tree, sliding_window, device)}


def _block_mask(tree: Tree, window: int | None, device: Any) -> Any:
    torch, flex = _torch(), importlib.import_module("torch.nn.attention.flex_attention")
    exits = torch.as_tensor(tree.exit, device=device)
    positions = torch.as_tensor(tree.position_ids, device=device)

    def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
        is_visible = (key <= query) & (query < exits[key])
        return is_visible if window is None else is_visible & (positions[query] - positions[key] < window)

    def listed(blocks: "NDArray[np.bool_]") -> tuple[Any, Any]:
        """For each row how many blocks there are, and their columns first."""
        counts, columns = blocks.sum(axis=1, dtype=np.int32), np.argsort(~blocks, axis=1, kind="stable")
        return tuple(torch.as_tensor(array.astype(np.int32), device=device)[None, None] for array in (counts, columns))

    some, whole = _blocks(tree, window)
    count = len(tree.tokens)
    return flex.BlockMask.from_kv_blocks(
        *listed(some & ~whole), *listed(whole), BLOCK_SIZE=_BLOCK, mask_mod=sees, seq_lengths=(count, count)
    )


def _blocks(tree: Tree, window: int | None) -> "tuple[NDArray[np.bool_], NDArray[np.bool_]]":
    """In which blocks of queries and keys some pairs may see each other, and in which all do.

    torch's `create_block_mask` asks that of every pair, for which it needs the memory of a dense mask.
    """
    starts = np.arange(0, len(tree.tokens), _BLOCK)
    query, key = np.ogrid[: len(starts), : len(starts)]
    last_exits, first_exits = (bound.reduceat(tree.exit, starts) for bound in (np.maximum, np.minimum))
    some = (key < query) & (last_exits > starts[:, None]) | (key == query)
    whole = (key < query) & (first_exits >= starts[:, None] + _BLOCK)
    if window is not None:
        highest, lowest = (bound.reduceat(tree.position_ids, starts) for bound in (np.maximum, np.minimum))
        some &= lowest[:, None] - highest < window
        whole &= highest[:, None] - lowest < window
    return some, whole


def _torch() -> Any:
    return load("torch", "masks as tensors need", "pip install torch")


def model_inputs(tree: Tree, model: Any, *, max_dense_tokens: int) -> dict[str, Any]:
    """See `TreeBatch.model_inputs`."""
    check_model(model)
    torch = _torch()
    config = _text_config(model)
    device, dtype = getattr(model, "device", "cpu"), getattr(model, "dtype", None) or torch.float32
    if getattr(config, "_attn_implementation", None) == "flex_attention":
        masks = _by_layer(config, lambda window: _block_mask(tree, window, device))
    else:
        full = _full_mask(tree, max_dense_tokens)

        def additive(window: int | None) -> Any:
            sees = torch.as_tensor(full if window is None else full & _is_near(tree, window), device=device)
            zero = torch.zeros((), dtype=dtype, device=device)
            return torch.where(sees, zero, torch.finfo(dtype).min)[None, None]

        masks = _by_layer(config, additive)
    return {
        "input_ids": torch.as_tensor(tree.tokens, device=device).long()[None],
        "position_ids": torch.as_tensor(tree.position_ids, device=device).long()[None],
        "attention_mask": masks,
        "use_cache": False,
    }


def _by_layer(config: Any, make: Callable[[int | None], Any]) -> Any:
    """The mask that all layers need; or one for each kind of layer, as models take it that have two kinds."""
    window: int | None = getattr(config, "sliding_window", None)
    layers: list[str] | None = getattr(config, "layer_types", None)
    if layers is None or set(layers) == {SLIDING}:
        shared = make(window)
        return shared if layers is None else {SLIDING: shared, FULL: shared}
    if SLIDING not in layers:
        return make(None)
    return {FULL: make(None), SLIDING: make(window)}


# Which models.


def check_model(model: Any) -> None:
    """Refuse a model for which a tree is not exact.

    It has to mix tokens by attention alone, by a mask that is given, at positions that are given; and what one token
    gives must not depend on chance or on how many others there are.

    Args:
        model: A model of transformers, whose modules are looked at, too; or its configuration. Dropout does not
            matter to a model in evaluation mode.

    Raises:
        TreeUnsupported: It names the layer or the field of the configuration, and what to do.
    """
    config = _text_config(model)
    for why in (*_of_layers(config), *_of_attention(config), *_of_experts(config), *_of_modules(model)):
        raise TreeUnsupported(f"{_name(model, config)}: {why}")
    if getattr(model, "training", True):
        for why in (*_of_dropout(config), *_of_dropout_modules(model)):
            raise TreeUnsupported(f"{_name(model, config)}: {why}")


def _text_config(model: Any) -> Any:
    config = getattr(model, "config", model)
    get_text_config = getattr(config, "get_text_config", None)
    return config if get_text_config is None else get_text_config()


def _name(model: Any, config: Any) -> str:
    return f"no tree for {getattr(config, 'model_type', None) or type(model).__name__}"


def _fields(config: Any) -> Mapping[str, Any]:
    return {name: value for name, value in cast("dict[str, Any]", vars(config)).items() if value}


_SEPARATE = "train the samples as separate sequences"


def _of_layers(config: Any) -> Iterator[str]:
    for name in _LAYER_LISTS:
        layers: Sequence[str] = getattr(config, name, None) or ()
        for index, kind in enumerate(layers):
            if kind not in _EXACT_LAYERS:
                yield f"layer {index} is {kind!r} ({name}), which a mask does not keep on its branch: {_SEPARATE}"
    model_type: str = getattr(config, "model_type", None) or ""
    if _STATE_MODELS.search(model_type):
        yield f"its layers have a state that runs through all tokens (model_type {model_type!r}): {_SEPARATE}"
    for name in _fields(config):
        if _STATE.match(name):
            yield f"{name} tells of recurrent, convolution or state-space layers: {_SEPARATE}"


def _of_attention(config: Any) -> Iterator[str]:
    for rope_type in _rope_types(config):
        if rope_type in _ROPE_BY_LENGTH:
            yield f"RoPE of type {rope_type!r} depends on the length of what is computed at once: {_SEPARATE}"
    if getattr(config, "alibi", False) or getattr(config, "model_type", None) in ("bloom", "mpt"):
        yield f"its attention biases (ALiBi) go by the index of a token, not by its position: {_SEPARATE}"
    if getattr(config, "is_encoder_decoder", False):
        yield "it has an encoder and a decoder; a tree is for a decoder alone"
    if getattr(config, "use_bidirectional_attention", False) in (True, "all"):
        yield "its tokens see later ones (use_bidirectional_attention), where a tree shows earlier ones alone"
    attention: str = getattr(config, "_attn_implementation", None) or ""
    if "flash" in attention or "paged" in attention:
        yield f'{attention} reads no mask: load it with attn_implementation="sdpa", "eager" or "flex_attention"'


def _rope_types(config: Any) -> Iterator[str]:
    """Of all layers: a configuration has one set of parameters, or one for each kind of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        parameters: dict[str, Any] = getattr(config, name, None) or {}
        sets: list[Any] = [parameters, *parameters.values()]
        for values in filter(lambda given: isinstance(given, dict), sets):
            yield values.get("rope_type") or values.get("type") or "default"


def _of_experts(config: Any) -> Iterator[str]:
    coefficient = getattr(config, "router_aux_loss_coef", 0.0) or 0.0
    if getattr(config, "output_router_logits", False) and coefficient:
        yield (
            f"router_aux_loss_coef={coefficient} with output_router_logits adds a loss over all tokens, of which the "
            "tree has fewer: set output_router_logits=False"
        )
    for name in ("expert_capacity", "capacity_factor", "moe_capacity_factor"):
        if getattr(config, name, None):
            yield f"{name} lets experts drop tokens by how many there are: {_SEPARATE}"


def _of_dropout(config: Any) -> Iterator[str]:
    for name, value in _fields(config).items():
        if _DROPOUT.search(name) and not _NOT_THE_MODELS.search(name) and isinstance(value, float):
            yield f"{name}={value} makes what a shared token gives another one each time: set it to 0.0"


def _modules(model: Any) -> Iterator[tuple[str, Any]]:
    return getattr(model, "named_modules", lambda: iter(()))()


def _of_modules(model: Any) -> Iterator[str]:
    for name, module in _modules(model):
        if _STATE_MODULES.search(type(module).__name__) and not re.search("vision|visual|audio", name):
            kind = type(module).__name__
            yield f"the layer {name} is a {kind}, which a mask does not keep on its branch: {_SEPARATE}"


def _of_dropout_modules(model: Any) -> Iterator[str]:
    for name, module in _modules(model):
        if "Dropout" in type(module).__name__ and getattr(module, "p", 0.0) and module.training:
            yield f"the layer {name} has a dropout of {module.p}: set it to 0.0"
