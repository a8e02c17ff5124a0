"""The conformance kit of environments finds what is broken, names it, and tells how to see it again."""

import asyncio
import functools
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import broken_environments as broken
import gymnasium
import numpy as np
import pytest
from pydantic import BaseModel, Field
from typer.testing import CliRunner

import envsdk
from envsdk import Env, errors, tool
from envsdk import _registry as registry
from envsdk.cli import app
from envsdk.testing import Check, EnvReport, check_env
from envsdk.testing import _env_attacks as env_replies
from envsdk.testing import _env_episodes as env_episodes
from envsdk.testing import _environments as environments
from envsdk.testing._env_attacks import right_arguments
from envsdk.testing._env_episodes import TimeLimitExceeded, time_limit

ATTACKS = {"garbage replies", "injected text", "enormous replies", "cut replies"}
ELSEWHERE = "same bytes in another process"
QUICK = environments.CHECKS.keys() - ATTACKS - {ELSEWHERE}
SEEDS = 6


def report_of(env: Any, *, checks: Set[str] = QUICK, also: Set[str] = frozenset(), seeds: int = SEEDS) -> EnvReport:
    """Make all checks but the slow ones, and those of them that are wanted."""
    chosen = {name: kind for name, kind in environments.CHECKS.items() if name in checks | also}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environments, "CHECKS", chosen)
        return check_env(env, seeds=seeds)


@pytest.fixture
def register() -> Iterator[Callable[..., str]]:
    """Register an environment for one test."""
    ids: list[str] = []

    def add(env: type[Env], **options: Any) -> str:
        ids.append(f"broken/{env.__name__}-v0")
        envsdk.register_env(ids[-1], f"{env.__module__}:{env.__qualname__}", **options)
        return ids[-1]

    yield add
    for name in ids:
        gymnasium.registry.pop(name)
        registry._envs.pop(name)


# What is broken, which checks say so, and in which words.
BROKEN: list[tuple[type[Env], dict[str, str]]] = [
    (broken.GlobalRandom, {"no global random state": "the global state of `random`"}),
    (broken.GlobalSeed, {"no global random state": "the global state of `numpy.random`"}),
    (broken.Unseeded, {"same bytes": "Thank you, 0."}),
    (broken.MutableDefault, {"same bytes": "That was episode "}),
    (broken.HashOrder, {ELSEWHERE: "sort what comes out of a set"}),
    (broken.Today, {ELSEWHERE: "it is another day"}),
    (broken.Leftover, {"reset clears state": "'main, user: \"You said 5 words.\"'"}),
    (broken.SharedByCopies, {"copies": "the original gives another", "forks": "the original does not continue"}),
    (broken.SharedByForks, {"forks": "the original does not continue as it does without forks"}),
    (broken.NotCopyable, {"forks": "cannot pickle 'generator' object. Let __getstate__ leave out"}),
    (broken.SharedBySubagents, {"step and rollout": "They heard"}),
    (broken.SameTask, {"distinct tasks": "6 seeds give 1 different tasks; expected 5"}),
    (broken.FewTasks, {"distinct tasks": "declare n_tasks"}),
    (broken.Overlapping, {"splits": "also the task of seed 0 with split='train'"}),
    (broken.Undeclared, {"reward range": "declare it in the class: reward_range"}),
    (broken.NeverTheMost, {"reference policy": "the reward is 1; expected the maximum of reward_range, 2"}),
    (broken.PaidForNothing, {"null policy": "it got 0, but the minimum of reward_range is -1; it got 0 with"}),
    (broken.BadReference, {"reference policy": "1 of its tool calls failed"}),
    (broken.RaisingReference, {"reference policy": "RuntimeError: I do not know (broken_environments.py, line"}),
    (broken.HardForItself, {"every option": "with difficulty='hard' the reference policy gets 0; expected 1"}),
    (broken.NeverEnds, {"episodes end": "set default_limits"}),
    (broken.RaisesWhatNobodyCatches, {"tool errors": "stop with other types as number: it raises _Stop: enough"}),
    (broken.CrashesOnWhatIsNotThere, {"tool errors": "open with other types as name: it crashes"}),
    (broken.AnswersAsUser, {"tool errors": "12 calls are followed by ['user: What?'"}),
    (broken.ClosesOnce, {"calls out of order": "RuntimeError: it is closed"}),
    (broken.StepsBehindTheEnd, {"calls out of order": "step() after the end does not raise"}),
    (broken.OldReset, {"gymnasium checker": "does not provide an `options`"}),
    (broken.DropsTokens, {"declared observations": "but drops tokens", "history policies": "but drops tokens"}),
    (broken.LivesOnThinking, {"history policies": "with history='strip' the reference policy gets 0; without"}),
    (broken.TakesDigitsForNumbers, {"garbage replies": "the text '\\xb2'", "enormous replies": "Exceeds the limit"}),
    (broken.PaysWhatItIsTold, {"injected text": "a result, as text: the reward is 5."}),
    (broken.NeedsWholeWords, {"cut replies": "it raises ValueError: this is half a word"}),
]


@pytest.mark.parametrize(("env", "expected"), BROKEN, ids=[env.__name__ for env, _ in BROKEN])
def test_what_is_broken_fails_its_check_and_no_other(
    env: type[Env], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    monkeypatch.setattr(env_episodes, "MAX_REPLIES", 100)
    number = [kind for kind, _ in BROKEN].index(env)
    is_whole = is_full or env is broken.GlobalRandom  # the other checks refer to the one that fails
    others = QUICK if is_whole else {sorted(QUICK)[number % len(QUICK)]}  # each of them with one of these
    report = report_of(env, checks=others, also=expected.keys())
    assert {check.name for check in report.failed} == expected.keys()
    for check in report.failed:
        assert expected[check.name] in check.detail
        assert " python -c " in check.command
        assert f"check_env(broken_environments.{env.__name__}, seeds=" in check.command
        assert f'only="{check.name}").raise_if_failed()' in check.command


def test_episodes_without_an_end_are_reported_first_and_nothing_else_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    resets: list[int] = []

    class Endless(broken.NeverEnds):
        def start(self) -> envsdk.Turn:
            resets.append(1)
            return super().start()

    report = check_env(Endless)
    assert [check.name for check in report.checks] == list(environments.CHECKS)
    first, *others = report.checks
    assert (first.name, first.verdict) == ("episodes end", "FAIL")
    assert "after 999 replies" in first.detail and "Turn(terminated=True)" in first.detail
    assert all(check.verdict == "NOT POSSIBLE" and 'see "episodes end"' in check.detail for check in others)
    assert len(resets) == 1


@pytest.mark.parametrize(
    ("env", "name", "seed"),
    [(broken.RaisingReference, "reference policy", 2), (broken.PaysWhatItIsTold, "injected text", None)],
)
def test_a_failure_shows_again_with_its_seed_alone(env: type[Env], name: str, seed: int | None) -> None:
    (first,) = check_env(env, seeds=SEEDS, only=name).failed
    assert first.seed is not None and seed in (None, first.seed)
    assert f"seeds=range({first.seed}, {first.seed + 1})" in first.command
    (again,) = check_env(env, seeds=range(first.seed, first.seed + 1), only=name).failed
    assert (again.seed, again.detail) == (first.seed, first.detail)


@pytest.mark.full
def test_the_command_does_what_it_says_in_any_folder(tmp_path: Path) -> None:
    (check,) = check_env(broken.PaidForNothing, seeds=2, only="null policy").failed
    command = check.command.replace(" python", f" {sys.executable}", 1)
    done = subprocess.run(command, shell=True, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 1 and check.detail in done.stderr.decode()


def test_splits_of_data_are_compared_by_all_their_rows(register: Callable[..., str]) -> None:
    arguments = ["check", "broken_environments:SplitsOfData", "--seeds", "1", "--only", "splits"]
    printed = [
        str(check_env(given, seeds=1, only="splits")) for given in (broken.SplitsOfData, register(broken.SplitsOfData))
    ]
    for text in (*printed, CliRunner().invoke(app, arguments).output):
        assert "row 2 with split='test' is also the task of row 7 with split='train': keep each row in one" in text
    given = functools.partial(broken.SplitsOfData, tasks=[{"word": "a"}])
    (check,) = check_env(given, seeds=1, only="splits").raise_if_failed().checks
    assert check.verdict == "NOT POSSIBLE" and "the tasks are passed" in check.detail


def test_of_an_id_of_a_plugin_the_command_is_one_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(envsdk.make("envsdk/GuessNumber-v1")), "reward_range", (0.0, 9.0))
    (check,) = check_env("envsdk/GuessNumber-v1", seeds=range(3, 5), only="reference policy").failed
    assert check.command == 'envsdk check envsdk/GuessNumber-v1 --seeds 3:4 --only "reference policy"'


def test_of_an_id_that_only_this_process_knows_the_command_names_the_class(register: Callable[..., str]) -> None:
    (check,) = check_env(register(broken.SameTask), seeds=range(3, 7), only="distinct tasks").failed
    assert "check_env(broken_environments.SameTask, seeds=range(3, 7), only=" in check.command


@pytest.mark.parametrize("given", [lambda: broken.SameTask(), broken.SameTask()], ids=["function", "object"])
def test_no_command_is_printed_where_none_can_run(given: Any) -> None:
    (check,) = check_env(given, seeds=2, only="distinct tasks").failed
    assert check.command == ""
    assert str(check).endswith(f"(seed {check.seed})")


def test_of_an_object_with_options_the_command_has_them() -> None:
    env = envsdk.make("envsdk/GuessNumber-v1", high=10)
    env.reset(seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(env), "reward_range", (0.0, 9.0))
        (check,) = check_env(env, seeds=2, only="reference policy").failed
    assert "check_env(envsdk.make('envsdk/GuessNumber-v1', high=10), seeds=range(0, 1)," in check.command.replace(
        "'\"'\"'", "'"
    )
    assert env.trajectory is None  # it was a copy that played


def test_a_sound_environment_passes_every_check(register: Callable[..., str]) -> None:
    report = check_env(register(broken.Sound), seeds=2).raise_if_failed()
    assert [check.name for check in report.checks] == list(environments.CHECKS)
    assert [check.name for check in report.checks if check.verdict != "PASS"] == ["images", "tool errors"]
    assert all(check.seconds >= 0 and not check.command for check in report.checks)
    assert json.loads(json.dumps([asdict(check) for check in report.checks]))[0]["name"] == report.checks[0].name


@pytest.mark.parametrize(
    "env", [broken.SoundTools, broken.FewTasksDeclared, pytest.param(broken.ConcurrentTools, marks=pytest.mark.full)]
)
def test_other_sound_environments_pass(env: type[Env]) -> None:
    report_of(env, seeds=2).raise_if_failed()


def test_without_a_reference_policy_the_checks_do_what_they_can() -> None:
    report = report_of(broken.NoReference, seeds=2).raise_if_failed()
    verdicts = {check.name: (check.verdict, check.detail) for check in report.checks}
    assert verdicts["reference policy"][0] == "NOT POSSIBLE" and "reference_reply()" in verdicts["reference policy"][1]
    assert {verdicts[name][0] for name in ("distinct tasks", "splits", "forks", "null policy")} == {"PASS"}


def test_what_is_registered_as_nondeterministic_is_not_compared(register: Callable[..., str]) -> None:
    report = report_of(register(broken.Unseeded, nondeterministic=True), also={ELSEWHERE}, seeds=2).raise_if_failed()
    skipped = {check.name for check in report.checks if "nondeterministic" in check.detail}
    assert skipped >= {"same bytes", ELSEWHERE, "reset clears state", "copies", "forks", "step and rollout"}
    assert {"reference policy", "no global random state", "specification"}.isdisjoint(skipped)


def test_a_verdict_does_not_depend_on_how_the_environment_is_named(register: Callable[..., str]) -> None:
    name = register(broken.Unseeded, nondeterministic=True)
    for given in (name, broken.Unseeded, lambda: broken.Unseeded(), broken.Unseeded(), envsdk.make(name)):
        (check,) = check_env(given, seeds=2, only="same bytes").checks
        assert check.verdict == "NOT POSSIBLE" and "nondeterministic" in check.detail


def test_a_class_that_is_registered_is_stored_by_its_name() -> None:
    class Local(broken.Sound):
        pass

    for env, entry_point in ((broken.Sound, "broken_environments:Sound"), (Local, Local)):
        envsdk.register_env("broken/Class-v0", env)
        try:
            assert gymnasium.spec("broken/Class-v0").entry_point == entry_point
        finally:
            gymnasium.registry.pop("broken/Class-v0")
            registry._envs.pop("broken/Class-v0")


def test_a_specification_that_holds_a_function_is_refused(register: Callable[..., str]) -> None:
    env = register(broken.WithFunction, kwargs={"finish": lambda: None})
    report = report_of(env, checks={"specification"}, also={ELSEWHERE})
    (check,) = report.failed
    assert check.name == "specification" and "cannot be written as JSON" in check.detail
    (elsewhere,) = [check for check in report.checks if check.name == ELSEWHERE]
    assert elsewhere.verdict == "NOT POSSIBLE" and "cannot be pickled" in elsewhere.detail


def test_a_renderer_that_is_an_object_is_nothing_that_the_environment_does_wrong() -> None:
    env = envsdk.make("envsdk/GuessNumber-v1", renderer=envsdk.get_renderer("qwen3"))
    (check,) = check_env(env, only="specification").checks
    assert check.verdict == "NOT POSSIBLE" and "renderer is an object" in check.detail


def test_what_fails_in_every_episode_is_told_once() -> None:
    report = report_of(broken.FailsOnSomeSeeds, also={"cut replies"})
    assert [check.name for check in report.failed] == ["reference policy"]
    assert {check.seed for check in report.failed} == {5}
    assert "ValueError: there is no word (broken_environments.py, line" in report.failed[0].detail
    assert 'see "reference policy"' in next(check.detail for check in report.checks if check.name == "distinct tasks")
    same = {check.name for check in report.checks if check.same_as == "reference policy"}
    assert same > {"null policy", "random policy", "distinct tasks"}


def test_a_check_on_its_own_tells_the_cause_that_others_would() -> None:
    (check,) = check_env(broken.FailsOnSomeSeeds, only="distinct tasks").checks
    assert (check.verdict, check.same_as) == ("NOT POSSIBLE", "")
    assert "ValueError: there is no word" in check.detail


def test_progress_is_reported_as_each_check_begins_and_ends() -> None:
    seen: list[Any] = []
    report = check_env(broken.Sound, seeds=1, only="reference policy", on_progress=lambda *one: seen.append(one))
    assert seen == [("reference policy", None), ("reference policy", report.checks[0])]
    seen.clear()
    report = check_env(broken.NeedsAnArgument, on_progress=lambda *one: seen.append(one))
    assert seen == [("it can be created", report.checks[0])]


def test_the_null_policy_earns_the_least_on_average() -> None:
    (check,) = check_env(broken.LuckyNow, seeds=20, only="null policy").raise_if_failed().checks
    assert check.detail == "20 episodes, 0.05 on average"
    check_env(broken.LuckyNow, seeds=20, only="every option").raise_if_failed()
    (check,) = check_env(broken.LuckyOften, seeds=20, only="null policy").failed
    assert check.detail.startswith("on average over 20 seeds it got 0.35, but the minimum of reward_range is 0")
    assert check.seed == 1


def test_what_cannot_be_made_is_one_failure() -> None:
    report = check_env(broken.NeedsAnArgument)
    assert [check.name for check in report.checks] == ["it can be created"]
    assert "missing 1 required positional argument: 'book'" in report.failed[0].detail


def test_a_sub_agent_that_fails_is_no_secret_of_its_parents() -> None:
    (check,) = check_env(broken.FragileSubagent, only="garbage replies").failed
    assert "the sub-agent 'main/_fragile-1' failed: ValueError: invalid literal for int()" in check.detail


def test_what_the_family_cannot_express_is_the_environments_failure_if_it_says_it() -> None:
    (check,) = check_env(broken.SaysWhatItCannot, only="garbage replies").failed
    assert "the text '**': it raises RenderError: message" in check.detail


def test_every_reply_can_be_said_to_an_environment_with_tools() -> None:
    batteries = {"garbage replies": env_replies.garbage, "injected text": env_replies.injected}
    for name, battery in {**batteries, "cut replies": env_replies.cut}.items():
        (check,) = check_env(broken.SoundTools, seeds=2, only=name).raise_if_failed().checks
        assert check.detail.startswith(f"{len(list(battery()))} replies; the slowest episode took ")


def test_leaving_the_program_is_no_way_out() -> None:
    (check,) = check_env(broken.ObeysMarkers, only="injected text").failed
    assert "a system message, as text: it raises SystemExit: bye" in check.detail


def test_an_episode_that_hangs_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_episodes, "EPISODE_S", 0.5)
    (check,) = check_env(broken.Endless, only="enormous replies").failed
    assert "100,000 characters: letters did not end within 0.5 s" in check.detail


def test_a_reward_out_of_range_is_found_whoever_earns_it() -> None:
    for name in ("random policy", "cut replies"):
        (check,) = check_env(broken.FinesOddReplies, only=name).failed
        assert "expected the declared range, 0 to 1" in check.detail


def test_what_other_processes_cannot_make_is_not_compared_there() -> None:
    class Local(broken.Sound):
        pass

    for given, reason in (
        (Local, "cannot be pickled"),
        (lambda: broken.Sound(), "cannot be pickled"),
        (broken.Sound(), "pass its id or its class"),
    ):
        (check,) = check_env(given, only=ELSEWHERE).checks
        assert check.verdict == "NOT POSSIBLE" and reason in check.detail


def test_of_functions_and_objects_all_is_checked_that_can_be() -> None:
    def make(split: Any = "train") -> Env:
        return broken.Sound(split=split)

    for given, can_be_set in ((make, True), (lambda: broken.Sound(), False), (broken.Sound(), False)):
        (splits,) = check_env(given, seeds=2, only="splits").raise_if_failed().checks
        assert (splits.verdict == "PASS") == can_be_set
        assert can_be_set or "pass" in splits.detail


def test_gymnasiums_wrappers_are_taken_off() -> None:
    envsdk.list_envs()
    wrapped = gymnasium.make("envsdk/GuessNumber-v1")
    assert check_env(wrapped, seeds=2, only="copies").raise_if_failed().env == "envsdk/GuessNumber-v1"


def test_tasks_that_are_given_are_told_apart_and_have_no_splits(register: Callable[..., str]) -> None:
    env = envsdk.make(register(broken.Sound), tasks=[{"a": 1}, {"a": 2}])
    (check,) = check_env(env, only="splits").checks
    assert check.verdict == "NOT POSSIBLE" and "the tasks are passed" in check.detail
    assert check_env(env, only="distinct tasks").raise_if_failed().checks[0].detail == "2 of 16"


def test_it_runs_where_an_event_loop_runs_already() -> None:
    async def check() -> EnvReport:
        return check_env(broken.Sound, seeds=2, only="reference policy")

    assert asyncio.run(check()).raise_if_failed().checks[0].verdict == "PASS"


def test_the_global_random_states_are_as_before() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()
    check_env(broken.GlobalSeed, seeds=2, only="reference policy")
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"env": "envsdk/GuesNumber-v0"}, errors.UnknownName, "Did you mean 'envsdk/GuessNumber-v1'"),
        ({"env": broken.Sound, "only": "same byte"}, errors.UnknownName, "Did you mean 'same bytes'"),
        ({"env": broken.Sound, "seeds": 0}, errors.ConfigError, "expected their number, such as 16"),
        ({"env": broken.Sound, "seeds": range(-1, 2)}, errors.ConfigError, "such as range(5, 8)"),
        ({"env": 7}, errors.ConfigError, "env is 7; expected an environment, its id, its class, or a function"),
        ({"env": dict}, errors.ConfigError, "env is <class 'dict'>"),
    ],
)
def test_what_the_caller_got_wrong_is_an_error(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        check_env(**arguments)


def test_a_report_is_a_text_and_an_assertion() -> None:
    report = check_env(broken.NeverTheMost, seeds=2, only="reference policy")
    text = str(report)
    assert text.startswith(
        "FAIL         reference policy: the reward is 1; expected the maximum of reward_range, 2 (seed 0)"
    )
    assert report.failed[0].command in text and text.endswith("NeverTheMost: 1 of 1 checks failed")
    with pytest.raises(
        AssertionError, match=re.escape("NeverTheMost fails these checks:\n- reference policy: the reward is 1")
    ) as raised:
        report.raise_if_failed()
    assert report.failed[0].command in str(raised.value)
    assert isinstance(report.checks[0], Check)


# The parts.


def test_the_names_of_replies_tell_them_apart() -> None:
    batteries = (env_replies.garbage, env_replies.injected, env_replies.enormous, env_replies.cut)
    names = [reply.name for battery in batteries for reply in battery()]
    assert len(set(names)) == len(names) > 100


class Colour(Enum):
    RED = "red"


class Place(BaseModel):
    town: str
    inhabitants: Annotated[int, Field(ge=10, le=20)]
    twin: "Place | None" = None


@pytest.mark.parametrize(
    "hint",
    [
        *(str, int, float, bool, list[int], dict[str, int], Literal["a", "b"], Colour, Place, list[Place], int | None),
        *(Annotated[int, Field(gt=5)], Annotated[float, Field(lt=-3)], Annotated[str, Field(min_length=7)]),
        *(Annotated[list[str], Field(min_length=2)], Annotated[str, Field(max_length=0)], tuple[int, ...]),
    ],
    ids=str,
)
def test_right_arguments_are_what_the_schema_allows(hint: Any) -> None:
    def look_up(what: hint, times: int = 1) -> str:  # pyright: ignore[reportInvalidTypeForm]
        """Look it up."""
        return ""

    made = tool(look_up)
    assert made.read(right_arguments(made.schema)).keys() == {"what"}
    assert right_arguments(made.schema, "7", with_optional=True).keys() == {"what", "times"}


def test_a_time_limit_interrupts_whatever_runs() -> None:
    for hang in (lambda: time.sleep(60), lambda: re.match("(a+)+$", "a" * 40 + "b")):
        with (
            pytest.raises(TimeLimitExceeded, match=re.escape("this did not end within 0.1 s")),
            time_limit(0.1, "this"),
        ):
            hang()


def test_a_time_limit_leaves_an_alarm_that_was_set_before() -> None:
    rung: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with time_limit(10, "this"):
            time.sleep(0.01)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.2
        while not rung:
            time.sleep(0.01)
        assert rung == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def test_in_another_thread_a_time_limit_is_told_afterwards() -> None:
    said: list[str] = []

    def run() -> None:
        try:
            with time_limit(0.01, "this"):
                time.sleep(0.05)
        except TimeLimitExceeded as error:
            said.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert said == ["this did not end within 0.01 s"]
