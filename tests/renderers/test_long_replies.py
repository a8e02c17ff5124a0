"""Long replies are read in linear time; what can be checked of that without a clock. The rest is a benchmark."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from envsdk_renderers._families import ALIASES
from long_replies import ENDS, MAKERS, PIECES, STARTS, TOOL, long_reply, units

from envsdk import Message, Renderer, list_renderers
from envsdk.messages import check_calls

LONG = 60_000


@cache
def renderer(name: str) -> Renderer:
    return MAKERS[name]()


def size_of(message: Message) -> int:
    texts = [message.content, message.reasoning or "", *message.errors]
    for call in message.tool_calls:
        texts += [call.name, str(call.arguments), call.error or "", call.raw or ""]
    return sum(map(len, texts))


def test_every_renderer_is_held_to_it() -> None:
    # `auto` chooses one of the others, and aliases are `fixed_base`.
    assert set(list_renderers()) - {renderer(name).name for name in MAKERS} - ALIASES.keys() == {"auto"}


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("name", MAKERS)
def test_what_is_read_of_a_reply_is_no_larger_than_a_multiple_of_it(name: str, is_full: bool) -> None:
    reader, rng = renderer(name), np.random.default_rng(0)
    every, count = list(units()), 12 if is_full else 4
    for start in STARTS:
        for unit, end in zip(rng.choice(every, count).tolist(), rng.choice(ENDS, count).tolist(), strict=True):
            small, large = (
                size_of(check_calls(reader.parse(long_reply(reader, start, unit, size, end), tools=[TOOL]), [TOOL]))
                for size in (1000, 4000)
            )
            assert large <= 4.5 * small + 1000, (start, unit, end, small, large)


class CountingEncoding:
    """Reads headers as the library does, and records how long each was."""

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding
        self.lengths: list[int] = []

    def parse_messages_from_completion_tokens(self, tokens: Sequence[int], *args: Any, **options: Any) -> Any:
        self.lengths.append(len(tokens))
        return self._encoding.parse_messages_from_completion_tokens(tokens, *args, **options)


@pytest.mark.matrix
@pytest.mark.parametrize("unit", PIECES["harmony"])
@pytest.mark.parametrize("start", ["", "<|channel|>final"])
def test_harmonys_library_reads_few_and_short_headers(monkeypatch: pytest.MonkeyPatch, start: str, unit: str) -> None:
    # The library takes milliseconds for one long header, and holds the interpreter for seconds with many.
    reader: Any = renderer("harmony")
    counting = CountingEncoding(reader.encoding)
    monkeypatch.setattr(reader._reader, "_encoding", counting)
    reader._reader._parsed.cache_clear()
    message = reader.parse(long_reply(reader, start, unit, LONG, "<|message|>x<|return|>"))
    assert sum(counting.lengths) <= 10_000
    assert message.errors
