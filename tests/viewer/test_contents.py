"""Search in the contents of episodes: whatever the bytes of a line are, and in any script."""

import json
import sys
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk.trajectories.records import write_jsonl
from envsdk.viewer._contents import FOLDED_TO_ASCII, Contents, find
from envsdk.viewer._episodes import episode
from envsdk.viewer._filters import parse_filter
from envsdk.viewer._resources import Resources
from envsdk.viewer._sources import Source

EPISODES = [envsdk.rollout("envsdk/Delegate-v1", "reference", seed=seed) for seed in range(2)]
TEXTS = st.text(st.sampled_from('abkKsSßſ\u212aﬁİıΣσς/\\"\n é😀\x00') | st.characters(exclude_categories=["Cs"]))


def line_of(text: str, *, escaped: bool) -> bytes:
    record = {"contexts": {"main": {"messages": [{"role": "user", "content": text}]}}, "steps": []}
    if escaped:
        return json.dumps(record).encode()
    return orjson.dumps(record)


@given(TEXTS, TEXTS.filter(bool), TEXTS, st.booleans(), st.sampled_from([str.lower, str.upper, str]))
def test_a_text_is_found_in_any_case_and_however_json_writes_it(before, wanted, after, escaped, change):
    contents = Contents(line_of(before + wanted + after, escaped=escaped))
    assert contents.has(wanted.casefold())
    if change(wanted).casefold() == wanted.casefold():
        assert contents.has(change(wanted).casefold())


@given(TEXTS, TEXTS)
def test_a_text_is_found_exactly_where_its_folded_form_is(text, wanted):
    place = find(text, wanted.casefold())
    assert (place is not None) == (wanted.casefold() in text.casefold())
    assert Contents(line_of(text, escaped=False)).has(wanted.casefold()) == (
        bool(text) and wanted.casefold() in text.casefold()
    )
    if place is not None and wanted:
        start, stop = place
        assert wanted.casefold() in text[start:stop].casefold()
        assert wanted.casefold() not in text[start + 1 : stop].casefold()


def test_all_characters_whose_folded_form_has_ascii_characters_are_known():
    for code in range(0x80, sys.maxunicode + 1):
        if not 0xD800 <= code < 0xE000 and any(map(str.isascii, chr(code).casefold())):
            assert chr(code).encode().startswith(FOLDED_TO_ASCII), hex(code)


def test_a_match_leads_to_the_step_and_leaves_out_what_a_context_began_with(tmp_path):
    write_jsonl(tmp_path / "trajectories.jsonl", EPISODES[:1])
    source = Source(tmp_path)
    source.refresh()
    ((_, match),) = source.search(parse_filter('text:"FOUNDED in"'))
    shown = episode(EPISODES[0])
    contexts = {context["name"]: context for context in shown["contexts"]}
    for hit in match.hits:
        message = contexts[hit.context]["messages"][hit.message]
        assert "founded in" in message["content"]
        assert not message["is_inherited"]
        assert hit.found == "founded in"
        assert shown["steps"][hit.step]["context"] == hit.context
        assert message["steps"] in ([], [hit.step])
    count = sum(
        "founded in" in message["content"] and not message["is_inherited"]
        for context in contexts.values()
        for message in context["messages"]
    )
    assert match.count == count


@pytest.mark.parametrize("name", ["trajectories.jsonl", "trajectories.jsonl.zst"])
def test_a_run_is_searched_from_any_row_on_and_damaged_lines_have_no_contents(tmp_path: Path, name: str):
    lines = [own.to_json() for own in EPISODES]
    data = b"\n".join([lines[0], b'{"founded in', lines[1], lines[0], b""])
    if name.endswith(".zst"):
        zstandard = pytest.importorskip("zstandard")
        data = zstandard.ZstdCompressor(write_checksum=True).compress(data)
    (tmp_path / name).write_bytes(data)
    source = Source(tmp_path)
    source.refresh()
    chosen, negated = parse_filter('text:"founded in"'), parse_filter('-text:"founded in"')
    for after in range(5):
        assert [row.line for row, match in source.search(chosen, after) if match] == [n for n in (1, 3, 4) if n > after]
        assert [row.line for row, match in source.search(negated, after) if match] == [n for n in (2,) if n > after]
    assert [row.line for row, match in source.search(parse_filter('text:"founded in" line>3')) if match] == [4]


def test_a_search_answers_in_parts_that_together_are_all(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "trajectories.jsonl", EPISODES * 3)
    source = Source(tmp_path)
    source.refresh()
    resources = Resources([source])
    whole = resources.search(0, "text:founded")
    assert (whole["more"], whole["searched"], len(whole["matches"])) == (False, 6, 6)
    monkeypatch.setattr("envsdk.viewer._resources._SEARCH_S", -1)
    found, searched, more = [], 0, True
    while more:
        part = resources.search(0, "text:founded", searched)
        found, searched, more = found + part["matches"], part["searched"], part["more"]
    assert found == whole["matches"]
