"""Any reply is read, by every reader: it never raises, and its memory is bounded by the reply.

The time is measured in `benchmarks/`; `test_long_replies.py` bounds what is read.
"""

from random import Random
from typing import Any

import numpy as np
import pytest
from hostile_replies import READERS, SHAPES, every_reader, hostile_reply, peak, random_reply, read

from envsdk import Message

RANDOM, HOSTILE = 100_000 // len(READERS) + 1, 2_000 // len(READERS) + len(SHAPES)


def check(name: str, tokens: Any) -> None:
    """Check that a reply is read, always as the same message, in which nothing is left of how it was read."""
    message = read(name, tokens)
    assert isinstance(message, Message)
    assert message.role == "assistant"
    assert message == read(name, tokens)
    assert Message.model_validate_json(message.model_dump_json()) == message  # half of a surrogate pair is no JSON


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("name", every_reader())
def test_random_tokens_are_read(name: str, is_full: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(RANDOM if is_full else 8):
        check(name, random_reply(name, rng))


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("name", every_reader())
def test_tags_that_are_repeated_nested_interleaved_and_cut_are_read(name: str, is_full: bool) -> None:
    rng = Random(name)
    for index in range(HOSTILE if is_full else len(SHAPES)):
        check(name, hostile_reply(name, rng, SHAPES[index % len(SHAPES)], rng.choice((10, 100, 1000))))


@pytest.mark.matrix
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", every_reader())
def test_the_memory_of_reading_is_bounded_by_the_reply(name: str, shape: str, is_full: bool) -> None:
    for seed in range(3 if is_full else 1):
        half, whole = (hostile_reply(name, Random(seed), shape, size) for size in (500, 1_000))
        read(name, whole)  # what is kept for later replies is not counted
        assert peak(name, whole) <= 2.4 * peak(name, half) + 20_000
        assert peak(name, whole) <= 1_000 * len(whole) + 100_000
