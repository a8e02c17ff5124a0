"""`envsdk import`: store what other tools logged as a run folder."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast

import typer

from .._untrusted import open_file, parse_json, read_file, read_lines
from .._visible import on_one_line
from ..authoring._event_loops import run
from ..errors import ConfigError, InvalidRecord
from ..rollouts._run_folder import RunFolder
from ..trajectories._samples import Sample
from ..trajectories.records import write_jsonl
from ._options import SPECIFICATION, TOKENIZER, renderer_from
from ._output import print_error, print_json, print_table, print_text
from ._summaries import TrajectoryReport, summary, table

if TYPE_CHECKING:
    from ..trainers.foreign._importer import ImportResult

_Format: TypeAlias = Literal["atif", "requests"]
_Log: TypeAlias = tuple[str, str | None, Any]
"""The place of a log, the id of its trajectory (None: the id in the log), and the log."""

_SHOWN = 10
"""The maximum number of notes that are printed."""


def import_(
    file: Annotated[Path, typer.Argument(help="A file, or a folder with such files at any depth.")],
    format: Annotated[_Format, typer.Option(help="ATIF documents (.json), or logged requests (.jsonl).")],
    renderer: Annotated[str, typer.Option(help="The renderer of the model that was logged. " + SPECIFICATION)],
    tokenizer: Annotated[str, typer.Option(help="Its tokenizer: " + TOKENIZER)],
    out: Annotated[Path, typer.Option(help="The run folder, which must be new.")],
    reward: Annotated[float | None, typer.Option(help="The reward of each episode, if the log has none.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="The temperature of requests that name none.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one line of JSON.")] = False,
) -> None:
    """Import what another tool logged with token ids, and print what was imported and what is missing.

    The folder gets trajectories.jsonl and samples.jsonl; and sft.jsonl, the supervised samples of replies without ids.
    Each line of logged requests has a request and a response, as from_requests takes them, and may have a session.
    """
    from ..gateway._imports import from_atif, from_requests

    made = renderer_from(renderer, tokenizer)
    try:
        logs = [*(atif_documents if format == "atif" else logged_sessions)(file)]
    except OSError as error:
        where = str(error.filename or file)
        raise ConfigError(f"{where!r} cannot be read: {error}. Expected a file or a folder of logs") from error
    imported: list[ImportResult] = []
    for where, name, log in logs:
        known: dict[str, Any] = {"id": name, "renderer": made, "reward": reward, "temperature": temperature}
        try:
            imported.append(from_atif(log, **known) if format == "atif" else from_requests(log, **known))
        except InvalidRecord as error:
            raise InvalidRecord(f"{where}: {error}") from error
    if not imported:
        raise ConfigError(f"{str(file)!r} has nothing to import: expected {_EXPECTED[format]}")
    trajectories = [one.trajectory for one in imported]
    samples = [sample for one in trajectories if one.is_trainable for sample in one.samples()]
    supervised = [sample for one in imported for sample in one.sft]
    configuration = {"imported": format, "file": str(file), "reward": reward, "temperature": temperature}
    with RunFolder.create(out, configuration, {"main": made}) as folder:
        for trajectory in trajectories:
            run(folder.append(trajectory))
        write_jsonl(out / "samples.jsonl", samples)
        write_jsonl(out / "sft.jsonl", supervised)
        folder.close(is_complete=True)
    _print(file, imported, TrajectoryReport.of(trajectories, samples), samples, supervised, as_json=as_json)
    if not as_json:
        print_text(
            f"wrote {len(trajectories)} trajectories, {len(samples)} samples and {len(supervised)} supervised samples "
            f"to {out}/"
        )


_EXPECTED: Mapping[_Format, str] = {
    "atif": "a .json file with an ATIF document, or a folder with some",
    "requests": "a .jsonl file with a logged request on each line, or a folder with some",
}


def atif_documents(path: Path) -> Iterator[_Log]:
    """Yield the documents of a file, or those of a folder; its other JSON files are not documents."""
    for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
        found = _parsed(read_file(file), str(file))
        first = next(iter(cast("list[Any]", found)), None) if isinstance(found, list) else found
        version = cast("dict[str, Any]", first).get("schema_version") if isinstance(first, dict) else None
        if not path.is_dir():
            yield str(file), None, found
        elif isinstance(version, str) and version.startswith("ATIF-"):
            yield str(file), file.relative_to(path).with_suffix("").as_posix(), found


def logged_sessions(path: Path) -> Iterator[_Log]:
    """Yield the records of each session: those of a file that have the same `session`."""
    for file in sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]:
        sessions: dict[str, list[Any]] = {}
        with open_file(file) as lines:
            for number, line in enumerate(read_lines(lines), start=1):
                if line.strip():
                    record = _parsed(line, f"{file}, line {number}")
                    session = cast("dict[str, Any]", record).get("session") if isinstance(record, dict) else None
                    sessions.setdefault("" if session is None else str(session), []).append(record)
        name = (file.relative_to(path) if path.is_dir() else Path(file.name)).with_suffix("").as_posix()
        for session, records in sessions.items():
            where = f"{file}, session {session!r}" if session else str(file)
            yield where, f"{name}/{session}" if session else name, records


def _parsed(text: bytes, where: str) -> Any:
    try:
        return parse_json(text)
    except InvalidRecord as error:
        raise InvalidRecord(f"{where}: {error}") from error


def _print(
    file: Path,
    imported: "list[ImportResult]",
    report: TrajectoryReport,
    samples: list[Sample],
    supervised: list[Sample],
    *,
    as_json: bool,
) -> None:
    notes = [(one.trajectory.id, note) for one in imported for note in one.notes]
    trained = sum(int(sample.mask.sum()) for sample in samples)
    if as_json:
        found = [{"id": name, **asdict(note)} for name, note in notes]
        print_json({"trained_tokens": trained, "sft_samples": len(supervised), "notes": found, **report.to_dict()})
        return
    print_table(table("What was imported", [((file.name,), report)], ("file",)))
    for line in summary(report):
        print_text(line)
    print_text(f"trained: {trained:,} tokens in {len(samples)} samples")
    if supervised:
        tokens = sum(int(sample.mask.sum()) for sample in supervised)
        print_text(f"supervised only: {tokens:,} tokens in {len(supervised)} samples, of replies without token ids")
    if notes:
        counts = Counter(note.kind for _, note in notes)
        print_text("notes: " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    for name, note in notes[:_SHOWN]:
        print_error(on_one_line(f"{name}: {note}"))
    if len(notes) > _SHOWN:
        print_error(f"... and {len(notes) - _SHOWN} more; --json prints all")
