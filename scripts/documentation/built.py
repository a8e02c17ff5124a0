"""Finish the built site, and check it for problems that the site generator does not report: `make docs` runs it last.

In the search, an entry of the reference has its full name, so that a word finds the guides first. A page loads nothing
from other servers, and every public name, every command and every error has an anchor.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from envsdk.cli._explain import explanations

from .names import public_names
from .pages import OUTPUT
from .reference import documented_paths

LOADED = re.compile(r"<(?:script|img|source|iframe)\b[^>]*\bsrc=\"?https?:[^>]*>|<link\b[^>]*\bhref=\"?https?:[^>]*>")
ANCHOR = re.compile(r"\bid=\"?([^\s\">]+)")


def name_entries(search: Path = OUTPUT / "site" / "search.json") -> None:
    """Give the entries of the reference their full names as titles: `envsdk.rewards.judge` instead of `judge`."""
    index = json.loads(search.read_text(encoding="utf-8"))
    for item in index["items"]:
        page, _, anchor = item["location"].partition("#")
        if page.startswith("reference/") and "." in anchor:
            item["title"] = anchor
    search.write_text(json.dumps(index), encoding="utf-8")


def problems(site: Path = OUTPUT / "site") -> Iterator[str]:
    """Yield the problems of the built site."""
    anchors: set[str] = set()
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        anchors.update(ANCHOR.findall(text))
        yield from (f"{page.relative_to(site)} loads {tag}" for tag in LOADED.findall(text))
    for public in public_names():
        for name in public.names:
            if not has_anchor(f"{public.module}.{name}", anchors):
                yield f"{public.module}.{name} has no entry in the reference"
    yield from (f"{name} has no entry among the errors" for name in explanations() if name.lower() not in anchors)


def has_anchor(path: str, anchors: set[str]) -> bool:
    """Return whether a name has an anchor, under this path or the path where it is documented."""
    return documented_paths().get(path, path) in anchors


if __name__ == "__main__":
    name_entries()
    found = list(problems())
    print("\n".join(found) or "every public name and error has an entry, and no page loads anything from elsewhere")
    sys.exit(1 if found else 0)
