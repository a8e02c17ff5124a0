"""Small repositories with a mistake that their tests show, to be repaired with a shell and an editor."""

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from envsdk import EnvConfig, Limits, Message, ToolEnv, ToolEnvConfig, Turn
from envsdk.authoring import NeedsTrust
from envsdk.authoring._event_loops import run
from envsdk.authoring.tasks import Split, draw_in_split
from envsdk.containers import Container, ContainerConfig, start
from envsdk.errors import ContainerError, ContainerLost

from .._scoring import decline
from ._programs import CAUGHT, EXPRESSIONS, mutated, mutations_of, source_of, values_of

_PROGRAMS = {"small": 1, "medium": 3, "large": 6}
_TASK = (
    "The tests of this repository fail. Find the mistake in the program, and repair it. The folder has {files}, and "
    "`python3 tests.py` runs the tests. Leave the tests as they are. When you are done, reply without a tool call."
)
_TESTS = '''"""Checks the programs: prints each value that is wrong."""

import importlib

CHECKS = [
{checks}]

failed = 0
for module, expression, expected in CHECKS:
    try:
        value = repr(eval(expression, vars(importlib.import_module(module))))
    except Exception as error:
        value = f"{{type(error).__name__}}: {{error}}"
    if value != expected:
        failed += 1
        print(f"{{module}}: {{expression}} gives {{value}}, but should give {{expected}}")
print(f"{{len(CHECKS) - failed}} of {{len(CHECKS)}} tests passed")
raise SystemExit(failed > 0)
'''
_GRADER = """import json, sys
name, *expressions = json.load(sys.stdin)
namespace = {}
exec(compile(open(name + ".py").read(), name + ".py", "exec"), namespace)
for expression in expressions:
    print(repr(eval(expression, namespace)))
"""


class RepoFixConfig(ToolEnvConfig):
    """The size of the repositories, and what the commands run in."""

    split: Split = "train"
    """No mistake is in both splits."""
    size: Literal["small", "medium", "large"] = "small"
    """The number of programs: 1, 3 or 6, of which one has a mistake."""
    container: Annotated[ContainerConfig, NeedsTrust("isolation")] = Field(
        default=ContainerConfig(engine="sandbox", memory_mib=256, processes=16, disk_mib=64, output_kib=8)
    )
    """The container of an episode. Without an image, it is `envsdk.sandbox`, whose shell has `python`, `cat` and `ls`.
    An image needs `python3`, such as `ContainerConfig(image="python:3.12-slim")`."""
    timeout_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """The time limit of a command, in seconds."""


class Mistake(NamedTuple):
    """A mutation of a program, by their names."""

    program: str
    number: int


class RepoFix(ToolEnv):
    """Repair a small repository whose tests fail, with a shell and an editor.

    Exercises: reading programs and test reports, finding a mistake, editing. Reward: `repaired`, 1 if the program gives
    the right values for visible and hidden tests. They are computed in a fresh container from the repaired program
    alone, and compared outside of it. There are 12 programs with 268 mistakes, each a mutation of one place.
    """

    Config: ClassVar[type[EnvConfig]] = RepoFixConfig
    default_limits: ClassVar[Limits] = Limits(max_steps=20, max_tool_calls=40)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    reported_exceptions: ClassVar[tuple[type[Exception], ...]] = ()
    box: Container | None = None
    """The container of the episode, or None before the first one."""

    async def start(self) -> Turn:
        """Write a repository with a mistake into a new container."""
        config: RepoFixConfig = self.config

        def draw() -> Mistake:
            program = str(self.np_random.choice(sorted(CAUGHT)))
            return Mistake(program, int(self.np_random.choice(CAUGHT[program])))

        self.mistake = draw_in_split(config.split, draw, str)
        others = [name for name in sorted(EXPRESSIONS) if name != self.mistake.program]
        chosen = self.np_random.choice(others, _PROGRAMS[config.size] - 1, replace=False)
        programs = sorted([self.mistake.program, *map(str, chosen)])
        if self.box is not None:
            await self.box.stop()
        self.box = await start(config.container)
        self.tools = self.box.tools("shell", "read_file", "write_file", "edit_file", timeout_s=config.timeout_s)
        with tempfile.TemporaryDirectory(prefix="envsdk-repository-") as folder:
            for name in programs:
                Path(folder, f"{name}.py").write_text(self._source(name), encoding="utf-8")
            Path(folder, "tests.py").write_text(_tests(programs), encoding="utf-8")
            await self.box.copy_in(Path(folder), ".")
        names = [f"`{name}.py`" for name in programs]
        listed = f"{', '.join(names[:-1])} and {names[-1]}" if names[1:] else names[0]
        return Turn(_TASK.format(files=listed))

    async def finish(self, reply: Message) -> Turn:
        """Compute the program's values in a fresh container, and compare them with the right ones."""
        config: RepoFixConfig = self.config
        assert self.box is not None
        program, right = self.mistake.program, "\n".join(values_of(self.mistake.program))
        try:
            source = await self.box.read(f"{program}.py")
        except ContainerLost:
            raise
        except (ContainerError, FileNotFoundError):  # it is gone, or too large
            source = b""
        async with await start(config.container) as fresh:
            await fresh.write(f"{program}.py", source)
            job = json.dumps([program, *EXPRESSIONS[program]]).encode()
            result = await fresh.run(["python3", "-c", _GRADER], stdin=job, timeout_s=config.timeout_s)
        is_repaired = result.ok and result.stdout.strip() == right
        await self.box.stop()
        text = "The program is repaired." if is_repaired else "The program still has a mistake."
        return Turn(text, reward={"repaired": float(is_repaired)}, terminated=True)

    def close(self) -> None:
        """Stop the container."""
        if self.box is not None:
            run(self.box.stop())
        super().close()

    def reference_reply(self) -> Message:
        """Run the tests, undo the mistake, run the tests again, and end."""
        replies = sum(message.role == "assistant" for message in self.messages())
        if replies in (0, 2):
            return Message.calling("shell", {"command": "python3 tests.py"}, reasoning="The tests show what is wrong.")
        if replies > 2:
            return Message(role="assistant", content="The program is repaired.")
        program, number = self.mistake
        mutation, source = mutations_of(program)[number], source_of(program)
        broken = self._source(program)
        start_at, stop = mutation.start, mutation.start + len(mutation.text)
        while broken.count(broken[start_at:stop]) > 1:  # as many lines as it takes
            start_at = broken.rfind("\n", 0, max(0, start_at - 1)) + 1
            stop = (broken.find("\n", stop) + 1) or len(broken)
        whole = source[start_at : stop + len(source) - len(broken)]
        arguments: dict[str, Any] = {"path": f"{program}.py", "old": broken[start_at:stop], "new": whole}
        return Message.calling("edit_file", arguments, reasoning="This line is wrong.")

    null_reply = decline

    def _source(self, name: str) -> str:
        program, number = self.mistake
        return mutated(name, mutations_of(name)[number]) if name == program else source_of(name)


def _tests(programs: list[str]) -> str:
    """Return the visible tests of programs: the first half of the expressions of each."""
    checks = ""
    for name in programs:
        pairs = list(zip(EXPRESSIONS[name], values_of(name), strict=True))
        for expression, value in pairs[: len(pairs) // 2]:
            checks += f"    {(name, expression, value)!r},\n"
    return _TESTS.format(checks=checks)
