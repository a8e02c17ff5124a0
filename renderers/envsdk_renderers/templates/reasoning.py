"""Finds the reasoning in a reply, in the form in which a chat template was measured to write it.

It is passed on between `<think>` tags, from which the formats in `replies.formats` read reasoning.
"""

import re
from collections.abc import Sequence

from envsdk.rendering.renderer import Segment

from .mask import Mask
from .reply import Thinking

_OPEN, _CLOSE = "<think>", "</think>"


class ReasoningReader:
    """Reads the tags of reasoning of one template.

    Args:
        control_names: The names of all control tokens; text that spells one is text.
        thinking: How the template writes reasoning, if it does.
        around_text: The scaffold before and after the text of a reply.
        names: The control tokens that the renderer distinguishes from text.
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

    def read(self, segments: Sequence[Segment]) -> tuple[list[Segment], list[str]]:
        """Return a reply's segments with the tags of its reasoning as the control tokens `<think>` and `</think>`.

        A tag out of place is text, with an error. There is no error for an opening tag that is not a control token, in
        a reply that closes no block: it is a word of the text.

        Returns:
            The segments, and what is wrong with the tags.
        """
        if not self._tags:
            return list(segments), []
        text = "".join(segment.control + self._mask.hide(segment.text) for segment in segments)
        first, *parts = self._cut.split(text)
        found, errors = [Segment("", self._mask.restore(first))], dict[str, None]()
        wanted, is_blank = {_OPEN, _CLOSE}, not first.strip()
        names = [self._tags.get(control, (control, ""))[0] for control in parts[::2]]
        last_closer = max((index for index, name in enumerate(names) if name == _CLOSE), default=-1)
        for index, (control, after) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
            name, space = self._tags.get(control, (control, ""))
            opens = is_blank or index < last_closer or bool(self._mask.controls(control))
            is_tag = name in wanted and (opens or name == _CLOSE)
            is_around = not name and (is_blank or not after.strip())
            if is_tag:
                wanted = {_CLOSE} if name == _OPEN else set[str]()
            elif control in self._tags and not is_around:
                if name and name not in wanted:
                    errors[f"{control} is out of place"] = None
                name, after = "", control + after
            is_blank = (is_blank or name == _CLOSE) and not after.strip()
            found.append(Segment(name, self._mask.restore(after.removeprefix(space) if is_tag else after)))
        return found, list(errors)
