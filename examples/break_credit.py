"""Credit for forgetting: a small model learns what to write into its summaries, with and without the value of breaks.

In each game, a code is told between guesses of pure luck. A summary takes the place of the conversation, then the code
is asked for. After a warm-up on games in which it is seldom written down, the summaries are trained: with the credit of
the outcome, which has the luck, or with the value of the break, which has not. It needs `pip install 'envsdk[torch]'`.
"""
# pyright: basic, reportMissingImports=false

import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from train_reinforce import MAX_TREE_TOKENS, follow_gradient, logprobs, make_model

from envsdk import Action, Env, Message, Sample, Turn, tree_batch
from envsdk.credit import add_break_advantages, group_advantages
from envsdk.policies import TransformersPolicy
from envsdk.rollouts import Rollouts, break_values

GUESSES, CODES, LUCK, WRITTEN, GROUP, TOKENS = 4, 6, 3.0, 0.3, 6, 6_000
WARM_UP_GAMES, WARM_UP_STEPS, WARM_UP_RATE, LEARNING_RATE = 1000, 250, 3e-3, 1e-3
HISTORY = {"name": "summarize", "threshold": 60, "instruction": "Note?", "heading": "Note: ", "max_tokens": 6}


class Codes(Env):
    """Tells a code between guesses, rewards right ones, and asks for the code at the end."""

    def start(self) -> Turn:  # noqa: D102
        self.code, self.count = int(self.np_random.integers(CODES)), 0
        return Turn("Guess 0 or 1.")

    def respond(self, reply: Message) -> Turn:  # noqa: D102
        self.count += 1
        if self.count > GUESSES:
            return Turn(terminated=True, reward={"code": float(reply.content == str(self.code))})
        reward = {"luck": LUCK * (reply.content == str(self.np_random.integers(2)))}
        text = "Code?" if self.count == GUESSES else "Guess 0 or 1."
        return Turn(f"Code {self.code}. {text}" if self.count == 1 else text, reward=reward)


make_env = partial(Codes, tokenizer="embedded", history=HISTORY)
RENDERER = make_env().renderer


def forgetful(prompt: Any, *, rng: np.random.Generator, **_: Any) -> Action:
    """Guess, and seldom write the code down: the policy of the warm-up."""
    shown = RENDERER.tokenizer.decode(prompt)
    told, question, text = shown.partition("Code ")[2][:1], shown.rpartition("user\n")[2], str(rng.integers(2))
    if question.startswith("Note?"):
        text = f"Code {told}" if rng.random() < WRITTEN else "Guess 0"
    elif question.startswith("Code?"):
        text = told or str(rng.integers(CODES))
    return Action(RENDERER.reply(Message(role="assistant", content=text)))


def update(model: Any, optimizer: Any, samples: list[Sample]) -> None:
    """Follow the policy gradient of samples; without advantages, the gradient of their log-likelihood."""
    for tree in tree_batch(samples).split(MAX_TREE_TOKENS):
        weights = 1.0 if tree.advantage is None else torch.as_tensor(tree.advantage[tree.trained])
        (-(weights * logprobs(model, tree)).sum() / len(samples)).backward()
    follow_gradient(model, optimizer)


def warm_up(seed: int) -> Any:
    """Return a model that plays like `forgetful`."""
    torch.manual_seed(seed)
    model, policy = make_model(RENDERER.tokenizer.vocab_size), partial(forgetful, rng=np.random.default_rng(seed))
    optimizer = torch.optim.Adam(model.parameters(), lr=WARM_UP_RATE)
    samples = [one for game in Rollouts(make_env, policy, seeds=range(WARM_UP_GAMES)).run() for one in game.samples()]
    for number in range(WARM_UP_STEPS):
        update(model, optimizer, [samples[number * 48 % len(samples) - i] for i in range(48)])
    return model


def train(model: Any, seed: int, k: int, groups: int) -> list[tuple[int, float]]:
    """Train the summaries; return the tokens sampled and the share of found codes, by update."""
    policy, sampled, progress = TransformersPolicy(model, RENDERER.tokenizer, seed=seed, max_tokens=6), 0, []
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    while sampled < TOKENS:
        seeds = (10**6 * seed + len(progress) * groups + np.arange(groups)).tolist()
        games = Rollouts(make_env, policy, seeds=seeds, group_size=GROUP).run()
        progress.append((sampled, float(np.mean([game.steps[-1].rewards.get("code", 0.0) for game in games]))))
        values = break_values(make_env, policy, games, k=k, seed=seed)
        samples = [one for game in games for one in game.samples(lambda step: "/summary-" in step.context)]
        samples = group_advantages(samples, "leave_one_out")
        update(model, optimizer, add_break_advantages(samples, values, "leave_one_out"))
        sampled += sum(one.sampled_tokens for one in [*games, *values])
    return progress


if __name__ == "__main__":
    torch.set_num_threads(1)  # the computations are too small for several threads
    for seed, warm in enumerate(map(warm_up, range(3))):
        for name, k, groups in (("outcome", 0, 4), ("breaks", 1, 3)):
            progress = train(copy.deepcopy(warm), seed, k, groups)
            shares = [np.mean([share for at, share in progress if at * 6 // TOKENS == part]) for part in range(6)]
            print(f"seed {seed}, {name:<8}", *(f"{share:.2f}" for share in shares), flush=True)
