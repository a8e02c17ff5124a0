"""The games of GEM, one player in each.

There are two differences to the package itself. First, a game draws from its own random state; in the package, all
share the global generators. Second, a game scores 1 if it is won, else 0; the package also rewards single moves, and a
game that is not won.
"""

from typing import Any, ClassVar

from ..._packages import load
from ...errors import ConfigError
from .._env import EnvConfig
from ._players import Players, PlayersConfig
from ._random_state import GlobalRandom

_KIND = "game:"
_INSTEAD = {"rg": "envsdk.adapters.ReasoningGym", "eval": "envsdk.adapters.Dataset with the data set and a scorer"}


class GemConfig(PlayersConfig):
    """The game."""

    strict: bool = True
    """Whether a game scores 1 if it is won, else 0. False gives the game's own rewards, also those of single moves."""


class Gem(Players):
    """Play a game of GEM: `Gem(game="game:GuessTheNumber-v0-easy")`.

    Exercises: the skills that the game needs. Reward: `game`, 1 if the game is won, else 0. The metric `game_reward` is
    the game's own reward for each reply.

    Raises:
        MissingPackage: If `gem-llm`, or what it imports, is not installed.
        UnknownName: If there is no such game.
        ConfigError: If the game cannot be made, or the environment is not a game.
    """

    Config: ClassVar[type[EnvConfig]] = GemConfig
    _game: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        config: GemConfig = self.config
        self._check_players(["main"], is_strict=config.strict)
        with GlobalRandom(0).active():
            self._made()

    def _made(self) -> Any:
        config: GemConfig = self.config
        advice = "pip install --no-deps gem-llm==0.1.0, and reasoning-gym, which it imports"
        package = load("gem", "an environment of GEM needs", advice)
        known: dict[str, Any] = load("gem.envs.registration", "an environment of GEM needs", advice).ENV_REGISTRY
        if config.game in known and not config.game.startswith(_KIND):
            instead = _INSTEAD.get(config.game.partition(":")[0], _INSTEAD["eval"])
            raise ConfigError(f"{config.game} asks one question of a data set, and is not a game: use {instead}")
        return self._registered("GEM", known, package.make)

    def _begin(self, seed: int) -> None:
        self._game = self._made()
        text, info = self._game.reset(seed=seed)
        self._text, self._is_over = "\n".join(filter(None, (text, info.get("suffix")))), False

    def _turn(self) -> str | None:
        return None if self._is_over else "main"

    def _observed(self, player: str) -> str:
        return self._text

    def _move(self, reply: str) -> dict[str, float]:
        config: GemConfig = self.config
        text, reward, terminated, truncated, info = self._game.step(reply)
        self._is_over = bool(terminated or truncated)
        self._text = text if self._is_over else "\n".join(filter(None, (text, info.get("suffix"))))
        # All games tell a player in this way that it has won.
        is_won = terminated and not truncated and text.startswith("Congratulations")
        self._rewards["main"] += float(is_won) if config.strict else float(reward)
        return {"game_reward": float(reward)} | ({"illegal": 1.0} if reward < 0 else {})
