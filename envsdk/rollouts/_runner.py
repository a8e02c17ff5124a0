"""Rolls out one episode, from its reset to its end. Each concurrent agent plays in its own coroutine.

An agent program may request replies in several contexts at the same time. They are sampled at the same time, one call
of the policy for each context, and taken in the order of the requests, so that the record is sequential.
"""

import asyncio
import contextlib
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .._spans import EpisodeSpan, current_span, recorded
from .._visible import brief, type_of
from ..authoring._concurrent import run_all, take_error
from ..authoring._driver import MethodCaller, driver_of
from ..authoring._env import Env
from ..authoring._event_loops import run
from ..authoring._making import make
from ..authoring._mistakes import warn_at
from ..contexts._protocol import Action, Observation
from ..episodes._agent import Agent, StepResult
from ..episodes._episode import EpisodeGenerator
from ..episodes._handoff import HandoffResult
from ..episodes._turn import Turn
from ..errors import ConfigError, EpisodeError, PolicyError
from ..limits import MAX_EMPTY_ABORTS
from ..policies._find import check_takes_images, find_policy, of_role, why_not_sampled
from ..policies._policy import PolicyLike, request_of
from ..policies._vocabularies import check_tokenizer
from ..trajectories._trajectory import Trajectory

if TYPE_CHECKING:
    from numpy.typing import NDArray

_playing: set[int] = set()
"""The ids of the environment objects that `arollout` is playing."""
_UNWANTED = object()
"""The result of a call of the policy that was canceled because its reply is no longer needed."""


class EpisodeRunner:
    """Plays the running episode of an environment to its end.

    Args:
        env: The environment.
        policy: The policy.
        call_method: Calls the authors' methods; None calls them here, without a deadline.
        call_policy: Calls the policy with the prompt and the request; None calls it here.
    """

    def __init__(
        self,
        env: Env,
        policy: Callable[..., Any],
        call_method: MethodCaller | None = None,
        call_policy: Callable[["NDArray[np.int32]", Mapping[str, Any]], Awaitable[Any]] | None = None,
    ) -> None:
        self._env = env
        self._policy = policy
        self._episode = env.episode
        self._episode.side_by_side = True
        self._call_method = call_method
        self._call_policy = call_policy or self._call_here
        self._checked: set[str] = set()  # contexts whose tokenizer was compared with the policy's
        self._begun: dict[str, tuple[NDArray[np.int32], asyncio.Task[Any]]] = {}
        """The prompts and replies of turns that have not been taken yet, by context."""

    async def _call_here(self, prompt: "NDArray[np.int32]", request: Mapping[str, Any]) -> Any:
        action = self._policy(prompt, **request)
        return await action if inspect.isawaitable(action) else action

    async def drive(self, episode: EpisodeGenerator) -> StepResult | HandoffResult:
        """Run the episode's generator up to its next observation, or to the end of an agent."""
        return await driver_of(self._env).drive_async(
            episode, lambda children: run_all(map(self._run_agent, children)), self._call_method
        )

    async def run(self, observation: Observation, info: Mapping[str, Any]) -> Trajectory:
        """Play from an observation to the end of the episode."""
        try:
            while self._episode.trajectory is None:
                agent = self._episode.agent
                if agent.parent is None:
                    with recorded("step", observation.context) as span:
                        action = await self._sample(agent, observation, info)
                        outcome = await self.drive(self._episode.step(action))
                    if span is not None and isinstance(outcome, StepResult):
                        span.facts["reward"] = outcome.reward
                else:  # a fork may start while a sub-agent acts: it is run to its end first, then its parent continues
                    result = await self._run_agent(agent, StepResult(observation, 0.0, False, False, dict(info)))
                    outcome = await self.drive(self._episode.resume_parent(agent, result))
                assert isinstance(outcome, StepResult)  # only a sub-agent ends with a HandoffResult
                observation, info = outcome.observation, outcome.info
            trajectory = self._episode.trajectory
            last = trajectory.steps[-1] if trajectory.steps else None
            if last is not None and len(last.parts) >= MAX_EMPTY_ABORTS and last.action_start == last.stop:
                policy = of_role(self._policy, trajectory.contexts[last.context].role)
                name = getattr(policy, "__name__", type(policy).__name__)
                what = f"the policy {name} returned only empty actions with finish_reason='abort' for a reply"
                warn_at([policy], f"{what}: 'abort' is an interruption, after which it is called again")
            for name in {step.context for step in trajectory.steps if step.parts}:
                log = trajectory.contexts[name]
                trains = getattr(of_role(self._policy, log.role), "trainable", True)  # it returns the sampled tokens
                log.is_trainable = log.is_trainable and bool(trains)
            return trajectory
        finally:
            self._episode.side_by_side = False
            left = [task for _, task in self._begun.values()]
            self._begun.clear()
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _run_agent(self, child: Agent, outcome: StepResult | HandoffResult | None = None) -> HandoffResult:
        """Run a sub-agent to its end, from its start or from an observation that it has to answer."""
        limit = child.handoff.timeout_s if child.handoff is not None else None
        clock = asyncio.timeout(limit)
        try:
            async with clock:
                with recorded("agent", child.name):
                    if outcome is None:
                        outcome = await self.drive(self._episode.enter(child))
                    while isinstance(outcome, StepResult):
                        with recorded("step", outcome.observation.context):
                            action = await self._sample(child, outcome.observation, outcome.info)
                            outcome = await self.drive(self._episode.act(child, action))
                    return outcome
        except TimeoutError:
            if not clock.expired():
                raise  # the policy raised it
            return self._episode.give_up(child, TimeoutError(f"it did not finish within {limit:g} s"))

    async def _sample(self, agent: Agent, observation: Observation, info: Mapping[str, Any]) -> Action:
        program, request = driver_of(agent.env).program, self._request(observation, info)
        is_streamed = getattr(of_role(self._policy, info["role"]), "streams", False)
        while True:
            listener = program.listener() if is_streamed and program is not None else None
            streamed = request if listener is None else {**request, "on_tokens": listener}
            prompt = agent.context.prompt()
            reply = self._taken(prompt, agent.context.name)
            if reply is None:
                unwanted = None if program is None else program.until_unwanted()
                span = None if program is None else program.span_of()
                reply = self._call(prompt, streamed, unwanted, span)
            turns = (
                None if program is None else program.ahead()
            )  # meanwhile, the calls for other contexts begin as their turns arrive
            watching = None if turns is None else asyncio.create_task(self._begin_calls(agent, program, turns))
            try:
                action = await reply
            finally:
                if watching is not None:
                    watching.cancel()
                    (ended,) = await asyncio.gather(watching, return_exceptions=True)
                    if isinstance(ended, Exception):
                        raise ended
            if action is not _UNWANTED:
                break
            if program is None or not await program.is_wanted_again():
                action = Action((), (), "stop")  # no token was sampled
                break
        if not isinstance(action, Action):
            raise PolicyError(
                f"the policy returned {brief(action)}; expected an Action: return envsdk.Action(tokens, logprobs), or "
                "envsdk.Action(tokens)"
            )
        return action

    def _taken(self, prompt: "NDArray[np.int32]", context: str) -> "asyncio.Task[Any] | None":
        """Return the call that was begun for a turn that is now taken; cancel it if the turn was never taken."""
        begun = self._begun.pop(context, None)
        if begun is None or np.array_equal(begun[0], prompt):
            return None if begun is None else begun[1]
        begun[1].cancel()
        begun[1].add_done_callback(take_error)
        return None

    async def _begin_calls(self, agent: Agent, program: Any, turns: AsyncIterator[Turn]) -> None:
        async for turn in turns:
            coming = self._episode.upcoming(agent, turn)
            if coming is not None:
                observation, info, prompt = coming
                unwanted, span = program.until_unwanted(turn), program.span_of(turn)
                reply = self._call(prompt, self._request(observation, info), unwanted, span)
                self._begun[observation.context] = prompt, asyncio.create_task(reply)

    async def _call(
        self,
        prompt: "NDArray[np.int32]",
        request: Mapping[str, Any],
        unwanted: Awaitable[None] | None,
        span: EpisodeSpan | None,
    ) -> Any:
        """Call the policy, inside a span; if `unwanted` ends first, cancel the call and return `_UNWANTED`."""
        if unwanted is None:
            return await self._call_policy(prompt, request)
        before = current_span.set(span or current_span.get())
        call = asyncio.ensure_future(self._call_policy(prompt, request))  # in a copy of the context
        current_span.reset(before)
        waiting = asyncio.ensure_future(unwanted)
        try:
            await asyncio.wait({call, waiting}, return_when=asyncio.FIRST_COMPLETED)
            return call.result() if call.done() else _UNWANTED
        finally:
            waiting.cancel()
            if not call.done():
                call.cancel()
                await asyncio.wait({call})
                take_error(call)

    def _request(self, observation: Observation, info: Mapping[str, Any]) -> dict[str, Any]:
        """Check that the policy may answer the observation, and return the arguments for its call."""
        name = observation.context
        if name not in self._checked:
            renderer = self._episode.pending_reply(name).context.renderer
            check_tokenizer(of_role(self._policy, info["role"]), renderer)
            self._checked.add(name)
        request = request_of(observation, info, self._episode.id)
        if "media" in request:
            check_takes_images(self._policy, info["role"])
        return request


def check_is_env(env: object, what: str) -> None:
    """Check that an argument is an environment.

    Args:
        env: The argument.
        what: The start of the error's text, such as `"rollout() got"`.

    Raises:
        ConfigError: If it is not an environment. The error suggests what to pass instead.
    """
    if isinstance(env, Env):
        return
    inner = getattr(env, "unwrapped", None)
    if isinstance(env, type) and issubclass(env, Env):
        given, instead = type_of(env), f"an instance, {env.__name__}()"
    elif isinstance(inner, Env):
        given, instead = "a gymnasium wrapper", "the environment inside it, env.unwrapped"
    else:
        given, instead = brief(env), "an Env, or the id of a registered environment"
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
        EpisodeError: If another call is rolling out the same environment object. With `reset=False`, if the environment
            is not waiting for an action.
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
    if id(env) in _playing:
        raise EpisodeError(
            f"{env!r} is being rolled out already: make another environment for each episode that runs at the same time"
        )
    found = find_policy(policy, env, seed)
    driver = driver_of(env)
    driver.why_not_sampled = partial(why_not_sampled, found) if driver.program is not None else None
    _playing.add(id(env))
    try:
        if reset:
            observation, info = await env.areset(seed=seed, options=options)
        else:
            if options is not None:
                raise ConfigError("options apply to a new episode; with reset=False, expected None")
            observation, info = env.pending()
        try:
            return await EpisodeRunner(env, found).run(observation, info)
        finally:
            await driver.aend_tasks(sys.exception())
    finally:
        _playing.discard(id(env))
        driver.why_not_sampled = None


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
