"""docs/how-to/custom-renderers.md: its files are a package whose renderers are found by name and pass the checks."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from documents import CHECKOUT, blocks_of

BLOCKS = [block for block in blocks_of(CHECKOUT / "docs/how-to/custom-renderers.md") if not block.reason]
FILE = re.compile(r"# ([\w.]+\.(?:py|toml))\n")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The files of the page in a folder, as if it were installed: its entry points are found next to it."""
    for block in BLOCKS:
        if file := FILE.match(block.code):
            (tmp_path / file[1]).write_text(block.code, encoding="utf-8")
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))
    shipped = project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert all((tmp_path / name).is_file() for name in shipped)
    metadata = tmp_path / "boxes_renderer-0.1.0.dist-info"
    metadata.mkdir()
    named = project["project"]
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {named['name']}\nVersion: {named['version']}\n")
    points = named["entry-points"]["envsdk.renderers"]
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (metadata / "entry_points.txt").write_text(f"[envsdk.renderers]\n{lines}")
    return tmp_path


def ran(folder: Path, *arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_renderer_of_the_page_passes_the_checks(package: Path) -> None:
    printed = ran(package, "check_boxes.py")
    (shown,) = (block.code for block in BLOCKS if block.language == "text")
    assert printed == shown


@pytest.mark.full
def test_each_command_of_the_page_finds_the_renderers_by_name(package: Path) -> None:
    lines = [line for block in BLOCKS if block.language == "bash" for line in block.code.splitlines()]
    commands = [line.split() for line in lines if line.startswith("envsdk ")]
    assert len(commands) == 3 and all(program == "envsdk" for program, *_ in commands)
    runner = "import json, sys; from typer.testing import CliRunner as Runner; from envsdk.cli import app"
    each = "for arguments in json.loads(sys.argv[1]): print(Runner().invoke(app, arguments).output, end='\\0')"
    *printed, _ = ran(package, "-c", f"{runner}\n{each}", json.dumps([rest for _, *rest in commands])).split("\0")
    assert len(printed) == 3 and all("0 of" in one or "reward" in one for one in printed), printed
