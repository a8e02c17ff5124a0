"""The policy that exchanges messages with a chat model."""

import asyncio
import json
import pickle

import pytest
from model_servers import Fault, ModelServer

import envsdk
from envsdk.errors import (
    ConfigError,
    InvalidSample,
    PolicyError,
    PolicyUnavailable,
    RequestRefused,
    ServerReplyError,
    UnknownName,
)
from envsdk.messages import Message, ToolCall
from envsdk.policies import OpenAIChat
from envsdk.policies._openai_chat import chat_messages


def chat(server, **options):
    """A policy on a server."""
    return OpenAIChat(f"{server.url}/v1", "toy", api_key="none", **{"max_retries": 0, **options})


def play(policy, env="envsdk/GuessNumber-v1", seed=0, **options):
    """One episode."""
    made = envsdk.make(env, **{"tokenizer": "embedded", "limits": {"max_steps": 2}, **options})
    return asyncio.run(play_in(policy, made, seed))


async def play_in(policy, env, seed=0):
    """One episode, and the policy is closed then."""
    try:
        return await envsdk.arollout(env, policy, seed=seed)
    finally:
        await policy.aclose()


def sent_to(server):
    """The bodies of the chat requests."""
    return [body for path, body, _ in server.requests if path == "/v1/chat/completions"]


def test_the_model_gets_the_messages_and_its_reply_is_the_action():
    with ModelServer("openai") as server:
        server.chat = lambda body: {"role": "assistant", "content": "50"}
        trajectory = play(chat(server))
        first, second = sent_to(server)
    log = trajectory.contexts["main"]
    assert [message.role for message in log.messages][:3] == ["system", "user", "assistant"] or log.messages
    assert [message["role"] for message in second["messages"]][-2:] == ["assistant", "user"]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert next(message for message in log.messages if message.role == "assistant").content == "50"


def test_its_contexts_are_marked_and_give_no_samples():
    with ModelServer("openai") as server:
        trajectory = play(chat(server))
    assert not trajectory.contexts["main"].is_trainable
    with pytest.raises(InvalidSample):
        trajectory.samples()


def test_calls_and_results_have_the_form_of_the_api():
    def call(body):
        function = {"name": "calculate", "arguments": '{"expression": "1 + 1"}'}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_x", "type": "function", "function": function}],
        }

    with ModelServer("openai") as server:
        server.chat, server.finish_reason = call, "tool_calls"
        trajectory = play(chat(server), "envsdk/Calculator-v1")
        first, second = sent_to(server)
    assert first["tools"] and all(tool["type"] == "function" for tool in first["tools"])
    made, result = second["messages"][-2:]
    assert isinstance(made["tool_calls"][0]["function"]["arguments"], str)
    assert result["role"] == "tool" and result["tool_call_id"] == made["tool_calls"][0]["id"]
    replies = [message for message in trajectory.contexts["main"].messages if message.role == "assistant"]
    assert replies[0].tool_calls[0].arguments == {"expression": "1 + 1"}


def test_calls_without_ids_get_ids_that_their_results_repeat():
    calls = tuple(ToolCall(name="f", arguments={"n": n}) for n in range(2))
    results = [Message(role="tool", content=str(n), name="f") for n in range(2)]
    sent = chat_messages([Message(role="user", content="go"), Message(role="assistant", tool_calls=calls), *results])
    ids = [call["id"] for call in sent[1]["tool_calls"]]
    assert len(set(ids)) == 2 and [message["tool_call_id"] for message in sent[2:]] == ids
    assert [json.loads(call["function"]["arguments"]) for call in sent[1]["tool_calls"]] == [{"n": 0}, {"n": 1}]


def test_reasoning_is_sent_only_on_request():
    messages = [Message(role="user", content="a"), Message(role="assistant", content="b", reasoning="c")]
    assert "reasoning_content" not in chat_messages(messages)[1]
    assert chat_messages(messages, with_reasoning=True)[1]["reasoning_content"] == "c"


def test_the_model_gets_what_the_history_policy_shows():
    with ModelServer("openai") as server:
        policy = chat(server)
        server.chat = lambda body: {"role": "assistant", "content": "7", "reasoning_content": "let me think"}
        policy._send_reasoning = True
        play(policy, history="strip", limits={"max_steps": 3})
        last = sent_to(server)[-1]
    replies = [message for message in last["messages"] if message["role"] == "assistant"]
    assert len(replies) == 2 and all("reasoning_content" not in reply for reply in replies)


def test_a_reply_that_was_cut_has_no_stop_token():
    with ModelServer("openai") as server:
        server.finish_reason = "length"
        trajectory = play(chat(server, max_tokens=5))
        assert sent_to(server)[0]["max_tokens"] == 5
    (step,) = trajectory.steps
    assert step.finish_reason == "length" and trajectory.stop_reason == "cut"


def test_usage_and_price_are_counted():
    with ModelServer("openai") as server:
        policy = chat(server, price=(2.0, 10.0))
        trajectory = play(policy)
    assert policy.usage.prompt_tokens == 2000 and policy.usage.sampled_tokens == 20
    assert policy.usage.price == pytest.approx(2 * (1000 * 2 + 10 * 10) / 1e6)
    extra = trajectory.steps[0].parts[0].extra
    assert extra["price"] == pytest.approx(0.0021) and extra["request_id"] == "chat-1"


def test_sampling_parameters_are_sent_only_if_given():
    with ModelServer("openai") as server:
        play(chat(server, temperature=0.2, seed=3, max_tokens_name="max_completion_tokens", max_tokens=9))
        body = sent_to(server)[0]
    assert body["temperature"] == 0.2 and body["seed"] == 3 and body["max_completion_tokens"] == 9
    assert not {"top_p", "max_tokens", "stop"} & body.keys()


def test_an_unknown_sampling_parameter_is_an_error():
    with ModelServer("openai") as server, pytest.raises(UnknownName, match="sampling parameter of OpenAIChat"):
        asyncio.run(chat(server).reply([Message(role="user", content="a")], sampling={"top": 1}))


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refused_request_is_not_repeated(status):
    with ModelServer("openai") as server:
        server.faults += [Fault(status, text=b'{"error": {"message": "no such model"}}')] * 3
        with pytest.raises(RequestRefused, match="no such model") as caught:
            play(chat(server, max_retries=2))
        assert len(sent_to(server)) == 1
    assert caught.value.status == status


@pytest.mark.parametrize(
    "fault",
    [
        Fault(429, {"Retry-After": "0"}),
        Fault(503),
        Fault(text=b"<html>"),
        Fault(how="reset"),
        Fault(how="hang"),
        pytest.param(Fault(how="slow"), marks=pytest.mark.full),
    ],
)
def test_a_request_is_tried_again_and_then_given_up(fault):
    with ModelServer("openai") as server:
        server.faults += [fault] * 2
        with pytest.raises(PolicyUnavailable, match="after 2 attempts"):
            play(chat(server, max_retries=1, timeout_s=0.3))
        assert len(sent_to(server)) == 2


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(change=lambda value: {**value, "choices": []}), "choices: List should have at least 1 item"),
        (Fault(text=b"[1]"), "is not a chat completion"),
        (
            Fault(change=lambda value: value["choices"][0].update(finish_reason="content_filter") or value),
            "content_filter",
        ),
    ],
)
def test_an_answer_that_is_not_a_message_is_an_error(fault, message):
    with ModelServer("openai") as server:
        server.faults.append(fault)
        with pytest.raises(ServerReplyError, match=message):
            play(chat(server))


def test_it_judges_replies():
    with ModelServer("openai") as server:
        server.chat = lambda body: {"role": "assistant", "content": "It is polite.\nVerdict: yes"}
        policy = chat(server)
        judge = envsdk.rewards.judge(policy, "Is the reply polite?", tokenizer="embedded")

        async def run():
            score = await judge("Thank you!")
            await policy.aclose()
            return score

        assert asyncio.run(run()) == 1.0


def test_it_cannot_continue_a_reply():
    class Prefilled(envsdk.Env):
        def start(self):
            return envsdk.Turn("Say yes.", prefill="I say")

        def respond(self, reply):
            return envsdk.Turn(reward=0.0, terminated=True)

    with ModelServer("openai") as server, pytest.raises(PolicyError, match="cannot continue"):
        asyncio.run(play_in(chat(server), Prefilled(tokenizer="embedded")))


def test_it_takes_no_tokens():
    policy = OpenAIChat("http://localhost:1/v1", "toy", api_key="none")
    with pytest.raises(PolicyError, match="takes messages, not tokens"):
        asyncio.run(policy([1]))


def test_a_pickled_policy_works():
    with ModelServer("openai") as server:
        trajectory = play(pickle.loads(pickle.dumps(chat(server))))
    assert trajectory.steps


def test_options_that_are_not_valid_are_refused():
    with pytest.raises(ConfigError, match="max_retries is -1"):
        OpenAIChat("http://localhost:1/v1", "toy", max_retries=-1)


def test_a_redirect_is_not_followed():
    with ModelServer("openai") as other, ModelServer("openai") as server:
        server.faults.append(Fault(307, {"Location": f"{other.url}/v1/chat/completions"}))
        with pytest.raises(RequestRefused, match="status 307"):
            play(chat(server))
        assert not other.requests


def test_its_key_and_its_address_may_be_in_the_environment(monkeypatch):
    with ModelServer("openai") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1/")
        monkeypatch.setenv("OPENAI_API_KEY", "mine")
        play(OpenAIChat(None, "toy"))
        assert {headers["authorization"] for _, _, headers in server.requests} == {"Bearer mine"}
