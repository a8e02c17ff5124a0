"""`mini-swe-agent` as a command of its own, which repairs a small git repository."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envsdk import Message
from envsdk.gateway import Endpoint, ProgramEnv
from envsdk.gateway._programs import ProgramResult

from .cases import Case, edited
from .replies import said

AGENT = Path(__file__).with_name("mini_swe_program.py")
BROKEN = "def mean(values):\n    return sum(values) / len(values) + 1\n"
TEST = "from mean import mean\n\nassert mean([1, 2, 3]) == 2\n"


class Repair(ProgramEnv):
    """The repository has a bug; the reward is whether its test passes afterwards."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__(**options)
        self._kind = kind

    def prepare(self, folder: Path, endpoint: Endpoint) -> None:
        (folder / "mean.py").write_text(BROKEN)
        (folder / "test_mean.py").write_text(TEST)
        author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        for command in (("init", "--quiet"), ("add", "."), (*author, "commit", "--quiet", "--message=Begin")):
            subprocess.run(("git", *command), cwd=folder, check=True)
        self.command = [sys.executable, AGENT, self._kind, folder]

    def score(self, result: ProgramResult) -> float:
        assert result.returncode == 0, result.stderr
        repaired = subprocess.run((sys.executable, "test_mean.py"), cwd=result.folder, check=False).returncode == 0
        changed = subprocess.run(
            ("git", "diff", "--name-only"), cwd=result.folder, check=True, capture_output=True, text=True
        ).stdout
        return float(repaired and changed.split() == ["mean.py"])


LOOK = 'cat mean.py; echo "Zürich  東京"'
REPAIR = "sed -i 's/ + 1$//' mean.py && python test_mean.py"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff"


def bash(command: str) -> tuple[str, str]:
    """A call with spaces where no serializer has any."""
    escaped = command.replace("\\", "\\\\").replace('"', '\\"')
    return "bash", f'{{ "command" :"{escaped}"\n}}'


def block(command: str) -> str:
    return f"\n```mswea_bash_command\n{command}\n```\n\n"


CALLS = (
    said(" THOUGHT: look \n", bash(LOOK), thinking="swe think"),
    said("", bash("git log --oneline | wc -l"), bash("seq 1 6000"), thinking="two"),
    said("I forgot to call a tool. "),
    said("", bash(REPAIR), thinking="repair"),
    said("", bash(SUBMIT), thinking="end"),
)
TEXT = (
    said(f" THOUGHT: look \n{block(LOOK)}", thinking="swe think"),
    said("No action here. "),
    said(f"Repair. {block(REPAIR)}"),
    said(block(SUBMIT).lstrip()),
)


def case(kind: str, replies: Sequence[Message], dropped: int) -> Case:
    """A case in which the framework drops the reply without an action, and asks again."""
    return Case(
        f"mini-swe-agent: {kind}",
        None,
        {"": replies},
        breaks=[edited(f"the reply {dropped} was left out")],
        samples=2,
        env=lambda **options: Repair(kind, **options),
    )


CASES = [case("chat", CALLS, 7), case("text", TEXT, 4), case("responses", CALLS, 7), case("anthropic", CALLS, 7)]
