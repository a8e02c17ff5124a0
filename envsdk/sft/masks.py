"""Which tokens of a supervised sample are trained: those of the chosen messages."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ConfigError, RenderError
from ..messages import Message
from ..rendering.emission import Span
from ..rendering.renderer import Renderer
from ..trajectories.samples import Sample
from .script import Script, ScriptedReply

if TYPE_CHECKING:
    from numpy.typing import NDArray


def with_masks(samples: Sequence[Sample], script: Script, chosen: set[int], *, content_only: bool) -> list[Sample]:
    """The samples with the chosen messages trained; those without a trained token are left out.

    Args:
        samples: What `script.play` gave: all replies are trained.
        script: The script.
        chosen: The indices of the messages.
        content_only: Whether of a reply only what it says is trained.

    Raises:
        ConfigError: If no token is left to train.
        RenderError: If it cannot be told which tokens are a message's.
    """
    masked = [_masked(sample, script, chosen, content_only) for sample in samples]
    left = [sample for sample in masked if sample.mask.any()]
    trained = sum(int(np.count_nonzero(sample.mask)) for sample in left)
    if not trained:
        raise ConfigError("there is no token to train: the chosen messages say nothing")
    for index, sample in enumerate(left):
        sample.segment_index, sample.n_segments = index, len(left)
        sample.loss_weight = int(np.count_nonzero(sample.mask)) / trained
    return left


def _masked(sample: Sample, script: Script, chosen: set[int], content_only: bool) -> Sample:
    """The sample up to the last token of the chosen messages.

    What is trained of what others said belongs to the step whose prompt it came in.
    """
    mask = np.zeros(len(sample), dtype=np.bool_)
    step_ids, part_ids = sample.step_ids.copy(), sample.part_ids.copy()
    trained: list[int] = []
    numbers: list[int] = sample.metadata["steps"]
    sampled = np.flatnonzero(sample.step_ids >= 0)
    bounds = np.searchsorted(sample.step_ids[sampled], np.arange(len(numbers) + 1))
    for local, number in enumerate(numbers):
        reply, positions = script.replies[number], sampled[bounds[local] : bounds[local + 1]]
        said = [index for index in script.said(number) if index in chosen]
        if said:
            heard = _positions_said(sample, script, number, said, int(positions[0]))
            mask[heard], step_ids[heard], part_ids[heard] = True, local, sample.part_ids[positions[0]]
            trained += said
        if reply.index in chosen:
            mask[positions] = _content_of_reply(script.renderer, reply) if content_only else True
            trained.append(reply.index)
    stop = int(np.flatnonzero(mask)[-1]) + 1 if mask.any() else 0
    dropped = [reply.index for reply in script.replies if reply.drops_reasoning]
    about = {"messages": trained, **({"dropped_reasoning": dropped} if dropped else {})}
    return replace(
        sample,
        tokens=sample.tokens[:stop],
        mask=mask[:stop],
        step_ids=step_ids[:stop],
        part_ids=part_ids[:stop],
        metadata={**sample.metadata, **about},
    )


def _positions_said(sample: Sample, script: Script, number: int, said: Sequence[int], end: int) -> "NDArray[np.intp]":
    """Where the content of messages that were said before a step stands, which ends at `end` with the reply's opening.

    Raises:
        RenderError: If the tokens there are not those that the renderer writes for these messages.
    """
    renderer, indices = script.renderer, script.said(number)
    messages = [script.messages[index] for index in indices]
    if number == 0:
        rendered = renderer.render(messages, tools=script.tools, generation_prompt=True, history="keep")
        first = 0
    else:
        before = script.replies[number - 1]
        history = script.messages[: before.index + 1]
        rendered = renderer.extension(before.tokens, messages, history=history, tools=script.tools)
        first = rendered.starts[0]
    offset = end - len(rendered.tokens)
    if offset + first < 0 or not np.array_equal(sample.tokens[offset + first : end], rendered.tokens[first:]):
        raise RenderError(
            f"messages {indices[0]} to {indices[-1]} cannot be trained: the history policy or the renderer "
            f"{renderer.name!r} writes them in another way in their prompt"
        )
    shift = indices[0] - (1 if number else 0)  # from a span's message to ours; those before `first` belong to none
    flags = np.zeros(len(rendered.tokens), dtype=np.bool_)
    for index in said:
        spans = [span for span in rendered.spans if span.message + shift == index]
        flags |= _content(renderer, rendered.tokens, spans, script.messages[index], index)
    return np.flatnonzero(flags) + offset


def _content_of_reply(renderer: Renderer, reply: ScriptedReply) -> "NDArray[np.bool_]":
    """Which tokens of a reply are what it says, and not scaffold: shape (n,).

    Raises:
        RenderError: If the renderer cannot tell.
    """
    out = renderer.emission()
    renderer.emit_reply(out, reply.message)
    emitted = out.tokens()[0]
    is_content = _content(renderer, emitted, out.spans(), reply.message, reply.index)
    tokens, flags = reply.tokens, np.zeros(len(reply.tokens), dtype=np.bool_)
    # The prompt may hold the beginning of a reply already, and an opener of the next message may stand behind it.
    shared = min(len(emitted), len(tokens))
    if np.array_equal(emitted[:shared], tokens[:shared]):
        flags[:shared] = is_content[:shared]
        return flags
    differs = emitted[::-1][:shared] != tokens[::-1][:shared]
    same = int(np.argmax(differs)) if differs.any() else shared  # at the end
    if is_content[: len(emitted) - same].any():
        raise RenderError(
            f"content_only: the renderer {renderer.name!r} does not tell what in message {reply.index} is content"
        )
    flags[len(tokens) - same :] = is_content[len(emitted) - same :]
    return flags


def _content(
    renderer: Renderer, tokens: "NDArray[np.int32]", spans: Sequence[Span], message: Message, index: int
) -> "NDArray[np.bool_]":
    """Which tokens hold what a message says: shape (n,). Spans count a token across a seam for what comes behind it.

    Raises:
        RenderError: If its text is not found there.
    """
    flags = np.zeros(len(tokens), dtype=np.bool_)
    for span in spans:
        flags[span.start : span.stop] = span.is_content
    pieces = renderer.tokenizer.token_bytes(tokens)
    ours = [at for span in spans for at in range(span.start, span.stop)]
    begin = 0
    for part in (message.reasoning or "", message.content):  # in this order in every family
        text = renderer.tokenizer.normalize(part.strip()).strip().encode()
        if not text:
            continue
        found: list[tuple[int, int]] = []  # where the text stands, and the one token more that holds a part of it
        for start, stop in _runs(flags):
            run = b"".join(pieces[start:stop])
            if start >= begin and (text in run or (stop < len(tokens) and text in run + pieces[stop])):
                found.append((start, stop - 1 if text in run else stop))
        found += [(at, at) for at in ours if at >= begin and pieces[at] != text == pieces[at].strip()]
        if not found:
            raise RenderError(f"the renderer {renderer.name!r} does not tell where the text of message {index} stands")
        last = min(found)[1]
        flags[last], begin = True, last + 1
    return flags


def _runs(flags: "NDArray[np.bool_]") -> list[tuple[int, int]]:
    """The runs of True: where each begins, and where it ends."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
