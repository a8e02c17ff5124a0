"""The renderer for base models: plain text, stop strings, and rewrites without control tokens to cut at."""

from typing import Any

import numpy as np
import pytest

from envsdk import Action, Env, Limits, Message, Turn, get_renderer, load_tokenizer
from envsdk.errors import RenderError, TokenizerError
from envsdk.testing import check_renderer

RENDERER = get_renderer("role_colon")
CONVERSATION = [
    Message(role="system", content="Be brief."),
    Message(role="user", content="Why?"),
    Message(role="assistant", content="So."),
    Message(role="user", content="And then?"),
]


class Chat(Env):
    """Says one thing after the other, and remembers what it heard."""

    def start(self) -> Turn:
        self.heard: list[Message] = []
        return Turn("Why?", system="Be brief.")

    def respond(self, reply: Message) -> Turn:
        self.heard.append(reply)
        return Turn(f"And {len(self.heard)}?")


def text(tokens: Any) -> str:
    return RENDERER.tokenizer.decode(tokens)


def said(words: str, *, end: bool = True) -> np.ndarray:
    tokens = RENDERER.tokenizer.encode(words)
    return np.append(tokens, RENDERER.stop_token_ids[:1] if end else []).astype(np.int32)


def test_a_conversation_is_plain_text() -> None:
    rendered = RENDERER.render(CONVERSATION, generation_prompt=True)
    end = RENDERER.stop_tokens[0]
    assert text(rendered.tokens) == (
        f"System: Be brief.\n\nUser: Why?\n\nAssistant: So.{end}\n\nUser: And then?\n\nAssistant:"
    )
    assert len(rendered.starts) == len(CONVERSATION) + 1


def test_it_conforms() -> None:
    check_renderer(RENDERER, random_replies=50).raise_if_failed()


def test_a_reply_that_begins_the_next_turn_is_followed_only_by_the_users_text() -> None:
    env = Chat(renderer=RENDERER)
    _, info = env.reset(seed=0)
    assert info["stop"] == ("\n\nUser:",)
    observation, *_, info = env.step(Action(said(" Because.\n\nUser:", end=False)))
    assert (env.heard[0].content, env.heard[0].errors) == ("Because.", ())
    assert text(observation.tokens) == " And 1?\n\nAssistant:"
    assert not info["truncated_reply"]
    assert observation.extends


def test_what_the_model_writes_for_the_user_is_not_part_of_its_reply() -> None:
    env = Chat(renderer=RENDERER)
    env.reset(seed=0)
    observation, *_ = env.step(Action(said(" Because.\n\nUser: Why", end=False)))
    assert (env.heard[0].content, env.heard[0].errors) == ("Because.", ())
    assert text(observation.tokens) == f"{RENDERER.stop_tokens[0]}\n\nUser: And 1?\n\nAssistant:"


def test_a_reply_without_an_end_has_an_error() -> None:
    reply = RENDERER.parse(said(" a", end=False))
    assert reply.errors == ("the turn was not ended: there is no stop token",)
    assert RENDERER.parse(np.append(said(" a"), said("b", end=False))).errors == (
        "there is text after the end of the turn: 'b'",
    )


@pytest.mark.parametrize("history", ["strip", {"name": "compact", "every": 2}, {"name": "budget", "max_tokens": 120}])
def test_every_prompt_has_the_text_of_the_conversation(history: Any) -> None:
    env = Chat(renderer=RENDERER, history=history, limits=Limits(max_steps=12))
    observation, info = env.reset(seed=0)
    prompt, breaks = observation.tokens, 0
    for step in range(12):
        reply = said(f" I think {step} " * 4)
        context = np.append(prompt, reply)
        observation, _, _, truncated, info = env.step(Action(reply))
        if truncated:
            break
        prompt = np.append(context[: observation.keep], observation.tokens)
        breaks += "break" in info
        shown = RENDERER.render(env.episode.root.context.view, generation_prompt=True)
        assert text(prompt) == text(shown.tokens) == text(env.prompt())
    assert breaks == (0 if history != {"name": "budget", "max_tokens": 120} else breaks)
    assert breaks or not isinstance(history, dict) or history["name"] != "budget"


def test_tools_and_reasoning_have_no_place() -> None:
    with pytest.raises(RenderError, match="no place for tools"):
        RENDERER.render(CONVERSATION, tools=[{"type": "function", "function": {"name": "f"}}])
    call = Message.from_openai(
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    )
    with pytest.raises(RenderError, match="cannot express a tool call"):
        RENDERER.reply(call)
    shown = RENDERER.visible([Message(role="assistant", content="a", reasoning="r")])
    assert shown == [Message(role="assistant", content="a")]


def test_the_end_can_be_named() -> None:
    renderer = get_renderer("role_colon", "embedded", stop="<|im_end|>")
    assert renderer.stop_tokens == ("<|im_end|>",)
    assert renderer.specification() == {"name": "role_colon", "stop": "<|im_end|>"}
    with pytest.raises(TokenizerError, match="lacks control tokens"):
        get_renderer("role_colon", load_tokenizer("embedded"), stop="<nope>")


@pytest.mark.parametrize("start", [{"reasoning": "Well"}, {"reasoning": "Well", "content": "So"}])
def test_a_reply_cannot_begin_with_reasoning_which_base_models_do_not_write(start: Any):
    with pytest.raises(RenderError, match="'role_colon' has no think block"):
        RENDERER._prefill(Message(role="assistant", **start))
