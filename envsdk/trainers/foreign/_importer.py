"""The import of a log whose reader knows which context each reply is in: what `from_requests` and `from_atif` share."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ..._registry import find_renderer
from ..._visible import brief
from ...contexts._protocol import Action, Break, BreakReason, FinishReason
from ...episodes._actions import CheckedAction, check_action
from ...errors import ActionError, ConfigError, InvalidRecord, RenderError
from ...images import PlacedImage
from ...limits import StopReason
from ...messages import Message, ToolSchema
from ...rendering.renderer import Renderer
from ...trajectories._context_log import ContextLog
from ...trajectories._samples import Sample
from ...trajectories._steps import Step
from ...trajectories._tally import sum_by_name
from ...trajectories._trajectory import Status, Trajectory
from ..sft import sft_samples
from ._differences import HeldTokens
from ._values import LARGEST_ID, LoggedValue
from ._writer import LogWriter, with_image_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

NoteKind: TypeAlias = Literal["no_ids", "no_logprobs", "no_sft", "left_out", "ambiguous", "sampling"]
"""The subject of a note: token ids, log-probabilities or supervised samples that are missing, a part of the log that
was left out, a choice between contexts, or parameters of sampling that are not known exactly."""
_CUT = ("length", "max_tokens", "max_output_tokens", "incomplete", "abort", "model_context_window_exceeded")


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
class ImportResult:
    """The result of an import: each reply is trained by the trajectory's samples, or by `sft`, or has a note.

    Attributes:
        trajectory: The episode. Its samples train the replies whose token ids were logged, each sampled token once. It
            has no steps, and so no samples, if no reply has ids; the messages of its contexts are complete in any case.
        sft: Supervised samples of the replies without ids, made from their texts: without log-probabilities, rewards
            and advantages. Do not mix them into an update of reinforcement learning.
        notes: What is missing in the log, in its order, each with its `kind`, `where` it is, and a `text`; empty if the
            whole log became the trajectory.
    """

    trajectory: Trajectory
    sft: list[Sample]
    notes: tuple[ImportNote, ...]


class LoggedIds(NamedTuple):
    """The token ids of a reply: of its full prompt and of what was sampled; and the log-probabilities of the latter."""

    prompt: LoggedValue
    tokens: LoggedValue
    logprobs: LoggedValue


class LoggedReply(NamedTuple):
    """A reply whose token ids were logged, checked.

    Attributes:
        prompt: The ids of its full prompt: int32, shape (n,), at least one.
        action: What was sampled.
        has_reasoning: Whether the reply has reasoning.
    """

    prompt: "NDArray[np.int32]"
    action: CheckedAction
    has_reasoning: bool


class Change(NamedTuple):
    """The reason why a prompt does not extend its context, as far as the meaning of the log shows it.

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
class _ImportedContext:
    is_handoff: bool
    held: HeldTokens = field(default_factory=HeldTokens)
    has_begun: bool = False
    knows_images: bool = True


class Importer:
    """Builds an `ImportResult` from replies, in the order of the log.

    Args:
        id: The id of the trajectory.
        renderer: The renderer of the model, or its name. It makes supervised samples of replies without token ids.
        tokenizer: What `load_tokenizer` accepts, for a renderer that is given by its name.
        vocab_size: The size of the vocabulary, for a log without a renderer; 0 if it is unknown.
        trainable_roles: The roles whose contexts are trained; None trains all.

    Raises:
        ConfigError: If an argument is invalid.
    """

    def __init__(
        self,
        id: str,
        *,
        renderer: "str | Renderer | None",
        tokenizer: Any,
        vocab_size: int,
        trainable_roles: Collection[str] | None,
    ) -> None:
        if renderer is None and tokenizer is not None:
            raise ConfigError("tokenizer= is given without renderer=: name the renderer, such as renderer='qwen3'")
        self.renderer = None if renderer is None else find_renderer(renderer, tokenizer)
        self._vocab_size = _vocab_size(vocab_size, self.renderer)
        self._id, self._trainable_roles = id, trainable_roles
        self._writer = LogWriter()
        self._contexts: dict[str, _ImportedContext] = {}
        self._notes: list[ImportNote] = []
        self._untrained_notes: list[ImportNote] = []
        self._sft: list[Sample] = []
        self._early: dict[str, float] = {}  # rewards before the first step
        self._image_numbers: dict[tuple[str, int], int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._contexts

    def open(self, name: str, role: str, parent: str | None, *, is_handoff: bool) -> ContextLog:
        """Open a context, and return its log, whose messages and tools the reader writes.

        Args:
            name: The name of the context.
            role: Its role.
            parent: The context that opened it, or None.
            is_handoff: Whether its first step is a switch to it.
        """
        self._contexts[name] = _ImportedContext(is_handoff)
        log = self._writer.open(name, role, parent)
        self.set_role(name, role)
        return log

    def set_role(self, name: str, role: str) -> None:
        """Set the role of a context, which decides whether it is trained."""
        log = self._writer.log(name)
        log.role, log.is_trainable = role, self._trainable_roles is None or role in self._trainable_roles

    def log(self, name: str) -> ContextLog:
        """Return the log of a context."""
        return self._writer.log(name)

    def note(self, kind: NoteKind, where: str, text: str) -> None:
        """Add a note."""
        self._notes.append(ImportNote(kind, where, text))

    def reply(self, where: str, ids: LoggedIds, message: Message, **sampling: Any) -> LoggedReply | None:
        """Return a reply whose ids and log-probabilities are valid; None, with a note, if it has no ids.

        Args:
            where: The place of the reply, for the note.
            ids: Its ids.
            message: The reply as it was logged. Its reasoning may be missing, or be in the text.
            **sampling: The other fields of `Action`.

        Raises:
            InvalidRecord: If they are not.
        """
        missing = [value.where for value in (ids.prompt, ids.tokens) if value.value is None]
        if missing:
            self.note("no_ids", where, f"{' and '.join(missing)} are missing, so its text is all that can be trained")
            return None
        prompt = self._checked(ids.prompt, Action(ids.prompt.numbers(int))).tokens
        if not len(prompt):
            raise ids.prompt.invalid("the ids of the full prompt that was sampled from")
        action = self._checked(ids.tokens, Action(ids.tokens.numbers(int), **sampling))
        if ids.logprobs.value is None:
            self.note("no_logprobs", where, "the log-probabilities of its tokens are missing")
        else:
            known = Action(action.tokens, ids.logprobs.numbers(int, float), **sampling)
            action = self._checked(ids.logprobs, known)
        is_read = not message.reasoning and self.renderer is not None
        reasoning = self.renderer.parse(action.tokens).reasoning if is_read and self.renderer else message.reasoning
        return LoggedReply(prompt, action, bool(reasoning))

    def _checked(self, value: LoggedValue, action: Action) -> CheckedAction:
        try:
            with np.errstate(over="ignore"):  # infinity is refused
                return check_action(action, self._vocab_size or LARGEST_ID)
        except (ActionError, OverflowError) as error:
            raise InvalidRecord(f"{value.where}: {error}") from error

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
            change: What the log shows about the prompt. Its detail describes a handoff in a context's first step.
            media: The images in the prompt, with their positions in it; None if that is not known.
        """
        context, placed = self._contexts[name], media or ()
        keyed = with_image_numbers(reply.prompt, placed, self._image_numbers)
        if context.has_begun or base not in self._contexts or not self._contexts[base].has_begun:
            base = name
        keep = self._contexts[base].held.shared(keyed)
        break_ = self._break(name, base, keep, keyed, change)
        if base == name:
            context.held.truncate(keep)
        else:
            context.held = self._contexts[base].held.branch(keep)
        context.held.append(keyed[keep:], reply.action.tokens, has_reasoning=reply.has_reasoning)
        context.has_begun, context.knows_images = True, context.knows_images and media is not None
        messages = self.log(name).messages
        step = self._writer.add(
            name,
            reply.prompt[keep:],
            reply.action,
            keep=keep,
            base=base,
            break_=break_,
            media=[image.moved(-keep) for image in placed if image.start >= keep],
            reply=len(messages),
        )
        messages.append(message)
        early, self._early = self._early, {}
        self.earn(early)
        return step

    def _break(self, name: str, base: str, keep: int, prompt: "NDArray[np.int32]", change: Change) -> Break | None:
        context = self._contexts[name]
        if not context.has_begun:
            return Break("switch", "handoff", name, base, keep, 0, change.detail) if context.is_handoff else None
        dropped = len(context.held) - keep
        if dropped:
            reason, detail = change.reason, change.detail
            if reason is None:
                reason, detail = context.held.rewrite_reason(prompt, keep)
            return Break("rewrite", reason, name, name, keep, dropped, detail)
        return Break("switch", "return", name, name, keep, 0) if change.is_return else None

    def earn(self, rewards: Mapping[str, float]) -> None:
        """Add rewards to the last step; before the first one, they count for that."""
        if not rewards:
            return
        if not self._writer.steps:
            self._early = sum_by_name((self._early, dict(rewards)))
            return
        step = self._writer.steps[-1]
        step.rewards = sum_by_name((step.rewards, dict(rewards)))
        step.reward = sum(step.rewards.values())

    def train(
        self, name: str, conversation: Sequence[Message], indices: Collection[int], tools: Sequence[ToolSchema]
    ) -> None:
        """Make supervised samples of replies without ids, or note why there are none.

        Args:
            name: The name of their context.
            conversation: The messages, the system message included.
            indices: The indices of the replies.
            tools: The tools.
        """
        log, where = self.log(name), f"context {name!r}"
        if not indices or not log.is_trainable:
            return
        if self.renderer is None:
            text = f"{len(indices)} replies have no token ids: pass renderer= and tokenizer= to get supervised samples"
            self._untrained_notes.append(ImportNote("no_sft", where, text))
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
            text = f"no supervised samples of {len(indices)} replies: {error}"
            self._untrained_notes.append(ImportNote("no_sft", where, text))
            return
        self._sft += [replace(sample, context=name, role=log.role) for sample in samples]

    def finish(
        self, *, reward: float | Mapping[str, float] | None, stop_reason: StopReason, error: str | None, **about: Any
    ) -> ImportResult:
        """Return what was imported.

        Args:
            reward: The reward of the whole episode, which counts for the last step; None if the log has the rewards.
            stop_reason: Why the episode ended.
            error: What failed, or None.
            **about: The other fields of `Trajectory`.

        Raises:
            InvalidRecord: If the reward is invalid; if there are only texts, and no renderer; or if a context has token
                ids, and images in its messages, and the log does not specify which tokens are those of an image.
            ConfigError: If `reward` is given, and parts of the log have rewards, too.
        """
        steps = self._writer.steps
        rewards = LoggedValue(reward, "reward").rewards()
        if rewards and (self._early or any(step.reward is not None for step in steps)):
            raise ConfigError("reward= is given, but the log has rewards, too: give only one of them")
        self.earn(rewards)
        if self.renderer is None and self._untrained_notes and not steps:
            raise InvalidRecord(
                "no reply has the token ids of its prompt and its tokens, so there is nothing to train but texts: pass "
                "renderer= and tokenizer= for supervised samples, or let the server log ids (vLLM: return_token_ids)"
            )
        for name, context in self._contexts.items():
            is_unknown = context.has_begun and not context.knows_images
            if is_unknown and any(message.images for message in self.log(name).messages):
                raise InvalidRecord(
                    f"context {name!r} has token ids, and images in its messages, but the log does not specify which "
                    "tokens are those of an image, so its samples would lack them: import the steps with from_steps, "
                    "which takes `images`; or leave the token ids out, and pass a renderer with a processor"
                )
        contexts = self._writer.contexts()
        if self._early and contexts:
            next(iter(contexts.values())).reward = sum(self._early.values())
        stop_reason = StopReason.ERROR if error is not None else stop_reason
        status: Status = "error" if stop_reason == StopReason.ERROR else "truncated"
        status = "terminated" if stop_reason == StopReason.TERMINATED else status
        trajectory = Trajectory(
            id=self._id,
            seed=about.pop("seed", None),
            status=status,
            stop_reason=str(stop_reason),
            contexts=contexts,
            steps=steps,
            renderer={} if self.renderer is None else self.renderer.specification(),
            renderer_chosen_because="" if self.renderer is None else self.renderer.chosen_because,
            tokenizer="" if self.renderer is None else self.renderer.tokenizer.fingerprint,
            vocab_size=self._vocab_size,
            error=error,
            **about,
        )
        return ImportResult(trajectory, self._sft, (*self._notes, *self._untrained_notes))


def finish_reason_of(name: object) -> FinishReason:
    """Return how a reply ended, given the name that a server has for it: an interrupted reply was cut."""
    return "length" if name in _CUT else "stop"


def _vocab_size(vocab_size: Any, renderer: Renderer | None) -> int:
    """Return the given size of the vocabulary, or that of the renderer's tokenizer; 0 if it is not known."""
    if type(vocab_size) is not int or not 0 <= vocab_size <= LARGEST_ID:
        raise ConfigError(f"vocab_size is {brief(vocab_size)}; expected an integer from 0 to 2**31 - 1, 0 if unknown")
    if renderer is None:
        return vocab_size
    known = renderer.tokenizer.vocab_size
    if vocab_size not in (0, known):
        raise ConfigError(
            f"vocab_size is {vocab_size}, but the renderer's tokenizer has {known} ids: leave it out, or load the "
            f"tokenizer with load_tokenizer(..., vocab_size={vocab_size})"
        )
    return known
