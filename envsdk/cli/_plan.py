"""`envsdk plan`: where recorded episodes should have dropped the past, and what that saves."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..diagnostics._estimates import Prices
from ..diagnostics._plans import plan
from ..rollouts._stored_run import StoredRun
from ._options import PRICE, AsJson, numbers_of
from ._output import print_json, print_text

DROPS = (
    "What a break drops, such as thinking,tool_results or oldest; see the option order of budget. By default "
    "thinking,tool_results, or oldest if that is not enough."
)


def plan_(
    run: Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN")],
    max_context_tokens: Annotated[int | None, typer.Option(min=1, help="The longest prompt, in tokens.")] = None,
    price: Annotated[str | None, typer.Option(help=PRICE + " By default input=1,cached=0.1.")] = None,
    drops: Annotated[str | None, typer.Option(help=DROPS)] = None,
    keep_last: Annotated[int, typer.Option(min=1, help="The number of last replies that a break leaves whole.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Find where the episodes of a run should have dropped the past, so that they cost least under a context limit.

    It prints what they cost as they were recorded, with the best fixed policies, with the policy planned, which decides
    without knowing the future, and with the cheapest schedule of each episode. Nothing is sampled: the recorded
    messages and tokens are replayed.
    """
    stored = StoredRun(run)
    options: dict[str, Any] = {} if price is None else {"prices": Prices(**numbers_of("--price", price, Prices))}
    if drops is not None:
        options["drops"] = drops.split(",")
    options |= {"max_context_tokens": max_context_tokens, "keep_last": keep_last}
    found = plan(stored.trajectories(), stored.renderers, **options)
    if as_json:
        print_json(found.to_dict())
    else:
        print_text(str(found))
