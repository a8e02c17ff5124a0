"""Credit for forgetting: unbiased, by enumeration of all episodes and plays of small environments, and less noisy."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from toy_policies import ANY_TOKENIZER, in_any_vocabulary

from envsdk import Action, Break, Env, Message, Sample, Trajectory, Turn, rollout
from envsdk.credit import add_break_advantages, per_token
from envsdk.errors import ConfigError, InvalidSample
from envsdk.rollouts import BreakValue, break_values

PARTS = 3
"""All probabilities are multiples of 1 / PARTS, so a uniform random number has PARTS equally likely outcomes."""
NOTED = "Noted. I go on, and say so at some length, as the context has to become long."
CHOICES: Mapping[str, Mapping[str, int]] = {
    "start": {"left": 1, "right": 2},
    "noted": {NOTED: 3},
    "ready": {"Yes.": 3},
    "summary": {"The code word is heron.": 1, "Nothing of note happened.": 1, "": 1},
    "short or long": {"Noted.": 2, NOTED: 1},
    "throw": {"heads": 1, "tails": 2},
    "seen": {"heron": 2, "crow": 1},
    "unseen": {"heron": 1, "crow": 2},
}
"""The softmax policy: in each state, the replies with their probabilities in PARTS."""
START = dict(zip(CHOICES, np.cumsum([0, *map(len, CHOICES.values())]).tolist(), strict=False))
"""The index of the first logit of a state."""
N_LOGITS = sum(map(len, CHOICES.values()))


class Errand(Env):
    """Mentions a code word and asks for it at the end. The first choice, which has nothing to do with it, counts, too.

    The model writes a summary before the question. An empty one is rejected.
    """

    questions = ("Left or right?", "The code word is heron. You will need it later.", "What is the code word?")
    second = "noted"

    def start(self) -> Turn:
        self.replies: list[str] = []
        return Turn(self.questions[0])

    def respond(self, reply: Message) -> Turn:
        self.replies.append(reply.content)
        if len(self.replies) < len(self.questions):
            return Turn(self.questions[len(self.replies)])
        luck = 3.0 * (self.replies[0] == "left") + self.replies.count("heads")
        return Turn(terminated=True, reward=luck + (self.replies[-1] == "heron"))


class Gamble(Errand):
    """Whether the code word is dropped depends on the reply to it. There is more luck after it."""

    questions = ("Are you ready?", Errand.questions[1], "Throw a coin.", Errand.questions[2])
    second = "short or long"


def state_of(env: Env, context: str) -> str:
    assert isinstance(env, Errand) or "/summary-" in context
    view = env.episode.pending_reply(context).context.view
    if "/summary-" in context:
        return "summary"
    states = {"Left": "start", "Are": "ready", "The ": getattr(env, "second", ""), "Throw": "throw"}
    known = next((state for start, state in states.items() if view[-1].content.startswith(start)), None)
    return known or ("seen" if any("heron" in message.content for message in view) else "unseen")


@dataclass
class Softmax:
    """Takes the choices of an episode from a script, and those of plays from common random numbers."""

    script: list[int]
    """The choice in each step; zeros are added at the end."""
    numbers: Sequence[Sequence[int]] = ()
    """By pair of plays and decision, the outcome of a uniform random number, below PARTS."""
    decisions: list[tuple[str, int]] = field(default_factory=list)
    """The state and the choice of each step of the episode."""
    tokenizer = ANY_TOKENIZER

    def for_episode(self, env: Env, seed: int | None) -> Callable[..., Action]:
        left = list(self.script), itertools.count()

        @in_any_vocabulary
        def policy(prompt: Any, *, episode_id: str, context: str, **_: Any) -> Action:
            state, at = state_of(env, context), next(left[1])
            options = CHOICES[state]
            if "/fork-" in episode_id:
                number = self.numbers[int(episode_id.rpartition("-")[2]) - 1][at]
                chosen = int(np.searchsorted(np.cumsum(list(options.values())), number, side="right"))
            else:
                self.script += [0] * (at + 1 - len(self.script))
                chosen = self.script[at]
                self.decisions.append((state, chosen))
            renderer = env.episode.pending_reply(context).context.renderer
            tokens = renderer.reply(Message(role="assistant", content=list(options)[chosen]))
            return Action(tokens, np.full(len(tokens), -0.5))

        return policy


class Episode(NamedTuple):
    probability: float
    trajectory: Trajectory
    decisions: list[tuple[str, int]]


def episodes(make_env: Callable[[], Env]) -> Iterator[Episode]:
    """All episodes of the policy."""
    script: list[int] | None = []
    while script is not None:
        policy = Softmax(script)
        trajectory = rollout(make_env(), policy, seed=0)
        chances = [list(CHOICES[state].values())[chosen] / PARTS for state, chosen in policy.decisions]
        yield Episode(float(np.prod(chances)), trajectory, policy.decisions)
        script = list(policy.script)
        while script and script[-1] + 1 == len(CHOICES[policy.decisions[len(script) - 1][0]]):
            script.pop()
        script = [*script[:-1], script[-1] + 1] if script else None


def score(state: str, chosen: int) -> np.ndarray:
    """The gradient of the log-probability of a choice with respect to all logits."""
    chances = np.array(list(CHOICES[state].values())) / PARTS
    gradient = np.zeros(N_LOGITS)
    gradient[START[state] : START[state] + len(chances)] = -chances
    gradient[START[state] + chosen] += 1
    return gradient


def gradient_of(samples: Sequence[Sample], decisions: Sequence[tuple[str, int]]) -> np.ndarray:
    """The policy gradient that samples give: the sum over replies of their advantage times their score."""
    total = np.zeros(N_LOGITS)
    for sample in samples:
        for number, step in enumerate(sample.metadata["steps"]):
            advantages = np.unique(np.asarray(sample.advantage)[sample.mask & (sample.step_ids == number)])
            if len(advantages):  # what was rejected is not trained
                (advantage,) = advantages.astype(np.float64).tolist()
                total += advantage * score(*decisions[step])
    return total


class Estimates(NamedTuple):
    """Two estimators of the gradient, by all that may happen."""

    chances: np.ndarray
    outcome: np.ndarray
    credit: np.ndarray
    tokens: np.ndarray
    """The sampled tokens of episodes, and with their plays: shape (n, 2)."""

    def variances(self, state: str) -> tuple[float, float]:
        """The variance of the logits of a state under each, for as many sampled tokens as an episode without plays."""
        rows = slice(START[state], START[state] + len(CHOICES[state]))
        costs = self.chances @ self.tokens
        found = []
        for gradients, cost in zip((self.outcome[:, rows], self.credit[:, rows]), costs, strict=True):
            mean = self.chances @ gradients
            found.append(float(self.chances @ ((gradients - mean) ** 2).sum(axis=1) * cost / costs[0]))
        return found[0], found[1]


Credit = Callable[[Sequence[Sample], Sequence[BreakValue]], Sequence[Sample]]


class Played(NamedTuple):
    """An episode with one pair of plays for its break, if it has one."""

    chance: float
    samples: Sequence[Sample]
    decisions: list[tuple[str, int]]
    values: Sequence[BreakValue]
    tokens: tuple[int, int]


@cache
def enumerate_all(make_env: Callable[[], Env], n_decisions: int) -> tuple[np.ndarray, list[Played]]:
    """The exact gradient, and all that may happen."""
    known = list(episodes(make_env))
    assert sum(one.probability for one in known) == pytest.approx(1.0, abs=1e-12)
    mean = sum(one.probability * one.trajectory.reward for one in known)
    baseline = round(64 * mean) / 64  # so that float32 has all advantages exactly
    exact, rows = np.zeros(N_LOGITS), list[Played]()
    for probability, trajectory, decisions in known:
        exact += probability * trajectory.reward * sum(score(*decision) for decision in decisions)
        samples = [replace(s, advantage=per_token(s, s.reward - baseline)) for s in trajectory.samples()]
        sampled = trajectory.sampled_tokens
        has_break = any(break_.kind == "rewrite" for break_ in trajectory.breaks)
        draws = list(itertools.product(range(PARTS), repeat=n_decisions)) if has_break else [()]
        for numbers in draws:
            values = break_values(make_env, Softmax([], [numbers]), [trajectory], k=1)
            assert [value.pairs for value in values] == [1] * has_break
            tokens = (sampled, sampled + sum(value.sampled_tokens for value in values))
            rows.append(Played(probability / len(draws), samples, decisions, values, tokens))
    return exact, rows


def estimates_of(played: Sequence[Played], credit: Credit = add_break_advantages) -> Estimates:
    """The estimators without and with a credit of breaks."""
    rows = [
        (chance, gradient_of(samples, decisions), gradient_of(credit(samples, values), decisions), tokens)
        for chance, samples, decisions, values, tokens in played
    ]
    return Estimates(*map(np.array, zip(*rows, strict=True)))


summarizing = partial(Errand, history={"name": "summarize", "threshold": 60})
dropping = partial(Gamble, history={"name": "budget", "max_tokens": 80, "order": ["oldest"]})


def test_the_credit_of_a_summary_is_exact_with_less_than_a_quarter_of_the_variance_for_as_many_tokens() -> None:
    exact, played = enumerate_all(summarizing, 1)
    estimates = estimates_of(played)
    assert estimates.chances @ estimates.credit == pytest.approx(exact, abs=1e-9)
    outcome, credit = estimates.variances("summary")
    assert credit < outcome / 4
    # A rejected summary is not trained. For the outcome, that is a bias; the value of changing nothing is 0.
    assert np.abs(estimates.chances @ estimates.outcome - exact).max() > 0.01


def test_the_credit_of_other_causes_is_exact_although_only_some_replies_cause_a_break() -> None:
    exact, played = enumerate_all(dropping, 2)
    estimates = estimates_of(played)
    assert estimates.chances @ estimates.outcome == pytest.approx(exact, abs=1e-9)
    assert estimates.chances @ estimates.credit == pytest.approx(exact, abs=1e-9)


def test_the_difference_alone_would_be_biased_for_other_causes() -> None:
    def difference(samples: Sequence[Sample], values: Sequence[BreakValue]) -> Sequence[Sample]:
        changed = list(samples)
        for value in values:
            for index, sample in enumerate(samples):
                if value.cause_step in (steps := sample.metadata["steps"]):
                    is_cause = sample.mask & (sample.step_ids == steps.index(value.cause_step))
                    advantage = np.where(is_cause, np.float32(value.difference), sample.advantage)
                    changed[index] = replace(sample, advantage=advantage.astype(np.float32))
        return changed

    exact, played = enumerate_all(dropping, 2)
    estimates = estimates_of(played, difference)
    assert np.abs(estimates.chances @ estimates.credit - exact).max() > 0.01


def value_of(context: str, **changed: Any) -> BreakValue:
    """The value of a break of `main` at step 2, whose cause is step 1, in the given context."""
    break_ = Break("rewrite", "budget", "main", "main", 3, 2)
    value = BreakValue("a", 2, break_, 1, (context, 4, 6), 3.0, 2.5, 0.0, 3, 0, 9)
    return replace(value, **changed)


def two_steps(context: str = "main") -> Sample:
    """A sample of the steps 0 and 1, each with a prompt token and two sampled tokens, and the reward 1."""
    (sample,) = rollout(Short(), "random", seed=0, options={"episode_id": "a"}).samples()
    mask = np.array([False, True, True] * 2)
    ids = np.array([-1, 0, 0, -1, 1, 1], dtype=np.int32)
    changed = replace(sample, tokens=np.arange(6, dtype=np.int32), mask=mask, step_ids=ids, part_ids=ids)
    changed = replace(changed, context=context, logprobs=np.zeros(6, np.float32), reward=1.0)
    return replace(changed, advantage=per_token(changed, [0.5, 0.25]))


class Short(Env):
    """Two steps."""

    def start(self) -> Turn:
        return Turn("Begin.")

    def respond(self, reply: Message) -> Turn:
        return Turn("Go on.", terminated=len(self.messages()) > 3)


@pytest.mark.parametrize(
    ("context", "changed", "scale", "expected"),
    [
        ("main", {}, 1.0, 0.25 + 3 / 4 * (3.0 - 1.0)),
        ("main", {}, 2.0, 0.25 + 2 * 3 / 4 * (3.0 - 1.0)),
        ("main/summary-1", {}, 1.0, 3.0 - 2.5),
        ("main/summary-1", {}, 4.0, 4 * (3.0 - 2.5)),
        ("main", {"pairs": 0, "reward_dropped": float("nan")}, 1.0, 0.25),
        ("main", {"trajectory_id": "b"}, 1.0, 0.25),
    ],
)
def test_only_the_tokens_of_the_cause_get_another_advantage(
    context: str, changed: dict[str, Any], scale: float, expected: float
) -> None:
    sample = two_steps(context)
    (added,) = add_break_advantages([sample], [value_of(context, **changed)], scale=scale)
    assert np.asarray(added.advantage).tolist() == [0.0, 0.5, 0.5, 0.0, expected, expected]
    assert added.tokens is sample.tokens and added.loss_weight == sample.loss_weight


@pytest.mark.parametrize("values", [None, [None], [1], "a"])
def test_values_of_another_kind_are_refused(values: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected what rollouts\.break_values returned"):
        add_break_advantages([], values)


def test_what_cannot_be_added_is_refused() -> None:
    sample, value = two_steps(), value_of("main")
    with pytest.raises(ConfigError, match="scale is -1"):
        add_break_advantages([sample], [value], scale=-1)
    with pytest.raises(ConfigError, match="two values of the break at step 3 of 'a'"):
        add_break_advantages([sample], [value, replace(value)])
    with pytest.raises(InvalidSample, match="sample 0 has no advantage"):
        add_break_advantages([replace(sample, advantage=None)], [value])
    with pytest.raises(InvalidSample, match="finite"):
        add_break_advantages([sample], [replace(value, reward_dropped=1e39)])


def test_the_differences_of_other_episodes_of_the_group_are_a_baseline() -> None:
    first = two_steps("main/summary-1")
    samples = [replace(first, trajectory_id=name, group_id="g") for name in "abc"]
    values = [
        value_of("main/summary-1", trajectory_id=name, reward_dropped=reward)
        for name, reward in (("a", 3.0), ("b", 2.5), ("c", 1.0))
    ]
    added = add_break_advantages(samples, values, "leave_one_out", scale=2.0)
    assert [float(np.asarray(one.advantage)[4]) for one in added] == [2.0 * a for a in (0.5 + 0.75, 0.5, -1.5 - 0.25)]
    (alone,) = add_break_advantages(samples[:1], values, "leave_one_out")
    assert float(np.asarray(alone.advantage)[4]) == 0.5
    with pytest.raises(ConfigError, match="sample 0 has no group_id"):
        add_break_advantages([first], values, "leave_one_out")
    with pytest.raises(ConfigError, match="baseline is 'mean'"):
        add_break_advantages(samples, values, "mean")  # type: ignore[arg-type]
