"""The project's documents: their Python code, and what they refer to."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parent.parent
PAGES = sorted([*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md"), CHECKOUT / "examples" / "README.md"])
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$", flags=re.DOTALL | re.MULTILINE
)
FILE = re.compile(r"# (\w+\.(?:py|toml))\n")
"""The first line of a block that is a file. The reader saves it, and the blocks that follow use it."""
NOT_RUN = re.compile(r"<!-- not run: (.*?) -->\n\n?\Z", flags=re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. `reason` is why no test runs it, from the comment that precedes it; mostly empty."""

    page: str
    line: int
    language: str
    code: str
    reason: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def name_of(page: Path) -> str:
    """The path of a page inside the project."""
    return page.relative_to(CHECKOUT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [_block(page, text, match) for match in FENCE.finditer(text)]


def _block(page: Path, text: str, match: re.Match[str]) -> Block:
    before = text[: match.start()]
    reason = NOT_RUN.search(before)
    code = re.sub(rf"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
    return Block(name_of(page), before.count("\n") + 1, match["language"], code, reason[1] if reason else "")


def code_of(page: Path) -> list[str]:
    """The Python blocks of a page that run."""
    return [block.code for block in blocks_of(page) if block.language == "python" and not block.reason]


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
