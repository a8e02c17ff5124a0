"""Hostile replies for every reader: random tokens, and a reader's own tags repeated, nested, interleaved and cut."""

import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._grammars._probes import KEYS, TOOLS, call_of
from envsdk_renderers._grammars._probes import reply as said
from long_replies import MAKERS, PIECES, as_tokens
from template_conversations import fixed_base, short_run_templates, templates

from envsdk import Message, Renderer
from envsdk.errors import RenderError
from envsdk.messages import check_calls

if TYPE_CHECKING:
    from numpy.typing import NDArray

READERS: Mapping[str, Callable[[], Renderer]] = {
    **MAKERS,
    **{f"template {name}": partial(fixed_base, name) for name in templates()},
}
"""Every registered renderer, every reply format of `fixed_base`, and `fixed_base` on every template."""


def every_reader() -> list[Any]:
    """The names of all readers as rows of a test, of which a short run takes a few."""
    short = {name for name in READERS if not name.startswith("template ")}
    short |= {f"template {name}" for name in short_run_templates()}
    return [name if name in short else pytest.param(name, marks=pytest.mark.full) for name in READERS]


DEEP = ('{"a":', "[", "{", '"', "f(", "f(a=", "[f(", "\\u", "-", "1e", "((", "'''")
"""What costs a careless decoder much if it is repeated."""
SHAPES = ("repeated", "nested", "interleaved", "cut", "deep", "spelled")


@cache
def reader(name: str) -> Renderer:
    return READERS[name]()


@cache
def tags(name: str) -> list["NDArray[np.int32]"]:
    """The tags of a reader as tokens: the constants of its grammar, its control tokens, and tags of other formats."""
    renderer = reader(name)
    names = {*renderer.stop_tokens, *renderer.blocks, *renderer.blocks.values(), *renderer.structure}
    if isinstance(renderer, FixedBase):
        grammar = renderer._facts.grammar
        names |= {*grammar.controls, *(edge.constant for edge in grammar.edges)}
    if name in MAKERS:
        names |= {piece.replace("{number}", "1") for group in PIECES.values() for piece in group}
    names = {name for name in names if name not in renderer.opening}  # what begins a message ends the reply
    return [tokens for text in sorted(names) if len(tokens := as_tokens(renderer, text))]


@cache
def written(name: str) -> list["NDArray[np.int32]"]:
    """Replies that the family writes, with reasoning and calls where it has them."""
    calls = tuple(call_of(index, {KEYS["string"]: "x", KEYS["object"]: {"a": [1]}}) for index in range(2))
    given = [said("text"), said("text", "reasoning"), said("", None, calls[:1]), said("", "reasoning", calls)]
    return list(_replies(reader(name), given))


def _replies(renderer: Renderer, messages: list[Message]) -> Iterator["NDArray[np.int32]"]:
    for message in messages:
        try:
            yield renderer.reply(message)
        except RenderError:
            continue  # the family does not write it


def random_reply(name: str, rng: np.random.Generator) -> "NDArray[np.int32]":
    """Draw up to 24 tokens: any tokens, control tokens, and tags."""
    renderer = reader(name)
    tokens = rng.integers(0, renderer.tokenizer.vocab_size, size=int(rng.integers(0, 24))).astype(np.int32)
    control = controls(name)
    marked = rng.random(len(tokens)) < 0.4
    tokens[marked] = control[rng.integers(0, len(control), int(marked.sum()))]
    pieces = tags(name)
    count = int(rng.integers(0, 4))
    parts = [tokens, *(pieces[int(index)] for index in rng.integers(0, len(pieces), count))]
    return np.concatenate([parts[int(index)] for index in rng.permutation(len(parts))])


@cache
def controls(name: str) -> "NDArray[np.int32]":
    return np.array(sorted(reader(name).tokenizer.control_tokens.values()), dtype=np.int32)


def hostile_reply(name: str, rng: Random, shape: str, size: int) -> "NDArray[np.int32]":
    """Draw a reply of about `size` tokens, in one of `SHAPES`."""
    pieces, renderer = tags(name), reader(name)
    match shape:
        case "repeated":
            parts = [_tiled(rng.choice(pieces), size)]
        case "nested":
            openers, closers = rng.choices(pieces, k=2), rng.choices(pieces, k=2)
            parts = [_tiled(np.concatenate(part), size // 2) for part in (openers, closers)]
        case "interleaved":
            parts = [_tiled(np.concatenate(rng.choices([*pieces, *written(name)], k=rng.randint(2, 5))), size)]
        case "cut":
            chosen = rng.choices([*pieces, *written(name)], k=3)
            parts = [_tiled(np.concatenate([part[: rng.randint(1, len(part))] for part in chosen]), size)]
        case "deep":
            begun = rng.choice([*pieces, *written(name)])
            repeated = as_tokens(renderer, rng.choice(DEEP))
            parts = [begun[: rng.randint(1, len(begun))], _tiled(repeated, size), rng.choice(pieces)]
        case _:
            text = renderer.tokenizer.decode(np.concatenate(rng.choices([*pieces, *written(name)], k=3)))
            parts = [rng.choice(pieces), _tiled(np.array(renderer.tokenizer.encode(text), np.int32), size)]
    start = rng.choice([np.zeros(0, np.int32), *written(name)])
    tokens = np.concatenate([start[: rng.randint(0, len(start))], *parts])
    return tokens[~np.isin(tokens, renderer.stop_token_ids)]  # a stop token would end the reply early


def _tiled(tokens: "NDArray[np.int32]", size: int) -> "NDArray[np.int32]":
    return np.tile(tokens, max(1, size // max(1, len(tokens))))


def read(name: str, tokens: "NDArray[np.int32]") -> Message:
    """Read a reply as an episode does."""
    return check_calls(reader(name).parse(tokens, tools=TOOLS), TOOLS)


def peak(name: str, tokens: "NDArray[np.int32]") -> int:
    """Return the most bytes that reading a reply takes at a time."""
    tracemalloc.start()
    try:
        read(name, tokens)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
