"""TRL's GRPOTrainer with whole rollouts as rows: all tokens of a rollout, each once, in the order of its tree.

Only the function that computes log-probabilities changes. It recognizes each row by its tokens, computes the rows of a
microbatch as one forest, and puts the log-probabilities of trained tokens in their places. Rewards, advantages,
clipping, reduction and metrics are TRL's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, InvalidSample, TreeUnsupported
from ..trajectories._samples import Sample
from ..tree._batch import TreeBatch, tree_batch
from ._checks import check_samples
from ._packages import load
from ._rows import hidden_states_at
from ._trl_images import image_trainer

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOGPROBS = "_get_per_token_logps_and_entropies"


@dataclass(frozen=True)
class TreeRow:
    """A rollout as a row of GRPOTrainer: its tree in depth-first order, split before the first trained token.

    Attributes:
        samples: The samples of the rollout.
        tree: The tree of the samples.
        prompt_length: The number of tokens before the first trained one.
    """

    samples: Sequence[Sample]
    tree: TreeBatch
    prompt_length: int

    @staticmethod
    def of(samples: Sequence[Sample]) -> "TreeRow":
        """Return the row of a rollout's samples, of which there is at least one."""
        tree = tree_batch(list(samples))
        return TreeRow(samples, tree, int(tree.trained[0]))

    def columns(self, temperature: float | None) -> dict[str, list[Any]]:
        """Return the tokens as GRPOTrainer takes them; see `to_row`.

        Raises:
            InvalidSample: If a sample is invalid, has no log-probabilities, or was sampled at another temperature.
        """
        check_samples(self.samples, temperature=temperature, no_images=None)
        first, tree = self.prompt_length, self.tree
        return {
            "prompt_ids": tree.tokens[:first].tolist(),
            "completion_ids": tree.tokens[first:].tolist(),
            "logprobs": np.asarray(tree.logprobs)[first:].tolist(),
            "env_mask": tree.mask[first:].astype(int).tolist(),
        }

    def is_like(self, other: "TreeRow") -> bool:
        """Return whether another row with the same tokens is the same tree, with the same trained tokens."""
        pairs = ((getattr(self.tree, name), getattr(other.tree, name)) for name in ("parent", "mask"))
        return all(np.array_equal(*pair) for pair in pairs) and self.tree.media == other.tree.media


class TreeRows:
    """The rows of a batch of rollouts, which are found by their tokens: TRL shuffles and splits its batches.

    Args:
        rows: The rows in the order of the rollouts; None for a rollout that trains nothing.
        blank: The tokens of the row of such a rollout.

    Raises:
        InvalidSample: If two rows have the same tokens, but differ as trees.
    """

    def __init__(self, rows: Sequence[TreeRow | None], blank: Sequence[int]) -> None:
        self.rows = rows
        self._blank = list(blank)
        self._by_tokens: dict[bytes, TreeRow] = {}
        for row in filter(None, rows):
            if not self._by_tokens.setdefault(row.tree.tokens.tobytes(), row).is_like(row):
                raise InvalidSample(
                    f"trajectory {row.samples[0].trajectory_id!r} and another one of the batch have the same tokens in "
                    "different trees, and GRPOTrainer passes on the tokens only: pass on_break='last_segment'"
                )

    def find(self, tokens: "NDArray[np.int32]", number: int) -> TreeRow | None:
        """Return the row of a batch's tokens; None if it trains nothing.

        Args:
            tokens: The tokens without padding: int32, shape (n,).
            number: The number of the row in the batch, for the error message.

        Raises:
            InvalidSample: If no rollout of the last batch has these tokens.
        """
        row = self._by_tokens.get(tokens.tobytes())
        if row is None and tokens.tolist() != self._blank:
            raise InvalidSample(
                f"row {number} of GRPOTrainer's batch ({len(tokens)} tokens) is not a rollout of the last batch of "
                "RolloutFunc: leave its rows as they are, and use each RolloutFunc in one trainer"
            )
        return row


def tree_trainer(base: type[Any] | None = None) -> type[Any]:
    """Return a GRPOTrainer class that trains all tokens of the rollouts of a `RolloutFunc`, each once.

    A row of its batches is a rollout: its prefix tree in depth-first order, with `tool_mask` 1 on the tokens that are
    trained. The rows of a microbatch share what they begin with. It also trains the images of rollouts, which
    GRPOTrainer takes from the columns of its dataset only. `RolloutFunc(on_break=)` may choose rows of one sample
    instead, for models of which a tree would not be exact.

    Args:
        base: The class to extend; by default TRL's GRPOTrainer.

    Returns:
        A subclass. Training raises `TreeUnsupported` if a tree would not be exact for the model, which is named, and
        `InvalidSample` if the rows of a batch are not those of its `RolloutFunc`.

    Raises:
        ConfigError: If the class does not have what of TRL 1.16 is extended.
        MissingPackage: If TRL is not installed.
    """
    base = image_trainer(base)
    if not hasattr(load("trl.trainer.utils", "trl"), "add_fused_lm_head") or not hasattr(base, _LOGPROBS):
        raise ConfigError(
            f"{base.__name__} does not compute log-probabilities as TRL 1.16 does, which trees need: install "
            "trl==1.16.0, or pass RolloutFunc(..., on_break='last_segment')"
        )
    torch: Any = load("torch", "trl")
    score, own_logprobs = base._generate_and_score_completions, getattr(base, _LOGPROBS)

    class TreeGRPOTrainer(base):
        """A GRPOTrainer in which a row is a rollout."""

        takes_trees = True

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            output: dict[str, Any] = score(self, inputs)
            rows: TreeRows | None = self._tree_rows()
            if rows is None:
                return output
            sizes = [[0, 0], *([row.tree.tokens_separate, len(row.tree)] for row in rows.rows if row is not None)]
            totals = torch.tensor(sizes, device=self.accelerator.device, dtype=torch.float64).sum(0)
            separate, shared = self.accelerator.reduce(totals, reduction="sum").tolist()
            mode = "train" if self.model.training else "eval"
            self._metrics[mode]["envsdk/tree_ratio"].append(separate / max(shared, 1))
            advantages = [None if row is None else row.tree.advantage for row in rows.rows]
            if any(own is not None for own in advantages):
                width = output["completion_ids"].size(1)
                given = np.zeros((len(advantages), width), dtype=np.float32)
                for target, row, own in zip(given, rows.rows, advantages, strict=True):
                    if row is not None and own is not None:
                        target[: len(own) - row.prompt_length] = own[row.prompt_length :]
                output["advantages"] = torch.from_numpy(given).to(output["advantages"])
            return output

        def _tree_rows(self) -> TreeRows | None:
            """Return the rows of the last rollouts; None if they are single samples."""
            return self.rollouts_with("tree_rows").tree_rows["train" if self.model.training else "eval"]

        def _get_per_token_logps_and_entropies(
            self,
            model: Any,
            input_ids: Any,
            attention_mask: Any,
            logits_to_keep: int,
            batch_size: int | None = None,
            compute_entropy: bool = False,
            compute_aux_loss: bool = False,
            **options: Any,
        ) -> Any:
            rows = self._tree_rows()
            if rows is None:
                own = {"compute_entropy": compute_entropy, "compute_aux_loss": compute_aux_loss, **options}
                return own_logprobs(self, model, input_ids, attention_mask, logits_to_keep, batch_size, **own)
            if compute_aux_loss:
                raise TreeUnsupported(
                    "the auxiliary loss of a mixture of experts counts each token that it sees, and a tree has shared "
                    "tokens once: set router_aux_loss_coef=0.0, or pass RolloutFunc(..., on_break='last_segment')"
                )
            found = _found(rows, input_ids, attention_mask, logits_to_keep)
            size, parts = batch_size or len(found), list[Any]()
            for start in range(0, len(found), size):
                parts.append(self._forest(model, found[start : start + size], logits_to_keep))
            values, entropies = (torch.cat(columns) for columns in zip(*parts, strict=True))
            return values, entropies if compute_entropy else None, None

        def _forest(self, model: Any, rows: Sequence[TreeRow | None], width: int) -> tuple[Any, Any]:
            """Return the log-probabilities and entropies of rows: shape (rows, width), 0.0 where nothing is trained."""
            patched: Any = self.accelerator.unwrap_model(model)
            if hasattr(patched, "peft_config") and hasattr(patched, "get_base_model"):
                patched = patched.get_base_model()  # whose forward pass TRL extended
            places, predecessors, labels, inputs = self._forest_inputs(patched, rows, width)
            device = self.accelerator.device
            at, targets = (torch.from_numpy(each).to(device) for each in (predecessors, labels))
            with hidden_states_at(patched, at), self.accelerator.autocast():
                output: Any = model(**inputs, shift_labels=targets[None], fused_lm_head=True)
            index = torch.from_numpy(places).to(device)

            def spread(values: Any) -> Any:
                if values is None:  # the reference has no entropies
                    return torch.zeros((len(rows), width), device=device)
                own = values[0].float()
                flat = own.new_zeros(len(rows) * width + 1).index_put((index,), own)
                return flat[:-1].view(len(rows), width)

            return spread(output.log_probs), spread(output.entropy)

        def _forest_inputs(
            self, model: Any, rows: Sequence[TreeRow | None], width: int
        ) -> "tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], dict[str, Any]]":
            """Return the place of each trained token, its predecessor, its id, and the arguments of the model."""
            device = self.accelerator.device
            distinct = list({id(row): row for row in rows if row is not None}.values())
            if not distinct:  # a pass whose gradient is zero, which processes with other rows wait for
                blank = torch.zeros((1, 2), dtype=torch.int64, device=device)
                end, none = np.array([len(rows) * width]), np.array([-100])
                return end, np.array([0]), none, {"input_ids": blank, "use_cache": False}
            forest = tree_batch([sample for row in distinct for sample in row.samples])
            vision = self.image_processor() if forest.media else None
            inputs = {
                name: value.to(device) if isinstance(value, torch.Tensor) else value
                for name, value in forest.model_inputs(model, vision=vision).items()
            }
            firsts = np.cumsum([0, *(len(row.samples) for row in distinct)])
            number_of = {id(row): int(first) for row, first in zip(distinct, firsts[:-1], strict=True)}
            keys = _keys(forest, forest.trained, 0)
            order = np.argsort(keys)
            places, nodes = list[Any](), list[Any]()
            for number, row in enumerate(rows):
                if row is not None:
                    places.append(number * width + row.tree.trained - row.prompt_length)
                    wanted = _keys(row.tree, row.tree.trained, number_of[id(row)])
                    nodes.append(forest.trained[order[np.searchsorted(keys, wanted, sorter=order)]])
            trained = np.concatenate(nodes)
            ids = forest.tokens[trained].astype(np.int64)
            return np.concatenate(places).astype(np.int64), forest.parent[trained].astype(np.int64), ids, inputs

    return TreeGRPOTrainer


def _keys(tree: TreeBatch, nodes: "NDArray[np.int32]", first: int) -> "NDArray[np.int64]":
    """Return a number for each trained token that is the same in every tree of its sample."""
    return (tree.sample_ids[nodes].astype(np.int64) + first << 32) + tree.position_ids[nodes]


def _found(rows: TreeRows, ids: Any, seen: Any, width: int) -> list[TreeRow | None]:
    """Return the row of each row of a padded batch, of prompts and `width` completion tokens."""
    numbers, kept = ids.cpu().numpy().astype(np.int32), seen.cpu().numpy().astype(bool)
    is_left_out = ~kept[:, -width:].any(1)  # by `mask_truncated_completions`
    return [
        None if left_out else rows.find(own[mask], number)
        for number, (own, mask, left_out) in enumerate(zip(numbers, kept, is_left_out, strict=True))
    ]
