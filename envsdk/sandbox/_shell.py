"""The commands of a container without an image: `python`, `cat` and `ls`. This file runs inside the sandbox."""

import base64
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def main(files: Mapping[str, str], folder: str, environ: Mapping[str, str], words: Sequence[str]) -> None:
    """Write files, and run a command in a folder of them.

    Args:
        files: The content of each file, in base64, by its path.
        folder: The folder to run in.
        environ: The environment variables of the command, in addition to those of this process.
        words: The command and its arguments.
    """
    Path("files").mkdir()  # next to main.py, which is this program
    os.chdir("files")
    for path, data in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(base64.b64decode(data))
    os.environ.update(environ)
    command, *arguments = words or [""]
    try:
        os.chdir(folder)
        if command in ("python", "python3") and arguments:
            _python(arguments)
        elif command == "cat":
            for path in arguments:
                print(Path(path).read_text(), end="")
        elif command == "ls":
            for path in arguments or ["."]:
                print(*sorted(entry.name for entry in Path(path).iterdir()), sep="\n")
        else:
            print(f"sh: {command}: not found; there are python, cat and ls", file=sys.stderr)
            sys.exit(127)
    except OSError as error:
        if command.startswith("python"):
            raise
        print(f"{command}: {error}", file=sys.stderr)
        sys.exit(1)


def _python(arguments: list[str]) -> None:
    """Do what `python` does with its arguments."""
    sys.path.insert(0, "")
    option, *given = arguments
    if option == "-c" and given:
        sys.argv = ["-c", *given[1:]]
        exec(compile(given[0], "<string>", "exec"), {"__name__": "__main__"})
    elif option == "-m" and given:
        sys.argv = given
        runpy.run_module(given[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(option, run_name="__main__")
