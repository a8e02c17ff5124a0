"""Every registered environment is a sound gymnasium environment; new ones are found through the registry."""

from collections.abc import Callable
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import envsdk
from envsdk import Action, Observation
from envsdk._registry import find_creator

ENVS = envsdk.list_envs()
IMAGES = [name for name in ENVS if getattr(find_creator(name), "shows_images", False)]
FEWER = [pytest.param(name, marks=pytest.mark.full) if name in IMAGES[1:] else name for name in ENVS]
"""All environments; of those with images, which take long, a short run takes one."""
VECTORS = [name if number % 4 == 0 else pytest.param(name, marks=pytest.mark.full) for number, name in enumerate(ENVS)]


def make(id: str) -> gymnasium.Env:
    envsdk.list_envs()  # in a worker process of a vector environment nothing is registered yet
    return gymnasium.make(id, disable_env_checker=True)


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("id", FEWER)
def test_gymnasium_make_gives_it_with_its_wrappers(id: str) -> None:
    env = gymnasium.make(id, history="strip")
    observation, info = env.reset(seed=1)
    assert isinstance(observation, Observation)
    assert env.unwrapped.history.name == "strip"
    stop = info["stop_token_ids"][0]
    observation, _reward, _terminated, _truncated, info = env.step(Action([stop], [-0.5]))
    assert env.unwrapped.prompt().size > observation.keep
    env.close()


@pytest.mark.parametrize("id", FEWER)
def test_its_specification_survives_json(id: str) -> None:
    options = {"history": {"name": "compact", "every": 2}, "limits": {"max_steps": 3}}
    if not envsdk.make(id).shows_images:
        options["renderer"] = "qwen3"
    spec = envsdk.make(id, **options).spec
    again = gymnasium.envs.registration.EnvSpec.from_json(spec.to_json()).make(disable_env_checker=True).unwrapped
    assert again.history == envsdk.history.Compact(every=2)
    assert again.limits.max_steps == 3


@pytest.mark.matrix
@pytest.mark.parametrize("id", VECTORS)
@pytest.mark.parametrize("vector", [SyncVectorEnv, partial(AsyncVectorEnv, shared_memory=False)], ids=["sync", "async"])
@pytest.mark.parametrize("kind", ["array", "action"])
def test_vector_environments_take_arrays_and_actions(id: str, vector: Callable, kind: str) -> None:
    envs = vector([partial(make, id) for _ in range(2)], autoreset_mode=AutoresetMode.DISABLED)
    try:
        observations, infos = envs.reset(seed=3)
        stop = infos["stop_token_ids"][0][0]
        for length in (0, 1, 3):
            tokens = np.full(length, stop, dtype=np.int32)
            actions = tuple(tokens if kind == "array" else Action(tokens, -np.ones(length)) for _ in range(2))
            observations, _rewards, terminated, _truncated, infos = envs.step(actions)
            assert len(observations) == 2
            assert all(isinstance(o.tokens, np.ndarray) and o.extends for o in observations)
            if terminated.any():
                return
    finally:
        envs.close()


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("id", FEWER)
def test_info_values_keep_their_type_from_step_to_step(id: str) -> None:
    env = envsdk.make(id, history="strip", limits={"max_steps": 5, "max_sampled_tokens": 200})
    observation, info = env.reset(seed=0)
    before = env.prompt()
    observation.tokens[:] = 0
    env.prompt()[:] = 0
    assert np.array_equal(env.prompt(), before)  # returned arrays are the caller's own
    types = {key: type(value) for key, value in info.items()}
    while env.trajectory is None:
        *_, info = env.step(env.renderer.reply(envsdk.Message(role="assistant", content="7", reasoning="hm")))
        for key, value in info.items():
            assert types.setdefault(key, type(value)) is type(value)


def test_spaces_hold_what_step_takes_and_nothing_else() -> None:
    env = envsdk.make("envsdk/GuessNumber-v1")
    size = env.renderer.tokenizer.vocab_size
    assert env.action_space.sample() in env.action_space
    assert np.array([size - 1], dtype=np.int32) in env.action_space
    assert [] in env.action_space
    assert np.array([size]) not in env.action_space
    assert np.array([0.5]) not in env.action_space
    assert "text" not in env.action_space
    assert env.observation_space.sample() in env.observation_space
    assert (np.array([1], dtype=np.int32), 0, True, "main", "main") not in env.observation_space


@pytest.mark.parametrize(("mode", "options"), [("sync", {}), ("async", {"vector_kwargs": {"shared_memory": False}})])
def test_gymnasium_make_vec_plays_several_of_them(mode: str, options: dict[str, object]) -> None:
    envsdk.list_envs()
    envs = gymnasium.make_vec("envsdk/GuessNumber-v1", num_envs=2, vectorization_mode=mode, **options)
    observations, _ = envs.reset(seed=0)
    assert all(isinstance(observation, Observation) for observation in observations)
    assert len(envs.step(envs.action_space.sample())[0]) == 2
    envs.close()
