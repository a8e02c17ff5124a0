"""The command line for authors: init, list, play, check, and the demo where something is missing."""

import contextlib
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import gymnasium
import pytest
import real_models
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import envsdk
from envsdk import Env, Message, Trajectory, Turn, errors
from envsdk import _registry as registry
from envsdk.adapters import HarborTask
from envsdk.authoring._making import splits_of
from envsdk.cli import _check as checks
from envsdk.cli import _rollout as rollout
from envsdk.cli import app
from envsdk.cli._check import printed_checks
from envsdk.cli._options import options_of
from envsdk.cli._typed_reply import TypingError, read_reply, signatures
from envsdk.cli.scaffold import create
from envsdk.testing import _environments as environments
from envsdk.testing._environments import EnvCheck
from envsdk.trajectories.records import read_jsonl


def run(*arguments: object, typed: str | None = None, status: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=typed)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


FEW = {
    "episodes end",
    "gymnasium checker",
    "reference policy",
    "null policy",
    "distinct tasks",
    "splits",
    "tool errors",
}


class Broken(Env):
    """Cannot be made."""

    def __init__(self, **options: object) -> None:
        raise errors.ConfigError("this machine has\nno such thing")


class Shy(Env):
    """Ends at once. Exercises: patience. Reward: none is declared."""

    def start(self) -> Turn:
        return Turn("Well?", max_tokens=4)

    def respond(self, reply: Message) -> Turn:
        return Turn(reward=None, terminated=True)


@pytest.fixture
def registered() -> Iterator[None]:
    """Three environments beside those that are there."""
    envsdk.register_env("envsdk/Broken-v0", Broken)
    envsdk.register_env("envsdk/Random-v0", Shy, nondeterministic=True)
    envsdk.register_env("test/Shy-v0", Shy)
    yield
    for name in ("envsdk/Broken-v0", "envsdk/Random-v0", "test/Shy-v0"):
        registry._envs.pop(name)
        gymnasium.registry.pop(name)


# list


def test_list_tells_of_every_environment_what_it_is_about_or_why_it_cannot_be_made(registered: None) -> None:
    printed = run("list")
    assert "cannot be created on this machine: this machine has no such thing" in printed
    assert [line for line in printed.splitlines() if "/" in line and not line.startswith(" ")] == envsdk.list_envs()
    assert "Compute an expression with a calculator that takes a few numbers at a time." in printed
    assert "Exercises: using the answers so far, and keeping to a format." in printed
    assert "tools calculate" in printed


def test_list_prints_the_same_for_machines(registered: None) -> None:
    listed = json.loads(run("list", "--json"))
    entries = {entry["id"]: entry for entry in listed["environments"]}
    assert list(entries) == envsdk.list_envs()
    assert entries["envsdk/Calculator-v1"]["tools"] == ["calculate"]
    assert entries["test/Shy-v0"]["exercises"] == "patience"
    assert entries["test/Shy-v0"]["reward_range"] == [None, None]
    assert entries["envsdk/Random-v0"]["nondeterministic"]
    assert listed["broken_plugins"] == []


def test_list_tells_of_a_plugin_that_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("acme", "no_such_module_at_all", registry.ENVIRONMENTS)
    monkeypatch.setattr(registry, "_entry_points", lambda group: [broken])
    monkeypatch.setattr(registry, "_loaded_plugins", set())
    monkeypatch.setattr(registry, "_failed_plugins", {})
    assert "the plug-in 'acme' (no_such_module_at_all) cannot be imported" in run("list")


def test_list_installed_names_the_package_of_everything_that_is_registered(registered: None) -> None:
    listed = json.loads(run("list", "--installed", "--json"))
    kinds = {
        kind: {one["name"]: one for one in listed[kind]} for kind in ("environments", "renderers", "history_policies")
    }
    assert list(kinds["environments"]) == envsdk.list_envs()
    assert list(kinds["renderers"]) == envsdk.list_renderers()
    ours = {"package": "envsdk", "version": importlib.metadata.version("envsdk")}
    for kind, name in (
        ("environments", "envsdk/Calculator-v1"),
        ("renderers", "qwen3"),
        ("history_policies", "strip"),
    ):
        assert kinds[kind][name] == {"name": name, **ours}
    assert kinds["environments"]["test/Shy-v0"]["package"] == ""
    assert "this process" in run("list", "--installed")


# card


def test_a_card_has_what_an_environment_uses_and_what_its_policies_score() -> None:
    card = json.loads(run("card", "envsdk/GuessNumber-v1", "--seeds", "2", "--json"))
    assert card["environment"]["package"] == "envsdk"
    assert card["measured"] == 2
    assert card["features"] == ["multi-turn"]
    assert card["scores"]["reference"] == [1.0, 1.0]
    assert max(card["scores"]["null"]) < 1.0
    assert card["steps"]["reference"] > 1
    assert set(card["breaks"]) == {"keep", "strip"}
    assert card["observed_tokens"]["reference"] > card["sampled_tokens"]["reference"] > 0


def test_a_card_in_markdown_is_of_any_class_and_leaves_out_a_policy_that_is_missing() -> None:
    printed = run("card", f"{__name__}:Shy", "--seeds", "1")
    assert printed.startswith(f"# {__name__}:Shy\n\nEnds at once.")
    assert "| exercises | patience |" in printed
    assert "| null | 0 (0) | 1 |" in printed
    assert "reference" not in printed


# What is typed.

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look something up.",
            "parameters": {
                "type": "object",
                "properties": {
                    "what": {"type": "string", "description": "Its name."},
                    "count": {"type": "integer", "default": 3},
                    "tags": {"type": "array"},
                },
                "required": ["what"],
            },
        },
    },
    {"type": "function", "function": {"name": "say", "parameters": {"properties": {"text": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "rest"}},
]


def typed(*lines: str) -> Message:
    first, *others = lines
    left = iter(others)

    def more() -> str:
        for line in left:
            return line
        raise EOFError

    return read_reply(first, more, TOOLS)


@pytest.mark.parametrize(
    ("lines", "content"),
    [
        (["hello"], "hello"),
        (["one \\", "two"], "one \ntwo"),
        (['"""', "/look what=x", "", " a\\", '"""'], "/look what=x\n\n a\\"),
        (['"""', '"""'], ""),
        (["//look"], "/look"),
        ([" /look"], " /look"),
        (['{"a": 1}'], '{"a": 1}'),
    ],
)
def test_text_is_a_reply_on_one_line_or_on_several(lines: list[str], content: str) -> None:
    assert typed(*lines) == Message(role="assistant", content=content)


@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [
        ("/look what=pen count=2", "look", {"what": "pen", "count": 2}),
        ('/look what="a pen" tags=["x"]', "look", {"what": "a pen", "tags": "[x]"}),
        ("""/look what=7 tags='["x", 1]'""", "look", {"what": "7", "tags": ["x", 1]}),
        ('/look {"what": "pen", "count": "2"}', "look", {"what": "pen", "count": "2"}),
        ("/look wat=x", "look", {"wat": "x"}),
        ("/say a = b, isn't it?", "say", {"text": "a = b, isn't it?"}),
        ("/say text=hello", "say", {"text": "hello"}),
        ("/say", "say", {}),
        ("/rest", "rest", {}),
    ],
)
def test_a_call_of_a_tool_is_typed_with_a_slash(line: str, name: str, arguments: dict) -> None:
    [call] = typed(line).tool_calls
    assert (call.name, call.arguments) == (name, arguments)


def test_several_calls_and_text_are_one_reply() -> None:
    reply = typed("I look. \\", "/look what=pen\\", "/rest")
    assert reply.content == "I look. "
    assert [call.name for call in reply.tool_calls] == ["look", "rest"]


def test_a_whole_message_is_typed_as_json() -> None:
    reply = typed('/{"reasoning": "hm", "content": "x", "tool_calls": [{"name": "nope", "arguments": "{"}]}')
    assert (reply.reasoning, reply.content) == ("hm", "x")
    assert (reply.tool_calls[0].name, reply.tool_calls[0].arguments) == ("nope", "{")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/loook what=x", "Did you mean 'look'"),
        ("/look pen", "expected key=value with a key of: what, count, tags"),
        ('/look what="pen', "with spaces in quotes"),
        ("/look {what: 1}", "not a JSON object"),
        ("/{", "the message is not valid JSON"),
        ('/{"content": 7}', "content"),
        ('/{"role": "user", "kontent": "x"}', "kontent"),
        ("/", "No tool"),
    ],
)
def test_what_cannot_be_read_is_told(line: str, message: str) -> None:
    with pytest.raises(TypingError, match=message):
        typed(line)


@settings(max_examples=2 * settings.default.max_examples)
@given(lines=st.lists(st.text(alphabet="/{}[]\"'\\=: ab1look\u00e9", max_size=20), min_size=1, max_size=4))
def test_whatever_is_typed_is_a_reply_or_a_reason_why_not(lines: list[str]) -> None:
    with contextlib.suppress(TypingError, EOFError):
        assert typed(*lines).role == "assistant"


def test_tools_are_shown_with_what_they_take() -> None:
    assert signatures(TOOLS) == [
        "/look what=... [count=...] [tags=...]",
        "    Look something up.",
        "    what: string: Its name.",
        "    count: integer (default 3)",
        "    tags: array",
        "/say [text=...]",
        "    text: string",
        "/rest",
    ]


# play


def test_a_person_plays_an_episode_with_a_tool(tmp_path: Path) -> None:
    env = envsdk.make("envsdk/Calculator-v1", operands=2)
    env.reset(seed=3)
    shown = run(
        *("play", "envsdk/Calculator-v1", "--seed", 3, "--option", "operands=2", "--out", tmp_path),
        typed=f"/calculate 1/0\n/calculate expression={env.expression.replace(' ', '')}\n{env.value}\n",
    )
    assert f"What is {env.expression}?" in shown
    assert "/calculate expression=..." in shown
    assert "[tool]\nError: division by zero" in shown
    assert f"[tool]\n{env.value}" in shown
    assert "reward 1 (correct 1)" in shown
    assert "The episode is over: terminated, reward 1 in 3 steps, breaks: none." in shown
    [trajectory] = read_jsonl(tmp_path / "trajectories.jsonl", Trajectory)
    assert trajectory.reward == 1.0


def test_a_person_who_leaves_is_let_go() -> None:
    for keys in ("50\n", "50\n:quit\n", '50\n"""\nnot finished\n'):
        assert "You quit after 1 step." in run("play", "envsdk/GuessNumber-v1", typed=keys)
    assert "You quit after 0 steps." in run("play", "envsdk/GuessNumber-v1", typed="")


def test_breaks_and_both_players_are_shown() -> None:
    shown = run("play", "envsdk/MathChat-v0", "--history", "compact:every=2", typed='/{"reasoning": "hm"}\n2\n3\n')
    assert shown.count("-- compaction (") == 1
    shown = run("play", "envsdk/KuhnPoker-v1", "--option", "hands=1", typed="bet\nfold\n")
    assert "-- you now act as player1" in shown
    assert "player0 got the reward 0.5." in shown


def test_a_reply_that_goes_on_and_a_stop_string_are_shown() -> None:
    shown = run("play", "envsdk/SearchInline-v1", typed="<search>x</search> and\n:prompt\n<answer>x</answer>\n")
    assert "-- your reply ends at '</search>' or '</answer>'" in shown
    assert "-- your reply continues: \n<information>No results were found.</information>" in shown
    assert "<search>x</search>\n<information>" in shown.partition(":prompt")[2]  # what came behind it was not said


def test_help_and_tools_are_told_and_blank_lines_say_nothing() -> None:
    shown = run("play", "envsdk/Calculator-v1", typed="\n  \n:help\n:tools\n/calculte 1\n")
    assert "/tool key=value" in shown
    assert shown.count("/calculate expression=...") == 2
    assert "Did you mean 'calculate'" in shown
    assert "You quit after 0 steps." in shown


def test_what_was_not_scored_or_was_too_long_is_told(registered: None) -> None:
    shown = run("play", "test/Shy-v0", typed="a reply that is much too long\n")
    assert "-- your reply may have at most 4 tokens" in shown
    assert "-- not scored, your reply was too long and was cut" in shown


def test_what_a_renderer_cannot_say_is_asked_again() -> None:
    shown = run(
        *("play", "envsdk/GuessNumber-v1", "--renderer", "role_colon"),
        typed='/{"content": "", "tool_calls": [{"name": "f", "arguments": {}}]}\n50\n',
    )
    assert "You quit after 1 step." in shown


@pytest.mark.full
def test_every_environment_can_be_played_from_standard_input() -> None:
    for name in envsdk.list_envs():
        shown = run("play", name, typed="hello\n:prompt\n:quit\n")
        assert "You quit after" in shown or "The episode is over" in shown


def test_options_of_an_environment_are_pairs() -> None:
    assert options_of(["a=1", "b=true", "c=text", "d=None", "e="]) == {
        "a": 1,
        "b": True,
        "c": "text",
        "d": None,
        "e": "",
    }
    for wrong in (["a"], ["=1"], ["a=1", "a=2"], ["a b=1"]):
        with pytest.raises(errors.ConfigError):
            options_of(wrong)
    with pytest.raises(errors.ConfigError, match="--renderer"):
        run("play", "envsdk/GuessNumber-v1", "--option", "renderer=qwen3", typed="")


def test_a_rollout_takes_options_of_the_environment(tmp_path: Path) -> None:
    run("rollout", "envsdk/MathChat-v0", "--option", "questions=2", "--seeds", 1, "--out", tmp_path)
    [trajectory] = read_jsonl(tmp_path / "trajectories.jsonl", Trajectory)
    assert trajectory.config["questions"] == 2


# check


def test_check_prints_a_report() -> None:
    printed = run("check", "envsdk/GuessNumber-v1", "--seeds", 2, "--only", "same bytes")
    assert re.match(r"PASS +same bytes", printed)
    assert "envsdk/GuessNumber-v1: 0 of 1 checks failed" in printed


def test_check_prints_one_finding_for_each_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("reference policy", "null policy", "distinct tasks", "specification")
    monkeypatch.setattr(environments, "CHECKS", {name: environments.CHECKS[name] for name in few})
    printed = run("check", "broken_environments:FailsOnSomeSeeds", "--seeds", 6, status=1)
    assert printed.count("there is no word") == 1
    assert re.search(r'^2 more checks are not possible because "reference policy" fails$', printed, re.MULTILINE)
    assert printed.splitlines()[-1] == "FailsOnSomeSeeds: 1 of 4 checks failed"


def test_check_prints_each_check_as_it_ends() -> None:
    printed: list[str] = []

    def look(shown: str) -> None:
        printed.append(shown)

    with printed_checks(as_json=False) as on_progress:
        for number in range(3):
            on_progress(f"check {number}", None)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(checks, "print_text", lambda text, style="": look(text))
                on_progress(f"check {number}", EnvCheck(f"check {number}", "PASS"))
            assert len(printed) == number + 1


def test_rollout_takes_a_class_as_check_and_play_do(tmp_path: Path) -> None:
    printed = run("rollout", "broken_environments:Sound", "--seeds", 2, "--history", "strip", "--out", tmp_path)
    assert "Sound" in printed
    assert len(list(read_jsonl(tmp_path / "trajectories.jsonl", Trajectory))) == 2


@pytest.mark.parametrize("command", ["play", "rollout"])
def test_other_commands_than_check_refuse_what_is_not_an_environment(command: str) -> None:
    with pytest.raises(errors.PluginError):
        run(command, "broken_environments:Nobody")
    with pytest.raises(errors.UnknownName):
        run(command, "No/No-v0")


def test_check_takes_options_and_prints_for_machines() -> None:
    arguments = ("check", "envsdk/GuessNumber-v1", "--option", "high=9", "--seeds", 2, "--only", "same bytes", "--json")
    report = json.loads(run(*arguments))
    assert report["environment"] == "envsdk/GuessNumber-v1"
    assert [check["verdict"] for check in report["checks"]] == ["PASS"]


def test_check_prints_a_command_that_repeats_it_with_the_same_name_and_options() -> None:
    options = ["--history", "strip", "--only", "no global random state"]
    given = ["check", "broken_environments:GlobalRandom", *options]
    result = CliRunner().invoke(app, [*given, "--seeds", "1"])
    (line,) = [line.strip() for line in result.output.splitlines() if line.strip().startswith("envsdk check")]
    assert CliRunner().invoke(app, shlex.split(line)[1:]).exit_code == result.exit_code == 1


def test_check_of_a_class_that_fails_ends_with_status_1() -> None:
    printed = run("check", "envsdk.authoring._env:Env", "--only", "reward range", "--seeds", 1, status=1)
    assert "FAIL" in printed


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("envsdk/Nothing-v0", "No environment"),
        ("no_such_module:Env", "cannot be imported"),
        ("envsdk.authoring._env:Nothing", "cannot be imported"),
        ("envsdk.episodes._turn:Turn", "expected a subclass of envsdk.Env"),
        ("broken_environments:WORDS", "expected a subclass of envsdk.Env"),
        (":Env", "cannot be imported"),
    ],
)
def test_check_of_what_is_not_an_environment_is_refused(name: str, message: str) -> None:
    with pytest.raises(errors.EnvsdkError, match=message):
        run("check", name)


# The demo.


def test_the_demo_names_and_leaves_out_what_this_machine_cannot_run(
    registered: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["envsdk/Broken-v0", "envsdk/GuessNumber-v1", "envsdk/Random-v0"]
    monkeypatch.setattr(rollout, "list_envs", lambda: names)
    printed = run("demo", "--seeds", 1, "--out", tmp_path)
    assert "skipped: envsdk/Broken-v0: this machine has no such thing\n" in printed
    assert "skipped: envsdk/Random-v0: it is nondeterministic\n" in printed
    assert "GuessNumber" in printed


# init


@pytest.mark.parametrize(
    ("name", "env_id"),
    [
        ("my-quiz", "my_quiz/MyQuiz-v0"),
        ("My.Quiz_2", "my_quiz_2/MyQuiz2-v0"),
        ("quizzing", "quizzing/Quizzing-v0"),
        ("mathQuiz", "mathquiz/MathQuiz-v0"),
    ],
)
def test_names_follow_from_the_name_of_the_package(name: str, env_id: str, tmp_path: Path) -> None:
    assert create(name, tmp_path).env_id == env_id


NO_NAMES = ("", "my quiz", "-quiz", "quiz-", "2048", "qu\u00edz", "quiz/x", "../quiz", "a" * 61, "my-quiz\n")
TAKEN = ("class", "None", "test", "tests", "json", "print", "numpy", "envsdk", "tool-env", "turn", "type-error")


@pytest.mark.parametrize("name", [*NO_NAMES, *TAKEN])
def test_a_name_that_is_none_or_is_taken_is_refused_before_anything_is_made(name: str, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="name"):
        create(name, tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_a_folder_with_something_in_it_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(errors.ConfigError, match="is not an empty folder"):
            run("init", "my-quiz", folder)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(errors.ConfigError, match="cannot be written"):
        run("init", "my-quiz", tmp_path / "notes.txt" / "new")


def test_init_makes_a_folder_of_that_name_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = run("init", "my-quiz")
    assert "Created my-quiz/ with the environment my_quiz/MyQuiz-v0" in printed
    assert "pip install -e . && pytest" in printed
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    package = ("pyproject.toml", "README.md", "my_quiz/__init__.py", "my_quiz/environment.py", "tests/test_my_quiz.py")
    assert files == {f"my-quiz/{file}" for file in package}


@pytest.mark.parametrize("tools", [pytest.param(False, marks=pytest.mark.full), True], ids=["plain", "tools"])
def test_the_test_of_a_new_package_passes(tools: bool, is_full: bool, tmp_path: Path) -> None:
    """As when it is installed: its entry points are found beside it. A short run leaves out slow checks."""
    create("my-quiz", tmp_path, with_tools=tools)
    metadata = tmp_path / "my_quiz-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-quiz\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[envsdk.environments]\nmy_quiz = my_quiz\n")
    few = "" if is_full else f"[checks.pop(name) for name in checks.keys() - {FEW}]"
    program = f"import sys, pytest\nfrom envsdk.testing._environments import CHECKS as checks\n{few}\n"
    ended = subprocess.run(
        [sys.executable, "-c", f"{program}sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider']))"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout


@pytest.mark.full
@pytest.mark.parametrize("tools", [False, True], ids=["plain", "tools"])
def test_a_new_environment_is_short_and_works_with_every_renderer(
    tools: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"quiz-{'tools' if tools else 'plain'}"
    made = create(name, tmp_path, with_tools=tools)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(f"{made.package}.environment")
    kind = getattr(module, made.environment)
    assert len((tmp_path / made.package / "environment.py").read_text().splitlines()) < 40
    tokenizers = [("qwen3", "embedded"), ("fixed_base", real_models.qwen3_folder())]
    for renderer, tokenizer in [*tokenizers, ("harmony", real_models.gpt_oss_tokenizer())]:
        env = kind(renderer=renderer, tokenizer=tokenizer, split="test")
        assert [envsdk.rollout(env, policy, seed=0).reward for policy in ("reference", "null")] == [1.0, 0.0]


def test_the_splits_of_an_environment_are_those_of_its_option_even_if_it_may_be_none():
    assert splits_of(HarborTask) == ["train", "test"]
    assert splits_of(type(envsdk.make("envsdk/Calculator-v1"))) == ["train", "test"]
    assert splits_of(Env) == []
