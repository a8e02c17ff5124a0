"""Prime Intellect's `renderers` as an oracle for our `qwen3`, on Qwen3's real tokenizer.

Where the two differ, the official chat template decides who is right. A deviation of the peer has a name and a reason
here, and a rule that says from the messages alone where it shows; everywhere else the tokens must be equal.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import real_models
from conversations import Messages, Tools, as_servers_read, random_conversation
from renderers.base import ParsedToolCall, ToolCallParseStatus
from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer
from transformers import AutoTokenizer

import renderers
from envsdk import Message, Renderer, ToolCall, load_tokenizer
from envsdk.rendering.tokenizers import Tokenizer

CHECKOUT = Path(__file__).resolve().parents[3]
CONVERSATIONS = 300
CUTS_PER_REPLY = 3

RENDERING_DEVIATIONS = {
    "seam": "the newline behind `assistant` and the text of the reply are encoded apart, the template's text as one",
    "block": "with thinking off, a past reply without reasoning keeps the empty think block of its prompt, on purpose: "
    "so its prompt stays a prefix; the template drops the block",
}
BRIDGE_DEVIATIONS = {
    "reasoning": (["</think>"], "a cut think block is closed without the newlines that the template has around it"),
    "tool_call": ([], "a cut tool call is not closed: the turn ends inside it"),
}
"""For the block that a cut left open: what the peer writes before `<|im_end|>`. The template has no cut replies."""
PARSING_DEVIATIONS = {
    "no object": "arguments that are a number, a list or an infinity are a good call to the peer, and an error to us",
}


def with_plain_starts(messages: Messages) -> Messages:
    """The same conversation, in which no reply begins with white space: it has no seam to deviate at."""
    return [m | {"content": (m["content"] or "").lstrip()} if m["role"] == "assistant" else m for m in messages]


RANDOM = Random(1801)
DRAWN = [(as_servers_read(m), tools) for m, tools in (random_conversation(RANDOM) for _ in range(CONVERSATIONS))]
GENERATED = [*DRAWN, *((with_plain_starts(messages), tools) for messages, tools in DRAWN)]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(real_models.qwen3_folder())


@pytest.fixture(scope="session")
def official() -> Any:
    return AutoTokenizer.from_pretrained(real_models.qwen3_folder())


@pytest.fixture(scope="session")
def peer(official: Any, enable_thinking: bool) -> Qwen3Renderer:
    """The peer as it is by default."""
    return Qwen3Renderer(official, Qwen3RendererConfig(enable_thinking=enable_thinking))


@pytest.fixture(scope="session")
def bridging_peer(official: Any, enable_thinking: bool) -> Qwen3Renderer:
    """The peer set to keep all thinking, so that it goes on behind a new user query, too."""
    return Qwen3Renderer(official, Qwen3RendererConfig(enable_thinking=enable_thinking, thinking_retention="all"))


def read(messages: Messages) -> list[Message]:
    return [Message.from_openai(message) for message in messages]


def test_the_peer_is_the_installed_package_and_not_a_folder_of_ours() -> None:
    assert renderers.__version__ == "0.1.12"
    assert Path(renderers.__file__).is_relative_to(CHECKOUT / ".venvs" / "renderers")


# Rendering.


def as_the_peer_shows(renderer: Any, messages: Sequence[Message]) -> list[Message]:
    """What the template shows, and with thinking off an empty block in each reply that has no reasoning."""
    if renderer.enable_thinking:
        return renderer.visible(messages)
    return [
        seen.model_copy(update={"reasoning": ""}) if seen.role == "assistant" and not said.reasoning else seen
        for said, seen in zip(messages, renderer.visible(messages), strict=True)
    ]


def text_behind_header(message: Message) -> str:
    """The text up to the first control token of a reply without a think block."""
    return message.content + "\n" * bool(message.content and message.tool_calls)


def deviations(renderer: Any, encode: Callable[[str], list[int]], messages: Sequence[Message]) -> set[str]:
    """Name the deviations that must show in a conversation."""
    header = "assistant\n"
    shown = as_the_peer_shows(renderer, messages)
    texts = [text_behind_header(m) for m in shown if m.role == "assistant" and m.reasoning is None]
    names = {"seam"} if any(encode(header + text) != encode(header) + encode(text) for text in texts) else set()
    return names | ({"block"} if shown != renderer.visible(messages) else set())


@pytest.mark.parametrize("generation_prompt", [True, False], ids=["prompt", "no_prompt"])
def test_rendering_equals_the_peers_but_where_the_peer_leaves_the_template(
    renderer: Any, peer: Any, official: Any, generation_prompt: bool, compared: Counter[str]
) -> None:
    def encode(text: str) -> list[int]:
        return official.encode(text, add_special_tokens=False)

    for messages, tools in with_and_without_tools():
        theirs = peer.render_ids(messages, tools=tools, add_generation_prompt=generation_prompt)
        options = {"tools": tools or (), "generation_prompt": generation_prompt}
        ours = renderer.render(read(messages), **options).tokens.tolist()
        names = deviations(renderer, encode, read(messages))
        assert names <= RENDERING_DEVIATIONS.keys()
        assert (theirs == ours) == (not names)
        if names:
            assert ours == official.apply_chat_template(
                messages,
                tools=tools,
                add_generation_prompt=generation_prompt,
                enable_thinking=renderer.enable_thinking,
                tokenize=True,
                return_dict=False,
            )
        if "seam" not in names:  # what else differs is a rule about blocks, which can be said in our words
            shown = as_the_peer_shows(renderer, read(messages))
            assert theirs == renderer.render(shown, **options, history="keep").tokens.tolist()
        compared.update(names or {"equal"})
        compared.update(total=1, **{"equal by the peer's own rule": int("seam" not in names)})
    assert compared["equal by the peer's own rule"] >= 0.6 * compared["total"]
    assert compared["equal"] >= (0.6 if renderer.enable_thinking else 0.2) * compared["total"]


def with_and_without_tools() -> Iterator[tuple[Messages, Tools]]:
    for messages, tools in GENERATED:
        yield messages, None
        if tools:
            yield messages, tools


# The bridge to the next turn.


class Step(NamedTuple):
    """A prompt and a whole reply to it, as tokens, and what comes next."""

    prompt: list[int]
    reply: list[int]
    tools: Tools
    following: Messages


def steps(renderer: Renderer) -> Iterator[Step]:
    """Every reply of the conversations that something follows which is not a reply."""
    for messages, tools in DRAWN:
        replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        for index, end in pairwise([*replies, len(messages)]):
            if index and index + 1 < end:
                history = read(messages[: index + 1])
                prompt = renderer.render(history[:-1], tools=tools or (), generation_prompt=True)
                reply = renderer.reply(history[-1])
                yield Step(prompt.tokens.tolist(), reply.tolist(), tools, messages[index + 1 : end])


def bridged(peer: Any, step: Step, action: list[int]) -> list[int] | None:
    rendered = peer.bridge_to_next_turn(step.prompt, action, step.following, tools=step.tools)
    return None if rendered is None else rendered.token_ids


def ours_bridged(renderer: Renderer, step: Step, action: list[int]) -> list[int]:
    return [*step.prompt, *action, *renderer.extend(action, read(step.following)).tolist()]


def test_the_next_prompt_after_a_finished_reply_equals_the_peers(
    renderer: Any, peer: Any, bridging_peer: Any, compared: Counter[str]
) -> None:
    for step in steps(renderer):
        expected = ours_bridged(renderer, step, step.reply)
        assert bridged(bridging_peer, step, step.reply) == expected
        by_default = bridged(peer, step, step.reply)
        has_query = any(renderer.settles(message) for message in read(step.following))
        assert by_default == (None if renderer.enable_thinking and has_query else expected)
        compared["None by default"] += by_default is None
        compared["equal"] += 1
    assert compared["equal"] >= CONVERSATIONS


def test_the_next_prompt_after_a_cut_reply_equals_the_peers_but_for_how_an_open_block_is_closed(
    renderer: Any, bridging_peer: Any, compared: Counter[str]
) -> None:
    rng = Random(1802)
    stop = renderer.stop_token_ids[0]
    for step in steps(renderer):
        for _ in range(CUTS_PER_REPLY):
            action = step.reply[: rng.randrange(len(step.reply))]
            ours, theirs = ours_bridged(renderer, step, action), bridged(bridging_peer, step, action)
            open_block = renderer.parse(action).open_block
            assert (theirs == ours) == (open_block is None)
            if open_block:
                closing, _ = BRIDGE_DEVIATIONS[open_block]
                begun = len(step.prompt) + len(action)
                closed = [renderer.tokenizer.token_id(name) for name in closing]
                assert theirs == [*ours[:begun], *closed, *ours[ours.index(stop, begun) :]]
            compared[f"equal but for an open {open_block}" if open_block else "equal"] += 1
    assert compared["equal"] >= 100
    assert set(compared) == {
        "equal",
        "equal but for an open tool_call",
        *(["equal but for an open reasoning"] if renderer.enable_thinking else []),
    }


# Parsing.


def is_text_or_object(arguments: object) -> bool:
    """Whether arguments are what a call may have: a text, or an object without infinities."""
    try:
        json.dumps(arguments, allow_nan=False)
    except ValueError:
        return False
    return isinstance(arguments, (dict, str))


def outcome(theirs: ParsedToolCall, ours: ToolCall) -> str:
    """Compare how a call was read, and say what it was."""
    if theirs.status != ToolCallParseStatus.OK:
        assert ours.error is not None
        assert str(ours.arguments).strip() == theirs.raw
        return "broken calls"
    if not is_text_or_object(theirs.arguments):
        assert ours.error is not None
        return "no object"
    assert (ours.error, ours.name, ours.arguments) == (None, theirs.name, theirs.arguments)
    return "calls"


def test_a_reply_is_read_as_the_peer_reads_it_but_for_white_space_at_its_ends(
    renderer: Any, peer: Any, compared: Counter[str]
) -> None:
    prompt = renderer.render([Message(role="user", content="q")], generation_prompt=True)
    for message in (message for messages, _ in GENERATED for message in read(messages) if message.role == "assistant"):
        tokens = renderer.reply(message).tolist()
        ours = renderer.parse(tokens, prompt_tail=prompt.tokens[prompt.starts[-1] :])
        theirs = peer.parse_response(tokens, prompt_ids=prompt.tokens.tolist())
        assert theirs.content == ours.content.strip()
        assert (theirs.reasoning_content or "") == (ours.reasoning or "").strip()
        compared.update(map(outcome, theirs.tool_calls, ours.tool_calls))
        assert len(theirs.tool_calls) == len(ours.tool_calls)
        compared["replies"] += 1
    assert compared.keys() - {"replies", "calls", "broken calls"} <= PARSING_DEVIATIONS.keys()
    assert compared["replies"] >= CONVERSATIONS
    assert compared["calls"] >= CONVERSATIONS
    assert compared["broken calls"] >= 50
