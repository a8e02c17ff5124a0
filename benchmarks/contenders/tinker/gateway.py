"""The cookbook's capture proxy, in front of a sampling client that answers at once in the same process.

`python gateway.py` serves, and prints the URL.
"""

import asyncio
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

if __name__ == "__main__":  # run as a file and with -P
    sys.path.append(str(Path(__file__).resolve().parents[3]))

from aiohttp import web
from tinker_cookbook.capture.proxy.app import ProxyDeps, make_app

import benchmarks  # noqa: F401  # the folders that the imports below are in
from benchmarks.contender import Repetition, contender
from benchmarks.contenders.tinker.rollouts import renderer
from benchmarks.contenders.tinker.samples import PACKAGES
from benchmarks.served import Conversation, Requests, Served


@contender(
    "gateway",
    "tinker-cookbook",
    packages=PACKAGES,
    note="`capture.proxy` with `Qwen3Renderer`: renders the prompt; its recording is in the SDK's sampling client, "
    "which is not in the figure",
)
def gateway(length: int) -> Repetition:
    """Requests of a conversation."""
    server = Served([sys.executable, "-P", __file__])
    return Requests(server, Conversation(f"{server.line()}/v1/chat/completions"), length)


class Sampler:
    """Answers every prompt with the same tokens."""

    def __init__(self) -> None:
        self.tokens = renderer().tokenizer.encode("Here is more.<|im_end|>")

    async def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> SimpleNamespace:
        """Answer a prompt."""
        return SimpleNamespace(sequences=[SimpleNamespace(tokens=self.tokens, stop_reason="stop")])


async def serve() -> None:
    """Serve until the process is ended."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    runner = web.AppRunner(make_app(ProxyDeps(renderer=renderer(), sampling_client=Sampler(), model_label="m")))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", file=answers, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
