"""The script of an episode that replays a conversation: the environment returns its messages, the policy replies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._visible import brief
from ...authoring._env import Env
from ...contexts._history import HistoryPolicy
from ...contexts._protocol import Action
from ...episodes._turn import Turn
from ...errors import RenderError
from ...messages import Message, ToolSchema
from ...rendering.renderer import Renderer
from ...trajectories._samples import Sample
from ._conversation import reply_indices

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """An assistant message of the conversation, which is the action of a step.

    Attributes:
        index: The index of the message in the conversation.
        message: The message, without its reasoning if that was dropped.
        tokens: The tokens that the model would sample: int32, shape (n,).
        drops_reasoning: Whether its reasoning was dropped.
    """

    index: int
    message: Message
    tokens: "NDArray[np.int32]"
    drops_reasoning: bool


class Script:
    """A conversation as the turns and replies of an episode.

    Args:
        renderer: The renderer that converts the messages to tokens.
        messages: The conversation.
        tools: The tools that the model may call.
        drop_reasoning: Whether to drop reasoning that the renderer does not emit.

    Raises:
        RenderError: If the renderer does not emit all of a reply.
    """

    def __init__(
        self, renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSchema], *, drop_reasoning: bool
    ) -> None:
        self.renderer = renderer
        self.messages = messages
        self.tools = tools
        self.replies = [_reply(renderer, index, messages[index], drop_reasoning) for index in reply_indices(messages)]

    def turn_messages(self, step: int) -> range:
        """Return the indices of the messages between the reply of the previous step and the reply of this step.

        For a step after the last one, these are the messages after the last reply.
        """
        start = self.replies[step - 1].index + 1 if step else 0
        return range(start, self.replies[step].index if step < len(self.replies) else len(self.messages))

    def replay(self, policy: HistoryPolicy, id: str) -> list[Sample]:
        """Replay the conversation as an episode, and return the samples, in which all replies are trained.

        Raises:
            RenderError: If the history policy ends the episode before the last reply.
        """
        env = _ScriptedEnv(self, policy)
        env.reset(options={"episode_id": id})
        for reply in self.replies:
            if env.trajectory is not None:
                raise RenderError(
                    f"the history policy has no room for message {reply.index}: {env.trajectory.stop_reason}. Raise "
                    "its token limit, or shorten the conversation"
                )
            env.step(Action(reply.tokens))
        return [] if env.trajectory is None else env.trajectory.samples()


class _ScriptedEnv(Env):
    """An environment that returns the messages of a conversation, except the replies."""

    def __init__(self, script: Script, policy: HistoryPolicy) -> None:
        self._script = script
        self._step = 0
        super().__init__(renderer=script.renderer, history=policy)
        self._envsdk.given_name = "sft"  # the name in metadata["env"]

    def default_tools(self) -> Sequence[ToolSchema]:
        """Return the tools of the conversation."""
        return self._script.tools

    def start(self) -> Turn:
        """Return the messages before the first reply."""
        return self._turn()

    def respond(self, reply: Message) -> Turn:
        """Return the messages after a reply."""
        self._step += 1
        return self._turn(terminated=self._step == len(self._script.replies))

    def _turn(self, *, terminated: bool = False) -> Turn:
        messages = [self._script.messages[index] for index in self._script.turn_messages(self._step)]
        return Turn(messages, terminated=terminated)


def _reply(renderer: Renderer, index: int, message: Message, drop_reasoning: bool) -> ScriptedReply:
    tokens = renderer.reply(message)
    is_lost = _is_lost(renderer, message, tokens, "reasoning", None)
    if is_lost and not drop_reasoning:
        raise RenderError(
            f"the reasoning of message {index} would be lost: {renderer.specification()} does not emit it in a reply. "
            "Choose another renderer or other options of it, or pass drop_reasoning=True"
        )
    if is_lost:
        message = message.with_reasoning(None)
        tokens = renderer.reply(message)
    for part, empty in (("content", ""), ("tool_calls", ())):
        if _is_lost(renderer, message, tokens, part, empty):
            raise RenderError(
                f"the {part} of message {index} would be lost: {renderer.specification()} does not emit all of "
                f"{brief(getattr(message, part), 200)}. Choose another renderer, or change the message"
            )
    return ScriptedReply(index, message, tokens, is_lost)


def _is_lost(renderer: Renderer, message: Message, tokens: "NDArray[np.int32]", part: str, empty: Any) -> bool:
    """Return whether a part of a reply has text that is not in the tokens of the reply."""
    value: Any = getattr(message, part)
    texts = [value or ""] if part != "tool_calls" else [call.name for call in message.tool_calls]
    wanted = [text for text in (renderer.tokenizer.normalize(text.strip()).strip() for text in texts) if text]
    if not wanted:
        return False
    without = renderer.reply(message.model_copy(update={part: empty}))
    emitted = renderer.tokenizer.decode(tokens)
    return np.array_equal(without, tokens) or not all(text in emitted for text in wanted)
