"""The state machine of one episode: an action in, a message out; a turn in, an observation out.

It does no I/O and reads no clock, and knows nothing about gymnasium, event loops, or how an environment answers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from .action import Break, CheckedAction, Observation, check_action
from .context import Context, Delta
from .errors import EpisodeError, TurnError
from .history import HistoryPolicy
from .limits import UNLIMITED, Limits, StopReason
from .messages import Message, ToolCall, ToolSchema, check_calls
from .renderer import NOT_ENDED, Renderer
from .trajectory import ContextLog, Part, Status, Step, Trajectory
from .turn import Turn

_FOR_THE_POLICY = ("stop_token_ids", "stop", "max_tokens", "sampling", "context", "role")
_ABOUT_THE_STEP = ("rewards", "metrics", "truncated_reply", "break", "stop_reason")
RESERVED_INFO = frozenset((*_FOR_THE_POLICY, *_ABOUT_THE_STEP))
MAIN = "main"


class Result(NamedTuple):
    """What `step` returns, in gymnasium's order."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Episode:
    """One episode of one environment.

    Args:
        id: What the trajectory will be called.
        env: The environment's name.
        seed: What it was reset with.
        renderer: Writes the messages.
        history: Decides what of the past stays visible.
        limits: When the episode is cut off.
    """

    def __init__(
        self, id: str, env: str, seed: int | None, renderer: Renderer, history: HistoryPolicy, limits: Limits
    ) -> None:
        self.id = id
        self.env = env
        self.seed = seed
        self.task: Any = None
        self.config: dict[str, Any] = {}
        self.group_id: str | None = None
        self.renderer = renderer
        self.history = history
        self.limits = limits
        self.trajectory: Trajectory | None = None
        self.context = Context(MAIN, MAIN, renderer, history)
        self.steps: list[Step] = []
        """The steps that were answered, in part or whole."""
        self._step: Step | None = None  # the observation that waits for its action
        self._sampled = 0
        self._tool_calls = 0
        self._turn = Turn()
        self._unasked = False  # the episode ended before anybody was asked: the next step says so

    def open(self, turn: Turn, tools: Sequence[ToolSchema] = ()) -> Result:
        """Take the first turn; `tools` are those of a turn that says none.

        Raises:
            TurnError: If it holds a reward, an end, no message, or goes on with a reply.
        """
        _check_turn(turn)
        if any(turn.rewards.values()) or turn.terminated or turn.truncated or turn.continuation is not None:
            raise TurnError("the first turn has a reward, ends the episode or continues, but nobody has replied yet")
        system = [] if turn.system is None else [Message(role="system", content=turn.system)]
        messages = [*system, *turn.messages]
        if not messages:
            raise TurnError("the first turn has no message; start() must say something")
        delta = self.context.open(
            messages,
            tools if turn.tools is None else turn.tools,
            max_tokens=self.limits.max_context_tokens,
            prefill=turn.prefill,
        )
        return self._hand_out(turn, delta, delta.full, is_first=True)

    def receive(self, action: object) -> Message | None:
        """Take an action.

        Returns:
            The whole reply as a message; or None if the policy was interrupted and the reply goes on, or if the episode
            ended before anybody was asked: `go_on` has the result.

        Raises:
            EpisodeError: If no action is due.
            ActionError: If the action is not legal; the episode is then as it was.
        """
        step = self._step
        if step is None and self._unasked:
            self._unasked = False
            return None
        if step is None:
            raise EpisodeError(
                "step() after the end of the episode: call reset()"
                if self.trajectory is not None
                else "step() while no action is due: call reset() first, and step() once for each observation"
            )
        checked = check_action(action, self.renderer.tokenizer.vocab_size)
        self._act(step, checked)
        if checked.finish_reason == "abort":
            if self._max_tokens(self._turn):
                return None
            step.finish_reason = "length"  # there is no room for the rest
        self._step = None
        message = check_calls(self._read_reply(), self.context.tools)
        step.reply = len(self.context.messages)
        self.context.add_reply(message)
        self._tool_calls += len(message.tool_calls)
        return message.as_reply(self.context.new_text(step.stop - step.action_start))

    def advance(self, turn: Turn) -> Result:
        """Take what the environment says after a reply.

        Raises:
            TurnError: If it is no legal turn.
            RenderError: If the model family cannot express one of its messages.
        """
        _check_turn(turn)
        step = self.steps[-1]
        step.reward, step.rewards, step.metrics = turn.reward, dict(turn.rewards), dict(turn.metrics)
        reason = self._reason_to_stop(turn, step)
        if turn.continuation is not None and reason is None:
            self._tool_calls -= len(self.context.messages[-1].tool_calls)  # they are counted when the reply is whole
            delta = self.context.go_on(turn.continuation, max_tokens=self.limits.max_context_tokens)
        else:
            delta = self.context.observe(
                turn.messages,
                is_final=reason is not None,
                max_tokens=self.limits.max_context_tokens,
                prefill=turn.prefill,
                system=turn.system,
                tools=turn.tools,
            )
        return self._hand_out(turn, delta, reason or delta.full)

    def go_on(self) -> Result:
        """The empty observation after a part of a reply, or after an episode that ended before anybody was asked."""
        length = len(self.context)
        observation = Observation(np.empty(0, dtype=np.int32), length, True, self.context.name, self.context.name)
        info = self._info(self._turn, None, closed_reply=False)
        info.update(rewards={}, metrics={})
        if self.trajectory is not None:
            info["stop_reason"] = self.trajectory.stop_reason
        return Result(observation, 0.0, False, self.trajectory is not None, info)

    def tool_calls_left(self, calls: Sequence[ToolCall]) -> int:
        """How many of the last reply's calls may be run: the limit less those of the replies before it."""
        limit = self.limits.max_tool_calls
        return len(calls) if limit is None else max(0, limit - (self._tool_calls - len(calls)))

    def fail(self, error: BaseException) -> Trajectory:
        """End the episode because something failed; what was sampled so far is kept.

        Raises:
            EpisodeError: If it has ended already.
        """
        if self.trajectory is not None:
            raise EpisodeError(f"the episode {self.id!r} has ended already: {self.trajectory.stop_reason}")
        notes: list[str] = getattr(error, "__notes__", [])
        return self._end("error", StopReason.ERROR, " ".join([f"{type(error).__name__}: {error}", *notes]))

    def _read_reply(self) -> Message:
        """The reply as a message. One that ended at a stop string is as it should be, though it has no stop token."""
        message = self.context.parse_reply()
        step = self.steps[-1]
        stops = self._stops(self._turn)
        if NOT_ENDED in message.errors and stops and step.finish_reason == "stop":
            text = str(self.context.new_text(step.stop - step.action_start))
            if any(stop in text for stop in stops):
                errors = tuple(error for error in message.errors if error != NOT_ENDED)
                return message.model_copy(update={"errors": errors})
        return message

    def _stops(self, turn: Turn) -> tuple[str, ...]:
        return (*self.renderer.stop_strings, *turn.stop)

    def _act(self, step: Step, action: CheckedAction) -> None:
        self.context.act(action.tokens, action.logprobs)
        stop = len(self.context.log_tokens)
        step.parts += (Part(stop, action.temperature, action.policy_version, action.extra),)
        step.finish_reason = action.finish_reason
        if len(step.parts) == 1:
            self.steps.append(step)
        self._sampled += len(action.tokens)

    def _reason_to_stop(self, turn: Turn, step: Step) -> StopReason | None:
        """The first that holds, in this order: what the environment says comes before any limit."""
        limits = self.limits
        reasons = (
            (StopReason.TERMINATED, turn.terminated),
            (StopReason.TRUNCATED, turn.truncated),
            (StopReason.CUT, limits.end_on_cut and step.finish_reason == "length"),
            (StopReason.MAX_STEPS, _reached(len(self.steps), limits.max_steps)),
            (StopReason.MAX_SAMPLED_TOKENS, _reached(self._sampled, limits.max_sampled_tokens)),
            (StopReason.MAX_TOOL_CALLS, _reached(self._tool_calls, limits.max_tool_calls)),
        )
        return next((reason for reason, holds in reasons if holds), None)

    def _hand_out(self, turn: Turn, delta: Delta, reason: StopReason | None, *, is_first: bool = False) -> Result:
        extends = not is_first and delta.broken is None
        name = self.context.name
        self._turn = turn
        if reason is None:
            stop = len(self.context.log_tokens)
            start = stop - len(delta.tokens)
            self._step = Step(name, name, delta.keep, extends, start, stop, broken=delta.broken)
        else:
            self._unasked = is_first
            self.context.check_end()
            trajectory = self._end("terminated" if reason == StopReason.TERMINATED else "truncated", reason)
            trajectory.final_break = delta.broken
        info = self._info(turn, delta.broken, closed_reply=delta.closed_reply)
        if reason is not None:
            info["stop_reason"] = str(reason)
        observation = Observation(delta.tokens, delta.keep, extends, name, name)
        is_terminated = reason == StopReason.TERMINATED
        return Result(observation, float(turn.reward or 0.0), is_terminated, bool(reason) and not is_terminated, info)

    def _info(self, turn: Turn, broken: Break | None, *, closed_reply: bool) -> dict[str, Any]:
        info = {
            "stop_token_ids": self.renderer.stop_token_ids,
            "stop": self._stops(turn),
            "max_tokens": self._max_tokens(turn),
            "sampling": dict(turn.sampling),
            "context": self.context.name,
            "role": self.context.role,
            "truncated_reply": closed_reply,
            "rewards": dict(turn.rewards),
            "metrics": dict(turn.metrics),
            **turn.info,
        }
        if broken is not None:
            info["break"] = broken
        return info

    def _max_tokens(self, turn: Turn) -> int:
        """How many tokens the next reply may have: the smallest of what the turn and each limit leave."""
        limits = self.limits
        left = [UNLIMITED]
        if turn.max_tokens is not None:
            step = self._step  # a part of the reply may be there already
            left.append(turn.max_tokens - (step.stop - step.action_start if step is not None else 0))
        if limits.max_context_tokens is not None:
            left.append(limits.max_context_tokens - len(self.context))
        if limits.max_sampled_tokens is not None:
            left.append(limits.max_sampled_tokens - self._sampled)
        return max(0, min(left))

    def _end(self, status: Status, reason: StopReason, error: str | None = None) -> Trajectory:
        context = self.context
        length = max((step.stop for step in self.steps), default=0)
        log = ContextLog(
            role=context.role,
            parent=context.parent,
            tokens=context.log_tokens.copy(0, length),
            logprobs=context.log_logprobs.copy(0, length),
            messages=list(context.messages),
            tools=[dict(tool) for tool in context.tools],
        )
        self._step = None
        self.trajectory = Trajectory(
            id=self.id,
            env=self.env,
            seed=self.seed,
            status=status,
            stop_reason=str(reason),
            contexts={context.name: log},
            steps=self.steps,
            renderer=self.renderer.specification(),
            tokenizer=self.renderer.tokenizer.fingerprint,
            vocab_size=self.renderer.tokenizer.vocab_size,
            history=self.history.specification(),
            limits=self.limits.model_dump(exclude_defaults=True),
            config=self.config,
            task=_as_json(self.task),
            group_id=self.group_id,
            error=error,
        )
        return self.trajectory


def _reached(count: int, limit: int | None) -> bool:
    return limit is not None and count >= limit


def _check_turn(turn: object) -> None:
    if not isinstance(turn, Turn):
        raise TurnError(f"start() and respond() return a Turn, got a {type(turn).__name__}: {turn!r:.80}")
    taken = turn.info and RESERVED_INFO & turn.info.keys()
    if taken:
        raise TurnError(f"Turn(info=...) uses names that envsdk uses: {', '.join(sorted(taken))}. Take others")


def _as_json(task: Any) -> Any:
    if hasattr(task, "model_dump"):
        return task.model_dump(mode="json")
    return dict(cast("Mapping[str, Any]", task)) if isinstance(task, Mapping) else task
