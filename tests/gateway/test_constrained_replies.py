"""Programs that ask for JSON or for a call get it, or an error with the reason."""

import json
from collections.abc import Callable
from typing import Any

import anthropic
import jsonschema
import openai
import pytest
from random_schemas import Uniform

import envsdk
from envsdk import Action, Trajectory, rollout
from envsdk.gateway import Endpoint, ProgramEnv
from envsdk.policies import OpenAIChat

SCHEMA: Any = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "count"],
    "additionalProperties": False,
}
NAMES = ("add", "sub", "mul")
FUNCTIONS: Any = [{"name": name, "description": "Text.", "parameters": SCHEMA} for name in NAMES]
CHAT_TOOLS: Any = [{"type": "function", "function": function} for function in FUNCTIONS]
TOOLS: Any = [{"type": "function", "strict": False, **function} for function in FUNCTIONS]
PATTERN: Any = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"p": {"type": "string", "pattern": "a"}}}},
    }
]
HI: Any = [{"role": "user", "content": "Hi"}]


class Uninformed(Uniform):
    """Closes its think block at once; without a grammar, it says Hello."""

    def __call__(self, prompt: Any, *, sampling: Any, **request: Any) -> Action:
        if "grammar" in sampling:
            return super().__call__(prompt, sampling=sampling, **request)
        return Action(
            envsdk.get_renderer("qwen2.5", "embedded").reply(envsdk.Message(role="assistant", content="Hello"))
        )


def played(program: Callable[[Endpoint], float], policy: Any = None, **options: Any) -> Trajectory:
    class Program(ProgramEnv):
        sampling = options.pop("sampling", None)

        def run(self, model: Endpoint) -> float:
            return program(model)

    env = Program(**{"tokenizer": "embedded", "renderer": "qwen2.5", **options})
    try:
        return rollout(env, policy or Uninformed(), seed=0)
    finally:
        env.close()


def checked(
    check: Callable[[openai.OpenAI, anthropic.Anthropic], None], policy: Any = None, **options: Any
) -> Trajectory:
    def program(model: Endpoint) -> float:
        chat = openai.OpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0)
        with chat, anthropic.Anthropic(base_url=model.base_url.removesuffix("/v1"), api_key=model.api_key) as messages:
            check(chat, messages)
        return 1.0

    trajectory = played(program, policy, **options)
    assert trajectory.error is None
    return trajectory


def test_json_is_sampled_in_each_protocol() -> None:
    def check(chat: openai.OpenAI, messages: anthropic.Anthropic) -> None:
        named: Any = {"name": "answer", "schema": SCHEMA, "strict": True}
        format_: Any = {"type": "json_schema", "json_schema": named}
        texts = [
            chat.chat.completions.create(model="m", messages=HI, response_format=format_).choices[0].message.content
        ]
        text: Any = {"format": {"type": "json_schema", **named}}
        texts.append(chat.responses.create(model="m", input="Hi again", text=text).output_text)
        body: Any = {"output_format": {"type": "json_schema", "schema": SCHEMA}}
        for extra in (body, {"output_config": {"format": body["output_format"]}}):
            message: Any = messages.messages.create(model="m", max_tokens=500, messages=HI, extra_body=extra)
            texts.append(message.content[0].text)
        for content in texts:
            jsonschema.validate(json.loads(content or ""), SCHEMA)
        asked: Any = {"type": "json_object"}
        reply = chat.chat.completions.create(model="m", messages=HI, response_format=asked, max_tokens=2000)
        assert reply.choices[0].finish_reason == "length" or isinstance(
            json.loads(reply.choices[0].message.content or ""), dict
        )

    trajectory = checked(check)
    assert all("grammar" in step.parts[0].extra for step in trajectory.steps)


def test_calls_are_sampled_as_chosen() -> None:
    def check(chat: openai.OpenAI, messages: anthropic.Anthropic) -> None:
        def called(choice: Any, **options: Any) -> list[str]:
            reply = chat.chat.completions.create(
                model="m", messages=HI, tools=CHAT_TOOLS, tool_choice=choice, **options
            )
            calls: Any = reply.choices[0].message.tool_calls or []
            for call in calls:
                jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
            return [call.function.name for call in calls]

        assert set(called("required")) <= {*NAMES}
        assert len(called("required", parallel_tool_calls=False)) == 1
        assert set(called({"type": "function", "function": {"name": "sub"}})) == {"sub"}
        allowed = {"mode": "required", "tools": [CHAT_TOOLS[0], CHAT_TOOLS[2]]}
        assert set(called({"type": "allowed_tools", "allowed_tools": allowed})) <= {"add", "mul"}
        choice: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "mul"}]}
        response = chat.responses.create(model="m", input="Hi", tools=TOOLS, tool_choice=choice, max_output_tokens=60)
        assert {item.name for item in response.output if item.type == "function_call"} <= {"mul"}
        assert response.tool_choice.type == "allowed_tools"  # type: ignore[union-attr]
        tools: Any = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
        for given, names in (({"type": "tool", "name": "add"}, {"add"}), ({"type": "any"}, {*NAMES})):
            named: Any = {**given, "disable_parallel_tool_use": True}
            message: Any = messages.messages.create(
                model="m", max_tokens=900, messages=HI, tools=tools, tool_choice=named
            )
            [block] = message.content
            assert block.type == "tool_use" and block.name in names
            jsonschema.validate(block.input, SCHEMA)

    checked(check)


def format_of(**schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def allowing(name: str) -> Any:
    return {"type": "allowed_tools", "allowed_tools": {"tools": [{"type": "function", "function": {"name": name}}]}}


@pytest.mark.parametrize(
    ("body", "match", "options"),
    [
        ({"response_format": format_of(uniqueItems=True)}, "uniqueItems", {}),
        ({"tools": CHAT_TOOLS, "tool_choice": allowing("div")}, "'div' is not among", {}),
        ({"tools": PATTERN, "tool_choice": "required"}, "in a call of 'qwen3.5'", {"renderer": "qwen3.5"}),
        ({"response_format": {"type": "json_object"}}, "OpenAIChat is named 'grammar'", {"policy": "chat"}),
    ],
)
def test_what_cannot_be_enforced_is_refused_and_the_episode_goes_on(body: Any, match: str, options: Any) -> None:
    def check(chat: openai.OpenAI, _: Any) -> None:
        with pytest.raises(openai.BadRequestError, match=match):
            chat.chat.completions.create(model="m", messages=HI, **body)
        if not options:
            assert chat.chat.completions.create(model="m", messages=HI).choices[0].message.content == "Hello"

    if "policy" in options:
        options = {"policy": OpenAIChat("http://127.0.0.1:9/v1", "model")}
    try:
        checked(check, **options)
    except envsdk.errors.EpisodeError as error:  # all of its requests were refused
        assert options and "1 requests were refused" in str(error)


def test_the_author_may_switch_constraints_off() -> None:
    def check(chat: openai.OpenAI, _: Any) -> None:
        reply = chat.chat.completions.create(model="m", messages=HI, tools=CHAT_TOOLS, tool_choice="required")
        assert reply.choices[0].message.content == "Hello"

    class Plain(Uninformed):
        def __call__(self, prompt: Any, *, sampling: Any, **request: Any) -> Action:
            assert sampling == {"grammar": None}
            return super().__call__(prompt, sampling={}, **request)

    checked(check, Plain(), sampling={"grammar": None})
