"""The environments with images: GridScreen, CropZoom and ChartReader."""

import hashlib
import sys
from typing import Any

import numpy as np
import pytest
from envsdk_environments._chart_reader import ChartReader, draw_plot
from envsdk_environments._crop_zoom import SHOWN, CropZoom
from envsdk_environments._grid_screen import COLUMNS, HEIGHT, ROWS, WIDTH, GridScreen
from envsdk_environments._pictures import COLORS, NAMES, Picture, Point
from hypothesis import given, settings
from hypothesis import strategies as st

import envsdk
from envsdk import Message
from envsdk.authoring import EMBEDDED_VISION
from envsdk.errors import ConfigError, MissingPackage, TaskError
from envsdk.images import Image

ENVS = [GridScreen, CropZoom, ChartReader]
WITH_TOOLS = [GridScreen, CropZoom]
HISTORIES: list[Any] = [
    "keep",
    "strip",
    {"name": "compact", "every": 1, "keep_images": 1},
    {"name": "budget", "max_tokens": 580, "order": ["images", "thinking", "oldest"], "keep_images": 1},
]


def chart(**options: Any) -> ChartReader:
    pytest.importorskip("matplotlib")
    return ChartReader(**options)


def made(env: Any, **options: Any) -> Any:
    return chart(**options) if env is ChartReader else env(**options)


def call(env: Any, name: str, **arguments: int) -> Any:
    return env.step(env.renderer.reply(Message.calling(name, arguments)))


def drawn_at(image: Image, x: int, y: int) -> tuple[int, ...]:
    return tuple(int(value) for value in np.asarray(image.pixels)[y, x])


def seen(env: Any) -> list[Image]:
    return [image for message in env.messages() for image in message.images]


# All of them.


@pytest.mark.parametrize("history", HISTORIES, ids=str)
@pytest.mark.parametrize("env", ENVS)
def test_the_reference_earns_the_most_under_every_history_and_the_null_policy_the_least(env: Any, history: Any):
    assert envsdk.rollout(made(env, history=history), "reference", seed=0).reward == pytest.approx(1.0)
    assert envsdk.rollout(made(env, history=history), "null", seed=0).reward == 0.0


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_any_seed_is_solved_with_any_number_of_items(seed: int, data: st.DataObject):
    items = data.draw(st.integers(1, len(NAMES)))
    clicks = data.draw(st.integers(1, min(items, 6)))
    for env in (GridScreen(items=items, clicks=clicks), CropZoom(items=items)):
        trajectory = envsdk.rollout(env, "reference", seed=seed)
        assert trajectory.reward == pytest.approx(1.0)
        assert not any(step.metrics["tool_errors"] for step in trajectory.steps)


@pytest.mark.parametrize("env", WITH_TOOLS)
def test_a_budget_drops_old_images_and_names_them(env: Any):
    limits = {GridScreen: 470, CropZoom: 580}
    history = {"name": "budget", "max_tokens": limits[env], "target": 0.9, "order": ["images"], "keep_images": 1}
    trajectory = envsdk.rollout(env(history=history), "reference", seed=0)
    assert trajectory.reward == 1.0
    assert [b.reason for b in trajectory.breaks] and "dropped image" in trajectory.breaks[0].detail
    assert len([*trajectory.prompt_images()][-1]) == 1


def test_a_renderer_without_an_image_processor_is_refused_before_an_episode():
    renderer = {**EMBEDDED_VISION, "processor": None}
    with pytest.raises(ConfigError, match=r"ChartReader shows images, .* give the model's processor"):
        ChartReader(renderer=renderer, tokenizer="embedded")


# GridScreen.


def test_an_item_disappears_when_it_is_clicked_and_the_others_move():
    env = GridScreen(tasks=[{"items": ["red circle", "blue square", "green triangle"], "screens": [[0, 1, 2], [9, 3]]}])
    env.reset(seed=0)
    (first,) = seen(env)
    assert (first.width, first.height) == (WIDTH, HEIGHT)
    assert [drawn_at(first, x, 20) for x in (20, 60)] == [COLORS["red"], COLORS["blue"]]
    _, reward, terminated, *_ = call(env, "click", x=20, y=20)
    assert (reward, terminated) == (0.5, False)
    second = seen(env)[-1]
    assert drawn_at(second, 140, 60) == COLORS["blue"]
    assert COLORS["red"] not in {tuple(pixel) for pixel in np.asarray(second.pixels).reshape(-1, 3).tolist()}
    _, reward, terminated, *_ = call(env, "click", x=140, y=60)
    assert (reward, terminated) == (0.5, True)


def test_a_click_on_another_item_ends_the_task():
    env = GridScreen(tasks=[{"items": ["red circle", "blue square"], "screens": [[0, 5]]}])
    env.reset(seed=0)
    _, reward, terminated, *_ = call(env, "click", x=220, y=20)
    assert (reward, terminated) == (0.0, True)
    assert env.messages()[-1].content == "That is the blue square, not the red circle."


def test_a_click_on_nothing_changes_nothing():
    env = GridScreen(tasks=[{"items": ["red circle"], "screens": [[0]]}])
    env.reset(seed=0)
    _, reward, terminated, *_ = call(env, "click", x=100, y=100)
    assert (reward, terminated) == (0.0, False)
    assert len({*seen(env)}) == 1  # the same picture again


@pytest.mark.parametrize(("x", "y"), [(-1, 0), (WIDTH, 0), (0, HEIGHT), (10**9, 10**9)])
def test_a_click_outside_of_the_screen_is_an_error_for_the_model(x: int, y: int):
    env = GridScreen()
    env.reset(seed=0)
    *_, info = call(env, "click", x=x, y=y)
    assert info["metrics"]["tool_errors"] == 1
    assert "outside the screen" in env.messages()[-1].content


@pytest.mark.parametrize(
    "task",
    [
        {"items": ["pink circle"], "screens": [[0]]},
        {"items": ["red circle", "red circle"], "screens": [[0, 1]]},
        {"items": ["red circle"], "screens": [[COLUMNS * ROWS]]},
        {"items": ["red circle"], "screens": [[0], [1]]},
        {"items": ["red circle"], "screens": []},
    ],
)
def test_a_task_that_cannot_be_drawn_is_refused(task: dict[str, Any]):
    with pytest.raises(TaskError):
        GridScreen(tasks=[task]).reset(seed=0)


def test_more_clicks_than_items_are_refused():
    with pytest.raises(ConfigError, match="at most as many"):
        GridScreen(items=2, clicks=3)


# CropZoom.


def test_a_crop_shows_what_the_small_picture_does_not():
    item = {"name": "blue square", "x": 640, "y": 640}
    pictures = []
    for number in (111, 888):
        env = CropZoom(tasks=[{"items": [{**item, "number": number}]}])
        env.reset(seed=0)
        call(env, "crop", left=140, top=140, right=180, bottom=180)
        pictures.append(np.asarray(seen(env)[-1].pixels).astype(int))
    assert (np.abs(pictures[0] - pictures[1]).max(axis=2) > 200).sum() > 100  # black on white
    assert pictures[0].shape == (SHOWN, SHOWN, 3)


@settings(max_examples=15, deadline=None)
@given(edges=st.lists(st.integers(-5, SHOWN + 5), min_size=4, max_size=4))
def test_any_crop_is_shown_at_most_as_large_as_the_picture_or_refused(edges: list[int]):
    env = CropZoom()
    env.reset(seed=0)
    left, top, right, bottom = edges
    *_, info = call(env, "crop", left=left, top=top, right=right, bottom=bottom)
    found = seen(env)[1:]
    assert len(found) == 1 - info["metrics"]["tool_errors"]
    assert all(16 <= min(image.width, image.height) <= max(image.width, image.height) <= SHOWN for image in found)


def test_the_whole_picture_as_a_crop_is_the_first_picture_again():
    env = CropZoom()
    env.reset(seed=0)
    call(env, "crop", left=0, top=0, right=SHOWN, bottom=SHOWN)
    first, again = seen(env)
    assert first == again


@pytest.mark.parametrize(("answer", "reward"), [("It is 417.", 1.0), ("**417**", 1.0), ("418", 0.0), ("417 or 4", 0.0)])
def test_the_last_word_is_the_number(answer: str, reward: float):
    env = CropZoom(tasks=[{"items": [{"name": "red circle", "number": 417, "x": 300, "y": 200}]}])
    env.reset(seed=0)
    assert env.step(env.renderer.reply(Message(role="assistant", content=answer)))[1] == reward


# ChartReader.


def test_questions_of_a_table_are_answered_from_its_plot():
    questions = [{"text": "How many elms?", "answer": "7"}, {"text": "Which is lowest?", "answer": "Ash"}]
    env = chart(tasks=[{"labels": ["Ash", "Elm"], "values": [3, 7], "questions": questions}])
    env.reset(seed=0)
    assert [(image.width, image.height) for image in seen(env)] == [(320, 240)]
    rewards = [env.step(env.renderer.reply(Message(role="assistant", content=text)))[1] for text in ("7", "It is ash.")]
    assert rewards == [0.5, 0.5]


def test_the_plot_does_not_depend_on_settings_of_the_process():
    matplotlib = pytest.importorskip("matplotlib")
    plots = {draw_plot(("A", "B"), (1, 2), "bars")}
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        plots.add(draw_plot(("A", "B"), (1, 2), "bars"))
        assert matplotlib.rcParams["font.size"] == 30
    assert len(plots) == 1
    assert draw_plot(("A", "B"), (1, 2), "line") not in plots


def test_without_matplotlib_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackage, match=r"ChartReader-v0 needs matplotlib.*envsdk\[vision,report\]"):
        ChartReader()


# Pictures.


def test_every_item_and_every_digit_looks_different():
    pictures = []
    for name in NAMES:
        picture = Picture(40, 40)
        picture.item(name, Point(20, 20), 14)
        pictures.append(picture)
    for digit in "0123456789":
        picture = Picture(40, 40)
        picture.number(digit, Point(4, 4), 3)
        pictures.append(picture)
    assert len({hashlib.sha256(picture.image.tobytes()).digest() for picture in pictures}) == len(NAMES) + 10
