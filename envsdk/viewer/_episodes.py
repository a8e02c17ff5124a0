"""One episode as JSON for any front end: contexts with their messages, steps, handoffs, samples, and the tree."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, cast

import numpy as np

from .._visible import brief
from ..contexts._history import is_summary_of
from ..errors import ImageError, UnknownName
from ..messages import ImagePart, Message
from ..trajectories._trajectory import Trajectory
from ._json import BreakJSON, ContextJSON, EpisodeJSON, ImageFactsJSON, LinkJSON, MessageJSON, StepJSON
from ._ranges import StepRanges, sample_segments, step_ranges, tree_nodes

_RUN_TOKENS = 8
"""The minimum length of a run of equal tokens that counts as observed again."""
_SIGNATURES: Mapping[str, bytes] = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
_HASH_CHARS = 12


def episode(trajectory: Trajectory) -> EpisodeJSON:
    """Return everything about an episode except its tokens, as plain values for JSON.

    Its strings are as recorded: escape them before you show them.

    Returns:
        `id`, `env`, `status` and the other fields of the trajectory; `contexts` (in order, with `messages`), `steps`,
        `links` (handoffs and returns), `samples`, `nodes` (of the tree) and `images` (by hash). Positions are those of
        the contexts' logs.

    Raises:
        InvalidRecord: If the steps do not fit the logs.
    """
    links: list[LinkJSON] = []
    waiting: dict[str, dict[str, None]] = {}  # for each context, the sub-agents that acted since its last step
    for index, step in enumerate(trajectory.steps):
        parent = trajectory.contexts[step.context].parent
        if step.break_ is not None and step.break_.reason == "handoff":
            links.append({"kind": "handoff", "from": parent or step.base, "to": step.context, "step": index})
        returned = waiting.pop(step.context, {})
        links.extend({"kind": "return", "from": name, "to": step.context, "step": index} for name in returned)
        if parent is not None:
            waiting.setdefault(parent, {})[step.context] = None
    return {
        "id": trajectory.id,
        "env": trajectory.env,
        "seed": trajectory.seed,
        "group_id": trajectory.group_id,
        "status": trajectory.status,
        "stop_reason": trajectory.stop_reason,
        "error": trajectory.error,
        "error_kind": trajectory.error_kind,
        "task": trajectory.task,
        "config": trajectory.config,
        "limits": trajectory.limits,
        "renderer": trajectory.renderer,
        "history": trajectory.history,
        "tokenizer": trajectory.tokenizer,
        "reward": trajectory.scored_reward,
        "not_scored": trajectory.not_scored_because,
        "is_trainable": trajectory.is_trainable,
        "observed_tokens": trajectory.observed_tokens,
        "sampled_tokens": trajectory.sampled_tokens,
        "origins": [origin.trajectory_id for origin in trajectory.origins],
        "final_break": None
        if trajectory.final_break is None
        else cast("BreakJSON", {**asdict(trajectory.final_break), "observed_again": 0}),
        "contexts": [_context(trajectory, name) for name in trajectory.contexts],
        "steps": _steps(trajectory),
        "links": links,
        "samples": [
            {
                "index": index,
                "context": segment.context,
                "segment_index": number,
                "tokens": len(segment.tokens),
                "trained": int(np.count_nonzero(segment.mask)),
                "steps": [replayed.step_index for replayed in segment.steps],
            }
            for index, (number, segment) in enumerate(sample_segments(trajectory))
        ],
        "nodes": tree_nodes(trajectory),
        "images": image_facts(trajectory),
    }


def _context(trajectory: Trajectory, name: str) -> ContextJSON:
    log = trajectory.contexts[name]
    own = [(index, step) for index, step in enumerate(trajectory.steps) if step.context == name]
    base = own[0][1].base if own and own[0][1].base != name else None
    inherited = 0
    for message, given in zip(log.messages, [] if base is None else trajectory.contexts[base].messages, strict=False):
        if message != given:
            break
        inherited += 1
    replies: dict[int, list[int]] = {}
    for index, step in own:
        if step.reply is not None:
            replies.setdefault(step.reply, []).append(index)
    functions: list[Any] = [tool.get("function", tool) for tool in log.tools]
    results = _results(log.messages)
    answered = {result: call for call, result in results.items()}
    messages: list[MessageJSON] = [
        {
            "role": message.role,
            "content": message.content,
            "parts": [
                {"image": part.data.sha256} if isinstance(part, ImagePart) else {"text": part.text}
                for part in message.parts or ()
            ]
            if message.images
            else None,
            "reasoning": message.reasoning,
            "name": message.name,
            "tool_call_id": message.tool_call_id,
            "errors": list(message.errors),
            "open_block": message.open_block,
            "calls": [
                {
                    "name": call.name,
                    "arguments": call.arguments,
                    "id": call.id,
                    "error": call.error,
                    "result": results.get((index, number)),
                }
                for number, call in enumerate(message.tool_calls)
            ],
            "is_inherited": index < inherited,
            "steps": replies.get(index, []),
            "answers": answered.get(index),
        }
        for index, message in enumerate(log.messages)
    ]
    return {
        "name": name,
        "role": log.role,
        "parent": log.parent,
        "base": base,
        "inherited_tokens": 0 if base is None else own[0][1].keep,
        "tokens": len(log.tokens),
        "reward": log.reward,
        "own_reward": trajectory.reward_of(name),
        "stop_reason": log.stop_reason,
        "error": log.error,
        "task": log.task,
        "is_trainable": log.is_trainable,
        "tools": [str(one.get("name", "")) if isinstance(one, Mapping) else "" for one in functions],  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        "messages": messages,
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
            calls = messages[reply].tool_calls
            open_ = [n for n in range(len(calls)) if (reply, n) not in found]
            own = [n for n in open_ if message.tool_call_id and calls[n].id == message.tool_call_id]
            if own or open_:
                found[reply, (own or open_)[0]] = index
    return found


def _steps(trajectory: Trajectory) -> list[StepJSON]:
    """Return the steps, each with what is left of the episode's limits after it.

    Steps that write a summary do not count as steps of the agent whose context they shorten.
    """
    steps: list[StepJSON] = []
    used = {"max_steps": 0, "max_sampled_tokens": 0, "max_tool_calls": 0, "max_context_tokens": 0}
    limits = {name: limit for name in used if type(limit := trajectory.limits.get(name)) is int}
    for ranges in step_ranges(trajectory):
        step = ranges.step.step
        observed, sampled = step.action_start - step.start, step.stop - step.action_start
        used["max_steps"] += not is_summary_of(step.context, trajectory.contexts[step.context].parent)
        used["max_sampled_tokens"] += sampled
        used["max_tool_calls"] += int(step.metrics.get("tool_calls", 0))
        used["max_context_tokens"] = step.keep + observed + sampled
        steps.append(
            {
                "index": ranges.step.step_index,
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
                "left": {name: limit - used[name] for name, limit in limits.items()},
                "dropped": [(own.context, own.start, own.stop) for own in ranges.dropped],
                "break": None
                if step.break_ is None
                else cast("BreakJSON", {**asdict(step.break_), "observed_again": _observed_again(trajectory, ranges)}),
            }
        )
    return steps


def _observed_again(trajectory: Trajectory, ranges: StepRanges) -> int:
    """Return how many tokens an observation both drops and contains again, in equal runs of at least 8 tokens."""
    step, windows = ranges.step.step, np.lib.stride_tricks.sliding_window_view
    observed = trajectory.contexts[step.context].tokens[step.start : step.action_start]
    dropped = [trajectory.contexts[one.context].tokens[one.start : one.stop] for one in ranges.dropped]
    if min(len(observed), sum(map(len, dropped))) < _RUN_TOKENS:
        return 0
    known = {run.tobytes() for run in windows(np.concatenate(dropped), _RUN_TOKENS)}
    again = np.zeros(len(observed), dtype=np.bool_)
    for at, run in enumerate(windows(observed, _RUN_TOKENS)):
        if run.tobytes() in known:
            again[at : at + _RUN_TOKENS] = True
    return int(np.count_nonzero(again))


# Images.


class ImageFile(NamedTuple):
    """An image as a file."""

    media_type: str
    """`image/png` or `image/jpeg`."""
    data: bytes
    """Its bytes."""


def image_facts(trajectory: Trajectory) -> dict[str, ImageFactsJSON]:
    """Return the facts of each image by its hash: `media_type`, `width`, `height`, `file` and `tokens`.

    `file` is its name in the folder `media/` of a run. `tokens` is the number of its placeholders; None if it is not
    in a log.
    """
    placed = (own for log in trajectory.contexts.values() for own in log.media)
    tokens = {own.image.sha256: own.stop - own.start for own in placed}
    return {
        image.sha256: {
            "media_type": image.media_type,
            "width": image.width,
            "height": image.height,
            "file": image.file_name,
            "tokens": tokens.get(image.sha256),
        }
        for image in trajectory.images
    }


def image_name(sha256: str, facts: Mapping[str, Any]) -> str:
    """Describe an image in words: its size, format, number of tokens, and the beginning of its hash."""
    tokens = "" if facts["tokens"] is None else f", {facts['tokens']:,} tokens"
    kind = facts["media_type"].removeprefix("image/").upper()
    return f"image {facts['width']} x {facts['height']} {kind}{tokens}, {sha256[:_HASH_CHARS]}"


def image_file(trajectory: Trajectory, sha256: str) -> ImageFile:
    """Return the file of an image of an episode. The hash only chooses among its images: it is not part of a path.

    Raises:
        UnknownName: If the episode has no such image.
        ImageError: If its bytes are missing, were changed, or are not those of its format.
    """
    image = next((own for own in trajectory.images if own.sha256 == sha256), None)
    if image is None:
        raise UnknownName(
            f"{brief(trajectory.id)} has no image {brief(sha256)}; expected the SHA-256 of one of its images"
        )
    data = image.data
    if not data.startswith(_SIGNATURES[image.media_type]):
        raise ImageError(f"the file of {image!r} is not {image.media_type}, as its record specifies")
    return ImageFile(image.media_type, data)
