"""Show the progress of a run: live on a terminal, and as a line every 30 s elsewhere."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .._visible import brief
from ..errors import ConfigError
from ._reporting import Reporter

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Progress: TypeAlias = "bool | Literal['auto'] | Console"
"""Whether to show progress, or the rich console to show it on."""

_END_S = 2.0
"""The longest time for the last update, in seconds. A terminal that is stopped (Ctrl-S) would take forever."""


def find_progress(progress: Progress) -> Reporter | None:
    """Return the reporter that shows the progress, or None.

    Raises:
        ConfigError: If `progress` is anything but True, False, `"auto"`, or a console.
    """
    if isinstance(progress, (bool, str)):
        if progress not in (True, False, "auto"):
            raise ConfigError(f"progress is {brief(progress)}; expected True, False, 'auto', or a rich console")
        if progress is False or (progress == "auto" and not _has_terminal()):
            return None
        return Display() if _has_terminal() else ProgressLines()
    from rich.console import Console

    if not isinstance(progress, Console):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"progress is {brief(progress)}; expected True, False, 'auto', or a rich console")
    return Display(progress)


def _has_terminal() -> bool:
    """Return whether standard error is a terminal that can move its cursor."""
    try:
        return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    except (AttributeError, ValueError):  # standard error is missing or closed
        return False


class ProgressLines(Reporter):
    """Print a line on standard error every 30 seconds, and one at the end."""

    name = "the progress lines"
    every_s = 30.0
    end_s = _END_S

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Print a line."""
        if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison] (a program without a console)
            facts = "; ".join(f"{label} {text}" for label, text in facts_of(values).items())
            print(f"rollouts: {counts(values)}; {facts}", file=sys.stderr, flush=True)


@dataclass(eq=False, repr=False)
class Display(Reporter):
    """A live display.

    Args:
        console: The rich console to draw on; None for one on standard error.
    """

    name = "the progress display"
    every_s = 0.5
    end_s = _END_S

    _console: "Console | None" = None
    _live: Any = None

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Draw the display."""
        from rich.live import Live

        drawn = drawing_of(values)
        if self._live is None:
            # Other output appears above the display, unless standard output goes somewhere else.
            same = sys.stdout is not None and sys.stdout.isatty()  # pyright: ignore[reportUnnecessaryComparison]
            console = self._console or _new_console()
            live = Live(drawn, console=console, auto_refresh=False, redirect_stdout=same)
            live.start()
            self._live = live
        self._live.update(drawn, refresh=True)

    def end(self) -> None:
        """Leave the last drawing on the terminal, and put the cursor below it."""
        if self._live is not None:
            self._live.stop()


def _new_console() -> "Console":
    from rich.console import Console

    class StandardError(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich would end the program, and close standard output

    return StandardError(stderr=True)


def drawing_of(values: Mapping[str, float]) -> "RenderableType":
    """Draw a bar with the counts, and the facts below it."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bar = Table.grid(padding=(0, 1))
    progress = ProgressBar(total=values["rollouts/total"], completed=values["rollouts/episodes"], width=30)
    bar.add_row(Text("rollouts"), progress, Text(counts(values)))
    facts = Table.grid(padding=(0, 1))
    for label, text in facts_of(values).items():
        facts.add_row(Text(label, "dim"), Text(text, "red" if label == "failures" else ""))
    return Group(bar, facts)


def counts(values: Mapping[str, float]) -> str:
    """Describe the number of episodes that have ended, the time since the beginning, and the time left."""
    done, total, seconds = (values[f"rollouts/{name}"] for name in ("episodes", "total", "elapsed_s"))
    text = f"{done:,.0f}/{total:,.0f} episodes in {_time(seconds)}"
    here = done - values["rollouts/resumed"]
    return text if not here or done >= total else f"{text}, about {_time((total - done) * seconds / here)} left"


def facts_of(values: Mapping[str, float]) -> dict[str, str]:
    """Return the other facts by label, without those that have not happened."""
    seconds = max(values["rollouts/elapsed_s"], 1e-3)
    speeds = [
        f"{values[f'rollouts/{unit}_per_second']:,.4g} {unit}/s (overall {values[total] / seconds:,.4g})"
        for unit, total in (("steps", "rollouts/steps"), ("tokens", "rollouts/sampled_tokens"))
    ]
    facts = {
        "speed": ", ".join(speeds),
        "mean reward": f"{values['rollouts/reward_mean']:.4g}" if "rollouts/reward_mean" in values else "",
        "waiting": _listed(values, "rollouts/waiting/", "{} {:.0%}"),
        "failures": _listed(values, "rollouts/failures/", "{} {:,.0f}"),
        "retries": _listed(values, "rollouts/retries/", "{} {:,.0f}"),
        "requests sent again": _listed(values, "rollouts/request_retries/", "{} {:,.0f}"),
        "stale": f"{values['rollouts/stale']:,.0f}" if values["rollouts/stale"] else "",
        "abandoned": f"{values['rollouts/abandoned']:,.0f}" if values["rollouts/abandoned"] else "",
        "event loop": f"{1000 * values['rollouts/lag_p99_s']:.3g} ms late (p99)",
    }
    return {label: text for label, text in facts.items() if text}


def _listed(values: Mapping[str, float], prefix: str, form: str) -> str:
    """List the values below a prefix, the largest first."""
    found = sorted(((value, name) for name, value in values.items() if name.startswith(prefix) and value), reverse=True)
    return ", ".join(form.format(name.removeprefix(prefix), value) for value, name in found[:6])


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
