"""What `check_env` reports about environments with images."""

import os
from typing import Any, ClassVar

import numpy as np
import pytest

import envsdk
from envsdk import Env, EnvConfig, ImagePart, Message, Turn
from envsdk.testing import check_env
from envsdk.testing._env_checks import _check_places
from envsdk.testing._reports import CheckFailure


class Config(EnvConfig):
    """What is shown."""

    picture: str = "seeded"


class Shows(Env):
    """Shows a picture of noise."""

    Config: ClassVar[type[EnvConfig]] = Config
    shows_images: ClassVar[bool] = True
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def start(self) -> Turn:
        pixels = self.np_random.integers(0, 256, (40, 70, 3), dtype=np.uint8)
        if self.config.picture == "system":
            pixels = np.frombuffer(os.urandom(40 * 70 * 3), dtype=np.uint8).reshape(40, 70, 3)
        if self.config.picture == "none":
            return Turn("There is nothing to see.")
        return Turn([Message.from_openai({"role": "user", "content": [ImagePart(pixels)]})])

    def respond(self, reply: Message) -> Turn:
        return Turn(reward=float(reply.content == "noise"), terminated=True)

    def reference_reply(self) -> str:
        return "noise"


def checked(env: Any, name: str) -> Any:
    (check,) = check_env(env, seeds=2, only=name).checks
    return check


def test_images_at_their_placeholders_pass():
    check = checked(Shows, "images")
    assert (check.verdict, check.detail) == ("PASS", "2 images")


def test_different_pictures_are_different_tasks():
    assert checked(Shows, "distinct tasks").detail == "2 of 2"


def test_a_picture_that_does_not_come_from_the_seed_is_named_in_the_failure():
    check = checked(lambda: Shows(picture="system"), "same bytes")
    assert check.verdict == "FAIL"
    assert "<image " in check.detail


def test_a_declaration_without_images_fails():
    check = checked(lambda: Shows(picture="none"), "images")
    assert check.verdict == "FAIL" and "declares shows_images" in check.detail


def test_an_environment_without_images_has_nothing_to_check():
    check = checked("envsdk/GuessNumber-v1", "images")
    assert check.verdict == "NOT POSSIBLE"


@pytest.mark.parametrize("by", [-1, 1, 3])
def test_media_that_are_not_at_their_placeholders_are_reported(by: int):
    env = Shows()
    observation, _ = env.reset(seed=0)
    vision = env.renderer.vision
    _check_places(observation.tokens, observation.media, vision, "it")
    for media in ([placed.moved(by) for placed in observation.media], []):
        with pytest.raises(CheckFailure, match="placeholders"):
            _check_places(observation.tokens, media, vision, "it")
    with pytest.raises(CheckFailure, match="no processor"):
        _check_places(observation.tokens, observation.media, envsdk.make("envsdk/GuessNumber-v1").renderer.vision, "it")
