"""Measurements are shared by the renderers of a process, and kept on disk for the next one."""

import ast
import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from envsdk_renderers import _fixed_base as fixed_base
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._grammars._grammar import Grammar
from envsdk_renderers._grammars._proof import ReadingVerdict
from envsdk_renderers._templates import _facts as facts
from envsdk_renderers._templates import _store as store
from envsdk_renderers._templates import _turns as shared
from envsdk_renderers._templates._chat_template import ChatTemplate
from envsdk_renderers._templates._store import VARIABLE, Store
from measures import lines_of_code
from pydantic import TypeAdapter
from template_conversations import TOOLS, called, end_token, result, templates, tokenizer_of, user

from envsdk.contexts._context import Context
from envsdk.history import Strip

NUMBER = TypeAdapter(int)
NAME = "qwen3"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    shared._TURNS.clear()  # as in a new process
    return tmp_path


def count_renderings(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    counted: list[None] = []
    render = ChatTemplate.render
    monkeypatch.setattr(ChatTemplate, "render", lambda *args, **given: counted.append(None) or render(*args, **given))
    return counted


def first_tool_step() -> list[int]:
    renderer = FixedBase(tokenizer_of(NAME), template=templates()[NAME], stop=end_token(NAME))
    renderer.check_tools(TOOLS)
    context = Context("main", "", renderer, Strip())
    context.open([user()], TOOLS)
    context.act(renderer.reply(called("search")), None)
    context.take_reply()
    context.observe([result(context.view[-1].tool_calls[0])])
    return context.prompt().tolist()


def grammar_and_verdict() -> tuple[Grammar, ReadingVerdict]:
    renderer = FixedBase(tokenizer_of(NAME), template=templates()[NAME], stop=end_token(NAME))
    return renderer._facts.grammar, renderer.reading


class First(NamedTuple):
    """What the first process measured of one template."""

    found: tuple[list[int], tuple[Grammar, ReadingVerdict]]
    renderings: int
    more_renderings: int
    """How many renderings a second environment takes."""
    files: dict[str, bytes]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> First:
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv(VARIABLE, str(folder))
        shared._TURNS.clear()
        counted = count_renderings(monkeypatch)
        step, renderings = first_tool_step(), len(counted)
        assert first_tool_step() == step
        more = len(counted) - renderings
        found = step, grammar_and_verdict()
    return First(found, renderings, more, {file.name: file.read_bytes() for file in folder.iterdir()})


@pytest.mark.full
def test_a_second_environment_renders_hardly_any_probe(first: First) -> None:
    assert first.more_renderings < 25 < first.renderings / 8


def test_a_second_process_reads_what_the_first_one_measured(
    first: First, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in first.files.items():
        (folder / name).write_bytes(content)
    monkeypatch.setattr(facts, "measure", None)  # it is not measured again
    monkeypatch.setattr(fixed_base, "prove", None)
    counted = count_renderings(monkeypatch)
    assert (first_tool_step(), grammar_and_verdict()) == first.found
    assert len(counted) < first.renderings / 5


def test_a_grammar_is_kept_for_one_template_vocabulary_and_set_of_options(folder: Path) -> None:
    text, end, files = templates()[NAME], end_token(NAME), 0
    variants: list[dict[str, Any]] = [
        {"template": text},
        {"template": text + " "},
        {"template": text, "date": "2026-01-01"},
        {"template": text, "template_arguments": {"enable_thinking": False}},
        {"template": text, "special_tokens": {"bos_token": "<|endoftext|>"}},
        {"template": text, "unsafe_content": True},
        {"template": text, "stop": [end, "<|endoftext|>"]},
    ]
    for options in variants:
        FixedBase(tokenizer_of(NAME), **{"stop": end, **options})
        files, before = len(list(folder.iterdir())), files
        assert files > before, options


DAMAGES = (b"", b"{", b'{"hides": 3}', b"\xff\x00", b"null", b"[" * 100_000)


@pytest.mark.parametrize("damage", [None, *(pytest.param(damage, marks=pytest.mark.full) for damage in DAMAGES)])
def test_a_file_that_is_damaged_or_of_another_measurement_is_measured_again(
    damage: bytes | None, first: First, folder: Path
) -> None:
    names = list(first.files)
    for index, (name, other) in enumerate(zip(names, [*names[1:], names[0]], strict=True)):
        wrong = first.files[other] if index % 2 else DAMAGES[index // 2 % len(DAMAGES)]
        (folder / name).write_bytes(wrong if damage is None else damage)
    assert (first_tool_step(), grammar_and_verdict()) == first.found
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == first.files


def test_no_text_of_an_episode_is_on_disk(first: First) -> None:
    assert b"get_weather" not in b"".join(first.files.values())


def test_the_variable_turns_the_files_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    assert Store("key").measured("name", NUMBER, lambda: 3) == 3
    assert not any(folder.iterdir())


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    monkeypatch.setenv(VARIABLE, str(file))
    assert Store("key").measured("name", NUMBER, lambda: 3) == 3


def test_what_raises_is_not_kept(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        Store("key").measured("name", NUMBER, lambda: 1 // 0)
    assert Store("key").measured("name", NUMBER, lambda: 4) == 4
    assert Store("key").measured("name", NUMBER, lambda: 5) == 4
    assert Store("other").measured("name", NUMBER, lambda: 5) == 5


def test_another_version_measures_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Store("key").measured("name", NUMBER, lambda: 4) == 4
    monkeypatch.setattr(store, "VERSION", store.VERSION + 1)
    assert Store("key").measured("name", NUMBER, lambda: 5) == 5


MEASURING = ("_agreement.py", "_choosing.py", "_fixed_base.py", "_grammars", "_templates")
"""What measures, in the package. Its comments and docstrings may change without a new version, its code may not."""
MEASURED_BY = (3, "d8cdff4374e9202d")


def lines_that_measure() -> list[str]:
    package = Path(store.__file__).parents[1]
    places = [package / name for name in MEASURING]
    found: list[str] = []
    for file in (file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*.py")))):
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        code = (lines[number - 1].strip() for number in sorted(lines_of_code(text, ast.parse(text))))
        found += [line for line in code if not line.startswith(("import ", "from "))]
    return found


def test_the_version_changes_with_the_code_that_measures() -> None:
    found = store.VERSION, hashlib.sha256("\n".join(lines_that_measure()).encode()).hexdigest()[:16]
    assert found == MEASURED_BY, "the code that measures has changed: raise VERSION, and write this pair into the test"


def test_concurrent_writers_leave_one_whole_file(folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: Store("key").measured("name", NUMBER, lambda: n), range(100)))
    (file,) = folder.iterdir()
    assert file.suffix == ".json"
    assert Store("key").measured("name", NUMBER, lambda: -1) in found
