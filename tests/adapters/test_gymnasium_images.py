"""Games of Gymnasium played by their frames."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envsdk
from envsdk import Message
from envsdk.authoring.adapters._gymnasium_images import GymnasiumImages
from envsdk.errors import ConfigError, ImageError
from envsdk.policies import ReplyPolicy
from envsdk.testing import check_env

WALL = 5


class Corridor(gymnasium.Env[Any, Any]):
    """Walk right to the wall. It draws itself as an array."""

    metadata = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, frame: str = "rgb") -> None:
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Discrete(WALL + 1)
        self.render_mode, self.frame, self.at = render_mode, frame, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(3))
        return self.at, {}

    def step(self, action: Any) -> Any:
        self.at = max(0, self.at + (1 if action else -1))
        return self.at, float(self.at == WALL), self.at == WALL, False, {}

    def render(self) -> Any:
        if self.frame == "broken":
            raise gymnasium.error.DependencyNotInstalled("pygame is not installed")
        picture = np.full((32, 32 * (WALL + 1), 3), 240, dtype=np.uint8)
        picture[:, self.at * 32 : (self.at + 1) * 32] = (200, 0, 0)
        return picture if self.frame == "rgb" else picture / 255


class Invisible(Corridor):
    """It has no frames."""

    metadata = {"render_modes": []}  # noqa: RUF012


@pytest.fixture(autouse=True)
def games() -> Iterator[None]:
    """Our own games."""
    gymnasium.register("tests/Corridor-v0", Corridor)
    gymnasium.register("tests/Invisible-v0", Invisible)
    yield
    del gymnasium.registry["tests/Corridor-v0"], gymnasium.registry["tests/Invisible-v0"]


def corridor(**options: Any) -> GymnasiumImages:
    return GymnasiumImages(game="tests/Corridor-v0", actions=("left", "right"), options=options)


def test_each_frame_is_the_observation():
    env = corridor()
    trajectory = envsdk.rollout(env, ReplyPolicy(env, lambda player: "right"), seed=0)
    assert trajectory.reward == 1.0
    states = [message for message in trajectory.contexts["main"].messages if message.role == "user"]
    assert all(not message.content and len(message.images) == 1 for message in states)
    places = [int(np.asarray(message.images[0].pixels)[0, :, 1].argmin()) // 32 for message in states]
    assert places == list(range(places[0], WALL + 1))
    assert len(trajectory.images) == len(states)


def test_a_state_that_comes_again_is_the_same_image():
    env = corridor()
    way = iter(["right", "left", "right", "left", *["right"] * 9])
    trajectory = envsdk.rollout(env, ReplyPolicy(env, lambda player: next(way)), seed=0)
    states = [m for m in trajectory.contexts["main"].messages if m.role == "user"]
    assert len(trajectory.images) < len(states)


def test_an_unreadable_reply_is_answered_in_text():
    env = corridor()
    env.reset(seed=0)
    turn = env.respond(Message(role="assistant", content="I wait"))
    assert turn.messages[0].content == "That is no action. Answer with one action: left, right."
    assert not turn.messages[0].images


@pytest.mark.parametrize(
    "check",
    ["images", *(pytest.param(name, marks=pytest.mark.full) for name in ("same bytes", "history policies", "forks"))],
)
def test_it_keeps_what_every_environment_promises(check: str):
    def few_steps() -> GymnasiumImages:
        return GymnasiumImages(game="tests/Corridor-v0", actions=("left", "right"), limits={"max_steps": 8})

    check_env(few_steps, seeds=1, only=check).raise_if_failed()


def test_a_game_without_frames_is_refused():
    with pytest.raises(ConfigError, match="does not render frames: its render modes are none"):
        GymnasiumImages(game="tests/Invisible-v0")


def test_a_frame_that_cannot_be_drawn_names_the_reason():
    with pytest.raises(ConfigError, match="cannot render a frame: pygame is not installed"):
        corridor(frame="broken").reset(seed=0)


def test_a_frame_in_another_form_is_refused():
    with pytest.raises(ImageError, match="float64"):
        corridor(frame="floats").reset(seed=0)


def test_frozen_lake_is_played_by_its_frames():
    pytest.importorskip("pygame")
    words = ("left", "down", "right", "up")
    env = GymnasiumImages(game="FrozenLake-v1", options={"is_slippery": False}, actions=words)
    way = iter(["down", "down", "right", "right", "down", "right"])
    trajectory = envsdk.rollout(env, ReplyPolicy(env, lambda player: next(way)), seed=0)
    assert trajectory.reward == 1.0
    assert [len(step_images) for step_images in trajectory.prompt_images()] == [1, 2, 3, 4, 5, 6]
    env.close()
