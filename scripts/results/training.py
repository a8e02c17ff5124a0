"""Trains SmolLM2-135M-Instruct on the games with TRL's GRPOTrainer: `python -m results.training [GAME ...]`.

Each run has a log: a line with its settings, and one for each update.
"""
# pyright: basic, reportMissingImports=false

import gc
import json
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import peft
import smollm2
import torch
import transformers
from trl.trainer.grpo_config import GRPOConfig

from envsdk import Renderer, Trajectory, rollouts, sft_samples, tree_batch
from envsdk.policies import load_model
from envsdk.trainers.trl import RolloutFunc, dataset, reward_func, tree_trainer

from .games import GAMES, Game, make_env, renderer_of
from .sampling import BatchedPolicy

HERE = Path(__file__).resolve().parent
LOGS, CACHE = HERE / "logs", HERE.parent.parent / ".cache" / "results"
SEEDS = range(3)
ARMS = ("tree", "last_segment", "naive", "keep")
UPDATES, GROUPS, GENERATIONS = 6, 4, 4
MAX_REPLY_TOKENS = 20
LORA: dict[str, Any] = {"r": 16, "lora_alpha": 32, "layers_to_transform": list(range(20, 30))}
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LEARNING_RATE = 1e-3
WARM_UP_GAMES, WARM_UP_STEPS, WARM_UP_RATE, WARM_UP_TOKENS = 16, 20, 3e-5, 512
BASE = "none"
"""The reason of tokens before the first break."""


def warm_up(game: Game, source: Path, folder: Path, renderer: Renderer) -> dict[str, Any]:
    """Fit all weights to games of the reference policy, half of them with all thinking kept, and save the model."""
    torch.manual_seed(0)
    model, trees = load_model(source), []
    for history in (game.history, "keep"):
        play = partial(make_env, game, renderer, history)
        logs = [one.contexts["main"] for one in rollouts.rollout_many(play, "reference", seeds=range(WARM_UP_GAMES))]
        made = [sft_samples(renderer, log.messages, tools=log.tools, history=history) for log in logs]
        trees += tree_batch([sample for samples in made for sample in samples]).split(WARM_UP_TOKENS)
    optimizer = torch.optim.Adam(model.parameters(), lr=WARM_UP_RATE)
    losses: list[float] = []
    for step in range(WARM_UP_STEPS):
        tree = trees[step % len(trees)]
        before = torch.as_tensor(tree.predecessors).long()
        logits = model(**tree.model_inputs(model), logits_to_keep=before).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, torch.as_tensor(tree.tokens[tree.trained]).long())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(round(loss.item(), 3))
        print(f"warm-up {step}: {losses[-1]} nats per token", flush=True)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    model.save_pretrained(folder)
    return {"games": WARM_UP_GAMES, "rate": WARM_UP_RATE, "losses": losses, "cpu_s": round(time.process_time())}


class LoggedRollouts(RolloutFunc):
    """Plays the games of a run, and makes the rows of its arm."""

    def __init__(self, renderer: Renderer, arm: str, policy: BatchedPolicy, **options: Any) -> None:
        on_break = "tree" if arm in ("tree", "keep") else "last_segment"
        super().__init__(on_break=on_break, policy=policy, policy_timeout_s=None, **options)
        self.renderer, self.arm, self.sampler = renderer, arm, policy
        self.reasons: dict[bytes, np.ndarray] = {}
        self.log: dict[str, Any] = {}

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Play a batch, and note what its rows train."""
        self.sampler.refresh(trainer.state.global_step)
        start = time.process_time()
        batch = super().__call__(prompts, trainer)
        for one in self.trajectories:
            if one.error is not None:
                raise RuntimeError(f"{one.id}: {one.error}")
        reasons = [self._reasons(number, batch) for number in range(len(self.trajectories))]
        rows = [a + b for a, b in zip(batch["prompt_ids"], batch["completion_ids"], strict=True)]
        self.reasons = {np.array(row).tobytes(): own for row, own in zip(rows, reasons, strict=True)}
        steps = [(one.contexts["main"], step) for one in self.trajectories for step in one.steps]
        replies = [log.tokens[step.action_start : step.stop] for log, step in steps]
        self.log = {
            "rewards": batch["reward"],
            "longest": self.renderer.tokenizer.decode(max(replies, key=len)),
            "steps": len(replies),
            "sampled": sum(map(len, replies)),
            "trained": int(sum(map(sum, batch["env_mask"]))),
            "rows": sum(map(len, rows)),
            "breaks": sum(len(one.breaks) for one in self.trajectories),
            "sampling_s": round(time.process_time() - start, 2),
        }
        return batch

    def _reasons(self, number: int, batch: dict[str, list[Any]]) -> np.ndarray:
        """Return the reason of each token of a row; write the row first if the arm is naive."""
        one = self.trajectories[number]
        if self.arm == "naive":
            row, reasons = naive_row(one, self.renderer)
            for name, value in row.items():
                batch[name][number] = value
            return reasons
        samples = one.samples()
        names = [sample.breaks[-1].reason if sample.breaks else BASE for sample in samples]
        if self.arm == "last_segment":
            return np.array([names[-1]] * len(samples[-1]))
        return np.array(names)[tree_batch(samples).sample_ids]


def naive_row(one: Trajectory, renderer: Renderer) -> tuple[dict[str, list[Any]], np.ndarray]:
    """Render the conversation that is left at the end, and train all replies in it, as a loop without tokens does.

    Returns:
        The row, in which a token has the sampler's log-probability if it is among the last tokens that were sampled for
        its reply, else NaN; and the reasons: those of replies whose thinking is gone have that of the last break.
    """
    log, samples, last = one.contexts["main"], one.samples(), one.samples()[-1]
    replies = [i for i, message in enumerate(log.messages) if message.role == "assistant"]
    shown = replies[-len(last.step_rewards) :]
    messages = [m if i in shown else m.with_reasoning(None) for i, m in enumerate(log.messages[: replies[-1] + 1])]
    rendered = renderer.render(messages, tools=log.tools)
    sampled = [
        (own.tokens[own.step_ids == step], own.logprobs[own.step_ids == step])  # pyright: ignore
        for own in samples
        for step in range(len(own.step_rewards))
    ]
    header, think = (len(renderer.tokenizer.encode(text)) for text in ("assistant\n", "<think>"))
    tokens = rendered.tokens[:-1]  # without the newline after the last reply
    mask, logprobs = np.zeros(len(tokens), bool), np.full(len(tokens), np.nan, np.float32)
    reasons = np.full(len(tokens), BASE, dtype="<U32")
    for reply, (own, values) in zip(replies, sampled, strict=True):
        begin = rendered.starts[reply] + 1 + header + (think if reply == replies[-1] else 0)
        end = len(tokens) if reply == replies[-1] else rendered.starts[reply + 1] - 1
        mask[begin:end] = True
        reasons[begin:end] = BASE if reply in shown else last.breaks[-1].reason
        least = min(end - begin, len(own))
        differ = np.flatnonzero(tokens[end - least : end][::-1] != own[len(own) - least :][::-1])
        same = int(differ[0]) if len(differ) else least
        logprobs[end - same : end] = values[len(own) - same :]
    first = int(mask.argmax())
    columns = {"completion_ids": tokens, "env_mask": mask.astype(int), "logprobs": logprobs}
    return {"prompt_ids": tokens[:first].tolist(), **{name: c[first:].tolist() for name, c in columns.items()}}, reasons


def trainer_class() -> type[Any]:
    """Return a `tree_trainer` that compares its log-probabilities with those of the sampler, and logs updates."""

    class LoggingTrainer(tree_trainer()):
        def _get_per_token_logps_and_entropies(self, *args: Any, **options: Any) -> Any:
            output = super()._get_per_token_logps_and_entropies(*args, **options)
            self.computed = output[0].detach().numpy()
            return output

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
            loss = super()._compute_loss(model, inputs)
            tokens = np.concatenate([inputs["prompt_ids"].numpy(), inputs["completion_ids"].numpy()], 1)
            seen = np.concatenate([inputs["prompt_mask"].numpy(), inputs["completion_mask"].numpy()], 1).astype(bool)
            mask = (inputs["completion_mask"] * inputs["tool_mask"]).numpy().astype(bool)
            difference = self.computed - inputs["sampling_per_token_logps"].numpy()
            found: dict[str, list[np.ndarray]] = {}
            for number, width in enumerate(inputs["completion_mask"].sum(1).tolist()):
                reasons = self.rollout_func.reasons[tokens[number][seen[number]].tobytes()][-width:]
                for reason in set(reasons):
                    part = difference[number, :width][mask[number, :width] & (reasons == reason)]
                    found.setdefault(str(reason), []).append(part[~np.isnan(part)])
            self.rollout_func.log["k"] = {
                reason: [len(d), float(-d.mean()) if len(d) else 0.0, float((d**2).mean() / 2) if len(d) else 0.0]
                for reason, parts in sorted(found.items())
                for d in [np.concatenate(parts)]
            }
            return loss

    return LoggingTrainer


def run(name: str, arm: str, seed: int, folder: Path, log: Path, updates: int = UPDATES) -> None:
    """Train one arm on a game, and write its log."""
    transformers.set_seed(seed)
    game, renderer = GAMES[name], renderer_of(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    lora = peft.LoraConfig(target_modules=MODULES, task_type="CAUSAL_LM", **LORA)
    model = peft.get_peft_model(load_model(folder), lora)
    policy = BatchedPolicy(model, renderer.tokenizer, seed, MAX_REPLY_TOKENS)
    history = "keep" if arm == "keep" else game.history
    played = LoggedRollouts(renderer, arm, policy, make_env=lambda _: make_env(game, renderer, history))
    args = GRPOConfig(
        output_dir=str(folder / "trainer"),
        seed=seed,
        max_steps=updates,
        per_device_train_batch_size=GROUPS * GENERATIONS,
        num_generations=GENERATIONS,
        max_completion_length=MAX_REPLY_TOKENS,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    start = time.process_time()
    settings = {"updates": updates, "groups": GROUPS, "generations": GENERATIONS, "rate": LEARNING_RATE, "lora": LORA}
    lines: list[dict[str, Any]] = [{"game": name, "arm": arm, "seed": seed, "history": history, **settings}]

    class Log(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            lines.append({"update": len(lines) - 1, "cpu_s": round(time.process_time() - start, 2), **played.log})
            log.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            print(name, arm, seed, json.dumps(lines[-1]), flush=True)

    trainer = trainer_class()(
        model=model,
        processing_class=tokenizer,
        args=args,
        train_dataset=dataset(name, range(len(game.tasks))),
        rollout_func=played,
        reward_funcs=reward_func,
        callbacks=[Log()],
    )
    trainer.train()


def main() -> None:
    """Warm the model up for each game, unless that was done, and train each arm with each seed."""
    torch.set_num_threads(1)
    for game in sys.argv[1:] or GAMES:
        if not (CACHE / game).exists():
            source = smollm2.model_folder()
            record = warm_up(GAMES[game], source, CACHE / game, renderer_of(source))
            (LOGS / f"{game}.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
        for seed in SEEDS:
            for arm in ARMS:
                log = LOGS / f"{game}-{arm}-{seed}.jsonl"
                if not log.exists() or len(log.read_text(encoding="utf-8").splitlines()) <= UPDATES:
                    run(game, arm, seed, CACHE / game, log)
                    gc.collect()  # a trainer holds its model in circles


if __name__ == "__main__":
    main()
