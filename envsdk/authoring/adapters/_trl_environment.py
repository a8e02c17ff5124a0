"""TRL's environment classes (`environment_factory` of its trainers) as environments.

TRL reuses the objects of such a class, with a `reset` before each rollout. Here each episode has a new object, and its
methods run with a state of the global random generators that depends on the seed alone.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

from pydantic import Field, ImportString, field_serializer

from ..._visible import brief
from ...episodes._turn import Turn
from ...errors import ConfigError, ToolError
from ...messages import Message
from .._env import EnvConfig
from .._tool_env import ToolEnv, ToolEnvConfig
from .._tools import tool
from ._coroutines import isolated
from ._dataset import path_of
from ._random_state import GlobalRandom

_OWN = ("reset", "get_reward")


class TRLEnvironmentConfig(ToolEnvConfig):
    """The class, and the reward functions."""

    env: ImportString[Callable[[], Any]]
    """The class, or a function that makes an object of it; or its import path: `"my_package.games:Wordle"`."""
    reward_funcs: tuple[ImportString[Callable[..., Any]], ...] = Field(default=())
    """TRL's reward functions, in addition to the `get_reward` of the class. Each is called for one rollout, with lists
    of one item: `prompts`, `completions`, `environments` and the columns of the row."""

    @field_serializer("env", "reward_funcs")
    def _where(self, given: Any) -> Any:
        return list(map(path_of, cast("tuple[Any, ...]", given))) if isinstance(given, tuple) else path_of(given)


class TRLEnvironment(ToolEnv):
    """Play an environment class of TRL: `TRLEnvironment(env=Wordle, tasks=rows)`.

    A row is passed to `reset`, as by TRL. Its `prompt` (a string or chat messages) begins the conversation, and the
    string that `reset` returns follows the last user message. The public methods are the tools.

    Exercises: the skills that the environment tests. Reward: `get_reward` by the name of the class, and the reward
    functions by their names. None is not scored.
    """

    Config: ClassVar[type[EnvConfig]] = TRLEnvironmentConfig
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def start(self) -> Turn:
        """Reset a new object of the class."""
        self.random_state = GlobalRandom(int(self.np_random.integers(2**63)))
        row: dict[str, Any] = {**(self.task or {})}
        given: Any = row.get("prompt", "")
        messages = [{"role": "user", "content": given}] if isinstance(given, str) else [{**one} for one in given or ()]
        if not messages:
            raise ConfigError(f"the prompt of a row is {given!r}; expected a string or chat messages")
        with self.random_state.active(may_print=True):
            self.environment: Any = self.config.env()
            if not hasattr(self.environment, "reset"):
                raise ConfigError(f"{self.config.env!r} made {brief(self.environment)}, which has no reset()")
            observation = self.environment.reset(**row)
        if observation is not None:
            if not isinstance(observation, str) or messages[-1]["role"] != "user":
                raise ConfigError(f"reset() returned {brief(observation)}; expected a string, after a user message")
            messages[-1]["content"] += observation
        methods = inspect.getmembers(cast("Any", type(self.environment)), inspect.isfunction)
        names = [name for name, _ in methods if name not in _OWN and name[0] != "_"]
        found = [getattr(self.environment, name) for name in names]
        tools = [replace(tool(method), function=partial(_call, method, self.random_state)) for method in found]
        self.row, self.prompt_messages = row, messages
        return Turn(messages, tools=tools)

    async def finish(self, reply: Message) -> Turn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Score the rollout."""
        environment = self.environment
        sources: dict[str, Callable[[], Any]] = {}
        if (owned := getattr(environment, "get_reward", None)) is not None:
            sources[type(environment).__name__] = owned
        said = [message.to_openai() for message in self.messages()]
        first = next(index for index, message in enumerate(said) if message["role"] == "assistant")
        columns = {key: [value] for key, value in self.row.items() if key not in ("prompt", "completion")}
        for function in self.config.reward_funcs:
            given = {"prompts": [said[:first]], "completions": [said[first:]], "environments": [environment], **columns}
            if function.__name__ in sources:
                raise ConfigError(f"two rewards are named {function.__name__!r}: rename one of the functions")
            sources[function.__name__] = partial(function, **given)
        rewards: dict[str, float] = {}
        for name, source in sources.items():
            value: Any = await isolated(_awaited(source), self.random_state)
            values = cast("Sequence[Any]", value if isinstance(value, (list, tuple)) else [value])
            if len(values) != 1 or not (values[0] is None or hasattr(values[0], "__float__")):
                raise ConfigError(f"{name} returned {brief(value)}; expected one number, or None")
            rewards |= {} if values[0] is None else {name: float(values[0])}
        return Turn(reward=rewards or None, terminated=True)


async def _call(method: Callable[..., Any], state: GlobalRandom, /, **arguments: Any) -> Any:
    """Call a tool with a random state. As in TRL, an exception is for the model."""
    try:
        result = await isolated(_awaited(partial(method, **arguments)), state)
    except Exception as error:
        raise ToolError(str(error)) from error
    return cast("Any", result) if isinstance(result, (str, list)) else str(result)


async def _awaited(function: Callable[[], Any]) -> Any:
    result = function()
    return await result if inspect.isawaitable(result) else result
