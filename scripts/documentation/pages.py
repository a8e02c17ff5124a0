"""The pages of the site: those of `docs/`, those of the checkout that they link to, and generated ones."""

import posixpath
import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath

from envsdk import __version__

from .commands import commands_page
from .formats import formats_page
from .names import CHECKOUT, public_names
from .reference import page_of, reference_pages

OUTPUT = CHECKOUT / ".cache" / "docs"
OUTSIDE = {
    "README.md": "index.md",
    "docs/home.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
"""The pages that have other paths in the site. Its front page is `home.md`, with a part of the README."""
FIRST_SCREEN = "<!-- the version, and the first screen of README.md -->"
MAX_EXAMPLE_LINES = 99
"""Longer programs are not shown in the site."""
LINK = re.compile(r"(\]\()([^)\s:#]+\.\w+)(?=[)#])")
CODE = re.compile(r"`[^`\n]*`")
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[^\S\n]*$", flags=re.DOTALL | re.MULTILINE)


MENU = '\n[project.extra.version]\nprovider = "mike" # the menu reads versions.json, in the form that mike writes\n'


def write_pages(output: Path = OUTPUT, *, has_versions: bool = False) -> None:
    """Write the configuration, all pages and drawings of the site into a folder, which is emptied first.

    Args:
        output: The folder.
        has_versions: Whether the site will be in a folder of versions, and so has a menu of them.
    """
    shutil.rmtree(output, ignore_errors=True)
    for path, text in site_pages().items():
        write(output / "pages" / path, text)
    text = configuration()
    write(output / "zensical.toml", text + MENU if has_versions else text)
    for drawing in (CHECKOUT / "docs").rglob("*"):
        if drawing.suffix in (".png", ".svg", ".css", ".js", ".json"):
            target = output / "pages" / drawing.relative_to(CHECKOUT / "docs")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(drawing, target)


def configuration() -> str:
    """Return the configuration, with the pages of the modules in the navigation, and a link to the clone's origin."""
    text = (CHECKOUT / "docs" / "zensical.toml").read_text(encoding="utf-8")
    git = ("git", "-C", str(CHECKOUT), "remote", "get-url", "origin")
    address = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip().removesuffix(".git")
    if address.startswith("https://") and "@" not in address:
        text = text.replace("[project]\n", f'[project]\nrepo_url = "{address}"\n', 1)
    entries = (f'    {{ "{public.module}" = "{page_of(public.module)}" }},\n' for public in public_names())
    return text.replace("    # the pages of the modules\n", "".join(entries))


def write(path: Path, text: str) -> None:
    """Write a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def site_pages() -> dict[str, str]:
    """Return all pages by their path in the site."""
    made = {**reference_pages(), "reference/commands.md": commands_page(), "reference/formats.md": formats_page()}
    sources = [CHECKOUT / name for name in OUTSIDE if name != "docs/home.md"] + sorted(
        (CHECKOUT / "docs").rglob("*.md")
    )
    names = [source.relative_to(CHECKOUT).as_posix() for source in sources]
    texts = {name: relinked(name, (CHECKOUT / name).read_text(encoding="utf-8")) for name in names}
    pages = {path_of(name): text for name, text in texts.items()}
    first_screen = texts["README.md"].partition("\n\n")[2].partition("\n![")[0]
    version = f"[Version {__version__}](changelog.md), Apache-2.0"
    pages["index.md"] = texts["docs/home.md"].replace(FIRST_SCREEN, f"{version} ·\n{first_screen}")
    pages[path_of("examples/README.md")] += example_code()
    return pages | made


def example_code() -> str:
    """Return the code of the short programs in `examples/`, as sections of Markdown."""
    programs = [(path.name, path.read_text(encoding="utf-8")) for path in sorted((CHECKOUT / "examples").glob("*.py"))]
    short = [(name, text) for name, text in programs if len(text.splitlines()) <= MAX_EXAMPLE_LINES]
    return "".join(f"\n## `{name}`\n\n```python\n{text}```\n" for name, text in short)


def path_of(name: str) -> str:
    """Return the path in the site of a file of the checkout."""
    return OUTSIDE.get(name, name.removeprefix("docs/"))


def relinked(name: str, text: str) -> str:
    """Return a page of the checkout with the links of the site. Blocks of code are left as they are.

    GitHub needs a backslash before a pipe in the code of a table; the site would show it.
    """
    here = PurePosixPath(name).parent.as_posix()
    start = posixpath.dirname(path_of(name)) or "."

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, match[2]))
        return f"{match[1]}{posixpath.relpath(path_of(target), start)}"

    def prose(part: str) -> str:
        return CODE.sub(lambda match: match[0].replace("\\|", "|"), LINK.sub(link, part))

    parts: list[str] = []
    end = 0
    for fence in FENCE.finditer(text):
        parts += [prose(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, prose(text[end:])])
