"""Whatever is wrong with a call, the model is told by a tool message."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..authoring.tool_env import ToolEnv
from ..errors import RenderError
from ..messages import Message, ToolCall, ToolSchema
from .env_arguments import ODD_VALUES, name_of, parameters_of, properties_of, right_arguments
from .env_differences import told
from .env_plays import PlayFailed, Plays, closed, step_on
from .env_time import Overtime
from .reports import Failure, NotPossible


def tool_errors(plays: Plays) -> str:
    """Every tool of the first turn is called in every wrong way, and in the right one, twice."""
    if not isinstance(plays.sample, ToolEnv):
        raise NotPossible("it is no ToolEnv")
    tools = _first_tools(plays)
    if not tools:
        raise NotPossible("there are no tools in the first turn")
    count = 0
    for name, calls in _cases(tools, _right_calls(plays)):
        seed = plays.few[count % len(plays.few)]
        _call(plays, f"{name}: ", calls, seed)
        count += 1
    return f"{len(tools)} tools, {count} replies"


def _first_tools(plays: Plays) -> Sequence[ToolSchema]:
    with plays.episode(plays.seeds[0]), closed(plays.subject.make()) as env:
        env.reset(seed=plays.seeds[0])
        return env.episode.agent.context.tools


def _right_calls(plays: Plays) -> dict[str, Any]:
    """For each tool that the reference policy calls the arguments of a call."""
    try:
        logs = plays.play(plays.policy, plays.seeds[0]).contexts.values()
    except PlayFailed:
        return {}
    calls = [call for log in logs for message in log.messages for call in message.tool_calls]
    return {call.name: call.arguments for call in calls if call.error is None}


def _cases(tools: Sequence[ToolSchema], right: Mapping[str, Any]) -> Iterator[tuple[str, list[ToolCall]]]:
    yield "a tool that is not there", [ToolCall(name="nobody", arguments={"a": 1})]
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


def _call(plays: Plays, what: str, calls: list[ToolCall], seed: int) -> None:
    """Give a first reply with calls, and look at what comes behind it."""
    with plays.episode(seed), closed(plays.subject.make()) as env:
        observation, _ = env.reset(seed=seed)
        context = env.episode.contexts[observation.context]
        start = len(context.messages)
        try:
            reply = context.renderer.reply(Message(role="assistant", tool_calls=tuple(calls)))
        except RenderError:
            return  # the family has no such calls
        try:
            *_, info = env.step(reply)
            step_on(env, "null", seed, 40)  # what a tool handed over to comes first
        except (KeyboardInterrupt, Overtime):
            raise
        except BaseException as error:  # a tool is anybody's code
            raise Failure(
                f"{what}it raises {told(error)}. A tool raises a ToolError to tell the model what is wrong", seed
            ) from error
    if info["metrics"].get("tool_crashes"):
        said = next((message.content for message in context.messages[start:] if message.role == "tool"), "")
        raise Failure(
            f"{what}it crashes (see the log): {said:.200}. A tool raises a ToolError for what the model got "
            "wrong; an exception that is expected is named in told_exceptions",
            seed,
        )
    read = context.messages[start].tool_calls
    answers = context.messages[start + 1 :][: len(read)]
    has_ended = env.trajectory is not None and len(answers) < len(read)
    if any(message.role != "tool" for message in answers) or (len(answers) < len(read) and not has_ended):
        said = [f"{message.role}: {message.content:.80}" for message in answers]
        raise Failure(
            f"{what}{len(read)} calls are answered by {said or 'nothing'}, and not by a tool message each", seed
        )
