"""Run commands in containers, by the command line of podman or docker.

`start` makes a `Container` from an image or a Dockerfile; `Container.run` runs a command in it. A container has no
network. Addresses that `ContainerConfig.allow` lists are reached through its loopback interface; nothing else is.
Nothing of this machine enters it: no environment variables, no files. Its memory, processors, processes and disk are
limited, and it ends by itself after `lifetime_s`.

A process removes its containers when it ends. Each container carries the label `envsdk.owner`, which identifies the
process that started it. `prune` removes the containers whose process was killed.
"""

import asyncio
import contextlib
import os
import re
import shutil
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path

from ._arguments import explain_arguments
from ._visible import brief
from .errors import ConfigError
from .sandbox._commands import output_of
from .sandbox._container import CommandResult as CommandResult
from .sandbox._container import Container as Container
from .sandbox._container import ContainerConfig as ContainerConfig
from .sandbox._container import EngineName
from .sandbox._engine_container import COPY, OWNER, EngineContainer
from .sandbox._forwarding import background_loop
from .sandbox._harbor_container import started_by_harbor
from .sandbox._sandbox_container import SandboxContainer

_LABEL = re.compile(rf"\b{re.escape(OWNER)}[=:]([^\s,\]]+)")
"""The label in a list of labels, which podman and docker write in different forms."""
_BATCH = 50
"""The number of containers that one command removes: each takes a part of its time limit."""


async def start(config: ContainerConfig) -> Container:
    """Start a container.

    Raises:
        ConfigError: If neither podman nor docker is installed.
        ContainerError: If the engine could not start it, such as because it cannot find the image.
    """
    if config.engine == "sandbox":
        return SandboxContainer(config)
    if config.engine is not None and config.engine.startswith("harbor:"):
        return await asyncio.wrap_future(background_loop(os.getpid()).submit(started_by_harbor(config)))
    container = EngineContainer(_installed(config.engine), config)
    await container.start(_owner())
    return container


class ContainerPool:
    """Containers of one image that are started before they are needed.

    Its containers are used once: take one, and stop it when it is not needed anymore.

    Args:
        config: What they are made from.
        size: How many are kept ready.

    Raises:
        ConfigError: If an argument is not valid.
    """

    def __init__(self, config: ContainerConfig, size: int = 1) -> None:
        if not isinstance(config, ContainerConfig) or type(size) is not int or size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"got {brief(config)} and size {brief(size, 20)}; expected a ContainerConfig and at least 1"
            )
        self.config = config
        self._size, self._is_closed = size, False
        self._become_own()

    def _become_own(self) -> None:
        """Forget the containers of another process, such as those from before a fork."""
        self._process, self._lock = os.getpid(), threading.Lock()
        self._ready: deque[tuple[float, Future[Container]]] = deque()
        """When each container was started, and its result, from the oldest."""

    async def take(self) -> Container:
        """Return a container that nothing has run in, and that has at least half of its lifetime left.

        Raises:
            ConfigError: If the pool is closed, or for the reasons of `start`.
            ContainerError: If a container could not be started.
        """
        if self._process != os.getpid():
            self._become_own()
        loop, now = background_loop(os.getpid()), time.monotonic()
        with self._lock:
            if self._is_closed:
                raise ConfigError("the pool of containers is closed")
            while self._ready and self._ready[0][0] < now - self.config.lifetime_s / 2:
                loop.submit(_stop_started(self._ready.popleft()[1]))
            while len(self._ready) <= self._size:
                self._ready.append((now, loop.submit(start(self.config))))
            _, taken = self._ready.popleft()
        try:
            return await asyncio.wrap_future(taken)
        except asyncio.CancelledError:
            loop.submit(_stop_started(taken))  # it may have started just before
            raise

    async def close(self) -> None:
        """Stop the containers that were not taken. A second call does nothing."""
        if self._process != os.getpid():
            self._become_own()
        with self._lock:
            self._is_closed, waiting = True, list(self._ready)
            self._ready.clear()
        await asyncio.gather(*(_stop_started(started) for _, started in waiting), return_exceptions=True)


async def _stop_started(started: Future[Container]) -> None:
    await (await asyncio.wrap_future(started)).stop()


async def prune(engine: EngineName | None = None, *, everything: bool = False) -> list[str]:
    """Remove the containers whose process has ended, and return their names.

    Args:
        engine: The engine that runs them; None takes the first of podman and docker that is installed.
        everything: True removes all containers of envsdk, those of running processes included.

    Raises:
        ConfigError: If the engine is not installed.
        ContainerError: If the engine fails.
    """
    program = _installed(engine)
    listing = ("ps", "--all", f"--filter=label={OWNER}", "--format={{.Names}} {{.Labels}}")
    names = [
        line.split()[0]
        for line in (await output_of(program, *listing)).splitlines()
        if everything or not _lives(next(iter(_LABEL.findall(line)), ""))
    ]
    for start_at in range(0, len(names), _BATCH):
        await output_of(program, "rm", "--force", "--volumes", *names[start_at : start_at + _BATCH])
    copies = (await output_of(program, "images", "--quiet", "--no-trunc", f"--filter=label={COPY}")).split()
    form = f'--format={{{{index .Config.Labels "{COPY}"}}}}'
    for image in dict.fromkeys(copies):
        if everything or not _lives(await output_of(program, "image", "inspect", form, image)):
            await output_of(program, "rmi", "--no-prune", "--force", image)
    return names


def _installed(engine: str | None) -> str:
    """Return an engine that is installed: the given one, or by default the first.

    Raises:
        ConfigError: If it is not installed.
    """
    choices = ("podman", "docker") if engine is None else (engine,)
    for name in choices:
        if shutil.which(name):
            return name
    raise ConfigError(
        f"containers need {' or '.join(choices)}, which is not installed here; engine='sandbox' runs Python without one"
    )


def _owner() -> str:
    """Return what identifies this process: the machine, its id, and when it started."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started_at(os.getpid())}"


def _started_at(process: int) -> str:
    """Return when a process started; empty if there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    return ""


def _lives(owner: str) -> bool:
    """Return whether the process that a label identifies runs. One of another machine is taken to run."""
    host, process, started_at = owner.rsplit(":", 2)
    return host != socket.gethostname() or _started_at(int(process)) == started_at != ""


explain_arguments(globals())
