"""Credit for forgetting in LongErrand: three weights learn when to fold, to note and to recall.

The policy plays what the reference policy of `envsdk/LongErrand-v0` plays. Wherever that would use one of three context
tools, it decides with a probability of its own whether to use it, or to go on without. The probabilities are trained
with the credit of the outcome, and with the value of folds (`break_values`), at equal numbers of sampled tokens, plays
included. Run it with `python examples/break_credit_errand.py`; it takes some ten minutes.
"""
# pyright: basic

import argparse
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import envsdk
from envsdk import Action, Message
from envsdk.credit import add_break_advantages, group_advantages
from envsdk.rollouts import Rollouts, break_values

KINDS = ("fold", "note", "recall")
ERRAND = "envsdk/LongErrand-v0"
OPTIONS = {"size": "tiny", "tokenizer": "embedded"}
TOKENIZER = envsdk.load_tokenizer("embedded")
GROUP, LEARNING_RATE, FIRST_LOGIT = 4, 2.0, -1.0


@dataclass
class Chooser:
    """The policy; `choices` has, by episode and step, the tool that was considered and whether it was used."""

    logits: np.ndarray
    seed: tuple[int, ...]
    tokenizer: Any = TOKENIZER
    choices: dict[str, dict[int, tuple[int, bool]]] = field(default_factory=dict)

    def for_episode(self, env: Any, seed: int) -> Any:
        """Return the policy of an episode; its forks, and the plays from them, have random numbers of their own."""
        steps = itertools.count()

        def act(prompt: Any, *, episode_id: str, context: str, **_: Any) -> Action:
            pending, step, reply = env.episode.pending_reply(context), next(steps), env.reference_reply()
            kind = reply.tool_calls[0].name
            if kind in KINDS:
                number = KINDS.index(kind)
                draw = np.random.default_rng([*self.seed, seed, step, *episode_id.encode()]).random()
                is_used = bool(draw < 1 / (1 + np.exp(-self.logits[number])))
                self.choices.setdefault(episode_id, {}).setdefault(step, (number, is_used))
                reply = reply if is_used else without(env, pending.context.view)
            tokens = pending.context.renderer.reply(reply)
            return Action(tokens, np.full(len(tokens), -0.5))  # the choices are trained, not the tokens

        return act


def without(env: Any, view: Any) -> Message:
    """Return how the errand goes on without a context tool: with what the view shows, or with a guess."""
    question = env.gate if env.house is None else env.house.questions[env.asked]
    if question is None:
        return Message.calling("visit", {})
    shown = "".join(message.content + str([call.arguments for call in message.tool_calls]) for message in view)
    return Message.calling("answer", {"text": question.answer if question.clue in shown else "unknown"})


def choice_advantages(games: Any, policy: Chooser, values: Any) -> dict[tuple[str, int], float]:
    """Return the advantage of each choice of the games, by episode and step."""
    samples = group_advantages([sample for game in games for sample in game.samples()], "leave_one_out")
    found: dict[tuple[str, int], float] = {}
    for sample in add_break_advantages(samples, values):
        for number, step in enumerate(sample.metadata["steps"]):
            own = np.asarray(sample.advantage)[sample.mask & (sample.step_ids == number)]
            if len(own) and step in policy.choices.get(sample.trajectory_id, {}):
                found[sample.trajectory_id, step] = float(own[0])
    return found


def train(seed: int, k: int, groups: int, tokens: int) -> list[tuple[int, float]]:
    """Train the weights; return the tokens sampled and the mean reward, by update."""
    logits, sampled, progress = np.full(len(KINDS), FIRST_LOGIT), 0, []
    while sampled < tokens:
        first = 1000 * seed + len(progress) * groups
        policy: Any = Chooser(logits, (seed, len(progress)))
        games = Rollouts(
            ERRAND, policy, seeds=range(first, first + groups), group_size=GROUP, env_options=OPTIONS
        ).run()
        progress.append((sampled, float(np.mean([game.reward for game in games]))))
        values = break_values(ERRAND, policy, games, k=k, share=0.5, seed=seed, env_options=OPTIONS)
        gradient = np.zeros(len(KINDS))
        for (episode, step), advantage in choice_advantages(games, policy, values).items():
            number, is_used = policy.choices[episode][step]
            gradient[number] += advantage * (is_used - 1 / (1 + np.exp(-logits[number])))
        logits = logits + LEARNING_RATE * gradient / len(games)
        sampled += sum(one.sampled_tokens for one in [*games, *values])
    return progress


def main() -> None:
    """Print the mean reward by sixths of the sampled tokens, for three seeds and both kinds of credit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    for seed in options.seeds:
        for name, k, groups in (("outcome", 0, 3), ("breaks", 1, 2)):
            progress = train(seed, k, groups, options.tokens)
            parts = [[reward for at, reward in progress if at * 6 // options.tokens == part] for part in range(6)]
            print(f"seed {seed}, {name:<8}", *(f"{np.mean(part):.2f}" for part in parts if part), flush=True)


if __name__ == "__main__":
    main()
