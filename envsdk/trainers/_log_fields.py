"""The checked values of another tool's log. An error names the record and the field."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from .._arrays import LARGEST
from .._registry import find_renderer
from ..contexts._protocol import Action
from ..episodes._actions import CheckedAction, check_action
from ..errors import ActionError, ConfigError, InvalidRecord
from ..messages import Message
from ..rendering.renderer import Renderer

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_ID = int(np.iinfo(np.int32).max)


class Found:
    """A value of a log, with the record and the field that it is in."""

    __slots__ = ("value", "where")

    def __init__(self, value: Any, where: str) -> None:
        self.value: Any = value
        self.where = where

    def invalid(self, expected: str) -> InvalidRecord:
        """Return the error that the value is not what was expected."""
        return InvalidRecord(f"{self.where} is {_shown(self.value)}; expected {expected}")

    def get(self, key: str) -> "Found":
        """Return a field of an object; None if it is missing."""
        return Found(self.mapping().get(key), f"{self.where}.{key}")

    def mapping(self) -> Mapping[str, Any]:
        """Return the value as an object."""
        value = self.value
        if not isinstance(value, Mapping):
            raise self.invalid("an object")
        return cast("Mapping[str, Any]", value)

    def object(self) -> "Found | None":
        """Return itself if it is an object, None if it is missing."""
        if self.value is not None:
            self.mapping()
        return None if self.value is None else self

    def or_empty(self) -> "Found":
        """Return itself if it is an object, an empty one if it is missing."""
        return self.object() or Found({}, self.where)

    def items(self) -> "list[Found]":
        """Return the items of a list; none if it is missing."""
        value = self.value
        if value is None:
            return []
        if not isinstance(value, (list, tuple)):
            raise self.invalid("a list")
        values = cast("list[Any]", value)
        return [Found(item, f"{self.where}[{i}]") for i, item in enumerate(values)]

    def text(self) -> str | None:
        """Return a text; None if it is missing."""
        if self.value is not None and not isinstance(self.value, str):
            raise self.invalid("a text")
        return self.value

    def number(self, expected: str = "a finite number") -> float | None:
        """Return a finite number; None if it is missing."""
        value = self.value
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -LARGEST <= value <= LARGEST:
            raise self.invalid(expected)
        return float(value)

    def integer(self) -> int | None:
        """Return an integer from 0 to 2**31 - 1; None if it is missing."""
        if self.value is not None and (type(self.value) is not int or not 0 <= self.value <= LARGEST_ID):
            raise self.invalid("an integer from 0 to 2**31 - 1")
        return self.value

    def rewards(self) -> dict[str, float]:
        """Return rewards by name; a plain number is named `reward`. None is no reward."""
        if isinstance(self.value, Mapping):
            named = {name: self.get(name).number() for name in self.mapping()}
        else:
            named = {"reward": self.number("a finite number, or numbers by name")}
        return {name: reward for name, reward in named.items() if reward is not None}


class LoggedReply(NamedTuple):
    """A reply whose token ids were logged, checked.

    Attributes:
        prompt: The ids of its full prompt: int32, shape (n,), at least one.
        action: What was sampled.
        has_reasoning: Whether the reply has reasoning.
    """

    prompt: "NDArray[np.int32]"
    action: CheckedAction
    has_reasoning: bool = False


def checked_reply(
    prompt: Found,
    tokens: Found,
    logprobs: Found,
    *,
    message: Message,
    vocab_size: int,
    renderer: Renderer | None,
    **sampling: Any,
) -> LoggedReply:
    """Return a reply whose ids and log-probabilities are valid.

    Args:
        prompt: The ids of the full prompt.
        tokens: The sampled ids.
        logprobs: Their log-probabilities; None if they were not logged.
        message: The reply as it was logged. Its reasoning may be missing, or be in the text.
        vocab_size: The size of the vocabulary.
        renderer: Reads the reasoning from the tokens, if it is given.
        **sampling: The other fields of `Action`.

    Raises:
        InvalidRecord: If they are not.
    """
    shown = _checked(prompt, Action(_plain(prompt, int)), vocab_size).tokens
    if not len(shown):
        raise prompt.invalid("the ids of the full prompt that was sampled from")
    action = _checked(tokens, Action(_plain(tokens, int), **sampling), vocab_size)
    if logprobs.value is not None:
        known = Action(action.tokens, _plain(logprobs, int, float), **sampling)
        action = _checked(logprobs, known, vocab_size)
    has_reasoning = message.reasoning or (renderer is not None and renderer.parse(action.tokens).reasoning)
    return LoggedReply(shown, action, bool(has_reasoning))


def _plain(found: Found, *kinds: type) -> Any:
    """Return a list of plain numbers, or an array; NumPy would read booleans among integers as integers."""
    value = found.value
    if isinstance(value, np.ndarray):
        return cast("Any", value)
    if not isinstance(value, (list, tuple)):
        raise found.invalid("a list")
    values = cast("list[Any]", value)
    if not set(map(type, values)) <= {*kinds}:  # a record has many of them
        wrong = next(item for item in found.items() if type(item.value) not in kinds)
        raise wrong.invalid("a number" if float in kinds else "a token id")
    return values


def _checked(found: Found, action: Action, vocab_size: int) -> Any:
    try:
        with np.errstate(over="ignore"):  # infinity is refused
            return check_action(action, vocab_size)
    except (ActionError, OverflowError) as error:
        raise InvalidRecord(f"{found.where}: {error}") from error


def read_renderer(renderer: Any, tokenizer: Any) -> Renderer | None:
    """Return a renderer, given as an object or by its name; None without any.

    Raises:
        ConfigError: If there is a tokenizer, but no renderer; see also `find_renderer`.
    """
    if renderer is not None:
        return find_renderer(renderer, tokenizer)
    if tokenizer is not None:
        raise ConfigError("tokenizer= is given without renderer=: name the renderer, such as renderer='qwen3'")
    return None


def read_vocab_size(vocab_size: Any, renderer: Renderer | None) -> int:
    """Return the size of the vocabulary: what was given, or that of the renderer's tokenizer; 0 if it is not known.

    Raises:
        ConfigError: If it is not a size, or another one than the renderer's.
    """
    if type(vocab_size) is not int or not 0 <= vocab_size <= LARGEST_ID:
        raise ConfigError(f"vocab_size is {vocab_size!r:.80}; expected an integer from 0 to 2**31 - 1, 0 if unknown")
    if renderer is None:
        return vocab_size
    known = renderer.tokenizer.vocab_size
    if vocab_size not in (0, known):
        raise ConfigError(
            f"vocab_size is {vocab_size}, but the renderer's tokenizer has {known} ids: leave it out, or load the "
            f"tokenizer with load_tokenizer(..., vocab_size={vocab_size})"
        )
    return known


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    if isinstance(value, (list, dict)):
        known = cast("list[Any]", value)
        return f"a {type(known).__name__} of {len(known)}"
    return f"{value!r:.80}"
