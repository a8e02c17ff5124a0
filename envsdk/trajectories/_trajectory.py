"""One finished episode: its contexts, its steps, its rewards and breaks, and how it ended."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from .._cards import card, named, shortened
from .._registry import find_renderer
from .._visible import brief
from ..contexts._history import HistoryPolicy, get_history
from ..contexts._protocol import Break, Count
from ..errors import CannotReplay, ConfigError, InvalidRecord, InvalidSample, PluginError, RenderError, UndeclaredBreak
from ..images import Image, PlacedImage
from ..limits import Limits, StopReason
from ..rendering.renderer import Renderer
from ._checks import check_break, check_log, check_parts
from ._context_log import ContextLog, KnownStopReason
from ._fragments import fragment
from ._media import embedded, read_embedded
from ._replay import Paths, Prompt, placed_images, replay
from ._samples import Sample, loss_weights
from ._scoring import ending, is_judged, why_not_scored
from ._segments import LossRule, TrainedSegment, segments, trained_steps
from ._steps import Origin, Step, StoredFinalTurn
from ._stored import Json, JsonObject, StoredBreak, StoredRecord, dump_media, pack, record_of
from ._under import Replay
from .records import build, dump, load

VIEWERS = "envsdk.viewers"
"""The entry points of viewers, which are layers above this one: functions of a trajectory and a tokenizer."""
Status: TypeAlias = Literal["terminated", "truncated", "error"]
ErrorKind: TypeAlias = Literal["environment", "policy", "infrastructure"]
"""Whose error ended an episode: the environment's code, the policy's, or that of what they run on."""


@dataclass(slots=True, repr=False)
class Trajectory(StoredRecord):
    """One episode, finished or failed.

    Attributes:
        id: The episode's id.
        env: The id of the environment, or its class's name.
        seed: What it was reset with, or None.
        status: `terminated`: the task is over. `truncated`: a limit was reached. `error`: something failed; the steps
            before that are kept.
        stop_reason: Why it ended: a `StopReason`.
        contexts: The log of each context by name; each comes after its parent.
        steps: All steps, depth-first by context.
        renderer: The renderer's name and options.
        renderer_chosen_because: Why `renderer="auto"` chose it; empty if it was named. A record leaves it out then.
        renderer_rewrites: An example of earlier text of users or the system that the chat template rewrites, while the
            episode's prompts show it as it was; empty if there is none. A record leaves it out then.
        tokenizer: The tokenizer's fingerprint.
        vocab_size: How many ids the model has; 0 if unknown.
        history: The history policy's name and options.
        limits: The limits that were set.
        config: The environment's own options.
        task: The task; a value that is not JSON is stored as its `repr`.
        group_id: What episodes of the same task share, for group baselines; or None.
        origins: The episodes that this one was forked from, the direct original last.
        final_break: The break of the last observation, if no reply to it was requested: the context was full after a
            rewrite.
        final_turn: The context of the last observation, if it was full, and how the observation was made, as
            `Step.turn`. A record leaves it out otherwise.
        left_out: What `under` could not replay, a sentence each. A record leaves it out if it is empty.
        error: What failed, if the status is `error`.
        error_kind: Whose error it was, if a rollout recorded it. `environment`: a method of the environment raised or
            took too long. `policy`: the policy raised or returned an action that is not legal. `infrastructure`: the
            server, the network or the worker failed.
    """

    id: str
    env: str
    seed: int | None
    status: Status
    stop_reason: KnownStopReason
    contexts: dict[str, ContextLog]
    steps: list[Step]
    renderer: JsonObject = field(default_factory=dict[str, Any])
    tokenizer: str = ""
    vocab_size: Count = 0
    history: JsonObject = field(default_factory=dict[str, Any])
    limits: JsonObject = field(default_factory=dict[str, Any])
    config: JsonObject = field(default_factory=dict[str, Any])
    task: Json = None
    group_id: str | None = None
    origins: list[Origin] = field(default_factory=list[Origin])
    final_break: StoredBreak | None = None
    error: str | None = None
    error_kind: ErrorKind | None = None
    renderer_chosen_because: str = field(default="", metadata={"optional": True})
    renderer_rewrites: str = field(default="", metadata={"optional": True})
    final_turn: StoredFinalTurn = field(default_factory=dict[str, Any], metadata={"optional": True})
    left_out: list[str] = field(default_factory=list[str], metadata={"optional": True})

    def __repr__(self) -> str:
        # It is short, since asyncio prints what a task returned when its event loop ends.
        return f"<Trajectory {self.id!r}: {self.status}, {len(self.steps)} steps, {self.reward_text}>"

    def _repr_html_(self) -> str:
        """Return a card for notebooks, with the conversation."""
        messages = [
            "\n".join(
                [
                    f"{name} · {message.role}: {message.content}",
                    *(f"-> {call.name}({call.arguments})" for call in message.tool_calls),
                    *map(repr, message.images),
                ]
            )
            for name, log in self.contexts.items()
            for message in log.messages
        ]
        facts = {
            "status": ending(self.status, self.stop_reason),
            "reward": self.reward_text.removeprefix("reward "),
            "steps": len(self.steps),
            "contexts": len(self.contexts) if len(self.contexts) > 1 else None,
            "observed": f"{self.observed_tokens:,} tokens",
            "sampled": f"{self.sampled_tokens:,} tokens",
            "images": len(self.images) or None,
            "breaks": named(Counter(break_.reason for break_ in self.breaks)),
            "error": self.error,
        }
        heading = f"{len(messages)} messages; .view() shows everything"
        return card(f"Trajectory {self.id}", facts, folded={heading: shortened(messages, 40, 1000)})

    def view(self, tokenizer: Any = None) -> Any:
        """Show the episode in the viewer: in a notebook below the cell, else in the browser.

        Images whose bytes are missing are named. `from_json(line, media=FOLDER)` reads a record with its images.

        Args:
            tokenizer: The tokenizer of the episode: what `load_tokenizer` accepts. Without it, tokens are shown by
                their ids, except those of the embedded vocabulary.

        Returns:
            The object that a notebook displays: the page with this episode, in a frame.

        Raises:
            PluginError: If the package is not installed, so that its viewer is not found.
            ConfigError: If the tokenizer cannot be loaded.
        """
        point = next((point for point in entry_points(group=VIEWERS) if point.name == "page"), None)
        if point is None:
            raise PluginError(
                f"no installed package has the entry point 'page' in the group {VIEWERS!r}, which envsdk has: install "
                "it again (pip install -e . in a checkout)"
            )
        return point.load()(self, tokenizer)

    @property
    def reward(self) -> float:
        """The sum of the steps' rewards; 0.0 if the episode was not scored. See `scored_reward`."""
        return math.fsum(step.reward or 0.0 for step in self.steps)

    @property
    def scored_reward(self) -> float | None:
        """The reward, or None if the episode was not scored. Means and comparisons are of this number."""
        return None if self.not_scored_because else self.reward

    @property
    def not_scored_because(self) -> str:
        """The reason why the episode was not scored; empty if it was.

        An episode that failed was not scored: `deadline`, `environment error`, `policy error`, `infrastructure error`,
        or `error` if it was not recorded whose error it was. Neither was one that ended without a reward in any turn
        (`no reward`), or that was interrupted before it had one (`aborted`, `idle`, `shutdown`).
        """
        return why_not_scored(
            status=self.status,
            stop_reason=self.stop_reason,
            error=self.error,
            error_kind=self.error_kind,
            has_reward=any(step.reward is not None for step in self.steps)
            or self._own_reward(next(iter(self.contexts), "")) is not None,
        )

    @property
    def reward_text(self) -> str:
        """The reward as text: `reward 0.5`, or `not scored (deadline)`."""
        because = self.not_scored_because
        return f"not scored ({because})" if because else f"reward {self.reward:g}"

    @property
    def breaks(self) -> list[Break]:
        """All declared breaks, in order."""
        breaks = [step.break_ for step in self.steps if step.break_ is not None]
        return breaks if self.final_break is None else [*breaks, self.final_break]

    @property
    def is_trainable(self) -> bool:
        """Whether a policy that returns what it sampled acted in any context; see `ContextLog.is_trainable`."""
        return any(self.contexts[step.context].is_trainable for step in self.steps)

    def is_copied(self, step: Step) -> bool:
        """Return whether a step was answered before the episode was forked: the original's samples train it."""
        return bool(self.origins and step.parts) and step.stop <= self.origins[-1].tokens.get(step.context, 0)

    @property
    def sampled_tokens(self) -> int:
        """The number of tokens that the policy sampled; in a fork, those before the fork included."""
        return sum(step.stop - step.action_start for step in self.steps)

    @property
    def observed_tokens(self) -> int:
        """The number of tokens that were observed."""
        return sum(step.action_start - step.start for step in self.steps)

    def prompts(self) -> Iterator[Prompt]:
        """Replay the deltas: yield for each step the prompt that the policy saw, and its action. O(context) a step.

        Raises:
            UndeclaredBreak: If a step drops tokens and no break declares it.
            InvalidRecord: If the steps do not fit the logs.
        """
        paths = Paths(self.contexts)
        for replayed in replay(self.steps, self.contexts):
            step, log = replayed.step, self.contexts[replayed.step.context].tokens
            prompt = paths.observe(replayed).tokens()
            paths.act(replayed)
            yield Prompt(step, prompt, log[step.action_start : step.stop])

    def prompt_images(self) -> Iterator[tuple[PlacedImage, ...]]:
        """Yield for each step the images of its prompt, in order, each with the range of its tokens in the prompt.

        Raises:
            UndeclaredBreak: See `prompts`.
            InvalidRecord: See `prompts`.
        """
        paths = Paths(self.contexts)
        for replayed in replay(self.steps, self.contexts):
            path = paths.observe(replayed)
            yield tuple(placed_images(path, self.contexts))
            paths.act(replayed)

    def under(
        self,
        history: str | Mapping[str, Any] | HistoryPolicy,
        renderer: Renderer | Mapping[str, Renderer] | None = None,
        *,
        limits: Limits | None = None,
        folds: bool = True,
    ) -> "Trajectory":
        """Return the same episode as it would have looked under another history policy.

        The recorded messages and sampled tokens are replayed in fresh contexts: prompts, breaks and samples are those
        of the other policy, and rewards are the recorded ones. Under its own policy, an episode is itself, byte for
        byte. What cannot be replayed is left out and stated in `left_out`: a summary that the other policy does not
        request, one that it requests and that was not written, and all replies after a prompt that does not fit.

        Args:
            history: The policy of the agent that was reset: a policy, its name, or its name with options. Sub-agents
                keep theirs.
            renderer: The episode's renderer (`env.renderer`), or the renderers by role (`StoredRun.renderers`). By
                default it is made from the record, with the embedded vocabulary.
            limits: The limits; None for the recorded ones. `Limits()` lets prompts of any length fit.
            folds: Whether folds by the model (`ContextTools`) are replayed. If not, what was folded stays visible.

        Raises:
            CannotReplay: If the renderer or its tokenizer is not the episode's, the record is damaged or not enough, or
                the chat template cannot express the result.
            ConfigError: If an argument is not one of these.
        """
        own_limits = self.limits if limits is None else Limits.of(limits, Limits()).model_dump(exclude_defaults=True)
        most = Limits.of(own_limits, Limits()).max_context_tokens
        if renderer is None and not self.renderer:
            raise CannotReplay(
                f"{self.id!r} does not record its renderer, as one does not that was imported from a log: give the "
                "renderer, get_renderer(NAME, TOKENIZER)"
            )
        if renderer is None:
            renderer = find_renderer({name: value for name, value in self.renderer.items() if name != "processor"})
        given: dict[Any, Any] = dict(renderer) if isinstance(renderer, Mapping) else {None: renderer}
        if not given or not all(isinstance(one, Renderer) for one in given.values()):
            raise ConfigError(
                f"renderer is {brief(renderer)}; expected the episode's renderer, env.renderer, or renderers by role"
            )

        def renderer_of(log: ContextLog) -> Renderer:
            found: Renderer = given.get(log.role, next(iter(given.values())))
            if found.tokenizer.fingerprint != (log.tokenizer or self.tokenizer or found.tokenizer.fingerprint):
                raise CannotReplay(
                    f"{self.id!r} has another tokenizer than the renderer {brief(found)}: give the renderer of the "
                    "episode, env.renderer, or StoredRun.renderers of its run folder"
                )
            return found

        replay = Replay(self, get_history(history), renderer_of, most, folds=folds)
        try:
            changed = replay.run()
        except RenderError as error:
            raise CannotReplay(f"{self.id!r} cannot be rendered under this history policy: {error}") from error
        return replace(self, limits=own_limits, **changed)

    def reward_of(self, context: str) -> float:
        """Return the reward of a context: its own, that of the nearest parent that has one, or the episode's."""
        own = self._own_reward(context)
        return self.reward if own is None else own

    def is_scored(self, context: str) -> bool:
        """Return whether a context was scored.

        An episode that terminated without a reward in any turn was not scored: its reward of 0.0 means nothing. One
        that was truncated counts as scored, unless it was interrupted from outside (`aborted`, `idle`, `shutdown`).
        """
        has_reward = any(step.reward is not None for step in self.steps) or self._own_reward(context) is not None
        return is_judged(self.status, self.stop_reason, has_reward=has_reward)

    def _own_reward(self, context: str) -> float | None:
        name: str | None = context
        for _ in self.contexts:  # a damaged record may have parents in a circle
            if name is None or name not in self.contexts:
                break
            own = self.contexts[name].reward
            if own is not None:
                return own
            name = self.contexts[name].parent
        return None

    def tree_size(self, *, include_failed: bool = False) -> int:
        """Return how many tokens the prefix tree of the samples has.

        A token counts once, however many samples hold it, and only if it or a token after it in its branch is trained.

        Args:
            include_failed: Whether the steps of a failed episode, or of a failed sub-agent, count.
        """
        is_needed = {name: np.zeros(len(log.tokens), np.bool_) for name, log in self.contexts.items()}
        for segment in self.segments(include_failed=include_failed):
            rest = len(segment.tokens)
            for piece in segment.pieces:
                is_needed[piece.context][piece.start : min(piece.stop, piece.start + max(0, rest))] = True
                rest -= piece.stop - piece.start
        return sum(int(np.count_nonzero(needed)) for needed in is_needed.values())

    def samples(self, loss: LossRule = "all", *, include_failed: bool = False) -> list[Sample]:
        """Return the training samples: one for each segment of each context in which a token is trained.

        Args:
            loss: Which steps are trained: `"all"`, `"last_step"` (of each context), `"without_errors"` (those whose
                reply has no errors: it could be read, its tools exist, no argument is missing), or a function of a
                `Step`.
            include_failed: Whether a failed episode, or a failed sub-agent, gives samples of its steps.

        Returns:
            The samples, in the order in which their segments began.

        Raises:
            UndeclaredBreak: If a step drops tokens and no break declares it.
            InvalidSample: If `Action.extra` has an array for some actions and not for others; or if no context can be
                trained, because their policies exchange text (`Policy.trainable`).
        """
        if self.status == "error" and not include_failed:
            return []
        if self.steps and not self.is_trainable:
            raise InvalidSample(
                f"the trajectory {self.id!r} cannot be trained on: its policy exchanges text, so the tokens in it are "
                "a rendering of its replies and not what it sampled. Sample with a policy that returns tokens, such "
                "as VLLM"
            )
        return self.samples_of(self.segments(loss, include_failed=include_failed))

    def samples_of(self, segments: Sequence[TrainedSegment]) -> list[Sample]:
        """Return the samples of segments, which are all that `segments` returned."""
        weights = loss_weights([segment.trained for segment in segments])
        counts, seen = Counter(segment.context for segment in segments), Counter[str]()
        scores = {name: (self.reward_of(name), self.is_scored(name)) for name in counts}
        samples: list[Sample] = []
        for segment, weight in zip(segments, weights, strict=True):
            name, log, parts = segment.context, self.contexts[segment.context], segment.parts
            reward, is_scored = scores[name]
            versions = [-1 if part.policy_version is None else part.policy_version for part in parts]
            sample = Sample(
                tokens=segment.tokens,
                mask=segment.mask,
                logprobs=segment.logprobs if segment.has_logprobs else None,
                step_ids=segment.step_ids,
                reward=reward,
                step_rewards=np.array([replayed.step.reward or 0.0 for replayed in segment.steps], dtype=np.float32),
                temperature=np.array([part.temperature for part in parts], dtype=np.float32),
                policy_version=np.array(versions, dtype=np.int32),
                part_ids=segment.part_ids,
                context=name,
                role=log.role,
                parent=log.parent,
                trajectory_id=self.id,
                segment_index=seen[name],
                n_segments=counts[name],
                loss_weight=weight,
                stop_reason=self.stop_reason,
                truncated=self.status == "truncated",
                breaks=segment.breaks,
                group_id=self.group_id,
                roles=segment.roles,
                media=segment.media,
                extra={key: segment.extra(key) for key in dict.fromkeys(k for part in parts for k in part.extra)},
                metadata={
                    "env": self.env,
                    "seed": self.seed,
                    "tokenizer": log.tokenizer or self.tokenizer,
                    "vocab_size": log.vocab_size or self.vocab_size,
                    "steps": [replayed.step_index for replayed in segment.steps],
                    "is_scored": is_scored,
                },
            )
            seen[name] += 1
            samples.append(sample)
        return samples

    def segments(self, loss: LossRule = "all", *, include_failed: bool = False) -> list[TrainedSegment]:
        """Return the segments in which a token is trained; see `samples`."""
        if self.status == "error" and not include_failed:
            return []
        is_trained = trained_steps(self.steps, self.contexts, self.is_copied, loss, include_failed=include_failed)
        return segments(self.steps, self.contexts, is_trained)

    @property
    def images(self) -> list[Image]:
        """All images of the episode, each once, in order of their contexts and messages."""
        found = (image for log in self.contexts.values() for message in log.messages for image in message.images)
        return list(dict.fromkeys(found))

    def to_json(self, *, embed_images: bool = True) -> bytes:
        """Write the trajectory as one line of JSON, without the line end. The same trajectory gives the same bytes.

        Args:
            embed_images: Whether the record has the bytes of its images. A run folder has them in files.
        """
        record = record_of(self)
        if embed_images and (images := self.images):
            record["images"] = embedded(images)
        record["contexts"] = logs = {name: record_of(log) for name, log in self.contexts.items()}
        for name, log in self.contexts.items():
            logs[name]["messages"] = fragment([message.model_dump() for message in log.messages])
            logs[name] |= {"task": fragment(log.task), "tools": fragment(log.tools)}
            if log.media:
                logs[name]["media"] = dump_media(log.media)
        steps: list[Any] = list(self.steps)
        for index, step in enumerate(self.steps):
            if any(part.extra for part in step.parts):
                parts = [{**record_of(part), "extra": fragment(pack(part.extra))} for part in step.parts]
                steps[index] = {**record_of(step), "parts": parts}
        record["steps"] = steps
        for name in ("task", "seed", "renderer", "history", "limits", "config"):
            record[name] = fragment(record[name])
        return dump("trajectory", record)

    @classmethod
    def from_json(cls, line: bytes | str, *, media: Path | None = None) -> "Trajectory":
        """Read what `to_json` wrote. No missing field is filled in, and no value is converted to another type.

        Args:
            line: The line.
            media: The folder that has the files of the images, if they are not in the record. A file is read when its
                image is used.

        Raises:
            InvalidRecord: If the line is not a trajectory, has another schema version, or is damaged; the message names
                the field.
        """
        fields = load(line, "trajectory")
        images = read_embedded(fields.pop("images", {}))
        trajectory = build(cls, fields)
        ends = dict.fromkeys(trajectory.contexts, 0)
        try:
            for index, step, *_ in replay(trajectory.steps, trajectory.contexts):
                check_parts(index, step, trajectory.contexts[step.context])
                ends[step.context] = step.stop
        except UndeclaredBreak as error:
            raise InvalidRecord(f"the trajectory is damaged: {error}") from error
        status, reason = trajectory.status, trajectory.stop_reason
        fixed = (StopReason.TERMINATED, StopReason.ERROR)
        if (reason in fixed) != (status != "truncated") or (reason in fixed and reason != status):
            raise InvalidRecord(f"status is {status!r}, but stop_reason is {reason!r}")
        problem = trajectory.error if trajectory.error_kind is None else trajectory.error_kind
        if problem is not None and status != "error":
            raise InvalidRecord(f"status is {status!r}, but there is an error: {brief(problem)}")
        for origin in trajectory.origins:
            if unknown := origin.tokens.keys() - trajectory.contexts.keys():
                raise InvalidRecord(f"origins have the context {min(unknown)!r}, which is not in the record")
        break_ = trajectory.final_break
        if break_ is not None:
            if not {break_.context, break_.base} <= trajectory.contexts.keys():
                raise InvalidRecord(f"final_break is in {break_.context!r}, from {break_.base!r}: not in the record")
            check_break(break_)
        if trajectory.final_turn:
            if trajectory.final_turn["context"] not in trajectory.contexts:
                raise InvalidRecord(f"final_turn is in {brief(trajectory.final_turn['context'])}: not in the record")
            if status != "truncated":
                raise InvalidRecord(f"status is {status!r}, but there is a final_turn, which no reply answered")
        for name, log in trajectory.contexts.items():
            check_log(name, log, ends[name], log.vocab_size or trajectory.vocab_size)
            for image in (*(placed.image for placed in log.media), *(i for m in log.messages for i in m.images)):
                image.find_in(media, images)
        return trajectory
