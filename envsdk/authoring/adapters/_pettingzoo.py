"""Environments of PettingZoo, with their agents as contexts."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, cast

import numpy as np
from gymnasium.spaces import Discrete
from pydantic import Field, ImportString, field_serializer

from ..._packages import load
from ...errors import ConfigError
from .._env import EnvConfig
from ._dataset import path_of
from ._gymnasium_text import action_at_end, as_json
from ._players import Players, PlayersConfig
from ._random_state import GlobalRandom

ADVICE = "pip install pettingzoo"
_MOST_WORDS = 200
_MOST_NUMBERS = 4096


class PettingZooConfig(PlayersConfig):
    """The environment, how it is converted to text, and who plays it. `game` is an id or a function."""

    actions: tuple[str, ...] | ImportString[Callable[[Any, str], Mapping[str, Any]]] = ()
    """A word for each action, in the order of their numbers; by default the numbers. Or a function
    `actions(env, agent)`, or its import path, that returns the legal actions by word."""
    show: ImportString[Callable[[Any, str], str]] | None = None
    """A function `show(env, agent)`, or its import path, that returns what an agent sees. By default, it is the agent's
    observation as JSON. `env` is the environment as an `AECEnv`."""
    max_illegal: int = Field(default=1, ge=0)
    """The maximum number of illegal replies in a row that are answered with the legal actions; one more ends the game.
    """
    illegal_reward: float = -1.0
    """The reward of an agent that ends the game in this way. The others get 0."""

    @field_serializer("actions", "show")
    def _path(self, value: Any) -> Any:
        return path_of(value) if callable(value) else value


class PettingZoo(Players):
    """Play an environment of PettingZoo: `PettingZoo(game="classic/tictactoe_v3")`. Its agents are contexts.

    Exercises: the skills that the environment needs; self-play. Reward: an agent's own reward from the environment. A
    reply ends with its action. Actions that a mask excludes are illegal. If all agents act at once, each acts before it
    sees the others' actions.

    Raises:
        MissingPackage: If `pettingzoo` is not installed.
        ConfigError: If the environment cannot be made, or its actions have no words.
    """

    Config: ClassVar[type[EnvConfig]] = PettingZooConfig
    _game: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._game = self._made()
        self._game.reset(seed=0)
        self._check_players([str(agent) for agent in getattr(self._game, "possible_agents", self._game.agents)])
        for agent in self._game.agents:
            self._words(agent)
        self._end()

    def _made(self) -> Any:
        config: PettingZooConfig = self.config
        package = load("pettingzoo", "an environment of PettingZoo needs", ADVICE)
        try:
            if "/" in config.game:
                is_parallel = config.game in package.parallel_registry and config.game not in package.aec_registry
                make: Any = partial(package.make, "parallel" if is_parallel else "aec", config.game)
            else:
                make = pkgutil.resolve_name(config.game)
            if isinstance(make, ModuleType):
                make = getattr(make, "env", None) or make.parallel_env
            game = make(**config.options)
        except Exception as error:  # an environment is third-party code, which may raise anything
            raise ConfigError(
                f"PettingZoo cannot make {config.game!r} with {config.options}: {type(error).__name__}: {error}. "
                "Expected an id, such as classic/tictactoe_v3, a module, or a function of one (module:name)"
            ) from error
        if hasattr(game, "agent_selection") or hasattr(game, "agent_iter"):
            return game
        return load("pettingzoo.utils.conversions", "a parallel environment needs", ADVICE).parallel_to_aec(game)

    def _begin(self, seed: int) -> None:
        self._game = self._made()
        self._game.reset(seed=seed)
        self._steps: list[Any] = []
        self._complaint, self._illegal = "", 0
        self._ends: list[bool] = []  # whether each agent that has ended was cut off
        self._advance()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the environment: many are copied as new ones, in which nothing was played."""
        return {**super().__getstate__(), "_game": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the environment again, and play it as far as this one was played."""
        super().__setstate__(state)
        if "_steps" in state:
            with GlobalRandom(self._seeds[0]).active():
                self._game = self._made()
                self._game.reset(seed=self._seeds[2])
                for action in self._steps:
                    self._game.step(action)

    def _step(self, action: Any) -> None:
        self._steps.append(action)
        self._game.step(action)

    def _end(self) -> None:
        if (game := self.__dict__.get("_game")) is not None:
            game.close()

    def _advance(self) -> None:
        """Take the rewards of the next agent, and remove those that have ended."""
        while self._game.agents:
            agent = self._game.agent_selection
            _, reward, terminated, truncated, _ = self._game.last(observe=False)
            self._rewards[str(agent)] += float(reward)
            if not (terminated or truncated):
                return
            self._ends.append(bool(truncated and not terminated))
            self._step(None)

    @property
    def _is_truncated(self) -> bool:
        return not self._game.agents and bool(self._ends) and all(self._ends)

    def _turn(self) -> str | None:
        is_over = not self._game.agents or self._illegal > self.config.max_illegal
        return None if is_over else str(self._game.agent_selection)

    def _observed(self, player: str) -> str:
        config: PettingZooConfig = self.config
        if self._complaint or self._turn() is None:
            return self._complaint
        agent = self._game.agent_selection
        words = list(self._words(agent))
        return f"{self._seen(agent) if config.show is None else config.show(self._game, agent)}\n\n{_choice(words)}"

    def _seen(self, agent: Any) -> str:
        observation: Any = self._game.observe(agent)
        if isinstance(observation, dict):
            parts = {**cast("dict[str, Any]", observation)}
            parts.pop("action_mask", None)
            observation = parts["observation"] if [*parts] == ["observation"] else parts
        if np.size(observation) > _MOST_NUMBERS:
            raise ConfigError(
                f"an observation of {self.config.game} has {np.size(observation):,} numbers, which is too much for a "
                "message: give show=, a function show(env, agent) that returns text"
            )
        return observation if isinstance(observation, str) else as_json(observation)

    def _words(self, agent: Any) -> Mapping[str, Any]:
        """Return the legal actions by word."""
        config: PettingZooConfig = self.config
        named: Any = config.actions
        if callable(named):
            return cast("Mapping[str, Any]", named(self._game, agent))
        space: Any = self._game.action_space(agent)
        if not isinstance(cast("object", space), Discrete):
            raise ConfigError(
                f"agent {agent} of {config.game} has the action space {space}; expected Discrete, or actions=, a "
                "function actions(env, agent) that returns the legal actions by word"
            )
        count, first = int(space.n), int(space.start)
        if named and len(named) != count:
            raise ConfigError(
                f"agent {agent} of {config.game} has {count} actions, but `actions` has {len(named)} words"
            )
        words: Sequence[str] = named or tuple(map(str, range(first, first + count)))
        observation: Any = self._game.observe(agent)
        holders: list[Any] = [one for one in (observation, self._game.infos[agent]) if isinstance(one, dict)]
        mask = next((one["action_mask"] for one in holders if "action_mask" in one), None)
        return {word: number for number, word in enumerate(words, first) if mask is None or mask[number - first]}

    def _move(self, reply: str) -> dict[str, float]:
        config: PettingZooConfig = self.config
        agent = self._game.agent_selection
        words = self._words(agent)
        action = action_at_end(reply, words)
        if action is None:
            self._illegal += 1
            self._complaint = f"That is not a legal action. {_choice(list(words))}"
            if self._illegal > config.max_illegal:
                self._complaint = "That is not a legal action. The game is over."
                self._rewards[str(agent)] += config.illegal_reward
                self._is_fair = False
            return {"illegal": 1.0}
        self._complaint, self._illegal = "", 0
        self._step(action)
        self._advance()
        return {}


def _choice(words: Sequence[str]) -> str:
    """Return the sentence that names the legal actions."""
    shown = ", ".join(words[:_MOST_WORDS])
    more = f" and {len(words) - _MOST_WORDS:,} more" if len(words) > _MOST_WORDS else ""
    return f"Answer with one of: {shown}{more}."
