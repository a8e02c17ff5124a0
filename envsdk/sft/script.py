"""A conversation as the script of an episode: others say what they said, and the policy says the replies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..authoring.env import Env
from ..contexts.protocol import Action
from ..episodes.turn import Turn
from ..errors import RenderError
from ..history import HistoryPolicy
from ..messages import Message, ToolSchema
from ..rendering.renderer import Renderer
from ..trajectories.samples import Sample
from .conversation import replies_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A reply of the conversation, which is a step of the episode."""

    index: int
    """Which message it is."""
    message: Message
    """What of it is trained."""
    tokens: "NDArray[np.int32]"
    """As the model would sample it."""
    drops_reasoning: bool
    """Whether its reasoning was left out."""


class Script:
    """A conversation as the turns and replies of an episode.

    Args:
        renderer: Writes the messages.
        messages: The conversation.
        tools: The tools that the model may call.
        drop_reasoning: Whether reasoning that the renderer does not write is left out.

    Raises:
        RenderError: If the renderer does not write all of a reply.
    """

    def __init__(
        self, renderer: Renderer, messages: Sequence[Message], tools: Sequence[ToolSchema], *, drop_reasoning: bool
    ) -> None:
        self.renderer = renderer
        self.messages = messages
        self.tools = tools
        self.replies = [_reply(renderer, index, messages[index], drop_reasoning) for index in replies_of(messages)]

    def said(self, step: int) -> range:
        """Which messages were said before the reply of a step, behind the one before; behind all for the last + 1."""
        start = self.replies[step - 1].index + 1 if step else 0
        return range(start, self.replies[step].index if step < len(self.replies) else len(self.messages))

    def play(self, policy: HistoryPolicy, id: str) -> list[Sample]:
        """Roll the episode out: the samples of all its replies.

        Raises:
            RenderError: If the history policy ends it before the last reply.
        """
        env = _Conversation(self, policy)
        env.reset(options={"episode_id": id})
        for reply in self.replies:
            if env.trajectory is not None:
                raise RenderError(
                    f"the history policy has no room for message {reply.index}: {env.trajectory.stop_reason}. Give it "
                    "more tokens, or shorten the conversation"
                )
            env.step(Action(reply.tokens))
        return [] if env.trajectory is None else env.trajectory.samples()


class _Conversation(Env):
    """Says what others say in a conversation."""

    def __init__(self, script: Script, policy: HistoryPolicy) -> None:
        self._script = script
        self._step = 0
        super().__init__(renderer=script.renderer, history=policy)
        self._envsdk.given_name = "sft"  # the env of the samples

    def default_tools(self) -> Sequence[ToolSchema]:
        """The tools of the conversation."""
        return self._script.tools

    def start(self) -> Turn:
        """What stands before the first reply."""
        return Turn(self._said())

    def respond(self, reply: Message) -> Turn:
        """What stands behind a reply."""
        self._step += 1
        return Turn(self._said(), terminated=self._step == len(self._script.replies))

    def _said(self) -> list[Any]:
        return [self._script.messages[index] for index in self._script.said(self._step)]


def _reply(renderer: Renderer, index: int, message: Message, drop_reasoning: bool) -> ScriptedReply:
    tokens = renderer.reply(message)
    is_lost = _is_lost(renderer, message, tokens, "reasoning", None)
    if is_lost and not drop_reasoning:
        raise RenderError(
            f"the reasoning of message {index} would be lost: {renderer.specification()} does not write it in a reply. "
            "Take another renderer or another option, or drop_reasoning=True"
        )
    if is_lost:
        message = message.with_reasoning(None)
        tokens = renderer.reply(message)
    for part, empty in (("content", ""), ("tool_calls", ())):
        if _is_lost(renderer, message, tokens, part, empty):
            raise RenderError(
                f"the {part} of message {index} would be lost: {renderer.specification()} does not write all of it: "
                f"{getattr(message, part)!r:.200}"
            )
    return ScriptedReply(index, message, tokens, is_lost)


def _is_lost(renderer: Renderer, message: Message, tokens: "NDArray[np.int32]", part: str, empty: Any) -> bool:
    """Whether a part of a reply that says something is not in its tokens."""
    value: Any = getattr(message, part)
    texts = [value or ""] if part != "tool_calls" else [call.name for call in message.tool_calls]
    wanted = [text for text in (renderer.tokenizer.normalize(text.strip()).strip() for text in texts) if text]
    if not wanted:
        return False
    without = renderer.reply(message.model_copy(update={part: empty}))
    written = renderer.tokenizer.decode(tokens)
    return np.array_equal(without, tokens) or not all(text in written for text in wanted)
