"""A policy on vLLM reports the tokens of a reply while they are sampled, also when its server fails meanwhile."""

import asyncio
import dataclasses

import numpy as np
import pytest
from model_servers import Fault, ModelServer
from policy_requests import PROMPT, STOP, ask, request

import envsdk
from envsdk.errors import PolicyUnavailable, RequestRefused, ServerReplyError
from envsdk.policies import VLLM, SGLang, StopAfterCall

GENERATE, ABORT, COMPLETIONS = "/inference/v1/generate", "/inference/v1/abort_requests", "/v1/completions"
ENDPOINTS = pytest.mark.parametrize("has_token_endpoint", [True, False], ids=["generate", "completions"])
FIRST_ENDPOINT = pytest.mark.parametrize(
    "has_token_endpoint",
    [True, pytest.param(False, marks=pytest.mark.full)],
    ids=["generate", "completions"],
)
LONG = {"stop_logit": -20.0}  # so that only `max_tokens` ends a reply


def fields(action):
    values = {field.name: getattr(action, field.name) for field in dataclasses.fields(action)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


@ENDPOINTS
@pytest.mark.parametrize("seed", range(2))
def test_a_streamed_reply_is_the_reply_that_is_not_streamed(has_token_endpoint, seed):
    with ModelServer(has_token_endpoint=has_token_endpoint, stop_logit=1.0, versions=lambda _: "3") as server:
        server.cached = lambda length: length - 1
        parts = []
        streamed = ask(VLLM(server.url, seed=seed), parts.append, max_tokens=20)
        whole = ask(VLLM(server.url, seed=seed), max_tokens=20)
    assert fields(streamed) == fields(whole)
    assert [token for part in parts for token in part] == whole.tokens.tolist()
    assert len(parts) == len(whole.tokens)


def test_tokens_are_reported_before_the_reply_has_ended():
    with ModelServer(token_s=0.02, **LONG) as server:
        active = []
        ask(VLLM(server.url, check=False), lambda tokens: active.append(server.active), max_tokens=5)
    assert active[0] == 1


@ENDPOINTS
def test_a_listener_ends_the_reply_after_the_tokens_that_it_has_seen(has_token_endpoint):
    with ModelServer(has_token_endpoint=has_token_endpoint, token_s=0.01, **LONG) as server:
        seen = []
        policy = VLLM(server.url, seed=1, check=False)
        action = ask(policy, lambda tokens: seen.extend(tokens) or len(seen) >= 3, max_tokens=1000)
        whole = ask(VLLM(server.url, seed=1, check=False), max_tokens=5)
        path = GENERATE if has_token_endpoint else COMPLETIONS
        asked = server.bodies(path)[0]["request_id"]
        if has_token_endpoint:
            assert server.bodies(ABORT) == [{"request_ids": ["generate-tokens-" + asked]}]
        else:
            assert server.closed_by_client == [asked]
    assert (action.tokens.tolist(), action.finish_reason) == (seen, "stop")
    assert len(seen) == 3
    assert action.tokens.tolist() == whole.tokens.tolist()[:3]
    assert action.logprobs.tolist() == whole.logprobs.tolist()[:3]


def test_a_reply_that_is_ended_early_keeps_the_version_of_its_weights():
    versions = lambda position: "1" if position < 5 else "2"  # noqa: E731
    with ModelServer(token_s=0.01, versions=versions, **LONG) as server:
        action = ask(VLLM(server.url, check=False), lambda tokens: True, max_tokens=1000)
    assert (len(action.tokens), action.policy_version, action.finish_reason) == (1, 1, "stop")


def test_the_parts_of_a_reply_of_two_versions_are_reported_once():
    with ModelServer(versions=lambda position: "1" if position < 4 else "2", **LONG) as server:
        policy, reported = VLLM(server.url, check=False), []

        async def run():
            async with policy:
                first = await policy(PROMPT, **request(max_tokens=9), on_tokens=reported.extend)
                prompt = np.concatenate([PROMPT, first.tokens])
                return first, await policy(prompt, **request(max_tokens=5), on_tokens=reported.extend)

        first, second = asyncio.run(run())
    assert (first.finish_reason, first.policy_version, second.policy_version) == ("abort", 1, 2)
    assert reported == [*first.tokens.tolist(), *second.tokens.tolist()]


def test_an_aborted_reply_has_the_tokens_that_were_reported():
    with ModelServer(token_s=0.01, **LONG) as server:
        policy, seen = VLLM(server.url, check=False), []

        async def run():
            async with policy:
                reply = asyncio.create_task(policy(PROMPT, **request(max_tokens=1000), on_tokens=seen.extend))
                while not seen:
                    await asyncio.sleep(0.01)
                await policy.abort()
                return await reply

        action = asyncio.run(run())
    assert action.finish_reason == "abort"
    assert action.tokens.tolist() == seen


EARLY = {
    "429": Fault(429),
    "500": Fault(500),
    "connection": Fault(how="refuse"),
    "reset": Fault(how="reset"),
    "short": Fault(how="short"),
    "hang": Fault(how="hang"),
    "no JSON": Fault(text=b"data: {oops\n\n"),
    "error": Fault(text=b'data: {"error": {"message": "it broke", "code": 500}}\n\n'),
}


@FIRST_ENDPOINT
@pytest.mark.parametrize("fault", EARLY)
def test_a_stream_that_fails_before_its_first_token_is_requested_again(fault, has_token_endpoint):
    with ModelServer(has_token_endpoint=has_token_endpoint, **LONG) as server:
        server.faults.append(EARLY[fault])
        seen = []
        timeout_s = 1.0 if fault == "hang" else 600.0
        action = ask(VLLM(server.url, timeout_s=timeout_s, check=False), seen.extend, max_tokens=4)
    assert action.tokens.tolist() == seen
    assert len(seen) == 4
    assert server.faults == type(server.faults)()


LATE = {name: Fault(how=fault.how, text=fault.text, at=2) for name, fault in EARLY.items() if fault.status == 200}
LATE |= {"[DONE] at once": Fault(text=b"data: [DONE]\n\n", at=2), "no fields": Fault(text=b'data: {"a": 1}\n\n', at=2)}
LATE |= {"a token that is not one": Fault(text=b'data: {"choices": [{"token_ids": [-5]}]}\n\n', at=2)}
LATE |= {"refused": Fault(text=b'data: {"error": {"message": "no", "code": 404}}\n\n', at=2)}
OF_THE_REPLY = {"[DONE] at once", "no fields", "a token that is not one", "refused"}


@FIRST_ENDPOINT
@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=pytest.mark.full) if name == "hang" else name for name in LATE if name != "connection"],
)
def test_a_stream_that_fails_after_a_token_is_not_requested_again(fault, has_token_endpoint):
    with ModelServer(has_token_endpoint=has_token_endpoint, **LONG) as server:
        server.faults.append(LATE[fault])
        seen = []
        expected = ServerReplyError if fault in OF_THE_REPLY else PolicyUnavailable
        with pytest.raises(expected) as raised:
            ask(VLLM(server.url, timeout_s=1.0 if fault == "hang" else 600.0, check=False), seen.extend, max_tokens=9)
    assert len(seen) == 2
    assert len(server.bodies(GENERATE)) + len(server.bodies(COMPLETIONS)) == (1 if has_token_endpoint else 2)
    if expected is PolicyUnavailable:
        assert "after 2 tokens" in str(raised.value)


def test_slow_events_and_comments_are_waited_for():
    with ModelServer(**LONG) as server:
        server.faults.append(Fault(how="slow"))
        assert len(ask(VLLM(server.url, check=False), lambda tokens: None, max_tokens=3).tokens) == 3


def test_an_answer_that_is_not_a_stream_is_refused():
    with ModelServer() as server, pytest.raises(ServerReplyError, match="expected a stream of events"):
        server.faults.append(Fault(201, text=b'{"choices": []}'))
        ask(VLLM(server.url, check=False), lambda tokens: None)


def test_a_refused_request_is_refused_in_a_stream_as_well():
    with ModelServer(max_model_len=4) as server, pytest.raises(RequestRefused, match="the model takes 4"):
        ask(VLLM(server.url, check=False), lambda tokens: None)


def test_an_error_of_the_listener_is_raised_and_ends_the_request():
    def fail(tokens):
        raise ZeroDivisionError

    with ModelServer(token_s=0.01, **LONG) as server:
        with pytest.raises(ZeroDivisionError):
            ask(VLLM(server.url, check=False), fail, max_tokens=1000)
        assert len(server.bodies(GENERATE)) == 1


def test_a_rollout_reads_replies_while_they_are_sampled():
    env = envsdk.make("envsdk/GuessNumber-v1", tokenizer="embedded", limits={"max_steps": 2, "max_sampled_tokens": 20})

    async def run(policy):
        async with policy:
            return await envsdk.arollout(env, StopAfterCall(policy), seed=0)

    with ModelServer(stop_logit=0.0) as server:
        asyncio.run(run(VLLM(server.url)))
        bodies = server.bodies(GENERATE)
    assert [body["stream"] for body in bodies] == [True] * len(bodies) != []


def test_only_policies_that_report_tokens_say_so():
    assert VLLM.streams
    assert not SGLang.streams
    assert STOP not in PROMPT
