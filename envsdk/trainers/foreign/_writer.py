"""The core of all imports: it writes contexts and steps from logged steps whose context and delta are known."""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...contexts._protocol import Break
from ...contexts._side_data import Aligned
from ...episodes._actions import CheckedAction
from ...images import PlacedImage
from ...trajectories._context_log import ContextLog
from ...trajectories._steps import Part, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(slots=True)
class _GrowingContext:
    log: ContextLog
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    logprobs: "array[float]" = field(default_factory=lambda: array("f"))
    has_begun: bool = False


class LogWriter:
    """The contexts and the steps of a trajectory that is being imported."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._contexts: dict[str, _GrowingContext] = {}

    def open(self, name: str, role: str, parent: str | None = None) -> ContextLog:
        """Open a context, and return its log, whose messages and tools the reader writes."""
        tokens, logprobs = np.empty(0, np.int32), np.empty(0, np.float32)
        log = ContextLog(role, parent, tokens, logprobs, messages=[])
        self._contexts[name] = _GrowingContext(log)
        return log

    def log(self, name: str) -> ContextLog:
        """Return the log of a context."""
        return self._contexts[name].log

    def add(
        self,
        name: str,
        observed: "NDArray[np.int32]",
        action: CheckedAction,
        *,
        keep: int,
        base: str | None = None,
        break_: Break | None = None,
        media: Iterable[PlacedImage] = (),
        reply: int | None = None,
    ) -> Step:
        """Add a step.

        Args:
            name: The name of its context.
            observed: The tokens of its prompt after the first `keep`: int32, shape (n,).
            action: What was sampled.
            keep: The number of tokens of `base` that the prompt begins with.
            base: The context that the prompt starts from; None for its own.
            break_: The break before the step, or None.
            media: The images in `observed`, with their positions in it.
            reply: The index of the reply in the messages of the context, or None.
        """
        context = self._contexts[name]
        start = len(context.tokens)
        context.tokens.extend(observed.tolist() + action.tokens.tolist())
        context.logprobs.extend([0.0] * len(observed))
        unknown = [math.nan] * len(action.tokens)
        context.logprobs.extend(unknown if action.logprobs is None else action.logprobs.tolist())
        context.log.media += [placed.moved(start) for placed in media]
        extra: dict[str, Any] = dict(action.extra)
        for key, value in extra.items():
            if start and isinstance(value, Aligned) and value.over == "all":  # earlier steps have the other rows
                new = len(observed) + len(action.tokens) + 1
                extra[key] = value.take(slice(max(0, len(value) - new), None))
        step = Step(
            context=name,
            base=base or name,
            keep=keep,
            extends=context.has_begun and break_ is None,
            start=start,
            action_start=start + len(observed),
            parts=(Part(len(context.tokens), action.temperature, action.policy_version, extra),),
            finish_reason=action.finish_reason,
            reply=reply,
            break_=break_,
        )
        context.has_begun = True
        self.steps.append(step)
        return step

    def contexts(self) -> dict[str, ContextLog]:
        """Return the logs of the contexts by name, with all tokens."""
        for context in self._contexts.values():
            context.log.tokens = np.asarray(context.tokens[:])
            context.log.logprobs = np.asarray(context.logprobs[:])
        return {name: context.log for name, context in self._contexts.items()}


def with_image_numbers(
    prompt: "NDArray[np.int32]", media: Sequence[PlacedImage], numbers: dict[tuple[str, int], int]
) -> "NDArray[np.int32]":
    """Return a prompt in which the tokens of each distinct image are a negative number.

    The placeholders of different images may be the same tokens.

    Args:
        prompt: The token ids: int32, shape (n,).
        media: The images in it.
        numbers: The numbers of the images by their hash and number of tokens. New ones are added.
    """
    keyed = prompt.copy() if media else prompt
    for image, start, stop in media:
        keyed[start:stop] = -1 - numbers.setdefault((image.sha256, stop - start), len(numbers))
    return keyed
