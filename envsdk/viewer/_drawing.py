"""The contexts of an episode as a drawing in text: lanes from top to bottom, as `git log --graph` draws branches.

    ● step 1 · main · observed 345, sampled 104
    ├─╮ handoff to main/researcher-1
    │ ● steps 2 to 5 · main/researcher-1 · 4 steps, observed 462, sampled 112 · reward 0.0625
    ├─╯ main/researcher-1 returns
    ✂ summary: 210 kept, 3,400 dropped
    ● step 6 · main · observed 120, sampled 53

All strings are safe to print (see `visible`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from .._visible import on_one_line
from ..trajectories._scoring import ending
from ._json import EpisodeJSON, LinkJSON, StepJSON
from ._transcript import break_text

Kind: TypeAlias = Literal["steps", "handoff", "return", "switch", "rewrite", "end"]
"""The event that a row of a drawing shows."""
_STEP, _CUT, _LANE = "●", "✂", "│"


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """A row of a drawing.

    Attributes:
        kind: The event that the row shows.
        lanes: The lanes, one character for each cell of the terminal.
        text: A description of the event.
        steps: The indices of the row's steps; for a break, the index of its step.
    """

    kind: Kind
    lanes: str
    text: str
    steps: tuple[int, ...] = ()


def drawing(shown: EpisodeJSON) -> list[DrawnRow]:
    """Return a drawing of the contexts of an episode.

    Steps that follow each other in a context, with nothing between them, are one row.

    Args:
        shown: The episode, as `episode` returns it.
    """
    rows = [*_Lanes(shown).rows()]
    width = max(len(row.lanes) for row in rows)
    return [replace(row, lanes=f"{row.lanes:{width}}") for row in rows]


class _Lanes:
    """Lays out the lanes while steps are drawn. A lane belongs to a context from its first event to its last one."""

    def __init__(self, shown: EpisodeJSON) -> None:
        self._shown = shown
        self._lanes: list[str | None] = []
        self._last: dict[str, int] = {}
        """The index of the last step that needs each context: its own step, its return, or a handoff."""
        for step in shown["steps"]:
            self._last[step["context"]] = step["index"]
        for link in shown["links"]:
            for name in (link["from"], link["to"]):
                self._last[name] = max(self._last.get(name, -1), link["step"])
        if shown["final_break"] is not None:
            self._last[shown["final_break"]["context"]] = len(shown["steps"])

    def rows(self) -> Iterator[DrawnRow]:
        shown = self._shown
        waiting: list[StepJSON] = []
        for step in shown["steps"]:
            links = [link for link in shown["links"] if link["step"] == step["index"]]
            if waiting and (links or step["break"] or step["context"] != waiting[-1]["context"]):
                yield self._steps(waiting)
                waiting = []
            yield from self._before(step, links)
            waiting.append(step)
        if waiting:
            yield self._steps(waiting)
        if (final := shown["final_break"]) is not None:
            lanes = self._with(self._lane(final["context"]), _CUT)
            yield DrawnRow("rewrite", lanes, on_one_line(f"at the end {break_text(final)}"))
        reward = f"not scored ({shown['not_scored']})" if shown["reward"] is None else f"reward {shown['reward']:g}"
        yield DrawnRow("end", "", on_one_line(f"{ending(shown['status'], shown['stop_reason'])}, {reward}"))

    def _before(self, step: StepJSON, links: Sequence[LinkJSON]) -> Iterator[DrawnRow]:
        """Yield the rows before a step: returns, then a handoff or another switch, or a rewrite."""
        index, own = step["index"], (step["index"],)
        for link in links:
            if link["kind"] == "return":
                lanes = self._joined(self._lane(link["to"]), self._lane(link["from"]), "╯")
                yield DrawnRow("return", lanes, on_one_line(f"{link['from']} returns"), own)
                self._free(link["from"], index)
        break_ = step["break"]
        if break_ is not None and step["context"] not in self._lanes:
            parent = next((link["from"] for link in links if link["kind"] == "handoff"), step["base"])
            kept = f", with {break_['kept']:,} tokens as they were" if break_["kept"] else ""
            kind: Kind = "handoff" if break_["reason"] == "handoff" else "switch"
            has_parent, lane = parent in self._lanes, self._lane(step["context"])
            lanes = self._joined(self._lane(parent), lane, "╮") if has_parent else self._with(lane, "╷")
            yield DrawnRow(kind, lanes, on_one_line(f"{break_['reason']} to {step['context']}{kept}"), own)
        elif break_ is not None and break_["kind"] == "rewrite":
            lanes = self._with(self._lane(step["context"]), _CUT)
            yield DrawnRow("rewrite", lanes, on_one_line(break_text(break_)), own)

    def _steps(self, steps: Sequence[StepJSON]) -> DrawnRow:
        first, last, context = steps[0]["index"] + 1, steps[-1]["index"] + 1, steps[0]["context"]
        name = f"step {first}" if first == last else f"steps {first} to {last}"
        observed, sampled = sum(step["observed"] for step in steps), sum(step["sampled"] for step in steps)
        scored = [step["reward"] for step in steps if step["reward"] is not None]
        reward = f" · reward {sum(scored):g}" if any(scored) else ""
        text = f"{name} · {context} · observed {observed:,}, sampled {sampled:,}{reward}"
        lanes = self._with(self._lane(context), _STEP)
        for lane in [lane for lane in self._lanes if lane is not None]:
            self._free(lane, last - 1)
        return DrawnRow("steps", lanes, on_one_line(text), tuple(step["index"] for step in steps))

    def _lane(self, context: str) -> int:
        """Return the lane of a context. A new context takes the first free lane."""
        if context not in self._lanes:
            free = self._lanes.index(None) if None in self._lanes else len(self._lanes)
            self._lanes[free : free + 1] = [context]
        return self._lanes.index(context)

    def _free(self, context: str, index: int) -> None:
        """Free the lane of a context whose last event was this step."""
        if context in self._lanes and self._last.get(context, -1) <= index:
            self._lanes[self._lanes.index(context)] = None

    def _with(self, lane: int, mark: str) -> str:
        return " ".join(mark if n == lane else " " if name is None else _LANE for n, name in enumerate(self._lanes))

    def _joined(self, lane: int, other: int, corner: str) -> str:
        """Return the lanes with a line from one lane to another, which ends in a corner."""
        cells = [*self._with(lane, "├" if lane < other else "┤")]
        left, right = sorted((2 * lane, 2 * other))
        for at in range(left + 1, right):
            cells[at] = "┼" if cells[at] == _LANE else "─"
        cells[2 * other] = corner if lane < other else {"╮": "╭", "╯": "╰"}[corner]
        return "".join(cells)
