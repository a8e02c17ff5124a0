"""Print the measures of the code's size and plainness, next to their limits: `python scripts/measures.py`.

Lines of code are lines without blank lines, comments and docstrings. The paths of steps are measured in real episodes:
one reply without a tool call, and one with.
"""

import ast
import io
import statistics
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from documentation.names import names_of

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [ROOT / "envsdk", ROOT / "renderers" / "envsdk_renderers", ROOT / "environments" / "envsdk_environments"]
BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass
class Source:
    """The definitions in the files of the three packages."""

    lines: int = 0
    functions: list[int] = field(default_factory=list[int])  # the lines of code of each function
    classes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # the files that define each name
    names: int = 0  # public names at the top of public modules

    def read(self, file: Path) -> None:
        """Add the definitions of a file."""
        text = file.read_text()
        tree = ast.parse(text)
        code = lines_of_code(text, tree)
        self.lines += len(code)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions.append(sum(node.lineno <= line <= (node.end_lineno or 0) for line in code))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self.classes[node.name].add(str(file))
        if not any(part.startswith("_") and part != "__init__.py" for part in file.relative_to(ROOT).parts):
            self.names += len(names_of(file))


def lines_of_code(text: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in BLANK:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for child in node.body:
                value = child.value if isinstance(child, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    lines -= set(range(child.lineno, (child.end_lineno or 0) + 1))
    return lines


@dataclass
class CallPath:
    """Our functions that one call runs through."""

    functions: set[tuple[str, str, int]] = field(default_factory=set[tuple[str, str, int]])
    changes: int = 0  # of the package, from one call to the next
    depth: int = 0


def path_of(call: Callable[[], Any]) -> CallPath:
    """Return the path of a call."""
    found, stack = CallPath(), [""]

    def event(frame: FrameType, kind: str, _: Any) -> None:
        file = frame.f_code.co_filename
        ours = next((package for package in PACKAGES if file.startswith(str(package))), None)
        if ours is None:
            return
        if kind == "call":
            stack.append(str(Path(file).parent))
            found.depth = max(found.depth, len(stack) - 1)
            found.functions.add((file, frame.f_code.co_qualname, frame.f_code.co_firstlineno))
            found.changes += stack[-1] != stack[-2]
        elif kind == "return" and len(stack) > 1:
            left = stack.pop()
            found.changes += left != stack[-1]

    sys.setprofile(event)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def duplicates(files: list[Path], length: int = 6) -> int:
    """Return the number of stretches of at least `length` lines that are in more than one place.

    Imports and signatures do not count: what implements an interface repeats its signatures.
    """
    places: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for file in files:
        text = file.read_text()
        tree = ast.parse(text)
        code = lines_of_code(text, tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                code -= set(range(node.lineno, node.body[0].lineno))
            elif isinstance(node, ast.Import | ast.ImportFrom):
                code -= set(range(node.lineno, (node.end_lineno or 0) + 1))
        stripped = [text.splitlines()[line - 1].strip() for line in sorted(code)]
        kept = [(line, at) for at, line in enumerate(stripped) if not line.startswith(("import ", "from ", "@"))]
        for at in range(len(kept) - length + 1):
            places[tuple(line for line, _ in kept[at : at + length])].append((file, at))
    repeated = sorted(place for found in places.values() if len(found) > 1 for place in found[1:])
    return sum((file, at - 1) not in repeated for file, at in repeated)


def steps() -> tuple[CallPath, CallPath]:
    """Return the paths of a step that answers with text and of one that calls a tool, in warmed-up episodes."""
    import envsdk
    from envsdk import Env, Message, ToolCall, ToolEnv, Turn, tool

    def start(self: Env) -> Turn:
        return Turn("Begin.")

    def respond(self: Env, reply: Message) -> Turn:
        return Turn("Go on.")

    @tool
    def add(self: ToolEnv, left: int, right: int) -> int:  # noqa: D417 (tools have no self)
        """Add two numbers.

        Args:
            left: A number.
            right: Another number.
        """
        return left + right

    kinds = (
        type("Plain", (Env,), {"start": start, "respond": respond}),
        type("Tools", (ToolEnv,), {"start": start, "add": add}),
    )
    call = ToolCall(name="add", arguments={"left": 1, "right": 2})
    replies = Message(role="assistant", content="Well."), Message(role="assistant", tool_calls=(call,))
    paths: list[CallPath] = []
    for kind, reply in zip(kinds, replies, strict=True):
        env = kind(renderer="qwen3", tokenizer="embedded")
        env.reset(seed=0)
        action = envsdk.Action(env.renderer.reply(reply))
        for _ in range(3):
            env.step(action)
        paths.append(path_of(lambda env=env, action=action: env.step(action)))
    return paths[0], paths[1]


def main() -> None:
    """Print the table."""
    from envsdk import Renderer

    def is_method(name: str) -> bool:
        return not name.startswith("_") and callable(getattr(Renderer, name))

    files = [file for package in PACKAGES for file in sorted(package.rglob("*.py")) if "scaffold" not in file.parts]
    source = Source()
    for file in files:
        source.read(file)
    plain, tool = steps()
    folders = [folder for folder in (ROOT / "envsdk").iterdir() if folder.is_dir() and any(folder.rglob("*.py"))]
    rows: list[tuple[str, float | str, str]] = [
        ("lines of code", source.lines, "44,000"),
        ("functions per 100 lines of code", round(100 * len(source.functions) / source.lines, 1), "7.5"),
        ("median length of a function, in lines", statistics.median(source.functions), "at least 8"),
        ("files that a plain step crosses", len({file for file, *_ in plain.functions}), "14"),
        ("files that a tool step crosses", len({file for file, *_ in tool.functions}), "20"),
        ("different functions in a tool step", len(tool.functions), "140"),
        ("changes of package in a tool step", tool.changes, "50"),
        ("depth of the stack in a tool step", tool.depth, ""),
        ("folders in envsdk/", len(folders), "17"),
        ("class names that exist twice", sum(len(files) > 1 for files in source.classes.values()), "12"),
        ("public names", source.names, "400"),
        ("public methods of Renderer", sum(map(is_method, dir(Renderer))), "15"),
        ("stretches of six lines that are twice", duplicates(files), "8"),
    ]
    for name, value, limit in rows:
        print(f"{name:42} {value:>10,} {limit:>12}")


if __name__ == "__main__":
    main()
