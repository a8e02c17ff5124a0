"""What envsdk relies on of vLLM's HTTP API: ids and log-probabilities, stop tokens, aborts, a server that dies."""

import threading
import time
from collections import Counter
from typing import Any

import httpx
import pytest
import torch
import transformers
from vllm_server import MAX_MODEL_LEN, MODEL_NAME, VLLMServer

pytestmark = pytest.mark.filterwarnings("default")

VOCAB_SIZE = 49_152
STOP_TOKEN = 2  # <|im_end|>
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def prompt(model_folder: Any) -> list[int]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    messages = [{"role": "user", "content": "Say hi."}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def generate(server: VLLMServer, token_ids: list[int], timeout_s: float = 60.0, **sampling: Any) -> httpx.Response:
    """Call vLLM's native endpoint."""
    body = {"model": MODEL_NAME, "token_ids": token_ids, "sampling_params": {"logprobs": 0, **sampling}}
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
    reply = choice(generate(vllm_server, prompt, max_tokens=40, temperature=TEMPERATURE, seed=3))
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
    answers: list[httpx.Response] = []
    body = {"token_ids": prompt, "sampling_params": {"max_tokens": 900, "ignore_eos": True, "logprobs": 0}}
    call = threading.Thread(
        target=lambda: answers.append(
            httpx.post(f"{vllm_server.url}/inference/v1/generate", json={**body, "request_id": "mine"}, timeout=120)
        )
    )
    call.start()
    time.sleep(2.0)
    aborted = {"request_ids": ["generate-tokens-mine"]}  # the id that the answer would have
    assert httpx.post(f"{vllm_server.url}/inference/v1/abort_requests", json=aborted).status_code == 200
    call.join()
    reply = choice(answers[0])
    assert reply["finish_reason"] == "abort"
    assert 0 < len(reply["token_ids"]) < 900


def test_a_server_that_is_killed_drops_its_requests_and_can_be_started_again(
    vllm_server: VLLMServer, prompt: list[int]
) -> None:
    errors: list[Exception] = []

    def call() -> None:
        try:
            generate(vllm_server, prompt, max_tokens=900, ignore_eos=True)
        except httpx.HTTPError as error:
            errors.append(error)

    in_flight = threading.Thread(target=call)
    in_flight.start()
    time.sleep(2.0)
    vllm_server.kill()
    try:
        in_flight.join()
        assert [type(error) for error in errors] in ([httpx.RemoteProtocolError], [httpx.ReadError])
        with pytest.raises(httpx.ConnectError):
            generate(vllm_server, prompt, max_tokens=1)
    finally:
        vllm_server.start()
    assert choice(generate(vllm_server, prompt, max_tokens=1))["finish_reason"] == "length"
