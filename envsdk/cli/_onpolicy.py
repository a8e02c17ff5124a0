"""`envsdk onpolicy`: compare a sampler with a trainer's forward pass of the same weights."""

from pathlib import Path
from typing import Annotated

import typer

from ..diagnostics._stack import check_is_comparable, check_stack
from ..policies import load_model
from ..policies._find import closing_policy
from ._options import (
    SPECIFICATION,
    AsJson,
    EnvName,
    EnvOptions,
    HistoryOption,
    MaxConcurrency,
    PolicyOptions,
    SeedsOption,
    TasksOption,
    env_options,
    environment,
    policy_from,
)
from ._output import print_json, print_text


def onpolicy(
    policy: Annotated[
        str, typer.Option(help="The sampler: vllm:URL, sglang:URL, transformers:FOLDER, or your own: module:function.")
    ],
    model: Annotated[Path, typer.Option(help="The folder of the same weights, which transformers reads.")],
    env: EnvName = "envsdk/GuessNumber-v1",
    history: HistoryOption = None,
    renderer: Annotated[str, typer.Option(help=SPECIFICATION)] = "auto",
    tokenizer: Annotated[str | None, typer.Option(help="The tokenizer; by default that of the folder.")] = None,
    policy_option: PolicyOptions = None,
    option: EnvOptions = None,
    tasks: TasksOption = None,
    seeds: SeedsOption = "16",
    max_concurrency: MaxConcurrency = 64,
    dtype: Annotated[str, typer.Option(help="The type of the trainer's weights: float32 or bfloat16.")] = "float32",
    as_json: AsJson = False,
) -> None:
    """Check whether a stack is on-policy: play episodes on a sampler, and compute a trainer's log-probabilities.

    It prints the share of tokens that are the same, k1, k2 and k3 between sampler and trainer in nats per token, and
    where they differ most. The exit status is 0 if the verdict is healthy, and 1 if it is a warning or critical.
    """
    sampler = policy_from(policy, None, policy_option)
    check_is_comparable(sampler)
    options = env_options(option, renderer, str(model) if tokenizer is None else tokenizer, history, tasks)
    trainer = load_model(model, dtype=dtype)
    with closing_policy(sampler):
        report = check_stack(
            environment(env),
            sampler,
            trainer,
            seeds=seeds,
            env_options=options,
            max_concurrency=max_concurrency,
        )
    if as_json:
        print_json({"environment": env, "history": history or "keep", "policy": policy, **report.to_dict()})
    else:
        print_text(str(report))
    if report.verdict != "healthy":
        raise typer.Exit(1)
