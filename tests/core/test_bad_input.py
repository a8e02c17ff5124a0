"""What a caller gets wrong is a typed error that says what was given and what to do."""

import asyncio
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

import envsdk
from envsdk import Action, Env, Limits, Message, Turn, errors
from envsdk import _registry as registry
from envsdk.cli import app
from envsdk.contexts import _history as history
from envsdk.rollouts import rollout_many


@pytest.fixture
def env() -> Env:
    env = envsdk.make("envsdk/GuessNumber-v1")
    env.reset(seed=0)
    return env


def test_an_unknown_renderer_suggests_near_names() -> None:
    with pytest.raises(errors.UnknownName, match="Did you mean 'qwen3'"):
        envsdk.get_renderer("qwen")


@pytest.mark.parametrize(
    ("model", "families"),
    [
        ("gpt-oss", "Did you mean 'harmony'[?] With a tokenizer, renderer='auto' chooses"),
        ("openai/gpt-oss-20b", "tokenizer='openai/gpt-oss-20b', with renderer='auto', .* or with renderer='harmony'"),
        ("gpt_oss", "Did you mean 'harmony'[?]"),
        ("gptoss", "Did you mean 'harmony'[?]"),
        ("qwen2_5", "Did you mean 'qwen2.5'[?]"),
        ("glm4_5", "Did you mean 'glm-4.5'[?]"),
        ("llama3", "Did you mean 'llama-3'[?]"),
        ("Qwen/Qwen3-8B", "tokenizer='Qwen/Qwen3-8B', with renderer='auto', .* or with renderer='qwen3'"),
        ("Qwen/Qwen3-4B-Instruct-2507", "or with renderer='qwen3-instruct-2507'"),
        ("meta-llama/Llama-3.1-8B-Instruct", "or with renderer='llama-3'"),
        ("llama", "Did you mean 'llama-3' or 'llama-4'[?]"),
        ("deepseek", "Did you mean 'deepseek-r1' or 'deepseek-v3' or 'deepseek-v4' or 'deepseek-v3.1'[?]"),
        ("qwen", "Did you mean 'qwen3' or 'qwen2.5' or"),
    ],
)
def test_the_name_of_a_model_names_its_renderers(model: str, families: str):
    with pytest.raises(errors.UnknownName, match=families):
        envsdk.get_renderer(model, "embedded")


@pytest.mark.parametrize("name", ["qwen3", "llama-3"])
def test_an_option_of_other_libraries_for_history_names_the_history_policy(name: str):
    for make in (
        lambda **options: envsdk.get_renderer(name, "embedded", **options),
        lambda **options: envsdk.make("envsdk/GuessNumber-v1", **options),
    ):
        with pytest.raises(errors.ConfigError, match="history='strip'"):
            make(strip_thinking_from_history=True)


def test_an_unknown_renderer_option_is_named() -> None:
    with pytest.raises(errors.ConfigError, match="thinking"):
        envsdk.get_renderer("qwen3", thinking=False)


def test_an_unknown_history_policy_suggests_near_names() -> None:
    with pytest.raises(errors.UnknownName, match="Did you mean 'compact'"):
        history.get_history({"name": "compactt", "every": 2})


@pytest.mark.parametrize("options", [{}, {"every": 0}, {"every": 2, "evry": 3}, {"every": "two"}])
def test_a_wrong_history_option_is_named(options: dict) -> None:
    with pytest.raises(errors.ConfigError, match=r"every|evry"):
        history.get_history({"name": "compact", **options})


@pytest.mark.parametrize("limits", [{"max_step": 3}, {"max_steps": 0}, {"max_steps": 1.5}, 7])
def test_wrong_limits_are_refused(limits: object) -> None:
    with pytest.raises(errors.ConfigError, match="limits"):
        envsdk.make("envsdk/GuessNumber-v1", limits=limits)


def test_an_unknown_option_of_an_environment_is_named() -> None:
    with pytest.raises(errors.ConfigError, match=r"hgih.*Its own options: low, high"):
        envsdk.make("envsdk/GuessNumber-v1", hgih=5)


def test_a_tokenizer_without_the_familys_control_tokens_is_refused(tmp_path: Path) -> None:
    text = (Path(envsdk.rendering.tokenizers._files.DATA) / "embedded.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(text.replace("<think>", "<thunk>"), encoding="utf-8")
    with pytest.raises(errors.TokenizerError, match=r"lacks control tokens.*<think>"):
        envsdk.make("envsdk/GuessNumber-v1", tokenizer=str(tmp_path))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([4096], "token 4096 at position 0 is out of range"),
        ([1, -1], "token -1 at position 1 is out of range"),
        ([1.5], "must be integers"),
        ([[1]], r"shape \(n,\)"),
        ("text", r"shape \(n,\)"),
        (None, r"shape \(n,\)"),
        ([True], "must be integers"),
        (np.array([2**40]), "out of range"),
        (Action([1, 2], [-0.5]), "there are 2 tokens"),
        (Action([1], [0.5]), "logprob 0.5 at position 0"),
        (Action([1, 2], [-0.5, float("nan")]), "logprob nan at position 1"),
        (Action([1], [float("-inf")]), "logprob -inf at position 0"),
        (Action([1], ["x"]), "logprobs must be"),
        (Action([1], finish_reason="done"), "finish_reason is 'done'"),
        (Action([1], temperature=-1), "temperature is -1"),
        (Action([1], temperature=float("nan")), "temperature is nan"),
    ],
)
def test_an_illegal_action_is_refused_and_the_episode_goes_on(env: Env, action: object, message: str) -> None:
    before = env.prompt()
    with pytest.raises(errors.ActionError, match=message):
        env.step(action)
    assert np.array_equal(env.prompt(), before)
    assert env.step(Action([5], [-1.0])).observation.extends


def test_ids_that_pad_the_vocabulary_are_legal() -> None:
    tokenizer = envsdk.load_tokenizer(envsdk.rendering.tokenizers._files.DATA / "embedded.json", vocab_size=5000)
    env = envsdk.make("envsdk/GuessNumber-v1", tokenizer=tokenizer)
    env.reset(seed=0)
    env.step([4999])
    assert env.messages()[2].content == envsdk.rendering.tokenizers._protocol.UNNAMED


def test_a_vocabulary_smaller_than_its_names_is_refused() -> None:
    with pytest.raises(errors.TokenizerError, match="vocab_size is 100"):
        envsdk.load_tokenizer(envsdk.rendering.tokenizers._files.DATA / "embedded.json", vocab_size=100)


def test_step_after_the_end_is_refused(env: Env) -> None:
    env.step(env.renderer.reply(Message(role="assistant", content=str(env.secret))))
    with pytest.raises(errors.EpisodeError, match="after the end"):
        env.step([1])


class Counts(Env):
    """Counts, to a number that a task says."""

    class Task(BaseModel):
        number: int

    def start(self) -> Turn:
        self.said = [int(self.np_random.integers(100))]
        return Turn(f"To {self.task.number if self.task else 1}.")

    def respond(self, reply: Message) -> Turn:
        self.said.append(int(self.np_random.integers(100)))
        return Turn(f"{self.said}")


SEEDS = (1.7, 1.0, "3", True, np.True_, -1, np.float32(2), [1], b"1", float("nan"), np.array([3]))
REFUSED = [
    *[{"seed": seed} for seed in SEEDS],
    {"options": {"tsak": 1}},
    {"options": {7: 1}},
    {"options": {"task": 9}},
    {"options": {"task": -1}},
    {"options": {"task": {"number": "many"}}},
    {"options": {"task": "a row"}},
    {"options": {"episode_id": 3}},
    {"options": {"group_id": b"a"}},
    {"options": [1]},
    {"options": "task"},
    {"seed": 1.5, "options": {"task": 0}},
]


@pytest.mark.matrix
@pytest.mark.parametrize("play", ["step", "astep"])
@pytest.mark.parametrize("arguments", REFUSED, ids=repr)
def test_a_refused_reset_leaves_the_running_episode_as_it_was(arguments: dict[str, Any], play: str) -> None:
    def episode(*, is_disturbed: bool) -> tuple[Any, list[int]]:
        env = Counts(tasks=[{"number": 2}, {"number": 3}], limits={"max_steps": 4})
        env.reset(seed=5)
        env.step([1, 2])
        if is_disturbed:
            with pytest.raises((errors.ConfigError, errors.TaskError)):
                env.reset(**arguments) if play == "step" else asyncio.run(env.areset(**arguments))
        while env.trajectory is None:
            env.step([3, 4])
        return env.trajectory.to_json(), env.said

    assert episode(is_disturbed=True) == episode(is_disturbed=False)


class Damaged(list[Any]):
    """Rows of which some cannot be read, as those of a data set on a disk that is gone."""

    def __getitem__(self, index: Any) -> Any:
        row = super().__getitem__(index)
        if isinstance(row, OSError):
            raise row
        return row


@pytest.mark.matrix
@pytest.mark.parametrize("play", ["step", "astep", "rollout"])
@pytest.mark.parametrize("wrong", [{"z": 1}, 7, {"number": "many"}, {"number": 1, "x": object()}, OSError("gone")])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_reset_that_comes_to_a_row_that_is_refused_leaves_the_running_episode_as_it_was(
    seed: int | None, wrong: Any, play: str
) -> None:
    class Strict(Counts):
        class Task(BaseModel, extra="forbid"):  # pyright: ignore[reportIncompatibleVariableOverride]
            number: int

    def episode(*, is_disturbed: bool) -> tuple[Any, list[int]]:
        env = Strict(tasks=[{"number": 2}], limits={"max_steps": 4})
        env.reset(seed=5)
        env.step([1, 2])
        before = env.pending()[0].tokens.tolist()
        if is_disturbed:
            env.tasks = Damaged([wrong] * 3)
            with pytest.raises((errors.TaskError, OSError)):
                if play == "step":
                    env.reset(seed=seed)
                else:
                    asyncio.run(env.areset(seed=seed) if play == "astep" else envsdk.arollout(env, "null", seed=seed))
        assert env.pending()[0].tokens.tolist() == before
        assert env.task.number == 2
        while env.trajectory is None:
            env.step([3, 4])
        return env.trajectory.to_json(), env.said

    assert episode(is_disturbed=True) == episode(is_disturbed=False)


def test_a_reset_without_a_seed_gets_past_a_row_that_is_refused_where_no_episode_is_running() -> None:
    env = Counts(tasks=[{"number": 2}, {"number": "many"}])
    for _ in range(64):
        try:
            env.reset()
            break
        except errors.TaskError:
            assert env.fail(ValueError("no task")).status == "error"
    assert env.task.number == 2


def test_a_refused_reset_counts_as_none() -> None:
    env = Counts()
    with pytest.raises(errors.ConfigError, match=r"seed is 1\.7; expected None or an integer"):
        env.reset(seed=1.7)
    env.reset()
    assert env.episode_id == "Counts/#1"


@pytest.mark.parametrize("seed", SEEDS, ids=repr)
def test_a_gather_refuses_what_is_no_seed_before_it_plays(seed: Any) -> None:
    with pytest.raises(errors.ConfigError, match="seed is"):
        rollout_many(Counts, "null", seeds=[0, seed])


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint32])
def test_a_seed_may_be_one_of_numpys_integers_and_is_the_same_seed(kind: Any) -> None:
    envs = [Counts(limits={"max_steps": 1}) for _ in range(2)]
    first, second = (envsdk.rollout(env, seed=seed) for env, seed in zip(envs, (7, kind(7)), strict=True))
    assert first.to_json() == second.to_json()


def test_an_unknown_reset_option_is_named(env: Env) -> None:
    with pytest.raises(errors.ConfigError, match="tsak"):
        env.reset(options={"tsak": 1})


class Says(Env):
    """Says what it is told to."""

    def __init__(self, first: Any = None, then: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.first, self.then = first, then

    def start(self) -> Turn:
        return Turn("Hello.") if self.first is None else self.first

    def respond(self, reply: Message) -> Turn:
        return self.then


@pytest.mark.parametrize(
    "first",
    [
        "Hello.",
        Turn(),
        Turn("a", reward=1.0),
        Turn("a", terminated=True),
        Turn("a", info={"stop": 1}),
        Turn("a", continues=True),
    ],
    ids=["no turn", "no message", "a reward", "an end", "a reserved name", "a reply that goes on"],
)
def test_an_illegal_first_turn_is_refused(first: object) -> None:
    with pytest.raises(errors.TurnError):
        Says(first).reset(seed=0)


@pytest.mark.parametrize("then", [None, "text"])
def test_an_illegal_turn_is_refused(then: object) -> None:
    env = Says(then=then)
    env.reset(seed=0)
    with pytest.raises(errors.TurnError):
        env.step([1])


def test_a_role_that_the_family_cannot_express_is_named() -> None:
    with pytest.raises(errors.RenderError, match=r"'developer'.*qwen3.*assistant, system, tool, user"):
        Says(Turn([Message(role="developer", content="a")])).reset(seed=0)


def test_a_task_file_that_is_no_jsonl_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"secret": 1}\n\n{"secret": \n')
    with pytest.raises(errors.TaskError, match="line 3 is not JSON"):
        envsdk.make("envsdk/GuessNumber-v1", tasks=str(file))


@pytest.mark.parametrize("tasks", ["nowhere.jsonl", [], 7, {"a": 1}])
def test_tasks_that_cannot_be_read_are_refused(tasks: object) -> None:
    with pytest.raises(errors.TaskError):
        envsdk.make("envsdk/GuessNumber-v1", tasks=tasks)


def test_a_task_that_does_not_fit_its_model_is_named() -> None:
    env = envsdk.make("envsdk/GuessNumber-v1", tasks=[{"secrt": 1}])
    with pytest.raises(errors.TaskError, match="secret"):
        env.reset(seed=0)


def test_a_task_index_out_of_range_is_refused() -> None:
    env = envsdk.make("envsdk/GuessNumber-v1", tasks=[{"secret": 1}])
    with pytest.raises(errors.TaskError, match="task 1 does not exist"):
        env.reset(options={"task": 1})


def test_a_policy_that_returns_no_action_is_refused() -> None:
    with pytest.raises(errors.PolicyError, match=r"returned \[1\]; expected an Action"):
        envsdk.rollout(envsdk.make("envsdk/GuessNumber-v1", tokenizer="embedded"), lambda prompt, **_: [1], seed=0)


def test_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(errors.UnknownName, match="Did you mean 'random'"):
        envsdk.rollout(envsdk.make("envsdk/GuessNumber-v1"), "randon", seed=0)


def test_a_broken_plugin_is_reported_by_name_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_failed_plugins", {})
    broken = EntryPoint("acme", "no_such_module_at_all", registry.ENVIRONMENTS)
    real = registry._entry_points
    monkeypatch.setattr(registry, "_entry_points", lambda group: [broken, *real(group)])
    with pytest.warns(registry.PluginWarning, match=r"'acme'.*no_such_module_at_all"):
        assert "envsdk/GuessNumber-v1" in envsdk.list_envs()
    with pytest.raises(errors.UnknownName, match="'acme' failed to import"):
        envsdk.make("acme/Thing-v0")


def test_a_plugin_that_exits_or_takes_one_of_our_ids_is_the_one_that_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "acme_env.py").write_text("raise SystemExit(7)")
    (tmp_path / "rival_env.py").write_text(
        "from envsdk import register_env\nregister_env('envsdk/Calculator-v1', 'rival_env:Calculator')"
    )
    script = f"""
import sys
from importlib.metadata import EntryPoint
from envsdk import list_envs, _registry as registry
sys.path.insert(0, {str(tmp_path)!r})
intruders = [EntryPoint(name, f"{{name}}_env", registry.ENVIRONMENTS) for name in ("acme", "rival")]
real = registry._entry_points
registry._entry_points = lambda group: [*intruders, *real(group)]
print(*list_envs(), type(__import__("envsdk").make("envsdk/Calculator-v1")).__module__)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "envsdk/MathChat-v0" in run.stdout
    assert run.stdout.split()[-1] == "envsdk_environments._calculator"
    assert "the plug-in 'acme'" in run.stderr and "the plug-in 'rival'" in run.stderr


def test_a_broken_renderer_plugin_is_reported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("acme", "no_such_module_at_all:Renderer", registry.RENDERERS)
    monkeypatch.setattr(registry, "_entry_points", lambda group: [broken])
    with pytest.raises(errors.PluginError, match=r"'acme'.*no_such_module_at_all"):
        envsdk.get_renderer("acme")


def test_an_environment_whose_module_is_missing_is_reported_by_id() -> None:
    envsdk.register_env("test/Missing-v0", "no_such_module_at_all:Env")
    with pytest.raises(errors.PluginError, match=r"test/Missing-v0.*no_such_module_at_all"):
        envsdk.make("test/Missing-v0")
    registry._envs.pop("test/Missing-v0")


def test_an_id_cannot_be_taken_twice() -> None:
    with pytest.raises(errors.PluginError, match="is taken by"):
        envsdk.register_env("envsdk/GuessNumber-v1", "somewhere:Else")


def test_an_authors_error_says_where_it_came_from() -> None:
    class Fails(Says):
        def respond(self, reply: Message) -> Turn:
            raise KeyError("oops")

    env = Fails()
    env.reset(seed=7)
    with pytest.raises(KeyError) as caught:
        env.step([1])
    assert caught.value.__notes__ == ["Raised by respond() of Fails, seed 7, step 1."]


@pytest.mark.parametrize(
    "arguments",
    [
        ["envsdk/Nothing-v0"],
        ["envsdk/GuessNumber-v1", "--history", "compact:every"],
        ["envsdk/GuessNumber-v1", "--tokenizer", "/nowhere/at/all"],
        ["envsdk/GuessNumber-v1", "--tasks", "/nowhere/tasks.jsonl"],
        ["envsdk/GuessNumber-v1", "--out", "/proc/nowhere"],
        ["envsdk/GuessNumber-v1", "--policy", "clever"],
    ],
)
def test_the_command_line_refuses_with_our_error(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["rollout", *arguments])
    assert result.exit_code
    assert isinstance(result.exception, errors.EnvsdkError)


def test_a_record_that_drops_tokens_undeclared_gives_no_samples() -> None:
    trajectory = envsdk.rollout(envsdk.make("envsdk/GuessNumber-v1"), "reference", seed=0)
    trajectory.steps[1].keep -= 3
    with pytest.raises(envsdk.UndeclaredBreak, match="step 2 keeps"):
        trajectory.samples()
    with pytest.raises(envsdk.UndeclaredBreak, match="step 2 keeps"):
        list(trajectory.prompts())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("mask", np.zeros(3, dtype=np.bool_), "mask has shape"),
        ("logprobs", 0.5, r"logprobs\[\d+\] = 0.5"),
        ("logprobs", np.nan, r"logprobs\[\d+\] = nan is missing"),
        ("tokens", 5000, r"tokens\[\d+\] = 5000 is outside 0 to 4095"),
        ("tokens", -1, r"tokens\[\d+\] = -1"),
        ("step_ids", 99, "step_ids"),
        ("part_ids", -1, "part_ids"),
        ("reward", float("nan"), "reward is nan"),
        ("advantage", np.zeros(3, dtype=np.float32), "advantage has shape"),
    ],
)
def test_an_unsound_sample_names_the_field_and_the_position(field: str, value: object, message: str) -> None:
    sample = envsdk.rollout(envsdk.make("envsdk/GuessNumber-v1"), "reference", seed=0).samples()[0]
    if isinstance(value, np.ndarray) or field == "reward":
        setattr(sample, field, value)
    else:
        getattr(sample, field)[np.flatnonzero(sample.mask)[0]] = value
    with pytest.raises(errors.InvalidSample, match=message):
        sample.validate()


def test_limits_accept_an_object_and_a_mapping() -> None:
    assert envsdk.make("envsdk/GuessNumber-v1", limits=Limits(max_steps=2)).limits.max_steps == 2
    assert envsdk.make("envsdk/GuessNumber-v1", limits={"max_steps": 2}).limits.max_steps == 2
