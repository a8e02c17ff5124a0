"""A stored episode is repeated exactly, and whatever differs is reported with its step and context."""

import asyncio
import contextlib
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar

import gymnasium
import pytest
from envsdk_environments._guess_number import GuessNumber
from pydantic import ImportString
from toy_policies import in_any_vocabulary
from typer.testing import CliRunner

import envsdk
from envsdk import Action, Env, EnvConfig, Handoff, HandoffResult, Limits, Message, Turn
from envsdk.authoring import NeedsTrust
from envsdk.authoring._making import describe
from envsdk.authoring._trust import Trust, options_that_need_trust
from envsdk.cli import app
from envsdk.errors import CannotReplay, RunFolderError
from envsdk.rollouts import Rollouts, RunFolder, StoredRun, replay_run, replay_trajectory, rollout_many
from envsdk.trajectories._trajectory import Trajectory

BUILT_IN = [name for name in envsdk.list_envs() if name.startswith("envsdk/")]


def stored(path: Path, trajectories: list[Trajectory], env: Env, **configuration: Any) -> StoredRun:
    """Store trajectories as a run."""

    async def append() -> None:
        for trajectory in trajectories:
            await folder.append(trajectory)

    with RunFolder.create(path, configuration, {"main": env.renderer}) as folder:
        asyncio.run(append())
    return StoredRun(path)


class Count(Env):
    """Asks for numbers; what it returns at which step can be changed."""

    changes: ClassVar[dict[str, Any]] = {}

    def start(self) -> Turn:
        self.steps = 0
        self.secret = int(self.np_random.integers(1000))
        return Turn(f"Say {self.secret}.", system="You count.")

    def respond(self, reply: Message) -> Turn:
        self.steps += 1
        if self.changes.get("raises") == self.steps:
            raise ValueError("the environment is broken")
        text = "Next!" if self.changes.get("message") == self.steps else "Next."
        reward = 0.5 if self.changes.get("reward") == self.steps else 0.25
        ends = self.steps == self.changes.get("ends", 4)
        return Turn(text, reward={"count": reward}, metrics={"steps": float(self.steps)}, terminated=ends)


class Changed(Count):
    """As `Count`, with a change."""


Changed.__name__ = "Count"  # the record has the name


def changed(**changes: Any) -> Env:
    Changed.changes = changes
    return Changed()


@pytest.fixture(scope="module")
def episode() -> Trajectory:
    return envsdk.rollout(Count(), "random", seed=5)


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("name", BUILT_IN)
def test_the_episodes_of_every_environment_are_repeated_without_a_difference(name: str, tmp_path: Path) -> None:
    problem = describe(name).problem
    if problem is not None:
        pytest.skip(problem)
    trajectories = [*rollout_many(name, "reference", seeds=[0]), *rollout_many(name, "random", seeds=[1])]
    with contextlib.closing(envsdk.make(name)) as env:
        results = list(replay_run(stored(tmp_path, trajectories, env)))
    assert [result.differences for result in results] == [[]] * 2
    is_refused = gymnasium.spec(name).nondeterministic
    assert all(("nondeterministic" in (result.refused or "")) == is_refused for result in results)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("envsdk/MathChat-v0", {"history": "compact:every=2"}),
        ("envsdk/MathChat-v0", {"history": "strip", "limits": {"max_steps": 3}}),
        ("envsdk/LongNotes-v1", {"history": "summarize:threshold=2500"}),
        ("envsdk/Delegate-v1", {"renderer": "qwen3:enable_thinking=false"}),
        ("envsdk/GuessNumber-v1", {"tasks": [{"secret": 3}, {"secret": 88}]}),
    ],
)
def test_history_limits_renderer_and_task_are_taken_from_the_record(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    trajectories = rollout_many(lambda: envsdk.make(name, **options), "reference", seeds=range(3))
    with contextlib.closing(envsdk.make(name, **options)) as env:
        results = list(replay_run(stored(tmp_path, trajectories, env)))
    assert [(result.differences, result.refused) for result in results] == [([], None)] * 3


def test_a_message_that_differs_is_reported_at_the_step_that_it_answers_and_its_tokens_at_the_next(
    episode: Trajectory,
) -> None:
    found = replay_trajectory(episode, changed(message=2))
    assert [(one.step, one.context, one.field) for one in found] == [
        (1, "main", "messages[5].content"),
        (2, "main", "observation"),
    ]
    assert (found[0].stored, found[0].replayed) == ("'Next.'", "'Next!'")
    assert "('.<|im_end|>" in found[1].stored
    assert "('!<|im_end|>" in found[1].replayed


def test_a_reward_that_differs_is_reported_at_its_step(episode: Trajectory) -> None:
    found = replay_trajectory(episode, changed(reward=3))
    assert [(one.step, one.field, one.stored, one.replayed) for one in found] == [
        (2, "reward", "0.25", "0.5"),
        (2, "rewards.count", "0.25", "0.5"),
    ]


def test_one_token_of_the_record_that_was_changed_is_reported(episode: Trajectory) -> None:
    record = Trajectory.from_json(episode.to_json())
    step = record.steps[2]
    record.contexts["main"].tokens[step.start + 1] += 1
    found = replay_trajectory(record, changed())
    assert [(one.step, one.field) for one in found] == [(2, "observation")]
    assert found[0].stored.startswith("token 1 of ")
    assert str(found[0]).startswith("step 3 in 'main' observation: stored token 1 of ")


@pytest.mark.parametrize(("field", "value"), [("keep", 3), ("metrics", {"steps": 9.0}), ("reward", 0.0)])
def test_a_field_of_a_step_that_was_changed_is_reported(episode: Trajectory, field: str, value: Any) -> None:
    record = Trajectory.from_json(episode.to_json())
    setattr(record.steps[1], field, value)
    found = replay_trajectory(record, changed())
    assert {(one.step, one.field.partition(".")[0]) for one in found} == {(1, field)}


def test_an_episode_that_ends_too_early_or_too_late_is_reported(episode: Trajectory) -> None:
    early = replay_trajectory(episode, changed(ends=2))
    assert (2, "step", "the episode ended before it") in {(one.step, one.field, one.replayed) for one in early}
    late = replay_trajectory(episode, changed(ends=6))
    assert (3, "end") in {(one.step, one.field) for one in late}
    assert "stop_reason" in {one.field for one in late}


def test_another_seed_is_reported_from_the_first_step_on(episode: Trajectory) -> None:
    record = Trajectory.from_json(episode.to_json())
    record.seed = 6
    assert (0, "observation") in {(one.step, one.field) for one in replay_trajectory(record, changed())}


# Episodes that failed.


def test_an_error_of_the_environment_is_repeated(episode: Trajectory) -> None:
    def failed(message: str) -> Trajectory:
        Changed.changes = {"raises": 3}
        [trajectory] = rollout_many(Changed, "random", seeds=[5])
        trajectory.error_kind = "environment"
        trajectory.error = (trajectory.error or "").replace("the environment is broken", message)
        return trajectory

    assert not replay_trajectory(failed("the environment is broken"), changed(raises=3))
    assert [one.field for one in replay_trajectory(failed("something else"), changed(raises=3))] == ["error"]
    assert "error" in {one.field for one in replay_trajectory(failed("the environment is broken"), changed())}


@pytest.mark.parametrize("kind", ["policy", "infrastructure", None])
def test_an_episode_whose_policy_failed_is_repeated_up_to_there(kind: Any) -> None:
    @in_any_vocabulary
    def policy(prompt: Any, *, stop_token_ids: tuple[int, ...], **_: Any) -> Action:
        if len(prompt) > 60:
            raise ConnectionError("the server is gone")
        return Action([11, stop_token_ids[0]], [-1.0, -2.0])

    [trajectory] = rollout_many(Count, policy, seeds=[1])
    trajectory.error_kind = kind
    assert trajectory.status == "error"
    assert trajectory.steps
    assert not replay_trajectory(trajectory, changed())
    first = next(iter(replay_trajectory(trajectory, changed(reward=1))))
    assert (first.step, first.field) == (0, "reward")


def test_a_start_that_raises_is_repeated() -> None:
    class Broken(Env):
        def start(self) -> Turn:
            raise ValueError("no start")

        def respond(self, reply: Message) -> Turn:
            raise NotImplementedError

    [trajectory] = rollout_many(Broken, "random", seeds=[1])
    assert not replay_trajectory(trajectory, Broken())


# Replies in parts, forks, sub-agents.


def test_a_reply_that_was_interrupted_is_repeated_part_by_part() -> None:
    @in_any_vocabulary
    class Interrupted:
        calls = 0

        def __call__(self, prompt: Any, *, stop_token_ids: tuple[int, ...], **_: Any) -> Action:
            self.calls += 1
            if self.calls % 3:
                return Action([20 + self.calls], [-0.5], "abort", 0.7, self.calls)
            return Action([stop_token_ids[0]], None, "stop", 1.0, self.calls, {"request": self.calls})

    trajectory = envsdk.rollout(Count(), Interrupted(), seed=2)
    assert [len(step.parts) for step in trajectory.steps] == [3] * 4
    assert not replay_trajectory(trajectory, changed())


@pytest.mark.filterwarnings("ignore:the policy policy returned only empty actions")
def test_a_reply_that_was_never_finished_is_repeated() -> None:
    @in_any_vocabulary
    def policy(prompt: Any, **_: Any) -> Action:
        return Action([], [], "abort")

    trajectory = envsdk.rollout(Count(), policy, seed=2)
    assert trajectory.stop_reason == "aborted"
    assert not replay_trajectory(trajectory, changed())


def test_a_fork_is_repeated_from_its_start() -> None:
    env = Count()
    env.reset(seed=9)
    fork = env.fork()
    trajectory = envsdk.rollout(fork, "random", seed=1, reset=False)
    assert trajectory.origins
    assert not replay_trajectory(trajectory, changed())


class Parent(Env):
    """Hands over to several sub-agents side by side."""

    default_limits = Limits(max_steps=40)
    reward = 0.5
    timeout_s: float | None = None

    def start(self) -> Turn:
        return Turn("Delegate.")

    def respond(self, reply: Message) -> Turn | list[Handoff]:
        second = Handoff(Child(self.reward), role="child", timeout_s=self.timeout_s)
        return [Handoff(Child(0.5), role="child"), second, Handoff(Child(0.5), role="child")]

    def resume(self, result: list[HandoffResult]) -> Turn:
        return Turn(" ".join(str(one.error) for one in result), terminated=True)


class Child(Env):
    """Answers a few times, waiting in between."""

    def __init__(self, reward: float) -> None:
        super().__init__()
        self.reward = reward

    def start(self) -> Turn:
        self.left = int(self.np_random.integers(1, 5))
        return Turn("Count.")

    async def respond(self, reply: Message) -> Turn:
        await asyncio.sleep(0.001 * self.left)
        self.left -= 1
        return Turn("Go on.", reward=self.reward, terminated=self.left < 1)


def test_sub_agents_side_by_side_are_repeated_each_in_its_context() -> None:
    for seed in range(4):
        trajectory = envsdk.rollout(Parent(), "random", seed=seed)
        assert len(trajectory.contexts) == 4
        assert not replay_trajectory(trajectory, Parent())


def test_a_difference_in_a_sub_agent_names_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    trajectory = envsdk.rollout(Parent(), "random", seed=1)
    monkeypatch.setattr(Parent, "reward", 0.75)
    found = replay_trajectory(trajectory, Parent())
    assert {one.context for one in found} == {"main/child-2"}
    assert found[0].step == next(i for i, step in enumerate(trajectory.steps) if step.context == "main/child-2")


@pytest.mark.full
def test_a_sub_agent_that_took_too_long_takes_too_long_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parent, "timeout_s", 0.3)

    @in_any_vocabulary
    async def slow(prompt: Any, *, context: str, stop_token_ids: tuple[int, ...], **_: Any) -> Action:
        if context == "main/child-2":
            await asyncio.sleep(60)
        return Action([9, stop_token_ids[0]])

    trajectory = envsdk.rollout(Parent(), slow, seed=3)
    assert "TimeoutError" in (trajectory.contexts["main/child-2"].error or "")
    assert not replay_trajectory(trajectory, Parent())


@pytest.mark.full
def test_an_episode_that_failed_while_sub_agents_ran_is_repeated_as_far_as_each_got() -> None:
    @in_any_vocabulary
    async def failing(prompt: Any, *, context: str, stop_token_ids: tuple[int, ...], **_: Any) -> Action:
        if context == "main/child-1":
            await asyncio.sleep(0.1)
            raise ConnectionError("the server is gone")
        return Action([9, stop_token_ids[0]])

    [trajectory] = rollout_many(Parent, failing, seeds=[0])
    assert trajectory.status == "error"
    assert not replay_trajectory(trajectory, Parent())


# What is refused.


def test_an_episode_without_a_seed_is_refused() -> None:
    with pytest.raises(CannotReplay, match="has no seed"):
        replay_trajectory(envsdk.rollout(Count(), "random"), changed())


def test_another_tokenizer_is_the_only_difference(episode: Trajectory) -> None:
    record = Trajectory.from_json(episode.to_json())
    record.tokenizer = "another"
    assert [one.field for one in replay_trajectory(record, changed())] == ["tokenizer"]


def test_an_environment_that_was_made_by_its_class_is_found(tmp_path: Path) -> None:
    Rollouts(GuessNumber, "reference", seeds=range(2), group_size=2, out=tmp_path / "run").run()
    results = list(replay_run(StoredRun(tmp_path / "run")))
    assert [(result.differences, result.refused) for result in results] == [([], None)] * 4


def test_an_environment_that_a_function_made_is_refused_in_words(tmp_path: Path) -> None:
    Rollouts(lambda: Count(), "random", seeds=range(1), group_size=1, out=tmp_path / "run").run()
    [result] = replay_run(StoredRun(tmp_path / "run"), trust=["imports"])
    assert "Use replay_run(run, make_env)" in (result.refused or "")


def test_an_environment_that_has_no_id_needs_a_function(episode: Trajectory, tmp_path: Path) -> None:
    run = stored(tmp_path, [episode], Count())
    [result] = replay_run(run)
    assert "neither an id nor module:Class" in (result.refused or "")
    [result] = replay_run(run, lambda trajectory: changed())
    assert not result.differences
    assert result.refused is None


# What a record may not decide.


class Rooms(Env):
    """Its options are those through which a record could reach out of its folder."""

    class Config(EnvConfig):
        """Its options."""

        score: ImportString[Any] | None = None
        data: Path | None = None
        isolation: Annotated[str, NeedsTrust("isolation")] = "auto"
        rooms: int = 1

    def start(self) -> Turn:
        return Turn("Hello.")

    def respond(self, reply: Message) -> Turn:
        return Turn(reward=1.0, terminated=True)


envsdk.register_env("tests/Rooms-v0", Rooms)


def forged(tmp_path: Path, name: str = "tests/Rooms-v0", *, made_by: str = "", **changed: Any) -> StoredRun:
    """A run whose record was changed after it was written."""
    trajectory = envsdk.rollout(envsdk.make(name), "random", seed=0)
    trajectory.config = {**trajectory.config, **changed}
    if made_by:
        trajectory.env = "Rooms"
    return stored(tmp_path / "run", [trajectory], envsdk.make(name), made_by=made_by)


@pytest.mark.parametrize(
    ("changed", "kind", "named"),
    [
        ({"score": "evilmod:X"}, "imports", "score='evilmod:X'"),
        ({"data": "/etc/passwd"}, "paths", "data='/etc/passwd'"),
        ({"isolation": "unsafe_no_isolation"}, "isolation", "isolation='unsafe_no_isolation'"),
    ],
)
def test_an_option_that_reaches_out_of_the_record_is_not_taken_from_it(
    changed: dict[str, Any], kind: Trust, named: str, tmp_path: Path
) -> None:
    run = forged(tmp_path, rooms=2, **changed)
    [result] = replay_run(run)
    assert named in (result.refused or "")
    assert f"--trust-{kind}" in (result.refused or "")
    [trusted] = replay_run(run, trust=[kind])
    assert "--trust" not in (trusted.refused or "")


def test_the_options_of_reasoning_gym_which_may_name_a_file_to_read_need_trust() -> None:
    config = importlib.import_module("envsdk.adapters").ReasoningGym.Config
    assert options_that_need_trust(config)["options"] == "paths"


def test_an_option_that_reaches_out_is_fine_where_the_environment_has_it_by_itself(tmp_path: Path) -> None:
    envsdk.register_env("tests/RoomsOnDisk-v0", Rooms, kwargs={"data": Path("rooms.txt"), "rooms": 3})
    [result] = replay_run(forged(tmp_path, "tests/RoomsOnDisk-v0"))
    assert (result.refused, result.differences) == (None, [])


def test_programs_of_a_record_are_never_run_without_isolation(tmp_path: Path) -> None:
    if describe("envsdk/PythonSandbox-v1").problem is not None:
        pytest.skip("programs cannot be isolated here")
    [result] = replay_run(forged(tmp_path, "envsdk/PythonSandbox-v1", isolation="unsafe_no_isolation"))
    assert "isolation='unsafe_no_isolation'" in (result.refused or "")


def test_a_processor_that_a_record_names_is_not_loaded(tmp_path: Path) -> None:
    trajectory = envsdk.rollout(Rooms(), "random", seed=0)
    trajectory.renderer = {**trajectory.renderer, "processor": "owner/model"}
    trajectory.env = "tests/Rooms-v0"
    [result] = replay_run(stored(tmp_path, [trajectory], Rooms()))
    assert "the processor 'owner/model' of the renderer" in (result.refused or "")


@pytest.mark.parametrize(
    "command", ["replay", *(pytest.param(name, marks=pytest.mark.full) for name in ("view", "show", "report"))]
)
def test_no_command_imports_a_module_that_lies_in_the_run_folder(command: str, tmp_path: Path) -> None:
    run = forged(tmp_path, made_by="evilmod:X")
    for module in ("evilmod", "tiktoken_ext", "zstandard"):
        (run.path / f"{module}.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    options = ["--html", "view.html"] if command == "view" else []
    ended = subprocess.run(
        [Path(sys.executable).with_name("envsdk"), command, ".", *options], cwd=run.path, capture_output=True, text=True
    )
    assert not (run.path / "imported").exists()
    assert ("--trust-imports" in ended.stderr) == (command == "replay")
    assert ended.returncode == (command == "replay"), ended.stderr


@pytest.mark.full
def test_a_module_of_the_record_is_imported_only_on_request(tmp_path: Path) -> None:
    run = forged(tmp_path, made_by="evilmod:X")
    (run.path / "evilmod.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    envsdk_program = Path(sys.executable).with_name("envsdk")
    subprocess.run([envsdk_program, "replay", ".", "--trust-imports"], cwd=run.path, capture_output=True)
    assert (run.path / "imported").exists()


# The command line.


def replay(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["replay", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    trajectories = rollout_many("envsdk/GuessNumber-v1", "reference", seeds=range(3))
    trajectories[1].steps[0].reward = 0.125
    stored(path, trajectories, envsdk.make("envsdk/GuessNumber-v1"))
    return path


def test_replay_prints_what_differs_and_exits_with_1(run_folder: Path) -> None:
    status, printed = replay(run_folder)
    assert status == 1
    assert "envsdk/GuessNumber-v1/1: step 1 in 'main' reward: stored 0.125, replayed " in " ".join(printed.split())
    assert "2 of 3 episodes are the same, 1 differ, 0 were not repeated" in printed


@pytest.mark.parametrize("chosen", [(1,), ("--id", "envsdk/GuessNumber-v1/2")])
def test_replay_of_one_episode(run_folder: Path, chosen: tuple[Any, ...]) -> None:
    assert replay(run_folder, *chosen) == (0, "1 of 1 episodes are the same, 0 differ, 0 were not repeated\n")


def test_replay_prints_json(run_folder: Path) -> None:
    _, printed = replay(run_folder, "--json")
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [len(line["differences"]) for line in lines] == [0, 1, 0]
    assert lines[1]["differences"][0]["field"] == "reward"


def test_replay_refuses_what_is_not_a_run_folder(tmp_path: Path, run_folder: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        replay(tmp_path)
    with pytest.raises(envsdk.errors.ConfigError, match="no such trajectory"):
        replay(run_folder, 9)
