"""Text for benchmarks: English words without end, and a tool that searches."""

import re
from itertools import accumulate

from envsdk.rendering.tokenizers._files import DATA

WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?[.,;:!?]?")
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the library.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


class Prose:
    """English text without end: the plain words of the corpus, round and round."""

    def __init__(self) -> None:
        words = [word for word in (DATA / "corpus.txt").read_text(encoding="utf-8").split() if WORD.fullmatch(word)]
        self._length = len(words)
        self._text = " ".join([*words, *words])
        self._starts = [0, *accumulate(len(word) + 1 for word in [*words, *words])]

    def words(self, count: int, *, start: int) -> str:
        """So many words: each time a new string, at no more than the cost of copying it."""
        first = start % self._length
        return self._text[self._starts[first] : self._starts[first + count] - 1]
