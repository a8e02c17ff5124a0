"""Writes a summary where the model itself does: a sub-agent that requests it and takes the first reply."""

from collections.abc import Sequence

from ..contexts._history_policy import SummaryRequest
from ..episodes._turn import Turn
from ..messages import Message
from ..rendering.renderer import Renderer
from ._env import Env
from ._machinery import EnvDriver

_REFERENCE_CHARS = 60


class Summarizer(Env):
    """Ask the model for a summary of the conversation so far.

    Args:
        request: What the history policy requests.
        before: The messages before the request: results of tools that the last reply waits for.
        renderer: The renderer of the context that is summarized.
    """

    def __init__(self, request: SummaryRequest, before: Sequence[Message], renderer: Renderer) -> None:
        super().__init__(renderer=renderer)
        self._request = request
        self._before = before

    def start(self) -> Turn:
        """Return the request."""
        question = Message(role="user", content=self._request.instruction)
        return Turn([*self._before, question], max_tokens=self._request.max_tokens)

    def respond(self, reply: Message) -> Turn:
        """End: the reply is the summary."""
        return Turn(terminated=True)

    def reference_reply(self) -> Message | str:
        """Return how each message begins."""
        lines = (f"{message.role}: {message.content[:_REFERENCE_CHARS]}" for message in self._request.messages)
        return "\n".join(lines)


EnvDriver.summarizer = Summarizer
