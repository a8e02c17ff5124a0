import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def processes_with() -> Callable[[str], list[int]]:
    """Finds the processes of this machine that have a word as an argument, or whose name is its beginning."""

    def find(word: str) -> list[int]:
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                name = file.with_name("comm").read_text(errors="replace").strip()
                arguments = file.read_bytes()  # none if it has ended and was not waited for
                if word.encode() in arguments.split(b"\0") or (arguments and name == word[:15]):
                    found.append(int(file.parent.name))
        return found

    return find
