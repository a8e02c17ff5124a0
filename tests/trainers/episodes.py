"""Whole episodes for the tests of what is exported, and every way in which a sample can be unsound."""

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from envsdk_environments._delegate import Delegate
from envsdk_environments._guess_number import GuessNumber
from envsdk_environments._kuhn_poker import KuhnPoker
from program_environments import Trimming

from envsdk import Action, Env, Limits, Mask, Message, Sample, Trajectory, Turn, rollout
from envsdk.contexts._protocol import Break
from envsdk.errors import InvalidSample
from envsdk.policies import ReplyPolicy


def thinks(env: Any) -> Message:
    return Message(role="assistant", content=env.reference_reply(), reasoning="I halve what is left.")


def with_logprobs(policy: Any) -> Any:
    """As if sampled at random: every token gets a log-probability of its own."""

    def sample(prompt: Any, **asked: Any) -> Action:
        action = policy(prompt, **asked)
        logprobs = -0.01 - np.arange(len(action.tokens), dtype=np.float32) / 64
        return replace(action, logprobs=logprobs, temperature=0.5, policy_version=3)

    return sample


def guessed(history: Any = "keep", seed: int = 0, **limits: Any) -> Trajectory:
    """A game of guessing with reasoning: five or more steps, if there is no limit."""
    limit = {"limits": Limits(**limits)} if limits else {}
    env = GuessNumber(renderer="qwen3", tokenizer="embedded", history=history, **limit)
    options = {"episode_id": f"{history}-{seed}-{limits}"}
    return rollout(env, with_logprobs(ReplyPolicy(env, thinks)), seed=seed, options=options)


@functools.cache
def kept() -> Trajectory:
    return guessed()


@functools.cache
def stripped() -> Trajectory:
    return guessed("strip")


@functools.cache
def truncated() -> Trajectory:
    return guessed(max_steps=2)


@functools.cache
def delegated() -> Trajectory:
    """A parent with its researchers."""
    env = Delegate(renderer="qwen3", tokenizer="embedded")
    return rollout(env, with_logprobs(ReplyPolicy(env, lambda speaker: speaker.reference_reply())), seed=1)


@functools.cache
def played() -> Trajectory:
    """Two players."""
    env = KuhnPoker(renderer="qwen3", tokenizer="embedded")
    return rollout(env, with_logprobs(ReplyPolicy(env, lambda speaker: speaker.reference_reply())), seed=1)


@functools.cache
def programmed() -> Trajectory:
    """An agent program with a sub-agent, which drops what was said first."""

    def answers(speaker: Any) -> Message:
        return Message(role="assistant", content=f"It has {len(speaker.messages())} apples.", reasoning="I count.")

    with contextlib.closing(Trimming(renderer="qwen3", tokenizer="embedded")) as env:
        return rollout(env, with_logprobs(ReplyPolicy(env, answers)), seed=1)


MASKED_STEPS, HOLES = 3, [(0, 1), (2, 5)]  # the first token of each reply, and some in its middle


class Masking(Env):
    """Leaves parts of each reply out of training."""

    records_roles = True

    def start(self) -> Turn:
        self.steps = 0
        return Turn("Count.")

    def respond(self, reply: Message) -> Turn:
        self.steps += 1
        return Turn("Go on.", reward=1.0, mask=Mask(tokens=HOLES), terminated=self.steps == MASKED_STEPS)

    def reference_reply(self) -> str:
        return "One, two, three, four, five."


@functools.cache
def masked() -> Trajectory:
    """An episode that leaves parts of each reply out of training."""
    env = Masking(renderer="qwen3", tokenizer="embedded")
    policy = with_logprobs(ReplyPolicy(env, lambda env: env.reference_reply()))
    return rollout(env, policy, seed=0, options={"group_id": "one"})


def all_kinds() -> Sequence[Trajectory]:
    return kept(), stripped(), truncated(), delegated(), played(), programmed()


def _at(name: str, where: str, value: Any) -> Callable[[Sample], Any]:
    """Change one entry: of a trained token, of another one, or the first."""

    def spoil(sample: Sample) -> None:
        array = getattr(sample, name)
        masks = {"trained": sample.mask, "other": ~sample.mask}
        array[int(np.argmax(masks[where])) if where in masks else 0] = value

    return spoil


def _cut(name: str) -> Callable[[Sample], Any]:
    return lambda sample: setattr(sample, name, getattr(sample, name)[:-1])


def _set(name: str, value: Any) -> Callable[[Sample], Any]:
    return lambda sample: setattr(sample, name, value)


def _masked(name: str) -> Callable[[Sample], Any]:
    return lambda sample: setattr(sample, name, np.ma.masked_array(getattr(sample, name), mask=True))


SOUND = Break("rewrite", "edit", "main", "main", 1, 2)

DEFECTS: dict[str, tuple[Callable[[Sample], Any], str]] = {
    "a short mask": (_cut("mask"), "mask has shape"),
    "short logprobs": (_cut("logprobs"), "logprobs has shape"),
    "short step ids": (_cut("step_ids"), "step_ids has shape"),
    "short part ids": (_cut("part_ids"), "part_ids has shape"),
    "tokens of int64": (_set("tokens", np.ones(3, np.int64)), "tokens is int64"),
    "a mask of integers": (_set("mask", np.ones(3, np.int32)), "mask is int32"),
    "a list of tokens": (_set("tokens", [1, 2, 3]), "tokens is list"),
    "a positive logprob": (_at("logprobs", "trained", 0.5), "0.5 is not a log-probability"),
    "an infinite logprob": (_at("logprobs", "trained", -np.inf), "-inf is not a log-probability"),
    "a missing logprob": (_at("logprobs", "trained", np.nan), r"is missing \(NaN\)"),
    "a logprob of an observation": (_at("logprobs", "other", -0.5), "is not 0.0, but mask is False"),
    "a negative token": (_at("tokens", "first", -1), r"tokens\[0\] = -1 is outside"),
    "a token outside the vocabulary": (_at("tokens", "first", 10**9), r"tokens\[0\] = 1000000000 is outside"),
    "nothing trained": (lambda sample: sample.mask.fill(False), "no token is trained"),
    "a trained token that nothing predicts": (_at("mask", "first", True), r"mask\[0\] is True, but nothing comes"),
    "a trained token of no step": (_at("step_ids", "trained", -1), "is not a step"),
    "a trained token of no part": (_at("part_ids", "trained", -1), "is not a part"),
    "a step id below -1": (_at("step_ids", "first", -2), r"step_ids\[0\] = -2 is below -1"),
    "a part id below -1": (_at("part_ids", "first", -2), r"part_ids\[0\] = -2 is below -1"),
    "a step id without a part id": (_at("step_ids", "first", 0), r"part_ids\[0\] = -1 does not fit step_ids"),
    "a step that is not there": (_at("step_ids", "trained", 99), "step_ids.* = 99 has no entry in step_rewards"),
    "a part that is not there": (_at("part_ids", "trained", 99), "part_ids.* = 99 has no entry in temperature"),
    "a version below -1": (_at("policy_version", "first", -2), r"policy_version\[0\] = -2 is below -1"),
    "a step's reward that is not finite": (
        _at("step_rewards", "first", np.inf),
        r"step_rewards\[0\] = inf is not finite",
    ),
    "segment 99 of -7": (lambda s: (_set("segment_index", 99)(s), _set("n_segments", -7)(s)), "segment_index is 99 of"),
    "a segment that is not there": (_set("segment_index", 1), "segment_index is 1 of n_segments 1"),
    "a segment below 0": (_set("segment_index", -1), "segment_index is -1 of n_segments 1"),
    "no segments": (_set("n_segments", 0), "segment_index is 0 of n_segments 0"),
    "a reward that float32 cannot hold": (
        _set("reward", 1e39),
        "reward is 1e[+]39; expected a finite number of float32",
    ),
    "a loss weight that float32 cannot hold": (_set("loss_weight", 1e39), "loss_weight is 1e[+]39; expected a finite"),
    **{
        f"a break that is {broken!r:.50}": (_set("breaks", [SOUND, broken]), rf"breaks\[1\] .*{message}")
        for broken, message in (
            ("garbage", "is a str: 'garbage'; expected a Break"),
            (None, "is None"),
            ({"kind": "switch"}, "is a dict"),
            (replace(SOUND, kind="tear"), "is a 'tear' for the reason 'edit'"),  # type: ignore[arg-type]
            (replace(SOUND, reason="handoff"), "is a 'rewrite' for the reason 'handoff'"),
            (replace(SOUND, reason="boredom"), "for the reason 'boredom'"),  # type: ignore[arg-type]
            (replace(SOUND, dropped=0), "that drops 0 tokens"),
            (replace(SOUND, kept=-1), "expected counts of tokens"),
            (replace(SOUND, dropped="1"), "expected counts of tokens"),  # type: ignore[arg-type]
            (replace(SOUND, context=None), "names of contexts"),  # type: ignore[arg-type]
        )
    },
    **{
        f"masked {name}": (_masked(name), f"{name} is a masked array")
        for name in (
            "tokens",
            "mask",
            "logprobs",
            "step_ids",
            "part_ids",
            "step_rewards",
            "temperature",
            "policy_version",
        )
    },
    **{
        f"extra that is {value!r:.40}": (_set("extra", {"x": value}), rf"extra\['x'\] {message}")
        for value, message in (
            (5, "is 5; expected an array, or a list"),
            ("text", "is 'text'; expected an array, or a list"),
            ([], "has 0 values, but there are"),
            (np.zeros(2, np.int32), r"has shape \(2,\)"),
            (np.zeros((), np.int32), r"has shape \(\)"),
            (np.array(["a"]), "is a ndarray of <U1; expected numbers"),
            (np.ma.masked_array([1]), "is a MaskedArray"),
        )
    },
    **{
        f"metadata with the {name} {value!r}": (_set("metadata", {name: value}), rf"metadata\['{name}'\] is ")
        for name, value in (
            ("vocab_size", True),
            ("vocab_size", -1),
            ("vocab_size", 2**31),
            ("tokenizer", ["t"]),
            ("steps", "01"),
            ("steps", [0, -1]),
            ("steps", [0.0]),
            ("is_scored", "yes"),
        )
    },
    "a reward that is not finite": (_set("reward", float("nan")), "reward is nan"),
    "a temperature that is not finite": (_at("temperature", "first", np.inf), "temperature.* is not finite"),
    "a negative temperature": (_at("temperature", "first", -1), r"temperature\[0\] = -1.0 is negative"),
    "a negative loss weight": (_set("loss_weight", -0.5), "loss_weight is -0.5"),
    "a loss weight that is a text": (_set("loss_weight", "1"), "loss_weight is '1'; expected a finite number"),
    "a reward that is a boolean": (_set("reward", True), "reward is True; expected a finite number"),
    "a reward beyond all floats": (_set("reward", 10**400), "reward is 1000"),
    "an advantage that is not finite": (_set("advantage", float("inf")), "advantage is inf; expected a finite number"),
    "an advantage that float32 cannot hold": (_set("advantage", 1e39), "advantage is 1e[+]39; expected a finite"),
    "an advantage that is a boolean": (_set("advantage", False), "advantage is False; expected a finite number"),
    "an advantage that is a text": (_set("advantage", "1"), "advantage is str; expected an array of float32"),
    "a token's advantage that is not finite": (
        lambda sample: setattr(sample, "advantage", np.full(len(sample), np.nan, np.float32)),
        r"advantage\[0\] = nan is not finite",
    ),
    **{
        f"no {name}": (_set(name, None), f"{name} is NoneType; expected an array")
        for name in ("tokens", "mask", "step_ids", "step_rewards", "temperature", "policy_version", "part_ids")
    },
    **{
        f"{name} that is {value!r}": (_set(name, value), f"{name} is {value!r}; expected {expected}")
        for expected, value, names in (
            ("a string", None, ("context", "role", "stop_reason")),
            ("a string", 5, ("context", "role", "stop_reason")),
            ("a string or None", 5, ("parent", "group_id")),
            ("an integer", None, ("segment_index", "n_segments")),
            ("an integer", True, ("segment_index", "n_segments")),
            ("True or False", 1, ("truncated",)),
            ("a list", None, ("breaks",)),
            ("a mapping", None, ("extra", "metadata")),
        )
        for name in names
    },
    "a single token": (_set("tokens", np.int32(1)), "tokens is int32"),
    "tokens of two dimensions": (_set("tokens", np.ones((3, 2), np.int32)), r"tokens has shape \(3, 2\)"),
    "an extra that is named by a number": (_set("extra", {1: [None]}), "extra has the key 1; expected strings"),
    "a vocabulary of half a token": (_set("metadata", {"vocab_size": 0.5}), r"metadata\['vocab_size'\] is 0.5"),
}


def copy_of(sample: Sample) -> Sample:
    return Sample.from_json(sample.to_json())


def grouped(*trajectories: Trajectory, group_id: str = "task") -> list[Sample]:
    samples = [copy_of(sample) for trajectory in trajectories for sample in trajectory.samples()]
    for sample in samples:
        sample.group_id = group_id
    return samples


def refuses_every_defect(convert: Callable[[list[Sample]], Any], *, names_index: bool = True) -> None:
    """A sound sample is taken; with any defect it never gets through, wherever it stands."""
    index = 1 if names_index else 0
    sound = kept().samples()[0]
    sound.advantage = 1.0
    convert([copy_of(sound)])
    for name, (spoil, message) in DEFECTS.items():
        spoiled = copy_of(sound)
        spoiled.trajectory_id = "spoiled"
        spoil(spoiled)
        with pytest.raises(InvalidSample, match=f"sample {index}, .*{message}"):
            convert([copy_of(sound), spoiled])
            pytest.fail(name)
    for value in (None, 5):
        spoiled = copy_of(sound)
        spoiled.trajectory_id = value  # type: ignore[assignment]
        with pytest.raises(InvalidSample, match=f"trajectory_id is {value}; expected a string"):
            convert([spoiled])
    with pytest.raises(InvalidSample, match="sample 0 is a dict"):
        convert([{"tokens": [1, 2]}])  # type: ignore[list-item]


def run_page(name: str) -> dict[str, Any]:
    """Run the code of a page of docs/trainers; returns its names."""
    page = Path(__file__).parents[2] / "docs" / "trainers" / f"{name}.md"
    scope: dict[str, Any] = {"__name__": name}
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(page), "exec"), scope)
    return scope
