"""verifiers' interception server, with its training client and an engine that answers at once in the same process.

`python gateway.py` serves, and prints the URL and the secret of a session.
"""

import asyncio
import os
import sys
from pathlib import Path

if __name__ == "__main__":  # run as a file and with -P
    sys.path.append(str(Path(__file__).resolve().parents[3]))

from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.session import RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask

import benchmarks  # noqa: F401  # the folders that the imports below are in
from benchmarks.contender import Repetition, contender
from benchmarks.contenders.verifiers.engine import MODEL, Engine, config, script, server_of
from benchmarks.contenders.verifiers.samples import PACKAGES
from benchmarks.served import Conversation, Requests, Served


@contender(
    "gateway",
    "verifiers",
    packages=PACKAGES,
    note="`InterceptionServer` with `TrainClient` and renderers' `Qwen3Renderer`: renders the prompt, and records it",
)
def gateway(length: int) -> Repetition:
    """Requests of a session."""
    server = Served([sys.executable, "-P", __file__])
    url, secret = server.line().split()
    headers = {"Authorization": f"Bearer {secret}"}
    return Requests(server, Conversation(f"{url}/v1/chat/completions", headers, MODEL), length)


async def serve() -> None:
    """Serve one session until the process is ended."""
    trace: Trace = Trace(task=TraceTask(type="Task", data=TaskData()), agent=AgentInfo(config=AgentConfig()))
    session = RolloutSession(ctx=ModelContext(model=MODEL, client=config()), trace=trace)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    async with server_of(Engine(script(), 0.0)) as server:
        secret, _ = server.register(session)
        print(server.base_url, secret, file=answers, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
