"""What a reply of a model server may cost: no attack takes 10 seconds or 500 MiB, and each has a typed error."""

import base64
import contextlib
import gzip
import json
import re
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_servers import encoded_npy

CLIENT = """
import asyncio, json, pathlib, re, sys, time
sys.path.insert(0, "tests")
from policy_requests import PROMPT, request
from envsdk.messages import Message
from envsdk.policies import VLLM, OpenAIChat, SGLang

options = {"max_retries": 0, "timeout_s": 60.0}
tokens_of_stream = {"on_tokens": lambda tokens: None, "max_tokens": 1000}
calls = {
    "openai": (lambda url: OpenAIChat(url, "toy", **options), lambda p: p.reply([Message(role="user", content="hi")])),
    "sglang": (lambda url: SGLang(url, check=False, **options), lambda p: p(PROMPT, **request())),
    "vllm": (lambda url: VLLM(url, check=False, **options), lambda p: p(PROMPT, **request())),
    "stream": (lambda url: VLLM(url, check=False, **options), lambda p: p(PROMPT, **request(**tokens_of_stream))),
    "checks": (lambda url: VLLM(url, **options), lambda p: p(PROMPT, **request())),
}

def memory_kib(name):
    return int(re.search(name + r":\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])

async def ask(kind, url):
    make, call = calls[kind]
    policy = make(url)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is the memory in use again
    begun, used = time.process_time(), memory_kib("VmRSS")
    try:
        await call(policy)
        error = None
    except Exception as found:
        error = found
    finally:
        await policy.aclose()
    names = [] if error is None else [one.__name__ for one in type(error).__mro__]
    facts = [names, str(error)[:2000], time.process_time() - begun, (memory_kib("VmHWM") - used) / 1024]
    print(json.dumps(facts), flush=True)

for line in sys.stdin:
    asyncio.run(ask(*line.split()))
"""
MOST_CPU_S, MOST_MIB = 10.0, 500.0

OK = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
EVENTS = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"  # up to the end of the connection
CHOICE = {"token_ids": [7], "finish_reason": "stop", "logprobs": {"content": [{"token_id": 7, "logprob": -1.0}]}}


def endless(head: str, part: bytes) -> Iterator[bytes]:
    """A body without an end."""
    yield head.encode()
    many = part * max(1, 2**16 // len(part))
    while True:
        yield many


def whole(body: bytes, head: str = "") -> Iterator[bytes]:
    yield f"{OK}{head}Content-Length: {len(body)}\r\n\r\n".encode()
    yield body


def generated(**changes: Any) -> Iterator[bytes]:
    """A reply of vLLM with other fields."""
    return whole(json.dumps({"choices": [{**CHOICE, **changes}]}).encode())


@cache
def bomb() -> bytes:
    """Four GiB of spaces, compressed twice."""
    return gzip.compress(gzip.compress(b" " * 2**25) * 128)


def huge_array() -> str:
    """An array of 80 GB of which only the header was written."""
    written = base64.b64decode(encoded_npy(np.zeros((1111111111, 0), np.float64)))
    return base64.b64encode(written.replace(b"(1111111111, 0)", b"(1111111111, 9)")).decode()


ATTACKS: dict[str, tuple[Any, str, str, str]] = {
    # the response, the kind of client, the error, and its message
    "a body without an end": (
        lambda: endless(OK + "\r\n", b" "),
        "checks vllm sglang openai",
        "ServerReplyError",
        "is longer than 67,108,864 bytes",
    ),
    "an error without an end": (
        lambda: endless("HTTP/1.1 400 X\r\n\r\n", b"no "),
        "stream vllm openai",
        "ServerReplyError",
        "is longer than",
    ),
    "a bomb": (
        lambda: whole(bomb(), "Content-Encoding: gzip\r\n"),
        "vllm openai",
        "ServerReplyError",
        "Content-Encoding 'gzip'",
    ),
    "a bomb in a stream": (
        lambda: endless(EVENTS.replace("\r\n\r\n", "\r\nContent-Encoding: gzip\r\n\r\n"), bomb()),
        "stream",
        "ServerReplyError",
        "Content-Encoding 'gzip'",
    ),
    "deep lists": (lambda: whole(b"[" * 300_000), "vllm openai", "ServerReplyError", "nested too deeply"),
    "deeper lists": (lambda: whole(b"[" * 3_000_000), "vllm openai", "ServerReplyError", "3,000,000 values"),
    "deep objects": (
        lambda: whole(b'{"choices":' * 300_000),
        "vllm openai",
        "ServerReplyError",
        "nested too deeply",
    ),
    "a list of lists": (
        lambda: whole(b"[" + b"[]," * 20_000_000 + b"[]]"),
        "vllm openai",
        "ServerReplyError",
        "values, 20,000,002 of them lists or objects",
    ),
    "a list of texts": (
        lambda: whole(b"[" + b'"ab",' * 13_000_000 + b'""]'),
        "vllm openai",
        "ServerReplyError",
        "13,000,001 values",
    ),
    "as many objects as a reply may have": (
        lambda: whole(b'{"choices": [' + b'{"token_ids": [7]},' * 199_000 + b"{}]}"),
        "vllm openai",
        "ServerReplyError",
        "not have the expected fields|not a chat completion|Field required",
    ),
    "values in error": (
        lambda: whole(b'{"error": [' + b"[]," * 20_000_000 + b"[]]}"),
        "vllm",
        "ServerReplyError",
        "values",
    ),
    "a line without an end": (
        lambda: endless(EVENTS, b"data"),
        "stream",
        "ServerReplyError",
        "is longer than",
    ),
    "events without an end": (
        lambda: endless(EVENTS, b'data: {"choices": []}\n\n'),
        "stream",
        "ServerReplyError",
        "more than 1,000,000 lines|is longer than",
    ),
    "tokens without an end": (
        lambda: endless(EVENTS, b'data: {"choices": [{"token_ids": [1, 2, 3]}]}\n\n'),
        "stream",
        "ServerReplyError",
        "the reply has more tokens than max_tokens=1000",
    ),
    "empty lines without an end": (
        lambda: endless(EVENTS, b"\n"),
        "stream",
        "ServerReplyError",
        "more than 1,000,000 lines",
    ),
    "a deep event": (
        lambda: endless(EVENTS, b'data: {"choices": [{"logprobs": ' + b'{"a":' * 1000 + b"1" + b"}" * 1002 + b"]}\n\n"),
        "stream",
        "ServerReplyError",
        "not JSON|nested too deeply",
    ),
    "a version of 5,000 digits": (
        lambda: generated(weight_versions=[{"version": "9" * 5000, "start": 0, "end": 1}]),
        "vllm",
        "",
        "None",
    ),
    "an array that is only a header": (
        lambda: generated(routed_experts=huge_array()),
        "vllm",
        "ServerReplyError",
        "routed_experts is not a base64 string",
    ),
}
CASES = [
    pytest.param(attack, kind, marks=[pytest.mark.full] if number or attack == "events without an end" else [])
    for attack, (_, kinds, _, _) in ATTACKS.items()
    for number, kind in enumerate(kinds.split())
]


class _Attack(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            self.request.recv(2**16)
            for part in self.server.response():  # pyright: ignore[reportAttributeAccessIssue]
                self.request.sendall(part)
            self.request.shutdown(socket.SHUT_WR)
            while self.request.recv(2**16):
                pass  # an unread byte would reset the connection


@contextlib.contextmanager
def attacking(response: Any) -> Iterator[str]:
    """The URL of a server that answers everything in this way."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Attack) as server:
        server.daemon_threads = True
        server.response = response  # pyright: ignore[reportAttributeAccessIssue]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A process that asks a server for each line with a kind and a URL."""
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        yield process
        process.stdin.close()  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize(("attack", "kind"), CASES)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of the memory is set there")
def test_no_reply_of_a_server_takes_much_time_or_memory(attack: str, kind: str, client: Any):
    response, _, expected, message = ATTACKS[attack]
    with attacking(response) as url:
        client.stdin.write(f"{kind} {url}\n")
        names, text, cpu_s, mib = json.loads(client.stdout.readline())
    print(f"{attack}, {kind}: {cpu_s:.1f} s, {mib:.0f} MiB, {text:.100}")
    assert expected in (names or [""])
    assert re.search(message, text), text
    assert cpu_s < MOST_CPU_S and mib < MOST_MIB
