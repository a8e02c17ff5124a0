"""Writes what a chat template rendered as pieces of an emission: its own text, and what somebody said in it.

What was hidden from the template is shown again here, as content.
"""

import re
from collections.abc import Mapping

from envsdk.rendering.emission import Emission

from .templates import Mask, has_stem

_NOTHING = re.compile("((?!))")
_LONG_SCAFFOLD = 200


class TemplateEmission(Emission):
    """An emission that remembers with what its conversation asks for a reply."""

    __slots__ = ("asks",)
    asks: str


def any_slot(contents: Mapping[str, str]) -> re.Pattern[str]:
    """What finds the slots that have a content."""
    return re.compile("(" + "|".join(map(re.escape, contents)) + ")") if contents else _NOTHING


class Writer:
    """Writes rendered text.

    Args:
        mask: What hid the names of control tokens in content.
        is_emitted: Whether what is written leaves the renderer; else it is only compared, and may have words of probes.
    """

    def __init__(self, mask: Mask, *, is_emitted: bool = True) -> None:
        self._mask = mask
        self._restore = mask.restore if is_emitted else mask.restore_compared

    def fill(
        self,
        out: Emission,
        text: str,
        contents: Mapping[str, str],
        slots: re.Pattern[str] | None = None,
        *,
        is_scaffold: bool = True,
    ) -> None:
        """Write a text and the contents of its slots; of many texts with the same contents, give `any_slot` once."""
        slots = any_slot(contents) if slots is None else slots
        for index, part in enumerate(slots.split(text)):
            if index % 2:
                out.content(self._restore(contents[part]))
            else:
                self.write(out, part, is_scaffold=is_scaffold)

    def write(self, out: Emission, text: str, *, is_scaffold: bool = True) -> None:
        """Write rendered text. What was hidden in it is content; so is what is too long to be remembered."""
        if is_scaffold and len(text) <= _LONG_SCAFFOLD and not has_stem(text):
            out.scaffold(text)
            return
        for part, is_control in self._mask.parts(text):
            shown = part if is_control else self._restore(part)
            is_own = is_control or (is_scaffold and shown == part and len(part) <= _LONG_SCAFFOLD)
            out.scaffold(part) if is_own else out.content(shown)

    def write_beside(self, out: Emission, text: str, content: str) -> None:
        """Write a rendered message; of all that stands between its control tokens, `content` is somebody's."""
        if content and content not in text:  # it is written in another way: nothing of this is worth remembering
            self.write(out, text, is_scaffold=False)
            return
        for part, is_control in self._mask.parts(text):
            before, found, after = part.partition(content) if content and not is_control else (part, "", "")
            self.write(out, before)
            out.content(self._restore(found))
            self.write(out, after)
            content = "" if found else content
