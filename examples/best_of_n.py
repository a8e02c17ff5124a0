"""Best of n from a state: fork a running episode, play each fork to its end, and continue with the best.

Run it with `python examples/best_of_n.py`. A model takes the place of `sloppy`.
"""

import numpy as np

import envsdk

FORKS = 4


class Sloppy:
    """A policy that gives the correct reply three times out of four."""

    tokenizer = "any"  # the environment's renderer writes the replies in its vocabulary

    def __init__(self, env: envsdk.Env, seed: int) -> None:
        self._env = env
        self._rng = np.random.default_rng(seed)

    def __call__(self, prompt: np.ndarray, **_: object) -> envsdk.Action:
        """Reply."""
        is_right = self._rng.random() < 0.75
        reply = self._env.reference_reply() if is_right else self._env.null_reply()
        message = envsdk.Message(role="assistant", content=reply) if isinstance(reply, str) else reply
        tokens = self._env.renderer.reply(message)
        return envsdk.Action(tokens, np.full(len(tokens), -0.5))


def main() -> None:
    """Play an episode halfway, fork it, and compare."""
    env = envsdk.make("envsdk/MathChat-v0", history="strip")
    env.reset(seed=0)
    for _ in range(3):
        env.step(Sloppy(env, seed=0)(env.prompt()))
    forks = [env.fork() for _ in range(FORKS)]
    trajectories = [
        envsdk.rollout(fork, Sloppy(fork, seed), reset=False) for seed, fork in enumerate([env, *forks], start=1)
    ]
    for trajectory in trajectories:
        samples = trajectory.samples()
        trained = sum(int(sample.mask.sum()) for sample in samples)
        print(f"{trajectory.id}: reward {trajectory.reward:g}, {len(samples)} samples, {trained} tokens trained")
    best = max(trajectories, key=lambda trajectory: trajectory.reward)
    tree = envsdk.tree_batch(trajectories)
    print(f"best: {best.id}. All as one tree: {len(tree)} tokens in place of {tree.tokens_separate}.")


if __name__ == "__main__":
    main()
