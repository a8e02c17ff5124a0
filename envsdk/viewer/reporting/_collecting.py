"""The figures of one run, added up episode by episode: one trajectory is in memory at a time."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice

from ...diagnostics._costs import Cost, cost
from ...rollouts.scores import task_of
from ...trajectories._trajectory import Trajectory
from .._rows import EpisodeRow
from .._sources import Source
from ._comparing import TaskValues, mean_reward
from ._divergence import stored_divergence
from ._figures import Breaks, Damage, Distribution, EpisodeLink, Failure, RunFigures
from ._links import Links

_LENGTHS = ("steps", "observed_tokens", "sampled_tokens", "duration_s")


class Collector:
    """Adds up the figures of one run.

    Args:
        run: The index of the run in the report.
        links: The links to its episodes.
    """

    def __init__(self, run: int, links: Links) -> None:
        self.values = TaskValues()
        self._run, self._links = run, links
        self._envs, self._statuses, self._stop_reasons = Counter[str](), Counter[str](), Counter[str]()
        self._break_episodes = Counter[str]()
        self._lengths = defaultdict[str, list[float]](list)
        self._rewards, self._metrics = defaultdict[str, list[float]](list), defaultdict[str, float](float)
        self._scored: list[tuple[float, EpisodeRow]] = []
        self._not_scored = Counter[str]()
        self._failures: dict[tuple[str, str], list[EpisodeRow]] = {}
        self._costs: dict[str, Cost] = {}
        self._damaged: list[tuple[int, str]] = []
        self._versions = set[int]()
        self._reply_errors = 0

    def add(self, row: EpisodeRow, trajectory: Trajectory | None) -> None:
        """Add an episode; or a damaged line, which is only counted."""
        if trajectory is None:
            self._damaged.append((row.line, row.damage))
            return
        self._envs[trajectory.env] += 1
        self._statuses[row.status] += 1
        self._stop_reasons[row.stop_reason] += 1
        self._break_episodes.update(row.breaks.keys())
        self._versions.update(row.policy_versions)
        self._reply_errors += row.reply_errors
        for name, value in row.metrics.items():
            self._metrics[name] += value
        history, own = history_of(trajectory), cost(trajectory)
        self._costs[history] = self._costs[history] + own if history in self._costs else own
        if row.not_scored:
            self._not_scored[row.not_scored] += 1
        is_failed = row.status == "error"
        self.values.add(task_of(trajectory), {"failed": float(is_failed)})
        if is_failed:
            error = (row.error or "").partition(":")[0] or "unknown"
            self._failures.setdefault((row.error_kind or "unknown", error), []).append(row)
        else:
            self._add_sound(row, trajectory)

    def _add_sound(self, row: EpisodeRow, trajectory: Trajectory) -> None:
        """Add the lengths of an episode that did not fail, and its rewards if it was scored."""
        lengths = {name: float(value) for name in _LENGTHS if (value := getattr(row, name)) is not None}
        for name, value in lengths.items():
            self._lengths[name].append(value)
        self.values.add(task_of(trajectory), {name: lengths[name] for name in _LENGTHS[:3]})
        if not row.is_scored:
            return
        self._scored.append((row.reward, row))
        named = {name: value for name, value in row.rewards.items() if name != "reward"}
        for name, value in named.items():
            self._rewards[name].append(value)
        compared = {f"reward.{name}": value for name, value in named.items()}
        self.values.add(task_of(trajectory), {"reward": row.reward, **compared})

    @property
    def quantities(self) -> dict[str, list[float]]:
        """The values of each quantity: `reward`, `reward.NAME`, and the lengths."""
        named = {f"reward.{name}": values for name, values in self._rewards.items()}
        return {"reward": [reward for reward, _ in self._scored], **named, **self._lengths}

    def figures(self, source: Source, name: str, most: int, edges: Mapping[str, Sequence[float]]) -> RunFigures:
        """Return the figures.

        Args:
            source: The run.
            name: Its name in the report.
            most: The maximum number of best and of worst episodes.
            edges: The edges of the histogram of each quantity.
        """
        info, stored = source.info, stored_divergence(source.file.parent)
        found = {name: Distribution.of(own, edges.get(name)) for name, own in self.quantities.items()}
        best, worst = self._best_and_worst(most)
        return RunFigures(
            name=name,
            path=info.path,
            envs=_by_count(self._envs),
            policy=info.policy,
            model=info.model,
            renderer=info.renderer,
            created=info.created,
            is_complete=info.is_complete,
            planned=info.episodes,
            policy_versions=tuple(sorted(self._versions)),
            episodes=self._statuses.total(),
            failed=self._statuses["error"],
            not_scored=self._statuses.total() - self._statuses["error"] - len(self._scored),
            not_scored_because=_by_count(self._not_scored),
            statuses=_by_count(self._statuses),
            stop_reasons=_by_count(self._stop_reasons),
            mean_reward=mean_reward(self.values),
            reward=found["reward"],
            rewards={own: one for own in sorted(self._rewards) if (one := found[f"reward.{own}"]) is not None},
            metrics=dict(sorted(self._metrics.items())),
            steps=found.get("steps"),
            observed_tokens=found.get("observed_tokens"),
            sampled_tokens=found.get("sampled_tokens"),
            duration_s=found.get("duration_s"),
            reply_errors=self._reply_errors,
            breaks=self._breaks(),
            costs=self._costs,
            failures=self._failures_by_class(),
            divergence=stored.divergence,
            no_divergence_because=stored.missing,
            best=best,
            worst=worst,
            damaged=(*(Damage(source.file.name, line, why) for line, why in self._damaged), *stored.damaged),
            unread_bytes=source.unread_bytes,
        )

    def _best_and_worst(self, most: int) -> tuple[tuple[EpisodeLink, ...], tuple[EpisodeLink, ...]]:
        ranked = [row for _, row in sorted(self._scored, key=lambda item: (-item[0], item[1].line))]
        best, rest = ranked[:most], [row for row in ranked[most:] if row.reward < ranked[0].reward]
        worst = sorted(rest[max(0, len(rest) - most) :], key=lambda row: (row.reward, row.line))
        return tuple(self._link(row, row.reward) for row in best), tuple(self._link(row, row.reward) for row in worst)

    def _breaks(self) -> dict[str, Breaks]:
        total = sum(islice(self._costs.values(), 1, None), next(iter(self._costs.values()))) if self._costs else None
        found = {} if total is None else total.breaks
        return {
            reason: Breaks(one.breaks, self._break_episodes[reason], one.dropped, one.kept, one.observed)
            for reason, one in sorted(found.items(), key=lambda item: (-item[1].breaks, item[0]))
        }

    def _failures_by_class(self) -> tuple[Failure, ...]:
        ordered = sorted(self._failures.items(), key=lambda item: (-len(item[1]), item[0]))
        return tuple(
            Failure(kind, error, len(rows), rows[0].error or "", self._link(rows[0], None))
            for (kind, error), rows in ordered
        )

    def _link(self, row: EpisodeRow, reward: float | None) -> EpisodeLink:
        return EpisodeLink(
            line=row.line,
            id=row.id,
            reward=reward,
            steps=row.steps,
            stop_reason=row.stop_reason,
            task=row.task,
            command=self._links.command(self._run, row.line, row.id),
            url=self._links.url(self._run, row.line),
        )


def history_of(trajectory: Trajectory) -> str:
    """Return the history policy of an episode as the command line takes it, such as `compact:every=2`.

    Options that are not set are left out.
    """
    given = {name: value for name, value in trajectory.history.items() if name != "name" and value is not None}
    options = ",".join(f"{name}={value}" for name, value in given.items())
    name = str(trajectory.history.get("name", "unknown"))
    return f"{name}:{options}" if options else name


def _by_count(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
