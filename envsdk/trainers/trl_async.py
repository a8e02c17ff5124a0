"""The adapter for TRL's AsyncGRPOTrainer: a `rollout_worker` for any environment. Each sample of a rollout is a row.

    episodes = dataset("envsdk/Delegate-v1", range(1000))
    worker = RolloutWorker(partial(envsdk.make, renderer="qwen3", tokenizer=tokenizer), episodes, policy)
    trainer = AsyncGRPOTrainer(
        model=path, processing_class=tokenizer, args=args, train_dataset=episodes,
        rollout_worker=worker, weight_transfer=LocalWeights(worker),
    )

The episodes run in a thread. `_trl_async_rows` has what depends on TRL's insides.
"""

import asyncio
import inspect
import itertools
import logging
import queue
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, Unpack

import numpy as np

from .._arguments import explain_arguments
from .._visible import brief, type_of
from ..authoring._concurrent import run_all
from ..authoring._env import Env
from ..authoring._event_loops import LoopThread
from ..credit import group_advantages
from ..credit._baselines import Baseline, get_baseline
from ..errors import ConfigError, EpisodeError
from ..policies._transformers import TransformersPolicy
from ..policies._vocabularies import PolicyWrapper
from ..rollouts._engine import Rollouts
from ..rollouts._player import Deadlines, check_deadlines
from ..trajectories._samples import Sample
from ..trajectories._tally import tally
from ..trajectories._trajectory import Trajectory
from ._capability import Capability
from ._checks import guard_policy
from ._conversations import split_conversation
from ._trl_async_rows import TRAINER, check_version, row_class
from ._trl_async_rows import to_fields as to_fields
from .trl import deadlines_for, raise_if_all_failed, read_prompt

__all__ = ["LocalWeights", "RolloutWorker", "to_fields"]

_log = logging.getLogger(__name__)

_STOP_S, _POLL_S, _CALL_S = 60, 0.05, 600

CAPABILITY = Capability(
    trainer=TRAINER,
    several_samples=True,
    loss_weight="Left out: it averages over tokens, independently of the number of rows.",
    images="Refused: its rows have no field for images.",
)


def group_metrics(trajectories: Iterable[Trajectory], rows: int) -> dict[str, Any]:
    """Return the metrics of a group that TRL logs.

    Args:
        trajectories: The trajectories of the group.
        rows: The number of rows that the group gave.

    Returns:
        The metrics by name. A pair is a sum and the number by which TRL divides it. TRL adds up the metrics that have
        `total` in their name.
    """
    trajectories = list(trajectories)
    rewards = [reward for trajectory in trajectories if (reward := trajectory.scored_reward) is not None]
    completed = tally(trajectory for trajectory in trajectories if trajectory.status != "error")
    metrics: dict[str, Any] = {
        "rollout/episodes_total": float(len(trajectories)),
        "rollout/failed_total": float(len(trajectories) - completed.episodes),
        "rollout/failed_agents_total": float(completed.failed_contexts),
        "reward": (completed.reward, completed.scored),
        "rollout/rows": (rows, completed.episodes),
        "rollout/steps": (completed.steps, completed.episodes),
        "rollout/breaks": (sum(completed.breaks.values()), completed.episodes),
    }
    return metrics | ({"reward_std": float(np.std(rewards))} if rewards else {})


class RolloutWorker:
    """A `rollout_worker` for AsyncGRPOTrainer that runs groups of episodes in its own thread.

    Args:
        make_env: A function that makes an environment from its id: `partial(envsdk.make, renderer=..., tokenizer=...)`.
        rows: The dataset; see `envsdk.trainers.trl.dataset`. The worker iterates over it repeatedly.
        policy: A function that samples replies; see `envsdk.policies.Policy`. The worker sets the version of the
            weights of a `TransformersPolicy`.
        group_size: The number of episodes of a row, which form a group.
        baseline: How the rewards of a group become advantages, for each role separately; see `group_advantages`.
        temperature: The temperature of `AsyncGRPOConfig`. A reply that was sampled at another one is an error.
        max_groups: The number of groups that run concurrently.
        max_failed_groups: The number of consecutive groups in which all episodes fail after which the worker ends.
        queue_maxsize: The number of rows that may wait for the trainer. If the queue is full, the groups wait.
        **deadlines: `policy_timeout_s`, `method_timeout_s`, `episode_timeout_s` and `max_retries`; see `Rollouts`. By
            default, the replies of a `TransformersPolicy` have no deadline.

    Attributes:
        policy: The policy.
        rollout_buffer: The queue of rows, which the trainer reads.
        metrics_queue: The queue of metrics, which the trainer reads.

    Raises:
        ConfigError: If an option is invalid, or a row does not name an episode.
        MissingPackage: If the installed version of TRL does not take a worker; the error names those that do.
    """

    def __init__(
        self,
        make_env: Callable[[str], Env],
        rows: Iterable[Mapping[str, Any]],
        policy: Callable[..., Any],
        *,
        group_size: int = 1,
        baseline: Baseline = "normalized",
        temperature: float = 1.0,
        max_groups: int = 4,
        max_failed_groups: int = 4,
        queue_maxsize: int = 256,
        **deadlines: Unpack[Deadlines],
    ) -> None:
        check_version()
        for name, value in (
            ("group_size", group_size),
            ("max_groups", max_groups),
            ("max_failed_groups", max_failed_groups),
            ("queue_maxsize", queue_maxsize),
        ):
            if value < 1:
                raise ConfigError(f"{name} is {value!r}; expected an integer of at least 1")
        get_baseline(baseline)  # raises for an unknown name
        self._episodes = [read_prompt(row.get("prompt")) for row in rows]
        if not self._episodes:
            raise ConfigError("the dataset has no rows; expected at least one: dataset(env_id, seeds)")
        if not callable(policy):
            raise ConfigError(f"policy is {brief(policy)}; expected a function: see envsdk.policies.Policy")
        if baseline in ("mean", "leave_one_out", "normalized") and group_size < 2:
            raise ConfigError(
                f"group_size is 1, but the baseline {baseline!r} compares an episode with the others of its group: "
                "expected at least 2, such as group_size=8"
            )
        self.policy = policy
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(queue_maxsize)
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self._baseline: Baseline = baseline
        self._make_env, self._temperature = make_env, temperature
        self._group_size, self._max_groups = group_size, max_groups
        self._max_failed_groups, self._failed_groups = max_failed_groups, 0
        self._deadlines = check_deadlines(deadlines)
        self._group_ids = itertools.count()
        self._version, self._is_paused = 0, False
        self._running: set[Rollouts] = set()
        self._thread: LoopThread | None = None
        self._ended: Future[Any] = Future()
        self._alive_at = 0.0

    def start(self) -> None:
        """Start the rollouts, or start them again if they ended with an error."""
        if self._thread is not None and self._ended.done():
            self.stop()
        if self._thread is None:
            row_class()  # raises if it is missing
            self._alive_at, self._failed_groups = time.monotonic(), 0
            self._thread = LoopThread("envsdk-rollouts")
            queue_lock = asyncio.Lock()
            groups = [self._run_groups(queue_lock) for _ in range(self._max_groups)]
            self._ended = self._thread.submit(run_all(groups))

    def stop(self) -> None:
        """Stop the rollouts. Unfinished episodes are discarded."""
        thread, self._thread = self._thread, None
        if thread is not None and not thread.stop(_STOP_S):
            _log.warning("the rollouts have not ended after %d s: an environment or the policy hangs", _STOP_S)

    def update_model_version(self, model_version: int) -> None:
        """Set the version of the weights that the policy has from now on."""
        policy = self.policy
        if isinstance(policy, TransformersPolicy) and policy.policy_version != model_version:
            self.pause()
            policy.refresh(model_version)
        self.resume(model_version)

    def pause(self) -> None:
        """Before an update of the weights: let no reply begin, and wait until none is being sampled.

        Replies that are being sampled end, if the policy can abort them, and continue after `resume`.

        Raises:
            EpisodeError: If they do not end within 600 seconds.
        """
        self._is_paused = True
        self._call(lambda: run_all([rollouts.pause() for rollouts in list(self._running)]))

    def resume(self, policy_version: int | None = None) -> None:
        """After an update of the weights: let replies begin again.

        Args:
            policy_version: The version of the new weights, for a policy that does not report it in its actions.
        """
        self._is_paused = False
        self._version = self._version if policy_version is None else policy_version

        async def resume_all() -> None:
            self._alive_at = time.monotonic()
            for rollouts in list(self._running):
                rollouts.resume(policy_version)

        self._call(resume_all)

    def check_health(self, stale_after_s: float) -> None:
        """Check that the rollouts run and that the policy replies.

        Args:
            stale_after_s: The longest time since the last reply, in seconds.

        Raises:
            EpisodeError: If the rollouts have ended, or the last reply is older than that. The error has the reason.
        """
        if self._thread is None:
            raise EpisodeError("the rollouts are not running: call start() first")
        if self._ended.done():
            error = self._ended.exception() or EpisodeError("they ended before stop() was called")
            raise EpisodeError(f"the rollouts ended with {type(error).__name__}: {error}") from error
        age_s = time.monotonic() - self._alive_at
        if age_s > stale_after_s:
            raise EpisodeError(f"the last reply was {age_s:.0f} s ago; expected one within {stale_after_s:.0f} s")

    def _call(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a coroutine in the event loop of the rollouts, and wait for it."""
        if self._thread is None or self._ended.done():
            return
        called: Future[Any] = self._thread.submit(function())
        wait((called, self._ended), _CALL_S, return_when=FIRST_COMPLETED)
        if called.done():
            called.result()
        elif not self._ended.done():
            called.cancel()
            raise EpisodeError(
                f"the rollouts did not pause for {_CALL_S:g} s: the policy hangs, or an environment blocks without "
                "`await`"
            )

    async def _run_groups(self, queue_lock: asyncio.Lock) -> None:
        for group_id in self._group_ids:
            trajectories = await self._play(group_id)
            samples = [sample for trajectory in trajectories for sample in trajectory.samples()]
            comparable = [sample for sample in samples if sample.is_scored]
            if self._baseline == "leave_one_out":  # it needs another episode with a scored sample of the role
                owners = Counter(role for role, _ in {(sample.role, sample.trajectory_id) for sample in comparable})
                comparable = [sample for sample in comparable if owners[sample.role] > 1]
            rows = self._rows(trajectories, group_advantages(comparable, self._baseline), group_id)
            async with queue_lock:  # TRL packs neighbors, and the rows of a group share tokens
                for row in rows:
                    while self.rollout_buffer.full():
                        self._alive_at = time.monotonic()
                        await asyncio.sleep(_POLL_S)
                    row.enqueued_at = time.time()
                    self.rollout_buffer.put_nowait(row)
            incomparable = float(len(samples) - len(comparable))
            self.metrics_queue.put(
                {**group_metrics(trajectories, len(rows)), "rollout/incomparable_total": incomparable}
            )
            has_failed = all(trajectory.status == "error" for trajectory in trajectories)
            self._failed_groups = self._failed_groups + 1 if has_failed else 0
            if self._failed_groups >= self._max_failed_groups:
                raise_if_all_failed(trajectories)

    async def _play(self, group_id: int) -> list[Trajectory]:
        """Play the episodes of a group."""
        env_id, seed = self._episodes[group_id % len(self._episodes)]
        rollouts = Rollouts(
            partial(self._make_env, env_id),
            PolicyWrapper(partial(self._sample, group_id), guard_policy(self.policy, self._temperature)),
            seeds=[seed],
            group_size=self._group_size,
            max_concurrency=self._group_size,
            **deadlines_for(self.policy, self._deadlines),
        )
        self._running.add(rollouts)
        try:
            rollouts.resume(self._version)
            if self._is_paused:
                await rollouts.pause()
            return await rollouts.arun()
        finally:
            self._running.discard(rollouts)

    async def _sample(self, group_id: int, policy: Any, prompt: Any, *, episode_id: str, **request: Any) -> Any:
        """Call the policy. Its episode id includes the group, because caches and seeds depend on the episode id."""
        action = policy(prompt, episode_id=f"{episode_id}@{group_id}", **request)
        if inspect.isawaitable(action):
            action = await action
        self._alive_at = time.monotonic()
        return action

    def _rows(self, trajectories: Sequence[Trajectory], samples: Sequence[Sample], group_id: int) -> list[Any]:
        new_row, contexts = row_class(), {trajectory.id: trajectory.contexts for trajectory in trajectories}
        rows: list[Any] = []
        places = {trajectory_id: place for place, trajectory_id in enumerate(contexts)}
        # In each context the longest first: it has most of the others' tokens, wherever TRL ends a microbatch.
        for sample in sorted(samples, key=lambda each: (places[each.trajectory_id], each.context, -len(each))):
            fields = to_fields(sample, group_id=group_id, temperature=self._temperature)
            prompt, completion = split_conversation(contexts[sample.trajectory_id][sample.context].messages)
            rows.append(new_row(prompt=prompt, completion=completion, **fields))
        return rows


class LocalWeights:
    """A `weight_transfer` for AsyncGRPOTrainer that copies the trained weights into a worker's `TransformersPolicy`.

    Unfinished replies continue with the new weights. The version of the weights is recorded for each part of a reply.

    Args:
        worker: The worker.

    Raises:
        ConfigError: If the worker's policy is not a `TransformersPolicy`.
    """

    def __init__(self, worker: RolloutWorker) -> None:
        if not isinstance(worker.policy, TransformersPolicy):
            raise ConfigError(f"the worker's policy is {type_of(worker.policy)}; expected a TransformersPolicy")
        self._worker, self._policy = worker, worker.policy

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Copy the parameters by name. The trainer calls it between `pause` and `resume`.

        Args:
            iterator: Pairs of a name and a tensor.

        Raises:
            ConfigError: If the policy's model does not have a parameter of that name.
        """
        unknown = self._policy.model.load_state_dict(dict(iterator), strict=False).unexpected_keys
        if unknown:
            raise ConfigError(
                f"the policy's model has no parameters {unknown[:3]}; expected a model of the same architecture as the "
                "trainer's"
            )
        self._policy.refresh()

    def init_weight_transfer(self) -> None:
        """Do nothing, because there is nothing to prepare."""

    def pause(self) -> None:
        """Pause the worker; see `RolloutWorker.pause`."""
        self._worker.pause()

    def resume(self) -> None:
        """Resume the worker; see `RolloutWorker.resume`."""
        self._worker.resume()

    def destroy(self) -> None:
        """Do nothing, because there is nothing to release."""


explain_arguments(globals())
