"""The search in messages that a model cannot see anymore."""

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

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


class _Passage(NamedTuple):
    """A passage of a message, with the context and the step that the message belongs to."""

    text: str
    message: Message
    context: str
    step: int
    is_reasoning: bool
    words: int
    """How many words it has."""


@dataclass(slots=True)
class Archive:
    """An index of passages of messages, by their words. A message is added once, in O(its length)."""

    _added: dict[str, int] = field(default_factory=dict[str, int])  # how many messages of each context
    _passages: list[_Passage] = field(default_factory=list[_Passage])
    _found: dict[str, tuple["array[int]", "array[int]"]] = field(
        default_factory=dict[str, tuple["array[int]", "array[int]"]]
    )  # for each word, the passages that have it, and how often

    def add(self, context: Context, stop: int) -> None:
        """Add the messages of a context up to number `stop`, if they are new. They belong to its last complete step."""
        start = self._added.get(context.name, context.inherited if self._added else 0)
        step = context.steps - (stop < len(context.messages))
        for message in context.messages[start:stop]:
            if message.name == RECALL and message.role == "tool":
                continue  # it repeats passages
            for text, is_reasoning in _texts(message):
                words = Counter(_WORD.findall(text.casefold()))
                for word, count in words.items():
                    passages, counts = self._found.setdefault(word, (array("i"), array("i")))
                    passages.append(len(self._passages))
                    counts.append(count)
                self._passages.append(_Passage(text, message, context.name, step, is_reasoning, words.total()))
        self._added[context.name] = max(start, stop)

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
        is_hidden = _lacks(view)
        if not any(map(is_hidden, self._passages)):
            raise ToolError("recall: nothing was dropped so far; you can see all of the conversation")
        lengths = np.array([passage.words for passage in self._passages])
        weights = 1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * lengths / max(1.0, float(lengths.mean()))
        scores = np.zeros(len(lengths))
        for word in words:
            if (found := self._found.get(word)) is not None:
                at, counts = (np.array(column) for column in found)
                rarity = math.log1p((len(lengths) - len(at) + 0.5) / (len(at) + 0.5))
                scores[at] += rarity * counts * (_SATURATION + 1) / (counts + _SATURATION * weights[at])
        order: list[int] = np.lexsort((-np.arange(len(scores)), -scores)).tolist()
        ranked = (self._passages[at] for at in order if scores[at] > 0)
        lines: list[str] = []
        for passage in islice(filter(is_hidden, ranked), _MOST_PASSAGES):
            place = "" if passage.context == context else f" of {passage.context}"
            who = "you" if passage.message.role == "assistant" else passage.message.role
            what = "your thinking" if passage.is_reasoning else who
            lines.append(f"[step {passage.step}{place}, {what}] {passage.text}")
        if not lines:
            raise ToolError("recall: nothing that was dropped has a word of the query; try other words")
        return "\n\n".join(lines)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Archive":
        """Copy the lists; messages and passages never change."""
        found = {word: (passages[:], counts[:]) for word, (passages, counts) in self._found.items()}
        return Archive({**self._added}, [*self._passages], found)


def _lacks(view: Sequence[Message]) -> Callable[[_Passage], bool]:
    """Return a function that returns whether a view lacks a passage. A reply may have lost its reasoning alone."""
    ids = {id(message) for message in view}
    replies: dict[str, list[Message]] = {}
    for message in view:
        if message.role == "assistant":
            replies.setdefault(message.content, []).append(message)

    def lacks(passage: _Passage) -> bool:
        message = passage.message
        if id(message) in ids:
            return False
        same = () if passage.is_reasoning or message.role != "assistant" else replies.get(message.content, ())
        return not any(is_same_answer(message, reply) for reply in same)

    return lacks


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
