"""The search in messages that a model cannot see anymore."""

import copy
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ..contexts._context import Context
from ..errors import ToolError
from ..messages import Message
from ..rendering.emission import is_same_answer

RECALL = "recall"
"""The name of the tool that searches."""
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""A word; in Chinese, Japanese and Korean, which have no spaces between words, a character."""
_PASSAGE_CHARS = 400
_MOST_PASSAGES = 5
_MOST_WORDS = 32
"""How many different words of a query are searched for, which bounds the time."""
_SATURATION, _LENGTH_WEIGHT = 1.2, 0.25


@dataclass(slots=True)
class Archive:
    """An index of passages of messages, by their words. A message is added once, in O(its length)."""

    _messages: list[Message] = field(default_factory=list[Message])
    _places: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])  # context and step of each message
    _replies: list[int] = field(default_factory=list[int])  # which messages are replies
    _added: dict[str, int] = field(default_factory=dict[str, int])  # how many messages of each context
    _passages: list[str] = field(default_factory=list[str])
    _sources: "array[int]" = field(default_factory=lambda: array("i"))  # the message of each passage
    _are_reasoning: "array[int]" = field(default_factory=lambda: array("b"))
    _lengths: "array[int]" = field(default_factory=lambda: array("i"))  # in words
    _found: dict[str, tuple["array[int]", "array[int]"]] = field(
        default_factory=dict[str, tuple["array[int]", "array[int]"]]
    )  # for each word, the passages that have it, and how often

    def add(self, context: Context, stop: int) -> None:
        """Add the messages of a context up to number `stop`, if they are new. They belong to its last complete step."""
        start = self._added.get(context.name, context.inherited if self._messages else 0)
        step = context.steps - (stop < len(context.messages))
        for message in context.messages[start:stop]:
            if message.name == RECALL and message.role == "tool":
                continue  # it repeats passages
            if message.role == "assistant":
                self._replies.append(len(self._messages))
            self._messages.append(message)
            self._places.append((context.name, step))
            for text, is_reasoning in _texts(message):
                self._add(text, is_reasoning=is_reasoning)
        self._added[context.name] = max(start, stop)

    def _add(self, text: str, *, is_reasoning: bool) -> None:
        words = Counter(_WORD.findall(text.casefold()))
        for word, count in words.items():
            passages, counts = self._found.setdefault(word, (array("i"), array("i")))
            passages.append(len(self._passages))
            counts.append(count)
        self._passages.append(text)
        self._sources.append(len(self._messages) - 1)
        self._are_reasoning.append(is_reasoning)
        self._lengths.append(words.total())

    def search(self, query: str, view: Sequence[Message], context: str) -> str:
        """Return the passages that are not in a view and fit a query best, each with its step. Later ones win ties.

        They are ranked by Okapi BM25 (Robertson and Zaragoza 2009).

        Args:
            query: Words.
            view: The messages that the model sees.
            context: The name of its context. The steps of other contexts get their names.

        Raises:
            ToolError: If the query has no word, or nothing fits.
        """
        words = list(dict.fromkeys(_WORD.findall(query.casefold())))[:_MOST_WORDS]
        if not words:
            raise ToolError("recall: the query has no word")
        hidden = self._hidden(view)
        if not hidden.any():
            raise ToolError("recall: nothing was dropped so far; you can see all of the conversation")
        lengths = np.array(self._lengths)
        weights = 1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * lengths / max(1.0, float(lengths.mean()))
        scores = np.zeros(len(lengths))
        for word in words:
            if (found := self._found.get(word)) is not None:
                at, counts = (np.array(column) for column in found)
                rarity = math.log1p((len(lengths) - len(at) + 0.5) / (len(at) + 0.5))
                scores[at] += rarity * counts * (_SATURATION + 1) / (counts + _SATURATION * weights[at])
        scores[~hidden] = 0
        best = [int(at) for at in np.lexsort((-np.arange(len(scores)), -scores))[:_MOST_PASSAGES] if scores[at] > 0]
        if not best:
            raise ToolError("recall: nothing that was dropped has a word of the query; try other words")
        lines: list[str] = []
        for at in best:
            message, (place, step) = self._messages[self._sources[at]], self._places[self._sources[at]]
            where = f"step {step}" if place == context else f"step {step} of {place}"
            who = "you" if message.role == "assistant" else message.role
            what = "your thinking" if self._are_reasoning[at] else who
            lines.append(f"[{where}, {what}] {self._passages[at]}")
        return "\n\n".join(lines)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Archive":
        """Copy the columns; messages and passages never change."""
        other = copy.copy(self)
        for column in fields(self):
            setattr(other, column.name, copy.copy(getattr(self, column.name)))
        other._found = {word: (passages[:], counts[:]) for word, (passages, counts) in self._found.items()}
        return other

    def _hidden(self, view: Sequence[Message]) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Return for each passage whether a view lacks it. A reply may have lost its reasoning alone."""
        ids = {id(message) for message in view}
        replies: dict[str, list[Message]] = {}
        for message in view:
            if message.role == "assistant":
                replies.setdefault(message.content, []).append(message)
        lacks_reasoning = np.array([id(message) not in ids for message in self._messages], dtype=np.bool_)
        lacks_content = lacks_reasoning.copy()
        for index in self._replies:
            message = self._messages[index]
            if any(is_same_answer(message, shown) for shown in replies.get(message.content, ())):
                lacks_content[index] = False
        sources = np.array(self._sources)
        reasoning = np.array(self._are_reasoning, dtype=np.bool_)
        return np.where(reasoning, lacks_reasoning[sources], lacks_content[sources])


def _texts(message: Message) -> Iterator[tuple[str, bool]]:
    """Yield the passages of a message, and whether each belongs to the reasoning."""
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls if call.name != RECALL]
    for text, is_reasoning in ((message.reasoning or "", True), ("\n".join([message.content, *calls]), False)):
        rest = text.strip()
        while rest:
            cut = len(rest) if len(rest) <= _PASSAGE_CHARS else rest.rfind(" ", 1, _PASSAGE_CHARS) + 1
            cut = cut or rest.rfind("\n", 1, _PASSAGE_CHARS) + 1 or _PASSAGE_CHARS
            yield rest[:cut].strip(), is_reasoning
            rest = rest[cut:].lstrip()
