"""Startup checks: each one names the flag of the server that is wrong."""

import asyncio
import re

import numpy as np
import pytest
from model_servers import ModelServer
from policy_requests import PROMPT, ask, request

import envsdk
from envsdk.errors import ConfigError, ServerMismatch, ServerUnreachable, TokenizerMismatch
from envsdk.policies import VLLM, SGLang

KINDS = [(VLLM, "vllm"), (SGLang, "sglang")]


def play(policy, tokenizer="embedded", **limits):
    """One episode."""
    env = envsdk.make("envsdk/GuessNumber-v1", tokenizer=tokenizer, limits={"max_steps": 1, **limits})

    async def run():
        async with policy:
            return await envsdk.arollout(env, policy, seed=0)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "options", "flag"),
    [
        (VLLM, {}, "--logprobs-mode processed_logprobs"),
        (VLLM, {"has_token_endpoint": False}, "--logprobs-mode processed_logprobs"),
        (SGLang, {"kind": "sglang"}, "SGLANG_RETURN_ORIGINAL_LOGPROB"),
    ],
)
def test_raw_logprobs_are_detected(kind, options, flag):
    with ModelServer(processed=False, **options) as server, pytest.raises(ServerMismatch, match=flag):
        ask(kind(server.url))


class WithoutTopK(VLLM):
    """Its replies are sampled from all tokens, so the sampled one is rarely among the most likely ones."""

    def check_sampling(self, sampling):
        super().check_sampling(sampling)
        if sampling.top_k is not None:
            raise ConfigError("no top_k")


@pytest.mark.parametrize("options", [{}, {"has_token_endpoint": False}])
def test_the_sampled_token_is_not_counted_among_the_most_likely_ones(options):
    with ModelServer(**options) as server:
        ask(WithoutTopK(server.url))
    with ModelServer(processed=False, **options) as server, pytest.raises(ServerMismatch, match="the 5 most likely"):
        ask(WithoutTopK(server.url))


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_processed_logprobs_pass(kind, name):
    with ModelServer(name) as server:

        async def run():
            for last in range(6):
                async with kind(server.url) as policy:
                    await policy(np.array([last], dtype=np.int32), **request())

        asyncio.run(run())


def test_the_ids_of_another_vocabulary_are_shown_where_they_differ():
    with ModelServer() as server:

        def tokenize(text):
            *same, last = server.tokenizer.encode(text).tolist()
            return [*same, last + 1]

        server._tokenize = tokenize
        with pytest.raises(ServerMismatch) as caught:
            ask(VLLM(server.url, tokenizer="embedded"))
    found, own = re.search(r"has the ids (.*) on the server and (.*) in the environment", str(caught.value)).groups()
    assert found != own


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_a_server_of_another_vocabulary_is_refused(kind, name):
    with ModelServer(name, tokenizer="embedded") as server:
        server._tokenize = lambda text: [token + 1 for token in server.tokenizer.encode(text).tolist()]
        with pytest.raises(
            ServerMismatch, match="does not have the vocabulary of the environment's tokenizer 'embedded'"
        ):
            play(kind(server.url))


def test_a_server_that_names_a_control_token_differently_is_refused():
    with ModelServer() as server:
        server._tokenize = lambda text: server.tokenizer.encode(text).tolist()
        with pytest.raises(ServerMismatch, match=r"the string '<\|"):
            play(VLLM(server.url))


def test_a_given_tokenizer_is_compared_with_the_server_and_with_the_environment(tmp_path):
    with ModelServer() as server:
        server._tokenize = lambda text: [1]
        with pytest.raises(ServerMismatch, match="vocabulary"):
            ask(VLLM(server.url, tokenizer="embedded"))


def test_contexts_that_are_longer_than_the_servers_are_refused():
    with ModelServer(max_model_len=500) as server:
        assert play(VLLM(server.url), max_context_tokens=500).steps
        with pytest.raises(ServerMismatch, match="--max-model-len 501"):
            play(VLLM(server.url), max_context_tokens=501)


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_a_model_that_is_not_served_is_named_with_those_that_are(kind, name):
    with ModelServer(name) as server, pytest.raises(ServerMismatch, match=r"only \['toy'\].*--served-model-name other"):
        ask(kind(server.url, "other"))


REFUSED = {"error": {"message": "Requested sample logprobs of 5, which is greater than max allowed: 0"}}


@pytest.mark.parametrize(
    ("path", "answer", "message"),
    [
        ("/tokenize", (404, {"detail": "Not Found"}), "cannot tokenize.*--skip-tokenizer-init"),
        ("/inference/v1/generate", (200, {"outputs": []}), "form that VLLM cannot read: .*choices"),
        ("/inference/v1/generate", (400, REFUSED), r"max allowed: 0.*--max-logprobs 5"),
    ],
)
def test_what_the_checks_need_is_named_if_a_server_lacks_it(path, answer, message):
    with ModelServer() as server:
        route = server._route

        async def changed(asked, body):
            return answer if asked == path else await route(asked, body)

        server._route = changed
        with pytest.raises(ServerMismatch, match=message):
            play(VLLM(server.url))


def test_the_checks_send_no_seed():
    with ModelServer() as server:
        ask(VLLM(server.url))
        assert not any("seed" in body["sampling_params"] for _, body, _ in server.requests if "token_ids" in body)


def test_each_server_is_checked_once():
    async def run(policy):
        async with policy:
            await asyncio.gather(*(policy(PROMPT, **request(episode_id=str(n))) for n in range(8)))

    with ModelServer() as one, ModelServer() as two:
        asyncio.run(run(VLLM([one.url, two.url], tokenizer="embedded")))
        for server in (one, two):
            paths = [path for path, _, _ in server.requests]
            assert paths.count("/v1/models") == 1
            assert paths.count("/inference/v1/generate") == 4 + 2


def test_without_checks_only_replies_are_requested():
    with ModelServer(processed=False) as server:
        play(VLLM(server.url, check=False))
        assert {path for path, _, _ in server.requests} == {"/inference/v1/generate"}


def test_acheck_checks_all_servers_before_the_first_reply():
    renderer = envsdk.get_renderer("qwen3", tokenizer="embedded")

    async def run(policy):
        async with policy:
            await policy.acheck(renderer)
            await policy(PROMPT, **request())

    with ModelServer() as one, ModelServer() as two:
        asyncio.run(run(VLLM([one.url, two.url])))
        assert [len(server.bodies("/inference/v1/generate")) for server in (one, two)] in ([1, 0], [0, 1])
        assert all("/tokenize" in {path for path, _, _ in server.requests} for server in (one, two))


def test_the_environment_needs_a_tokenizer_of_its_own():
    with (
        ModelServer() as server,
        pytest.raises(TokenizerMismatch, match=r"policy VLLM would get .* the embedded"),
    ):
        envsdk.rollout(envsdk.make("envsdk/GuessNumber-v1"), VLLM(server.url))


def test_acheck_needs_servers_that_answer():
    with ModelServer() as server:
        url = server.url

    async def run(policy):
        async with policy:
            await policy.acheck(envsdk.get_renderer("qwen3", tokenizer="embedded"))

    with pytest.raises(ServerUnreachable):
        asyncio.run(run(VLLM(url, max_retries=2)))
