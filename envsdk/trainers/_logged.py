"""What an import of another tool's log returns, and how logged prompts become the steps of a trajectory.

A log repeats the full prompt at each reply. A reader decides which context a prompt is in, by what the log means; this
module computes the delta, which is a fact of the log, and declares what is dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from .._arrays import GrowableArray
from ..contexts._protocol import Break, BreakReason, FinishReason
from ..episodes._actions import CheckedAction
from ..errors import ConfigError, InvalidRecord
from ..images import PlacedImage
from ..messages import Message
from ..trajectories._context_log import ContextLog
from ..trajectories._samples import Sample
from ..trajectories._steps import Part, Step
from ..trajectories._trajectory import Trajectory
from ._differences import HeldTokens, common, rewrite_reason, with_image_numbers
from ._log_fields import Found, LoggedReply

if TYPE_CHECKING:
    from numpy.typing import NDArray

NoteKind: TypeAlias = Literal["no_ids", "no_logprobs", "no_sft", "left_out", "ambiguous", "sampling"]
"""What a note is about: token ids, log-probabilities or supervised samples that are missing, a part of the log that was
left out, a choice between contexts, or parameters of sampling that are not known exactly."""


@dataclass(frozen=True, slots=True)
class ImportNote:
    """Something that an import could not take over as it should be.

    Attributes:
        kind: What it is about.
        where: The record, step or context, such as `record 3`.
        text: What is missing, and what was done instead.
    """

    kind: NoteKind
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True, slots=True)
class Imported:
    """What was imported: each reply of the log is trained by the trajectory's samples, or by `sft`, or has a note.

    Attributes:
        trajectory: The episode. Its samples train the replies whose token ids were logged, each sampled token once. It
            has no steps, and so no samples, if no reply has ids; the messages of its contexts are complete in any case.
        sft: Supervised samples of the replies without ids, made from their texts: without log-probabilities, rewards
            and advantages. Do not mix them into an update of reinforcement learning.
        notes: What is missing in the log, in its order; empty if the whole log became the trajectory.
    """

    trajectory: Trajectory
    sft: list[Sample]
    notes: tuple[ImportNote, ...]


class Change(NamedTuple):
    """Why a prompt does not extend its context, as far as the log shows by its meaning.

    Attributes:
        reason: The reason of a rewrite; None if nothing was changed. If tokens are dropped nevertheless, the tokens
            decide about the reason.
        detail: More about it, for people.
        is_return: Whether a sub-agent acted since the context's last reply.
    """

    reason: BreakReason | None = None
    detail: str = ""
    is_return: bool = False


@dataclass(slots=True)
class _Context:
    log: ContextLog
    is_handoff: bool
    held: HeldTokens = field(default_factory=HeldTokens)
    tokens: GrowableArray[np.int32] = field(default_factory=lambda: GrowableArray(np.int32))
    logprobs: GrowableArray[np.float32] = field(default_factory=lambda: GrowableArray(np.float32))
    media: list[PlacedImage] = field(default_factory=list[PlacedImage])
    has_begun: bool = False
    knows_images: bool = True


class LogWriter:
    """Writes the contexts and the steps of a trajectory from full prompts whose contexts are known."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._contexts: dict[str, _Context] = {}
        self._early: dict[str, float] = {}  # rewards before the first step
        self._image_numbers: dict[tuple[str, int], int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._contexts

    def open(
        self, name: str, role: str, parent: str | None = None, *, is_handoff: bool, is_trainable: bool = True
    ) -> ContextLog:
        """Open a context, and return its log, whose messages and tools the reader writes.

        Args:
            name: The name of the context.
            role: Its role.
            parent: The context that opened it, or None.
            is_handoff: Whether its first step is a switch to it.
            is_trainable: Whether it gives samples.
        """
        empty = np.empty(0)
        log = ContextLog(
            role=role,
            parent=parent,
            tokens=empty.astype(np.int32),
            logprobs=empty.astype(np.float32),
            messages=[],
            is_trainable=is_trainable,
        )
        self._contexts[name] = _Context(log, is_handoff)
        return log

    def log(self, name: str) -> ContextLog:
        """Return the log of a context."""
        return self._contexts[name].log

    def add(
        self,
        name: str,
        reply: LoggedReply,
        message: Message,
        *,
        base: str | None = None,
        change: Change = Change(),  # noqa: B008 - it is immutable
        media: Sequence[PlacedImage] | None = None,
    ) -> Step:
        """Add a step with a reply, and the reply to the messages of its context.

        Args:
            name: The name of the context.
            reply: The reply.
            message: The reply as a message.
            base: If it is the first one of its context: the context whose beginning its prompt shares, or None.
            change: What the log says about the prompt. Its detail describes a handoff in a context's first step.
            media: The images in the prompt, with their places in it; None if that is not known.
        """
        context, prompt, action = self._contexts[name], reply.prompt, reply.action
        keyed = with_image_numbers(prompt, media or (), self._image_numbers)
        above = self._contexts.get(base or "")
        source = context if context.has_begun or above is None or not above.has_begun else above
        keep = common(source.held.tokens, keyed)
        break_ = self._break(name, name if source is context else str(base), keep, keyed, change)
        if source is context:
            context.held.truncate(keep)
        else:
            context.held = source.held.branch(keep)
        start = len(context.tokens)
        for array, logprobs in ((prompt[keep:], 0.0), (action.tokens, _logprobs(action))):
            context.tokens.append(array)
            context.logprobs.extend(len(array), logprobs)
        context.held.append(keyed[keep:], action.tokens, has_reasoning=reply.has_reasoning)
        context.media += [placed.moved(start - keep) for placed in media or () if placed.start >= keep]
        context.knows_images = context.knows_images and media is not None
        step = Step(
            context=name,
            base=name if source is context else str(base),
            keep=keep,
            extends=context.has_begun and break_ is None,
            start=start,
            action_start=start + len(prompt) - keep,
            parts=(Part(len(context.tokens), action.temperature, action.policy_version),),
            finish_reason=action.finish_reason,
            reply=len(context.log.messages),
            break_=break_,
        )
        context.log.messages.append(message)
        context.has_begun = True
        self.steps.append(step)
        if self._early:
            early, self._early = self._early, {}
            self.earn(early)
        return step

    def _break(self, name: str, base: str, keep: int, prompt: "NDArray[np.int32]", change: Change) -> Break | None:
        context = self._contexts[name]
        if not context.has_begun:
            return Break("switch", "handoff", name, base, keep, 0, change.detail) if context.is_handoff else None
        dropped = len(context.held.tokens) - keep
        if dropped:
            reason, detail = change.reason, change.detail
            if reason is None:
                reason, detail = rewrite_reason(context.held, prompt, keep)
            return Break("rewrite", reason, name, name, keep, dropped, detail)
        return Break("switch", "return", name, name, keep, 0) if change.is_return else None

    def earn(self, rewards: Mapping[str, float]) -> None:
        """Add rewards to the last step; before the first one, they count for that."""
        if not rewards:
            return
        if not self.steps:
            self._early = _sum(self._early, rewards)
            return
        step = self.steps[-1]
        step.rewards = _sum(step.rewards, rewards)
        step.reward = sum(step.rewards.values())

    def earn_whole(self, reward: float | Mapping[str, float] | None) -> None:
        """Add the reward of the whole episode, which counts for the last step.

        Raises:
            InvalidRecord: If it is not a reward.
            ConfigError: If parts of the log have rewards, too.
        """
        rewards = Found(reward, "reward").rewards()
        if rewards and (self._early or any(step.reward is not None for step in self.steps)):
            raise ConfigError("reward= is given, but the log has rewards, too: give only one of them")
        self.earn(rewards)

    def trajectory(self, **about: Any) -> Trajectory:
        """Return the trajectory.

        Args:
            **about: The other fields of `Trajectory`.

        Raises:
            InvalidRecord: If a context has token ids, and images in its messages, whose tokens no log names.
        """
        for name, context in self._contexts.items():
            is_unknown = context.has_begun and not context.knows_images
            if is_unknown and any(message.images for message in context.log.messages):
                raise InvalidRecord(
                    f"context {name!r} has token ids, and images in its messages, but the log does not specify which "
                    "tokens are those of an image, so its samples would lack them: import the steps with from_steps, "
                    "which takes `images`; or leave the token ids out, and pass a renderer with a processor"
                )
            context.log.tokens, context.log.logprobs = context.tokens.copy(), context.logprobs.copy()
            context.log.media = context.media
        if self._early and self._contexts:
            next(iter(self._contexts.values())).log.reward = sum(self._early.values())
        contexts = {name: context.log for name, context in self._contexts.items()}
        return Trajectory(contexts=contexts, steps=self.steps, **about)


def finish_reason_of(name: object) -> FinishReason:
    """Return how a reply ended, given the name that a server has for it: an interrupted reply was cut."""
    cut = ("length", "max_tokens", "max_output_tokens", "incomplete", "abort", "model_context_window_exceeded")
    return "length" if name in cut else "stop"


def _logprobs(action: CheckedAction) -> "NDArray[np.float32] | float":
    return np.nan if action.logprobs is None else action.logprobs


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in (*one, *other)}
