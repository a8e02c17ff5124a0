"""Servers of older versions of vLLM, which trainers require: TRL 1.16 needs 0.22 to 0.31, verl 0.9.1 needs 0.24."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from policy_requests import request
from vllm_checks import RecordingVLLM, check_logprobs, check_tokens, samples_of
from vllm_server import MODEL_NAME, VLLMServer

from envsdk import Trajectory
from envsdk.policies import VLLM
from envsdk.rollouts import Rollouts

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module", params=["0.31.0", "0.27.0"])
def older_server(
    request: pytest.FixtureRequest, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VLLMServer]:
    log = tmp_path_factory.mktemp("older") / "server.log"
    with VLLMServer(model_folder, log, version=request.param) as server:
        assert httpx.get(f"{server.url}/version").json()["version"].startswith(request.param)
        yield server


@pytest.mark.parametrize("has_token_endpoint", [True, False])
def test_a_trainer_computes_what_an_older_server_sampled(
    older_server: VLLMServer,
    has_token_endpoint: bool,
    env_options: Callable[..., dict[str, Any]],
    transformers_model: Any,
    compared: Counter[str],
) -> None:
    policy = RecordingVLLM(older_server.url, MODEL_NAME, temperature=0.8, max_tokens=16)
    policy._client.servers[0].lacks_token_endpoint = not has_token_endpoint
    options = {"seeds": range(8), "group_size": 2, "env_options": env_options("strip"), "max_concurrency": 8}

    async def run() -> list[Trajectory]:
        async with policy:
            return await Rollouts("envsdk/GuessNumber-v1", policy, **options).arun()

    samples = samples_of(asyncio.run(run()))
    assert policy._client.servers[0].lacks_token_endpoint is not has_token_endpoint
    check_tokens(policy, samples, compared)
    check_logprobs(samples, {-1: transformers_model}, compared)


def test_a_reply_of_an_older_server_is_reported_while_it_is_sampled(older_server: VLLMServer) -> None:
    async def run() -> tuple[Any, list[int]]:
        reported: list[int] = []
        async with VLLM(older_server.url, MODEL_NAME, max_tokens=12) as policy:
            action = await policy(
                np.array([1, 4093, 198], dtype=np.int32),
                **request(stop_token_ids=(2,), on_tokens=lambda tokens: reported.extend(tokens)),
            )
        return action, reported

    action, reported = asyncio.run(run())
    assert reported == list(action.tokens) and len(reported) > 1
    assert len(action.logprobs) == len(reported)
