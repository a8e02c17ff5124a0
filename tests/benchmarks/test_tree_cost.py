"""How many tokens a trainer computes over where thinking is stripped at each step, and what a tree of them costs.

With q tokens of question, r of reasoning and a of answer a step, an episode of T steps has T (q + r + a) tokens where
all is kept. Stripped, its separate samples have 1 + (q + a) / (q + r + a) (T - 1) / 2 times as many, and its tree
1 + a / (q + r + a) (T - 1) / T times: each answer stands there as it was sampled and as it is read later.
"""

import pytest

from envsdk.tree import tree_batch

SHAPES = {"much reasoning": (50, 300, 50), "even": (100, 100, 100), "long questions": (300, 60, 60)}


@pytest.fixture
def episode(make_playback, tokenizer):
    """Play an episode: q, r and a in words."""

    def play(history, steps, shape):
        question, reasoning, answer = shape
        model = make_playback("strip", reasoning=reasoning, content=(answer, answer), answer=question)
        talk = model.env
        env = type(talk)(renderer="qwen3", tokenizer=tokenizer, history=history, limits={"max_steps": steps})
        env.prose, env.answer_words, env.tools = talk.prose, question, None
        model.env = env
        return model.trajectory(steps)

    return play


@pytest.mark.parametrize("shape", SHAPES)
def test_a_tree_of_stripped_samples_is_about_as_large_as_what_was_kept(benchmark, report, episode, shape):
    q, r, a = SHAPES[shape]
    lengths = [8, 16, 32, 64, 128] if benchmark.enabled else [4]
    for steps in lengths:
        kept = len(tree_batch(episode("keep", steps, SHAPES[shape])))
        tree = tree_batch(episode("strip", steps, SHAPES[shape]))
        of_samples = 1 + (q + a) / (q + r + a) * (steps - 1) / 2
        of_tree = 1 + a / (q + r + a) * (steps - 1) / steps
        assert len(tree) / kept < 1.1 * of_tree
        if benchmark.enabled:
            what = f"{steps} steps, {shape}"
            separate, as_tree = tree.tokens_separate / kept, len(tree) / kept
            report(f"samples / kept, {what}", separate, "x", note=f"formula {of_samples:.3g}")
            report(f"tree / kept, {what}", as_tree, "x", at_most=1.05 * of_tree, note=f"formula {of_tree:.3g}")
    benchmark.pedantic(tree_batch, args=(episode("strip", lengths[0], SHAPES[shape]),))


@pytest.mark.parametrize("source", ["trajectory", "samples"])
def test_making_a_tree_costs_little_for_each_token_that_is_put_in(benchmark, report, episode, source):
    steps = 128 if benchmark.enabled else 4
    trajectory = episode("strip", steps, SHAPES["even"])
    given = trajectory if source == "trajectory" else trajectory.samples()
    tree = benchmark.pedantic(tree_batch, args=(given,), rounds=10, warmup_rounds=1)
    if benchmark.enabled:
        milliseconds = 1e3 * benchmark.stats.stats.median
        put_in = len(tree) if source == "trajectory" else tree.tokens_separate
        note = f"{milliseconds:.1f} ms, {put_in:,} tokens put in, {len(tree):,} in the tree"
        report(f"tree_batch of a {source}, {steps} steps", 1e6 * milliseconds / put_in, "ns a token", note=note)


def test_splitting_a_tree_costs_little_for_each_token(benchmark, report, episode):
    steps = 128 if benchmark.enabled else 4
    tree = tree_batch(episode("strip", steps, SHAPES["even"]))
    size = int(tree.position_ids.max()) + len(tree) // 20
    batches = benchmark.pedantic(tree.split, args=(size,), rounds=10, warmup_rounds=1)
    if benchmark.enabled:
        milliseconds, total = 1e3 * benchmark.stats.stats.median, sum(map(len, batches))
        note = f"{milliseconds:.1f} ms; {len(tree):,} tokens in {len(batches)} batches of {total:,}"
        report(f"tree.split, {steps} steps", 1e6 * milliseconds / len(tree), "ns a token", note=note)
