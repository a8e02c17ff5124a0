"""Batches of torch's tensors: envsdk's, and those that TRL's collators make of the same samples."""

from collections.abc import Callable
from typing import Any

import torch
from trl.experimental.async_grpo.async_grpo_trainer import DataCollatorForRollout
from trl.experimental.async_grpo.packing import TreeRow
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling
from trl.trainer.utils import pad

from benchmarks.contender import NotMeasured, Repetition, contender
from benchmarks.groups import Reply, replies
from envsdk.trainers.foreign import from_steps
from envsdk.trainers.plain import collate
from envsdk.tree import tree_batch

PACKAGES = ("trl", "torch", "transformers")
PADDED, PACKED, TREE = "padded", "packed", "tree"
Made = Callable[[], Any]


def at(size: str, choices: dict[str, Made]) -> Repetition:
    """Return what is measured at a size.

    Raises:
        NotMeasured: If the contender has no batch of that kind.
    """
    if size not in choices:
        raise NotMeasured(f"has no {size} batch")
    make = choices[size]

    def repetition() -> None:
        make()

    return repetition


@contender("batches", "envsdk", packages=("envsdk", "numpy"))
def batches(size: str) -> Repetition:
    """`collate` and `tree_batch`."""
    logs = [[(one.prompt, one.reply, one.logprobs, 0.0)] for one in replies()]
    samples = [sample for steps in logs for sample in from_steps(steps).samples()]
    for sample in samples:
        sample.advantage = 0.5
    return at(
        size,
        {
            PADDED: lambda: collate(samples, layout="padded", arrays="torch"),
            PACKED: lambda: collate(samples, layout="packed", arrays="torch"),
            TREE: lambda: tree_batch(samples),
        },
    )


@contender(
    "batches",
    "TRL, supervised",
    packages=PACKAGES,
    note="`DataCollatorForLanguageModeling`, packed with `padding_free=True`: token ids, labels, and an attention "
    "mask or positions; envsdk's batches also hold log-probabilities, advantages, and the ids of steps and samples",
)
def supervised(size: str) -> Repetition:
    """The collator of `SFTTrainer`."""
    examples = [{"input_ids": one.tokens, "labels": one.over_all(-100, one.reply)} for one in replies()]
    padded, packed = (DataCollatorForLanguageModeling(pad_token_id=0, padding_free=free) for free in (False, True))
    return at(size, {PADDED: lambda: padded(examples), PACKED: lambda: packed(examples)})


@contender(
    "batches",
    "TRL, GRPO",
    note="`trl.trainer.utils.pad` on what `GRPOTrainer` pads: prompts on the left, replies on the right, their masks "
    "and log-probabilities",
)
def grpo(size: str) -> Repetition:
    """The padding of `GRPOTrainer`."""
    rows = replies()

    def padded() -> None:
        prompts = [torch.tensor(one.prompt) for one in rows]
        completions = [torch.tensor(one.reply) for one in rows]
        pad(prompts, 0, "left")
        pad([torch.ones_like(prompt) for prompt in prompts], 0, "left")
        pad(completions, 0)
        for _ in ("completion_mask", "tool_mask"):
            pad([torch.ones_like(completion) for completion in completions], 0)
        pad([torch.tensor(one.logprobs) for one in rows], 0)

    return at(size, {PADDED: padded})


def example(one: Reply) -> dict[str, Any]:
    """Return a sample as the buffer of `AsyncGRPOTrainer` holds it."""
    return {
        "input_ids": torch.tensor(one.tokens),
        "completion_mask": torch.tensor(one.over_all(0, [1] * len(one.reply))),
        "old_log_probs": torch.tensor(one.over_all(0.0, one.logprobs)),
        "advantage": 0.5,
        "group_id": one.group,
        "model_version": 0,
        "metrics": {},
    }


@contender("batches", "TRL, asynchronous GRPO", note="`TreeRow.add` and `DataCollatorForRollout`: its rows are trees")
def asynchronous(size: str) -> Repetition:
    """The planner's row, and the collator of `AsyncGRPOTrainer`."""
    examples = [example(one) for one in replies()]

    def tree() -> None:
        row = TreeRow()
        for each in examples:
            row.add(each)
        DataCollatorForRollout(pad_token_id=0)([[row]])

    return at(size, {TREE: tree})
