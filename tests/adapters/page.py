"""The code of docs/adapters.md."""

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"


def run(sections: int | None = None) -> dict[str, Any]:
    """Run the Python code of the first sections, or of all, in one scope; returns its names."""
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    scope: dict[str, Any] = {"__name__": "adapters_page"}
    for part in parts[:sections]:
        blocks = re.findall(r"```python\n(.*?)```", part, flags=re.DOTALL)
        assert blocks, part[:80]
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), scope)
    return scope


def other_files() -> list[str]:
    """The code that stands in files of its own."""
    return re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
