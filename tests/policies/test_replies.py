"""Replies of vLLM and SGLang as actions, and the checks that make them legal."""

import asyncio
import base64
import re

import numpy as np
import pytest
from model_servers import Fault, ModelServer, encoded_npy
from policy_requests import PROMPT, STOP, ask, request

import envsdk
from envsdk.errors import ConfigError, ServerReplyError, UnknownName
from envsdk.policies import VLLM, SGLang

KINDS = {
    "native": (VLLM, {}),
    "native before 0.32": (VLLM, {"names_ids": True}),
    "completions": (VLLM, {"has_token_endpoint": False}),
    "sglang": (SGLang, {}),
}


def served(name, **options):
    """A policy class, and a server for it."""
    policy, given = KINDS[name]
    return policy, ModelServer("sglang" if policy is SGLang else "vllm", **given, **options)


@pytest.mark.parametrize("name", KINDS)
def test_a_reply_is_sampled_with_the_parameters_of_the_turn_and_no_default_of_the_server(name):
    kind, server = served(name)
    with server:
        action, again = (
            ask(kind(server.url, "toy", temperature=0.7, seed=5), sampling={"temperature": 1.5}) for _ in range(2)
        )
        sent = server.requests[-1][1]
    assert action.finish_reason == "stop" and action.tokens[-1] == STOP
    assert np.array_equal(action.tokens, again.tokens)
    assert action.logprobs.shape == action.tokens.shape and (action.logprobs <= 0).all()
    given = sent.get("sampling_params", sent)
    assert action.temperature == given["temperature"] == 1.5
    neutral = {"min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "top_p": 1.0}
    assert {key: given[key] for key in neutral} == neutral
    assert given["top_k"] == (-1 if name == "sglang" else 0)
    assert given["skip_special_tokens"] is False
    assert given["stop_token_ids"] == [STOP]


@pytest.mark.parametrize("name", ["native", "completions", "sglang"])
def test_at_temperature_0_logprobs_are_0_and_without_a_seed_none_is_sent(name):
    kind, server = served(name)
    with server:
        action = ask(kind(server.url, check=False), sampling={"temperature": 0.0})
        sent = server.requests[-1][1]
    assert not action.logprobs.any()
    given = sent.get("sampling_params", sent)
    assert given.get("seed") is None and "sampling_seed" not in given


def test_an_unknown_sampling_parameter_is_an_error():
    with pytest.raises(UnknownName, match="sampling parameter of VLLM"):
        ask(VLLM("http://localhost:1"), sampling={"temprature": 1.0})


@pytest.mark.parametrize("temperature", [1e-7, 0.005])
def test_a_temperature_that_vllm_would_change_is_refused(temperature):
    with pytest.raises(ConfigError, match=r"would raise to 0\.01"):
        VLLM("http://localhost:1", temperature=temperature)


@pytest.mark.parametrize("options", [{"top_k": 5}, {"top_p": 0.9}])
def test_sglang_refuses_parameters_that_its_logprobs_do_not_reflect(options):
    with pytest.raises(ConfigError, match="log-probabilities of the distribution before they apply"):
        SGLang("http://localhost:1", **options)


def test_seeds_depend_on_the_episode_the_context_and_the_length_of_the_prompt():
    changes = [{}, {"episode_id": "f"}, {"context": "main/a-1"}, {"prompt": PROMPT[:3]}]
    with ModelServer() as server:
        for change in changes:
            ask(VLLM(server.url, seed=5, check=False), **change)
        seeds = {body["sampling_params"]["seed"] for body in server.bodies("/inference/v1/generate")}
    assert len(seeds) == len(changes)


# Violations.


def change_choice(function):
    """A fault that changes the choice of a native reply."""

    def change(value):
        function(value["choices"][0])
        return value

    return Fault(change=change)


def drop_last_logprob(choice):
    choice["logprobs"]["content"].pop()


def set_logprob(value):
    def change(choice):
        choice["logprobs"]["content"][0]["logprob"] = value

    return change


def set_id(token):
    def change(choice):
        choice["token_ids"][0] = choice["logprobs"]["content"][0]["token_id"] = token

    return change


def lengthen(choice):
    choice["token_ids"] = [1] * 41
    choice["logprobs"]["content"] = [{"token_id": 1, "logprob": -1.0}] * 41
    choice["weight_versions"] = None


def drop_stop(choice):
    choice["token_ids"][-1] = choice["logprobs"]["content"][-1]["token_id"] = STOP + 1


VIOLATIONS = {
    "one logprob too few": (drop_last_logprob, "token ids and .* log-probabilities; expected equal numbers"),
    "no logprobs": (lambda choice: choice.update(logprobs=None), r"choices.0.logprobs: .* \(got None\)"),
    "a logprob of null": (set_logprob(None), r"choices.0.logprobs.content.0.logprob"),
    "a logprob of NaN": (set_logprob(float("nan")), "log-probability of token 0 is nan"),
    "a positive logprob": (set_logprob(0.25), "log-probability of token 0 is 0.25"),
    "a logprob of -inf": (set_logprob(float("-inf")), "log-probability of token 0 is -inf"),
    "vLLM's unknown logprob": (set_logprob(-9999.0), "log-probability of token 0 is -9999.0"),
    "an id outside the vocabulary": (set_id(4096), "token 0 is 4096; expected an id from 0 to 4095"),
    "a negative id": (set_id(-1), "token 0 is -1"),
    "an id of 100 bits": (set_id(2**100), r"choices.0.token_ids.0|logprobs.content.0.token_id"),
    "too many tokens": (lengthen, "41 tokens; expected at most max_tokens=40"),
    "no stop token": (drop_stop, "the last token, 8, is not a stop token"),
    "tokens after a stop token": (set_id(STOP), "token 0 is the stop token 7, but other tokens follow it"),
    "an unknown finish reason": (lambda choice: choice.update(finish_reason="repetition"), "'repetition'"),
    "no token": (lambda choice: choice.update(token_ids=[], logprobs={"content": []}), "it has no tokens"),
    "logprobs of other tokens": (
        lambda choice: choice["token_ids"].__setitem__(0, 1),
        "log-probabilities belong to the tokens",
    ),
    "a logprob of a text": (
        lambda choice: choice["logprobs"]["content"].__setitem__(0, {"token": "7", "logprob": -1.0}),
        r"content.0.token.*the token is '7'; expected its id, such as 'token_id:504'",
    ),
    "weights of other tokens": (
        lambda choice: choice.update(weight_versions=[{"version": "1", "start": 0, "end": 1}]),
        "do not cover",
    ),
    "no choice": (None, "choices: List should have at least 1 item"),
}


@pytest.mark.parametrize("name", ["native", "sglang"])
def test_logprobs_of_other_tokens_are_shown_where_they_differ(name):
    def change(value):
        value.get("choices", [value])[0]["token_ids" if name == "native" else "output_ids"][-1] += 1
        return value

    kind, server = served(name, stop_logit=-9.0)
    with server:
        server.faults.append(Fault(change=change))
        with pytest.raises(ServerReplyError) as caught:
            ask(kind(server.url), max_tokens=30)
    found, own = re.search(r"to the tokens (.*); expected those of the reply, (.*)", str(caught.value)).groups()
    assert found != own


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_a_reply_that_is_not_legal_is_an_error_and_is_not_asked_for_again(violation):
    function, message = VIOLATIONS[violation]
    fault = Fault(change=lambda value: {**value, "choices": []}) if function is None else change_choice(function)
    with ModelServer() as server:
        server.faults.append(fault)
        policy = VLLM(server.url, tokenizer="embedded", seed=1)
        with pytest.raises(ServerReplyError, match=message) as caught:
            ask(policy, prompt=PROMPT[:2])
        assert len(server.bodies("/inference/v1/generate")) == 1
    assert server.url in str(caught.value)


def test_sglang_must_return_logprobs():
    def drop(value):
        del value["meta_info"]["output_token_logprobs"]
        return value

    with ModelServer("sglang") as server:
        server.faults.append(Fault(change=drop))
        with pytest.raises(ServerReplyError, match="no output_token_logprobs"):
            ask(SGLang(server.url))


def test_sglang_ends_a_reply_at_a_nan_and_says_so():
    def nan(value):
        value["meta_info"]["finish_reason"] = {"type": "stop", "matched": "NaN happened"}
        return value

    with ModelServer("sglang") as server:
        server.faults.append(Fault(change=nan))
        with pytest.raises(ServerReplyError, match="NaN happened"):
            ask(SGLang(server.url))


def test_sglang_may_end_a_reply_at_the_end_token_of_its_model():
    def own_end(value):
        last = value["output_ids"][-1] = value["meta_info"]["output_token_logprobs"][-1][1] = 9
        value["meta_info"]["finish_reason"] = {"type": "stop", "matched": last}
        return value

    with ModelServer("sglang") as server:
        server.faults.append(Fault(change=own_end))
        action = ask(SGLang(server.url))
    assert action.tokens[-1] == 9 and action.finish_reason == "stop"


@pytest.mark.parametrize("name", ["native", "completions"])
def test_a_reply_may_end_at_a_stop_string(name):
    def stopped(value):
        value["choices"][0].update(finish_reason="stop", stop_reason="END")
        return value

    kind, server = served(name, stop_logit=-9.0)
    with server:
        server.faults.append(Fault(change=stopped))
        action = ask(kind(server.url), stop=("END",), max_tokens=3)
        sent = server.requests[-1][1]
    assert action.finish_reason == "stop"
    assert sent.get("sampling_params", sent)["stop"] == ["END"]


# Side data and weights.


def test_a_reply_of_one_weight_version_is_one_action():
    with ModelServer(versions=lambda position: "12") as server:
        action = ask(VLLM(server.url))
    assert action.policy_version == 12


def test_a_version_without_a_number_is_side_data():
    with ModelServer(versions=lambda position: "step-7") as server:
        action = ask(VLLM(server.url))
    assert action.policy_version is None
    assert action.extra == {"weight_version": "step-7"}


def rollout(policy):
    """One episode of one step."""
    env = envsdk.make("envsdk/GuessNumber-v1", tokenizer="embedded", limits={"max_steps": 1, "max_sampled_tokens": 20})

    async def run():
        async with policy:
            return await envsdk.arollout(env, policy, seed=0)

    return asyncio.run(run())


@pytest.mark.parametrize("name", ["native", "sglang"])
def test_several_weight_versions_in_a_reply_are_parts_of_one_step(name):
    kind, server = served(name, versions=lambda position: str(min(position, 2)), stop_logit=-9.0)
    with server:
        trajectory = rollout(kind(server.url))
        assert len(server.bodies("/generate" if name == "sglang" else "/inference/v1/generate")) == 1
    (step,) = trajectory.steps
    assert [part.policy_version for part in step.parts] == [0, 1, 2]
    assert [part.stop - step.action_start for part in step.parts] == [1, 2, 20]
    assert step.finish_reason == "length"
    (sample,) = trajectory.samples()
    assert sample.mask.sum() == 20


def test_an_sglang_without_spans_names_one_version_for_the_whole_reply():
    def without_spans(value):
        del value["meta_info"]["weight_versions"]
        return value

    with ModelServer("sglang", versions=lambda position: "12") as server:
        server.faults.append(Fault(change=without_spans))
        action = ask(SGLang(server.url))
    assert action.policy_version == 12


@pytest.mark.parametrize("check", [True, False])
def test_sglang_samples_from_the_adapter_that_is_named(check):
    with ModelServer("sglang", adapters=("other", "mine")) as server:
        ask(SGLang(server.url, "mine", check=check))
        assert {body["lora_path"] for path, body, _ in server.requests if path == "/generate"} == {"mine"}


@pytest.mark.parametrize("model", ["toy", None])
def test_sglang_samples_from_its_own_model_without_an_adapter(model):
    with ModelServer("sglang", adapters=("mine",)) as server:
        ask(SGLang(server.url, model))
        assert not any("lora_path" in body for _, body, _ in server.requests)


def test_the_rest_of_a_reply_is_dropped_if_another_prompt_comes_next():
    async def run(policy):
        async with policy:
            first = await policy(PROMPT, **request(stop_token_ids=(4000,), max_tokens=4))
            other = await policy(PROMPT[::-1].copy(), **request())
        return first, other

    with ModelServer(versions=lambda position: str(position), stop_logit=-9.0) as server:
        first, _ = asyncio.run(run(VLLM(server.url, check=False)))
        assert len(server.bodies("/inference/v1/generate")) == 2
    assert first.finish_reason == "abort" and len(first.tokens) == 1


def test_routed_experts_and_sampling_masks_are_side_data_of_their_tokens():
    with ModelServer(stop_logit=-9.0) as server:

        def add(value):
            choice = value["choices"][0]
            rows = len(server.requests[-1][1]["token_ids"]) + len(choice["token_ids"]) - 1
            choice["routed_experts"] = encoded_npy(np.arange(rows * 6, dtype=np.uint16).reshape(rows, 3, 2))
            choice["sampling_mask"] = [[token, 1] for token in choice["token_ids"]]
            return value

        server.faults.append(Fault(change=add))
        action = ask(VLLM(server.url, seed=2))
    experts = action.extra["routed_experts"]
    rows = len(PROMPT) + len(action.tokens)
    assert experts.over == "all" and experts.values.dtype == np.int32 and experts.values.shape == (rows, 3, 2)
    assert experts.known.tolist() == [True] * (rows - 1) + [False]
    assert experts.values[len(PROMPT), 0, 0] == len(PROMPT) * 6
    masks = action.extra["sampling_mask"].lists()
    assert [one.tolist() for one in masks] == [[token, 1] for token in action.tokens.tolist()]


def test_side_data_with_other_rows_is_an_error():
    wrong = encoded_npy(np.zeros((50, 3, 2), dtype=np.uint8))
    with ModelServer() as server:
        server.faults.append(change_choice(lambda choice: choice.update(routed_experts=wrong)))
        with pytest.raises(ServerReplyError, match="routed_experts has 50 rows"):
            ask(VLLM(server.url))


def test_sglang_returns_routed_experts_on_request():
    with ModelServer("sglang") as server:

        def add(value):
            rows = len(PROMPT) + len(value["output_ids"]) - 1
            experts = np.arange(rows * 6, dtype=np.int32)
            value["meta_info"]["routed_experts"] = base64.b64encode(experts.tobytes()).decode()
            return value

        server.faults.append(Fault(change=add))
        action = ask(SGLang(server.url, routed_experts=True))
        assert server.requests[-1][1]["return_routed_experts"] is True
    assert action.extra["routed_experts"].values.shape == (len(PROMPT) + len(action.tokens), 6)


@pytest.mark.parametrize("name", KINDS)
def test_a_reply_fills_at_most_the_context_of_the_server(name):
    kind, server = served(name, max_model_len=8, stop_logit=-9.0)
    with server:
        policy = kind(server.url)
        action = ask(policy, max_tokens=None, stop_token_ids=(4000,))
    room = 8 - len(PROMPT) - policy.spare_tokens
    assert len(action.tokens) == room and action.finish_reason == "length"
