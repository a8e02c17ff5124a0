"""The page of errors, `docs/errors.md`, with the explanations of `envsdk explain`: `make errors-page` writes it."""

import re
import textwrap
import tomllib

from envsdk.cli._explain import ErrorExplanation, explanations

from .names import CHECKOUT

PAGE = CHECKOUT / "docs" / "errors.md"
INTRODUCTION = """# Errors

<!-- `make errors-page` writes this page from envsdk/cli/explanations.toml and the docstrings of the errors. -->

Every error of envsdk is an [`EnvsdkError`](#envsdkerror) and states what was given, what was expected, and what to do.
`envsdk explain NAME` prints an entry of this page in the terminal. The examples need `import envsdk`. Tests run each of
them and compare its message.
"""


def errors_page() -> str:
    """Return the page: each error is in the group of the site's navigation that has the page which it refers to."""
    navigation = tomllib.loads((CHECKOUT / "docs" / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    group_of = {
        page: title
        for entry in navigation
        for title, pages in entry.items()
        for page in re.findall(r"[\w/-]+\.md", str(pages))
    }
    group_of |= dict.fromkeys(("errors.md", "start.md", "explanation/breaks.md"), "In any part")
    groups: dict[str, list[ErrorExplanation]] = {title: [] for title in ("In any part", *group_of.values())}
    for entry in explanations().values():
        groups[group_of[entry.see.partition("#")[0]]].append(entry)
    parts = [INTRODUCTION, "| part | errors |\n|---|---|"]
    for title, entries in groups.items():
        names = ", ".join(f"[{one.name}](#{one.name.lower()})" for one in entries)
        parts += [f"| {title} | {names} |"] if entries else []
    for title, entries in groups.items():
        parts += [f"\n## {title}\n", *map(section, entries)] if entries else []
    return "\n".join(parts)


def section(entry: ErrorExplanation) -> str:
    """Return the section of an error."""
    parts = [f"### {entry.name}\n", f"{entry.meaning}\n", f"**Why it happens.** {entry.why}\n"]
    parts.append(f"**What to do.** {entry.do}\n")
    if entry.message:
        parts.append(f"A typical message:\n\n```text\n{wrapped(entry.message)}\n```\n")
    if entry.example:
        parts.append(f"What raised it:\n\n```python\n{entry.example.strip()}\n```\n")
    if not entry.see.startswith("errors.md"):
        parts.append(f"More: [{title_of(entry.see)}]({entry.see})\n")
    return "\n".join(parts)


def wrapped(message: str) -> str:
    """Return a message in lines that fit on the page."""
    return "\n".join(textwrap.fill(line, 88, break_long_words=False) for line in message.splitlines())


def title_of(see: str) -> str:
    """Return the heading that a link leads to.

    Raises:
        StopIteration: If the page has no such heading.
    """
    page, _, anchor = see.partition("#")
    headings = re.findall(r"^#+ (.*)$", (PAGE.parent / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return next(heading for heading in headings if not anchor or anchor_of(heading) == anchor)


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site name it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(errors_page(), encoding="utf-8")
