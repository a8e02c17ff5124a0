"""The import of verifiers."""

from benchmarks.contender import Repetition, contender
from benchmarks.imports import importing


@contender("import-time", "verifiers", packages=("verifiers",), note="`import verifiers.v1`")
def imported(_: str) -> Repetition:
    """Import what a program of it imports."""
    return importing("import verifiers.v1")
