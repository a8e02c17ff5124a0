"""512 samples that are collated: 64 prompts of 200 made-up tokens, and 8 replies of 100 to 300 tokens to each."""

from typing import Any, NamedTuple

import numpy as np

from .logs import VOCABULARY

PROMPTS, REPLIES = 64, 8
PROMPT_TOKENS, FEWEST, MOST = 200, 100, 300


class Reply(NamedTuple):
    """A sample: `prompt` and `reply` are token ids, `logprobs` has a value for each token of the reply."""

    group: int
    prompt: list[int]
    reply: list[int]
    logprobs: list[float]

    @property
    def tokens(self) -> list[int]:
        """The prompt and the reply."""
        return self.prompt + self.reply

    def over_all(self, before: Any, values: list[Any]) -> list[Any]:
        """Return values of the reply's tokens, with one value for each token of the prompt before them."""
        return [before] * len(self.prompt) + values


def replies() -> list[Reply]:
    """Return the samples, group by group."""
    rng = np.random.default_rng(0)
    made: list[Reply] = []
    for group in range(PROMPTS):
        prompt = rng.integers(1, VOCABULARY, PROMPT_TOKENS).tolist()
        for _ in range(REPLIES):
            reply = rng.integers(1, VOCABULARY, int(rng.integers(FEWEST, MOST + 1))).tolist()
            logprobs = (-rng.exponential(size=len(reply))).astype(np.float32).tolist()
            made.append(Reply(group, prompt, reply, logprobs))
    return made
