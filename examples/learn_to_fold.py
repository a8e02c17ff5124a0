"""A tiny model learns when to fold: when its context is almost full, and not before.

It walks from house to house, and each house tells a long story. The stories do not fit into the context, so it has to
fold them; but it has few steps, so it must not fold too often. It begins with a coin for each decision, and learns from
the reward alone. `docs/tutorials/learn-to-fold.md` explains it.

Run it with `python examples/learn_to_fold.py`; `pip install 'envsdk[torch]'` has what it needs. It takes 15 seconds of
one core.
"""
# pyright: basic, reportMissingImports=false

import numpy as np
import torch

from envsdk import Action, Limits, Message, ToolEnv, Turn, tool
from envsdk.credit import anchor_advantages, step_returns
from envsdk.rollouts import rollout_many

HOUSES, MAX_TOKENS, UPDATES = 16, 800, 10


class Walk(ToolEnv):
    """Visit houses. The reward is the share of the houses that were visited."""

    default_limits = Limits(max_steps=HOUSES + 4, max_context_tokens=MAX_TOKENS)
    reward_range = (0.0, 1.0)

    def start(self) -> Turn:
        """Begin the walk."""
        self.visits = 0
        return Turn(f"Visit {HOUSES} houses.")

    @tool
    def visit(self) -> str:
        """Visit the next house."""
        self.visits += 1
        return "It was a long way " + "and on " * int(self.np_random.integers(10, 25))

    def after_tools(self, reply: Message, results: list[Message]) -> Turn:
        """Reward each visit."""
        visits = sum(call.name == "visit" for call in reply.tool_calls)
        return Turn(results, reward=visits / HOUSES, terminated=self.visits >= HOUSES)

    def finish(self, reply: Message) -> Turn:
        """End the walk: the reply has no call."""
        return Turn(terminated=True)


env = Walk(renderer="qwen3", tokenizer="embedded", context_tools=("fold",))
visit = env.renderer.reply(Message.calling("visit"))
fold = env.renderer.reply(Message.calling("fold", {"summary": "I go on."}))
choice = next(i for i in range(len(visit)) if visit[i] != fold[i])  # the first token in which they differ

weights = torch.zeros(10, requires_grad=True)  # the model: one for each tenth of the context
rng = np.random.default_rng(0)


def logprob(prompt_length: int, folds: bool) -> torch.Tensor:
    """Return the log-probability that the model folds, or that it does not, after a prompt of a length."""
    weight = weights[10 * prompt_length // MAX_TOKENS]
    return torch.nn.functional.logsigmoid(weight if folds else -weight)


def policy(prompt: np.ndarray, **_: object) -> Action:
    """Choose a reply. All of its tokens but one are certain."""
    folds = bool(rng.random() < logprob(len(prompt), True).exp().item())
    logprobs = np.zeros(len(fold if folds else visit), dtype=np.float32)
    logprobs[choice] = logprob(len(prompt), folds).item()
    return Action(fold if folds else visit, logprobs)


def main() -> None:
    """Walk and train alternately."""
    optimizer = torch.optim.Adam([weights], lr=0.5)
    print("updates  reward  folds  P(fold) at  0.3  0.4  0.5  0.6  0.7  0.8  0.9 of the context")
    for update in range(UPDATES + 1):
        seeds = [seed for seed in (2 * update, 2 * update + 1) for _ in range(16)]  # two groups of 16 walks
        walks = rollout_many(lambda: env, policy, seeds=seeds, max_concurrency=1)
        reward = np.mean([walk.reward for walk in walks])
        folds = np.mean([sum(break_.reason == "fold" for break_ in walk.breaks) for walk in walks])
        print(f"{update:7}  {reward:6.2f}  {folds:5.1f}  {'':10}", end="")
        print(*(f"{p:5.1f}" for p in torch.sigmoid(weights[3:]).tolist()), sep="")

        returns = {walk.id: step_returns(walk) for walk in walks}
        states = {walk.id: [len(prompt.prompt) for prompt in walk.prompts()] for walk in walks}
        samples = [sample for walk in walks for sample in walk.samples()]
        loss = torch.zeros(())
        for sample in anchor_advantages(samples, returns, states, "leave_one_out"):
            for step in np.unique(sample.step_ids[sample.mask]):
                start = int(np.flatnonzero(sample.step_ids == step)[0])  # the length of the step's prompt
                advantage = np.asarray(sample.advantage)[start + choice]
                loss -= advantage * logprob(start, bool(sample.tokens[start + choice] == fold[choice]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
