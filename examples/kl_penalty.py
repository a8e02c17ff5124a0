"""The effect of a KL penalty in each direction: weights are trained on the same games 12 times, with and without it.

The penalty should keep the weights near the sampler of the games. With `near="sampler"`, it does. The other direction,
in which it is usually written (`d = lp_sampler - lp_weights`), drives them apart.

Run it with `python examples/kl_penalty.py`; `pip install 'envsdk[torch,examples]'` has what it needs. It takes less
than a minute.
"""
# pyright: basic, reportMissingImports=false

import argparse
from dataclasses import replace
from typing import Any

import torch
from train_reinforce import MAX_TREE_TOKENS, logprobs, make_env, make_model, play, read

from envsdk import tree_batch
from envsdk.credit import add_kl_penalty
from envsdk.diagnostics import kl
from envsdk.policies import TransformersPolicy

PENALTIES: dict[str, Any] = {"no penalty": None, 'near="reference"': "reference", 'near="sampler"': "sampler"}
EPOCHS, COEF, LEARNING_RATE = 12, 2.0, 0.001


def divergences(seed: int = 0) -> dict[str, float]:
    """Train a small model on its own games with each penalty; return k1 to the sampler, in nats per token."""
    torch.manual_seed(seed)
    tokenizer = make_env().renderer.tokenizer
    model = make_model(tokenizer.vocab_size)
    sampled = {name: value.clone() for name, value in model.state_dict().items()}
    games = play(TransformersPolicy(model, tokenizer, seed=seed, max_tokens=8), [0, 0, 1, 1])
    samples = [sample for game in games for sample in game.samples()]
    # A random model gets the same reward in each game, so every other reply counts as good.
    samples = [replace(s, advantage=(-1.0) ** i * s.mask.astype("float32")) for i, s in enumerate(samples)]
    found: dict[str, float] = {}
    for name, near in PENALTIES.items():
        model.load_state_dict(sampled)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        for _ in range(EPOCHS):
            now = samples if near is None else add_kl_penalty(samples, read(model, samples), COEF, near=near)
            for tree in tree_batch(now).split(MAX_TREE_TOKENS):
                assert tree.advantage is not None
                advantage = torch.as_tensor(tree.advantage[tree.trained])
                (-(advantage * logprobs(model, tree)).sum() / len(games)).backward()
            optimizer.step()
            optimizer.zero_grad()
        found[name] = kl(samples, read(model, samples)).all.k1
    return found


def main() -> None:
    """Print the divergence after training with each penalty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the computations are too small for several threads
    for name, divergence in divergences(options.seed).items():
        print(f"{name:<17} {divergence:.3f} nats per token")


if __name__ == "__main__":
    main()
