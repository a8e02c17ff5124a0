"""Images for who looks at runs: the page's data, `envsdk show` and `play`, the terminal viewer and cards."""

import base64
import gzip
import hashlib
import http.client
import io
import json
import re
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from vision_models import picture, vision_renderer

import envsdk
from envsdk import Action, Env, Message, Turn
from envsdk.cli import app
from envsdk.cli._play import Game
from envsdk.errors import ImageError, UnknownName
from envsdk.messages import ImagePart, TextPart
from envsdk.rollouts import Rollouts
from envsdk.trajectories.records import write_jsonl
from envsdk.viewer import _notebook as notebook
from envsdk.viewer._episodes import image_facts, image_file
from envsdk.viewer._filters import parse_filter
from envsdk.viewer._page import write_page
from envsdk.viewer._ranges import Range
from envsdk.viewer._resources import Resources
from envsdk.viewer._server import ViewerServer
from envsdk.viewer._sources import Source
from envsdk.viewer._transcript import transcript
from envsdk.viewer.terminal._comparison import context_pairs
from envsdk.viewer.terminal._episode import ConversationLines
from envsdk.viewer.terminal._tokens import TokenColumns, TokenLines

FIRST, SECOND = picture(1, 200, 160), picture(2, 320, 200)
JPEG = io.BytesIO()
SECOND.data.pixels.save(JPEG, "JPEG")
PHOTO = ImagePart(JPEG.getvalue())


class Gallery(Env):
    """Shows a picture between two texts, then a photograph."""

    def start(self) -> Turn:
        self.is_asked = False
        return Turn([Message(role="user", content=[TextPart(text="This"), FIRST, TextPart(text="is what?")])])

    def respond(self, reply: Message) -> Turn:
        if self.is_asked:
            return Turn(reward=1.0, terminated=True)
        self.is_asked = True
        return Turn([Message(role="user", content=[PHOTO])])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    renderer = vision_renderer()
    reply = [*renderer.tokenizer.encode("Noise.").tolist(), renderer.stop_token_ids[0]]
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = {"renderer": renderer}
    Rollouts(Gallery, lambda prompt, **_: Action(reply), env_options=options, seeds=range(2), out=folder).run()
    return folder


def _first(run: Path) -> envsdk.Trajectory:
    source = Source(run)
    source.refresh()
    return source.trajectory(1)


# The data of front ends.


def test_an_episode_has_the_parts_of_its_messages_and_what_is_known_of_each_image(run):
    shown = Resources([Source(run)]).episode(0, 1)
    first, _, second, _ = shown["contexts"][0]["messages"]
    assert first["parts"] == [{"text": "This"}, {"image": FIRST.data.sha256}, {"text": "is what?"}]
    assert (first["content"], second["parts"]) == ("Thisis what?", [{"image": PHOTO.data.sha256}])
    assert shown["contexts"][0]["messages"][1]["parts"] is None
    renderer = vision_renderer()
    assert shown["images"] == {
        part.data.sha256: {
            "media_type": part.data.media_type,
            "width": part.data.width,
            "height": part.data.height,
            "file": part.data.file_name,
            "tokens": renderer.vision.count(part.data),
        }
        for part in (FIRST, PHOTO)
    }


def test_the_tokens_of_a_context_have_the_ranges_of_its_images(run):
    columns = Resources([Source(run)]).tokens(0, 1, "main")
    assert [sha256 for *_, sha256 in columns["images"]] == [FIRST.data.sha256, PHOTO.data.sha256]
    (pad,) = (int(id_) for id_, text in columns["texts"].items() if text == "<|image_pad|>")
    inside = {at for start, stop, _ in columns["images"] for at in range(start, stop)}
    assert {at for at, id_ in enumerate(columns["ids"]) if id_ == pad} == inside


@pytest.fixture(scope="module")
def get(run):
    with ViewerServer(Resources([Source(run)])) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()

        def ask(query: str) -> tuple[int, http.client.HTTPMessage, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
            connection.request("GET", f"/api/image?{query}")
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            return answer.status, answer.headers, body

        yield ask
        server.shutdown()


@pytest.mark.parametrize("part", [FIRST, PHOTO], ids=["png", "jpeg"])
def test_an_image_is_served_by_its_hash_with_its_type_and_nothing_else_is_read_from_it(get, part):
    status, headers, body = get(f"run=0&line=1&sha256={part.data.sha256}")
    assert (status, headers["Content-Type"], body) == (200, part.data.media_type, part.data.data)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"


@pytest.mark.parametrize(
    "query",
    [
        "run=0&line=1",
        f"run=0&line=1&sha256={'0' * 64}",
        "run=0&line=1&sha256=../run.json",
        "run=0&line=1&sha256=%2e%2e%2frun.json",
        f"run=0&line=1&sha256={FIRST.data.file_name}",
        f"run=7&line=1&sha256={FIRST.data.sha256}",
        f"run=0&line=99&sha256={FIRST.data.sha256}",
    ],
)
def test_only_the_images_of_an_episode_are_served(get, query):
    status, headers, body = get(query)
    assert (status, headers["Content-Type"]) == (404, "application/json")
    assert "error" in json.loads(body)


def recorded(data: bytes, media: Path) -> envsdk.Trajectory:
    """An episode whose record calls some bytes a PNG."""
    renderer = vision_renderer()
    trajectory = envsdk.rollout(Gallery(renderer=renderer), lambda prompt, **_: Action(renderer.stop_token_ids), seed=0)
    line = trajectory.to_json(embed_images=False)
    sha256 = hashlib.sha256(data).hexdigest()
    media.mkdir()
    (media / f"{sha256}.png").write_bytes(data)
    return envsdk.Trajectory.from_json(line.replace(FIRST.data.sha256.encode(), sha256.encode()), media=media)


def test_a_file_that_is_not_of_its_format_is_refused_even_if_it_has_its_hash(tmp_path):
    html = b"<!doctype html><script>alert(1)</script>"
    trajectory = recorded(html, tmp_path / "media")
    with pytest.raises(ImageError, match="is not image/png"):
        image_file(trajectory, hashlib.sha256(html).hexdigest())


def test_a_missing_or_changed_file_is_an_error(tmp_path):
    trajectory = recorded(FIRST.data.data, tmp_path / "media")
    (tmp_path / "media" / FIRST.data.file_name).write_bytes(SECOND.data.data)
    with pytest.raises(ImageError, match="was changed"):
        image_file(trajectory, FIRST.data.sha256)
    with pytest.raises(UnknownName, match="has no image"):
        image_file(trajectory, "0" * 64)


def test_a_page_with_data_has_each_image_once_as_a_data_url(run, tmp_path):
    write_page(tmp_path / "page.html", Resources([Source(run)]), parse_filter(""))
    images = [(name, data["url"]) for name, data in contents_of(tmp_path / "page.html") if name.startswith("image/")]
    assert sorted(images) == sorted((f"image/{part.data.sha256}", part.data.url) for part in (FIRST, PHOTO))


# Text.


def test_a_transcript_names_each_image_between_the_texts(run):
    entry = next(entry for entry in transcript(_first(run)) if entry.kind == "user")
    tokens = vision_renderer().vision.count(FIRST.data)
    assert [part.text for part in entry.parts] == [
        "This",
        f"[image 200 x 160 PNG, {tokens} tokens, {FIRST.data.sha256[:12]}]",
        "is what?",
    ]
    assert [part.sha256 for part in entry.parts] == ["", FIRST.data.sha256, ""]
    lines = ConversationLines([entry], width=100)
    assert any(lines.line(index, 100).plain.startswith("[image 200 x 160 PNG, ") for index in range(len(lines)))


def test_show_names_the_file_and_writes_no_codes_to_a_pipe(run, tmp_path):
    write_jsonl(tmp_path / "trajectories.jsonl", [_first(run)])  # with its bytes
    assert f", {FIRST.data.sha256[:12]}]" in CliRunner().invoke(app, ["show", str(tmp_path)]).output
    result = CliRunner().invoke(app, ["show", str(run)])
    assert result.exit_code == 0, result.output
    assert f"{FIRST.data.sha256[:12]}: {run / 'media' / FIRST.data.file_name}]" in result.output
    assert "\x1b" not in result.output


@pytest.mark.parametrize(("data", "why"), [(None, "is missing"), (b"\x89PNG", "was changed: it has another SHA-256")])
def test_show_marks_a_file_that_is_missing_or_was_changed(run, tmp_path, data, why):
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run" / "media" / FIRST.data.file_name
    file.unlink() if data is None else file.write_bytes(data)
    result = CliRunner().invoke(app, ["show", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert f"{FIRST.data.sha256[:12]}: {file} (the file {why})]" in result.output


def test_an_episode_without_its_images_is_viewed_with_their_names(run, monkeypatch):
    monkeypatch.setattr(notebook.webbrowser, "open", lambda url: None)
    whole = _first(run)
    bare = envsdk.Trajectory.from_json(whole.to_json(embed_images=False))
    for trajectory, has_images in ((whole, True), (bare, False)):
        found = contents_of(trajectory.view().path)
        (shown,) = (data["images"] for name, data in found if name == "episode/0/1")
        assert shown[FIRST.data.sha256]["width"] == 200
        urls = [data.get("url") for name, data in found if name.startswith("image/")]
        assert sorted(filter(None, urls)) == (sorted([FIRST.data.url, PHOTO.data.url]) if has_images else [])


def contents_of(page: Path) -> list[tuple[str, Any]]:
    """What a page with data holds, by name."""
    found = re.findall(rb'data-name="([^"]*)">([^<]*)</script>', page.read_bytes())
    return [
        (base64.b64decode(name).decode(), json.loads(gzip.decompress(base64.b64decode(data)))) for name, data in found
    ]


def test_play_names_images(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Noise.\nStill noise.\n"))
    trajectory = Game(Gallery(renderer=vision_renderer())).play(0)
    assert trajectory.reward == 1
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[image")]
    assert [line.split(", ")[0] for line in shown] == ["[image 200 x 160 PNG", "[image 320 x 200 JPEG"]


def test_cards_of_notebooks_name_images(run):
    trajectory = _first(run)
    assert "&lt;Image 200x160 image/png " in trajectory._repr_html_()
    assert "&lt;Image 320x200 image/jpeg " in trajectory.samples()[0]._repr_html_()


def test_episodes_with_different_images_differ(run):
    shown = Resources([Source(run)]).episode(0, 1)
    other = json.loads(json.dumps(shown).replace(PHOTO.data.sha256, "0" * 64))
    assert context_pairs(shown, shown)[0].different == ()
    assert context_pairs(shown, other)[0].different == (2,)


def test_the_lines_of_tokens_fold_the_placeholders_of_an_image(run):
    resources, facts = Resources([Source(run)]), image_facts(_first(run))
    tokens = resources.tokens(0, 1, "main")
    columns, count = TokenColumns(tokens), len(tokens["ids"])
    for ranges in ([Range("main", 0, count)], [Range("main", 0, 9), Range("main", 9, count)]):
        lines = TokenLines(ranges, {"main": columns}, facts)
        texts = [lines.line(index, 100).plain for index in range(len(lines))]
        images = resources.tokens(0, 1, "main")["images"]
        assert len(lines) == count - sum(stop - start - 1 for start, stop, _ in images)
        for start, stop, sha256 in images:
            at = lines.line_of(start)
            size = f"{facts[sha256]['width']} x {facts[sha256]['height']}"
            assert texts[at].split(maxsplit=1)[0] == str(start)
            assert f"[image {size} " in texts[at] and f"{stop - start} tokens, {sha256[:12]}]" in texts[at]
            assert lines.line_of(stop - 1) == at and lines.line_of(stop) == at + 1
            run_after, position = lines.place(at + 1)
            assert (run_after.context, position) == ("main", stop)
        places = [lines.place(index)[1] for index in range(len(lines))]
        assert places == sorted({*range(count)} - {at for start, stop, _ in images for at in range(start + 1, stop)})
    steps = [lines.next_step(-1, 1)]
    while (following := lines.next_step(steps[-1], 1)) != steps[-1]:
        steps.append(following)
    assert {columns.at("steps", lines.place(at)[1]) for at in steps} == set(range(len(_first(run).steps)))
