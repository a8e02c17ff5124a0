"""The text that two libraries have to give the same ids for before one replaces the other."""

from pathlib import Path

DATA = Path(__file__).parent / "data"


def corpus() -> str:
    """Return the text: many scripts, code, numbers, whitespace, and what is rare."""
    return (DATA / "corpus.txt").read_bytes().decode()
