"""envsdk's gateway, in front of a policy that answers at once."""

import sys

import real_models

from benchmarks import CHECKOUT
from benchmarks.contender import Repetition, contender
from benchmarks.served import Conversation, Requests, Served


@contender("gateway", "envsdk", packages=("numpy", "tiktoken"), note="renders the prompt, and records every step")
def gateway(length: int) -> Repetition:
    """Requests of a session."""
    server = Served([sys.executable, CHECKOUT / "tests" / "loaded_gateway.py", real_models.qwen3_folder(), "0"])
    url = server.line()
    session = Conversation(url).post("/sessions", {})
    return Requests(server, Conversation(f"{url}/s/{session['id']}/v1/chat/completions"), length)
