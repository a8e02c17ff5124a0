"""Attention over a tree, run by run, as an attention function of transformers. It imports torch when it is called.

Each run's queries attend to the keys of its ancestors' runs and causally to its own. The queries, keys and values are
split into runs once: slices of the whole tensors would make the backward pass quadratic in the number of runs. Two
faster ways give the same: one call for all runs on a GPU, and `_path_attention` on a CPU where tokens see their whole
branch.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from .._packages import load
from ..errors import TreeUnsupported
from ._paths import TreePath, paths_of
from ._runs import Runs, Sequences

RUNS = "tree_runs"
"""The argument of a model's forward pass that holds the runs of its tree, and the prefix of the attention's names."""
PLACEHOLDER = (1, 1, 1, 1)
"""The shape of the mask that a model passes on as it is: attention by runs needs none."""
_PREFIX = f"{RUNS}_"


@contextmanager
def tree_attention(model: Any) -> Generator[Any]:
    """Let a transformers model compute attention over trees run by run, and restore its own attention at the end.

    `TreeBatch.model_inputs(model)` installs the same attention and leaves it in place. For ordinary sequences, it is
    the model's own.

    Args:
        model: The model.

    Yields:
        The model.
    """
    config = text_config(model)
    own = own_attention(config)
    install(model)
    try:
        yield model
    finally:
        config._attn_implementation = own


def install(model: Any) -> None:
    """Let a model compute attention over trees run by run; it keeps its own attention for ordinary sequences."""
    config = text_config(model)
    own = own_attention(config)
    name = _PREFIX + own
    functions: Any = _module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    function: Callable[..., Any] | None = functions.get(own)  # None for `eager`, which is in the model's own module

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        tree: TreeRuns | None = options.pop(RUNS, None)
        if tree is None:
            if tuple(getattr(attention_mask, "shape", ())) == PLACEHOLDER and query.shape[2] > 1:
                raise TreeUnsupported(
                    f"{type(module).__name__} does not get the arguments of the forward pass, which the attention of a "
                    'tree needs: use model_inputs(model, attention="dense")'
                )
            ordinary = function or sys.modules[type(module).__module__].eager_attention_forward
            return ordinary(module, query, key, value, attention_mask, **options)
        return attend(query, key, value, tree, **options).transpose(1, 2).contiguous(), None

    if name not in functions:
        masks: Any = _module("transformers.masking_utils").ALL_MASK_ATTENTION_FUNCTIONS
        attention.__name__ = name
        functions.register(name, attention)
        masks.register(name, masks[own])
    config._attn_implementation = name


def _module(name: str) -> Any:
    return load(name, "attention over a tree needs", "pip install 'envsdk[torch]'")


def text_config(model: Any) -> Any:
    """Return the configuration of a model's language model; the model may also be a configuration."""
    config = getattr(model, "config", model)
    get_text_config = getattr(config, "get_text_config", None)
    return config if get_text_config is None else get_text_config()


def own_attention(config: Any) -> str:
    """Return the name of the attention that a model was loaded with."""
    return (getattr(config, "_attn_implementation", None) or "eager").removeprefix(_PREFIX)


class TreeRuns:
    """The runs of one tree, with what all layers of a forward pass share.

    Args:
        runs: The runs.
    """

    def __init__(self, runs: Runs) -> None:
        self.sizes = runs.sizes
        self.longest = runs.longest
        self._runs = runs
        self._views: dict[tuple[int | None, Any, Any], list[_View]] = {}
        self._sequences: dict[Any, Sequences] = {}
        self._paths: dict[Any, list[TreePath]] = {}

    def views(self, window: int | None, like: Any) -> "list[_View]":
        """Return what each run sees; `like` is a tensor of the masks' type and device."""
        key = (window, like.dtype, like.device)
        if key not in self._views:
            self._views[key] = [_view(path, self.sizes, window, like) for path in self._runs.paths()]
        return self._views[key]

    def paths(self, device: Any) -> list[TreePath]:
        """Return the paths of the tree, with tensors on a device for arrays."""
        if device not in self._paths:
            torch = _module("torch")
            self._paths[device] = [
                path
                if isinstance(path.tokens, slice)
                else replace(path, tokens=torch.as_tensor(path.tokens, device=device))
                for path in paths_of(self._runs)
            ]
        return self._paths[device]

    def sequences(self, device: Any) -> Sequences:
        """Return the runs as sequences of variable length, with tensors on a device for arrays."""
        if device not in self._sequences:
            torch, found = _module("torch"), self._runs.sequences()
            keys, query_bounds, key_bounds = (torch.as_tensor(array, device=device) for array in found[:3])
            self._sequences[device] = found._replace(keys=keys, query_bounds=query_bounds, key_bounds=key_bounds)
        return self._sequences[device]


class _View(NamedTuple):
    """The keys that a run sees."""

    runs: list[int]
    """Its ancestors and itself, from the first one of which some token is visible."""
    keys: int
    """The number of their tokens, counted from the end, that some query sees."""
    mask: Any
    """Added to the scores: shape (queries, keys)."""


def _view(path: list[int], sizes: list[int], window: int | None, like: Any) -> _View:
    queries, keys, first = sizes[path[-1]], 0, len(path)
    needed = None if window is None else queries + window - 1
    while first and (needed is None or keys < needed):
        first -= 1
        keys += sizes[path[first]]
    keys = keys if needed is None else min(keys, needed)
    hidden = _module("torch").full((queries, keys), float("-inf"), dtype=like.dtype, device=like.device)
    mask = hidden.triu(keys - queries + 1)  # queries and keys end at the same token
    mask = mask if window is None else mask + hidden.tril(keys - queries - window)
    return _View(path[first:], keys, mask)


def attend(
    query: Any,
    key: Any,
    value: Any,
    tree: TreeRuns,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    **_: Any,
) -> Any:
    """Compute attention over a tree of N tokens.

    Args:
        query: Shape (1, heads, N, head size).
        key: Shape (1, key heads, N, head size): each key head serves a group of heads.
        value: As `key`.
        tree: The runs of the tree.
        scaling: The factor of the scores; None is the usual one.
        sliding_window: How many tokens of its branch a token sees, itself included; None is all.
        softcap: The bound of the scores (Gemma 2), or None.
        s_aux: The attention sink of each head (gpt-oss), shape (heads,), or None.

    Returns:
        Shape (1, heads, N, head size).
    """
    torch = _module("torch")
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # as for torch's own attention: norms leave queries and keys in float32
        query, key, value = (each.to(torch.get_autocast_dtype(kind)) for each in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    is_plain = softcap is None and s_aux is None
    if is_plain and query.is_cuda and query.dtype in (torch.float16, torch.bfloat16):
        kernel = _module("torch.nn.attention.varlen").varlen_attn
        return attend_in_one_call(kernel, query, key, value, tree, scale, sliding_window)
    by_paths: Any = _module(f"{__package__}._path_attention")
    sees_all = sliding_window is None or sliding_window >= tree.longest
    if softcap is None and sees_all and by_paths.supports(query, key, value):
        return by_paths.attend_by_paths(query, key, value, s_aux, tree.paths(query.device), scale)
    return attend_by_runs(query, key, value, tree, scale, window=sliding_window, softcap=softcap, sinks=s_aux)


def attend_by_runs(
    query: Any, key: Any, value: Any, tree: TreeRuns, scale: float, *, window: int | None, softcap: Any, sinks: Any
) -> Any:
    """Compute attention over a tree with one call of torch for each run; it has all options of `attend`."""
    torch = _module("torch")
    queries, keys, values = (tensor.split(tree.sizes, 2) for tensor in (query, key, value))
    outputs: list[Any] = []
    for own, view in zip(queries, tree.views(window, query), strict=True):
        its_keys, its_values = (
            torch.cat([parts[run] for run in view.runs], 2)[:, :, -view.keys :] for parts in (keys, values)
        )
        groups = own.shape[1] // its_keys.shape[1]
        if softcap is None and sinks is None:
            fused = torch.nn.functional.scaled_dot_product_attention
            outputs.append(fused(own, its_keys, its_values, attn_mask=view.mask, scale=scale, enable_gqa=groups > 1))
            continue
        its_keys, its_values = (each.repeat_interleave(groups, 1) for each in (its_keys, its_values))
        scores = own @ its_keys.transpose(2, 3) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores + view.mask
        if sinks is not None:  # a sink is a key without a value that every query sees
            column = sinks.reshape(1, -1, 1, 1).expand(1, -1, scores.shape[2], 1).to(scores.dtype)
            scores = torch.cat([scores, column], 3)
        shares = scores.softmax(3, dtype=torch.float32).to(own.dtype)
        outputs.append(shares[..., : its_keys.shape[2]] @ its_values)
    return torch.cat(outputs, 2)


def attend_in_one_call(
    kernel: Callable[..., Any], query: Any, key: Any, value: Any, tree: TreeRuns, scale: float, window: int | None
) -> Any:
    """Compute attention over a tree with one call of a kernel for sequences of variable length, as GPUs have them.

    Args:
        kernel: A function with the arguments of torch's `varlen_attn`; query i of n sees the keys up to number
            i + m - n of m.
        query: See `attend`.
        key: See `attend`.
        value: See `attend`.
        tree: The runs of the tree.
        scale: The factor of the scores.
        window: See `attend`.

    Returns:
        Shape (1, heads, N, head size).
    """
    found = tree.sequences(query.device)
    bounds = found.query_bounds, found.key_bounds, found.max_queries, found.max_keys
    window_size = (-1 if window is None else window - 1, 0)
    is_grouped = query.shape[1] != key.shape[1]

    def attention(own: Any, keys: Any, values: Any) -> Any:
        copies = keys[found.keys], values[found.keys]
        return kernel(own, *copies, *bounds, scale=scale, window_size=window_size, enable_gqa=is_grouped)

    # A key is copied for each run that sees it. The backward pass makes the copies again, so they are not kept.
    checkpoint = _module("torch.utils.checkpoint").checkpoint
    given = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    output = checkpoint(attention, *given, use_reentrant=False, preserve_rng_state=False)
    return output.transpose(0, 1)[None]
