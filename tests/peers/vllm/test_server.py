"""What envsdk relies on of vLLM's HTTP API: ids and log-probabilities, stop tokens, aborts, a server that dies."""

import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers
from policy_requests import request
from vllm_server import MAX_MODEL_LEN, MODEL_NAME, VLLMServer

from envsdk.errors import EngineDead
from envsdk.policies import VLLM

pytestmark = pytest.mark.filterwarnings("default")

VOCAB_SIZE = 49_152
STOP_TOKEN = 2  # <|im_end|>
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def prompt(model_folder: Any) -> list[int]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    messages = [{"role": "user", "content": "Say hi."}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def generate(
    server: VLLMServer,
    token_ids: list[int],
    *,
    request: dict[str, Any] | None = None,
    timeout_s: float = 60.0,
    **sampling: Any,
) -> httpx.Response:
    """Call vLLM's native endpoint."""
    sampling = {"logprobs": 0, **sampling}
    body = {"model": MODEL_NAME, "token_ids": token_ids, "sampling_params": sampling, **(request or {})}
    return httpx.post(f"{server.url}/inference/v1/generate", json=body, timeout=timeout_s)


def choice(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    (only,) = answer.json()["choices"]
    assert [entry["token_id"] for entry in only["logprobs"]["content"]] == only["token_ids"]
    return only


def test_the_server_is_up(vllm_server: VLLMServer) -> None:
    assert httpx.get(f"{vllm_server.url}/health").status_code == 200
    (model,) = httpx.get(f"{vllm_server.url}/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == (MODEL_NAME, MAX_MODEL_LEN)


def test_every_sampled_id_has_its_log_probability_and_its_weight_version(
    vllm_server: VLLMServer, prompt: list[int]
) -> None:
    reply = choice(generate(vllm_server, prompt, max_tokens=5, seed=1, ignore_eos=True))
    assert (len(reply["token_ids"]), reply["finish_reason"]) == (5, "length")
    assert reply["weight_versions"] == [{"version": "default", "start": 0, "end": 5}]


def test_a_reply_that_ends_by_itself_contains_its_stop_token(vllm_server: VLLMServer, prompt: list[int]) -> None:
    reply = choice(generate(vllm_server, prompt, max_tokens=60, temperature=0.0))
    assert (reply["finish_reason"], reply["stop_reason"]) == ("stop", None)
    assert reply["token_ids"].index(STOP_TOKEN) == len(reply["token_ids"]) - 1


def test_its_log_probabilities_are_those_of_the_distribution_sampled_from(
    vllm_server: VLLMServer, prompt: list[int], transformers_model: Any, compared: Counter[str]
) -> None:
    reply = choice(generate(vllm_server, prompt, max_tokens=40, temperature=TEMPERATURE, seed=3, ignore_eos=True))
    sampled = torch.tensor(reply["token_ids"])
    with torch.no_grad():
        logits = transformers_model(torch.tensor([prompt + reply["token_ids"]])).logits[0, len(prompt) - 1 : -1]
    expected = (logits / TEMPERATURE).log_softmax(-1)[torch.arange(len(sampled)), sampled]
    measured = torch.tensor([entry["logprob"] for entry in reply["logprobs"]["content"]])
    torch.testing.assert_close(measured, expected, atol=1e-4, rtol=0)
    compared["sampled tokens"] += len(sampled)


def test_one_allowed_token_is_certain_since_log_probabilities_are_processed(
    vllm_server: VLLMServer, prompt: list[int]
) -> None:
    reply = choice(generate(vllm_server, prompt, max_tokens=1, allowed_token_ids=[28]))
    assert reply["token_ids"] == [28]
    assert reply["logprobs"]["content"][0]["logprob"] == 0.0


@pytest.mark.parametrize(
    ("token_ids", "status", "message"),
    [
        ([1, VOCAB_SIZE], 400, "Token id 49152 is out of vocabulary"),
        ([1] * (MAX_MODEL_LEN + 1), 400, "is longer than the maximum model length of 1024"),
    ],
)
def test_a_prompt_that_the_model_cannot_read_is_refused(
    vllm_server: VLLMServer, token_ids: list[int], status: int, message: str
) -> None:
    answer = generate(vllm_server, token_ids, max_tokens=1)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


def test_an_aborted_request_returns_what_was_sampled_until_then(vllm_server: VLLMServer, prompt: list[int]) -> None:
    with ThreadPoolExecutor() as pool:
        long = {"max_tokens": 900, "ignore_eos": True}
        answer = pool.submit(generate, vllm_server, prompt, request={"request_id": "mine"}, **long)
        time.sleep(2.0)
        aborted = {"request_ids": ["generate-tokens-mine"]}  # the id that the answer has
        assert httpx.post(f"{vllm_server.url}/inference/v1/abort_requests", json=aborted).status_code == 200
        reply = choice(answer.result())
    assert reply["finish_reason"] == "abort"
    assert 0 < len(reply["token_ids"]) < 900


def test_a_reply_that_two_versions_sampled_reports_where_each_began(vllm_server: VLLMServer, prompt: list[int]) -> None:
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(generate, vllm_server, prompt, max_tokens=60, ignore_eos=True)
        time.sleep(1.0)
        vllm_server.post("/update_weight_version", {"new_version": "7"})
        reply = choice(answer.result())
    vllm_server.post("/update_weight_version", {"new_version": "default"})
    first, second = reply["weight_versions"]
    assert (first["version"], first["start"], second["version"], second["end"]) == ("default", 0, "7", 60)
    assert first["end"] == second["start"]


def test_after_an_update_only_another_cache_salt_prevents_the_old_weights_prefix(
    vllm_server: VLLMServer, model_folder: Path, changed_model_folder: Path, prompt: list[int]
) -> None:
    long = prompt * 15  # more than a block of the prefix cache, which has 128 tokens

    def logprob(salt: str) -> float:
        reply = choice(generate(vllm_server, long, request={"cache_salt": salt}, max_tokens=1, temperature=0.0))
        return reply["logprobs"]["content"][0]["logprob"]

    old = logprob("version 0")
    assert logprob("version 0") == pytest.approx(old, abs=1e-5)
    try:
        vllm_server.load_weights(changed_model_folder, "1")
        mixed, new = logprob("version 0"), logprob("version 1")
    finally:
        vllm_server.load_weights(model_folder, "default")
    assert mixed != pytest.approx(new, abs=1e-5)
    assert logprob("version 0") == pytest.approx(old, abs=1e-5)


def test_a_seeded_request_whose_prefill_is_split_ends_the_engine_and_all_retries(
    model_folder: Path, tmp_path: Path
) -> None:
    async def run(url: str) -> None:
        async with VLLM(url, MODEL_NAME, seed=0, max_tokens=4) as policy:
            for _ in range(2):  # the second time, the server may have ended
                with pytest.raises(EngineDead):
                    await policy(np.full(600, 1000, dtype=np.int32), **request())
            assert not policy.usage.retries

    with VLLMServer(model_folder, tmp_path / "server.log", ("--max-num-batched-tokens", "256")) as server:
        asyncio.run(run(server.url))


def test_a_server_that_is_killed_drops_its_requests_and_can_be_started_again(
    vllm_server: VLLMServer, prompt: list[int]
) -> None:
    with ThreadPoolExecutor() as pool:
        in_flight = pool.submit(generate, vllm_server, prompt, max_tokens=900, ignore_eos=True)
        time.sleep(2.0)
        vllm_server.kill()
        try:
            assert isinstance(in_flight.exception(), httpx.RemoteProtocolError | httpx.ReadError)
            with pytest.raises(httpx.ConnectError):
                generate(vllm_server, prompt, max_tokens=1)
        finally:
            vllm_server.start()
    assert choice(generate(vllm_server, prompt, max_tokens=1))["finish_reason"] == "length"
