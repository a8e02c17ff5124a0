"""One episode, from its reset to its end."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..authoring.env import Env
from ..authoring.making import make
from ..contexts.protocol import Action, Observation
from ..episodes.agent import Agent
from ..episodes.concurrent import run_all
from ..episodes.driver import driver_of
from ..episodes.environment import StepResult
from ..episodes.event_loops import run
from ..episodes.handoff import HandoffResult
from ..errors import ConfigError, PolicyError
from ..policies.find import check_policy, find_policy, mark_untrainable
from ..policies.policy import PolicyLike, request_of
from ..trajectories.trajectory import Trajectory


def check_is_env(env: object, what: str) -> None:
    """Check that an argument is an environment.

    Args:
        env: The argument.
        what: The start of the error's text, such as `"rollout() got"`.

    Raises:
        ConfigError: If it is not. The error suggests what to pass instead.
    """
    if isinstance(env, Env):
        return
    inner = getattr(env, "unwrapped", None)
    if isinstance(env, type) and issubclass(env, Env):
        given, instead = f"the class {env.__name__}", f"an instance, {env.__name__}()"
    elif isinstance(inner, Env):
        given, instead = "a gymnasium wrapper", "the environment inside it, env.unwrapped"
    else:
        given, instead = f"{env!r:.80}", "an Env, or the id of a registered environment"
    raise ConfigError(f"{what} {given}; expected {instead}")


async def arollout(
    env: Env | str,
    policy: PolicyLike = "random",
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
    reset: bool = True,
) -> Trajectory:
    """Roll out one episode, inside an event loop. Sub-agents from a list of handoffs run concurrently.

    Args:
        env: The environment, which is reset; or the id of a registered one, which is created for this episode and
            closed after it.
        policy: A policy (see `envsdk.policies.Policy`); the name of a built-in one, `"random"`, `"reference"` or
            `"null"`; or a mapping from roles to policies.
        seed: The seed of the environment and of a built-in policy. The same seed and policy give the same bytes.
        options: The options of `env.reset`: `{"task": 3}`, `{"episode_id": ..., "group_id": ...}`.
        reset: False continues the running episode, such as a fork. The seed is then used for the policy only.

    Returns:
        The finished episode.

    Raises:
        EpisodeError: With `reset=False`, if the environment is not waiting for an action.
        UnknownName: If no environment or policy has that name.
        ConfigError: If `env` is not an environment.
        PolicyError: If the policy does not return an `Action`.
        TokenizerMismatch: If the policy was made for a different tokenizer, or the environment's tokenizer was not
            set: the default, `embedded`, is accepted for the policies `random`, `reference` and `null` only.
        Exception: Any exception of the environment or the policy. `env.fail(error)` then returns the partial
            trajectory.
    """
    if isinstance(env, str):
        with contextlib.closing(make(env)) as made:
            return await arollout(made, policy, seed=seed, options=options, reset=reset)
    check_is_env(env, "rollout() got")
    found = find_policy(policy, env, seed)
    if reset:
        observation, info = await env.areset(seed=seed, options=options)
    else:
        if options is not None:
            raise ConfigError("options apply to a new episode; with reset=False, expected None")
        observation, info = env.pending()
    try:
        return await _EpisodeRunner(env, found).run(observation, info)
    finally:
        await driver_of(env).aend_tasks()


class _EpisodeRunner:
    """Runs an episode to its end. Each concurrent agent runs in its own coroutine."""

    def __init__(self, env: Env, policy: Callable[..., Any]) -> None:
        self._env = env
        self._policy = policy
        self._episode = env.episode
        self._episode.side_by_side = True
        self._checked: set[str] = set()  # contexts whose tokenizer is the policy's

    async def run(self, observation: Observation, info: Mapping[str, Any]) -> Trajectory:
        try:
            while self._episode.trajectory is None:
                outcome = await self._step(observation, info)
                assert isinstance(outcome, StepResult)  # only a sub-agent ends with a HandoffResult
                observation, info = outcome.observation, outcome.info
            mark_untrainable(self._episode.trajectory, self._policy)
            return self._episode.trajectory
        finally:
            self._episode.side_by_side = False

    async def _step(self, observation: Observation, info: Mapping[str, Any]) -> StepResult | HandoffResult:
        agent = self._episode.agent
        if agent.parent is None:
            action = await self._sample(agent, observation, info)
            return await driver_of(self._env).drive_async(self._episode.step(action), self._run_agents)
        # A fork may start while a sub-agent acts: run the sub-agent to its end, then continue with its parent.
        result = await self._run_agent(agent, StepResult(observation, 0.0, False, False, dict(info)))
        return await driver_of(self._env).drive_async(self._episode.resume_parent(agent, result), self._run_agents)

    async def _run_agents(self, children: list[Agent]) -> list[HandoffResult]:
        """Run sub-agents concurrently. If one of them raises, cancel the others."""
        return await run_all(self._run_agent(child) for child in children)

    async def _run_agent(self, child: Agent, outcome: StepResult | HandoffResult | None = None) -> HandoffResult:
        """Run a sub-agent to its end, from its start or from an observation that it has to answer."""
        limit = child.handoff.timeout_s if child.handoff is not None else None
        clock = asyncio.timeout(limit)
        try:
            async with clock:
                if outcome is None:
                    outcome = await driver_of(self._env).drive_async(self._episode.enter(child), self._run_agents)
                while isinstance(outcome, StepResult):
                    action = await self._sample(child, outcome.observation, outcome.info)
                    outcome = await driver_of(self._env).drive_async(self._episode.act(child, action), self._run_agents)
                return outcome
        except TimeoutError:
            if not clock.expired():
                raise  # the policy raised it
            return self._episode.give_up(child, TimeoutError(f"it did not finish within {limit:g} s"))

    async def _sample(self, agent: Agent, observation: Observation, info: Mapping[str, Any]) -> Action:
        if observation.context not in self._checked:
            check_policy(self._policy, info["role"], agent.context.renderer)
            self._checked.add(observation.context)
        action = self._policy(agent.context.prompt(), **request_of(observation, info, self._episode.id))
        if inspect.isawaitable(action):
            action = await action
        if not isinstance(action, Action):
            raise PolicyError(f"the policy returned a {type(action).__name__}, {action!r:.80}; expected an Action")
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

    All calls share one event loop, so a client that is bound to an event loop works across calls. The loop runs in the
    caller's thread. If a loop is already running there (as in a notebook), it runs in a second thread, and the caller's
    loop is blocked until the episode ends.

    An asyncio task that a method of the environment starts belongs to the episode: if it is still running when the
    episode ends, it is cancelled and awaited, as `asyncio.run` does. A task that a policy or its client starts keeps
    running.
    """
    return run(arollout(env, policy, seed=seed, options=options, reset=reset))
