"""The rule by which a chat template shows past reasoning: as data, measured, and proved on whole episodes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, pairwise, product
from typing import Literal, TypeAlias

from envsdk.contexts._context import Context
from envsdk.contexts._history import Strip
from envsdk.errors import RenderError
from envsdk.messages import Message, ToolCall, ToolSchema
from envsdk.rendering.renderer import Renderer

from ._bound_template import BoundTemplate
from ._chat_template import TemplateFailed
from ._mask import PROBE_NAME, STEM
from ._sentinels import PROBE_TOOL, reply_of, results, user

Hides: TypeAlias = Literal["nothing", "everything", "before the last user messages", "up to the last answer"]


@dataclass(frozen=True)
class HistoryRule:
    """The rule for the reasoning of past replies that a chat template shows in a prompt."""

    hides: Hides
    """The replies that lose their reasoning. An answer is a reply without calls."""
    users: int = 1
    """The N of "before the last N user messages"."""
    shows_empty: bool = True
    """True if an empty think block stays where reasoning would be shown."""
    has_calls: bool = True
    """True if the rule is also proved for conversations with calls."""
    triggers: tuple[tuple[str, ...], ...] = ()
    """Texts of user and system messages that change what is shown: each time, all of them together in one message."""

    def __str__(self) -> str:
        reasoning = {
            "nothing": "no reasoning",
            "everything": "all reasoning",
            "before the last user messages": f"reasoning before the last {self.users} user messages",
            "up to the last answer": "reasoning up to the last answer",
        }[self.hides]
        return f"hides {reasoning}" + ("" if self.shows_empty else " and empty think blocks")

    def settles(self, message: Message) -> bool:
        """Return whether no message before the last `users` of these can change anymore."""
        if self.hides == "before the last user messages":
            return message.role == "user"
        if self.hides == "up to the last answer":
            return message.role == "assistant" and not message.tool_calls
        return message.role != "assistant"

    def covers(self, message: Message) -> bool:
        """Return whether the rule holds in a conversation with this message, in which control tokens are hidden."""
        if message.role == "assistant":
            return self.has_calls or not message.tool_calls
        return not any(all(text in message.content for text in texts) for texts in self.triggers)

    def visible(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages as the template shows them in a prompt; see `Renderer.visible`."""
        hidden = len(messages) if self.hides == "everything" else 0  # how many at the start show no reasoning
        if self.hides not in ("nothing", "everything"):
            settling = [index for index, message in enumerate(messages) if self.settles(message)]
            count = self.users if self.hides == "before the last user messages" else 1
            if len(settling) >= count:
                hidden = settling[-count] + (self.hides == "up to the last answer")
        return [
            message.with_reasoning(None) if index < hidden or not (message.reasoning or self.shows_empty) else message
            for index, message in enumerate(messages)
        ]


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


def candidate_rules(template: BoundTemplate) -> Iterator[HistoryRule]:
    """Yield the rules that agree with all probes of a template, those that are proved more often first."""
    plain = [conversation_of(kinds) for kinds in _WITHOUT_CALLS]
    calling = [m for kinds in _WITH_CALLS if _shown(template, m := conversation_of(kinds)) is not None]
    for probes in (plain + calling, plain) if calling else (plain,):
        for rule in _CANDIDATES:
            if all(_fits(template, rule, messages) for messages in probes):
                found = replace(rule, has_calls=probes is not plain)
                found = replace(found, triggers=_triggers(template, found))
                yield from (found, replace(found, shows_empty=False))
                break


def _fits(template: BoundTemplate, rule: HistoryRule, messages: Sequence[Message]) -> bool:
    shown = _shown(template, messages)
    visible = [message.reasoning for message in rule.visible(messages) if message.reasoning]
    return shown is None or shown == visible


def _shown(template: BoundTemplate, messages: Sequence[Message]) -> list[str] | None:
    """Return the reasoning that the template shows in a prompt; None if it refuses the conversation."""
    tools = [PROBE_TOOL] if any(message.tool_calls for message in messages) else []
    try:
        text = template.text(messages, tools, generation_prompt=True)
    except TemplateFailed:
        return None
    return [message.reasoning for message in messages if message.reasoning and message.reasoning in text]


def _triggers(template: BoundTemplate, rule: HistoryRule) -> tuple[tuple[str, ...], ...]:
    """Return the strings of the template that break the rule if a user's or the system's message has them."""
    hide, (starts, ends) = template.mask.hide, template.chat_template.edges
    texts = [(hide(text),) for text in template.chat_template.literals]
    texts += [(hide(start), hide(end)) for start, end in product(starts, ends)]
    probe = conversation_of("uctuct" if rule.has_calls else "ururu")
    last = max(index for index, message in enumerate(probe) if message.role == "user")
    found: dict[tuple[str, ...], None] = {}
    for given in texts:
        content = f"{STEM}midzq".join(given if len(given) > 1 else (*given, ""))
        said = [*probe[:last], user(content), *probe[last + 1 :]]
        instructed = [Message(role="system", content=content), *said]
        if not _fits(template, rule, said if _shown(template, instructed) is None else instructed):
            found[given] = None
    return tuple(found)


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


TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}
_PLAYED = ("ururururu", "sururu")
_PLAYED_WITH_CALLS = ("uctctctructructructructctctru", "suructctructru", "uctructuructu", "udttructdttru")
"""The kinds of messages: the system's, a user's, a reply, a reply with one call or two, a tool's result."""
_REASONING = ("I think.", None, "", "Two lines,\nof them one last.", "Again.", "", None)


def refutation(renderer: Renderer, *, has_calls: bool) -> str | None:
    """Return where a prompt under `strip` differs from the template's own; None if none does.

    Args:
        renderer: A renderer with a rule for past reasoning.
        has_calls: Whether to play episodes with calls, too.
    """
    # A template may have no system message, no parallel calls, and no user's turn after a result.
    needed = (_PLAYED[0], _PLAYED_WITH_CALLS[0])
    for kinds in (*_PLAYED, *(_PLAYED_WITH_CALLS if has_calls else ())):
        try:
            found = _difference(renderer, list(_conversation(kinds)), [TOOL] if "t" in kinds else [])
        except RenderError as error:
            found = f"an episode is refused: {error}" if kinds in needed else None
        if found:
            return found
    return None


def _difference(renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> str | None:
    """Play an episode; return the first difference of a prompt from the whole conversation's rendering."""
    context = Context("proof", "", renderer, Strip())
    replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
    context.open(messages[: replies[0]], tools)
    for reply, following in pairwise([*replies, len(messages)]):
        context.act(renderer.reply(messages[reply]), None)
        context.take_reply()
        context.observe(messages[reply + 1 : following])
        whole = renderer.render(context.messages, tools=tools, generation_prompt=True)
        found, expected = (renderer.tokenizer.decode(tokens) for tokens in (context.prompt(), whole.tokens))
        if found != expected:
            at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), 0)
            return f"{found[max(at - 20, 0) : at + 40]!r} is {expected[max(at - 20, 0) : at + 40]!r} in the template"
    return None


def _conversation(kinds: str) -> Iterator[Message]:
    """Yield messages of these kinds, with reasoning, without it, and with empty reasoning."""
    thoughts, calls = cycle(_REASONING), list[ToolCall]()
    for index, kind in enumerate(kinds):
        if kind in "su":
            yield Message(role="system" if kind == "s" else "user", content=f"Text {index}.")
        elif kind == "t":
            yield Message(role="tool", content=f"Result {index}.", name="look_up", tool_call_id=calls.pop(0).id)
        else:
            count = "rcd".index(kind)
            calls = [
                ToolCall(name="look_up", arguments={"what": f"thing {index}"}, id=f"call{index:02d}a{number:02d}")
                for number in range(count)
            ]
            content, reasoning = "" if count else f"Answer {index}.", next(thoughts)
            yield Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls))
