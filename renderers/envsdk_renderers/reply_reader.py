"""Finds the reasoning in a reply, as a chat template was measured to write it.

What it finds is handed on between `<think>` tags, which is how the formats of `reply_formats` read reasoning.
"""

import re
from collections.abc import Iterator, Sequence

from envsdk.renderer import Segment

from .reply_probe import Thinking
from .templates import Mask

_OPEN, _CLOSE = "<think>", "</think>"


class ReasoningReader:
    """Reads the tags of one template.

    Args:
        control_names: The names of all control tokens; text that spells one is text.
        thinking: How the template writes reasoning, if it does.
        around_text: What it writes before and after the text of a reply.
        names: The control tokens that the renderer tells apart from text.
    """

    def __init__(
        self,
        control_names: Sequence[str],
        thinking: Thinking | None,
        around_text: Sequence[str],
        names: Sequence[str],
    ) -> None:
        self._mask = Mask(control_names)
        pairs = [(thinking.opener, _OPEN), (thinking.closer, _CLOSE)] if thinking else []
        self._tags = {text.strip(): (name, text[len(text.rstrip()) :]) for text, name in pairs if text.strip() != name}
        for text in around_text:
            if self._mask.controls(text) and not any(opener.strip() in text for opener, _ in pairs):
                self._tags[text.strip()] = ("", "")
        ordered = sorted([*self._tags, *names], key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, ordered)) + ")")

    def read(self, segments: Sequence[Segment]) -> Iterator[Segment]:
        """The segments of a reply with the tags of its reasoning as control tokens `<think>` and `</think>`.

        A tag that stands elsewhere is text.
        """
        if not self._tags:
            yield from segments
            return
        text = "".join(segment.control + self._mask.hide(segment.text) for segment in segments)
        first, *parts = self._cut.split(text)
        yield Segment("", self._mask.restore(first))
        wanted, is_blank = {_OPEN, _CLOSE}, not first.strip()
        for control, behind in zip(parts[::2], parts[1::2], strict=True):
            name, space = self._tags.get(control, (control, ""))
            is_tag = name in wanted and (is_blank or name == _CLOSE)
            is_around = not name and (is_blank or not behind.strip())
            if is_tag:
                wanted = {_CLOSE} if name == _OPEN else set[str]()
            elif control in self._tags and not is_around:
                name, behind = "", control + behind
            is_blank = (is_blank or name == _CLOSE) and not behind.strip()
            yield Segment(name, self._mask.restore(behind.removeprefix(space) if is_tag else behind))
