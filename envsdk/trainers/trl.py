"""TRL's GRPOTrainer: a `rollout_func` over any environment, with the data set and the reward function that go with it.

    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, args=args,
        train_dataset=dataset("envsdk/GuessNumber-v0", range(1000)),
        rollout_func=RolloutFunc(partial(envsdk.make, renderer="qwen3", tokenizer=tokenizer)),
        reward_funcs=reward_func,
    )

GRPOTrainer hands out each prompt `num_generations` times, takes one row for each, and compares the rewards of these
rows. See `trl_async` for the trainer that takes several rows of a rollout. TRL itself is not imported.
"""

import functools
import inspect
import json
import logging
import operator
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ..authoring.env import Env
from ..episodes.event_loops import run
from ..errors import ConfigError, EpisodeError
from ..policies.builtin import PolicyLike
from ..policies.transformers import TransformersPolicy
from ..rendering.tokenizers import Tokenizer, load_tokenizer
from ..rollouts.many import agather
from ..trajectories.samples import Sample
from ..trajectories.trajectory import Trajectory
from .capability import Capability
from .checks import checked, guarded
from .packages import load
from .rows import logprobs, response_start
from .single import OnBreak, check_on_break, single_sample

_log = logging.getLogger(__name__)

CAPABILITY = Capability(
    trainer="TRL's GRPOTrainer",
    several_samples=False,
    loss_weight="Not needed: a rollout is one row.",
)


_COLUMNS = (
    *("prompt_ids", "completion_ids", "logprobs", "env_mask"),
    *("reward", "dropped_share", "failed", "steps", "trajectory_id"),
)


# The data set: each prompt names an environment and a seed.


def prompt_of(env_id: str, seed: int) -> str:
    """The text that stands for an episode in the column `prompt`; the model's prompts come from the environment."""
    return json.dumps({"env": env_id, "seed": seed})


def read_prompt(prompt: Any) -> tuple[str, int]:
    """The environment's id and the seed that a prompt names.

    Raises:
        ConfigError: If it is none that `prompt_of` wrote.
    """
    try:
        row = json.loads(prompt)
    except (TypeError, ValueError):
        row = None
    match row:
        case {"env": str(env_id), "seed": int(seed)} if not isinstance(seed, bool):
            return env_id, seed
        case _:
            raise ConfigError(
                f"the prompt {prompt!r:.80} names no episode; expected one such as "
                f"{prompt_of('envsdk/GuessNumber-v0', 0)!r}: make the data set with dataset(env_id, seeds)"
            )


def dataset(env_id: str, seeds: Iterable[int]) -> Any:
    """A data set of the package `datasets` whose prompts name one episode each.

    `datasets.concatenate_datasets` puts those of several environments together. With tasks from data, the seeds of
    `range(n)` give each of n tasks once.

    Args:
        env_id: What `make_env` is called with.
        seeds: One for each row.
    """
    datasets: Any = load("datasets", "trl")
    return datasets.Dataset.from_dict({"prompt": [prompt_of(env_id, operator.index(seed)) for seed in seeds]})


# From rollouts to rows.


def to_row(sample: Sample, *, temperature: float | None = None) -> dict[str, list[Any]]:
    """GRPOTrainer's row of a sample: the prompt ends at the first trained token, everything behind is completion.

    Args:
        sample: The sample.
        temperature: What the trainer divides logits by; None: it is not compared.

    Raises:
        InvalidSample: See `checked`.
    """
    (sample,) = checked([sample], temperature=temperature)
    first = response_start(sample)
    return {
        "prompt_ids": sample.tokens[:first].tolist(),
        "completion_ids": sample.tokens[first:].tolist(),
        "logprobs": logprobs(sample)[first:].tolist(),
        "env_mask": sample.mask[first:].astype(int).tolist(),
    }


def to_batch(
    trajectories: Iterable[Trajectory],
    *,
    on_break: OnBreak = "raise",
    temperature: float | None = None,
    pad_token_id: int = 0,
) -> dict[str, list[Any]]:
    """What a `rollout_func` returns: a row for each rollout, and columns for reward functions.

    A rollout that failed, was dropped, was not scored or sampled nothing needs a row, too. Its reward is None, so that
    it does not count in its group's baseline, if `scored` is around every other reward function.

    Args:
        trajectories: The rollouts, in the order of the prompts.
        on_break: What to do with a rollout of several samples.
        temperature: See `to_row`.
        pad_token_id: The token of rows that train nothing.

    Returns:
        `prompt_ids`, `completion_ids`, `logprobs`, `env_mask`; and `reward` (None if it does not count),
        `dropped_share` (of the sampled tokens, what is not trained), `failed` (0.0 or 1.0), `steps`, `trajectory_id`.

    Raises:
        SingleSampleOnly: If a rollout has several samples, and `on_break` is `"raise"`.
        InvalidSample: See `to_row`.
    """
    nothing = {"prompt_ids": [pad_token_id], "completion_ids": [pad_token_id], "logprobs": [0.0], "env_mask": [0]}
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for trajectory in trajectories:
        single = single_sample(trajectory, CAPABILITY.trainer, on_break)
        is_counted = single.sample is not None and trajectory.is_scored(single.sample.context)
        sample = single.sample if is_counted else None
        about = {
            "reward": None if sample is None else sample.reward,
            "dropped_share": single.dropped_share,
            "failed": float(trajectory.status == "error"),
            "steps": len(trajectory.steps),
            "trajectory_id": trajectory.id,
        }
        row = nothing if sample is None else to_row(sample, temperature=temperature)
        for name, value in {**row, **about}.items():
            columns[name].append(value)
    return columns


def refuse_failure_of_all(trajectories: Sequence[Trajectory]) -> None:
    """Raise an `EpisodeError` with the last error if all episodes failed."""
    errors = [trajectory.error for trajectory in trajectories if trajectory.status == "error"]
    if errors and len(errors) == len(trajectories):
        raise EpisodeError(f"all of {len(errors)} episodes failed, the last one with: {errors[-1]}")


def reward_func(
    *,
    reward: Sequence[float | None],
    dropped_share: Sequence[float] = (),
    failed: Sequence[float] = (),
    steps: Sequence[float] = (),
    log_metric: Callable[[str, float], None] | None = None,
    **_: Any,
) -> list[float | None]:
    """What the environment gave; None for a row that does not count. A reward function for GRPOTrainer.

    It also logs the means of `envsdk/dropped_share`, `envsdk/failed` and `envsdk/steps`.
    """
    for name, values in {"dropped_share": dropped_share, "failed": failed, "steps": steps}.items():
        if log_metric is not None and len(values):
            log_metric(f"envsdk/{name}", float(np.mean(values)))
    return list(reward)


def scored(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reward function that may stand beside `reward_func`: None for a row that does not count.

    GRPOTrainer leaves a row out of its group's baseline only if every reward function says None. It may be `async def`.
    """

    def only_counting(values: Any, reward: Sequence[float | None]) -> list[Any]:
        return [None if own is None else value for own, value in zip(reward, values, strict=True)]

    @functools.wraps(function)
    def score(*args: Any, reward: Sequence[float | None], **columns: Any) -> Any:
        return only_counting(function(*args, reward=reward, **columns), reward)

    @functools.wraps(function)
    async def ascore(*args: Any, reward: Sequence[float | None], **columns: Any) -> Any:
        return only_counting(await function(*args, reward=reward, **columns), reward)

    wrapped: Any = ascore if inspect.iscoroutinefunction(function) else score
    wrapped.is_scored = True
    return wrapped


class RolloutFunc:
    """A `rollout_func` for GRPOTrainer: plays the episodes that the prompts name.

    Args:
        make_env: Makes an environment of an id: `partial(envsdk.make, renderer=..., tokenizer=...)`.
        policy: A policy that has the trainer's weights; if it declares no tokenizer, it has the trainer's, too. By
            default the trainer's own model samples, by a `TransformersPolicy` with the trainer's temperature, and
            replies of up to `max_completion_length` tokens: that needs the whole model in one process.
        on_break: What to do with a rollout of several samples.
        max_concurrency: How many episodes of an environment run at a time.
        max_failed_batches: The training ends when so many batches in a row have nothing but failed episodes.

    Raises:
        ConfigError: If an option is none.
    """

    def __init__(
        self,
        make_env: Callable[[str], Env],
        policy: PolicyLike | None = None,
        *,
        on_break: OnBreak = "raise",
        max_concurrency: int = 16,
        max_failed_batches: int = 4,
    ) -> None:
        if min(max_concurrency, max_failed_batches) < 1:
            raise ConfigError("max_concurrency and max_failed_batches are at least 1")
        self.make_env, self.policy = make_env, policy
        self.on_break: OnBreak = check_on_break(on_break)
        self.max_concurrency = max_concurrency
        self._max_failed_batches, self._failed_batches = max_failed_batches, 0
        self.trajectories: list[Trajectory] = []
        """What was played for the last batch."""
        self._calls = 0
        self._tokenizer: tuple[Any, Tokenizer] | None = None

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Play an episode for each prompt; see `to_batch`.

        Raises:
            ConfigError: If a prompt names no episode, or a row does not count and a reward function is not `scored`.
            EpisodeError: If every episode failed, as in the batches before.
        """
        self._calls += 1
        episodes = [read_prompt(prompt) for prompt in prompts]
        if self.policy is not None:
            tokenizer = None if isinstance(self.policy, str) else self._tokenizer_of(trainer)
            policy = guarded(self.policy, trainer.temperature, tokenizer)
            self.trajectories = self._play(episodes, policy)
        else:
            with _sampling(trainer) as model:
                policy = guarded(self._policy_of(trainer, model), trainer.temperature)
                self.trajectories = self._play(episodes, policy)
        has_failed = bool(episodes) and all(trajectory.status == "error" for trajectory in self.trajectories)
        self._failed_batches = self._failed_batches + 1 if has_failed else 0
        if self._failed_batches >= self._max_failed_batches:
            refuse_failure_of_all(self.trajectories)
        batch = to_batch(
            self.trajectories,
            on_break=self.on_break,
            temperature=trainer.temperature,
            pad_token_id=trainer.processing_class.pad_token_id,
        )
        if untrained := batch["reward"].count(None):
            _log.warning("%d of %d rollouts train nothing", untrained, len(prompts))
            _check_reward_functions(getattr(trainer, "reward_funcs", ()))
        return batch

    def _play(self, episodes: Sequence[tuple[str, int]], policy: PolicyLike) -> list[Trajectory]:
        return run(self._aplay(episodes, policy))

    async def _aplay(self, episodes: Sequence[tuple[str, int]], policy: PolicyLike) -> list[Trajectory]:
        played: dict[int, Trajectory] = {}
        for env_id in dict.fromkeys(name for name, _ in episodes):
            indices = [index for index, (name, _) in enumerate(episodes) if name == env_id]
            seeds = [episodes[index][1] for index in indices]
            make_env = partial(self.make_env, env_id)
            found = await agather(make_env, policy, seeds=seeds, max_concurrency=self.max_concurrency)
            played.update(zip(indices, found, strict=True))
        return [played[index] for index in range(len(episodes))]

    def _tokenizer_of(self, trainer: Any) -> Tokenizer:
        """The trainer's, read once; that of a processor is its text's."""
        given = trainer.processing_class
        if self._tokenizer is None or self._tokenizer[0] is not given:
            self._tokenizer = given, load_tokenizer(getattr(given, "tokenizer", given))
        return self._tokenizer[1]

    def _policy_of(self, trainer: Any, model: Any) -> TransformersPolicy:
        """A new one for each batch, with a seed of its own: no reply is sampled twice, here or in another process."""
        number = np.random.SeedSequence([trainer.args.seed, trainer.accelerator.process_index, self._calls])
        return TransformersPolicy(
            model,
            self._tokenizer_of(trainer),
            seed=int(number.generate_state(1)[0]),
            temperature=trainer.temperature,
            max_tokens=trainer.max_completion_length,
            policy_version=trainer.state.global_step,
        )


def _check_reward_functions(functions: Iterable[Any]) -> None:
    wrong = [function for function in functions if function is not reward_func and not hasattr(function, "is_scored")]
    if wrong:
        name = getattr(wrong[0], "__name__", type(wrong[0]).__name__)
        raise ConfigError(
            f"a rollout trains nothing, and the reward function {name} would give it a reward that shifts its group's "
            f"baseline: pass scored({name}) of envsdk.trainers.trl in its place"
        )


@contextmanager
def _sampling(trainer: Any) -> Generator[Any]:
    """The trainer's model, in evaluation mode meanwhile."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    was_training = model.training
    model.eval()
    try:
        yield model
    finally:
        model.train(was_training)
