"""The parent's side of the workers: one process for each environment, started when it is first needed."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from peer_environments import PEERS, made

from . import CHECKOUT
from .contender import NotMeasured, Size

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
SET_UP_S = 300.0
"""The longest that a worker may take to start, and a contender to prepare a size."""
OURS = ("envsdk", "openai_harmony", "transformers")
"""What runs with the packages of this program itself: each in a process of its own, as all others."""


class Taken(NamedTuple):
    """One repetition: its figure, and the seconds that passed for it on the clock."""

    value: float
    seconds: float


def python_of(environment: str) -> Path:
    """Return the interpreter of an environment, which is installed first if needed.

    Its pins are in `benchmarks/requirements/<environment>.txt`, or with the tests against the same project.

    Raises:
        NotMeasured: If it cannot be installed on this machine.
    """
    if environment in OURS:
        return Path(sys.executable)
    own = REQUIREMENTS / f"{environment}.txt"
    folder = made(environment, own if own.is_file() else PEERS / environment / "requirements.txt")
    if folder is None:
        raise NotMeasured("not measured: its packages cannot be installed here")
    return folder / "bin" / "python"


class Process:
    """A worker process, and what is prepared in it.

    Args:
        environment: Its name.
        log: The file that gets what it prints, errors included.
    """

    def __init__(self, environment: str, log: Path) -> None:
        command = [python_of(environment), "-P", Path(__file__).with_name("worker.py"), environment]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self.prepared: set[tuple[str, str, Size]] = set()
        self._answer(SET_UP_S)  # it is ready

    def request(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            NotMeasured: If the worker reports an error, ends, or takes longer than `timeout_s`.
        """
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer(timeout_s)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            answer = json.loads(self._line(timeout_s))
        except EOFError:
            raise self._ended() from None
        if "reason" in answer:
            raise NotMeasured(answer["reason"])
        return answer

    def _ended(self) -> NotMeasured:
        return NotMeasured(f"not measured: its process ended with exit status {self._process.wait()}")

    def _line(self, timeout_s: float) -> bytes:
        assert self._process.stdout
        deadline, found = time.monotonic() + timeout_s, b""
        while not found.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                raise NotMeasured(f"too slow: not done after {timeout_s:.0f} s")
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise EOFError
            found += part
        return found

    @property
    def is_alive(self) -> bool:
        """Whether it takes requests."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            with contextlib.suppress(BrokenPipeError):  # of a request that it did not read
                pipe.close()


class Pool:
    """All workers.

    Args:
        logs: The folder for what they print.
        cap_s: The longest that one repetition may take.
    """

    def __init__(self, logs: Path, cap_s: float) -> None:
        self._logs, self.cap_s = logs, cap_s
        self._processes: dict[str, Process] = {}
        self._broken: dict[str, str] = {}

    def describe(self, environment: str, row: str, name: str, size: Size) -> dict[str, Any]:
        """Prepare a contender for a size; return its note and versions."""
        process = self._process(environment)
        described = process.request({"do": "prepare", "row": row, "name": name, "size": size}, SET_UP_S)
        process.prepared.add((row, name, size))
        return described

    def repeat(self, environment: str, row: str, name: str, size: Size, *, cap_s: float | None = None) -> Taken:
        """Run one repetition of at most `cap_s` seconds, and prepare it again if the worker had to be replaced."""
        process = self._process(environment)
        if (row, name, size) not in process.prepared:
            self.describe(environment, row, name, size)
        start = time.monotonic()
        answer = process.request({"do": "repeat", "row": row, "name": name, "size": size}, cap_s or self.cap_s)
        return Taken(answer["value"], time.monotonic() - start)

    def drop(self) -> None:
        """Release everything that is prepared."""
        for process in self._processes.values():
            if process.is_alive and process.prepared:
                process.prepared.clear()
                try:
                    process.request({"do": "drop"}, SET_UP_S)
                except NotMeasured:  # it is replaced when it is next needed
                    process.kill()

    def close(self) -> None:
        """End all workers."""
        for process in self._processes.values():
            process.kill()

    def _process(self, environment: str) -> Process:
        if environment in self._broken:
            raise NotMeasured(self._broken[environment])
        process = self._processes.get(environment)
        if process is None or not process.is_alive:
            if process is not None:
                process.kill()
            try:
                process = self._processes[environment] = Process(environment, self._logs / f"{environment}.log")
            except NotMeasured as reason:
                self._broken[environment] = str(reason)
                raise
        return process
