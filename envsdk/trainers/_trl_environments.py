"""Our environments as TRL's environment classes: its trainers call their tools in their own loop."""

import inspect
import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, Union, cast

from ..authoring._driver import seeds_of
from ..authoring._env import Env
from ..authoring._making import maker_of
from ..authoring._tool_env import ToolEnv
from ..authoring.adapters._remote import RemoteEnv
from ..contexts._protocol import Action
from ..errors import ConfigError
from ..messages import Message, ToolCall
from ._packages import load

_log = logging.getLogger(__name__)
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict, "null": type(None)}


class EnvironmentFactory:
    """What `environment_factory` returns: a factory for TRL, with a dataset and a reward function.

    Args:
        make_env: A function that makes the environment.
    """

    def __init__(self, make_env: Callable[[], Env]) -> None:
        self._make_env = make_env
        env = self._made()
        methods: dict[str, Any] = {}
        for schema in env.default_tools():
            function = schema.get("function", schema)
            if function["name"] in ("reset", "get_reward") or function["name"].startswith("_"):
                raise ConfigError(f"a tool is named {function['name']!r}, which TRL does not call as one")
            methods[function["name"]] = _method(function)
        self._class = type(env.name.rpartition("/")[2].replace("-", "_"), (_Episode,), methods)

    def __call__(self) -> Any:
        """Return an environment for TRL."""
        return self._class(self._made())

    def dataset(self, seeds: int | Sequence[int]) -> Any:
        """Make a `datasets.Dataset`: for each seed, the messages that begin its episode, and the seed.

        Raises:
            MissingPackage: If datasets is not installed.
            ConfigError: If an episode begins with what TRL's loop cannot show.
        """
        env, numbers = self._made(), [operator.index(seed) for seed in seeds_of(seeds)]
        prompts: list[Any] = []
        for seed in numbers:
            env.reset(seed=seed)
            turn = env.episode.pending_reply(env.pending()[0].context).turn
            messages = env.messages()
            if turn.prefill is not None or turn.stop or any(message.images for message in messages):
                raise ConfigError("an episode begins with a prefill, stop strings or images, which TRL's loop lacks")
            prompts.append([{"role": message.role, "content": message.content} for message in messages])
        return load("datasets", "trl").Dataset.from_dict({"prompt": prompts, "seed": numbers})

    def reward_func(self, *, environments: Any, completions: Any, **_: Any) -> list[float | None]:
        """Return the reward of each rollout. Its last reply goes to the environment first, unless it was cut.

        None is for an episode that was not scored, or whose environment failed, which is logged.
        """
        return [env._score(completion) for env, completion in zip(environments, completions, strict=True)]

    def _made(self) -> Env:
        env = self._make_env()
        if not (isinstance(env, ToolEnv) or (isinstance(env, RemoteEnv) and env.default_tools())):
            raise ConfigError(
                f"{env!r} is not a ToolEnv: TRL's loop only calls tools. Train it with RolloutFunc(...) as rollout_func"
            )
        if env.config.context_tools:
            raise ConfigError(
                f"{env!r} has context_tools, but TRL's loop shows all of the past: leave them out, or train it with "
                "RolloutFunc(...) as rollout_func"
            )
        return env

    @property
    def __name__(self) -> str:
        return self._class.__name__


class _Episode:
    """An environment of ours for TRL. The methods of its subclasses are the tools."""

    def __init__(self, env: Env) -> None:
        self._env = env

    def reset(self, *, seed: int | None = None, **_: Any) -> None:
        """Begin the episode of a row of the dataset."""
        if seed is None:
            raise ConfigError("a row has no seed, so the rollouts of a group would differ: use the factory's dataset")
        self._reward: float | None = 0.0  # of an episode that has not ended; None if it failed
        self._env.reset(seed=int(seed))

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        """Run a tool in the environment, and return what it answers."""
        known = len(self._env.messages())
        self._step(Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),)))
        return "\n\n".join(message.content for message in self._env.messages()[known + 1 :])

    def _step(self, message: Message) -> None:
        if self._env.trajectory is not None or self._reward is None:
            raise ValueError("the episode is over")
        observation, _ = self._env.pending()
        action = Action(self._env.episode.pending_reply(observation.context).context.renderer.reply(message))
        before, self._reward = self._reward, None
        try:
            self._reward = before + (self._env.step(action).reward or 0.0)
        except Exception as error:  # of the author's code
            _log.warning("an episode of %s failed, and has no reward", self._env.name, exc_info=error)
            raise

    def _score(self, completion: Any) -> float | None:
        last = cast("dict[str, Any]", completion[-1] if completion and isinstance(completion, list) else {})
        is_running = self._env.trajectory is None and self._reward is not None
        if is_running and last.get("role") == "assistant" and not last.get("tool_calls"):
            try:
                self._step(Message(role="assistant", content=str(last.get("content") or "")))
            except Exception:
                if self._reward is not None:  # else the environment failed, which is logged
                    raise
        trajectory = self._env.trajectory
        return self._reward if trajectory is None else trajectory.scored_reward


def _method(schema: Any) -> Callable[..., str]:
    """Return a method with the signature and the docstring from which transformers makes a tool's schema."""
    properties: dict[str, Any] = schema["parameters"].get("properties", {})
    required = schema["parameters"].get("required", ())
    names = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    lines: list[str] = []
    for name, given in sorted(properties.items(), key=lambda item: item[0] not in required):
        kind = _type_of(given)
        default = inspect.Parameter.empty if name in required else given.get("default")
        names.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
        lines.append(f"    {name}: {given.get('description') or name}")

    def call(self: Any, **arguments: Any) -> str:
        return self._call(schema["name"], arguments)

    call.__name__ = call.__qualname__ = schema["name"]
    call.__doc__ = schema.get("description") or schema["name"]
    if lines:
        call.__doc__ += "\n\nArgs:\n" + "\n".join(lines)
    call.__annotations__ = {one.name: one.annotation for one in names[1:]} | {"return": str}
    cast("Any", call).__signature__ = inspect.Signature(names, return_annotation=str)
    return call


def _type_of(schema: Any) -> Any:
    """Return the type of which transformers makes a schema: with the items of lists, choices and None."""
    if options := schema.get("anyOf"):
        return Union[tuple(map(_type_of, options))]  # noqa: UP007 (of a tuple)
    if choices := schema.get("enum"):
        return Literal[tuple(choices)]
    if schema.get("type") == "array":
        return list[_type_of(schema.get("items", {}))]
    return _TYPES.get(str(schema.get("type")), Any)


def environment_factory(env: Env | str | Callable[[], Env]) -> EnvironmentFactory:
    """Let TRL's own loop play a `ToolEnv`, also a remote one, with a dataset and a reward function.

        factory = environment_factory("envsdk/Calculator-v1")
        GRPOTrainer(..., environment_factory=factory, train_dataset=factory.dataset(range(1000)),
                    reward_funcs=factory.reward_func)

    TRL renders the prompts and the results of tools with the model's chat template. The environment's renderer, history
    policy and token limits have no effect; `RolloutFunc` has all of them, and is exact to the token.

    Args:
        env: The id of an environment, an environment, which is copied for each rollout, or a function that makes one.

    Raises:
        ConfigError: If it is not a `ToolEnv`, or has context tools.
    """
    return EnvironmentFactory(maker_of(env))
