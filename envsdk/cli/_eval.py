"""`envsdk eval`: score models in environments, compare runs, and score stored runs again."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from ..rollouts import Rollouts
from ..rollouts.evaluation import Evaluation, Model, Suite, SuiteEnvironment, compared, evaluate, runs_of, scored
from ._options import (
    ALLOW_CHANGED,
    ENVIRONMENT,
    OPTION,
    POLICY,
    POLICY_OPTION,
    RENDERER,
    TOKENIZER,
    function_from,
    import_from_here,
    options_of,
    policy_options,
    specification,
)
from ._output import print_error, print_table, print_text

SUITE = f"A suite (TOML or YAML), the folder of a stored run or evaluation, or an environment. {ENVIRONMENT}"

NOT_SCORED = "The reward of an episode that was not scored, such as 0 for a leaderboard; by default, it is left out."


def eval_(
    what: Annotated[str, typer.Argument(metavar="SUITE", help=SUITE)],
    policy: Annotated[str, typer.Option(help=POLICY)] = "reference",
    model: Annotated[str | None, typer.Option(help="The name of the model on the server.")] = None,
    policy_option: Annotated[list[str] | None, typer.Option(help=POLICY_OPTION)] = None,
    renderer: Annotated[str | None, typer.Option(help=RENDERER)] = None,
    tokenizer: Annotated[str, typer.Option(help=TOKENIZER)] = "embedded",
    option: Annotated[list[str] | None, typer.Option(help=OPTION)] = None,
    seeds: Annotated[int, typer.Option(min=1, help="The number of tasks.")] = 32,
    samples: Annotated[int, typer.Option(min=1, help="The number of episodes of each task.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="The maximum number of episodes at the same time.")] = 64,
    success: Annotated[float | None, typer.Option(help="The reward of a success.")] = None,
    not_scored: Annotated[float | None, typer.Option(help=NOT_SCORED)] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the evaluation; by default runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the evaluation in the folder.")] = False,
    allow_changed: Annotated[bool, typer.Option("--allow-changed", help=ALLOW_CHANGED)] = False,
    compare: Annotated[Path | None, typer.Option(help="The folder of another evaluation, or of a run.")] = None,
    reward: Annotated[str | None, typer.Option(help="Score a stored run with this module:function.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
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
        if compare is not None:
            runs = dict(runs_of(stored))
            evaluation = compared(evaluation, runs, compare, reward=function, not_scored=not_scored)
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
        options = policy_options(model, policy_option or ())
        environment = SuiteEnvironment(
            id=what, options=options_of(option or (), ("renderer", "tokenizer")), success=success
        )
        family = renderer and specification(renderer)
        one = Model(policy=policy, options=options, renderer=family, tokenizer=tokenizer)
        name = model or policy
        rollouts = {"max_concurrency": concurrency}
        suite = Suite(
            name=what,
            environments=[environment],
            models={name: one},
            seeds=seeds,
            samples=samples,
            not_scored=not_scored,
            rollouts=rollouts,
        )
    if allow_changed:
        suite = suite.model_copy(update={"rollouts": {**suite.rollouts, "allow_changed": True}})

    def announce(env: str, model: str, rollouts: Rollouts) -> None:
        print_error(f"{env}, {model}: {rollouts.statistics.total - rollouts.statistics.resumed} episodes")

    folder = Path("runs") / (stored.stem if stored.suffix else "evaluation") if out is None else out
    try:
        evaluation = evaluate(suite, folder, resume=resume, against=compare, on_begin=None if as_json else announce)
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
