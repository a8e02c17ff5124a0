"""Our datums and our `Env` against the cookbook's own conversion and its own rollouts."""

import asyncio
import contextlib
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import tinker
from hypothesis import given
from hypothesis import strategies as st
from program_environments import Trimming
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl import types
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout

import envsdk
from envsdk import Action, Env, Limits, Message, Trajectory, Turn
from envsdk.errors import ConfigError, EpisodeError, InvalidSample
from envsdk.policies import RandomPolicy, ReplyPolicy
from envsdk.rollouts import Rollouts
from envsdk.trainers.tinker import CompleterPolicy, CookbookEnv, CookbookEnvGroupBuilder, to_datums, with_logprobs

DOCS = Path(__file__).resolve().parents[3] / "docs" / "trainers" / "tinker.md"
Reply = tuple[str | None, str]  # reasoning, content
STEPS = 6
HISTORIES: tuple[Any, ...] = ("keep", "strip", {"name": "compact", "every": 2}, {"name": "compact", "every": 3})
ADVANTAGE = 0.75
FIELDS = ("target_tokens", "logprobs", "advantages", "mask")


class Talk(Env):
    """Says the next line until there is none."""

    def __init__(self, lines: Sequence[str] = ("one", "two", "three"), **options: Any) -> None:
        super().__init__(**{"tokenizer": "embedded", **options})
        self.lines = lines

    def start(self) -> Turn:
        self.said = 0
        return Turn("Begin.", system="Talk.")

    def respond(self, reply: Message) -> Turn:
        self.said += 1
        if self.said > len(self.lines):
            return Turn("", reward={"told": 1.0}, metrics={"lines": 3.0}, terminated=True)
        return Turn(self.lines[self.said - 1], reward=0.25)


class Completer(TokenCompleter):
    """Samples by one of our policies, with random log-probabilities, and checks each prompt."""

    def __init__(self, env: Env | None, policy: Callable[..., Action], finish_reason: str | None = None) -> None:
        self.env, self.policy, self.finish_reason = env, policy, finish_reason
        self.stops: list[Any] = []
        self.rng = np.random.default_rng(0)

    async def __call__(
        self, model_input: tinker.ModelInput, stop: Any, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        prompt = np.array(model_input.to_ints(), dtype=np.int32)
        context = "main"
        if self.env is not None:
            np.testing.assert_array_equal(prompt, self.env.prompt())
            context = self.env.pending()[0].context
        self.stops.append(stop)
        action = self.policy(
            prompt, episode_id="", context=context, max_tokens=200, stop=(), stop_token_ids=tuple(stop)
        )
        tokens = np.asarray(action.tokens).tolist()
        logprobs = (-self.rng.exponential(size=len(tokens))).astype(np.float32).tolist()
        reason: Any = self.finish_reason or action.finish_reason
        return TokensWithLogprobs(tokens, logprobs, reason)


def says(env: Env, replies: Sequence[Reply]) -> ReplyPolicy:
    """A policy that gives these replies, one after the other."""
    left = iter(replies)

    def reply(_: Env) -> Message:
        reasoning, content = next(left)
        return Message(role="assistant", reasoning=reasoning, content=content)

    return ReplyPolicy(env, reply)


def roll(env: Env, policy: Callable[..., Action], **options: Any) -> tuple[Trajectory, types.Trajectory]:
    """Roll out in the cookbook's loop: our record, with the log-probabilities of the cookbook's, and that."""
    wrapped = CookbookEnv(env, seed=0)
    rollout = asyncio.run(do_single_rollout(Completer(env, policy, **options), wrapped))
    assert wrapped.trajectory is not None
    return with_logprobs(wrapped.trajectory, rollout), rollout


def ours(trajectory: Trajectory) -> list[tinker.Datum]:
    samples = trajectory.samples()
    for sample in samples:
        sample.advantage = ADVANTAGE
    return to_datums(samples)


def theirs(rollout: types.Trajectory) -> list[tinker.Datum]:
    return trajectory_to_data(rollout, ADVANTAGE)


def content(datum: tinker.Datum) -> dict[str, Any]:
    """All that a datum holds, as plain values with their types."""
    tensors = {name: datum.loss_fn_inputs[name] for name in FIELDS}
    assert datum.loss_fn_inputs.keys() == tensors.keys()
    values = {name: (tensor.dtype, tensor.shape, tensor.tolist()) for name, tensor in tensors.items()}
    return {"model_input": datum.model_input.to_ints(), **values}


def trained(datums: Sequence[tinker.Datum]) -> Counter[Any]:
    """Each trained token with all that it is predicted from, its log-probability and its advantage."""
    found: Counter[Any] = Counter()
    for datum in datums:
        tokens = datum.model_input.to_ints()
        target, logprobs, advantages, mask = (datum.loss_fn_inputs[name].tolist() for name in FIELDS)
        for index in np.flatnonzero(mask).tolist():
            found[tuple(tokens[: index + 1]), target[index], logprobs[index], advantages[index]] += 1
    return found


REPLIES = st.lists(st.tuples(st.none() | st.text(max_size=12), st.text(max_size=12)), min_size=STEPS, max_size=STEPS)


@given(REPLIES, st.sampled_from(HISTORIES), st.integers(0, STEPS - 1))
def test_where_prompts_extend_both_make_the_same_datums(replies: list[Reply], history: Any, lines: int) -> None:
    env = Talk(["Go on."] * lines, history=history)
    trajectory, rollout = roll(env, says(env, replies))
    expected = [content(datum) for datum in theirs(rollout)]
    assert [content(datum) for datum in ours(trajectory)] == expected
    assert len(expected) == len([b for b in trajectory.breaks if b.kind == "rewrite"]) + 1


@given(st.integers(0, 10_000), st.sampled_from(HISTORIES))
def test_random_ids_make_the_same_datums(seed: int, history: Any) -> None:
    env = Talk(history=history, limits=Limits(end_on_cut=False))
    policy = RandomPolicy(env.renderer.tokenizer.vocab_size, seed=seed)
    trajectory, rollout = roll(env, policy)
    assert [content(datum) for datum in ours(trajectory)] == [content(datum) for datum in theirs(rollout)]


@pytest.mark.parametrize("name", ["envsdk/Delegate-v1", "envsdk/KuhnPoker-v1"])
def test_contexts_that_are_resumed_take_fewer_datums_with_the_same_trained_tokens(
    name: str, compared: Counter[str]
) -> None:
    for seed in range(10):
        env = envsdk.make(name, tokenizer="embedded")
        wrapped = CookbookEnv(env, seed=seed)
        policy = ReplyPolicy(env, lambda speaker: speaker.reference_reply())
        rollout = asyncio.run(do_single_rollout(Completer(env, policy), wrapped))
        assert wrapped.trajectory is not None
        own = ours(with_logprobs(wrapped.trajectory, rollout))
        split = theirs(rollout)
        assert trained(own) == trained(split)
        assert len(own) == len(wrapped.trajectory.contexts) < len(split)
        compared.update({"datums": len(own), "datums of the cookbook": len(split), "trained tokens": len(trained(own))})
        compared["tokens"] += sum(datum.model_input.length for datum in own)
        compared["tokens of the cookbook"] += sum(datum.model_input.length for datum in split)


def test_the_cookbook_reads_rewards_metrics_and_breaks() -> None:
    env = Talk(history="strip")
    assert isinstance(CookbookEnv(env), types.Env)
    _, rollout = roll(env, says(env, [("hm", "a")] * 4))
    assert [transition.reward for transition in rollout.transitions] == [0.25, 0.25, 0.25, 1.0]
    assert [transition.episode_done for transition in rollout.transitions] == [False, False, False, True]
    assert rollout.transitions[-1].metrics == {"lines": 3.0, "reward/told": 1.0, "stop/completed": 1.0}
    assert [transition.logs.get("break") for transition in rollout.transitions[:2]] == ["thinking_stripped"] * 2
    assert rollout.final_ob.to_ints() == env.prompt().tolist()


@pytest.mark.parametrize(
    ("limits", "finish_reason", "reason"),
    [
        ({}, None, types.StopReason.COMPLETED),
        ({"max_steps": 2}, None, types.StopReason.MAX_TURNS),
        ({"max_sampled_tokens": 2}, None, types.StopReason.MAX_SAMPLED_TOKENS),
        ({"max_context_tokens": 40}, None, types.StopReason.CONTEXT_OVERFLOW),
        ({}, "length", types.StopReason.MAX_TOKENS),
    ],
)
def test_stop_reasons_are_the_cookbooks(limits: dict[str, int], finish_reason: str | None, reason: str) -> None:
    env = Talk(limits=limits)
    _, rollout = roll(env, says(env, [("hm", "a")] * 4), finish_reason=finish_reason)
    assert rollout.stop_reason == reason
    stops = [[key for key in one.metrics if key.startswith("stop/")] for one in rollout.transitions]
    assert stops == [[]] * (len(stops) - 1) + [[f"stop/{reason}"]]


def test_a_first_prompt_that_is_too_long_ends_the_rollout_gracefully() -> None:
    env = Talk(limits=Limits(max_context_tokens=3))
    rollout = asyncio.run(do_single_rollout(Completer(env, says(env, [])), CookbookEnv(env)))
    assert rollout.stop_reason == types.StopReason.CONTEXT_OVERFLOW
    assert theirs(rollout) == []


def test_an_env_is_used_once() -> None:
    wrapped = CookbookEnv(Talk())
    asyncio.run(wrapped.initial_observation())
    with pytest.raises(EpisodeError, match="make another"):
        asyncio.run(wrapped.initial_observation())


def test_stop_strings_go_to_the_policy_beside_the_texts_of_the_stop_tokens() -> None:
    class Asks(Talk):
        def start(self) -> Turn:
            self.said = 0
            return Turn("Begin.", stop=("</answer>",))

    _, stop = asyncio.run(CookbookEnv(Asks()).initial_observation())
    assert stop == ["<|im_end|>", "<|endoftext|>", "</answer>"]
    assert tinker.SamplingParams(stop=stop).stop == stop


def test_sampling_that_the_policy_would_not_hear_of_is_refused() -> None:
    class Hot(Talk):
        def start(self) -> Turn:
            return Turn("Begin.", sampling={"temperature": 2.0})

    with pytest.raises(ConfigError, match="temperature"):
        asyncio.run(CookbookEnv(Hot()).initial_observation())


# Groups.


def ranks(episodes: list[Trajectory]) -> list[float]:
    return [float(index) for index, _ in enumerate(episodes)]


BUILDER = CookbookEnvGroupBuilder(
    "envsdk/GuessNumber-v1", {"tokenizer": "embedded", "history": "strip"}, seed=3, group_size=4, group_rewards=ranks
)


def random_completer() -> Completer:
    return Completer(None, RandomPolicy(envsdk.load_tokenizer("embedded").vocab_size))


def test_a_group_is_rolled_out_by_a_builder_that_was_pickled() -> None:
    assert isinstance(BUILDER, types.EnvGroupBuilder)
    envs = asyncio.run(BUILDER.make_envs())
    assert [env.env.tasks for env in envs] == [None] * 4
    again = pickle.loads(pickle.dumps(BUILDER))
    asyncio.run(BUILDER.cleanup())
    assert again == BUILDER
    group = asyncio.run(do_group_rollout(again, random_completer()))
    assert group.final_rewards_G == [0.0, 1.0, 2.0, 3.0]
    assert len(group.trajectories_G) == 4
    assert all(metrics["contexts"] == 1.0 for metrics in group.metrics_G)
    first = {tuple(one.transitions[0].ob.to_ints()) for one in group.trajectories_G}
    assert len(first) == 1  # the same task
    assert again.logging_tags() == ["envsdk/GuessNumber-v1"]


def test_the_episodes_of_a_group_share_its_id_and_have_their_own() -> None:
    async def play() -> list[Trajectory | None]:
        envs = await BUILDER.make_envs()
        for env in envs:
            await do_single_rollout(random_completer(), env)
        return [env.trajectory for env in envs]

    episodes = [one for one in asyncio.run(play()) if one is not None]
    assert {one.group_id for one in episodes} == {"envsdk/GuessNumber-v1/3"}
    assert len({one.id for one in episodes}) == 4


# The engine, with a completer of the cookbook.


class Faulty(Completer):
    """Hangs, or raises, at its first call."""

    def __init__(self, fault: Exception | None = None) -> None:
        super().__init__(None, RandomPolicy(envsdk.load_tokenizer("embedded").vocab_size))
        self.fault, self.calls = fault, 0

    async def __call__(self, *args: Any, **options: Any) -> TokensWithLogprobs:
        self.calls += 1
        if self.calls == 1:
            if self.fault is None:
                await asyncio.sleep(1000)
            else:
                raise self.fault
        return await super().__call__(*args, **options)


def test_the_engine_gives_the_cookbooks_datums() -> None:
    env = Talk(history="strip", limits=Limits(end_on_cut=False))
    size = env.renderer.tokenizer.vocab_size
    _, rollout = roll(env, RandomPolicy(size))
    policy = CompleterPolicy(Completer(None, RandomPolicy(size)), "embedded")
    made = {"history": "strip", "limits": Limits(end_on_cut=False)}
    [trajectory] = Rollouts(Talk, policy, seeds=[0], group_size=1, env_options=made).run()
    assert [content(datum) for datum in ours(trajectory)] == [content(datum) for datum in theirs(rollout)]


# Agent programs.

PROGRAM_OPTIONS = {"tokenizer": "embedded", "limits": {"end_on_cut": False}}


def test_both_make_the_same_datums_of_an_agent_program(compared: Counter[str]) -> None:
    for seed in range(5):
        with contextlib.closing(Trimming(**PROGRAM_OPTIONS)) as env:
            replies = [("I count.", f"There are {seed + n}.") for n in range(4)]
            trajectory, rollout = roll(env, says(env, replies))
        assert [break_.reason for break_ in trajectory.breaks] == ["handoff", "edit"]
        assert [transition.logs.get("break") for transition in rollout.transitions] == [None, "handoff", "edit", None]
        assert [content(datum) for datum in ours(trajectory)] == [content(datum) for datum in theirs(rollout)]
        compared.update({"datums": len(ours(trajectory)), "trained tokens": trajectory.sampled_tokens})


def test_a_completer_that_hangs_costs_its_own_episode() -> None:
    policy = CompleterPolicy(Faulty(), "embedded")
    rollouts = Rollouts(Talk, policy, seeds=[3], group_size=4, policy_timeout_s=5.0, max_retries=0)
    assert Counter(episode.error_kind for episode in rollouts.run()) == {"infrastructure": 1, None: 3}


def test_an_episode_begins_again_if_tinkers_servers_fail() -> None:
    fault = tinker.APIConnectionError(request=httpx.Request("POST", "https://example.org"))
    policy = CompleterPolicy(Faulty(fault), "embedded")
    rollouts = Rollouts(Talk, policy, seeds=[3], group_size=4, retry_wait_s=0.01)
    assert [episode.seed for episode in rollouts.run() if episode.status != "error"] == [3] * 4
    assert rollouts.statistics.play.retries == {"PolicyUnavailable": 1}


def test_the_temperature_is_the_completers() -> None:
    completer = random_completer()
    completer.temperature = 0.7  # type: ignore[attr-defined]
    [trajectory] = Rollouts(Talk, CompleterPolicy(completer, "embedded"), seeds=[0], group_size=1).run()
    with pytest.raises(InvalidSample, match=r"sampled at temperature 0.7, but the trainer's is 1"):
        ours(trajectory)


class Closing(Talk):
    closed = 0

    def close(self) -> None:
        Closing.closed += 1
        super().close()
        if Closing.closed == 1:
            raise OSError("a server is gone")


def test_cleanup_closes_all_and_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    builder = CookbookEnvGroupBuilder(Closing, group_size=3)
    policy = Completer(None, RandomPolicy(envsdk.load_tokenizer("embedded").vocab_size))
    asyncio.run(do_group_rollout(builder, policy))
    assert Closing.closed == 3
    assert "could not be closed" in caplog.text
    asyncio.run(builder.cleanup())
    assert Closing.closed == 3


class Clients(tinker.TrainingClient):
    """Tinker's client without its servers: samples at random, and keeps what is to be trained."""

    def __init__(self, sampling_error: Exception | None = None, loss_error: Exception | None = None) -> None:
        self.policy = RandomPolicy(envsdk.load_tokenizer("embedded").vocab_size)
        self.sampling_error, self.loss_error = sampling_error, loss_error
        self.batches: list[list[tinker.Datum]] = []
        self.optim_params: list[Any] = []

    async def sample(self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams) -> Any:
        if self.sampling_error is not None:
            raise self.sampling_error
        tokens = np.array(prompt.to_ints(), dtype=np.int32)
        stop, limit = sampling_params.stop, sampling_params.max_tokens
        action = self.policy(tokens, episode_id="", stop_token_ids=tuple(stop), max_tokens=limit)  # type: ignore[arg-type]
        sequence = SimpleNamespace(
            tokens=action.tokens.tolist(), logprobs=action.logprobs.tolist(), stop_reason="stop", sequence_id="s"
        )
        return SimpleNamespace(sequences=[sequence], prompt_cache_hit_tokens=0)

    def forward_backward(self, data: list[tinker.Datum], loss_fn: str, loss_fn_config: Any = None) -> Any:
        assert loss_fn == "importance_sampling"
        self.batches.append(data)
        return done(self.loss_error)

    def optim_step(self, optim_params: Any = None, *, adam_params: Any = None) -> Any:
        self.optim_params.append(optim_params)
        return done()


def done(error: Exception | None = None) -> AwaitableConcurrentFuture[Any]:
    """What tinker returns for a request that is answered."""
    future: Future[Any] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return AwaitableConcurrentFuture(future)


def run_step_of_page(clients: Clients) -> None:
    """Run the code that the page prints, with a tokenizer that is here."""
    code = DOCS.read_text().split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line]) <= 28
    names: dict[str, Any] = {}
    exec(code.replace("Qwen/Qwen3-8B", "embedded"), names)
    asyncio.run(names["train_step"](clients, clients, 0))


def test_the_step_that_the_documentation_shows_runs() -> None:
    clients = Clients()
    run_step_of_page(clients)
    [batch] = clients.batches
    assert len(batch) == 8
    assert batch[0].loss_fn_inputs.keys() == {"target_tokens", "logprobs", "advantages"}
    assert [type(params) for params in clients.optim_params] == [tinker.AdamParams]


def test_the_step_that_the_documentation_shows_raises_the_errors_of_the_loss() -> None:
    error = tinker.RequestFailedError("the loss failed", "r", tinker.types.RequestErrorCategory.User)
    with pytest.raises(tinker.RequestFailedError, match="the loss failed"):
        run_step_of_page(Clients(loss_error=error))


def test_the_step_that_the_documentation_shows_sends_no_empty_batch() -> None:
    clients = Clients(sampling_error=ValueError("no reply"))
    with pytest.raises(RuntimeError, match=r"no episode of seed 0 can be trained: .*no reply"):
        run_step_of_page(clients)
    assert clients.batches == []
