"""Who writes a summary when the model itself does: a sub-agent that asks for it and takes the first reply."""

from collections.abc import Sequence

from ..episodes.turn import Turn
from ..history import SummaryRequest
from ..messages import Message
from ..rendering.renderer import Renderer
from .env import Env

_REFERENCE_CHARS = 60


class Summarizer(Env):
    """Ask for a summary of what was said so far.

    Args:
        request: What the history policy asks for.
        before: What comes before the question: results of tools that the last reply waits for.
        renderer: The renderer of the context that is summarised.
    """

    def __init__(self, request: SummaryRequest, before: Sequence[Message], renderer: Renderer) -> None:
        super().__init__(renderer=renderer)
        self._request = request
        self._before = before

    def start(self) -> Turn:
        """Ask."""
        question = Message(role="user", content=self._request.instruction)
        return Turn([*self._before, question], max_tokens=self._request.max_tokens)

    def respond(self, reply: Message) -> Turn:
        """The reply is the summary."""
        return Turn(terminated=True)

    def reference_reply(self) -> Message | str:
        """How each message begins."""
        lines = (f"{message.role}: {message.content[:_REFERENCE_CHARS]}" for message in self._request.messages)
        return "\n".join(lines)
