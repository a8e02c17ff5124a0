"""Measures how a chat template writes content, and which texts in content change more than their own message.

A template writes content verbatim, stripped or as JSON. If none of these fits all probes, the content is rendered each
time. The strings in the template's code are tried as content, since it may compare content with them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from envsdk.messages import Message

from ._base import Base
from ._chat_template import TemplateFailed
from ._sentinels import REPLY, exchange, slot, user

Transform: TypeAlias = Callable[[str], str]
TRANSFORMS: tuple[Transform, ...] = (
    lambda text: text,
    lambda text: text.strip(),
    lambda text: json.dumps(text, ensure_ascii=False),
)
_TEXTS = (" \n x \t\n", 'a "b" \\ {c}', "é\n\n<b>'&", "12", '{"a": [1]}', "", "  ", "\nx", "x\n")


@dataclass(frozen=True)
class MeasuredContent:
    """How a template writes content."""

    transforms: Mapping[str, int]
    """For each role whose content is written by a transform, its index in `TRANSFORMS`."""
    special: Mapping[str, tuple[str, ...]]
    """For each of these roles, the strings for which the transform is wrong."""
    triggers: tuple[str, ...]
    """The strings that change what follows a later reply if they occur in the past."""


class ContentRules:
    """The rules by which content of each role is written after a reply.

    Args:
        base: The fixed base to measure on.
        literals: The strings in the template's code.
    """

    def __init__(self, base: Base, literals: Sequence[str]) -> None:
        self._base = base
        self._literals = literals

    def write(self, message: Message) -> str | None:
        """Return what the template writes for a message's content; None if that has to be rendered."""
        transform = self._transform_of(message.role)
        if transform is None or message.images:
            return None
        special = self.measured.special[message.role]
        is_special = any(text in message.content if text.strip() else text == message.content for text in special)
        return None if is_special else transform(message.content)

    def slot(self, role: str, index: int) -> str:
        """Return what the template writes for the sentinel of message `index`."""
        transform = self._transform_of(role)
        return transform(slot(index)) if transform else slot(index)

    def trigger(self, content: str) -> str | None:
        """Return a text in the content that changes what the template writes for later turns; None if there is none."""
        return next((text for text in self.measured.triggers if text in content), None)

    @cached_property
    def measured(self) -> MeasuredContent:
        """What the rules are, measured when they are needed."""
        transforms: dict[str, int] = {}
        for role in ("user", "tool", "system"):
            for index, fit in enumerate(TRANSFORMS):
                if role not in transforms and all(self._fits(role, fit, text) for text in _TEXTS[:2]):
                    transforms[role] = index
        texts = [*self._literals, *_TEXTS]
        special = {
            role: tuple(text for text in texts if not self._fits(role, TRANSFORMS[index], text))
            for role, index in transforms.items()
        }
        reply, answers = exchange("text", "user")
        normal = self._rendered([user(), reply, *answers])
        triggers = tuple(
            text
            for text in self._literals
            if normal is not None and self._rendered([user(text), reply, *answers]) not in (normal, None)
        )
        return MeasuredContent(transforms, special, triggers)

    def _transform_of(self, role: str) -> Transform | None:
        index = self.measured.transforms.get(role)
        return None if index is None else TRANSFORMS[index]

    def _fits(self, role: str, transform: Transform, text: str) -> bool:
        plain, given = self._plain[role], self._with(role, text)
        return plain is not None and given == plain.replace(transform(slot(0)), transform(text))

    @cached_property
    def _plain(self) -> Mapping[str, str | None]:
        return {role: self._with(role, slot(0)) for role in ("user", "tool", "system")}

    def _with(self, role: str, text: str) -> str | None:
        reply, answers = exchange("call" if role == "tool" else "text", "system" if role == "system" else "user")
        answer = exchange("call", "tool")[1][0] if role == "tool" else answers[0]
        return self._rendered([user(), reply, answer.model_copy(update={"content": text})])

    def _rendered(self, messages: Sequence[Message]) -> str | None:
        try:
            return self._base.text(messages, generation_prompt=True, is_rare=True).rpartition(REPLY)[2]
        except TemplateFailed:
            return None
