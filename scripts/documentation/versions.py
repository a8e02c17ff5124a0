"""Put the built site into a folder of versions: `python -m documentation.versions 0.3 FOLDER`.

The folder has one folder for each version, `latest` for the newest, `versions.json` for the menu of versions, and an
`index.html` that leads to `latest`. Any web server can serve it.
"""

import argparse
import json
import shutil
from pathlib import Path

from .pages import OUTPUT

REDIRECT = '<!doctype html><meta http-equiv="refresh" content="0; url=latest/"><a href="latest/">envsdk</a>\n'


def add_version(version: str, folder: Path, site: Path = OUTPUT / "site") -> None:
    """Add a version, or replace it.

    Raises:
        ValueError: If the version is not made of numbers.
    """
    order(version)
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / "versions.json"
    versions = names(known)
    versions.add(version)
    newest = max(versions, key=order)
    _replace(site, folder / version)
    if version == newest:
        _replace(site, folder / "latest")
    listed = [entry(name, newest) for name in sorted(versions, key=order, reverse=True)]
    known.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    (folder / "index.html").write_text(REDIRECT, encoding="utf-8")


def names(known: Path) -> set[str]:
    """Return the versions that a file lists."""
    return {entry["version"] for entry in json.loads(known.read_text(encoding="utf-8"))} if known.is_file() else set()


def entry(version: str, newest: str) -> dict[str, object]:
    """Return the menu's entry of a version."""
    return {"version": version, "title": version, "aliases": ["latest"] if version == newest else []}


def order(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, such as 0.3 or 0.3.1.

    Raises:
        ValueError: If it is not a version.
    """
    parts = version.split(".")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"the version is {version!r}; expected numbers with dots between them, such as 0.3 or 0.3.1")
    return tuple(map(int, parts))


def _replace(site: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(site, folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Put the built site into a folder of versions.")
    parser.add_argument("version", help="such as 0.3")
    parser.add_argument("folder", type=Path, help="the folder that a web server serves")
    arguments = parser.parse_args()
    add_version(arguments.version, arguments.folder)
