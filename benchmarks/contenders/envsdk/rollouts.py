"""Rollouts with envsdk: `Rollouts`, the engine, for one episode and for many."""

import asyncio
from functools import cache, partial
from typing import Any

import numpy as np
import real_models

from benchmarks.contender import Repetition, contender
from benchmarks.retained import retained_bytes
from benchmarks.talks import STEPS, SYSTEM, Script, answered, begun, parsed, said, seconds_per_step, thought
from envsdk import Action, Env, Limits, Message, Trajectory, Turn
from envsdk.rollouts import Rollouts

OPTIONS: dict[str, Any] = {"renderer": "qwen3", "history": "keep"}


class User(Env):
    """A user who answers each reply."""

    def start(self) -> Turn:
        """Ask, or go on with a conversation."""
        self.replies: int = STEPS - (self.limits.max_steps or STEPS)
        return Turn(opening(self.replies), system=SYSTEM)

    def respond(self, reply: Message) -> Turn:
        """Answer."""
        self.replies += 1
        return Turn(answered(self.replies - 1))


@cache
def opening(steps: int) -> list[Message]:
    """Return what was said before the reply of a step, after the system message."""
    return [Message.from_openai(message) for message in begun(steps)[1:]]


class Scripted:
    """A policy that takes its time and gives the next reply of each episode."""

    tokenizer = "any"

    def __init__(self, seconds: float) -> None:
        env = User(**OPTIONS, tokenizer=real_models.qwen3_folder())
        self.seconds = seconds
        self.script = Script(partial(self._action, env))
        self.steps: dict[str, int] = {}

    @staticmethod
    def _action(env: Env, step: int) -> Action:
        tokens = env.renderer.reply(Message(role="assistant", reasoning=thought(step), content=said(step)))
        return Action(tokens, np.full(len(tokens), -0.5, dtype=np.float32))

    async def __call__(self, prompt: Any, *, episode_id: str, **_: Any) -> Action:
        """Answer a prompt."""
        if self.seconds:
            await asyncio.sleep(self.seconds)
        step = self.steps.get(episode_id, 0)
        self.steps[episode_id] = step + 1
        return self.script.next(step)


async def rolled(policy: Scripted, episodes: int, before: int = 0) -> list[Trajectory]:
    """Return the finished episodes."""
    options = {**OPTIONS, "tokenizer": real_models.qwen3_folder(), "limits": Limits(max_steps=STEPS - before)}
    rollouts = Rollouts(User, policy, seeds=episodes, max_concurrency=256, env_options=options)
    return [trajectory async for trajectory in rollouts]


@contender("rollouts", "envsdk", packages=("numpy", "tiktoken"), note="`Rollouts`, in one process")
def rollouts(size: str) -> Repetition:
    """Roll out episodes of 200 steps."""
    parameters = parsed(size)
    seconds, episodes, before = parameters
    opening(before)

    def repetition() -> float:
        policy = Scripted(seconds)
        return seconds_per_step(rolled(policy, episodes, before), policy.script, parameters)

    return repetition


@contender("trajectory-memory", "envsdk", packages=("numpy",))
def memory(steps: int) -> Repetition:
    """Keep one episode."""

    def repetition() -> float:
        [trajectory] = asyncio.run(rolled(Scripted(0.0), 1))
        if len(trajectory.steps) != steps:
            raise ValueError("the episode has another length")
        return retained_bytes(trajectory)

    return repetition
