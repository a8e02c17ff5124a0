"""Measures what `fixed_base` can be relied on for, for each available chat template: the table in docs/templates.md.

    python tests/template_table.py FOLDER...           # measures and writes the table
    python tests/template_table.py --print FOLDER...   # only prints the rows of the templates in the folders

The templates are those that the tests find (`template_conversations.templates`), unless `--only` is given, and those in
the folders. The rows of other templates stay as they were. A test compares the rows of the tests' templates.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._grammars._probes import TOOLS as PROBE_TOOLS
from envsdk_renderers._grammars._proof import ReadingVerdict, stripped
from envsdk_renderers._templates._chat_template import TemplateFailed
from envsdk_renderers._templates._sentinels import PREVIOUS
from stand_in_tokenizers import options_of
from template_conversations import (
    TABLE,
    TOOLS,
    fixed_base,
    random_reply,
    stored_rows,
    templates,
    tokenizer_of,
    user,
    written_by_template,
)

from envsdk import Message
from envsdk.errors import EnvsdkError, TemplateUnsupported

DOCUMENT = Path(__file__).parents[1] / "docs" / "templates.md"
BEGIN = "<!-- What follows is generated. -->"
QUESTIONS = ("u", "", "x?", "Go!", "{}", "f(x)", "a\n", "So:", " ", "[1].")
"""Questions, the end of which a generation prompt may share a token with."""
LETTERS = {"exact": "=", "keeps": "k", "refused": "r", "not possible": "."}
REPLIES = 300
"""How many random replies with calls are written and read back for each template."""
_LONGEST_REASON = 110


@dataclass(frozen=True)
class Fuzzed:
    """How many random replies were read back, and what became of them."""

    right: int = 0
    with_error: int = 0
    not_written: int = 0
    cut: int = 0
    """How many replies were also cut somewhere; none of their calls was another one without an error."""


@dataclass(frozen=True)
class Row:
    """What was measured for one template."""

    name: str
    digest: str
    cells: Mapping[str, str]
    """For each kind of reply, a letter for each kind of next message: first without tools, then with tools."""
    reasoning: str = ""
    """What opens reasoning; empty if nothing does."""
    reading: str = "refused"
    detail: str = ""
    """Why the template is refused, its calls do not read back, or a tool's turn is refused."""
    strip: str = ""
    """`new`, or why a step under `strip` costs O(context)."""
    fuzzed: Fuzzed = Fuzzed()
    ms: int = 0
    """CPU time to measure turns and replies, and to prove the reading of replies."""

    @property
    def user(self) -> str:
        """A user's turn after a text: without tools, with tools."""
        text = self.cells.get("text", "r r")
        return text[0] + text[len(text) // 2 + 1]

    @property
    def tool(self) -> str:
        """With tools: a tool's turn after a call, several after two calls, and a user's turn after the next reply."""
        kinds = [self.cells.get(kind, "r r").partition(" ")[2] for kind in ("call", "two calls", "tool")]
        return "rrr" if len(kinds[0]) < 3 else kinds[0][1] + kinds[1][2] + kinds[2][0]

    @property
    def writes_calls(self) -> bool:
        """Whether the template writes calls."""
        return bool(set(self.cells.get("call", "")) - {".", " "})

    @property
    def is_read(self) -> bool:
        """Whether calls read back."""
        return self.reading.startswith("reads")


def row_of(
    name: str, text: str, make: Callable[[], FixedBase], *, replies: int = REPLIES, proves_history: bool = True
) -> Row:
    """Measure a template.

    Args:
        name: Its name.
        text: The template.
        make: Makes its renderer.
        replies: How many random replies are read back.
        proves_history: Whether to prove the rule for past reasoning.
    """
    digest, begun = hashlib.sha256(text.encode()).hexdigest()[:12], time.process_time()
    try:
        renderer = make()
        renderer.check_tools(())
    except EnvsdkError as error:
        return Row(name, digest, {}, detail=_short(str(error)))
    verdict, ms = _reading(renderer), round((time.process_time() - begun) * 1000)
    cells, refused = _cells(renderer)
    reading, detail, fuzzed = verdict.status, verdict.detail, Fuzzed()
    if verdict.status not in ("no calls", "refused"):
        fuzzed, wrong = fuzz(renderer, Random(name), replies)
        reading, detail = ("WRONG", wrong) if wrong else (reading, detail)
    openers = [edge.constant for edge in renderer._facts.grammar.edges if edge.target == "reasoning"]
    strip = _strip(renderer) if proves_history else ""
    detail = detail if reading in ("WRONG", "refused", "partly", "no calls") else ""
    opener = min((opener.strip() for opener in openers), key=len, default="")
    return Row(name, digest, cells, opener, reading, _short(detail or refused), _short(strip), fuzzed, ms)


def _strip(renderer: FixedBase) -> str:
    """Return what a step under `strip` costs, or why it costs O(context)."""
    rule = renderer.history_rule
    if rule is None:
        return renderer.history_problem
    return "new" if rule.has_calls or not renderer._facts.grammar.call else "new without calls"


def _reading(renderer: FixedBase) -> ReadingVerdict:
    """Return what can be relied on when replies are read; also refuse what an environment refuses."""
    verdict = renderer.reading
    if verdict.status in ("no calls", "refused"):
        return verdict
    try:
        renderer.check_tools(TOOLS)
    except TemplateUnsupported as error:
        return verdict if error.previous else ReadingVerdict("refused", str(error))  # a turn's refusal is in its cell
    return verdict


def _cells(renderer: FixedBase) -> tuple[dict[str, str], str]:
    """Return a letter for each pair of a reply and a next message, and why a turn is refused."""
    found = [renderer.verdicts(), renderer.verdicts(TOOLS)]
    cells = {
        kind: " ".join("".join(LETTERS[v.status] for v in verdicts if v.previous == kind) for verdicts in found)
        for kind in PREVIOUS
    }
    needed = {("text", "user"), ("call", "tool")}
    refused = [v.detail for v in found[1] if v.status == "refused" and (v.previous, v.following) in needed]
    return cells, refused[0] if refused else ""


def _short(text: str) -> str:
    text = " ".join(text.replace("Try other template_arguments", "").split())
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON].rstrip() + "…"


def fuzz(renderer: FixedBase, rng: Random, replies: int) -> tuple[Fuzzed, str]:
    """Write random replies with calls, whole and cut, and read them back; also as the template itself writes them.

    Returns:
        How many were right, and the first that was read as another reply without an error; empty if none was.
    """
    tails = {question: _tail(renderer, question) for question in QUESTIONS}
    counts: Counter[str] = Counter()
    for _ in range(replies):
        message, question = random_reply(rng, fewest_calls=1), rng.choice(QUESTIONS)
        tail = tails[question]
        wrong = _misread(renderer, question, tail, message)
        if wrong:
            return Fuzzed(**counts), wrong
        try:
            tokens = renderer.reply(message)
        except EnvsdkError:
            counts["not_written"] += 1
            continue
        read = renderer.parse(tokens, prompt_tail=tail, tools=PROBE_TOOLS)
        counts["with_error" if read.errors else "right"] += 1
        if not read.errors and _calls(read) != _calls(message):
            return Fuzzed(**counts), f"{renderer.tokenizer.decode(tokens)!r} reads back as {read.to_openai()}"
        cut = tokens[: rng.randint(0, len(tokens))]
        counts["cut"] += 1
        good = [call for call in renderer.parse(cut, prompt_tail=tail, tools=PROBE_TOOLS).tool_calls if not call.error]
        if not read.errors and [(c.name, c.arguments) for c in good] != _calls(message)[: len(good)]:
            return Fuzzed(**counts), f"cut, {renderer.tokenizer.decode(cut)!r} has other calls"
    return Fuzzed(**counts), ""


def _tail(renderer: FixedBase, question: str) -> Any:
    prompt = renderer.render([user(question)], generation_prompt=True)
    return prompt.tokens[prompt.starts[-1] :]


def _misread(renderer: FixedBase, question: str, tail: Any, message: Message) -> str:
    """Return how a reply that the template writes is read as another one without an error; empty if it is not."""
    try:
        tokens = written_by_template(renderer, [user(question)], message, PROBE_TOOLS)
    except TemplateFailed:
        return ""
    read = None if tokens is None else renderer.parse(tokens, prompt_tail=tail, tools=PROBE_TOOLS)
    if read is None or read.errors or stripped(read) == stripped(message):
        return ""
    return f"the template's own {renderer.tokenizer.decode(tokens)!r} reads back as {read.to_openai()}"


def _calls(message: Message) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in message.tool_calls]


# All templates.


def texts_of(folders: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Return the distinct chat templates in folders that are not among the known ones, by name."""
    known = set(known)
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.jinja")):
            text = path.read_bytes().decode()
            if text not in known and "messages" in text and ".cu" not in path.name:
                known.add(text)
                found[path.stem] = text
    return found


def measured(folders: Sequence[str], *, replies: int, only: bool = False) -> Iterable[Row]:
    """Yield the rows of the tests' templates, unless `only` those in folders are measured, and of the latter."""
    known = {} if only else templates()
    for name, text in known.items():
        tokenizer_of(name)
        yield row_of(name, text, lambda name=name: fixed_base(name), replies=replies)
    for name, text in texts_of(folders, known.values()).items():
        options = options_of(text)
        yield row_of(name, text, lambda options=options: FixedBase(**options), replies=replies)


def stored() -> list[Row]:
    """Return the rows that are written down."""
    rows = (dict(row, fuzzed=Fuzzed(**row["fuzzed"])) for row in stored_rows().values())
    return [Row(**row) for row in rows]


def write(rows: Iterable[Row]) -> None:
    """Write the rows, and the table for readers."""
    ordered = sorted(rows, key=lambda row: row.name.lower())
    lines = ",\n".join(json.dumps(asdict(row), ensure_ascii=False) for row in ordered)
    TABLE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    before = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[0]
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{document(ordered)}", encoding="utf-8")


# The table for readers.


def share(rows: Sequence[Row], holds: Callable[[Row], bool]) -> str:
    """Return of how many rows something holds."""
    count = sum(map(holds, rows))
    return f"{count} of {len(rows)} ({count / max(len(rows), 1):.0%})"


def is_usable(row: Row) -> bool:
    """Return whether users' turns can be relied on, with and without tools."""
    return set(row.user) <= {"=", "k"}


def has_tool_turns(row: Row) -> bool:
    """Return whether a call reads back, and its result can be relied on."""
    return row.is_read and row.tool[0] in "=k"


def document(rows: Sequence[Row]) -> str:
    """Return the counts and the table."""
    calling = [row for row in rows if row.writes_calls]
    usable = [row for row in rows if is_usable(row)]
    fuzzed = [row.fuzzed for row in rows]
    total = Fuzzed(*(sum(getattr(one, name) for one in fuzzed) for name in asdict(Fuzzed())))
    wrong = sum(row.reading == "WRONG" for row in rows)
    lines = [
        f"{len(rows)} distinct templates:",
        "",
        f"- users' turns can be relied on (`=` or `k`): {share(rows, is_usable)}",
        f"- the template writes calls: {share(rows, lambda row: row.writes_calls)}; of these,",
        f"    - calls read back: {share(calling, lambda row: row.is_read)}",
        f"    - calls read back, and the tool's turn can be relied on: {share(calling, has_tool_turns)}",
        f"- of the usable ones, reasoning is read: {share(usable, lambda row: bool(row.reasoning))}",
        f"- of the usable ones, a step under `strip` is O(new): {share(usable, lambda r: r.strip.startswith('new'))};"
        f" with calls, {share([r for r in usable if r.is_read], lambda row: row.strip == 'new')}",
        f"- random replies with calls, {max((sum((f.right, f.with_error, f.not_written)) for f in fuzzed), default=0)}"
        f" for each template whose calls read back: {total.right:,} right, {total.with_error:,} read with an error,"
        f" {total.not_written:,} refused since the template does not write them; {total.cut:,} were also cut somewhere",
        f"- templates of which a reply was read as another one without an error: {wrong}",
        "",
        "| template | user | tool | reasoning | reading | strip | ms |",
        "|---|---|---|---|---|---|---|",
        *map(_line, rows),
    ]
    return "\n".join([*lines, ""])


def _line(row: Row) -> str:
    reading = row.reading + (f": {row.detail}" if row.detail else "")
    cells = [row.name, f"`{row.user}`", f"`{row.tool}`", f"`{row.reasoning}`" if row.reasoning else ""]
    cells += [reading.replace("<", "&lt;"), row.strip.replace("<", "&lt;"), str(row.ms)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """Measure, and write or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--print", action="store_true", help="print the rows instead of writing them")
    parser.add_argument("--only", action="store_true", help="measure only the templates in the folders")
    parser.add_argument("--replies", type=int, default=REPLIES, help="random replies that are read back (%(default)s)")
    given = parser.parse_args()
    os.environ["ENVSDK_TEMPLATE_CACHE"] = "off"
    rows: dict[str, Row] = {}
    for row in measured(given.folders, replies=given.replies, only=given.print or given.only):
        rows[row.digest] = row
        print(_line(row) if given.print else row.name, file=sys.stdout if given.print else sys.stderr, flush=True)
    if given.print:
        print(document([*rows.values()]).partition("| template")[0])
        return
    names = {row.name for row in rows.values()}
    kept = [row for row in stored() if row.digest not in rows and row.name not in names]
    write([*kept, *rows.values()])


if __name__ == "__main__":
    main()
