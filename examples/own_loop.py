"""Your own sampling loop: each observation of an environment is a delta.

Run it with `python examples/own_loop.py`. A real model takes the place of `sample`.
"""

import numpy as np

import envsdk


def sample(prompt: list[int], rng: np.random.Generator, stop_token_id: int, vocab_size: int) -> envsdk.Action:
    """Sample a reply: here a few random ids, uniformly, and the stop token."""
    tokens = [*rng.integers(vocab_size, size=4).tolist(), stop_token_id]
    return envsdk.Action(tokens, [-float(np.log(vocab_size))] * 4 + [0.0])


def main() -> None:
    """Play one episode, and print the tokens that each step observed and those that a KV cache may keep."""
    env = envsdk.make("envsdk/MathChat-v0", history="strip")
    rng = np.random.default_rng(0)
    vocab_size = env.renderer.tokenizer.vocab_size
    contexts: dict[str, list[int]] = {}
    observation, info = env.reset(seed=0)
    done = False
    while not done:
        o = observation
        contexts[o.context] = prompt = [*contexts.get(o.base, ())[: o.keep], *o.tokens.tolist()]
        print(f"{o.context}: keeps {o.keep} tokens, gets {len(o.tokens)}; break: {info.get('break')}")
        action = sample(prompt, rng, info["stop_token_ids"][0], vocab_size)
        contexts[o.context] = [*prompt, *map(int, action.tokens)]
        observation, _, terminated, truncated, info = env.step(action)
        done = terminated or truncated
    assert env.trajectory is not None
    for made in env.trajectory.samples():
        made.validate()
        print(f"sample {made.segment_index + 1} of {made.n_segments}: {len(made)} tokens, {made.mask.sum()} trained")


if __name__ == "__main__":
    main()
