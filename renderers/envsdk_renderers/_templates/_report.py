"""Everything that was measured of one chat template, in one object."""

from collections.abc import Iterator
from dataclasses import dataclass

from .._grammars._proof import ReadingVerdict
from ._history_rule import HistoryRule
from ._verdicts import Verdict


@dataclass(frozen=True)
class TemplateReport:
    """What can be relied on with one chat template; printed, it has a line for each part.

    Attributes:
        turns: The verdict for each pair of a previous reply and a next message.
        reading: The verdict about replies that the measured grammar reads; None if a format of another name reads them.
        history_rule: The rule for past reasoning, so that `strip` costs O(new tokens); None if no rule was proved.
        history_problem: Why there is no rule, so that `strip` costs O(context); empty if there is one.
        unconfirmed_stops: The stop tokens that were measured and are in no file of the tokenizer.
        rewriting: How the template rewrites earlier text of users or the system, by an example; empty if it does not.
    """

    turns: tuple[Verdict, ...]
    reading: ReadingVerdict | None
    history_rule: HistoryRule | None
    history_problem: str
    unconfirmed_stops: tuple[str, ...]
    rewriting: str = ""

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for turn in self.turns:
            yield f"{turn.previous} -> {turn.following}: {turn.status}" + (f" ({turn.detail})" if turn.detail else "")
        yield f"reading: {self.reading or 'by a format that was not measured'}"
        rule = self.history_rule
        yield f"past reasoning: {f'not known: {self.history_problem}' if rule is None else f'the template {rule}'}"
        if self.rewriting:
            yield f"earlier text: {self.rewriting}"
        if self.unconfirmed_stops:
            yield f"stop tokens to check: {', '.join(self.unconfirmed_stops)}"
