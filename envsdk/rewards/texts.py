"""Scorers that compare texts: the same text, the same words, a pattern."""

import re
import string
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ..errors import ConfigError
from .scorer import check_count, check_switches, compiled, text_of

Whitespace = Literal["as_is", "trim", "collapse"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_MAX_COMPOSED_CHARS = 10_000  # Python takes quadratic time for text of nothing but combining marks


@dataclass(frozen=True, slots=True, kw_only=True)
class exact:  # noqa: N801 - it is called like a function
    """1 if the reply is the target, else 0.

    Both are compared in Unicode's composed form (NFC), so that it does not matter how an accent is written; texts of
    more than 10,000 characters as they are. Nothing else is changed but what the options say.

    Attributes:
        whitespace: `"trim"` ignores white space at both ends, `"collapse"` also how much there is between words,
            `"as_is"` ignores none.
        ignore_case: Whether upper and lower case are the same.
        ignore_punctuation: Whether punctuation and ASCII symbols are left out: `-5` is then the same as `5`.
        ignore_articles: Whether the words a, an and the are left out.

    Raises:
        ConfigError: For another value of an option.
    """

    whitespace: Whitespace = "trim"
    ignore_case: bool = False
    ignore_punctuation: bool = False
    ignore_articles: bool = False

    def __post_init__(self) -> None:
        if self.whitespace not in get_args(Whitespace):
            raise ConfigError(f"whitespace is {self.whitespace!r:.80}; expected 'as_is', 'trim' or 'collapse'")
        check_switches(self, "ignore_case", "ignore_punctuation", "ignore_articles")

    def __call__(self, reply: str, target: Any = None, /) -> float:
        """Score a reply; the target is a text.

        Raises:
            TaskError: If the target is no text.
        """
        return float(self._normalized(reply) == self._normalized(text_of(target, "exact")))

    def _normalized(self, text: str) -> str:
        text = _without(text, case=self.ignore_case, punctuation=self.ignore_punctuation, articles=self.ignore_articles)
        if self.whitespace == "collapse":
            return " ".join(text.split())
        return text.strip() if self.whitespace == "trim" else text


@dataclass(frozen=True, slots=True, kw_only=True)
class f1:  # noqa: N801 - it is called like a function
    """The share of words that reply and target have in common: the harmonic mean of precision and recall.

    Words are what white space separates, each counted as often as it is there, in any order. If both have none, the
    score is 1. By default texts are normalised as for the data set SQuAD, which has the same score.

    Source: P. Rajpurkar et al., "SQuAD: 100,000+ questions for machine comprehension of text", 2016.

    Attributes:
        ignore_case: Whether upper and lower case are the same.
        ignore_punctuation: Whether punctuation and ASCII symbols are left out.
        ignore_articles: Whether the words a, an and the are left out.

    Raises:
        ConfigError: For an option that is neither True nor False.
    """

    ignore_case: bool = True
    ignore_punctuation: bool = True
    ignore_articles: bool = True

    def __post_init__(self) -> None:
        check_switches(self, "ignore_case", "ignore_punctuation", "ignore_articles")

    def __call__(self, reply: str, target: Any = None, /) -> float:
        """Score a reply; the target is a text.

        Raises:
            TaskError: If the target is no text.
        """
        said, wanted = self._words(reply), self._words(text_of(target, "f1"))
        if said == wanted:
            return 1.0
        common = (said & wanted).total()
        return 2 * common / (said.total() + wanted.total())

    def _words(self, text: str) -> Counter[str]:
        return Counter(
            _without(
                text, case=self.ignore_case, punctuation=self.ignore_punctuation, articles=self.ignore_articles
            ).split()
        )


@dataclass(frozen=True, slots=True)
class regex:  # noqa: N801 - it is called like a function
    r"""1 if the reply fits a regular expression, else 0; the target does not matter.

    A pattern can take very long, and nothing interrupts it. The limit on the length keeps patterns with one ambiguous
    repeat (`\s+$`) harmless. It does not help against repeats within repeats, such as `(a+)+b`, which take exponential
    time: write them with possessive repeats (`(?:a++)++b`) or atomic groups (`(?>...)`).

    Attributes:
        pattern: A regular expression of Python's `re`. Flags stand in it: `(?i)` ignores case, `(?s)` lets `.` match
            line ends.
        where: `"anywhere"` in the reply, or the `"whole"` of it, without white space at both ends.
        max_chars: A longer reply scores 0.

    Raises:
        ConfigError: If the pattern is none, or for another value of an option.
    """

    pattern: str
    where: Literal["anywhere", "whole"] = field(default="anywhere", kw_only=True)
    max_chars: int = field(default=10_000, kw_only=True)

    def __post_init__(self) -> None:
        compiled(self.pattern)
        if self.where not in ("anywhere", "whole"):
            raise ConfigError(f"where is {self.where!r:.80}; expected 'anywhere' or 'whole'")
        check_count("max_chars", self.max_chars)

    def __call__(self, reply: str, target: Any = None, /) -> float:
        """Score a reply."""
        if len(reply) > self.max_chars:
            return 0.0
        pattern = compiled(self.pattern)
        found = pattern.search(reply) if self.where == "anywhere" else pattern.fullmatch(reply.strip())
        return float(found is not None)


def _without(text: str, *, case: bool, punctuation: bool, articles: bool) -> str:
    """A text in composed form, without what is ignored."""
    if len(text) <= _MAX_COMPOSED_CHARS:
        text = unicodedata.normalize("NFC", text)
    if case:
        text = text.casefold()
    if punctuation:
        text = text.translate({ord(char): None for char in set(text) if _is_punctuation(char)})
    return _ARTICLES.sub(" ", text) if articles else text


def _is_punctuation(char: str) -> bool:
    return char in string.punctuation or unicodedata.category(char)[0] == "P"
