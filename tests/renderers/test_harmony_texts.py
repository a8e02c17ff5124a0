"""Harmony against five conversations whose text is written out by hand, on the real o200k vocabulary.

`test_harmony.py` compares random conversations with the library and with the official template. Here a reader sees the
format itself, and neither of them is the measure.
"""

import re
from typing import Any, NamedTuple

import pytest
import real_models
from envsdk_renderers._harmony import Harmony

from envsdk import Message, ToolCall

SYSTEM = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
    "Knowledge cutoff: 2024-06\nCurrent date: 2025-08-05\n\nReasoning: medium\n\n"
    "# Valid channels: analysis, commentary, final. Channel must be included for every message.{}<|end|>"
)
WITHOUT_TOOLS = SYSTEM.format("")
WITH_TOOLS = (
    SYSTEM.format("\nCalls to these tools must go to the commentary channel: 'functions'.")
    + "<|start|>developer<|message|># Tools\n\n## functions\n\nnamespace functions {\n\n"
    "// Look up the weather.\ntype weather = (_: {\n// Which city.\ncity: string,\ndays?: number,\n}) => any;\n\n"
    "} // namespace functions<|end|>"
)
PROPERTIES = {"city": {"type": "string", "description": "Which city."}, "days": {"type": "integer"}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Look up the weather.", "parameters": SCHEMA},
}
CALL = ToolCall(name="weather", arguments={"city": "Oslo"}, id="call-1")
RAIN = Message(role="tool", content="rain", tool_call_id="call-1")


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(content: str = "", reasoning: str | None = None, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)


class Written(NamedTuple):
    """A conversation and its text, written by hand."""

    messages: list[Message]
    text: str
    tokens: int
    """The number of tokens on the o200k vocabulary."""
    tools: tuple[dict[str, Any], ...] = ()
    generation_prompt: bool = False


CONVERSATIONS = {
    "plain": Written(
        [user("What is 2 + 2?")],
        WITHOUT_TOOLS + "<|start|>user<|message|>What is 2 + 2?<|end|><|start|>assistant",
        75,
        generation_prompt=True,
    ),
    "instructions": Written(
        [
            Message(role="system", content="Answer in one word."),
            user("What is the capital of Norway?"),
            assistant("Oslo."),
        ],
        WITHOUT_TOOLS + "<|start|>developer<|message|># Instructions\n\nAnswer in one word.<|end|>"
        "<|start|>user<|message|>What is the capital of Norway?<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Oslo.<|return|>",
        93,
    ),
    "reasoning and answer": Written(
        [user("Is 91 prime?"), assistant("No.", "91 = 7 * 13.")],
        WITHOUT_TOOLS + "<|start|>user<|message|>Is 91 prime?<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>91 = 7 * 13.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>No.<|return|>",
        92,
    ),
    "a call and its result": Written(
        [user("Do I need an umbrella in Oslo?"), assistant("", None, CALL), RAIN, assistant("Yes.")],
        WITH_TOOLS + "<|start|>user<|message|>Do I need an umbrella in Oslo?<|end|>"
        '<|start|>assistant to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{"city": "Oslo"}'
        "<|call|><|start|>functions.weather to=assistant<|channel|>commentary<|message|>rain<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        171,
        (WEATHER,),
    ),
    "several turns, a preamble, and analysis that an answer settled": Written(
        [
            user("Hi."),
            assistant("Hello!", "A greeting."),
            user("Weather in Oslo?"),
            assistant("I look it up.", "I need the tool.", CALL),
            RAIN,
        ],
        WITH_TOOLS + "<|start|>user<|message|>Hi.<|end|><|start|>assistant<|channel|>final<|message|>Hello!<|end|>"
        "<|start|>user<|message|>Weather in Oslo?<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>I need the tool.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look it up.<|end|>"
        '<|start|>assistant to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{"city": "Oslo"}'
        "<|call|><|start|>functions.weather to=assistant<|channel|>commentary<|message|>rain<|end|>"
        "<|start|>assistant",
        198,
        (WEATHER,),
        generation_prompt=True,
    ),
}
EVERY = pytest.mark.parametrize("written", CONVERSATIONS.values(), ids=list(CONVERSATIONS))


@pytest.fixture(scope="module")
def renderer() -> Harmony:
    return Harmony(real_models.gpt_oss_tokenizer())


def encoded(renderer: Harmony, text: str) -> list[int]:
    """The ids of a text in which names of control tokens are control tokens."""
    parts = [part for part in re.split(r"(<\|\w+\|>)", text) if part]
    controls = renderer.tokenizer.control_tokens
    return [
        token
        for part in parts
        for token in ([controls[part]] if part in controls else renderer.tokenizer.encode(part).tolist())
    ]


@EVERY
def test_the_rendered_ids_are_those_of_the_text_written_by_hand(renderer: Harmony, written: Written):
    messages, tools = written.messages, written.tools
    ids = renderer.render(messages, tools=tools, generation_prompt=written.generation_prompt).tokens.tolist()
    assert ids == encoded(renderer, written.text)
    assert renderer.tokenizer.decode(ids) == written.text
    assert len(ids) == written.tokens


@EVERY
def test_the_text_of_each_reply_is_read_back_as_its_message(renderer: Harmony, written: Written):
    shown = renderer.visible(written.messages)
    replies = [message for message in shown if message.role == "assistant"]
    # A reply is everything between what others said, in one or more messages of the format.
    texts = re.findall(
        r"<\|start\|>assistant((?: to=|<\|channel\|>).*?(?:<\|return\|>|<\|call\|>|<\|end\|>(?=<\|start\|>user)))",
        written.text,
        re.DOTALL,
    )
    assert len(texts) == len(replies)
    for text, message in zip(texts, replies, strict=True):
        sampled = text.removesuffix("<|end|>") + "<|return|>" * text.endswith("<|end|>")
        read = renderer.parse(encoded(renderer, sampled))
        assert read == message.model_copy(update={"tool_calls": tuple(map(without_id, message.tool_calls))})


def without_id(call: ToolCall) -> ToolCall:
    """The call as a reply has it: Harmony writes no ids."""
    return call.model_copy(update={"id": None})
