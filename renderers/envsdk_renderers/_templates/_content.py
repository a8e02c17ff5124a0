"""Measures how a chat template writes content, and which texts in content change more than their own message.

A template writes content verbatim, stripped or as JSON. If none of these fits all probes, the content is rendered each
time. The strings in the template's code are tried as content, since it may compare content with them.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from envsdk.messages import Message

from ._base import Base
from ._chat_template import TemplateFailed
from ._sentinels import QUESTION, REPLY, Following, exchange, slot, user

Transform: TypeAlias = Callable[[str], str]
TRANSFORMS: tuple[Transform, ...] = (
    lambda text: text,
    lambda text: text.strip(),
    lambda text: json.dumps(text, ensure_ascii=False),
)
_TEXTS = (" \n x \t\n", 'a "b" \\ {c}', "é\n\n<b>'&", "12", '{"a": [1]}', "", "  ", "\nx", "x\n")


@dataclass(frozen=True)
class ContentRules:
    """The rules by which content of each role is written after a reply."""

    transforms: Mapping[str, int]
    """For each role whose content is written by a transform, its index in `TRANSFORMS`."""
    special: Mapping[str, tuple[str, ...]]
    """For each of these roles, the strings for which the transform is wrong."""
    triggers: tuple[str, ...]
    """The strings that change what follows a later reply if they occur in the past."""

    def write(self, message: Message) -> str | None:
        """Return what the template writes for a message's content; None if that has to be rendered."""
        index = self.transforms.get(message.role)
        if index is None or message.images:
            return None
        special = self.special[message.role]
        is_special = any(text in message.content if text.strip() else text == message.content for text in special)
        return None if is_special else TRANSFORMS[index](message.content)

    def slot(self, role: str, index: int) -> str:
        """Return what the template writes for the sentinel of message `index`."""
        return TRANSFORMS[self.transforms.get(role, 0)](slot(index))


def measure_content(base: Base) -> ContentRules:
    """Measure the rules on a fixed base."""
    literals = [base.template.mask.hide(text) for text in base.template.chat_template.literals]

    def with_content(role: Following, text: str, question: str = QUESTION) -> str | None:
        reply, answers = exchange("call" if role == "tool" else "text", role)
        answer = answers[0].model_copy(update={"content": text})
        try:
            return base.text([user(question), reply, answer], generation_prompt=True).rpartition(REPLY)[2]
        except TemplateFailed:
            return None

    roles: tuple[Following, ...] = ("user", "tool", "system")
    plain = {role: with_content(role, slot(0)) for role in roles}

    def fits(role: Following, transform: Transform, text: str) -> bool:
        expected = plain[role]
        return expected is not None and with_content(role, text) == expected.replace(
            transform(slot(0)), transform(text)
        )

    transforms: dict[str, int] = {}
    for role in roles:
        for index, transform in enumerate(TRANSFORMS):
            if role not in transforms and all(fits(role, transform, text) for text in _TEXTS[:2]):
                transforms[role] = index
    texts = [*literals, *_TEXTS]
    special = {
        role: tuple(text for text in texts if not fits(role, TRANSFORMS[index], text))
        for role in roles
        if (index := transforms.get(role)) is not None
    }
    changed = {text: with_content("user", slot(0), text) for text in literals if plain["user"] is not None}
    triggers = tuple(text for text, found in changed.items() if found not in (plain["user"], None))
    return ContentRules(transforms, special, triggers)
