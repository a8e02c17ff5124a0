"""Games of other packages whose players are the contexts of one environment.

A player reads what it observed since its last turn. A policy plays each player, or a function plays some of them.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, ImportString, JsonValue, field_serializer

from ..._visible import brief, shorten
from ...episodes._turn import Turn
from ...errors import ConfigError, UnknownName
from ...limits import Limits
from ...messages import Message
from .._env import Env, EnvConfig
from .._trust import NeedsTrust
from ._dataset import path_of
from ._random_state import GlobalRandom

_OVER = "The game is over."
_MOST_GAMES = 100
_MOST_CHARACTERS = 10_000
"""The game reads this many characters at the end of a reply. A few games take seconds for more."""


class PlayersConfig(EnvConfig):
    """The game, and who plays it."""

    game: Annotated[str, NeedsTrust("imports")]
    """The game."""
    options: Annotated[dict[str, JsonValue], NeedsTrust("paths")] = Field(default_factory=dict[str, JsonValue])
    """Further arguments with which the package makes the game."""
    opponents: dict[str, ImportString[Callable[[list[Message], np.random.Generator], str]]] = Field(
        default_factory=dict[str, Any]
    )
    """The players that a policy does not play: for each name, a function `opponent(messages, rng)`, or its import path.
    It gets the player's conversation, a list of `Message`, and a `numpy.random.Generator`, and returns the reply."""
    system: str | None = None
    """The system message of each player."""

    @field_serializer("opponents")
    def _where(self, opponents: dict[str, Any]) -> dict[str, str]:
        return {name: path_of(opponent) for name, opponent in opponents.items()}


class Players(Env):
    """A game of another package. A subclass starts it, says whose turn it is, and performs moves.

    If a policy plays one player, the episode's reward is that player's, `game`. If it plays several, each context has
    its player's reward, and the episode's own reward is `played`: 1 if the game ended, and no player broke its rules.
    """

    Config: ClassVar[type[EnvConfig]] = PlayersConfig
    # A reply that was cut off is a move like any other. It must not end a game without a loss.
    default_limits: ClassVar[Limits] = Limits(max_steps=200, end_on_cut=False)

    def start(self) -> Turn:
        """Start a game, and another one if the opponents end it before the policy's first move."""
        for _ in range(_MOST_GAMES):
            seeds: list[int] = self.np_random.integers(2**31, size=3).tolist()
            self._seeds = seeds
            self._random = GlobalRandom(seeds[0])
            self._opponents_rng = np.random.default_rng(seeds[1])
            self._heard: dict[str, list[Message]] = {}  # the conversation of each player that is an opponent
            self._met: dict[str, None] = {}  # the contexts that exist
            self._rewards: dict[str, float] = defaultdict(float)  # those not yet given
            self._is_fair = True
            with self._random.active():
                self._begin(seeds[2])
            turn = self._ask()
            if not (turn.terminated or turn.truncated):
                return turn
        raise ConfigError(
            f"the opponents ended {_MOST_GAMES} games of {self.config.game} before the policy's first move"
        )

    def respond(self, reply: Message) -> Turn:
        """Perform a move, and those of the opponents that follow it."""
        with self._random.active():
            metrics = self._move(reply.content[-_MOST_CHARACTERS:])
        return self._ask(metrics)

    def close(self) -> None:
        """Close the game; see `Env.close`."""
        try:
            self._end()
        finally:
            super().close()

    def _begin(self, seed: int) -> None:
        """Make and start a new game."""
        raise NotImplementedError

    def _turn(self) -> str | None:
        """Return the player whose turn it is, or None if the game is over."""
        raise NotImplementedError

    def _observed(self, player: str) -> str:
        """Return what a player observed since its last turn."""
        raise NotImplementedError

    def _move(self, reply: str) -> dict[str, float]:
        """Perform a move of the player whose turn it is. Add to `_rewards`, and return metrics: `illegal` is 1.0."""
        raise NotImplementedError

    def _end(self) -> None:
        """Close the game, if there is one."""

    def _registered(self, package: str, known: Mapping[str, Any], make: Callable[..., Any]) -> Any:
        """Make the game, which is registered in a package.

        Raises:
            UnknownName: If the package does not have it.
            ConfigError: If it cannot be made.
        """
        config: PlayersConfig = self.config
        if config.game not in known:
            raise UnknownName.of(f"game of {package}", config.game, known)
        try:
            return make(config.game, **config.options)
        except Exception as error:  # a game is third-party code, which may raise anything
            reason = " ".join(str(error).replace("*", "").split())
            raise ConfigError(
                f"{package} cannot make {config.game!r} with {config.options}: {shorten(reason, 300)}"
            ) from error

    @property
    def _is_truncated(self) -> bool:
        """Whether the game was cut off."""
        return False

    def _check_players(self, names: Sequence[str], *, is_strict: bool = False) -> None:
        """Raise a `ConfigError` unless some of the players, but not all, may be opponents.

        Args:
            names: The players.
            is_strict: Whether a game of one player scores 0 to 1.
        """
        config: PlayersConfig = self.config
        if unknown := [name for name in config.opponents if name not in names]:
            raise ConfigError(f"{config.game} has no player {unknown[0]!r}; its players are {', '.join(names)}")
        if len(config.opponents) == len(names):
            raise ConfigError(f"opponents names all players of {config.game}; leave out those that a policy plays")
        self._is_alone = len(names) - len(config.opponents) == 1
        self._first = next(name for name in names if name not in config.opponents)
        if not self._is_alone or is_strict:
            self.reward_range = (0.0, 1.0)  # pyright: ignore[reportAttributeAccessIssue]

    def _ask(self, metrics: dict[str, float] | None = None) -> Turn:
        """Let the opponents play, and ask the next player for its move, or end the game."""
        config: PlayersConfig = self.config
        while (player := self._turn()) in config.opponents:
            self._play_opponent(player)
        is_over = player is None
        if player is None:
            player = self.context if self._met else self._first
        with self._random.active():
            text = self._observed(player) or _OVER
        reward, rewards = {}, {}
        if self._is_alone and self._met:
            reward = {"game": self._rewards.pop(player, 0.0)}
        elif self._met:
            rewards = {name: self._rewards.pop(name, 0.0) for name in self._met}
            reward = {"played": float(self._is_fair)} if is_over else {}
        system = None if player in self._met else config.system
        self._met[player] = None
        return Turn(
            text,
            system=system,
            context=player,
            reward=reward or 0.0,
            context_rewards=rewards,
            metrics=metrics,
            terminated=is_over and not self._is_truncated,
            truncated=is_over and self._is_truncated,
        )

    def _play_opponent(self, player: str) -> None:
        opponent = self.config.opponents[player]
        heard = self._heard.setdefault(player, [])
        with self._random.active():
            heard.append(Message(role="user", content=self._observed(player) or "Your move."))
        reply = opponent(list(heard), self._opponents_rng)
        if not isinstance(reply, str):
            raise ConfigError(f"the opponent {path_of(opponent)} returned {brief(reply)}; expected a string")
        heard.append(Message(role="assistant", content=reply))
        with self._random.active():
            self._move(reply[-_MOST_CHARACTERS:])
