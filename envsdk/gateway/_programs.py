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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..errors import ConfigError
from ._session import ProgramEnd

_MARK = "ENVSDK_SESSION"
_KEPT_OUTPUT = 1_000_000
_END_S = 5.0
_LOOK_S = 0.05


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
        folder: The folder that it was started in.
    """

    returncode: int | None
    stdout: str
    stderr: str
    folder: Path


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


class CommandProgram:
    """A command that runs as a process, in a new folder.

    Args:
        command: Returns the program and its arguments; it is called after `prepare`.
        prepare: Prepares the folder.
        score: Called with the result when it has ended.
        environ: Environment variables for it, in addition to those of this process.
        ended: Called when it has been scored.
    """

    def __init__(
        self,
        command: Callable[[], Any],
        prepare: Callable[[Path], None],
        score: Callable[[ProgramResult], Any],
        environ: Mapping[str, str],
        ended: Callable[[ProgramEnd], None],
        mark: str,
    ) -> None:
        self._command, self._prepare, self._score, self._ended = command, prepare, score, ended
        self._environ = {**os.environ, **environ, _MARK: mark}
        self._mark = mark
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
        folder = Path(tempfile.mkdtemp(prefix="envsdk-program-"))
        try:
            self._prepare(folder)
            result = self._result(folder)
            outcome = None if self._is_killed.is_set() else self._score(result)
        except BaseException as error:  # the environment raises it
            self._ended(ProgramEnd(error=error))
        else:
            self._ended(ProgramEnd(outcome))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _result(self, folder: Path) -> ProgramResult:
        command = self._command()
        if command is None:
            raise ConfigError("there is nothing to run: write run(), or set command, at the latest in prepare()")
        if isinstance(command, str) or not command or not all(isinstance(part, str | os.PathLike) for part in command):
            raise ConfigError(f"command is {command!r:.80}; expected a list: the program and its arguments")
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            process = subprocess.Popen(
                [os.fspath(part) for part in cast("list[str]", command)],
                cwd=folder,
                env=self._environ,
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
                _end_processes(process, self._mark)
            for file in (stdout, stderr):
                file.seek(max(0, file.seek(0, os.SEEK_END) - _KEPT_OUTPUT))
            written, errors = (file.read().decode(errors="replace") for file in (stdout, stderr))
            return ProgramResult(None if was_stopped else process.returncode, written, errors, folder)


def _end_processes(process: "subprocess.Popen[bytes]", mark: str) -> None:
    """End a process and everything that it started: with SIGTERM, and soon after with SIGKILL.

    Processes that left its session are found by the environment variable that they inherited, where `/proc` exists.
    """
    entry = f"{_MARK}={mark}".encode()
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + (1.0 if number == signal.SIGTERM else _END_S)
        while time.monotonic() < deadline:
            left = {process.pid} if process.poll() is None else set[int]()
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
    process.wait()
