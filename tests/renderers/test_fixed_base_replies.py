"""Replies and content with `fixed_base`: cut anywhere, begun by the environment, made of control tokens."""

from typing import Any

import numpy as np
import pytest
import real_models
from envsdk_environments._calculator import Calculator
from envsdk_renderers._fixed_base import FixedBase
from families import vocabulary
from template_conversations import (
    TOOLS,
    called,
    fixed_base,
    qwen3,
    result,
    said,
    templates,
    user,
)

from envsdk import Action, Env, Message, ToolCall, get_renderer, rollout
from envsdk.errors import RenderError, TemplateUnsupported
from envsdk.policies import ReplyPolicy
from envsdk.rendering.renderer import EmittedDelta, Renderer


def cuttable() -> list[str]:
    return [name for name in ("gptoss", "qwen3", "phi3", "glm4moe", "llama3_1", "deepseekv3") if name in templates()]


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("name", cuttable())
def test_a_reply_may_be_cut_anywhere_and_begin_with_anything(name: str) -> None:
    renderer = fixed_base(name)
    reply = renderer.reply(said("One, two.", "hm" if renderer.blocks else None))
    prefills: list[Any] = [None, "So", said("Well")]
    for prefill in prefills:
        try:
            started = np.empty(0, dtype=np.int32) if prefill is None else renderer._prefill(prefill)
        except RenderError:
            assert renderer.open_at_start
            continue
        prompt = renderer.render([user()], generation_prompt=True).tokens
        for cut in range(len(reply) + 1):
            tokens = np.concatenate([started, reply[:cut]])
            tokens = tokens[: len(tokens) - renderer.rewritten_end(tokens, [user("b")])]
            rendered = renderer.extension(
                tokens, [user("b")], history=[user(), renderer.parse(tokens)], prefill=prefill
            )
            text = renderer.tokenizer.decode(np.concatenate([prompt, tokens, rendered.tokens]))
            assert text.endswith(renderer.generation_prompt)
            kept, added = renderer.continuation(tokens, "more")
            assert kept <= len(tokens)
            assert renderer.tokenizer.decode(added) == "more"


def test_a_reply_cannot_begin_with_reasoning_where_there_is_none() -> None:
    with pytest.raises(RenderError, match="no think block"):
        fixed_base("phi3")._prefill(said("", "hm"))


def test_a_prefill_with_reasoning_has_its_own_block() -> None:
    renderer = qwen3(thinks=False)
    messages = [user()]
    out = renderer._emission()
    renderer._emit_whole(out, messages, "template", tools=(), generation_prompt=True)
    renderer._emit_generation_prompt(out, 1, said("", "hm"))
    assert out.text().endswith("<|im_start|>assistant\n")
    assert renderer.tokenizer.decode(renderer._prefill(said("", "hm"))) == "<think>\nhm\n</think>\n\n"
    assert renderer.render(messages, generation_prompt=True).tokens.tolist() == (
        get_renderer("qwen3", real_models.qwen3_folder(), enable_thinking=False)
        .render(messages, generation_prompt=True)
        .tokens.tolist()
    )


def test_a_stop_token_that_opens_the_wrong_message_does_not_stay() -> None:
    renderer = fixed_base("glm4moe")
    reply = renderer.reply(called("get_weather"))
    calls = renderer.parse(reply).tool_calls
    answers = [result(calls[0])]
    assert [call.name for call in calls] == ["get_weather"]
    assert renderer.rewritten_end(reply, answers) == 0
    wrong = np.append(reply[:-1], renderer.tokenizer.token_id("<|user|>"))
    assert renderer.rewritten_end(wrong, answers) == 1
    assert renderer.rewritten_end(wrong, [user()]) == 0
    ended = np.append(reply[:-1], renderer.tokenizer.token_id("<|endoftext|>"))
    assert renderer.rewritten_end(ended, answers) == 0
    context: Any = {"history": [user(), called("get_weather")], "tools": TOOLS}
    delta = renderer.extension(reply, answers, **context).tokens
    assert renderer.extension(wrong[:-1], answers, **context).tokens.tolist() == [reply[-1], *delta]
    assert renderer.tokenizer.decode(delta).startswith("\n<tool_response>")


def test_random_tokens_are_read_without_an_error_raised(is_full: bool) -> None:
    rng = np.random.default_rng(0)
    for name in ("qwen3", "llama3_1", "glm4moe", "gptoss"):
        renderer = fixed_base(name)
        controls = np.array(list(renderer.tokenizer.control_tokens.values()))
        for _ in range(500 if is_full else 100):
            tokens = rng.integers(-5, renderer.tokenizer.vocab_size + 50, rng.integers(0, 40))
            is_control = rng.random(len(tokens)) < 0.3
            tokens[is_control] = rng.choice(controls, is_control.sum())
            reply = renderer.parse(tokens.astype(np.int32))
            assert reply.role == "assistant"


# Texts next to calls that a template drops or moves.

START = "{% set ns = namespace(said='') %}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
CALLED = (
    "{% for c in m.tool_calls or [] %}"
    "{{ '<tool_call>' + c.function.name + (c.function.arguments | tojson) + '</tool_call>' }}{% endfor %}"
)
END = "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
HEADER = "{{ '<|im_start|>' + m.role + '\n' }}"
NEXT_TO_CALLS = {
    "dropped": START + HEADER + CALLED + "{{ '' if m.tool_calls else m.content }}" + END,
    "after the calls": START + HEADER + CALLED + "{{ m.content or '' }}" + END,
    "after the results": START
    + HEADER
    + CALLED
    + "{% if m.tool_calls %}{% set ns.said = m.content %}{% else %}{{ m.content }}{% endif %}"
    + "{% if m.role == 'tool' and ns.said and (loop.last or loop.nextitem.role != 'tool') %}"
    + "{{ '<|im_end|>\n<|im_start|>assistant\n' + ns.said }}{% endif %}"
    + END,
}


def explaining(env: Env) -> Any:
    """A policy that samples a text before each call of the reference."""
    reference = ReplyPolicy(env, lambda acting: acting.reference_reply())

    def reply(prompt: Any, **request: Any) -> Action:
        action = reference(prompt, **request)
        of: Renderer = env.renderer
        text = of.tokenizer.encode("I look it up.") if of.parse(action.tokens).tool_calls else []
        return Action([*text, *action.tokens])

    return reply


@pytest.mark.parametrize("name", NEXT_TO_CALLS)
def test_a_text_next_to_a_call_stays_where_it_was_sampled(name: str) -> None:
    renderer = FixedBase(vocabulary("qwen3"), template=NEXT_TO_CALLS[name], stop="<|im_end|>", validate="always")
    env = Calculator(renderer=renderer)
    trajectory = rollout(env, explaining(env), seed=0)
    assert trajectory.reward == 1.0
    [sample] = trajectory.samples()
    text = renderer.tokenizer.decode(sample.tokens)
    assert text.count("I look it up.<tool_call>") == text.count("I look it up.") > 0


@pytest.mark.parametrize("name", NEXT_TO_CALLS)
def test_what_follows_a_text_next_to_a_call_is_what_follows_the_call_alone_and_is_validated(name: str) -> None:
    renderer = FixedBase(vocabulary("qwen3"), template=NEXT_TO_CALLS[name], stop="<|im_end|>")
    calls = (ToolCall(name="search", arguments={"q": "x"}), ToolCall(name="search", arguments={"q": "y"}))
    for count in (1, 2):
        alone = Message(role="assistant", tool_calls=calls[:count])
        reply = alone.model_copy(update={"content": "I look it up."})
        results = [Message(role="tool", content=f"result {index}", name="search") for index in range(count)]
        tokens = renderer.reply(alone)
        deltas = [
            renderer.extension(tokens, results, history=[user(), given], tools=TOOLS).tokens for given in (alone, reply)
        ]
        assert deltas[0].tolist() == deltas[1].tolist()
        whole = [user(), reply, *results]
        renderer.check_episode(whole, [EmittedDelta(1, deltas[1], True)], TOOLS)
        with pytest.raises(TemplateUnsupported):
            renderer.check_episode(whole, [EmittedDelta(1, deltas[1][1:], True)], TOOLS)


def test_a_text_that_the_template_drops_next_to_a_call_is_not_written() -> None:
    renderer = FixedBase(vocabulary("qwen3"), template=NEXT_TO_CALLS["dropped"], stop="<|im_end|>")
    reply = Message(role="assistant", content="I look it up.", tool_calls=(ToolCall(name="search"),))
    with pytest.raises(TemplateUnsupported, match="not rendered next to its calls"):
        renderer.reply(reply)
