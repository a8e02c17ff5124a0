"""An update of TRL's GRPOTrainer on the CPU, of a small Qwen3 over one episode whose thinking is stripped.

The model and the episode are those of `training`. An update is TRL's own loss, its backward pass and a step of AdamW.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from trl import GRPOConfig, GRPOTrainer

from benchmarks.contender import Repetition, contender
from envsdk.rendering.tokenizers._files import DATA
from envsdk.trainers._trl_trees import TreeRow, TreeRows
from envsdk.trainers.trl import RolloutFunc, dataset, reward_func, to_row, tree_trainer

from .training import PACKAGES, episode, model

Inputs = dict[str, Any]
VERSIONS = (*PACKAGES, "trl")
THREADS = 2


def batch(*rows: dict[str, list[Any]], trained: int) -> Inputs:
    """Return a batch of rows, padded as GRPOTrainer pads it."""

    def padded(name: str, side: str = "right") -> torch.Tensor:
        values = [torch.tensor(row[name]) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=-1, padding_side=side)

    prompt, completion = padded("prompt_ids", "left"), padded("completion_ids")
    return {
        "prompt_ids": prompt.clamp(min=0),
        "prompt_mask": (prompt >= 0).long(),
        "completion_ids": completion.clamp(min=0),
        "completion_mask": (completion >= 0).long(),
        "tool_mask": padded("env_mask").clamp(min=0),
        "advantages": torch.ones(len(rows)),
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


def of_tree(steps: int) -> Repetition:
    """Return an update with the tree of an episode."""
    row = TreeRow.of(episode(steps, "strip").samples())
    rollout_func = RolloutFunc(no_env)
    rollout_func.tree_rows["train"] = TreeRows([row], [])
    return update(tree_trainer(), [batch(row.columns(None), trained=len(row.tree.trained))], rollout_func)


def of_segments(steps: int, *, at_once: bool = False, longest_only: bool = False) -> Repetition:
    """Return an update with the samples of the same episode, in one microbatch or each in its own."""
    samples = episode(steps, "strip").samples()
    trained = sum(int(sample.mask.sum()) for sample in samples)
    rows = [to_row(sample) for sample in samples][-1 if longest_only else 0 :]
    batches = [batch(*rows, trained=trained)] if at_once else [batch(row, trained=trained) for row in rows]
    return update(GRPOTrainer, batches, RolloutFunc(no_env))


@contender("grpo-update", "envsdk", packages=VERSIONS, note="`tree_trainer()`: the episode is one row, its tree")
def tree(steps: int) -> Repetition:
    """The tree of an episode."""
    return of_tree(steps)


@contender(
    "grpo-update", "a row per segment", packages=VERSIONS, note="GRPOTrainer, one row in a microbatch: without padding"
)
def segments(steps: int) -> Repetition:
    """The samples of the same episode."""
    return of_segments(steps)


def print_peak(repetition: Repetition) -> None:
    """Print the bytes that an update adds to the memory of this process, with activation checkpointing."""
    model().gradient_checkpointing_enable()
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    repetition()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)


def peak(expression: str) -> Repetition:
    """Return a measurement of the peak of an update in a process that returns freed memory at once."""
    folder = Path(__file__).resolve().parents[3]
    start = f"import sys; sys.path.append({str(folder)!r}); from benchmarks.contenders.trl import updates"
    command = [sys.executable, "-P", "-c", f"{start}; updates.print_peak(updates.{expression})"]
    variables = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}

    def repetition() -> float:
        return float(subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=True).stdout.split()[-1])

    return repetition


@contender("grpo-memory", "envsdk", packages=VERSIONS, note="`tree_trainer()`: the episode is one row, its tree")
def tree_memory(steps: int) -> Repetition:
    """The tree of an episode."""
    return peak(f"of_tree({steps})")


@contender("grpo-memory", "a row per segment", packages=VERSIONS, note="GRPOTrainer, all rows in one microbatch")
def batch_memory(steps: int) -> Repetition:
    """The samples of the same episode in one batch."""
    return peak(f"of_segments({steps}, at_once=True)")


@contender(
    "grpo-memory",
    "a row per segment, one at a time",
    packages=VERSIONS,
    note="GRPOTrainer, one row in a microbatch, as with gradient accumulation: the longest row",
)
def row_memory(steps: int) -> Repetition:
    """The longest sample of the same episode."""
    return peak(f"of_segments({steps}, longest_only=True)")
