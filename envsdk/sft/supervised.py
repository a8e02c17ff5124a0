"""From a conversation to supervised samples."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..authoring.tools import Tool
from ..episodes.turn import Turn
from ..errors import ConfigError, RenderError, TurnError
from ..history import HistoryPolicy, Strip, get_history
from ..messages import Message, ToolSchema
from ..rendering.renderer import Renderer
from ..trajectories.samples import Sample
from .conversation import TrainOn, chosen, read_conversation
from .masks import with_masks
from .script import Script


def sft_samples(
    renderer: Renderer,
    messages: Sequence[Message | Mapping[str, Any]],
    *,
    tools: Sequence[ToolSchema | Tool] = (),
    train_on: TrainOn = "assistant",
    content_only: bool = False,
    history: str | Mapping[str, Any] | HistoryPolicy = "template",
    drop_reasoning: bool = False,
    id: str = "sft",
) -> list[Sample]:
    """Make supervised samples of a conversation.

    Every message that is trained has mask True in exactly one sample: an assistant's as the model would sample it, its
    reasoning, calls and stop token included; another's as the text that it is. What a later prompt shows of it, with
    reasoning or without, has mask False there.

    Args:
        renderer: Writes the messages. `reasoning=None` trains a reply without a think block, `""` one with an empty
            one.
        messages: The conversation: messages, or mappings in the OpenAI form. Replies of the assistant and what others
            say take turns; it begins with what others say.
        tools: The tools that the model may call.
        train_on: Which messages are trained: by role (`"assistant"`), by step (the index of a reply, or `"last"`),
            several of these, or by a function of a message's index and the message.
        content_only: Train of a reply what it says, without the family's scaffold: no stop token, no tags. Of other
            messages never more is trained.
        history: What of the past later prompts show: `"template"` is what the model's own chat template shows, one
            sample for each prompt that drops something; `"keep"` everything, one sample; or any history policy.
        drop_reasoning: Leave out reasoning that the model family cannot express, or that its prompt closed already
            (`enable_thinking=False`); the samples say so in `metadata["dropped_reasoning"]`. By default it is refused.
        id: What the samples have as `trajectory_id`.

    Returns:
        Samples without log-probabilities and rewards, in the order of their segments. `metadata["env"]` is `"sft"`, and
        `metadata["messages"]` has the indices of the messages that each trains.

    Raises:
        RenderError: For a conversation that is none: empty, without a reply, two replies in a row, a tool's result
            without a call; for one whose text would be lost; and if the family cannot express a message.
        ConfigError: For an option that is not valid.
    """
    if not isinstance(renderer, Renderer):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"renderer is {renderer!r:.80}; expected a Renderer: envsdk.get_renderer(name, tokenizer)")
    if not isinstance(id, str) or not id:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"id is {id!r:.80}; expected a text that is not empty")
    policy = Strip() if history == "template" else get_history(history)
    if policy.needs_model:
        raise ConfigError(
            f"the history policy {policy.name!r} asks the model, and a conversation has no answer to that: give it a "
            "function, such as Summarize(threshold=..., summarizer=...)"
        )
    conversation = read_conversation(messages)
    indices = chosen(train_on, conversation)
    script = Script(renderer, conversation, _schemas(tools), drop_reasoning=drop_reasoning)
    if max(indices) > script.replies[-1].index:
        raise RenderError(
            f"message {max(indices)} is to be trained, but stands behind the last reply, in no prompt: drop it, or do "
            "not train on it"
        )
    return with_masks(script.play(policy, id), script, indices, content_only=content_only)


def _schemas(tools: Sequence[ToolSchema | Tool]) -> list[ToolSchema]:
    try:
        return Turn(tools=list(tools)).tools or []
    except (TurnError, TypeError) as error:
        raise ConfigError(f"tools is {tools!r:.80}; expected a list of tools: {error}") from error
