"""tinker: samples become datums, and any environment runs in the rollouts of tinker's cookbook."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..authoring.env import Env
from ..authoring.making import make
from ..contexts.protocol import Action
from ..errors import ConfigError, EpisodeError, InvalidSample
from ..limits import StopReason
from ..policies.vocabularies import check_tokenizer
from ..trajectories.samples import Sample
from ..trajectories.trajectory import Trajectory
from .capability import Capability
from .checks import check_sampling, checked
from .packages import load, load_if_installed
from .rows import advantages, logprobs

CAPABILITY = Capability("tinker", several_samples=True, loss_weight="Left out: its losses sum over tokens.")

_STOP_REASONS: Mapping[str, str] = {
    StopReason.TERMINATED: "completed",
    StopReason.MAX_STEPS: "max_turns",
    StopReason.MAX_CONTEXT_TOKENS: "context_overflow",
    StopReason.CONTEXT_FULL: "context_overflow",
    StopReason.CUT: "max_tokens",
}
"""What the cookbook calls our stop reasons; it calls the others the same, or does not know them."""
_log = logging.getLogger(__name__)

_types: Any = load_if_installed("tinker_cookbook.rl.types")
_EnvBase: Any = getattr(_types, "Env", object)
_GroupBase: Any = getattr(_types, "EnvGroupBuilder", object)


def to_datums(samples: Iterable[Sample]) -> list[Any]:
    """Make a `tinker.Datum` of each sample, with the fields that the cookbook's `trajectory_to_data` gives it.

    Raises:
        InvalidSample: If a sample is not sound, has no log-probabilities or no advantage, or was sampled at another
            temperature than 1, at which tinker computes its log-probabilities.
        ImportError: If tinker is not installed.
    """
    found = [
        (sample.tokens[:-1].tolist(), loss_fn_inputs(sample))
        for sample in checked(samples, advantage=True, temperature=1.0)
    ]
    tinker = load("tinker", "tinker")
    return [tinker.Datum(tinker.ModelInput.from_ints(tokens), loss_fn_inputs=inputs) for tokens, inputs in found]


def loss_fn_inputs(sample: Sample) -> dict[str, Any]:
    """What a loss gets of a sound sample: arrays of shape (L - 1,), `target_tokens` int64 and the others float32."""
    values = {"logprobs": logprobs(sample), "advantages": advantages(sample), "mask": sample.mask}
    shifted = {name: np.asarray(value, dtype=np.float32)[1:] for name, value in values.items()}
    return {"target_tokens": sample.tokens[1:].astype(np.int64), **shifted}


def with_logprobs(trajectory: Trajectory | None, rollout: Any, *, temperature: float = 1.0) -> Trajectory:
    """Take the log-probabilities from the cookbook's record of an episode: its loop gives an `Env` tokens alone.

    Args:
        trajectory: The episode: `CookbookEnv.trajectory`.
        rollout: The same as the cookbook's `Trajectory`, which `do_single_rollout` returns.
        temperature: What the completer samples at, which the loop does not tell either.

    Raises:
        EpisodeError: If the episode is not over.
        InvalidSample: If they are not the same episode, or there are not as many log-probabilities as tokens.
    """
    if trajectory is None:
        raise EpisodeError("the episode is not over: the cookbook's own limits ended it, or it was not played")
    logs = {name: replace(log, logprobs=log.logprobs.copy()) for name, log in trajectory.contexts.items()}
    places = [(logs[step.context], slice(step.action_start, step.stop)) for step in trajectory.steps]
    actions = [transition.ac for transition in rollout.transitions]
    if not places:  # the first prompt left no room, for which the cookbook has an empty action
        actions = [action for action in actions if len(action.tokens)]
    if [log.tokens[place].tolist() for log, place in places] != [list(action.tokens) for action in actions]:
        raise InvalidSample(f"the rollout has other actions than {trajectory.id!r}: it is not of the same episode")
    for (log, place), action in zip(places, actions, strict=True):
        if action.maybe_logprobs is None:
            continue
        if len(action.maybe_logprobs) != len(action.tokens):
            raise InvalidSample(
                f"an action of {trajectory.id!r} has {len(action.maybe_logprobs)} log-probabilities for "
                f"{len(action.tokens)} tokens"
            )
        log.logprobs[place] = action.maybe_logprobs
    steps = [
        replace(step, parts=tuple(replace(part, temperature=temperature) for part in step.parts))
        for step in trajectory.steps
    ]
    return replace(trajectory, contexts=logs, steps=steps)


class CookbookEnv(_EnvBase):
    """An `Env` of the cookbook: one episode of an environment. Each observation is the next prompt, whole.

    Args:
        env: The environment; it is reset.
        seed: See `Env.reset`.
        options: See `Env.reset`.
    """

    def __init__(self, env: Env, *, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.env = env
        self._seed, self._options = seed, options
        self._is_used = False

    @property
    def trajectory(self) -> Trajectory | None:
        """The episode, once it is over; for `to_datums`, see `with_logprobs`."""
        return self.env.trajectory if self._is_used else None

    async def initial_observation(self) -> Any:
        """The first prompt and where to stop; an `InitialObservationOverflow` if that leaves no room for a reply."""
        if self._is_used:
            raise EpisodeError("an Env of the cookbook is for one episode: make another")
        self._is_used = True
        check_tokenizer(self, self.env.renderer)  # the cookbook does not tell an Env which model samples
        _, info = await self.env.areset(seed=self._seed, options=self._options)
        if self.trajectory is not None:
            return load("tinker_cookbook.rl.types", "tinker").InitialObservationOverflow(
                reward=0.0, metrics=_metrics(info)
            )
        return self._prompt(), self._stop(info)

    async def step(self, action: list[int], *, extra: Mapping[str, Any] | None = None) -> Any:
        """Take sampled tokens as they are; a `StepResult`, whose last metrics have `stop/<reason>`."""
        finish_reason: Any = (extra or {}).get("stop_reason", "stop")
        _, reward, terminated, truncated, info = await self.env.astep(Action(action, finish_reason=finish_reason))
        is_over = terminated or truncated
        return load("tinker_cookbook.rl.types", "tinker").StepResult(
            reward,
            is_over,
            self._prompt(),
            [] if is_over else self._stop(info),
            metrics=_metrics(info),
            logs={"context": info["context"]} | ({"break": info["break"].reason} if "break" in info else {}),
        )

    def _prompt(self) -> Any:
        return load("tinker", "tinker").ModelInput.from_ints(self.env.prompt().tolist())

    def _stop(self, info: Mapping[str, Any]) -> list[int] | list[str]:
        """Ids; where the environment asks for strings, these and the ids' texts, since there may be one kind only."""
        check_sampling(info["sampling"], None)  # the cookbook's loop cannot tell a policy
        ids = list(info["stop_token_ids"])
        if not info["stop"]:
            return ids
        tokenizer = self.env.episode.agent.context.renderer.tokenizer
        return [*(piece.decode() for piece in tokenizer.token_bytes(np.array(ids, dtype=np.int32))), *info["stop"]]


@dataclass
class CookbookEnvGroupBuilder(_GroupBase):
    """An `EnvGroupBuilder` of the cookbook: episodes of one task. It can be pickled, and makes its envs when asked."""

    env: str | Callable[..., Env]
    """The environment's id; or its class, or another function that makes it and can be pickled."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What it is made with, such as `{"renderer": "qwen3", "tokenizer": "Qwen/Qwen3-8B", "history": "strip"}`."""
    seed: int = 0
    """All episodes of the group have the same."""
    size: int = 8
    task: int | None = None
    """The index of the task, if the environment has tasks; by default, the seed chooses."""
    group_rewards: Callable[[list[Trajectory]], Sequence[float]] | None = None
    """What each episode earns beside its own reward. One that the cookbook's limits ended has the status `error`."""
    _made: list[Env] = field(default_factory=list[Env], init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"size is {self.size}; a group has at least one episode")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": []}

    async def make_envs(self) -> list[CookbookEnv]:
        """Make the environments, one for each episode."""
        envs: list[CookbookEnv] = []
        for index in range(self.size):
            env = make(self.env, **self.options) if isinstance(self.env, str) else self.env(**self.options)
            self._made.append(env)
            task = {} if self.task is None else {"task": self.task}
            group_id = "/".join(map(str, (env.name, self.seed, *task.values())))
            ids = {"episode_id": f"{group_id}#{index}", "group_id": group_id}
            envs.append(CookbookEnv(env, seed=self.seed, options={**task, **ids}))
        return envs

    async def compute_group_rewards(
        self, trajectory_group: Sequence[Any], env_group: Sequence[CookbookEnv]
    ) -> list[tuple[float, dict[str, float]]]:
        """What each episode earns beside its own reward, and how many contexts and breaks it had."""
        pairs = zip(env_group, trajectory_group, strict=True)
        episodes = [one.trajectory or one.env.fail(EpisodeError(f"ended by {by.stop_reason}")) for one, by in pairs]
        rewards = [0.0] * len(episodes) if self.group_rewards is None else list(self.group_rewards(episodes))
        if len(rewards) != len(episodes) or not all(map(math.isfinite, rewards)):
            raise EpisodeError(
                f"group_rewards gave {rewards!r:.80} for {len(episodes)} episodes; expected a number each"
            )
        metrics = [{"contexts": float(len(one.contexts)), "breaks": float(len(one.breaks))} for one in episodes]
        return [(float(reward), own) for reward, own in zip(rewards, metrics, strict=True)]

    async def cleanup(self) -> None:
        """Close the environments; what fails is logged, since the cookbook expects no error."""
        while self._made:
            try:
                self._made.pop().close()
            except Exception:
                _log.exception("an environment could not be closed")

    def logging_tags(self) -> list[str]:
        """The environment's id, or the name of what makes it."""
        return [self.env if isinstance(self.env, str) else getattr(self.env, "__name__", type(self.env).__name__)]


def _metrics(info: Mapping[str, Any]) -> dict[str, float]:
    rewards = {f"reward/{name}": reward for name, reward in info["rewards"].items() if reward is not None}
    reason = info.get("stop_reason")
    return {**info["metrics"], **rewards, **({f"stop/{_STOP_REASONS.get(reason, reason)}": 1.0} if reason else {})}
