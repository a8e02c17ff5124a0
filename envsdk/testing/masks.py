"""A comparison of a renderer's mask with the `generation` blocks of its tokenizer's chat template.

A template marks what a model writes with `{% generation %}`, and transformers' `return_assistant_tokens_mask` makes the
mask of it on which supervised trainers train. envsdk trains on the tokens that a model would have sampled.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from .._arguments import explain_arguments
from .._visible import shorten
from ..errors import RenderError
from ..messages import Message
from ..rendering._parity import CONVERSATIONS, Conversation, has_generation_blocks, own_template, render_spans
from ..rendering.renderer import Renderer

__all__ = ["compare_masks"]

if TYPE_CHECKING:
    from numpy.typing import NDArray


def compare_masks(renderer: Renderer) -> str:
    """Return how the mask of the template's `generation` blocks differs from the renderer's.

    Returns:
        The differences, each with the first conversation that has it, and how many conversations were compared.

    Raises:
        RenderError: If the template has no `generation` blocks, or no conversation can be compared.
    """
    text, arguments = own_template(renderer)
    if not has_generation_blocks(text):
        raise RenderError("the template has no `generation` blocks")
    examples: dict[str, str] = {}
    compared, reason = 0, ""
    with_replies = {n: c for n, c in CONVERSATIONS.items() if any(m.role == "assistant" for m in c.messages)}
    for name, conversation in with_replies.items():
        try:
            found = differences(renderer, conversation, text, arguments)
        except RenderError as error:
            reason = reason or str(error)
            continue
        compared += 1
        for difference in found:
            examples.setdefault(difference, name)
    if not compared:
        raise RenderError(f"no conversation can be compared: {reason}")
    found = [f"{difference} (as in {name!r})" for difference, name in examples.items()]
    return f"{compared} conversations: {'; '.join(found) or 'the masks are equal'}"


def differences(renderer: Renderer, conversation: Conversation, template: str, arguments: dict[str, Any]) -> list[str]:
    """Return the differences between the two masks of a conversation.

    Raises:
        RenderError: If the renderer and the template do not render the same, or the template rewrites a reply.
    """
    messages, tools, _ = conversation
    tokens = renderer.render(messages, tools=tools).tokens
    text, blocks = render_spans(template, messages, tools, generation_prompt=False, arguments=arguments)
    if renderer.tokenizer.decode(tokens) != text:
        raise RenderError("the template renders it differently from the renderer")
    marked = marked_tokens(renderer, tokens, text, blocks)
    sampled = marked_tokens(renderer, tokens, text, sampled_spans(renderer, messages, text))
    found: dict[str, None] = {}
    for (is_marked, is_sampled), run in groupby(range(len(tokens)), lambda at: (bool(marked[at]), bool(sampled[at]))):
        positions = list(run)
        start, stop = positions[0], positions[-1] + 1
        shown = repr(renderer.tokenizer.decode(tokens[start:stop]))
        if is_marked and not is_sampled:
            why = "which is in no reply"
            if start and sampled[start - 1]:
                why = "which follows the end of a turn and is never sampled"
            elif stop < len(sampled) and sampled[stop]:
                why = "which the generation prompt contains, so it is never sampled"
            found[f"the template also marks {shorten(shown, 80)}, {why}"] = None
        elif is_sampled and not is_marked:
            is_stop = int(tokens[stop - 1]) in renderer.stop_token_ids and stop - start == 1
            why = _STOP if is_stop else "which a model samples"
            found[f"the template leaves out {shorten(shown, 80)}, {why}"] = None
    return list(found)


def sampled_spans(renderer: Renderer, messages: Sequence[Message], text: str) -> list[tuple[int, int]]:
    """Return where the text of each reply that a model would have sampled starts and ends, in characters.

    Raises:
        RenderError: If a reply is not in the text as a model would have sampled it, because the template rewrites it.
    """
    spans: list[tuple[int, int]] = []
    position = 0
    for message in renderer.visible(messages):
        if message.role != "assistant":
            continue
        tokens = renderer.reply(message)
        replies = (renderer.tokenizer.decode(given) for given in (tokens, tokens[:-1]))
        forms = ((prompt, reply) for reply in replies for prompt in (renderer.generation_prompt, renderer.opening))
        found = next(((text.find(p + r, position), p, r) for p, r in forms if p + r in text[position:]), None)
        if found is None:
            raise RenderError("a reply is not in the text as a model would have sampled it")
        start, prompt, reply = found
        spans.append((start + len(prompt), start + len(prompt) + len(reply)))
        position = spans[-1][1]
    return spans


def marked_tokens(
    renderer: Renderer, tokens: "NDArray[np.int32]", text: str, spans: Sequence[tuple[int, int]]
) -> "NDArray[np.bool_]":
    """Return which tokens are in a `generation` block, as transformers does: every token that overlaps one.

    Args:
        renderer: The renderer.
        tokens: The tokens of the text, shape (n,).
        text: The rendered text.
        spans: The start and end of each block, in characters.

    Returns:
        bool, shape (n,).
    """
    ends = np.array(list(accumulate(map(len, renderer.tokenizer.token_bytes(tokens)))), dtype=np.int64)
    marked = np.zeros(len(tokens), dtype=np.bool_)
    for start, end in spans:
        first, last = (len(text[:position].encode()) for position in (start, end))
        if first < last:
            marked[np.searchsorted(ends, first, side="right") : np.searchsorted(ends, last, side="left") + 1] = True
    return marked


_STOP = "the stop token, so a model does not learn to end its turn"

explain_arguments(globals())
