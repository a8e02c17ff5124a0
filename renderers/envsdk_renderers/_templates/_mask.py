"""Hides strings from a chat template: names of control tokens in content, and the words of the probes.

Knows nothing about tokens; a control token is a name in a rendered text.
"""

import re
import string
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from envsdk.errors import TemplateUnsupported
from envsdk.messages import Message, TextPart, ToolCall, text_of


def pattern_of_names(names: Iterable[str]) -> str:
    """Return the regular expression of any of some names, of which the longest one is matched; it has no groups."""
    branches: dict[str, list[str]] = defaultdict(list)
    is_end = False
    for name in dict.fromkeys(names):
        if name:
            branches[name[0]].append(name)
        is_end = is_end or not name
    found: list[str] = []
    for branch in branches.values():
        least, most = min(branch), max(branch)
        length = next((i for i, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), len(least))
        found.append(re.escape(least[:length]) + pattern_of_names(name[length:] for name in branch))
    if not found:
        return "" if is_end else "(?!)"
    pattern = found[0] if len(found) == 1 and not is_end else f"(?:{'|'.join(found)})"
    return pattern + ("?" if is_end else "")


STEM = "Qzxj"
"""The beginning of every word that a probe writes or that hides something, in any case. Content never contains it."""
_STEM = STEM.lower()
PROBE_NAME = f"{_STEM}function"
"""The function that probes call. No other function has this name, since the stem is hidden in content."""
_WORD = re.compile(f"(?i:{STEM})(?:([0-9]{{1,6}})([a-z]))?")
_LONGEST_WORD = len(STEM) + 7
_BEGUN = re.compile(f"(?i:{STEM[0]}(?:{STEM[1]}{STEM[2]}?)?)\\s*$")
"""Matches the beginning of a stem at the end of a string, which the text after it could complete."""


class TextMask:
    """Hides strings that a template must not see in a conversation: names of control tokens, and words of the probes.

    Each hidden character becomes a word of ASCII letters and digits, which no template changes (with JSON, `repr`, a
    filter); `restore` puts the character back. All these words, and all sentinels, begin with `STEM`. Where content
    contains the stem itself, or ends with a beginning of it, that is hidden like a control token. So every stem in a
    rendering comes from a probe or a mask, whatever is next to it; and no search finds a string inside a mask's word.

    Args:
        names: The names of the control tokens.
        hides_names: Whether the names are hidden; if not, only the stem is.
    """

    def __init__(self, names: Sequence[str], *, hides_names: bool = True) -> None:
        self.hides_names = hides_names
        self.names = sorted(filter(None, names), key=len, reverse=True)
        self._longest = max([_LONGEST_WORD, *map(len, self.names)])
        self._cut = re.compile(f"({pattern_of_names(self.names)})")
        self._whole = re.compile(f"{pattern_of_names(self.names)}|{_WORD.pattern}")
        firsts = {name[0] for name in self.names} if hides_names else set[str]()
        # It matches the first character of each name, and of the stem in any case.
        choices = {first: [name[1:] for name in self.names if name[0] == first] for first in sorted(firsts)}
        patterns = [f"(?<={re.escape(c)})(?={pattern_of_names(rests)})" for c, rests in choices.items()]
        patterns.append(f"(?<=[{STEM[0].upper()}{STEM[0].lower()}])(?=(?i:{STEM[1:]}))")
        chars = sorted({*firsts, STEM[0].upper(), STEM[0].lower()})
        self._hidden = re.compile(f"([{''.join(map(re.escape, chars))}])(?:{'|'.join(patterns)})")
        end = next((letter for letter in reversed(string.ascii_lowercase) if letter not in firsts), "q")
        self._words = {char: f"{STEM}{index}{end}" for index, char in enumerate(chars)}
        self._hidden_by_word = {word: char for char, word in self._words.items()}

    def hide(self, text: str) -> str:
        """Return the text without names of control tokens and without the stem."""
        return self._hidden.sub(lambda match: self._words[match[1]], text)

    def restore(self, text: str, *, is_compared: bool = False) -> str:
        """Return a string with everything that was hidden. Words of probes stay in a string that is only compared.

        Raises:
            TemplateUnsupported: If another string contains a word of a probe, or a word of the mask that the template
                changed.
        """

        def restored(word: re.Match[str]) -> str:
            char = self._hidden_by_word.get(word[0])
            if char is None and not is_compared:
                raise TemplateUnsupported(
                    "the template writes a word of a probe, or changes a word that hides a control token",
                    rendered=word.string[max(word.start() - 40, 0) : word.end() + 40],
                )
            return char or word[0]

        return _WORD.sub(restored, text) if has_stem(text) else text

    def hide_message(self, message: Message) -> Message:
        """Hide in all strings of a message; return the message itself if there is nothing to hide.

        A template may write another text right after its content or its reasoning, so the end of these is hidden where
        it begins a stem.
        """
        hidden = map_texts(message, self.hide)
        changed: dict[str, str] = {}
        for name, text in (("content", hidden.content), ("reasoning", hidden.reasoning)):
            begun = _BEGUN.search(text) if text else None
            if text and begun is not None:
                changed[name] = text[: begun.start()] + self._words[text[begun.start()]] + text[begun.start() + 1 :]
        return hidden.model_copy(update=changed) if changed else hidden

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the parts of a rendered text cut at its control tokens, each with whether it is a control token."""
        for index, part in enumerate(self._cut.split(text)):
            if part:
                yield part, index % 2 == 1

    def shared(self, first: str, second: str) -> int:
        """Return the length of the common start of two strings, without cutting a control token or a mask's word."""
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


def has_stem(text: str) -> bool:
    """Return whether a string contains the stem, which only probes and masks write."""
    return _STEM in text.lower()


def count_stems(text: str) -> int:
    """Return the number of stems in a string."""
    return text.lower().count(_STEM)


def shared_start(texts: Sequence[str]) -> int:
    """Return the length of the common start of all strings."""
    first, *others = texts
    length = min(map(len, texts))
    for other in others:
        if not other.startswith(first[:length]):
            length = bisect_left(range(length), True, key=lambda end: not other.startswith(first[: end + 1]))
    return length


def map_texts(message: Message, change: Callable[[str], str]) -> Message:
    """Change all strings of a message; return the message itself if none of them changes."""
    changed: dict[str, Any] = {}
    for name in ("content", "reasoning", "name", "tool_call_id"):
        text: str | None = getattr(message, name)
        if text and (new := change(text)) != text:
            changed[name] = new
    if message.images and message.parts is not None:
        parts = [TextPart(text=change(p.text)) if isinstance(p, TextPart) else p for p in message.parts]
        if parts != list(message.parts):
            changed |= {"parts": tuple(parts), "content": text_of(parts)}
    calls: list[ToolCall] = []
    for call in message.tool_calls:
        arguments = map_strings(call.arguments, change)
        fields = {"name": change(call.name), "id": call.id and change(call.id), "arguments": arguments}
        is_same = fields == {"name": call.name, "id": call.id, "arguments": call.arguments}
        calls.append(call if is_same else call.model_copy(update=fields))
    if calls != [*message.tool_calls]:
        changed["tool_calls"] = tuple(calls)
    return message.model_copy(update=changed) if changed else message


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Change all strings of a JSON value, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): map_strings(item, change) for key, item in cast("Mapping[str, Any]", value).items()}
    return [map_strings(item, change) for item in cast("list[Any]", value)] if isinstance(value, list) else value
