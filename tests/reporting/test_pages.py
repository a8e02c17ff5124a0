"""HTML and Markdown show all figures, the terminal the main ones; what a record holds is only text in them."""

import html
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from html_elements import Elements
from made_runs import HOSTILE, episode, episodes, store
from typer.testing import CliRunner

from envsdk.cli import app
from envsdk.errors import MissingPackage
from envsdk.trajectories.records import write_jsonl
from envsdk.viewer.reporting import RunReport, as_html, as_markdown, report, write_plots
from envsdk.viewer.reporting._sections import Histogram, Intervals, sections_of

ELEMENT = re.compile(
    "html|head|meta|title|style|body|header|h1|nav|a|main|section|h2|p|div|table|thead|tbody|tr|th|td|code|bdi|figure|"
    "figcaption|svg|text|rect|line|circle"
)
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\ud800-\udfff]")


class Page(Elements):
    """Reads a page, and checks that each element is closed and known."""

    def __init__(self, text: str) -> None:
        self.links: list[str] = []
        self.texts: list[str] = []
        super().__init__(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert ELEMENT.fullmatch(tag), tag
        for name, value in attrs:
            assert not name.startswith("on") and name not in ("src", "srcset", "action", "style"), name
            if name == "href":
                self.links.append(value or "")
        super().handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def found(tmp_path: Path) -> RunReport:
    made = episodes([[{"correct": 1.0, "style": 0.25}], [{"correct": 0.0}], ["KeyError: 'a'"], [None]])
    other = episodes([[{"correct": 0.5}], [{"correct": 1.0}], [0.5], [0.25]])
    return report(store(tmp_path / "first", made), store(tmp_path / "second", other))


def test_the_charts_of_several_runs_have_the_same_scales(tmp_path: Path):
    made = [[[0.0], [1.0]], [[2.0], [4.0], [4.0]], [[3.0], [3.0], [3.0]]]
    paths = [store(tmp_path / name, episodes(own)) for name, own in zip("abc", made, strict=True)]
    found = report(*paths)
    rewards = [run.reward for run in found.runs if run.reward is not None]
    assert len({own.edges for own in rewards}) == 1
    assert [sum(own.counts) for own in rewards] == [2, 3, 3]
    charts = [block for one in sections_of(found) for block in one.blocks if isinstance(block, Histogram)]
    assert {(one.low, one.high, one.share) for one in charts if "reward" in one.title} == {(0, 4, 1)}
    first, second = (block for one in sections_of(found) for block in one.blocks if isinstance(block, Intervals))
    assert first.scales == second.scales
    ends = [
        abs(end)
        for own in found.comparisons
        for one in own.differences
        if one.quantity == "reward"
        for end in (one.difference, one.low, one.high)
        if end is not None
    ]
    assert first.scales["reward"] == max(ends)
    drawn = re.findall(
        r'<rect class="bar[^"]*" x="([0-9.]+)" y="([0-9.]+)" width="[0-9.]+" height="([0-9.]+)"', as_html(found)
    )
    assert max(float(height) for _, _, height in drawn) == 120


@pytest.fixture
def hostile(tmp_path: Path) -> RunReport:
    made = []
    for number, text in enumerate(HOSTILE):
        safe = text.encode("utf-8", "replace").decode()
        own = replace(episode(safe, number, {safe: float(number)}), task=safe, env=safe)
        made.append(replace(own, id=f"{number}{safe}", history={"name": safe, "option": safe}))
        made.append(episode(f"failed {safe}", number, f"{safe}: {safe}"))
    write_jsonl(tmp_path / "trajectories.jsonl", made)
    with (tmp_path / "trajectories.jsonl").open("ab") as file:
        file.write(b'{"\xf0<script>\n')
    return report(tmp_path, tmp_path)


def test_the_page_is_well_formed_loads_nothing_and_leads_only_to_the_viewer(found: RunReport):
    page = as_html(found)
    read = Page(page)
    assert all(link.startswith(("#section-", "http://127.0.0.1:8123/#/run/")) for link in read.links)
    assert "default-src 'none'" in page
    assert not re.search(r"url\(|@import|<script|<link|<iframe|<img", page)
    anchors = {link for link in read.links if link.startswith("#")}
    assert anchors == {f"#{name}" for name in re.findall(r'<h2 id="([^"]+)"', page)}


def test_all_pages_have_the_same_figures(found: RunReport):
    page = "\n".join(Page(as_html(found)).texts)
    for text in (html.unescape(as_markdown(found)), page):
        for figure in ("0.625", "KeyError: 'a'", "second minus first", "correct", "2 paired", "terminated", "t0#0"):
            assert figure in text, figure


def test_what_was_not_scored_is_no_zero_in_any_page(tmp_path: Path):
    found = report(store(tmp_path / "run", episodes([[None], [None]])))
    for text in (html.unescape(as_markdown(found)), "\n".join(Page(as_html(found)).texts)):
        assert "no episode was scored" in text.lower()
        assert "Rewards" not in text


def test_hostile_texts_have_no_effect_in_a_page(hostile: RunReport):
    page = as_html(hostile)
    read = Page(page)
    assert not CONTROLS.search(page)
    assert all(link.startswith(("#section-", "http://127.0.0.1:8123/#/run/")) for link in read.links)
    assert any("<script>alert(1)</script>" in text for text in read.texts)
    page.encode("utf-8")


def test_hostile_texts_have_no_effect_in_a_terminal(hostile: RunReport):
    path = hostile.runs[0].path
    result = CliRunner().invoke(app, ["report", path, path])
    assert result.exit_code == 0, result.output
    assert not CONTROLS.search(result.output)
    assert r"\x1b[2J" in result.output


def test_hostile_texts_have_no_effect_in_markdown(hostile: RunReport):
    text = as_markdown(hostile)
    assert not CONTROLS.search(text)
    assert not re.search(r"<(?!/?code>)", text)
    assert not re.search(r"[`\[\]*~$@\\]|_|://|www\.", text)
    heads = 0
    for line in text.splitlines():
        if line.startswith("|"):
            heads = heads or line.count("|")
            assert line.count("|") == heads, line
        else:
            heads = 0
    assert "<script>alert(1)</script>" in html.unescape(text)


@pytest.mark.parametrize(
    "rewards",
    [[], [["Oops: no"]], [[0.5]], [[None]], [[1e300], [-1e300]]],
    ids=["empty", "failed", "one", "none", "huge"],
)
def test_extreme_runs_have_pages(tmp_path: Path, rewards: list):
    folder = store(tmp_path / "run", episodes(rewards))
    for found in (report(folder), report(folder, folder)):
        Page(as_html(found))
        assert as_markdown(found).startswith("# Report")
        json.dumps(found.to_dict(), allow_nan=False)


def test_the_command_prints_the_main_figures_of_each_run_and_the_comparison(tmp_path: Path):
    paths = [store(tmp_path / name, episodes(own)) for name, own in {"a": [[1.0], [0.0]], "b": [[1.0], [1.0]]}.items()]
    printed = CliRunner().invoke(app, ["report", *map(str, paths)]).output
    assert "Summary" in printed and "b compared with a" in printed
    assert "Lengths" not in printed


def test_the_command_prints_text_and_writes_files(tmp_path: Path):
    folder = store(tmp_path / "run", episodes([[1.0], [0.0]]))
    arguments = ["report", folder, "--html", tmp_path / "a.html", "--markdown", tmp_path / "a.md"]
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    assert "mean reward" in result.output and "wrote" in result.output
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == as_html(report(folder))
    assert (tmp_path / "a.md").read_text(encoding="utf-8") == as_markdown(report(folder))
    printed = json.loads(CliRunner().invoke(app, ["report", str(folder), "--json"]).output)
    assert printed["runs"][0]["mean_reward"]["mean"] == 0.5
    assert printed == json.loads(json.dumps(report(folder).to_dict()))


def test_plots_without_matplotlib_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = report(store(tmp_path / "run", episodes([[1.0]])))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackage, match=r"matplotlib, which is not installed: pip install 'envsdk\[report\]'"):
        write_plots(found, tmp_path / "plots")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--plots", str(tmp_path / "plots")])
    assert isinstance(result.exception, MissingPackage)
    assert not (tmp_path / "plots").exists()


@pytest.mark.parametrize(("tasks", "is_noted"), [(1, False), (2, True), (19, True), (20, False)])
def test_an_interval_over_few_tasks_is_noted_as_too_narrow(tmp_path: Path, tasks: int, is_noted: bool):
    found = report(store(tmp_path / "run", episodes([[float(task % 2)] for task in range(tasks)])))
    assert ("fewer than 20 tasks" in as_markdown(found)) == is_noted


def test_a_run_that_was_interrupted_is_noted(tmp_path: Path):
    folder = store(tmp_path / "run", episodes([[1.0]]), episodes=3)
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"is_complete": true', '"is_complete": false'))
    assert "The run is not complete. It has 1 of 3 episodes." in as_markdown(report(folder))
