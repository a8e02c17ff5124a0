"""The masks of supervised samples: True for the tokens of the selected messages."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..._visible import brief
from ...errors import ConfigError, RenderError
from ...messages import Message
from ...rendering.emission import Emission, Span
from ...rendering.renderer import Renderer
from ...trajectories._samples import Sample, loss_weights
from ._script import Script, ScriptedReply

if TYPE_CHECKING:
    from numpy.typing import NDArray


def mask_samples(samples: Sequence[Sample], script: Script, selected: set[int], *, content_only: bool) -> list[Sample]:
    """Return samples that train the selected messages. Samples without a trained token are left out.

    Args:
        samples: The samples of `script.replay`, in which all replies are trained.
        script: The script.
        selected: The indices of the messages to train.
        content_only: Whether to train only the reasoning and the content of replies.

    Raises:
        ConfigError: If no token is left to train.
        RenderError: If the tokens of a message cannot be located.
    """
    masked = [_mask(sample, script, selected, content_only) for sample in samples]
    kept = [sample for sample in masked if sample.mask.any()]
    if not kept:
        raise ConfigError(f"there is no token to train: the selected messages {sorted(selected)} are empty")
    weights = loss_weights([int(np.count_nonzero(sample.mask)) for sample in kept])
    for index, (sample, weight) in enumerate(zip(kept, weights, strict=True)):
        sample.segment_index, sample.n_segments, sample.loss_weight = index, len(kept), weight
    return kept


def _mask(sample: Sample, script: Script, selected: set[int], content_only: bool) -> Sample:
    """Return the sample up to the last token of the selected messages, with mask True on their tokens.

    A trained message that is not a reply belongs to the step whose prompt introduced it.
    """
    mask = np.zeros(len(sample), dtype=np.bool_)
    step_ids, part_ids = sample.step_ids.copy(), sample.part_ids.copy()
    trained: list[int] = []
    numbers: list[int] = sample.metadata["steps"]
    sampled = np.flatnonzero(sample.step_ids >= 0)
    bounds = np.searchsorted(sample.step_ids[sampled], np.arange(len(numbers) + 1))
    for local, number in enumerate(numbers):
        reply, positions = script.replies[number], sampled[bounds[local] : bounds[local + 1]]
        observed = [index for index in script.turn_messages(number) if index in selected]
        if observed:
            content = _observed_positions(sample, script, number, observed, int(positions[0]))
            mask[content], step_ids[content], part_ids[content] = True, local, sample.part_ids[positions[0]]
            trained += observed
        if reply.index in selected:
            mask[positions] = _reply_content(script.renderer, reply) if content_only else True
            trained.append(reply.index)
    stop = int(np.flatnonzero(mask)[-1]) + 1 if mask.any() else 0
    dropped = [reply.index for reply in script.replies if reply.drops_reasoning]
    metadata = {"messages": trained, **({"dropped_reasoning": dropped} if dropped else {})}
    return replace(
        sample,
        tokens=sample.tokens[:stop],
        media=[placed for placed in sample.media if placed.stop <= stop],
        mask=mask[:stop],
        step_ids=step_ids[:stop],
        part_ids=part_ids[:stop],
        metadata={**sample.metadata, **metadata},
    )


def _observed_positions(
    sample: Sample, script: Script, number: int, observed: Sequence[int], end: int
) -> "NDArray[np.intp]":
    """Return the positions of the content of messages of the turn before a step: shape (n,).

    Args:
        sample: The sample.
        script: The script.
        number: The number of the step in the script.
        observed: The indices of the messages.
        end: The position of the first token of the reply, which follows the generation prompt.

    Raises:
        RenderError: If the tokens before `end` are not those that the renderer emits for the messages of the turn.
    """
    renderer, indices = script.renderer, script.turn_messages(number)
    messages = [script.messages[index] for index in indices]
    if number == 0:
        rendered = renderer.render(messages, tools=script.tools, generation_prompt=True, history="keep")
        first = 0
    else:
        previous = script.replies[number - 1]
        history = script.messages[: previous.index + 1]
        rendered = renderer.extension(previous.tokens, messages, history=history, tools=script.tools)
        first = rendered.starts[0]
    offset = end - len(rendered.tokens)
    if offset + first < 0 or not np.array_equal(sample.tokens[offset + first : end], rendered.tokens[first:]):
        raise RenderError(
            f"messages {indices[0]} to {indices[-1]} cannot be trained: the history policy or the renderer "
            f"{renderer.name!r} shows them in a different form in the prompt. Train on replies only, or choose another "
            "history policy"
        )
    # From the message index of a span to the index in the conversation. Tokens before `first` belong to the reply.
    shift = indices[0] - (1 if number else 0)
    flags = np.zeros(len(rendered.tokens), dtype=np.bool_)
    for index in observed:
        spans = [span for span in rendered.spans if span.message + shift == index]
        flags |= _content(renderer, rendered.tokens, spans, script.messages[index], index)
    return np.flatnonzero(flags) + offset


def _reply_content(renderer: Renderer, reply: ScriptedReply) -> "NDArray[np.bool_]":
    """Return which tokens of a reply are reasoning or content, and not scaffold: bool, shape (n,).

    Raises:
        RenderError: If these tokens cannot be located.
    """
    out = Emission(renderer.encoder)
    renderer.emit_reply(out, reply.message)
    emitted = out.tokens()[0]
    is_content = _content(renderer, emitted, out.spans(), reply.message, reply.index)
    tokens, flags = reply.tokens, np.zeros(len(reply.tokens), dtype=np.bool_)
    # The generation prompt may contain the beginning of the emitted reply, and the reply may end with the opener of
    # the next message. So the two are aligned at their start, or else at their end.
    shared = min(len(emitted), len(tokens))
    if np.array_equal(emitted[:shared], tokens[:shared]):
        flags[:shared] = is_content[:shared]
        return flags
    differs = emitted[::-1][:shared] != tokens[::-1][:shared]
    same = int(np.argmax(differs)) if differs.any() else shared  # number of equal tokens at the end
    if is_content[: len(emitted) - same].any():
        raise RenderError(
            f"content_only: cannot locate the content of message {reply.index} in the reply that the renderer "
            f"{renderer.name!r} emits; use content_only=False, or another renderer"
        )
    flags[len(tokens) - same :] = is_content[len(emitted) - same :]
    return flags


def _content(
    renderer: Renderer, tokens: "NDArray[np.int32]", spans: Sequence[Span], message: Message, index: int
) -> "NDArray[np.bool_]":
    """Return which tokens hold the reasoning or the content of a message: bool, shape (n,).

    A span assigns a token that crosses a boundary to the text after the boundary, so the last token of a string may be
    outside its span. This function includes it.

    Raises:
        RenderError: If the text of the message is not found in its spans.
    """
    flags = np.zeros(len(tokens), dtype=np.bool_)
    for span in spans:
        flags[span.start : span.stop] = span.is_content
    pieces = renderer.tokenizer.token_bytes(tokens)
    in_spans = [at for span in spans for at in range(span.start, span.stop)]
    begin = 0
    for part in (message.reasoning or "", message.content):  # every family emits them in this order
        text = renderer.tokenizer.normalize(part.strip()).strip().encode()
        if not text:
            continue
        found: list[tuple[int, int]] = []  # the start of the text, and the last token that holds a part of it
        edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0)).tolist()
        for start, stop in zip(edges[::2], edges[1::2], strict=True):  # each run of True
            run = b"".join(pieces[start:stop])
            if start >= begin and (text in run or (stop < len(tokens) and text in run + pieces[stop])):
                found.append((start, stop - 1 if text in run else stop))
        found += [(at, at) for at in in_spans if at >= begin and pieces[at] != text == pieces[at].strip()]
        if not found:
            raise RenderError(
                f"cannot locate the text of message {index} in the tokens that the renderer {renderer.name!r} emits: "
                f"{brief(text.decode())}. Check the spans of its emission"
            )
        last = min(found)[1]
        flags[last], begin = True, last + 1
    return flags
