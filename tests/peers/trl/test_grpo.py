"""TRL's GRPOTrainer trains on our rollouts: what it sees is what was sampled."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from envsdk_environments._guess_number import GuessNumber
from trl import GRPOConfig, GRPOTrainer

from envsdk import Env, Mask, Message, Renderer, Sample, Turn
from envsdk.errors import EpisodeError, SingleSampleOnly
from envsdk.trainers.trl import RolloutFunc, conversational, dataset, reward_func, scored

pytestmark = pytest.mark.filterwarnings("default")

GENERATIONS, TEMPERATURE = 4, 1.2


class WatchedTrainer(GRPOTrainer):
    """Keeps what the loss is computed from, with the log-probabilities that the model gives at that moment."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rows: list[dict[str, np.ndarray]] = []

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        tokens = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        width = inputs["completion_ids"].shape[1]
        with torch.no_grad():
            logits = model(input_ids=tokens, attention_mask=seen).logits[:, -width - 1 : -1] / TEMPERATURE
            logprobs = logits.log_softmax(-1).gather(2, inputs["completion_ids"][..., None])[..., 0]
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        for i in range(len(tokens)):
            completion = inputs["completion_mask"][i].bool()
            values = (mask, inputs["sampling_per_token_logps"], logprobs)
            kept, sampled, trained = (value[i][completion].numpy() for value in values)
            row = {"mask": kept, "sampled": sampled, "trained": trained, "advantage": inputs["advantages"][i].numpy()}
            self.rows.append({"tokens": tokens[i][seen[i].bool()].numpy(), **row})
        return super()._compute_loss(model, inputs)


def brevity(*, completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward beside that of the environment, so that hardly two rollouts of a group have the same."""
    return [-0.001 * len(ids) for ids in completion_ids]


@pytest.fixture
def trainer_of(model: Any, tokenizer: Any, tmp_path: Path) -> Callable[..., Any]:
    def make(env_id: str, rollout_func: RolloutFunc, max_steps: int = 1, **options: Any) -> WatchedTrainer:
        args = GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=max_steps,
            per_device_train_batch_size=GENERATIONS,
            gradient_accumulation_steps=2,
            num_generations=GENERATIONS,
            max_completion_length=60,
            temperature=TEMPERATURE,
            learning_rate=1e-4,
            logging_steps=1,
            bf16=False,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        return WatchedTrainer(
            model=model,
            processing_class=tokenizer,
            args=args,
            train_dataset=dataset(env_id, [0, 100]),
            rollout_func=rollout_func,
            **{"reward_funcs": [reward_func, scored(brevity)], **options},
        )

    return make


class Remembering(RolloutFunc):
    """Keeps all that was played, and when: the rows of each batch."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.played_samples: list[Sample] = []
        self.rewards: list[float] = []
        self.conversations: list[dict[str, Any]] = []

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        batch = super().__call__(prompts, trainer)
        self.played_samples += [sample for trajectory in self.trajectories for sample in trajectory.samples()]
        self.rewards += batch["reward"]
        self.conversations += batch["trajectory"]
        return batch


def logged(trainer: Any, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize("env_id", ["envsdk/GuessNumber-v1", "envsdk/Calculator-v1"])
def test_three_steps_train_exactly_what_was_sampled(
    env_id: str, make_env: Callable[..., Env], trainer_of: Callable[..., Any], compared: Counter[str]
) -> None:
    rollout_func = Remembering(make_env)
    trainer = trainer_of(env_id, rollout_func, max_steps=3)
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    losses = logged(trainer, "loss")
    assert len(losses) == 3
    assert np.isfinite(losses).all()
    changed = [name for name, value in trainer.model.named_parameters() if not torch.equal(value, before[name])]
    assert len(changed) == len(before)
    assert logged(trainer, "rewards/reward_func/mean")
    assert logged(trainer, "envsdk/dropped_share") == [0.0] * 3
    assert len(trainer.rows) == 3 * 2 * GENERATIONS
    check_rows(trainer, rollout_func, compared)


def check_rows(trainer: WatchedTrainer, rollout_func: Remembering, compared: Counter[str]) -> None:
    """Every row is a sample, and the model gives its tokens the log-probabilities that they were sampled with."""
    assert len(trainer.rows) == len(rollout_func.played_samples)
    played = {
        (sample.tokens.tobytes(), sample.logprobs[sample.mask].tobytes()): sample
        for sample in rollout_func.played_samples
    }
    for row in trainer.rows:
        mask = row["mask"].astype(bool)
        sample = played[row["tokens"].astype(np.int32).tobytes(), row["sampled"][mask].tobytes()]
        first = len(sample) - len(mask)
        assert not sample.mask[:first].any()
        np.testing.assert_array_equal(mask, sample.mask[first:])
        np.testing.assert_array_equal(row["sampled"], sample.logprobs[first:])
        difference = np.abs(row["trained"] - row["sampled"])[sample.mask[first:]]
        assert difference.max() < 1e-4
        compared["rows"] += 1
        compared["positions"] += len(sample)
        compared["trained tokens"] += int(sample.mask.sum())


def test_a_rewritten_rollout_is_refused_unless_one_segment_of_it_was_chosen(
    make_env: Callable[..., Env], trainer_of: Callable[..., Any]
) -> None:
    stripping = partial(make_env, history="strip")
    with pytest.raises(SingleSampleOnly, match="thinking_stripped in 'main'"):
        trainer_of("envsdk/MathChat-v0", RolloutFunc(stripping)).train()
    rollout_func = Remembering(stripping, on_break="last_segment")
    trainer = trainer_of("envsdk/MathChat-v0", rollout_func)
    trainer.train()
    check_last_segments(trainer, rollout_func)
    assert 0.5 < logged(trainer, "envsdk/dropped_share")[0] < 0.9


def check_last_segments(trainer: WatchedTrainer, rollout_func: Remembering) -> None:
    """Every row is the last sample of the main context, with its mask."""
    samples = [sample for sample in rollout_func.played_samples if sample.context == "main"]
    lasts = {tuple(s.tokens.tolist()): s for s in samples if s.segment_index == s.n_segments - 1}
    for row in trainer.rows:
        mask = lasts[tuple(row["tokens"].tolist())].mask
        np.testing.assert_array_equal(row["mask"], mask[len(mask) - len(row["mask"]) :])


def test_a_reward_function_gets_messages_and_the_trajectory(
    make_env: Callable[..., Env], trainer_of: Callable[..., Any]
) -> None:
    seen: list[dict[str, Any]] = []

    def calls(*, prompts: Any, completions: Any, trajectory: Any, trainer_state: Any, **_: Any) -> list[float]:
        for prompt, completion, record in zip(prompts, completions, trajectory, strict=True):
            assert [*prompt, *completion] == record["contexts"]["main"]["messages"]
            assert (prompt[-1]["role"], completion[0]["role"]) == ("user", "assistant")
        seen.extend(trajectory)
        return [0.1 * sum("tool_calls" in message for message in completion) for completion in completions]

    rollout_func = Remembering(make_env)
    trainer = trainer_of(
        "envsdk/Calculator-v1", rollout_func, reward_funcs=[reward_func, scored(conversational(calls))]
    )
    trainer.train()
    assert seen == rollout_func.conversations and len(seen) == 2 * GENERATIONS
    (mean,) = logged(trainer, "rewards/calls/mean")
    assert mean > 0  # the model calls the tool


class Masking(GuessNumber):
    """Leaves the first token of each reply, and those after the third one, out of training."""

    def respond(self, reply: Message) -> Turn:
        turn = super().respond(reply)
        turn.mask = Mask(tokens=[(0, 1), (3, None)] if len(reply.new_text) > 10 else [(0, 1)])
        return turn


def test_tokens_that_the_environment_left_out_are_not_trained(
    renderer: Renderer, trainer_of: Callable[..., Any], compared: Counter[str]
) -> None:
    rollout_func = Remembering(lambda env_id: Masking(renderer=renderer, high=30, limits={"max_steps": 24}))
    trainer = trainer_of("any", rollout_func)
    trainer.train()
    assert all(any(step.masked for step in trajectory.steps) for trajectory in rollout_func.trajectories)
    check_rows(trainer, rollout_func, compared)
    assert np.isfinite(logged(trainer, "loss")).all()


def program_of(kind: type[Env], renderer: Renderer) -> Callable[[str], Env]:
    return lambda env_id: kind(renderer=renderer, limits={"end_on_cut": False})


class Fragile(Env):
    """Breaks in every second episode; another one earns what its number is."""

    played = 0

    def start(self) -> Turn:
        Fragile.played += 1
        return Turn("Hello.")

    def respond(self, reply: Message) -> Turn:
        if Fragile.played % 2:
            raise OSError("the disk is full")
        return Turn(reward=float(Fragile.played), terminated=True)


def test_a_failed_episode_is_no_zero_reward(renderer: Any, trainer_of: Callable[..., Any]) -> None:
    def make_env(env_id: str) -> Env:
        return Fragile(renderer=renderer, limits={"end_on_cut": False})

    rollout_func = Remembering(make_env, max_concurrency=1)
    trainer = trainer_of("any", rollout_func)
    trainer.train()
    scores = [reward for reward in rollout_func.rewards if reward is not None]
    assert len(scores) == rollout_func.rewards.count(None) == GENERATIONS
    assert logged(trainer, "rewards/reward_func/mean") == [pytest.approx(np.mean(scores))]
    assert logged(trainer, "envsdk/failed") == [0.5]
    failed = [float(row["advantage"]) for row in trainer.rows if not row["mask"].any()]
    others = [float(row["advantage"]) for row in trainer.rows if row["mask"].any()]
    assert failed == [0.0] * GENERATIONS
    # Of two groups of four, two each have failed: of the others, one is above their mean and one below, equally far.
    np.testing.assert_allclose(sorted(np.abs(others)), [np.abs(others[0])] * GENERATIONS, rtol=0.02)
    assert sum(others) == pytest.approx(0.0, abs=1e-3)
    assert np.abs(others[0]) > 0.5


def test_a_batch_in_which_every_episode_fails_ends_the_training(
    renderer: Any, trainer_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fragile, "start", lambda env: 1 / 0)
    rollout_func = RolloutFunc(lambda env_id: Fragile(renderer=renderer), max_failed_batches=1)
    with pytest.raises(EpisodeError, match=r"all of 8 episodes failed, the last one with.*division by zero"):
        trainer_of("any", rollout_func).train()
