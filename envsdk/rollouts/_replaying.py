"""Repeats the recorded actions of stored episodes in fresh environments."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._registry import find_creator, is_entry_point
from .._visible import brief
from ..authoring._env import Env
from ..authoring._event_loops import run as run_in_loop
from ..authoring._loop_tasks import is_being_cancelled
from ..authoring._making import find_class, make
from ..authoring._trust import Trust, options_that_need_trust
from ..contexts._protocol import Action
from ..errors import CannotReplay, EnvsdkError
from ..limits import MAX_EMPTY_ABORTS, Limits
from ..policies._vocabularies import ANY_TOKENIZER
from ..trajectories._context_log import ContextLog
from ..trajectories._steps import Step
from ..trajectories._trajectory import Trajectory
from ._comparing import EndOfRecord, ReplayDifference, beyond, differences
from ._runner import arollout
from ._stored_run import StoredRun

if TYPE_CHECKING:
    from numpy.typing import NDArray

_IDLE_S = 0.5
"""The time without progress that a policy waits for other contexts of a failed episode, in seconds."""


class ReplayResult(NamedTuple):
    """The result of repeating one stored episode.

    Attributes:
        trajectory: The stored episode.
        differences: The differences, in the order of the steps.
        refused: Why the episode was not repeated; None if it was.
    """

    trajectory: Trajectory
    differences: list[ReplayDifference]
    refused: str | None = None


def replay_run(
    run: StoredRun,
    make_env: Callable[[Trajectory], Env] | None = None,
    *,
    trust: Collection[Trust] = (),
    is_chosen: Callable[[int, Trajectory], bool] = lambda number, trajectory: True,
) -> Iterator[ReplayResult]:
    """Repeat the episodes of a stored run, each in a fresh environment.

    Args:
        run: The run.
        make_env: Makes the environment of an episode. By default, it is made from the record: the id (or
            `module:Class`) in the record or in the run's configuration, with the stored tokenizer and the recorded
            renderer, history policy, limits and options.
        trust: What else the record may decide: `"imports"` (a `module:Class`, and functions among the options),
            `"isolation"` (how programs are isolated, even not at all, and their limits), `"paths"` (files outside of
            the run folder, and models of the hub). An episode that needs what is not trusted is not repeated. Trust
            only a run of someone whose code you would run.
        is_chosen: Returns whether to repeat an episode, given its number from 1 and its trajectory.

    Yields:
        The result for each chosen episode.

    Raises:
        RunFolderError: If a line of the run is damaged.
    """
    for number, trajectory in enumerate(run.trajectories(), start=1):
        if not is_chosen(number, trajectory):
            continue
        try:
            env = _env_of(run, trajectory, trust) if make_env is None else make_env(trajectory)
            try:
                yield ReplayResult(trajectory, replay_trajectory(trajectory, env))
            finally:
                env.close()
        except CannotReplay as error:
            yield ReplayResult(trajectory, [], str(error))


def replay_trajectory(trajectory: Trajectory, env: Env) -> list[ReplayDifference]:
    """Repeat the recorded actions of an episode, and compare everything that the environment returns with the record.

    Everything in a recorded step is compared: the observation's tokens, how many tokens it kept, breaks, rewards,
    metrics and messages; and the episode's end, contexts, task and options. A fork is repeated from its start. An
    interrupted reply is repeated part by part. An episode that failed because of its policy or its server is repeated
    up to there. Sub-agents run side by side, as in a rollout, and each receives the actions of its own context.

    Args:
        trajectory: The stored episode.
        env: A fresh environment with the same options. It is reset, and not closed.

    Returns:
        The differences, in the order of the steps. If the tokenizers differ, only that.

    Raises:
        CannotReplay: If the episode has no seed, its environment is nondeterministic, or it cannot be reset to the
            recorded task.
    """
    options, tokenizer = replay_options(trajectory, env), env.renderer.tokenizer
    if tokenizer.fingerprint != trajectory.tokenizer:
        return [ReplayDifference(None, None, "tokenizer", trajectory.tokenizer, tokenizer.fingerprint)]
    policy = _RecordedPolicy(trajectory)
    replayed = run_in_loop(_repeat(trajectory, env, policy, options))
    return differences(trajectory, replayed, tokenizer, is_beyond=policy.is_beyond)


def replay_options(trajectory: Trajectory, env: Env) -> dict[str, Any]:
    """Return the options of `env.reset` that begin the episode again.

    Raises:
        CannotReplay: If the episode has no seed, or its environment is nondeterministic.
    """
    if env.spec is not None and env.spec.nondeterministic:
        raise CannotReplay(f"{env.name} is nondeterministic: the same seed and actions may give a different episode")
    if trajectory.seed is None:
        raise CannotReplay(f"{trajectory.id!r} has no seed, so its random numbers are not known; roll out with a seed")
    options: dict[str, Any] = {"episode_id": trajectory.id, "group_id": trajectory.group_id}
    return options if trajectory.task is None else {**options, "task": trajectory.task}


async def _repeat(trajectory: Trajectory, env: Env, policy: "_RecordedPolicy", options: dict[str, Any]) -> Trajectory:
    try:
        replayed = await arollout(env, policy, seed=trajectory.seed, options=options)
    except Exception as error:
        if is_being_cancelled():
            raise
        try:
            replayed = env.fail(error)
        except EnvsdkError:  # the reset was refused, so there is no episode
            raise CannotReplay(f"{trajectory.id!r} cannot be reset as it was: {error}") from error
    return replayed


# The actions of the record.


class _RecordedPolicy:
    """A policy that gives the recorded actions, context by context.

    Attributes:
        is_beyond: Whether a reply was requested that the record does not have.
    """

    tokenizer = ANY_TOKENIZER

    def __init__(self, trajectory: Trajectory) -> None:
        self.is_beyond = False
        self._trajectory = trajectory
        self._left: dict[str, list[Action]] = {name: [] for name in trajectory.contexts}
        for step in trajectory.steps:
            self._left[step.context] += recorded_actions(step, trajectory.contexts[step.context])
        self._count = sum(len(actions) for actions in self._left.values())

    async def __call__(self, prompt: "NDArray[np.int32]", *, context: str, **_: object) -> Action:
        left = self._left.get(context, [])
        if left:
            self._count -= 1
            return left.pop(0)
        log = self._trajectory.contexts.get(context)
        if log is not None and (log.error or "").startswith("TimeoutError: it did not finish within"):
            await asyncio.Event().wait()  # until the deadline of the handoff, as recorded
        before = -1
        while self._trajectory.status == "error" and self._count and self._count != before:
            before = self._count  # other contexts that run side by side still use their actions
            await asyncio.sleep(_IDLE_S)
        self.is_beyond = True
        raise EndOfRecord(beyond(context))


def recorded_actions(step: Step, log: ContextLog) -> list[Action]:
    """Return the actions of a step, given the log of its context: one for each part of its reply."""
    actions, start = list[Action](), step.action_start
    stops = [start, *(part.stop for part in step.parts)]
    was_given_up = len(stops) > MAX_EMPTY_ABORTS and stops[-1] == stops[-MAX_EMPTY_ABORTS - 1]
    for number, part in enumerate(step.parts, start=1):
        is_interrupted = number < len(step.parts) or was_given_up  # all but the last part were
        logprobs = log.logprobs[start : part.stop]
        actions.append(
            Action(
                log.tokens[start : part.stop],
                None if np.isnan(logprobs).any() else logprobs,
                "abort" if is_interrupted else step.finish_reason,
                part.temperature,
                part.policy_version,
                part.extra,
            )
        )
        start = part.stop
    return actions


# The environment of a record.

_TRUSTED: Mapping[Trust, str] = {
    "imports": "imports code",
    "isolation": "decides how programs are isolated",
    "paths": "may open files outside of the run folder",
}


def _env_of(run: StoredRun, trajectory: Trajectory, trust: Collection[Trust]) -> Env:
    """Make the environment that a stored episode was played in.

    Raises:
        CannotReplay: If it cannot be made from the record, or needs trust that is not given.
    """
    names = [run.configuration.get("made_by"), run.configuration.get("env")]
    given = [one for one in names if isinstance(one, str) and (":" in one or "/" in one)]
    if "/" not in trajectory.env and not given:
        raise CannotReplay(
            f"the record of {trajectory.id!r} has the environment {trajectory.env!r}, which is neither an id nor "
            "module:Class. Use replay_run(run, make_env)"
        )
    name = trajectory.env if "/" in trajectory.env else given[0]
    if ":" in name and "imports" not in trust and not is_entry_point(name):
        raise _not_trusted("imports", f"the environment {brief(name)}")
    processor = trajectory.renderer.get("processor")
    if isinstance(processor, str) and "paths" not in trust:
        raise _not_trusted("paths", f"the processor {brief(processor)} of the renderer")
    try:
        creator: Any = find_class(name) if ":" in name else find_creator(name)
        # The class that a function makes is not known in advance, so all of its options need trust.
        needs: Mapping[str, Trust] = dict.fromkeys(trajectory.config, "imports")
        if isinstance(creator, type) and issubclass(creator, Env):
            needs = options_that_need_trust(creator.Config)
        withheld: dict[str, Trust] = {
            one: needs[one] for one in trajectory.config if one in needs and needs[one] not in trust
        }
        options: dict[str, Any] = {
            **{one: value for one, value in trajectory.config.items() if one not in withheld},
            "renderer": trajectory.renderer,
            "tokenizer": run.tokenizer_of(trajectory),
            "history": trajectory.history,
            "limits": Limits.of(trajectory.limits, Limits()),
        }
        env = creator(**options) if ":" in name else make(name, **options)
    except (EnvsdkError, TypeError) as error:  # a constructor may take other arguments
        raise CannotReplay(
            f"the environment of {trajectory.id!r} cannot be made from the record: {error}. Use replay_run(run, "
            "make_env)"
        ) from error
    own = env.config.model_dump(mode="json")
    for option, kind in withheld.items():
        if own.get(option, ...) != trajectory.config[option]:
            env.close()
            raise _not_trusted(kind, f"the option {option}={brief(trajectory.config[option])}")
    return env


def _not_trusted(kind: Trust, what: str) -> CannotReplay:
    return CannotReplay(
        f"{what}, which comes from the record, {_TRUSTED[kind]}. If you trust the record, repeat it with "
        f"--trust-{kind}, or replay_run(run, trust=[{kind!r}]); or make the environment in replay_run(run, make_env)"
    )
