"""A check of images: they are at their placeholders in what a policy observes, and records keep them."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..authoring._env import Env
from ..contexts._history import get_history
from ..errors import EnvsdkError
from ..images import Image, PlacedImage
from ..rendering._vision import Vision
from ..trajectories._trajectory import Trajectory
from ._env_episodes import MAX_REPLIES, Episodes, NoEnd, closing, sampler, trajectory_of
from ._reports import Failure, NotPossible

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HISTORIES = ("keep", "strip", {"name": "compact", "every": 2, "keep_images": 1})


def images(episodes: Episodes) -> str:
    """Check the places of images in observations and prompts under several history policies, and in records."""
    chosen = [(policy, seed) for policy in (episodes.policy, "random") for seed in episodes.few_seeds]
    if not any(episodes.play(policy, seed).images for policy, seed in chosen):
        if episodes.sample.shows_images and episodes.has_reference:
            raise Failure("it declares shows_images, but its episodes have no image: remove the declaration")
        raise NotPossible("its episodes have no images")
    seen: set[str] = set()
    for policy, seed in chosen:
        for history in _HISTORIES:
            trajectory = _run(episodes, policy, seed, history)
            _check_records(trajectory, seed)
            seen |= {image.sha256 for image in trajectory.images}
    return f"{len(seen)} images"


def _run(episodes: Episodes, policy: str, seed: int, history: object) -> Trajectory:
    """Run an episode with `step` and check the images of each observation and each prompt."""
    with episodes.attempt(seed, f"the {policy} policy"), closing(episodes.subject.make()) as env:
        env._envsdk.history = get_history(history)  # pyright: ignore[reportArgumentType, reportPrivateUsage]
        _play(env, policy, seed)
        return trajectory_of(env)


def _play(env: Env, policy: str, seed: int) -> None:
    """Run an episode in a loop that maintains the images of each context itself."""
    observation, info = env.reset(seed=seed)
    sample, count = sampler(env, policy, seed), 0
    contexts: dict[str, list[PlacedImage]] = {}
    while env.trajectory is None:
        if count == MAX_REPLIES:
            raise NoEnd(MAX_REPLIES)
        where = f"an observation of {observation.context!r}"
        _check_places(
            observation.tokens, observation.media, env.episode.contexts[observation.context].renderer.vision, where
        )
        before = contexts.get(observation.base, [])
        if any(placed.start < observation.keep < placed.stop for placed in before):
            raise Failure(f"{where} keeps a part of an image: its placeholders are kept or dropped together")
        kept = [placed for placed in before if placed.stop <= observation.keep]
        prompt = [*kept, *(placed.moved(observation.keep) for placed in observation.media)]
        if list(info.get("media", ())) != prompt:
            raise Failure(f"{where} does not give the images of the prompt: {prompt} and {info.get('media', ())}")
        contexts[observation.context] = prompt
        observation, *_, info = env.step(sample())
        count += 1


def _check_places(tokens: "NDArray[np.int32]", media: Sequence[PlacedImage], vision: Vision | None, where: str) -> None:
    """Check that the images of new tokens are exactly where their placeholders are."""
    if vision is None:
        if media:
            raise Failure(f"{where} has images, but its renderer has no processor of images")
        return
    found = np.flatnonzero(np.isin(tokens, vision.token_ids))
    expected = [found[(found >= start) & (found < stop)] for _, start, stop in media]
    inside = np.concatenate([np.empty(0, dtype=found.dtype), *expected])
    if not np.array_equal(found, inside):
        raise Failure(f"{where} has {len(found)} placeholders of images, but its media cover {len(inside)}")
    for (image, start, stop), positions in zip(media, expected, strict=True):
        if len(positions) != vision.count(image) or (positions[0], positions[-1]) != (start, stop - 1):
            raise Failure(
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
                if _bytes_of(again.images) != _bytes_of(trajectory.images):
                    raise Failure("the images of a record are not those of the episode", seed)
    except EnvsdkError as error:
        raise Failure(f"the images of a record cannot be read: {type(error).__name__}: {error}", seed) from error


def _bytes_of(found: Sequence[Image]) -> list[bytes]:
    return [image.data for image in found]
