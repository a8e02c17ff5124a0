"""What a chat template puts behind the replies of episodes: measured once for each shape of a turn, and remembered.

Knows nothing about tokens.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import orjson

from envsdk.errors import RenderError, TemplateUnsupported
from envsdk.messages import Message, ToolSchema

from .content_probe import ContentRules
from .template_base import Base, Pair, Tail, remember, tail_base
from .template_probe import PROBE_TOOL, REASONING, SAID, Script, reply_of, slot, user
from .templates import PROBE_NAME

_MANY_BASES = 256


class TemplateTurns:
    """The turns of all episodes with one template.

    Args:
        script: The template.
        ends: The tokens that are known to end a turn.
    """

    def __init__(self, script: Script, ends: Sequence[str]) -> None:
        self._script = script
        self._mask = script.mask
        self._ends = ends
        self._bases: dict[tuple[str | None, bytes], Base] = {}

    def hide(self, message: Message) -> Message:
        """The message as the template may see it."""
        return self._mask.hide_message(self._script.dialect.readable(message))

    def hide_tools(self, tools: Sequence[ToolSchema]) -> list[ToolSchema]:
        """The tools as the template may see them."""
        return [self._mask.hide_all(tool) for tool in tools]

    def base(self, start: Sequence[Message], tools: Sequence[ToolSchema]) -> Base:
        """The fixed base of an episode; the system message is its own."""
        system = start[0] if start and start[0].role == "system" else None
        key = (system.content if system else None, orjson.dumps(list(tools), default=_as_dict) if tools else b"")
        base = self._bases.get(key)
        if base is None:
            if len(self._bases) >= _MANY_BASES:
                del self._bases[next(iter(self._bases))]
            shown = self.hide(system) if system else None
            base = self._bases[key] = Base(self._script, self._ends, shown, self.hide_tools(tools))
        return base

    @cached_property
    def _rules_with_tools(self) -> ContentRules:
        return ContentRules(self.base((), (PROBE_TOOL,)), self._literals)

    @cached_property
    def _rules_without_tools(self) -> ContentRules:
        return ContentRules(self.base((), ()), self._literals)

    @property
    def _literals(self) -> list[str]:
        return [self._mask.hide(text) for text in self._script.template.literals]

    def refuse_triggers(self, hidden: Sequence[Message]) -> None:
        """Refuse messages that would change what the template writes after later replies."""
        for message in hidden:
            found = None if message.role == "assistant" else self._rules_without_tools.trigger(message.content)
            if found:
                raise TemplateUnsupported(
                    f"a {message.role} message has {self._mask.restore(found)!r} in it, which changes how this "
                    "template renders all turns after it"
                )

    def tail(
        self, history: Sequence[Message], reply: Message, answers: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[Tail, Mapping[str, str]]:
        """What the template puts behind the reply, with slots, and what stands in these.

        Args:
            history: What came before the reply; the first message and the last are read.
            reply: The reply.
            answers: What comes next.
            tools: The tools that the model has.

        Raises:
            TemplateUnsupported: If that is not known, or an answer has a text in it that changes later turns.
        """
        base = self.base(history[:1], tools)
        previous = history[-1] if history else None
        reply, *shown = self._script.dialect.addressed([self.hide(message) for message in (reply, *answers)])
        self.refuse_triggers(shown)
        rules = self._rules_with_tools if tools else self._rules_without_tools
        contents = [rules.write(message) for message in shown]
        if any(content is None for content in contents):
            return self._measured_tail(base, previous, reply, shown), {}
        if not (reply.tool_calls and base.writes_ids):
            reply, *shown = map(_without_ids, (reply, *shown))
        calls = tuple((call.name, call.id) for call in reply.tool_calls)
        thinks = None if reply.reasoning is None else bool(reply.reasoning)
        key = (previous is not None and previous.role == "tool", thinks, bool(reply.content), calls)
        key = (*key, *((answer.role, answer.tool_call_id, answer.name) for answer in shown))
        tail = base.tails.get(key)
        if tail is None:
            slotted = [message.model_copy(update={"content": slot(i)}) for i, message in enumerate(shown)]
            tail = self._measured_tail(base, previous, reply, slotted)
            remember(base.tails, key, tail)
        slots = [rules.slot(message.role, index) for index, message in enumerate(answers)]
        return tail, {name: content or "" for name, content in zip(slots, contents, strict=True)}

    def _measured_tail(self, base: Base, previous: Message | None, reply: Message, answers: Sequence[Message]) -> Tail:
        """Measure what follows a sentinel of the reply's shape, if that can be relied on."""
        names = [call.name for call in reply.tool_calls]
        ids = [call.id for call in reply.tool_calls]
        reasoning = None if reply.reasoning is None else REASONING if reply.reasoning else ""
        sentinel = reply_of(names, ids=ids, reasoning=reasoning, said=SAID if reply.content else "")
        pair = _pair(previous, sentinel, answers)
        sentinel = self._judge(base, sentinel, answers, pair)
        return base.tail(tail_base(previous), sentinel, answers, pair)

    def _judge(self, base: Base, reply: Message, answers: Sequence[Message], pair: Pair) -> Message:
        """The sentinel reply whose tail holds; one without reasoning where the template has none."""
        generic = reply_of([PROBE_NAME] * len(reply.tool_calls), reasoning=reply.reasoning, said=reply.content)
        slotted = [Message(role=answer.role, content=slot(index)) for index, answer in enumerate(answers)]
        is_after_tool = pair[0] == "tool" or pair[0].endswith("after a tool")
        judgement = base.judge(generic, slotted, is_after_tool=is_after_tool, pair=pair)
        if judgement.status == "not possible" and reply.reasoning is not None:
            return self._judge(base, reply.with_reasoning(None), answers, pair)
        if judgement.error is not None:
            raise judgement.error.with_traceback(None)
        return reply

    def opener(self, reply: Message, following: Message) -> str | None:
        """The token with which the next message opens, where that ends a reply; None if it is not known."""
        is_tool = following.role == "tool"
        sentinel = reply_of([PROBE_NAME] * max(len(reply.tool_calls), int(is_tool)))
        answer = Message(role=following.role, content=slot(0))
        try:
            return self.base((), (PROBE_TOOL,) if sentinel.tool_calls else ()).tail([user()], sentinel, [answer]).stop
        except RenderError:
            return None


def _without_ids(message: Message) -> Message:
    """The message, of whose ids nothing is written."""
    calls = [call if call.id is None else call.model_copy(update={"id": None}) for call in message.tool_calls]
    if message.tool_call_id is None and not calls:
        return message
    return message.model_copy(update={"tool_calls": tuple(calls), "tool_call_id": None})


def _as_dict(value: Any) -> Any:
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else str(value)


def _pair(previous: Message | None, reply: Message, answers: Sequence[Message]) -> Pair:
    """What an error calls a reply and what comes next."""
    calls = len(reply.tool_calls)
    name = "reasoned" if reply.reasoning else "call" if calls == 1 else "two calls" if calls else "text"
    if previous is not None and previous.role == "tool":
        name = "tool" if name == "text" else f"{name} after a tool"
    return name, " then ".join(answer.role for answer in answers) or "nothing"
