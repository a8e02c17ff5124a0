"""What checks say: of a renderer, of an environment."""

from dataclasses import dataclass, field
from typing import Generic, Literal, Self, TypeAlias, TypeVar

from ..visible import visible

Verdict: TypeAlias = Literal["PASS", "FAIL", "NOT POSSIBLE"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked."""

    name: str
    verdict: Verdict
    detail: str = ""
    """For a failure, what differs; for what is not possible, why; for the past in a template, what of it the template
    rewrites, if anything."""

    def __str__(self) -> str:
        return visible(f"{self.verdict:12} {self.name}" + (f": {self.detail}" if self.detail else ""))


C = TypeVar("C", bound=Check)


@dataclass(slots=True)
class CheckReport(Generic[C]):
    """All checks of one thing. As text it is a line for each of them."""

    subject: str
    """What was checked."""
    checks: list[C] = field(default_factory=list[C])

    @property
    def failed(self) -> list[C]:
        """The checks that failed."""
        return [check for check in self.checks if check.verdict == "FAIL"]

    def raise_if_failed(self) -> Self:
        """Return the report itself, or raise an `AssertionError` that tells all failures."""
        if self.failed:
            raise AssertionError(
                visible(f"{self.subject} fails:\n" + "\n".join(f"- {self.told(check)}" for check in self.failed))
            )
        return self

    def told(self, check: C) -> str:
        """What stands in the error for a check that failed."""
        return f"{check.name}: {check.detail}"

    def __str__(self) -> str:
        return "\n".join(
            [*map(str, self.checks), visible(f"{self.subject}: {len(self.failed)} of {len(self.checks)} checks fail")]
        )


class Failure(Exception):
    """A check does not hold.

    Args:
        what: What differs.
        seed: Where, if it is not the episode that was played last.
    """

    def __init__(self, what: str, seed: int | None = None) -> None:
        super().__init__(what)
        self.seed = seed


class NotPossible(Exception):
    """A check makes no sense here, or cannot be made; it says why."""
