"""Rollouts of the cookbook: `do_single_rollout` of an `EnvFromMessageEnv`, many of them gathered as in training."""

import asyncio
from functools import cache
from typing import Any

import real_models
import tinker
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers.qwen3 import Qwen3Renderer
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.rollouts import do_single_rollout
from transformers import AutoTokenizer

from benchmarks.contender import Repetition, contender
from benchmarks.retained import retained_bytes
from benchmarks.talks import STEPS, Script, answered, begun, parsed, reply_text, seconds_per_step

from .samples import PACKAGES


@cache
def renderer() -> Qwen3Renderer:
    """Return Qwen3's renderer in the mode that keeps thinking."""
    tokenizer = AutoTokenizer.from_pretrained(real_models.qwen3_folder())
    return Qwen3Renderer(tokenizer, strip_thinking_from_history=False)


class User(MessageEnv):
    """A user who answers each reply, or goes on with a conversation."""

    def __init__(self, before: int) -> None:
        self.replies = before

    async def initial_observation(self) -> list[Any]:
        """Ask."""
        self.messages: list[Any] = [*opening(self.replies)]
        return self.messages

    async def step(self, message: Any) -> MessageStepResult:
        """Answer."""
        self.messages += [message, {"role": "user", "content": answered(self.replies)}]
        self.replies += 1
        return MessageStepResult(reward=0.0, episode_done=self.replies == STEPS, next_messages=self.messages)


@cache
def opening(steps: int) -> list[Any]:
    """Return what was said before the reply of a step, with replies as the renderer reads them."""
    messages = begun(steps)
    replies = script().replies
    for step in range(steps):
        messages[2 * step + 2], _ = renderer().parse_response(replies[step % len(replies)])
    return messages


class Scripted(TokenCompleter):
    """Gives the replies of one episode."""

    def __init__(self, script: Script, seconds: float) -> None:
        self.script, self.seconds, self.step = script, seconds, 0

    async def __call__(
        self, model_input: tinker.ModelInput, stop: Any, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Answer a prompt."""
        if self.seconds:
            await asyncio.sleep(self.seconds)
        self.step += 1
        tokens = self.script.next(self.step - 1)
        return TokensWithLogprobs(tokens, [-0.5] * len(tokens), "stop")


def script() -> Script:
    """Return the replies as tokens."""
    return Script(lambda step: renderer().tokenizer.encode(reply_text(step) + "<|im_end|>"))


async def rolled(replies: Script, seconds: float, episodes: int, before: int = 0) -> list[Any]:
    """Return the finished trajectories."""
    envs = [EnvFromMessageEnv(renderer(), User(before)) for _ in range(episodes)]
    return await asyncio.gather(*(do_single_rollout(Scripted(replies, seconds), env) for env in envs))


@contender(
    "rollouts",
    "tinker-cookbook",
    packages=PACKAGES,
    note="`do_single_rollout` of an `EnvFromMessageEnv` with `Qwen3Renderer(strip_thinking_from_history=False)`, "
    "many of them gathered",
)
def rollouts(size: str) -> Repetition:
    """Roll out episodes of 200 steps."""
    parameters = parsed(size)
    seconds, episodes, before = parameters
    opening(before)

    def repetition() -> float:
        replies = script()
        return seconds_per_step(rolled(replies, seconds, episodes, before), replies, parameters)

    return repetition


@contender("trajectory-memory", "tinker-cookbook", packages=PACKAGES, note="as `do_single_rollout` returns it")
def memory(steps: int) -> Repetition:
    """Keep one episode."""

    def repetition() -> float:
        [trajectory] = asyncio.run(rolled(script(), 0.0, 1))
        if len(trajectory.transitions) != steps:
            raise ValueError("the episode has another length")
        return retained_bytes(trajectory)

    return repetition
