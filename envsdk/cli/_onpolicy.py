"""`envsdk onpolicy`: compare a sampler with a trainer's forward pass of the same weights."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..authoring._event_loops import run
from ..diagnostics._stack import check_is_comparable, check_stack
from ..policies import load_model, policy_of
from ._options import ENVIRONMENT, NAMED, OPTION, POLICY_OPTION, SPECIFICATION, environment, options_of, specification
from ._output import print_json, print_text


def onpolicy(
    policy: Annotated[str, typer.Option(help="The sampler: vllm:URL, sglang:URL or transformers:FOLDER.")],
    model: Annotated[Path, typer.Option(help="The folder of the same weights, which transformers reads.")],
    env: Annotated[str, typer.Option(help=ENVIRONMENT)] = "envsdk/GuessNumber-v1",
    history: Annotated[str, typer.Option(help=SPECIFICATION + " Example: compact:every=10.")] = "strip",
    renderer: Annotated[str, typer.Option(help=SPECIFICATION)] = "auto",
    tokenizer: Annotated[str | None, typer.Option(help="The tokenizer; by default that of the folder.")] = None,
    policy_option: Annotated[list[str] | None, typer.Option(help=POLICY_OPTION)] = None,
    option: Annotated[list[str] | None, typer.Option(help=OPTION)] = None,
    episodes: Annotated[int, typer.Option(min=1, help="The number of episodes.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the first episode. Each further one adds 1.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="The maximum number of episodes at the same time.")] = 16,
    dtype: Annotated[str, typer.Option(help="The type of the trainer's weights: float32 or bfloat16.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one line of JSON.")] = False,
) -> None:
    """Check whether a stack is on-policy: play episodes on a sampler, and compute a trainer's log-probabilities.

    It prints the share of tokens that are the same, k1, k2 and k3 between sampler and trainer in nats per token, and
    where they differ most. The exit status is 0 if the verdict is healthy, and 1 if it is a warning or critical.
    """
    sampler: Any = policy_of(policy, **options_of(policy_option or ()))
    check_is_comparable(sampler)
    options = options_of(option or (), NAMED)
    options |= {"renderer": specification(renderer), "history": specification(history)}
    trainer = load_model(model, dtype=dtype)
    try:
        report = check_stack(
            environment(env),
            sampler,
            trainer,
            seeds=range(seed, seed + episodes),
            env_options=options | {"tokenizer": str(model) if tokenizer is None else tokenizer},
            max_concurrency=concurrency,
        )
    finally:
        if hasattr(sampler, "aclose"):
            run(sampler.aclose())
    if as_json:
        print_json({"environment": env, "history": history, "policy": policy, **report.to_dict()})
    else:
        print_text(str(report))
    if report.verdict != "healthy":
        raise typer.Exit(1)
