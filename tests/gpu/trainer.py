"""Three steps of TRL's GRPOTrainer whose rows are whole rollouts, as trees."""

import tempfile
import time
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig

from benchmarks.contenders.trl.training import ANSWER, THINKING, Questions, prose
from envsdk import Action, Env, Limits, Message, Turn, get_renderer
from envsdk.rendering.tokenizers._files import DATA
from envsdk.trainers.trl import RolloutFunc, dataset, reward_func, tree_trainer

from .attention import model_of

UPDATES, GENERATIONS = 3, 4


class Lengths(Questions):
    """Rewards short replies."""

    def respond(self, reply: Message) -> Turn:
        turn = super().respond(reply)
        turn.reward = -len(reply.content) / 1000
        return turn


class Clock(TrainerCallback):
    """Keeps the seconds of each update."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.start = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.times.append(time.perf_counter() - self.start)


class Counting(tree_trainer()):
    """Counts the tokens in the loss."""

    trained = 0

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.trained += int((inputs["completion_mask"] * inputs["tool_mask"]).sum())
        return super()._compute_loss(model, inputs)


def updates(shape: str, device: str, steps: int) -> dict[str, Any]:
    """Return the seconds, losses and gradient norms of three updates, and how many sampled tokens were trained.

    An update plays its rollouts, which takes no model here.
    """
    renderer, calls, sampled = get_renderer("qwen3", "embedded"), 0, 0

    def make_env(env_id: str) -> Env:
        return Lengths(renderer=renderer, history="strip", limits=Limits(max_steps=steps))

    async def policy(prompt: Any, **_: Any) -> Action:
        nonlocal calls, sampled
        calls += 1
        thought = prose().words(THINKING, start=101 * calls)
        answer = prose().words(ANSWER + calls % 7, start=101 * calls + THINKING)
        tokens = renderer.reply(Message(role="assistant", reasoning=thought, content=answer))
        sampled += len(tokens)
        return Action(tokens, np.full(len(tokens), -0.5, dtype=np.float32))

    policy.tokenizer = "any"  # type: ignore[attr-defined]
    is_cpu, names = device == "cpu", {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    options: dict[str, Any] = {"use_cpu": is_cpu, "bf16": not is_cpu, "gradient_checkpointing": True}
    reports: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True}
    sizes: dict[str, Any] = {"per_device_train_batch_size": GENERATIONS, "num_generations": GENERATIONS}
    clock = Clock()
    if not is_cpu:
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Counting(
            model=model_of(shape, device),
            processing_class=PreTrainedTokenizerFast(tokenizer_file=str(DATA / "embedded.json"), **names),
            args=GRPOConfig(folder, max_steps=UPDATES, **options, **reports, **sizes),
            train_dataset=dataset("any", range(UPDATES)),
            rollout_func=RolloutFunc(make_env, policy, max_concurrency=1),
            reward_funcs=reward_func,
            callbacks=[clock],
        )
        trainer.train()
    logs = [each for each in trainer.state.log_history if "grad_norm" in each]
    found = {name: [each[name] for each in logs] for name in ("loss", "grad_norm", "envsdk/tree_ratio")}
    is_learning = len(logs) == UPDATES and all(np.isfinite(each) and each > 0 for each in found["grad_norm"])
    return {
        "steps": steps,
        "seconds": clock.times,
        **found,
        "sampled_tokens": sampled,
        "trained_tokens": trainer.trained,
        "peak_gib": None if is_cpu else torch.cuda.max_memory_allocated() / 2**30,
        "problem": None if is_learning and trainer.trained == sampled else "not all tokens were trained",
    }
