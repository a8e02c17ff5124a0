"""REINFORCE for an agent program: the loop of `train_reinforce.py`, with an agent of a framework as the environment.

A Qwen3 of two layers is warmed up on a few conversations of a policy that usually guesses a price instead of looking it
up. From the reward alone it learns to call the tool. The agents are in `agent_openai.py`, `agent_anthropic.py`,
`agent_openai_agents.py` and `agent_pydantic_ai.py`; training changes nothing in them. For seed 0 the mean reward is
0.44, 0.44, 0.44 and 0.42 before, and 0.86, 0.86, 0.92 and 0.89 after; |k1| is at most 3.6e-8. The first two are equal:
the protocols differ, but the model sees the same tokens. Each takes about a minute of one core.

Run it with `python examples/train_agent.py agent_openai`; `pip install 'envsdk[torch,gateway]'` and the framework's
package are what it needs.
"""
# pyright: basic, reportMissingImports=false

import argparse
import importlib

import torch
from prices import Prices
from train_reinforce import Progress, Task, train

AGENTS = ("agent_openai", "agent_anthropic", "agent_openai_agents", "agent_pydantic_ai")
SHARE_OF_GUESSES = 0.7  # in the warm-up
SEEDS, GROUP, UPDATES = range(6), 6, 10
WARM_UP_GAMES, WARM_UP_STEPS, MAX_REPLY_TOKENS = 64, 300, 40


def task_of(name: str) -> Task:
    """Return the training task of one of the agents."""

    def make_env() -> Prices:
        agent = importlib.import_module(name).Agent
        return agent(renderer="qwen3", tokenizer="embedded", share_of_guesses=SHARE_OF_GUESSES)

    return Task(make_env, SEEDS, GROUP, MAX_REPLY_TOKENS, WARM_UP_GAMES, WARM_UP_STEPS)


def run(name: str, seed: int = 0, updates: int = UPDATES) -> Progress:
    """Train one of the agents."""
    return train(seed, updates, task_of(name))


def main() -> None:
    """Train, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", choices=AGENTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=UPDATES)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the computations are too small for several threads
    print(f"{options.agent}: {run(options.agent, options.seed, options.updates)}")


if __name__ == "__main__":
    main()
