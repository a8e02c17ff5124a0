"""A card game for two players, in which each has its own context, and a card that the other does not see."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self, TypeAlias

from pydantic import BaseModel, Field, model_validator

from envsdk import Env, EnvConfig, Limits, Message, Turn

from ._scoring import TaskData, last_word

Moves: TypeAlias = tuple[str, ...]

PLAYERS: tuple[str, str] = ("player0", "player1")
MAX_CARD = 99
MOST_CHIPS = 2
"""The maximum number of chips that a player can lose in a hand: the ante and a bet."""
LEGAL: Mapping[Moves, tuple[str, str]] = {
    (): ("check", "bet"),
    ("check",): ("check", "bet"),
    ("bet",): ("fold", "call"),
    ("check", "bet"): ("fold", "call"),
}
"""The legal moves after the moves of a hand: the careful one and the bold one."""
OPTIMAL: Mapping[Moves, tuple[float, float, float]] = {
    (): (1 / 3, 0.0, 1.0),
    ("check",): (1 / 3, 0.0, 1.0),
    ("bet",): (0.0, 1 / 3, 1.0),
    ("check", "bet"): (0.0, 2 / 3, 1.0),
}
"""The probability of the bold move with the lowest, middle and highest card, in an equilibrium of the game.

Source: H. W. Kuhn, "A simplified two-person poker", 1950. Of the first player's optimal strategies, this one bets most.
The player who acts first loses 1/18 chip per hand.
"""
_SYSTEM = (
    "You are playing poker against another player, for {} hands. There are three cards, and the highest one wins. In "
    "each hand, both players pay one chip and are dealt one card, which the other player does not see. The player who "
    "acts first may check or bet one chip. After a check, the other player may also check or bet. A player who faces a "
    "bet may fold, or call it with one chip. The players take turns acting first. Answer with one word: check, bet, "
    "fold or call."
)
_NOTHING: Mapping[str, float] = {}
_PAST = {"fold": "folded", "call": "called", "check": "checked", "bet": "bet"}


class KuhnPokerConfig(EnvConfig):
    """The length of a match."""

    hands: int = Field(default=4, ge=1, le=100)
    """The number of hands. In an even number, both players act first equally often."""
    max_bad_replies: int = Field(default=1, ge=0)
    """The maximum number of illegal replies in a row that are answered with the legal moves; one more loses the match.
    """
    split: Literal["train", "test"] = "train"
    """No deck is in matches of both splits."""


class KuhnPokerTask(TaskData):
    """The deck of a match, and the cards that are dealt in each hand."""

    deck: tuple[int, int, int]
    """The three cards, from the lowest to the highest."""
    deals: tuple[tuple[int, int], ...] = Field(min_length=1)
    """For each hand, the indices in the deck (0, 1 or 2) of the first player's card and of the other's."""

    @model_validator(mode="after")
    def _can_be_played(self) -> Self:
        if not self.deck[0] < self.deck[1] < self.deck[2]:
            raise ValueError(f"the deck is {self.deck}; expected three cards in ascending order")
        wrong = [deal for deal in self.deals if deal[0] == deal[1] or not {*deal} <= {0, 1, 2}]
        if wrong:
            raise ValueError(f"the deal {wrong[0]} is not two different cards of 0, 1 and 2")
        return self


class KuhnPoker(Env):
    """Play a match of Kuhn poker against yourself, or against another policy.

    Exercises: self-play with hidden information. The players are the contexts `player0` and `player1`, because neither
    may see the other's card and reasoning; each is one sample. One policy plays both, or each player has its own:
    `rollout(env, {"player0": policy, "player1": "reference"})`. The reference policy plays an equilibrium: no policy
    wins against it in the long run.

    Reward: each context has its own reward from -1 to 1, the chips that it won as a share of the maximum; they sum to
    0. A player who makes two illegal replies in a row loses the match: -1, and 1 for the other player if it has acted.
    The episode's own reward, `played`, is 1 for a match that is played to its end; it belongs to no player.
    """

    Config: ClassVar[type[EnvConfig]] = KuhnPokerConfig
    Task: ClassVar[type[BaseModel] | None] = KuhnPokerTask
    # A reply that was cut off is an illegal move. It must not end the match without a loss.
    default_limits: ClassVar[Limits] = Limits(end_on_cut=False)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def start(self) -> Turn:
        """Deal the first hand."""
        config: KuhnPokerConfig = self.config
        if self.task is None:  # the sum of the deck decides the split
            deck: list[int] = []
            while not deck or (sum(deck) % 5 == 0) != (config.split == "test"):
                deck = [card + 1 for card in sorted(self.np_random.choice(MAX_CARD, size=3, replace=False).tolist())]
            deals = [self.np_random.permutation(3).tolist()[:2] for _ in range(config.hands)]
            self.match = KuhnPokerTask.model_validate({"deck": deck, "deals": deals})
        else:
            self.match = self.task
        self.won = [0.0, 0.0]
        self.bad_replies = 0
        self.news: list[list[str]] = [[], []]
        """The news that each player will read when it is its turn."""
        self.met: set[str] = set()
        self.hand = -1
        self._deal()
        return self._ask()

    def respond(self, reply: Message) -> Turn:
        """Apply a move. At the end of a hand, score it, and start the next one or end the match."""
        move = last_word(reply.content.casefold()).strip(".,!*\"'")
        if move not in LEGAL[self.moves]:
            return self._refuse()
        self.bad_replies = 0
        self.news[1 - self.player].append(f"They {_PAST[move]}.")
        self.moves = (*self.moves, move)
        if self.moves in LEGAL:
            return self._ask()
        first = self.hand % 2
        gain = first_players_gain((self.cards[first], self.cards[1 - first]), self.moves)
        gains = (gain, -gain) if first == 0 else (-gain, gain)
        for player, news in enumerate(self.news):
            shown = "" if self.moves[-1] == "fold" else f"They had {self._card(1 - player)}. "
            chips = "1 chip" if abs(gain) == 1 else f"{abs(gain)} chips"
            news.append(f"{shown}You {'win' if gains[player] > 0 else 'lose'} {chips}.")
        shares = [chips / (MOST_CHIPS * len(self.match.deals)) for chips in gains]
        self.won = [won + share for won, share in zip(self.won, shares, strict=True)]
        rewards: dict[str, float] = dict(zip(PLAYERS, shares, strict=True))
        metrics = {"hands": 1.0}
        if self.hand + 1 < len(self.match.deals):
            self._deal()
            return self._ask(rewards, metrics)
        text = " ".join(self.news[PLAYERS.index(self.context)])
        return Turn(text, reward={"played": 1.0}, context_rewards=rewards, metrics=metrics, terminated=True)

    @property
    def player(self) -> int:
        """The index of the player whose turn it is, 0 or 1."""
        return (self.hand + len(self.moves)) % 2

    def reference_reply(self) -> Message:
        """Play an equilibrium."""
        card = self.cards[self.player]
        is_bold = self.chances[len(self.moves)] < OPTIMAL[self.moves][card]
        reasoning = f"I have the {('lowest', 'middle', 'highest')[card]} card."
        return Message(role="assistant", reasoning=reasoning, content=LEGAL[self.moves][is_bold])

    def _deal(self) -> None:
        """Begin the next hand."""
        self.hand += 1
        self.moves: Moves = ()
        deal = self.match.deals[self.hand]
        self.cards = deal if self.hand % 2 == 0 else deal[::-1]  # indexed by player
        self.chances: list[float] = self.np_random.random(3).tolist()  # what the reference policy draws from
        for player, news in enumerate(self.news):
            news.append(f"Hand {self.hand + 1} of {len(self.match.deals)}. Your card is {self._card(player)}.")

    def _ask(self, rewards: Mapping[str, float] = _NOTHING, metrics: Mapping[str, float] = _NOTHING) -> Turn:
        """Ask the player whose turn it is for a move."""
        name = PLAYERS[self.player]
        careful, bold = LEGAL[self.moves]
        news, self.news[self.player] = self.news[self.player], []
        text = " ".join([*news, f"{careful.title()} or {bold}?"])
        system = None
        if name not in self.met:
            low, middle, high = self.match.deck
            system = _SYSTEM.format(len(self.match.deals))
            text = f"The cards are {low}, {middle} and {high}. {text}"
            self.met.add(name)
        return Turn(text, system=system, context=name, context_rewards=rewards, metrics=metrics)

    def _refuse(self) -> Turn:
        """Answer an illegal move with the legal ones, or end the match."""
        self.bad_replies += 1
        if self.bad_replies <= self.config.max_bad_replies:
            careful, bold = LEGAL[self.moves]
            return Turn(f"That is not a legal move. {careful.title()} or {bold}?", metrics={"illegal": 1.0})
        loser, winner = self.player, 1 - self.player
        rewards = {PLAYERS[loser]: -1.0 - self.won[loser], PLAYERS[winner]: 1.0 - self.won[winner]}
        # A player who has not acted has no context.
        met = {name: reward for name, reward in rewards.items() if name in self.met}
        return Turn(
            "That is not a legal move. You lose the match.",
            reward={"played": 0.0},
            context_rewards=met,
            metrics={"illegal": 1.0},
            terminated=True,
        )

    def _card(self, player: int) -> int:
        return self.match.deck[self.cards[player]]


def first_players_gain(cards: tuple[int, int], moves: Moves) -> int:
    """Return how many chips the player who acted first has won.

    Args:
        cards: The card of the player who acted first, and the other's, as indices in the deck.
        moves: The moves of a hand that has ended.
    """
    if moves[-1] == "fold":
        return -1 if len(moves) % 2 else 1
    chips = MOST_CHIPS if moves[-1] == "call" else 1
    return chips if cards[0] > cards[1] else -chips
