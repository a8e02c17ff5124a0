"""OpenEnv's capture server, in front of an engine that answers at once in the same process.

`python gateway.py` serves, and prints the URL.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run as a file and with -P
    sys.path.append(str(Path(__file__).resolve().parents[3]))

import uvicorn
from openenv.core.harness.capture.server import UpstreamPool, create_app
from openenv.core.harness.capture.upstream import InferenceClient

from benchmarks.contender import Repetition, contender
from benchmarks.served import Conversation, Requests, Served

TOKENS_OF_A_MESSAGE, NEW_TOKENS, REPLY_TOKENS = 195, 260, 4


@contender(
    "gateway",
    "OpenEnv",
    packages=("openenv",),
    note="`harness.capture`: passes messages on, renders nothing, and records the token ids that the engine returns, "
    "which are made up here",
)
def gateway(length: int) -> Repetition:
    """Requests of a session."""
    server = Served([sys.executable, "-P", __file__])
    url = server.line()
    session = Conversation(url).post("/sessions", {})
    headers = {"Authorization": f"Bearer {session['session_id']}"}
    return Requests(server, Conversation(f"{url}/v1/chat/completions", headers), length)


class Engine(InferenceClient):
    """Answers every request with the same tokens, after a prompt that extends the last one."""

    tokens: tuple[int, ...] = ()

    async def completion(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request as vLLM does."""
        new = NEW_TOKENS if self.tokens else TOKENS_OF_A_MESSAGE * len(request["messages"])
        prompt = [*self.tokens, *range(new)]
        sampled = list(range(REPLY_TOKENS))
        self.tokens = (*prompt, *sampled)
        words = ["Here", " is", " more", "."]
        logprobs = [{"token": word, "logprob": -0.5, "bytes": None, "top_logprobs": []} for word in words]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(words)},
            "finish_reason": "stop",
            "logprobs": {"content": logprobs},
            "token_ids": sampled,
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled), "total_tokens": len(self.tokens)}
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
            "prompt_token_ids": prompt,
            "usage": usage,
        }


def serve() -> None:
    """Serve until the process is ended."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    app = create_app(llm_url="http://127.0.0.1", model="m")
    app.state.inference = Engine("http://127.0.0.1", served_model="m")
    app.state.upstreams = UpstreamPool(default_client=app.state.inference, default_level="tokens")
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", file=answers, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    serve()
