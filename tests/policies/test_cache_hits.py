"""Cache hits as servers report them: in the actions, in the usage of a policy, and in the cost of episodes."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from model_servers import Fault, ModelServer
from policy_requests import PROMPT, ask

import envsdk
from envsdk import Action
from envsdk.diagnostics import CacheHits, cost
from envsdk.errors import ServerReplyError
from envsdk.policies import VLLM, OpenAIChat, RandomPolicy, SGLang

KINDS = {"native": (VLLM, {}), "completions": (VLLM, {"has_token_endpoint": False}), "sglang": (SGLang, {})}


def served(name, **options):
    """A policy class, and a server for it that has half of each prompt in its cache."""
    policy, given = KINDS[name]
    server = ModelServer("sglang" if policy is SGLang else "vllm", **given, **options)
    server.cached = lambda length: length // 2
    return policy, server


def play(policy, **options):
    """One episode, and the policy is closed then."""
    limits = {"max_steps": 3, "max_sampled_tokens": 60}
    env = envsdk.make("envsdk/GuessNumber-v1", tokenizer="embedded", **{"limits": limits, **options})

    async def run():
        async with policy:
            return await envsdk.arollout(env, policy, seed=0)

    return asyncio.run(run())


@pytest.mark.parametrize("name", KINDS)
def test_an_action_carries_what_the_server_counted(name):
    kind, server = served(name)
    with server:
        policy = kind(server.url, check=False)
        action = ask(policy)
    assert action.extra == {"prompt_tokens": len(PROMPT), "cached_tokens": len(PROMPT) // 2}
    assert policy.usage.cached_tokens == policy.usage.to_dict()["cached_tokens"] == len(PROMPT) // 2


@pytest.mark.parametrize("name", ["native", "sglang"])
def test_what_a_server_does_not_report_is_missing_and_not_0(name):
    kind, server = served(name)
    server.cached = None
    with server:
        policy = kind(server.url)
        trajectory = play(policy)
    assert all(part.extra == {} for step in trajectory.steps for part in step.parts)
    assert policy.usage.cached_tokens is policy.usage.to_dict()["cached_tokens"] is None
    found = cost(trajectory)
    assert found.cache is None and found.to_dict()["cache"] is None
    assert "servers read" not in str(found)


@pytest.mark.parametrize(("name", "expected"), [("sglang", 0), ("native", None), ("completions", None)])
def test_no_hit_is_0_where_the_server_says_so(name, expected):
    kind, server = served(name)
    server.cached = lambda length: 0  # vLLM reports nothing then
    with server:
        action = ask(kind(server.url, check=False))
    assert action.extra.get("cached_tokens") == expected


@pytest.mark.parametrize("name", ["native", "sglang"])
def test_the_cost_has_the_hits_next_to_what_was_kept(name):
    kind, server = served(name)
    with server:
        trajectory = play(kind(server.url, seed=1))
    prompts = [len(prompt.prompt) for prompt in trajectory.prompts()]
    found = cost([trajectory, trajectory])
    assert found.cache == CacheHits(
        calls=2 * len(prompts),
        prompt_tokens=found.prompts,
        cached_tokens=2 * sum(length // 2 for length in prompts),
        prompts=found.prompts,
        kept=found.kept,
    )
    assert found.cache.cached_share == pytest.approx(0.5, abs=0.01)
    assert found.cache.kept_share == found.kept / found.prompts
    assert str(found.cache) in str(found)
    record = json.loads(json.dumps(found.to_dict()))
    assert record["cache"]["kept_share"] == found.cache.kept_share
    assert cost(envsdk.Trajectory.from_json(trajectory.to_json())) == cost(trajectory)  # it is stored


def test_a_chat_model_counts_in_tokens_of_its_own():
    with ModelServer("openai") as server:
        server.cached = lambda length: 768
        policy = OpenAIChat(f"{server.url}/v1", "toy", api_key="none", max_retries=0)
        found = cost(play_chat(policy))
    assert found.cache is not None
    assert (found.cache.calls, found.cache.prompt_tokens, found.cache.cached_tokens) == (2, 2000, 2 * 768)
    assert (found.cache.prompts, found.cache.kept) == (found.prompts, found.kept)
    assert policy.usage.cached_tokens == 2 * 768


def test_a_chat_model_without_usage_counts_nothing():
    with ModelServer("openai") as server:
        server.lacks_usage = True
        policy = OpenAIChat(f"{server.url}/v1", "toy", api_key="none", max_retries=0)
        trajectory = play_chat(policy)
    assert trajectory.steps[0].parts[0].extra == {"request_id": "chat-1"}
    assert cost(trajectory).cache is None
    assert (policy.usage.prompt_tokens, policy.usage.cached_tokens) == (0, None)


def play_chat(policy: Any) -> Any:
    """An episode of two steps, and the policy is closed then."""

    async def run():
        try:
            env = envsdk.make("envsdk/GuessNumber-v1", tokenizer="embedded", limits={"max_steps": 2})
            return await envsdk.arollout(env, policy, seed=0)
        finally:
            await policy.aclose()

    return asyncio.run(run())


def test_a_reply_of_several_weight_versions_was_one_call():
    kind, server = served("native", versions=lambda position: str(min(position, 2)), stop_logit=-9.0)
    with server:
        trajectory = play(kind(server.url), limits={"max_steps": 1, "max_sampled_tokens": 20})
    (step,) = trajectory.steps
    assert [sorted(part.extra) for part in step.parts] == [["cached_tokens", "prompt_tokens"], [], []]
    found = cost(trajectory).cache
    assert found is not None and (found.calls, found.prompts) == (1, step.action_start - step.start)


def test_a_reply_that_goes_on_after_an_interruption_kept_all_before_it():
    random = RandomPolicy(envsdk.load_tokenizer("embedded").vocab_size, seed=0)
    prompts: list[int] = []

    def interrupted(prompt: Any, **asked: Any) -> Action:
        action = random(prompt, **asked)
        prompts.append(len(prompt))
        reason: Any = "abort" if len(prompts) % 2 else "length"
        return replace(
            action, tokens=action.tokens[:4], finish_reason=reason, extra={"cached_tokens": 7}, logprobs=None
        )

    env = envsdk.make("envsdk/GuessNumber-v1", tokenizer="embedded", limits={"max_steps": 2, "end_on_cut": False})
    trajectory = envsdk.rollout(env, interrupted, seed=0)
    found = cost(trajectory).cache
    assert found is not None and len(prompts) == 4
    assert (found.calls, found.cached_tokens) == (4, 28)
    assert found.prompts == found.prompt_tokens == sum(prompts)  # the server gave no number of its own
    assert found.kept == sum(step.keep for step in trajectory.steps) + prompts[1] + prompts[3]


@pytest.mark.parametrize("name", ["native", "sglang"])
def test_a_negative_count_is_an_error(name):
    kind, server = served(name)

    def negative(value: Any) -> Any:
        counts = value["meta_info"] if name == "sglang" else value["usage"]["prompt_tokens_details"]
        counts["cached_tokens"] = -1
        return value

    with server:
        server.faults.append(Fault(change=negative))
        with pytest.raises(ServerReplyError, match="cached_tokens"):
            ask(kind(server.url, check=False))
