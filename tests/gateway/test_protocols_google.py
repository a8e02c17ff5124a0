"""Google's generateContent: bodies of requests, and what is written. The real package is run in tests/peers/agents."""

import base64
import contextlib
import json
from typing import Any

import httpx
import pytest
from protocol_bodies import BODIES
from wire_clients import CREATED, a_reply, as_sent_back, each_reply

from envsdk import Message, rollout
from envsdk.errors import RequestError
from envsdk.gateway import Endpoint, ProgramEnv
from envsdk.gateway._protocols import WIRE_FORMATS
from envsdk.gateway._requests import ModelReply
from envsdk.messages import ToolCall

WIRE = WIRE_FORMATS["google"]
HI: list[Any] = [{"role": "user", "parts": [{"text": "Hi"}]}]
TOOLS: list[Any] = [
    {
        "functionDeclarations": [
            {
                "name": "add",
                "description": "Add.",
                "parameters": {
                    "type": "OBJECT",
                    "properties": {"type": {"type": "STRING"}, "b": {"type": "ARRAY", "items": {"type": "INTEGER"}}},
                },
            },
            {"name": "sub", "parameters_json_schema": {"type": "object"}},
        ]
    },
    {"google_search": {}},
]


def body_of(contents: list[Any] = HI, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "contents": contents, **fields}


@each_reply
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_reply_is_written_and_read_back_without_the_ids_of_calls(reply: ModelReply, stream: bool) -> None:
    body = body_of(tools=TOOLS, generationConfig={"thinkingConfig": {"includeThoughts": True}})
    request = WIRE.read(body, {})
    if stream:
        chunks = [json.loads(event.removeprefix(b"data: ")) for event in WIRE.events(request, body, [reply], CREATED)]
    else:
        chunks = [WIRE.write(request, body, [reply], CREATED)]
    last = chunks[-1]
    assert last["candidates"][0]["finishReason"] == ("MAX_TOKENS" if reply.finish_reason == "length" else "STOP")
    assert last["usageMetadata"]["totalTokenCount"] == 11 and last["responseId"] == "r1"
    contents = [chunk["candidates"][0]["content"] for chunk in chunks]
    calls = [part["functionCall"] for content in contents for part in content["parts"] if "functionCall" in part]
    assert [(call["id"], call["name"]) for call in calls] == [(call.id, call.name) for call in reply.message.tool_calls]
    results = [{"functionResponse": {"name": call["name"], "response": {"output": "3"}}} for call in calls]
    back = WIRE.read(body_of([*HI, *contents, {"role": "user", "parts": [*results, {"text": "Go on"}]}]), {})
    assert [received.message for received in back.messages[1:]] == [
        as_sent_back(reply),
        *(Message(role="tool", tool_call_id=call.id, content="3") for call in reply.message.tool_calls),
        Message(role="user", content="Go on"),
    ]
    assert back.messages[1].link == "r1"


def test_settings_tools_and_instructions_are_read_in_both_spellings() -> None:
    config = {
        "temperature": 0.5,
        "top_k": 40.0,
        "topP": 0.9,
        "max_output_tokens": -1,
        "stopSequences": ["E"],
        "seed": 3,
    }
    request = WIRE.read(
        body_of(
            system_instruction={"parts": [{"text": "Be brief."}]},
            tools=TOOLS,
            generation_config=config,
            toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["add"]}},
        ),
        {},
    )
    assert (
        request.system == "Be brief."
        and request.tool_choice == {"mode": "required", "names": ["add"]}
        and request.max_tokens is None
    )
    assert request.sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": 3} and request.stop == ("E",)
    assert [tool["function"]["name"] for tool in request.tools] == ["add", "sub"]
    assert request.left_out == ["googleSearch"]
    assert request.tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"type": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}}},
    }


def test_a_schema_of_the_reply_is_read_in_both_forms() -> None:
    config: dict[str, Any] = {"responseMimeType": "application/json"}
    for more in ({"responseSchema": {"type": "INTEGER"}}, {"response_json_schema": {"type": "integer"}}):
        assert WIRE.read(body_of(generationConfig=config | more), {}).schema == {"type": "integer"}
    assert WIRE.read(body_of(generationConfig=config), {}).schema == {"type": "object"}


def test_several_replies_and_log_probabilities_are_candidates() -> None:
    body = BODIES["google"] | {"model": "m"}
    request = WIRE.read(body, {})
    assert (request.n, request.logprobs, len(request.messages)) == (2, True, 4)
    replies = [a_reply("a", logprobs=[-1.0] * 4, texts=["a"] * 4), a_reply("b", id="r2")]
    written = WIRE.write(request, body, replies, CREATED)
    assert [one["content"]["parts"][0]["text"] for one in written["candidates"]] == ["a", "b"]
    assert written["candidates"][0]["logprobsResult"]["chosenCandidates"][0] == {
        "token": "a",
        "tokenId": 1,
        "logProbability": -1.0,
    }
    signature = written["candidates"][1]["content"]["parts"][-1]["thoughtSignature"]
    assert base64.b64decode(signature) == b"envsdk_r2"
    events = [json.loads(event.removeprefix(b"data: ")) for event in WIRE.events(request, body, replies, CREATED)]
    assert [event["candidates"][0]["index"] for event in events] == [0, 0, 1, 1]
    assert ["usageMetadata" in event for event in events] == [False, False, False, True]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"contents": []}, "contents"),
        ({"contents": [{"role": "system", "parts": []}]}, "contents[0].role"),
        ({"contents": [{"role": "user", "parts": []}]}, "contents[0].parts"),
        ({"contents": [{"parts": [{"fileData": {"fileUri": "x"}}]}]}, "contents[0].parts[0]"),
        (
            {"contents": [{"parts": [{"inlineData": {"mimeType": "audio/wav"}}]}]},
            "contents[0].parts[0].inlineData.mimeType",
        ),
        (
            {"contents": [{"parts": [{"functionResponse": {"name": "add"}}]}]},
            "contents[0].parts[0].functionResponse.id",
        ),
        ({"contents": [{"role": "model", "parts": [{"functionCall": {}}]}]}, "contents[0].parts[0].functionCall.name"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType"),
        ({"generationConfig": {"topK": 1.5}}, "generationConfig.topK"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"logprobs": 2}}, "top_logprobs"),
        (
            {"generationConfig": {"thinkingConfig": {"includeThoughts": 1}}},
            "generationConfig.thinkingConfig.includeThoughts",
        ),
        ({"toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, "toolConfig.functionCallingConfig.mode"),
        ({"cachedContent": "c"}, "cachedContent"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
    ],
)
def test_what_is_wrong_or_unsupported_is_refused_and_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as found:
        WIRE.read(body_of(**change) if "contents" not in change else {"model": "m", **change}, {})
    assert (found.value.status, found.value.field) == (400, field)
    error = WIRE.error(found.value)["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")


def test_an_episode_is_played_over_http_and_no_reply_is_lost() -> None:
    class Adds(ProgramEnv):
        def run(self, model: Endpoint) -> float:
            contents = list(HI)
            for base in (model.base_url, f"{model.base_url}beta", model.anthropic_base_url + "/v1beta"):
                with httpx.Client(base_url=base, headers={"x-goog-api-key": model.api_key}, timeout=600) as client:
                    listed = client.get("/models").json()
                    assert listed["models"][0]["name"] == "models/envsdk"
                    assert client.get("/models/a/b").json()["name"] == "models/a/b"
                    body = {"contents": contents, "tools": TOOLS}
                    counted = client.post("/models/m:countTokens", json=body).json()
                    response = client.post("/models/m:streamGenerateContent?alt=sse", json=body)
                    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line]
                    assert (
                        chunks[-1]["usageMetadata"]["promptTokenCount"] == counted["totalTokens"] or len(contents) > 1
                    )
                    contents += [chunk["candidates"][0]["content"] for chunk in chunks]
                    result = {"functionResponse": {"name": "add", "response": {"result": 3}}}
                    contents.append({"role": "user", "parts": [result]})
                    refused = client.post("/models/m:streamGenerateContent", json=body)
                    assert (refused.status_code, refused.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
                    assert client.post("/models/m:embedContent", json=body).json()["error"]["status"] == "NOT_FOUND"
            return 1.0

        def null_reply(self) -> Message:
            calls = [ToolCall(name="add", arguments={"a": 1})]
            return Message(role="assistant", content="Let me see.", reasoning="Hm.", tool_calls=calls)

    with contextlib.closing(Adds(renderer="qwen3", tokenizer="embedded")) as env:
        trajectory = rollout(env, "null", seed=0)
    assert (trajectory.error, trajectory.reward, len(trajectory.steps)) == (None, 1.0, 3)
    assert trajectory.breaks == [] and len(trajectory.samples()) == 1
