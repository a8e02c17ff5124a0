"""An update of TRL's GRPOTrainer on the CPU, of a small Qwen3 over one episode whose thinking is stripped.

The model and the episode are those of `training`. An update is TRL's own loss, its backward pass and a step of AdamW.
"""

import tempfile
import time
import warnings
from typing import Any

import torch
import transformers
from trl import GRPOConfig, GRPOTrainer

from benchmarks.contender import Repetition, contender
from envsdk.rendering.tokenizers import DATA
from envsdk.trainers._trl_trees import TreeRow, TreeRows
from envsdk.trainers.trl import RolloutFunc, dataset, reward_func, to_row, tree_trainer

from .training import PACKAGES, episode, model

Inputs = dict[str, Any]
VERSIONS = (*PACKAGES, "trl")
THREADS = 2


def batch(row: dict[str, list[Any]], trained: int) -> Inputs:
    """Return a batch of one row, as GRPOTrainer makes it."""
    prompt, completion = (torch.tensor([row[name]]) for name in ("prompt_ids", "completion_ids"))
    return {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": completion,
        "completion_mask": torch.ones_like(completion),
        "tool_mask": torch.tensor([row["env_mask"]]),
        "advantages": torch.tensor([1.0]),
        "num_items_in_batch": torch.tensor(trained),
    }


def update(kind: type[Any], batches: list[Inputs], rollout_func: RolloutFunc) -> Repetition:
    """Return a measurement of the seconds of an update on two threads, with a batch after the other."""
    torch.set_num_threads(THREADS)
    warnings.simplefilter("ignore")
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    options: dict[str, Any] = {"use_cpu": True, "bf16": False, "report_to": "none", "loss_type": "dapo"}
    trainer: Any = kind(
        model=model(),
        processing_class=transformers.PreTrainedTokenizerFast(tokenizer_file=str(DATA / "embedded.json"), **names),
        args=GRPOConfig(tempfile.mkdtemp(), per_device_train_batch_size=2, num_generations=2, **options),
        train_dataset=dataset("any", [0]),
        rollout_func=rollout_func,
        reward_funcs=reward_func,
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-6)

    def repetition() -> float:
        start = time.perf_counter()
        for inputs in batches:
            trainer._compute_loss(trainer.model, inputs).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    return repetition


def no_env(env_id: str) -> Any:
    """Return no environment: the episode was played before."""
    raise LookupError(env_id)


@contender("grpo-update", "envsdk", packages=VERSIONS, note="`tree_trainer()`: the episode is one row, its tree")
def tree(steps: int) -> Repetition:
    """The tree of an episode."""
    row = TreeRow.of(episode(steps, "strip").samples())
    rollout_func = RolloutFunc(no_env)
    rollout_func.tree_rows["train"] = TreeRows([row], [])
    return update(tree_trainer(), [batch(row.columns(None), len(row.tree.trained))], rollout_func)


@contender(
    "grpo-update", "a row per segment", packages=VERSIONS, note="GRPOTrainer, one row in a microbatch: without padding"
)
def segments(steps: int) -> Repetition:
    """The samples of the same episode."""
    samples = episode(steps, "strip").samples()
    trained = sum(int(sample.mask.sum()) for sample in samples)
    batches = [batch(to_row(sample), trained) for sample in samples]
    return update(GRPOTrainer, batches, RolloutFunc(no_env))
