"""`envsdk cost`: what training would cost under each history policy, before anything is trained."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..authoring._env import Env
from ..diagnostics._estimates import Prices, Sizes, estimate
from ..errors import ConfigError
from ._options import (
    ENVIRONMENT,
    PRICE,
    SPECIFICATION,
    AsJson,
    EnvOptions,
    RendererOption,
    SeedsOption,
    TasksOption,
    TokenizerOption,
    env_options,
    maker,
    numbers_of,
    specification,
)
from ._output import print_json, print_text

SIZES = (
    "Sizes of messages in tokens instead of an environment, such as first=500,reasoning=400,answer=100,observation=200."
)


def cost(
    env: Annotated[str | None, typer.Argument(help=ENVIRONMENT)] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="The number of steps of an episode.")] = None,
    sizes: Annotated[str | None, typer.Option(help=SIZES)] = None,
    history: Annotated[list[str] | None, typer.Option(help=SPECIFICATION + " You may repeat it.")] = None,
    price: Annotated[str | None, typer.Option(help=PRICE)] = None,
    renderer: RendererOption = None,
    tokenizer: TokenizerOption = None,
    option: EnvOptions = None,
    tasks: TasksOption = None,
    seeds: SeedsOption = "16",
    plot: Annotated[
        Path | None, typer.Option(help="Draw the costs by the number of steps: a .png or .svg file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate what an episode costs under each history policy, in tokens and money.

    Messages have the sizes of the reference policy's episodes, or those of --sizes. "As samples" and "as a tree" are
    the tokens to train. T^1.0 grows with the number of steps T, T^2.0 with its square.
    """
    if (env is None) == (sizes is None):
        raise ConfigError("envsdk cost needs an environment or --sizes, and not both")
    prices = None if price is None else Prices(**numbers_of("--price", price, Prices))
    of: Any
    if env is None:
        family = {"renderer": specification(renderer or "qwen3"), "tokenizer": tokenizer}
        of = Sizes(**numbers_of("--sizes", sizes or "", Sizes))
    else:
        family = {}
        of = maker(env, env_options(option, renderer, tokenizer, None, tasks))()
    try:
        found = estimate(of, history=history, steps=steps, prices=prices, seeds=seeds, **family)
    finally:
        if isinstance(of, Env):
            of.close()
    if plot is not None:
        found.plot(plot)
    if as_json:
        print_json(found.to_dict())
        return
    print_text(str(found))
