"""Tasks of inspect_ai as environments: their data sets, solvers, tools and scorers, with the policy as their model.

The task's own solvers run, and each `generate` of theirs is a request to the policy. So whatever they do (prompt
templates, tool loops, agents) is what they do in inspect_ai. There are three differences. Samples have an order that
does not depend on a shuffle. The global random generators have a state that depends on the seed alone. A score that is
not a number, or one of inspect_ai's grades, is an error and not 0.
"""

import copy
import functools
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field, ImportString, JsonValue, field_serializer

from ..._visible import brief, shorten
from ...episodes._turn import Turn
from ...errors import ConfigError
from ...messages import Message, ToolSchema
from .._env import EnvConfig
from .._trust import NeedsTrust
from ._coroutines import Ask, CoroutineEnv, ReplyRequest, Source, names_of
from ._dataset import path_of
from ._random_state import GlobalRandom

_SAMPLING = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty")
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}


class InspectConfig(EnvConfig):
    """The task, its options, and the scores that count."""

    task: ImportString[Callable[..., Any]]
    """A function that returns an `inspect_ai.Task`, or its import path: `"inspect_evals.gsm8k:gsm8k"`."""
    options: Annotated[dict[str, JsonValue], NeedsTrust("paths")] = Field(default_factory=dict[str, JsonValue])
    """The arguments of the function."""
    scores: tuple[str, ...] | None = None
    """The names of the scores that count as rewards. The others are metrics. None counts all of them."""

    @field_serializer("task")
    def _where(self, task: Any) -> str:
        return path_of(task)


class Inspect(CoroutineEnv):
    """Play the samples of a task of inspect_ai: `Inspect(task="inspect_evals.gsm8k:gsm8k")`.

    Exercises: the skills that the task tests. Reward: its scores, by the names of its scorers.
    """

    Config: ClassVar[type[EnvConfig]] = InspectConfig

    def _load(self) -> Source:
        return _loaded(self.config.task, json.dumps(self.config.options, sort_keys=True))

    def reference_reply(self) -> str:
        """Return the target of the sample: for choices, `ANSWER: ` and its letters."""
        sample = self._envsdk_source.items[self.task["sample"]]
        text = sample.target if isinstance(sample.target, str) else ", ".join(sample.target)
        return f"ANSWER: {text}" if sample.choices else text

    async def _play(self, ask: Ask) -> Turn:
        package, task = _inspect(), self._envsdk_source.owner
        sample = copy.deepcopy(self._envsdk_source.items[self.task["sample"]])
        sample.id = self.task["sample"] + 1 if sample.id is None else sample.id
        model = package.model_class(ask)
        given = [package.ChatMessageUser(content=sample.input)] if isinstance(sample.input, str) else sample.input
        state = package.TaskState(
            model.name, sample.id, 1, sample.input, list(given), package.Target(sample.target),
            choices=sample.choices, metadata=sample.metadata, message_limit=task.message_limit,
        )  # fmt: skip
        transcript = package.Transcript()
        package.init_task_context(model, config=task.config)
        package.init_transcript(transcript)
        package.init_subtask_store(state.store)
        package.set_sample_state(state)
        active = package.active_sample(
            task=task.name, log_location="", model=model.name, sample=sample, epoch=1, message_limit=task.message_limit,
            token_limit=None, cost_limit=None, time_limit=None, working_limit=None, fails_on_error=True,
            transcript=transcript, eval_id="", sample_uuid=state.uuid,
        )  # fmt: skip

        async def generate(state: Any, tool_calls: str = "loop", cache: Any = False, **config: Any) -> Any:
            merged = task.config.merge(package.GenerateConfig(**config))
            return await package.task_generate(model, state, tool_calls, cache, merged)

        is_cut = False
        try:
            async with active:
                with package.message_limit(task.message_limit), package.turn_limit(task.turn_limit):
                    state = await package.resolve_plan(task, None)(state, generate)
        except package.LimitExceededError:
            is_cut, state = True, package.sample_state() or state
        values: dict[str, float] = {}
        names: list[str] = []
        for scorer in task.scorer or ():
            names.append(name := package.unique_scorer_name(scorer, names))
            model.refuses = f"its scorer {name!r} asks a model"
            score: Any = await scorer(state, package.Target(sample.target))
            if score is not None:
                state.scores = cast("Any", {**(state.scores or {}), name: score})
                values |= _numbers(name, score.value)
        if task.cleanup is not None:
            await task.cleanup(state)
        chosen: Sequence[str] = self.config.scores or tuple(values)
        if unknown := [name for name in chosen if name not in values and self.config.scores]:
            raise ConfigError(f"the task has no scores {unknown}; its scores: {', '.join(values) or 'none'}")
        scored = {name: value for name, value in values.items() if not math.isnan(value)}
        rewards = {name: scored[name] for name in chosen if name in scored}
        metrics = {name: value for name, value in scored.items() if name not in chosen}
        return Turn(reward=rewards or None, metrics=metrics, terminated=not is_cut, truncated=is_cut)


def _numbers(name: str, value: Any) -> dict[str, float]:
    """Return the numbers of a score by name. NaN stands for not scored.

    Raises:
        ConfigError: If it is not a number, a grade, or a mapping of names to them.
    """
    if isinstance(value, Mapping):
        parts = cast("Mapping[str, Any]", value).items()
        return {f"{name}.{key}": number for key, part in parts for number in _numbers(name, part).values()}
    if isinstance(value, str) and value in _GRADES:
        return {name: _GRADES[value]}
    if not isinstance(value, (bool, int, float)):
        raise ConfigError(
            f"the scorer {name!r} returned {brief(value)}; expected a number, one of {', '.join(_GRADES)}, or a mapping"
        )
    return {name: float(value)}


@functools.lru_cache(maxsize=32)
def _loaded(function: Callable[..., Any], options: str) -> Source:
    """Call the function of a task.

    Raises:
        ConfigError: If it needs what an environment does not have, or is not a task.
    """
    package, given = _inspect(), json.loads(options)
    try:
        inspect.signature(function).bind(**given)
    except TypeError as error:
        raise ConfigError(f"the options of {brief(function)} are {shorten(options, 200)}: {error}") from error
    with GlobalRandom(0).active(may_print=True):
        task = function(**given)
        if not isinstance(task, package.Task):
            raise ConfigError(f"{brief(function)} returned {brief(task)}; expected an inspect_ai.Task")
        samples = list(task.dataset)
    needs = {
        "a sandbox": task.sandbox or any(sample.sandbox or sample.files or sample.setup for sample in samples),
        "model roles": task.model_roles,
        "approval of tool calls": task.approval,
    }
    for scorer in task.scorer or ():
        name, params = package.unique_scorer_name(scorer, []), getattr(scorer, "__registry_params__", {})
        needs[f"a judge for the scorer {name!r}"] = name.startswith("model_graded") and not params.get("model")
    if found := [name for name, value in needs.items() if value]:
        raise ConfigError(f"the task {task.name!r} needs {' and '.join(found)}, which this adapter does not have")
    samples.sort(key=_digest)
    rows = [{"sample": index, "id": sample.id} for index, sample in enumerate(samples)]
    return Source(task, samples, rows, (_loaded, (function, options)))


def _digest(sample: Any) -> bytes:
    """Return what a sample is sorted by. The ids of messages differ in each process."""
    content = sample.model_dump_json(include={"input", "target", "choices"}, exclude={"input": {"__all__": {"id"}}})
    return hashlib.blake2b(content.encode()).digest()


_NAMES = """
    inspect_ai:Task inspect_ai.scorer:Target inspect_ai.solver:TaskState
    inspect_ai.model:ChatMessageAssistant inspect_ai.model:ChatMessageSystem inspect_ai.model:ChatMessageUser
    inspect_ai.model:GenerateConfig inspect_ai.model:Model inspect_ai.model:ModelOutput inspect_ai.model:get_model
    inspect_ai.tool:ToolCall inspect_ai.tool:ToolSource
    inspect_ai.util:LimitExceededError inspect_ai.util:message_limit inspect_ai.util:turn_limit
    inspect_ai._eval.context:init_task_context inspect_ai._eval.task.generate:task_generate
    inspect_ai._eval.task.run:resolve_plan inspect_ai.log._samples:active_sample
    inspect_ai.log._transcript:Transcript inspect_ai.log._transcript:init_transcript
    inspect_ai.model._call_tools:get_tools_info inspect_ai.scorer._scorer:unique_scorer_name
    inspect_ai.solver._task_state:sample_state inspect_ai.solver._task_state:set_sample_state
    inspect_ai.util._limit:check_message_limit inspect_ai.util._store:init_subtask_store
"""
"""The last twelve are what its own runner calls for a sample."""


@functools.cache
def _inspect() -> Any:
    """Return the names of inspect_ai that are used, and `model_class`, whose objects ask the policy."""
    names = names_of("inspect_ai", "0.3.285", _NAMES)

    class AskingModel(names.Model):
        def __init__(self, ask: Ask) -> None:
            names.Model.__init__(self, names.get_model("mockllm/model").api, names.GenerateConfig())
            self.ask, self.refuses = ask, ""

        async def generate(
            self, input: Any, tools: Any = (), tool_choice: Any = None, config: Any = None, *_: Any, **__: Any
        ) -> Any:
            if self.refuses:
                raise ConfigError(f"{self.refuses}, and the policy does not judge itself: name another model for it")
            given = [names.ChatMessageUser(content=input)] if isinstance(input, str) else list(input)
            names.check_message_limit(len(given), raise_for_equal=True)
            config = config or names.GenerateConfig()
            if config.system_message:
                given.insert(0, names.ChatMessageSystem(content=config.system_message))
            tools = await tools.tools() if isinstance(tools, names.ToolSource) else tools
            schemas = [] if tool_choice == "none" else [_schema(info) for info in names.get_tools_info(tools)]
            sampling = {name: getattr(config, name) for name in _SAMPLING if getattr(config, name) is not None}
            options = {"stop": config.stop_seqs or (), "max_tokens": config.max_tokens, "sampling": sampling}
            reply = await self.ask(ReplyRequest([_message(one) for one in given], schemas, options=options))
            calls = [
                names.ToolCall(
                    id=call.id or f"call_{len(given)}_{number}",
                    function=call.name,
                    arguments=call.arguments if isinstance(call.arguments, dict) else {},
                    parse_error=call.error,
                )
                for number, call in enumerate(reply.tool_calls)
            ]
            message = names.ChatMessageAssistant(content=reply.content, tool_calls=calls or None, source="generate")
            return names.ModelOutput.from_message(message, stop_reason="tool_calls" if calls else "stop")

    names.model_class = AskingModel
    return names


def _schema(tool: Any) -> ToolSchema:
    parameters = tool.parameters.model_dump(mode="json", exclude_none=True)
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def _message(given: Any) -> Message:
    """Return a message of inspect_ai as a `Message`.

    Raises:
        ConfigError: If it has content that a message cannot hold.
    """
    data: dict[str, Any] = {"role": given.role, "content": given.content}
    if not isinstance(given.content, str):
        parts = [part for part in given.content if part.type != "reasoning"]
        if kinds := {part.type for part in parts} - {"text", "image"}:
            raise ConfigError(f"a message of the task has {', '.join(sorted(kinds))}; expected text and images")
        data["content"] = [
            {"type": "text", "text": part.text}
            if part.type == "text"
            else {"type": "image_url", "image_url": {"url": part.image}}
            for part in parts
        ]
    if given.role == "tool":
        data |= {"name": given.function, "tool_call_id": given.tool_call_id}
        data |= {"content": f"Error: {given.error.message}"} if given.error else {}
    if calls := getattr(given, "tool_calls", None):
        names = [{"name": call.function, "arguments": call.arguments} for call in calls]
        data["tool_calls"] = [{"id": call.id, "function": name} for call, name in zip(calls, names, strict=True)]
    return Message.from_openai(data)
