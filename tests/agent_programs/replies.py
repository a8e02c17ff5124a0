"""What the scripted model says: in forms that a model samples, and no serializer writes."""

import json
from collections.abc import Sequence

from envsdk import Message, ToolCall


def said(text: str = "", *calls: tuple[str, str], thinking: str | None = None) -> Message:
    """A reply whose calls are sampled as they are written here.

    Args:
        text: The text.
        calls: For each call the name of the tool, and the text of the arguments.
        thinking: The reasoning.
    """
    made = [
        ToolCall(
            name=name,
            arguments=json.loads(arguments),
            raw=f'\n{{ "name" :"{name}",  "arguments": {arguments} }}\n',
        )
        for name, arguments in calls
    ]
    return Message(role="assistant", content=text, reasoning=thinking, tool_calls=tuple(made))


ANSWER = "\n  The answer is **103.5**.  \nDone. \n\n"
AGAIN = "  Second answer, 東京. \n"

LOOK = said(
    "",
    ("get_weather", '{ "unit" :"c",\n  "city":"Zürich \\u6771京 \\/ x" }'),
    thinking="  Thinking one:  two  spaces.\nThen a newline. \n",
)
TWO_CALLS = said("", ("add", '{"b": 2.50, "a":1e2}'), ("get_weather", '{"city":"Paris"}'), thinking="Thinking two\n")
TEXT_AND_CALL = said("\n\n  Let me check again. \n", ("add", '{"a":1,"b":2}'))
FINAL = said(ANSWER, thinking="Final thought ")
SECOND = said(AGAIN, thinking="User came back")

CHAT: Sequence[Message] = (LOOK, TWO_CALLS, TEXT_AND_CALL, FINAL, SECOND)
"""Two questions: the first takes three rounds of calls, the second none."""

TOOLS = [
    {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"type": "string"}, "city": {"type": "string"}},
            "required": ["city"],
        },
    },
    {
        "name": "add",
        "description": "The sum of two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
]
"""The tools of these replies, as JSON schemas of their functions."""


def call(name: str, arguments: str) -> str:
    """Run a tool."""
    given = json.loads(arguments or "{}")
    return json.dumps({"sum": given["a"] + given["b"]}) if name == "add" else f" sunny in {given['city']} \n"


AS_TOOL = {
    "Sum of one": (said("", ("add", '{"b":2,"a":1}'), thinking="one"), said(" Three. \n")),
    "Sum of three": (said("", ("add", '{"b":4,"a":3}'), thinking="three"), said(" Seven. \n")),
    "": (
        said(
            "",
            ("math_expert", '{"input" : "Sum of one and two"}'),
            ("math_expert", '{"input" : "Sum of three and four"}'),
            thinking="delegate",
        ),
        FINAL,
    ),
}
