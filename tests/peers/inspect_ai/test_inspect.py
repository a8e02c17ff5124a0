"""Tasks of inspect_ai as our environments, and our environments as its tasks."""

from pathlib import Path
from typing import Any

import inspect_ai
import inspect_tasks
import pytest
from inspect_ai.log import read_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_tasks import Agent, Biology, Choices, Popularity, Stories, Sums
from trl_environment_classes import Codes

import envsdk
from envsdk import Env, Message, Turn
from envsdk.adapters import Inspect, to_inspect
from envsdk.errors import ConfigError, UnknownName
from envsdk.policies import ReplyPolicy
from envsdk.testing import check_env

# inspect_ai's own: it leaves streams open, and passes an old parameter.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
]
PAGE = Path(__file__).parents[3] / "docs" / "adapters" / "inspect.md"


@pytest.mark.parametrize("env", [Popularity, Biology, Stories, Choices, Sums, Agent])
def test_a_task_of_inspect_ai_passes_our_checks(env: Any):
    check_env(env, seeds=3).raise_if_failed()


def test_a_solver_that_asks_about_the_reply_does_so_in_a_context_of_its_own():
    env = Stories()
    trajectory = envsdk.rollout(env, "reference", seed=0)
    assert list(trajectory.contexts) == ["main", "main-2"]
    assert [step.context for step in trajectory.steps] == ["main", "main-2", "main"]
    assert len(trajectory.samples()) == 2


def test_scores_are_named_rewards_and_those_that_do_not_count_are_metrics():
    env = Inspect(task=inspect_tasks.scored_twice)
    last = envsdk.rollout(env, ReplyPolicy(env, lambda player: inspect_tasks.addition(env)), seed=0).steps[-1]
    assert last.rewards == {"includes": 1.0, "calls.used": 1.0, "calls.style": 0.5}
    env = Inspect(task="inspect_tasks:scored_twice", scores=("calls.used",))
    last = envsdk.rollout(env, ReplyPolicy(env, lambda player: inspect_tasks.addition(env)), seed=0).steps[-1]
    assert last.rewards == {"calls.used": 1.0}
    assert last.metrics == {"includes": 1.0, "calls.style": 0.5}


def test_scorers_with_one_name_have_inspects_names_and_its_sampling_parameters_apply():
    env = Inspect(task=inspect_tasks.strictly_scored)
    _, info = env.reset(seed=0)
    assert (info["sampling"], info["max_tokens"]) == ({"temperature": 0.5, "top_p": 0.9}, 50)
    trajectory = envsdk.rollout(env, ReplyPolicy(env, lambda player: "YES"), seed=0)
    assert trajectory.steps[0].rewards == {"includes": 1.0, "includes1": 0.0}


@pytest.mark.parametrize(
    ("task", "options", "why"),
    [("inspect_tasks", {}, "callable"), ("inspect_tasks:sums", {"n": 1}, "unexpected keyword argument 'n'")],
)
def test_what_is_no_function_and_options_that_it_does_not_take_are_refused(task: str, options: Any, why: str):
    with pytest.raises(ConfigError, match=why):
        Inspect(task=task, options=options)


def test_a_score_that_is_no_number_is_an_error_and_not_zero():
    with pytest.raises(ConfigError, match="the scorer 'vague' returned 'maybe'"):
        envsdk.rollout(Inspect(task=inspect_tasks.vaguely_scored), "reference", seed=0)


def test_a_message_limit_of_the_task_truncates_and_scores():
    env = Agent()
    trajectory = envsdk.rollout(env, ReplyPolicy(env, lambda player: "I think."), seed=0)
    assert trajectory.status == "truncated"
    assert trajectory.steps[-1].rewards == {"includes": 0.0}


@pytest.mark.parametrize(
    ("task", "why"),
    [(inspect_tasks.judged, "a judge for the scorer 'model_graded_fact'"), (inspect_tasks.boxed, "a sandbox")],
)
def test_what_needs_a_sandbox_or_a_judge_is_refused_by_name(task: Any, why: str):
    with pytest.raises(ConfigError, match=why):
        Inspect(task=task)


def mock(reply: Any) -> Any:
    """inspect_ai's own mock model."""

    def outputs(messages: Any, tools: Any, *_: Any) -> ModelOutput:
        output = reply(messages, tools)
        output.usage = ModelUsage()  # else it downloads a tokenizer
        return output

    return get_model("mockllm/model", custom_outputs=outputs)


def test_our_environment_is_a_task_whose_log_inspect_ai_reads(tmp_path: Path):
    def reply(messages: Any, tools: Any) -> ModelOutput:
        person = messages[1].text.rstrip("?").split()[-1]
        if messages[-1].role == "tool":
            return ModelOutput.from_content("mock", messages[-1].text if person == "ada" else "I forgot.")
        return ModelOutput.for_tool_call("mock", tools[0].name, {"person": person})

    task = to_inspect(Codes(), range(6))
    (log,) = inspect_ai.eval(task, model=mock(reply), log_dir=str(tmp_path), display="none")
    log = read_eval_log(log.location)
    assert log.status == "success", log.error
    rewards = {sample.messages[1].text: sample.scores["rewards"].value for sample in log.samples}
    assert rewards == {
        "What is the code of ada?": {"correct": 1.0, "reward": 1.0},
        "What is the code of bob?": {"correct": 0.0, "reward": 0.0},
    }
    (sample, *_) = log.samples
    assert [message.role for message in sample.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert sample.scores["rewards"].metadata["stop_reason"] == "terminated"
    assert {score.name for score in log.results.scores} == {"correct", "reward"}


class Unscored(Env):
    """Not scored for seed 1, a failure for seed 2, and a named reward next to a plain number for seed 3."""

    def start(self) -> Turn:
        return Turn("Say anything.")

    def respond(self, reply: Message) -> Turn:
        if self.episode.seed == 3 and len(self.messages()) == 2:
            return Turn("Go on.", reward=0.5)
        if self.episode.seed == 2:
            raise ValueError("a bug of the environment")
        rewards: dict[int, Any] = {1: None, 3: {"correct": 0.25}}
        return Turn(reward=rewards.get(self.episode.seed, 1.0), terminated=True)


def test_an_episode_without_a_score_has_none_and_a_failure_is_an_error(tmp_path: Path):
    task, model = to_inspect(Unscored, range(4)), mock(lambda *_: ModelOutput.from_content("mock", "Hello."))
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path), display="none", fail_on_error=False)
    samples = {sample.id: sample for sample in read_eval_log(log.location).samples}
    assert samples[0].scores["rewards"].value == {"reward": 1.0}
    assert not samples[1].scores
    assert samples[3].scores["rewards"].value == {"correct": 0.25, "reward": 0.75}  # the sum of all
    assert "a bug of the environment" in samples[2].error.message


def test_seeds_that_come_twice_and_what_is_no_environment_are_refused():
    with pytest.raises(ConfigError, match="different seeds"):
        to_inspect("envsdk/GuessNumber-v1", [1, 1])
    with pytest.raises(UnknownName, match="GuessNumber"):
        to_inspect("envsdk/GuessNumbers-v1", [1])
    with pytest.raises(ConfigError, match="3 is not an environment"):
        to_inspect(3, [1])


def test_the_code_of_its_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(type(get_model("mockllm/model").api), "count_tokens", _no_tokens)  # it downloads a tokenizer
    for block in PAGE.read_text(encoding="utf-8").split("```python\n")[1:]:
        exec(compile(block.partition("```")[0], str(PAGE), "exec"), {"__name__": "inspect_page"})


async def _no_tokens(*_: Any) -> int:
    return 0
