"""A scripted vLLM engine inside the process, for verifiers' training client: no server and no network in between."""

import asyncio
import json
from functools import cache
from typing import Any

import httpx
import real_models
from openai import AsyncOpenAI
from renderers.base import load_tokenizer
from renderers.configs import Qwen3RendererConfig
from verifiers.v1.clients.train import TrainClient
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.interception.server import InterceptionServer

from benchmarks.talks import Script, reply_text

URL = "http://engine/v1"
MODEL = str(real_models.qwen3_folder())


class Engine(httpx.AsyncBaseTransport):
    """Answers `/inference/v1/generate` as vLLM does, from a script.

    Args:
        script: The replies.
        seconds: How long a reply takes.
    """

    def __init__(self, script: Script, seconds: float) -> None:
        self.script, self.seconds = script, seconds
        self.bodies = [self._body(tokens) for tokens in script.replies]

    @staticmethod
    def _body(tokens: list[int]) -> bytes:
        logprobs = {"content": [{"token": f"token_id:{token}", "logprob": -0.5} for token in tokens]}
        choice = {"index": 0, "token_ids": tokens, "logprobs": logprobs, "finish_reason": "stop"}
        return json.dumps({"request_id": "r", "choices": [choice]}).encode()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a request; the model's length is not known."""
        if request.url.path != "/inference/v1/generate":
            return httpx.Response(200, json={"data": [{"id": MODEL}]}, request=request)
        if self.seconds:
            await asyncio.sleep(self.seconds)
        step = self.script.asked
        self.script.next(step)
        return httpx.Response(200, content=self.bodies[step % len(self.bodies)], request=request)


@cache
def tokenizer() -> Any:
    """Return Qwen3's tokenizer as renderers loads it."""
    return load_tokenizer(MODEL)


def script() -> Script:
    """Return the replies as tokens."""
    return Script(lambda step: tokenizer().encode(reply_text(step) + "<|im_end|>", add_special_tokens=False))


def config() -> TrainClientConfig:
    """Return the configuration of the training client."""
    return TrainClientConfig(base_url=URL, renderer=Qwen3RendererConfig(), renderer_model_name=MODEL)


def server_of(engine: Engine) -> InterceptionServer:
    """Return an interception server whose training client asks an engine."""
    server = InterceptionServer()
    client = TrainClient(config())
    http = httpx.AsyncClient(transport=engine)
    client.client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0, http_client=http)
    server.clients[config().model_dump_json()] = client
    return server
