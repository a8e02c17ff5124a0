"""A real headless Chromium, and runs to look at, some of them damaged or hostile."""

import hashlib
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import envsdk
from envsdk import Env, Message, ToolEnv, Trajectory, Turn, get_renderer, tool
from envsdk.authoring._event_loops import run
from envsdk.images import Image, PlacedImage
from envsdk.messages import ImagePart, TextPart
from envsdk.rollouts import Rollouts, RunFolder
from envsdk.trajectories._media import MEDIA, write_images
from envsdk.trajectories.records import write_jsonl
from envsdk.viewer._resources import Resources
from envsdk.viewer._server import ViewerServer
from envsdk.viewer._sources import Source

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FIGURES: list[str] = []
HOSTILE = (
    "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
    "\x1b[31mred\u202egnp.exe<!--<|im_end|>"
)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if FIGURES:
        terminalreporter.section("figures of the page")
        for figure in FIGURES:
            terminalreporter.write_line(figure)


@pytest.fixture
def figure() -> Callable[[str], None]:
    return FIGURES.append


def stored(path: Path, env: str, policy: Any = "reference", *, seeds: range = range(2), **options: Any) -> Path:
    """Roll out a run folder, with the samples of its episodes."""
    rollouts = Rollouts(env, policy, seeds=seeds, group_size=2, env_options=options, out=path)

    async def play() -> list[Trajectory]:
        return [trajectory async for trajectory in rollouts]

    write_jsonl(path / "samples.jsonl", [sample for own in run(play()) for sample in own.samples()])
    return path


class Hostile(ToolEnv):
    """An environment whose texts attack whoever shows them."""

    @tool
    def lookup(self, text: str) -> str:
        """Look a text up."""
        return HOSTILE + text

    def start(self) -> Turn:
        return Turn(HOSTILE, system=HOSTILE, metrics={"<b>metric</b>": 1.0})

    def finish(self, reply: Message) -> Turn:
        return Turn(reward={"<i>fine</i>": 0.5}, terminated=True)

    def reference_reply(self) -> Message:
        if self.messages()[-1].role == "tool":
            return Message(role="assistant", content=HOSTILE, reasoning=HOSTILE)
        return Message.calling("lookup", {"text": HOSTILE, "<u>": HOSTILE}, reasoning=HOSTILE)


class Long(Env):
    """An episode of more than 100,000 tokens."""

    def start(self) -> Turn:
        self.replies = 0
        return Turn("Write about everything.", system="Write long texts.")

    def respond(self, reply: Message) -> Turn:
        self.replies += 1
        return Turn("And about something else. " * 30, reward=0.1, terminated=self.replies == 60)


def long_episode() -> Trajectory:
    tokenizer = envsdk.load_tokenizer("embedded")
    ids = np.append(tokenizer.encode("the men of some time would see " * 260), tokenizer.token_id("<|im_end|>"))
    env = Long(tokenizer="embedded", limits={"max_steps": 100})
    env.reset(seed=0)
    generator = np.random.default_rng(0)
    while env.trajectory is None:
        env.step(envsdk.Action(ids, -generator.exponential(0.7, len(ids))))
    return env.trajectory


def hostile_episode() -> Trajectory:
    trajectory = envsdk.rollout(Hostile(tokenizer="embedded"), "reference", seed=0)
    trajectory.id = HOSTILE
    trajectory.group_id = HOSTILE
    trajectory.env = HOSTILE
    trajectory.task = {HOSTILE: HOSTILE}
    return trajectory


def a_png(width: int, height: int) -> Image:
    """A red picture, without Pillow."""
    rows = (b"\0" + b"\xff\0\0" * width) * height
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
    return Image(hashlib.sha256(data).hexdigest(), "image/png", width, height, data)


def run_with_images(path: Path) -> Path:
    """A folder with an episode whose first message has two images, of which one file is damaged."""
    trajectory = envsdk.rollout(envsdk.make("envsdk/MathChat-v0"), "reference", seed=0)
    log, images = trajectory.contexts["main"], (a_png(300, 200), a_png(40, 90))
    index = next(at for at, message in enumerate(log.messages) if message.role == "user")
    text = TextPart(text=log.messages[index].content)
    log.messages[index] = Message(role="user", content=[ImagePart(images[0]), text, ImagePart(images[1])])
    log.media = [PlacedImage(images[0], 12, 40), PlacedImage(images[1], 45, 50)]
    path.mkdir()
    (path / "trajectories.jsonl").write_bytes(trajectory.to_json(embed_images=False) + b"\n")
    write_images(images, path / MEDIA)
    (path / MEDIA / images[1].file_name).write_bytes(b"<script>window.hacked = 1</script>")
    return path


def with_trained(samples: list[envsdk.Sample], **metadata: str) -> list[envsdk.Sample]:
    """Add what a trainer knows: its log-probabilities, and advantages."""
    for sample in samples:
        noise = np.random.default_rng(0).normal(size=len(sample))
        logprobs = np.zeros(len(sample)) if sample.logprobs is None else sample.logprobs
        sample.reference_logprobs = np.where(sample.mask, np.minimum(0, logprobs - abs(noise)), 0).astype(np.float32)
        sample.advantage = np.where(sample.mask, noise, 0).astype(np.float32)
        sample.metadata = {**sample.metadata, **metadata}
    return samples


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    made = {
        "strip": stored(root / "strip", "envsdk/MathChat-v0", history="strip"),
        "random": stored(root / "random", "envsdk/MathChat-v0", "random", history="strip"),
        "notes": stored(root / "notes", "envsdk/LongNotes-v1", history={"name": "summarize", "threshold": 2500}),
        "delegate": stored(root / "delegate", "envsdk/Delegate-v1"),
        "errand": stored(
            root / "errand", "envsdk/LongErrand-v0", seeds=range(1), context_tools=("fold", "branch", "note", "recall")
        ),
    }
    taught = envsdk.rollout("envsdk/MathChat-v0", "random", seed=0)
    for name, episode in {"hostile": hostile_episode(), "long": long_episode(), "taught": taught}.items():
        shutil.copytree(made["strip"], root / name)
        write_jsonl(root / name / "trajectories.jsonl", [episode])
        metadata = {"teacher": "keep"} if name == "taught" else {}
        write_jsonl(root / name / "samples.jsonl", with_trained(episode.samples(), **metadata))
        made[name] = root / name
    damaged = root / "damaged"
    damaged.mkdir()
    lines = (made["delegate"] / "trajectories.jsonl").read_bytes().splitlines()
    (damaged / "trajectories.jsonl").write_bytes(b"\n".join([lines[0], lines[1][:400], lines[2], b""]))
    return {**made, "damaged": damaged}


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves runs; returns the address of the page."""
    servers: list[ViewerServer] = []

    def start(*paths: Path, follow: bool = False) -> str:
        server = ViewerServer(Resources([Source(path) for path in paths], follow=follow))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.url

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt install chromium, or set CHROMIUM to its path")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Watched:
    """A page of the browser, with all that its console reported."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, url: str, wait: str) -> Any:
        """Open an address in a new document, and wait for an element."""
        self.page.goto("about:blank")
        self.page.goto(url)
        self.page.wait_for_selector(wait)
        return self.page


@pytest.fixture
def watched(browser: Any) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1360, "height": 840})
    own = Watched(context.new_page())
    yield own
    context.close()
    assert own.problems == []


@pytest.fixture
def illustrated(tmp_path: Path) -> Path:
    return run_with_images(tmp_path / "illustrated")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[RunFolder, list[Trajectory]]]:
    """A run in progress, and the episodes that it will have."""
    episodes = [envsdk.rollout(envsdk.make("envsdk/MathChat-v0"), "reference", seed=seed) for seed in range(4)]
    for number, trajectory in enumerate(episodes):
        trajectory.id = f"episode {number}"
    renderers = {"main": get_renderer("qwen3", "embedded")}
    with RunFolder.create(tmp_path / "run", {"env": "envsdk/MathChat-v0", "episodes": 4}, renderers) as folder:
        yield folder, episodes
