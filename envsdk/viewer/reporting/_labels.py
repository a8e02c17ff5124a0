"""Numbers and texts as a report shows them: short."""

import math

_MAX_OPTION, _MAX_HISTORY = 24, 48


def number(value: float) -> str:
    """Return a number as people read it: thousands with commas, and about four digits."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.1f}" if abs(value) >= 1_000 else f"{value:.4g}"


def signed(value: float) -> str:
    """Return a number with its sign."""
    return number(value) if value < 0 or value == 0 else f"+{number(value)}"


def short_history(history: str) -> str:
    """Return a history policy with its long texts clipped, such as the instruction of `summarize`."""
    name, _, options = history.partition(":")
    parts = [part.partition("=") for part in options.split(",") if len(part) <= _MAX_OPTION]
    shown = ["".join(part) for part in parts if part[2] and part[2][0] not in "[{"]
    return clipped(f"{name}:{','.join(shown)}" if shown else name, _MAX_HISTORY)


def clipped(text: str, most: int) -> str:
    """Return a text, or its beginning and an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
