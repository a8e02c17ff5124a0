"""The import of ATIF documents: `from_atif`.

A document is a context, and the documents of sub-agents are inside their parent's. So contexts and lineage are those of
the documents; each step's delta is computed from its prompt and what its context held. Source: see `atif.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, get_args

from ..contexts._protocol import RewriteReason
from ..errors import InvalidRecord
from ..limits import StopReason
from ..messages import Message
from ..rendering.renderer import Renderer
from ..trajectories._steps import Step
from ._atif_messages import message_of_result, message_of_step
from ._log_fields import LARGEST_ID, Found, LoggedReply, checked_reply, read_renderer, read_vocab_size
from ._logged import Change, Imported, ImportNote, LogWriter, finish_reason_of
from ._logged_texts import TextReplies

MAIN = "main"
_VERSIONS = "ATIF-v1."


def from_atif(
    document: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    renderer: "str | Renderer | None" = None,
    tokenizer: Any = None,
    reward: float | Mapping[str, float] | None = None,
    temperature: float = 1.0,
    trainable_roles: Sequence[str] | None = None,
    id: str | None = None,
    env: str | None = None,
    group_id: str | None = None,
    vocab_size: int = 0,
) -> Imported:
    """Make a trajectory from ATIF documents with token ids: those of `to_atif`, or of harbor and others.

    A step of the agent with `metrics.prompt_token_ids` and `metrics.completion_token_ids` is a step of the trajectory.
    A prompt that begins with all that its context held extends it. Otherwise the break is declared, with the reason
    that `to_atif` wrote; without any, `thinking_stripped` if only the reasoning of earlier replies is gone,
    `template` if the same messages have other tokens, and `undeclared` if a reply has other tokens than were sampled.

    What is marked `is_copied_context` is never trained. An agent's step without ids, or with the ids of several calls
    together, becomes supervised samples if a renderer is given, and a note in any case. A step with
    `llm_call_count == 0` was not sampled: it is a message only.

    Args:
        document: The parsed document of a trajectory; or a list of them, such as one for each player.
        renderer: The renderer of the model, or its name. It makes the supervised samples, and its tokenizer identifies
            the vocabulary.
        tokenizer: What `load_tokenizer` accepts, for a renderer that is given by its name.
        reward: The reward of the episode, which counts for the last step; harbor keeps it outside of the document. None
            if the steps have rewards, as those of `to_atif`.
        temperature: The sampling temperature of steps that name none.
        trainable_roles: The roles whose contexts are trained; None trains all. The role of a context is `main`, for a
            sub-agent the name of its agent, unless `to_atif` wrote another one.
        id: The id of the trajectory; None takes the document's `session_id`.
        env: The name of what the document comes from; None takes the one that `to_atif` wrote, or else the agent's.
        group_id: The id that episodes of the same task share; None takes the one that `to_atif` wrote.
        vocab_size: The size of the vocabulary, if there is no renderer. Token ids must be smaller. 0 if it is unknown.

    Raises:
        InvalidRecord: If a document is damaged; the message names the document, the step and the field. Or if no step
            has token ids, and there is no renderer for supervised samples.
        ConfigError: If another argument is invalid.
    """
    made = read_renderer(renderer, tokenizer)
    size = read_vocab_size(vocab_size, made)
    documents = [Found(document, "document")] if isinstance(document, Mapping) else Found(document, "documents").items()
    if not documents:
        raise InvalidRecord("there is no document; expected at least one")
    first = documents[0]
    about, ended = first.get("extra").or_empty(), first.get("final_metrics").or_empty().get("extra").or_empty()
    name = id or first.get("session_id").text() or first.get("trajectory_id").text() or "atif"
    texts = TextReplies(made, name)
    reader = _Reader(texts, size or LARGEST_ID, temperature, trainable_roles, ended)
    for one in documents:
        reader.read(one, None)
    reader.writer.earn_whole(reward)
    texts.check(has_steps=bool(reader.writer.steps))
    reason, error = _stop_reason(ended.get("stop_reason")), ended.get("error").text()
    is_failed = error is not None or reason == StopReason.ERROR
    trajectory = reader.writer.trajectory(
        id=name,
        env=env or about.get("env").text() or first.get("agent").get("name").text() or "atif",
        seed=about.get("seed").integer(),
        status="error" if is_failed else "terminated" if reason == StopReason.TERMINATED else "truncated",
        stop_reason=str(StopReason.ERROR if is_failed else reason),
        renderer={} if made is None else made.specification(),
        renderer_chosen_because="" if made is None else made.chosen_because,
        tokenizer="" if made is None else made.tokenizer.fingerprint,
        vocab_size=size,
        group_id=group_id or about.get("group_id").text(),
        error=error,
    )
    reader.set_rewards(trajectory.reward)
    return Imported(trajectory, texts.samples, (*reader.notes, *texts.notes))


def _stop_reason(found: Found) -> StopReason:
    try:
        return StopReason(found.text() or StopReason.TERMINATED)
    except ValueError as error:
        raise found.invalid(f"one of {[str(reason) for reason in StopReason]}") from error


class _Reader:
    """Reads the documents of an episode, each one as a context."""

    def __init__(
        self,
        texts: TextReplies,
        vocab_size: int,
        temperature: float,
        trainable_roles: Sequence[str] | None,
        ended: Found,
    ) -> None:
        self.writer = LogWriter()
        self.notes: list[ImportNote] = []
        self._texts, self._vocab_size, self._temperature = texts, vocab_size, temperature
        self._trainable_roles, self._ended = trainable_roles, ended
        self._rewards: list[tuple[str, float]] = []

    def read(self, document: Found, parent: str | None) -> None:
        """Read a document, and those of its sub-agents where its steps refer to them."""
        version = document.get("schema_version")
        if not (version.text() or "").startswith(_VERSIONS):
            raise version.invalid(f"{_VERSIONS!r} and a number")
        name, agent = self._name(document, parent), document.get("agent")
        role = agent.get("extra").or_empty().get("role").text() or (
            MAIN if parent is None else agent.get("name").text()
        )
        if not role:
            raise agent.get("name").invalid("a text that is not empty")
        is_trainable = self._trainable_roles is None or role in self._trainable_roles
        is_handoff = parent is not None or _is_handoff(document)
        log = self.writer.open(name, role, parent, is_handoff=is_handoff, is_trainable=is_trainable)
        log.tools = [dict(tool.mapping()) for tool in agent.get("tool_definitions").items()]
        self._read_end(document, name, is_child=parent is not None)
        _DocumentReader(self, document, name, parent).read()

    def _name(self, document: Found, parent: str | None) -> str:
        """Return the name of a document's context, which is in the id that `to_atif` wrote."""
        given = document.get("trajectory_id").text()
        session = document.get("session_id").text()
        if session and given and given.startswith(f"{session}/"):
            name = given.removeprefix(f"{session}/")
        else:
            name = MAIN if parent is None else f"{parent}/{given}"
        if name not in self.writer:
            return name
        if parent is not None or (given and name != MAIN):
            raise document.get("trajectory_id").invalid("an id that no other document has")
        number = 2
        while (name := f"{MAIN}-{number}") in self.writer:
            number += 1
        return name

    def _read_end(self, document: Found, name: str, *, is_child: bool) -> None:
        """Read how a context ended. An error that is not the episode's is its own."""
        ended, log = document.get("final_metrics").or_empty().get("extra").or_empty(), self.writer.log(name)
        reward = ended.get("reward").number()
        if reward is not None:
            self._rewards.append((name, reward))
        if is_child and ended.get("stop_reason").text() is not None:
            log.stop_reason = str(_stop_reason(ended.get("stop_reason")))
        if ended.get("error").text() != self._ended.get("error").value:
            log.error = ended.get("error").value

    def set_rewards(self, whole: float) -> None:
        """Set the rewards of contexts that differ from the episode's."""
        for name, reward in self._rewards:
            if reward != whole and any(step.context == name for step in self.writer.steps):
                self.writer.log(name).reward = reward

    def note(self, kind: Any, found: Found, text: str) -> None:
        """Add a note."""
        self.notes.append(ImportNote(kind, found.where, text))

    def reply(self, step: Found, message: Message) -> LoggedReply | None:
        """Return the reply of a step with its ids, or None with a note."""
        metrics, extra = step.get("metrics").or_empty(), step.get("extra").or_empty()
        prompt, tokens = metrics.get("prompt_token_ids"), metrics.get("completion_token_ids")
        missing = [found.where for found in (prompt, tokens) if found.value is None]
        calls, temperatures = step.get("llm_call_count").integer(), extra.get("temperatures").items()
        if missing:
            self.note("no_ids", step, f"{' and '.join(missing)} are missing, so its text is all that can be trained")
            return None
        if calls is not None and calls > 1 and len(temperatures) != calls:
            self.note("no_ids", step, f"its ids are those of {calls} calls, which cannot be told apart")
            return None
        if metrics.get("logprobs").value is None:
            self.note("no_logprobs", step, "the log-probabilities of its tokens are missing")
        return checked_reply(
            prompt,
            tokens,
            metrics.get("logprobs"),
            message=message,
            vocab_size=self._vocab_size,
            renderer=self._texts.renderer,
            finish_reason=finish_reason_of(extra.get("finish_reason").text()),
            temperature=self._one(step, temperatures, self._temperature),
            policy_version=self._one(step, extra.get("policy_versions").items(), None),
        )

    def _one(self, step: Found, values: Sequence[Found], default: Any) -> Any:
        """Return the value of all parts of a reply: the document does not say where a part ends."""
        numbers = [value.number() for value in values]
        if len(set(numbers)) > 1:
            self.note("sampling", step, f"its parts were sampled with {numbers}; the first is taken for all of them")
        return values[0].value if values else default

    def train(self, name: str, messages: Sequence[Message], indices: Sequence[int]) -> None:
        """Make supervised samples of replies without ids."""
        log = self.writer.log(name)
        if log.is_trainable:
            self._texts.train(name, log.role, messages, log.tools, indices)


def _is_handoff(document: Found) -> bool:
    """Return whether `to_atif` wrote that a handoff opened the context. Those of a program may have no parent."""
    extras = (step.get("extra").or_empty() for step in document.get("steps").items())
    return any(extra.get("break").or_empty().get("reason").text() == "handoff" for extra in extras)


class _DocumentReader:
    """Reads the steps of a document."""

    def __init__(self, reader: _Reader, document: Found, name: str, parent: str | None) -> None:
        self._reader, self._writer = reader, reader.writer
        self._document, self._name, self._parent = document, name, parent
        self._messages = reader.writer.log(name).messages
        self._untrained: list[int] = []
        self._is_return = False
        self._known: set[str | None] = set()
        children = document.get("subagent_trajectories").items()
        is_copied = any(step.get("is_copied_context").value is True for step in document.get("steps").items()[:1])
        self._base = parent if is_copied else None
        self._children = {child.get("trajectory_id").text(): child for child in children}
        if len(self._children) < len(children) or None in self._children:
            raise document.get("subagent_trajectories").invalid("documents with different ids (trajectory_id)")

    def read(self) -> None:
        """Read all steps, and the documents of sub-agents."""
        steps = self._document.get("steps")
        if not steps.items():
            raise steps.invalid("at least one step")
        for step in steps.items():
            self._read_step(step)
            for result in step.get("observation").or_empty().get("results").items():
                self._read_result(step, result)
        for trajectory_id in list(self._children):  # those that no step refers to
            self._read_child(trajectory_id, self._document)
        self._reader.train(self._name, self._messages, self._untrained)

    def _read_step(self, step: Found) -> None:
        message = message_of_step(step)
        is_reply = message.role == "assistant" and step.get("llm_call_count").integer() != 0
        if not is_reply or step.get("is_copied_context").value:
            self._messages.append(message)
            self._earn(step)  # of a step before a fork
            return
        reply = self._reader.reply(step, message)
        if reply is None:
            self._untrained.append(len(self._messages))
            self._messages.append(message)
        else:
            self._add(step, reply, message)
        self._earn(step)

    def _add(self, step: Found, reply: LoggedReply, message: Message) -> None:
        extra = step.get("extra").or_empty()
        added = self._writer.add(self._name, reply, message, base=self._base, change=self._change(extra))
        self._is_return = False
        metrics = extra.get("metrics").or_empty()
        added.metrics = {key: metrics.get(key).number() or 0.0 for key in metrics.mapping()}
        added.masked = tuple(_masked(extra.get("masked"), added))

    def _earn(self, step: Found) -> None:
        extra = step.get("extra").or_empty()
        self._writer.earn(extra.get("rewards").rewards() or extra.get("reward").rewards())

    def _change(self, extra: Found) -> Change:
        """Return the break that `to_atif` wrote, if it did."""
        given = extra.get("break").or_empty()
        reason, detail = given.get("reason").text(), given.get("detail").text() or ""
        is_rewrite = reason in (*get_args(RewriteReason), "undeclared")
        if not detail and self._parent is not None:
            detail = f"from {self._parent}"
        return Change(cast("Any", reason) if is_rewrite else None, detail, self._is_return)

    # Results.

    def _read_result(self, step: Found, result: Found) -> None:
        for reference in result.get("subagent_trajectory_ref").items():
            self._read_child(reference.get("trajectory_id").text(), reference)
        message = message_of_result(step, result)
        if message is not None:
            self._messages.append(message)

    def _read_child(self, trajectory_id: str | None, where: Found) -> None:
        """Read the document of a sub-agent, once."""
        child = self._children.pop(trajectory_id, None)
        self._is_return = True
        if child is not None:
            self._known.add(trajectory_id)
            self._reader.read(child, self._name)
        elif trajectory_id not in self._known:
            self._reader.note("left_out", where, "the sub-agent's document is not in its parent's: it is left out")


def _masked(ranges: Found, step: Step) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the log that hold sampled tokens of a step which are not trained.

    Raises:
        InvalidRecord: If they are not ranges of the sampled tokens, in order.
    """
    end = step.action_start
    for given in ranges.items():
        bounds = [bound.integer() for bound in given.items()]
        if len(bounds) != 2 or bounds[0] is None or bounds[1] is None:
            raise given.invalid("the start and the stop of a range of sampled tokens")
        start, stop = step.action_start + bounds[0], step.action_start + bounds[1]
        if not end <= start < stop <= step.stop:
            raise given.invalid(f"a range of the {step.stop - step.action_start} sampled tokens, after the one before")
        yield start, stop
        end = stop
