"""Returns what a chat template writes after replies: measured once for each shape of a turn, then cached.

Knows nothing about tokens.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import TypeAdapter

from envsdk.errors import RenderError, TemplateUnsupported
from envsdk.messages import Message, ToolSchema
from envsdk.rendering.tokenizers import ChatTemplateSource, Tokenizer

from ._base import Base, Tail
from ._bound_template import BoundTemplate, Dialect, bind_template
from ._chat_template import ChatTemplate
from ._content import ContentRules, measure_content
from ._mask import PROBE_NAME, TextMask, map_strings
from ._sentinels import CALL_CONTENT, PROBE_TOOL, REASONING, reply_of, slot, user
from ._store import Store, remember
from ._verdicts import EXAMPLE_TOOL, judge, rewritten_past, sentinel_past

_MANY_BASES = 256
_CONTENT = TypeAdapter(ContentRules)
_EXAMPLE = TypeAdapter(str)
_Value = TypeVar("_Value")


@dataclass
class TemplateTurns:
    """The turns of all episodes with one template.

    Attributes:
        template: The template.
        ends: The tokens that are known to end a turn.
        store: Keeps measurements on disk.
    """

    template: BoundTemplate
    ends: Sequence[str]
    store: Store | None = None
    _measured: dict[str, Any] = field(default_factory=dict[str, Any])
    _bases: dict[str, Base] = field(default_factory=dict[str, Base])

    def hide(self, message: Message) -> Message:
        """Return the message as the template may see it."""
        return self.template.mask.hide_message(self.template.dialect.readable(message))

    def hide_tools(self, tools: Sequence[ToolSchema]) -> list[ToolSchema]:
        """Return the tools as the template may see them."""
        return [map_strings(tool, self.template.mask.hide) for tool in tools]

    def base(self, start: Sequence[Message], tools: Sequence[ToolSchema]) -> Base:
        """Return the fixed base of an episode, which has the episode's system message and tools."""
        system = start[0] if start and start[0].role == "system" else None
        key = repr((system, tools))
        if key not in self._bases:
            shown = [self.hide(system)] if system else []
            base = Base(self.template, self.ends, shown, self.hide_tools(tools))
            remember(self._bases, key, base, at_most=_MANY_BASES)
        return self._bases[key]

    def measured(self, name: str, adapter: TypeAdapter[_Value], measure: Callable[[], _Value]) -> _Value:
        """Return a measurement of this process or of an earlier one, or measure it; it depends on no episode.

        Args:
            name: The name of the measurement, with the options that it depends on besides those of the template.
            adapter: Reads and writes it as JSON.
            measure: Measures it. What it raises is not kept.
        """
        if name not in self._measured:
            self._measured[name] = self.store.measured(name, adapter, measure) if self.store else measure()
        return self._measured[name]

    def rewriting(self, *, has_system: bool, has_tools: bool) -> str:
        """Return an example of how the template rewrites earlier text of users or the system; empty if it does not.

        Args:
            has_system: Whether the conversation begins with a system message.
            has_tools: Whether the model has tools.
        """
        start = [Message(role="system", content="Be brief.")] if has_system else []
        base = self.base(start, (EXAMPLE_TOOL,) if has_tools else ())
        return self.measured(
            f"rewriting {has_system:d}{has_tools:d}",
            _EXAMPLE,
            lambda: rewritten_past(base, calls=False) or (rewritten_past(base, calls=True) if has_tools else ""),
        )

    def _rules(self, has_tools: bool) -> ContentRules:
        """Return the rules by which content is written after a reply."""
        name = "content with tools" if has_tools else "content without tools"
        return self.measured(name, _CONTENT, lambda: measure_content(self.base((), (PROBE_TOOL,) * has_tools)))

    def refuse_triggers(self, hidden: Sequence[Message]) -> None:
        """Refuse messages that would change what the template writes after later replies."""
        for message in hidden:
            triggers = () if message.role == "assistant" else self._rules(False).triggers
            found = next((text for text in triggers if text in message.content), None)
            if found is not None:
                raise TemplateUnsupported(
                    f"a {message.role} message contains {self.template.mask.restore(found)!r}, which changes how this "
                    "template renders all turns after it"
                )

    def tail(
        self, history: Sequence[Message], reply: Message, answers: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[Tail, Mapping[str, str]]:
        """Return what the template writes after the reply, with slots, and the contents of the slots.

        Args:
            history: The messages before the reply; only the first and the last one are read.
            reply: The reply.
            answers: The messages that come next.
            tools: The tools that the model has.

        Raises:
            TemplateUnsupported: If the tail is not known, or an answer contains a string that changes later turns.
        """
        base = self.base(history[:1], tools)
        previous = history[-1] if history else None
        hidden = [self.hide(answer) for answer in answers]
        self.refuse_triggers(hidden)
        rules = self._rules(bool(tools))
        contents = [rules.write(message) for message in hidden]
        is_known = None not in contents
        shape = self.hide(_shape(reply))
        if is_known and not (reply.tool_calls and base.writes_ids):
            shape, *shown = self.template.dialect.addressed([shape, *hidden], adds_ids=False)
            calls = tuple([call.model_copy(update={"id": None}) for call in shape.tool_calls])
            shape = shape.model_copy(update={"tool_calls": calls})
            shown = [message.model_copy(update={"tool_call_id": None}) for message in shown]
        else:  # an id is made of the arguments
            shape, *shown = self.template.dialect.addressed([self.hide(reply), *hidden])
        shape = base.without_moved_text(shape)
        if not is_known:
            # Where a slot is, is found without rendering the conversation up to it.
            is_rendered = any(c is None and not a.images for a, c in zip(hidden, contents, strict=True))
            held = {i: content for i, content in enumerate(contents) if content is not None and not is_rendered}
            shown = [m.model_copy(update={"content": slot(i)}) if i in held else m for i, m in enumerate(shown)]
            tail = self._measured_tail(base, previous, shape, shown)
            return tail, {rules.slot(shown[index].role, index): content for index, content in held.items()}
        thinks = None if shape.reasoning is None else bool(shape.reasoning)
        names = tuple((call.name, call.id) for call in shape.tool_calls)
        key: tuple[object, ...] = (previous is not None and previous.role == "tool", thinks, bool(shape.content), names)
        key = (*key, *((answer.role, answer.tool_call_id, answer.name) for answer in shown))
        tail = base.tails.get(key)
        if tail is None:
            slotted = [message.model_copy(update={"content": slot(i)}) for i, message in enumerate(shown)]
            tail = self._measured_tail(base, previous, shape, slotted)
            remember(base.tails, key, tail)
        slots = [rules.slot(message.role, index) for index, message in enumerate(answers)]
        return tail, {name: content or "" for name, content in zip(slots, contents, strict=True)}

    def _measured_tail(self, base: Base, previous: Message | None, reply: Message, answers: Sequence[Message]) -> Tail:
        """Measure what follows a sentinel of the reply's shape, if that can be relied on.

        The sentinel has no reasoning if the template has none.
        """
        calls, call_content = reply.tool_calls, CALL_CONTENT if reply.content else ""
        reasoning = reply.reasoning and REASONING
        names, ids = [call.name for call in calls], [call.id for call in calls]
        sentinel = reply_of(names, ids=ids, reasoning=reasoning, call_content=call_content)
        generic = reply_of([PROBE_NAME] * len(calls), reasoning=reasoning, call_content=sentinel.content)
        is_after_tool = previous is not None and previous.role == "tool"
        kind = "reasoned" if reasoning else "call" if len(calls) == 1 else "two calls" if calls else "text"
        if is_after_tool:
            kind = "tool" if kind == "text" else f"{kind} after a tool"
        pair = kind, " then ".join(answer.role for answer in answers) or "nothing"
        slotted = [Message(role=answer.role, content=slot(index)) for index, answer in enumerate(answers)]
        judgement = judge(base, generic, slotted, is_after_tool=is_after_tool, pair=pair)
        if judgement.status == "not possible" and reasoning is not None:
            sentinel = sentinel.with_reasoning(None)
            generic = generic.with_reasoning(None)
            judgement = judge(base, generic, slotted, is_after_tool=is_after_tool, pair=pair)
        if judgement.error is not None:
            raise judgement.error.with_traceback(None)
        return base.tail(sentinel_past(previous), sentinel, answers, pair)

    def opener(self, reply: Message, following: Message) -> str | None:
        """Return the token that opens the next message, if it ends a reply; None if it is not known."""
        is_tool = following.role == "tool"
        sentinel = reply_of([PROBE_NAME] * max(len(reply.tool_calls), int(is_tool)))
        answer = Message(role=following.role, content=slot(0))
        try:
            return self.base((), (PROBE_TOOL,) if sentinel.tool_calls else ()).tail([user()], sentinel, [answer]).stop
        except RenderError:
            return None


def _shape(reply: Message) -> Message:
    """Return a reply of the same shape, without the content of its fields.

    Unless a template writes ids, which are made of the arguments, its text after a reply depends on nothing else.
    """
    calls = tuple([call.model_copy(update={"arguments": {}}) for call in reply.tool_calls])
    reasoning = reply.reasoning and REASONING
    return reply.model_copy(update={"content": reply.content and "x", "reasoning": reasoning, "tool_calls": calls})


_MANY = 64
_DIALECT = TypeAdapter(Dialect)
_LOCK = threading.Lock()
_TURNS: dict[str, TemplateTurns] = {}


def turns_of(
    source: ChatTemplateSource,
    tokenizer: Tokenizer,
    ends: Sequence[str],
    *,
    date: str,
    arguments: Mapping[str, Any],
    hides_names: bool,
) -> TemplateTurns:
    """Return the turns of a template, which all renderers with the same template, vocabulary and options share.

    Args:
        source: The template, with its special tokens.
        tokenizer: The tokenizer.
        ends: The tokens that are known to end a turn.
        date: The date that the template's `strftime_now` returns.
        arguments: Further arguments of the template.
        hides_names: Whether names of control tokens are hidden in content.

    Raises:
        TemplateUnsupported: If the template renders no user message.
    """
    options = [source.text, source.special_tokens, ends, date, arguments, hides_names, tokenizer.fingerprint]
    try:
        key = hashlib.sha256(json.dumps(options).encode(errors="surrogatepass")).hexdigest()
    except TypeError:  # an argument that is not JSON, which may change
        key = ""
    with _LOCK:
        if key in _TURNS:
            return _TURNS[key]
        compiled = ChatTemplate(source.text, date=date, special_tokens=source.special_tokens)
        mask, given = TextMask(list(tokenizer.control_tokens), hides_names=hides_names), dict(arguments)
        if not key:
            return TemplateTurns(bind_template(compiled, mask, given), ends)
        store = Store(key)
        dialect = store.measured("dialect", _DIALECT, lambda: bind_template(compiled, mask, given).dialect)
        turns = TemplateTurns(BoundTemplate(compiled, mask, dialect, given), ends, store)
        remember(_TURNS, key, turns, at_most=_MANY)
        return turns
