"""What a step costs beside encoding what the environment said, and whether that grows with the episode."""

from statistics import median
from time import perf_counter

import pytest

both_histories = pytest.mark.parametrize("history", ["keep", "strip"])


@both_histories
def test_a_step_costs_little_more_than_encoding_its_text(benchmark, report, tokenizer, make_playback, history):
    model = make_playback(history, content=(20, 100) if history == "strip" else (100, 100))
    step, encoding_s, again_s = -1, [], []
    model.env.reset(seed=0)

    def encode_another_answer():
        nonlocal step
        step += 1
        text = model.env.answer(step + 45)
        for seconds in (encoding_s, again_s):
            start = perf_counter()
            tokenizer.encode(text)
            seconds.append(perf_counter() - start)
        return (model.action(step),), {}

    benchmark.pedantic(model.env.step, setup=encode_another_answer, rounds=2000, warmup_rounds=20)
    if benchmark.enabled:
        step_us, encoding_us = 1e6 * benchmark.stats.stats.median, 1e6 * median(encoding_s)
        # The target is set by a text that is as new to the processor's caches as the one in the step.
        note = f"encode {encoding_us:.0f} µs, at once again {1e6 * median(again_s):.0f}"
        note += f": 2x + {step_us - 2 * encoding_us:.0f} µs"
        report(f"step with 200 new words, {history}", step_us, "µs", at_most=2 * encoding_us + 100, note=note)


@both_histories
def test_step_1000_costs_what_step_10_costs(benchmark, report, make_playback, history):
    # Under both histories 400 words of a step stay in the context; step n says what step n + 990 says.
    model = make_playback(history, content=(200, 200) if history == "strip" else (100, 100))
    later = 990 if benchmark.enabled else 90
    ratios, lengths = [], []

    def play_an_episode():
        seconds = []
        model.env.reset(seed=0)
        for step in range(later + 15):
            action = model.action(step)
            start = perf_counter()
            model.env.step(action)
            seconds.append(perf_counter() - start)
        ratios.append(median(seconds[later + 5 :]) / median(seconds[5:15]))
        lengths.append(len(model.env.prompt()))

    benchmark.pedantic(play_an_episode, rounds=30, warmup_rounds=1)
    if benchmark.enabled:
        assert lengths[-1] > 500_000
        note = f"context {lengths[-1]:,} tokens; {min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} episodes"
        report(f"step 1,000 / step 10, {history}", median(ratios), "x", at_most=1.2, note=note)
