"""How two trainers merge logged steps, written here by their public rules: neither can be installed from an index.

prime-rl (`docs/training/trajectories.md`, "Best-effort interleaved rollouts"): a step whose prompt begins with all
tokens of a sample extends that sample; every other step begins one. The samples of all agents stay open.

slime (multi-turn samples, `loss_mask` over the response only): a step whose tokens begin with those of the sample
before it continues that sample, with 0 in the mask on what was observed in between.
"""

from dataclasses import dataclass

from benchmarks.contender import Repetition, contender
from benchmarks.logs import LoggedStep, is_sound, logged_steps


@dataclass
class PrimeSample:
    """A sample as prime-rl trains on it: every list has the full length."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]

    def add(self, step: LoggedStep) -> None:
        """Append what a step observed and sampled."""
        observed, sampled = step.prompt[len(self.token_ids) :], step.action
        self.token_ids += observed
        self.token_ids += sampled
        self.mask += [False] * len(observed) + [True] * len(sampled)
        self.logprobs += [0.0] * len(observed) + step.logprobs
        self.temperatures += [1.0] * (len(observed) + len(sampled))


@dataclass
class SlimeSample:
    """A sample as slime trains on it: the mask and the log-probabilities cover the response only."""

    tokens: list[int]
    response_length: int
    loss_mask: list[int]
    rollout_log_probs: list[float]

    def add(self, step: LoggedStep) -> None:
        """Append what a step observed and sampled."""
        observed = step.prompt[len(self.tokens) :]
        self.tokens += observed
        self.tokens += step.action
        self.response_length += len(observed) + len(step.action)
        self.loss_mask += [0] * len(observed) + [1] * len(step.action)
        self.rollout_log_probs += [0.0] * len(observed) + step.logprobs


def interleaved(steps: list[LoggedStep]) -> list[PrimeSample]:
    """Return the samples by prime-rl's rule."""
    samples: list[PrimeSample] = []
    for step in steps:
        fitting = (one for one in samples if step.prompt[: len(one.token_ids)] == one.token_ids)
        sample = next(fitting, None)
        if sample is None:
            sample = PrimeSample([], [], [], [])
            samples.append(sample)
        sample.add(step)
    return samples


def continued(steps: list[LoggedStep]) -> list[SlimeSample]:
    """Return the samples by slime's rule."""
    samples: list[SlimeSample] = []
    for step in steps:
        if not samples or step.prompt[: len(samples[-1].tokens)] != samples[-1].tokens:
            samples.append(SlimeSample(list(step.prompt), 0, [], []))
        samples[-1].add(step)
    return samples


@contender("samples", "prime-rl's rule", is_reimplemented=True)
def prime(size: str) -> Repetition:
    """Merge as prime-rl does."""
    steps = logged_steps(size)
    made = interleaved(steps)
    is_sound(size, sum(len(one.token_ids) for one in made), sum(sum(one.mask) for one in made))

    def repetition() -> None:
        interleaved(steps)

    return repetition


@contender("samples", "slime's rule", is_reimplemented=True)
def slime(size: str) -> Repetition:
    """Merge as slime does."""
    steps = logged_steps(size)
    made = continued(steps)
    is_sound(size, sum(len(one.tokens) for one in made), sum(sum(one.loss_mask) for one in made))

    def repetition() -> None:
        continued(steps)

    return repetition
