"""One episode from start to end."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..authoring.env import Env
from ..authoring.making import make
from ..contexts.protocol import Action, Observation
from ..episodes.agent import Agent
from ..episodes.driver import driver_of
from ..episodes.environment import StepResult
from ..episodes.event_loops import run
from ..episodes.handoff import HandoffResult
from ..errors import ConfigError, PolicyError
from ..policies.builtin import PolicyLike, check_policy, find_policy, request_of
from ..trajectories.trajectory import Trajectory


def refuse_no_env(env: object, function: str) -> None:
    """Refuse what is not an environment, with what to give instead.

    Raises:
        ConfigError: If it is not one.
    """
    if isinstance(env, Env):
        return
    inner = getattr(env, "unwrapped", None)
    if isinstance(env, type) and issubclass(env, Env):
        given, instead = f"the class {env.__name__}", f"an object of it, {env.__name__}()"
    elif isinstance(inner, Env):
        given, instead = "a wrapper of gymnasium", "what it wraps: env.unwrapped"
    else:
        given, instead = f"{env!r:.80}", "an environment, or the id of a registered one"
    raise ConfigError(f"{function} got {given}; give it {instead}")


async def arollout(
    env: Env | str,
    policy: PolicyLike = "random",
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
    reset: bool = True,
) -> Trajectory:
    """Roll out one episode, inside an event loop; sub-agents that were handed over to in a list go on side by side.

    Args:
        env: The environment, which is reset; or the id of one, which is made for this episode, and closed.
        policy: A policy (see `envsdk.rollouts.Policy`), or `"random"`, `"reference"` or `"null"`; or one for each role,
            as a mapping.
        seed: The same seed and the same policy give the same bytes.
        options: What `env.reset` takes: `{"task": 3}`, `{"episode_id": ..., "group_id": ...}`.
        reset: False goes on with the episode that is running, such as a fork; the seed is then the policy's alone.

    Returns:
        The finished episode.

    Raises:
        EpisodeError: With `reset=False`, if no action is due.
        UnknownName: If there is no environment or policy of that name.
        ConfigError: If `env` is not an environment.
        PolicyError: If the policy returns no `Action`.
        TokenizerMismatch: If the policy was made for another tokenizer, or nobody chose the environment's: `embedded`
            is the default for the policies `random`, `reference` and `null` alone.
        Exception: Whatever the environment or the policy raises; `env.fail(error)` then has what there is.
    """
    if isinstance(env, str):
        with contextlib.closing(make(env)) as made:
            return await arollout(made, policy, seed=seed, options=options, reset=reset)
    refuse_no_env(env, "rollout()")
    ask = find_policy(policy, env, seed)
    if reset:
        observation, info = await env.areset(seed=seed, options=options)
    else:
        if options is not None:
            raise ConfigError("options are for a new episode: give none with reset=False")
        observation, info = env.pending()
    try:
        return await _Player(env, ask).play_to_the_end(observation, info)
    finally:
        await driver_of(env).aend_tasks()


class _Player:
    """Plays an episode, each agent in a coroutine of its own."""

    def __init__(self, env: Env, ask: Callable[..., Any]) -> None:
        self._env = env
        self._ask = ask
        self._episode = env.episode
        self._episode.side_by_side = True
        self._checked: set[str] = set()  # contexts whose ids the policy knows

    async def play_to_the_end(self, observation: Observation, info: Mapping[str, Any]) -> Trajectory:
        try:
            while self._episode.trajectory is None:
                outcome = await self._go_on(observation, info)
                assert isinstance(outcome, StepResult)  # only a sub-agent ends with anything else
                observation, info = outcome.observation, outcome.info
            return self._episode.trajectory
        finally:
            self._episode.side_by_side = False

    async def _go_on(self, observation: Observation, info: Mapping[str, Any]) -> StepResult | HandoffResult:
        agent = self._episode.agent
        if agent.parent is None:
            action = await self._sample(agent, observation, info)
            return await driver_of(self._env).drive_async(self._episode.step(action), self._run)
        result = await self._finish(
            agent, StepResult(observation, 0.0, False, False, dict(info))
        )  # a fork may begin here
        return await driver_of(self._env).drive_async(self._episode.resume_parent(agent, result), self._run)

    async def _run(self, children: list[Agent]) -> list[HandoffResult]:
        """Run sub-agents side by side; if one raises, which is no failure of its own, the others are cancelled."""
        tasks = [asyncio.ensure_future(self._finish(child)) for child in children]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _finish(self, child: Agent, outcome: StepResult | HandoffResult | None = None) -> HandoffResult:
        """Play a sub-agent to its end, from its beginning or from an observation on."""
        limit = child.handoff.timeout_s if child.handoff is not None else None
        clock = asyncio.timeout(limit)
        try:
            async with clock:
                if outcome is None:
                    outcome = await driver_of(self._env).drive_async(self._episode.enter(child), self._run)
                while isinstance(outcome, StepResult):
                    action = await self._sample(child, outcome.observation, outcome.info)
                    outcome = await driver_of(self._env).drive_async(self._episode.act(child, action), self._run)
                return outcome
        except TimeoutError:
            if not clock.expired():
                raise  # it is the policy's own
            return self._episode.give_up(child, TimeoutError(f"it did not finish within {limit:g} s"))

    async def _sample(self, agent: Agent, observation: Observation, info: Mapping[str, Any]) -> Action:
        if observation.context not in self._checked:
            check_policy(self._ask, info["role"], agent.context.renderer)
            self._checked.add(observation.context)
        action = self._ask(agent.context.prompt(), **request_of(observation, info, self._episode.id))
        if inspect.isawaitable(action):
            action = await action
        if not isinstance(action, Action):
            raise PolicyError(f"a policy returns an Action, got a {type(action).__name__}: {action!r:.80}")
        return action


def rollout(
    env: Env | str,
    policy: PolicyLike = "random",
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
    reset: bool = True,
) -> Trajectory:
    """Roll out one episode; see `arollout`.

    It waits in an event loop that is kept for the next call, so a policy's or an environment's client that is bound to
    a loop serves all of them. That loop runs in the caller's thread; where one is running there already (a notebook has
    one), in another thread that is kept, and the caller's loop stands still until the episode is over.

    An asyncio task that a method of an environment starts belongs to the episode: what has not ended when the episode
    ends is cancelled and awaited, as `asyncio.run` does. A task that a policy or its client starts lives on.
    """
    return run(arollout(env, policy, seed=seed, options=options, reset=reset))
