"""Reading a reply while it is sampled: the events agree with the parsed message, come early, and stay true."""

from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
import real_models
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._grammars._patterns import CodedReply
from envsdk_renderers._grammars._probes import TOOLS as PROBE_TOOLS
from envsdk_renderers._grammars._reading import GrammarReader
from hypothesis import given
from hypothesis import strategies as st
from long_replies import MAKERS, PIECES, TOOL, as_tokens
from made_grammars import ENDED, GRAMMARS, TOOLS
from made_grammars import PIECES as CODED_PIECES
from template_conversations import every_template, fixed_base, random_reply, user

from envsdk import Message, Renderer, ToolCall
from envsdk.errors import RenderError
from envsdk.rendering.reading import (
    CallArguments,
    CallBegun,
    CallEnded,
    ContentText,
    ReadingError,
    ReasoningText,
    ReplyEvent,
    ReplyRead,
)


def joined(events: Sequence[ReplyEvent], kind: type[ReasoningText | ContentText]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def check_events(events: Sequence[ReplyEvent], message: Message) -> None:
    """Check that what the events report is the message."""
    assert joined(events, ReasoningText) == (message.reasoning or "")
    assert joined(events, ContentText) == message.content
    begun = [event for event in events if isinstance(event, CallBegun)]
    ended = [event for event in events if isinstance(event, CallEnded)]
    assert tuple(event.call for event in ended) == message.tool_calls
    assert [(event.name, event.id) for event in begun] == [(call.name, call.id) for call in message.tool_calls]
    assert [event.index for event in begun] == [event.index for event in ended] == [*range(len(message.tool_calls))]
    for index, call in enumerate(message.tool_calls):
        text = "".join(event.text for event in events if isinstance(event, CallArguments) and event.index == index)
        assert ToolCall.from_openai({"name": "f", "arguments": text}).arguments == call.arguments or (
            text == call.arguments
        )
    assert tuple(event.error for event in events if isinstance(event, ReadingError)) == message.errors


def streamed(renderer: Renderer, tokens: Any, rng: Random, **options: Any) -> list[ReplyEvent]:
    reader, position = renderer.reader(**options), 0
    events: list[ReplyEvent] = []
    while position < len(tokens):
        size = rng.choice((1, 1, 1, 2, 3, 20))
        events += reader.feed(tokens[position : position + size])
        position += size
    return [*events, *reader.end()]


def check_reader(renderer: Renderer, tokens: Any, rng: Random, **options: Any) -> None:
    *events, last = streamed(renderer, tokens, rng, **options)
    message = renderer.parse(tokens, **options)
    assert last == ReplyRead(message)
    check_events(events, message)


@cache
def renderer(name: str) -> Renderer:
    return MAKERS[name]()


def prompt_tail(of: Renderer) -> Any:
    prompt = of.render([user()], generation_prompt=True)
    return prompt.tokens[prompt.starts[-1] :]


def with_noise(of: Renderer, tokens: Any, rng: Random) -> Any:
    """A reply with something in it that does not belong there, or cut."""
    position = rng.randint(0, len(tokens))
    pieces = [piece for group in PIECES.values() for piece in group]
    noise = as_tokens(of, rng.choice(pieces)) if rng.random() < 0.7 else [rng.randrange(of.tokenizer.vocab_size)]
    rest = tokens[position:] if rng.random() < 0.7 else tokens[:0]
    return np.concatenate([tokens[:position], np.asarray(noise, dtype=np.int32), rest])


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("name", MAKERS)
def test_the_events_of_any_reply_agree_with_the_parsed_message(name: str, is_full: bool) -> None:
    of, rng = renderer(name), Random(name)
    pieces = [piece for group in PIECES.values() for piece in group]
    for _ in range(400 if is_full else 5):
        tokens = as_tokens(of, "".join(rng.choice(pieces) for _ in range(rng.randint(0, 25))))
        check_reader(of, tokens, rng, tools=[TOOL])
        check_reader(of, rng.choices(range(of.tokenizer.vocab_size), k=20), rng)  # most of these are no UTF-8


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("name", every_template())
def test_the_events_agree_for_every_template(name: str, is_full: bool) -> None:
    of, rng = fixed_base(name), Random(name)
    tails = prompt_tail(of), ()
    for _ in range(80 if is_full else 2):
        try:
            tokens = of.reply(random_reply(rng))
        except RenderError:  # the template does not write it
            tokens = as_tokens(of, "A text.")
        for sampled in (tokens, with_noise(of, tokens, rng), with_noise(of, with_noise(of, tokens, rng), rng)):
            check_reader(of, sampled, rng, tools=PROBE_TOOLS, prompt_tail=rng.choice(tails))


def parts(rng: Random, coded: str) -> Iterator[str]:
    position = 0
    while position < len(coded):
        size = rng.choice((1, 1, 2, 5, 9))
        yield coded[position : position + size]
        position += size


@given(st.lists(CODED_PIECES, max_size=25).map("".join), st.sampled_from(sorted(GRAMMARS)), st.randoms())
def test_any_cut_of_any_reply_reads_as_the_whole(text: str, name: str, rng: Random) -> None:
    reader = GrammarReader(GRAMMARS[name])
    code = reader.patterns.code
    coded = code.constant(text)
    whole = reader.read(code.cut(coded), ENDED, TOOLS)
    reading = reader.begin(TOOLS)
    events: list[ReplyEvent] = []
    for part in parts(rng, coded):
        reading.feed(code.cut(part))
        events += reading.events()
    reading.end()
    assert reading.message(ENDED) == whole
    check_events([*events, *reading.events()], whole)


# When events come.

OPENER, CLOSER = "<|object_ref_start|>", "<|object_ref_end|>"
CALL = f'{OPENER}\n{{"name": "get_weather", "arguments": {{"city": "Oslo"}}}}\n{CLOSER}'


@cache
def measured() -> FixedBase:
    """The renderer of Qwen3's template with other marks around calls, so that no registered format reads it."""
    text = (real_models.qwen3_folder() / "chat_template.jinja").read_text()
    text = text.replace("<tool_call>", OPENER).replace("</tool_call>", CLOSER)
    return FixedBase(real_models.qwen3_folder(), template=text)


def at_each_token(text: str, opening: str = "") -> list[tuple[str, list[ReplyEvent]]]:
    """The tokens of a reply, each with the events that it reports; the last item is the end."""
    of = measured()
    reader = of.reader(prompt_tail=as_tokens(of, of.opening + opening))
    tokens = as_tokens(of, text)
    fed = [(of.tokenizer.decode([token]), reader.feed(int(token))) for token in tokens]
    return [*fed, ("", reader.end())]


def when(fed: Sequence[tuple[str, list[ReplyEvent]]], kind: type[ReplyEvent]) -> list[str]:
    """The tokens that reported an event of a kind."""
    return [token for token, events in fed if any(isinstance(event, kind) for event in events)]


def test_each_token_of_reasoning_and_content_is_reported_at_once() -> None:
    fed = at_each_token("<think>\nOne two.\n</think>\n\nThree four.<|im_end|>")
    assert [(token, event.text) for token, events in fed for event in events if isinstance(event, ReasoningText)] == [
        ("One", "One"),
        (" two", " two"),
        (".\n", "."),  # the newline may belong to the end of the block
    ]
    assert when(fed, ContentText) == ["Three", " four", "."]


def test_content_is_reported_at_once_where_the_prompt_closes_the_think_block() -> None:
    assert when(at_each_token("One two", "<think>\n\n</think>\n\n"), ContentText) == ["One", " two"]


def test_text_that_a_late_closer_may_make_reasoning_waits() -> None:
    fed = at_each_token("One two</think>\n\nThree<|im_end|>")
    assert when(fed, ReasoningText) == ["\n\n"]  # after them nothing else closes it
    assert joined([event for _, events in fed for event in events], ReasoningText) == "One two"
    assert when(at_each_token(f"One two{CALL}"), ContentText) == [CLOSER]


@pytest.mark.parametrize("city", ["Oslo", "Oslo {} " * 500], ids=["short", "long"])
def test_a_call_ends_with_its_last_token_though_another_may_follow(city: str) -> None:
    call = CALL.replace("Oslo", city)
    fed = at_each_token(f"{call}\n{call}<|im_end|>", "<think>\n\n</think>\n\n")
    assert when(fed, CallEnded) == [CLOSER, CLOSER]


def test_a_character_that_is_cut_waits_for_its_last_token() -> None:
    of = measured()
    reader = of.reader(prompt_tail=as_tokens(of, of.opening + "<think>\n"))
    tokens = as_tokens(of, "𓀀").tolist()
    assert len(tokens) > 1
    *before, last = [reader.feed(token) for token in tokens]
    assert not any(before)
    assert last == [ReasoningText("𓀀")]


def test_what_the_prompt_has_of_the_reply_is_reported_too() -> None:
    of = measured()
    reader = of.reader(prompt_tail=as_tokens(of, of.opening + "<think>\nSo"))
    assert joined(reader.feed(as_tokens(of, " be it.")), ReasoningText) == "So be it."


def test_a_reader_reads_one_reply() -> None:
    for of in (measured(), renderer("harmony")):
        reader = of.reader()
        reader.end()
        with pytest.raises(RuntimeError, match="make a new reader"):
            reader.feed(1)
        with pytest.raises(RuntimeError, match="make a new reader"):
            reader.end()


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("name", sorted(GRAMMARS))
def test_what_waits_is_not_searched_again_with_each_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = 0
    take = CodedReply.grow

    def grow(source: CodedReply, text: str, **options: Any) -> None:
        nonlocal searched
        take(source, text, **options)
        searched += len(source.text)

    monkeypatch.setattr(CodedReply, "grow", grow)
    reader = GrammarReader(GRAMMARS[name])
    code = reader.patterns.code
    for opening in ("", '<tool_call>\n{"', "[CALL]", "<call>\n<f=f>\n<p=", "f(a='"):
        for unit in ("x", " ", "</p>", "}"):
            reading, text = reader.begin(TOOLS), code.constant(opening + unit * (2_000 // len(unit)))
            searched = 0
            for position in range(0, len(text), 2):
                reading.feed(code.cut(text[position : position + 2]))
            assert searched <= 64 * len(text) + 300_000, (opening, unit)
