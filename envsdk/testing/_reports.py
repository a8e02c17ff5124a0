"""The results of conformance checks."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, Self, TypeAlias, TypeVar

from .._visible import shorten, visible

Verdict: TypeAlias = Literal["PASS", "FAIL", "NOT POSSIBLE"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    """The name of the check."""
    verdict: Verdict
    """The verdict."""
    detail: str = ""
    """For a failure, what differs; for a check that is not possible, why; otherwise what was checked, or empty."""

    def __str__(self) -> str:
        return visible(f"{self.verdict:12} {self.name}" + (f": {self.detail}" if self.detail else ""))


C = TypeVar("C", bound=Check)


@dataclass(slots=True)
class CheckReport(Generic[C]):
    """The results of all checks of one renderer or environment. `str()` gives one line for each check."""

    subject: str
    """The name of what was checked."""
    checks: list[C] = field(default_factory=list[C])

    @property
    def failed(self) -> list[C]:
        """The checks that failed."""
        return [check for check in self.checks if check.verdict == "FAIL"]

    def raise_if_failed(self) -> Self:
        """Return the report itself if no check failed, or raise an `AssertionError` that lists all failures."""
        if self.failed:
            lines = [f"- {self.describe(check)}" for check in self.failed]
            raise AssertionError(visible("\n".join([f"{self.subject} fails these checks:", *lines])))
        return self

    def describe(self, check: C) -> str:
        """Return the line of the error for a failed check."""
        return f"{check.name}: {check.detail}"

    def __str__(self) -> str:
        return "\n".join(
            [*map(str, self.checks), visible(f"{self.subject}: {len(self.failed)} of {len(self.checks)} checks failed")]
        )


class CheckFailure(Exception):
    """A check failed.

    Args:
        what: What differs.
        seed: The seed of the episode that fails; None for the last episode.
    """

    def __init__(self, what: str, seed: int | None = None) -> None:
        super().__init__(what)
        self.seed = seed


class NotPossible(Exception):
    """A check does not apply, or cannot run. The text says why."""


def run_check(name: str, check: Callable[[], str | None], impossible: type[Exception] = NotPossible) -> Check:
    """Run a check, and convert exceptions to a result.

    Args:
        name: The name of the check.
        check: Returns what was checked, or raises a `CheckFailure`.
        impossible: The exception of a check that is not possible.
    """
    try:
        return Check(name, "PASS", check() or "")
    except CheckFailure as failure:
        return Check(name, "FAIL", str(failure))
    except impossible as reason:
        return Check(name, "NOT POSSIBLE", str(reason))
    except Exception as error:  # what is checked may raise anything
        return Check(name, "FAIL", f"it raises {described(error)}")


def described(error: BaseException) -> str:
    """Describe an exception on one line: its type, its text, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}"] if frames else []
    notes = [str(note).removesuffix(".") for note in getattr(error, "__notes__", ())]
    details = "; ".join([*where, *notes])
    what = f"{type(error).__name__}: {shorten(str(error) or 'without a message', 300)}"
    return f"{what} ({details})" if details else what
