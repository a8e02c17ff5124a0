"""TRL's GRPOTrainer with whole rollouts as rows: all tokens of a rollout, each once, in the order of its tree.

Only the function that computes log-probabilities changes. It recognizes each row by its tokens, computes the rows of a
microbatch as one forest, and puts the log-probabilities of trained tokens in their places. Rewards, advantages,
clipping, reduction and metrics are TRL's.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
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
_CHUNK, _CHUNK_SIZE = "_CHUNKED_LOGPROB_CHUNK_SIZE", 512
"""The number of vocabulary entries of which TRL's head computes the logits at once, and ours without a GPU's kernel."""


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

    def find(self, ids: Any, attention_mask: Any, width: int) -> list[TreeRow | None]:
        """Return the row of each row of a padded batch; None if it trains nothing.

        Args:
            ids: The tokens of prompts and completions: a tensor of shape (B, P + C).
            attention_mask: Which of them are not padding: a tensor of shape (B, P + C).
            width: C.

        Raises:
            InvalidSample: If no rollout of the last batch has the tokens of a row, or its completion begins elsewhere.
        """
        numbers, kept = ids.cpu().numpy().astype(np.int32), attention_mask.cpu().numpy().astype(bool)
        found: list[TreeRow | None] = []
        for number, (own, mask) in enumerate(zip(numbers, kept, strict=True)):
            tokens, is_left_out = own[mask], not mask[-width:].any()  # by `mask_truncated_completions`
            row = None if is_left_out else self._by_tokens.get(tokens.tobytes())
            is_right = is_left_out or tokens.tolist() == self._blank
            if row is not None:
                is_right = np.array_equal(mask[-width:], np.arange(width) < len(tokens) - row.prompt_length)
            if not is_right:
                raise InvalidSample(
                    f"row {number} of GRPOTrainer's batch ({len(tokens)} tokens) is not a rollout of the last batch of "
                    "RolloutFunc: leave its rows as they are, and use each RolloutFunc in one trainer"
                )
            found.append(row)
        return found


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
    utils: Any = load("trl.trainer.utils", "trl")
    if not all(hasattr(utils, name) for name in ("add_fused_lm_head", _CHUNK)) or not hasattr(base, "_compute_loss"):
        raise ConfigError(
            f"{base.__name__} does not compute log-probabilities as TRL 1.16 does, which trees need: install "
            "trl==1.16.0, or pass RolloutFunc(..., on_break='last_segment')"
        )
    torch: Any = load("torch", "trl")
    score, own_logprobs, loss = base._generate_and_score_completions, getattr(base, _LOGPROBS), base._compute_loss

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

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
            rows: TreeRows | None = self._tree_rows()
            if rows is not None:
                pairs = ((inputs[f"prompt_{name}"], inputs[f"completion_{name}"]) for name in ("ids", "mask"))
                ids, seen = (torch.cat(pair, 1) for pair in pairs)
                found: list[TreeRow | None] = rows.find(ids, seen, inputs["completion_mask"].size(1))
                trains = (inputs["completion_mask"] * inputs.get("tool_mask", 1)).cpu().numpy()
                for number, (row, own) in enumerate(zip(found, trains, strict=True)):
                    columns = np.flatnonzero(own)
                    if row is not None:
                        columns = columns[~row.tree.mask[columns + row.prompt_length]]
                    if len(columns):
                        raise InvalidSample(
                            f"row {number} of GRPOTrainer's batch trains the token {columns[0]} of its completion, "
                            "which its rollout does not train: leave tool_mask as it is, or set more of it to 0"
                        )
            return loss(self, model, inputs)

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
            found = rows.find(input_ids, attention_mask, logits_to_keep)
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
            with _for_trees(patched, at), self.accelerator.autocast():
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
            distinct = {id(row): row for row in rows if row is not None}
            if not distinct:  # a pass whose gradient is zero, which processes with other rows wait for
                blank = torch.zeros((1, 2), dtype=torch.int64, device=device)
                end, none = np.array([len(rows) * width]), np.array([-100])
                return end, np.array([0]), none, {"input_ids": blank, "use_cache": False}
            forest = tree_batch([sample for row in distinct.values() for sample in row.samples])
            known = model.get_input_embeddings().num_embeddings
            if forest.tokens.max() >= known:
                number = next(i for i, row in enumerate(rows) if row is not None and row.tree.tokens.max() >= known)
                raise InvalidSample(
                    f"row {number} of GRPOTrainer's batch has the token {forest.tokens.max()}, and the model has "
                    f"embeddings for {known} tokens: make the environment with the tokenizer of the model"
                )
            vision = self.image_processor() if forest.media else None
            inputs = {
                name: value.to(device) if isinstance(value, torch.Tensor) else value
                for name, value in forest.model_inputs(model, vision=vision).items()
            }
            stops = np.cumsum([len(row.tree.trained) for row in distinct.values()])
            nodes = dict(zip(distinct, np.split(_by_sample(forest), stops[:-1]), strict=True))
            given = [(number, row) for number, row in enumerate(rows) if row is not None]
            places = [number * width + _by_sample(row.tree) - row.prompt_length for number, row in given]
            trained = np.concatenate([nodes[id(row)] for _, row in given])
            ids = forest.tokens[trained].astype(np.int64)
            return np.concatenate(places).astype(np.int64), forest.parent[trained].astype(np.int64), ids, inputs

    return TreeGRPOTrainer


def _by_sample(tree: TreeBatch) -> "NDArray[np.int32]":
    """Return the trained tokens of a tree in the order of its samples, which is the same in every tree with them."""
    nodes = tree.trained
    return nodes[np.lexsort((tree.position_ids[nodes], tree.sample_ids[nodes]))]


@contextmanager
def _for_trees(model: Any, indices: Any) -> Generator[None]:
    """Let a model apply its fused head to the last hidden states of these tokens, in chunks of the vocabulary.

    One token may predict several ones of a tree. On a CPU, TRL has no kernel for the head. It computes the logits of
    4096 tokens and 32768 entries of the vocabulary at once, with about eight arrays of that size.
    """
    utils: Any = load("trl.trainer.utils", "trl")
    own: int = getattr(utils, _CHUNK)
    setattr(utils, _CHUNK, min(own, _CHUNK_SIZE) if indices.device.type == "cpu" else own)
    try:
        with hidden_states_at(model, indices):
            yield
    finally:
        setattr(utils, _CHUNK, own)
