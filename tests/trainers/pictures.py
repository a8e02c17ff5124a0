"""Whole episodes with images, for the tests of what is exported."""

import functools
from typing import Any

from vision_models import picture, vision_renderer

from envsdk import Action, Env, Message, Sample, Trajectory, Turn, rollout
from envsdk.images import Image
from envsdk.messages import TextPart

FIRST, SECOND = picture(1, 200, 160), picture(2, 64, 96)


class Gallery(Env):
    """Shows two pictures, then the first one again, then none."""

    reward_range = (0.0, 1.0)

    def start(self) -> Turn:
        self.shown = 0
        parts = [TextPart(text="Compare "), FIRST, TextPart(text=" with "), SECOND]
        return Turn([Message(role="user", content=parts)])

    def respond(self, reply: Message) -> Turn:
        self.shown += 1
        if self.shown == 2:
            return Turn("Done.", reward=1.0, terminated=True)
        return Turn([Message(role="user", content=[FIRST, TextPart(text=" again.")])], reward=0.0)


def says(renderer: Any, temperature: float = 1.0) -> Any:
    """A policy with the same reply each time."""
    tokens = [*renderer.tokenizer.encode("A plot.").tolist(), renderer.stop_token_ids[0]]

    def policy(prompt: Any, **request: Any) -> Action:
        return Action(tokens, logprobs=[-0.5] * len(tokens), temperature=temperature, policy_version=3)

    return policy


@functools.cache
def shown(history: Any = "keep", temperature: float = 1.0, template: str = "qwen2_5_vl") -> Trajectory:
    """An episode with three images, of which two are the same."""
    env = Gallery(renderer=vision_renderer(template), history=history)
    return rollout(env, says(env.renderer, temperature), seed=0, options={"episode_id": f"pictures-{temperature}"})


def shown_sample(advantage: float | None = 1.0, **options: Any) -> Sample:
    """The only sample of `shown`, a copy."""
    (sample,) = shown(**options).samples()
    sample = Sample.from_json(sample.to_json())
    sample.advantage = advantage
    return sample


def images_of(sample: Sample) -> list[Image]:
    return [placed.image for placed in sample.media]
