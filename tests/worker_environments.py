"""Environments that end or block their process, and policies, which worker processes import."""

import asyncio
import os
import signal
import time
from pathlib import Path

import numpy as np

from envsdk import Action, Env, Message, Turn


class Counts(Env):
    """Three steps. It may end its process, or block it, once or each time."""

    def start(self) -> Turn:
        self.said = 0
        return Turn("Go.")

    def respond(self, reply: Message) -> Turn:
        self.said += 1
        return Turn("More.", reward=0.0) if self.said < 3 else Turn("Done.", reward=1.0, terminated=True)


class Kills(Counts):
    """Ends its process in the episode of seed 3: each time, or once if there is a file to mark that."""

    def __init__(self, mark: str = "", **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.mark = mark

    def respond(self, reply: Message) -> Turn:
        if self.episode.seed == 3 and not (self.mark and Path(self.mark).exists()):
            if self.mark:
                Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().respond(reply)


class Stalls(Counts):
    blocking = False  # so that it runs in the event loop of the worker

    def respond(self, reply: Message) -> Turn:
        if self.episode.seed == 3:
            time.sleep(1000)  # a call into C that cannot be interrupted
        return super().respond(reply)


class Answers:
    """A policy that takes a moment, and tells the version of its weights."""

    tokenizer = "any"

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    async def __call__(self, prompt: np.ndarray, **_: object) -> Action:
        await asyncio.sleep(self.seconds)
        return Action([5], [-0.5])


class NoTokenizer(Answers):
    tokenizer = None  # type: ignore[assignment]


class NamesNode(Counts):
    """Leaves a file that is named for its process's parent: on Ray, the daemon of its node."""

    def __init__(self, folder: str = "", **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.folder = folder

    def start(self) -> Turn:
        Path(self.folder, str(os.getppid())).touch()
        return super().start()
