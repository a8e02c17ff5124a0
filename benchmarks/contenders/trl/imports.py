"""The import of TRL."""

from benchmarks.contender import Repetition, contender
from benchmarks.imports import importing


@contender("import-time", "TRL", packages=("trl",), note="`from trl import GRPOTrainer`")
def imported(_: str) -> Repetition:
    """Import what a program of it imports."""
    return importing("from trl import GRPOTrainer")
