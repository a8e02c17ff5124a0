"""Harbor's tasks as environments: for a model with a shell, and for any agent program."""

import asyncio
import contextlib
import json
import math
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, Field

from .._visible import brief
from ..authoring._env import EnvConfig
from ..authoring._event_loops import run
from ..authoring._tool_env import ToolEnv, ToolEnvConfig
from ..authoring._tools import tool
from ..authoring._trust import NeedsTrust
from ..authoring.tasks import Split, split_of
from ..containers import Container, start
from ..episodes._turn import Turn
from ..errors import ConfigError, ContainerError, ContainerLost, TaskError, ToolError
from ..limits import Limits
from ..messages import Message
from ._harbor_folders import HarborFolder, folders_in, quoted_file, read_folder
from ._program import ProgramEnv
from ._programs import Endpoint, copy_files

_LOGS = "/logs/agent /logs/verifier /logs/artifacts"
_PREPARE_S = 120.0
_AGENT_S = 3600.0
"""The time limit of a program, in seconds, if its task has none."""
_SHOWN = 2000
_MAX_PART = 60_000
"""The maximum size of a file of a solution that a reference reply writes, in bytes."""


class HarborOptions(BaseModel):
    """Options that `HarborTask` and `HarborProgram` have in common."""

    split: Split | None = None
    """Only the tasks of a split, by their names; None takes all."""
    only_supported: bool = False
    """True leaves out the tasks that are refused; False raises the error."""
    engine: Annotated[str | None, NeedsTrust("isolation")] = None
    """The engine of the containers; see `ContainerConfig`."""
    environ: Annotated[Mapping[str, str], NeedsTrust("isolation")] = Field(default_factory=dict[str, str])
    """The values of variables that `task.toml` refers to, as `${NAME}`. Those of this machine are not used."""
    offline: bool = False
    """True also takes tasks that ask for the internet, or for hosts by a pattern, and runs them without these."""
    grade: Annotated[Literal["files", "workdir", "running"], NeedsTrust("isolation")] = "files"
    """Where the tests of a task without a separate verifier run. `files`: in a fresh container with all files of the
    agent's. `workdir`: in a fresh container of the task's image, with the working folder of the agent's, so that an
    agent cannot have changed the interpreter. `running`: in the agent's container, with its processes, as in Harbor."""


class HarborConfig(EnvConfig, HarborOptions):
    """The tasks, and the agent."""

    command: Annotated[tuple[str, ...], NeedsTrust("isolation")] = ()
    """The agent program and its arguments, in which `{instruction}` is replaced. It is in the task's image."""
    agent: Annotated[str | None, NeedsTrust("imports")] = None
    """An agent of Harbor's, by its name or import path, in place of `command`: `"mini-swe-agent"`. It needs the package
    `harbor`, which needs Python 3.12."""
    agent_options: Annotated[dict[str, Any], NeedsTrust("imports")] = Field(default_factory=dict[str, Any])
    """Fields of Harbor's `AgentConfig` for it, such as `{"kwargs": {"version": "2.4.6"}}`."""
    allow: Annotated[tuple[str, ...], NeedsTrust("isolation")] = ()
    """Addresses that the agent reaches in addition to the gateway, such as to install itself: `"pypi.org:443"`."""


class HarborTaskConfig(ToolEnvConfig, HarborOptions):
    """The tasks, and the model's tools."""

    tools: tuple[Literal["python", "read_file", "write_file", "edit_file"], ...] = (
        "read_file",
        "write_file",
        "edit_file",
    )
    """The model's tools besides `shell`."""
    command_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """The time limit of a command that does not name one, in seconds."""


class Trial:
    """An episode of a task: its container, and its tests.

    Args:
        folder: The task.
        grade: Where its tests run; see `HarborOptions`.
    """

    def __init__(self, folder: HarborFolder, grade: str) -> None:
        self.folder, self._grade = folder, grade

    async def open(self, *allow: str) -> Container:
        """Start the container of the agent.

        Args:
            allow: The addresses that it reaches in addition to those of the task.

        Raises:
            ContainerError: If it cannot be started, or does not become ready.
        """
        box = await start(self.folder.box.model_copy(update={"allow": (*self.folder.box.allow, *allow)}))
        try:
            await self._prepare(box, f"mkdir -p {_LOGS} /solution && chmod 777 {_LOGS} /solution")
            if box.config.dockerfile is None and (self.folder.path / "environment").is_dir():
                await _copy(self.folder.path / "environment", box, box.config.workdir)
            await self._until_ready(box)
        except BaseException:
            await box.stop()
            raise
        return box

    async def grade(self, box: Container) -> Turn:
        """Run the tests on what an agent left in its container, stop that container, and return the last turn.

        If the tests leave no rewards, or cannot be run because of what the agent left, such as without a shell, its
        reward is 0, and the metric `ungraded` is 1.

        Raises:
            ContainerError: If the engine fails, which it then does without the agent, too.
        """
        try:
            return await self._graded(box)
        except ContainerLost:
            raise
        except ContainerError as error:
            async with await start(self.folder.box) as fresh:
                await self._prepare(fresh, "true")
            return _turn(None, f"what the agent left cannot be graded: {error}")

    async def _graded(self, box: Container) -> Turn:
        folder, grade = self.folder, self._grade
        changes = {"allow": folder.grader_allow, "user": folder.file.verifier.user}
        for hook in folder.file.verifier.collect:
            await box.run(hook.command, timeout_s=hook.timeout_sec, user=hook.user)
        if folder.grader is not None:
            fresh = await start(folder.grader)
        elif grade == "workdir":
            if box.config.workdir == "/":
                raise ConfigError(f"grade='workdir' needs a working folder, but that of {folder.path.name} is /")
            fresh = await start(folder.box.model_copy(update=changes))
        elif grade == "files":
            fresh = await box.duplicate(**changes)
        else:
            fresh = box
        async with fresh:
            removed = "/logs/verifier" if folder.has_own_tests else "/logs/verifier /tests"
            script = f"for f in /logs /tests; do if [ -L $f ] || [ -f $f ]; then rm -f $f; fi; done; rm -rf {removed}"
            await self._prepare(fresh, f"{script}; mkdir -p {_LOGS} && chmod 777 {_LOGS}")
            if folder.grader is not None:
                for path in folder.artifacts:
                    await _copy_artifact(box, fresh, path)
            elif grade == "workdir":
                await copy_files(box, fresh)
            if fresh is not box:
                await box.stop()
            return await self._tested(fresh)

    async def _tested(self, box: Container) -> Turn:
        folder = self.folder
        if not folder.has_own_tests:
            await _copy(folder.path / "tests", box, "/tests")
        await self._prepare(box, "chmod +x /tests/test.sh")
        command = "(/tests/test.sh) > /logs/verifier/test-stdout.txt 2>&1"
        verifier, environ = folder.file.verifier, folder.tests_environ
        result = await box.run(command, timeout_s=verifier.timeout_sec, environ=environ, user=verifier.user)
        output = await _read(box, "/logs/verifier/test-stdout.txt")
        shown = (output or b"").decode(errors="replace")[-_SHOWN:]
        if result.limit is not None:
            return _turn(None, f"the tests were stopped by a limit, {result.limit}\n{shown}")
        try:
            return _turn(await _rewards(box), shown)
        except (ValueError, RecursionError) as error:  # a TurnError is a ValueError
            return _turn(None, f"the tests left no reward: {error}\n{shown}")

    async def _prepare(self, box: Container, script: str) -> None:
        result = await box.run(script, cwd="/", user="0", timeout_s=_PREPARE_S)
        if not result.ok:
            raise ContainerError(f"{self.folder.path.name}: the container cannot be prepared: {result.report()}")

    async def _until_ready(self, box: Container) -> None:
        """Run the health check until it succeeds.

        Raises:
            ContainerError: If it fails too often.
        """
        check, began_at, failures = self.folder.file.environment.healthcheck, time.monotonic(), 0
        user = None if box.config.user is None else "0"  # Harbor's runs as the image's user, not as the agent
        while check is not None:
            result = await box.run(check.command, timeout_s=check.timeout_sec, user=user)
            if result.ok:
                return
            is_starting = time.monotonic() - began_at < check.start_period_sec
            failures += not is_starting
            if failures >= check.retries:
                raise ContainerError(f"{self.folder.path.name}: its healthcheck failed: {result.report()[-_SHOWN:]}")
            await asyncio.sleep(check.start_interval_sec if is_starting else check.interval_sec)


async def _copy(source: Path, box: Container, target: str) -> None:
    """Copy a folder of a task, with the content of what its links lead to."""
    with tempfile.TemporaryDirectory(prefix="envsdk-task-") as here:
        copied = Path(here, "files")
        await asyncio.to_thread(shutil.copytree, source, copied)
        await box.copy_in(copied, target)


async def _copy_artifact(box: Container, fresh: Container, path: str) -> None:
    """Copy a file or a folder to the same place in another container, if there is one."""
    try:
        await fresh.write(path, await box.read(path))
    except FileNotFoundError:
        with contextlib.suppress(FileNotFoundError):
            await box.copy_to(fresh, path)


async def _read(box: Container, path: str) -> bytes | None:
    try:
        return await box.read(path)
    except ContainerLost:
        raise
    except (ContainerError, FileNotFoundError):
        return None


async def _rewards(box: Container) -> dict[str, Any]:
    """Return the rewards that tests left, which may be anything.

    Raises:
        ValueError: If there are none.
    """
    if (written := await _read(box, "/logs/verifier/reward.json")) is not None:
        rewards: Any = json.loads(written)
    elif (written := await _read(box, "/logs/verifier/reward.txt")) is not None:
        rewards = float(written)
    else:
        raise ValueError("neither /logs/verifier/reward.txt nor reward.json exists")
    named = cast("dict[str, Any]", rewards) if isinstance(rewards, dict) else {"reward": rewards}
    if not named:
        raise ValueError("it is empty")
    return named


def _turn(rewards: Mapping[str, Any] | None, output: str) -> Turn:
    """Return the last turn: `reward`, and the other numbers as metrics; without `reward`, their sum.

    Raises:
        TurnError: If a reward is not a finite number.
    """
    scored = {"reward": 0.0} if rewards is None else rewards
    metrics = {name: value for name, value in scored.items() if "reward" in scored and name != "reward"}
    return Turn(
        reward={name: value for name, value in scored.items() if name not in metrics},
        metrics={**metrics, "ungraded": float(rewards is None)},
        info={"verifier": output},
    )


def _folders(tasks: Any, options: HarborOptions) -> dict[str, HarborFolder]:
    """Return the tasks of an environment by their names.

    Raises:
        TaskError: If a task cannot be read or is refused, or there is none.
    """
    if tasks is None:
        return {}
    folders: dict[str, HarborFolder] = {}
    refused: list[str] = []
    for name, path in folders_in(tasks).items():
        if options.split in (None, split_of(name)):
            try:
                folders[name] = read_folder(path, options.environ, offline=options.offline, engine=options.engine)
            except TaskError as error:
                refused.append(str(error))
    if refused and not (options.only_supported and folders):
        more = f"\nand {len(refused) - 5} more" if len(refused) > 5 else ""
        hint = "" if options.only_supported else "\nonly_supported=True leaves out such tasks"
        raise TaskError("\n".join(refused[:5]) + more + hint)
    if not folders:
        raise TaskError(f"none of the tasks in {brief(tasks, 200)} is in the split {options.split!r}")
    return folders


def _chosen(folders: Mapping[str, HarborFolder], task: Any) -> HarborFolder:
    if not folders:
        raise ConfigError("task data is missing; expected tasks=<a task folder of Harbor, or a folder of these>")
    try:
        return folders[task]
    except (KeyError, TypeError):
        raise TaskError(f"there is no task {brief(task)}; the first ones are {list(folders)[:5]}") from None


class HarborTask(ToolEnv):
    """Solve a task of Harbor in its container, with a shell and an editor: `HarborTask(tasks="folder")`.

    Exercises: what the tasks exercise, such as terminals and programming. Reward: what the task's tests leave in
    `/logs/verifier`, which run in a fresh container. If they leave none, it is 0, with the metric `ungraded`.

    The time limit of the agent counts the time of its commands, not that of its replies.
    """

    Config: ClassVar[type[EnvConfig]] = HarborTaskConfig
    default_limits: ClassVar[Limits] = Limits(max_steps=50, max_tool_calls=200)

    def __init__(self, *, tasks: str | Path | Sequence[str | Path] | None = None, **options: Any) -> None:
        super().__init__(**options)
        config: Any = self.config
        self._folders, self._box = _folders(tasks, config), cast("Container | None", None)
        self.tasks = list(self._folders) or None

    async def start(self) -> Turn:
        """Start the container, and show the instruction."""
        config: HarborTaskConfig = self.config
        self._trial = Trial(_chosen(self._folders, self.task), config.grade)
        if self._box is not None:
            await self._box.stop()
        self._box = await self._trial.open()
        self._used_s = 0.0
        self.tools = self._box.tools(*config.tools) if config.tools else ()
        return Turn(self._trial.folder.instruction)

    @tool
    async def shell(self, command: str, timeout_s: float | None = None) -> str:
        """Run a command line in a shell, and return its output and errors.

        Args:
            command: The command line.
            timeout_s: The time limit, in seconds; None for the usual one.
        """
        assert self._box is not None
        left = self._left_s()
        if not (timeout_s is None or timeout_s > 0) or left <= 0:
            raise ToolError(f"timeout_s is {timeout_s}; expected more than 0" if left > 0 else "the time is over")
        try:
            result = await self._box.run(command, timeout_s=min(timeout_s or self.config.command_s, left))
        except ContainerLost:
            raise
        except (ContainerError, ValueError) as error:  # a ConfigError is a ValueError
            raise ToolError(f"the command cannot be run: {error}") from error
        self._used_s += result.seconds
        return result.report()

    async def after_tools(self, reply: Message, results: list[Message]) -> Turn:
        """Continue, or run the tests if the time of the agent is over."""
        if self._left_s() > 0:
            return Turn(results)
        turn = await self._graded()
        turn.messages, turn.truncated = results, True
        return turn

    async def finish(self, reply: Message) -> Turn:
        """Run the tests."""
        turn = await self._graded()
        turn.terminated = True
        return turn

    def close(self) -> None:
        """Stop the container."""
        if self._box is not None:
            run(self._box.stop())
        super().close()

    def reference_reply(self) -> Message:
        """Write the files of the task's solution, run it, and end."""
        folder = self._trial.folder
        files = folder.solution()
        if "solve.sh" not in files or max(map(len, files.values())) > _MAX_PART:
            raise NotImplementedError(f"{folder.path.name} has no solution/solve.sh, or a file of it is too large")
        commands = [quoted_file(f"/solution/{name}", content) for name, content in files.items()]
        said = sum(message.role == "assistant" for message in self.messages())
        if said < len(commands):
            return Message.calling("shell", {"command": commands[said]})
        if said > len(commands):
            return Message(role="assistant", content="The task is done.")
        environ = {"DEBIAN_FRONTEND": "noninteractive", **folder.solution_environ}
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in environ.items())
        command = f"chmod +x /solution/solve.sh && {exports} /solution/solve.sh"
        return Message.calling("shell", {"command": command, "timeout_s": folder.file.agent.timeout_sec or _AGENT_S})

    def _left_s(self) -> float:
        limit = self._trial.folder.file.agent.timeout_sec
        return math.inf if limit is None else limit - self._used_s

    async def _graded(self) -> Turn:
        assert self._box is not None
        return await self._trial.grade(self._box)


class HarborProgram(ProgramEnv):
    """Solve a task of Harbor with an agent program, which runs in the task's container and reaches only the gateway.

    The program is a command (`command=("my-agent", "{instruction}")`), or an agent that Harbor installs
    (`agent="mini-swe-agent"`). Exercises: what the tasks exercise. Reward: as for `HarborTask`.

    The program is stopped after the task's time limit for agents, or an hour if there is none, and graded.
    """

    Config: ClassVar[type[EnvConfig]] = HarborConfig
    limit_grace_s: ClassVar[float | None] = None  # its command has a time limit, and its tests take time

    def __init__(self, *, tasks: str | Path | Sequence[str | Path] | None = None, **options: Any) -> None:
        super().__init__(**options)
        config: HarborConfig = self.config
        if bool(config.command) == (config.agent is not None):
            raise ConfigError("expected either command, a program and its arguments, or agent, an agent of Harbor's")
        self._folders, self._box = _folders(tasks, config), cast("Container | None", None)
        self.tasks = list(self._folders) or None

    async def run(self, model: Endpoint) -> Turn:
        """Run the agent in the task's container, and then the tests."""
        config: HarborConfig = self.config
        trial = Trial(_chosen(self._folders, self.task), config.grade)
        here = f"127.0.0.1:{urlsplit(model.anthropic_base_url).port}"
        async with await trial.open(here, *config.allow) as self._box:
            limit_s = trial.folder.file.agent.timeout_sec or _AGENT_S
            if config.agent is None:
                words = [word.replace("{instruction}", trial.folder.instruction) for word in config.command]
                result = await self._box.run(words, timeout_s=limit_s, environ=model.environ())
                report = result.report()[-_SHOWN:]
            else:
                from ._harbor_agents import run_agent

                report = await run_agent(
                    config.agent, config.agent_options, self._box, trial.folder.instruction, model.environ(), limit_s
                )
            turn = await trial.grade(self._box)
            turn.info["agent"] = report
            return turn

    def close(self) -> None:
        """End the agent, and stop the container."""
        super().close()
        if self._box is not None:
            run(self._box.stop())
