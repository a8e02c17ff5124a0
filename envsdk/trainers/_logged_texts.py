"""Supervised samples of logged replies without token ids."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from ..errors import ConfigError, InvalidRecord, RenderError
from ..messages import Message, ToolSchema
from ..rendering.renderer import Renderer
from ..trajectories._samples import Sample
from ._logged import ImportNote
from .sft import sft_samples


class TextReplies:
    """Makes supervised samples, or notes why there are none.

    Args:
        renderer: The renderer of the model that will be trained; None makes no samples.
        id: The id of the trajectory.
    """

    def __init__(self, renderer: Renderer | None, id: str) -> None:
        self.samples: list[Sample] = []
        self.notes: list[ImportNote] = []
        self.renderer = renderer
        self._id = id

    def check(self, *, has_steps: bool) -> None:
        """Check that there is something to train.

        Args:
            has_steps: Whether any reply has token ids.

        Raises:
            InvalidRecord: If there are only texts, and no renderer.
        """
        if self.renderer is None and self.notes and not has_steps:
            raise InvalidRecord(
                "no reply has the token ids of its prompt and its tokens, so there is nothing to train but texts: pass "
                "renderer= and tokenizer= for supervised samples, or let the server log ids (vLLM: return_token_ids)"
            )

    def train(
        self,
        context: str,
        role: str,
        conversation: Sequence[Message],
        tools: Sequence[ToolSchema],
        indices: Collection[int],
    ) -> None:
        """Train replies of a conversation.

        Args:
            context: The name of its context.
            role: The role of the context.
            conversation: The messages, the system message included.
            tools: The tools.
            indices: The indices of the replies to train.
        """
        if not indices:
            return
        where = f"context {context!r}"
        if self.renderer is None:
            text = f"{len(indices)} replies have no token ids: pass renderer= and tokenizer= to get supervised samples"
            self.notes.append(ImportNote("no_sft", where, text))
            return
        try:
            samples = sft_samples(
                self.renderer,
                conversation[: max(indices) + 1],
                tools=tools,
                train_on=lambda index, _: index in indices,
                id=self._id,
            )
        except (RenderError, ConfigError) as error:
            self.notes.append(ImportNote("no_sft", where, f"no supervised samples of {len(indices)} replies: {error}"))
            return
        self.samples += [replace(sample, context=context, role=role) for sample in samples]
