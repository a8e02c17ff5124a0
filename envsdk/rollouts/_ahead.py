"""Samples replies ahead: to turns that an agent will take next, while its action for another context is due."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..authoring._driver import Driver
from ..contexts._protocol import Observation
from ..episodes._agent import Agent
from ..episodes._episode import Episode
from ..episodes._turn import Turn
from ..rendering.renderer import TokenIds

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNWANTED = object()
"""What takes the place of a reply that no one wants anymore."""
RequestOf = Callable[[Observation, Mapping[str, Any]], dict[str, Any]]
CallPolicy = Callable[["NDArray[np.int32]", Mapping[str, Any]], Awaitable[Any]]


@dataclass(frozen=True)
class _Call:
    """A call of the policy that runs already."""

    prompt: "NDArray[np.int32]"
    request: Mapping[str, Any]
    task: "asyncio.Task[Any]"


class AheadSampler:
    """Calls the policy for an episode, also for turns that are known before they are taken.

    The record stays sequential: a reply that was sampled ahead is used when its turn is taken, and only if the prompt
    and the request are then what they were foreseen to be; otherwise the policy is called again.

    Args:
        episode: The episode.
        request_of: Returns the arguments of the policy for an observation and its `info`.
        call_policy: Calls the policy.
    """

    def __init__(self, episode: Episode, request_of: RequestOf, call_policy: CallPolicy) -> None:
        self._episode = episode
        self._request_of = request_of
        self._call_policy = call_policy
        self._calls: dict[str, _Call] = {}

    async def sample(
        self,
        agent: Agent,
        prompt: "NDArray[np.int32]",
        request: Mapping[str, Any],
        driver: Driver,
        listener: Callable[[TokenIds], bool | None] | None = None,
    ) -> Any:
        """Return what the policy returns, and begin the calls for the turns that are known meanwhile.

        Args:
            agent: The agent that acts.
            prompt: Its prompt.
            request: The other arguments of the policy.
            driver: The driver of its environment.
            listener: Called with tokens while they are sampled, unless the call was begun before.

        Returns:
            What the policy returns; `UNWANTED` if its call was canceled because no one wants the reply anymore.
        """
        asked = request if listener is None else {**request, "on_tokens": listener}
        call, ahead = self._begun(prompt, request) if self._calls else None, driver.ahead()
        awaited = self._called(prompt, asked, driver.until_unwanted()) if call is None else call
        if ahead is None:
            return await awaited
        watch = asyncio.create_task(self._watch(agent, ahead, driver))
        try:
            return await awaited
        finally:
            watch.cancel()
            (ended,) = await asyncio.gather(watch, return_exceptions=True)
            if isinstance(ended, Exception):
                raise ended

    async def aclose(self) -> None:
        """Cancel the calls whose turns were not taken."""
        calls = [call.task for call in self._calls.values()]
        self._calls.clear()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _begun(self, prompt: "NDArray[np.int32]", request: Mapping[str, Any]) -> "asyncio.Task[Any] | None":
        """Return the call that was begun for this prompt; cancel one that was begun for another."""
        call = self._calls.pop(str(request["context"]), None)
        if call is None:
            return None
        if call.request == request and np.array_equal(call.prompt, prompt):
            return call.task
        call.task.cancel()
        call.task.add_done_callback(_take_error)
        return None

    async def _watch(self, agent: Agent, ahead: AsyncIterator[Turn], driver: Driver) -> None:
        async for turn in ahead:
            foreseen = self._episode.foreseen(agent, turn)
            if foreseen is None:
                continue
            observation, info, prompt = foreseen
            request = self._request_of(observation, info)
            if observation.context not in self._calls:
                task = asyncio.create_task(self._called(prompt, request, driver.until_unwanted(turn)))
                self._calls[observation.context] = _Call(prompt, request, task)

    async def _called(
        self, prompt: "NDArray[np.int32]", request: Mapping[str, Any], unwanted: Awaitable[None] | None
    ) -> Any:
        """Return what the policy returns; `UNWANTED` if the reply was unwanted before, and the call is canceled."""
        if unwanted is None:
            return await self._call_policy(prompt, request)
        call = asyncio.ensure_future(self._call_policy(prompt, request))
        waiting = asyncio.ensure_future(unwanted)
        try:
            await asyncio.wait({call, waiting}, return_when=asyncio.FIRST_COMPLETED)
            return call.result() if call.done() else UNWANTED
        finally:
            waiting.cancel()
            if not call.done():
                call.cancel()
                await asyncio.wait({call})
                _take_error(call)


def _take_error(task: "asyncio.Future[Any]") -> None:
    """Take the exception of a task that nobody waits for, which asyncio would log."""
    if not task.cancelled():
        task.exception()
