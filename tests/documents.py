"""The project's documents: their Python code, and what they refer to."""

import re
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parent.parent
PAGES = sorted([*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")])


def name_of(page: Path) -> str:
    """The path of a page inside the project."""
    return page.relative_to(CHECKOUT).as_posix()


def code_of(page: Path) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def prose_of(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def run_code_of(page: Path) -> dict[str, Any]:
    """Run the Python blocks of a page in order, in one scope; return its names."""
    scope: dict[str, Any] = {"__name__": page.stem}
    for block in code_of(page):
        exec(compile(block, str(page), "exec"), scope)
    return scope


def anchors_of(page: Path) -> set[str]:
    """The fragments that links to a page may have: its headings, as a Markdown renderer names them."""
    headings = re.findall(r"^#+ (.*)$", prose_of(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
