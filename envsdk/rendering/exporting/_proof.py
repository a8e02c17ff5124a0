"""Prove that a chat template renders the same text and tokens as a renderer, for many conversations."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from ...errors import RenderError
from ...messages import Message, ToolCall, ToolSchema
from .._parity import CONVERSATIONS, Conversation, assistant, render_spans
from ..emission import Emission
from ..renderer import Renderer


class Difference(NamedTuple):
    """A conversation that a template renders differently."""

    conversation: str
    reason: str
    expected: str
    rendered: str


class Proof(NamedTuple):
    """The result of comparing a template with a renderer."""

    same: list[str]
    """The conversations that both render the same."""
    difference: Difference | None
    """The smallest prompt that differs, after which the comparison stops. None if no prompt differs."""
    end: Difference | None
    """The smallest conversation without a generation prompt that differs, or None."""


def prove(
    renderer: Renderer, history: Literal["keep", "template"], template: str, special_tokens: Mapping[str, str]
) -> Proof:
    """Compare a template with a renderer, from the smallest conversation to the largest.

    Args:
        renderer: The renderer, which is the reference. A conversation that it refuses is not compared.
        history: The part of the past that it shows; see `Renderer.render`.
        template: The text of a chat template.
        special_tokens: The values of `bos_token`, `eos_token` and so on.
    """
    same: list[str] = []
    end: Difference | None = None
    for name, conversation in every_conversation():
        try:
            difference = _difference(renderer, history, name, conversation, template, special_tokens)
        except RenderError:
            continue
        if difference is None:
            same.append(name)
        elif conversation.generation_prompt:
            return Proof(same, difference, end)
        else:
            end = end or difference
    return Proof(same, None, end)


def _difference(
    renderer: Renderer,
    history: Literal["keep", "template"],
    name: str,
    conversation: Conversation,
    template: str,
    special_tokens: Mapping[str, str],
) -> Difference | None:
    """Compare one conversation.

    Raises:
        RenderError: If the renderer refuses it.
    """
    messages, tools, prompt = conversation
    tokens = renderer.render(messages, tools=tools, generation_prompt=prompt, history=history).tokens
    expected = renderer.tokenizer.decode(tokens)
    try:
        written, _ = render_spans(template, messages, tools, generation_prompt=prompt, arguments=special_tokens)
    except RenderError as error:
        return Difference(name, str(error), expected, "")
    rendered = renderer.tokenizer.normalize(written)
    if rendered != expected:
        return Difference(name, "the texts differ", expected, rendered)
    out = Emission(renderer.encoder)
    out.scaffold(rendered)
    is_same = out.tokens()[0].tolist() == tokens.tolist()
    return None if is_same else Difference(name, "the text is the same, but its tokens differ", expected, rendered)


def every_conversation() -> list[tuple[str, Conversation]]:
    """Return the conversations of the proof, from the smallest to the largest: with a generation prompt and without."""
    found: list[tuple[str, Conversation]] = []
    for name, (messages, tools, _) in {**CONVERSATIONS, **_MORE}.items():
        if messages[-1].role != "assistant":
            found.append((name, Conversation(messages, tools, True)))
        found.append((f"{name}, without a generation prompt", Conversation(messages, tools, False)))
    # by the number of messages and tools, and among equals by the length of the messages
    sizes = [(len(c.messages) + len(c.tools), sum(len(str(m.to_openai())) for m in c.messages)) for _, c in found]
    return [found[index] for index in sorted(range(len(found)), key=sizes.__getitem__)]


def _tool(name: str, **properties: Any) -> ToolSchema:
    parameters = {"type": "object", "properties": properties, "required": [*properties][:1]}
    function = {"name": name, "description": 'Looks <it> up: "é" & \\n.', "parameters": parameters}
    return {"type": "function", "function": function}


_TOOLS = [_tool("look_up", what={"type": "string"}, limit={"type": "integer"}), _tool("finish")]
_HARD: dict[str, Any] = {
    "what": 'a "b"\n\\n <é> 你好',
    "limit": -3,
    "share": 0.5,
    "all": True,
    "none": None,
    "deep": {"a": [1, "x", {}]},
}
_SYSTEM, _SPACES = Message(role="system", content="Be brief."), " \n text \n\n"


def _user(content: str = "Which?") -> Message:
    return Message(role="user", content=content)


def _call(index: int, name: str = "look_up", /, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments, id=f"call0000{index}")


def _result(index: int, content: str = "Rome", name: str = "look_up") -> Message:
    return Message(role="tool", content=content, tool_call_id=f"call0000{index}", name=name)


_FIRST, _SECOND, _FINISH = _call(0, what="Italy"), _call(1, **_HARD), _call(2, "finish")
_ROUND = [assistant("", "Look.", [_FIRST]), _result(0)]
_ROUNDS = [*_ROUND, assistant("Then:", "Again.", [_SECOND, _FINISH]), _result(1), _result(2, "", "finish")]
_TEXTS = {
    "no text": ("", None, ()),
    "spaces": (_SPACES, None, ()),
    "newlines": ("\n\n", None, ()),
    "an empty block": ("a", "", ()),
    "an empty block and no text": ("", "", ()),
    "reasoning with spaces": (_SPACES, _SPACES, ()),
    "reasoning alone": ("", "r", ()),
    "a call without arguments": ("", None, (_FINISH,)),
    "a call with arguments of all types": ("", None, (_SECOND,)),
    "three calls": ("", None, (_FIRST, _FINISH, _SECOND)),
    "spaces and a call": (_SPACES, None, (_FIRST,)),
    "only a newline and a call": ("\n", None, (_FIRST,)),
    "reasoning, spaces and a call": (_SPACES, "r", (_FIRST,)),
    "reasoning, text and two calls": ("c", "r", (_FIRST, _SECOND)),
    "an empty block and a call": ("", "", (_FIRST,)),
}
_MORE = {
    **{
        f"a reply with {name}": Conversation([_user(), assistant(*given)], _TOOLS if given[2] else ())
        for name, given in _TEXTS.items()
    },
    **{
        f"{name} in the past": Conversation(
            [
                _user(),
                assistant(*given),
                *(Message(role="tool", content="Rome", tool_call_id=c.id, name=c.name) for c in given[2]),
                _user("And?"),
            ],
            _TOOLS if given[2] else (),
        )
        for name, given in _TEXTS.items()
    },
    "an empty system message": Conversation([Message(role="system", content=""), _user()]),
    "an empty system message with tools": Conversation([Message(role="system", content=""), _user()], _TOOLS),
    "a system message with spaces": Conversation([Message(role="system", content=_SPACES), _user()]),
    "a system message with spaces and tools": Conversation([Message(role="system", content=_SPACES), _user()], _TOOLS),
    "two questions": Conversation([_user(), _user(_SPACES)]),
    "two answers": Conversation([_user(), assistant("a"), assistant("b", "r")]),
    "results with spaces": Conversation(
        [_user(), assistant(calls=[_FIRST, _FINISH]), _result(0, _SPACES), _result(2, "\n", "finish")], _TOOLS
    ),
    "three reasoned answers": Conversation([_user(), *[assistant("a", "r"), _user("And?")] * 3]),
    "reasoned rounds": Conversation([_SYSTEM, _user(), *_ROUNDS], _TOOLS),
    "reasoned rounds and an answer": Conversation([_SYSTEM, _user(), *_ROUNDS, assistant("Rome.", "Done.")], _TOOLS),
    "a question after reasoned rounds": Conversation(
        [_SYSTEM, _user(), *_ROUNDS, assistant("Rome.", "Done."), _user("And?")], _TOOLS
    ),
    "reasoned rounds twice": Conversation(
        [_SYSTEM, _user(), *_ROUNDS, assistant("Rome.", "Done."), _user("And?"), *_ROUNDS, assistant("Paris.")], _TOOLS
    ),
}
"""Conversations in which templates differ, in addition to those of the conformance checks."""
