"""Through real models a tree gives what the separate samples give: log-probabilities, losses and gradients."""

import asyncio
import shutil
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch.nn")

import torch
from core.test_handoffs import Boss, Duel, Worker
from core.test_tree import record
from program_environments import Trimming
from torch_models import (
    gradient,
    in_sample_order,
    logprobs_separate,
    logprobs_tree,
    relative_difference,
    tiny_gpt_oss,
    tiny_qwen3,
)

from envsdk import Action, Env, Handoff, Message, Sample, Trajectory, Turn, arollout, get_renderer
from envsdk.errors import TreeTooLarge, TreeUnsupported, UnknownName
from envsdk.tree import TreeBatch, tree_attention, tree_batch
from envsdk.tree._run_attention import TreeRuns, attend, attend_in_one_call
from envsdk.tree._runs import Runs

pytestmark = pytest.mark.filterwarnings("default")

MAX_LOGPROB_DIFFERENCE = 1e-4
MAX_GRADIENT_DIFFERENCE = 1e-3


# Episodes.


class Doubts(Env):
    """Asks again and again."""

    def start(self) -> Turn:
        self.asked = 0
        return Turn("Well?", system="Think.")

    def respond(self, reply: Message) -> Turn:
        self.asked += 1
        return Turn(f"Sure? {self.asked}", reward=1.0, terminated=self.asked == 4)


def thinker(number: int, renderer: Any) -> Any:
    """A policy that thinks something else in each episode, and answers."""

    async def policy(prompt: np.ndarray, *, context: str, **_: Any) -> Action:
        rng = np.random.default_rng([number, len(prompt), *context.encode()])
        words = " ".join(map(str, rng.integers(0, 100, rng.integers(2, 9))))
        tokens = renderer.reply(Message(role="assistant", reasoning=words, content=f"Yes, {rng.integers(9)}."))
        return Action(tokens, np.full(len(tokens), -0.5, np.float32))

    return policy


def play(make_env: Callable[..., Env], count: int = 1, renderer: str = "qwen3", **options: Any) -> list[Trajectory]:
    """A group of episodes of the same task."""
    made = get_renderer(renderer, "embedded")

    async def one(number: int) -> Trajectory:
        return await arollout(make_env(renderer=made, **options), thinker(number, made), seed=0)

    return [asyncio.run(one(number)) for number in range(count)]


def delegates(*plan: Any) -> Callable[..., Env]:
    return lambda **options: Boss(list(plan), **options)


def child(**options: Any) -> Handoff:
    return Handoff(Worker(2, history=options.pop("policy", "keep")), "it", **options)


def forks(history: str) -> list[Trajectory]:
    """An episode; two that were forked from it after its second step; and one that was forked from one of these."""
    renderer = get_renderer("qwen3", "embedded")

    def go_on(env: Env, number: int) -> None:
        observation, _ = env.pending()
        env.step(asyncio.run(thinker(number, renderer)(env.prompt(), context=observation.context)))

    env = Doubts(renderer=renderer, history=history)
    env.reset(seed=0)
    go_on(env, 0)
    go_on(env, 0)
    first, second = env.fork(), env.fork()
    go_on(first, 1)
    running = [second, env, first, first.fork()]
    return [
        asyncio.run(arollout(one, thinker(number, renderer), reset=False))
        for number, one in enumerate(running, start=2)
    ]


CASES: dict[str, Callable[[], list[Trajectory]]] = {
    "keep": lambda: play(Doubts, history="keep"),
    "strip": lambda: play(Doubts, history="strip"),
    "compact": lambda: play(Doubts, history={"name": "compact", "every": 2}),
    "summarize": lambda: play(Doubts, history={"name": "summarize", "threshold": 60}),
    "fresh": lambda: play(delegates(child(), child())),
    "full": lambda: play(delegates(child(history="full"), child(history="full"))),
    "nested": lambda: play(delegates(Handoff(Boss([child(history="full")]), history="full")), history="strip"),
    "parallel": lambda: play(delegates([child(history="full", policy="strip") for _ in range(3)])),
    "players": lambda: play(Duel),
    "programs": lambda: play(Trimming, 2),
    "group": lambda: play(Doubts, 4, history="keep"),
    "group, strip": lambda: play(Doubts, 4, history="strip"),
    "group, compact": lambda: play(Doubts, 4, history={"name": "compact", "every": 2}),
    "group, parallel": lambda: play(delegates([child(history="full", policy="strip") for _ in range(2)]), 4),
    "forks": lambda: forks("keep"),
    "forks, strip": lambda: forks("strip"),
}
MODELS: dict[str, Callable[[], Any]] = {
    "qwen3": tiny_qwen3,
    "qwen3, sliding": lambda: tiny_qwen3(
        attention="eager", use_sliding_window=True, sliding_window=12, max_window_layers=1
    ),
    "gpt_oss": tiny_gpt_oss,
}
model_of = cache(lambda name: MODELS[name]())


def samples_of(group: Sequence[Trajectory]) -> list[Sample]:
    samples = [sample for trajectory in group for sample in trajectory.samples()]
    for index, sample in enumerate(samples):
        sample.advantage = (-1.0) ** index * (1 + index % 5)
    return samples


# Losses, as a trainer has them that takes each sample as a sequence of its own, and one that takes trees.


def separate_loss(samples: Sequence[Sample], logprobs: Sequence[torch.Tensor], reduction: str) -> torch.Tensor:
    losses = [-values * sample.advantage for sample, values in zip(samples, logprobs, strict=True)]
    if reduction == "sum":
        return torch.stack([loss.sum() for loss in losses]).sum()
    means = [sample.loss_weight * loss.mean() for sample, loss in zip(samples, losses, strict=True)]
    return torch.stack(means).sum()


def tree_loss(trees: Sequence[TreeBatch], logprobs: Sequence[torch.Tensor], reduction: Any) -> torch.Tensor:
    losses = []
    for tree, values in zip(trees, logprobs, strict=True):
        assert tree.advantage is not None
        losses.append(-(torch.as_tensor((tree.weights(reduction) * tree.advantage)[tree.mask]) * values).sum())
    return torch.stack(losses).sum()


def agrees(case: str, model: Any, group: Sequence[Trajectory]) -> None:
    samples = samples_of(group)
    separate = logprobs_separate(model, samples)
    whole = tree_batch(group)
    whole.advantage = whole.per_token([sample.advantage for sample in samples])
    longest = int(whole.position_ids.max()) + 1
    ways = {
        "of trajectories": [whole],
        "of samples": [tree_batch(samples)],
        "split": whole.split(max(longest, len(whole) // 2)),
    }
    losses = {reduction: separate_loss(samples, separate, reduction) for reduction in ("sum", "sample_mean")}
    gradients = {reduction: gradient(model, loss) for reduction, loss in losses.items()}
    for way, trees in ways.items():
        logprobs = [logprobs_tree(model, tree) for tree in trees]
        difference = float((in_sample_order(trees, logprobs) - torch.cat(separate)).detach().abs().max())
        apart = {}
        for reduction, expected in losses.items():
            loss = tree_loss(trees, logprobs, reduction)
            assert loss.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-3)
            apart[reduction] = relative_difference(gradient(model, loss), gradients[reduction])
        sizes = f"{whole.tokens_separate} tokens as {sum(map(len, trees))} in {len(trees)}"
        figures = ", ".join(f"{value:.1e} ({reduction})" for reduction, value in apart.items())
        print(f"{case}, tree {way}: {sizes}; log-probability {difference:.1e}, gradient {figures}")
        assert difference < MAX_LOGPROB_DIFFERENCE
        assert max(apart.values()) < MAX_GRADIENT_DIFFERENCE


@pytest.mark.matrix
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("model", MODELS)
def test_a_tree_gives_the_log_probabilities_losses_and_gradients_of_the_samples(model: str, case: str) -> None:
    group = CASES[case]()
    shared = tree_batch(group).ratio
    assert shared == 1 if case in ("keep", "fresh", "players") else shared > 1.05
    assert max(len(sample) for sample in samples_of(group)) > 24  # twice the sliding window
    agrees(f"{model}, {case}", model_of(model), group)


def test_so_does_one_of_gpt_oss_and_its_own_format_on_its_own_vocabulary() -> None:
    pytest.importorskip("openai_harmony")
    import real_models

    renderer = get_renderer("harmony", real_models.gpt_oss_tokenizer())
    policy = thinker(0, renderer)
    trajectory = asyncio.run(arollout(Doubts(renderer=renderer, history="strip"), policy, seed=0))
    assert len(trajectory.samples()) > 1
    agrees("gpt_oss, harmony, strip", tiny_gpt_oss(renderer.tokenizer.vocab_size, layers=2), [trajectory])


def test_however_an_episode_is_segmented_the_loss_of_its_tokens_is_the_same() -> None:
    """What the weights are for: the mean over the samples of an episode is the mean over its tokens."""
    model, (trajectory,) = model_of("qwen3"), play(Doubts, history="strip")
    tree = tree_batch(trajectory)
    tree.advantage = tree.per_token(np.ones(len(tree.samples)))
    logprobs = logprobs_tree(model, tree)
    assert tree_loss([tree], [logprobs], "sample_mean").item() == pytest.approx(-logprobs.mean().item(), rel=1e-5)


def test_a_wrong_mask_or_position_is_found_by_the_comparison() -> None:
    for name in ("qwen3", "gpt_oss"):
        model, samples = model_of(name), samples_of(play(Doubts, history="strip"))
        expected = torch.cat(logprobs_separate(model, samples))
        tree = tree_batch(samples)
        wrong = {
            "mask": replace(tree, parent=np.arange(-1, len(tree) - 1, dtype=np.int32)),
            "position": replace(tree, position_ids=np.arange(len(tree), dtype=np.int32)),
        }
        for what, other in wrong.items():
            values = torch.zeros(len(tree)).masked_scatter(torch.as_tensor(tree.mask), logprobs_tree(model, other))
            given = in_sample_order([tree], [values[torch.as_tensor(tree.mask)]])
            assert (given - expected).abs().max() > 10 * MAX_LOGPROB_DIFFERENCE, (name, what)


# FlexAttention.


@pytest.mark.parametrize("window", [None, 7, 200])
@pytest.mark.parametrize("count", [1, 12])
def test_the_block_mask_shows_what_the_dense_mask_shows(window: int | None, count: int) -> None:
    tree = tree_batch(play(Doubts, count, history="strip"))
    blocks, dense = tree.block_mask(window), tree.dense_mask(window)
    index = torch.arange(len(tree))
    for name in ("full_attention", "sliding_attention") if window else (None,):
        block, mask = (blocks, dense) if name is None else (blocks[name], dense[name])
        shown = block.mask_mod(torch.tensor(0), torch.tensor(0), index[:, None], index)
        assert (shown.numpy() == mask).all()
        seen = np.zeros(block.to_dense().shape[2:], bool)
        query, key = np.nonzero(mask)
        seen[query // 128, key // 128] = True
        assert block.to_dense()[0, 0].bool().numpy()[seen].all()
        for row, number in enumerate(block.full_kv_num_blocks[0, 0].tolist()):
            for column in block.full_kv_indices[0, 0, row, :number].tolist():
                assert mask[row * 128 : row * 128 + 128, column * 128 : column * 128 + 128].all()


def test_the_block_mask_of_a_large_tree_takes_little_memory_and_leaves_out_what_nobody_sees() -> None:
    branches = [record((0, [1] * 100, [2] * 9_000), id=str(n)) for n in range(20)]
    tree = tree_batch(branches)
    assert len(tree) == 180_100
    with pytest.raises(TreeTooLarge, match=r"180,100 tokens takes 32 GB"):
        tree.dense_mask()
    block = tree.block_mask()
    assert block.sparsity() > 97.0
    assert block.full_kv_num_blocks.sum() > 0.8 * (block.full_kv_num_blocks.sum() + block.kv_num_blocks.sum())


@pytest.fixture
def compiles_anew() -> None:
    """A second compilation would be one for any length, of which torch's C++ for a CPU is not valid."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++, which torch.compile needs")
    if torch.__version__ < (2, 9):
        pytest.skip("torch 2.6 cannot compile flex_attention with these masks for a CPU")
    torch.compiler.reset()


@pytest.mark.usefixtures("compiles_anew")
@pytest.mark.parametrize("window", [None, 9])
def test_flex_attention_gives_what_dense_masks_give(window: int | None) -> None:
    from torch.nn.attention import flex_attention

    tree = tree_batch(play(Doubts, 4, history="strip"))
    query, key, value = (torch.randn(1, 2, len(tree), 16) for _ in range(3))
    dense, block = tree.dense_mask(window), tree.block_mask(window)
    if isinstance(dense, dict):
        dense, block = dense["sliding_attention"], block["sliding_attention"]
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=torch.as_tensor(dense))
    compiled = torch.compile(flex_attention.flex_attention)
    with torch.no_grad():
        for attention in (flex_attention.flex_attention, compiled):
            torch.testing.assert_close(attention(query, key, value, block_mask=block), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.usefixtures("compiles_anew")
@pytest.mark.parametrize("model", ["qwen3", "qwen3, sliding"])
def test_a_model_with_flex_attention_gives_what_it_gives_with_dense_masks(model: str) -> None:
    """For gpt-oss transformers has none on a CPU, because of its attention sinks."""
    tree = tree_batch(play(Doubts, 2, history="strip"))
    dense = model_of(model)
    with torch.no_grad():
        expected, before = logprobs_tree(dense, tree), dense.config._attn_implementation
        dense.set_attn_implementation("flex_attention")
        try:
            difference = (logprobs_tree(dense, tree) - expected).abs().max()
        finally:
            dense.set_attn_implementation(before)
    print(f"{model}, flex_attention: log-probability {difference:.1e}")
    assert difference < MAX_LOGPROB_DIFFERENCE


# Runs.


@pytest.mark.parametrize("model", MODELS)
def test_attention_by_runs_gives_what_dense_masks_give(model: str) -> None:
    tree = tree_batch(play(Doubts, 2, history="strip"))
    by_runs = model_of(model)
    inputs = [by_runs.eval() and tree.model_inputs(by_runs, attention=attention) for attention in ("runs", "dense")]
    assert "tree_runs" in inputs[0] and inputs[0]["attention_mask"] is not inputs[1]["attention_mask"]
    with torch.no_grad():
        first, second = (by_runs(**each).logits for each in inputs)
    by_runs.train()
    assert (first - second).abs().max() < MAX_LOGPROB_DIFFERENCE


@pytest.mark.parametrize("model", MODELS)
def test_an_ordinary_sequence_has_the_models_own_attention(model: str) -> None:
    fresh = MODELS[model]().eval()
    tokens = torch.arange(1, 40)[None]
    padded = torch.ones(2, 39).long()
    padded[0, :7] = 0
    with torch.no_grad():
        before = fresh(tokens).logits, fresh(tokens.repeat(2, 1), attention_mask=padded).logits
        own = fresh.config._attn_implementation
        with tree_attention(fresh):
            after = fresh(tokens).logits, fresh(tokens.repeat(2, 1), attention_mask=padded).logits
            assert fresh.config._attn_implementation != own
    assert fresh.config._attn_implementation == own
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])


def varlen(
    query: Any, key: Any, value: Any, queries: Any, keys: Any, _: int, __: int, *, scale: float, **options: Any
) -> Any:
    """What torch's kernel for sequences of variable length computes, which exists on GPUs only."""
    left, outputs = options["window_size"][0], []
    groups = query.shape[1] // key.shape[1]
    for (start, stop), (first, last) in zip(pairwise(queries.tolist()), pairwise(keys.tolist()), strict=True):
        distance = torch.arange(last - first - (stop - start), last - first)[:, None] - torch.arange(last - first)
        sees = (distance >= 0) & ((distance <= left) if left >= 0 else True)
        parts = (query[start:stop], *(each[first:last].repeat_interleave(groups, 1) for each in (key, value)))
        heads = (part.transpose(0, 1) for part in parts)
        outputs.append(torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=sees, scale=scale))
    return torch.cat(outputs, 1).transpose(0, 1)


@pytest.mark.matrix
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("case", ["strip", "parallel", "group, compact", "forks, strip"])
def test_one_call_of_a_kernel_for_a_gpu_gives_what_separate_calls_give(case: str, window: int | None) -> None:
    tree = tree_batch(CASES[case]())
    torch.manual_seed(0)
    given = [torch.randn(1, heads, len(tree), 16, requires_grad=True) for heads in (4, 2, 2)]
    runs = TreeRuns(Runs.of(tree))
    together = attend_in_one_call(varlen, *given, runs, 0.25, window)
    separate = attend(*given, runs, scaling=0.25, sliding_window=window)
    torch.testing.assert_close(together, separate)
    for own, other in zip(
        *(torch.autograd.grad(each.square().sum(), given) for each in (together, separate)), strict=True
    ):
        torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-4)


def test_one_call_of_a_kernel_for_a_gpu_keeps_no_copy_of_a_key_for_each_run_that_sees_it() -> None:
    tree, copies = tree_batch(play(Doubts, history="strip")), []

    def kernel(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        copies.extend(weakref.ref(each) for each in (key, value))
        return query * (key * value).sum()  # which torch keeps for the backward pass

    given = [torch.randn(1, 2, len(tree), 16, requires_grad=True) for _ in range(3)]
    output = attend_in_one_call(kernel, *given, TreeRuns(Runs.of(tree)), 0.25, None)
    assert len(copies) == 2 and not any(copy() is not None for copy in copies)
    output.sum().backward()
    assert all(each.grad.abs().sum() > 0 for each in given)


def test_a_model_that_keeps_arguments_from_its_attention_is_refused() -> None:
    model, tree = tiny_qwen3(), tree_batch(play(Doubts, history="strip"))
    inputs = tree.model_inputs(model)
    with pytest.raises(TreeUnsupported, match='attention="dense"'):
        model(**{name: value for name, value in inputs.items() if name != "tree_runs"})


def test_an_attention_that_the_model_does_not_have_is_refused() -> None:
    model, tree = tiny_qwen3(), tree_batch(play(Doubts, history="strip"))
    with pytest.raises(TreeUnsupported, match="flex_attention"):
        tree.model_inputs(model, attention="flex")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(TreeUnsupported, match="ignores attention masks"):
        tree.model_inputs(model, attention="dense")
    with pytest.raises(UnknownName, match="Did you mean 'runs'"):
        tree.model_inputs(model, attention="run")  # type: ignore[arg-type]
