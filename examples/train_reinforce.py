"""REINFORCE in plain torch: a small model learns to guess a number, from episodes whose history is rewritten.

A Qwen3 of two layers is warmed up on a few games of a policy that thinks of the remaining range, but often passes, and
guesses at random. From the reward alone it learns to guess each time, and what. Its thinking is dropped before each
question (`history="strip"`), so each reply is a separate sample; all games between two updates are one tree, which has
their shared prefixes once. Before each update, the trainer's log-probabilities are compared with those of the sampler.

Run it with `python examples/train_reinforce.py --plot rewards.png`; `pip install 'envsdk[torch,examples]'` has what it
needs. It takes two to three minutes of one core. For seeds 0, 1 and 2 the mean reward is 0.29, -0.01 and 0.04 before,
and 0.79, 0.60 and 0.57 after; |k1| is at most 2.0e-8. `--model FOLDER` trains your own language model.
"""
# pyright: basic, reportMissingImports=false

import argparse
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from envsdk_environments import GuessNumber

from envsdk import Env, Message, Renderer, Sample, Trajectory, get_renderer, rollouts, sft_samples, tree_batch
from envsdk.credit import add_kl_penalty, group_advantages
from envsdk.diagnostics import importance_weights, kl
from envsdk.policies import TransformersPolicy, load_model
from envsdk.tree import TreeBatch

HIGH, GUESSES = 7, 3  # bisection needs no more
WARM_UP_GAMES, WARM_UP_STEPS, WARM_UP_RATE = 32, 240, 5e-3
GROUP, UPDATES, LEARNING_RATE, BETAS = 12, 30, 3e-4, (0.9, 0.95)
MAX_REPLY_TOKENS, MAX_TREE_TOKENS, MAX_GRADIENT = 24, 1024, 1.0
REAL: dict[str, Any] = {
    "warm_up_games": 8,
    "warm_up_steps": 16,
    "warm_up_rate": 2e-5,
    "learning_rate": 1e-5,
    "group_size": 4,
}
MAX_K1 = 1e-3  # nats per token
MAX_LOG_RATIO = 2.0  # nats; the most that a token counts in the KL penalty


class GuessAloud(GuessNumber):
    """The same game, with a reference policy that thinks well, often passes, and guesses at random."""

    def reference_reply(self) -> Message:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Think of the remaining range; then pass, or guess a number in it."""
        guess = str(self.np_random.integers(self.low, self.high + 1))
        content = guess if self.np_random.random() < 0.5 else "Pass."
        return Message(role="assistant", reasoning=f"{self.low} to {self.high}", content=content)


def make_env(renderer: Renderer | None = None) -> GuessAloud:
    """Make a game. The seeds 0 to HIGH - 1 have each number once."""
    tasks = [{"secret": number} for number in range(1, HIGH + 1)]
    family: dict[str, Any] = {"renderer": renderer} if renderer else {"renderer": "qwen3", "tokenizer": "embedded"}
    return GuessAloud(**family, history="strip", limits={"max_steps": GUESSES}, tasks=tasks, high=HIGH)


def make_model(vocab_size: int) -> Any:
    """Make a small Qwen3 with random weights, without dropout, so that it can stay in evaluation mode."""
    size: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    options: dict[str, Any] = {"tie_word_embeddings": True, "initializer_range": 0.1}
    config = transformers.Qwen3Config(vocab_size=vocab_size, **size, **heads, **options)
    return transformers.Qwen3ForCausalLM(config).eval()


class Task(NamedTuple):
    """A training task."""

    make_env: Callable[[], Env] = make_env
    """Makes the environment; its reference policy plays the games of the warm-up."""
    seeds: Sequence[int] = range(HIGH)
    """The seeds that are played before each update, each by a group."""
    group_size: int = GROUP
    max_reply_tokens: int = MAX_REPLY_TOKENS
    warm_up_games: int = WARM_UP_GAMES
    warm_up_steps: int = WARM_UP_STEPS
    warm_up_rate: float = WARM_UP_RATE
    learning_rate: float = LEARNING_RATE
    make_model: Callable[[int], Any] = make_model
    """Makes the model, in evaluation mode and without dropout, from the size of the vocabulary."""


def task_of(folder: Path, template: Path | None, **options: Any) -> Task:
    """Return the same game for your own language model, which has less to learn before it can play.

    Args:
        folder: The model with its tokenizer, as `save_pretrained` writes them.
        template: The chat template; by default that of the folder. `strip` drops what the template drops.
        options: Fields of `Task`.
    """
    own: dict[str, Any] = {"name": "fixed_base", "template": template.read_text()} if template else {"name": "auto"}
    renderer = get_renderer(tokenizer=folder, **own)
    return Task(partial(make_env, renderer), make_model=lambda _: load_model(folder), **{**REAL, **options})


def play(policy: Any, seeds: Sequence[int], task: Task | None = None) -> list[Trajectory]:
    """Play a game for each seed; those of the same seed are a group."""
    trajectories = rollouts.rollout_many((task or Task()).make_env, policy, seeds=seeds)
    for trajectory in trajectories:
        if trajectory.error is not None:
            raise RuntimeError(f"{trajectory.id}: {trajectory.error}")
    return trajectories


def logprobs(model: Any, tree: TreeBatch) -> torch.Tensor:
    """Return the log-probability of each trained token, from one forward pass: shape (M,), in the tree's order."""
    index, before = tree.trained, torch.as_tensor(tree.predecessors).long()
    logits = model(**tree.model_inputs(model), logits_to_keep=before).logits[0]
    logits = logits / torch.as_tensor(tree.temperature[index, None])
    return logits.log_softmax(-1).gather(1, torch.as_tensor(tree.tokens[index, None]).long())[:, 0]


def follow_gradient(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Update the weights, and reset the gradient."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT)
    optimizer.step()
    optimizer.zero_grad()


def warm_up(model: Any, seed: int, task: Task) -> float:
    """Fit the model to a few games with the prompts of training; return the last loss, in nats per token."""
    renderer = task.make_env().renderer
    games = play("reference", range(seed * task.warm_up_games, (seed + 1) * task.warm_up_games), task)
    logs = [game.contexts["main"] for game in games]
    made = [sft_samples(renderer, log.messages, tools=log.tools, history="strip") for log in logs]
    samples = [sample for each in made for sample in each]
    trees = tree_batch(samples).split(MAX_TREE_TOKENS)
    optimizer = torch.optim.Adam(model.parameters(), lr=task.warm_up_rate)
    loss = torch.zeros(())
    for step in range(task.warm_up_steps):
        loss = -logprobs(model, trees[step % len(trees)]).mean()
        loss.backward()
        follow_gradient(model, optimizer)
    return loss.item()


def read(model: Any, samples: Sequence[Sample]) -> list[np.ndarray]:
    """Return the log-probability of each sampled token, from forward passes over trees; for each sample: shape (L,)."""
    values = [np.zeros(len(sample)) for sample in samples]
    for tree in tree_batch(samples).split(MAX_TREE_TOKENS):
        with torch.no_grad():
            found = logprobs(model, tree).tolist()
        places = tree.sample_ids[tree.trained], tree.position_ids[tree.trained]
        for sample, position, value in zip(*places, found, strict=True):
            values[sample][position] = value
    return values


class Update(NamedTuple):
    """The measurements at the start and the end of an update."""

    k1: float
    """k1 between sampler and trainer before the first step, in nats per token."""
    clipped: float
    """The share of tokens whose log-ratio was clipped before the last step."""


def update(
    model: Any,
    optimizer: torch.optim.Optimizer,
    trajectories: Sequence[Trajectory],
    correct: Any = None,
    *,
    epochs: int = 1,
    kl_coef: float = 0.0,
) -> Update:
    """REINFORCE with the rest of a group as the baseline, in two passes: log-probabilities, then the gradient.

    With `correct`, a level of `importance_weights`, the loss of each token has its truncated importance weight.
    """
    samples = group_advantages([s for t in trajectories for s in t.samples()], "leave_one_out")
    k1 = clipped = 0.0
    for epoch in range(epochs):
        values = read(model, samples)
        if epoch == 0:
            k1 = kl(samples, values).all.k1
            if not abs(k1) < MAX_K1:
                raise RuntimeError(f"the trained tokens are not the sampled ones: k1 is {k1} nats per token")
        clipped = kl(samples, values, clip=MAX_LOG_RATIO).clipped_token_ratio
        penalized = add_kl_penalty(samples, values, kl_coef, near="sampler", clip=MAX_LOG_RATIO)
        if correct is not None:
            weights = importance_weights(samples, values, correct).weights
            penalized = [
                replace(s, advantage=np.asarray(s.advantage) * weight)
                for s, weight in zip(penalized, weights, strict=True)
            ]
        for tree in tree_batch(penalized).split(MAX_TREE_TOKENS):
            assert tree.advantage is not None
            advantage = torch.as_tensor(tree.advantage[tree.trained])
            loss = -(advantage * logprobs(model, tree)).sum() / len(trajectories)
            loss.backward()
        follow_gradient(model, optimizer)
    return Update(k1, clipped)


class Progress(NamedTuple):
    """The results of training."""

    rewards: list[float]
    """The mean reward of the games before each update, and after the last: shape (updates + 1,)."""
    k1: list[float]
    """k1 before each update: shape (updates,)."""
    clipped: list[float]
    """The clipped share in each update: shape (updates,)."""

    def __str__(self) -> str:
        worst = max(map(abs, self.k1), default=0.0)
        return f"mean reward {self.rewards[0]:.2f} before and {self.rewards[-1]:.2f} after; |k1| is at most {worst:.1e}"


def train(
    seed: int = 0,
    updates: int = UPDATES,
    task: Task | None = None,
    correct: Any = None,
    *,
    epochs: int = 1,
    kl_coef: float = 0.0,
) -> Progress:
    """Warm a model up, and let it play and train alternately."""
    task = task or Task()
    torch.manual_seed(seed)
    tokenizer = task.make_env().renderer.tokenizer
    model = task.make_model(tokenizer.vocab_size)
    print(f"warmed up to {warm_up(model, seed, task):.3f} nats per token", flush=True)
    options: dict[str, Any] = {"max_tokens": task.max_reply_tokens, "policy_version": 0}
    policy = TransformersPolicy(model, tokenizer, seed=seed, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=task.learning_rate, betas=BETAS)
    progress = Progress([], [], [])
    seeds = [seed for seed in task.seeds for _ in range(task.group_size)]
    for number in range(updates + 1):
        trajectories = play(policy, seeds, task)
        rewards = [one.scored_reward for one in trajectories if one.scored_reward is not None]
        progress.rewards.append(float(np.mean(rewards)))
        print(f"{number} updates: mean reward {progress.rewards[-1]:.2f}", flush=True)
        if number < updates:
            done = update(model, optimizer, trajectories, correct, epochs=epochs, kl_coef=kl_coef)
            progress.k1.append(done.k1)
            progress.clipped.append(done.clipped)
            policy.refresh()  # the weights are new, and so is the policy's version
    return progress


def find_figure() -> Any:
    """Import matplotlib, and return its class of figures."""
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise SystemExit(
            f"--plot needs {error.name}, which is not installed: pip install 'envsdk[examples]'"
        ) from error


def plot(progress: Progress, figure: Any, path: Path) -> None:
    """Save the rewards and k1 as a PNG."""
    above, below = figure.subplots(2, sharex=True, height_ratios=[3, 1])
    above.plot(progress.rewards)
    above.set(ylabel="mean reward", ylim=(min(0.0, *progress.rewards), 1.0), title=str(progress))
    below.semilogy(np.abs(progress.k1), "o", markersize=3)
    below.axhline(MAX_K1, linestyle="--", color="grey")
    below.set(xlabel="updates", ylabel="|k1|, nats")
    figure.savefig(path, format="png")


def main() -> None:
    """Train, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--correct", choices=["token", "step", "sequence"], help="weigh the loss by importance weights")
    parser.add_argument("--epochs", type=int, default=1, help="how often each batch of games is trained on")
    parser.add_argument("--kl-coef", type=float, default=0.0, help="of the KL penalty, in units of advantage per nat")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="train this model instead of a small one")
    parser.add_argument("--template", type=Path, metavar="FILE", help="the model's chat template, if not its own")
    parser.add_argument("--group-size", type=int, help="how often each number is played before an update")
    parser.add_argument("--warm-up-steps", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="where to save a plot, a PNG")
    options = parser.parse_args()
    names = ("group_size", "warm_up_steps", "learning_rate")
    chosen = {name: value for name in names if (value := getattr(options, name)) is not None}
    task = task_of(options.model, options.template, **chosen) if options.model else Task(**chosen)
    figure = find_figure()(figsize=(8, 6), layout="constrained") if options.plot else None  # fails before the work
    torch.set_num_threads(1)  # the computations are too small for several threads
    start, cpu = time.perf_counter(), time.process_time()
    progress = train(
        options.seed, options.updates, task, options.correct, epochs=options.epochs, kl_coef=options.kl_coef
    )
    seconds = f"{time.perf_counter() - start:.0f} s, {time.process_time() - cpu:.0f} s of a CPU"
    print(f"seed {options.seed}: {progress}; {seconds}")
    if options.kl_coef:
        print(f"at most {max(progress.clipped, default=0.0):.1%} of the log-ratios of an update are clipped")
    if figure is not None:
        plot(progress, figure, options.plot)


if __name__ == "__main__":
    main()
