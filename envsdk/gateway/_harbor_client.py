#!/usr/bin/env python3
"""Shows an episode, and sends replies: envsdk-env [show | reply TEXT | call TOOL ARGUMENTS | send MESSAGE].

It runs in the container of an exported task, as the agent, and needs nothing but Python. TEXT may be -, for standard
input; ARGUMENTS are a JSON object; MESSAGE is an assistant message in the OpenAI chat format.
"""

import json
import socket
import sys

ADDRESS = "/run/envsdk.socket"


def message_of(action: str, words: "list[str]") -> object:
    """Return the message that the command line specifies; None to show the episode."""
    if action == "show" and not words:
        return None
    if action == "reply" and len(words) == 1:
        return {"role": "assistant", "content": sys.stdin.read() if words[0] == "-" else words[0]}
    if action == "call" and len(words) in (1, 2):
        call = {"type": "function", "function": {"name": words[0], "arguments": (words[1:] or ["{}"])[0]}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if action == "send" and len(words) == 1:
        return json.loads(words[0])
    raise SystemExit(__doc__)


def main() -> None:
    """Send a message, and print what the environment returns."""
    action, *words = sys.argv[1:] or ["show"]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(ADDRESS)
        connection.sendall(json.dumps(message_of(action, words)).encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile(encoding="utf-8") as answer:
            print(answer.read())


if __name__ == "__main__":
    main()
