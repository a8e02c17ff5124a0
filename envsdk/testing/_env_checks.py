"""The checks of environments that run ordinary episodes: life cycle, rewards, tasks, observations, and images."""

import json
import math
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import numpy as np
from gymnasium.utils.env_checker import check_env as check_gymnasium

from ..authoring._env import Env
from ..contexts._history import get_history
from ..errors import ConfigError, EnvsdkError, EpisodeError, SandboxUnavailable
from ..images import PlacedImage
from ..rendering._vision import Vision
from ..trajectories._trajectory import Trajectory
from ._env_episodes import (
    MAX_REPLIES,
    NO_END,
    Episodes,
    NoEnd,
    closing,
    roll_out,
    sampler,
    step_with,
    trajectory_of,
    transcript,
)
from ._reports import CheckFailure, NotPossible

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The life cycle: gymnasium's own checks, the end of each episode, and calls in the wrong order.


_IRRELEVANT = ("without a render mode", "not having a spec")
"""Warnings of gymnasium that apply to every envsdk environment."""


def gymnasium_checker(episodes: Episodes) -> None:
    """Check that gymnasium's own checker accepts the environment without warnings."""
    with (
        episodes.attempt(episodes.seeds[0]),
        warnings.catch_warnings(record=True) as caught,
        closing(episodes.subject.make()) as env,
    ):
        warnings.simplefilter("always")
        try:
            check_gymnasium(env)
        except AssertionError as error:
            raise CheckFailure(str(error)) from error
    texts = [str(warning.message) for warning in caught if "WARN: " in str(warning.message)]
    texts = [text for text in texts if not any(words in text for words in _IRRELEVANT)]
    if texts:
        raise CheckFailure(texts[0].partition("WARN: ")[2].removesuffix("\x1b[0m"))


def episodes_end(episodes: Episodes) -> str:
    """Check that episodes end under the null and the random policy."""
    played = [episodes.play(policy, seed) for policy in ("null", "random") for seed in episodes.few_seeds]
    return f"after at most {max(len(trajectory.steps) for trajectory in played)} replies"


def calls_out_of_order(episodes: Episodes) -> str:
    """Check that `step` raises before the first reset and after the end, and that `close` may be called twice."""
    seed = episodes.seeds[0]
    with episodes.attempt(seed):
        env = episodes.subject.make()
        _expect_step_error(env, "before the first reset")
        env.reset(seed=seed)
        env.reset(seed=seed)
        step_with(env, episodes.policy, seed)
        record = trajectory_of(env).to_json()
        _expect_step_error(env, "after the end")
        if trajectory_of(env).to_json() != record:
            raise CheckFailure("the record of the episode changes with a step() after its end")
        env.close()
        env.close()
        episodes.subject.make().close()
    return "step, reset, close"


def _expect_step_error(env: Env, when: str) -> None:
    try:
        env.step([])
    except EpisodeError:
        return
    raise CheckFailure(
        f"step() {when} does not raise EpisodeError: override start() and respond(), not step() or reset()"
    )


# Rewards: the declared range, and what the null and the reference policy get.


_TOLERANCE = 1e-6
"""The tolerance for rounding errors in summed rewards."""
_LUCK = 0.1
"""The fraction of the range by which the null policy's average reward may exceed the minimum."""
_TRIES = 2
"""The number of seeds for each value of an option."""
_DECLARE = "declare it in the class: reward_range: ClassVar[tuple[float, float]] = (minimum, maximum)"


def reward_range(episodes: Episodes) -> str:
    """Check that the reward range is declared and finite."""
    least, most = episodes.sample.reward_range
    if not (math.isfinite(least) and math.isfinite(most)):
        raise CheckFailure(f"the reward range of an episode is not declared: {_DECLARE}")
    if least >= most:
        raise CheckFailure(f"reward_range is ({least:g}, {most:g}); expected a maximum above the minimum")
    return f"{least:g} to {most:g}"


def reference_policy(episodes: Episodes) -> str:
    """Check that the reference policy gets the maximum reward with each seed, and that none of its tool calls fails."""
    if not episodes.has_reference:
        raise NotPossible(
            "there is no reference policy: write reference_reply(), which returns the next reply of a solution; then "
            "this check and others can run whole episodes"
        )
    for seed in episodes.seeds:
        trajectory = episodes.play("reference", seed)
        errors = sum(step.metrics.get("tool_errors", 0) for step in trajectory.steps)
        if errors:
            raise CheckFailure(f"{errors:g} of its tool calls failed", seed)
        most = declared_range(episodes)[1]
        if abs(trajectory.reward - most) > _TOLERANCE:
            raise CheckFailure(
                f"the reward is {trajectory.reward:g}; expected the maximum of reward_range, {most:g}", seed
            )
    return f"{len(episodes.seeds)} episodes"


def null_policy(episodes: Episodes) -> str:
    """Check that the null policy gets about the minimum reward, on average over the seeds."""
    rewards: dict[int, float] = {}
    for seed in episodes.seeds:
        rewards[seed] = episodes.play("null", seed).reward
        check_in_range(episodes, rewards[seed], seed)
    average = sum(rewards.values()) / len(rewards)
    least, most = declared_range(episodes)
    if average > least + _LUCK * (most - least) + _TOLERANCE:
        best = max(rewards, key=lambda seed: rewards[seed])
        raise CheckFailure(
            f"on average over {len(rewards)} seeds it got {average:g}, but the minimum of reward_range is {least:g}; "
            f"it got {rewards[best]:g} with this seed",
            best,
        )
    return f"{len(rewards)} episodes, {average:g} on average"


def random_policy(episodes: Episodes) -> str:
    """Check that the rewards of random tokens are in the declared range."""
    for seed in episodes.seeds:
        check_in_range(episodes, episodes.play("random", seed).reward, seed)
    return f"{len(episodes.seeds)} episodes"


def every_option(episodes: Episodes) -> str:
    """Check the rewards of both policies with each value of each `Literal` option, such as a split or a difficulty.

    The reference policy must get the maximum with each seed, the null policy the minimum with at least one seed.
    """
    fields = episodes.sample.Config.model_fields.items()
    choices = {name: get_args(field.annotation) for name, field in fields if get_origin(field.annotation) is Literal}
    if not choices:
        raise NotPossible("its Config has no option with a Literal type, such as a split or a difficulty")
    least, most = declared_range(episodes)
    ends = {"null": least, episodes.policy: most if episodes.has_reference else least}
    for policy in ends:
        rewards = [episodes.play(policy, seed).reward for seed in episodes.few_seeds[:_TRIES]]
        enough = any if policy == "null" else all
        if not enough(abs(reward - ends[policy]) <= _TOLERANCE for reward in rewards):
            raise NotPossible(f'the check already fails with the default options: see "{policy} policy"')
    results = [_option(episodes, name, value, ends) for name, values in choices.items() for value in values]
    return "; ".join(results)


def _option(episodes: Episodes, name: str, value: Any, ends: Mapping[str, float]) -> str:
    """Check one value of an option. Return the option, with the error if this machine cannot create the environment."""
    for policy in ends:
        rewards: dict[int, float] = {}
        for seed in episodes.few_seeds[:_TRIES]:
            with episodes.attempt(seed, f"the {policy} policy with {name}={value!r}"):
                try:
                    env = episodes.subject.make_with(**{name: value})
                except (ConfigError, ImportError) as error:  # such as a package that is not installed
                    return f"{name}={value!r} is not available here ({error})"
                with closing(env):
                    try:
                        rewards[seed] = roll_out(env, policy, seed).reward
                    except SandboxUnavailable as error:
                        return f"{name}={value!r} is not available here ({error})"
        wrong = {seed: reward for seed, reward in rewards.items() if abs(reward - ends[policy]) > _TOLERANCE}
        enough = any if policy == "null" else all
        if not enough(seed not in wrong for seed in rewards):
            seed, reward = next(iter(wrong.items()))
            raise CheckFailure(
                f"with {name}={value!r} the {policy} policy gets {reward:g}; expected {ends[policy]:g}", seed
            )
    return f"{name}={value!r}"


def declared_range(episodes: Episodes) -> tuple[float, float]:
    """Return the declared reward range.

    Raises:
        NotPossible: If it is not declared.
    """
    least, most = episodes.sample.reward_range
    if not (math.isfinite(least) and math.isfinite(most) and least < most):
        raise NotPossible('the reward range is not declared: see "reward range"')
    return least, most


def check_in_range(episodes: Episodes, reward: float, seed: int, what: str = "") -> None:
    """Check that a reward is in the declared range.

    Raises:
        CheckFailure: If it is not.
    """
    least, most = episodes.sample.reward_range
    if not least - _TOLERANCE <= reward <= most + _TOLERANCE:
        raise CheckFailure(f"{what}the reward is {reward:g}; expected the declared range, {least:g} to {most:g}", seed)


# Tasks: different seeds give different tasks, and splits have no task in common.


_CHANCE = 0.9
"""The fraction of seeds that must have different tasks; a few may be equal by chance."""


def distinct_tasks(episodes: Episodes) -> str:
    """Check that different seeds give different tasks."""
    if len(episodes.seeds) < 2:
        raise NotPossible("it needs at least two seeds")
    seed_of: dict[str, int] = {}
    repeated: tuple[int, int] | None = None
    for seed in episodes.seeds:
        task = _task(episodes.play(episodes.policy, seed), with_replies=episodes.has_reference)
        if task in seed_of and repeated is None:
            repeated = seed_of[task], seed
        seed_of.setdefault(task, seed)
    count = len(episodes.seeds)
    known = episodes.sample.n_tasks if episodes.sample.tasks is None else len(episodes.sample.tasks)
    expected = max(2, int(count * _CHANCE)) if known is None else -(-min(count, known) // 2)
    among = "" if known is None else f" of a total of {known}"
    if repeated is not None and len(seed_of) < expected:
        raise CheckFailure(
            f"{len(episodes.seeds)} seeds give {len(seed_of)} different tasks; expected {expected}{among}. Seeds "
            f"{repeated[0]} and {repeated[1]} give the same task. Make random choices with self.np_random. If there "
            "are only a few tasks, declare n_tasks",
            repeated[1],
        )
    return f"{len(seed_of)} of {len(episodes.seeds)}"


_ROWS = 20_000
"""The number of rows of each split that are compared."""


def splits(episodes: Episodes) -> str:
    """Check that no task is in two splits: by the rows of an environment with `tasks`, else by playing seeds."""
    field = episodes.sample.Config.model_fields.get("split")
    if field is None:
        raise NotPossible('there is no option `split`: add a field `split: Split = "train"` to the Config')
    spec, maker = episodes.sample.spec, episodes.subject.maker
    given = (maker.keywords if isinstance(maker, partial) else {}) | ({} if spec is None else spec.kwargs)
    if given.get("tasks") is not None:
        raise NotPossible("the tasks are passed as `tasks`, so they do not depend on the split")
    names: tuple[Any, ...] = get_args(field.annotation) or ("train", "test")
    found: dict[str, tuple[Any, str, int]] = {}
    for split in names:
        for task, kind, at in _tasks_of(episodes, split):
            other, _, other_at = found.setdefault(task, (split, kind, at))
            if other != split:
                advice = (
                    "keep each row in one file or list"
                    if kind == "row"
                    else "draw tasks with envsdk.authoring.tasks.draw_in_split"
                )
                raise CheckFailure(
                    f"the task of {kind} {at} with split={split!r} is also the task of {kind} {other_at} with "
                    f"split={other!r}: {advice}",
                    at if kind == "seed" else None,
                )
    return f"{len(found)} tasks in {', '.join(map(repr, names))}"


def _tasks_of(episodes: Episodes, split: Any) -> Iterator[tuple[str, str, int]]:
    """Yield an identifier of each task of a split, with the row or seed that has it."""
    is_default = split == episodes.sample.config.split
    env = episodes.sample if is_default else episodes.subject.make_with(split=split)
    rows = env.tasks
    if env is not episodes.sample:
        env.close()
    if rows is not None:
        for row in range(min(len(rows), _ROWS)):
            yield json.dumps(rows[row], default=repr, sort_keys=True), "row", row
        return
    for seed in episodes.seeds if is_default else episodes.half_of_seeds:
        if is_default:
            trajectory = episodes.play(episodes.policy, seed)
        else:
            with (
                episodes.attempt(seed, f"the {episodes.policy} policy with split={split!r}"),
                closing(episodes.subject.make_with(split=split)) as env,
            ):
                trajectory = roll_out(env, episodes.policy, seed)
        yield _task(trajectory, with_replies=episodes.has_reference), "seed", seed


def _task(trajectory: Trajectory, *, with_replies: bool) -> str:
    """Return an identifier of a task: its data, or the transcript of its solution, or its first messages."""
    if trajectory.task is not None:
        return json.dumps(trajectory.task, default=repr)
    messages = transcript(trajectory)
    if not with_replies:
        first = next(iter(trajectory.contexts))
        messages = [text for text in messages if text.startswith(f"{first}, ")]
        replies = [i for i, text in enumerate(messages) if text.startswith(f"{first}, assistant: ")]
        messages = messages[: replies[0]] if replies else messages
    return "\n".join(messages)


# Observations and records: breaks are declared, prompts can be replayed, and samples are valid.


_HISTORIES = {"strip": "strip", "compact": {"name": "compact", "every": 2}}


def declared_observations(episodes: Episodes) -> str:
    """Check that replaying the deltas gives the prompts, live and from the record, and that each break is declared."""
    for policy in (episodes.policy, "null", "random"):
        for seed in episodes.few_seeds:
            _run_and_check(episodes, policy, seed)
    return f"{len(episodes.few_seeds)} seeds"


def history_policies(episodes: Episodes) -> str:
    """Check the same under history policies that rewrite the past, where the reference reward must not change."""
    for name, history in _HISTORIES.items():
        for policy in (episodes.policy, "random"):
            for seed in episodes.few_seeds[:2]:
                trajectory = _run_and_check(episodes, policy, seed, history)
                if policy != "reference" or episodes.is_random:
                    continue
                most = episodes.sample.reward_range[1]
                if episodes.play("reference", seed).reward == most and trajectory.reward != most:
                    raise CheckFailure(
                        f"with history={name!r} the reference policy gets {trajectory.reward:g}; without, it gets "
                        f"{most:g}",
                        seed,
                    )
    return ", ".join(_HISTORIES)


def _run_and_check(episodes: Episodes, policy: str, seed: int, history: object = None) -> Trajectory:
    """Run an episode with `step`, and check each observation and the trajectory."""
    episodes.play(policy, seed)  # an episode that fails is reported by another check
    with episodes.attempt(seed, f"the {policy} policy"), closing(episodes.subject.make()) as env:
        if history is not None:
            env._envsdk.history = get_history(history)  # pyright: ignore[reportArgumentType, reportPrivateUsage]
        prompts = _replayed(env, policy, seed)
        trajectory = trajectory_of(env)
    check_sound(trajectory, seed)
    for index, (seen, replayed) in enumerate(zip(prompts, trajectory.prompts(), strict=True)):
        if not np.array_equal(seen, replayed.prompt):
            raise CheckFailure(f"the record of step {index + 1} gives a different prompt than the policy saw", seed)
    return trajectory


def _replayed(env: Env, policy: str, seed: int) -> "list[NDArray[np.int32]]":
    """Run an episode in a loop that maintains the contexts and their images itself. Return the prompts."""
    observation, info = env.reset(seed=seed)
    sample = sampler(env, policy, seed)
    contexts: dict[str, NDArray[np.int32]] = {}
    images: dict[str, list[PlacedImage]] = {}
    prompts: list[NDArray[np.int32]] = []
    while env.trajectory is None:
        if len(prompts) == MAX_REPLIES:
            raise NoEnd(NO_END)
        where = f"an observation of {observation.context!r}"
        before = contexts.get(observation.base, np.empty(0, dtype=np.int32))
        old = contexts.get(observation.context)
        only_grew = old is not None and observation.base == observation.context and observation.keep == len(old)
        if observation.extends and not only_grew:
            raise CheckFailure(f"{where} has extends=True, but drops tokens")
        if not observation.extends and old is not None and "break" not in info:
            raise CheckFailure(f"{where} has extends=False, but declares no break")
        prompt = np.concatenate([before[: observation.keep], observation.tokens])
        if not np.array_equal(prompt, env.prompt()):
            raise CheckFailure(f"{where} does not give the prompt of the step")
        prompts.append(prompt)
        vision = env.episode.contexts[observation.context].renderer.vision
        _check_places(observation.tokens, observation.media, vision, where)
        shown = images.get(observation.base, [])
        if any(placed.start < observation.keep < placed.stop for placed in shown):
            raise CheckFailure(f"{where} keeps a part of an image: its placeholders are kept or dropped together")
        kept = [placed for placed in shown if placed.stop <= observation.keep]
        shown = [*kept, *(placed.moved(observation.keep) for placed in observation.media)]
        if list(info.get("media", ())) != shown:
            raise CheckFailure(f"{where} does not give the images of the prompt: {shown} and {info.get('media', ())}")
        images[observation.context] = shown
        action = sample()
        contexts[observation.context] = np.concatenate([prompt, np.asarray(action.tokens, dtype=np.int32)])
        observation, *_, info = env.step(action)
    return prompts


def check_sound(trajectory: Trajectory, seed: int, what: str = "") -> None:
    """Check the samples and the JSON form of a trajectory.

    Raises:
        CheckFailure: If one of them is not valid.
    """
    try:
        samples = [sample.validate() for sample in trajectory.samples(include_failed=True)]
        again = Trajectory.from_json(trajectory.to_json())
    except EnvsdkError as error:
        raise CheckFailure(f"{what}{type(error).__name__}: {error}", seed) from error
    trained = sum(int(np.count_nonzero(sample.mask)) for sample in samples)
    logs = trajectory.contexts
    sampled = sum(step.stop - step.action_start for step in trajectory.steps if logs[step.context].is_trainable)
    if trained != sampled:
        raise CheckFailure(f"{what}{trained} tokens are trained, but {sampled} were sampled", seed)
    if again.to_json() != trajectory.to_json():
        raise CheckFailure(f"{what}the record changes when it is read and written again", seed)


# Images: they are at their placeholders in what a policy observes, also if a history policy drops some; records keep
# them.


_IMAGE_HISTORIES = ("keep", "strip", {"name": "compact", "every": 2, "keep_images": 1})


def images(episodes: Episodes) -> str:
    """Check the places of images in observations and prompts under several history policies, and in records."""
    chosen = [(policy, seed) for policy in (episodes.policy, "random") for seed in episodes.few_seeds]
    if not any(episodes.play(policy, seed).images for policy, seed in chosen):
        if episodes.sample.shows_images and episodes.has_reference:
            raise CheckFailure("it declares shows_images, but its episodes have no image: remove the declaration")
        raise NotPossible("its episodes have no images")
    seen: set[str] = set()
    for policy, seed in chosen:
        for history in _IMAGE_HISTORIES:
            trajectory = _run_and_check(episodes, policy, seed, history)
            _check_records(trajectory, seed)
            seen |= {image.sha256 for image in trajectory.images}
    return f"{len(seen)} images"


def _check_places(tokens: "NDArray[np.int32]", media: Sequence[PlacedImage], vision: Vision | None, where: str) -> None:
    """Check that the images of new tokens are exactly where their placeholders are."""
    if vision is None:
        if media:
            raise CheckFailure(f"{where} has images, but its renderer has no processor of images")
        return
    found = np.flatnonzero(np.isin(tokens, vision.token_ids))
    expected = [found[(found >= start) & (found < stop)] for _, start, stop in media]
    inside = np.concatenate([np.empty(0, dtype=found.dtype), *expected])
    if not np.array_equal(found, inside):
        raise CheckFailure(f"{where} has {len(found)} placeholders of images, but its media cover {len(inside)}")
    for (image, start, stop), positions in zip(media, expected, strict=True):
        if len(positions) != vision.count(image) or (positions[0], positions[-1]) != (start, stop - 1):
            raise CheckFailure(
                f"{where} has {image!r} from {start} to {stop}; expected its {vision.count(image)} placeholders"
            )


def _check_records(trajectory: Trajectory, seed: int) -> None:
    """Check that a record with the images in it, and one next to a folder of images, are read back."""
    if not trajectory.images:
        return
    try:
        embedded = Trajectory.from_json(trajectory.to_json(embed_images=True))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for image in trajectory.images:
                (folder / image.file_name).write_bytes(image.data)
            stored = Trajectory.from_json(trajectory.to_json(embed_images=False), media=folder)
            for again in (embedded, stored):
                if [image.data for image in again.images] != [image.data for image in trajectory.images]:
                    raise CheckFailure("the images of a record are not those of the episode", seed)
    except EnvsdkError as error:
        raise CheckFailure(f"the images of a record cannot be read: {type(error).__name__}: {error}", seed) from error
