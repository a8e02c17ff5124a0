"""The real games of TextArena, PettingZoo and GEM: rewards, players, random state, hostile replies."""

import copy
import json
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from pettingzoo.utils.env import ParallelEnv

import envsdk
from envsdk import Env, Message, Turn
from envsdk.adapters import Gem, PettingZoo, TextArena, to_pettingzoo
from envsdk.credit import context_rewards
from envsdk.errors import ConfigError, MissingPackage, UnknownName
from envsdk.policies import ReplyPolicy
from envsdk.rollouts import rollout_many
from envsdk.testing import check_env

with warnings.catch_warnings():  # it imports an environment in a way that PettingZoo no longer recommends
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import api_test
    from pettingzoo.test.example_envs import generated_agents_parallel_v0

DOCS = Path(__file__).parents[3] / "docs" / "adapters"
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
CHECKED: dict[str, list[str]] = {
    "TextArena": ["2048-v0-ultra-easy", "Battleship-v0", "Crosswords-v0", "LightsOut-v0", "SpiteAndMalice-v0"],
    "PettingZoo": [
        "classic/tictactoe_v3",
        "classic/connect_four_v3",
        "classic/leduc_holdem_v4",
        "classic/texas_holdem_v4",
        "classic/rps_v2",
        "pettingzoo.test.example_envs.generated_agents_env_v0",
        "pettingzoo.test.example_envs.generated_agents_parallel_v0",
    ],
    "Gem": [
        "game:Sudoku-v0-easy",
        "game:Game2048-v0-easy",
        "game:Sokoban-v0-easy",
        "game:FifteenPuzzle-v0-hard",
        "game:TowerofHanoi-v0-random",
    ],
}
SAME_OPENING = {"classic/tictactoe_v3", "classic/connect_four_v3", "classic/rps_v2"}
"""Games whose first observation is the same for every seed. A subclass declares it, as the page says."""


class OneOpening(PettingZoo):
    """A game that always begins in the same way."""

    n_tasks = 1


@pytest.fixture(params=[(kind, game) for kind, games in CHECKED.items() for game in games], ids=lambda pair: pair[1])
def registered(request: pytest.FixtureRequest) -> Iterator[str]:
    kind, game = request.param
    name = f"tests/{re.sub('[^A-Za-z0-9]', '', game)}-v0"
    path = OneOpening if game in SAME_OPENING else f"envsdk.adapters:{kind}"
    envsdk.register_env(name, path, kwargs={"game": game})
    yield name
    del gymnasium.registry[name]
    del envsdk._registry._envs[name]


def by_examples(env: Env, seed: int) -> ReplyPolicy:
    """Replies that are in brackets somewhere in what a player has read."""
    rng = np.random.default_rng(seed)

    def reply(acting: Env) -> str:
        read = "\n".join(message.content for message in acting.messages() if message.role == "user")
        shown = [text for text in re.findall(r"\[[^\[\]\n]{1,20}\]", read) if not re.match(r"\[(GAME|Player)", text)]
        return str(rng.choice([*shown, f"[{rng.integers(9)}]"]))

    return ReplyPolicy(env, reply)


def any_action(messages: list[Message], rng: np.random.Generator) -> str:
    return str(rng.choice(messages[-1].content.rsplit("one of: ", 1)[1].rstrip(".").split(", ")))


def played(env: Env, *replies: str, seed: int = 0) -> Any:
    rest = iter(replies)
    return envsdk.rollout(env, ReplyPolicy(env, lambda acting: next(rest)), seed=seed)


def read_by(trajectory: Any, context: str) -> list[str]:
    return [message.content for message in trajectory.contexts[context].messages if message.role == "user"]


# All three.


def test_the_games_pass_every_check(registered: str):
    check_env(registered, seeds=3).raise_if_failed()


@pytest.mark.parametrize(
    "game", ["classic/tictactoe_v3", "classic/leduc_holdem_v4", "pettingzoo.classic.texas_holdem_v4"]
)
def test_a_fork_of_a_game_continues_where_it_was(game: str):
    """PettingZoo's own copies begin anew."""
    env = PettingZoo(game=game)
    rng = np.random.default_rng(0)
    for seed in range(4):
        env.reset(seed=seed)
        turn = env.respond(Message(role="assistant", content=any_action(env.messages(), rng)))
        env.last = turn
        if turn.terminated:
            continue
        copied = copy.deepcopy(env)
        action = any_action(turn.messages, rng)
        turns = [one.respond(Message(role="assistant", content=action)) for one in (env, copied)]
        assert turns[0].messages == turns[1].messages
        assert turns[0].context_rewards == turns[1].context_rewards
        assert not any(turn.metrics for turn in turns)


DIGEST = """
import hashlib, json, sys
sys.path.insert(0, {folder!r})
import warnings; warnings.simplefilter("ignore")
import envsdk
from test_games import by_examples
from envsdk.adapters import TextArena, PettingZoo
for game in sys.argv[1:]:
    env = TextArena(game=game)
    found = [envsdk.rollout(env, by_examples(env, seed), seed=seed) for seed in range(3)]
    read = [[m.content for c in t.contexts.values() for m in c.messages] + [t.reward] for t in found]
    print(game, hashlib.sha1(json.dumps(read).encode()).hexdigest())
"""


def test_the_same_seed_is_the_same_game_in_another_process_with_another_hash_seed():
    games = ["Golf-v0", "Set-v0", "SecretMafia-v0", "Snake-v0", "Blackjack-v0", "SettlersOfCatan-v0", "Sokoban-v0"]
    program = DIGEST.format(folder=str(Path(__file__).parent))
    printed = {
        subprocess.run(
            [sys.executable, "-c", program, *games],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
    assert len(printed.pop().splitlines()) == len(games)


@pytest.mark.parametrize(
    "make",
    [lambda: TextArena(game="Blackjack-v0"), lambda: Gem(game="game:Game2048-v0-easy")],
    ids=["TextArena", "Gem"],
)
def test_episodes_side_by_side_are_those_that_run_alone(make: Any):
    """Both games draw at every move."""
    replies = ["[Hit]", "[Stand]"] if make().config.game.startswith("Black") else ["\\boxed{left}", "\\boxed{up}"]

    def play(envs: list[Env]) -> list[str]:
        for seed, env in enumerate(envs):
            env.reset(seed=seed)
        for step in range(4):
            for env in envs:
                env.last = env.respond(Message(role="assistant", content=replies[step % 2]))
        return [env.last.messages[0].content for env in envs]

    random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tobytes()
    alone = [play([make(), make()][:1])[0]]
    together = play([make(), make()])
    assert together[0] == alone[0]
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before


def test_a_second_episode_knows_nothing_of_the_first():
    for env in (TextArena(game="Golf-v0"), PettingZoo(game="classic/leduc_holdem_v4")):
        first = envsdk.rollout(env, "null", seed=3).to_json()
        envsdk.rollout(env, "random", seed=4)
        again = envsdk.rollout(env, "null", seed=3)
        assert [log.messages for log in again.contexts.values()] == [
            log.messages for log in envsdk.Trajectory.from_json(first).contexts.values()
        ]


@pytest.mark.parametrize("page", ["textarena", "pettingzoo", "gem"])
def test_the_code_of_the_page_runs(page: str):
    scope: dict[str, Any] = {"__name__": page}
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, f"{page}.md", "exec"), scope)


@pytest.mark.parametrize(
    ("make", "error", "reason"),
    [
        (lambda: TextArena(game="TicTacToe"), UnknownName, "Did you mean"),
        (lambda: TextArena(game="TicTacToe-v0", players=3), ConfigError, "cannot be started with 3 players"),
        (lambda: TextArena(game="TicTacToe-v0", options={"size": 3}), ConfigError, "unexpected keyword argument"),
        (lambda: TextArena(game="Debate-v0"), ConfigError, "OpenRouter API key not found"),
        (
            lambda: TextArena(game="TicTacToe-v0", opponents={"player2": any_action}),
            ConfigError,
            "has no player 'player2'",
        ),
        (lambda: TextArena(game="2048-v0", opponents={"player0": any_action}), ConfigError, "names all players"),
        (lambda: PettingZoo(game="classic/ches_v6"), ConfigError, "PettingZoo cannot make"),
        (lambda: PettingZoo(game="no_such_module"), ConfigError, "No module named 'no_such_module'"),
        (
            lambda: PettingZoo(game="classic/rps_v2", actions=("a", "b")),
            ConfigError,
            "has 3 actions, but `actions` has 2 words",
        ),
        (lambda: envsdk.rollout(PettingZoo(game="classic/chess_v6"), "null"), ConfigError, "give show="),
        (lambda: PettingZoo(game=f"{__name__}:boxed"), ConfigError, "expected Discrete, or actions="),
        (lambda: Gem(game="game:Sudoku"), UnknownName, "Did you mean"),
        (lambda: Gem(game="rg:chain_sum"), ConfigError, "use envsdk.adapters.ReasoningGym"),
        (lambda: Gem(game="math:GSM8K"), ConfigError, "use envsdk.adapters.Dataset"),
        (
            lambda: to_pettingzoo(envsdk.make("envsdk/KuhnPoker-v1"), ()),
            ConfigError,
            "expected the names of the contexts",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_reason(make: Any, error: type[Exception], reason: str):
    with pytest.raises(error, match=reason):
        make()


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for module, make in (
        ("textarena", lambda: TextArena(game="TicTacToe-v0")),
        ("pettingzoo", lambda: PettingZoo(game="classic/rps_v2")),
        ("gem", lambda: Gem(game="game:Sudoku-v0-easy")),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingPackage, match="pip install"):
            make()


# TextArena.


def test_a_player_reads_what_is_new_to_it_and_not_its_own_moves():
    trajectory = played(TextArena(game="TicTacToe-v0"), "[4]", "[0]", "[3]", "[1]", "[5]")
    texts = read_by(trajectory, "player0")
    assert len(texts) == 4
    assert texts[1].count("Current Board") == 2
    assert "[Player 1] [0]" in texts[1] and "[Player 0] [4]" not in texts[1]
    assert texts[-1].endswith("[GAME] Player 0 has won!")


def test_an_opponent_plays_and_the_reward_is_that_of_the_only_player():
    heard: list[list[Message]] = []

    def opponent(messages: list[Message], rng: np.random.Generator) -> str:
        heard.append(messages)
        return f"[{'5678'[len(heard) - 1]}]"

    trajectory = played(TextArena(game="TicTacToe-v0", opponents={"player0": opponent}), "[0]", "[1]", "[2]")
    assert list(trajectory.contexts) == ["player1"]
    assert (trajectory.reward, trajectory.steps[-1].rewards) == (1.0, {"game": 1.0})
    assert [len(messages) for messages in heard] == [1, 3, 5]
    assert [message.role for message in heard[-1]] == ["user", "assistant"] * 2 + ["user"]


def test_a_game_that_an_opponent_ends_before_the_first_move_is_started_again():
    env = TextArena(game="TicTacToe-v0", opponents={"player0": lambda _, rng: str(rng.choice(["no", "[4]"]))})
    trajectory = envsdk.rollout(env, "null", seed=0)
    assert list(trajectory.contexts) == ["player1"]
    env = TextArena(game="TicTacToe-v0", opponents={"player0": lambda *_: "no"})
    with pytest.raises(ConfigError, match="ended 100 games of TicTacToe-v0 before"):
        env.reset(seed=0)


def test_an_opponent_must_return_a_string():
    env = TextArena(game="TicTacToe-v0", opponents={"player1": lambda *_: 4})
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="returned 4; expected a string"):
        env.respond(Message(role="assistant", content="[4]"))


def test_a_puzzle_scores_only_if_it_is_solved():
    assert envsdk.rollout(TextArena(game="PegJump-v0"), "null", seed=0).reward == 0.0
    env = TextArena(game="TowerOfHanoi-v0")
    moves = ["A C", "A B", "C B", "A C", "B A", "B C", "A C"]
    trajectory = played(env, *(f"[{move}]" for move in moves))
    assert (trajectory.reward, trajectory.steps[-1].rewards) == (1.0, {"game": 1.0})


@pytest.mark.parametrize("game", ["FrozenLake-v0", "GuessTheNumber-v0", "Minesweeper-v0"])
def test_partial_credit_is_only_given_on_request(game: str):
    strict, lenient = TextArena(game=game), TextArena(game=game, strict=False)
    for seed in range(9):
        credit = envsdk.rollout(lenient, by_examples(lenient, seed), seed=seed).reward
        assert envsdk.rollout(strict, by_examples(strict, seed), seed=seed).reward == float(credit == 1.0)
        if 0 < credit < 1:
            return
    pytest.fail("the game gives no partial credit any more")


def test_a_sentence_as_a_reward_counts_as_nothing():
    for game in ("Countdown-v0", "Cryptarithm-v0", "Slitherlink-v0", "ThreeCardMonte-v0"):
        assert envsdk.rollout(TextArena(game=game, strict=False), "null", seed=0).reward == 0.0


def test_players_that_are_eliminated_play_no_more_and_every_player_has_a_reward():
    env = TextArena(game="Snake-v0", players=4)
    trajectory = envsdk.rollout(env, by_examples(env, 1), seed=1)
    assert set(trajectory.contexts) <= {f"player{number}" for number in range(4)}
    assert len(context_rewards(trajectory)) == len(trajectory.contexts) > 2
    assert trajectory.stop_reason == "terminated"


@pytest.mark.parametrize(
    "reply", ["", "[" + "9" * 5000 + "]", "\x00", "[²]", "[" * 9999, "漢字 [[4]]", "[-1]", "[GAME] x"]
)
def test_a_hostile_reply_loses_and_raises_nothing(reply: str):
    for game in ("TicTacToe-v0", "ConnectFour-v0", "Nim-v0", "GuessTheNumber-v0"):
        env = TextArena(game=game)
        env.reset(seed=0)
        turn = env.respond(Message(role="assistant", content=reply))
        assert turn.metrics.get("illegal") == 1.0 or (turn.context == "player1" or "4" in reply)
        assert turn.reward in (0.0, 1.0)
        if turn.metrics.get("crashed"):
            assert turn.terminated and turn.context_rewards.get("player0", -1.0) == -1.0


def test_a_game_whose_players_are_all_eliminated_ends():
    """The package looks for the next player forever."""
    env = TextArena(game="PublicGoodsGame-v0", players=3)
    trajectory = envsdk.rollout(env, by_examples(env, 0), seed=0)
    assert trajectory.steps[-1].metrics == {"illegal": 1.0, "crashed": 1.0}
    assert context_rewards(trajectory) == {"player0": -1.0, "player1": -1.0, "player2": -1.0}


def test_a_game_reads_the_end_of_a_huge_reply():
    env = TextArena(game="ConnectFour-v0")
    env.reset(seed=0)
    turn = env.respond(Message(role="assistant", content="a" * 300_000 + "[3]"))
    assert (turn.context, turn.metrics) == ("player1", {})
    assert len(turn.messages[0].content) < 20_000


# PettingZoo.


def boxed(**_: Any) -> Any:
    env = generated_agents_parallel_v0.parallel_env()
    env.action_space = lambda agent: gymnasium.spaces.Box(-1, 1, (2,))
    return env


class Matching(ParallelEnv[str, Any, int]):
    """Both choose a bit at once; the first wins if they match. The second player leaves after a round."""

    metadata = {"name": "matching"}  # noqa: RUF012
    render_mode = None

    def __init__(self, rounds: int = 1) -> None:
        self.rounds = rounds
        self.possible_agents = ["a", "b"]

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Text(99)

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(0, 1, (1,))

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents = ["a", "b"]
        self.noise = random.random()
        return dict.fromkeys(self.agents, f"Ü {self.noise}"), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        match = float(len({float(action[0]) for action in actions.values()}) == 1)
        ended = {"a": False, "b": True} if len(actions) == 2 else {"a": True}
        found = dict.fromkeys(actions, f"last: {sorted(actions)}")
        rewards = {agent: match if agent == "a" else -match for agent in actions}
        self.agents = [agent for agent in actions if not ended[agent]]
        return found, rewards, ended, dict.fromkeys(actions, False), {agent: {} for agent in actions}


def bits(env: Any, agent: str) -> dict[str, Any]:
    return {"zero": np.array([0.0]), "one": np.array([1.0])}


def test_agents_that_act_at_once_do_not_see_each_others_actions_and_may_leave():
    env = PettingZoo(game=f"{__name__}:Matching", actions=f"{__name__}:bits")
    trajectory = played(env, "one", "I say ONE.", "zero")
    assert read_by(trajectory, "a")[0] == read_by(trajectory, "b")[0]
    assert read_by(trajectory, "a")[1].startswith("last: ['a', 'b']")
    assert context_rewards(trajectory) == {"a": 2.0, "b": -1.0}
    assert trajectory.reward == 1.0


def test_an_action_that_the_mask_excludes_is_illegal_and_the_second_one_loses():
    env = PettingZoo(game="classic/tictactoe_v3")
    trajectory = played(env, "4", "4", "nonsense")
    assert context_rewards(trajectory) == {"player_1": 0.0, "player_2": -1.0}
    assert (trajectory.reward, trajectory.stop_reason) == (0.0, "terminated")
    assert [step.metrics.get("illegal") for step in trajectory.steps] == [None, 1.0, 1.0]
    assert "0, 1, 2, 3, 5, 6, 7, 8" in read_by(trajectory, "player_2")[1]


def test_agents_play_against_functions_and_are_rewarded_by_the_environment():
    env = PettingZoo(game="classic/connect_four_v3", opponents={"player_1": any_action})
    rng = np.random.default_rng(0)
    policy = ReplyPolicy(env, lambda acting: any_action(acting.messages(), rng))
    found = [envsdk.rollout(env, policy, seed=seed) for seed in range(6)]
    assert {trajectory.reward for trajectory in found} <= {-1.0, 0.0, 1.0}
    assert len({trajectory.reward for trajectory in found}) > 1
    assert all(list(trajectory.contexts) == ["player_0"] for trajectory in found)
    assert all(trajectory.steps[-1].rewards == {"game": trajectory.reward} for trajectory in found)


def test_agents_that_are_generated_during_an_episode_become_contexts():
    env = PettingZoo(game="pettingzoo.test.example_envs.generated_agents_env_v0", limits={"max_steps": 60})
    rng = np.random.default_rng(0)
    trajectory = envsdk.rollout(env, ReplyPolicy(env, lambda acting: any_action(acting.messages(), rng)), seed=0)
    assert len(trajectory.contexts) > 3
    assert trajectory.stop_reason == "max_steps"


def test_a_limit_of_the_environment_truncates():
    env = PettingZoo(game="classic/rps_v2", options={"max_cycles": 2}, actions=("rock", "paper", "scissors"))
    trajectory = played(env, "rock", "paper", "rock", "scissors")
    assert (trajectory.stop_reason, trajectory.reward) == ("truncated", 1.0)
    assert context_rewards(trajectory) == {"player_0": 0.0, "player_1": 0.0}


def test_a_specification_with_functions_is_json_and_makes_the_same_environment():
    kwargs = {"game": f"{__name__}:Matching", "actions": f"{__name__}:bits", "opponents": {"b": f"{__name__}:one"}}
    envsdk.register_env("tests/Matching-v0", "envsdk.adapters:PettingZoo", kwargs=kwargs)
    env = envsdk.make("tests/Matching-v0")
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json())).unwrapped
    assert played(env, "one", "one").to_json() == played(again, "one", "one").to_json()
    found = rollout_many(lambda: envsdk.make("tests/Matching-v0"), "null", seeds=range(4), max_concurrency=4)
    assert [trajectory.reward for trajectory in found] == [-1.0] * 4


def one(messages: list[Message], rng: np.random.Generator) -> str:
    return "one"


# The way back.


class Echo(Env):
    """Ask a question in one context."""

    def start(self) -> Turn:
        return Turn("Say ü.", system="Be short.")

    def respond(self, reply: Message) -> Turn:
        return Turn("So it is.", reward=float(reply.content == "ü"), terminated=True)


def test_an_environment_of_ours_passes_the_test_of_pettingzoo():
    api_test(to_pettingzoo(envsdk.make("envsdk/KuhnPoker-v1"), ("player0", "player1"), max_length=40), num_cycles=20)
    api_test(to_pettingzoo(Echo(), ("main",), max_length=40), num_cycles=5)


def test_it_gives_each_agent_its_reward_and_what_is_new_to_it():
    aec = to_pettingzoo(envsdk.make("envsdk/KuhnPoker-v1", hands=1), ("player0", "player1"))
    read: dict[str, list[str]] = {"player0": [], "player1": []}
    earned = dict.fromkeys(read, 0.0)
    aec.reset(seed=1)
    for agent in aec.agent_iter():
        text, reward, terminated, truncated, _ = aec.last()
        read[agent].append(text)
        earned[agent] += reward
        aec.step(None if terminated or truncated else "bet" if "Bet" in text or "bet?" in text else "fold")
    env = envsdk.make("envsdk/KuhnPoker-v1", hands=1)
    words = ReplyPolicy(env, lambda acting: "bet" if "bet?" in acting.messages()[-1].content else "fold")
    trajectory = envsdk.rollout(env, words, seed=1)
    assert earned == context_rewards(trajectory)
    assert sum(earned.values()) == 0.0 and earned["player0"] != 0.0
    assert "You are playing poker" in read["player0"][0] and "You are playing poker" not in read["player0"][1]


def test_a_context_that_is_no_agent_and_an_action_that_is_no_string_are_errors():
    aec = to_pettingzoo(Echo(), ("player0",))
    with pytest.raises(ConfigError, match="addresses the context 'main'; expected one of player0"):
        aec.reset(seed=0)
    aec = to_pettingzoo(Echo(), ("main",), max_length=3)
    aec.reset(seed=0)
    assert aec.observe("main") == "Be short.\n\nSay ü."
    for action in (4, "long", None):
        with pytest.raises(ConfigError, match="expected a string of at most 3 characters"):
            aec.step(action)
    aec.step("ü")
    assert (aec.last()[1:4]) == (1.0, True, False)


# GEM.


def test_a_game_of_gem_scores_only_if_it_is_won():
    options = {"min_number": 1, "max_number": 20, "max_turns": 2}
    near = ["\\boxed{10}", "\\boxed{11}"]
    strict = Gem(game="game:GuessTheNumber-v0-easy", options=options)
    lenient = Gem(game="game:GuessTheNumber-v0-easy", options=options, strict=False)
    for seed in range(4):
        trajectory, other = played(strict, *near, seed=seed), played(lenient, *near, seed=seed)
        is_won = other.steps[-1].metrics["game_reward"] == 1.0
        assert trajectory.reward == float(is_won)
        assert other.reward > 0.0


def test_a_reply_without_a_move_ends_a_game_of_gem():
    trajectory = envsdk.rollout(Gem(game="game:Sudoku-v0-easy"), "null", seed=0)
    assert trajectory.steps[0].metrics == {"game_reward": pytest.approx(-0.1), "illegal": 1.0}
    assert json.loads(trajectory.to_json())["stop_reason"] == "terminated"
