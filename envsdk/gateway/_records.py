"""The reading of logged exchanges: the bodies of a request and its response, in any of the three protocols.

A response may be logged as the events of its stream. Sources: the streams of OpenAI's Chat Completions and Responses
and of Anthropic's Messages; vLLM's `token_ids` of each choice of a chunk, and its `prompt_token_ids` of the first chunk
(`return_token_ids`).
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pydantic_core

from .._visible import brief, type_of
from ..errors import InvalidRecord, RequestError
from ..messages import Message
from ..trainers.foreign._importer import LoggedIds
from ..trainers.foreign._values import LoggedValue
from ._protocols import WIRE_FORMATS, SessionMemory
from ._requests import ModelRequest

# The fields that matter after the reply was sampled.
_SAID = {
    "chat": ("messages", "tools", "functions", "stop"),
    "responses": ("input", "instructions", "tools"),
    "anthropic": ("messages", "system", "tools", "stop_sequences"),
}
_TOKENS = ("token_ids", "generation_token_ids", "response_token_ids", "completion_token_ids")
_LOGPROBS = ("generation_log_probs", "token_logprobs")
_PREFIX = "token_id:"

# The fields that a chunk repeats or sends once; other strings and lists of chunks are parts of one.
_ONCE = frozenset({"id", "type", "role", "index", "finish_reason", "stop_reason", "prompt_token_ids", "meta_info"})
_ENDED = ("response.completed", "response.incomplete", "response.failed")


@dataclass(frozen=True, slots=True)
class LoggedAnswer:
    """A reply in a response.

    Attributes:
        message: The reply. Its calls have the ids of the log.
        ids: Its token ids and log-probabilities, as far as they were logged.
        finish_reason: The finish reason that the server reported.
    """

    message: Message
    ids: LoggedIds
    finish_reason: object


@dataclass(frozen=True, slots=True)
class Exchange:
    """A logged exchange.

    Attributes:
        where: The record, such as `record 3`.
        request: The request. `previous` is the id of a logged response.
        answers: The replies; empty if the record is left out.
        left_out: Why the record is left out.
        id: The id of the response, or None.
        temperature: The sampling temperature that the request named, or None.
        policy_version: The version of the weights, or None.
        rewards: The rewards by name.
    """

    where: str
    request: ModelRequest
    answers: tuple[LoggedAnswer, ...]
    left_out: str = ""
    id: str | None = None
    temperature: float | None = None
    policy_version: int | None = None
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(eq=False, repr=False)
class RecordReader:
    """Reads the records of one session in their order.

    Args:
        protocol: The protocol of all records; None recognizes it, record by record.
    """

    _protocol: str | None = None
    _memory: SessionMemory = field(default_factory=SessionMemory)
    _items: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """For Responses: the conversation up to a response, by its id."""
    _by_id: dict[str, Any] = field(default_factory=dict[str, Any])  # for Responses: items by their id
    _seen: dict[str, tuple[str, Any, Any]] = field(default_factory=dict[str, tuple[str, Any, Any]])
    """The records by the id of their response."""

    def read(self, record: Any, index: int) -> Exchange:
        """Read a record.

        Raises:
            InvalidRecord: If it is damaged; the message names the record and the field.
        """
        found = LoggedValue(record, f"record {index}")
        name, body, response = self._protocol_of(found), found.get("request"), found.get("response")
        said = {key: body.mapping()[key] for key in _SAID[name] if body.mapping().get(key) is not None}
        if name == "responses":
            said["input"] = self._whole_input(body)
        headers = {str(key).lower(): value for key, value in found.get("headers").object().mapping().items()}
        try:
            request = _read_request(name, said, headers, self._memory)
        except RequestError as error:
            raise InvalidRecord(f"record {index}: {error}") from error
        if request.system is None and not request.messages:
            raise body.get("input" if name == "responses" else "messages").invalid("at least one message")
        given = None if response.value is None else response
        if isinstance(response.value, list | tuple):
            given = _assembled(name, response)
        response_id = None if given is None else given.get("id").text()
        left_out = self._left_out(found, given, response_id)
        answers = tuple(_answers(name, given)) if given is not None and not left_out else ()
        previous = body.get("previous_response_id").text() if name == "responses" else None
        if name == "responses" and answers and given is not None and response_id is not None:
            output = given.get("output").value
            self._items[response_id] = [*said["input"], *output]
            self._by_id.update((item["id"], item) for item in output if isinstance(item.get("id"), str))
        return Exchange(
            where=found.where,
            request=replace(request, previous=previous),
            answers=answers,
            left_out=left_out,
            id=response_id,
            temperature=body.get("temperature").number("a number of at least 0", least=0),
            policy_version=found.get("policy_version").integer(),
            rewards=found.get("reward").rewards(),
        )

    def _protocol_of(self, found: LoggedValue) -> str:
        named = found.get("protocol")
        if named.value is not None and named.value not in tuple(WIRE_FORMATS):
            raise named.invalid(f"one of {tuple(WIRE_FORMATS)}")
        if named.value is not None or self._protocol is not None:
            return str(named.value or self._protocol)
        if "input" in found.get("request").mapping():
            return "responses"
        response = found.get("response")
        if isinstance(response.value, list | tuple):  # events of Anthropic Messages, or chunks of Chat Completions
            return "anthropic" if any("type" in event.mapping() for event in response.items()[:1]) else "chat"
        return "anthropic" if "content" in response.object().mapping() else "chat"

    def _left_out(self, found: LoggedValue, response: LoggedValue | None, id: str | None) -> str:
        """Return why a record is left out; empty if it is not."""
        if response is None and found.get("response").value is not None:
            return "the stream of its response ends before the reply does: it is left out"
        if response is None or response.get("error").value is not None:
            return "the request has no reply: it is left out"
        if id is None:
            return ""
        where, *exchange = self._seen.setdefault(id, (found.where, found.get("request").value, response.value))
        is_same = exchange == [found.get("request").value, response.value]
        return f"it is {where} again: it is left out" if where != found.where and is_same else ""

    def _whole_input(self, body: LoggedValue) -> list[Any]:
        """Return the items of a conversation, with those of the response that a request continues."""
        previous, given = body.get("previous_response_id"), body.get("input")
        before: list[Any] = []
        if previous.text() is not None:
            if previous.value not in self._items:
                raise previous.invalid("the id of a response that is in an earlier record")
            before = self._items[previous.value]
        if isinstance(given.value, str):
            return [*before, {"role": "user", "content": given.value}]
        items: list[Any] = []
        for item in given.items():
            is_reference = item.get("type").value == "item_reference"
            if is_reference and item.get("id").value not in self._by_id:
                raise item.get("id").invalid("the id of an item that is in an earlier record")
            items.append(self._by_id[item.get("id").value] if is_reference else item.value)
        return [*before, *items]


def _read_request(
    name: str, said: Mapping[str, Any], headers: Mapping[str, Any], memory: SessionMemory | None = None
) -> ModelRequest:
    for key, value in headers.items():
        if not isinstance(value, str):
            raise RequestError(f"headers.{key}: expected a string")
    body = {"model": "logged", **({"max_tokens": 1} if name == "anthropic" else {}), **said}
    return WIRE_FORMATS[name].read(body, headers, memory)


def _answers(name: str, response: LoggedValue) -> list[LoggedAnswer]:
    if name == "chat":
        choices = response.get("choices").items()
        if not choices:
            raise response.get("choices").invalid("at least one choice")
        answers: list[LoggedAnswer] = []
        for choice in choices:
            given = choice.get("message")
            fields = {key: value for key, value in given.mapping().items() if key != "role"}
            message = _message(name, {"messages": [{"role": "assistant", **fields}]}, given)
            ids = ids_of([choice, given, response])
            answers.append(LoggedAnswer(message, ids, choice.get("finish_reason").value))
        return answers
    if name == "anthropic":
        content = response.get("content")
        given = [{"role": "assistant", "content": content.value}, {"role": "user", "content": "-"}]
        message = _message(name, {"messages": given}, content)
        return [LoggedAnswer(message, ids_of([response]), response.get("stop_reason").value)]
    output = response.get("output")
    message = _message(name, {"input": [item.mapping() for item in output.items()]}, output)
    ended = response.get("incomplete_details").object().get("reason").value
    places = [*reversed(output.items()), response]
    return [LoggedAnswer(message, ids_of(places), ended or response.get("status").value)]


def _message(name: str, said: Mapping[str, Any], field: LoggedValue) -> Message:
    """Return the reply that a response holds, read as a later request would send it back."""
    try:
        read = _read_request(name, said, {}).messages
    except RequestError as error:
        raise InvalidRecord(f"{field.where} cannot be read: {error}") from error
    replies = [received.message for received in read if received.message.role == "assistant"]
    if len(replies) != 1:
        raise InvalidRecord(f"{field.where} holds {len(replies)} replies; expected one")
    return replies[0]


def ids_of(places: Sequence[LoggedValue]) -> LoggedIds:
    """Return the ids and log-probabilities of a reply; their value is None if they are missing.

    - vLLM (`return_token_ids`): `prompt_token_ids`, `choices[].token_ids`, `choices[].logprobs.content`. With
      `return_tokens_as_token_ids`, the ids of the reply are in the log-probabilities, as `token_id:123`.
    - SGLang (`return_prompt_token_ids`, `return_meta_info`): `choices[].prompt_token_ids`, and
      `choices[].meta_info.output_token_logprobs`, a list of (log-probability, id, text).
    - LiteLLM, and so agent-lightning: what vLLM adds to a choice is in `choices[].provider_specific_fields`.
    - NeMo Gym: `prompt_token_ids`, `generation_token_ids` and `generation_log_probs` of a message, or of an item of
      Responses.

    Args:
        places: The objects that may have them, the most specific one first.
    """
    nearest, last = places[0].where, places[-1].where
    places = [*places, *(place.get("provider_specific_fields").object() for place in places)]

    def first(keys: Sequence[str]) -> LoggedValue | None:
        fields = (place.get(key) for place in places for key in keys)
        return next((field for field in fields if field.value is not None), None)

    # SGLang's ids and log-probabilities are in triples with the text of the token.
    metas = (place.get("meta_info").object().get("output_token_logprobs") for place in places)
    triples = next((meta for meta in metas if meta.value is not None), None)
    sglang_ids, sglang_logprobs = None, None
    if triples is not None:
        rows = [(item, item.items()) for item in triples.items()]
        short = next((item for item, row in rows if len(row) < 2), None)
        if short is not None:
            raise short.invalid("a log-probability, an id and a string")
        sglang_ids = LoggedValue([row[1].value for _, row in rows], triples.where)
        sglang_logprobs = LoggedValue([row[0].value for _, row in rows], triples.where)
    lists = (place.get("logprobs") for place in places)  # OpenAI's: an object for each token, perhaps under `content`
    lists = (found.get("content") if isinstance(found.value, dict) else found for found in lists)
    content = next((found for found in lists if found.value is not None), None)
    logprobs = None if content is None else LoggedValue(_column(content, "logprob"), content.where)
    return LoggedIds(
        first(("prompt_token_ids",)) or LoggedValue(None, f"{last}.prompt_token_ids"),
        first(_TOKENS) or sglang_ids or _ids_in(content) or LoggedValue(None, f"{nearest}.token_ids"),
        sglang_logprobs or first(_LOGPROBS) or logprobs or LoggedValue(None, f"{nearest}.logprobs"),
    )


def _column(content: LoggedValue, key: str) -> list[Any]:
    """Return a field of the entry of each token; an entry may be the value itself."""
    given: Any = content.value
    if not isinstance(given, list):
        raise content.invalid("a list")
    entries = cast("list[Any]", given)
    return [cast("dict[str, Any]", entry).get(key) if isinstance(entry, dict) else entry for entry in entries]


def _ids_in(content: LoggedValue | None) -> LoggedValue | None:
    """Return the ids that vLLM writes in place of the tokens' strings."""
    texts = [] if content is None else _column(content, "token")
    found = [text.removeprefix(_PREFIX) for text in texts if isinstance(text, str) and text.startswith(_PREFIX)]
    if content is None or not found or len(found) < len(texts):
        return None
    if not all(text.isascii() and text.isdigit() for text in found):
        return None
    return LoggedValue([int(text) for text in found], content.where)


def with_unique_call_ids(exchanges: Sequence[Exchange]) -> tuple[list[Exchange], dict[str, str]]:
    """Give each call that shares its id with a call of another reply a new id.

    Some servers number the calls of each reply from 0. An id that two replies have identifies neither.

    Returns:
        The exchanges, and the ids of the log by the new ones.
    """
    owners: dict[str, set[tuple[int, int]]] = {}
    for i, exchange in enumerate(exchanges):
        for k, answer in enumerate(exchange.answers):
            for call in answer.message.tool_calls:
                owners.setdefault(cast("str", call.id), set()).add((i, k))
    shared = {name for name, replies in owners.items() if len(replies) > 1}
    if not shared:
        return list(exchanges), {}
    renamed: dict[str, str] = {}
    unique: list[Exchange] = []
    for i, exchange in enumerate(exchanges):
        answers: list[LoggedAnswer] = []
        for k, answer in enumerate(exchange.answers):
            calls = list(answer.message.tool_calls)
            for j, call in enumerate(calls):
                if call.id in shared:
                    renamed[f"logged_{i}_{k}_{j}"] = str(call.id)
                    calls[j] = call.model_copy(update={"id": f"logged_{i}_{k}_{j}"})
            message = answer.message.model_copy(update={"tool_calls": tuple(calls)})
            answers.append(replace(answer, message=message))
        unique.append(replace(exchange, answers=tuple(answers)))
    return unique, renamed


# Streams.


def _assembled(name: str, events: LoggedValue) -> LoggedValue | None:
    """Return the body of the response that was sent as these events, or None if they end before the reply does."""
    found = events.items()
    for event in found:
        if event.get("error").value is not None or event.get("type").value == "error":
            return LoggedValue({"error": event.get("error").value or event.value}, event.where)
    whole = {"chat": _chat, "responses": _responses, "anthropic": _anthropic}[name](found)
    return None if whole is None else LoggedValue(whole, events.where)


def _chat(chunks: Sequence[LoggedValue]) -> dict[str, Any] | None:
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for key, value in chunk.mapping().items():
            if key != "choices" and whole.get(key) is None:
                whole[key] = value
        for choice in chunk.get("choices").items():
            into = choices.setdefault(choice.get("index").integer() or 0, {"message": {"role": "assistant"}})
            _add(into, LoggedValue({k: v for k, v in choice.mapping().items() if k != "delta"}, choice.where))
            _add(into["message"], choice.get("delta").object())
    if not choices or any(not choice.get("finish_reason") for choice in choices.values()):
        return None
    for choice in choices.values():
        choice["message"].setdefault("content", None if "tool_calls" in choice["message"] else "")
    return {**whole, "choices": [choices[index] for index in sorted(choices)]}


def _add(whole: dict[str, Any], part: LoggedValue) -> None:
    """Add the fields of a chunk to those of the chunks before it."""
    for key, value in part.mapping().items():
        if value is None:
            continue
        before = whole.get(key)
        if key in _ONCE or isinstance(value, (bool, int, float)):
            whole[key] = before or deepcopy(value)
        elif before is not None and type(before) is not type(value):
            raise part.get(key).invalid(f"{type_of(before)}, as in the chunks before it")
        elif isinstance(value, dict):
            _add(whole.setdefault(key, {}), part.get(key))
        elif isinstance(value, list):  # the items with an `index`, the calls, come in parts
            items: list[Any] = whole.setdefault(key, [])
            for item in part.get(key).items():
                index = _index_in(item.value)
                known = None if index is None else next((entry for entry in items if _index_in(entry) == index), None)
                if known is None:
                    items.append(deepcopy(item.value))
                else:
                    _add(known, item)
        else:
            whole[key] = value if before is None else before + value


def _index_in(item: Any) -> Any:
    return cast("dict[str, Any]", item).get("index") if isinstance(item, dict) else None


def _responses(events: Sequence[LoggedValue]) -> dict[str, Any] | None:
    """Return the response of the last event. Its output may be missing there: each item has its own event."""
    last = next((event for event in reversed(events) if event.get("type").value in _ENDED), None)
    if last is None:
        return None
    response = last.get("response")
    done = [event.get("item").mapping() for event in events if event.get("type").value == "response.output_item.done"]
    return {**response.mapping(), "output": response.get("output").value or done}


def _anthropic(events: Sequence[LoggedValue]) -> dict[str, Any] | None:
    whole: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    inputs: dict[int, str] = {}
    for event in events:
        kind = event.get("type").value
        if kind == "message_start":
            whole = deepcopy(dict(event.get("message").mapping()))
        elif kind == "content_block_start":
            blocks[_index(event)] = deepcopy(dict(event.get("content_block").mapping()))
        elif kind == "content_block_delta":
            index, delta = _index(event), event.get("delta")
            if index not in blocks:
                raise event.get("index").invalid("the index of a block that an earlier event starts")
            if delta.get("type").value == "input_json_delta":
                inputs[index] = inputs.get(index, "") + (delta.get("partial_json").text() or "")
            else:
                texts = {k: v for k, v in delta.mapping().items() if k in ("text", "thinking", "signature")}
                _add(blocks[index], LoggedValue(texts, delta.where))
        elif kind == "content_block_stop" and inputs.get(_index(event)):
            text = inputs[_index(event)]
            try:
                blocks[_index(event)]["input"] = pydantic_core.from_json(text, allow_partial=True)  # a reply may be cut
            except ValueError as error:
                raise event.invalid(f"the end of a block whose input is JSON, which {brief(text)} is not") from error
        elif kind == "message_delta":
            _add(whole, event.get("delta"))
    if not whole or not whole.get("stop_reason"):
        return None
    return {**whole, "content": [blocks[index] for index in sorted(blocks)]}


def _index(event: LoggedValue) -> int:
    index = event.get("index").integer()
    if index is None:
        raise event.get("index").invalid("the index of a block")
    return index
