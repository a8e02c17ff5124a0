"""The adapter for TRL's GRPOTrainer: a `rollout_func` for any environment, its dataset, and its reward function.

    trainer = tree_trainer()(
        model=model, processing_class=tokenizer, args=args,
        train_dataset=dataset("envsdk/GuessNumber-v1", range(1000)),
        rollout_func=RolloutFunc(partial(envsdk.make, renderer="qwen3", tokenizer=tokenizer)),
        reward_funcs=reward_func,
    )

GRPOTrainer passes each prompt `num_generations` times, takes one row for each, and compares the rewards of these rows.
The rows of a `tree_trainer` are whole rollouts, with all their samples and images; GRPOTrainer itself trains one sample
of a rollout, without images. See `trl_async` for the trainer that takes several rows of a rollout. This module does not
import TRL.
"""

import json
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias, Unpack, cast

import numpy as np

from .._arguments import explain_arguments
from .._visible import brief
from ..authoring._driver import seeds_of
from ..authoring._env import Env
from ..errors import ConfigError, EpisodeError
from ..policies._policy import PolicyLike
from ..policies._transformers import TransformersPolicy
from ..rendering.tokenizers import Tokenizer, load_tokenizer
from ..rollouts._engine import Rollouts
from ..rollouts._player import Deadlines, check_deadlines
from ..trajectories._samples import Sample
from ..trajectories._trajectory import Trajectory
from ._capability import Capability
from ._checks import check_samples, guard_policy
from ._conversations import split_conversation, to_conversations
from ._packages import load
from ._rows import split_response
from ._single import OnBreak, check_on_break, single_sample, trainable_tokens
from ._trl_environments import environment_factory as environment_factory
from ._trl_rewards import conversational as conversational
from ._trl_rewards import reward_func as reward_func
from ._trl_rewards import scored as scored
from ._trl_trees import TreeRow, TreeRows
from ._trl_trees import tree_trainer as tree_trainer

__all__ = [
    "RolloutFunc",
    "conversational",
    "dataset",
    "environment_factory",
    "reward_func",
    "scored",
    "to_batch",
    "to_row",
    "tree_trainer",
]

_log = logging.getLogger(__name__)

CAPABILITY = Capability(
    trainer="TRL's GRPOTrainer",
    several_samples=True,
    loss_weight="Not needed: a rollout is one row.",
    images="Tensors of the image processor (`pixel_values`, `image_grid_thw`, ...), with `tree_trainer()`.",
)


_NO_IMAGES = (
    "GRPOTrainer's rollout_func has no field for images: make the trainer with envsdk.trainers.trl.tree_trainer()"
)
_RowChoice: TypeAlias = OnBreak | Literal["tree"]
"""The row of a rollout: `"tree"` is all of it, for a `tree_trainer`; else `OnBreak` chooses one sample."""
_Credit: TypeAlias = Callable[[list[Sample]], Sequence[Sample]]
_COLUMNS = (
    *("prompt_ids", "completion_ids", "logprobs", "env_mask"),
    *("reward", "dropped_share", "failed", "steps", "trajectory_id"),
    *("prompt_messages", "completion_messages", "trajectory"),
)


# The dataset: each prompt names an environment and a seed.


def prompt_of(env_id: str, seed: int) -> str:
    """Return the string in the column `prompt` that names an episode. The environment makes the model's prompts."""
    return json.dumps({"env": env_id, "seed": seed})


def read_prompt(prompt: Any) -> tuple[str, int]:
    """Return the environment id and the seed that a string of `prompt_of` names.

    Raises:
        ConfigError: If `prompt` is not such a string.
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
                f"the prompt {brief(prompt)} does not name an episode; expected a string such as "
                f"{prompt_of('envsdk/GuessNumber-v1', 0)!r}: make the dataset with dataset(env_id, seeds)"
            )


def dataset(env_id: str, seeds: int | Sequence[int]) -> Any:
    """Make a `datasets.Dataset` in which each prompt names one episode.

    `datasets.concatenate_datasets` joins the datasets of several environments. For an environment with n tasks, the
    seeds of `range(n)` give each task once.

    Args:
        env_id: The id that is passed to `make_env`.
        seeds: The seeds of the episodes, one for each row; see `Rollouts`.

    Raises:
        MissingPackage: If datasets is not installed.
    """
    datasets: Any = load("datasets", "trl")
    return datasets.Dataset.from_dict({"prompt": [prompt_of(env_id, operator.index(seed)) for seed in seeds_of(seeds)]})


# Rows.


def to_row(sample: Sample, *, temperature: float | None = None, images: bool = False) -> dict[str, list[Any]]:
    """Convert a sample to a row of GRPOTrainer. The completion begins with the first trained token.

    Args:
        sample: The sample.
        temperature: The temperature by which the trainer divides logits, which must be that of the sample. None skips
            the check.
        images: Whether the trainer gets the images of the sample besides the row; see `tree_trainer`.

    Raises:
        InvalidSample: If the sample is invalid, has no log-probabilities, was sampled at another temperature, or has
            images that the trainer does not get.
    """
    (sample,) = check_samples([sample], temperature=temperature, no_images=None if images else _NO_IMAGES)
    prompt, completion, mask, logprobs = split_response(sample)
    return {"prompt_ids": prompt, "completion_ids": completion, "logprobs": logprobs, "env_mask": mask}


def to_batch(
    trajectories: Iterable[Trajectory],
    *,
    on_break: OnBreak = "raise",
    temperature: float | None = None,
    pad_token_id: int = 0,
) -> dict[str, list[Any]]:
    """Convert rollouts to the return value of a `rollout_func`: one row for each, with columns for reward functions.

    A rollout that failed, was dropped, was not scored or has no sampled tokens gets a row that trains nothing. Its
    reward is None, so it does not count in the baseline of its group if every other reward function is wrapped in
    `scored`.

    Args:
        trajectories: The rollouts, in the order of the prompts.
        on_break: What to do with a rollout of several samples; see `OnBreak`.
        temperature: The trainer's temperature; see `to_row`.
        pad_token_id: The token id in rows that train nothing.

    Returns:
        Columns with one item for each rollout: `prompt_ids`, `completion_ids`, `logprobs`, `env_mask`; and `reward`
        (None if it does not count), `dropped_share` (the share of sampled tokens that is not trained), `failed` (0.0 or
        1.0), `steps` (the number of steps), `trajectory_id`; `prompt_messages` and `completion_messages` (the messages
        of the main context before and from the first reply, see `conversational`), and `trajectory` (all contexts and
        steps, see `to_conversations`).

    Raises:
        SingleSampleOnly: If a rollout has several samples, and `on_break` is `"raise"`.
        InvalidSample: If a sample is invalid; see `to_row`.
    """
    trajectories = list(trajectories)
    rows = [_sample_row(trajectory, on_break) for trajectory in trajectories]
    return _columns(trajectories, rows, temperature, pad_token_id, images=False)


class _RolloutRow(NamedTuple):
    """What of a rollout is trained."""

    trained: Sample | TreeRow | None
    """None if the rollout does not count."""
    reward: float | None
    dropped_share: float


def _sample_row(trajectory: Trajectory, on_break: OnBreak) -> _RolloutRow:
    """Return the row of one sample of a rollout."""
    single = single_sample(trajectory, CAPABILITY.trainer, on_break)
    sample = single.sample
    if sample is None or not trajectory.is_scored(sample.context):
        return _RolloutRow(None, None, single.dropped_share)
    return _RolloutRow(sample, sample.reward, single.dropped_share)


def _tree_rows(trajectories: Sequence[Trajectory], prompts: Sequence[str], credit: _Credit | None) -> list[_RolloutRow]:
    """Return the rows of whole rollouts, with the advantages of `credit`."""
    main = [next(iter(trajectory.contexts), "") for trajectory in trajectories]
    counted = [
        number
        for number, trajectory in enumerate(trajectories)
        if trajectory.status != "error" and trajectory.is_scored(main[number])
    ]
    samples = {
        number: [replace(sample, group_id=prompts[number]) for sample in trajectories[number].samples()]
        for number in counted
    }
    if credit is not None:
        given = iter(credit([sample for own in samples.values() for sample in own]))
        samples = {number: list(islice(given, len(own))) for number, own in samples.items()}
    rows: list[_RolloutRow] = []
    for number, trajectory in enumerate(trajectories):
        own = samples.get(number)
        tree = TreeRow.of(own) if own else None
        total = trainable_tokens(trajectory)
        dropped = 1.0 - (0 if tree is None else len(tree.tree.trained)) / total if total else 0.0
        rows.append(_RolloutRow(tree, None if tree is None else trajectory.reward_of(main[number]), dropped))
    return rows


def _columns(
    trajectories: Sequence[Trajectory],
    rows: Sequence[_RolloutRow],
    temperature: float | None,
    pad_token_id: int,
    *,
    images: bool,
) -> dict[str, list[Any]]:
    """Return the columns of rollouts with these rows; see `to_batch`."""
    blank = {"prompt_ids": [pad_token_id], "completion_ids": [pad_token_id], "logprobs": [0.0], "env_mask": [0]}
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for trajectory, row in zip(trajectories, rows, strict=True):
        main = next(iter(trajectory.contexts.values()), None)
        prompt, completion = split_conversation(() if main is None else main.messages)
        if isinstance(row.trained, TreeRow):
            tokens = row.trained.columns(temperature)
        else:
            tokens = blank if row.trained is None else to_row(row.trained, temperature=temperature, images=images)
        values = {
            **tokens,
            "reward": row.reward,
            "dropped_share": row.dropped_share,
            "failed": float(trajectory.status == "error"),
            "steps": len(trajectory.steps),
            "trajectory_id": trajectory.id,
            "prompt_messages": prompt,
            "completion_messages": completion,
            "trajectory": to_conversations(trajectory),
        }
        for name, value in values.items():
            columns[name].append(value)
    return columns


def raise_if_all_failed(trajectories: Sequence[Trajectory]) -> None:
    """Raise an `EpisodeError` with the last error if all episodes failed."""
    errors = [trajectory.error for trajectory in trajectories if trajectory.status == "error"]
    if errors and len(errors) == len(trajectories):
        raise EpisodeError(f"all of {len(errors)} episodes failed, the last one with: {errors[-1]}")


def deadlines_for(policy: object, deadlines: Deadlines) -> Deadlines:
    """Return the deadlines of a policy. By default, a model in this process has none: its replies delay each other."""
    return {"policy_timeout_s": None, **deadlines} if isinstance(policy, TransformersPolicy) else deadlines


class RolloutFunc:
    """A `rollout_func` for GRPOTrainer that runs the episodes that the prompts name.

    Args:
        make_env: A function that makes an environment from its id: `partial(envsdk.make, renderer=..., tokenizer=...)`.
        policy: A policy with the trainer's weights. If it declares no tokenizer, it is assumed to have the trainer's.
            By default, a `TransformersPolicy` samples from the trainer's own model, at the trainer's temperature, with
            at most `max_completion_length` tokens in a reply. This needs the whole model in one process.
        on_break: The row of a rollout: `"tree"` is all of it, each token once; else what to do with a rollout of
            several samples, see `OnBreak`. By default, `"tree"` in a `tree_trainer`, and `"raise"` in others.
        credit: A function that gives the samples of a batch advantages, such as `envsdk.credit.group_advantages`, and
            returns them in the same order. They replace those that TRL computes from rewards, so that sub-agents and
            roles can have their own. A group is the rollouts of one prompt in this process. For `"tree"` only.
        max_concurrency: The number of episodes of an environment that run concurrently.
        max_failed_batches: The number of consecutive batches in which all episodes fail after which training ends.
        **deadlines: `policy_timeout_s`, `method_timeout_s`, `episode_timeout_s` and `max_retries`; see `Rollouts`. By
            default, the replies of a `TransformersPolicy` have no deadline.

    Attributes:
        trajectories: The trajectories of the last batch, in the order of its prompts.
        envsdk_samples: The samples of the last batch, in the same order; None for a row that is not a single sample.
        tree_rows: The trees of the last batch in training (`"train"`) and in evaluation (`"eval"`); None if its rows
            are single samples.

    Raises:
        ConfigError: If an option is invalid.
    """

    def __init__(
        self,
        make_env: Callable[[str], Env],
        policy: PolicyLike | None = None,
        *,
        on_break: _RowChoice | None = None,
        credit: _Credit | None = None,
        max_concurrency: int = 64,
        max_failed_batches: int = 4,
        **deadlines: Unpack[Deadlines],
    ) -> None:
        if min(max_concurrency, max_failed_batches) < 1:
            raise ConfigError(
                f"max_concurrency is {max_concurrency} and max_failed_batches is {max_failed_batches}; expected at "
                "least 1"
            )
        self.make_env, self.policy = make_env, policy
        self.on_break: _RowChoice | None = on_break if on_break in (None, "tree") else check_on_break(on_break, "tree")
        if credit is not None and self.on_break not in (None, "tree"):
            raise ConfigError(f"credit= needs rows of whole rollouts, but on_break is {on_break!r}: leave it out")
        self.credit = credit
        self.max_concurrency, self._deadlines = max_concurrency, check_deadlines(deadlines)
        self._max_failed_batches, self._failed_batches = max_failed_batches, 0
        self.trajectories: list[Trajectory] = []
        self.envsdk_samples: list[Sample | None] = []
        self.tree_rows: dict[str, TreeRows | None] = {"train": None, "eval": None}
        self._calls = 0
        self._tokenizer: tuple[Any, Tokenizer] | None = None

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Run one episode for each prompt, and return the batch; see `to_batch`.

        Raises:
            ConfigError: If a prompt does not name an episode, or a row does not count and a reward function is not
                wrapped in `scored`.
            EpisodeError: If all episodes of this batch and of the batches before it failed (`max_failed_batches`).
        """
        self._calls += 1
        episodes = [read_prompt(prompt) for prompt in prompts]
        if self.policy is not None:
            tokenizer = None if isinstance(self.policy, str) else self._tokenizer_of(trainer)
            self.trajectories = self._run(episodes, self.policy, trainer.temperature, tokenizer)
        else:
            model = trainer.accelerator.unwrap_model(trainer.model)
            was_training = model.training
            model.eval()
            # A seed that no other batch or process uses.
            number = np.random.SeedSequence([trainer.args.seed, trainer.accelerator.process_index, self._calls])
            given = trainer.processing_class
            sees = getattr(trainer, "takes_images", False) and _tokenizer_in(given) is not given
            policy = TransformersPolicy(
                model,
                self._tokenizer_of(trainer),
                vision=trainer.image_processor() if sees else None,
                seed=int(number.generate_state(1)[0]),
                temperature=trainer.temperature,
                max_tokens=trainer.max_completion_length,
                policy_version=trainer.state.global_step,
            )
            try:
                self.trajectories = self._run(episodes, policy, trainer.temperature)
            finally:
                model.train(was_training)
        has_failed = bool(episodes) and all(trajectory.status == "error" for trajectory in self.trajectories)
        self._failed_batches = self._failed_batches + 1 if has_failed else 0
        if self._failed_batches >= self._max_failed_batches:
            raise_if_all_failed(self.trajectories)
        takes_trees = getattr(trainer, "takes_trees", False)
        on_break = self.on_break or ("tree" if takes_trees else "raise")
        pad_token_id = _tokenizer_in(trainer.processing_class).pad_token_id
        trees: TreeRows | None = None
        if on_break == "tree":
            if not takes_trees:
                raise ConfigError("on_break='tree' needs a tree_trainer() of envsdk.trainers.trl as the trainer")
            rows = _tree_rows(self.trajectories, prompts, self.credit)
            trees = TreeRows([cast("TreeRow | None", row.trained) for row in rows], [pad_token_id] * 2)
        else:
            if self.credit is not None:
                raise ConfigError("credit= needs a tree_trainer() of envsdk.trainers.trl as the trainer")
            rows = [_sample_row(trajectory, on_break) for trajectory in self.trajectories]
        if takes_trees:
            self.tree_rows["train" if trainer.model.training else "eval"] = trees
        self.envsdk_samples = [row.trained if isinstance(row.trained, Sample) else None for row in rows]
        images = getattr(trainer, "takes_images", False)
        batch = _columns(self.trajectories, rows, trainer.temperature, pad_token_id, images=images)
        if untrained := batch["reward"].count(None):
            _log.warning("%d of %d rollouts train nothing", untrained, len(prompts))
            for function in getattr(trainer, "reward_funcs", ()):
                if function is not reward_func and not hasattr(function, "is_scored"):
                    name = getattr(function, "__name__", type(function).__name__)
                    raise ConfigError(
                        f"a rollout trains nothing, but the reward function {name} would give it a reward, which "
                        f"shifts the baseline of its group: pass scored({name}) from envsdk.trainers.trl instead"
                    )
        return batch

    def _run(
        self,
        episodes: Sequence[tuple[str, int]],
        policy: PolicyLike,
        temperature: float,
        tokenizer: Tokenizer | None = None,
    ) -> list[Trajectory]:
        """Return the trajectories in the order of the episodes, which run one environment after another."""
        trajectories: dict[str, Iterator[Trajectory]] = {}
        for env_id in dict.fromkeys(name for name, _ in episodes):
            rollouts = Rollouts(
                partial(self.make_env, env_id),
                guard_policy(policy, temperature, tokenizer),
                seeds=[seed for name, seed in episodes if name == env_id],
                max_concurrency=self.max_concurrency,
                **deadlines_for(policy, self._deadlines),
            )
            trajectories[env_id] = iter(rollouts.run())
        return [next(trajectories[env_id]) for env_id, _ in episodes]

    def _tokenizer_of(self, trainer: Any) -> Tokenizer:
        """Return the trainer's tokenizer, which is loaded once. A multimodal processor has it as an attribute."""
        given = trainer.processing_class
        if self._tokenizer is None or self._tokenizer[0] is not given:
            self._tokenizer = given, load_tokenizer(_tokenizer_in(given))
        return self._tokenizer[1]


def _tokenizer_in(processing_class: Any) -> Any:
    """Return a tokenizer, or that of a multimodal processor."""
    return getattr(processing_class, "tokenizer", processing_class)


explain_arguments(globals())
