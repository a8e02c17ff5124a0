"""verl's engine on FSDP for actor and reference, which computes once what several rows of a micro-batch begin with.

verl makes this engine instead of its own if it imports this module, which the option
`actor_rollout_ref.model.external_lib=envsdk.trainers.verl_trees` requests. Only the inputs of the forward pass, the
order of the rows and the places of the results change. A result is that of the row alone, so masks, advantages, losses
and metrics stay verl's own.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, TreeUnsupported
from ..images import PlacedImage
from ..tree._masks import MAX_DENSE_TOKENS, model_inputs
from ..tree._run_attention import RUNS
from ._packages import load, load_if_installed
from ._rows import hidden_states_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = []

_ENGINES: Any = load_if_installed("verl.workers.engine.fsdp.transformer_impl")
_EngineBase: Any = getattr(_ENGINES, "FSDPEngineWithLMHead", object)
_MODULE = "external_lib=envsdk.trainers.verl_trees"
_OWN_INPUTS = {
    "input_ids",
    "attention_mask",
    "position_ids",
    "cu_seqlens",
    "cu_seqlens_cpu",
    "temperature",
    "return_dict",
    "shift_labels",
}
"""The arguments of a forward pass for text. Others are images, which belong to rows."""


@dataclass(frozen=True)
class PrefixOrder:
    """An order in which rows that begin alike follow one another.

    Attributes:
        rows: The indices of the rows, in this order.
        lengths: The number of tokens of each row, in this order.
        shared: The number of tokens with which a row begins like the one before it, in this order; 0 for the first.
    """

    rows: list[int]
    lengths: "NDArray[np.int64]"
    shared: "NDArray[np.int64]"

    @classmethod
    def of(cls, rows: "Sequence[NDArray[np.int32]]") -> "PrefixOrder":
        """Sort rows of tokens."""
        order = sorted(range(len(rows)), key=lambda index: rows[index].tobytes())
        shared = [0]
        for before, index in pairwise(order):
            length = min(len(rows[before]), len(rows[index]))
            differs = np.append(rows[before][:length] != rows[index][:length], True)
            shared.append(int(np.argmax(differs)))
        return cls(order, np.array([len(rows[index]) for index in order]), np.array(shared))

    def fitting(self, max_tokens: int) -> "NDArray[np.bool_]":
        """Return for each number of rows, from 1 to all of them, whether trees of so many rows fit into a budget.

        A number that does not divide the number of rows does not fit.
        """
        count = len(self.rows)
        fits = np.zeros(count, dtype=np.bool_)
        for size in range(1, count + 1):
            if count % size == 0:
                own = (self.lengths - self.shared).reshape(-1, size)
                fits[size - 1] = (own.sum(1) + self.shared[::size] <= max_tokens).all()
        return fits


@dataclass(slots=True)
class RowTree:
    """The prefix tree of rows of tokens, in depth-first order; see `TreeBatch`. Equal tokens of rows are one token.

    Attributes:
        tokens: Token ids: int32, shape (N,).
        parent: The index of the token before each token in its row, -1 for a root: int32, shape (N,).
        position_ids: The number of tokens before each token in its row: int32, shape (N,).
        exit: The index of the first later token that does not follow this token in a row: int32, shape (N,).
        media: No images.
        places: For each row, the index of each of its tokens.
    """

    tokens: "NDArray[np.int32]"
    parent: "NDArray[np.int32]"
    position_ids: "NDArray[np.int32]"
    exit: "NDArray[np.int32]"
    media: list[PlacedImage]
    places: "list[NDArray[np.int32]]"

    @classmethod
    def of(cls, rows: "Sequence[NDArray[np.int32]]") -> "RowTree":
        """Merge rows of tokens."""
        order = PrefixOrder.of(rows)
        tokens, parent, position_ids, exits = np.empty((4, int((order.lengths - order.shared).sum())), dtype=np.int32)
        path, stop = np.empty(0, dtype=np.int32), 0
        places = [path] * len(rows)
        for index, shared in zip(order.rows, order.shared.tolist(), strict=True):
            exits[path[shared:]] = stop
            own = slice(stop, stop + len(rows[index]) - shared)
            path = np.append(path[:shared], np.arange(own.start, own.stop, dtype=np.int32))
            tokens[own], position_ids[own] = rows[index][shared:], np.arange(shared, len(path))
            parent[own] = np.append(np.int32(-1), path[:-1])[shared:]
            places[index], stop = path, own.stop
        exits[path] = stop
        return cls(tokens, parent, position_ids, exits, [], places)


class TreeEngine(_EngineBase):
    """verl's engine for language models on FSDP, in which the rows of a micro-batch are one prefix tree."""

    def __init__(self, *args: Any, **options: Any) -> None:
        load("verl.workers.engine.fsdp.transformer_impl", "verl")
        base: Any = super()
        base.__init__(*args, **options)
        refused = {
            "ulysses_sequence_parallel_size": self.ulysses_sequence_parallel_size > 1,
            "pad_to_length": self.pad_to_length,
            "use_remove_padding=False": not self.use_remove_padding,
        }
        for name in filter(refused.__getitem__, refused):
            raise ConfigError(f"{_MODULE} does not work with {name}: change it, or leave out external_lib")
        self._separate = self._shared = 0

    def forward_backward_batch(self, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
        """Let rows that begin alike follow one another, and make micro-batches whose trees are within the budget."""
        torch, tensors = load("torch", "verl"), load("verl.utils.tensordict_utils", "verl")
        order = PrefixOrder.of(_rows(data["input_ids"]))
        ordered = tensors.index_select_tensor_dict(data, torch.tensor(order.rows))
        if tensors.get_non_tensor_data(data, "use_dynamic_bsz", True):
            budget = int(data["max_token_len_per_gpu"])
            votes = np.append(order.fitting(budget), order.lengths.sum() // -budget)
            # Processes wait for one another in each layer, so all of them take the same number of steps.
            agreed = torch.from_numpy(votes.astype(np.int64)).to(load("verl.utils.device", "verl").get_device_id())
            torch.distributed.all_reduce(agreed, torch.distributed.ReduceOp.MIN, self.get_data_parallel_group())
            *fits, most_steps = agreed.tolist()
            size = max((number for number, fit in enumerate(fits, 1) if fit), default=1)
            if len(fits) // size <= -most_steps:  # otherwise, the micro-batches of verl are fewer
                tensors.assign_non_tensor(ordered, use_dynamic_bsz=False, micro_batch_size_per_gpu=size)
        self._separate = self._shared = 0
        base: Any = super()
        output = base.forward_backward_batch(ordered, loss_function, forward_only)
        back = np.argsort(order.rows).tolist()
        for name, value in output["model_output"].items():
            rows = value.unbind()
            output["model_output"][name] = torch.nested.as_nested_tensor([rows[i] for i in back], layout=torch.jagged)
        output["metrics"]["envsdk/tree_ratio"] = [self._separate / max(self._shared, 1)]
        return output

    def forward_step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
        """Compute the loss of a micro-batch, or its results."""
        base: Any = super()
        with ExitStack() as self._forward_pass:
            return base.forward_step(micro_batch, loss_function, forward_only)

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arguments of the model for the tree of the rows, and those of `prepare_model_outputs`."""
        torch = load("torch", "verl")
        ids, base = micro_batch["input_ids"], super()
        tree = RowTree.of(_rows(ids))
        self._separate, self._shared = self._separate + ids.values().numel(), self._shared + len(tree.tokens)
        follows = tree.parent >= 0
        labels, predecessors = (
            torch.from_numpy(each[follows]).long().to(ids.device) for each in (tree.tokens, tree.parent)
        )
        # verl computes its results for the tokens of rows: here for one row, with each token that follows another one.
        once = micro_batch.copy()
        bounds = ids.offsets().clamp(min=0, max=0)
        bounds[1:] = len(labels)
        once["input_ids"] = torch.nested.nested_tensor_from_jagged(labels, bounds)
        inputs, arguments = base.prepare_model_inputs(once)
        if refused := _refused(micro_batch, inputs):
            raise TreeUnsupported(f"{_MODULE} does not work with {', '.join(refused)}: leave out external_lib")
        of_tree = model_inputs(tree, self.module, attention="runs", max_dense_tokens=MAX_DENSE_TOKENS, vision=None)
        of_tree.pop("use_cache")
        inputs = {name: value for name, value in inputs.items() if name not in ("cu_seqlens", "cu_seqlens_cpu")}
        if "shift_labels" in inputs:
            inputs["shift_labels"] = labels[None]
        model = self.module.get_base_model() if hasattr(self.module, "get_base_model") else self.module
        runs = {RUNS: of_tree.pop(RUNS)}  # which the forward pass of verl's fused kernels does not hand on
        self._forward_pass.enter_context(hidden_states_at(model, predecessors, **runs))
        inputs |= {name: _moved(value, ids.device) for name, value in of_tree.items()}
        number = np.where(follows, np.cumsum(follows) - 1, len(labels))
        nexts = [np.append(number[places[1:]], len(labels)) for places in tree.places]
        index = torch.from_numpy(np.concatenate(nexts)).to(ids.device)
        return inputs, {**arguments, "input_ids_rmpad_rolled": labels, "tree": (once, index)}

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, Any]:
        """Return the results of each token of the rows; 0.0 at the last token of a row, which predicts nothing."""
        torch, base = load("torch", "verl"), super()
        once, index = output_args["tree"]
        results: dict[str, Any] = base.prepare_model_outputs(output, output_args, once, logits_processor_func)
        bounds = micro_batch["input_ids"].offsets()

        def spread(values: Any) -> Any:
            flat = values.values()
            return torch.nested.nested_tensor_from_jagged(torch.cat([flat, flat.new_zeros(1)])[index], bounds)

        return {name: spread(values) for name, values in results.items()}


def _rows(ids: Any) -> "list[NDArray[np.int32]]":
    """Return the rows of a nested tensor of token ids."""
    values = ids.values().cpu().numpy().astype(np.int32)
    return np.split(values, ids.offsets().cpu().numpy()[1:-1])


def _moved(value: Any, device: Any) -> Any:
    return value.to(device) if hasattr(value, "to") else value


def _refused(micro_batch: Any, inputs: dict[str, Any]) -> list[str]:
    """Return what a micro-batch has that a tree of its rows would not compute as the rows do."""
    temperature, unwrap = micro_batch["temperature"], load("verl.utils.tensordict_utils", "verl").get_non_tensor_data
    found = [name for name in ("distillation_use_topk", "distillation_only") if unwrap(micro_batch, name, False)]
    if hasattr(temperature, "unique") and len(temperature.unique()) > 1:
        found.append("a temperature for each row")
    if micro_batch["position_ids"].dim() == 3:
        found.append("positions in three dimensions")
    return [*found, *sorted(inputs.keys() - _OWN_INPUTS)]


if _ENGINES is not None:
    _devices: Any = load("verl.utils.device", "verl")
    _register = load("verl.workers.engine", "verl").EngineRegistry.register
    _register("language_model", ["fsdp", "fsdp2"], _devices.get_device_name(), _devices.get_vendor())(TreeEngine)
