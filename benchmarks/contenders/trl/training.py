"""A training step on the CPU: forward, loss and backward of a small Qwen3 over one episode whose thinking is stripped.

A reply has about 120 tokens of thinking and 20 of answer, and a question 20. All contenders compute the logits of the
tokens that predict trained tokens only, and sum the same loss.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.contender import NotMeasured, Repetition, contender
from benchmarks.workloads import prose
from envsdk import Action, Env, Limits, Message, Sample, Trajectory, Turn, load_tokenizer, rollout
from envsdk.errors import TreeTooLarge
from envsdk.tree import TreeBatch, tree_batch

PACKAGES = ("torch", "transformers")
THINKING, ANSWER, QUESTION = 64, 10, 8
"""The words of each part."""
Gradients = Callable[[], float]


class Questions(Env):
    """Asks one question after the other."""

    def start(self) -> Turn:
        """Ask the first."""
        self.asked = 0
        return self.question()

    def respond(self, reply: Message) -> Turn:
        """Ask the next."""
        return self.question()

    def question(self) -> Turn:
        """Return a question."""
        self.asked += 1
        return Turn(prose().words(QUESTION, start=13 * self.asked))


@cache
def episode(steps: int, history: str) -> Trajectory:
    """Return an episode."""
    tokenizer = load_tokenizer("embedded")
    env = Questions(renderer="qwen3", tokenizer=tokenizer, history=history, limits=Limits(max_steps=steps))

    async def policy(prompt: Any, **_: Any) -> Action:
        start = 101 * env.asked
        thought, answer = prose().words(THINKING, start=start), prose().words(ANSWER, start=start + THINKING)
        tokens = env.renderer.reply(Message(role="assistant", reasoning=thought, content=answer))
        return Action(tokens, np.full(len(tokens), -0.5, dtype=np.float32))

    return rollout(env, policy, seed=0)


@cache
def model() -> Any:
    """Return a Qwen3 of 4 layers and hidden size 256 with random weights."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    config = Qwen3Config(
        vocab_size=load_tokenizer("embedded").vocab_size,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        tie_word_embeddings=True,
        **heads,
    )
    return Qwen3ForCausalLM(config).train()


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum of the negative log-probabilities."""
    return torch.nn.functional.cross_entropy(logits, targets, reduction="sum")


def timed(gradients: Gradients) -> Repetition:
    """Return a measurement of the CPU time of a step on one thread: what it takes on a core of its own."""
    torch.set_num_threads(1)

    def repetition() -> None:
        model().zero_grad(set_to_none=True)
        gradients()

    return repetition


def over_tree(steps: int, attention: Any) -> Gradients:
    """Return a step over the tree of an episode."""
    tree: TreeBatch = tree_batch(episode(steps, "strip"))
    targets = torch.as_tensor(tree.tokens[tree.trained]).long()
    predecessors = torch.as_tensor(tree.predecessors).long()

    def gradients() -> float:
        inputs = tree.model_inputs(model(), attention=attention)
        loss = loss_of(model()(**inputs, logits_to_keep=predecessors).logits[0], targets)
        loss.backward()
        return float(loss.detach())

    return gradients


def over_rows(rows: list[list[Sample]]) -> Gradients:
    """Return a step over rows of samples, one row after the other; several samples in a row do not see each other."""

    def gradients() -> float:
        total = 0.0
        for row in rows:
            tokens = torch.as_tensor(np.concatenate([sample.tokens for sample in row])).long()
            positions = torch.cat([torch.arange(len(sample)) for sample in row])
            trained = torch.as_tensor(np.flatnonzero(np.concatenate([sample.mask for sample in row])))
            apart = {"position_ids": positions[None]} if len(row) > 1 else {}
            output = model()(input_ids=tokens[None], use_cache=False, logits_to_keep=trained - 1, **apart)
            loss = loss_of(output.logits[0], tokens[trained])
            loss.backward()
            total += float(loss.detach())
        return total

    return gradients


def packed(samples: list[Sample]) -> Iterator[list[Sample]]:
    """Fill rows as long as the longest sample, largest samples first."""
    limit = max(map(len, samples))
    rows: list[list[Sample]] = []
    for sample in sorted(samples, key=len, reverse=True):
        fitting = (row for row in rows if sum(map(len, row)) + len(sample) <= limit)
        row = next(fitting, None)
        if row is None:
            rows.append([sample])
        else:
            row.append(sample)
    yield from rows


@contender("training-step", "envsdk", packages=PACKAGES, note="`tree_batch`, `model_inputs(model, attention='runs')`")
def runs(steps: int) -> Repetition:
    """A tree, run by run."""
    return timed(over_tree(steps, "runs"))


@contender("training-step", "envsdk, dense mask", note="`model_inputs(model, attention='dense')`")
def dense(steps: int) -> Repetition:
    """A tree with a mask."""
    try:
        tree_batch(episode(steps, "strip")).model_inputs(model(), attention="dense")
    except TreeTooLarge:
        raise NotMeasured("refused: the mask of this tree is larger than its limit") from None
    return timed(over_tree(steps, "dense"))


@contender("training-step", "separate samples", packages=PACKAGES, note="each a sequence of its own, without padding")
def separate(steps: int) -> Repetition:
    """The samples of the same episode."""
    return timed(over_rows([[sample] for sample in episode(steps, "strip").samples()]))


@contender(
    "training-step",
    "packed samples",
    note="rows as long as the longest sample; transformers' mask for packed sequences, since kernels of variable "
    "length need a GPU",
)
def in_rows(steps: int) -> Repetition:
    """The same samples in few rows."""
    return timed(over_rows(list(packed(episode(steps, "strip").samples()))))


def count(number: int) -> Repetition:
    """Return a number of tokens as a measurement."""
    return lambda: float(number)


@contender("training-tokens", "envsdk", note="the tree of the stripped episode")
def tree_tokens(steps: int) -> Repetition:
    """The tokens of the tree."""
    return count(len(tree_batch(episode(steps, "strip"))))


@contender("training-tokens", "separate samples", note="the samples of the stripped episode")
def sample_tokens(steps: int) -> Repetition:
    """The tokens of the samples."""
    return count(sum(map(len, episode(steps, "strip").samples())))


@contender(
    "training-tokens",
    "TRL, asynchronous GRPO",
    packages=("trl",),
    note="its row, a prefix tree: `TreeRow.add` of these samples. It computes the last shared token in each branch",
)
def row_tokens(steps: int) -> Repetition:
    """The tokens of TRL's tree."""
    from trl.experimental.async_grpo.packing import TreeRow  # the tests with torch import this file without accelerate

    row = TreeRow()
    for sample in episode(steps, "strip").samples():
        tokens, mask = torch.as_tensor(sample.tokens), torch.as_tensor(sample.mask)
        row.add({"input_ids": tokens, "completion_mask": mask, "group_id": 0})
    return count(len(row.tokens))


@contender("training-tokens", "thinking kept", note="the one sample of the same episode under `keep`")
def kept_tokens(steps: int) -> Repetition:
    """The tokens of the episode."""
    return count(sum(map(len, episode(steps, "keep").samples())))
