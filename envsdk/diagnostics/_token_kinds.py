"""The kinds of sampled tokens: control tokens, the text next to them, calls, and all other text."""

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from ..contexts._roles import reply_spans
from ..rendering.renderer import Renderer
from ..trajectories._samples import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind: TypeAlias = Literal["content", "call", "border", "control"]
KINDS: tuple[Kind, ...] = ("content", "call", "border", "control")


def token_kinds(sample: Sample, renderer: Renderer) -> "NDArray[np.int8]":
    """Return the kind of each token, as an index of `KINDS`: int8, shape (L,), -1 where nothing was sampled.

    A token that is next to a control token of its reply, or the first of its reply, is a `border`: that is where
    another encoding of the same text merges otherwise. Text of calls is a `call`, as in `Sample.roles`. All other text,
    reasoning included, is `content`.

    Args:
        sample: A sample.
        renderer: The renderer of its context. Each step is read by itself.
    """
    kinds = np.full(len(sample), -1, dtype=np.int8)
    for step in np.unique(sample.step_ids[sample.step_ids >= 0]):
        where = np.flatnonzero(sample.step_ids == step)
        kinds[where] = _kinds_of_reply(sample.tokens[where], renderer)
    return kinds


def _kinds_of_reply(tokens: "NDArray[np.int32]", renderer: Renderer) -> "NDArray[np.int8]":
    controls = list(renderer.tokenizer.control_tokens.values())
    is_control = np.isin(tokens, controls)
    kinds = np.full(len(tokens), KINDS.index("content"), dtype=np.int8)
    for span in reply_spans(renderer, tokens, renderer.parse(tokens)):
        kinds[span.start : span.stop] = KINDS.index("call" if span.label == "call" else "content")
    is_border = np.append(True, is_control[:-1]) | np.append(is_control[1:], False)
    kinds[is_border] = KINDS.index("border")
    kinds[is_control] = KINDS.index("control")
    return kinds
