"""The attention masks of a tree, and the check that a tree is exact for a model.

This module knows nothing of samples. It imports torch only inside the functions that need it.
"""

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import numpy as np

from .._packages import load
from ..errors import ConfigError, TreeTooLarge, TreeUnsupported, UnknownName
from ..rendering._vision import Vision
from ._images import image_inputs
from ._run_attention import PLACEHOLDER, RUNS, TreeRuns, install, own_attention, text_config
from ._runs import Runs, TreeArrays

if TYPE_CHECKING:
    from numpy.typing import NDArray


MAX_DENSE_TOKENS = 16_384
"""The largest tree, in tokens, for which a dense mask is made by default."""

_BLOCK = 128  # FlexAttention's default block size
_WHAT = "masks as torch tensors need"

Attention: TypeAlias = Literal["runs", "flex", "dense"]

FULL, SLIDING = "full_attention", "sliding_attention"
_LAYER_LISTS = ("layer_types", "layers_block_type", "block_types", "attention_layers")
# Layers that mix tokens by attention only, and layers that do not mix tokens.
_EXACT_LAYERS = {FULL, SLIDING, "attention", "global", "moe", "mlp", "dense", "sparse"}
# Fields that reveal layers with a state, in configurations without a complete list of layers.
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
_OTHER_DROPOUT = re.compile(r"classifier|summary|vision|encoder_|seq_classif")  # not of the language model itself


def for_window(window: int | None, make: Callable[[int | None], Any]) -> Any:
    """Return the mask without a window; or with a window, one mask for each kind of layer.

    Raises:
        ConfigError: If the window is less than 1.
    """
    if window is not None and window < 1:
        raise ConfigError(
            f"sliding_window is {window}; expected at least 1, because a query sees at least itself (or None: no "
            "sliding window)"
        )
    return make(None) if window is None else {FULL: make(None), SLIDING: make(window)}


def full_mask(tree: TreeArrays, window: int | None, max_tokens: int) -> "NDArray[np.bool_]":
    """Return a dense mask; see `TreeBatch.dense_mask`."""
    count = len(tree.tokens)
    if count > max_tokens:
        raise TreeTooLarge(
            f"a dense mask for a tree of {count:,} tokens takes {count**2 / 1e9:.2g} GB; the limit is "
            f"max_tokens={max_tokens:,}: use tree.split({max_tokens}), load the model with "
            'attn_implementation="flex_attention" and use tree.block_mask(), or pass a larger limit'
        )
    index = np.arange(count, dtype=np.int32)
    sees = (index <= index[:, None]) & (index[:, None] < tree.exit)
    return sees if window is None else sees & (tree.position_ids[:, None] - tree.position_ids < window)


def block_mask(tree: TreeArrays, window: int | None, device: Any) -> Any:
    """Return a `BlockMask`; see `TreeBatch.block_mask`."""
    torch, flex = (
        load("torch", _WHAT, "pip install torch"),
        importlib.import_module("torch.nn.attention.flex_attention"),
    )
    exits = torch.as_tensor(tree.exit, device=device)
    positions = torch.as_tensor(tree.position_ids, device=device)

    def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
        is_visible = (key <= query) & (query < exits[key])
        return is_visible if window is None else is_visible & (positions[query] - positions[key] < window)

    some, full = _blocks(tree, window)
    arrays: list[NDArray[Any]] = []
    for blocks in (some & ~full, full):  # for each row the number of blocks, and all columns with these blocks first
        arrays += [blocks.sum(axis=1), np.argsort(~blocks, axis=1, kind="stable")]
    count = len(tree.tokens)
    return flex.BlockMask.from_kv_blocks(
        *(torch.as_tensor(array.astype(np.int32), device=device)[None, None] for array in arrays),
        BLOCK_SIZE=_BLOCK,
        mask_mod=sees,
        seq_lengths=(count, count),
    )


def _blocks(tree: TreeArrays, window: int | None) -> "tuple[NDArray[np.bool_], NDArray[np.bool_]]":
    """Return the blocks of queries and keys in which some pairs may be visible, and those in which all pairs are.

    torch's `create_block_mask` evaluates every pair, which takes the memory of a dense mask.

    Returns:
        Two bool arrays of shape (ceil(N / 128), ceil(N / 128)).
    """
    starts = np.arange(0, len(tree.tokens), _BLOCK)
    query, key = np.ogrid[: len(starts), : len(starts)]
    last_exits, first_exits = (bound.reduceat(tree.exit, starts) for bound in (np.maximum, np.minimum))
    some = (key < query) & (last_exits > starts[:, None]) | (key == query)
    full = (key < query) & (first_exits >= starts[:, None] + _BLOCK)
    if window is not None:
        highest, lowest = (bound.reduceat(tree.position_ids, starts) for bound in (np.maximum, np.minimum))
        some &= lowest[:, None] - highest < window
        full &= highest[:, None] - lowest < window
    return some, full


def model_inputs(
    tree: TreeArrays, model: Any, *, attention: Attention | None, max_dense_tokens: int, vision: Vision | None
) -> dict[str, Any]:
    """See `TreeBatch.model_inputs`."""
    if attention is not None and attention not in get_args(Attention):
        raise UnknownName.of("attention", attention, get_args(Attention))
    config = text_config(model)
    own = own_attention(config)
    chosen: Attention = attention or ("flex" if own == "flex_attention" else "runs")
    if chosen == "flex" and own != "flex_attention":
        raise TreeUnsupported(
            f'attention="flex" needs a model with attn_implementation="flex_attention", and this one has {own!r}'
        )
    if chosen == "dense" and own == "flex_attention":
        raise TreeUnsupported('a model with attn_implementation="flex_attention" takes attention="flex" or "runs"')
    if chosen != "runs" and ("flash" in own or "paged" in own):
        raise TreeUnsupported(
            f'{own} ignores attention masks: use attention="runs", or load the model with attn_implementation="sdpa", '
            '"eager" or "flex_attention"'
        )
    check_model(model)
    torch = load("torch", _WHAT, "pip install torch")
    device, dtype = getattr(model, "device", "cpu"), getattr(model, "dtype", None) or torch.float32
    inputs: dict[str, Any] = {
        "input_ids": torch.as_tensor(tree.tokens, device=device).long()[None],
        "position_ids": torch.as_tensor(tree.position_ids, device=device).long()[None],
        "use_cache": False,
        **image_inputs(tree, model, vision),
    }
    if chosen == "runs":
        install(model)
        mask = torch.zeros(PLACEHOLDER, device=device)  # a model passes it on as it is: runs need no mask
        return {**inputs, "attention_mask": _by_layer(config, lambda window: mask), RUNS: TreeRuns(Runs.of(tree))}
    if chosen == "flex":
        return {**inputs, "attention_mask": _by_layer(config, lambda window: block_mask(tree, window, device))}

    def additive(window: int | None) -> Any:
        sees = torch.as_tensor(full_mask(tree, window, max_dense_tokens), device=device)
        zero = torch.zeros((), dtype=dtype, device=device)
        return torch.where(sees, zero, torch.finfo(dtype).min)[None, None]

    return {**inputs, "attention_mask": _by_layer(config, additive)}


def _by_layer(config: Any, make: Callable[[int | None], Any]) -> Any:
    """Return the mask that all layers share, or a dict with one mask for each kind of layer.

    Args:
        config: The model's configuration.
        make: Makes the mask for a sliding window; None makes it without a window.
    """
    window: int | None = getattr(config, "sliding_window", None)
    layers: list[str] | None = getattr(config, "layer_types", None)
    if layers is None or set(layers) == {SLIDING}:
        shared = make(window)
        return shared if layers is None else {SLIDING: shared, FULL: shared}
    if SLIDING not in layers:
        return make(None)
    return {FULL: make(None), SLIDING: make(window)}


def check_model(model: Any) -> None:
    """Check that a forward pass of a model over a tree gives what it gives for the separate samples.

    The model must mix tokens by attention only, and use the mask and the positions that it is given. The output at a
    token must not depend on chance or on the number of other tokens.

    Args:
        model: A transformers model, whose configuration and modules are checked; or only its configuration. A model in
            evaluation mode may have dropout.

    Raises:
        TreeUnsupported: If the model is not supported. The error names the layer or the configuration field, and what
            to do.
    """
    config = text_config(model)
    reason = next(_problems(model, config), None)
    if reason is not None:
        name = getattr(config, "model_type", None) or type(model).__name__
        raise TreeUnsupported(f"a tree is not exact for {name}: {reason}")


_SEPARATE = "train the samples as separate sequences"


def state_layers(model: Any) -> Iterator[str]:
    """Yield the layers in which a token reaches later ones by a state or a convolution, which no mask restricts."""
    config = text_config(model)
    for name in _LAYER_LISTS:
        layers: Sequence[str] = getattr(config, name, None) or ()
        for index, kind in enumerate(layers):
            if kind not in _EXACT_LAYERS:
                yield f"layer {index} is {kind!r} ({name})"
    model_type: str = getattr(config, "model_type", None) or ""
    if _STATE_MODELS.search(model_type):
        yield f"the layers of the model_type {model_type!r} carry a state through all tokens"
    for name, value in cast("dict[str, Any]", vars(config)).items():
        if value and _STATE.match(name):
            yield f"the field {name} indicates recurrent, convolution or state-space layers"
    for name, module in getattr(model, "named_modules", lambda: ())():
        kind = type(module).__name__
        if _STATE_MODULES.search(kind) and not re.search("vision|visual|audio", name):
            yield f"the layer {name} is a {kind}"


def _problems(model: Any, config: Any) -> Iterator[str]:
    """Yield the reasons why a tree is not exact for a model."""
    for found in state_layers(model):
        yield f"{found}, which a mask cannot restrict to one branch: {_SEPARATE}"
    for name in ("rope_parameters", "rope_scaling"):
        parameters: dict[str, Any] = getattr(config, name, None) or {}
        sets: list[Any] = [parameters, *parameters.values()]  # of all layers, or one set for each kind of layer
        for values in filter(lambda given: isinstance(given, dict), sets):
            rope_type = values.get("rope_type") or values.get("type")
            if rope_type in _ROPE_BY_LENGTH:
                yield f"RoPE of type {rope_type!r} depends on the length of the sequence: {_SEPARATE}"
    if getattr(config, "alibi", False) or getattr(config, "model_type", None) in ("bloom", "mpt"):
        yield f"its attention biases (ALiBi) depend on the index of a token, not on position_ids: {_SEPARATE}"
    if getattr(config, "is_encoder_decoder", False):
        yield "it has an encoder and a decoder; expected a decoder-only model"
    if getattr(config, "use_bidirectional_attention", False) in (True, "all"):
        yield f"its tokens see later tokens (use_bidirectional_attention): {_SEPARATE}"
    coefficient = getattr(config, "router_aux_loss_coef", 0.0) or 0.0
    if getattr(config, "output_router_logits", False) and coefficient:
        yield (
            f"router_aux_loss_coef={coefficient} with output_router_logits adds a loss over all tokens, and the tree "
            "has fewer tokens than the samples: set output_router_logits=False"
        )
    for name in ("expert_capacity", "capacity_factor", "moe_capacity_factor"):
        if getattr(config, name, None):
            yield f"{name} makes experts drop tokens depending on the number of tokens: {_SEPARATE}"
    is_training = getattr(model, "training", True)
    for name, value in cast("dict[str, Any]", vars(config)).items() if is_training else ():
        if value and isinstance(value, float) and _DROPOUT.search(name) and not _OTHER_DROPOUT.search(name):
            yield f"{name}={value} is dropout, which makes the output at a shared token random: set it to 0.0"
    for name, module in getattr(model, "named_modules", lambda: ())() if is_training else ():
        if "Dropout" in type(module).__name__ and getattr(module, "p", 0.0) and module.training:
            yield f"the layer {name} has a dropout of {module.p}: set it to 0.0"
