"""What a policy does when its servers fail, refuse, hang, or answer too late."""

import asyncio
import pickle
import random
import threading

import numpy as np
import pytest
from model_servers import Fault, ModelServer
from policy_requests import PROMPT, ask, request

import envsdk
from envsdk.errors import ConfigError, EngineDead, PolicyUnavailable, RequestRefused, ServerUnreachable
from envsdk.policies import VLLM, SGLang
from envsdk.policies import _client as client
from envsdk.policies._client import base_urls
from envsdk.rollouts import Rollouts

GENERATE = "/inference/v1/generate"


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


def begun(server):
    """The number of replies of which a token was sampled."""
    return sum(bool(sampled.entries) for sampled in [*server._sampling.values()])


FAULTS = {
    "429": Fault(429),
    "408": Fault(408),
    "500": Fault(500),
    "503": Fault(503, text=b"<html>"),
    "connection": Fault(how="refuse"),
    "reset": Fault(how="reset"),
    "short": Fault(how="short"),
    "partial": Fault(how="truncated"),
    "html": Fault(text=b"<html>not JSON</html>"),
    "timeout": Fault(how="hang"),
    "slow": Fault(how="slow"),
}
CAUSES = {"reset": "connection", "short": "connection", "html": "partial", "slow": "timeout"}


@pytest.mark.parametrize("kind", ["vllm", pytest.param("sglang", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=pytest.mark.full) if name == "slow" else name for name in FAULTS]
)
def test_a_failed_request_is_repeated_once_with_the_same_id(fault, kind):
    with ModelServer(kind) as server:
        server.faults.append(FAULTS[fault])
        policy = (VLLM if kind == "vllm" else SGLang)(
            server.url, timeout_s=1.0 if fault in ("timeout", "slow") else 600.0, seed=1, check=False
        )
        action = ask(policy)
        bodies = server.bodies(GENERATE if kind == "vllm" else "/generate")
    assert action.finish_reason == "stop"
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]  # its id and its seed as well
    assert policy.usage.retries == {CAUSES.get(fault, fault): 1}
    assert policy.usage.sampled_tokens == len(action.tokens)


@pytest.mark.parametrize("status", [400, 404, 501])
def test_a_request_that_is_refused_is_not_repeated(status):
    with ModelServer() as server:
        server.faults += [Fault(status, text=b'{"error": {"message": "the prompt is too long"}}')] * 3
        with pytest.raises(RequestRefused, match=f"status {status}: the prompt is too long") as caught:
            ask(VLLM(server.url, check=False))
        paths = [path for path, _, _ in server.requests]
    assert caught.value.status == status
    assert paths == ([GENERATE, "/v1/completions"] if status in (404, 501) else [GENERATE])


def test_a_model_that_the_server_does_not_have_is_named_by_the_server():
    with ModelServer() as server, pytest.raises(RequestRefused, match="The model `other` does not exist"):
        ask(VLLM(server.url, "other", check=False))


def test_a_prompt_that_is_too_long_is_refused_by_the_server():
    long = np.ones(90, dtype=np.int32)
    with ModelServer(max_model_len=80) as server, pytest.raises(RequestRefused, match="The prompt has 90 tokens"):
        ask(VLLM(server.url), prompt=long)


def test_a_server_that_always_fails_makes_the_policy_unavailable():
    with ModelServer() as server:
        server.faults += [Fault(503, text=b"overloaded")] * 4
        with pytest.raises(PolicyUnavailable, match=rf"{server.url} .* after 3 attempts; .* 503: .*overloaded"):
            ask(VLLM(server.url, max_retries=2, check=False))
        assert len(server.bodies(GENERATE)) == 3


DEAD = Fault(500, text=b'{"error": {"message": "EngineCore encountered an issue. See stack trace", "code": 500}}')


def test_a_server_whose_engine_has_died_is_not_asked_again():
    with ModelServer() as server:
        server.faults += [DEAD] * 5
        with pytest.raises(EngineDead, match=rf"the engine of {server.url} has died: .*EngineCore.*start it again"):
            ask(VLLM(server.url, check=False))
        assert len(server.bodies(GENERATE)) == 1


def test_a_server_that_ends_after_its_engine_has_died_is_not_waited_for():
    async def run(policy, server):
        async with policy:
            with pytest.raises(EngineDead):
                await policy(PROMPT, **request())
            server.stop()
            with pytest.raises(EngineDead):
                await policy(PROMPT, **request())

    with ModelServer() as server:
        server.faults.append(DEAD)
        policy = VLLM(server.url, check=False)
        asyncio.run(run(policy, server))
    assert policy.usage.requests == 2
    assert not policy.usage.retries


def test_an_episode_moves_from_a_dead_engine_to_another_server():
    with ModelServer() as one, ModelServer() as two:
        one.faults.append(DEAD)
        assert ask(VLLM([one.url, two.url], check=False)).finish_reason == "stop"
        assert [len(server.bodies(GENERATE)) for server in (one, two)] == [1, 1]


def test_a_run_does_not_repeat_episodes_of_a_dead_engine():
    async def run(policy):
        async with policy:
            env = {"tokenizer": "embedded", "limits": {"max_steps": 1}}
            options = {"seeds": range(3), "group_size": 1, "env_options": env}
            return await Rollouts("envsdk/GuessNumber-v1", policy, **options).arun()

    with ModelServer() as server:
        server.faults += [DEAD] * 9
        trajectories = asyncio.run(run(VLLM(server.url, check=False)))
        assert len(server.bodies(GENERATE)) == 3
    assert [one.error_kind for one in trajectories] == ["infrastructure"] * 3


def test_a_server_that_was_never_reached_is_reported_at_once():
    with ModelServer() as server, ModelServer() as other:
        urls = [server.url, other.url]
    policy = VLLM(urls, max_retries=10)
    with pytest.raises(ServerUnreachable, match=r"no connection to .*ConnectError.*correct the URL and its port"):
        ask(policy)
    assert policy.usage.requests == 2  # one to each


def test_a_server_that_was_reached_before_is_tried_again():
    with ModelServer() as server:
        policy = VLLM(server.url, max_retries=1, check=False)
        ask(policy)
    with pytest.raises(PolicyUnavailable, match=r"after 2 attempts.*connection"):
        ask(policy)


@pytest.fixture
def waits(monkeypatch):
    """How long the client waits before each further attempt, in seconds."""
    found, wait_s = [], client._wait_s
    monkeypatch.setattr(
        client, "_wait_s", lambda failure, attempts: found.append(wait_s(failure, attempts)) or found[-1]
    )
    return found


def test_retry_after_is_honored(waits):
    with ModelServer() as server:
        server.faults.append(Fault(429, {"Retry-After": "0.3"}))
        ask(VLLM(server.url, check=False))
    assert waits == [0.3]


@pytest.mark.parametrize("value", ["1e9", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_retry_after_has_an_upper_bound(value, waits, monkeypatch):
    monkeypatch.setattr(client, "_MAX_RETRY_AFTER_S", 0.2)
    with ModelServer() as server:
        server.faults.append(Fault(429, {"Retry-After": value}))
        ask(VLLM(server.url, check=False))
    assert waits == [0.2]


@pytest.mark.parametrize("value", ["-5", "nan", "soon", "Fri, 31 Dec 1999 23:59:59 GMT"])
def test_a_retry_after_that_makes_no_sense_is_no_wait(value, waits):
    with ModelServer() as server:
        server.faults.append(Fault(429, {"Retry-After": value}))
        ask(VLLM(server.url, check=False))
    assert waits[0] < 0.1  # the first of the client's own waits


def test_a_late_answer_of_an_attempt_that_timed_out_is_not_used():
    with ModelServer(token_s=0.5, stop_logit=99.0) as server:
        policy = VLLM(server.url, timeout_s=0.2, max_retries=1, check=False)
        with pytest.raises(PolicyUnavailable, match=r"timeout_s=0\.2"):
            ask(policy)
        asyncio.run(until(lambda: len(server.closed_by_client) == 2))
    assert policy.usage.sampled_tokens == 0


def test_canceling_a_call_ends_its_request_on_the_server():
    async def run(policy, server):
        async with policy:
            task = asyncio.ensure_future(policy(PROMPT, **request()))
            await until(lambda: begun(server))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: server.closed_by_client)

    with ModelServer(token_s=0.1, stop_logit=-9.0) as server:
        asyncio.run(run(VLLM(server.url, check=False), server))
        (body,) = server.bodies(GENERATE)
        assert server.closed_by_client == [body["request_id"]]


# Aborts.


@pytest.mark.parametrize("kind", [VLLM, SGLang])
def test_an_abort_returns_what_was_sampled(kind):
    async def run(policy, server):
        async with policy:
            calls = [asyncio.ensure_future(policy(PROMPT, **request(episode_id=str(n)))) for n in range(4)]
            await until(lambda: begun(server) == 4)
            await policy.abort()
            return await asyncio.gather(*calls)

    with ModelServer("sglang" if kind is SGLang else "vllm", token_s=0.05, stop_logit=-9.0) as server:
        actions = asyncio.run(run(kind(server.url, check=False), server))
    assert {action.finish_reason for action in actions} == {"abort"}
    assert all(0 < len(action.tokens) < 40 and len(action.logprobs) == len(action.tokens) for action in actions)


def test_an_abort_waits_for_a_server_that_cannot_abort():
    async def run(policy, server):
        async with policy:
            call = asyncio.ensure_future(policy(PROMPT, **request(max_tokens=8)))
            await until(lambda: begun(server))
            await policy.abort()
            return await call

    with ModelServer(has_token_endpoint=False, token_s=0.05, stop_logit=-9.0) as server:
        action = asyncio.run(run(VLLM(server.url, check=False), server))
    assert action.finish_reason == "length" and len(action.tokens) == 8


def test_a_reply_that_was_aborted_continues_as_the_same_step():
    async def run(policy, env, server):
        async with policy:
            episode = asyncio.ensure_future(envsdk.arollout(env, policy, seed=0))
            await until(lambda: begun(server))
            await policy.abort()
            return await episode

    env = envsdk.make("envsdk/GuessNumber-v1", tokenizer="embedded", limits={"max_steps": 1, "max_sampled_tokens": 25})
    with ModelServer(token_s=0.02, stop_logit=-9.0) as server:
        trajectory = asyncio.run(run(VLLM(server.url, check=False), env, server))
        first, second = server.bodies(GENERATE)
    (step,) = trajectory.steps
    assert len(step.parts) == 2 and step.stop - step.action_start == 25
    assert second["token_ids"][: len(first["token_ids"])] == first["token_ids"]
    assert second["sampling_params"]["max_tokens"] == 25 - (step.parts[0].stop - step.action_start)


# Several servers, loops, threads and processes.


def test_an_episode_stays_on_one_server_and_episodes_are_spread():
    async def run(policy):
        async with policy:
            for _ in range(3):
                await asyncio.gather(*(policy(PROMPT, **request(episode_id=str(n))) for n in range(8)))

    with ModelServer() as one, ModelServer() as two:
        policy = VLLM([one.url, two.url], seed=1, check=False)
        asyncio.run(run(policy))
        seeds = [{body["sampling_params"]["seed"] for body in server.bodies(GENERATE)} for server in (one, two)]
        assert len(one.bodies(GENERATE)) == len(two.bodies(GENERATE)) == 12
    assert not seeds[0] & seeds[1]  # a seed belongs to an episode


def test_episodes_move_when_their_server_dies_and_none_is_lost():
    async def run(policy, one):
        async with policy:
            calls = [asyncio.ensure_future(policy(PROMPT, **request(episode_id=str(n)))) for n in range(8)]
            await until(lambda: begun(one) == 4)
            await asyncio.to_thread(one.stop)
            return await asyncio.gather(*calls)

    with ModelServer(token_s=0.05, stop_logit=-9.0) as one, ModelServer() as two:
        actions = asyncio.run(run(VLLM([one.url, two.url], check=False), one))
        assert len(two.bodies(GENERATE)) == 8
    assert all(len(action.tokens) for action in actions)


def test_a_server_that_is_restarted_is_checked_again_and_used():
    with ModelServer() as server:
        policy = VLLM(server.url, max_retries=50)
        port = server._port

        async def run():
            async with policy:
                await policy(PROMPT, **request())
                await asyncio.to_thread(server.stop)
                call = asyncio.ensure_future(policy(PROMPT, **request()))
                await asyncio.sleep(0.1)
                with ModelServer(port=port) as again:
                    await call
                    return [path for path, _, _ in again.requests]

        paths = asyncio.run(run())
    assert "/v1/models" in paths and paths[-1] == GENERATE


def test_a_server_that_failed_comes_back_into_use(monkeypatch):
    monkeypatch.setattr(client, "_REST_S", 0.0)
    with ModelServer() as one, ModelServer() as two:
        policy = VLLM([one.url, two.url], check=False, max_retries=1)
        one.faults += [Fault(503)] * 2
        with pytest.raises(PolicyUnavailable):
            ask(policy, episode_id="e")
        ask(policy, episode_id="e")
        assert len(one.bodies(GENERATE)) == 3 and not two.bodies(GENERATE)


@pytest.mark.parametrize(("status", "moves"), [(429, False), (503, True)])
def test_an_episode_leaves_a_server_that_fails_twice_but_not_one_that_asks_to_wait(status, moves):
    with ModelServer() as one, ModelServer() as two:
        one.faults += [Fault(status)] * 3
        ask(VLLM([one.url, two.url], check=False))
        assert len(one.bodies(GENERATE)) == (2 if moves else 4)
        assert len(two.bodies(GENERATE)) == (1 if moves else 0)


def test_a_server_that_was_overloaded_is_not_checked_again():
    with ModelServer() as server:
        server.faults += [Fault(503)] * 3
        ask(VLLM(server.url))
        assert [path for path, _, _ in server.requests].count("/v1/models") == 1


def test_if_all_servers_failed_an_episode_stays():
    with ModelServer() as one, ModelServer() as two:
        one.faults += [Fault(503)] * 2
        two.faults += [Fault(503)] * 3
        ask(VLLM([one.url, two.url], check=False, max_retries=9))
        assert len(one.bodies(GENERATE)) == 2 and len(two.bodies(GENERATE)) == 4


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://a", [], ["http://a", "http://a/v1/"], None])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="url is"):
        base_urls(url)


def test_a_url_may_end_with_the_path_of_the_api():
    assert base_urls("http://localhost:8000/v1/") == ["http://localhost:8000"]
    assert base_urls("https://host/prefix") == ["https://host/prefix"]


def test_calls_in_flight_are_bounded():
    async def run(policy):
        async with policy:
            await asyncio.gather(*(policy(PROMPT, **request(episode_id=str(n))) for n in range(12)))

    with ModelServer(token_s=0.02, stop_logit=99.0) as server:
        asyncio.run(run(VLLM(server.url, max_in_flight=3, check=False)))
        assert server.most_active == 3


def test_connections_are_pooled():
    async def run(policy):
        async with policy:
            for _ in range(10):
                await policy(PROMPT, **request())

    with ModelServer() as server:
        asyncio.run(run(VLLM(server.url)))
        assert server.connections == 1


def test_a_policy_works_in_one_event_loop_after_another_and_in_threads():
    with ModelServer() as server:
        policy = VLLM(server.url)
        actions = [ask(policy), ask(policy)]
        threads = [threading.Thread(target=lambda: actions.append(ask(policy))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(actions) == 5
    assert policy.usage.requests >= 5


def test_a_pickled_policy_samples_the_same_replies():
    with ModelServer() as server:
        policy = VLLM(server.url, "toy", seed=4, api_key="k", headers={"X-Team": "a"}, max_tokens=9)
        action = ask(policy)
        copy = pickle.loads(pickle.dumps(policy))
        again = ask(copy)
        headers = server.requests[-1][2]
    assert np.array_equal(action.tokens, again.tokens)
    assert headers["authorization"] == "Bearer k" and headers["x-team"] == "a"
    assert copy.usage.requests and policy.usage.requests


def test_requests_to_new_weights_share_no_cached_prefix_with_those_to_the_old_ones():
    with ModelServer() as server:
        first, second = VLLM(server.url, check=False), VLLM(server.url, check=False)
        ask(first)
        for policy in (first, second):
            policy.use_weights(3)
            ask(policy)
        ask(pickle.loads(pickle.dumps(first)))
        first.use_weights(4)
        ask(first)
        salts = [body.get("cache_salt") for _, body, _ in server.requests[-5:]]
    assert salts[0] is None
    assert salts[1] == salts[3]  # in another process
    assert len({*salts}) == 4


def test_priority_and_the_request_id_are_sent():
    with ModelServer() as server:
        ask(VLLM(server.url, priority=-3, check=False))
        _, body, headers = server.requests[-1]
    assert body["priority"] == -3
    assert headers["x-request-id"] == body["request_id"]


def test_usage_counts_tokens_and_seconds():
    with ModelServer() as server:
        policy = VLLM(server.url, check=False)
        action = ask(policy)
    usage = policy.usage.to_dict()
    assert usage["prompt_tokens"] == len(PROMPT) and usage["sampled_tokens"] == len(action.tokens)
    assert usage["requests"] == 1 and usage["seconds"] > 0 and usage["retries"] == {}


@pytest.mark.parametrize(
    "options", [{"max_tokens": 0}, {"max_retries": -1}, {"max_in_flight": 0}, {"timeout_s": 0}, {"temperature": -1}]
)
def test_options_that_are_not_valid_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        VLLM("http://localhost:1", **options)


@pytest.mark.parametrize("kind", [VLLM, pytest.param(SGLang, marks=pytest.mark.full)])
def test_no_episode_is_lost_on_servers_that_fail_at_random(kind):
    rng = random.Random(0)
    name = "sglang" if kind is SGLang else "vllm"

    async def run(policy):
        async with policy:
            return await envsdk.rollouts.arollout_many(
                lambda: envsdk.make("envsdk/GuessNumber-v1", tokenizer="embedded", limits={"max_steps": 2}),
                policy,
                seeds=range(20),
            )

    with ModelServer(name) as one, ModelServer(name) as two:
        faults = [Fault(429, {"Retry-After": "0"}), Fault(500), Fault(how="reset"), Fault(how="truncated")]
        faults += [Fault(how="refuse"), Fault(how="hang"), Fault(text=b"")]
        for server in (one, two):
            server.faults += [rng.choice(faults) if rng.random() < 0.3 else Fault() for _ in range(60)]
        policy = kind([one.url, two.url], seed=0, timeout_s=0.5)
        trajectories = asyncio.run(run(policy))
    assert [trajectory.error for trajectory in trajectories if trajectory.error] == []
    assert len({trajectory.id for trajectory in trajectories}) == 20
    assert sum(policy.usage.retries.values()) > 5
    assert policy.usage.sampled_tokens == sum(
        step.stop - step.action_start for trajectory in trajectories for step in trajectory.steps
    )
