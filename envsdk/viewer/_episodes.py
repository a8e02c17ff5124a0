"""One episode as JSON for any front end: contexts with their messages, steps, handoffs, samples, and the tree."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..contexts._protocol import Break
from ..episodes._agent import SUMMARY
from ..messages import Message
from ..trajectories._context_log import ContextLog
from ..trajectories._steps import Step
from ..trajectories._trajectory import Trajectory
from ._images import image_facts, parts_of
from ._ranges import Range, StepRanges, sample_segments, step_ranges, tree_nodes

_RUN_TOKENS = 8
"""How many tokens in a row have to be equal for tokens of an observation to count as observed again."""


def episode(trajectory: Trajectory) -> dict[str, Any]:
    """Return everything about an episode but its tokens, as plain values for JSON.

    Its texts are as recorded: escape them before you show them.

    Returns:
        `id`, `env`, `status` and the other fields of the trajectory; `contexts` (in order, with `messages`), `steps`,
        `links` (handoffs and returns), `samples`, `nodes` (of the tree) and `images` (by hash). Positions are those of
        the contexts' logs.

    Raises:
        InvalidRecord: If the steps do not fit the logs.
    """
    firsts = _first_steps(trajectory)
    return {
        **{name: getattr(trajectory, name) for name in _FIELDS},
        "reward": trajectory.scored_reward,
        "not_scored": trajectory.not_scored_because,
        "is_trainable": trajectory.is_trainable,
        "observed_tokens": trajectory.observed_tokens,
        "sampled_tokens": trajectory.sampled_tokens,
        "origins": [origin.trajectory_id for origin in trajectory.origins],
        "final_break": None if trajectory.final_break is None else _break(trajectory.final_break),
        "contexts": [_context(trajectory, name, firsts.get(name)) for name in trajectory.contexts],
        "steps": list(_steps(trajectory)),
        "links": _links(trajectory),
        "samples": list(_samples(trajectory)),
        "nodes": [node._asdict() for node in tree_nodes(trajectory)],
        "images": image_facts(trajectory),
    }


_FIELDS = (
    *("id", "env", "seed", "group_id", "status", "stop_reason", "error", "error_kind", "task", "config", "limits"),
    *("renderer", "history", "tokenizer"),
)


def _first_steps(trajectory: Trajectory) -> dict[str, Step]:
    return {step.context: step for step in reversed(trajectory.steps)}


def _context(trajectory: Trajectory, name: str, first: Step | None) -> dict[str, Any]:
    log = trajectory.contexts[name]
    base = None if first is None or first.base == name else first.base
    inherited = 0 if base is None else _common(log.messages, trajectory.contexts[base].messages)
    replies: dict[int, list[int]] = {}
    for index, step in enumerate(trajectory.steps):
        if step.context == name and step.reply is not None:
            replies.setdefault(step.reply, []).append(index)
    results = _results(log.messages)
    answered = {result: call for call, result in results.items()}
    return {
        "name": name,
        "role": log.role,
        "parent": log.parent,
        "base": base,
        "inherited_tokens": first.keep if base is not None and first is not None else 0,
        "tokens": len(log.tokens),
        "reward": log.reward,
        "own_reward": trajectory.reward_of(name),
        "stop_reason": log.stop_reason,
        "error": log.error,
        "task": log.task,
        "is_trainable": log.is_trainable,
        "tools": [_tool_name(tool) for tool in log.tools],
        "messages": [
            {
                **_message(message, [results.get((index, number)) for number in range(len(message.tool_calls))]),
                "is_inherited": index < inherited,
                "steps": replies.get(index, []),
                "answers": answered.get(index),
            }
            for index, message in enumerate(log.messages)
        ],
    }


def _common(own: Sequence[Message], base: Sequence[Message]) -> int:
    """Return how many messages at the start of two contexts are equal."""
    pairs = enumerate(zip(own, base, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(own), len(base)))


def _message(message: Message, results: list[int | None]) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "parts": parts_of(message),
        "reasoning": message.reasoning,
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "errors": list(message.errors),
        "open_block": message.open_block,
        "calls": [
            {"name": call.name, "arguments": call.arguments, "id": call.id, "error": call.error, "result": result}
            for call, result in zip(message.tool_calls, results, strict=True)
        ],
    }


def _results(messages: Sequence[Message]) -> dict[tuple[int, int], int]:
    """Return the index of the message that answers each call, by the indices of the call's message and of the call.

    A result answers the call of its id, else the first call of the last reply that has no result yet.
    """
    found: dict[tuple[int, int], int] = {}
    reply = -1
    for index, message in enumerate(messages):
        if message.role == "assistant":
            reply = index
        elif message.role == "tool" and reply >= 0:
            open_ = [n for n in range(len(messages[reply].tool_calls)) if (reply, n) not in found]
            own = [
                n for n in open_ if message.tool_call_id and messages[reply].tool_calls[n].id == message.tool_call_id
            ]
            if own or open_:
                found[reply, (own or open_)[0]] = index
    return found


def _tool_name(tool: Mapping[str, Any]) -> str:
    function: Any = tool.get("function", tool)
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def _steps(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    left = _Remaining(trajectory)
    for ranges in step_ranges(trajectory):
        index, step = ranges.step.step_index, ranges.step.step
        observed, sampled = step.action_start - step.start, step.stop - step.action_start
        yield {
            "index": index,
            "context": step.context,
            "base": step.base,
            "keep": step.keep,
            "extends": step.extends,
            "starts_segment": ranges.step.starts_segment,
            "start": step.start,
            "action_start": step.action_start,
            "stop": step.stop,
            "prompt_tokens": step.keep + observed,
            "observed": observed,
            "sampled": sampled,
            "parts": [
                {"stop": part.stop, "temperature": part.temperature, "policy_version": part.policy_version}
                for part in step.parts
            ],
            "finish_reason": step.finish_reason,
            "reply": step.reply,
            "reward": step.reward,
            "rewards": step.rewards,
            "metrics": step.metrics,
            "is_copied": trajectory.is_copied(step),
            "left": left.after(step),
            "dropped": [list(one) for one in ranges.dropped],
            "break": None if step.break_ is None else _break(step.break_, _observed_again(trajectory, ranges)),
        }


def _break(break_: Break, observed_again: int = 0) -> dict[str, Any]:
    return {
        "kind": break_.kind,
        "reason": break_.reason,
        "context": break_.context,
        "base": break_.base,
        "kept": break_.kept,
        "dropped": break_.dropped,
        "detail": break_.detail,
        "observed_again": observed_again,
    }


def _observed_again(trajectory: Trajectory, ranges: StepRanges) -> int:
    """Return how many tokens of an observation were dropped by it: runs of at least 8 tokens that are equal."""
    if not ranges.dropped:
        return 0
    step = ranges.step.step
    log = trajectory.contexts[step.context]
    dropped = np.concatenate([tokens_of(trajectory.contexts, one) for one in ranges.dropped])
    known = {run.tobytes() for run in _runs(dropped)}
    again = np.zeros(step.action_start - step.start, dtype=np.bool_)
    for at, run in enumerate(_runs(log.tokens[step.start : step.action_start])):
        if run.tobytes() in known:
            again[at : at + _RUN_TOKENS] = True
    return int(np.count_nonzero(again))


def _runs(tokens: Any) -> Any:
    if len(tokens) < _RUN_TOKENS:
        return []
    return np.lib.stride_tricks.sliding_window_view(tokens, _RUN_TOKENS)


def tokens_of(contexts: Mapping[str, ContextLog], where: Range) -> Any:
    """Return the tokens of a range: int32, shape (n,)."""
    return contexts[where.context].tokens[where.start : where.stop]


class _Remaining:
    """What is left of the episode's limits after each step.

    Steps that write a summary do not count as steps of the agent whose context they shorten.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        self._limits, self._contexts = trajectory.limits, trajectory.contexts
        self._steps = self._sampled = self._calls = 0

    def after(self, step: Step) -> dict[str, int]:
        """Count a step; return what is left of each limit that was set."""
        self._steps += not self._is_summary(step.context)
        self._sampled += step.stop - step.action_start
        self._calls += int(step.metrics.get("tool_calls", 0))
        used = {
            "max_steps": self._steps,
            "max_sampled_tokens": self._sampled,
            "max_tool_calls": self._calls,
            "max_context_tokens": step.keep + step.stop - step.start,
        }
        limits = {name: self._limits.get(name) for name in used}
        return {name: limit - used[name] for name, limit in limits.items() if type(limit) is int}

    def _is_summary(self, context: str) -> bool:
        return context.startswith(f"{self._contexts[context].parent}/{SUMMARY}-")


def _links(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Return the handoffs and returns in the order of the steps. Sub-agents return in the next step of their parent."""
    links: list[dict[str, Any]] = []
    waiting: dict[str, dict[str, None]] = {}  # of each context, its sub-agents that acted since its last step
    for index, step in enumerate(trajectory.steps):
        parent = trajectory.contexts[step.context].parent
        if step.break_ is not None and step.break_.reason == "handoff":
            links.append({"kind": "handoff", "from": parent or step.base, "to": step.context, "step": index})
        ended = waiting.pop(step.context, {})
        links += [{"kind": "return", "from": name, "to": step.context, "step": index} for name in ended]
        if parent is not None:
            waiting.setdefault(parent, {})[step.context] = None
    return links


def _samples(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    found = sample_segments(trajectory)
    seen: dict[str, int] = {}
    for index, segment in enumerate(found):
        number = seen[segment.context] = seen.get(segment.context, -1) + 1
        yield {
            "index": index,
            "context": segment.context,
            "segment_index": number,
            "tokens": len(segment.tokens),
            "trained": int(np.count_nonzero(segment.mask)),
            "steps": [replayed.step_index for replayed in segment.steps],
        }
