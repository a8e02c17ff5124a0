"""Samples as records of ms-swift: the response of a rollout, and rows of a dataset for supervised training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InvalidSample
from ..trajectories._samples import Sample
from ._checks import check_samples
from ._rows import logprobs


@dataclass(frozen=True, slots=True)
class ResponseFields:
    """The response fields of ms-swift's `RolloutOutput`, with a list for each turn of token ids.

    Attributes:
        response_token_ids: The token ids of the response.
        response_loss_mask: 1 for each trained token, 0 for each other token of the response.
        rollout_logprobs: The log-probabilities of the tokens with mask 1, in nats. If their number is wrong, ms-swift
            silently disables importance sampling.
    """

    response_token_ids: list[list[int]]
    response_loss_mask: list[list[int]]
    rollout_logprobs: list[list[float]]


_NEEDS_TURNS = (
    "ms-swift renders the messages that have images itself: use make_scheduler, which passes each reply as token ids, "
    "and the images in rollout_infos['images']"
)
_NO_IMAGES = (
    "ms-swift reads a row of token ids without images: pass the messages and the images themselves, as columns "
    "`messages` and `images`, and let ms-swift render them"
)


def to_turns(
    sample: Sample, turns: Sequence[tuple[int, int]], *, temperature: float | None = None, suffix: Sequence[int] = ()
) -> ResponseFields:
    """Convert a sample to a response with the token ids of each reply; ms-swift renders the messages between them.

    Args:
        sample: The sample, which may have images.
        turns: For each reply, where it begins and ends in the tokens of the sample.
        temperature: See `to_response`, as for the suffix.
        suffix: The token ids of the template's suffix.

    Raises:
        InvalidSample: See `to_response`; or if the sample trains a token outside the replies.
    """
    (sample,) = check_samples([sample], temperature=temperature, no_images=None)
    _check_suffix(sample, suffix)
    inside = np.zeros(len(sample), dtype=np.bool_)
    for start, stop in turns:
        inside[start:stop] = True
    if (sample.mask & ~inside).any():
        raise InvalidSample(
            f"mask[{int(np.argmax(sample.mask & ~inside))}] of a sample of trajectory {sample.trajectory_id!r} is "
            "True, but the token is in a message that ms-swift renders itself and cannot train"
        )
    known = logprobs(sample)
    return ResponseFields(
        [sample.tokens[start:stop].tolist() for start, stop in turns],
        [sample.mask[start:stop].astype(np.int32).tolist() for start, stop in turns],
        [known[start:stop][sample.mask[start:stop]].tolist() for start, stop in turns],
    )


def to_response(
    sample: Sample, start: int, *, temperature: float | None = None, suffix: Sequence[int] = ()
) -> ResponseFields:
    """Convert a sample to a response of ms-swift.

    Args:
        sample: The sample.
        start: The number of tokens at the beginning of the sample that ms-swift renders itself.
        temperature: The trainer's temperature, which must be that of the sample. None skips the check.
        suffix: The token ids of the template's suffix, such as `<|im_end|>` and a line end. Without, it is not checked.

    Raises:
        InvalidSample: If the sample is invalid, has no log-probabilities, was sampled at another temperature, or trains
            a token before `start`; or if ms-swift would train tokens that the sample does not.
    """
    (sample,) = check_samples([sample], temperature=temperature, no_images=_NEEDS_TURNS)
    return to_turns(sample, [(start, len(sample))], temperature=temperature, suffix=suffix)


def to_sft_records(samples: Iterable[Sample], *, eos_token_id: int) -> list[dict[str, Any]]:
    """Convert samples to rows of a dataset for `swift sft --use_chat_template false`, one for each sample.

    The row is one assistant message, which has the token ids of the whole sample and a `loss_scale` for each token: 1
    where the mask is True, 0 elsewhere. ms-swift then inserts and tokenizes nothing.

    Args:
        samples: The samples of `sft_samples` or of trajectories. They need neither log-probabilities nor a reward.
        eos_token_id: The id of `tokenizer.eos_token` of the trained model, as ms-swift loads it.

    Returns:
        `{"messages": [{"role": "assistant", "content": {"token_ids": [...], "loss_scale": [...]}}]}` for each sample;
        write each as a line of a `.jsonl` file.

    Raises:
        InvalidSample: If a sample is invalid; if it does not end with `eos_token_id`, which ms-swift would append and
            train; or if it has this token untrained after a trained one, because ms-swift would train it.
    """
    valid = check_samples(samples, logprobs=False, no_images=_NO_IMAGES)
    for index, sample in enumerate(valid):
        if sample.tokens[-1] != eos_token_id:
            raise InvalidSample(
                f"sample {index}, of trajectory {sample.trajectory_id!r}, ends with the token {sample.tokens[-1]}, not "
                f"with eos_token_id={eos_token_id}, so ms-swift would append that token and train it: leave out "
                "samples whose last reply was cut, and check that eos_token_id is that of the trained model"
            )
        _check_suffix(sample, [eos_token_id])
    contents = [
        {"token_ids": sample.tokens.tolist(), "loss_scale": sample.mask.astype(np.int32).tolist()} for sample in valid
    ]
    return [{"messages": [{"role": "assistant", "content": content}]} for content in contents]


def _check_suffix(sample: Sample, suffix: Sequence[int]) -> None:
    """Check that no untrained tokens after a trained one begin with the suffix: ms-swift sets their labels.

    Source: `Template._add_dynamic_eos`, which assumes that such tokens end a reply.
    """
    if not suffix:
        return
    ends = np.flatnonzero(sample.mask[:-1] & ~sample.mask[1:]) + 1  # a sample ends with a trained token
    for position in ends.tolist():
        stop = position + len(suffix)
        if sample.tokens[position:stop].tolist() == list(suffix) and not sample.mask[position:stop].any():
            raise InvalidSample(
                f"tokens[{position}:{stop}] of a sample of trajectory {sample.trajectory_id!r} are untrained and "
                "follow a trained token, but ms-swift would train them, because its template ends a reply with them: "
                "end an episode at a reply that is cut (Limits(end_on_cut=True), the default), and train the stop "
                "token of a reply whose last tokens are trained"
            )
