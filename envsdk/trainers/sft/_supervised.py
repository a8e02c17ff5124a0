"""The entry point of supervised samples: `sft_samples`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..._visible import brief
from ...authoring._tools import Tool
from ...contexts._history import HistoryPolicy, Strip, get_history
from ...episodes._turn import Turn
from ...errors import ConfigError, RenderError, TurnError
from ...messages import Message, ToolSchema
from ...rendering.renderer import Renderer, as_given
from ...trajectories._samples import Sample
from ._conversation import TrainOn, read_conversation, select_messages
from ._masks import mask_samples
from ._script import Script


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
    """Make supervised samples from a conversation.

    Each trained message has mask True in exactly one sample. An assistant message is trained as the model would sample
    it, with its reasoning, calls and stop token. Of any other message, the content is trained. Where a later prompt
    shows the message again, with or without reasoning, its tokens have mask False.

    Args:
        renderer: The renderer that converts the messages to tokens. A reply with `reasoning=None` is trained without a
            think block, and one with `reasoning=""` with an empty think block.
        messages: The conversation, as messages or as mappings in the OpenAI format. It begins with messages of other
            roles, and two assistant messages never follow each other.
        tools: The tools that the model may call.
        train_on: The messages that are trained: a role (`"assistant"`), the index of a reply (0 is the first), `"last"`
            (the last reply), a collection of these, or a function of a message's index and the message.
        content_only: Whether to train only the reasoning and the content of replies, without the scaffold of the model
            family (stop token, tags). Other messages are always trained in this way.
        history: What later prompts show of the past. `"template"`: what the model's own chat template shows, with one
            sample for each prompt that drops tokens. `"keep"`: everything, with one sample. Or any history policy.
        drop_reasoning: Whether to leave out reasoning that the model family cannot express or whose think block the
            prompt closes (`enable_thinking=False`). The samples then list these messages in
            `metadata["dropped_reasoning"]`. By default, such reasoning is an error.
        id: The `trajectory_id` of the samples.

    Returns:
        Samples in the order of their segments, without log-probabilities and rewards. `metadata["env"]` is `"sft"`, and
        `metadata["messages"]` has the indices of the messages that the sample trains.

    Raises:
        RenderError: If the conversation is empty, has no reply, two replies in a row, or a tool result without a call;
            if the renderer would lose text of it; or if the model family cannot express a message.
        ConfigError: If an option is invalid.
    """
    if not isinstance(renderer, Renderer):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"renderer is {brief(renderer)}; expected a Renderer: envsdk.get_renderer(name, tokenizer)")
    if not isinstance(id, str) or not id:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"id is {brief(id)}; expected a string that is not empty")
    policy = Strip() if history == "template" else get_history(history)
    if policy.needs_model:
        raise ConfigError(
            f"the history policy {policy.name!r} samples from the model, and a recorded conversation has no reply for "
            "it: pass a function, such as Summarize(threshold=..., summarizer=...)"
        )
    conversation = [as_given(renderer, message) for message in read_conversation(messages)]
    indices = select_messages(train_on, conversation)
    try:
        schemas = Turn(tools=list(tools)).tools or []
    except (TurnError, TypeError) as error:
        raise ConfigError(f"tools is {brief(tools)}; expected a list of tools: {error}") from error
    script = Script(renderer, conversation, schemas, drop_reasoning=drop_reasoning)
    if max(indices) > script.replies[-1].index:
        raise RenderError(
            f"train_on selects message {max(indices)}, which follows the last reply and so is in no prompt: remove the "
            "message, or do not train on it"
        )
    return mask_samples(script.replay(policy, id), script, indices, content_only=content_only)
