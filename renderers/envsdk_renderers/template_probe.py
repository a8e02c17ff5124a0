"""What a chat template is probed with: sentinel messages, and the form of a conversation that it reads.

A sentinel is a word that means nothing to any template. It begins with `STEM`, which no content has (see `Mask`), so it
is nobody else's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from envsdk.errors import TemplateUnsupported
from envsdk.messages import Message, ToolCall, ToolSchema

from .harmless import Harmless
from .templates import PROBE_NAME, STEM, ChatTemplate, Dialect, Mask, TemplateFailed

Previous: TypeAlias = Literal["text", "reasoned", "call", "two calls", "tool"]
Following: TypeAlias = Literal["user", "tool", "tools", "tool then user", "system"]

PREVIOUS: tuple[Previous, ...] = ("text", "reasoned", "call", "two calls", "tool")
FOLLOWING: tuple[Following, ...] = ("user", "tool", "tools", "tool then user", "system")
REPLY, REASONING, SAID = f"{STEM}replyzq", f"{STEM}reasonzq", f"{STEM}saidzq"
"""What the sentinel's message ends with, thinks, and says beside its calls."""
KEY = f"{STEM.lower()}key"
QUESTION = f"{STEM}questionzq"
FIRST_CALL = f"{STEM}firstzq"
PROBE_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": PROBE_NAME,
        "description": f"{STEM}descriptionzq",
        "parameters": {
            "type": "object",
            "properties": {KEY: {"type": "string", "description": f"{STEM}parameterzq"}},
            "required": [KEY],
        },
    },
}


def slot(index: int) -> str:
    """The sentinel that stands for the content of the next messages' message `index`."""
    return f"{STEM}{index}slotzq"


def said_before(number: int) -> str:
    """What an earlier reply says or passes to a tool; another number, another reply, and another id of its calls."""
    return f"{STEM}past{number}zq"


@dataclass(frozen=True)
class Script:
    """A chat template with everything that is the same in all conversations of a renderer."""

    template: ChatTemplate
    mask: Mask
    dialect: Dialect
    arguments: Mapping[str, Any]

    def text(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, generation_prompt: bool = False
    ) -> str:
        """Render a conversation; raises `TemplateFailed`."""
        return self.template.render(
            self.dialect.messages(self.dialect.addressed(messages)),
            tools=self.dialect.tools(tools),
            generation_prompt=generation_prompt,
            arguments=self.arguments,
        )

    def proved(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), *, generation_prompt: bool = False
    ) -> str:
        """Render a conversation of which something will be emitted.

        Raises:
            TemplateUnsupported: If content and the template's own text together make a control token.
            TemplateFailed: If the template refuses.
        """
        text = self.text(messages, tools, generation_prompt=generation_prompt)
        twin = self._harmless.twin(messages, tools) if self.mask.hides_names else None
        if twin is not None:
            self._harmless.refuse_forged(text, self.text(*twin, generation_prompt=generation_prompt))
        return text

    @cached_property
    def _harmless(self) -> Harmless:
        return Harmless(self.mask, [self.mask.hide(text) for text in self.template.literals])


# Messages to probe with.


def user(text: str = QUESTION) -> Message:
    """A user's message."""
    return Message(role="user", content=text)


def reply_of(
    names: Sequence[str] = (),
    *,
    reasoning: str | None = None,
    text: str = REPLY,
    ids: Sequence[str | None] = (),
    said: str = "",
) -> Message:
    """An assistant's message whose last sampled word is the sentinel: its text, or the last argument of its calls.

    Args:
        names: The names of the functions that it calls.
        reasoning: Its reasoning.
        text: The sentinel.
        ids: The ids of its calls.
        said: The text that stands beside its calls.
    """
    values = [FIRST_CALL] * (len(names) - 1) + [text]
    calls = [
        ToolCall(name=name, arguments={KEY: value}, id=ids[index] if ids else None)
        for index, (name, value) in enumerate(zip(names, values, strict=True) if names else ())
    ]
    return Message(role="assistant", content=said if names else text, reasoning=reasoning, tool_calls=tuple(calls))


def results(reply: Message, count: int, first: int = 0) -> list[Message]:
    """The results of a reply's calls, each with a slot for its content."""
    calls = reply.tool_calls or (ToolCall(name=PROBE_NAME),)
    answered = [calls[min(index, len(calls) - 1)] for index in range(count)]
    return [Message(role="tool", content=slot(first + i), name=call.name) for i, call in enumerate(answered)]


def exchange(previous: Previous, following: Following) -> tuple[Message, list[Message]]:
    """The reply and the next messages of a pair."""
    is_tool = following.startswith("tool")
    count = 2 if previous == "two calls" else 1 if previous == "call" else 0
    if is_tool and previous in ("reasoned", "tool"):
        count = 2 if following == "tools" else 1
    reply = reply_of([PROBE_NAME] * count, reasoning=REASONING if previous == "reasoned" else None)
    answers = results(reply, 2 if following == "tools" else 1) if is_tool else []
    if following in ("user", "tool then user"):
        answers.append(user(slot(len(answers))))
    if following == "system":
        answers = [Message(role="system", content=slot(0))]
    return reply, answers


# Dialects.


def measure_dialect(template: ChatTemplate, mask: Mask, arguments: Mapping[str, Any]) -> Dialect:
    """Find the form of a conversation that the template reads.

    Raises:
        TemplateUnsupported: If it reads none of the usual forms.
    """
    forms = (Dialect(content=c, no_tools=n) for c in ("text", "parts") for n in ("none", "empty"))
    failures: list[TemplateFailed] = []
    spoken = next((form for form in forms if _says(Script(template, mask, form, arguments), failures)), None)
    if spoken is None:
        why = f": {failures[0]}" if failures else ""
        raise TemplateUnsupported(f"the chat template renders no user message, neither as text nor as parts{why}")
    calls = [
        Script(template, mask, replace(spoken, arguments=a, call_content=c, ids=ids), arguments)
        for ids in ("word", "function")
        for c in ("empty", "none", "absent")
        for a in ("dict", "text")
    ]
    readable = [script for script in calls if _calls(script)]
    named = (script for script in readable if PROBE_NAME in script.text([user(), reply_of([PROBE_NAME])], [PROBE_TOOL]))
    chosen = next(named, next(iter(readable), None))
    if chosen is None:
        return spoken
    given_text = replace(chosen.dialect, arguments="text")
    return replace(chosen.dialect, takes_text=_calls(replace(chosen, dialect=given_text)))


def _says(script: Script, failures: list[TemplateFailed]) -> bool:
    """Whether a user's message is rendered, as no Python; a failure joins the others."""
    try:
        text = script.text([user()], generation_prompt=True)
    except TemplateFailed as error:
        failures.append(error)
        return False
    return QUESTION in text and f"'{QUESTION}'" not in text


def _calls(script: Script) -> bool:
    """Whether calls are rendered, as no Python and no JSON inside JSON."""
    reply = reply_of([PROBE_NAME])
    for after in ([], results(reply, 1)):
        try:
            text = script.text([user(), reply, *after], [PROBE_TOOL])
        except TemplateFailed:
            return False
        if REPLY not in text or f"'{KEY}':" in text or f'\\"{KEY}\\"' in text or "None" in text:
            return False
    return True
