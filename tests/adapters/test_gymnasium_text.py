"""Games of Gymnasium played in text: those that it comes with, and small ones of our own."""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import envsdk
from envsdk import Limits, Message, Trajectory, Turn
from envsdk.authoring.adapters._gymnasium_text import GymnasiumText, _without_codes
from envsdk.errors import ConfigError
from envsdk.policies import ReplyPolicy

ICE: dict[str, Any] = {"game": "FrozenLake-v1", "actions": ("left", "down", "right", "up")}
STILL = {**ICE, "options": {"is_slippery": False}}
WAY = ["down", "down", "right", "right", "down", "right"]
SOUTH_NORTH_EAST_WEST = ("south", "north", "east", "west", "pickup", "dropoff")


class Counting(gymnasium.Env[Any, Any]):
    """Add numbers up to 10. What it shows depends on its space."""

    metadata = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012
    closed = 0

    def __init__(self, action_space: Any, observation_space: Any = None, render_mode: str | None = None) -> None:
        self.action_space = action_space
        self.observation_space = observation_space or spaces.Discrete(100)
        self.total: Any = np.int64(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.total = np.int64(0)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.total = self.total + action
        return self._seen(), np.float32(action), bool(self.total >= 10), False, {}

    def close(self) -> None:
        type(self).closed += 1

    def _seen(self) -> Any:
        if isinstance(self.observation_space, spaces.Text):
            return f"The total is {self.total}."
        if isinstance(self.observation_space, spaces.Dict):
            return {"total": self.total, "history": np.array([0, self.total]), "pair": (np.bool_(True), "é")}
        return self.total


@pytest.fixture
def counting() -> Iterator[str]:
    """The id of our own game."""
    gymnasium.register("tests/Counting-v0", Counting)
    yield "tests/Counting-v0"
    del gymnasium.registry["tests/Counting-v0"]


def started(env: GymnasiumText, seed: int = 0) -> str:
    env.reset(seed=seed)
    return env.messages()[-1].content


def say(env: GymnasiumText, text: str) -> Turn:
    return env.respond(Message(role="assistant", content=text))


def shown(turn: Turn) -> str:
    return turn.messages[0].content


def play(env: GymnasiumText, replies: list[str], **options: Any) -> Trajectory:
    left = iter(replies)
    return envsdk.rollout(env, ReplyPolicy(env, lambda player: next(left)), **{"seed": 0, **options})


# The games.


def test_frozen_lake_is_played_to_its_end_in_words():
    env = GymnasiumText(**STILL)
    trajectory = play(env, WAY)
    said = [message.content for message in trajectory.contexts["main"].messages if message.role != "assistant"]
    assert said[0] == "You play FrozenLake-v1. Answer with one action: left, down, right, up."
    assert said[1] == "[S]FFF\nFHFH\nFFFH\nHFFG"
    assert said[2] == "  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG"
    assert trajectory.reward == 1.0
    assert trajectory.steps[-1].rewards == {"game": 1.0}
    assert (trajectory.stop_reason, len(trajectory.steps)) == ("terminated", 6)


def test_taxi_names_its_colours_as_there_are_several():
    env = GymnasiumText(game="Taxi-v4", actions=SOUTH_NORTH_EAST_WEST)
    picture = started(env, seed=1)
    assert "\x1b" not in picture
    assert "[yellow: ]" in picture and "[magenta:" in picture and "[blue:" in picture
    assert [say(env, "pickup").reward, say(env, "I go NORTH.").reward] == [-10.0, -1.0]


def test_colours_in_each_other_are_all_named():
    assert _without_codes("\x1b[34;1m\x1b[43mR\x1b[0m\x1b[0m|\x1b[45mG\x1b[0m") == "[blue:[yellow:R]]|[magenta:G]"
    assert _without_codes("\x1b[1mR\x1b[0m \x1b[92mG\x1b[m\x1b[K") == "[bold:R] [green:G]"
    assert _without_codes("\x1b[41mR\x1b[0m\x1b[0m [G]") == "[R] [G]"


@given(st.text(alphabet="\x1b[0;19mKR ", max_size=40))
def test_no_code_is_left_of_any_picture(picture: str):
    plain = _without_codes(picture)
    assert plain == _without_codes(plain)


def test_cliff_walking_has_no_colours_and_is_shown_as_it_is():
    env = GymnasiumText(game="CliffWalking-v1")
    lines = started(env).splitlines()
    assert lines[0] == "o  o  o  o  o  o  o  o  o  o  o  o"
    assert lines[3] == "x  C  C  C  C  C  C  C  C  C  C  T"
    assert say(env, "1").reward == -100.0


def test_blackjack_renders_no_text_so_the_observation_is_shown():
    env = GymnasiumText(game="Blackjack-v1", actions=("stick", "hit"))
    total, dealer, ace = json.loads(started(env))
    assert 4 <= total <= 21 and 1 <= dealer <= 10 and ace in (0, 1)
    end = say(env, "stick")
    assert end.terminated and end.reward in (-1.0, 0.0, 1.0)


def test_what_is_shown_can_be_chosen():
    assert started(GymnasiumText(**STILL, show="observation")) == "0"
    assert started(GymnasiumText(**STILL, show="render")).startswith("[S]FFF")
    with pytest.raises(ConfigError, match="Blackjack-v1 does not render as text; expected show='observation'"):
        GymnasiumText(game="Blackjack-v1", show="render")


def test_the_game_may_be_described():
    env = GymnasiumText(**STILL, system="Walk over the ice to G.")
    env.reset(seed=0)
    assert env.messages()[0].content == "Walk over the ice to G."


def test_options_of_the_game_are_passed_on():
    env = GymnasiumText(game="FrozenLake-v1", options={"map_name": "8x8", "is_slippery": False})
    assert len(started(env).splitlines()) == 8


# Spaces.


def test_actions_are_counted_from_where_the_space_starts(counting: str):
    env = GymnasiumText(game=counting, options={}, **_space(spaces.Discrete(3, start=-1)))
    env.reset(seed=0)
    assert env.messages()[0].content == "You play tests/Counting-v0. Answer with one action: -1, 0, 1."
    assert [say(env, said).reward for said in ("-1", "I take 1.", "0")] == [-1.0, 1.0, 0.0]


def test_observations_are_text_or_json(counting: str):
    text = GymnasiumText(game=counting, **_space(spaces.Discrete(2), spaces.Text(40)))
    assert started(text) == "The total is 0."
    columns = spaces.Dict({"total": spaces.Discrete(9)})
    env = GymnasiumText(game=counting, **_space(spaces.Discrete(2), columns))
    assert json.loads(started(env)) == {"total": 0, "history": [0, 0], "pair": [True, "é"]}


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([2, 2]), spaces.Box(0, 1), spaces.Text(3)])
def test_actions_that_are_not_numbered_are_refused(counting: str, space: Any):
    with pytest.raises(ConfigError, match="expected Discrete"):
        GymnasiumText(game=counting, **_space(space))


def _space(action_space: Any, observation_space: Any = None) -> dict[str, Any]:
    """Options of the adapter by which our own game gets its spaces."""
    gymnasium.registry["tests/Counting-v0"].kwargs = {
        "action_space": action_space,
        "observation_space": observation_space,
    }
    return {}


# Replies.


@pytest.mark.parametrize(
    "said", ["right", "RIGHT", " right\n", "I go right.", "**right**", "left or right?\n'right'!", "(right)"]
)
def test_an_action_is_what_a_reply_ends_with(said: str):
    env = GymnasiumText(**STILL)
    env.reset(seed=0)
    assert shown(say(env, said)).startswith("  (Right)")


@pytest.mark.parametrize(
    "said", ["", " ", "...", "bright", "upright", "un-right", "right away", "jump", "2", "right\ud7ff", "x" * 100_000]
)
def test_a_reply_without_an_action_changes_nothing_and_is_told_so(said: str):
    env = GymnasiumText(**STILL)
    env.reset(seed=0)
    turn = say(env, said)
    assert shown(turn) == "That is no action. Answer with one action: left, down, right, up."
    assert (turn.reward, turn.terminated, turn.metrics) == (0.0, False, {"illegal": 1.0})
    assert shown(say(env, "down")).startswith("  (Down)\nSFFF\n[F]")


@given(st.text(max_size=30))
def test_any_reply_is_legal(said: str):
    if said.encode(errors="replace").decode() == said:
        say(ANY, said)


ANY = GymnasiumText(**ICE)
ANY.reset(seed=0)


def test_a_word_may_be_several_and_end_with_another(counting: str):
    env = GymnasiumText(game=counting, actions=("Turn left", "left", "12", "2"), **_space(spaces.Discrete(4)))
    env.reset(seed=0)
    replies = ("turn left", "LEFT", "I take 12", "2", "1.2", "-2")
    assert [say(env, said).reward for said in replies] == [0.0, 1.0, 2.0, 3.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        (("left", "right"), "has 4 actions, but .actions. has 2 words"),
        (("a", "b", "c", "A"), "two actions have the same word"),
        (("a", "b", "c", ""), "'' is not valid as a word for an action"),
        (("a", "b", "c", "d!"), "'d!' is not valid as a word for an action"),
    ],
)
def test_words_for_actions_are_checked(actions: tuple[str, ...], reason: str):
    with pytest.raises(ConfigError, match=reason):
        GymnasiumText(game="FrozenLake-v1", actions=actions)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"game": "FrozenLaek-v1"}, "gymnasium cannot create 'FrozenLaek-v1'"),
        ({"game": "no_such_package:Game-v0"}, "gymnasium cannot create"),
        ({"game": "FrozenLake-v1", "options": {"ice": 3}}, "unexpected keyword argument 'ice'"),
        ({"game": "FrozenLake-v1", "options": {"render_mode": "ansi"}}, "render_mode is set by the adapter"),
        ({}, "game is missing"),
    ],
)
def test_options_are_checked(options: dict[str, Any], reason: str):
    with pytest.raises(ConfigError, match=reason):
        GymnasiumText(**options)


# Episodes.


def test_the_same_seed_is_the_same_game_and_another_seed_another():
    env, other = GymnasiumText(game="Blackjack-v1"), GymnasiumText(game="Blackjack-v1")
    shown = [started(env, seed) for seed in range(20)]
    assert shown == [started(other, seed) for seed in range(20)]
    assert len(set(shown)) > 10
    slippery = [play(GymnasiumText(**ICE), ["right"] * 200, seed=3).to_json() for _ in range(2)]
    assert slippery[0] == slippery[1]


def test_a_limit_of_the_game_truncates_and_so_does_ours():
    env = GymnasiumText(**{**STILL, "options": {"is_slippery": False, "max_episode_steps": 3}})
    trajectory = play(env, ["left"] * 3)
    assert (trajectory.stop_reason, len(trajectory.steps), trajectory.reward) == ("truncated", 3, 0.0)
    ours = play(GymnasiumText(**STILL, limits=Limits(max_steps=4)), ["jump"] * 4)
    assert (ours.stop_reason, sum(step.metrics["illegal"] for step in ours.steps)) == ("max_steps", 4.0)


def test_a_game_that_ends_at_its_limit_is_terminated():
    env = GymnasiumText(**{**STILL, "options": {"is_slippery": False, "max_episode_steps": len(WAY)}})
    assert play(env, WAY).stop_reason == "terminated"


def test_a_fork_is_a_game_of_its_own():
    env = GymnasiumText(**ICE)
    env.reset(seed=5)
    say(env, "right")
    fork = env.fork()
    ahead = [shown(say(fork, "right")) for _ in range(3)]
    assert ahead == [shown(say(env, "right")) for _ in range(3)]  # the game's own random state was copied, too
    copy = pickle.loads(pickle.dumps(env))
    assert shown(say(copy, "left")) == shown(say(env, "left"))


def test_closing_closes_the_game_and_may_be_done_again(counting: str):
    Counting.closed = 0
    env = GymnasiumText(game=counting, **_space(spaces.Discrete(2)))
    env.close()
    env.close()
    assert Counting.closed == 2


def test_nothing_is_printed_and_nothing_warned_of():
    program = (
        "from envsdk.authoring.adapters._gymnasium_text import GymnasiumText\n"
        "for game in ('FrozenLake-v1', 'Taxi-v4', 'CliffWalking-v1', 'Blackjack-v1'):\n"
        "    env = GymnasiumText(game=game)\n"
        "    env.reset(seed=0)\n"
        "    env.respond(__import__('envsdk').Message(role='assistant', content='0'))\n"
        "    env.close()\n"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_it_is_registered_under_a_name_by_what_json_can_say():
    envsdk.register_env("tests/Ice-v0", "envsdk.adapters:GymnasiumText", kwargs=STILL)
    env = envsdk.make("tests/Ice-v0", renderer="qwen3", tokenizer="embedded")
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json())).unwrapped
    assert play(env, WAY).to_json() == play(again, WAY).to_json()
