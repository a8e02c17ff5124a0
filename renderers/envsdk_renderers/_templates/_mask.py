"""Hides texts from a chat template: names of control tokens in content, and the words of the probes.

Knows nothing about tokens; a control token is a name in a rendered text.
"""

import operator
import re
import string
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from envsdk.errors import TemplateUnsupported
from envsdk.messages import ContentPart, Message, TextPart, ToolCall, text_of


def pattern_of_names(names: Iterable[str]) -> str:
    """Return the regular expression of any of some names, of which the longest one is matched; it has no groups."""
    branches: dict[str, list[str]] = defaultdict(list)
    is_end = False
    for name in dict.fromkeys(names):
        if name:
            branches[name[0]].append(name)
        is_end = is_end or not name
    found = [_branch(branch) for branch in branches.values()]
    if not found:
        return "" if is_end else "(?!)"
    pattern = found[0] if len(found) == 1 and not is_end else f"(?:{'|'.join(found)})"
    return pattern + ("?" if is_end else "")


def rests_by_first(names: Iterable[str]) -> dict[str, str]:
    """Return the regular expression of what follows each first character of the names."""
    rests: dict[str, list[str]] = defaultdict(list)
    for name in filter(None, names):
        rests[name[0]].append(name[1:])
    return {first: pattern_of_names(rest) for first, rest in rests.items()}


def _branch(names: list[str]) -> str:
    """Return the regular expression of names that begin with the same character."""
    least, most = min(names), max(names)
    length = next((i for i, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), len(least))
    return re.escape(least[:length]) + pattern_of_names(name[length:] for name in names)


STEM = "Qzxj"
"""The beginning of every word that a probe writes or that hides something, in any case. Content never contains it."""
_STEM = STEM.lower()
PROBE_NAME = f"{_STEM}function"
"""The function that probes call. No other function has this name, since the stem is hidden in content."""
_WORD = re.compile(f"(?i:{STEM})(?:([0-9]{{1,6}})([a-z]))?")
_LONGEST_WORD = len(STEM) + 7
_BEGUN = re.compile(f"(?i:{STEM[0]}(?:{STEM[1]}{STEM[2]}?)?)\\s*$")
"""The beginning of a stem at the end of a text, which the next text could complete."""


class TextMask:
    """Hides texts that a template must not see in a conversation: names of control tokens, and the words of the probes.

    Each hidden character becomes a word of ASCII letters and digits, which no template changes (with JSON, `repr`, a
    filter); `restore` puts the character back. All these words, and all sentinels, begin with `STEM`. Where content
    contains the stem itself, or ends with a beginning of it, that is hidden like a control token. So every stem in a
    rendering comes from a probe or a mask, whatever is next to it; and no search finds a text inside a mask's word.

    Args:
        names: The names of the control tokens.
        hides_names: Whether the names are hidden; if not, only the stem is.
    """

    def __init__(self, names: Sequence[str], *, hides_names: bool = True) -> None:
        self.hides_names = hides_names
        self.names = sorted(filter(None, names), key=len, reverse=True)
        self._longest = max([_LONGEST_WORD, *map(len, self.names)])
        self._hidden = _hidden(self.names if hides_names else [])
        self._cut = re.compile(f"({pattern_of_names(self.names)})")
        self._whole = re.compile(f"{pattern_of_names(self.names)}|{_WORD.pattern}")
        firsts = {name[0] for name in self.names} if hides_names else set[str]()
        self._firsts = sorted(firsts)
        self._chars = sorted({*firsts, STEM[0].upper(), STEM[0].lower()})
        self._end = next((letter for letter in reversed(string.ascii_lowercase) if letter not in firsts), "q")
        self._words = {char: f"{STEM}{index}{self._end}" for index, char in enumerate(self._chars)}

    def hide(self, text: str) -> str:
        """Return the text without names of control tokens and without the stem."""
        for first in self._firsts:  # mostly there is none; `any` would take twice the time
            if first in text:
                break
        else:
            if not has_stem(text):
                return text
        return self._hidden.sub(lambda match: self._words[match[1]], text)

    def restore(self, text: str) -> str:
        """Return the text with everything that was hidden.

        Raises:
            TemplateUnsupported: If it contains a word of a probe, or a word of the mask that the template changed.
        """
        return _WORD.sub(self._char, text) if has_stem(text) else text

    def restore_compared(self, text: str) -> str:
        """Do the same as `restore` for a text that is only compared: words of probes stay in it."""
        return _WORD.sub(lambda word: self._hidden_by(word) or word[0], text) if has_stem(text) else text

    def _hidden_by(self, word: re.Match[str]) -> str | None:
        char = self._chars[int(word[1])] if word[1] and int(word[1]) < len(self._chars) else None
        return char if char is not None and word[0] == self._words[char] else None

    def _char(self, word: re.Match[str]) -> str:
        char = self._hidden_by(word)
        if char is None:
            text = word.string[max(word.start() - 40, 0) : word.end() + 40]
            raise TemplateUnsupported(
                "the template writes a word of a probe, or changes a word that hides a control token", rendered=text
            )
        return char

    def hide_message(self, message: Message) -> Message:
        """Hide in all texts of a message; return the message itself if there is nothing to hide.

        A template may write another text right after its content or its reasoning, so the end of these is hidden where
        it begins a stem.
        """
        hidden = map_texts(message, self.hide)
        texts = {"content": hidden.content, "reasoning": hidden.reasoning}
        hide_first: Callable[[re.Match[str]], str] = lambda found: self._words[found[0][0]] + found[0][1:]  # noqa: E731
        begun = {name: _BEGUN.sub(hide_first, text) for name, text in texts.items() if text}
        changed = {name: text for name, text in begun.items() if text != texts[name]}
        return hidden.model_copy(update=changed) if changed else hidden

    def hide_all(self, value: Any) -> Any:
        """Hide in all strings of a JSON value."""
        return map_strings(value, self.hide)

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the parts of a rendered text cut at its control tokens, each with whether it is a control token."""
        for index, part in enumerate(self._cut.split(text)):
            if part:
                yield part, index % 2 == 1

    def shared(self, first: str, second: str) -> int:
        """Return the length of the common start of two texts, without cutting a control token or a mask's word."""
        length = shared_start([first, second])
        for text in (first, second):
            cut = self._cut_at(text, length)
            length = length if cut is None else cut.start()
        return length

    def outside(self, text: str, position: int) -> int:
        """Return a position in a rendered text, or the end of the control token or the mask's word that it cuts."""
        cut = self._cut_at(text, position)
        return position if cut is None else cut.end()

    def find(self, text: str, part: str, start: int) -> int:
        """Return where a part is in a rendered text, outside of control tokens and of a mask's words; -1 if nowhere."""
        at = text.find(part, start)
        while at >= 0 and any(self.outside(text, edge) != edge for edge in (at, at + len(part))):
            at = text.find(part, at + 1)
        return at

    def _cut_at(self, text: str, position: int) -> re.Match[str] | None:
        near = self._whole.finditer(text, max(0, position - self._longest), position + self._longest)
        return next((match for match in near if match.start() < position < match.end()), None)

    def controls(self, text: str) -> list[tuple[str, int]]:
        """Return the control tokens of a rendered text with their positions."""
        return [(match[1], match.start()) for match in self._cut.finditer(text)]


def _hidden(names: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern of the first character of each name, and of the stem in any case."""
    rests = rests_by_first(names)
    choices = [f"(?<={re.escape(first)})(?={rest})" for first, rest in rests.items()]
    first, rest = STEM[0], STEM[1:]
    choices.append(f"(?<=[{first.upper()}{first.lower()}])(?=(?i:{rest}))")
    firsts = "".join(map(re.escape, sorted({*rests, first.upper(), first.lower()})))
    return re.compile(f"([{firsts}])(?:{'|'.join(choices)})")


def has_stem(text: str) -> bool:
    """Return whether a text contains the stem, which only probes and masks write."""
    return _STEM in text.lower()


def count_stems(text: str) -> int:
    """Return how often a text contains the stem."""
    return text.lower().count(_STEM)


def shared_start(texts: Sequence[str]) -> int:
    """Return the length of the common start of all texts."""
    first, *others = texts
    length = min(map(len, texts))
    for other in others:
        if not other.startswith(first[:length]):
            length = bisect_left(range(length), True, key=lambda end: not other.startswith(first[: end + 1]))
    return length


def map_texts(message: Message, change: Callable[[str], str]) -> Message:
    """Change all texts of a message; return the message itself if none of them changes."""
    changed: dict[str, Any] = {}
    for name in ("content", "reasoning", "name", "tool_call_id"):
        text: str | None = getattr(message, name)
        if text and (new := change(text)) != text:
            changed[name] = new
    if message.images and message.parts is not None:
        parts = [_map_part(part, change) for part in message.parts]
        if parts != list(message.parts):
            changed |= {"parts": tuple(parts), "content": text_of(parts)}
    calls = tuple([_map_call(call, change) for call in message.tool_calls])
    if not all(map(operator.is_, calls, message.tool_calls)):
        changed["tool_calls"] = calls
    return message.model_copy(update=changed) if changed else message


def _map_part(part: ContentPart, change: Callable[[str], str]) -> ContentPart:
    return TextPart(text=change(part.text)) if isinstance(part, TextPart) else part


def _map_call(call: ToolCall, change: Callable[[str], str]) -> ToolCall:
    name, call_id = change(call.name), call.id and change(call.id)
    arguments = map_strings(call.arguments, change)
    if name == call.name and call_id == call.id and arguments == call.arguments:
        return call
    return call.model_copy(update={"name": name, "id": call_id, "arguments": arguments})


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Change all strings of a JSON value, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): map_strings(item, change) for key, item in cast("Mapping[str, Any]", value).items()}
    return [map_strings(item, change) for item in cast("list[Any]", value)] if isinstance(value, list) else value
