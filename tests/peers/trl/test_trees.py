"""A row that is a whole rollout trains in GRPOTrainer what its samples train as separate sequences."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

import envsdk
from envsdk import Action, Env, Handoff, HandoffResult, Message, Renderer, Turn
from envsdk.credit import group_advantages
from envsdk.errors import ConfigError, InvalidSample, SingleSampleOnly, TreeUnsupported
from envsdk.trainers.trl import RolloutFunc, dataset, reward_func, tree_trainer

pytestmark = pytest.mark.filterwarnings("default")

GENERATIONS, TEMPERATURE, LIMIT = 4, 1.2, 1e-5


class Doubts(Env):
    """Asks again and again; the reward is how long the last reply is."""

    reward_range = (0.0, 100.0)

    def __init__(self, turns: int = 4, **options: Any) -> None:
        super().__init__(**options)
        self.turns = turns

    def start(self) -> Turn:
        self.asked = 0
        return Turn("Well?", system="Think.")

    def respond(self, reply: Message) -> Turn:
        self.asked += 1
        return Turn(f"Sure? {self.asked}", reward=len(reply.content) / 10, terminated=self.asked == self.turns)


class Lead(Doubts):
    """Hands each reply to a sub-agent."""

    def respond(self, reply: Message) -> Any:
        self.asked += 1
        return Handoff(Doubts(turns=2), task="Look again.", role="checker")

    def resume(self, result: HandoffResult) -> Turn:
        return Turn("And now?", reward=float(result.reward or 0.0), terminated=self.asked == 2)


class Thinker:
    """Replies with thinking and a few words, which differ from episode to episode."""

    tokenizer = "any"

    def __init__(self, renderer: Renderer) -> None:
        self.renderer, self.calls = renderer, 0

    async def __call__(self, prompt: np.ndarray, **_: Any) -> Action:
        self.calls += 1
        random = np.random.default_rng([self.calls, len(prompt)])
        words = " ".join(map(str, random.integers(0, 100, random.integers(2, 9))))
        reply = Message(role="assistant", reasoning=words, content="Yes" + "!" * int(random.integers(9)))
        tokens = self.renderer.reply(reply)
        return Action(tokens, random.uniform(-3, -0.1, len(tokens)).astype(np.float32), temperature=TEMPERATURE)


class TreeTrainer(tree_trainer()):
    """Keeps each batch of which a loss was computed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: list[dict[str, Any]] = []
        self.separate = False

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.seen.append(inputs)
        return super()._compute_loss(model, inputs)

    def _forest(self, model: Any, rows: Any, width: int) -> tuple[Any, Any]:
        if not self.separate:
            return super()._forest(model, rows, width)
        values, entropies = torch.zeros(2, len(rows), width).unbind()
        for number, row in enumerate(rows):
            for index, sample in enumerate(row.samples if row else ()):
                tokens = torch.from_numpy(sample.tokens).long()[None]
                own = GRPOTrainer._get_per_token_logps_and_entropies(
                    self, model, tokens, torch.ones_like(tokens), tokens.shape[1] - 1, compute_entropy=True
                )
                places = np.flatnonzero(row.tree.sample_ids == index)
                at = torch.from_numpy(row.tree.position_ids[places]).long() - 1
                columns = torch.from_numpy(places - row.prompt_length)
                rows_of = torch.full_like(columns, number)
                values = values.index_put((rows_of, columns), own[0][0, at].float())
                if own[1] is not None:
                    entropies = entropies.index_put((rows_of, columns), own[1][0, at].float())
        return values, entropies


@pytest.fixture
def trainer_of(model: Any, tokenizer: Any, renderer: Renderer, tmp_path: Path) -> Callable[..., Any]:
    def make(kind: type[Env] = Doubts, *, trainer: Any = TreeTrainer, rollout: Any = None, **changes: Any) -> Any:
        options: dict[str, Any] = {
            "max_steps": 1,
            "per_device_train_batch_size": GENERATIONS,
            "gradient_accumulation_steps": 1,
            "num_generations": GENERATIONS,
            "max_completion_length": 200,
            "temperature": TEMPERATURE,
            "learning_rate": 1e-3,
            "logging_steps": 1,
        }
        named = {name: changes.pop(name) for name in ("peft_config", "processing_class") if name in changes}
        args = GRPOConfig(
            output_dir=str(tmp_path),
            bf16=False,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            **{**options, **changes},
        )

        def make_env(env_id: str) -> Env:
            return kind(renderer=renderer, history="strip")

        return trainer(
            model=model,
            processing_class=tokenizer,
            args=args,
            train_dataset=dataset("any", [0, 1]),
            rollout_func=RolloutFunc(make_env, Thinker(renderer)) if rollout is None else rollout(make_env),
            reward_funcs=reward_func,
            **named,
        )

    return make


def loss_and_gradient(trainer: Any, inputs: dict[str, Any], *, separate: bool) -> tuple[float, Any]:
    trainer.separate = separate
    trainer.model.train()
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    gradients = [each.grad.flatten() for each in trainer.model.parameters() if each.grad is not None]
    return float(loss.detach()), torch.cat(gradients).double()


def check(trainer: Any, limit: float = LIMIT) -> None:
    """Compare loss and gradient of each batch with those of separate samples."""
    trainer.train()
    batches = list(trainer.seen)
    assert batches
    for inputs in batches:
        ours, gradient = loss_and_gradient(trainer, inputs, separate=False)
        theirs, expected = loss_and_gradient(trainer, inputs, separate=True)
        assert ours == pytest.approx(theirs, rel=limit, abs=limit)
        assert expected.norm() > 0
        assert (gradient - expected).norm() <= 10 * limit * expected.norm()


@pytest.mark.parametrize(
    "options",
    [
        *({"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo")),
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
        {"beta": 0.1},
        {"num_iterations": 2, "max_steps": 2},
        {"importance_sampling_level": "sequence", "num_iterations": 2, "max_steps": 2},
        {"top_entropy_quantile": 0.5},
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
        {"gradient_checkpointing": True},
        {"scale_rewards": "batch", "epsilon_high": 0.1, "delta": 1.5, "num_iterations": 2, "max_steps": 2},
    ],
    ids=lambda options: ",".join(f"{name}={value}" for name, value in options.items()),
)
def test_loss_and_gradient_are_those_of_separate_samples(trainer_of: Callable[..., Any], options: dict[str, Any]):
    check(trainer_of(**options))


def test_sub_agents_are_in_the_row_of_their_rollout(trainer_of: Callable[..., Any]):
    trainer = trainer_of(Lead)
    check(trainer)
    assert all(len(trajectory.samples()) > 2 for trajectory in trainer.rollout_func.trajectories)


def test_every_sampled_token_of_a_stripped_rollout_is_in_the_loss(trainer_of: Callable[..., Any]):
    trainer = trainer_of(lambda **options: Doubts(turns=16, **options))
    trainer.train()
    trajectories = trainer.rollout_func.trajectories
    assert all(len(trajectory.samples()) == 16 for trajectory in trajectories)
    in_loss = sum(int((inputs["completion_mask"] * inputs["tool_mask"]).sum()) for inputs in trainer.seen)
    assert in_loss == sum(trajectory.sampled_tokens for trajectory in trajectories)
    logged = trainer.state.log_history[0]
    assert logged["envsdk/dropped_share"] == 0.0
    assert logged["envsdk/tree_ratio"] > 2
    assert logged["completions/mean_length"] == in_loss / len(trajectories)
    assert any(entry.get("grad_norm", 0) > 0 for entry in trainer.state.log_history)
