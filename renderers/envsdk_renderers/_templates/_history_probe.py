"""Measures by which rule a chat template shows past reasoning: which sentinels survive where.

A measured rule is only a candidate. `FixedBase` proves it on whole episodes before it uses it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from envsdk.messages import Message

from ._bound_template import BoundTemplate
from ._chat_template import TemplateFailed
from ._history_rule import HistoryRule
from ._mask import PROBE_NAME, STEM
from ._sentinels import PROBE_TOOL, reply_of, results, user

_CANDIDATES = (
    HistoryRule("everything"),
    HistoryRule("before the last user messages"),
    HistoryRule("nothing"),
    HistoryRule("up to the last answer"),
    HistoryRule("before the last user messages", users=2),
    HistoryRule("before the last user messages", users=3),
)
_WITHOUT_CALLS = ("uru", "ururu", "urururu", "ururururu")
_WITH_CALLS = ("uct", "uctct", "uctru", "uructct", "uctctru", "uctuct", "uctructct", "uctu", "uctructructructru")
"""The kinds of messages of a conversation: a user's, a reply, a reply with a call, a tool's result."""


class HistoryProbe:
    """Measures the rule of one template.

    Args:
        template: The template.
    """

    def __init__(self, template: BoundTemplate) -> None:
        self._template = template

    def rules(self) -> Iterator[HistoryRule]:
        """Yield the rules that agree with all probes, those that are proved more often first."""
        plain = [conversation_of(kinds) for kinds in _WITHOUT_CALLS]
        calling = [messages for kinds in _WITH_CALLS if self._writes(messages := conversation_of(kinds))]
        for probes in (plain + calling, plain) if calling else (plain,):
            fitting = [rule for rule in _CANDIDATES if all(self._fits(rule, messages) for messages in probes)]
            for rule in fitting[:1]:
                found = replace(rule, has_calls=probes is not plain)
                found = replace(found, triggers=self._triggers(found))
                yield from (found, replace(found, shows_empty=False))

    def _writes(self, messages: Sequence[Message]) -> bool:
        return self._shown(messages) is not None

    def _fits(self, rule: HistoryRule, messages: Sequence[Message]) -> bool:
        shown = self._shown(messages)
        visible = [message.reasoning for message in rule.visible(messages) if message.reasoning]
        return shown is None or shown == visible

    def _shown(self, messages: Sequence[Message]) -> list[str] | None:
        """Return the reasoning that the template shows in a prompt; None if it refuses the conversation."""
        tools = [PROBE_TOOL] if any(message.tool_calls for message in messages) else []
        try:
            text = self._template.text(messages, tools, generation_prompt=True)
        except TemplateFailed:
            return None
        return [message.reasoning for message in messages if message.reasoning and message.reasoning in text]

    def _triggers(self, rule: HistoryRule) -> tuple[tuple[str, ...], ...]:
        """Return the strings of the template that break the rule if a user's or the system's message has them."""
        hide, template = self._template.mask.hide, self._template.chat_template
        starts, ends = template.edges
        texts = [(hide(text),) for text in template.literals]
        texts += [(hide(start), hide(end)) for start, end in product(starts, ends)]
        probe = conversation_of("uctuct" if rule.has_calls else "ururu")
        return tuple(dict.fromkeys(found for found in texts if self._breaks(rule, found, probe)))

    def _breaks(self, rule: HistoryRule, texts: tuple[str, ...], probe: Sequence[Message]) -> bool:
        content = f"{STEM}midzq".join(texts if len(texts) > 1 else (*texts, ""))
        last = max(index for index, message in enumerate(probe) if message.role == "user")
        said = [*probe[:last], user(content), *probe[last + 1 :]]
        instructed = [Message(role="system", content=content), *said]
        return not self._fits(rule, instructed if self._writes(instructed) else said)


def conversation_of(kinds: str) -> list[Message]:
    """Return sentinel messages of these kinds; each reply has its own reasoning."""
    messages: list[Message] = []
    for index, kind in enumerate(kinds):
        reasoning, sentinel = f"{STEM}{index}thoughtzq", f"{STEM}{index}textzq"
        if kind == "u":
            messages.append(user(sentinel))
        elif kind == "t":
            messages += results(messages[-1], 1, index)
        else:
            names = [PROBE_NAME] if kind == "c" else []
            messages.append(reply_of(names, reasoning=reasoning, sentinel=sentinel))
    return messages
