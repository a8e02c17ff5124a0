"""What TRL's trainers get: rows of samples, prompts that name episodes, and nothing that is not sound."""

import asyncio
import importlib.metadata
import itertools
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

import envsdk
from envsdk import Action, Env, Message, Sample, ToolEnv, Trajectory, Turn, tool
from envsdk.errors import (
    ConfigError,
    EpisodeError,
    InvalidSample,
    MissingPackage,
    SingleSampleOnly,
    TokenizerMismatch,
)
from envsdk.rendering.tokenizers._files import DATA
from envsdk.trainers._conversations import to_conversations
from envsdk.trainers.trl import (
    RolloutFunc,
    conversational,
    environment_factory,
    prompt_of,
    read_prompt,
    reward_func,
    scored,
    to_batch,
    to_row,
)
from envsdk.trainers.trl_async import LocalWeights, RolloutWorker, group_metrics, to_fields

TOKENIZER = PreTrainedTokenizerFast(tokenizer_file=str(DATA / "embedded.json"), pad_token="<|endoftext|>")
OTHER = PreTrainedTokenizerFast(tokenizer_file=str(DATA / "embedded.json"), additional_special_tokens=["<|another|>"])
TRAINER = SimpleNamespace(temperature=1.0, processing_class=TOKENIZER)


def make_env(env_id: str, history: Any = "keep") -> Env:
    return envsdk.make(env_id, renderer="qwen3", tokenizer="embedded", history=history)


def play(env_id: str, seed: int = 0, history: Any = "keep") -> Trajectory:
    options = {"episode_id": f"{env_id}/{seed}", "group_id": "one"}
    return envsdk.rollout(make_env(env_id, history), "reference", seed=seed, options=options)


class Failing(Env):
    """Answers once, then breaks."""

    def start(self) -> Turn:
        return Turn("Hello.")

    def respond(self, reply: Message) -> Turn:
        raise OSError("the disk is full")

    def reference_reply(self) -> str:
        return "Hello."


def fail() -> Trajectory:
    env = Failing(renderer="qwen3", tokenizer="embedded")
    with pytest.raises(OSError, match="the disk is full") as caught:
        envsdk.rollout(env, "reference")
    return env.fail(caught.value)


@pytest.fixture
def sample() -> Sample:
    """Several replies, with an advantage."""
    sample, *others = play("envsdk/GuessNumber-v1").samples()
    assert not others
    return replace(sample, advantage=np.where(sample.mask, np.float32(0.5), np.float32(0)))


def changed(sample: Sample, field: str, position: int, value: Any) -> Sample:
    array = getattr(sample, field).copy()
    array[position] = value
    return replace(sample, **{field: array})


# GRPOTrainer.


def test_a_rewritten_rollout_is_refused_or_gives_its_last_segment_or_a_row_that_trains_nothing() -> None:
    trajectory = play("envsdk/MathChat-v0", history="strip")
    with pytest.raises(SingleSampleOnly, match="5 x thinking_stripped in 'main'"):
        to_batch([trajectory])
    last = trajectory.samples()[-1]
    batch = to_batch([trajectory], on_break="last_segment")
    assert batch["completion_ids"] == [to_row(last)["completion_ids"]]
    assert batch["reward"] == [trajectory.reward]
    assert batch["dropped_share"] == [pytest.approx(1 - last.loss_weight)]
    dropped = to_batch([trajectory], on_break="drop", pad_token_id=7)
    assert (dropped["prompt_ids"], dropped["completion_ids"], dropped["env_mask"]) == ([[7]], [[7]], [[0]])
    assert (dropped["reward"], dropped["dropped_share"]) == ([None], [1.0])


def test_of_a_handoff_the_main_context_is_the_one_that_stays() -> None:
    trajectory = play("envsdk/Delegate-v1")
    main, *researchers = trajectory.samples()
    assert researchers
    batch = to_batch([trajectory], on_break="last_segment")
    assert batch["completion_ids"] == [to_row(main)["completion_ids"]]
    assert batch["dropped_share"] == [pytest.approx(1 - main.loss_weight)]


def test_a_failed_episode_has_a_row_that_trains_nothing_and_no_reward() -> None:
    batch = to_batch([play("envsdk/GuessNumber-v1"), fail()])
    assert batch["reward"] == [1.0, None]
    assert batch["failed"] == [0.0, 1.0]
    assert batch["env_mask"][1] == [0]
    assert {len(column) for column in batch.values()} == {2}


def test_an_episode_that_nobody_scored_counts_nowhere() -> None:
    trajectory = play("envsdk/GuessNumber-v1")
    for step in trajectory.steps:
        step.reward = None
    assert to_batch([trajectory])["reward"] == [None]
    assert to_batch([trajectory])["env_mask"] == [[0]]
    trajectory.status = "truncated"  # it was cut off, and has earned what it has
    assert to_batch([trajectory])["reward"] == [0.0]


def test_any_iterable_gives_a_batch_and_none_gives_empty_columns() -> None:
    trajectory = play("envsdk/GuessNumber-v1")
    assert to_batch(iter([trajectory])) == to_batch([trajectory])
    assert to_batch([]) == {name: [] for name in to_batch([trajectory])}
    assert RolloutFunc(make_env, "reference")([], TRAINER) == to_batch([])


def test_a_row_that_does_not_count_has_no_reward_of_any_function() -> None:
    def brevity(*, completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [-float(len(ids)) for ids in completion_ids]

    async def later(**columns: Any) -> list[float]:
        return brevity(**columns)

    columns = {"completion_ids": [[1, 2], [1]], "reward": [1.0, None]}
    assert scored(brevity)(**columns) == [-2.0, None]
    assert asyncio.run(scored(later)(**columns)) == [-2.0, None]
    assert scored(brevity).__name__ == "brevity"

    trainer = SimpleNamespace(**vars(TRAINER), reward_funcs=[reward_func, brevity])
    rollout_func = RolloutFunc(partial(make_env, history="strip"), "reference", on_break="drop")
    prompts = [prompt_of("envsdk/MathChat-v0", 0)]
    with pytest.raises(ConfigError, match=r"brevity would give it a reward.*pass scored\(brevity\)"):
        rollout_func(prompts, trainer)
    trainer.reward_funcs = [reward_func, scored(brevity)]
    assert rollout_func(prompts, trainer)["reward"] == [None]


def test_batches_of_failed_episodes_are_an_error_when_they_do_not_end() -> None:
    rollout_func = RolloutFunc(
        lambda env_id: Failing(renderer="qwen3", tokenizer="embedded"), "reference", max_failed_batches=2
    )
    prompts = [prompt_of("any", 0), prompt_of("any", 1)]
    assert rollout_func(prompts, TRAINER)["failed"] == [1.0, 1.0]
    with pytest.raises(EpisodeError, match=r"all of 2 episodes failed, the last one with: .*the disk is full"):
        rollout_func(prompts, TRAINER)


@pytest.mark.parametrize("declares", [False, True])
def test_a_trainer_of_another_tokenizer_than_the_environments_is_refused(declares: bool) -> None:
    def policy(prompt: Any, *, stop_token_ids: tuple[int, ...], **_: Any) -> Action:
        return Action([stop_token_ids[0]], [-0.5])

    trainer = SimpleNamespace(temperature=1.0, processing_class=TOKENIZER if declares else OTHER)
    if declares:
        policy.tokenizer = OTHER  # type: ignore[attr-defined]
    with pytest.raises(TokenizerMismatch, match=r"the policy .* was made for the tokenizer"):
        RolloutFunc(make_env, policy)([prompt_of("envsdk/GuessNumber-v1", 0)], trainer)


class Cold(Env):
    """Asks for samples that the trainer does not know of."""

    asked: ClassVar[dict[str, Any]] = {}

    def start(self) -> Turn:
        return Turn("Hello.", sampling=self.asked)

    def respond(self, reply: Message) -> Turn:
        return Turn(reward=1.0, terminated=True)


def test_options_that_change_the_distribution_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def policy(prompt: Any, *, stop_token_ids: tuple[int, ...], **_: Any) -> Action:
        return Action([stop_token_ids[0]], [-0.5])

    rollout_func = RolloutFunc(lambda env_id: Cold(renderer="qwen3", tokenizer="embedded"), policy)
    for asked in ({"temperature": 0.3}, {"top_k": 2}, {"logit_bias": {"5": 3.0}}):
        monkeypatch.setattr(Cold, "asked", asked)
        assert rollout_func([prompt_of("any", 0)], TRAINER)["failed"] == [1.0]
        assert f"requests {next(iter(asked))}=" in str(rollout_func.trajectories[0].error)
    monkeypatch.setattr(Cold, "asked", {"temperature": 1.0, "seed": 3})
    assert rollout_func([prompt_of("any", 0)], TRAINER)["failed"] == [0.0]


def test_options_that_are_none_are_refused_before_anything_is_played() -> None:
    with pytest.raises(ConfigError, match="on_break is 'x'"):
        RolloutFunc(make_env, on_break="x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least 1"):
        RolloutFunc(make_env, max_failed_batches=0)


def test_the_reward_function_passes_on_what_the_environment_gave() -> None:
    logged: dict[str, float] = {}
    columns = {"reward": [1.0, None], "dropped_share": [0.0, 1.0], "failed": [0.0, 1.0], "steps": [4, 2]}
    assert reward_func(prompts=["", ""], completions=["", ""], log_metric=logged.__setitem__, **columns) == [1.0, None]
    assert logged == {"envsdk/dropped_share": 0.5, "envsdk/failed": 0.5, "envsdk/steps": 3.0}
    assert reward_func(reward=[0.5]) == [0.5]


def test_a_prompt_names_an_environment_and_a_seed() -> None:
    assert read_prompt(prompt_of("envsdk/GuessNumber-v1", 3)) == ("envsdk/GuessNumber-v1", 3)


@pytest.mark.parametrize("prompt", ["What is 2 + 2?", "", "3", '{"seed": 3}', '{"env": "a", "seed": "3"}', None, [{}]])
def test_another_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ConfigError, match="does not name an episode"):
        read_prompt(prompt)


def test_reward_functions_get_the_messages_and_the_whole_trajectory() -> None:
    trajectories = [play("envsdk/Calculator-v1"), play("envsdk/Delegate-v1"), fail()]
    batch = to_batch(trajectories, on_break="last_segment")
    for trajectory, prompt, completion, record in zip(
        trajectories, *(batch[name] for name in ("prompt_messages", "completion_messages", "trajectory")), strict=True
    ):
        messages = [Message.from_openai(message) for message in [*prompt, *completion]]
        said = trajectory.contexts["main"].messages
        assert [message.model_dump(exclude={"errors"}) for message in messages] == [
            message.model_dump(exclude={"errors"}) for message in said
        ]
        assert completion[0]["role"] == "assistant" != prompt[-1]["role"]
        assert json.loads(json.dumps(record)) == record == to_conversations(trajectory)
    (calculator, delegate, failed) = batch["trajectory"]
    assert any(message.get("tool_calls") for message in batch["completion_messages"][0])
    assert any(message["role"] == "tool" for message in batch["completion_messages"][0])
    assert calculator["contexts"]["main"]["tools"][0]["function"]["name"] == "calculate"
    assert [context["role"] for context in delegate["contexts"].values()] == ["main"] + ["researcher"] * 4
    assert [step["context"] for step in delegate["steps"]] == [s.context for s in trajectories[1].steps]
    assert {step["break"] for step in delegate["steps"]} == {None, "handoff", "return"}
    assert math.fsum(step["reward"] or 0.0 for step in calculator["steps"]) == calculator["reward"] == 1.0
    assert (failed["status"], failed["error"], failed["stop_reason"]) == ("error", trajectories[2].error, "error")


def test_a_task_that_is_not_json_is_in_the_record_as_it_is_stored() -> None:
    trajectory = play("envsdk/GuessNumber-v1")
    trajectory.task = {"when": complex(1, 2), "seed": 2**70}
    assert to_conversations(trajectory)["task"] == {"when": "(1+2j)", "seed": 2**70}


def test_a_reward_function_may_read_lists_of_messages_as_prompts_and_completions() -> None:
    def calls(*, prompts: Any, completions: Any, factor: float, **_: Any) -> list[float]:
        assert [prompt[-1]["role"] for prompt in prompts] == ["user"]
        return [factor * sum(len(m.get("tool_calls", ())) for m in completion) for completion in completions]

    async def later(**columns: Any) -> list[float]:
        return calls(**columns)

    batch = to_batch([play("envsdk/Calculator-v1")])
    given = {**batch, "prompts": ["{}"], "completions": ["one text"], "factor": 0.5}
    expected = [0.5 * sum(len(m.get("tool_calls", ())) for m in batch["completion_messages"][0])]
    assert expected != [0.0]
    assert scored(conversational(calls))(**given) == conversational(scored(calls))(**given) == expected
    assert asyncio.run(scored(conversational(later))(**given)) == expected
    assert conversational(calls).__name__ == "calls"
    assert hasattr(conversational(scored(calls)), "is_scored")  # as `RolloutFunc` looks for it


PROMPTS = [prompt_of(f"envsdk/{name}-v1", seed) for seed in (5, 6) for name in ("GuessNumber", "Calculator") * 2]


def test_rows_come_in_the_order_of_the_prompts_and_repeated_ones_form_a_group() -> None:
    rollout_func = RolloutFunc(make_env, "reference", max_concurrency=2)
    batch = rollout_func(PROMPTS, TRAINER)
    names = ["GuessNumber-v1/{}", "Calculator-v1/{}", "GuessNumber-v1/{}#1", "Calculator-v1/{}#1"]
    assert batch["trajectory_id"] == [f"envsdk/{name.format(seed)}" for seed in (5, 6) for name in names]
    assert batch["reward"] == [1.0] * 8
    groups = Counter(trajectory.group_id for trajectory in rollout_func.trajectories)
    assert groups == {f"envsdk/{name.format(seed)}": 2 for seed in (5, 6) for name in names[:2]}


def test_it_works_where_an_event_loop_runs_as_in_a_notebook() -> None:
    async def train() -> dict[str, list[Any]]:
        return RolloutFunc(make_env, "reference")(PROMPTS[:2], TRAINER)

    assert asyncio.run(train())["reward"] == [1.0, 1.0]


# AsyncGRPOTrainer.


def test_the_fields_span_the_whole_sample(sample: Sample) -> None:
    fields = to_fields(sample, group_id=3, model_version=2, temperature=1.0)
    np.testing.assert_array_equal(fields["input_ids"], sample.tokens)
    np.testing.assert_array_equal(fields["completion_mask"], sample.mask)
    np.testing.assert_array_equal(fields["old_log_probs"], sample.logprobs)
    assert [fields[name].dtype for name in ("input_ids", "completion_mask", "old_log_probs")] == ["i8", "i8", "f4"]
    assert (fields["advantage"], fields["group_id"], fields["model_version"]) == (0.5, 3, 2)


def test_the_version_is_that_of_the_oldest_part(sample: Sample) -> None:
    versions = np.arange(5, 5 + len(sample.policy_version), dtype=np.int32)
    assert to_fields(replace(sample, policy_version=versions), group_id=0, model_version=2)["model_version"] == 5


def test_a_row_has_one_advantage(sample: Sample) -> None:
    assert to_fields(replace(sample, advantage=0.25), group_id=0)["advantage"] == 0.25
    with pytest.raises(InvalidSample, match="no advantage"):
        to_fields(replace(sample, advantage=None), group_id=0)
    with pytest.raises(InvalidSample, match="has 2 advantages in one sample"):
        to_fields(changed(sample, "advantage", int(np.argmax(sample.mask)), 1.0), group_id=0)


def test_failed_episodes_are_counted_and_are_no_rewards() -> None:
    metrics = group_metrics([play("envsdk/GuessNumber-v1"), fail()], rows=1)
    assert (metrics["rollout/episodes_total"], metrics["rollout/failed_total"]) == (2.0, 1.0)
    assert (metrics["reward"], metrics["reward_std"]) == ((1.0, 1), 0.0)
    assert "reward_std" not in group_metrics([fail()], rows=0)
    delegated = play("envsdk/Delegate-v1")
    delegated.contexts["main/researcher-1"].error = "it broke"
    assert group_metrics([delegated], rows=1)["rollout/failed_agents_total"] == 1.0


def test_a_worker_refuses_what_it_cannot_play() -> None:
    def policy(*_: Any, **__: Any) -> None: ...

    rows = [{"prompt": PROMPTS[0]}]
    with pytest.raises(ConfigError, match="the dataset has no rows"):
        RolloutWorker(make_env, [], policy)
    with pytest.raises(ConfigError, match="does not name an episode"):
        RolloutWorker(make_env, [{"prompt": "What is 2 + 2?"}], policy)
    with pytest.raises(ConfigError, match="at least 1"):
        RolloutWorker(make_env, rows, policy, group_size=0)
    with pytest.raises(ConfigError, match="baseline is 'leave'"):
        RolloutWorker(make_env, rows, policy, baseline="leave")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="group_size is 1"):
        RolloutWorker(make_env, rows, policy, baseline="leave_one_out", group_size=1)
    with pytest.raises(ConfigError, match="does not name an episode"):
        RolloutWorker(make_env, [{"question": "What is 2 + 2?"}], policy)
    with pytest.raises(ConfigError, match="policy is 'reference'; expected a function"):
        RolloutWorker(make_env, rows, "reference")
    worker = RolloutWorker(make_env, rows, policy, group_size=2)
    with pytest.raises(ConfigError, match="expected a TransformersPolicy"):
        LocalWeights(worker)
    with pytest.raises(EpisodeError, match="the rollouts are not running"):
        worker.check_health(60)
    worker.stop()


# TRL's own class of a row.


def install_trl(monkeypatch: pytest.MonkeyPatch, version: str = "1.16.0") -> None:
    """As if TRL were installed in a version."""
    for name in ("trl", "trl.experimental", "trl.experimental.async_grpo"):
        package = ModuleType(name)
        package.__path__ = []
        monkeypatch.setitem(sys.modules, name, package)
    home = ModuleType("trl.experimental.async_grpo.async_rollout_worker")
    home.RolloutSample = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, home.__name__, home)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)


def a_row_of(worker: RolloutWorker) -> Any:
    trajectory = play("envsdk/GuessNumber-v1")
    samples = [replace(sample, advantage=0.5) for sample in trajectory.samples()]
    return worker._rows([trajectory], samples, 0)[0]


def new_worker() -> RolloutWorker:
    return RolloutWorker(
        make_env, [{"prompt": prompt_of("envsdk/GuessNumber-v1", 0)}], lambda *_, **__: Action([1]), group_size=2
    )


@pytest.mark.parametrize("version", ["1.16.0", "1.16.3", "1.17.0.dev0"])
def test_a_row_is_made_of_trl_s_class(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    install_trl(monkeypatch, version)
    assert a_row_of(new_worker()).advantage == 0.5


@pytest.mark.parametrize("version", ["1.15.2", "1.18.0", "1.18.0.dev0", "2.0.0"])
def test_a_trl_without_the_trainer_s_arguments_is_refused_before_the_trainer_is_made(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    install_trl(monkeypatch, version)
    with pytest.raises(MissingPackage, match=rf"TRL {version} is installed.*1\.16 or 1\.17.*'trl>=1\.16,<1\.18'"):
        new_worker()


def test_without_trl_the_page_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    worker = new_worker()
    for use in (worker.start, lambda: a_row_of(worker)):
        with pytest.raises(MissingPackage, match=r"see docs/trainers/trl\.md"):
            use()


class Pausable:
    """A policy that samples a token at a time, and can be aborted."""

    tokenizer = "any"

    def __init__(self) -> None:
        self.running, self.aborts, self.begun = 0, 0, 0

    async def __call__(self, prompt: Any, *, stop_token_ids: tuple[int, ...], **_: Any) -> Action:
        self.running, self.begun, aborts = self.running + 1, self.begun + 1, self.aborts
        try:
            for count in range(4):
                await asyncio.sleep(0.01)
                if self.aborts != aborts:
                    return Action([5] * count, [-0.5] * count, "abort")
            return Action([5, 5, 5, stop_token_ids[0]], [-0.5] * 4)
        finally:
            self.running -= 1

    def abort(self) -> None:
        self.aborts += 1


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def versions_of(worker: RolloutWorker) -> list[int]:
    return [row.model_version for row in list(worker.rollout_buffer.queue)]


@pytest.mark.full
def test_no_reply_is_sampled_while_a_worker_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    install_trl(monkeypatch)
    policy = Pausable()
    rows = [{"prompt": prompt_of("envsdk/GuessNumber-v1", seed)} for seed in range(10_000)]
    worker = RolloutWorker(make_env, rows, policy, group_size=2, max_groups=2, queue_maxsize=10_000)
    worker.start()
    try:
        wait_until(lambda: 0 in versions_of(worker))
        for version in (1, 2):
            worker.pause()
            assert policy.running == 0
            begun = policy.begun
            time.sleep(0.1)
            assert policy.begun == begun
            worker.update_model_version(version)
            wait_until(lambda version=version: version in versions_of(worker))
            worker.check_health(60)
    finally:
        worker.stop()
    assert set(versions_of(worker)) == {0, 1, 2}


@pytest.mark.full
def test_the_rows_of_a_group_are_neighbors_in_a_queue_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    install_trl(monkeypatch)
    rows = [{"prompt": prompt_of("envsdk/GuessNumber-v1", seed)} for seed in range(100)]
    worker = RolloutWorker(make_env, rows, Pausable(), group_size=4, max_groups=3, queue_maxsize=1)
    worker.start()
    try:
        groups = [worker.rollout_buffer.get(timeout=600).group_id for _ in range(12)]
    finally:
        worker.stop()
    assert [len(list(same)) for _, same in itertools.groupby(groups)] == [4] * 3


def test_a_worker_that_is_paused_before_it_starts_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    install_trl(monkeypatch)
    policy = Pausable()
    worker = RolloutWorker(make_env, [{"prompt": prompt_of("envsdk/GuessNumber-v1", 0)}], policy, group_size=2)
    worker.pause()
    worker.start()
    try:
        time.sleep(0.3)
        assert policy.begun == 0
        worker.resume(7)
        wait_until(lambda: policy.begun > 0)
    finally:
        worker.stop()


class Fails(ToolEnv):
    """Rewards each call. A call with a wrong number, or a last reply without content, is a bug of the author's."""

    def start(self) -> Turn:
        return Turn("Begin.")

    @tool
    def work(self, number: int) -> str:
        """Work."""
        self.number = number
        return "done"

    async def respond(self, reply: Message) -> Turn:
        turn = await super().respond(reply)
        assert isinstance(turn, Turn)
        if reply.tool_calls:
            1 / self.number
            turn.reward, turn.rewards = 0.5, {"reward": 0.5}
        return turn

    def finish(self, reply: Message) -> Turn:
        return Turn(reward=1.0 / len(reply.content), terminated=True)


def test_in_trls_own_loop_an_episode_that_failed_has_no_reward(caplog: pytest.LogCaptureFixture) -> None:
    factory = environment_factory(Fails)
    good, bad_call, bad_end, cut = rollouts = [factory() for _ in range(4)]
    for rollout in rollouts:
        rollout.reset(seed=0)
        assert rollout.work(number=2) == "done"
    with pytest.raises(ZeroDivisionError):
        bad_call.work(number=0)
    with pytest.raises(ValueError, match="over"):
        bad_call.work(number=1)
    ends = [{"role": "assistant", "content": content} for content in ("1", "1", "")]
    said = [*([end] for end in ends), [{"role": "assistant", "tool_calls": [{}]}]]
    given = [good, bad_call, bad_end, cut]
    assert factory.reward_func(environments=given, completions=said) == [1.5, None, None, 0.5]
    assert caplog.text.count("failed, and has no reward") == 2
