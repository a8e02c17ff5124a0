"""Real HTTP servers on loopback that speak the protocols of vLLM, SGLang and OpenAI, and misbehave on request.

The vLLM part follows vLLM 0.32, and 0.31 on request, as observed on real servers. SGLang's part follows SGLang 0.5.23,
whose kernels do not run on the test machines. The model is a table of logits: it has log-probabilities of its own,
for any temperature, and samples its stop tokens often.
"""

import asyncio
import base64
import io
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from envsdk.images import Image
from envsdk.rendering._vision import Vision
from envsdk.rendering.tokenizers import Tokenizer, load_tokenizer

_ROWS = 97
PREFIX = "generate-tokens-"


@dataclass
class Fault:
    """What goes wrong with one response.

    Attributes:
        status: Another status than 200.
        headers: More headers.
        change: Changes the JSON value of the response.
        text: Another body.
        how: `reset` (the connection is reset in the middle of the body), `short` (it is closed there), `truncated`
            (half of the body, with the length of that half), `hang` (no response), `refuse` (the connection is closed
            at once), or `slow` (a byte every 50 ms).
        at: Before which event of a stream it goes wrong: `text` is written there, the connection is reset, the body
            ends (`short`), or nothing follows (`hang`). Each event of a `slow` stream comes after 50 ms
            and a comment.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    change: Callable[[Any], Any] | None = None
    text: bytes | None = None
    how: str = ""
    at: int = 0


@cache
def _table_of(vocab_size: int) -> np.ndarray:
    return np.random.default_rng(0).normal(scale=2.0, size=(_ROWS, vocab_size))


class ToyModel:
    """Logits that depend on the last token of the prompt."""

    def __init__(self, vocab_size: int, stop_logit: float) -> None:
        self._stop_logit = stop_logit
        self._table = _table_of(vocab_size)

    def logprobs(self, last: int, stops: list[int], temperature: float, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        """The raw log-probabilities, and those of the distribution that is sampled from."""
        logits = self._table[last % _ROWS].copy()
        logits[stops] += self._stop_logit
        heated = logits / (temperature or 1.0)
        if top_k > 0:
            heated[heated < np.sort(heated)[-top_k]] = -np.inf
        return _log_softmax(logits), _log_softmax(heated)


class ModelServer:
    """A model server in a thread of its own: `with ModelServer("vllm") as server: server.url`.

    Args:
        kind: `vllm`, `sglang` or `openai`.
        tokenizer: The tokenizer of its model.
        model: The name of the model.
        names_ids: Whether vLLM writes the ids of log-probabilities as names, as it did before 0.32.
        adapters: The names of the LoRA adapters that are loaded.
        has_token_endpoint: Whether vLLM was started with --enable-scale-out.
        processed: Whether log-probabilities are those of the distribution sampled from.
        max_model_len: The largest number of tokens of a prompt and its reply.
        token_s: How long a token takes, in seconds.
        versions: The weight version of each token, by its position in the reply.
        stop_logit: What is added to the logits of stop tokens; less makes longer replies.
        port: The port; 0 for any that is free.
    """

    def __init__(
        self,
        kind: str = "vllm",
        *,
        tokenizer: str | Tokenizer = "embedded",
        model: str = "toy",
        has_token_endpoint: bool = True,
        names_ids: bool = False,
        adapters: tuple[str, ...] = (),
        processed: bool = True,
        max_model_len: int = 4096,
        token_s: float = 0.0,
        versions: Callable[[int], str] = lambda position: "default",
        stop_logit: float = 8.0,
        port: int = 0,
    ) -> None:
        self.kind, self.model = kind, model
        self.names_ids, self.adapters = names_ids, adapters
        self.tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self.has_token_endpoint, self.processed = has_token_endpoint, processed
        self.max_model_len, self.token_s, self.versions = max_model_len, token_s, versions
        self.chat: Callable[[dict[str, Any]], dict[str, Any]] = lambda body: {"role": "assistant", "content": "hello"}
        self.finish_reason = "stop"
        self.cached: Callable[[int], int] | None = None
        """How many tokens of a prompt of that length were cached; None if the server does not report it."""
        self.vision: Vision | None = None
        """What writes the placeholders of images; None for a vLLM that ignores `content_parts`."""
        self.lacks_usage = False
        """Whether a chat completion has no usage."""
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.faults: deque[Fault] = deque()
        """For the next requests that sample a reply, probes excluded."""
        self.closed_by_client: list[str] = []
        """The ids of requests whose connection the client closed before the response."""
        self.connections = 0
        self.active = self.most_active = 0
        self.together = 1
        """How many requests have to be in flight at the same time before the first is answered."""
        self._aborted: set[str] = set()
        self._sampling: dict[str, _Sampled] = {}
        self._model = ToyModel(self.tokenizer.vocab_size, stop_logit)
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._started = threading.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> "ModelServer":
        self._thread.start()
        self._started.wait(600)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop at once, as kill -9 does: open connections are reset."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(600)

    def bodies(self, path: str) -> list[dict[str, Any]]:
        """The bodies of the requests to a path, probes excluded."""
        return [body for at, body, _ in self.requests if at == path and _id_of(body) != "envsdk-probe"]

    def _sampling_paths(self) -> set[str]:
        native = {"/inference/v1/generate"} if self.has_token_endpoint else set()
        return {"/v1/completions", "/generate", "/v1/chat/completions"} | native

    # The transport.

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connect, "127.0.0.1", self._port))
        self._port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        _, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        body = json.loads(content) if content else {}
        self.requests.append((path, body, headers))
        is_probe = _id_of(body) == "envsdk-probe"
        fault = self.faults.popleft() if self.faults and path in self._sampling_paths() and not is_probe else Fault()
        if fault.how == "refuse":
            return False
        answer = asyncio.ensure_future(self._answer(path, body, fault))
        watch = asyncio.ensure_future(reader.read(1))
        try:
            if body.get("stream") and path in self._sampling_paths() and fault.status == 200:
                return await self._stream(path, body, fault, answer, watch, writer)
            await asyncio.wait([answer, watch], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                self.closed_by_client.append(_id_of(body))
                return False
            status, value = await answer
        finally:
            answer.cancel()
            watch.cancel()
            with suppress(BaseException):
                await watch
        return await _send(writer, status, value, fault)

    async def _stream(
        self,
        path: str,
        body: dict[str, Any],
        fault: Fault,
        answer: asyncio.Future[tuple[int, Any]],
        watch: asyncio.Future[bytes],
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Send a reply as server-sent events, one for each token, while it is sampled."""
        sent = 0
        async for event in self._events(path, body, answer):
            if isinstance(event, tuple):
                return await _send(writer, *event, fault)
            if watch.done():
                self.closed_by_client.append(_id_of(body))
                return False
            if not sent:
                head = ["HTTP/1.1 200 X", "Content-Type: text/event-stream", "Transfer-Encoding: chunked", "", ""]
                writer.write("\r\n".join(head).encode())
            if sent == fault.at and fault.how in ("reset", "short"):
                writer.write(b"0\r\n\r\n" if fault.how == "short" else b"")
                await writer.drain()
                return False
            if fault.how == "slow" or (sent == fault.at and fault.how == "hang"):
                await asyncio.wait([watch], timeout=0.05 if fault.how == "slow" else 60)
                if watch.done():
                    self.closed_by_client.append(_id_of(body))
                    return False
            text = b"data: " + (event if isinstance(event, str) else json.dumps(event)).encode() + b"\n\n"
            text = b": ping\n\n" + text if fault.how == "slow" else text
            text = fault.text if sent == fault.at and fault.text is not None else text
            writer.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")
            await writer.drain()
            sent += 1
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _events(
        self, path: str, body: dict[str, Any], answer: asyncio.Future[tuple[int, Any]]
    ) -> AsyncIterator[Any]:
        """The events of a stream; the status and the value of a request that is refused."""
        form, count = (
            (self._native, body["sampling_params"]["logprobs"]) if "token_ids" in body else (_plain, body["logprobs"])
        )
        done = 0
        while not answer.done():
            await asyncio.sleep(self.token_s / 2)
            entries = self._sampling[_id_of(body)].entries if _id_of(body) in self._sampling else []
            for entry in entries[done:]:
                done += 1
                yield {"choices": [{"index": 0, "text": "\u2028", "finish_reason": None, **form([entry], count)}]}
        status, value = await answer
        if status != 200:
            yield status, value
            return
        whole = value["choices"][0]
        if "prompt_token_ids" in value:
            yield {"choices": [], "prompt_token_ids": value["prompt_token_ids"]}
        rest = self._sampling.pop(_id_of(body)).entries[done:]
        for entry in rest[:-1]:
            yield {"choices": [{"index": 0, "finish_reason": None, **form([entry], count)}]}
        yield {"choices": [{**whole, **form(rest[-1:], count)}]}
        if body["stream_options"]["include_usage"]:
            yield {"choices": [], "usage": value["usage"]}
        yield "[DONE]"

    async def _answer(self, path: str, body: dict[str, Any], fault: Fault) -> tuple[int, Any]:
        if fault.how == "hang" and not body.get("stream"):
            await asyncio.sleep(60)
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            while (
                path in self._sampling_paths() and _id_of(body) != "envsdk-probe" and self.most_active < self.together
            ):
                await asyncio.sleep(0.005)
            status, value = await self._route(path, body)
        finally:
            self.active -= 1
        if status == 200 and fault.change is not None:
            value = fault.change(value)
        return (fault.status if fault.status != 200 else status), value

    async def _route(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/models":
            listed = [{"id": self.model, "max_model_len": self.max_model_len, "parent": None}]
            loaded = [{"id": name, "max_model_len": None, "parent": self.model} for name in self.adapters]
            return 200, {"data": listed + loaded}
        if path == "/tokenize":
            return 200, {"tokens": self._tokenize(body["prompt"])}
        if body.get("model") not in (None, self.model, *self.adapters):
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist.", "code": 404}}
        if path == "/v1/chat/completions":
            return 200, self._chat(body)
        if self.kind == "vllm" and path == "/inference/v1/generate":
            if not self.has_token_endpoint:
                return 403, {"error": {"message": "start with --enable-scale-out", "code": 403}}
            return await self._generate(body)
        if self.kind == "vllm" and path == "/inference/v1/abort_requests" and self.has_token_endpoint:
            self._aborted |= {one.removeprefix(PREFIX) for one in body["request_ids"] if one.startswith(PREFIX)}
            return 200, None
        if self.kind == "vllm" and path == "/v1/completions":
            return await self._complete(body)
        if self.kind == "sglang" and path == "/generate":
            return await self._sglang(body)
        if self.kind == "sglang" and path == "/abort_request":
            self._aborted.add(body["rid"])
            return 200, None
        return 404, {"detail": "Not Found"}

    # The protocols.

    async def _generate(self, body: dict[str, Any]) -> tuple[int, Any]:
        given = body["sampling_params"]
        body, returned = self._expanded(body)
        if len(body["token_ids"]) >= self.max_model_len:
            message = f"The prompt has {len(body['token_ids'])} tokens, the model takes {self.max_model_len}"
            return 400, {"error": {"message": message, "code": 400}}
        given.setdefault("max_tokens", self.max_model_len - len(body["token_ids"]))
        sampled = await self._sample(body["request_id"], body["token_ids"], given, given["max_tokens"])
        choice = {
            "index": 0,
            "finish_reason": sampled.finish_reason,
            "stop_reason": sampled.stop_reason,
            **self._native(sampled.entries, given["logprobs"]),
            **({} if self.names_ids else {"weight_versions": self._spans(len(sampled.entries))}),
        }
        usage = self._usage(body["token_ids"])
        return 200, {"request_id": PREFIX + body["request_id"], "choices": [choice], **usage, **returned}

    def _expanded(self, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """A request with all placeholders of its images, and what its response has of them."""
        if self.vision is None:
            return body, {}
        pad, rest = self.tokenizer.token_id(self.vision.placeholder), iter(body.get("content_parts") or ())
        tokens: list[int] = []
        for token in body["token_ids"]:
            image = Image.from_url(next(rest)["url"]) if token == pad else None
            tokens += [token] * (1 if image is None else self.vision.count(image))
        returned = {"prompt_token_ids": tokens} if body.get("return_token_ids") else {}
        return {**body, "token_ids": tokens}, returned

    async def _complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        room = self.max_model_len - len(body["prompt"])
        if (body["max_tokens"] or 1) > room:
            return 400, {"error": {"message": f"This model's maximum context length is {self.max_model_len}"}}
        sampled = await self._sample(body["request_id"], body["prompt"], body, body["max_tokens"] or room)
        choice = {
            "index": 0,
            "finish_reason": sampled.finish_reason,
            "stop_reason": sampled.stop_reason,
            **_plain(sampled.entries, body["logprobs"]),
        }
        return 200, {"id": f"cmpl-{body['request_id']}-0", "choices": [choice], **self._usage(body["prompt"])}

    async def _sglang(self, body: dict[str, Any]) -> tuple[int, Any]:
        given = body["sampling_params"]
        if len(body["input_ids"]) + given["max_new_tokens"] >= self.max_model_len:
            return 400, {"error": {"message": "Requested token count exceeds the model's maximum context length"}}
        sampled = await self._sample(body["rid"], body["input_ids"], given, given["max_new_tokens"])
        reason: dict[str, Any] = {"type": sampled.finish_reason}
        if sampled.stop_reason is not None:
            reason["matched"] = sampled.stop_reason
        count, spans = body["top_logprobs_num"], self._spans(len(sampled.entries))
        meta: dict[str, Any] = {
            "id": body["rid"],
            "finish_reason": reason,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(sampled.entries),
            "weight_version": spans[-1]["version"] if spans else self.versions(0),
            "weight_versions": spans,
            "output_token_logprobs": [[logprob, token, None] for token, logprob, _ in sampled.entries],
            "output_top_logprobs": [[[v, one, None] for one, v in top[:count]] for _, _, top in sampled.entries],
        }
        if self.cached is not None:
            meta["cached_tokens"] = self.cached(len(body["input_ids"]))
        return 200, {"text": "", "output_ids": [token for token, _, _ in sampled.entries], "meta_info": meta}

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        message = self.chat(body)
        usage: Any = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}
        if self.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached(1000)}
        if self.lacks_usage:
            usage = None
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason, "logprobs": None}
        return {
            "id": "chat-1",
            "object": "chat.completion",
            "created": 0,
            "model": self.model,
            "choices": [choice],
            "usage": usage,
        }

    def _usage(self, prompt: list[int]) -> dict[str, Any]:
        """As vLLM counts: nothing of its cache where nothing was cached."""
        cached = None if self.cached is None else self.cached(len(prompt)) or None
        details = None if cached is None else {"cached_tokens": cached}
        return {"usage": {"prompt_tokens": len(prompt), "prompt_tokens_details": details}}

    # The model.

    async def _sample(self, id: str, prompt: list[int], given: dict[str, Any], max_tokens: int) -> "_Sampled":
        rng = np.random.default_rng(given.get("seed") or given.get("sampling_seed") or len(self.requests))
        stops, temperature = list(given["stop_token_ids"]), given["temperature"]
        sampled = self._sampling[id] = _Sampled([])
        last = prompt[-1]
        while len(sampled.entries) < max_tokens:
            if self.token_s:
                await asyncio.sleep(self.token_s)
            if id in self._aborted:
                sampled.finish_reason = "abort"
                return sampled
            raw, processed = self._model.logprobs(last, stops, temperature, given["top_k"])
            last = int(processed.argmax()) if temperature == 0 else int(rng.choice(len(processed), p=np.exp(processed)))
            reported = processed if self.processed else raw
            order = np.argsort(reported)[::-1][:8].tolist()
            sampled.entries.append((last, float(reported[last]), [(one, float(reported[one])) for one in order]))
            if last in stops:
                sampled.finish_reason, sampled.stop_reason = "stop", last
                return sampled
        return sampled

    def _spans(self, length: int) -> list[dict[str, Any]]:
        spans: list[dict[str, Any]] = []
        for position in range(length):
            version = self.versions(position)
            if not spans or spans[-1]["version"] != version:
                spans.append({"version": version, "start": position, "end": position})
            spans[-1]["end"] = position + 1
        return spans

    def _native(self, entries: list[Any], count: int) -> dict[str, Any]:
        """Tokens as /inference/v1/generate sends them."""
        content = [
            {
                **self._id(token),
                "logprob": logprob,
                "top_logprobs": [{**self._id(one), "logprob": v} for one, v in _candidates(token, logprob, top, count)],
            }
            for token, logprob, top in entries
        ]
        return {"token_ids": [token for token, _, _ in entries], "logprobs": {"content": content}}

    def _id(self, token: int) -> dict[str, Any]:
        return {"token": f"token_id:{token}", "bytes": None} if self.names_ids else {"token_id": token, "rank": 1}

    def _tokenize(self, text: str) -> list[int]:
        """Control tokens in the text are matched, as transformers does."""
        controls = self.tokenizer.control_tokens
        return [controls[text]] if text in controls else self.tokenizer.encode(text).tolist()


@dataclass
class _Sampled:
    entries: list[tuple[int, float, list[tuple[int, float]]]]
    finish_reason: str = "length"
    stop_reason: int | str | None = None


def _candidates(token: int, logprob: float, top: list[tuple[int, float]], count: int) -> list[tuple[int, float]]:
    """As vLLM lists them: the sampled token, then the most likely ones, so count or count + 1 of them."""
    return [*({token: logprob} | dict(top[:count])).items()]


def _plain(entries: list[Any], count: int) -> dict[str, Any]:
    """Tokens as /v1/completions sends them."""
    top = [{f"token_id:{one}": value for one, value in _candidates(*entry, count)} for entry in entries]
    logprobs = {"token_logprobs": [logprob for _, logprob, _ in entries], "top_logprobs": top}
    return {"token_ids": [token for token, _, _ in entries], "logprobs": logprobs}


def encoded_npy(array: np.ndarray) -> str:
    """An array as vLLM sends it."""
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    top = logits.max()
    return logits - top - np.log(np.exp(logits - top).sum())


def _id_of(body: Mapping[str, Any]) -> str:
    return str(body.get("request_id") or body.get("rid") or "")


async def _send(writer: asyncio.StreamWriter, status: int, value: Any, fault: Fault) -> bool:
    content = b"" if value is None else json.dumps(value).encode()
    if fault.text is not None:
        content = fault.text
    if fault.how == "truncated":
        content = content[: len(content) // 2]
    headers = {"Content-Type": "application/json", "Content-Length": str(len(content)), **fault.headers}
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    writer.write("\r\n".join(lines).encode())
    if fault.how in ("reset", "short"):
        writer.write(content[: len(content) // 2])
        await writer.drain()
        if fault.how == "short":
            writer.close()
        return False
    if fault.how == "slow":
        for byte in content:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.05)
        return True
    writer.write(content)
    await writer.drain()
    return True
