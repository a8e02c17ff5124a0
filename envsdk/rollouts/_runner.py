"""Plays an episode to its end. Each concurrent agent plays in its own coroutine."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..authoring._driver import MethodCaller, driver_of
from ..authoring._env import Env
from ..contexts._protocol import Action, Observation
from ..episodes._agent import Agent, StepResult
from ..episodes._concurrent import run_all
from ..episodes._episode import EpisodeGenerator
from ..episodes._handoff import HandoffResult
from ..errors import PolicyError
from ..policies._find import check_policy, check_takes_images, mark_untrainable, streams
from ..policies._policy import request_of
from ..trajectories._trajectory import Trajectory
from ._ahead import UNWANTED, AheadSampler

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class EpisodeRunner:
    """Plays the running episode of an environment to its end.

    Args:
        env: The environment.
        policy: The policy.
    """

    call_method: MethodCaller | None = None
    """Calls the authors' methods; None calls them here, without a deadline."""

    def __init__(self, env: Env, policy: Callable[..., Any]) -> None:
        self._env = env
        self._policy = policy
        self._episode = env.episode
        self._episode.side_by_side = True
        self._checked: set[str] = set()  # contexts whose tokenizer is the policy's
        self._ahead = AheadSampler(self._episode, self._request, self.call_policy)

    async def call_policy(self, prompt: "NDArray[np.int32]", request: Mapping[str, Any]) -> Any:
        """Return what the policy returns."""
        action = self._policy(prompt, **request)
        return await action if inspect.isawaitable(action) else action

    async def drive(self, episode: EpisodeGenerator) -> StepResult | HandoffResult:
        """Run the state machine of the episode up to its next observation, or to the end of an agent."""
        return await driver_of(self._env).drive_async(episode, self._run_agents, self.call_method)

    async def run(self, observation: Observation, info: Mapping[str, Any]) -> Trajectory:
        """Play from an observation to the end of the episode."""
        try:
            while self._episode.trajectory is None:
                outcome = await self._step(observation, info)
                assert isinstance(outcome, StepResult)  # only a sub-agent ends with a HandoffResult
                observation, info = outcome.observation, outcome.info
            mark_untrainable(self._episode.trajectory, self._policy)
            return self._episode.trajectory
        finally:
            self._episode.side_by_side = False
            await self._ahead.aclose()

    async def _step(self, observation: Observation, info: Mapping[str, Any]) -> StepResult | HandoffResult:
        agent = self._episode.agent
        if agent.parent is None:
            action = await self._sample(agent, observation, info)
            return await self.drive(self._episode.step(action))
        # A fork may start while a sub-agent acts: run the sub-agent to its end, then continue with its parent.
        result = await self._run_agent(agent, StepResult(observation, 0.0, False, False, dict(info)))
        return await self.drive(self._episode.resume_parent(agent, result))

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
                    outcome = await self.drive(self._episode.enter(child))
                while isinstance(outcome, StepResult):
                    action = await self._sample(child, outcome.observation, outcome.info)
                    outcome = await self.drive(self._episode.act(child, action))
                return outcome
        except TimeoutError:
            if not clock.expired():
                raise  # the policy raised it
            return self._episode.give_up(child, TimeoutError(f"it did not finish within {limit:g} s"))

    async def _sample(self, agent: Agent, observation: Observation, info: Mapping[str, Any]) -> Action:
        driver, request = driver_of(agent.env), self._request(observation, info)
        is_streamed = streams(self._policy, info["role"])
        while True:
            listener = driver.listener() if is_streamed else None
            action = await self._ahead.sample(agent, agent.context.prompt(), request, driver, listener)
            if action is not UNWANTED:
                break
            if not await driver.is_wanted_again():
                action = Action((), (), "stop")  # of which no token was sampled
                break
        if not isinstance(action, Action):
            raise PolicyError(f"the policy returned a {type(action).__name__}, {action!r:.80}; expected an Action")
        return action

    def _request(self, observation: Observation, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments for the policy, which has to be one that may answer the observation."""
        name = observation.context
        if name not in self._checked:
            check_policy(self._policy, info["role"], self._episode.pending_reply(name).context.renderer)
            self._checked.add(name)
        request = request_of(observation, info, self._episode.id)
        if "media" in request:
            check_takes_images(self._policy, info["role"])
        return request
