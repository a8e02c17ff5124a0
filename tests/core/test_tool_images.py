"""Tools that return images, and environments that show images without a model at hand."""

from typing import Any, ClassVar

import numpy as np
import pytest
import real_models
from PIL import Image as Pillow

import envsdk
from envsdk import ImagePart, Message, TextPart, ToolEnv, Turn, tool
from envsdk.errors import ConfigError
from envsdk.images import Image

NOISE = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
IMAGE = Image.read(NOISE)
RESULTS: dict[str, Any] = {
    "an image": IMAGE,
    "a part": ImagePart(IMAGE),
    "an image of Pillow": Pillow.fromarray(NOISE),
    "a list": ["The screen: ", IMAGE, TextPart(text=" and again "), ImagePart(IMAGE)],
    "a tuple": ("The screen: ", Pillow.fromarray(NOISE)),
    "a text": "no image",
    "texts": ["a", "b"],
    "a list with a number": [IMAGE, 3],
    "a mapping": {"image": IMAGE},
    "an array of pixels": NOISE,
    "pixels in a mapping": {"screen": NOISE},
    "the bytes of a file": IMAGE.data,
    "bytes": b"plain",
    "an array of numbers": np.arange(3),
    "long texts": ["x" * 30, IMAGE, "y" * 30, IMAGE],
}


class Shows(ToolEnv):
    """Shows whatever is asked for."""

    shows_images: ClassVar[bool] = True

    def start(self) -> Turn:
        return Turn("Look.")

    @tool
    def show(self, what: str) -> Any:
        """Show something."""
        return RESULTS[what]

    def finish(self, reply: Message) -> Turn:
        return Turn(terminated=True)


def answered(what: str, **options: Any) -> tuple[Message, dict[str, Any]]:
    env = Shows(**options)
    env.reset(seed=0)
    *_, info = env.step(env.renderer.reply(Message.calling("show", {"what": what})))
    return env.messages()[-1], info


@pytest.mark.parametrize("what", ["an image", "a part", "an image of Pillow"])
def test_an_image_is_the_answer_to_the_call(what: str):
    message, info = answered(what)
    assert (message.role, message.content, message.images) == ("tool", "", (IMAGE,))
    assert [(media.image, media.stop - media.start) for media in info["media"]] == [(IMAGE, 2 * 3)]
    assert not info["metrics"]["tool_errors"]


def test_texts_and_images_stay_in_their_order():
    message, info = answered("a list")
    expected = [TextPart(text="The screen: "), ImagePart(IMAGE), TextPart(text=" and again "), ImagePart(IMAGE)]
    assert list(message.parts or ()) == expected
    assert len(info["media"]) == 2
    assert answered("a tuple")[0].images == (IMAGE,)


@pytest.mark.parametrize(
    ("what", "text"), [("a text", "no image"), ("texts", '["a","b"]'), ("an array of numbers", "[0,1,2]")]
)
def test_results_without_images_stay_texts(what: str, text: str):
    message, _ = answered(what)
    assert (message.content, message.parts) == (text, None)


@pytest.mark.parametrize("what", ["an array of pixels", "pixels in a mapping", "the bytes of a file", "bytes"])
def test_pixels_and_bytes_are_refused_and_the_error_names_image_part(what: str):
    with pytest.raises((TypeError, ValueError), match=r"return an image as envsdk.ImagePart\(data\)"):
        answered(what, raise_tool_errors=True)
    message, info = answered(what)
    assert message.content.startswith("Error: show: ") and "ImagePart" in message.content
    assert info["metrics"]["tool_crashes"] == 1


@pytest.mark.parametrize(
    ("what", "text"), [("a list with a number", "an image and an int; expected only texts"), ("a mapping", "Image")]
)
def test_an_image_next_to_other_values_is_a_mistake_of_the_tool(what: str, text: str):
    with pytest.raises((TypeError, ValueError), match=text):
        answered(what, raise_tool_errors=True)


def test_long_texts_are_cut_as_one_and_the_images_stay():
    message, _ = answered("long texts", max_result_chars=40)
    assert message.content == "x" * 30 + "y" * 10 + "\n[cut: 40 of 60 characters are shown]"
    assert len(message.images) == 2


@pytest.mark.parametrize("tokenizer", [None, "embedded", envsdk.load_tokenizer("embedded")])
def test_an_environment_with_images_needs_no_model(tokenizer: Any):
    assert Shows(tokenizer=tokenizer).renderer.vision is not None


def test_a_renderer_that_cannot_write_images_is_refused_when_the_environment_is_made():
    with pytest.raises(ConfigError, match=r"Shows shows images, which .* 'qwen3' cannot write: use the render"):
        Shows(renderer="qwen3")


def test_a_tokenizer_alone_chooses_the_renderer_that_fits_it():
    with pytest.raises(ConfigError, match="which the renderer 'qwen3' cannot write"):  # a model of text
        Shows(tokenizer=real_models.qwen3_folder())


def test_the_declaration_is_no_option():
    with pytest.raises(ConfigError):
        Shows(shows_images=False)
