"""The games of TextArena, with their players as contexts.

There are three differences to the package itself. First, a game draws from its own random state; in the package, all
games share Python's global generator. Second, a player reads only what is new to it. Third, a puzzle scores 1 if it is
solved, else 0; the package gives partial credit, also for a puzzle that a reply without any move has ended.
"""

from typing import Any, ClassVar

from pydantic import Field

from ..._packages import load
from ...errors import ConfigError
from .._env import EnvConfig
from ._players import Players, PlayersConfig
from ._random_state import GlobalRandom

_GRADED = ("BlackjackEnv", "SetEnv")
"""Games of one player whose score is a share or a number, and not whether a puzzle is solved."""
_MOST_PLAYERS = 15
_ADVICE = "pip install textarena==0.7.4"


class _Eliminated(list[int]):
    """The players that a game has eliminated. Some games look for the next player forever if none is left."""

    asked = 0

    def __contains__(self, player: object) -> bool:
        is_in = super().__contains__(player)
        self.asked = self.asked + 1 if is_in else 0
        if self.asked > 1000:
            raise RuntimeError("no player is left")
        return is_in


class TextArenaConfig(PlayersConfig):
    """The game, and who plays it."""

    players: int | None = Field(default=None, ge=1, le=_MOST_PLAYERS)
    """The number of players. By default, two if the game accepts that, else the lowest number that it accepts."""
    strict: bool = True
    """Whether a puzzle scores 1 if it is solved, else 0. False gives the game's own reward, with partial credit."""


class TextArena(Players):
    """Play a game of TextArena: `TextArena(game="TicTacToe-v0")`. Its players are the contexts `player0`, `player1`...

    Exercises: the skills that the game needs; self-play. Reward: a player's own reward from the game, usually 1 for the
    winner and -1 for the others; with one player, `game`, 1 if the puzzle is solved. A move that breaks the rules is
    what the game makes of it: usually, the player is asked again once, and then loses.

    Raises:
        MissingPackage: If `textarena` is not installed.
        UnknownName: If there is no such game.
        ConfigError: If the game cannot be made, or does not accept that number of players.
    """

    Config: ClassVar[type[EnvConfig]] = TextArenaConfig
    _game: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        config: TextArenaConfig = self.config
        self._count = self._accepted()
        names = [f"player{number}" for number in range(self._count)]
        self._check_players(names, is_strict=self._count == 1 and config.strict and not self._is_graded())

    def _accepted(self) -> int:
        """Return the number of players, after a game with that number was started."""
        config: TextArenaConfig = self.config
        reasons: list[Exception] = []
        for count in (2, 1, *range(3, _MOST_PLAYERS + 1)) if config.players is None else (config.players,):
            with GlobalRandom(0).active():
                game = self._made()
                try:
                    game.reset(num_players=count, seed=0)
                    return count
                except Exception as error:  # games report a wrong number in any way
                    reasons.append(error)
        raise ConfigError(
            f"{config.game} cannot be started with {config.players or 'any number of'} players: {reasons[0]}"
        ) from reasons[0]

    def _made(self) -> Any:
        package = load("textarena", "an environment of TextArena needs", _ADVICE)
        return self._registered("TextArena", package.envs.registration.ENV_REGISTRY, package.make)

    def _begin(self, seed: int) -> None:
        self._game, self._crash = self._made(), ""
        self._game.reset(num_players=self._count, seed=seed)
        if hasattr(self._game.state, "elimination_order"):
            self._game.state.elimination_order = _Eliminated()

    def _turn(self) -> str | None:
        state = self._game.state
        return None if state.done or self._crash else f"player{state.current_player_id}"

    def _observed(self, player: str) -> str:
        if self._crash:
            return self._crash
        number = int(player.removeprefix("player"))
        game: Any = self._game
        while hasattr(game.__class__, "is_wrapped_with"):  # its wrappers repeat what a player has already read
            game = game.env
        if game.state.done:
            messages = [*game.state.observations[number], (-1, game.state.game_info[number].get("reason") or "", None)]
        else:
            _, messages = game.get_observation()
        return "\n".join(
            f"[{game.state.role_mapping.get(sender, f'Player {sender}')}] {text}"
            for sender, text, kind in messages
            if text and not (sender == number and getattr(kind, "name", "") == "PLAYER_ACTION")
        )

    def _move(self, reply: str) -> dict[str, float]:
        state = self._game.state
        player = state.current_player_id
        info = state.game_info[player]
        errors, was_wrong = getattr(state, "error_count", 0), info["invalid_move"]
        try:
            is_over, _ = self._game.step(action=reply)
        except Exception as error:  # such as a reply of 5,000 digits, or an index that the game does not check
            self._crash = f"[GAME] The game cannot process this reply ({type(error).__name__}: {error})."
            for number, one in state.game_info.items():
                if self._count > 1 and (number == player or one["invalid_move"]):
                    self._rewards[f"player{number}"] = -1.0
            self._is_fair = False
            return {"illegal": 1.0, "crashed": 1.0}
        if is_over:
            ended: tuple[dict[int, float] | None, dict[int, Any]] = self._game.close()
            rewards, infos = ended
            self._rewards.update({f"player{number}": self._scored(value) for number, value in (rewards or {}).items()})
            self._is_fair = not any(one["invalid_move"] for one in infos.values())
        is_wrong = (info["invalid_move"] and not was_wrong) or getattr(state, "error_count", 0) > errors
        return {"illegal": 1.0} if is_wrong else {}

    def _scored(self, reward: Any) -> float:
        """Return the reward of a player: the game's, or whether a puzzle is solved."""
        config: TextArenaConfig = self.config
        if isinstance(reward, str):  # four games give the reason of an illegal move as its reward
            return 0.0
        if self._count > 1 or not config.strict:
            return float(reward)
        if self._game.state.game_info[0]["invalid_move"]:
            return 0.0
        return float(reward) if self._is_graded() else float(reward >= 1)

    def _is_graded(self) -> bool:
        known: dict[str, Any] = load("textarena.envs.registration", "TextArena needs", _ADVICE).ENV_REGISTRY
        return str(known[self.config.game].entry_point).rpartition(":")[2] in _GRADED
