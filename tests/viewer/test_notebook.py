"""What notebooks show of trajectories, samples, trees and rollouts, and `trajectory.view()`."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from html_elements import Elements
from nbclient import NotebookClient
from terminal_attacks import ATTACKS, obeyed

import envsdk
from envsdk._cards import mask_bar
from envsdk.messages import Message
from envsdk.rollouts import Rollouts
from envsdk.viewer import _notebook as notebook
from envsdk.viewer._notebook import TrajectoryPage
from envsdk.viewer._page import PAGE
from envsdk.viewer._sources import Source

EPISODE = envsdk.rollout("envsdk/Delegate-v1", "reference", seed=0)
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&</details></div>"


def rollouts() -> Rollouts:
    found = Rollouts("envsdk/MathChat-v0", "reference", seeds=range(2), group_size=1)
    found.run()
    return found


CARDS: dict[str, Any] = {
    "trajectory": EPISODE,
    "sample": EPISODE.samples()[0],
    "tree": envsdk.tree_batch(EPISODE),
    "rollouts": rollouts(),
}


class Tags(Elements):
    """The tags and attributes of HTML, and whether each tag is closed."""

    def __init__(self, html: str) -> None:
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        super().__init__(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        super().handle_starttag(tag, attrs)


def test_the_card_of_an_episode_says_once_how_it_ended():
    assert EPISODE.status == EPISODE.stop_reason == "terminated"
    assert EPISODE._repr_html_().count("terminated") == 1


@pytest.mark.parametrize("name", CARDS)
def test_a_card_is_small_and_needs_nothing_from_elsewhere(name):
    html = CARDS[name]._repr_html_()
    found = Tags(html)
    assert not found.open and not found.tags & {"script", "style", "link", "img", "iframe"}
    drawn = {"role", "aria-label", "viewbox", "preserveaspectratio", "x", "width", "height", "opacity"}
    assert found.attributes <= {"style", *drawn}
    assert len(html) < 60_000
    assert "url(" not in html and "background:#" not in html and "color:#" not in html.replace("solid #", "")


def test_a_card_has_the_figures_of_what_it_shows():
    text = re.sub("<[^>]*>", "", EPISODE._repr_html_())
    assert EPISODE.id in text and f"steps {len(EPISODE.steps)}" in text and f"{EPISODE.sampled_tokens:,} tokens" in text
    sample, tree = CARDS["sample"], CARDS["tree"]
    assert f"{int(sample.mask.sum()):,} of {len(sample):,} tokens are trained" in sample._repr_html_()
    assert f"{tree.ratio:.2f}" in tree._repr_html_() and sample.trajectory_id in tree._repr_html_()
    assert "2 of 2" in CARDS["rollouts"]._repr_html_()


def test_rollouts_that_did_not_begin_have_a_card():
    card = Rollouts("envsdk/MathChat-v0", "reference", seeds=range(3), group_size=1)._repr_html_()
    assert "0 of 3" in card and "nan" not in card


def test_nothing_of_a_record_is_markup():
    text = MARKUP + "".join(attack for attack in ATTACKS if attack != "\ud800")
    log = EPISODE.contexts["main"]
    messages = [Message(role="user", content=text)] * 2
    contexts = {**EPISODE.contexts, "main": replace(log, messages=messages, role=text)}
    hostile = replace(EPISODE, id=text, error=text, contexts=contexts)
    sample = replace(EPISODE.samples()[0], trajectory_id=text, context=text, stop_reason=text)
    tree = CARDS["tree"]
    named = replace(tree, samples=[replace(one, trajectory_id=text, context=text) for one in tree.samples])
    for shown in (hostile, sample, named):
        html = shown._repr_html_()
        found = Tags(html)
        assert not found.tags & {"script", "img"} and not found.open
        assert "&lt;script&gt;" in html
        assert not obeyed(html)


def test_long_episodes_are_shortened_in_their_card():
    log = EPISODE.contexts["main"]
    messages = [Message(role="user", content="x" * 5000)] * 100
    html = replace(EPISODE, contexts={**EPISODE.contexts, "main": replace(log, messages=messages)})._repr_html_()
    assert len(html) < 60_000
    assert "more characters)" in html and ".view() shows everything" in html


@pytest.mark.parametrize("mask", [[], [True], [False] * 3, [False] * 700 + [True] * 300])
def test_the_bar_shows_where_tokens_are_trained(mask):
    bar = mask_bar(np.array(mask, dtype=np.bool_))
    shown = [(int(x), float(opacity)) for x, opacity in re.findall(r"x='(\d+)'.*?opacity='([\d.]+)'", bar)]
    assert shown == ([] if not any(mask) else [(x, 1.0) for x in range(140, 200)] if len(mask) > 1 else [(0, 1.0)])


def test_view_opens_the_page_of_the_episode_in_the_browser(monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(notebook.webbrowser, "open", opened.append)
    page = EPISODE.view()
    assert isinstance(page, TrajectoryPage)
    assert opened == [page.url] and page.url.startswith("file:///")
    assert page.path.stat().st_size > PAGE.stat().st_size
    found = Tags(page._repr_html_())
    assert found.tags == {"iframe"} and "sandbox" in found.attributes


def test_view_names_the_tokens_of_the_tokenizer_that_the_episode_has():
    other = replace(EPISODE, tokenizer="another")
    embedded = envsdk.load_tokenizer("embedded")
    source = Source(Path(__file__), {embedded.fingerprint: embedded})
    assert source.tokenizer_of(EPISODE, "main") is embedded
    assert source.tokenizer_of(other, "main") is None


def test_a_page_that_is_too_large_for_a_frame_is_named_instead(tmp_path):
    (tmp_path / "large.html").write_bytes(b"x" * 2_000_000)
    assert "large.html" in TrajectoryPage(tmp_path / "large.html")._repr_html_()


@pytest.mark.full
def test_a_notebook_displays_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path / folder))
    cells = [
        "import envsdk\nt = envsdk.rollout('envsdk/GuessNumber-v1', 'reference', seed=0)\nt",
        "t.samples()[0]",
        "envsdk.tree_batch(t)",
        "t.view()",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(book, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}, timeout=600).execute()
    shown = [cell.outputs[-1].data["text/html"] for cell in book.cells]
    assert [one.partition(" ")[0] for one in shown] == ["<div", "<div", "<div", "<iframe"]
    assert "Trajectory envsdk/GuessNumber-v1/0" in shown[0] and "tokens are trained" in shown[1]
