"""ATIF 1.8, harbor's interchange format: a trajectory as JSON documents, with token ids and log-probabilities.

Each context is a document, and the document of a sub-agent is inside its parent's. The format repeats the full prompt
at each step, so T steps take O(T^2) tokens unless `prompt_ids` is False.
Source: harbor's models, `harbor.models.trajectories`, and the RFC that they name.
"""

import importlib.metadata
import operator
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from typing import Any

import numpy as np

from .._arguments import explain_arguments
from .._visible import type_of
from ..contexts._edits import shared_length
from ..errors import InvalidRecord
from ..messages import Message, TextPart
from ..trajectories._replay import Prompt
from ..trajectories._trajectory import Trajectory
from ._capability import Capability
from ._checks import check_samples
from .foreign._atif import from_atif as from_atif

__all__ = ["from_atif", "to_atif"]

SCHEMA_VERSION = "ATIF-v1.8"

CAPABILITY = Capability(
    "ATIF",
    several_samples=True,
    loss_weight="Left out: a document records a whole trajectory, not samples.",
    images="Image parts of messages and results, as `data:` URLs; not where their tokens are.",
)

_Object = dict[str, Any]


def to_atif(
    trajectory: Trajectory, *, agent: str = "envsdk", model: str | None = None, prompt_ids: bool = True
) -> list[_Object]:
    """Convert a trajectory to ATIF documents, ready for `json.dumps`.

    Messages that are in a prompt but were not sampled in this context (examples, the past of another context, the past
    of a forked episode) are marked `is_copied_context`. Breaks, rewards, temperatures and the ranges of sampled tokens
    that are not trained (`masked`) are in the `extra` field of their steps.

    Args:
        trajectory: The trajectory.
        agent: The name of the agent.
        model: The name of the model.
        prompt_ids: Whether each step has the token ids of its full prompt.

    Returns:
        One document for each context without a parent: one for the main context, or one for each player. They have the
        same `session_id`.

    Raises:
        InvalidRecord: If a context has neither a message nor a step, because a document needs at least one; or if the
            episode failed before its first observation, because no document could contain the error.
        InvalidSample: If a sample of the trajectory is invalid, including samples of failed sub-agents.
        UndeclaredBreak: If a step drops tokens without a declared break.
    """
    if not isinstance(trajectory, Trajectory):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRecord(f"trajectory is {type_of(trajectory)}; expected a Trajectory")
    if not trajectory.contexts and trajectory.error is not None:
        raise InvalidRecord(
            f"trajectory {trajectory.id!r} failed before its first observation, so there is no document to write: "
            f"{trajectory.error}"
        )
    check_samples(trajectory.samples(include_failed=True), logprobs=False, no_images=None)
    agent_fields: _Object = {"name": agent, "version": importlib.metadata.version("envsdk")}
    if model is not None:
        agent_fields["model_name"] = model
    writer = _DocumentWriter(trajectory, agent_fields, prompt_ids)
    return [writer.document(name) for name, log in trajectory.contexts.items() if log.parent is None]


class _DocumentWriter:
    def __init__(self, trajectory: Trajectory, agent: _Object, prompt_ids: bool) -> None:
        self._trajectory, self._agent, self._prompt_ids = trajectory, agent, prompt_ids
        self._prompts: dict[str, list[Prompt]] = {name: [] for name in trajectory.contexts}
        # The sub-agents of each context, with the number of steps that it had taken when they began.
        self._children: dict[str, list[tuple[int, str]]] = {name: [] for name in trajectory.contexts}
        begun: set[str] = set()
        without_steps = ((name, None) for name in trajectory.contexts)
        for name, prompt in chain(((prompt.step.context, prompt) for prompt in trajectory.prompts()), without_steps):
            parent = trajectory.contexts[name].parent
            if name not in begun and parent is not None:
                self._children[parent].append((len(self._prompts[parent]), name))
            begun.add(name)
            self._prompts[name] += [] if prompt is None else [prompt]

    def document(self, name: str) -> _Object:
        """Return the document of a context, which contains the documents of its sub-agents."""
        trajectory, log, prompts = self._trajectory, self._trajectory.contexts[name], self._prompts[name]
        if not prompts and not log.messages:
            raise InvalidRecord(
                f"context {name!r} of trajectory {trajectory.id!r} has neither a message nor a step; an ATIF document "
                "needs at least one"
            )
        steps = [{"step_id": number, **step} for number, step in enumerate(self._steps(name), start=1)]
        ended = (log.stop_reason or trajectory.stop_reason, log.error or trajectory.error)
        document: _Object = {
            "schema_version": SCHEMA_VERSION,
            "session_id": trajectory.id,
            "trajectory_id": self._id(name),
            "agent": {**self._agent, **_nonempty(tool_definitions=log.tools), "extra": {"role": log.role}},
            "steps": steps,
            "final_metrics": {
                "total_prompt_tokens": sum(len(prompt.prompt) for prompt in prompts),
                "total_completion_tokens": sum(len(prompt.action) for prompt in prompts),
                "total_steps": len(steps),
                "extra": {"reward": trajectory.reward_of(name), "stop_reason": ended[0], **_nonempty(error=ended[1])},
            },
            "extra": {"env": trajectory.env, **_nonempty(seed=trajectory.seed, group_id=trajectory.group_id)},
        }
        children = [self.document(child) for _, child in self._children[name]]
        return {**document, **_nonempty(subagent_trajectories=children)}

    def _id(self, name: str) -> str:
        return f"{self._trajectory.id}/{name}"

    def _steps(self, name: str) -> list[_Object]:
        """Return the steps of a context, one for each message. Tool results go into the step that called the tools."""
        steps: list[_Object] = []
        waiting, children = deque(self._prompts[name]), deque(self._children[name])
        # The messages at the start that come from another context or episode.
        own, logs = self._prompts[name], self._trajectory.contexts
        forked = [prompt.step.reply or 0 for prompt in own if self._trajectory.is_copied(prompt.step)]
        base = own[0].step.base if own else name
        inherited = 0 if base == name else shared_length(logs[name].messages, logs[base].messages, operator.eq)
        taken, copied = 0, max(inherited, *(reply + 1 for reply in forked), 0)
        for index, message in enumerate(self._trajectory.contexts[name].messages):
            parts: list[Prompt] = []
            while waiting and waiting[0].step.reply == index:
                parts.append(waiting.popleft())
            taken += len(parts)
            if message.role == "tool" and steps and steps[-1]["source"] == "agent":
                _add_result(steps[-1], _tool_result(message, steps[-1]))
            else:
                # A reply in several parts gives several steps; the last one has the message.
                steps += [{"source": "agent", "message": "", **self._sampled(part)} for part in parts[:-1]]
                is_example = message.role == "assistant" and not parts
                marks = {"is_copied_context": True} if index < copied or is_example else {}
                steps.append({**_message(message, index), **marks, **(self._sampled(parts[-1]) if parts else {})})
            while children and children[0][0] <= taken:
                _add_child(steps[-1], self._id(children.popleft()[1]))
        steps += [{"source": "agent", "message": "", **self._sampled(prompt)} for prompt in waiting]
        for _, child in children:
            _add_child(steps[-1], self._id(child))
        return steps

    def _sampled(self, prompt: Prompt) -> _Object:
        """Return the fields of a sampled step: token ids, log-probabilities, and in `extra` how it was sampled."""
        step, logprobs = prompt.step, self._trajectory.contexts[prompt.step.context].logprobs
        own = logprobs[step.action_start : step.stop]
        metrics: _Object = {
            "prompt_tokens": len(prompt.prompt),
            "completion_tokens": len(prompt.action),
            **({"prompt_token_ids": prompt.prompt.tolist()} if self._prompt_ids else {}),
            "completion_token_ids": prompt.action.tolist(),
            **({} if np.isnan(own).any() else {"logprobs": own.tolist()}),
        }
        extra = _nonempty(
            reward=step.reward,
            rewards=step.rewards,
            metrics=step.metrics,
            finish_reason=step.finish_reason,
            temperatures=[part.temperature for part in step.parts],
            policy_versions=[part.policy_version for part in step.parts if part.policy_version is not None],
            masked=[[start - step.action_start, stop - step.action_start] for start, stop in step.masked],
            **{"break": step.break_ and asdict(step.break_)},
        )
        marks = {"is_copied_context": True} if self._trajectory.is_copied(step) else {}
        return {"metrics": metrics, "llm_call_count": len(step.parts), "extra": extra, **marks}


def _nonempty(**fields: Any) -> _Object:
    """Return the fields that are neither None nor empty."""
    return {name: value for name, value in fields.items() if value is not None and value not in ([], {}, "")}


def _message(message: Message, index: int) -> _Object:
    source = {"system": "system", "developer": "system", "assistant": "agent"}.get(message.role, "user")
    calls: list[_Object] = []
    for number, call in enumerate(message.tool_calls):
        needs_id = call.id is None or any(call.id == other["tool_call_id"] for other in calls)
        is_text = isinstance(call.arguments, str)
        entry = {
            "tool_call_id": f"message-{index}-call-{number}" if needs_id else call.id,
            "function_name": call.name,
            "arguments": {} if is_text else call.arguments,
        }
        extra = _nonempty(error=call.error, **({"arguments": call.arguments} if is_text else {}))
        calls.append({**entry, **_nonempty(extra=extra)})
    return {
        "source": source,
        "message": _content(message),
        **_nonempty(tool_calls=calls),
        **({} if message.reasoning is None else {"reasoning_content": message.reasoning}),
    }


def _tool_result(message: Message, step: Mapping[str, Any]) -> _Object:
    """Return the result of a tool message. Without a call id, it answers the first call that has no result yet."""
    known = [call["tool_call_id"] for call in step.get("tool_calls", ())]
    answered = {result.get("source_call_id") for result in step.get("observation", {}).get("results", ())}
    call = message.tool_call_id
    if call is None:
        call = next((known_call for known_call in known if known_call not in answered), None)
    is_known = call in known
    extra = _nonempty(name=message.name, tool_call_id=None if is_known else call)
    source = _nonempty(source_call_id=call if is_known else None)
    return {**source, "content": _content(message), **_nonempty(extra=extra)}


def _content(message: Message) -> str | list[_Object]:
    """Return the text of a message, or its parts if it has images."""
    if not message.images:
        return message.content
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image", "source": {"media_type": part.data.media_type, "path": part.data.url}}
        for part in message.parts or ()
    ]


def _add_result(step: _Object, result: _Object) -> None:
    step.setdefault("observation", {"results": []})["results"].append(result)


def _add_child(step: _Object, trajectory_id: str) -> None:
    _add_result(step, {"subagent_trajectory_ref": [{"trajectory_id": trajectory_id}]})


explain_arguments(globals())
