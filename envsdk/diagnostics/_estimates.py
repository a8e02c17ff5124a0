"""The estimated cost of training under each history policy, in tokens and money, before anything is trained.

No formula is used: episodes of given sizes are played with the real renderer and history policies, and their tokens are
counted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias, cast

from .._packages import load
from .._registry import find_renderer
from .._visible import brief
from ..authoring._driver import seeds_of
from ..authoring._env import Env
from ..authoring._making import make
from ..contexts._history import HistoryPolicy, get_history
from ..episodes._turn import Turn
from ..errors import ConfigError
from ..limits import plain_integer
from ..messages import Message, ToolCall, ToolSchema
from ..rendering.renderer import Renderer
from ..rollouts._runner import check_is_env, rollout
from ..trajectories._trajectory import Trajectory
from ._costs import Cost, cost

_TOOL: ToolSchema = {"type": "function", "function": {"name": "look", "description": "Look something up."}}
_POINTS = 8
_History: TypeAlias = str | Mapping[str, Any] | HistoryPolicy
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """The lengths of the messages of an episode, in tokens of their content.

    Attributes:
        first: The first observation: the system message, the tools and the task.
        observation: Each later observation: a tool's result, or what a user says.
        reasoning: The reasoning of each reply; 0 for a model that does not think.
        answer: The rest of each reply.
        query_every: A user's query comes every N steps, and a tool's result at the others. Templates strip
            reasoning at queries. None: the first query is the only one.
        first_images: How many tokens of `first` are of images. An estimate writes text in place of images.
        observation_images: How many tokens of `observation` are.
    """

    first: int = 500
    observation: int = 200
    reasoning: int = 400
    answer: int = 100
    query_every: int | None = 1
    first_images: int = 0
    observation_images: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value: Any = plain_integer(getattr(self, field.name))
            least = 1 if field.name == "query_every" else 0
            if (value is not None or field.name != "query_every") and (type(value) is not int or value < least):
                raise ConfigError(f"Sizes.{field.name} is {brief(value)}; expected an integer of at least {least}")

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], renderer: Renderer) -> "Sizes":
        """Return the mean sizes in the main contexts of trajectories.

        Raises:
            ConfigError: If the trajectories have no steps.
        """
        logs = [(one, next(iter(one.contexts))) for one in trajectories if one.steps]
        if not logs:
            raise ConfigError("no episode has a step, so there is nothing to estimate from")
        firsts, texts, thoughts, answers, queries = list[int](), list[int](), list[int](), list[int](), 0
        first_images, later_images = list[int](), list[int]()
        encode = renderer.tokenizer.encode
        for trajectory, name in logs:
            messages = trajectory.contexts[name].messages
            replies = [i for i, message in enumerate(messages) if message.role == "assistant"]
            step = next(step for step in trajectory.steps if step.context == name)
            firsts.append(step.action_start - step.start)
            first_images.append(_image_tokens(messages[: replies[0]] if replies else messages, renderer))
            for index in replies:
                reasoning = messages[index].reasoning
                thoughts.append(0 if reasoning is None else len(encode(reasoning)))
                own = renderer.reply(messages[index].with_reasoning(None))
                answers.append(len(own))
            later = messages[replies[0] + 1 : replies[-1]] if replies else []  # nothing answers the last messages
            given = [message for message in later if message.role != "assistant"]
            later_images += [_image_tokens([message], renderer) for message in given]
            texts += [len(encode(message.content)) for message in given]
            queries += 1 + sum(message.role == "user" for message in later)
        every = round(len(answers) / queries)
        return cls(
            first=_mean(firsts),
            observation=_mean(texts) + _mean(later_images),
            reasoning=_mean(thoughts),
            answer=_mean(answers),
            query_every=max(1, every) if queries > len(logs) else None,
            first_images=_mean(first_images),
            observation_images=_mean(later_images),
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of tokens, per million tokens, in any currency.

    Attributes:
        input: Tokens of prompts that no cache holds.
        cached: Tokens of prompts that a prefix cache holds.
        output: Sampled tokens.
        training: Tokens that a trainer processes, as a tree.
        samples: Tokens that a trainer processes, if each sample is a separate sequence.
    """

    input: float = 0.0
    cached: float = 0.0
    output: float = 0.0
    training: float = 0.0
    samples: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ConfigError(f"the price {field.name} is {brief(value)}; expected a number of at least 0")

    def of(self, cost: Cost) -> float:
        """Return the price of the tokens of episodes."""
        sampling = self.input * cost.observed + self.cached * cost.kept + self.output * cost.sampled
        training = self.training * cost.as_tree + self.samples * cost.as_samples
        return (sampling + training) / _MILLION


@dataclass(frozen=True, slots=True)
class HistoryCost:
    """The cost of an episode under one history policy.

    Attributes:
        history: The history policy, as `history=` takes it on the command line.
        steps: Numbers of steps, ascending.
        costs: The cost of an episode for each number of steps, in the order of `steps`.
        ended: The stop reason, if the episode ended before its last step (a budget may be too small); else None.
    """

    history: str
    steps: tuple[int, ...]
    costs: tuple[Cost, ...]
    ended: str | None = None

    @property
    def cost(self) -> Cost:
        """The cost of the longest episode."""
        return self.costs[-1]

    def growth(self, field: str) -> float:
        """Return the exponent of the growth of a field of `Cost` by the steps at the end: 1 is linear, 2 is quadratic.

        NaN if there is only one number of steps, or the field is 0.
        """
        last, before = (getattr(cost, field) for cost in (self.costs[-1], self.costs[(len(self.costs) - 1) // 2]))
        ratio = self.steps[-1] / self.steps[(len(self.steps) - 1) // 2]
        return math.log(last / before, ratio) if ratio > 1 and before else math.nan


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The cost of an episode under several history policies. `str()` is a table.

    Attributes:
        sizes: The sizes of its messages.
        rows: The cost under each history policy.
        prices: What tokens cost, or None.
    """

    sizes: Sizes
    rows: tuple[HistoryCost, ...]
    prices: Prices | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values for JSON."""
        rows = [
            {
                "history": row.history,
                "steps": row.steps[-1],
                **row.cost.to_dict(),
                "growth": {name: None if math.isnan(row.growth(name)) else row.growth(name) for name in _GROWS},
                "price": None if self.prices is None else self.prices.of(row.cost),
                "ended": row.ended,
            }
            for row in self.rows
        ]
        return {"sizes": asdict(self.sizes), "prices": self.prices and asdict(self.prices), "rows": rows}

    def table(self) -> list[list[str]]:
        """Return the table: the heads, then a row for each history policy."""
        heads = ["history", "steps", "sampled", "observed", "from a cache", "prompts", "breaks", "samples"]
        heads += ["as samples", "grows", "as a tree", "grows"]
        rows = [heads if self.prices is None else [*heads, "price"]]
        for row in self.rows:
            cost = row.cost
            breaks = sum(one.breaks for one in cost.breaks.values())
            counts = (row.steps[-1], cost.sampled, cost.observed, cost.kept, cost.prompts, breaks, cost.samples)
            cells = [row.history, *(f"{count:,}" for count in counts)]
            for name in ("as_samples", "as_tree"):
                growth = row.growth(name)
                cells += [f"{getattr(cost, name):,}", "" if math.isnan(growth) else f"T^{growth:.1f}"]
            rows.append(cells if self.prices is None else [*cells, f"{self.prices.of(cost):.4g}"])
        return rows

    def notes(self) -> list[str]:
        """Return the notes below the table: the share of image tokens, and the episodes that ended early."""
        notes, sizes = list[str](), self.sizes
        if sizes.first_images or sizes.observation_images:
            notes.append(
                f"images: {sizes.first_images:,} of the {sizes.first:,} tokens of the first observation, and "
                f"{sizes.observation_images:,} of the {sizes.observation:,} of each later one; they are estimated as "
                "text, so no history policy drops them"
            )
        for row in self.rows:
            if row.ended is not None:
                notes.append(f"{row.history}: the episode ended before step {row.steps[-1]:,} ({row.ended})")
        return notes

    def __str__(self) -> str:
        return "\n".join([*aligned(self.table()), *self.notes()])

    def plot(self, path: str | Path) -> None:
        """Draw the tokens to train as samples and as a tree, and the tokens of the prompts, by the number of steps.

        Args:
            path: The file, whose suffix is the format: `.png` or `.svg`.

        Raises:
            MissingPackage: If matplotlib is not installed.
        """
        figure = load("matplotlib.figure", "a plot needs", "pip install 'envsdk[examples]'").Figure(
            figsize=(12, 4), layout="constrained"
        )
        panels = {"as_samples": "trained, as separate samples", "as_tree": "trained, as a tree", "prompts": "prompts"}
        axes: Any = figure.subplots(1, len(panels), sharey=True)
        for axis, (field, title) in zip(axes, panels.items(), strict=True):
            for row in self.rows:
                axis.plot(row.steps, [getattr(one, field) for one in row.costs], marker=".", label=row.history)
            axis.set(title=f"Tokens: {title}", xlabel="steps", yscale="log")
            axis.grid(alpha=0.3)
        axes[0].legend()
        figure.savefig(path)


_GROWS = ("observed", "prompts", "as_samples", "as_tree")


def estimate(
    env: "Env | str | Sizes",
    *,
    history: "_History | Sequence[_History] | None" = None,
    steps: int | None = None,
    prices: Prices | None = None,
    renderer: "str | Mapping[str, Any] | Renderer | None" = None,
    tokenizer: Any = None,
    seeds: int | str | Sequence[int] = 16,
) -> CostEstimate:
    """Estimate what an episode costs under history policies, before anything is trained.

    Episodes with messages of the given sizes are played, with the real renderer and history policies, for several
    numbers of steps up to `steps`. With an environment, the sizes are means of its reference policy's episodes; of its
    sub-agents nothing is counted.

    Args:
        env: The sizes of the messages; or an environment, or the id of one, which has a reference policy.
        history: One history policy or several, as `Env` takes them. By default: keep, strip, compact, and budget and
            summarize at half of the tokens that `keep` reaches.
        steps: The number of steps; by default that of the longest reference episode, or 64 for sizes.
        prices: What tokens cost.
        renderer: The renderer, for sizes; an environment has its own.
        tokenizer: The tokenizer, for sizes.
        seeds: The seeds of the reference episodes that are played; see `Rollouts`.

    Raises:
        ConfigError: If an argument is not one of these, or the environment has no reference policy.
    """
    number: Any = plain_integer(steps)
    if number is not None and (type(number) is not int or number < 1):
        raise ConfigError(f"steps is {brief(number)}; expected an integer of at least 1")
    if isinstance(env, Sizes):
        sizes, found = env, find_renderer("qwen3" if renderer is None else renderer, tokenizer)
        number = number or 64
    else:
        if renderer is not None or tokenizer is not None:
            raise ConfigError("an environment has its own renderer and tokenizer: make it with them")
        made = make(env) if isinstance(env, str) else env
        check_is_env(made, "estimate() got")
        try:
            played = [rollout(made, "reference", seed=seed) for seed in seeds_of(seeds)]
        except NotImplementedError as error:
            raise ConfigError(f"{error}: write one, or give the sizes of its messages, Sizes(...)") from error
        sizes, found = Sizes.of(played, made.renderer), made.renderer
        number = number or max(len(trajectory.steps) for trajectory in played)
    if history is None:
        half = max(1, (sizes.first + number * (sizes.reasoning + sizes.answer + sizes.observation)) // 2)
        compact = f"compact:every={min(10, max(2, number // 4))}"
        histories = ["keep", "strip", compact, f"budget:max_tokens={half}", f"summarize:threshold={half}"]
    else:
        several = isinstance(history, Sequence) and not isinstance(history, str)
        histories = list(cast("Any", history)) if several else [cast("Any", history)]
    points = sorted({max(1, math.ceil(number * (i + 1) / _POINTS)) for i in range(_POINTS)})
    return CostEstimate(sizes, tuple(_row(sizes, found, one, points) for one in histories), prices)


def _row(sizes: Sizes, renderer: Renderer, history: Any, points: Sequence[int]) -> HistoryCost:
    policy = get_history(history)
    costs, lengths, ended = list[Cost](), list[int](), None
    for steps in points:
        env = _Sized(sizes, steps, renderer=renderer, history=policy, limits={"max_steps": None})
        trajectory = rollout(env, "reference", seed=0)
        costs.append(cost(trajectory))
        lengths.append(steps)
        if trajectory.status != "terminated":
            ended = trajectory.stop_reason
            break
    name = history
    if not isinstance(history, str):
        given = policy.specification()
        options = ",".join(f"{name}={value}" for name, value in given.items() if name != "name")
        name = f"{given['name']}:{options}" if options else str(given["name"])
    return HistoryCost(name, tuple(lengths), tuple(costs), ended)


class _Sized(Env):
    """An environment whose messages have given sizes."""

    def __init__(self, sizes: Sizes, steps: int, **options: Any) -> None:
        super().__init__(**options)
        self.sizes, self.length = sizes, steps

    def start(self) -> Turn:
        self.answered = 0
        return Turn(self._text(self.sizes.first), tools=[_TOOL] if self._calls() else None)

    def respond(self, reply: Message) -> Turn:
        self.answered += 1
        if self.answered == self.length:
            return Turn(terminated=True)
        text = self._text(self.sizes.observation)
        if not reply.tool_calls:
            return Turn(text)
        (call,) = reply.tool_calls
        return Turn(Message(role="tool", content=text, tool_call_id=call.id, name=call.name))

    def reference_reply(self) -> Message:
        """Return a reply of the given sizes."""
        following = self.answered + 1
        every = self.sizes.query_every
        is_tool = self._calls() and following < self.length and (every is None or following % every != 0)
        reasoning = self._text(self.sizes.reasoning) if self.sizes.reasoning else None
        calls = (ToolCall(name="look", arguments={}),) if is_tool else ()
        return Message(role="assistant", reasoning=reasoning, content=self._text(self.sizes.answer), tool_calls=calls)

    def _calls(self) -> bool:
        return self.sizes.query_every != 1 and "tool" in self.renderer.roles

    def _text(self, count: int) -> str:
        """Return a string of about `count` tokens, which differs from those of other steps."""
        number = str(self.answered)
        encode = self.renderer.tokenizer.encode
        return number + " a" * max(0, count - len(encode(number))) if count else ""


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: the first column is aligned to the left, all others to the right."""
    first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], widths, strict=True))])
        for row in rows
    ]


def _image_tokens(messages: Sequence[Message], renderer: Renderer) -> int:
    """Return the number of placeholders of the images in messages."""
    images = [image for message in messages for image in message.images]
    vision = renderer.vision if images else None
    return 0 if vision is None else sum(vision.count(image) for image in images)


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values)) if values else 0
