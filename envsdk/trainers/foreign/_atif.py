"""The front end of ATIF documents: `from_atif`.

A document is a context, and the documents of sub-agents are inside their parent's. So contexts and lineage are those of
the documents; each step's delta is computed from its prompt and the tokens that its context held. Source: see
`envsdk/trainers/atif.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from pydantic import ValidationError

from ..._describing import what_is_invalid
from ...contexts._protocol import RewriteReason
from ...errors import InvalidRecord
from ...limits import StopReason
from ...messages import Message, ToolCall
from ...rendering.renderer import Renderer
from ...trajectories._steps import Step
from ._importer import Change, Importer, ImportResult, LoggedIds, LoggedReply, finish_reason_of
from ._values import LoggedValue

MAIN = "main"
_VERSIONS = "ATIF-v1."
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


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
) -> ImportResult:
    """Make a trajectory from ATIF documents with token ids: those of `to_atif`, or of harbor and others.

    A step of the agent with `metrics.prompt_token_ids` and `metrics.completion_token_ids` is a step of the trajectory.
    A prompt that begins with all that its context held extends it. Otherwise the break is declared, with the reason
    that `to_atif` wrote; without one, `thinking_stripped` if only the reasoning of earlier replies is gone, `template`
    if the tokens of the same messages differ, and `undeclared` if the tokens of a reply differ from the sampled ones.

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
            has token ids, and no renderer was given for supervised samples.
        ConfigError: If another argument is invalid.
    """
    given = document if isinstance(document, Mapping) else None
    documents = LoggedValue(document, "documents").items() if given is None else [LoggedValue(given, "document")]
    if not documents:
        raise InvalidRecord("there is no document; expected at least one")
    first = documents[0]
    about, ended = first.get("extra").object(), _ended(first)
    name = id or first.get("session_id").text() or first.get("trajectory_id").text() or "atif"
    importer = Importer(
        name, renderer=renderer, tokenizer=tokenizer, vocab_size=vocab_size, trainable_roles=trainable_roles
    )
    episode = _Episode(importer, temperature, ended.get("error").value)
    for one in documents:
        _DocumentReader(episode, one, None).read()
    imported = importer.finish(
        reward=reward,
        stop_reason=_stop_reason(ended.get("stop_reason")),
        error=ended.get("error").text(),
        env=env or about.get("env").text() or first.get("agent").get("name").text() or "atif",
        seed=about.get("seed").integer(),
        group_id=group_id or about.get("group_id").text(),
    )
    trajectory = imported.trajectory
    for context, own in episode.rewards:
        if own != trajectory.reward and any(step.context == context for step in trajectory.steps):
            trajectory.contexts[context].reward = own
    return imported


def _ended(document: LoggedValue) -> LoggedValue:
    return document.get("final_metrics").object().get("extra").object()


def _stop_reason(value: LoggedValue) -> StopReason:
    try:
        return StopReason(value.text() or StopReason.TERMINATED)
    except ValueError as error:
        raise value.invalid(f"one of {[str(reason) for reason in StopReason]}") from error


@dataclass(slots=True)
class _Episode:
    """The state that the readers of an episode's documents share.

    Attributes:
        importer: Takes the contexts and the replies.
        temperature: The sampling temperature of steps that name none.
        error: The error of the episode, which is not that of a context.
        rewards: The contexts whose documents have a reward, and the reward.
    """

    importer: Importer
    temperature: float
    error: Any
    rewards: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])


class _DocumentReader:
    """Reads a document as a context, and those of its sub-agents where its steps refer to them."""

    def __init__(self, episode: _Episode, document: LoggedValue, parent: str | None) -> None:
        self._episode, self._importer = episode, episode.importer
        self._document, self._parent = document, parent
        version, agent, steps = document.get("schema_version"), document.get("agent"), document.get("steps").items()
        if not (version.text() or "").startswith(_VERSIONS):
            raise version.invalid(f"{_VERSIONS!r} and a number")
        self._name = self._context_name()
        role = agent.get("extra").object().get("role").text() or (MAIN if parent is None else agent.get("name").text())
        if not role:
            raise agent.get("name").invalid("a string that is not empty")
        # A handoff that `to_atif` wrote: the contexts of a program may have no parent.
        written = [step.get("extra").object().get("break").object().get("reason").text() for step in steps]
        self._log = self._importer.open(self._name, role, parent, is_handoff=parent is not None or "handoff" in written)
        self._log.tools = [dict(tool.mapping()) for tool in agent.get("tool_definitions").items()]
        self._read_end()
        children = document.get("subagent_trajectories")
        self._children = {child.get("trajectory_id").text(): child for child in children.items()}
        if len(self._children) < len(children.items()) or None in self._children:
            raise children.invalid("documents with different ids (trajectory_id)")
        self._known: set[str | None] = set()
        self._untrained: list[int] = []
        self._is_return = False
        is_copied = any(step.get("is_copied_context").value is True for step in steps[:1])
        self._base = parent if is_copied else None

    def _context_name(self) -> str:
        """Return the name of the context, which is in the id that `to_atif` wrote."""
        given, session = self._document.get("trajectory_id").text(), self._document.get("session_id").text()
        if session and given and given.startswith(f"{session}/"):
            name = given.removeprefix(f"{session}/")
        else:
            name = MAIN if self._parent is None else f"{self._parent}/{given}"
        if name in self._importer and (self._parent is not None or (given and name != MAIN)):
            raise self._document.get("trajectory_id").invalid("an id that no other document has")
        number = 2
        while name in self._importer:
            name, number = f"{MAIN}-{number}", number + 1
        return name

    def _read_end(self) -> None:
        """Read how the context ended. An error that is not the episode's is the context's."""
        ended = _ended(self._document)
        reward = ended.get("reward").number()
        if reward is not None:
            self._episode.rewards.append((self._name, reward))
        if self._parent is not None and ended.get("stop_reason").text() is not None:
            self._log.stop_reason = str(_stop_reason(ended.get("stop_reason")))
        if ended.get("error").text() != self._episode.error:
            self._log.error = ended.get("error").value

    def read(self) -> None:
        """Read all steps, and the documents of sub-agents."""
        steps = self._document.get("steps")
        if not steps.items():
            raise steps.invalid("at least one step")
        for step in steps.items():
            message, extra = _message_of_step(step), step.get("extra").object()
            is_reply = message.role == "assistant" and step.get("llm_call_count").integer() != 0
            is_reply = is_reply and not step.get("is_copied_context").value
            reply = self._reply(step, message) if is_reply else None
            if reply is not None:
                added = self._importer.add(self._name, reply, message, base=self._base, change=self._change(extra))
                self._is_return = False
                metrics = extra.get("metrics").object()
                added.metrics = {key: metrics.get(key).number() or 0.0 for key in metrics.mapping()}
                added.masked = tuple(_masked(extra.get("masked"), added))
            else:
                self._untrained += [len(self._log.messages)] if is_reply else []
                self._log.messages.append(message)
            self._importer.earn(extra.get("rewards").rewards() or extra.get("reward").rewards())
            for result in step.get("observation").object().get("results").items():
                for reference in result.get("subagent_trajectory_ref").items():
                    self._read_child(reference.get("trajectory_id").text(), reference)
                answer = _message_of_result(step, result)
                if answer is not None:
                    self._log.messages.append(answer)
        for trajectory_id in list(self._children):  # those that no step refers to
            self._read_child(trajectory_id, self._document)
        self._importer.train(self._name, self._log.messages, self._untrained, self._log.tools)

    def _read_child(self, trajectory_id: str | None, where: LoggedValue) -> None:
        """Read the document of a sub-agent, once."""
        child = self._children.pop(trajectory_id, None)
        self._is_return = True
        if child is not None:
            self._known.add(trajectory_id)
            _DocumentReader(self._episode, child, self._name).read()
        elif trajectory_id not in self._known:
            text = "the sub-agent's document is not in its parent's: it is left out"
            self._importer.note("left_out", where.where, text)

    def _reply(self, step: LoggedValue, message: Message) -> LoggedReply | None:
        """Return the reply of a step with its ids, or None with a note."""
        metrics, extra = step.get("metrics").object(), step.get("extra").object()
        ids = LoggedIds(*(metrics.get(key) for key in ("prompt_token_ids", "completion_token_ids", "logprobs")))
        calls, temperatures = step.get("llm_call_count").integer(), extra.get("temperatures").items()
        has_ids = ids.prompt.value is not None and ids.tokens.value is not None
        if has_ids and calls is not None and calls > 1 and len(temperatures) != calls:
            text = f"its ids are those of {calls} calls, which cannot be told apart"
            self._importer.note("no_ids", step.where, text)
            return None
        sampling = {
            "temperature": self._one(step, temperatures, self._episode.temperature),
            "policy_version": self._one(step, extra.get("policy_versions").items(), None),
        }
        finish_reason = finish_reason_of(extra.get("finish_reason").text())
        return self._importer.reply(step.where, ids, message, finish_reason=finish_reason, **sampling)

    def _one(self, step: LoggedValue, values: Sequence[LoggedValue], default: Any) -> Any:
        """Return the value of all parts of a reply: the document does not specify where a part ends."""
        numbers = [value.number() for value in values]
        if len(set(numbers)) > 1:
            text = f"its parts were sampled with {numbers}; the first is taken for all of them"
            self._importer.note("sampling", step.where, text)
        return values[0].value if values else default

    def _change(self, extra: LoggedValue) -> Change:
        """Return the break that `to_atif` wrote, if it did."""
        given = extra.get("break").object()
        reason, detail = given.get("reason").text(), given.get("detail").text() or ""
        is_rewrite = reason in (*get_args(RewriteReason), "undeclared")
        if not detail and self._parent is not None:
            detail = f"from {self._parent}"
        return Change(cast("Any", reason) if is_rewrite else None, detail, self._is_return)


def _masked(ranges: LoggedValue, step: Step) -> Iterator[tuple[int, int]]:
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


def _message_of_step(step: LoggedValue) -> Message:
    """Return the message of a step, without its observation."""
    source = step.get("source")
    role = _ROLES.get(source.text() or "")
    if role is None:
        raise source.invalid(f"one of {tuple(_ROLES)}")
    fields: dict[str, Any] = {"content": _content(step.get("message"), is_required=True)}
    if role == "assistant":
        fields["reasoning"] = step.get("reasoning_content").text()
        fields["tool_calls"] = [_call(call) for call in step.get("tool_calls").items()]
    return _message(step, role=role, **fields)


def _message_of_result(step: LoggedValue, result: LoggedValue) -> Message | None:
    """Return the message of a result of a step: a user's if the step has no calls; None without content."""
    if result.get("content").value is None:
        return None
    content, extra = _content(result.get("content"), is_required=False), result.get("extra").object()
    call = result.get("source_call_id").text() or extra.get("tool_call_id").text()
    name = extra.get("name").text()
    if call or name or step.get("tool_calls").items():
        return _message(result, role="tool", content=content, tool_call_id=call, name=name)
    return _message(result, role="user", content=content)


def _content(value: LoggedValue, *, is_required: bool) -> Any:
    """Return a string, or the parts of a content: text and images."""
    if isinstance(value.value, (list, tuple)):
        return [_part(part) for part in value.items()]
    if value.value is None and is_required:
        raise value.invalid("a string")
    return value.text() or ""


def _part(value: LoggedValue) -> dict[str, Any]:
    kind = value.get("type").value
    if kind == "text":
        return {"type": "text", "text": value.get("text").text() or ""}
    if kind != "image":
        raise value.get("type").invalid("'text' or 'image': other media are not supported")
    path = value.get("source").object().get("path")
    if not (path.text() or "").startswith("data:"):
        raise path.invalid("a data: URL; nothing is fetched, and no file of a document is opened")
    return {"type": "image_url", "image_url": {"url": path.text()}}


def _call(value: LoggedValue) -> ToolCall:
    arguments, extra = value.get("arguments"), value.get("extra").object()
    given = extra.get("arguments").text()
    try:
        return ToolCall.model_validate(
            {
                "name": value.get("function_name").text() or "",
                "arguments": dict(arguments.mapping()) if given is None else given,
                "id": value.get("tool_call_id").text(),
                "error": extra.get("error").text(),
            }
        )
    except ValidationError as error:
        raise InvalidRecord(f"{value.where}: {what_is_invalid(error)}") from error


def _message(value: LoggedValue, **fields: Any) -> Message:
    try:
        return Message.model_validate(fields)
    except ValidationError as error:
        raise InvalidRecord(f"{value.where}: {what_is_invalid(error)}") from error
