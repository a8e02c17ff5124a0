"""Renderers in other processes: they are pickled, and render and read as before."""

import pickle
from typing import Any

import pytest
from envsdk_renderers._fixed_base import FixedBase
from real_models import qwen3_folder, template
from template_conversations import TOOLS, called, result, user
from vision_families import renderer_of
from vision_models import picture

import envsdk
from envsdk import Message, Renderer, get_renderer
from envsdk.errors import ConfigError
from envsdk.messages import TextPart
from envsdk.rollouts import Rollouts

OPTIONS = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16}
CALL = called("search")
MESSAGES = [user(), CALL, result(CALL.tool_calls[0]), Message(role="assistant", content="a", reasoning="r"), user("b")]


def again(renderer: Renderer) -> Any:
    return pickle.loads(pickle.dumps(renderer))


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qwen3", {}),
        ("fixed_base", {"template_arguments": {"enable_thinking": False}, "validate": "always"}),
        ("auto", {}),
    ],
)
def test_a_pickled_renderer_renders_as_before(name: str, options: dict[str, Any]):
    renderer = get_renderer(name, str(qwen3_folder()), **options)
    other = again(renderer)
    assert type(other) is type(renderer)
    assert other.specification() == renderer.specification()
    assert other.chosen_because == renderer.chosen_because
    given = {"tools": TOOLS, "generation_prompt": True}
    assert other.render(MESSAGES, **given).tokens.tolist() == renderer.render(MESSAGES, **given).tokens.tolist()
    reply = renderer.reply(Message(role="assistant", content="a"))
    assert other.parse(reply) == renderer.parse(reply)


@pytest.mark.parametrize("name", ["fixed_base", "qwen3.5"])
def test_a_pickled_renderer_has_its_processor_and_not_the_arrays_of_images(name: str):
    more = {"template": template("qwen3_vl")} if name == "fixed_base" else {}
    renderer = get_renderer(name, str(qwen3_folder()), processor=OPTIONS, **more)
    before = len(pickle.dumps(renderer))
    message = Message(role="user", content=[TextPart(text="a"), picture(1, 640, 480)])
    tokens = renderer.render([message]).tokens.tolist()
    assert len(pickle.dumps(renderer)) < before + 50_000  # the arrays have megabytes
    assert again(renderer).render([message]).tokens.tolist() == tokens


@pytest.mark.parametrize("name", ["gemma-3", pytest.param("qwen3.5", marks=pytest.mark.full)])
def test_a_processor_that_cannot_be_pickled_is_a_typed_error(name: str):
    """The classes of these processors are made here, so that another process cannot import them."""
    with pytest.raises(ConfigError, match=r"cannot be pickled for another process.*Give processor= as a folder"):
        pickle.dumps(renderer_of(name))


def test_an_environment_with_a_chat_template_is_pickled_in_the_middle_of_an_episode():
    env = envsdk.make("envsdk/GridScreen-v1")
    assert isinstance(env.renderer, FixedBase)
    env.reset(seed=0)
    env.step(env.renderer.reply(env.reference_reply()))
    other = pickle.loads(pickle.dumps(env))
    found = [one.step(one.renderer.reply(one.reference_reply())) for one in (env, other)]
    assert found[0][0].tokens.tolist() == found[1][0].tokens.tolist()
    assert found[0][1:4] == found[1][1:4]


@pytest.mark.full
def test_worker_processes_take_an_environment_with_a_renderer_object():
    options = {"renderer": get_renderer("fixed_base", str(qwen3_folder()))}
    run: dict[str, Any] = {"seeds": range(2), "group_size": 1, "env_options": options}
    here = Rollouts("envsdk/MathChat-v0", "reference", **run).run()
    there = Rollouts("envsdk/MathChat-v0", "reference", **run, executor="processes", n_workers=1).run()
    assert [one.to_json() for one in there] == [one.to_json() for one in here]


@pytest.mark.full
def test_episodes_with_images_are_the_same_in_worker_processes():
    here = Rollouts("envsdk/GridScreen-v1", "reference", seeds=range(2)).run()
    there = Rollouts("envsdk/GridScreen-v1", "reference", seeds=range(2), executor="processes", n_workers=1).run()
    assert [one.to_json() for one in there] == [one.to_json() for one in here]
