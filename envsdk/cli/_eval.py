"""`envsdk eval`: score models in environments, compare runs, and score stored runs again."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from ..rollouts import Rollouts
from ..rollouts.evaluation import Evaluation, Model, Suite, SuiteEnvironment, compared, evaluate, runs_of, scored
from ._options import (
    ENVIRONMENT,
    AllowChanged,
    AsJson,
    EnvOptions,
    Extend,
    GroupSize,
    HistoryOption,
    MaxConcurrency,
    ModelOption,
    PolicyOption,
    PolicyOptions,
    RendererOption,
    SeedsOption,
    TasksOption,
    TokenizerOption,
    env_options,
    function_from,
    import_from_here,
    policy_options,
)
from ._output import print_error, print_table, print_text

SUITE = f"A suite (TOML or YAML), the folder of a stored run or evaluation, or an environment. {ENVIRONMENT}"

NOT_SCORED = "The reward of an episode that was not scored, such as 0 for a leaderboard; by default, it is left out."


def eval_(
    what: Annotated[str, typer.Argument(metavar="SUITE", help=SUITE)],
    policy: PolicyOption = "reference",
    model: ModelOption = None,
    policy_option: PolicyOptions = None,
    renderer: RendererOption = None,
    tokenizer: TokenizerOption = None,
    history: HistoryOption = None,
    option: EnvOptions = None,
    tasks: TasksOption = None,
    seeds: SeedsOption = "16",
    group_size: GroupSize = 1,
    max_concurrency: MaxConcurrency = 64,
    success: Annotated[float | None, typer.Option(help="The reward of a success.")] = None,
    not_scored: Annotated[float | None, typer.Option(help=NOT_SCORED)] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the evaluation; by default runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the evaluation in the folder.")] = False,
    extend: Extend = False,
    allow_changed: AllowChanged = False,
    against: Annotated[
        Path | None, typer.Option(help="Compare with the evaluation, or the run, in this folder.")
    ] = None,
    reward: Annotated[str | None, typer.Option(help="Score a stored run with this module:function.")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate models in environments: mean reward with its error, pass@k, pass^k, rewards, breaks, tokens, time.

    The folder has a run folder for each environment and model, evaluation.json, and evaluation.md for a model card.
    The options of the policy and of the environment are for a single environment; a suite has its own.
    """
    import_from_here()
    stored = Path(what)
    if stored.is_dir():
        function = None if reward is None else function_from(reward)
        evaluation = scored(stored, function, success=success, not_scored=not_scored)
        if against is not None:
            runs = dict(runs_of(stored))
            evaluation = compared(evaluation, runs, against, reward=function, not_scored=not_scored)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            evaluation.write(out)
        _print(evaluation, as_json)
        return
    if reward is not None:
        raise ConfigError(f"--reward scores a stored run again, but {what!r} is not the folder of one")
    if stored.suffix in (".toml", ".yaml", ".yml"):
        suite = Suite.read(stored)
        if not_scored is not None:
            suite = suite.model_copy(update={"not_scored": not_scored})
    else:
        options = env_options(option, renderer, tokenizer, history, tasks)
        suite = Suite(
            name=what,
            environments=[SuiteEnvironment(id=what, options=options, success=success)],
            models={model or policy: Model(policy=policy, options=policy_options(model, policy_option))},
            seeds=seeds,
            group_size=group_size,
            not_scored=not_scored,
            rollouts={"max_concurrency": max_concurrency},
        )
    continues = {"extend": extend, "allow_changed": allow_changed}
    suite = suite.model_copy(update={"rollouts": {**suite.rollouts, **{k: v for k, v in continues.items() if v}}})

    def announce(env: str, model: str, rollouts: Rollouts) -> None:
        print_error(f"{env}, {model}: {rollouts.statistics.total - rollouts.statistics.resumed} episodes")

    folder = Path("runs") / (stored.stem if stored.suffix else "evaluation") if out is None else out
    try:
        evaluation = evaluate(suite, folder, resume=resume, against=against, on_begin=None if as_json else announce)
    except KeyboardInterrupt:
        print_error(f"interrupted; completed episodes are stored in {folder}; the same command with --resume continues")
        raise typer.Exit(130) from None
    _print(evaluation, as_json)
    if not as_json:
        print_text(f"wrote {folder}/evaluation.json and {folder}/evaluation.md")
    if all(sum(result.score.failed.values()) == result.score.episodes for result in evaluation.results):
        raise typer.Exit(1)


def _print(evaluation: Evaluation, as_json: bool) -> None:
    if as_json:
        print_text(evaluation.to_json())
        return
    print_table(evaluation.table())
    for line in evaluation.details():
        print_text(line)
