"""Attention over a tree, path by path, on a CPU: a faster computation of what `_run_attention` computes run by run.

Each path is one causal attention to itself and one attention without a mask to each beginning of a path that it sees;
see `paths`. The parts of a query are added up by their log-sum-exp, as blocks of flash attention are (Dao et al.,
FlashAttention, 2022, section 3.1). The backward pass gives the kernel of each part the outputs and log-sum-exps over
all parts, with which its gradients are those of the whole. No keys are copied for each run, and there are no masks.

This module imports torch.
"""

from typing import Any

from .._packages import load
from ._paths import TreePath

torch: Any = load("torch", "attention over a tree needs", "pip install 'envsdk[torch]'")

_FORWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_BACKWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
_GROUPED = torch.__version__ >= (2, 9)
"""Whether a key head may serve several heads. Earlier kernels read and write beyond the keys (pytorch/157893)."""


def supports(query: Any, key: Any, value: Any) -> bool:
    """Return whether torch has a kernel for these tensors, which are those of `attend_by_paths`."""
    alike = query.dtype == key.dtype == value.dtype and query.shape[-1] == key.shape[-1] == value.shape[-1]
    takes_groups = _GROUPED or query.shape[1] == key.shape[1]
    return _BACKWARD is not None and alike and takes_groups and query.device.type == "cpu"


def attend_by_paths(query: Any, key: Any, value: Any, sinks: Any, paths: list[TreePath], scale: float) -> Any:
    """Compute attention over a tree of N tokens.

    Args:
        query: Shape (1, heads, N, head size).
        key: Shape (1, key heads, N, head size): each key head serves a group of heads.
        value: As `key`.
        sinks: The attention sink of each head (gpt-oss), shape (heads,), or None.
        paths: The paths of the tree, with tensors for arrays.
        scale: The factor of the scores.

    Returns:
        Shape (1, heads, N, head size).
    """
    return _PathAttention.apply(query, key, value, sinks, paths, scale)


class _PathAttention(torch.autograd.Function):
    """The attention with its own backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, sinks: Any, paths: list[TreePath], scale: float) -> Any:
        output = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
        sums = query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
        keys, values = ([_at(each, path) for path in paths] for each in (key, value))
        for index, path in enumerate(paths):
            own = _at(query, path)
            part, its_sum = _FORWARD(own, keys[index], values[index], 0.0, True, scale=scale)
            grouped = _grouped(own, key) if path.prefixes else None
            for other, length in path.prefixes:
                its_keys, its_values = keys[other][:, :, :length], values[other][:, :, :length]
                found, found_sum = _FORWARD(grouped, its_keys, its_values, scale=scale)
                found, found_sum = found.reshape(part.shape), found_sum.reshape(its_sum.shape)
                share = torch.sigmoid(its_sum - found_sum)[..., None]
                part = torch.lerp(found.to(share.dtype), part.to(share.dtype), share)
                its_sum = torch.logaddexp(its_sum, found_sum)
            if sinks is not None:  # sinks are keys without values
                to_sinks = sinks[:, None].to(its_sum.dtype)
                part = part * torch.sigmoid(its_sum - to_sinks)[..., None]
                its_sum = torch.logaddexp(its_sum, to_sinks)
            _put(output, path, part)
            _put(sums, path, its_sum)
        ctx.save_for_backward(query, key, value, sinks, output, sums)
        ctx.paths, ctx.scale = paths, scale
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        query, key, value, sinks, output, sums = ctx.saved_tensors
        paths: list[TreePath] = ctx.paths
        keys, values = ([_at(each, path) for path in paths] for each in (key, value))
        seen = {prefix.path for path in paths for prefix in path.prefixes}
        # The gradients that the keys and the values of each path get from later paths, which see them.
        later = {
            path: [torch.zeros_like(each, dtype=sums.dtype) for each in (keys[path], values[path])] for path in seen
        }
        gradients = [torch.empty_like(each) for each in (query, key, value)]
        for index, path in reversed(list(enumerate(paths))):
            given = [_at(each, path) for each in (gradient, query, output, sums)]
            found = _backward(given, keys[index], values[index], True, ctx.scale)
            grouped = [_grouped(each, key) for each in given] if path.prefixes else []
            for other, length in path.prefixes:
                its_keys, its_values = keys[other][:, :, :length], values[other][:, :, :length]
                of_queries, *of_seen = _backward(grouped, its_keys, its_values, False, ctx.scale)
                found[0] += of_queries.reshape(found[0].shape)
                for total, each in zip(later[other], of_seen, strict=True):
                    total[:, :, :length] += each
            for own, total in zip(found[1:], later.pop(index, ()), strict=False):
                own += total
            for whole, each in zip(gradients, found, strict=True):
                _put(whole, path, each)
        of_sinks = None
        if sinks is not None:
            shares = (sinks[:, None].to(sums.dtype) - sums).exp()
            of_sinks = -(shares * (output * gradient).sum(3, dtype=sums.dtype)).sum((0, 2)).to(sinks.dtype)
        return *gradients, of_sinks, None, None


def _backward(given: list[Any], key: Any, value: Any, is_causal: bool, scale: float) -> list[Any]:
    gradient, query, output, sums = given
    return list(_BACKWARD(gradient, query, key, value, output, sums, 0.0, is_causal, scale=scale))


def _at(tensor: Any, path: TreePath) -> Any:
    """Return a tensor's rows for the tokens of a path."""
    return tensor[:, :, path.tokens] if isinstance(path.tokens, slice) else tensor.index_select(2, path.tokens)


def _put(tensor: Any, path: TreePath, rows: Any) -> None:
    if isinstance(path.tokens, slice):
        tensor[:, :, path.tokens] = rows
    else:
        tensor.index_copy_(2, path.tokens, rows.to(tensor.dtype))


def _grouped(tensor: Any, key: Any) -> Any:
    """Return queries with those of a group of heads as the queries of one head.

    Without a mask, all queries of a group see the same keys, and one large product of matrices is faster than several.
    torch shares the heads among its threads, so there must be enough of them.
    """
    heads = key.shape[1]
    if heads == tensor.shape[1] or heads < torch.get_num_threads():
        return tensor
    return tensor.reshape(1, heads, -1, *tensor.shape[3:])
