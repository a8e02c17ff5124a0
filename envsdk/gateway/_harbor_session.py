"""An episode of an exported task, in its container: `python -m envsdk.gateway._harbor_session ACTION EPISODE FILE`.

`serve` answers `envsdk-env` and stores the replies; `grade` plays them again from the seed, in another container.
"""

import json
import math
import os
import socket
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..authoring._env import Env
from ..authoring._making import find_class, make
from ..messages import Message
from ..policies._built_in import ReplyPolicy
from ._harbor_client import ADDRESS

_MAX_BYTES = 2**20
"""The maximum size of a reply, in bytes."""
REWARD = Path("/logs/verifier/reward.txt")
_OVER = "[The episode is over.]"


class Session:
    """An episode that is played by messages.

    Args:
        episode: What it is an episode of: `env`, `options`, `seed`, and `task` if the environment has tasks.
    """

    def __init__(self, episode: dict[str, Any]) -> None:
        name, options = episode["env"], episode["options"]
        self.env: Env = find_class(name)(**options) if ":" in name else make(name, **options)
        given = {"options": {"task": episode["task"]}} if "task" in episode else {}
        self._observation, self._info = self.env.reset(seed=episode["seed"], **given)
        self.is_over = False
        self.reward = 0.0

    def send(self, message: Message) -> None:
        """Reply."""
        if self.is_over:
            return
        policy, info = ReplyPolicy(self.env, lambda env: message), self._info
        context = self._observation.context
        action = policy(self._observation.tokens, context=context, max_tokens=info["max_tokens"], stop=info["stop"])
        self._observation, reward, terminated, truncated, self._info = self.env.step(action)
        self.reward += reward if math.isfinite(reward) else 0.0  # an episode that is not scored has NaN
        self.is_over = terminated or truncated

    def shown(self, since: int = 0) -> str:
        """Return the messages from one on, for a reader."""
        lines = [f"[{each.role}]\n{each.content}" for each in self.env.messages()[since:] if each.role != "assistant"]
        return "\n\n".join([*lines, *([_OVER] if self.is_over else [])])


def replies_of(file: Path, *, is_answer: bool) -> list[Message]:
    """Return the replies that a file contains; none if it is missing."""
    try:
        text = file.read_bytes()[: 64 * _MAX_BYTES].decode(errors="replace")
    except OSError:
        return []
    if is_answer:
        return [Message(role="assistant", content=text.removesuffix("\n"))]
    return [read_reply(line) for line in text.splitlines() if line]


def read_reply(text: str) -> Message:
    """Return a reply that is given as JSON, in the OpenAI chat format.

    Raises:
        ValueError: If it is not an assistant message.
    """
    message = Message.from_openai(json.loads(text))
    if message.role != "assistant":
        raise ValueError(f"its role is {message.role!r}; expected 'assistant'")
    return message


def serve(episode: dict[str, Any], file: Path) -> None:
    """Answer the client until the container ends."""
    session = Session(episode)
    for reply in replies_of(file, is_answer=False):
        session.send(reply)
    file.parent.mkdir(parents=True, exist_ok=True)
    unready = Path(f"{ADDRESS}.new")
    unready.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server, file.open("a", encoding="utf-8") as log:
        server.bind(str(unready))
        unready.chmod(0o666)
        server.listen()
        unready.replace(ADDRESS)  # the address exists only once it accepts connections
        while True:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(10.0)
                try:
                    connection.sendall(_answer(session, connection, log).encode(errors="replace"))
                except OSError:  # the client has gone
                    continue


def _answer(session: Session, connection: socket.socket, log: Any) -> str:
    received = b""
    while len(received) <= _MAX_BYTES and (piece := connection.recv(2**16)):
        received += piece
    try:
        if len(received) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES:,} bytes")
        if json.loads(received) is None:
            return session.shown()
        reply = read_reply(received.decode())
    except (ValueError, TypeError, RecursionError, ValidationError) as error:
        return f"The reply cannot be read: {error}"
    if session.is_over:
        return _OVER
    since = len(session.env.messages()) + 1
    log.write(json.dumps(reply.to_openai()) + "\n")
    log.flush()
    os.fsync(log.fileno())
    session.send(reply)
    return session.shown(since)


def grade(episode: dict[str, Any], file: Path) -> None:
    """Play the replies of a file, and write the reward where Harbor reads it."""
    session = Session(episode)
    for reply in replies_of(file, is_answer=file.suffix == ".txt"):
        session.send(reply)
    REWARD.write_text(str(session.reward), encoding="utf-8")


if __name__ == "__main__":
    {"serve": serve, "grade": grade}[sys.argv[1]](json.loads(Path(sys.argv[2]).read_bytes()), Path(sys.argv[3]))
