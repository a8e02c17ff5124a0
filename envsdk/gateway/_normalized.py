"""Compares messages by their meaning, in whatever form a program sends them. It does not depend on contexts.

FIELD: clients strip text, re-serialize arguments, drop reasoning, move text between strings and blocks, and write calls
into the text, and zero-width characters into the model's control tokens. None of this changes a message's meaning.
"""

import ast
import contextlib
import json
import operator
import re
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from ..contexts._edits import shared_length
from ..messages import ImagePart, Message, ToolCall, ToolSchema
from ._requests import INVALID_JSON, ModelRequest

Form: TypeAlias = tuple[Hashable, ...]
"""Equal for messages that mean the same at one place of a conversation. The text is its last part."""

Call: TypeAlias = tuple[str, str]
"""A call's name, and its arguments as JSON in one form."""

_CODE_CALL = "\nCalling tools:\n"
_WORD = re.compile(r"\w{3,}")
_TAG = re.compile(r"<([\w:-]*(?:think|thought|reason)[\w:-]*)>|\[(\w*think\w*)\]", re.IGNORECASE)
_WRITTEN_CALL = re.compile(r"<(\w*call\w*)>\s*(\{.*?\})\s*</\1>", re.DOTALL)
"""A call that is text, for programs that give their tools in the system message: they write its JSON anew."""
_INVISIBLE = re.compile(r"(?<=[<\[\]])[\u200b-\u200d\u2060\ufeff]")
"""What pydantic-ai puts after the first character of a control token. Elsewhere, such characters have a meaning."""


@dataclass(eq=False, slots=True)
class RecordedMessage:
    """A message of a recorded conversation. Two of them are the same message only if they are the same object.

    Attributes:
        message: The message. Calls and results have the gateway's ids.
        form: Its form.
        calls: The calls of an assistant message.
        tagged: The reasoning between tags at the start of an assistant message's text, and the text after it; an empty
            string and the whole text without such tags.
        reply: The reply's id; None for a message that the program wrote.
    """

    message: Message
    form: Form
    calls: tuple[Call, ...] = ()
    tagged: tuple[str, str] = ("", "")
    reply: str | None = None

    @property
    def text(self) -> str:
        """The text, without white space at its ends."""
        return cast("str", self.form[-1])

    @property
    def is_assistant(self) -> bool:
        """True if the assistant is its author."""
        return self.message.role == "assistant"


def entry_of(message: Message, reply: str | None = None, tags: tuple[str, str] | None = None) -> RecordedMessage:
    """Return the entry for a message.

    Args:
        message: The message.
        reply: The id of the reply, if the message is one.
        tags: The tags in which the model's family writes reasoning, in addition to the well-known ones.
    """
    text = message.content.strip()
    if message.role == "assistant":
        text = _WRITTEN_CALL.sub(_written_call, _INVISIBLE.sub("", text))
        calls = tuple(call_form(call) for call in message.tool_calls)
        opening, closing = tags or ("", "")
        if not (opening and text.startswith(opening)):
            found = _TAG.match(text)
            opening, closing = (found[0], f"</{found[1]}>" if found[1] else f"[/{found[2]}]") if found else ("", "")
        tagged = "", text
        if closing and closing in text:
            reasoning, _, rest = text.removeprefix(opening).partition(closing)
            tagged = reasoning.strip(), rest.strip()
        return RecordedMessage(message, ("assistant", calls, text), calls, tagged, reply)
    images: list[tuple[str, int]] = []  # the hash of each, and the number of non-white-space characters before it
    before = 0
    for part in message.parts or () if message.images else ():
        if isinstance(part, ImagePart):
            images.append((part.data.sha256, before))
        else:
            before += len("".join(part.text.split()))
    if message.role == "tool":
        return RecordedMessage(message, ("tool", message.tool_call_id, message.name, tuple(images), text))
    role = "user" if message.role == "user" else "system"
    return RecordedMessage(message, (role, message.name, tuple(images), text))


def _written_call(found: re.Match[str]) -> str:
    """Return a call in a text with its JSON in one form; as it is, if it is no JSON."""
    try:
        written = json.dumps(_plain(json.loads(found[2])), sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
        return found[0]
    return f"<{found[1]}>{written}</{found[1]}>"


def call_form(call: ToolCall) -> Call:
    """Return a call without its id. Missing arguments are empty, and 1e2, 100.0 and 100 are the same number."""
    if isinstance(call.arguments, str):
        return call.name, _INVISIBLE.sub("", call.arguments).strip() or "{}"
    return call.name, _INVISIBLE.sub("", json.dumps(_plain(call.arguments), sort_keys=True, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def is_same_reply(sent: RecordedMessage, recorded: RecordedMessage, stop: Collection[str] = ()) -> bool:
    """Return whether a message is a program's copy of the assistant's message, with the same meaning.

    A program may drop the reasoning or all but its end, or write it in its tags before the text, write the calls into
    the text, lose arguments that are not the JSON of an object, put back the stop string at which sampling stopped, and
    append the code of a reply once more as a call.
    """
    if not has_same_reasoning(sent, recorded):
        return False
    calls = recorded.message.tool_calls
    tagged, rest = sent.tagged
    reasoning = "".join((recorded.message.reasoning or "").split())
    is_own = not tagged or (bool(reasoning) and reasoning in "".join(tagged.split()))  # perhaps under a title
    for text in (sent.text, *([rest] if is_own else [])):
        if calls and not sent.calls:
            code = text.removeprefix(recorded.text).strip().removeprefix(_CODE_CALL.strip())
            written: list[ToolCall] = []
            with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
                written = sorted(map(ToolCall.from_openai, _python(code)), key=call_form)  # like their results
            is_same = text.startswith(recorded.text) and _are_same_calls(written, sorted(calls, key=call_form))
        else:
            own = _without_own_code(text)
            has_text = recorded.text in (text, own, without_stop(own, stop))
            is_same = has_text and _are_same_calls(sent.message.tool_calls, calls)
        if is_same:
            return True
    return False


def is_start(sent: RecordedMessage, recorded: RecordedMessage) -> bool:
    """Return whether a message is the start of a recorded reply: a part of its text, or its text and some calls."""
    if sent.text == recorded.text:
        is_part = len(sent.calls) < len(recorded.calls) and recorded.calls[: len(sent.calls)] == sent.calls
    else:
        is_part = recorded.text.startswith(sent.text) and not sent.calls
    is_empty = not (sent.text or sent.calls)
    return is_part and not is_empty and recorded.is_assistant and has_same_reasoning(sent, recorded)


def has_same_reasoning(sent: RecordedMessage, recorded: RecordedMessage) -> bool:
    """Return whether the reasoning in the field of a message is that of the recorded one, its end, or empty.

    White space makes no difference. openai's `.stream()` for node keeps the last delta of the reasoning only.
    """
    texts = [_INVISIBLE.sub("", entry.message.reasoning or "") for entry in (recorded, sent)]
    whole, end = ("".join(text.split()) for text in texts)
    return whole.endswith(end)


def _are_same_calls(sent: Sequence[ToolCall], recorded: Sequence[ToolCall]) -> bool:
    """Return whether calls are the recorded ones. Programs replace arguments that are not the JSON of an object."""
    for call, known in zip(sent, recorded, strict=False):
        forms: list[Any] = [known.arguments]
        if isinstance(known.arguments, str):
            forms += [{}, {INVALID_JSON: known.arguments}]
            with contextlib.suppress(ValueError, RecursionError):
                forms.append(json.loads(known.arguments))  # a key occurs twice, or a number is not valid JSON
        if call_form(call) not in [call_form(ToolCall.model_construct(name=known.name, arguments=f)) for f in forms]:
            return False
    return len(sent) == len(recorded)


def _without_own_code(text: str) -> str:
    """Remove the call at the end that repeats code from before it, as smolagents' CodeAgent writes it."""
    own, mark, written = text.rpartition(_CODE_CALL)
    if not mark:
        return text
    try:
        code = [call["function"]["arguments"] for call in _python(written)]
    except (TypeError, LookupError):
        return text
    is_repeated = all(isinstance(one, str) and all(word in own for word in _WORD.findall(one)) for one in code)
    return own.strip() if is_repeated else text


def _python(code: str) -> Any:
    """Return the value that smolagents writes as Python; None if it is not a literal."""
    try:
        return ast.literal_eval(code.strip())
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


def without_stop(text: str, stop: Collection[str]) -> str:
    """Remove the stop string from the end."""
    end = next((end for end in stop if end.strip() and text.endswith(end.strip())), "")
    return text.removesuffix(end.strip()).strip()


@dataclass(frozen=True, slots=True)
class Setting:
    """The system message and the tools of a conversation.

    Attributes:
        system: The text of the system message, or None.
        tools: The tools.
    """

    system: str | None = None
    tools: tuple[ToolSchema, ...] = ()

    @staticmethod
    def of(request: ModelRequest) -> "Setting":
        """Return the system message and the tools of a request."""
        return Setting(request.system, tuple(request.tools))

    def has_system_of(self, other: "Setting") -> bool:
        """Return whether the system messages have the same text."""
        return (self.system or "").strip() == (other.system or "").strip()

    def is_same(self, other: "Setting") -> bool:
        """Return whether both are the same."""
        return self.has_system_of(other) and self.has_tools_of(other)

    def has_tools_of(self, other: "Setting") -> bool:
        """Return whether the tools are the same, in any order."""
        return self.tools == other.tools or _by_name(self.tools) == _by_name(other.tools)

    def may_replace(self, other: "Setting", *, is_instructed: bool) -> bool:
        """Return whether a request with this setting may continue a conversation with a different one.

        A client that resumes a session may change a sentence of the system message and some tools. In the conversation
        of another agent, both are replaced. Few of the tools and an instruction, or another system message without any
        tools, belong to a side request, such as for a title.

        Args:
            other: The setting of the conversation.
            is_instructed: Whether the request ends with a message of the program that is not a result.
        """
        own, others = _by_name(self.tools).keys(), _by_name(other.tools).keys()
        if own and 2 * len(own & others) > max(len(own), len(others)):
            return True
        if not self.has_system_of(other):
            one, two = self.system or "", other.system or ""
            ends = ((one, two), (one[::-1], two[::-1]))
            if 2 * sum(shared_length(*pair, operator.eq) for pair in ends) < max(len(one), len(two)):
                return False
        return own == others or (bool(own) and (own >= others or not is_instructed))


def _by_name(tools: Sequence[ToolSchema]) -> dict[Any, ToolSchema]:
    return {tool.get("function", tool).get("name"): tool for tool in tools}
