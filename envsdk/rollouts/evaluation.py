"""Evaluation: environments x models x samples, from a suite file, with run folders that can be scored again."""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .._arguments import explain_arguments
from .._describing import what_is_invalid
from .._packages import load
from .._untrusted import MAX_DESCRIPTION_BYTES, parse_json, read_file
from .._visible import brief, on_one_line
from ..authoring._making import find_class
from ..errors import ConfigError, InvalidRecord, RunFolderError, UnknownName
from ..policies._find import closing_policy, policy_of
from ..trajectories._trajectory import Trajectory
from ._engine import Rollouts
from ._stored_run import StoredRun
from .scores import Comparison, Score, compare, rescored

__all__ = ["Evaluation", "EvaluationResult", "Model", "Suite", "SuiteEnvironment", "compared", "evaluate", "scored"]

if TYPE_CHECKING:
    from rich.table import Table

REPORT = "evaluation.json"
_MARKDOWN = "evaluation.md"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, given: Any) -> Any:
        for name in cast("dict[str, Any]", given) if isinstance(given, dict) else ():
            if name not in cls.model_fields:
                raise UnknownName.of(f"field of {cls.__name__}", name, cls.model_fields)
        return cast("Any", given)


class Model(_Part):
    """A model of a suite.

    Attributes:
        policy: The policy, as on the command line: `vllm:URL`, `sglang:URL`, `openai:URL`, or a built-in one.
        options: The arguments of the policy, such as `model`, `temperature` and `price`.
        renderer: The renderer of the model's family, with options: `qwen3:enable_thinking=false`. By default, the
            environment's renderer: `qwen3`, or one that writes images if the environment `shows_images`.
        tokenizer: The model's tokenizer; a policy that exchanges text needs none.
    """

    policy: str
    options: dict[str, Any] = Field(default_factory=dict)
    renderer: str | dict[str, Any] | None = None
    tokenizer: str | None = None


class SuiteEnvironment(_Part):
    """An environment of a suite.

    Attributes:
        id: Its id, or `module:Class`.
        name: Its name in reports; by default the id.
        options: Its options, and `history`, `limits` and `tasks`.
        seeds: Its seeds, by default the suite's: a number N, for 0 to N - 1; or `FIRST:END`.
        success: The reward of a success; by default the largest reward that the environment declares, else 1.
    """

    id: str
    name: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    seeds: int | str | None = None
    success: float | None = None


class Suite(_Part):
    """A suite: each model is evaluated in each environment.

    Attributes:
        name: The suite's name.
        environments: The environments.
        models: The models by name.
        seeds: The seeds, one for each task of each environment: a number N, for 0 to N - 1; or `FIRST:END`.
        group_size: The number of episodes of each task.
        not_scored: The reward that an episode counts with if it was not scored, such as 0.0 for a leaderboard. By
            default, it is left out.
        rollouts: Further arguments of `Rollouts`, such as `max_concurrency` and `policy_timeout_s`.
    """

    name: str = "evaluation"
    environments: list[SuiteEnvironment] = Field(min_length=1)
    models: dict[str, Model] = Field(min_length=1)
    seeds: int | str = 16
    group_size: int = Field(default=1, ge=1)
    not_scored: float | None = Field(default=None, allow_inf_nan=False)
    rollouts: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "Suite":
        """Read a suite from a TOML or YAML file.

        Raises:
            ConfigError: If it cannot be read, or is not a suite; the message names the field.
        """
        try:
            text = read_file(file, MAX_DESCRIPTION_BYTES).decode()
            if file.suffix == ".toml":
                content = tomllib.loads(text)
            elif file.suffix in (".yaml", ".yml"):
                yaml = load("yaml", "a suite in YAML needs", "pip install pyyaml")
                try:
                    content = yaml.safe_load(text)
                except yaml.YAMLError as error:
                    raise ConfigError(f"the suite is not YAML: {error}") from error
            else:
                raise ConfigError(f"{file} is not a suite: expected a file that ends in .toml, .yaml or .yml")
            return cls.model_validate(content)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, InvalidRecord) as error:
            raise ConfigError(f"the suite {file} cannot be read: {error}") from error
        except RecursionError as error:
            raise ConfigError(f"the suite {file} cannot be read: its lists and tables are nested too deeply") from error
        except UnknownName as error:
            raise ConfigError(f"the suite {file} is not valid: {error}") from error
        except ValidationError as error:
            raise ConfigError(f"the suite {file} is not valid: {what_is_invalid(error)}") from error


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The score of a model in an environment.

    Attributes:
        env: The environment's name in the suite.
        model: The model's name in the suite.
        score: The score.
        seconds: How long its episodes took together; None if they were read from a folder.
        price: Their price, if the policy has prices.
        comparison: The comparison with another run, if there is one.
    """

    env: str
    model: str
    score: Score
    seconds: float | None = None
    price: float | None = None
    comparison: Comparison | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON."""
        comparison = None if self.comparison is None else self.comparison.to_dict()
        own = {"env": self.env, "model": self.model, "seconds": self.seconds, "price": self.price}
        return {**own, "comparison": comparison, **self.score.to_dict()}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of a suite.

    Attributes:
        name: The suite's name.
        results: One result for each environment and model.
    """

    name: str
    results: tuple[EvaluationResult, ...]

    def to_json(self) -> str:
        """Return all figures as JSON."""
        return json.dumps({"name": self.name, "results": [one.to_dict() for one in self.results]}, indent=2)

    def to_markdown(self) -> str:
        """Return a table and the details, for a model card."""
        heads, rows = self._cells()
        lines = [f"# {_escaped(self.name)}", "", _row(heads), _row(["---"] * len(heads)), *map(_row, rows), ""]
        lines += [f"- {_escaped(line)}" for line in self.details()]
        return "\n".join(lines) + "\n"

    def details(self) -> Iterator[str]:
        """Yield a line for each result with the facts that the table does not show."""
        for one in self.results:
            score, comparison = one.score, one.comparison
            scored = f"scored {score.scored} of {score.episodes}"
            if score.not_scored:
                counted = "" if score.not_scored_reward is None else f", counted as {score.not_scored_reward:g}"
                scored += f", not scored {_counts(score.not_scored)}{counted}"
            parts = [
                scored,
                f"ended {_counts(score.stop_reasons)}",
                f"breaks {_counts(score.breaks) or 'none'}",
                f"{score.observed_tokens:.0f} observed and {score.sampled_tokens:.0f} sampled tokens an episode",
            ]
            if score.image_tokens > 0:
                parts[-1] += f", {score.image_tokens:.0f} of them of {score.images:.1f} images"
            if score.rewards:
                parts.append("rewards " + ", ".join(f"{name} {value:.3f}" for name, value in score.rewards.items()))
            if comparison is not None:
                left_out = f", {comparison.left_out} left out" if comparison.left_out else ""
                parts.append(f"compared over {comparison.tasks} tasks that both runs scored{left_out}")
            yield on_one_line(f"{one.env}, {one.model}: {'; '.join(parts)}")

    def table(self) -> "Table":
        """Return a table for a terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        heads, rows = self._cells()
        drawn = Table(title=Text(on_one_line(self.name), "italic"), box=SIMPLE_HEAD, padding=(0, 1), show_edge=False)
        cells = [[Text(on_one_line(cell)) for cell in row] for row in rows]
        for number, head in enumerate(heads):
            width = max(len(head), *(row[number].cell_len for row in cells))
            drawn.add_column(head, justify="left" if number < 2 else "right", no_wrap=True, min_width=width)
        for row in cells:
            drawn.add_row(*row)
        return drawn

    def write(self, folder: Path) -> None:
        """Write `evaluation.json` and `evaluation.md`."""
        (folder / REPORT).write_text(self.to_json() + "\n", encoding="utf-8")
        (folder / _MARKDOWN).write_text(self.to_markdown(), encoding="utf-8")

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        most = max((max(one.score.pass_at, default=1) for one in self.results), default=1)
        has_comparison = any(one.comparison is not None for one in self.results)
        has_price = any(one.price is not None for one in self.results)
        heads = ["environment", "model", "episodes", "not scored", "reward", "pass@1"]
        heads += [f"pass@{most}", f"pass^{most}"] if most > 1 else []
        heads += ["steps", "tokens", "time"] + ["price"] * has_price + ["difference"] * has_comparison
        rows: list[list[str]] = []
        for one in self.results:
            score = one.score
            row = [one.env, one.model, str(score.episodes), str(sum(score.not_scored.values()))]
            row += [f"{score.reward:.3f} ± {score.reward_error:.3f}", f"{score.success:.3f}"]
            if most > 1:
                both = score.pass_at.get(most), score.pass_all.get(most)
                row += ["" if value is None else f"{value:.3f}" for value in both]
            row += [f"{score.steps:.1f}", f"{score.sampled_tokens:.0f}"]
            row.append("" if one.seconds is None else f"{one.seconds:.0f} s")
            row += ["" if one.price is None else f"{one.price:.4f}"] * has_price
            if (found := one.comparison) is not None:
                interval = f"[{found.low:+.3f}, {found.high:+.3f}]"
                row.append(f"{found.difference:+.3f} {interval}, p {found.p_value:.3f}")
            elif has_comparison:
                row.append("")
            rows.append(row)
        return heads, rows


def evaluate(
    suite: Suite,
    out: Path,
    *,
    resume: bool = False,
    against: Path | None = None,
    on_begin: Callable[[str, str, Rollouts], None] | None = None,
) -> Evaluation:
    """Roll out a suite, one model and environment after another, each into a separate run folder, and score it.

    Args:
        suite: The suite.
        out: A folder, for the run folders and the report.
        resume: Whether to continue an evaluation that was interrupted.
        against: The folder of another evaluation, or of a run, to compare with.
        on_begin: A function that is called with the environment, the model and the run, before each run.

    Raises:
        ConfigError: If a value in the suite does not fit the environments or policies.
        RunFolderError: If a folder holds another run.
        StorageError: If a folder cannot be written.
    """
    results: list[EvaluationResult] = []
    runs: dict[tuple[str, str], StoredRun] = {}
    for environment in suite.environments:
        for name, model in suite.models.items():
            options: dict[str, Any] = {} if model.renderer is None else {"renderer": model.renderer}
            options |= environment.options
            if model.tokenizer is not None:
                options["tokenizer"] = model.tokenizer
            policy = policy_of(model.policy, **model.options)
            label = environment.name or environment.id
            rollouts = Rollouts(
                find_class(environment.id) if ":" in environment.id else environment.id,
                policy,
                env_options=options,
                seeds=suite.seeds if environment.seeds is None else environment.seeds,
                group_size=suite.group_size,
                out=out / _folder_name(label) / _folder_name(name),
                resume=resume,
                **suite.rollouts,
            )
            if on_begin is not None:
                on_begin(label, name, rollouts)
            success = environment.success
            if success is None:
                highest = rollouts.reward_range[1]
                success = highest if highest < float("inf") else 1.0
            with closing_policy(policy):
                rollouts.run()
            assert rollouts.folder is not None
            price = getattr(getattr(policy, "usage", None), "price", 0.0)
            *before, last = segments_of(rollouts.folder.path, name)
            for named, run in (*before, last):
                runs[label, named] = run
                score = Score.of(run.trajectories(), success_reward=success, not_scored=suite.not_scored)
                spent = (rollouts.statistics.elapsed_s, price or None) if (named, run) == last else (None, None)
                results.append(EvaluationResult(label, named, score, *spent))
    evaluation = Evaluation(suite.name, tuple(results))
    if against is not None:
        evaluation = compared(evaluation, runs, against, not_scored=suite.not_scored)
    evaluation.write(out)
    return evaluation


def segments_of(path: Path, name: str) -> list[tuple[str, StoredRun]]:
    """Return the segments of a run, which reports keep apart, each with its name; or the run, if it has only one."""
    run = StoredRun(path)
    count = len(run.description.segments) + 1
    if count == 1:
        return [(name, run)]
    return [(f"{name}, segment {number}", StoredRun(path, segment=number)) for number in range(1, count + 1)]


def runs_of(folder: Path) -> Iterator[tuple[tuple[str, str], StoredRun]]:
    """Yield the runs of an evaluation's folder by environment and model; or the run, if it is one run's folder.

    Raises:
        RunFolderError: If there is none.
    """
    if (folder / "run.json").is_file():
        for name, run in segments_of(folder, folder.name):
            yield (str(run.configuration.get("env", "")), name), run
        return
    report = folder / REPORT
    labels: dict[tuple[str, str], tuple[str, str]] = {}
    if report.is_file():
        try:
            for one in parse_json(read_file(report, inside=folder))["results"]:
                env, model = str(one["env"]), str(one["model"]).partition(", segment ")[0]
                labels[_folder_name(env), _folder_name(model)] = env, model
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise RunFolderError(f"{report} is not the report of an evaluation: {brief(error, 200)}") from error
    found = sorted(file.parent for file in folder.glob("*/*/run.json"))
    if not found:
        raise RunFolderError(f"{str(folder)!r} has no run: expected the folder of a run or of an evaluation")
    for path in found:
        key = path.parent.name, path.name
        env, model = labels.get(key, key)
        for name, run in segments_of(path, model):
            yield (env, name), run


def scored(
    folder: Path,
    reward: Callable[[Trajectory], Any] | None = None,
    *,
    success: float | None = None,
    not_scored: float | None = None,
) -> Evaluation:
    """Score stored runs again, without sampling.

    Args:
        folder: The folder of a run, or of an evaluation.
        reward: A function of an episode that returns its reward, its named rewards, or None; see `rescored`. None
            keeps the stored rewards.
        success: The reward of a success; 1 by default.
        not_scored: The reward that an episode counts with if it was not scored; None leaves it out.

    Raises:
        RunFolderError: If there is no run, or it is damaged.
        ConfigError: If the function returns something else.
    """
    success = 1.0 if success is None else success
    results = [
        EvaluationResult(env, model, Score.of(_episodes(run, reward), success_reward=success, not_scored=not_scored))
        for (env, model), run in runs_of(folder)
    ]
    return Evaluation(folder.name, tuple(results))


def compared(
    evaluation: Evaluation,
    runs: Mapping[tuple[str, str], StoredRun],
    against: Path,
    *,
    reward: Callable[[Trajectory], Any] | None = None,
    not_scored: float | None = None,
) -> Evaluation:
    """Return an evaluation with comparisons to another evaluation, or to a run.

    A result is compared with the result of the same environment and model, or else with the environment's only result.

    Args:
        evaluation: The evaluation.
        runs: Its runs by environment and model.
        against: The folder of the other evaluation, or of a run.
        reward: A function that scores the episodes of both again; see `rescored`. None keeps the stored rewards.
        not_scored: The reward that an episode counts with if it was not scored; None leaves it out.

    Raises:
        ConfigError: If no result has a counterpart.
        RunFolderError: If a run is damaged.
    """
    others = dict(runs_of(against))
    results: list[EvaluationResult] = []
    for one in evaluation.results:
        same_env = [key for key in others if _folder_name(key[0]) == _folder_name(one.env)]
        key = (one.env, one.model) if (one.env, one.model) in others else same_env[0] if len(same_env) == 1 else None
        if key is None and len(others) == 1 and len(evaluation.results) == 1:
            key = next(iter(others))
        comparison = None
        if key is not None:
            pair = _episodes(runs[one.env, one.model], reward), _episodes(others[key], reward)
            comparison = compare(*pair, not_scored=not_scored)
        results.append(replace(one, comparison=comparison))
    if all(one.comparison is None for one in results):
        names = ", ".join(f"{env} with {model}" for env, model in others)
        raise ConfigError(f"{str(against)!r} has nothing to compare with: it has {names}")
    return Evaluation(evaluation.name, tuple(results))


def _episodes(run: StoredRun, reward: Callable[[Trajectory], Any] | None) -> Iterator[Trajectory]:
    """Yield the episodes of a run, with other rewards if there is a function."""
    for trajectory in run.trajectories():
        yield trajectory if reward is None else rescored(trajectory, reward)


def _folder_name(name: str) -> str:
    """Convert a name to the name of a folder."""
    return "".join(char if char.isalnum() or char in "-_." else "-" for char in name).strip(".") or "-"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    return on_one_line(text).replace("|", "\\|")


explain_arguments(globals())
