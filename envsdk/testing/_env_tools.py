"""A check that every tool call gets a tool message, regardless of its arguments."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..authoring._tool_env import ToolEnv
from ..errors import RenderError
from ..messages import Message, ToolCall, ToolSchema
from ._env_arguments import ODD_VALUES, name_of, parameters_of, properties_of, right_arguments
from ._env_differences import described
from ._env_episodes import EpisodeFailed, Episodes, closing, step_with
from ._env_time import TimeLimitExceeded
from ._reports import Failure, NotPossible


def tool_errors(episodes: Episodes) -> str:
    """Check each tool of the first turn with invalid calls of all kinds, and with two valid ones."""
    if not isinstance(episodes.sample, ToolEnv):
        raise NotPossible("it is not a ToolEnv")
    tools = _first_tools(episodes)
    if not tools:
        raise NotPossible("the first turn has no tools")
    count = 0
    for name, calls in _cases(tools, _right_calls(episodes)):
        seed = episodes.few_seeds[count % len(episodes.few_seeds)]
        _call(episodes, f"{name}: ", calls, seed)
        count += 1
    return f"{len(tools)} tools, {count} replies"


def _first_tools(episodes: Episodes) -> Sequence[ToolSchema]:
    with episodes.attempt(episodes.seeds[0]), closing(episodes.subject.make()) as env:
        env.reset(seed=episodes.seeds[0])
        return env.episode.agent.context.tools


def _right_calls(episodes: Episodes) -> dict[str, Any]:
    """Return the arguments of a call of each tool that the reference policy calls."""
    try:
        logs = episodes.play(episodes.policy, episodes.seeds[0]).contexts.values()
    except EpisodeFailed:
        return {}
    calls = [call for log in logs for message in log.messages for call in message.tool_calls]
    return {call.name: call.arguments for call in calls if call.error is None}


def _cases(tools: Sequence[ToolSchema], right: Mapping[str, Any]) -> Iterator[tuple[str, list[ToolCall]]]:
    yield "an unknown tool", [ToolCall(name="nobody", arguments={"a": 1})]
    for tool in tools:
        name = name_of(tool)
        arguments = right.get(name, right_arguments(tool))
        yield f"{name} without arguments", [ToolCall(name=name)]
        for parameter in properties_of(parameters_of(tool)):
            values = [{**arguments, parameter: value} for value in ODD_VALUES]
            yield f"{name} with other types as {parameter}", [ToolCall(name=name, arguments=value) for value in values]
        yield f"{name} with an unknown argument", [ToolCall(name=name, arguments={**arguments, "nobody": 1})]
        for text in ('{"a": ', "[1]", '"text"', "null", ""):
            yield f"{name} with the arguments {text}", [ToolCall(name=name, arguments=text)]
        yield f"{name}, called twice", [ToolCall(name=name, arguments=arguments)] * 2


def _call(episodes: Episodes, what: str, calls: list[ToolCall], seed: int) -> None:
    """Give calls as the first reply, and check the messages after it."""
    with episodes.attempt(seed), closing(episodes.subject.make()) as env:
        observation, _ = env.reset(seed=seed)
        context = env.episode.contexts[observation.context]
        start = len(context.messages)
        try:
            reply = context.renderer.reply(Message(role="assistant", tool_calls=tuple(calls)))
        except RenderError:
            return  # the family cannot express these calls
        try:
            *_, info = env.step(reply)
            step_with(env, "null", seed, 40)  # sub-agents that a tool started come first
        except (KeyboardInterrupt, TimeLimitExceeded):
            raise
        except BaseException as error:  # a tool may raise anything
            raise Failure(
                f"{what}it raises {described(error)}. Raise a ToolError to report an error to the model", seed
            ) from error
    if info["metrics"].get("tool_crashes"):
        text = next((message.content for message in context.messages[start:] if message.role == "tool"), "")
        raise Failure(
            f"{what}it crashes (see the log): {text:.200}. Raise a ToolError for a mistake of the model, or list the "
            "class of the exception in reported_exceptions",
            seed,
        )
    read = context.messages[start].tool_calls
    answers = context.messages[start + 1 :][: len(read)]
    has_ended = env.trajectory is not None and len(answers) < len(read)
    if any(message.role != "tool" for message in answers) or (len(answers) < len(read) and not has_ended):
        found = [f"{message.role}: {message.content:.80}" for message in answers]
        raise Failure(
            f"{what}{len(read)} calls are followed by {found or 'nothing'}; expected a tool message for each", seed
        )
