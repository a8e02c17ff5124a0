"""ATIF 1.8, harbor's interchange format: a trajectory as documents of JSON, with token ids and log-probabilities.

Each context is a document; those of sub-agents are inside their parents'. The format repeats the whole prompt at each
step, so that T steps take O(T^2) tokens, unless `prompt_ids` is False.
Source: harbor's models, `harbor.models.trajectories`, and the RFC that they name.
"""

import importlib.metadata
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..errors import InvalidRecord
from ..messages import Message
from ..trajectories.replay import Prompt
from ..trajectories.trajectory import Trajectory
from .capability import Capability
from .checks import checked

SCHEMA_VERSION = "ATIF-v1.8"

CAPABILITY = Capability(
    "ATIF", several_samples=True, loss_weight="None: it is a record of whole trajectories, not of samples."
)

_Object = dict[str, Any]


def to_atif(
    trajectory: Trajectory, *, agent: str = "envsdk", model: str | None = None, prompt_ids: bool = True
) -> list[_Object]:
    """Write a trajectory as ATIF documents, ready for `json.dumps`.

    What stood in a prompt without being sampled here (examples, another context's past, an episode's before it was
    forked) is marked `is_copied_context`. Breaks, rewards and temperatures are in the `extra` of their steps.

    Args:
        trajectory: The trajectory.
        agent: What the agent is called.
        model: What the model is called.
        prompt_ids: Whether each step has its whole prompt as token ids.

    Returns:
        A document for each context without a parent: one, or one for each player. They share a `session_id`.

    Raises:
        InvalidRecord: If a context has neither a message nor a step: a document must have one. Or if the episode failed
            before anybody spoke: no document could say why.
        InvalidSample: If a sample of the trajectory is not sound, those of failed sub-agents included.
        UndeclaredBreak: See `Trajectory.walk`.
    """
    if not isinstance(trajectory, Trajectory):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRecord(f"expected one Trajectory, got a {type(trajectory).__name__}")
    if not trajectory.contexts and trajectory.error is not None:
        raise InvalidRecord(f"{trajectory.id!r} failed before anybody spoke: {trajectory.error}")
    checked(trajectory.samples(include_failed=True), logprobs=False)
    about: _Object = {"name": agent, "version": importlib.metadata.version("envsdk")}
    writer = _Writer(trajectory, about if model is None else {**about, "model_name": model}, prompt_ids)
    return [writer.document(name) for name, log in trajectory.contexts.items() if log.parent is None]


class _Writer:
    def __init__(self, trajectory: Trajectory, agent: _Object, prompt_ids: bool) -> None:
        self._trajectory, self._agent, self._prompt_ids = trajectory, agent, prompt_ids
        self._prompts: dict[str, list[Prompt]] = {name: [] for name in trajectory.contexts}
        # Of each context, its sub-agents, with how many steps it had taken when they began.
        self._children: dict[str, list[tuple[int, str]]] = {name: [] for name in trajectory.contexts}
        unseen = dict.fromkeys(trajectory.contexts)
        for prompt in trajectory.prompts():
            self._register(prompt.step.context, unseen)
            self._prompts[prompt.step.context].append(prompt)
        for name in list(unseen):  # nobody answered them
            self._register(name, unseen)

    def _register(self, name: str, unseen: dict[str, None]) -> None:
        parent = self._trajectory.contexts[name].parent
        if name in unseen and parent is not None:
            self._children[parent].append((len(self._prompts[parent]), name))
        unseen.pop(name, None)

    def document(self, name: str) -> _Object:
        """The document of a context, with those of its sub-agents inside."""
        trajectory, log, prompts = self._trajectory, self._trajectory.contexts[name], self._prompts[name]
        if not prompts and not log.messages:
            raise InvalidRecord(f"context {name!r} has neither a message nor a step; an ATIF document has at least one")
        steps = [{"step_id": number, **step} for number, step in enumerate(self._steps(name), start=1)]
        ended = (log.stop_reason or trajectory.stop_reason, log.error or trajectory.error)
        document: _Object = {
            "schema_version": SCHEMA_VERSION,
            "session_id": trajectory.id,
            "trajectory_id": self._id(name),
            "agent": {**self._agent, **_given(tool_definitions=log.tools), "extra": {"role": log.role}},
            "steps": steps,
            "final_metrics": {
                "total_prompt_tokens": sum(len(prompt.prompt) for prompt in prompts),
                "total_completion_tokens": sum(len(prompt.action) for prompt in prompts),
                "total_steps": len(steps),
                "extra": {"reward": trajectory.reward_of(name), "stop_reason": ended[0], **_given(error=ended[1])},
            },
            "extra": {"env": trajectory.env, **_given(seed=trajectory.seed, group_id=trajectory.group_id)},
        }
        children = [self.document(child) for _, child in self._children[name]]
        return {**document, **_given(subagent_trajectories=children)}

    def _id(self, name: str) -> str:
        return f"{self._trajectory.id}/{name}"

    def _steps(self, name: str) -> list[_Object]:
        """The messages as steps: what tools answered is the observation of the step that called them."""
        steps: list[_Object] = []
        waiting, children = deque(self._prompts[name]), deque(self._children[name])
        taken, copied = 0, self._copied(name)
        for index, message in enumerate(self._trajectory.contexts[name].messages):
            parts: list[Prompt] = []
            while waiting and waiting[0].step.reply == index:
                parts.append(waiting.popleft())
            taken += len(parts)
            if message.role == "tool" and steps and steps[-1]["source"] == "agent":
                _observe(steps[-1], _result(message, steps[-1]))
            else:
                steps += self._said(message, index, parts, is_copied=index < copied)
            while children and children[0][0] <= taken:
                _observe(steps[-1], {"subagent_trajectory_ref": [{"trajectory_id": self._id(children.popleft()[1])}]})
        steps += [{"source": "agent", "message": "", **self._sampled(prompt)} for prompt in waiting]
        for _, child in children:
            _observe(steps[-1], {"subagent_trajectory_ref": [{"trajectory_id": self._id(child)}]})
        return steps

    def _copied(self, name: str) -> int:
        """How many messages a context began with that are another one's, or another episode's."""
        own = self._prompts[name]
        forked = [prompt.step.reply or 0 for prompt in own if self._trajectory.is_copied(prompt.step)]
        base = own[0].step.base if own else name
        logs = self._trajectory.contexts
        inherited = 0 if base == name else _shared(logs[name].messages, logs[base].messages)
        return max(inherited, *(reply + 1 for reply in forked), 0)

    def _said(self, message: Message, index: int, parts: Sequence[Prompt], *, is_copied: bool) -> Iterator[_Object]:
        """The step of a message; of a reply in several parts, a step for each, of which the last one says it."""
        for part in parts[:-1]:
            yield {"source": "agent", "message": "", **self._sampled(part)}
        is_example = message.role == "assistant" and not parts
        marks = {"is_copied_context": True} if is_copied or is_example else {}
        yield {**_message(message, index), **marks, **(self._sampled(parts[-1]) if parts else {})}

    def _sampled(self, prompt: Prompt) -> _Object:
        """What a step has besides its message: token ids, log-probabilities, and how it came about."""
        step, logprobs = prompt.step, self._trajectory.contexts[prompt.step.context].logprobs
        own = logprobs[step.action_start : step.stop]
        metrics: _Object = {
            "prompt_tokens": len(prompt.prompt),
            "completion_tokens": len(prompt.action),
            **({"prompt_token_ids": prompt.prompt.tolist()} if self._prompt_ids else {}),
            "completion_token_ids": prompt.action.tolist(),
            **({} if np.isnan(own).any() else {"logprobs": own.tolist()}),
        }
        extra = _given(
            reward=step.reward,
            rewards=step.rewards,
            metrics=step.metrics,
            finish_reason=step.finish_reason,
            temperatures=[part.temperature for part in step.parts],
            policy_versions=[part.policy_version for part in step.parts if part.policy_version is not None],
            **{"break": step.break_ and asdict(step.break_)},
        )
        marks = {"is_copied_context": True} if self._trajectory.is_copied(step) else {}
        return {"metrics": metrics, "llm_call_count": len(step.parts), "extra": extra, **marks}


def _given(**fields: Any) -> _Object:
    """The fields that are set: not None, and not empty."""
    return {name: value for name, value in fields.items() if value is not None and value not in ([], {}, "")}


def _message(message: Message, index: int) -> _Object:
    source = {"system": "system", "developer": "system", "assistant": "agent"}.get(message.role, "user")
    calls: list[_Object] = []
    for number, call in enumerate(message.tool_calls):
        is_own = call.id is None or any(call.id == other["tool_call_id"] for other in calls)
        is_text = isinstance(call.arguments, str)
        entry = {
            "tool_call_id": f"message-{index}-call-{number}" if is_own else call.id,
            "function_name": call.name,
            "arguments": {} if is_text else call.arguments,
        }
        extra = _given(error=call.error, **({"arguments": call.arguments} if is_text else {}))
        calls.append({**entry, **_given(extra=extra)})
    return {
        "source": source,
        "message": message.content,
        **_given(tool_calls=calls),
        **({} if message.reasoning is None else {"reasoning_content": message.reasoning}),
    }


def _result(message: Message, step: Mapping[str, Any]) -> _Object:
    """What a tool answered; where its call has no id, it is the first one that was not answered yet."""
    known = [call["tool_call_id"] for call in step.get("tool_calls", ())]
    answered = {result.get("source_call_id") for result in step.get("observation", {}).get("results", ())}
    call = message.tool_call_id
    if call is None:
        call = next((known_call for known_call in known if known_call not in answered), None)
    extra = _given(name=message.name, tool_call_id=call if call not in known else None)
    return {**_given(source_call_id=call if call in known else None), "content": message.content, **_given(extra=extra)}


def _observe(step: _Object, result: _Object) -> None:
    step.setdefault("observation", {"results": []})["results"].append(result)


def _shared(first: Sequence[Message], second: Sequence[Message]) -> int:
    """How many messages two conversations have in common at their start."""
    pairs = zip(first, second, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))
