"""The import of tinker-cookbook."""

from benchmarks.contender import Repetition, contender
from benchmarks.imports import importing


@contender(
    "import-time", "tinker-cookbook", packages=("tinker-cookbook",), note="`from tinker_cookbook.rl import rollouts`"
)
def imported(_: str) -> Repetition:
    """Import what a program of it imports."""
    return importing("from tinker_cookbook.rl import rollouts")
