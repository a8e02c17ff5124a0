"""The messages and the steps of a trajectory as JSON values without tokens, for reward functions of trainers."""

import json
from collections.abc import Sequence
from typing import Any

import orjson

from ..messages import Message
from ..trajectories._fragments import fragment
from ..trajectories._trajectory import Trajectory

Conversation = list[dict[str, Any]]
"""Messages in the OpenAI chat format, with `reasoning_content` and `tool_calls`; the arguments of a call are a dict."""


def to_conversations(trajectory: Trajectory) -> dict[str, Any]:
    """Return what was said and scored in a trajectory, as JSON values without token ids.

    Args:
        trajectory: The trajectory; it may have failed.

    Returns:
        `id`, `env`, `seed`, `task`, `group_id`, `status`, `stop_reason`, `error` and `reward` of the trajectory;
        `contexts`, by name: `role`, `parent`, `task`, `tools`, `messages` (all of them, also those that the model no
        longer sees), `reward`, `stop_reason` and `error`; and `steps`, in order: `context`, `reply` (the index of the
        reply in the messages of its context, or None), `reward` (None if not scored), `rewards` by name, `metrics`,
        `finish_reason` and `break` (the reason of a declared break before the reply, or None).

    Raises:
        InvalidRecord: If a task cannot be written as JSON.
    """
    fields = ("id", "env", "seed", "group_id", "status", "stop_reason", "error", "reward")
    of_context = ("role", "parent", "stop_reason", "error")
    contexts = {
        name: {
            **{field: getattr(log, field) for field in of_context},
            "task": _as_json(log.task),
            "tools": _as_json(log.tools),
            "messages": [message.to_openai() for message in log.messages],
            "reward": trajectory.reward_of(name),
        }
        for name, log in trajectory.contexts.items()
    }
    of_step = ("context", "reply", "reward", "finish_reason")
    steps = [
        {
            **{field: getattr(step, field) for field in of_step},
            "rewards": dict(step.rewards),
            "metrics": dict(step.metrics),
            "break": None if step.break_ is None else step.break_.reason,
        }
        for step in trajectory.steps
    ]
    known = {name: getattr(trajectory, name) for name in fields}
    return {**known, "task": _as_json(trajectory.task), "contexts": contexts, "steps": steps}


def split_conversation(messages: Sequence[Message]) -> tuple[Conversation, Conversation]:
    """Return the messages before the first reply, and the rest: the `prompt` and the `completion` of a trainer."""
    first = next((i for i, message in enumerate(messages) if message.role == "assistant"), len(messages))
    converted = [message.to_openai() for message in messages]
    return converted[:first], converted[first:]


def _as_json(value: Any) -> Any:
    """Return a value as a trajectory stores it: an object that is not JSON becomes its `repr`."""
    return json.loads(orjson.dumps(fragment(value)))  # orjson would round long integers
