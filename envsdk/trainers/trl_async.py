"""TRL's AsyncGRPOTrainer: a `rollout_worker` over any environment; each sample of a rollout is a row.

    episodes = dataset("envsdk/Delegate-v0", range(1000))
    worker = RolloutWorker(partial(envsdk.make, renderer="qwen3", tokenizer=tokenizer), episodes, policy)
    trainer = AsyncGRPOTrainer(
        model=path, processing_class=tokenizer, args=args, train_dataset=episodes,
        rollout_worker=worker, weight_transfer=LocalWeights(worker),
    )

The episodes run in a thread. TRL is imported when rows are made.
"""

import asyncio
import importlib.metadata
import inspect
import itertools
import logging
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..authoring.env import Env
from ..credit import Baseline, group_advantages
from ..credit.baselines import check_baseline
from ..errors import ConfigError, EpisodeError, InvalidSample, MissingPackage
from ..policies.transformers import TransformersPolicy
from ..policies.vocabularies import Layer
from ..rollouts.background import Background
from ..rollouts.many import agather
from ..trajectories.samples import Sample
from ..trajectories.trajectory import Trajectory
from .capability import Capability
from .checks import check_sampling, checked
from .packages import load
from .rows import advantages, logprobs
from .trl import read_prompt, refuse_failure_of_all

_log = logging.getLogger(__name__)

_TRIED = ("1.16.0",)
"""The versions of TRL that this adapter was tried with."""
_HOMES = ("trl.experimental.async_grpo", "trl.experimental.async_grpo.async_rollout_worker")
"""Where `RolloutSample` may be: the public package, and the module that has it in the versions that were tried."""
_STOP_S, _POLL_S, _CALL_S = 60, 0.05, 600

CAPABILITY = Capability(
    trainer="TRL's AsyncGRPOTrainer",
    several_samples=True,
    loss_weight="Left out: it averages over tokens, in however many rows they are.",
)


def to_fields(
    sample: Sample, *, group_id: int, model_version: int = 0, temperature: float | None = None
) -> dict[str, Any]:
    """What TRL's `RolloutSample` is made of, but for the messages, which are only shown.

    Args:
        sample: A sample with an advantage.
        group_id: Another number for each group of rollouts.
        model_version: The version of the weights, for a policy that does not say so in its actions.
        temperature: What the trainer divides logits by; None: it is not compared.

    Raises:
        InvalidSample: If the sample is not sound, or has several advantages: a row has one.
    """
    (sample,) = checked([sample], advantage=True, temperature=temperature)
    found = np.unique(advantages(sample)[sample.mask])
    if len(found) > 1:
        raise InvalidSample(
            f"{sample.trajectory_id!r} has {len(found)} advantages in one sample; {CAPABILITY.trainer} takes one: see "
            "envsdk.credit.group_advantages"
        )
    versions = sample.policy_version[sample.policy_version >= 0]
    return {
        "input_ids": sample.tokens.astype(np.int64),
        "completion_mask": sample.mask.astype(np.int64),
        "old_log_probs": logprobs(sample),
        "advantage": float(found[0]),
        "model_version": int(versions.min()) if len(versions) else model_version,
        "group_id": group_id,
        "metrics": {"sample/reward": float(sample.reward)},
    }


def _rollout_sample() -> Any:
    """TRL's class of a row.

    Raises:
        MissingPackage: If TRL is not installed, or has no such class; then it lists the versions that were tried.
    """
    for home in _HOMES:
        try:
            module = load(home, "trl")
        except MissingPackage as error:
            if getattr(error.__cause__, "name", None) != _HOMES[1]:  # TRL itself, or something that it needs
                raise
            break
        if hasattr(module, "RolloutSample"):
            return module.RolloutSample
    raise MissingPackage(
        f"TRL {importlib.metadata.version('trl')} has no RolloutSample in {' or '.join(_HOMES)}, which "
        f"{CAPABILITY.trainer} takes its rows as. Tried versions of TRL: {', '.join(_TRIED)}; for example "
        f"pip install trl=={_TRIED[-1]}"
    )


def group_metrics(trajectories: Iterable[Trajectory], rows: int) -> dict[str, Any]:
    """What TRL logs of a group: pairs are a sum and what it is divided by, and names with `total` are added up."""
    trajectories = list(trajectories)
    played = [trajectory for trajectory in trajectories if trajectory.status != "error"]
    rewards, count = [trajectory.reward for trajectory in played], len(played)
    metrics: dict[str, Any] = {
        "rollout/episodes_total": float(len(trajectories)),
        "rollout/failed_total": float(len(trajectories) - count),
        "rollout/failed_agents_total": float(sum(log.error is not None for t in played for log in t.contexts.values())),
        "reward": (float(sum(rewards)), count),
        "rollout/rows": (rows, count),
        "rollout/steps": (sum(len(trajectory.steps) for trajectory in played), count),
        "rollout/breaks": (sum(len(trajectory.breaks) for trajectory in played), count),
    }
    return metrics | ({"reward_std": float(np.std(rewards))} if rewards else {})


class RolloutWorker:
    """A `rollout_worker` for AsyncGRPOTrainer: plays groups of episodes in a thread of its own.

    Args:
        make_env: Makes an environment of an id: `partial(envsdk.make, renderer=..., tokenizer=...)`.
        rows: The data set, see `envsdk.trainers.trl.dataset`; it is gone through again and again.
        policy: A function that samples replies; see `envsdk.rollouts.Policy`. A `TransformersPolicy` is told which
            weights it has.
        num_generations: How many episodes of a row form a group.
        baseline: How the rewards of a group, for each role, become advantages.
        temperature: That of `AsyncGRPOConfig`; what was sampled at another one is refused.
        max_groups: How many groups are played at a time.
        max_failed_groups: The worker ends when so many groups in a row have nothing but failed episodes.
        queue_maxsize: How many rows may wait for the trainer; then groups that are done wait, too.

    Raises:
        ConfigError: If an option is none, or a row names no episode.
    """

    def __init__(
        self,
        make_env: Callable[[str], Env],
        rows: Iterable[Mapping[str, Any]],
        policy: Callable[..., Any],
        *,
        num_generations: int = 8,
        baseline: Baseline = "normalised",
        temperature: float = 1.0,
        max_groups: int = 4,
        max_failed_groups: int = 4,
        queue_maxsize: int = 256,
    ) -> None:
        if min(num_generations, max_groups, max_failed_groups, queue_maxsize) < 1:
            raise ConfigError("num_generations, max_groups, max_failed_groups and queue_maxsize are at least 1")
        check_baseline(baseline)
        if baseline == "leave_one_out" and num_generations < 2:
            raise ConfigError("leave_one_out compares an episode with the others of its group: num_generations is 1")
        self._episodes = [read_prompt(row.get("prompt")) for row in rows]
        if not self._episodes:
            raise ConfigError("the data set has no rows")
        if not callable(policy):
            raise ConfigError(f"policy is {policy!r:.80}; expected a function: see envsdk.rollouts.Policy")
        self.policy = policy
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(queue_maxsize)
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self._baseline: Baseline = baseline
        self._make_env, self._temperature = make_env, temperature
        self._num_generations, self._max_groups = num_generations, max_groups
        self._max_failed_groups, self._failed_groups = max_failed_groups, 0
        self._group_ids = itertools.count()
        self._version = 0
        self._background: Background | None = None
        self._alive_at = 0.0

    def start(self) -> None:
        """Begin to play, or begin anew if the rollouts have ended."""
        if self._background is not None and self._background.error is not None:
            self.stop()
        if self._background is None:
            _rollout_sample()
            self._alive_at, self._failed_groups = time.monotonic(), 0
            self._background = Background(self._play(), "envsdk-rollouts")

    def stop(self) -> None:
        """End, whatever is being played."""
        background, self._background = self._background, None
        if background is not None and not background.stop(_STOP_S):
            _log.warning("the rollouts have not ended after %d s: an environment or the policy hangs", _STOP_S)

    def update_model_version(self, model_version: int) -> None:
        """Say which weights the policy has from now on."""
        self._version = model_version
        if isinstance(self.policy, TransformersPolicy) and self.policy.policy_version != model_version:
            self.call(partial(self.policy.refresh, model_version))

    def check_health(self, stale_after_s: float) -> None:
        """Raise if the rollouts have ended, or the policy does not reply any more.

        Raises:
            EpisodeError: It says why.
        """
        if self._background is None:
            raise EpisodeError("the rollouts are not running")
        error = self._background.error
        if error is not None:
            raise EpisodeError(f"the rollouts ended with {type(error).__name__}: {error}") from error
        age_s = time.monotonic() - self._alive_at
        if age_s > stale_after_s:
            raise EpisodeError(f"the last reply was {age_s:.0f} s ago; expected one within {stale_after_s:.0f} s")

    def call(self, function: Callable[[], object]) -> None:
        """Run a function while no policy and no environment runs, and wait for it.

        Raises:
            EpisodeError: If they do not pause for ten minutes.
        """
        if self._background is None:
            function()
        else:
            self._background.call(function, _CALL_S)

    async def _play(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._max_groups):
                tasks.create_task(self._play_groups())

    async def _play_groups(self) -> None:
        for group_id in self._group_ids:
            version, (env_id, seed) = self._version, self._episodes[group_id % len(self._episodes)]
            trajectories = await agather(
                partial(self._make_env, env_id),
                Layer(partial(self._ask, group_id), self.policy),
                seeds=[seed] * self._num_generations,
                max_concurrency=self._num_generations,
            )
            counted, alone = _comparable(trajectories, self._baseline)
            rows = self._rows(trajectories, group_advantages(counted, self._baseline), group_id, version)
            for row in rows:
                while self.rollout_buffer.full():
                    self._alive_at = time.monotonic()
                    await asyncio.sleep(_POLL_S)
                row.enqueued_at = time.time()
                self.rollout_buffer.put_nowait(row)
            self.metrics_queue.put(
                {**group_metrics(trajectories, len(rows)), "rollout/incomparable_total": float(alone)}
            )
            self._count_failures(trajectories)

    async def _ask(self, group_id: int, prompt: Any, *, episode_id: str, **request: Any) -> Any:
        """Ask the policy. Groups of the same row get ids of their own, since caches and seeds depend on them."""
        check_sampling(request["sampling"], self._temperature)
        action = self.policy(prompt, episode_id=f"{episode_id}@{group_id}", **request)
        if inspect.isawaitable(action):
            action = await action
        self._alive_at = time.monotonic()
        return action

    def _rows(
        self, trajectories: Sequence[Trajectory], samples: Sequence[Sample], group_id: int, version: int
    ) -> list[Any]:
        rollout_sample = _rollout_sample()
        contexts = {trajectory.id: trajectory.contexts for trajectory in trajectories}
        rows: list[Any] = []
        for sample in samples:
            fields = to_fields(sample, group_id=group_id, model_version=version, temperature=self._temperature)
            messages = [message.to_openai() for message in contexts[sample.trajectory_id][sample.context].messages]
            asked = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
            rows.append(rollout_sample(prompt=messages[:asked], completion=messages[asked:], **fields))
        return rows

    def _count_failures(self, trajectories: Sequence[Trajectory]) -> None:
        has_failed = all(trajectory.status == "error" for trajectory in trajectories)
        self._failed_groups = self._failed_groups + 1 if has_failed else 0
        if self._failed_groups >= self._max_failed_groups:
            refuse_failure_of_all(trajectories)


def _comparable(trajectories: Iterable[Trajectory], baseline: Baseline) -> tuple[list[Sample], int]:
    """The samples whose group has a baseline, and how many have none: they were not scored, or are alone.

    Alone is, with `leave_one_out`, who has a role that no other episode has, or is the only one that did not fail.
    """
    samples = [sample for trajectory in trajectories for sample in trajectory.samples()]
    scored = [sample for sample in samples if sample.is_scored]
    if baseline != "leave_one_out":
        return scored, len(samples) - len(scored)
    owners = Counter(role for role, _ in {(sample.role, sample.trajectory_id) for sample in scored})
    counted = [sample for sample in scored if owners[sample.role] > 1]
    return counted, len(samples) - len(counted)


class LocalWeights:
    """A `weight_transfer` for AsyncGRPOTrainer: copies the trained weights into a worker's `TransformersPolicy`.

    Replies that are under way go on with the new weights: their parts have versions of their own.

    Args:
        worker: The worker.

    Raises:
        ConfigError: If its policy is another one.
    """

    def __init__(self, worker: RolloutWorker) -> None:
        if not isinstance(worker.policy, TransformersPolicy):
            raise ConfigError(f"the worker's policy is a {type(worker.policy).__name__}; expected a TransformersPolicy")
        self._worker, self._policy = worker, worker.policy

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Copy the parameters, by name.

        Raises:
            ConfigError: If the policy's model lacks one.
        """
        self._worker.call(partial(self._load, dict(iterator)))

    def _load(self, weights: dict[str, Any]) -> None:
        unknown = self._policy.model.load_state_dict(weights, strict=False).unexpected_keys
        if unknown:
            raise ConfigError(f"the policy's model has no parameters {unknown[:3]}: it is not the trainer's")
        self._policy.refresh()

    def init_weight_transfer(self) -> None:
        """Nothing to prepare."""

    def pause(self) -> None:
        """Nothing to pause: no policy runs while weights are copied."""

    def resume(self) -> None:
        """Nothing to resume."""

    def destroy(self) -> None:
        """Nothing to release."""
