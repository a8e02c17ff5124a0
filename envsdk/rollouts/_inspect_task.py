"""Our environments as tasks of inspect_ai, for its viewer, its logs and its model providers."""

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

from .._packages import load
from .._visible import brief
from ..authoring._driver import seeds_of
from ..authoring._env import Env
from ..authoring._making import maker_of
from ..errors import ConfigError
from ..messages import Message, ToolSchema
from ..policies._openai_chat import ChatEpisode, ChatReply
from ..trajectories._tally import sum_by_name
from ._runner import arollout

_SAMPLING = frozenset({"temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "reasoning_effort"})


def to_inspect(env: Env | str | Callable[[], Env], seeds: int | Sequence[int]) -> Any:
    """Make a task of inspect_ai in which each sample is an episode: `inspect_ai.eval(to_inspect(...), model="...")`.

    The task's solver plays the episode with the model of the evaluation: it receives the messages and the tools that
    the environment shows, and its reply becomes tokens with the environment's renderer. The scorer returns the named
    rewards and `reward`, the sum of all. Plain numbers, which are named `reward`, are only in the sum. An episode that
    was not scored has no score, and one that fails is an error.

    Args:
        env: The id of an environment, an environment, which is copied for each sample, or a function that makes one.
        seeds: The seeds of the episodes, one for each sample.

    Returns:
        An `inspect_ai.Task`.

    Raises:
        MissingPackage: If inspect_ai is not installed.
        ConfigError: If a seed comes twice, or there is none, or `env` is not an environment.
        UnknownName: If no environment has the id.
    """
    inspect_ai, scoring, solving, model = (
        load(module, "to_inspect needs", "pip install inspect_ai")
        for module in ("inspect_ai", "inspect_ai.scorer", "inspect_ai.solver", "inspect_ai.model")
    )
    numbers = [operator.index(seed) for seed in seeds_of(seeds)]
    if not numbers or len({*numbers}) < len(numbers):
        raise ConfigError(f"seeds is {brief(numbers)}; expected different seeds, at least one")
    make_env = maker_of(env)
    with closing(make_env()) as made:  # an error is raised now
        name = made.name

    async def solve(state: Any, generate: Any) -> Any:
        with closing(make_env()) as played:
            trajectory = await arollout(played, ChatEpisode(_InspectModel(model), played), seed=state.metadata["seed"])
        main = next(iter(trajectory.contexts.values()))
        state.messages = [_to_inspect(message, model) for message in main.messages]
        said = [message for message in state.messages if message.role == "assistant"]
        state.output = model.ModelOutput.from_message(said[-1])
        reward = trajectory.scored_reward
        rewards = sum_by_name(step.rewards for step in trajectory.steps)
        state.store.set("rewards", None if reward is None else {**rewards, "reward": reward})
        state.store.set("episode", {"id": trajectory.id, "stop_reason": str(trajectory.stop_reason)})
        state.completed = True
        return state

    async def score(state: Any, target: Any) -> Any:
        rewards = state.store.get("rewards")
        if rewards is None:
            return None
        return scoring.Score(value=rewards, answer=state.output.completion, metadata=state.store.get("episode"))

    sample = inspect_ai.dataset.Sample
    return inspect_ai.Task(
        name=name,
        dataset=[sample(input=f"{name}, seed {seed}", id=seed, metadata={"seed": seed}) for seed in numbers],
        solver=solving.solver(name="envsdk")(lambda: solve)(),
        scorer=scoring.scorer(metrics={"*": [scoring.mean(), scoring.stderr()]}, name="rewards")(lambda: score)(),
    )


class _InspectModel:
    """The model of the running evaluation, for a `ChatEpisode`."""

    def __init__(self, package: Any) -> None:
        self._package, self._model = package, package.get_model()

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
        *,
        stop: tuple[str, ...] = (),
        max_tokens: int | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> ChatReply:
        tool: Any = load("inspect_ai.tool", "to_inspect needs", "pip install inspect_ai")
        if unknown := {*(sampling or {})} - _SAMPLING:
            raise ConfigError(f"the sampling parameters {sorted(unknown)} are not passed to inspect_ai's models")
        schemas = [given.get("function", given) for given in tools]
        output = await self._model.generate(
            [_to_inspect(message, self._package) for message in messages],
            tools=[tool.ToolInfo.model_validate({"description": "", "parameters": {}, **one}) for one in schemas],
            config=self._package.GenerateConfig(
                stop_seqs=list(stop) or None, max_tokens=max_tokens, **(sampling or {})
            ),
        )
        given: Any = output.message
        parts: Any = [] if isinstance(given.content, str) else given.content
        reasoning = "\n".join(part.reasoning for part in parts if part.type == "reasoning")
        functions = [{"name": call.function, "arguments": call.arguments} for call in given.tool_calls or ()]
        calls = [{"id": call.id, "function": one} for call, one in zip(given.tool_calls or (), functions, strict=True)]
        data = {"role": "assistant", "content": given.text, "tool_calls": calls, "reasoning": reasoning or None}
        is_cut = output.stop_reason in ("max_tokens", "model_length")
        return ChatReply(Message.from_openai(data), is_cut, {})


def _to_inspect(message: Message, package: Any) -> Any:
    """Return a message as one of inspect_ai."""
    content: Any = message.content
    if message.images:
        content = [
            package.ContentImage(image=part.data.url) if part.type == "image" else package.ContentText(text=part.text)
            for part in message.parts or ()
        ]
    match message.role:
        case "assistant":
            calls = [
                {"id": call.id or f"call_{number}", "function": call.name, "arguments": _object(call.arguments)}
                for number, call in enumerate(message.tool_calls)
            ]
            return package.ChatMessageAssistant(content=content, tool_calls=calls or None)
        case "tool":
            return package.ChatMessageTool(content=content, function=message.name, tool_call_id=message.tool_call_id)
        case "user":
            return package.ChatMessageUser(content=content)
        case _:
            return package.ChatMessageSystem(content=content)


def _object(arguments: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {"text": json.dumps(arguments)}
