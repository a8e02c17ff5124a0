"""Any environment of Gymnasium with numbered actions, played in text."""

import re
from typing import Any, ClassVar, Literal, cast

import gymnasium
from gymnasium.spaces import Discrete, Text
from pydantic import Field, JsonValue, field_validator
from pydantic_core import to_json

from ..authoring.env import Env
from ..authoring.machinery import EnvConfig
from ..episodes.turn import Turn
from ..errors import ConfigError
from ..limits import Limits
from ..messages import Message

_CODE = re.compile(r"\x1b\[([1-9][0-9;]*)m")
_COLOURED = re.compile(_CODE.pattern + r"([^\x1b]*)\x1b\[0?m")
_ANY_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_COLOURS = (
    "gray",
    "red",
    "green",
    "yellow",
    "blue",
    "magenta",
    "cyan",
    "white",
    "crimson",
    "default",
)  # codes 30 to 39
_AROUND_A_WORD = " \t\r\n.,:;!?*\"'`()[]"
_OWN_OPTIONS = ("id", "render_mode", "disable_env_checker")


class GymnasiumTextConfig(EnvConfig):
    """Which environment, and how it is shown."""

    game: str
    """The id that Gymnasium knows it by, such as `"FrozenLake-v1"`."""
    options: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """What `gymnasium.make` takes beside it."""
    actions: tuple[str, ...] = ()
    """A word for each action, in the order of their numbers; without, the numbers are what is said."""
    show: Literal["auto", "render", "observation"] = "auto"
    """What is shown: what it renders as text (`render_mode="ansi"`), or the observation; by default, the first if there
    is one and the observation is no text itself."""
    system: str | None = None
    """What the game is about; by default, which actions there are."""

    @field_validator("options")
    @classmethod
    def _has_no_own_options(cls, options: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if own := [name for name in _OWN_OPTIONS if name in options]:
            raise ValueError(f"{', '.join(own)} is set by the adapter")
        return options

    @field_validator("actions")
    @classmethod
    def _can_be_said(cls, actions: tuple[str, ...]) -> tuple[str, ...]:
        if bad := [word for word in actions if not word or word != word.strip(_AROUND_A_WORD)]:
            raise ValueError(f"{bad[0]!r} is no word for an action: it is empty, or begins or ends with punctuation")
        if len({*map(str.casefold, actions)}) < len(actions):
            raise ValueError("two actions have the same word")
        return actions


class GymnasiumText(Env):
    """Play an environment of Gymnasium: see it as text, and answer with an action.

    Exercises: what the environment does. Reward: `game`, what the environment gives. An action is what a reply ends
    with; a reply that ends with none changes nothing, and is told so. What a terminal shows in colour stands in
    brackets, with the name of the colour where there are several.
    """

    Config: ClassVar[type[EnvConfig]] = GymnasiumTextConfig
    default_limits: ClassVar[Limits] = Limits(max_steps=200)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        config: GymnasiumTextConfig = self.config
        self._game, self._renders = _make(config)
        space = _discrete(config.game, self._game.action_space)
        count, first = int(space.n), int(space.start)
        if config.actions and len(config.actions) != count:
            raise ConfigError(f"{config.game} has {count} actions, and {len(config.actions)} words for them are given")
        words = config.actions or tuple(map(str, range(first, first + count)))
        self._words = ", ".join(words)
        numbered = sorted(enumerate(words, first), key=lambda action: -len(action[1]))
        self._actions = {
            word.casefold(): number for number, word in numbered
        }  # of two that fit, the longer one is said

    def start(self) -> Turn:
        """Begin a game."""
        observation, _ = self._game.reset(seed=int(self.np_random.integers(2**31)))
        system = self.config.system or f"You play {self.config.game}. Answer with one action: {self._words}."
        return Turn(self._shown(observation), system=system)

    def respond(self, reply: Message) -> Turn:
        """Take the action that the reply ends with."""
        action = self._action(reply.content)
        if action is None:
            return Turn(f"That is no action. Answer with one action: {self._words}.", metrics={"illegal": 1.0})
        observation, reward, terminated, truncated, _ = self._game.step(action)
        return Turn(
            self._shown(observation),
            reward={"game": float(reward)},
            terminated=terminated,
            truncated=truncated and not terminated,
        )

    def close(self) -> None:
        """See `Env.close`."""
        try:
            self._game.close()
        finally:
            super().close()

    def _action(self, said: str) -> int | None:
        said = said.casefold().rstrip(_AROUND_A_WORD)
        for word, number in self._actions.items():
            before = said[-len(word) - 1 : -len(word)]
            if said.endswith(word) and not before.isalnum() and before not in ("-", "_", "."):
                return number
        return None

    def _shown(self, observation: Any) -> str:
        if self._renders:
            return _without_codes(str(self._game.render())).strip("\n")
        return observation if isinstance(observation, str) else to_json(observation, fallback=_plain).decode()


def _make(config: GymnasiumTextConfig) -> tuple[Any, bool]:
    """The environment, and whether it is rendered."""
    options: dict[str, Any] = {**config.options, "disable_env_checker": True}
    try:
        game: Any = gymnasium.make(config.game, **options)
        can_render = "ansi" in game.metadata.get("render_modes", ())
        if config.show == "render" and not can_render:
            raise ConfigError(f"{config.game} does not render as text; take show='observation'")
        by_default = can_render and not isinstance(game.observation_space, Text)
        if config.show == "observation" or not (config.show == "render" or by_default):
            return game, False
        game.close()
        return gymnasium.make(config.game, render_mode="ansi", **options), True
    except ConfigError:
        raise
    except Exception as error:  # a game is somebody else's code
        raise ConfigError(f"gymnasium cannot make {config.game!r} with {config.options}: {error}") from error


def _discrete(game: str, space: object) -> Any:
    if not isinstance(space, Discrete):
        raise ConfigError(f"{game} has the actions {space}; only numbered ones can be said (Discrete)")
    return cast("Any", space)


def _without_codes(picture: str) -> str:
    """A picture for a terminal as plain text. Colours may lie in each other."""
    is_only = len({*_CODE.findall(picture)}) < 2
    while (match := _COLOURED.search(picture)) is not None:
        mark = match[2] if is_only else f"{_colour(match[1])}:{match[2]}"
        picture = f"{picture[: match.start()]}[{mark}]{picture[match.end() :]}"
    return _ANY_CODE.sub("", picture)


def _colour(codes: str) -> str:
    """The name of the first colour, of text (30 to 37, bright 90 to 97) or behind it (40 to 47, 100 to 107)."""
    numbers = [int(code) for code in codes.split(";") if code and 30 <= int(code) < 110]
    return _COLOURS[numbers[0] % 10] if numbers else "bold"


def _plain(value: Any) -> Any:
    """What an observation has beside plain Python: numpy's numbers and arrays."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
