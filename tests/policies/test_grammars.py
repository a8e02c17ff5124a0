"""Constrained replies: a schema or a tool choice becomes a grammar of whole replies, which a policy enforces."""

import asyncio
import json
import sys
from typing import Any

import jsonschema
import numpy as np
import pytest
from families import FAMILIES
from model_servers import ModelServer
from pydantic import BaseModel
from random_schemas import Form, Uniform

import envsdk
from envsdk import Env, Message, Renderer, ToolCall, Turn, arollout, rollout
from envsdk.errors import ConfigError, MissingPackage, RenderError, ServerMismatch, TurnError, UnknownName
from envsdk.policies import VLLM, OpenAIChat, SGLang, grammar_masks
from envsdk.policies._grammar import GrammarState
from envsdk.rendering._reply_grammar import reply_grammar

TOKENIZER = envsdk.load_tokenizer("embedded")
STOP = TOKENIZER.token_id("<|im_end|>")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": "Text.", "parameters": SCHEMA}}
    for name in ("add", "sub")
]
FIELDS: Any = {
    "note": {"type": "string", "description": "Any text."},
    "color": {"enum": ["red", "dark blue", 3]},
    "is_on": {"type": "boolean"},
    "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2},
    "number": {"type": "integer", "minimum": -5, "maximum": 500},
}
FORM: Any = {
    "type": "object",
    "properties": FIELDS,
    "required": ["number"],
    "additionalProperties": False,
    "$defs": {"item": {"type": "string", "maxLength": 5}},
}
NOTHING: Any = {"type": "object", "properties": {}, "additionalProperties": False}
FORMS: Any = [
    TOOLS[0],
    {"type": "function", "function": {"name": "fill", "description": "Text.", "parameters": FORM}},
    {"type": "function", "function": {"name": "stop", "description": "Text.", "parameters": NOTHING}},
]


class Once(Env):
    """Asks once."""

    def __init__(self, turn: Turn, **options: Any) -> None:
        super().__init__(tokenizer="embedded", **options)
        self.turn = turn

    def start(self) -> Turn:
        return self.turn

    def respond(self, reply: Message) -> Turn:
        self.reply = reply
        return Turn(terminated=True)


def play(turn: Turn, policy: Any = None, **options: Any) -> tuple[Message, Any]:
    env = Once(turn, **{"renderer": "qwen3", **options})
    trajectory = rollout(env, policy or Uniform(), seed=0)
    assert trajectory.error is None
    return env.reply, trajectory


# Every reply follows its schema.


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.full)])
def test_every_reply_to_a_random_schema_follows_it(count: int) -> None:
    env, policy = Form(tokenizer="embedded", renderer="qwen2.5"), Uniform()
    trajectories = [rollout(env, policy, seed=seed) for seed in range(count)]
    assert [one.error for one in trajectories if one.error] == []
    assert sum(one.steps[0].metrics["cut"] for one in trajectories) == 0
    policy.allowed.clear()


def test_a_pydantic_model_is_a_schema() -> None:
    class Point(BaseModel):
        x: int
        y: int | None = None

    reply, _ = play(Turn("A point.", schema=Point, max_tokens=300), renderer="qwen2.5")
    Point.model_validate_json(reply.content)


def test_the_recorded_grammar_gives_the_masks_that_were_sampled_under() -> None:
    policy = Uniform()
    _, trajectory = play(Turn("A number.", schema=SCHEMA), policy, renderer="qwen2.5")
    restored = type(trajectory).from_json(trajectory.to_json())
    [sample] = restored.samples()
    [grammar] = sample.extra["grammar"]
    masks = grammar_masks(envsdk.get_renderer("qwen2.5", TOKENIZER), grammar, sample.tokens[sample.mask])
    assert np.array_equal(masks, policy.allowed)
    with pytest.raises(ConfigError, match="does not allow token"):
        grammar_masks(envsdk.get_renderer("qwen2.5", TOKENIZER), grammar, [STOP])


# What a family writes is what its grammar allows.


def accepts(renderer: Renderer, message: Message, **options: Any) -> bool:
    grammar = reply_grammar(renderer, **options)
    tokens = renderer.reply(message).tolist()
    return GrammarState(renderer.tokenizer, grammar, renderer.stop_token_ids).accept(*tokens) == len(tokens)


def reply(content: str = "", *calls: str, **arguments: Any) -> Message:
    tool_calls = [ToolCall(name=name, arguments=arguments or {"a": 1}) for name in calls]
    return Message(role="assistant", reasoning="I think.\n\nSo.", content=content, tool_calls=tuple(tool_calls))


@pytest.mark.parametrize("family", ["qwen3", "qwen3-thinking-2507", "qwq", "qwen2.5", "qwen3.5"])
def test_a_grammar_allows_what_the_family_writes_and_nothing_else(family: str) -> None:
    renderer = envsdk.get_renderer(family, TOKENIZER)
    document, text, call, two = reply('{"a": 1}'), reply("So"), reply("", "add"), reply("", "add", "sub")
    wrong, other = reply("", "add", b=1), reply('{"a": "1"}')
    cases: list[tuple[dict[str, Any], list[Message], list[Message]]] = [
        ({"schema": SCHEMA}, [document], [text, other, call]),
        ({"schema": SCHEMA, "tools": TOOLS}, [document, call, two], [text, other, wrong]),
        ({"schema": SCHEMA, "tools": TOOLS, "choice": "none"}, [document], [call]),
        ({"tools": TOOLS, "choice": "none"}, [document, text], [call, reply("So", "add")]),
        ({"tools": TOOLS}, [document, text, call, two, reply("So", "add")], [wrong]),
        ({"tools": TOOLS, "choice": "required"}, [call, two], [text, wrong]),
        ({"tools": TOOLS, "choice": "required", "is_parallel": False}, [call], [two]),
        ({"tools": TOOLS, "choice": "sub"}, [reply("", "sub")], [call, two]),
    ]
    for options, allowed, refused in cases:
        for message in allowed:
            assert accepts(renderer, message, **options), (options, message)
        for message in refused:
            assert not accepts(renderer, message, **options), (options, message)


@pytest.mark.matrix(every=6)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_s_documents_and_calls_are_what_its_grammar_allows(family: str) -> None:
    renderer = FAMILIES[family].renderer()
    assert accepts(renderer, reply('{"a": 1}'), schema=SCHEMA)
    try:
        renderer.reply(reply("", "add"))
    except RenderError:
        return
    assert accepts(renderer, reply("", "add", "sub"), tools=TOOLS, choice="required")
    assert accepts(renderer, reply("So", "add"), tools=TOOLS)
    assert not accepts(renderer, reply("", "add", b=1), tools=TOOLS)


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3.5"])
def test_the_arguments_of_a_call_follow_the_parameters_in_their_order(family: str) -> None:
    renderer = envsdk.get_renderer(family, TOKENIZER)
    values = {"note": "two\nlines, <b>", "color": "dark blue", "is_on": True, "items": ["x", "y"], "number": 7}
    for names in (FIELDS, ["note", "number"], ["color", "number"], ["number"]):
        assert accepts(renderer, reply("", "fill", **{name: values[name] for name in names}), tools=FORMS)
    for wrong in ({"note": "x"}, {"color": "blue", "number": 7}, {"number": 7, "note": "x"}, {"number": 501}):
        assert not accepts(renderer, reply("", "fill", **wrong), tools=FORMS), wrong


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3.5"])
def test_a_required_call_is_sampled_and_read(family: str) -> None:
    closed = Message(role="assistant", reasoning="Hm.", content="") if family == "qwen3.5" else None
    without_note = json.loads(json.dumps(FORMS))  # any text hardly ends if each token is as likely as the others
    del without_note[1]["function"]["parameters"]["properties"]["note"]
    for choice, names in (("required", {"add", "fill", "stop"}), ("fill", {"fill"}), ("stop", {"stop"})):
        turn = Turn("Go.", tools=without_note, tool_choice=choice, max_tokens=3000, prefill=closed)
        message, _ = play(turn, renderer=family)
        assert {call.name for call in message.tool_calls} <= names and message.tool_calls and not message.errors
        for call in message.tool_calls:
            [schema] = [tool["function"]["parameters"] for tool in FORMS if tool["function"]["name"] == call.name]
            jsonschema.validate(call.arguments, schema)


def test_a_prefill_may_have_reasoning_but_no_content() -> None:
    closed = Message(role="assistant", reasoning="Short.", content="")
    message, _ = play(Turn("Go.", schema=SCHEMA, prefill=closed))
    assert message.reasoning == "Short." and set(json.loads(message.content)) == {"a"}
    renderer = envsdk.get_renderer("qwen3", TOKENIZER)
    open_ = reply_grammar(renderer, renderer._prefill(Message(role="assistant", reasoning="Well, ")), schema=SCHEMA)
    rest = [*TOKENIZER.encode("yes\n"), TOKENIZER.token_id("</think>"), *TOKENIZER.encode('\n\n{"a": 2}'), STOP]
    assert GrammarState(TOKENIZER, open_, [STOP]).accept(*map(int, rest)) == len(rest)
    with pytest.raises(RenderError, match="'qwen3' cannot begin with"):
        play(Turn("Go.", schema=SCHEMA, prefill="{"))


def test_the_author_may_give_a_grammar() -> None:
    message, _ = play(Turn("Yes or no?", sampling={"grammar": 'start: "yes" | "no"\n'}))
    assert message.content in ("yes", "no")


# What cannot be enforced is refused.


def tools_of(properties: Any) -> Any:
    return [{"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"schema": {"type": "array", "uniqueItems": True}}, TurnError, "uniqueItems"),
        ({"schema": {"const": {1}}}, TurnError, "not JSON"),
        ({"tool_choice": "mul", "tools": TOOLS}, TurnError, r"one of \['add', 'sub'\]"),
        ({"tool_choice": "required"}, TurnError, "tool_choice"),
        (
            {
                "tool_choice": "required",
                "tools": tools_of({"p": {"type": "string", "pattern": "a"}}),
                "renderer": "qwen3.5",
            },
            RenderError,
            "'p' .*'qwen3.5'",
        ),
        ({"tool_choice": "required", "tools": tools_of([]), "renderer": "qwen3.5"}, TurnError, "schema of an object"),
        ({"tool_choice": "required", "tools": tools_of({"p": True}), "renderer": "qwen3.5"}, RenderError, "'p'"),
        (
            {"tool_choice": "required", "tools": tools_of({"p": {"enum": 3}}), "renderer": "qwen3.5"},
            RenderError,
            "'p'",
        ),
        ({"tool_choice": "required", "tools": tools_of([])}, TurnError, "cannot be enforced"),
        ({"tool_choice": "required", "tools": TOOLS, "renderer": "chatml"}, RenderError, "'chatml'"),
    ],
)
def test_what_no_grammar_can_express_is_refused(options: dict[str, Any], error: type[Exception], match: str) -> None:
    renderer = options.pop("renderer", "qwen3")
    with pytest.raises(error, match=match):
        play(Turn("Go.", **options), renderer=renderer)


@pytest.mark.parametrize(
    "options",
    [
        {"schema": "object"},
        {"tool_choice": ""},
        {"schema": SCHEMA, "terminated": True},
        {"tool_choice": "required", "truncated": True},
        {"schema": SCHEMA, "sampling": {"grammar": "start: TEXT"}},
    ],
)
def test_a_turn_checks_its_constraint(options: dict[str, Any]) -> None:
    with pytest.raises(TurnError, match=r"schema|tool_choice"):
        Turn("Go.", **options)


def test_without_llguidance_the_advice_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingPackage, match=r"envsdk\[grammar\]"):
        play(Turn("Go.", schema={**SCHEMA, "title": "unseen"}))


def play_and_close(turn: Turn, policy: Any) -> None:
    async def run() -> None:
        try:
            await arollout(Once(turn, renderer="qwen3"), policy, seed=0)
        finally:
            await policy.aclose()

    asyncio.run(run())


def test_a_chat_model_refuses_a_schema_by_name() -> None:
    with pytest.raises(UnknownName, match="OpenAIChat is named 'grammar'"):
        play_and_close(Turn("Go.", schema=SCHEMA), OpenAIChat("http://127.0.0.1:9/v1", "model"))


# Servers.


@pytest.mark.parametrize(("policy", "path"), [(VLLM, "/inference/v1/generate"), (SGLang, "/generate")])
def test_a_server_gets_the_grammar_and_a_reply_that_ignores_it_is_refused(policy: Any, path: str) -> None:
    kind = policy.name.lower()
    with ModelServer(kind) as server, pytest.raises(ServerMismatch, match=f"{policy.name}.*without --reasoning-parser"):
        play_and_close(Turn("Go.", schema=SCHEMA, max_tokens=9), policy(server.url, tokenizer="embedded"))
    parameters = server.bodies(path)[-1]["sampling_params"]
    grammar = parameters["structured_outputs"]["grammar"] if kind == "vllm" else parameters["ebnf"]
    assert f"content: %json {json.dumps(SCHEMA)[:-1]}" in grammar


def test_a_server_does_not_continue_an_interrupted_reply_inside_a_grammar() -> None:
    request: Any = {"episode_id": "e", "context": "main", "stop_token_ids": (STOP,), "stop": (), "max_tokens": 9}
    sampling = {"grammar": 'start: "yes"', "grammar_sampled": 1}
    with pytest.raises(ConfigError, match="VLLM cannot continue"):
        asyncio.run(VLLM("http://127.0.0.1:9")(np.arange(4, dtype=np.int32), sampling=sampling, **request))
