"""The adapter for tinker: samples as `tinker.Datum`s, and environments for the rollouts of tinker's cookbook."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._arguments import explain_arguments
from .._visible import brief
from ..authoring._env import Env
from ..authoring._making import make
from ..contexts._protocol import Action
from ..errors import ConfigError, EpisodeError, InvalidSample, PolicyUnavailable
from ..images import PlacedImage, rgb_image
from ..limits import StopReason
from ..policies._vocabularies import check_tokenizer
from ..rendering._vision import token_types
from ..rendering.tokenizers import Tokenizer, load_tokenizer
from ..trajectories._samples import Sample
from ..trajectories._trajectory import Trajectory
from ._capability import Capability
from ._checks import check_samples, check_sampling, refusal_of
from ._packages import load, load_if_installed
from ._rows import advantages, logprobs

__all__ = [
    "CompleterPolicy",
    "CookbookEnv",
    "CookbookEnvGroupBuilder",
    "loss_fn_inputs",
    "to_datums",
    "with_logprobs",
]

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAPABILITY = Capability(
    "tinker",
    several_samples=True,
    loss_weight="Left out: its losses are sums over tokens.",
    images="`ImageChunk`s in the `ModelInput` (PNG or JPEG in RGB, with the number of tokens), also in prompts.",
)

_STOP_REASONS: Mapping[str, str] = {
    StopReason.TERMINATED: "completed",
    StopReason.MAX_STEPS: "max_turns",
    StopReason.MAX_CONTEXT_TOKENS: "context_overflow",
    StopReason.CONTEXT_FULL: "context_overflow",
    StopReason.CUT: "max_tokens",
}
"""The cookbook's names of our stop reasons. Others have the same name there, or do not exist."""
_log = logging.getLogger(__name__)

_types: Any = load_if_installed("tinker_cookbook.rl.types")
_EnvBase: Any = getattr(_types, "Env", object)
_GroupBase: Any = getattr(_types, "EnvGroupBuilder", object)


def to_datums(samples: Iterable[Sample]) -> list[Any]:
    """Convert each sample to a `tinker.Datum` with the fields of the cookbook's `trajectory_to_data`.

    An image is an `ImageChunk` in the place of its tokens, and `expected_tokens` is their number: tinker computes its
    own number from the image, and refuses a datum in which they differ.

    Args:
        samples: Samples with log-probabilities and advantages, sampled at temperature 1.

    Raises:
        InvalidSample: If a sample is invalid, has no log-probabilities or no advantage, or was not sampled at
            temperature 1, at which tinker computes log-probabilities.
        MissingPackage: If tinker is not installed.
    """
    valid = check_samples(samples, advantage=True, temperature=1.0, no_images=None)
    tinker = load("tinker", "tinker")
    return [
        tinker.Datum(
            model_input(sample.tokens[:-1], sample.media),
            loss_fn_inputs=loss_fn_inputs(sample),
        )
        for sample in valid
    ]


def model_input(tokens: "NDArray[np.int32]", media: Sequence[PlacedImage] = ()) -> Any:
    """Return tokens and the images in them as a `tinker.ModelInput`.

    Args:
        tokens: The token ids, with the placeholders of the images: int32, shape (n,).
        media: The images, in order, each with the range of its placeholders.

    Raises:
        ImageError: If the bytes of an image are missing.
        MissingPackage: If tinker is not installed.
    """
    tinker = load("tinker", "tinker")
    if not media:
        return tinker.ModelInput.from_ints(tokens.tolist())
    chunks: list[Any] = []
    end = 0
    for placed in media:
        if placed.start > end:
            chunks.append(tinker.EncodedTextChunk(tokens=tokens[end : placed.start].tolist()))
        image = rgb_image(placed.image)
        chunks.append(
            tinker.types.ImageChunk(
                data=image.data,
                format=image.media_type.removeprefix("image/"),
                expected_tokens=placed.stop - placed.start,
            )
        )
        end = placed.stop
    if end < len(tokens):
        chunks.append(tinker.EncodedTextChunk(tokens=tokens[end:].tolist()))
    return tinker.ModelInput(chunks=chunks)


def loss_fn_inputs(sample: Sample) -> dict[str, Any]:
    """Return the inputs of tinker's losses for a valid sample of L tokens.

    Returns:
        Arrays of shape (L - 1,), shifted by one: `target_tokens` is int64, 0 at the tokens of images, as the cookbook
        has it; `logprobs`, `advantages` and `mask` are float32.
    """
    values = {"logprobs": logprobs(sample), "advantages": advantages(sample), "mask": sample.mask}
    shifted = {name: np.asarray(value, dtype=np.float32)[1:] for name, value in values.items()}
    targets = np.where(token_types(sample.media, len(sample)) == 0, sample.tokens, 0)
    return {"target_tokens": targets[1:].astype(np.int64), **shifted}


def with_logprobs(trajectory: Trajectory | None, rollout: Any, *, temperature: float = 1.0) -> Trajectory:
    """Add the log-probabilities and the temperature of the cookbook's rollout, whose loop passes only tokens to an Env.

    Args:
        trajectory: The trajectory of the episode, `CookbookEnv.trajectory`.
        rollout: The cookbook's `Trajectory` of the same episode, which `do_single_rollout` returns.
        temperature: The temperature at which the cookbook's completer sampled.

    Returns:
        A new trajectory.

    Raises:
        EpisodeError: If the episode is not over.
        InvalidSample: If `rollout` belongs to another episode, or an action has a wrong number of log-probabilities.
    """
    if trajectory is None:
        raise EpisodeError(
            "trajectory is None, because the episode is not over: a limit of the cookbook stopped it, or it was not "
            "run. Leave this rollout out, or set the limit in the environment with Limits(...)"
        )
    logs = {name: replace(log, logprobs=log.logprobs.copy()) for name, log in trajectory.contexts.items()}
    sampled = [(logs[step.context], slice(step.action_start, step.stop)) for step in trajectory.steps]
    actions = [transition.ac for transition in rollout.transitions]
    if not sampled:  # the first prompt left no room, and the cookbook recorded an empty action
        actions = [action for action in actions if len(action.tokens)]
    if [log.tokens[span].tolist() for log, span in sampled] != [list(action.tokens) for action in actions]:
        raise InvalidSample(
            f"the actions of the rollout differ from those of trajectory {trajectory.id!r}, so it is not of the same "
            "episode: pair each rollout with the trajectory of its own CookbookEnv"
        )
    for (log, span), action in zip(sampled, actions, strict=True):
        if action.maybe_logprobs is None:
            continue
        if len(action.maybe_logprobs) != len(action.tokens):
            raise InvalidSample(
                f"an action of trajectory {trajectory.id!r} has {len(action.maybe_logprobs)} log-probabilities for "
                f"{len(action.tokens)} tokens; expected one for each token"
            )
        log.logprobs[span] = action.maybe_logprobs
    steps = [
        replace(step, parts=tuple(replace(part, temperature=temperature) for part in step.parts))
        for step in trajectory.steps
    ]
    return replace(trajectory, contexts=logs, steps=steps)


class CompleterPolicy:
    """A policy that samples with a `TokenCompleter` of the cookbook, for `Rollouts` and your own loop.

    Args:
        completer: The completer, such as `TinkerTokenCompleter(sampling_client, max_tokens=1024)`.
        tokenizer: What `load_tokenizer` takes: the tokenizer of its model.
        temperature: The temperature at which the completer samples; by default, `completer.temperature`, or 1 if it has
            no such attribute.
    """

    def __init__(self, completer: Any, tokenizer: Any, *, temperature: float | None = None) -> None:
        self.tokenizer = load_tokenizer(tokenizer)
        self._completer = completer
        self._temperature = float(getattr(completer, "temperature", 1.0) if temperature is None else temperature)
        self.refuses_sampling = refusal_of(self._temperature)

    async def __call__(
        self,
        prompt: "NDArray[np.int32]",
        *,
        stop_token_ids: Sequence[int],
        stop: Sequence[str],
        max_tokens: int | None,
        sampling: Mapping[str, Any],
        media: Sequence[PlacedImage] = (),
        **_: Any,
    ) -> Action:
        """Sample a reply; see `Policy`. The images of the prompt are chunks of the model input.

        Raises:
            ConfigError: If the environment requests sampling options, which a completer does not take.
            PolicyUnavailable: If tinker's servers do not answer.
        """
        check_sampling(sampling, self._temperature)
        tinker = load("tinker", "tinker")
        stops = _stops(stop_token_ids, stop, self.tokenizer)
        try:
            reply = await self._completer(model_input(prompt, media), stops, max_tokens=max_tokens)
        except (tinker.APIConnectionError, tinker.InternalServerError, tinker.RateLimitError) as error:
            raise PolicyUnavailable(f"tinker's servers do not answer: {error}") from error
        return Action(reply.tokens, reply.maybe_logprobs, reply.stop_reason, self._temperature)


class CookbookEnv(_EnvBase):
    """An `Env` of the cookbook that runs one episode of an environment. Each observation is the full next prompt.

    Args:
        env: The environment, which is reset at the start.
        seed: The seed of the episode; see `Env.reset`.
        options: The reset options; see `Env.reset`.
    """

    def __init__(self, env: Env, *, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.env = env
        self._seed, self._options = seed, options
        self._is_used = False

    @property
    def trajectory(self) -> Trajectory | None:
        """The trajectory of the episode; None until it is over. Pass it to `with_logprobs` before `to_datums`."""
        return self.env.trajectory if self._is_used else None

    async def initial_observation(self) -> Any:
        """Reset the environment, and return the first prompt and the stop condition.

        Returns:
            A pair; or an `InitialObservationOverflow` if the prompt leaves no room for a reply.

        Raises:
            EpisodeError: If this object has already run an episode.
        """
        if self._is_used:
            raise EpisodeError("this CookbookEnv has already run its episode: make another one for each episode")
        self._is_used = True
        check_tokenizer(self, self.env.renderer)  # the cookbook does not specify which model samples
        _, info = await self.env.areset(seed=self._seed, options=self._options)
        if self.trajectory is not None:
            return load("tinker_cookbook.rl.types", "tinker").InitialObservationOverflow(
                reward=0.0, metrics=_metrics(info)
            )
        return self._prompt(), self._stop(info)

    async def step(self, action: list[int], *, extra: Mapping[str, Any] | None = None) -> Any:
        """Step the environment with sampled tokens.

        Args:
            action: The sampled token ids.
            extra: The cookbook's data about the action. Its `stop_reason` is the finish reason.

        Returns:
            A `StepResult`. The metrics of the last one have `stop/<reason>`.
        """
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
        return model_input(self.env.prompt(), self.env.episode.agent.context.media())

    def _stop(self, info: Mapping[str, Any]) -> list[int] | list[str]:
        check_sampling(info["sampling"], None)  # the cookbook's loop cannot pass sampling options to a policy
        return _stops(info["stop_token_ids"], info["stop"], self.env.episode.agent.context.renderer.tokenizer)


@dataclass
class CookbookEnvGroupBuilder(_GroupBase):
    """An `EnvGroupBuilder` of the cookbook: a group of episodes of one task. It can be pickled.

    Attributes:
        env: The id of the environment; or its class, or any other picklable function that makes it.
        options: The options of the environment, such as `{"renderer": "qwen3", "tokenizer": "Qwen/Qwen3-8B",
            "history": "strip"}`.
        seed: The seed of all episodes of the group.
        group_size: The number of episodes of the group.
        task: The index of the task, if the environment has tasks; by default, the seed selects it.
        group_rewards: A function that returns, for the trajectories of the group, a reward that is added to the
            reward of each. A trajectory that a limit of the cookbook stopped has the status `error`.
    """

    env: str | Callable[..., Env]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0
    group_size: int = 1
    task: int | None = None
    group_rewards: Callable[[list[Trajectory]], Sequence[float]] | None = None
    _made: list[Env] = field(default_factory=list[Env], init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.group_size < 1:
            raise ConfigError(f"group_size is {self.group_size}; expected at least 1")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": []}

    async def make_envs(self) -> list[CookbookEnv]:
        """Make one environment for each episode."""
        envs: list[CookbookEnv] = []
        for index in range(self.group_size):
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
        """Return for each episode the reward that is added to its own, and its numbers of contexts and breaks.

        Raises:
            InvalidSample: If the environment left sampled tokens out of training, all of which the cookbook trains.
            EpisodeError: If `group_rewards` does not return a finite number for each episode.
        """
        pairs = zip(env_group, trajectory_group, strict=True)
        episodes = [
            env.trajectory or env.env.fail(EpisodeError(f"the cookbook stopped the episode: {rollout.stop_reason}"))
            for env, rollout in pairs
        ]
        for episode in episodes:
            masked = [index for index, step in enumerate(episode.steps) if step.masked]
            if masked:
                raise InvalidSample(
                    f"trajectory {episode.id!r} leaves sampled tokens of step {masked[0] + 1} out of training "
                    "(Turn(mask=) or Turn(train_dropped=False)), but the cookbook's trajectory_to_data trains every "
                    "sampled token: sample with CompleterPolicy and train with to_datums instead"
                )
        rewards = [0.0] * len(episodes) if self.group_rewards is None else list(self.group_rewards(episodes))
        if len(rewards) != len(episodes) or not all(map(math.isfinite, rewards)):
            raise EpisodeError(
                f"group_rewards returned {brief(rewards)} for {len(episodes)} episodes; expected a finite number for "
                "each episode"
            )
        metrics = [{"contexts": float(len(t.contexts)), "breaks": float(len(t.breaks))} for t in episodes]
        return [(float(reward), own) for reward, own in zip(rewards, metrics, strict=True)]

    async def cleanup(self) -> None:
        """Close the environments. Errors are logged, because the cookbook expects that this method does not raise."""
        while self._made:
            try:
                self._made.pop().close()
            except Exception:
                _log.exception("an environment could not be closed")

    def logging_tags(self) -> list[str]:
        """Return the id of the environment, or the name of the function that makes it."""
        return [self.env if isinstance(self.env, str) else getattr(self.env, "__name__", type(self.env).__name__)]


def _stops(ids: Sequence[int], texts: Sequence[str], tokenizer: Tokenizer) -> list[int] | list[str]:
    """Return the stop token ids; or, if the environment requests stop strings, these and the strings of the ids.

    The cookbook accepts either ids or strings.
    """
    if not texts:
        return list(ids)
    return [*(piece.decode() for piece in tokenizer.token_bytes(np.array(ids, dtype=np.int32))), *texts]


def _metrics(info: Mapping[str, Any]) -> dict[str, float]:
    rewards = {f"reward/{name}": reward for name, reward in info["rewards"].items() if reward is not None}
    reason = info.get("stop_reason")
    return {**info["metrics"], **rewards, **({f"stop/{_STOP_REASONS.get(reason, reason)}": 1.0} if reason else {})}


explain_arguments(globals())
