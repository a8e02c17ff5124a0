"""The filter language: the cases hold for the page's TypeScript, too."""

import json
from pathlib import Path

import pytest

from envsdk.errors import ConfigError, InvalidFilter
from envsdk.viewer._contents import Contents
from envsdk.viewer._filters import parse_filter
from envsdk.viewer._rows import EpisodeRow

CASES = json.loads((Path(__file__).parent / "filter_cases.json").read_text())
ROWS = {
    name: EpisodeRow(**{**fields, "roles": tuple(fields["roles"]), "policy_versions": tuple(fields["policy_versions"])})
    for name, fields in CASES["rows"].items()
}
CONTENTS = {
    name: Contents(json.dumps({"contexts": {"main": {"messages": messages}}}, ensure_ascii=False).encode())
    for name, messages in CASES["contents"].items()
}


@pytest.mark.parametrize(("text", "matched"), CASES["cases"])
def test_a_filter_selects_the_rows_of_which_all_terms_hold(text, matched):
    chosen = parse_filter(text)
    nothing = Contents(b"")
    assert [name for name, row in ROWS.items() if chosen.matches(row, CONTENTS.get(name, nothing))] == matched


def test_a_filter_about_contents_does_not_ignore_them_where_they_are_not_given():
    with pytest.raises(ConfigError, match="about contents"):
        parse_filter("text:refund").matches(ROWS["summary"])


@pytest.mark.parametrize(("text", "position", "why"), CASES["errors"])
def test_a_wrong_filter_names_the_position_and_what_is_known(text, position, why):
    with pytest.raises(InvalidFilter, match=why) as caught:
        parse_filter(text)
    assert caught.value.position == position
    assert text[position : position + caught.value.length].strip()
