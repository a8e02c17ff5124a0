"""Scorers of strings: exact match, word overlap (F1), regular expressions, and JSON schemas."""

import copy
import importlib
import json
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from .._packages import load
from .._visible import brief
from ..errors import ConfigError
from ..messages import check_json
from ._scorer import check_count, check_switches, compiled, text_of

Whitespace = Literal["as_is", "trim", "collapse"]

_JSONSCHEMA = ("json_schema needs", "pip install 'envsdk[json-schema]'")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_MAX_COMPOSED_CHARS = 10_000  # normalization takes quadratic time for a string of only combining marks


@dataclass(frozen=True, slots=True, kw_only=True)
class exact:  # noqa: N801 - it is called like a function
    """Score 1 if the reply equals the target, else 0.

    Both are compared in Unicode's composed form (NFC), so different encodings of an accent are equal. Strings of more
    than 10,000 characters are compared without this normalization. The options allow further differences.

    Attributes:
        whitespace: `"trim"` ignores white space at both ends; `"collapse"` also ignores the amount of white space
            between words; `"as_is"` compares all white space.
        ignore_case: Whether to ignore the difference between upper and lower case.
        ignore_punctuation: Whether to remove punctuation and ASCII symbols. `-5` then equals `5`.
        ignore_articles: Whether to remove the words a, an and the.

    Raises:
        ConfigError: If an option has an invalid value.
    """

    whitespace: Whitespace = "trim"
    ignore_case: bool = False
    ignore_punctuation: bool = False
    ignore_articles: bool = False

    def __post_init__(self) -> None:
        if self.whitespace not in get_args(Whitespace):
            raise ConfigError(f"whitespace is {brief(self.whitespace)}; expected 'as_is', 'trim' or 'collapse'")
        check_switches(self, "ignore_case", "ignore_punctuation", "ignore_articles")

    def __call__(self, reply: str, target: Any = None, /) -> float:
        """Score a reply. The target is a string.

        Raises:
            TaskError: If the target is not a string.
        """
        given, expected = (_without_ignored(text, self) for text in (reply, text_of(target, "exact")))
        if self.whitespace == "collapse":
            return float(given.split() == expected.split())
        return float(given.strip() == expected.strip() if self.whitespace == "trim" else given == expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class f1:  # noqa: N801 - it is called like a function
    """Score the word overlap of reply and target (F1): the harmonic mean of precision and recall.

    Words are separated by white space and counted as a multiset, in any order. If both strings have no words, the score
    is 1. With the default options, the normalization and the score are those of SQuAD.

    Source: P. Rajpurkar et al., "SQuAD: 100,000+ questions for machine comprehension of text", 2016.

    Attributes:
        ignore_case: Whether to ignore the difference between upper and lower case.
        ignore_punctuation: Whether to remove punctuation and ASCII symbols.
        ignore_articles: Whether to remove the words a, an and the.

    Raises:
        ConfigError: If an option is neither True nor False.
    """

    ignore_case: bool = True
    ignore_punctuation: bool = True
    ignore_articles: bool = True

    def __post_init__(self) -> None:
        check_switches(self, "ignore_case", "ignore_punctuation", "ignore_articles")

    def __call__(self, reply: str, target: Any = None, /) -> float:
        """Score a reply. The target is a string.

        Raises:
            TaskError: If the target is not a string.
        """
        texts = reply, text_of(target, "f1")
        words, expected = (Counter(_without_ignored(text, self).split()) for text in texts)
        if words == expected:
            return 1.0
        common = (words & expected).total()
        return 2 * common / (words.total() + expected.total())


@dataclass(frozen=True, slots=True)
class regex:  # noqa: N801 - it is called like a function
    r"""Score 1 if the reply matches a regular expression, else 0. The target is ignored.

    Matching cannot be interrupted, and some patterns take very long. `max_chars` bounds the time of patterns with one
    ambiguous repeat (`\s+$`). It does not help with nested repeats such as `(a+)+b`, which take exponential time: write
    them with possessive repeats (`(?:a++)++b`) or atomic groups (`(?>...)`).

    Attributes:
        pattern: A regular expression of Python's `re`. Put flags into the pattern: `(?i)` ignores case, `(?s)` lets `.`
            match line breaks.
        where: `"anywhere"` searches the reply; `"whole"` matches the whole reply, without white space at both ends.
        max_chars: The maximum length of a reply, in characters. A longer reply scores 0.

    Raises:
        ConfigError: If the pattern is not a regular expression, or an option has an invalid value.
    """

    pattern: str
    where: Literal["anywhere", "whole"] = field(default="anywhere", kw_only=True)
    max_chars: int = field(default=10_000, kw_only=True)

    def __post_init__(self) -> None:
        compiled(self.pattern)
        if self.where not in ("anywhere", "whole"):
            raise ConfigError(f"where is {brief(self.where)}; expected 'anywhere' or 'whole'")
        check_count("max_chars", self.max_chars)

    def __call__(self, reply: str, target: Any = None, /) -> float:
        """Score a reply."""
        if len(reply) > self.max_chars:
            return 0.0
        pattern = compiled(self.pattern)
        found = pattern.search(reply) if self.where == "anywhere" else pattern.fullmatch(reply.strip())
        return float(found is not None)


def _without_ignored(text: str, scorer: exact | f1) -> str:
    """Return a string in composed form (NFC), without the case, punctuation and articles that a scorer ignores."""
    if len(text) <= _MAX_COMPOSED_CHARS:
        text = unicodedata.normalize("NFC", text)
    if scorer.ignore_case:
        text = text.casefold()
    if scorer.ignore_punctuation:
        marks = {char for char in set(text) if char in string.punctuation or unicodedata.category(char)[0] == "P"}
        text = text.translate(dict.fromkeys(map(ord, marks)))
    return _ARTICLES.sub(" ", text) if scorer.ignore_articles else text


@dataclass(frozen=True, slots=True)
class json_schema:  # noqa: N801 - it is called like a function
    """Score 1 if the reply is JSON that is valid under a schema, else 0. The target is ignored.

    The whole reply must be JSON, apart from white space around it; use `extract` to take JSON out of a code block. NaN
    and infinity are not JSON, and a value that is nested deeper than 64 levels scores 0. As usual in JSON schema,
    `format` is not checked. `$ref` may refer only to the schema itself: nothing is loaded from elsewhere. A `pattern`
    may take exponential time; see `regex`. `uniqueItems` takes quadratic time, so with a larger `max_chars`, a reply
    may take minutes.

    Attributes:
        schema: A JSON schema, of the draft that its `$schema` names, or else of the latest draft that jsonschema knows.
        max_chars: The maximum length of a reply, in characters. A longer reply scores 0.

    Raises:
        ConfigError: If the schema is not valid.
        ImportError: If jsonschema is not installed.
    """

    schema: Mapping[str, Any] | bool
    max_chars: int = field(default=10_000, kw_only=True)

    def __post_init__(self) -> None:
        check_count("max_chars", self.max_chars)
        object.__setattr__(self, "schema", copy.deepcopy(self.schema))
        if not isinstance(self.schema, (dict, bool)):
            raise ConfigError(f"the schema is {brief(self.schema)}; expected a JSON schema, a dict or a bool")
        try:
            self._validator().check_schema(self.schema)
        except load("jsonschema.exceptions", *_JSONSCHEMA).SchemaError as error:
            where = "/".join(map(str, error.path)) or "the top"
            raise ConfigError(f"the schema is not a valid JSON schema: at {where}: {error.message}") from error

    def __call__(self, reply: str, target: Any = None, /) -> float:
        """Score a reply.

        Raises:
            ConfigError: If a `$ref` in the schema refers to something outside it, or is infinitely recursive.
        """
        if len(reply) > self.max_chars:
            return 0.0
        try:
            value = json.loads(reply)
            check_json(value)  # refuses NaN and infinity, which Python reads
        except (ValueError, RecursionError):
            return 0.0
        registry = importlib.import_module("referencing").Registry()  # an empty registry loads nothing
        try:
            return float(self._validator()(self.schema, registry=registry).is_valid(value))
        except importlib.import_module("referencing.exceptions").Unresolvable as error:
            raise ConfigError(f"the schema refers to {error.ref!r}, which is not in it") from error
        except RecursionError as error:
            raise ConfigError("the schema refers to itself infinitely; expected a `$ref` chain that ends") from error
        except ArithmeticError:  # the schema computes with a number that is larger than any float
            return 0.0

    def _validator(self) -> Any:
        """Return the class of validators of the schema's draft."""
        load("referencing", *_JSONSCHEMA)  # jsonschema installs it since 4.18
        jsonschema = load("jsonschema", *_JSONSCHEMA)
        return jsonschema.validators.validator_for(self.schema, default=jsonschema.Draft202012Validator)
