"""Proves a rule for past reasoning: plays episodes under it, and compares each prompt with the template's rendering."""

from collections.abc import Iterator, Sequence
from itertools import cycle, pairwise

from envsdk.contexts._context import Context
from envsdk.contexts._history._thinking import Strip
from envsdk.errors import RenderError
from envsdk.messages import Message, ToolCall, ToolSchema
from envsdk.rendering.renderer import Renderer

TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}
_WITHOUT_CALLS = ("ururururu", "sururu")
_WITH_CALLS = ("uctctctructructructructctctru", "suructctructru", "uctructuructu", "udttructdttru")
"""The kinds of messages: the system's, a user's, a reply, a reply with one call or two, a tool's result."""
_REASONING = ("I think.", None, "", "Two lines,\nof them one last.", "Again.", "", None)


def refutation(renderer: Renderer, *, has_calls: bool) -> str | None:
    """Return where a prompt under `strip` differs from the template's own; None if none does.

    Args:
        renderer: A renderer with a rule for past reasoning.
        has_calls: Whether to play episodes with calls, too.
    """
    needed = (
        _WITHOUT_CALLS[0],
        _WITH_CALLS[0],
    )  # a template may have no system message, no parallel calls, and no user's turn after a result
    for kinds in (*_WITHOUT_CALLS, *(_WITH_CALLS if has_calls else ())):
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
        context.add_reply(context.parse_reply())
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
