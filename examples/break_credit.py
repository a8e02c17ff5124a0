"""Credit for forgetting: a small model learns what to write into its summaries, with and without the value of breaks.

In each game, a code is told between guesses that are pure luck. A summary then takes the place of the conversation, and
the code is asked for. The model is warmed up on games of a policy that seldom writes the code down. Its credit for a
summary is the reward of the game, with the luck of all guesses; or the value of the break (`break_values`), which is the
same with the same luck. Both kinds of training sample the same number of tokens, plays from breaks included.

Run it with `python examples/break_credit.py`; `pip install 'envsdk[torch,examples]'` has what it needs.
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

GUESSES, CODES, WRITTEN = 4, 6, 0.3
WARM_UP_GAMES, WARM_UP_STEPS, WARM_UP_RATE = 1000, 250, 3e-3
TOKENS, LEARNING_RATE, GROUP = 12_000, 3e-4, 6
HISTORY = {"name": "summarize", "threshold": 60, "instruction": "Note?", "heading": "Note: ", "max_tokens": 6}


class Codes(Env):
    """Tells a code between guesses, and asks for it at the end."""

    def start(self) -> Turn:
        """Ask for the first guess."""
        self.code, self.count = int(self.np_random.integers(CODES)), 0
        return Turn("Guess 0 or 1.")

    def respond(self, reply: Message) -> Turn:
        """Reward a guess by luck, and the code if it is right."""
        self.count += 1
        if self.count > GUESSES:
            return Turn(terminated=True, reward={"code": float(reply.content == str(self.code))})
        told = f"Code {self.code}. " if self.count == 1 else ""
        luck = float(self.np_random.random() < 0.5)
        return Turn(f"{told}Guess 0 or 1." if self.count < GUESSES else "Code?", reward={"luck": luck})


class WarmUp:
    """The policy whose games the model is fitted to: it guesses, and seldom writes the code down."""

    def for_episode(self, env: Codes, seed: int) -> Any:
        """Return the policy of one game."""
        rng = np.random.default_rng(seed)

        def policy(prompt: Any, *, context: str, **_: Any) -> Action:
            pending = env.episode.pending_reply(context).context
            shown = [message.content for message in pending.view]
            text = str(rng.integers(2))
            if shown[-1] == "Note?":
                text = f"Code {env.code}" if rng.random() < WRITTEN else "Guess 0"
            elif shown[-1] == "Code?":
                text = str(env.code if any("Code " in one for one in shown[:-1]) else rng.integers(CODES))
            return Action(pending.renderer.reply(Message(role="assistant", content=text)))

        return policy


def update(model: Any, optimizer: Any, samples: list[Sample]) -> None:
    """Follow the policy gradient of samples; without advantages, the gradient of their log-likelihood."""
    for tree in tree_batch(samples).split(MAX_TREE_TOKENS):
        weights = 1.0 if tree.advantage is None else torch.as_tensor(tree.advantage[tree.trained])
        (-(weights * logprobs(model, tree)).sum() / len(samples)).backward()
    follow_gradient(model, optimizer)


def warm_up(make_env: Any, seed: int) -> Any:
    """Return a model that plays like `WarmUp`."""
    torch.manual_seed(seed)
    model = make_model(make_env().renderer.tokenizer.vocab_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=WARM_UP_RATE)
    games = Rollouts(make_env, WarmUp(), seeds=range(WARM_UP_GAMES)).run()
    for number in range(WARM_UP_STEPS):
        batch = games[number * 16 % WARM_UP_GAMES :][:16]
        update(model, optimizer, [sample for game in batch for sample in game.samples()])
    return model


def train(make_env: Any, model: Any, seed: int, plays: int, groups: int) -> list[tuple[int, float]]:
    """Train a model with `plays` pairs of plays for each break, and `groups` groups of games before each update.

    Returns:
        Before each update, the number of tokens sampled so far, and the share of games in which the code was found.
    """
    policy = TransformersPolicy(model, make_env().renderer.tokenizer, seed=seed, max_tokens=6)
    optimizer, sampled, progress = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE), 0, []
    while sampled < TOKENS:
        seeds = [seed * 10**6 + len(progress) * groups + group for group in range(groups)]
        games = Rollouts(make_env, policy, seeds=seeds, group_size=GROUP).run()
        progress.append((sampled, float(np.mean([game.steps[-1].rewards.get("code", 0.0) for game in games]))))
        samples = group_advantages([one for game in games for one in game.samples()], "leave_one_out")
        values = break_values(make_env, policy, games, k=plays, seed=seed)
        update(model, optimizer, add_break_advantages(samples, values))
        sampled += sum(game.sampled_tokens for game in games) + sum(value.sampled_tokens for value in values)
        policy.refresh()
    return progress


def main() -> None:
    """Print the share of found codes by the tokens sampled so far, for both kinds of credit and three seeds."""
    torch.set_num_threads(1)  # the computations are too small for several threads
    make_env = partial(Codes, tokenizer="embedded", history=HISTORY)
    for seed in range(3):
        warm = warm_up(make_env, seed)
        for name, plays, groups in (("outcome", 0, 4), ("breaks", 1, 3)):
            progress = train(make_env, copy.deepcopy(warm), seed, plays, groups)
            means = [np.mean([found for at, found in progress if at * 6 // TOKENS == part]) for part in range(6)]
            print(f"seed {seed}, {name:<8}", *(f"{mean:.2f}" for mean in means), f"({len(progress)} updates)", flush=True)


if __name__ == "__main__":
    main()
