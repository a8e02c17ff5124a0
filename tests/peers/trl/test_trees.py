"""A row that is a whole rollout trains in GRPOTrainer what its samples train as separate sequences."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import real_models
import torch
import transformers
from peft import LoraConfig
from torch.utils._python_dispatch import TorchDispatchMode
from torch_models import tiny_qwen3, tiny_qwen3_moe
from trl import GRPOConfig, GRPOTrainer

from envsdk import Action, Env, Handoff, HandoffResult, Message, Renderer, Turn
from envsdk.credit import group_advantages
from envsdk.errors import ConfigError, InvalidSample, SingleSampleOnly, TreeUnsupported
from envsdk.trainers.trl import RolloutFunc, dataset, reward_func, tree_trainer

pytestmark = pytest.mark.filterwarnings("default")

GENERATIONS, TEMPERATURE, LIMIT = 4, 1.2, 1e-5
CONFIG: dict[str, Any] = {
    "max_steps": 1,
    "per_device_train_batch_size": GENERATIONS,
    "gradient_accumulation_steps": 1,
    "num_generations": GENERATIONS,
    "max_completion_length": 200,
    "temperature": TEMPERATURE,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}
"""The options of GRPOConfig, unless a test says otherwise."""


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


class Ranked(Doubts):
    """Each episode earns twice what the one before it earned, so no reward of a group is the group's mean."""

    reward_range = (0.0, float("inf"))

    def __init__(self, order: Iterator[int], **options: Any) -> None:
        super().__init__(**options)
        self.order = order

    def start(self) -> Turn:
        self.rank = next(self.order)
        return super().start()

    def respond(self, reply: Message) -> Turn:
        self.asked += 1
        is_over = self.asked == self.turns
        return Turn("Sure?", reward=2.0**self.rank if is_over else 0.0, terminated=is_over)


class Lead(Doubts):
    """Hands each reply to a sub-agent."""

    def respond(self, reply: Message) -> Any:
        self.asked += 1
        return Handoff(Doubts(turns=2), task="Look again.", role="checker")

    def resume(self, result: HandoffResult) -> Turn:
        return Turn("And now?", reward=float(result.reward or 0.0), terminated=self.asked == 2)


class Thinker:
    """Replies with thinking and a few words, which differ from episode to episode.

    The log-probabilities are nearly those of the model, as those of a server are.
    """

    tokenizer = "any"

    def __init__(self, renderer: Renderer, model: Any) -> None:
        self.renderer, self.model, self.calls = renderer, model, 0

    async def __call__(self, prompt: np.ndarray, **_: Any) -> Action:
        self.calls += 1
        random = np.random.default_rng([self.calls, len(prompt)])
        words = " ".join(map(str, random.integers(0, 100, random.integers(2, 9))))
        reply = Message(role="assistant", reasoning=words, content="Yes" + "!" * int(random.integers(9)))
        tokens = np.asarray(self.renderer.reply(reply))
        with torch.no_grad():
            ids = torch.from_numpy(np.concatenate([prompt, tokens])).long()
            logits = self.model(input_ids=ids[None]).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
            logprobs = logits.log_softmax(-1).gather(1, ids[len(prompt) :, None])[:, 0].numpy()
        noise = random.normal(0, 0.01, len(tokens)).astype(np.float32)
        return Action(tokens, np.minimum(logprobs + noise, -1e-4), temperature=TEMPERATURE)


class TreeTrainer(tree_trainer()):
    """Keeps each batch of which a loss was computed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: list[dict[str, Any]] = []
        self.tokens_with_gradient: list[int] = []
        self.separate = False

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.seen.append(inputs)
        return super()._compute_loss(model, inputs)

    def _forest(self, model: Any, rows: Any, width: int) -> tuple[Any, Any]:
        if not self.separate:
            values, entropies = super()._forest(model, rows, width)
            if values.requires_grad:
                values.register_hook(lambda gradient: self.tokens_with_gradient.append(int(gradient.count_nonzero())))
            return values, entropies
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


@pytest.fixture(scope="module")
def model_folder(renderer: Renderer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model in place of the fitted one: what is compared here is exact for any weights."""
    folder = tmp_path_factory.mktemp("model")
    tiny_qwen3(renderer.tokenizer.vocab_size, layers=2).save_pretrained(folder)
    return folder


@pytest.fixture
def trainer_of(
    model: Any, model_folder: Path, tokenizer: Any, renderer: Renderer, tmp_path: Path
) -> Callable[..., Any]:
    sampler = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype="float32").eval()

    def make(kind: type[Env] = Doubts, *, trainer: Any = TreeTrainer, rollout: Any = None, **changes: Any) -> Any:
        own = ("model", "processing_class", "peft_config", "eval_dataset")
        named = {name: changes.pop(name) for name in own if name in changes}

        def make_env(env_id: str) -> Env:
            return kind(renderer=renderer, history="strip")

        return trainer(
            args=GRPOConfig(output_dir=str(tmp_path), **{**CONFIG, **changes}),
            train_dataset=dataset("any", [0, 1]),
            rollout_func=(rollout or RolloutFunc)(make_env, Thinker(renderer, sampler)),
            reward_funcs=reward_func,
            **{"model": model, "processing_class": tokenizer, **named},
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


def check(trainer: Any) -> None:
    """Compare loss and gradient of each batch of the last update with those of separate samples."""
    trainer.train()
    batches = trainer.seen[-trainer.args.gradient_accumulation_steps :]
    assert batches
    for inputs in batches:
        ours, gradient = loss_and_gradient(trainer, inputs, separate=False)
        theirs, expected = loss_and_gradient(trainer, inputs, separate=True)
        assert ours == pytest.approx(theirs, rel=LIMIT, abs=1e-6)
        assert expected.norm() > 0
        assert (gradient - expected).norm() <= LIMIT * expected.norm()


@pytest.mark.parametrize(
    "options",
    [
        *({"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo")),
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
        {"beta": 0.1, "max_steps": 2, "use_bias_correction_kl": True},
        {"num_iterations": 2, "max_steps": 2},
        {"importance_sampling_level": "sequence", "num_iterations": 2, "max_steps": 2},
        {"top_entropy_quantile": 0.5},
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
        {"gradient_checkpointing": True},
        {"entropy_coef": 0.01},
        {"mask_truncated_completions": True},
        {"pad_to_multiple_of": 64},
        {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False)},
        {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False), "beta": 0.1},
        {"scale_rewards": "batch", "epsilon_high": 0.1, "delta": 1.5, "num_iterations": 2, "max_steps": 2},
        {"off_policy_mask_threshold": 0.01, "num_iterations": 2, "max_steps": 2},
    ],
    ids=lambda options: ",".join(name if "peft" in name else f"{name}={value}" for name, value in options.items()),
)
def test_loss_and_gradient_are_those_of_separate_samples(trainer_of: Callable[..., Any], options: dict[str, Any]):
    check(trainer_of(**options))


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_importance_is_sampled_from_the_log_probabilities_of_the_sampler(trainer_of: Callable[..., Any], mode: str):
    """With vLLM, GRPOTrainer corrects for the sampler; what corrects is its own code, without a vLLM server."""
    trainer = trainer_of(vllm_importance_sampling_mode=mode, vllm_importance_sampling_correction=True)
    trainer.use_vllm, trainer._last_loaded_step = True, 0  # with a rollout_func, vLLM only gets the weights
    check(trainer)
    assert all("importance_sampling_ratio" in inputs for inputs in trainer.seen)


def test_autocast_in_bf16_is_as_near_as_bf16_is(trainer_of: Callable[..., Any]):
    trainer = trainer_of(bf16=True)
    trainer.train()
    for inputs in list(trainer.seen):
        ours, gradient = loss_and_gradient(trainer, inputs, separate=False)
        theirs, expected = loss_and_gradient(trainer, inputs, separate=True)
        assert ours == pytest.approx(theirs, abs=0.02)
        assert (gradient - expected).norm() <= 0.05 * expected.norm()


def test_a_mixture_of_experts_is_exact_without_its_auxiliary_loss(trainer_of: Callable[..., Any], renderer: Renderer):
    experts = tiny_qwen3_moe(renderer.tokenizer.vocab_size, layers=2)
    with pytest.raises(TreeUnsupported, match=r"auxiliary loss of a mixture of experts .* router_aux_loss_coef=0\.0"):
        trainer_of(model=experts).train()
    check(trainer_of(model=experts, router_aux_loss_coef=0.0))


class Largest(TorchDispatchMode):
    """The number of values of the largest tensor that is made."""

    values = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        self.values = max(self.values, output.numel() if isinstance(output, torch.Tensor) else 0)
        return output


def test_the_logits_of_a_tree_never_exist_at_once(trainer_of: Callable[..., Any]):
    trainer = trainer_of(lambda **options: Doubts(turns=16, **options))
    trainer.train()
    (inputs,) = trainer.seen
    with Largest() as largest:
        loss_and_gradient(trainer, inputs, separate=False)
    logits = int(inputs["tool_mask"].sum()) * trainer.model.config.vocab_size
    assert trainer.model.get_input_embeddings().weight.numel() <= largest.values < logits / 4


def test_sub_agents_are_in_the_row_of_their_rollout(trainer_of: Callable[..., Any]):
    trainer = trainer_of(Lead)
    check(trainer)
    assert all(len(trajectory.samples()) > 2 for trajectory in trainer.rollout_func.trajectories)


def test_every_sampled_token_of_a_stripped_rollout_is_in_the_loss(trainer_of: Callable[..., Any]):
    trainer = trainer_of(partial(Ranked, order=itertools.count(), turns=16))
    trainer.train()
    trajectories = trainer.rollout_func.trajectories
    assert all(len(trajectory.samples()) == 16 for trajectory in trajectories)
    in_loss = sum(trainer.tokens_with_gradient)
    assert in_loss == sum(trajectory.sampled_tokens for trajectory in trajectories)
    logged = trainer.state.log_history[0]
    assert logged["envsdk/dropped_share"] == 0.0
    assert logged["envsdk/tree_ratio"] > 2
    assert logged["completions/mean_length"] == in_loss / len(trajectories)
    assert any(entry.get("grad_norm", 0) > 0 for entry in trainer.state.log_history)


def test_credit_gives_each_role_its_own_advantages(trainer_of: Callable[..., Any]):
    trainer = trainer_of(Lead, rollout=partial(RolloutFunc, credit=group_advantages))
    check(trainer)
    inputs, rows = trainer.seen[0], trainer.rollout_func.tree_rows["train"].rows
    tokens = [row.tree.tokens.tolist() for row in rows]
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    kept = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1).bool()
    width = inputs["completion_ids"].shape[1]
    for number in range(len(ids)):
        row = rows[tokens.index(ids[number][kept[number]].tolist())]
        own = row.tree.advantage[row.prompt_length :]
        np.testing.assert_array_equal(inputs["advantages"][number][: len(own)].numpy(), own)
        assert not inputs["advantages"][number][len(own) : width].any()
        assert len({sample.role for sample in row.samples}) == 2


def test_a_rollout_that_failed_trains_nothing(trainer_of: Callable[..., Any]):
    class Breaks(Doubts):
        played = 0

        def respond(self, reply: Message) -> Turn:
            Breaks.played += 1
            if Breaks.played % 5 == 0:
                raise OSError("the disk is full")
            self.asked += 1
            reward = Random(Breaks.played).random()  # no two rollouts that survive score alike
            return Turn("Sure?", reward=reward, terminated=self.asked == self.turns)

    trainer = trainer_of(Breaks)
    check(trainer)
    assert None in trainer.rollout_func.tree_rows["train"].rows
    assert 0 < trainer.state.log_history[0]["envsdk/failed"] < 1


def test_evaluation_between_two_updates_of_one_batch_leaves_its_rows(trainer_of: Callable[..., Any]):
    trainer = trainer_of(
        num_iterations=3, max_steps=3, eval_strategy="steps", eval_steps=1, eval_dataset=dataset("any", [2, 3, 4, 5])
    )
    trainer.train()
    assert len(trainer.state.log_history) > 3
    assert trainer.rollout_func.tree_rows["eval"] is not None


def test_a_shuffled_batch_gives_the_same_loss_and_a_changed_one_is_refused(trainer_of: Callable[..., Any]):
    trainer = trainer_of()
    trainer.train()
    inputs = trainer.seen[0]
    loss, gradient = loss_and_gradient(trainer, inputs, separate=False)
    order = torch.tensor([2, 0, 3, 1])
    rows = {name: value[order] for name, value in inputs.items() if getattr(value, "dim", lambda: 0)()}
    again, same = loss_and_gradient(trainer, {**inputs, **rows}, separate=False)
    assert again == pytest.approx(loss, abs=1e-6)
    assert (same - gradient).norm() <= 1e-5 * gradient.norm()
    changed = inputs["completion_ids"].clone()
    changed[2, 5] += 1
    moved = {
        f"{part}_{name}": torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], 1)[:, where]
        for part, where in (("prompt", slice(None, -40)), ("completion", slice(-40, None)))
        for name in ("ids", "mask")
    }
    for other in ({"completion_ids": changed}, {**moved, "tool_mask": inputs["tool_mask"][:, -40:]}):
        with pytest.raises(InvalidSample, match=r"row \d of GRPOTrainer's batch \(\d+ tokens\) is not a rollout"):
            loss_and_gradient(trainer, {**inputs, **other}, separate=False)
    fewer, more = inputs["tool_mask"].clone(), torch.ones_like(inputs["tool_mask"])
    fewer[1, 20:] = 0
    loss_and_gradient(trainer, {**inputs, "tool_mask": fewer}, separate=False)
    with pytest.raises(InvalidSample, match=r"row 0 of GRPOTrainer's batch trains the token \d+ of its completion"):
        loss_and_gradient(trainer, {**inputs, "tool_mask": more}, separate=False)


def test_what_cannot_be_exact_is_refused(trainer_of: Callable[..., Any]):
    with pytest.raises(ConfigError, match="pass a RolloutFunc of envsdk"):
        trainer_of(rollout=lambda *own: lambda prompts, trainer: RolloutFunc(*own)(prompts, trainer)).train()
    with pytest.raises(ConfigError, match=r"needs a tree_trainer\(\)"):
        trainer_of(trainer=GRPOTrainer, rollout=partial(RolloutFunc, on_break="tree")).train()
    with pytest.raises(ConfigError, match="on_break is 'trees'; expected one of"):
        RolloutFunc(lambda env_id: None, on_break="trees")
    with pytest.raises(ConfigError, match="credit= needs rows of whole rollouts"):
        RolloutFunc(lambda env_id: None, on_break="drop", credit=group_advantages)
    with pytest.raises(SingleSampleOnly):
        trainer_of(trainer=GRPOTrainer).train()
    with pytest.raises(InvalidSample, match=r"row 0 of GRPOTrainer's batch has the token \d+, .* for 64 tokens"):
        trainer_of(model=tiny_qwen3(64)).train()
    other = transformers.AutoTokenizer.from_pretrained(real_models.qwen3_folder())
    with pytest.raises(ConfigError, match="tokenizer"):  # of another family, or with more ids than the model has
        trainer_of(processing_class=other, rollout=lambda make_env, policy: RolloutFunc(make_env)).train()
    trainer = trainer_of()
    trainer.model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(TreeUnsupported, match="linear_attention"):
        trainer.train()


def test_on_break_of_a_tree_trainer_may_choose_one_segment(trainer_of: Callable[..., Any]):
    trainer = trainer_of(rollout=partial(RolloutFunc, on_break="last_segment"))
    trainer.train()
    assert trainer.rollout_func.tree_rows == {"train": None, "eval": None}
    assert trainer.state.log_history[0]["envsdk/dropped_share"] > 0.5


def test_two_processes_train_the_rows_that_they_played(model_folder: Path, tmp_path: Path):
    """Each process has its own rows, and both have the weights that separate samples would give."""
    found: dict[tuple[str, int], Any] = {}
    for kind in ("tree", "separate"):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        script = Path(__file__).with_name("two_processes.py")
        modules = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # the modules of the tests
        subprocess.run([*command, script, model_folder, tmp_path, kind], check=True, timeout=600, env=modules)
        found |= {(kind, rank): torch.load(tmp_path / f"{kind}-{rank}.pt") for rank in range(2)}
    assert found["tree", 0]["played"] == found["separate", 0]["played"] != found["tree", 1]["played"]
    before = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype="float32").state_dict()
    for name, weights in found["tree", 0]["weights"].items():
        assert torch.equal(weights, found["tree", 1]["weights"][name])
        change, expected = weights - before[name], found["separate", 0]["weights"][name] - before[name]
        assert (change - expected).norm() <= 1e-4 * expected.norm() + 1e-9
    assert any((weights != before[name]).any() for name, weights in found["tree", 0]["weights"].items())
