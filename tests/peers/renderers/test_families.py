"""Prime Intellect's `renderers` as an oracle for every family that both projects support.

For each family, 500 random conversations (a few in a short run) are rendered, read and continued by the peer, by us,
and, where it can, by the official template as transformers renders it. Where the peer differs, the template agrees with
us, and a deviation has a name, with a rule that looks only at the messages.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations, pairwise
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from envsdk_renderers._fixed_base import FixedBase
from peer_conversations import TOOLS, Messages, as_the_template_takes_them, conversation
from peer_families import FAMILIES, official, ours, theirs
from renderers.base import ToolCallParseStatus

from envsdk import Message, ToolCall
from envsdk.errors import RenderError

FULL, SHORT = 500, 10


class Given(NamedTuple):
    """A conversation, and the same one in the form that the template and the peer take."""

    messages: list[Message]
    given: Messages
    tools: list[dict[str, Any]] | None


def conversations(name: str, count: int) -> Iterator[Given]:
    family, rng = FAMILIES[name], Random(name)
    for index in range(count):
        calls = family.calls if index % 2 else 0
        messages = conversation(rng, calls=calls, reasoning=index % 4 > 1, system=index % 8 > 3)
        taken = as_the_template_takes_them(messages, text_arguments=family.has_text_arguments)
        yield Given([Message.from_openai(message) for message in messages], taken, TOOLS if calls else None)


@pytest.fixture
def count(is_full: bool) -> int:
    return FULL if is_full else SHORT


# Rendering.


Rule = Callable[[Messages, Any], bool]


def _replies(messages: Messages) -> list[dict[str, Any]]:
    return [message for message in messages if message["role"] == "assistant"]


RULES: Mapping[str, Rule] = {
    "tools": lambda messages, tools: bool(tools),
    "tools without a system message": lambda messages, tools: bool(tools) and messages[0]["role"] != "system",
    "two calls": lambda messages, tools: any(len(reply.get("tool_calls", ())) > 1 for reply in _replies(messages)),
    "a call": lambda messages, tools: any(reply.get("tool_calls") for reply in _replies(messages)),
    "a result": lambda messages, tools: any(message["role"] == "tool" for message in messages),
    "a query after a result": lambda messages, tools: any(
        before["role"] == "tool" and after["role"] == "user" for before, after in pairwise(messages)
    ),
    "two results": lambda messages, tools: [message["role"] for message in messages].count("tool") > 1,
    "no system message": lambda messages, tools: messages[0]["role"] != "system",
    "reasoning of the last reply": lambda messages, tools: bool(messages[-1].get("reasoning_content")),
    "padded reasoning": lambda messages, tools: any(
        text != text.strip() for text in (reply.get("reasoning_content") or "" for reply in _replies(messages))
    ),
}
RENDERING: Mapping[str, Mapping[str, str]] = {
    "glm-4.5": {"two calls": "the peer writes no line end between two calls"},
    "glm-5.1": {"padded reasoning": "the peer strips reasoning"},
    "gpt-oss": {
        "a call": "the peer writes calls without `<|constrain|>json`, and a text before them as the answer",
        "reasoning of the last reply": "the peer drops it; the template shows it where no prompt follows",
    },
    "kimi-k2": {
        "tools": "the peer writes the keys of tools sorted and without spaces",
        "a result": "the peer names the function in the header of a result, the template writes `tool`",
        "no system message": "the peer writes the system message of an older template",
    },
    "kimi-k2.5": {"tools": "the peer declares tools in TypeScript, which the template takes as `tools_ts_str`"},
    "deepseek-v3": {
        "two calls": "the peer writes no line end between two calls",
        "a query after a result": "the peer closes the results, the template does not",
    },
    "deepseek-v4": {"tools without a system message": "the peer writes an empty system text before the tools"},
}
"""Where the peer's text differs from the template's, which ours equals."""


@pytest.mark.parametrize("name", FAMILIES)
def test_rendering_equals_the_peers_or_the_template_agrees_with_us(
    name: str, count: int, compared: Counter[str]
) -> None:
    tokenizer, known = official(name), RENDERING.get(name, {})
    for messages, given, tools in conversations(name, count):
        asks = given[-1]["role"] != "assistant"
        expected = rendered_officially(name, given, tools, asks)
        found = ours(name).render(messages, tools=tools or (), generation_prompt=asks).tokens.tolist()
        peers = unopened(name, theirs(name).render_ids(given, tools=tools, add_generation_prompt=asks))
        if expected is not None:
            assert found == expected
        if peers == found:
            compared["equal"] += 1
        elif tokenizer.decode(peers) == tokenizer.decode(found):
            compared["the same text, cut into tokens at a seam"] += 1
        else:
            names = [rule for rule in known if RULES[rule](given, tools)]
            assert names, (tokenizer.decode(peers), tokenizer.decode(found))
            compared[names[0]] += 1
    assert compared["equal"] >= count / 5


def unopened(name: str, tokens: Sequence[int]) -> list[int]:
    """Return the peer's tokens without the channel `analysis` that its prompts open for gpt-oss, and no other's do."""
    opened = official(name).encode("<|channel|>analysis<|message|>") if name == "gpt-oss" else []
    return list(tokens[: -len(opened)] if opened and list(tokens[-len(opened) :]) == opened else tokens)


def rendered_officially(name: str, given: Messages, tools: Any, generation_prompt: bool) -> list[int] | None:
    """Return what the template writes; None for gpt-oss, where both projects follow OpenAI's own library."""
    if FAMILIES[name].ours == "harmony":
        return None
    options = {"tools": tools, "add_generation_prompt": generation_prompt}
    return official(name).apply_chat_template(given, tokenize=True, return_dict=False, **options)


# Reading.


class Read(NamedTuple):
    """What was read of a reply, without white space at its ends."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]


def without_error(calls: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    return tuple((call.name, json.dumps(call.arguments, sort_keys=True)) for call in calls)


def with_values(read: Read, change: Callable[[Any], Any]) -> Read:
    calls = ((name, json.loads(arguments)) for name, arguments in read.calls)
    return read._replace(
        calls=tuple(
            (name, json.dumps({key: change(value) for key, value in arguments.items()}, sort_keys=True))
            for name, arguments in calls
        )
    )


Change = Callable[[Read], Read]
READING: Mapping[str, Change] = {
    "strings without white space": lambda read: with_values(
        read, lambda value: value.strip() if isinstance(value, str) else value
    ),
    "Python's booleans": lambda read: with_values(read, lambda value: str(value) if isinstance(value, bool) else value),
    "text without a block": lambda read: Read("", (read.reasoning + "\n" + read.content).strip(), read.calls),
    "thought": lambda read: read._replace(reasoning=f"thought\n\n{read.reasoning}"),
}
"""How the peer reads what a reply says otherwise: it strips strings that the template writes verbatim; it reads `True`,
which the template writes, as an invalid text; it reads a reply without a think block as reasoning (GLM 4.5), and
Gemma's word `thought` as reasoning if two line ends follow it."""


@pytest.mark.parametrize("name", FAMILIES)
def test_a_reply_is_read_as_the_peer_reads_it_or_as_it_was_written(
    name: str, count: int, compared: Counter[str]
) -> None:
    for prompt, reply, message, tools in replies(name, count):
        found = ours(name).parse(reply, prompt_tail=prompt.tokens[prompt.starts[-1] :], tools=tools or ())
        given = begun(name, reply.tolist())
        peers = theirs(name).parse_response(given, prompt_ids=prompt.tokens.tolist(), tools=tools)
        read = Read(found.content.strip(), (found.reasoning or "").strip(), without_error(found.tool_calls))
        theirs_read = Read(
            peers.content.strip(), (peers.reasoning_content or "").strip(), without_error(peers.tool_calls)
        )
        assert not found.errors
        assert read.calls == without_error(message.tool_calls)
        deviation = next((names for names in subsets(READING) if changed(read, names) == theirs_read), None)
        assert deviation is not None, (found, peers)
        compared[", ".join(deviation) or "equal"] += 1
    assert compared["equal"] >= count / 4


def changed(read: Read, names: Sequence[str]) -> Read:
    for name in names:
        read = READING[name](read)
    return read


def subsets(names: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(names, size) for size in range(3))


def replies(name: str, count: int) -> Iterator[tuple[Any, Any, Message, Any]]:
    """Yield each reply that the family writes, with its prompt."""
    renderer = ours(name)
    for messages, _, tools in conversations(name, count):
        for index, message in enumerate(messages):
            if message.role == "assistant":
                prompt = renderer.render(messages[:index], tools=tools or (), generation_prompt=True)
                if message.tool_calls and not reads_calls(name):
                    continue
                try:
                    yield prompt, renderer.reply(message), message, tools
                except RenderError:
                    continue  # text next to calls, or two calls, where the family has none


def reads_calls(name: str) -> bool:
    renderer = ours(name)
    return not isinstance(renderer, FixedBase) or renderer.reading.status.startswith("reads")


def begun(name: str, reply: list[int]) -> list[int]:
    """The reply as the peer takes it: with the header of its message, which gpt-oss's prompt ends with."""
    header = official(name).encode("<|start|>assistant") if name == "gpt-oss" else []
    return [*header, *reply]


CUT = {
    "gemma-4": "the word `thought` of an open block, which is a part of its opener, is reasoning to the peer",
    "glm-4.5": "a reply without a think block is reasoning to the peer",
    "llama-3": "a call that is not closed is text to the peer",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_cut_reply_is_read_as_the_peer_reads_it(name: str, count: int, compared: Counter[str]) -> None:
    rng = Random(name)
    for prompt, reply, message, tools in replies(name, count):
        cut = reply[: rng.randrange(len(reply))]
        found = ours(name).parse(cut, prompt_tail=prompt.tokens[prompt.starts[-1] :], tools=tools or ())
        peers = theirs(name).parse_response(begun(name, cut.tolist()), prompt_ids=prompt.tokens.tolist(), tools=tools)
        good = without_error([call for call in found.tool_calls if call.error is None])
        assert found.errors
        assert good == without_error(message.tool_calls)[: len(good)]
        texts = found.content.strip(), (found.reasoning or "").strip()
        if texts != (peers.content.strip(), (peers.reasoning_content or "").strip()):
            assert name in CUT, (found, peers)
            compared[CUT[name]] += 1
        elif len(good) == sum(call.status == ToolCallParseStatus.OK for call in peers.tool_calls):
            compared["equal"] += 1
        else:
            compared["a call that ends before its section or has Python's booleans"] += 1
    assert compared["equal"] >= count / 4


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_is_drafted_in_reasoning_is_not_a_call_to_anyone(name: str, compared: Counter[str]) -> None:
    renderer, prompt = ours(name), ours(name).render([QUERY], tools=TOOLS, generation_prompt=True)
    try:
        drafts = [renderer.reply(said(f"one {word}", "text")).tolist() for word in ("two", "three")]
        call = renderer.reply(said("one", "", CALL)).tolist()
    except RenderError:
        return
    at = shared(*drafts)
    start = shared(call, renderer.reply(said("one", "text")).tolist())
    reply = [*drafts[0][:at], *call[start:-1], *drafts[0][at:]]
    found = renderer.parse(np.array(reply, np.int32), prompt_tail=prompt.tokens[prompt.starts[-1] :], tools=TOOLS)
    peers = theirs(name).parse_response(begun(name, reply), prompt_ids=prompt.tokens.tolist(), tools=TOOLS)
    assert not found.tool_calls
    compared[f"we read {len(found.tool_calls)} calls, the peer {len(peers.tool_calls)}"] += 1


QUERY = Message(role="user", content="u")
CALL = ToolCall(name="search", arguments={"city": "x"}, id="functions.search:0")


def said(reasoning: str, content: str, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common start."""
    return next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), len(first))


# The prompt after a reply.


BRIDGE: Mapping[str, Mapping[str, str]] = {
    "kimi-k2": RENDERING["kimi-k2"],
    "deepseek-v3": {
        **RENDERING["deepseek-v3"],
        "two results": "the peer writes no line end between two results",
    },
    "laguna-xs.2": {"any": "the peer writes no line end after `</assistant>`"},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_next_prompt_equals_the_peers(name: str, count: int, compared: Counter[str]) -> None:
    tokenizer, known = official(name), {**RULES, "any": lambda messages, tools: True}
    for prompt, reply, history, following, given, tools in steps(name, count):
        try:
            delta = ours(name).extension(reply, following, history=history, tools=tools or ()).tokens
        except RenderError:
            compared["refused by us"] += 1
            continue
        found = [*prompt, *reply.tolist(), *delta.tolist()]
        bridged = theirs(name, thinking_retention="all").bridge_to_next_turn(prompt, reply.tolist(), given, tools=tools)
        if bridged is None:
            compared["None"] += 1
        elif (peers := unopened(name, bridged.token_ids)) == found:
            compared["equal"] += 1
        elif tokenizer.decode(peers) == tokenizer.decode(found):
            compared["the same text, cut into tokens at a seam"] += 1
        else:
            names = [rule for rule in BRIDGE.get(name, {}) if known[rule](given, tools)]
            assert names, (tokenizer.decode(peers), tokenizer.decode(found))
            compared[names[0]] += 1
    assert compared["equal"] >= count / 4 or "any" in BRIDGE.get(name, {})


def steps(name: str, count: int) -> Iterator[tuple[Any, ...]]:
    """Yield each prompt and reply after which messages follow that are no replies."""
    renderer = ours(name)
    for messages, given, tools in conversations(name, count):
        indices = [index for index, message in enumerate(messages) if message.role == "assistant"]
        for index, end in pairwise([*indices, len(messages)]):
            if end > index + 1:
                prompt = renderer.render(messages[:index], tools=tools or (), generation_prompt=True).tokens.tolist()
                try:
                    reply = renderer.reply(messages[index])
                except RenderError:
                    continue
                history = messages[: index + 1]
                yield prompt, reply, history, messages[index + 1 : end], given[index + 1 : end], tools
