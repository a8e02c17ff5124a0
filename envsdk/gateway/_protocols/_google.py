"""Google's generateContent (https://ai.google.dev/api/generate-content), streamed or not, with `countTokens`.

- The model's name and whether the reply is streamed are in the path; the server adds them to the body, as `model` and
  `stream`. Names of fields may be in camel case or in snake case, as Google's own client mixes them.
- The contents of `model` that follow each other are one reply: clients keep each chunk of a stream as a content.
- A reply has parts that are thoughts only if the request has `includeThoughts`. The `thoughtSignature` of the reply's
  last part or first call identifies it.
- Google's client sends results without the id of their call: a result answers the first open call of its name.
- Tools of Google's servers (`googleSearch`, `codeExecution`, `urlContext`, ...) and the parts that they made are left
  out. Safety settings have no meaning here.
"""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from ..._visible import brief
from ...errors import RequestError
from ...images import Image
from ...messages import ImagePart, Message, ToolCall, check_json
from .._requests import INVALID_JSON, GivenTool, ModelReply, ModelRequest, ReceivedMessage
from ._fields import LARGEST, CallIds, Fields, check_unique, content_of, read_image, refused, tool_schema, valid
from ._memory import SessionMemory
from ._tools import vendor_tool
from ._wire import SIGNED, Kind, ReplyStream, WireFormat, event_bytes, signed, split_system, token_logprobs

_MAX_REPLIES = 8
_CHOICES = {"AUTO": "auto", "VALIDATED": "auto", "NONE": "none", "ANY": "required"}
_SERVER_PARTS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    504: "DEADLINE_EXCEEDED",
}
_TOO_LONG = "The input token count exceeds the maximum number of tokens allowed"  # agents recognize these words


class Google(WireFormat):
    """Google's generateContent."""

    name = "google"
    unsupported: ClassVar[Mapping[str, str]] = {
        "cachedContent": "no contents are stored here: give all of them in the request"
    }

    def read(self, body: Any, headers: Mapping[str, str], memory: SessionMemory | None = None) -> ModelRequest:
        """Read a request; see `WireFormat.read`."""
        memory = SessionMemory() if memory is None else memory
        fields = self._fields(_camel(body), "contents")
        config = _object(fields, "generationConfig")
        schema = _schema(config)
        if any(kind not in ("TEXT", "text") for kind in config.items("responseModalities")):
            raise refused(config.name("responseModalities"), "only text is supported")
        _shows_thoughts(fields.value)
        top_k = config.number("topK", -1, LARGEST)
        if top_k is not None and top_k != int(top_k):
            raise refused(config.name("topK"), "expected an integer")
        sampling = Fields(
            {
                "temperature": config.get("temperature"),
                "top_p": config.get("topP"),
                "top_k": None if top_k is None else int(top_k),
                "presence_penalty": config.get("presencePenalty"),
                "frequency_penalty": config.get("frequencyPenalty"),
                "seed": config.get("seed"),
                "top_logprobs": config.get("logprobs"),
            },
            config.path,
        )
        starts, groups, left_out = _groups(fields)
        values, read = memory.read(self.name, "contents", groups, lambda value, index: _received(value, starts[index]))
        opening: list[ReceivedMessage] = []
        if fields.get("systemInstruction") is not None:
            text = "\n".join(part for part in _parts_of(fields, "systemInstruction") if isinstance(part, str))
            opening.append(ReceivedMessage(valid(Message, "systemInstruction", role="system", content=text)))
        system, messages = split_system([*opening, *(message for messages in read for message in messages)])
        tools = self._read_tools(fields, memory, _tools, [GivenTool(None, key) for key in left_out])
        return ModelRequest(
            messages=messages,
            system=system,
            max_tokens=config.limit("maxOutputTokens"),
            stop=config.stops("stopSequences"),
            sampling=self._sampling(sampling),
            n=config.integer("candidateCount", 1, _MAX_REPLIES) or 1,
            logprobs=config.get("responseLogprobs", bool) or False,
            **self._shared({**fields.value, "contents": values}, headers, _choice(fields), tools, schema),
        )

    def read_count(self, body: Any, headers: Mapping[str, str], memory: SessionMemory | None = None) -> ModelRequest:
        """Return the request whose tokens are to be counted; it may be in `generateContentRequest`."""
        fields = Fields(_camel(body))
        inner = fields.object("generateContentRequest")
        return self.read(body if inner is None else {**inner.value, "model": fields.get("model")}, headers, memory)

    def counted(self, tokens: int) -> dict[str, Any]:
        """Return the body of a response with the number of tokens of a prompt."""
        return {"totalTokens": tokens}

    def write(self, request: ModelRequest, body: Any, replies: Sequence[ModelReply], created: int) -> dict[str, Any]:
        """Return the body of a response that is not streamed; see `WireFormat.write`."""
        candidates: list[dict[str, Any]] = []
        for index, reply in enumerate(replies):
            message = reply.message
            parts: list[dict[str, Any]] = []
            if message.reasoning and _shows_thoughts(body):
                parts.append({"text": message.reasoning, "thought": True})
            if message.content or not message.tool_calls:
                parts.append({"text": message.content})
            content = {"role": "model", "parts": _last_parts(reply, parts)}
            candidates.append({"content": content, **_end(request, reply), "index": index})
        return {"candidates": candidates, **_about(body, replies[0].id), "usageMetadata": _usage(replies)}

    def stream(self, request: ModelRequest, body: Any, created: int) -> ReplyStream:
        """Return a writer of the events of a response while its replies are sampled; see `WireFormat.stream`."""
        return _GoogleStream(request, body, _shows_thoughts(body), [])

    def error(self, error: RequestError) -> dict[str, Any]:
        """Return the body of a response with an error."""
        status = _STATUSES.get(error.status, "INVALID_ARGUMENT" if error.status < 500 else "UNAVAILABLE")
        is_too_long = error.code == "context_length_exceeded"
        details = {"reason": error.code, **({"metadata": {"field": error.field}} if error.field else {})}
        return {
            "error": {
                "code": error.status,
                "message": f"{_TOO_LONG}: {error}" if is_too_long else str(error),
                "status": status,
                "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", **details}],
            }
        }

    def error_event(self, error: RequestError) -> bytes:
        """Return the event that ends a stream which has begun, with an error."""
        return event_bytes(self.error(error))

    def models(self, name: str, created: int) -> dict[str, Any]:
        """Return the body of the list of models."""
        methods = ["generateContent", "countTokens"]
        return {"models": [{"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}]}


# Requests.


def _camel(value: Any) -> Any:
    """Return an object with the names of its fields in camel case; any other value as it is."""
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for key, field in cast("dict[str, Any]", value).items():
        first, *rest = key.split("_")
        found[key if not first else first + "".join(word[:1].upper() + word[1:] for word in rest)] = field
    return found


def _object(fields: Fields, key: str) -> Fields:
    """Return an object, empty if it is missing, with the names of its fields in camel case."""
    return Fields(_camel(fields.get(key, dict) or {}), fields.name(key))


def _shows_thoughts(body: Any) -> bool:
    """Return whether a request wants to have thoughts."""
    thinking = _object(_object(Fields(_camel(body)), "generationConfig"), "thinkingConfig")
    return thinking.get("includeThoughts", bool) or False


def _schema(config: Fields) -> Mapping[str, Any] | None:
    """Return the JSON schema of the content; None for any text."""
    if config.one_of("responseMimeType", ("text/plain", "application/json")) != "application/json":
        return None
    given = config.object("responseJsonSchema") or config.object("responseSchema")
    if given is None:
        return {"type": "object"}
    try:
        check_json(given.value)
    except ValueError as error:
        raise refused(given.path, str(error)) from None
    return _json_schema(given.value)


def _choice(fields: Fields) -> str | dict[str, Any]:
    """Return the choice of a tool; see `ModelRequest.tool_choice`."""
    calling = _object(_object(fields, "toolConfig"), "functionCallingConfig")
    mode = calling.one_of("mode", ("MODE_UNSPECIFIED", *_CHOICES)) or "AUTO"
    allowed = calling.items("allowedFunctionNames")
    if not all(isinstance(name, str) for name in allowed):
        raise refused(calling.name("allowedFunctionNames"), "expected strings")
    return {"mode": "required", "names": allowed} if mode == "ANY" and allowed else _CHOICES.get(mode, "auto")


def _tools(value: Any, index: int) -> list[GivenTool]:
    """Return the functions of a tool, and those of its other fields, which run on Google's servers."""
    tool = Fields(_camel(value), f"tools[{index}]")
    tools = [
        vendor_tool(tool, key)
        for key, given in tool.value.items()
        if key != "functionDeclarations" and given is not None
    ]
    for i, given in enumerate(tool.items("functionDeclarations")):
        declared = Fields(_camel(given), f"{tool.name('functionDeclarations')}[{i}]")
        is_json = declared.get("parametersJsonSchema") is not None
        schema = tool_schema(declared, "parametersJsonSchema" if is_json else "parameters")
        function = schema["function"]
        if not is_json and "parameters" in function:
            schema = {**schema, "function": {**function, "parameters": _json_schema(function["parameters"])}}
        tools.append(GivenTool(schema, name=declared.required_text("name")))
    return tools


def _json_schema(schema: Any) -> Any:
    """Return a schema of Google as a JSON schema, whose types are in lower case."""
    if isinstance(schema, list):
        return [_json_schema(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    given = cast("dict[str, Any]", schema)
    found = {key: _json_schema(value) if key in ("items", "anyOf") else value for key, value in given.items()}
    if isinstance(given.get("type"), str):
        found["type"] = given["type"].lower()
    if isinstance(given.get("properties"), dict):
        found["properties"] = {key: _json_schema(value) for key, value in given["properties"].items()}
    return found


def _groups(fields: Fields) -> tuple[list[int], list[dict[str, Any]], list[str]]:
    """Return the contents in groups, in which each call and each result has an id.

    Returns:
        The index of the first content of each group, the groups, and the types of the parts that are left out.
    """
    if not fields.items("contents"):
        raise refused("contents", "it is required: give at least one content")
    starts: list[int] = []
    groups: list[dict[str, Any]] = []
    left_out: list[str] = []
    ids = CallIds()
    for i, value in enumerate(fields.items("contents")):
        content = Fields(value, f"contents[{i}]")
        role = content.one_of("role", ("user", "model", "function", "tool"))
        parts: list[Any] = []
        for k, given in enumerate(content.items("parts")):
            part = Fields(_camel(given), f"{content.name('parts')}[{k}]").value
            if made := [key for key in _SERVER_PARTS if part.get(key) is not None]:
                left_out += made
                continue
            for key, of in (("functionCall", ids.of_call), ("functionResponse", ids.of_result)):
                if isinstance(part.get(key), dict):
                    part[key] = {**part[key], "id": of(part[key].get("name"), part[key].get("id"))}
            parts.append(part)
        if role == "model" and groups and groups[-1]["role"] == "model":
            groups[-1]["parts"] += parts
            continue
        starts.append(i)
        groups.append({"role": role or "user", "parts": parts})
    return starts, groups, left_out


def _received(group: Any, index: int) -> list[ReceivedMessage]:
    """Return the messages that a group of contents holds; `index` is that of its first content."""
    fields = Fields(group, f"contents[{index}]")
    parts = [Fields(part, f"{fields.name('parts')}[{i}]") for i, part in enumerate(fields.items("parts"))]
    if fields.get("role") == "model":
        return [_reply(fields, parts)]
    check_unique([one.text("id") for part in parts if (one := part.object("functionResponse"))], fields.name("parts"))
    messages: list[Message] = []
    texts: list[str | ImagePart] = []
    for part in [*parts, None]:
        result = None if part is None else part.object("functionResponse")
        if part is not None and result is None:
            texts.append(_text_or_image(part))
            continue
        if texts:
            messages.append(valid(Message, fields.path, role="user", content=content_of(texts)))
            texts = []
        if result is not None:
            given: dict[str, Any] = result.get("response", dict) or {}
            content = next(iter(given.values())) if given.keys() in ({"output"}, {"result"}, {"error"}) else given
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            more = [_text_or_image(Fields(_camel(one), result.name("parts"))) for one in result.items("parts")]
            whole = content_of([text, *more])
            messages.append(
                valid(Message, result.path, role="tool", tool_call_id=result.required_text("id"), content=whole)
            )
    if not messages:
        raise refused(fields.name("parts"), "it is required: give at least one part")
    return [ReceivedMessage(message, group) for message in messages]


def _reply(fields: Fields, parts: Sequence[Fields]) -> ReceivedMessage:
    """Return the message of the model, with the id of the reply that its signature identifies."""
    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[ToolCall] = []
    links: set[str] = set()
    for part in parts:
        try:
            link = signed(base64.b64decode(part.text("thoughtSignature") or "", validate=True).decode("ascii"))
        except (binascii.Error, ValueError):  # it was not issued here
            link = None
        links |= {link} if link is not None else set()
        call = part.object("functionCall")
        if call is None:
            text = _text_or_image(part)
            if not isinstance(text, str):
                raise refused(part.path, "an image is not supported in contents of the model")
            (thoughts if part.get("thought", bool) else texts).append(text)
            continue
        arguments: Any = call.get("args", dict) or {}
        if arguments.keys() == {INVALID_JSON} and isinstance(arguments[INVALID_JSON], str):
            arguments = arguments[INVALID_JSON]
        given = {"id": call.required_text("id"), "name": call.required_text("name"), "arguments": arguments}
        calls.append(valid(ToolCall, call.path, **given))
    check_unique([call.id for call in calls], fields.name("parts"))
    reasoning, content = "".join(thoughts) or None, "".join(texts)
    read = valid(Message, fields.path, role="assistant", content=content, reasoning=reasoning, tool_calls=calls)
    return ReceivedMessage(read, fields.value, links.pop() if len(links) == 1 else None)


def _parts_of(fields: Fields, key: str) -> list[str | ImagePart]:
    """Return the texts and images of a content, which may be a string."""
    given = fields.get(key)
    if isinstance(given, str):
        return [given]
    content = Fields(given, fields.name(key))
    path = content.name("parts")
    return [_text_or_image(Fields(_camel(part), f"{path}[{i}]")) for i, part in enumerate(content.items("parts"))]


def _text_or_image(part: Fields) -> str | ImagePart:
    """Return the text or the image of a part."""
    if part.get("inlineData") is not None:
        data = Fields(_camel(part.get("inlineData")), part.name("inlineData"))
        if not (data.text("mimeType") or "").startswith("image/"):
            raise refused(data.name("mimeType"), "only images are supported")
        return read_image(data, "data", Image.from_base64)
    if (text := part.text("text")) is None:
        kinds = ", ".join(sorted(part.value))
        raise refused(part.path, f"a part with {brief(kinds or 'no field')} is not supported: give text or an image")
    return text


# Responses.


def _last_parts(reply: ModelReply, texts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the given parts and the calls of a reply; its first call, or the last part, has the signature."""
    calls: list[dict[str, Any]] = []
    for call in reply.message.tool_calls:
        arguments = {INVALID_JSON: call.arguments} if isinstance(call.arguments, str) else call.arguments
        calls.append({"functionCall": {"id": call.id, "name": call.name, "args": arguments}})
    signature = {"thoughtSignature": base64.b64encode(f"{SIGNED}{reply.id}".encode()).decode()}
    if calls:
        return [*texts, {**calls[0], **signature}, *calls[1:]]
    return [*texts[:-1], {**(texts[-1] if texts else {"text": ""}), **signature}]


def _end(request: ModelRequest, reply: ModelReply) -> dict[str, Any]:
    """Return the fields of a candidate that describe a whole reply."""
    end: dict[str, Any] = {"finishReason": "MAX_TOKENS" if reply.finish_reason == "length" else "STOP"}
    if request.logprobs and (rows := token_logprobs(reply)) is not None:
        chosen = [
            {"token": row["token"], "tokenId": token, "logProbability": row["logprob"]}
            for row, token in zip(rows, reply.tokens, strict=True)
        ]
        end["logprobsResult"] = {"chosenCandidates": chosen}
    return end


def _usage(replies: Sequence[ModelReply]) -> dict[str, int]:
    prompt, sampled = replies[0].prompt_tokens, sum(len(reply.tokens) for reply in replies)
    thoughts = sum(reply.reasoning_tokens for reply in replies)
    return {
        "promptTokenCount": prompt,
        "cachedContentTokenCount": replies[0].cached_tokens,
        "candidatesTokenCount": sampled - thoughts,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": prompt + sampled,
    }


@dataclass(eq=False, repr=False)
class _GoogleStream(ReplyStream):
    """The chunks of each reply: thoughts and text as they arrive, then the calls and the end.

    Args: See `WireFormat.stream` and `_shows_thoughts`.
    """

    _request: ModelRequest
    _body: Any
    _has_thoughts: bool
    _replies: list[ModelReply]

    def _start(self, begun: ModelReply) -> Iterator[bytes]:
        self._id = begun.id
        yield from ()

    def _delta(self, kind: Kind, text: str) -> Iterator[bytes]:
        if kind == "content":
            yield self._chunk([{"text": text}])
        elif self._has_thoughts:
            yield self._chunk([{"text": text, "thought": True}])

    def _finish(self, reply: ModelReply, is_last: bool) -> Iterator[bytes]:
        end = _end(self._request, reply)
        usage = {"usageMetadata": _usage([*self._replies, reply])} if is_last else {}
        yield self._chunk(_last_parts(reply, []), end, **usage)
        self._replies.append(reply)

    def _chunk(self, parts: list[dict[str, Any]], end: Mapping[str, Any] | None = None, **usage: Any) -> bytes:
        """Return a chunk with parts of the reply."""
        candidate = {"content": {"role": "model", "parts": parts}, **(end or {}), "index": len(self._replies)}
        return event_bytes({"candidates": [candidate], **_about(self._body, self._id), **usage})


def _about(body: Any, reply: str) -> dict[str, str]:
    return {"modelVersion": body["model"], "responseId": reply}
