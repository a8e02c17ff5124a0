"""The contenders of the row about batches: ours run, and TRL's collator makes the tokens and labels that ours makes."""

import pytest
import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from benchmarks.contenders.trl.batches import batches
from benchmarks.groups import replies
from benchmarks.trajectory_rows import BATCHES
from envsdk.trainers.foreign import from_steps
from envsdk.trainers.plain import collate


@pytest.mark.parametrize("size", BATCHES.sizes)
def test_our_contender_makes_every_batch(size: str):
    batches(size)()


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_trls_supervised_collator_makes_our_tokens_labels_and_positions(layout: str):
    rows = replies()[:16]
    samples = [from_steps([(one.prompt, one.reply, one.logprobs, 0.0)]).samples()[0] for one in rows]
    ours = collate(samples, layout=layout, arrays="torch")
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=layout == "packed")
    theirs = collator([{"input_ids": one.tokens, "labels": one.over_all(-100, one.reply)} for one in rows])
    assert torch.equal(ours["tokens"], theirs["input_ids"])
    assert torch.equal(ours["labels"], theirs["labels"])
    if layout == "packed":
        assert torch.equal(ours["position_ids"], theirs["position_ids"])
    else:
        assert torch.equal(ours["attention_mask"], theirs["attention_mask"].bool())
