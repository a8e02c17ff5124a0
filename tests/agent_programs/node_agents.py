"""Programs in Node, as commands: npm's `openai` and `@anthropic-ai/sdk`."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envsdk import Message
from envsdk.gateway import Endpoint, ProgramEnv
from envsdk.gateway._programs import ProgramResult

from .cases import Case
from .replies import AGAIN, ANSWER, CHAT, FINAL, LOOK, TEXT_AND_CALL, TWO_CALLS

PROGRAM = Path(__file__).with_name("node_program.mjs")
PACKAGES = Path(sys.prefix) / "node" / "node_modules"
"""Where the peer's `after_install.py` installs them."""
ANSWERS = [ANSWER.strip(), AGAIN.strip()]


class NodeProgram(ProgramEnv):
    """Runs one of the program's kinds; the reward is whether it got the answers."""

    def __init__(self, kind: str, answers: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self.command = ["node", PROGRAM.name, kind]
        self._answers = list(answers)

    def prepare(self, folder: Path, endpoint: Endpoint) -> None:
        shutil.copy(PROGRAM, folder)  # imports are looked up from where the program is
        (folder / "node_modules").symlink_to(PACKAGES)

    def score(self, result: ProgramResult) -> float:
        assert result.returncode == 0, result.stderr
        return float([answer.strip() for answer in json.loads(result.stdout)] == self._answers)


def case(name: str, kind: str, replies: Sequence[Message] = CHAT, answers: Sequence[str] = ANSWERS) -> Case:
    return Case(name, None, {"": replies}, env=lambda **options: NodeProgram(kind, answers, **options))


CASES = [
    case("npm openai: chat", "chat"),
    case("npm openai: chat, streamed", "chat-streamed"),
    case("npm openai: runTools", "run-tools", (LOOK, TWO_CALLS, TEXT_AND_CALL, FINAL), ANSWERS[:1]),
    case("npm openai: responses, stored", "responses-stored"),
    case("npm openai: responses, not stored", "responses-not-stored"),
    case("npm @anthropic-ai/sdk: messages", "messages"),
    case("npm @anthropic-ai/sdk: messages, streamed", "messages-streamed"),
]
