"""What an episode costs: in time, beside the chat template of transformers; in memory, beside its text."""

import gc
import json
import tracemalloc
from time import perf_counter

import pytest
import real_models

from envsdk.messages import Message

both_histories = pytest.mark.parametrize("history", ["keep", "strip"])


@both_histories
def test_an_episode_is_much_faster_than_the_chat_template_at_each_turn(benchmark, report, make_playback, history):
    model = make_playback(history)
    steps = 200 if benchmark.enabled else 3
    benchmark.pedantic(model.play, args=(steps,), rounds=10, warmup_rounds=1)
    if not benchmark.enabled:
        return
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(real_models.qwen3_folder(), model_max_length=2**31)
    messages = [message.to_openai() for message in model.env.messages()]
    replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    start = perf_counter()
    for end in (*replies, len(messages)):
        prompt = tokenizer.apply_chat_template(messages[:end], tools=model.env.tools, add_generation_prompt=True)
    template_s = perf_counter() - start
    assert prompt["input_ids"] == model.env.prompt().tolist()
    episode_s = benchmark.stats.stats.median
    note = f"{1000 * episode_s:.0f} ms against {template_s:.1f} s, run in full"
    what = f"200 turns of 200 + 200 words against the chat template, {history}"
    report(what, template_s / episode_s, "x as fast", at_least=100, note=note)


@both_histories
def test_a_trajectory_holds_little_beside_its_text(benchmark, report, make_playback, history):
    steps = 200 if benchmark.enabled else 3
    model = make_playback(history, max_steps=steps)
    model.play(steps)  # what is remembered for good is remembered now

    def measure():
        gc.collect()
        tracemalloc.start()
        trajectory = model.trajectory(steps)
        peak = tracemalloc.get_traced_memory()[1]
        model.env.reset()
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        log = trajectory.contexts["main"]
        text = sum(map(text_bytes, log.messages))
        return (held - text) / len(log.tokens), (peak - text) / len(log.tokens)

    held, peak = benchmark.pedantic(measure)
    if benchmark.enabled:
        note = f"{peak:.1f} at the most while it ran"
        report(f"trajectory beside its text, {history}", held, "bytes a token", at_most=24, note=note)


def text_bytes(message: Message) -> int:
    """How long the text of a message is."""
    calls = [json.dumps(call.arguments) for call in message.tool_calls]
    return sum(len(text.encode()) for text in (message.content, message.reasoning or "", *calls))
