"""Where to forget: the cheapest breaks of recorded episodes, and what other history policies cost next to them.

At a break, everything between the first turn and the last reply is shortened (`Planned`), so a prompt depends only on
where the last break was. The cheapest schedule of an episode with T steps is then found in O(T^2), from the lengths of
its messages. The reported costs are counted in replays of the episodes, not computed from these lengths.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import add
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import PrivateAttr, ValidationError

from .._describing import what_is_invalid
from .._specifications import as_option
from ..contexts._history import (
    Budget,
    Compact,
    History,
    HistoryPolicy,
    Keep,
    Planned,
    Stage,
    get_history,
    last_reply,
    shortened,
)
from ..errors import CannotReplay, ConfigError, EnvsdkError
from ..limits import Limits
from ..rendering.renderer import Renderer
from ..trajectories._trajectory import Trajectory
from ._costs import Cost, cost
from ._estimates import Prices, aligned

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRICES = Prices(input=1, cached=0.1)
"""The default prices: of prompts alone. A token that a cache holds costs a tenth of one that it does not hold."""
_THINKING: tuple[Stage, ...] = ("thinking",)
_DROPS: tuple[tuple[Stage, ...], ...] = (("thinking", "tool_results"), ("oldest",))
_TARGETS = (0.25, 0.5, 0.75)
_SHARES = (0.5, 0.25)
_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 100
_NAME = 36


class _Measured(Keep):
    """Keeps everything, and notes the lengths of prompts, and of messages before and after a break.

    An environment that replaces the conversation begins another part of the episode.
    """

    drops: tuple[tuple[Stage, ...], ...]
    keep_last: int
    _parts: list[tuple[list[Any], list[Any]]] = PrivateAttr(default_factory=list[tuple[list[Any], list[Any]]])

    def view(self, history: History) -> None:
        """Note the prompt, and the messages that have become old."""
        if not history.state:  # of another context, or the conversation was replaced
            history.state["part"] = len(self._parts)
            self._parts.append(([], []))
        prompts, messages = self._parts[history.state["part"]]
        opening, last = history.opening, last_reply(history, self.keep_last)
        for index in range(opening + len(messages), last):
            found = [shortened(history, index, drops) for drops in self.drops]
            changes = [message is not history.messages[index] for message, _ in found]
            messages.append([history.tokens(index), *(length for _, length in found), *changes])
        first = sum(map(history.tokens, range(opening)))
        prompts.append([history.steps, history.length, last - opening, first])

    def lengths(self, kept: Trajectory, prices: Prices) -> "dict[tuple[Stage, ...], _Lengths]":
        """Return the lengths of the episode that was replayed, for each way of dropping.

        Raises:
            CannotReplay: If a schedule is not all that decides what its prompts are.
        """
        if not kept.steps:
            raise CannotReplay("it has no steps")
        main = next(iter(kept.contexts))
        steps = [step for step in kept.steps if step.context == main]
        new, prompts = np.array([step.action_start - step.start for step in steps]), np.array(_prompts(kept))
        ends = np.array([step.keep + step.stop - step.start for step in steps])
        is_branch, branches, count = dict[str, bool](), np.zeros((2, len(steps) + 1), int), 0
        for step in kept.steps:
            if step.context == main:
                count += 1
                continue
            if step.context not in is_branch:
                is_branch[step.context] = step.base == main or is_branch.get(step.base, False)
                branches[1, count] += is_branch[step.context]
            branches[0, count] += is_branch[step.context]
        begins, start = np.zeros(len(steps), int), 0
        saved, stable = np.zeros((2, len(self.drops), len(steps)), int)
        for noted, sizes in self._parts:
            if noted[0][0] != start or start == len(steps):
                continue  # of another context, or a prompt without a reply
            numbers, lengths, old, first = np.array(noted[: len(steps) - start]).T
            own = slice(start, start + len(numbers))
            if numbers.tolist() != [*range(len(steps))][own] or lengths.tolist() != prompts[own].tolist():
                raise CannotReplay("not every step of its first context is one whole reply")
            if old[0] or any(step.break_ is not None and step.break_.kind == "rewrite" for step in steps[own][1:]):
                raise CannotReplay("its environment or its template changes the past, and keeps replies")
            full, *rest = np.array(sizes, dtype=int).reshape(-1, 1 + 2 * len(self.drops)).T
            starts = first[0] + np.concatenate([[0], np.cumsum(full)])
            for index in range(len(self.drops)):
                changed = np.append(np.flatnonzero(rest[index + len(self.drops)]), len(full))
                saved[index, own] = np.concatenate([[0], np.cumsum(full - rest[index])])[old]
                stable[index, own] = starts[changed[np.searchsorted(changed, old)]] - saved[index, own]
            begins[own], start = start, own.stop
        if start < len(steps):
            raise CannotReplay("not every step of its first context is one whole reply")
        is_trained = kept.contexts[main].is_trainable
        read = prices.input + prices.training * is_trained
        sums = np.cumsum(prices.cached * (prompts - new) + read * new)
        carried, samples = np.cumsum(branches, axis=1)
        return {
            drops: _Lengths(
                prompts=prompts,
                ends=ends,
                sums=sums,
                begins=begins,
                saved=saved[index],
                stable=stable[index],
                carried=carried,
                samples=samples,
                prices=replace(prices, input=read, samples=prices.samples * is_trained),
            )
            for index, drops in enumerate(self.drops)
        }


@dataclass(frozen=True, slots=True)
class _Lengths:
    """The lengths of the T prompts of an episode's first context, and what a break does to them.

    Attributes:
        prompts: The tokens of each prompt, if nothing is dropped: shape (T,).
        ends: The tokens of each prompt with its reply: shape (T,).
        sums: The price of the prompts up to each one, if nothing is dropped: shape (T,).
        begins: The first prompt after the environment last replaced the conversation: shape (T,).
        saved: How many tokens a break right before each prompt saves: shape (T,).
        stable: How many tokens the next break keeps, if the last one was right before each prompt: shape (T,).
        carried: The number of prompts of branches that were opened before each reply: shape (T + 1,).
        samples: The number of samples of these branches: shape (T + 1,).
        prices: The prices; `input` includes training.
    """

    prompts: "NDArray[np.int64]"
    ends: "NDArray[np.int64]"
    sums: "NDArray[np.float64]"
    begins: "NDArray[np.int64]"
    saved: "NDArray[np.int64]"
    stable: "NDArray[np.int64]"
    carried: "NDArray[np.int64]"
    samples: "NDArray[np.int64]"
    prices: Prices

    def _after(self, last: Any, until: int, limit: float) -> Any:
        """Return the price of what follows the prompt with the last break, before the prompt `until`."""
        saved, prices = self.saved[last], self.prices
        carried = until - 1 - last + self.carried[until] - self.carried[last]
        samples = self.ends[until - 1] - saved * (1 + self.samples[until] - self.samples[last])
        price = self.sums[until - 1] - self.sums[last] - prices.cached * saved * carried + prices.samples * samples
        return np.where(self.prompts[until - 1] - saved <= limit, price, math.inf)

    def _at(self, last: Any, now: int) -> Any:
        """Return the price of the prompt with a break after the last one, or of the first prompt of a part."""
        if self.begins[now] == now:
            return self.sums[now] - self.sums[now - 1]
        kept = self.stable[last]
        return self.prices.cached * kept + self.prices.input * (self.prompts[now] - self.saved[now] - kept)

    def price(self, at: Iterable[int], limit: float = math.inf) -> float:
        """Return the price of a schedule; infinite if a prompt is longer than the limit."""
        count, price, last = len(self.prompts), float(self.sums[0]), 0
        for now in sorted({*(now for now in at if now < count), *self.begins.tolist()} - {0}):
            if self.begins[now] == now or self.saved[last] < self.saved[now]:  # else the break drops nothing
                price += float(self._after(last, now, limit) + self._at(last, now))
                last = now
        return price + float(self._after(last, count, limit))

    def cheapest(self, limit: float) -> tuple[int, ...] | None:
        """Return the cheapest schedule; None if no schedule respects the limit."""
        count = len(self.prompts)
        prices, before = np.full(count, math.inf), np.zeros(count, int)  # of the prompts up to a break
        prices[0] = self.sums[0]
        for now in range(1, count):
            last = np.arange(int(self.begins[now - 1]), now)
            if self.begins[now] < now:
                last = last[self.saved[last] < self.saved[now]]
            if len(last):
                found = prices[last] + self._after(last, now, limit) + self._at(last, now)
                before[now], prices[now] = last[np.argmin(found)], np.min(found)
        last = np.arange(int(self.begins[-1]), count)
        found = prices[last] + self._after(last, count, limit)
        place, at = int(last[np.argmin(found)]), list[int]()
        if np.min(found) == math.inf:
            return None
        while place:
            if self.begins[place] < place:
                at.append(place)
            place = int(before[place])
        return tuple(reversed(at))


@dataclass(frozen=True, slots=True)
class PlanRow:
    """What the episodes cost in one way of forgetting.

    Attributes:
        name: What it is.
        cost: The cost of all episodes.
        price: Its price.
        longest: The longest prompt, in tokens.
        breaks: The number of breaks.
        lengths: The lengths of the prompts of the episode that is drawn.
    """

    name: str
    cost: Cost
    price: float
    longest: int
    breaks: int
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """Where recorded episodes would break at least cost. `str()` is a table, a drawing and the options to copy.

    Attributes:
        rows: What the episodes cost as they were recorded, under other policies, and with the cheapest schedules, last.
        schedules: By the id of each episode, the steps after which its cheapest schedule breaks.
        drawn: The id of the episode that is drawn: the longest one.
        online: The online policy with these prices and this limit.
        prices: What tokens cost.
        max_context_tokens: The longest prompt, in tokens; None for no limit.
        left_out: By a reason, how many episodes are left out.
        notes: What else there is to know of the rows.
    """

    rows: tuple[PlanRow, ...]
    schedules: dict[str, tuple[int, ...]]
    drawn: str
    online: Planned
    prices: Prices
    max_context_tokens: int | None
    left_out: dict[str, int]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values for JSON."""
        rows = [
            {"name": row.name, "price": row.price, "longest": row.longest, **row.cost.to_dict()} for row in self.rows
        ]
        limits = {
            "max_context_tokens": self.max_context_tokens,
            "prices": asdict(self.prices),
            "online": self.online.specification(),
        }
        return {"rows": rows, "schedules": self.schedules, **limits, "left_out": self.left_out, "notes": self.notes}

    def table(self) -> list[list[str]]:
        """Return the table: the heads, then a row for each way of forgetting."""
        heads = ["history", "price", "above the plan", "observed", "from a cache", "breaks", "longest prompt"]
        rows = [[*heads, "as samples", "as a tree"]]
        best = self.rows[-1].price
        for row in self.rows:
            own = row.cost
            counts = (own.observed, own.kept, row.breaks, row.longest, own.as_samples, own.as_tree)
            share = f"{row.price / best - 1:+.0%}" if best and row is not self.rows[-1] else ""
            rows.append([row.name, f"{row.price:.4g}", share, *(f"{count:,}" for count in counts)])
        return rows

    def drawing(self) -> str:
        """Return a drawing of the prompts of one episode: a row for each way of forgetting, a column for each step."""
        count = max(len(row.lengths) for row in self.rows)
        top = max(max(row.lengths) for row in self.rows)
        wide = math.ceil(count / _COLUMNS)
        unit = "step" if wide == 1 else f"{wide} steps"
        lines = [f"The longest episode, {self.drawn}: a column for each {unit}, up to {top:,} tokens of a prompt"]
        longest = min(_NAME, max(len(row.name) for row in self.rows))
        for row in self.rows:
            parts = [max(row.lengths[at : at + wide]) for at in range(0, len(row.lengths), wide)]
            bars = "".join(_BARS[min(len(_BARS) * part // top, len(_BARS) - 1)] for part in parts)
            lines.append(f"  {row.name[:_NAME].ljust(longest)}  {bars}")
        after = ", ".join(map(str, self.schedules[self.drawn])) or "none"
        return "\n".join([*lines, f"  The plan breaks after the steps {after}"])

    def __str__(self) -> str:
        lines = aligned(self.table())
        shown = {name: price for name, price in asdict(self.prices).items() if price}
        prices = ", ".join(f"{name} {price:g}" for name, price in shown.items())
        lines += [f"Prices per million tokens: {prices}", *self.notes]
        lines += [f"left out: {count:,} ({why})" for why, count in self.left_out.items()]
        return "\n".join([*lines, "", self.drawing(), "", f"To decide online: --history {quote(_option(self.online))}"])


def plan(
    trajectories: Iterable[Trajectory],
    renderer: Renderer | Mapping[str, Renderer] | None = None,
    *,
    max_context_tokens: int | None = None,
    prices: Prices = PRICES,
    drops: Sequence[Stage] | None = None,
    keep_last: int = 1,
) -> HistoryPlan:
    """Find the breaks of recorded episodes that cost least, and compare them with other history policies.

    Folds by the model are not replayed: what it folded stays visible until a break drops it.

    Args:
        trajectories: The episodes. Schedules are of the agent that was reset; sub-agents keep their policies.
        renderer: Their renderer, or the renderers by role; see `Trajectory.under`.
        max_context_tokens: The longest prompt, in tokens; None for no limit.
        prices: What tokens cost. If they include training, an episode whose policy exchanges text has none.
        drops: What a break drops; see `Planned`. By default reasoning and the results of tools; or the oldest rounds,
            if that shortens nothing or leaves prompts that are too long.
        keep_last: The number of last replies that a break leaves whole.

    Raises:
        ConfigError: If an argument is not one of these, or no episode can be planned.
    """
    read = prices.input + prices.training
    if not prices.cached <= read or not read + prices.samples:
        raise ConfigError(
            f"a token of a prompt costs {prices.cached:g} if a cache holds it, and {read:g} (input and training) if "
            "not; expected the first to be at most the second, and not all prices to be 0"
        )
    try:
        sets = _DROPS if drops is None else (Planned.model_validate({"drops": tuple(drops)}).drops,)
        cached = prices.cached / read if read else 0
        form = Planned.model_validate({"keep_last": keep_last, "max_tokens": max_context_tokens, "cached": cached})
    except ValidationError as error:
        raise ConfigError(f"the options of a plan: {what_is_invalid(error)}") from error
    left_out, episodes = Counter[str](), list[_Episode]()
    most = math.inf if max_context_tokens is None else max_context_tokens
    for trajectory in trajectories:
        try:
            episodes.append(_Episode.of(trajectory, renderer, prices, (_THINKING, *sets), keep_last))
        except CannotReplay as error:
            left_out[str(error).replace(repr(trajectory.id), "the episode")] += 1
    chosen, found = sets[-1], list[tuple[int, ...] | None]()
    for chosen in sets:
        found = [one.lengths[chosen].cheapest(most) for one in episodes]
        if any(found) and None not in found:
            break
    planned = {one: at for one, at in zip(episodes, found, strict=True) if at is not None}
    if None in found:
        dropped = "+".join(chosen)
        why = f"a prompt has more than {max_context_tokens:,} tokens even without {dropped}: allow more, or drop more"
        left_out[why] = found.count(None)
    if not planned:
        why = "; ".join(f"{count:,} ({why})" for why, count in left_out.items())
        raise ConfigError(f"no episode can be planned. Left out: {why or 'none, there are no episodes'}")
    form = form.model_copy(update={"drops": chosen})
    drawn = max(planned, key=lambda one: (len(one.kept.steps), one.kept.id))  # whatever the order of the records
    notes = list[str]()

    def row(name: str, played: Mapping[_Episode, Trajectory]) -> PlanRow:
        total = reduce(add, map(cost, played.values()))
        prompts = {one: _prompts(own) for one, own in played.items()}
        breaks = sum(break_.kind == "rewrite" for one in played.values() for break_ in one.breaks)
        longest = max(map(max, prompts.values()))
        if longest > most:
            notes.append(f"{name}: its longest prompt has {longest:,} tokens, more than the limit")
        return PlanRow(name, total, prices.of(total), longest, breaks, tuple(prompts[drawn]))

    def replayed(policy: HistoryPolicy) -> dict[_Episode, Trajectory]:
        return {one: one.under(policy) for one in planned}

    specification = drawn.trajectory.history
    try:
        now = _option(get_history(specification))
    except EnvsdkError:  # a policy of the author's own, or one with a function
        now = str(specification.get("name"))
    rows = [row(f"now: {now}", {one: one.trajectory for one in planned})]
    for stages in dict.fromkeys([_THINKING, chosen]):  # of each number of steps, the cheapest one
        lengths = [one.lengths[stages] for one in planned]
        count = max(len(one.prompts) for one in lengths)
        totals = [sum(one.price(range(every, count, every), most) for one in lengths) for every in range(1, count + 1)]
        every = 1 + int(np.argmin(totals))
        at = tuple(range(every, count, every))
        if math.isinf(min(totals)):
            notes.append(f"no number of steps between breaks respects the limit, dropping {'+'.join(stages)}")
        elif stages == _THINKING:
            policy = Compact(every=every, keep_last=keep_last)
            rows.append(row(_option(policy), replayed(policy)))
        else:
            often = "every step" if every == 1 else f"every {every} steps"
            rows.append(row(f"{often}: {'+'.join(stages)}", replayed(form.model_copy(update={"at": at}))))
    budgets = list[PlanRow]()
    for share in _SHARES if max_context_tokens is None else (1,):
        for target in _TARGETS:
            longest = max_context_tokens or max(1, int(share * rows[0].longest))
            policy = Budget(max_tokens=longest, target=target, order=chosen)
            played = replayed(policy)
            if all(len(own.steps) == len(one.kept.steps) for one, own in played.items()):  # else a prompt is too long
                budgets.append(row(_option(policy), played))
    if budgets:
        rows.append(min(budgets, key=lambda one: one.price))
    rows.append(row(_option(form), replayed(form)))
    played = {one: one.under(form.model_copy(update={"at": at})) for one, at in planned.items()}
    rows.append(row(f"the plan: {'+'.join(chosen)}", played))
    differing = sum(not one.is_as_planned(played[one], chosen, at, prices) for one, at in planned.items())
    if differing:
        notes.append(
            f"{differing:,} episodes: after a break, their prompts have other lengths than was computed (the renderer "
            "only estimates them, or the model has notes or branches), so another schedule may be cheaper"
        )
    schedules = {one.trajectory.id: at for one, at in planned.items()}
    return HistoryPlan(
        tuple(rows), schedules, drawn.trajectory.id, form, prices, max_context_tokens, dict(left_out), tuple(notes)
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Episode:
    """A recorded episode, the same episode with nothing dropped, and its lengths for each way of dropping."""

    trajectory: Trajectory
    renderer: Renderer | Mapping[str, Renderer] | None
    kept: Trajectory
    lengths: dict[tuple[Stage, ...], _Lengths]

    @classmethod
    def of(
        cls,
        trajectory: Trajectory,
        renderer: Renderer | Mapping[str, Renderer] | None,
        prices: Prices,
        sets: Iterable[tuple[Stage, ...]],
        keep_last: int,
    ) -> "_Episode":
        """Measure a recorded episode.

        Raises:
            CannotReplay: If it failed, or a schedule is not all that decides what its prompts are.
        """
        if trajectory.status == "error" or trajectory.origins:
            raise CannotReplay("it failed" if trajectory.status == "error" else "it is a fork")
        measured = _Measured(drops=tuple(dict.fromkeys(sets)), keep_last=keep_last)
        kept = trajectory.under(measured, renderer, limits=Limits(), folds=False)
        return cls(trajectory, renderer, kept, measured.lengths(kept, prices))

    def under(self, policy: HistoryPolicy) -> Trajectory:
        """Replay the episode under another policy."""
        return self.trajectory.under(policy, self.renderer, limits=Limits(), folds=False)

    def is_as_planned(self, played: Trajectory, drops: tuple[Stage, ...], at: tuple[int, ...], prices: Prices) -> bool:
        """Return whether a replay costs what was computed from the lengths."""
        lengths = self.lengths[drops]
        expected = prices.of(cost(self.kept)) + (lengths.price(at) - lengths.price(())) / 1e6
        return math.isclose(prices.of(cost(played)), expected, rel_tol=1e-9)


def _prompts(trajectory: Trajectory) -> list[int]:
    """Return the lengths of the prompts of an episode's first context."""
    main = next(iter(trajectory.contexts))
    return [step.keep + step.action_start - step.start for step in trajectory.steps if step.context == main]


def _option(policy: HistoryPolicy) -> str:
    """Return a policy as the command line takes it, without the options that have their default values."""
    return as_option({"name": policy.name, **policy.model_dump(mode="json", exclude_defaults=True)})
