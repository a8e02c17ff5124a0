"""Writes rendered text as pieces of an emission: the template's own text as scaffold, the messages' as content.

Strings that were hidden from the template are restored here, as content.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from envsdk.errors import TemplateUnsupported
from envsdk.rendering.emission import Emission, Encoder

from ._mask import TextMask, count_stems, has_stem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NOTHING = re.compile("((?!))")
_LONG_SCAFFOLD = 200


class TemplateEmission(Emission):
    """An emission that stores the generation prompt of its conversation, and refuses words of probes and masks."""

    __slots__ = ("_given", "generation_prompt")
    generation_prompt: str

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self._given = 0
        """How often the stem is in the content, which may contain it like any other text."""

    def content(self, text: str) -> None:
        """See `Emission.content`."""
        self._given += count_stems(text)
        super().content(text)

    def tokens(self) -> "tuple[NDArray[np.int32], list[int]]":
        """See `Emission.tokens`.

        Raises:
            TemplateUnsupported: If a word of a probe or a mask was written, whole or in parts.
        """
        written = "".join([piece.text for piece in self._pieces])
        if count_stems(written) > self._given:
            raise TemplateUnsupported("a word of a probe or of the mask would reach the model", rendered=written)
        return super().tokens()


def any_slot(contents: Mapping[str, str]) -> re.Pattern[str]:
    """Return a pattern that matches the slots of these contents."""
    return _any_of(tuple(contents)) if contents else _NOTHING


@lru_cache(maxsize=256)
def _any_of(slots: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("(" + "|".join(map(re.escape, slots)) + ")")


class Writer:
    """Writes rendered text.

    Args:
        mask: The mask that hid the names of control tokens in content.
        is_emitted: Whether the text leaves the renderer; if not, it is only compared, and may contain words of probes.
    """

    def __init__(self, mask: TextMask, *, is_emitted: bool = True) -> None:
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
        """Write text and the contents of its slots; give `any_slot(contents)` if several strings have these slots."""
        slots = any_slot(contents) if slots is None else slots
        for index, part in enumerate(slots.split(text)):
            if index % 2:
                out.content(self._restore(contents[part]))
            else:
                self.write(out, part, is_scaffold=is_scaffold)

    def write(self, out: Emission, text: str, *, is_scaffold: bool = True) -> None:
        """Write rendered text. Hidden texts in it are content, and so are texts that are too long to be cached."""
        if is_scaffold and len(text) <= _LONG_SCAFFOLD and not has_stem(text):
            out.scaffold(text)
            return
        for part, is_control in self._mask.parts(text):
            shown = part if is_control else self._restore(part)
            is_own = is_control or (is_scaffold and shown == part and len(part) <= _LONG_SCAFFOLD)
            out.scaffold(part) if is_own else out.content(shown)

    def write_message(self, out: Emission, text: str, content: str) -> None:
        """Write a rendered message, in which `content` is the text of the message and everything else is scaffold."""
        if content and content not in text:  # the template changes it: nothing of this text is worth caching
            self.write(out, text, is_scaffold=False)
            return
        for part, is_control in self._mask.parts(text):
            at = self._mask.find(part, content, 0) if content and not is_control else -1
            if at < 0:
                self.write(out, part)
                continue
            self.write(out, part[:at])
            out.content(self._restore(content))
            self.write(out, part[at + len(content) :])
            content = ""
