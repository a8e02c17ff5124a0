"""Compare two policies on the same tasks, with a confidence interval.

Run it with `python examples/compare_policies.py`. A model takes the place of `Halving`.
"""

import numpy as np

import envsdk
from envsdk import Message
from envsdk.rollouts import Rollouts
from envsdk.rollouts.scores import Score, compare

RENDERER = envsdk.get_renderer("qwen3", "embedded")


class Halving:
    """A policy that bisects the range of GuessNumber, and gives up early with some probability."""

    tokenizer = RENDERER.tokenizer

    def __init__(self, share_of_lapses: float) -> None:
        self.share_of_lapses = share_of_lapses

    def __call__(self, prompt: np.ndarray, *, episode_id: str, **_: object) -> envsdk.Action:
        """Reply with the middle of the remaining range."""
        text = self.tokenizer.decode(prompt)
        low, high = 1, 100
        for part in text.split("<|im_start|>assistant\n")[1:-1]:
            guess, answer = part.split("<|im_end|>", 1)
            guessed = int(guess.strip().split()[-1])
            low, high = (guessed + 1, high) if "Higher" in answer else (low, guessed - 1)
        lapses = np.random.default_rng([len(prompt), *episode_id.encode()]).random() < self.share_of_lapses
        number = str(low if lapses else (low + high) // 2)
        tokens = RENDERER.reply(Message(role="assistant", content=number))
        return envsdk.Action(tokens, np.full(len(tokens), -0.1))


def main() -> None:
    """Play 20 tasks with each policy, four times."""
    options = {"renderer": "qwen3", "tokenizer": "embedded", "limits": {"max_steps": 7}}
    runs = {
        share: Rollouts(
            "envsdk/GuessNumber-v1", Halving(share), seeds=range(20), group_size=4, env_options=options
        ).run()
        for share in (0.1, 0.4)
    }
    for share, trajectories in runs.items():
        score = Score.of(trajectories)
        print(f"lapses {share}: reward {score.reward:.2f} +- {score.reward_error:.2f}, pass@4 {score.pass_at[4]:.2f}")
    found = compare(*runs.values())
    print(f"difference {found.difference:.2f}, 95 % interval {found.low:.2f} to {found.high:.2f}, {found.tasks} tasks")


if __name__ == "__main__":
    main()
