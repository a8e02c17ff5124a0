"""What a chat template is probed with: sentinel messages, and the form of a conversation that it reads.

A sentinel is a word that means nothing to any template.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from envsdk.errors import TemplateUnsupported
from envsdk.messages import Message, ToolCall, ToolSchema

from .templates import ChatTemplate, Dialect, Mask, TemplateFailed

Previous: TypeAlias = Literal["text", "reasoned", "call", "two calls", "tool"]
Following: TypeAlias = Literal["user", "tool", "tools", "tool then user", "system"]

PREVIOUS: tuple[Previous, ...] = ("text", "reasoned", "call", "two calls", "tool")
FOLLOWING: tuple[Following, ...] = ("user", "tool", "tools", "tool then user", "system")
REPLY, REASONING, SAID = "Qzreplyzq", "Qzreasonzq", "Qzsaidzq"
"""What the sentinel's message ends with, thinks, and says beside its calls."""
KEY = "qzkey"
_QUESTION = "Qzquestionzq"
PAST, FIRST_CALL = "Qzpastzq", "Qzfirstzq"
PROBE_NAME = "qzfunction"
PROBE_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": PROBE_NAME,
        "description": "Qzdescriptionzq",
        "parameters": {
            "type": "object",
            "properties": {KEY: {"type": "string", "description": "Qzparameterzq"}},
            "required": [KEY],
        },
    },
}


def slot(index: int) -> str:
    """The sentinel that stands for the content of the next messages' message `index`."""
    return f"Qz{index}slotzq"


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
            self.dialect.messages(messages),
            tools=self.dialect.tools(tools),
            generation_prompt=generation_prompt,
            arguments=self.arguments,
        )


# Messages to probe with.


def user(text: str = _QUESTION) -> Message:
    """A user's message."""
    return Message(role="user", content=text)


def reply_of(
    names: Sequence[str] = (),
    *,
    reasoning: str | None = None,
    text: str = REPLY,
    ids: Sequence[str] = (),
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
        ToolCall(name=name, arguments={KEY: value}, id=ids[index] if ids else f"qzcall{index}")
        for index, (name, value) in enumerate(zip(names, values, strict=True) if names else ())
    ]
    return Message(role="assistant", content=said if names else text, reasoning=reasoning, tool_calls=tuple(calls))


def results(reply: Message, count: int, first: int = 0) -> list[Message]:
    """The results of a reply's calls, each with a slot for its content."""
    calls = reply.tool_calls or (ToolCall(name=PROBE_NAME, id="qzcall0"),)
    answered = [calls[min(index, len(calls) - 1)] for index in range(count)]
    return [
        Message(role="tool", content=slot(first + i), tool_call_id=call.id, name=call.name)
        for i, call in enumerate(answered)
    ]


def addressed(messages: Sequence[Message]) -> list[Message]:
    """The messages with an id for each call, and for each tool's result the id and the name of the call it answers."""
    found: list[Message] = []
    calls: tuple[ToolCall, ...] = ()
    count = 0
    for message in messages:
        if message.role == "assistant":
            calls, count = _with_ids(message.tool_calls), 0
            message = message if calls == message.tool_calls else message.model_copy(update={"tool_calls": calls})
        elif message.role == "tool" and calls:
            call = next((c for c in calls if c.id == message.tool_call_id), calls[min(count, len(calls) - 1)])
            message = message.model_copy(update={"tool_call_id": call.id, "name": message.name or call.name})
            count += 1
        found.append(message)
    return found


def _with_ids(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    return tuple(c if c.id else c.model_copy(update={"id": f"qzcall{index}"}) for index, c in enumerate(calls))


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
    spoken = next((form for form in forms if _says(Script(template, mask, form, arguments), [user()], _QUESTION)), None)
    if spoken is None:
        raise TemplateUnsupported("the chat template renders no user message, neither as text nor as parts")
    calls = [
        replace(spoken, arguments=a, call_content=c) for c in ("empty", "none", "absent") for a in ("dict", "text")
    ]
    return next((form for form in calls if _calls(Script(template, mask, form, arguments))), spoken)


def _says(script: Script, messages: Sequence[Message], word: str) -> bool:
    try:
        text = script.text(messages, generation_prompt=True)
    except TemplateFailed:
        return False
    return word in text and f"'{word}'" not in text


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
