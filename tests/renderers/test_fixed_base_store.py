"""Measurements are shared by the renderers of a process, and kept on disk for the next one."""

import ast
import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    shared._TURNS.clear()
    return tmp_path


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    render = ChatTemplate.render

    def counted(*args: object, **kwargs: object) -> str:
        texts.append(render(*args, **kwargs))
        return texts[-1]

    monkeypatch.setattr(ChatTemplate, "render", counted)
    return texts


def first_tool_step(name: str) -> list[int]:
    renderer = FixedBase(tokenizer_of(name), template=templates()[name], stop=end_token(name))
    renderer.check_tools(TOOLS)
    context = Context("main", "", renderer, Strip())
    context.open([user()], TOOLS)
    context.act(renderer.reply(called("search")), None)
    context.take_reply()
    context.observe([result(context.view[-1].tool_calls[0])])
    return context.prompt().tolist()


@pytest.mark.parametrize("name", ["qwen3", *(pytest.param(n, marks=pytest.mark.full) for n in ("glm4moe", "llama3_1"))])
def test_a_second_environment_renders_hardly_any_probe(name: str, folder: Path, rendered: list[str]) -> None:
    first = first_tool_step(name)
    measured = len(rendered)
    rendered.clear()
    assert first_tool_step(name) == first
    assert len(rendered) < 25 < measured / 8


def test_a_second_process_reads_what_the_first_one_measured(folder: Path, rendered: list[str]) -> None:
    first, measured = first_tool_step("qwen3"), len(rendered)
    shared._TURNS.clear()  # as in a new process
    rendered.clear()
    assert first_tool_step("qwen3") == first
    assert len(rendered) < measured / 5


def grammar_and_verdict(name: str) -> tuple[Grammar, ReadingVerdict]:
    renderer = FixedBase(tokenizer_of(name), template=templates()[name], stop=end_token(name))
    return renderer._facts.grammar, renderer.reading


@pytest.mark.parametrize("name", ["glm4moe", *(pytest.param(n, marks=pytest.mark.full) for n in ("qwen3", "lfm2_2_5"))])
def test_a_reply_grammar_on_disk_is_the_one_that_was_measured(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = grammar_and_verdict(name)
    shared._TURNS.clear()
    monkeypatch.setattr(facts, "measure", None)  # it is not measured again
    monkeypatch.setattr(facts, "prove", None)
    assert grammar_and_verdict(name) == first


def test_a_grammar_is_kept_for_one_template_vocabulary_and_set_of_options(folder: Path) -> None:
    name = "qwen3"
    text, end, tokenizer = templates()[name], end_token(name), tokenizer_of(name)
    variants: list[dict[str, Any]] = [
        {"template": text},
        {"template": text + " "},
        {"template": text, "date": "2026-01-01"},
        {"template": text, "template_arguments": {"enable_thinking": False}},
        {"template": text, "special_tokens": {"bos_token": "<|endoftext|>"}},
        {"template": text, "unsafe_content": True},
        {"template": text, "stop": [end, "<|endoftext|>"]},
    ]
    files = 0
    for options in variants:
        assert FixedBase(tokenizer, **{"stop": end, **options}).reading.status == "reads"
        files, before = len(list(folder.iterdir())), files
        assert files > before, options


def test_a_file_of_another_measurement_is_measured_again(folder: Path) -> None:
    first = first_tool_step("qwen3"), grammar_and_verdict("qwen3")
    contents = {file: file.read_bytes() for file in sorted(folder.iterdir())}
    for file, other in zip(contents, [*contents.values()][1:] + [*contents.values()][:1], strict=True):
        file.write_bytes(other)
    shared._TURNS.clear()
    assert (first_tool_step("qwen3"), grammar_and_verdict("qwen3")) == first
    assert {file: file.read_bytes() for file in sorted(folder.iterdir())} == contents


DAMAGES = (b"", b"{", b'{"hides": 3}', b"\xff\x00", b"null", b"[" * 100_000)


@pytest.mark.parametrize("damage", [DAMAGES[1], *(pytest.param(one, marks=pytest.mark.full) for one in DAMAGES)])
def test_a_damaged_file_is_measured_again(damage: bytes, folder: Path) -> None:
    first = first_tool_step("qwen3")
    contents = {file: file.read_bytes() for file in folder.iterdir()}
    assert contents
    for file in contents:
        file.write_bytes(damage)
    shared._TURNS.clear()
    assert first_tool_step("qwen3") == first
    assert {file: file.read_bytes() for file in folder.iterdir()} == contents


def test_no_text_of_an_episode_is_on_disk(folder: Path) -> None:
    first_tool_step("qwen3")
    assert not any(b"get_weather" in file.read_bytes() for file in folder.iterdir())


def test_the_variable_turns_the_files_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    first_tool_step("qwen3")
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
MEASURED_BY = (1, "2a23929fceee6128")


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
