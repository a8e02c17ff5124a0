"""verifiers' message graph, which its interception server makes during a rollout: one sample for each branch."""

from typing import Any

import numpy as np
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.graph import prepare_turn
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Branch, Trace, TraceTask
from verifiers.v1.types import AssistantMessage, Response, TurnTokens, UserMessage

from benchmarks.contender import Repetition, contender
from benchmarks.logs import LoggedStep, is_sound, logged_steps

PACKAGES = ("verifiers", "renderers")


def messages_of(step: LoggedStep) -> list[Any]:
    """Return the messages of a prompt: a user's for each observation, and the replies between them."""
    users = [UserMessage(content=f"observation {turn} of agent {step.agent}") for turn in step.turns]
    replies = [AssistantMessage(content=f"reply {turn}") for turn in step.turns[:-1]]
    return [message for pair in zip(users, [*replies, None], strict=True) for message in pair if message is not None]


def response_to(step: LoggedStep, steps: list[LoggedStep]) -> Response:
    """Return a reply with its tokens and with the span of each message in the prompt."""
    lengths = [len(part) for turn in step.turns for part in (range(len(step.action)), steps[turn].action)][:-1]
    ends = [sum(lengths[: index + 1]) for index in range(len(lengths))]
    spans = [(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    tokens = TurnTokens.model_construct(
        prompt_ids=step.prompt,
        completion_ids=step.action,
        completion_logprobs=list(step.logprobs),
        message_spans=spans,
        renderer_prompt_ids=None,
        bridged=False,
        is_content=None,
        mm_placeholders=None,
        mm_token_type_id_map=None,
        routed_experts=None,
        sampling_mask=None,
    )
    message = AssistantMessage(content=f"reply {step.turns[-1]}")
    return Response(id="", created=0, model="m", message=message, finish_reason="stop", tokens=tokens)


def recorded(steps: list[LoggedStep]) -> Trace:
    """Return the trace that the interception server would have recorded."""
    trace: Trace = Trace(task=TraceTask(type="Task", data=TaskData()), agent=AgentInfo(config=AgentConfig()))
    for step in steps:
        prepare_turn(trace, messages_of(step)).commit(response_to(step, steps))
    return trace


def read(branch: Branch) -> tuple[list[int], list[bool], list[float]]:
    """Return what a trainer reads of a branch."""
    return branch.token_ids, branch.sampled_mask, branch.logprobs


@contender(
    "samples",
    "verifiers",
    packages=PACKAGES,
    note="`token_ids`, `sampled_mask` and `logprobs` of each branch of a recorded trace, as lists of Python numbers",
)
def samples(size: str) -> Repetition:
    """Read the branches."""
    trace = recorded(logged_steps(size))
    made = [read(branch) for branch in trace.branches]
    sampled = sum(sum(node.mask) for node in trace.nodes)
    is_sound(size, sum(len(tokens) for tokens, _, _ in made), sampled)

    def repetition() -> None:
        for branch in trace.branches:
            read(branch)

    return repetition


@contender(
    "samples", "verifiers, as arrays", note="the same lists, made into numpy's arrays as envsdk's samples have them"
)
def samples_as_arrays(size: str) -> Repetition:
    """Read the branches, and convert what was read."""
    trace = recorded(logged_steps(size))

    def repetition() -> None:
        for branch in trace.branches:
            tokens, mask, logprobs = read(branch)
            np.array(tokens, dtype=np.int32), np.array(mask, dtype=np.bool_), np.array(logprobs, dtype=np.float32)

    return repetition
