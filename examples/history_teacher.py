"""A model learns to do without what its history policy dropped: on-policy distillation with the reverse KL.

The environment reads out the passwords of six doors, always the same, and asks for three of them. At the second
question, the history policy (`budget`) has dropped the list. The teacher has the weights that the model begins with
and sees the whole past (`credit.add_teacher`): no reward and no labels are needed.

Run it with `python examples/history_teacher.py FOLDER`, the folder of a small instruct model of transformers with its
tokenizer; `pip install 'envsdk[torch]'` has what it needs. docs/forgetting.md has figures of a model with 135
million parameters.
"""
# pyright: basic, reportMissingImports=false

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
import transformers

import envsdk
from envsdk import Env, EnvConfig, Message, Sample, Trajectory, Turn
from envsdk.credit import add_teacher
from envsdk.policies import TransformersPolicy

DOORS = ("red", "blue", "green", "white", "black", "gold")
WORDS = ["lemon", "tiger", "piano", "river", "candle", "mirror", "garden", "bottle", "forest", "silver"]
QUESTIONS = 3


class Doors(Env):
    """Reads out the passwords of some doors, then asks for three of them."""

    class Config(EnvConfig):
        """The options."""

        shuffled: bool = False
        """Whether each episode has other passwords."""

    def start(self) -> Turn:
        """Draw the doors that are asked for."""
        words = [*self.np_random.permutation(WORDS)] if self.config.shuffled else WORDS
        self.words = dict(zip(DOORS, words, strict=False))
        self.asked = [*self.np_random.permutation(DOORS)][:QUESTIONS]
        self.replies = 0
        return Turn("You will get the passwords of some doors.", max_tokens=2)

    def respond(self, reply: Message) -> Turn:
        """Read out the list, or ask for the next door."""
        self.replies += 1
        number = self.replies - 2  # of the question that was answered
        reward = (number >= 0 and self.words[self.asked[number]] in reply.content) / QUESTIONS
        if self.replies > QUESTIONS:
            return Turn(reward=reward, terminated=True)
        door = self.asked[number + 1]
        told = (
            [f"The password of the {door} door is {word}." for door, word in self.words.items()] if number < 0 else []
        )
        text = " ".join([*told, f"What is the password of the {door} door?"])
        return Turn(text, prefill=f"The password of the {door} door is", max_tokens=3, reward=reward)

    def answer(self) -> str:
        """Return the right continuation of the reply that is due."""
        return f" {self.words[self.asked[self.replies - 1]]}." if self.replies else "OK"


def warmed_up(folder: Path, device: str, updates: int) -> Any:
    """Return the model after a few updates on other passwords, so that it can read them in a prompt."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    env = Doors(shuffled=True, renderer="auto", tokenizer=folder)
    for number in range(updates):
        losses = []
        for seed in range(4 * number, 4 * number + 4):
            env.reset(seed=seed)
            while env.trajectory is None:
                env.step([*env.renderer.tokenizer.encode(env.answer()), env.renderer.stop_token_ids[0]])
            losses += [-logprobs(model, sample).mean() for sample in env.trajectory.samples()]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
    return model


def distributions(model: Any, sample: Sample) -> torch.Tensor:
    """Return the log-probabilities of all tokens of the vocabulary at the trained positions, a row for each."""
    tokens = torch.as_tensor(sample.tokens, device=model.device).long()
    places = torch.as_tensor(sample.mask.nonzero()[0], device=model.device)
    logits = model(input_ids=tokens[None], use_cache=False, logits_to_keep=places - 1).logits[0]
    return logits.float().log_softmax(-1)


def logprobs(model: Any, sample: Sample) -> torch.Tensor:
    """Return the log-probabilities of the trained tokens."""
    tokens = torch.as_tensor(sample.tokens[sample.mask], device=model.device).long()
    return distributions(model, sample).gather(1, tokens[:, None])[:, 0]


def play(model: Any, folder: Path, seeds: Any, history: Any, temperature: float = 1.0) -> list[Trajectory]:
    """Play an episode for each seed."""
    policy = TransformersPolicy(model.eval(), folder, seed=seeds[0], temperature=temperature)
    options: Any = {"renderer": "auto", "tokenizer": folder, "limits": {"end_on_cut": False}}
    return [envsdk.rollout(Doors(history=history, **options), policy, seed=seed) for seed in seeds]


def of_vocabulary(model: Any, teacher: Any, trajectory: Trajectory, renderer: Any) -> Iterator[Any]:
    """Yield the reverse KL of each sample, over the whole vocabulary at each trained position, and its loss: the same.

    It needs fewer episodes than `of_samples`, and the logits of the teacher.
    """
    with torch.no_grad():
        taught = torch.cat([distributions(teacher, one) for one in trajectory.under("keep", renderer).samples()])
    for sample in trajectory.samples():
        own = distributions(model, sample)
        loss = (own.exp() * (own - taught[: len(own)])).sum()
        taught = taught[len(own) :]
        yield loss.item(), loss


def of_samples(model: Any, teacher: Any, trajectory: Trajectory, renderer: Any) -> Iterator[Any]:
    """Yield an estimate of the reverse KL of each sample, from the sampled tokens alone, and its loss."""
    for sample in add_teacher(trajectory.samples(), teacher, trajectory, renderer=renderer):
        gap = (np.asarray(sample.logprobs) - np.asarray(sample.reference_logprobs))[sample.mask]
        yield gap.sum(), (torch.as_tensor(gap, device=model.device).clamp(-5, 5) * logprobs(model, sample)).sum()


KL = {"vocabulary": of_vocabulary, "sampled": of_samples}


def update(model: Any, teacher: Any, optimizer: Any, trajectories: list[Trajectory], renderer: Any, kl: Any) -> float:
    """Make an update towards the teacher; return the reverse KL, in nats per token."""
    count = sum(trajectory.sampled_tokens for trajectory in trajectories)
    total = 0.0
    optimizer.zero_grad()
    for trajectory in trajectories:
        for gap, loss in kl(model, teacher, trajectory, renderer):
            (loss / count).backward()
            total += gap
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total / count


def train(
    folder: Path, history: Any, *, seed: int, updates: int, episodes: int, rate: float, warm_up: int, kl: str
) -> None:
    """Train, and print the mean reward and the mean gap of every 25 updates."""
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = warmed_up(folder, device, warm_up)
    teacher = copy.deepcopy(model).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    renderer = envsdk.get_renderer("auto", folder)
    rewards, gaps = [], []
    for number in range(updates):
        seeds = range(100_000 * seed + episodes * number, 100_000 * seed + episodes * (number + 1))
        played = play(model, folder, seeds, history)
        gaps.append(update(model, teacher, optimizer, played, renderer, KL[kl]))
        rewards += [trajectory.reward for trajectory in played]
        if number % 25 == 24:
            print(
                f"updates to {number + 1}: reward {mean(rewards):.2f}, gap {mean(gaps):.3f} nats per token", flush=True
            )
            rewards, gaps = [], []
    kept = mean(one.reward for one in play(model, folder, range(10_000_000, 10_000_008), "keep"))
    print(f"under keep, the trained model earns {kept:.2f}")


def main() -> None:
    """Train, and print the rewards and the gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--history", default='budget:max_tokens=130,target=0.5,order=["oldest"]')
    for name, kind, default in (
        ("seed", int, 0),
        ("updates", int, 200),
        ("episodes", int, 1),
        ("warm_up", int, 10),
    ):
        parser.add_argument("--" + name.replace("_", "-"), type=kind, default=default)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--kl", choices=[*KL], default="vocabulary", help="over the vocabulary, or the sampled tokens")
    options = vars(parser.parse_args())
    train(options.pop("folder"), options.pop("history"), **options)


if __name__ == "__main__":
    main()
