"""What it costs to make the training samples of an episode of 200 steps of about 400 tokens."""

import pytest


@pytest.mark.parametrize("history", ["keep", "strip"])
def test_samples_cost_little_more_than_writing_them(benchmark, report, make_playback, history):
    steps = 200 if benchmark.enabled else 3
    trajectory = make_playback(history, reasoning=70, content=(75, 75), answer=145, max_steps=steps).trajectory(steps)
    samples = benchmark.pedantic(trajectory.samples, rounds=20, warmup_rounds=1)
    if benchmark.enabled:
        tokens, written = len(trajectory.contexts["main"].tokens), sum(map(len, samples))
        milliseconds = 1e3 * benchmark.stats.stats.median
        what = f"samples() of 200 steps, {history}"
        if history == "keep":
            report(what, milliseconds, "ms", at_most=10, note=f"{tokens / 200:.0f} tokens a step")
        else:
            note = f"{milliseconds:.0f} ms for {written:,} tokens in {len(samples)} samples"
            report(what, 1e6 * milliseconds / written, "ns a token written", at_most=10, note=note)
