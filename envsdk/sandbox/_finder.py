"""Finds the files that the standard library needs. Like the launcher, it runs in a bare interpreter."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

NOT_FOR_PROGRAMS = {"_tkinter", "nis", "_curses", "_curses_panel", "readline", "ossaudiodev"}
"""Modules that need a screen, a terminal, a sound card or a network. Some of them load many libraries."""


class Library(ctypes.Structure):
    """The first fields of the C library's `struct dl_phdr_info`."""

    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


Visitor = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Library), ctypes.c_size_t, ctypes.c_void_p)


def start() -> None:
    """Print, as JSON, the folders of the standard library and the libraries that its modules need."""
    paths = [path for path in sys.path if Path(path).exists()]
    warnings.simplefilter("ignore")
    for file in (file for folder in paths for file in Path(folder).glob("*.so")):  # the compiled modules
        name = file.name.partition(".")[0]
        if name not in NOT_FOR_PROGRAMS:
            with contextlib.suppress(ImportError):
                __import__(name)
    with contextlib.suppress(OSError):
        ctypes.CDLL("libgcc_s.so.1")  # loaded when a thread ends
    names: list[str] = []

    def visit(library: Any, _size: int, _data: object) -> int:
        names.append(os.fsdecode(library.contents.name))
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(Visitor(visit), None)
    print(json.dumps({"paths": paths, "libraries": [name for name in names if name.startswith("/")]}))
