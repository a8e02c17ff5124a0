"""Runs the program of an episode: a function in a separate thread, or a command as a process."""

import asyncio
import contextlib
import inspect
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from .._visible import brief
from ..authoring._event_loops import run
from ..containers import Container, ContainerConfig, start
from ..errors import ConfigError, ContainerError, ContainerLost
from ._program_folders import ProgramFolder, claimed_folder
from ._session import ProgramEnd

_MARK = "ENVSDK_PROGRAM"
_KEPT_OUTPUT = 1_000_000
_END_S = 5.0
_LOOK_S = 0.05
_AGENT_HOME = "/tmp/agent"
_SCORE_S = 600
"""The time for which its containers outlive the time limit of a program, in seconds."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The endpoint at which a program requests replies.

    Attributes:
        base_url: The base URL for clients of OpenAI's protocols.
        anthropic_base_url: The base URL for clients of Anthropic's protocol.
        api_key: The API key; it identifies the episode.
        model: The name of the model. Any name works.
        seed: The seed of the episode, or None.
    """

    base_url: str
    anthropic_base_url: str
    api_key: str
    model: str = "envsdk"
    seed: int | None = None

    def environ(self) -> dict[str, str]:
        """Return the environment variables that clients read: `OPENAI_BASE_URL`, `ANTHROPIC_API_KEY` and so on."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.anthropic_base_url,
            "ANTHROPIC_API_KEY": self.api_key,
            "GOOGLE_GEMINI_BASE_URL": self.anthropic_base_url,
            "GEMINI_API_KEY": self.api_key,
            "GOOGLE_API_KEY": self.api_key,
            "ENVSDK_MODEL": self.model,
            **({} if self.seed is None else {"ENVSDK_SEED": str(self.seed)}),
        }


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The result of a command.

    Attributes:
        returncode: Its exit status; negative for a signal that ended it; None if it was ended because a limit was
            reached.
        stdout: Its standard output, decoded; of a long output the end.
        stderr: Its standard error, in the same form.
        folder: The folder that it was started in, by the path that `prepare` got; of a program in a container, the
            folder as `prepare` left it.
        container: If the program ran in a container: a fresh one, from the same image, in whose `workdir` are the files
            that the program left in its own; no files, if they are larger than `disk_mib` or the folder is gone. It has
            no network. None if the program ran on this machine.
    """

    returncode: int | None
    stdout: str
    stderr: str
    folder: Path
    container: Container | None = None


class ThreadProgram:
    """A function that runs in a separate thread.

    Args:
        function: The function; if it returns an awaitable, that is awaited in the thread's own event loop.
        ended: Called when it has ended.
    """

    def __init__(self, function: Callable[[], Any], ended: Callable[[ProgramEnd], None]) -> None:
        self._function, self._ended = function, ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        threading.Thread(target=self._run, name="envsdk-program", daemon=True).start()

    def kill(self) -> None:
        """Cancel it, if it is `async def`. A plain function ends when its next request is refused."""
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(task.cancel)

    def _run(self) -> None:
        async def awaited(outcome: Any) -> Any:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            return await outcome

        try:
            outcome = self._function()
            if inspect.isawaitable(outcome):
                outcome = asyncio.run(awaited(outcome))
        except BaseException as error:  # the environment raises it
            self._ended(ProgramEnd(error=error))
        else:
            self._ended(ProgramEnd(outcome))


class CommandEnv(Protocol):
    """What a program needs of its environment, a `ProgramEnv`."""

    command: Sequence[str] | None
    container: ContainerConfig | None
    environ: Mapping[str, str]

    def prepare(self, folder: Path, endpoint: Endpoint) -> None: ...
    def score(self, result: ProgramResult) -> Any: ...


class CommandProgram:
    """A command that runs as a process, in a new folder, or in a container.

    Args:
        env: The environment: its `prepare`, and after that its `command`, `environ` and `container`, and its `score`.
        endpoint: The endpoint that it calls.
        environ: Environment variables for it, next to the endpoint's. On this machine, it has those of this process,
            too.
        ended: Called when it has been scored.
        recipe: Writes an agent's own files, given a folder for them and the path under which the program sees it, and
            returns its command and environment variables; None to run `command` as it is.
    """

    def __init__(
        self,
        env: CommandEnv,
        endpoint: Endpoint,
        environ: Mapping[str, str],
        ended: Callable[[ProgramEnd], None],
        recipe: Callable[[Path, str], tuple[list[str], dict[str, str]]] | None = None,
    ) -> None:
        self._env, self._endpoint, self._ended, self._recipe = env, endpoint, ended, recipe
        self._environ = {**endpoint.environ(), **environ}
        self._is_stopped = threading.Event()
        self._is_killed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="envsdk-program", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the process, and score its result so far."""
        self._is_stopped.set()

    def kill(self) -> None:
        """End the process and all that it started."""
        self._is_killed.set()
        self._is_stopped.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            with claimed_folder(_end_processes) as folder:
                outcome = self._outcome(folder)
        except BaseException as error:  # the environment raises it
            self._ended(ProgramEnd(error=error))
        else:
            self._ended(ProgramEnd(outcome))

    def _outcome(self, folder: ProgramFolder) -> Any:
        work, home = folder.path / "work", folder.path / "home"
        self._env.prepare(work, self._endpoint)
        config = self._env.container
        if self._recipe is not None:
            seen = str(folder.seen / "home") if config is None else _AGENT_HOME
            self._env.command, environ = self._recipe(home, seen)
            self._environ.update(environ)
        if config is not None:
            return run(self._in_container(work, None if self._recipe is None else home, config))
        result = self._on_this_machine(folder)
        outcome = None if self._is_killed.is_set() else self._env.score(result)
        return run(_awaited(outcome)) if inspect.isawaitable(outcome) else outcome

    def _as_seen(self, folder: Path, seen: str) -> tuple[list[str], dict[str, str]]:
        """Return the command and the variables for it, with paths in its folder as the program sees them."""
        command: Any = self._env.command
        environ: dict[Any, Any] = dict(self._env.environ)
        if command is None:
            raise ConfigError("there is nothing to run: write run(), or set command, at the latest in prepare()")
        if isinstance(command, str) or not command or not all(isinstance(part, str | os.PathLike) for part in command):
            raise ConfigError(f"command is {brief(command)}; expected a list: the program and its arguments")
        if not all(isinstance(text, str) for item in environ.items() for text in item):
            raise ConfigError(f"environ is {brief(environ)}; expected a mapping of strings")
        words = [os.fspath(part).replace(str(folder), seen) for part in self._env.command or ()]
        named = {name: text.replace(str(folder), seen) for name, text in environ.items()}
        return words, {**self._environ, **named}

    async def _in_container(self, folder: Path, home: Path | None, config: ContainerConfig) -> Any:
        """Run the command in a container, and score it with its files in a fresh one, where it changed nothing else."""
        here = f"127.0.0.1:{urlsplit(self._environ['ANTHROPIC_BASE_URL']).port}"
        longer = config.model_copy(update={"lifetime_s": config.lifetime_s + _SCORE_S})
        async with await start(longer.model_copy(update={"allow": (*config.allow, here)})) as container:
            await container.copy_in(folder, config.workdir)
            if home is not None:
                await container.copy_in(home, _AGENT_HOME)
            words, environ = self._as_seen(folder, container.config.workdir)
            running = asyncio.create_task(container.run(words, timeout_s=config.lifetime_s, environ=environ))
            try:
                while not running.done() and not self._is_stopped.is_set():
                    await asyncio.wait([running], timeout=_LOOK_S)
                if self._is_killed.is_set():
                    return None
            finally:
                was_stopped = running.cancel()
                await asyncio.wait([running])
            result = ProgramResult(None, "", "", folder)
            if not was_stopped:
                ended = running.result()
                result = replace(result, returncode=ended.exit_status, stdout=ended.stdout, stderr=ended.stderr)
            async with await start(longer.model_copy(update={"allow": ()})) as fresh:
                await copy_files(container, fresh)
                await container.stop()
                return await _awaited(self._env.score(replace(result, container=fresh)))

    def _on_this_machine(self, folder: ProgramFolder) -> ProgramResult:
        work, seen = folder.path / "work", folder.seen / "work"
        words, more = self._as_seen(work, str(seen))
        # What a program keeps in its home folder, such as its memory, would reach the prompts of the next episodes.
        environ = {key: text for key, text in os.environ.items() if not (key[:4] == "XDG_" and key[-5:] == "_HOME")}
        environ |= {"HOME": str(folder.seen / "home"), "TMPDIR": str(folder.seen / "tmp"), "PWD": str(seen)}
        environ |= {**more, _MARK: str(folder.path)}
        program = words[0].replace(str(seen), str(work))
        if shutil.which(work / program if os.sep in program else program, path=environ.get("PATH")) is None:
            raise ConfigError(f"{words[0]!r} is not an executable file, or not on the PATH: install the program first")
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            process = subprocess.Popen(
                [*folder.launcher, *words],
                cwd=work,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                while process.poll() is None and not self._is_stopped.wait(_LOOK_S):
                    pass
                was_stopped = process.poll() is None
            finally:
                _end_processes(str(folder.path), process)
            for file in (stdout, stderr):
                file.seek(max(0, file.seek(0, os.SEEK_END) - _KEPT_OUTPUT))
            written, errors = (file.read().decode(errors="replace") for file in (stdout, stderr))
            return ProgramResult(None if was_stopped else process.returncode, written, errors, work)


async def copy_files(container: Container, fresh: Container) -> None:
    """Copy the files that a program left; if it left none, or too large ones, copy none."""
    try:
        await container.copy_to(fresh)
    except ContainerLost:
        raise
    except (ContainerError, FileNotFoundError):
        await fresh.run('rm -rf "$PWD"/* "$PWD"/.[!.]*')


async def _awaited(outcome: Any) -> Any:
    return await outcome if inspect.isawaitable(outcome) else outcome


def _end_processes(mark: str, process: "subprocess.Popen[bytes] | None" = None) -> None:
    """End a process and everything that it started: with SIGTERM, and soon after with SIGKILL.

    Processes that left its session are found by the environment variable that they inherited, where `/proc` exists.
    """
    entry = f"{_MARK}={mark}".encode()
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + (1.0 if number == signal.SIGTERM else _END_S)
        while time.monotonic() < deadline:
            left = {process.pid} if process is not None and process.poll() is None else set[int]()
            for folder in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if entry in (folder / "environ").read_bytes().split(b"\0"):
                        left.add(int(folder.name))
            if not left:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            time.sleep(_LOOK_S)
    if process is not None:
        process.wait()
