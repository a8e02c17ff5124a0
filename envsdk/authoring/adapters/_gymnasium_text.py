"""An environment that plays any Gymnasium environment with discrete actions as text."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import gymnasium
from gymnasium.spaces import Discrete, Text
from pydantic import Field, JsonValue, field_validator
from pydantic_core import to_json

from ...episodes._turn import Turn
from ...errors import ConfigError
from ...limits import Limits
from ...messages import Message
from .._env import Env, EnvConfig
from .._trust import NeedsTrust

_CODE = re.compile(r"\x1b\[([1-9][0-9;]*)m")
_COLORED = re.compile(_CODE.pattern + r"([^\x1b]*)\x1b\[0?m")
_ANY_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_COLORS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson", "default")  # codes 30 to 39
_AROUND_A_WORD = " \t\r\n.,:;!?*\"'`()[]"
_OWN_OPTIONS = ("id", "render_mode", "disable_env_checker")


class GymnasiumConfig(EnvConfig):
    """The Gymnasium environment, and how the model names its actions."""

    game: Annotated[str, NeedsTrust("imports")]
    """The Gymnasium id of the environment, such as `"FrozenLake-v1"`."""
    options: Annotated[dict[str, JsonValue], NeedsTrust("paths")] = Field(default_factory=dict[str, JsonValue])
    """Further arguments of `gymnasium.make`."""
    actions: tuple[str, ...] = ()
    """A word for each action, in the order of their numbers. By default, the words are the numbers."""
    system: str | None = None
    """The system message. By default, it lists the actions."""

    @field_validator("options")
    @classmethod
    def _has_no_own_options(cls, options: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if own := [name for name in _OWN_OPTIONS if name in options]:
            raise ValueError(f"{', '.join(own)} is set by the adapter; remove it from options")
        return options

    @field_validator("actions")
    @classmethod
    def _can_be_said(cls, actions: tuple[str, ...]) -> tuple[str, ...]:
        if bad := [word for word in actions if not word or word != word.strip(_AROUND_A_WORD)]:
            raise ValueError(
                f"{bad[0]!r} is not valid as a word for an action: it is empty, or has punctuation at an end"
            )
        if len({*map(str.casefold, actions)}) < len(actions):
            raise ValueError("two actions have the same word; expected different ones, regardless of case")
        return actions


class GymnasiumTextConfig(GymnasiumConfig):
    """The Gymnasium environment, and how it is converted to text."""

    show: Literal["auto", "render", "observation"] = "auto"
    """The content of messages: the rendered text (`render_mode="ansi"`), or the observation. `auto` renders if the
    environment can render text and its observations are not strings."""


class GymnasiumText(Env):
    """Play a Gymnasium environment: see its state as text, and answer with an action.

    Exercises: the skills that the Gymnasium environment needs. Reward: `game`, the environment's own reward. A reply
    ends with its action. A reply that does not end with an action changes nothing, and the model is asked again.
    Text that a terminal shows in color is written in brackets, with the name of the color if there are several.
    """

    Config: ClassVar[type[EnvConfig]] = GymnasiumTextConfig
    default_limits: ClassVar[Limits] = Limits(max_steps=200)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        config: GymnasiumConfig = self.config
        self._game, self._renders = self._made()
        space: Any = self._game.action_space
        if not isinstance(self._game.action_space, Discrete):
            raise ConfigError(f"{config.game} has the action space {space}; expected Discrete")
        count, first = int(space.n), int(space.start)
        if config.actions and len(config.actions) != count:
            raise ConfigError(
                f"{config.game} has {count} actions, but `actions` has {len(config.actions)} words; expected {count}"
            )
        words = config.actions or tuple(map(str, range(first, first + count)))
        self._words = ", ".join(words)
        self._actions = {word: number for number, word in enumerate(words, first)}

    def start(self) -> Turn:
        """Start a game."""
        observation, _ = self._game.reset(seed=int(self.np_random.integers(2**31)))
        system = self.config.system or f"You play {self.config.game}. Answer with one action: {self._words}."
        return Turn(self._seen(observation), system=system)

    def respond(self, reply: Message) -> Turn:
        """Perform the action at the end of the reply."""
        action = action_at_end(reply.content, self._actions)
        if action is None:
            return Turn(f"That is no action. Answer with one action: {self._words}.", metrics={"illegal": 1.0})
        observation, reward, terminated, truncated, _ = self._game.step(action)
        return Turn(
            self._seen(observation),
            reward={"game": float(reward)},
            terminated=terminated,
            truncated=truncated and not terminated,
        )

    def _made(self) -> tuple[Any, bool]:
        """Create the environment, and return it with whether it is rendered."""
        config: GymnasiumTextConfig = self.config
        game = created(config)
        can_render = "ansi" in game.metadata.get("render_modes", ())
        if config.show == "render" and not can_render:
            raise ConfigError(f"{config.game} does not render as text; expected show='observation'")
        by_default = can_render and not isinstance(game.observation_space, Text)
        if config.show == "observation" or not (config.show == "render" or by_default):
            return game, False
        game.close()
        return created(config, render_mode="ansi"), True

    def close(self) -> None:
        """Close the Gymnasium environment; see `Env.close`."""
        try:
            self._game.close()
        finally:
            super().close()

    def _seen(self, observation: Any) -> Message:
        """Return the message that shows the state."""
        if self._renders:
            text = _without_codes(str(self._game.render())).strip("\n")
        else:
            text = observation if isinstance(observation, str) else as_json(observation)
        return Message(role="user", content=text)


def created(config: GymnasiumConfig, **options: Any) -> Any:
    """Create the Gymnasium environment.

    Args:
        config: Its id and its own options.
        **options: Further arguments of `gymnasium.make`.

    Raises:
        ConfigError: If it cannot be created.
    """
    try:
        return gymnasium.make(config.game, **config.options, **options, disable_env_checker=True)
    except Exception as error:  # the environment is third-party code, which may raise anything
        raise ConfigError(f"gymnasium cannot create {config.game!r} with {config.options}: {error}") from error


def action_at_end(reply: str, actions: Mapping[str, Any]) -> Any:
    """Return the action whose word is at the end of a reply, or None.

    Args:
        reply: The reply. Case, and punctuation and white space at its end, do not matter.
        actions: The actions by word.
    """
    text = reply.casefold().rstrip(_AROUND_A_WORD)
    # Longer words come first, because a reply may end with two words of which one ends with the other.
    for word in sorted(actions, key=len, reverse=True):
        end = word.casefold()
        before = text[-len(end) - 1 : -len(end)]
        if text.endswith(end) and not before.isalnum() and before not in ("-", "_", "."):
            return actions[word]
    return None


def _without_codes(picture: str) -> str:
    """Convert text with terminal escape codes to plain text. Colors may be nested.

    A color is named by its first code: of text (30 to 37, 90 to 97) or background (40 to 47, 100 to 107).
    """
    is_only = len({*_CODE.findall(picture)}) < 2
    while (match := _COLORED.search(picture)) is not None:
        codes = [int(code) for code in match[1].split(";") if code and 30 <= int(code) < 110]
        color = _COLORS[codes[0] % 10] if codes else "bold"
        mark = match[2] if is_only else f"{color}:{match[2]}"
        picture = f"{picture[: match.start()]}[{mark}]{picture[match.end() :]}"
    return _ANY_CODE.sub("", picture)


def as_json(observation: Any) -> str:
    """Return an observation as JSON, with numpy's numbers and arrays as plain ones."""
    return to_json(observation, fallback=_plain).decode()


def _plain(value: Any) -> Any:
    """Convert a value that is not plain Python, such as a numpy number or array."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
