"""A server in a process of its own, and a client that sends it a chat conversation, 200 new words with each request."""

import contextlib
import http.client
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .workloads import prose

NEW_WORDS, OLD_WORDS = 200, 100
REQUESTS = 5
"""The requests that one repetition measures."""


class Served:
    """A server that prints its URL when it is ready.

    Args:
        command: What starts it.
        environment: Its environment variables; None for those of this process.
    """

    def __init__(self, command: Sequence[str | Path], environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def line(self) -> str:
        """Return the next line that it prints.

        Raises:
            ChildProcessError: If it ended.
        """
        assert self.process.stdout
        found = self.process.stdout.readline().strip()
        if not found:
            raise ChildProcessError(f"the server ended with {self.process.wait()}")
        return found

    def cpu_s(self) -> float:
        """Return the CPU time that its threads have taken."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        self.process.kill()


class Conversation:
    """A conversation on one connection.

    Args:
        url: The URL of the chat completions.
        headers: What a request needs besides its content type.
    """

    def __init__(self, url: str, headers: dict[str, str] | None = None, model: str = "m") -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.netloc, timeout=120)
        self._path, self._model = parts.path, model
        self._headers = {"content-type": "application/json", **(headers or {})}
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "You are an agent."}]

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Send a request and return the answer.

        Raises:
            ConnectionError: If the server reports an error.
        """
        self._connection.request("POST", path, json.dumps(body).encode(), self._headers)
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        if response.status >= 300:
            raise ConnectionError(f"the server answered with {response.status}: {answer!s:.200}")
        return answer

    def ask(self) -> None:
        """Ask with 200 new words, and add the reply to the conversation."""
        start = 31 * len(self.messages)
        self.messages.append({"role": "user", "content": prose().words(NEW_WORDS, start=start)})
        answer = self.post(self._path, {"model": self._model, "messages": self.messages})
        self.messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})

    def begin(self, length: int) -> None:
        """Add messages that were exchanged before, up to a length of the next request, and ask twice."""
        while len(self.messages) < length - 5:
            start = 37 * len(self.messages)
            self.messages += [
                {"role": "user", "content": prose().words(NEW_WORDS, start=start)},
                {"role": "assistant", "content": prose().words(OLD_WORDS, start=start + NEW_WORDS)},
            ]
        self.ask()
        self.ask()


class Requests:
    """Measures requests of a conversation from a message on: the CPU time of the server for each.

    Args:
        server: The server, which is closed at the end.
        conversation: A new conversation.
        length: The number of messages of the first request that is measured.
    """

    def __init__(self, server: Served, conversation: Conversation, length: int) -> None:
        self._server, self._conversation = server, conversation
        conversation.begin(length)

    def __call__(self) -> float:
        """Return the CPU seconds of one request."""
        before = self._server.cpu_s()
        for _ in range(REQUESTS):
            self._conversation.ask()
        return (self._server.cpu_s() - before) / REQUESTS

    def close(self) -> None:
        """End the server."""
        self._server.close()
