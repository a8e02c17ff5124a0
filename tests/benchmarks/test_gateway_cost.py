"""What a standalone gateway adds to a policy that takes 20 ms, and the memory that it holds for each session."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import httpx
import pytest
import real_models

POLICY_S = 0.02
LENGTHS = (10, 200, 1000)
OLD_WORDS, NEW_WORDS = 200, 2000
REPEATS = 10
SERVER = Path(__file__).parent.parent / "loaded_gateway.py"
NO_PROCESS = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs /proc/<pid>/schedstat")


class Load:
    """A gateway in another process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self.url = process.stdout.readline().strip()
        self._folder = Path(f"/proc/{process.pid}")

    def cpu_s(self) -> float:
        """The CPU time of all its threads."""
        return sum(int((task / "schedstat").read_text().split()[0]) for task in (self._folder / "task").iterdir()) / 1e9

    def resident_kb(self) -> float:
        return int((self._folder / "statm").read_text().split()[1]) * 4


def scope_of_load(fixture_name: str, config: pytest.Config) -> Literal["function", "module"]:
    """Each measurement has a server of its own; without measurements, all share one."""
    return "module" if config.getoption("benchmark_disable") else "function"


@pytest.fixture(scope=scope_of_load)
def load() -> Iterator[Load]:
    command = [sys.executable, str(SERVER), str(real_models.qwen3_folder()), str(POLICY_S)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield Load(process)
    finally:
        process.terminate()
        process.communicate(timeout=60)


class Conversation:
    """A conversation on a connection of its own."""

    def __init__(self, prose: Any, start: int = 0) -> None:
        self.prose, self.start = prose, start
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "You are an agent."}]

    async def open(self, url: str) -> None:
        parsed = httpx.URL(url)
        self._reader, self._writer = await asyncio.open_connection(parsed.host, parsed.port)
        session = await self._post("/sessions", b"{}")
        self._path = f"/s/{session['id']}/v1/chat/completions"

    async def ask(self, words: int) -> float:
        """Ask with new words; return what it took more than the policy, in seconds."""
        self.start += 997
        self.messages.append({"role": "user", "content": self.prose.words(words, start=self.start)})
        body = json.dumps({"model": "m", "messages": self.messages}).encode()
        started = perf_counter()
        reply = await self._post(self._path, body)
        took = perf_counter() - started
        content = reply["choices"][0]["message"]["content"]
        self.messages.append({"role": "assistant", "content": content})
        return took - int(content) / 1e6  # the reply is how long the policy took

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _post(self, path: str, body: bytes) -> Any:
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answered = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answered.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        reply = json.loads(await self._reader.readexactly(length))
        assert answered.startswith(b"HTTP/1.1 20"), reply
        return reply


def encode_s(tokenizer: Any, prose: Any) -> float:
    """The seconds that it takes to encode as many new words, which is in each request."""
    best = 1.0
    for start in range(20):
        text = prose.words(NEW_WORDS, start=1000 * start)
        started = perf_counter()
        tokenizer.encode(text)
        best = min(best, perf_counter() - started)
    return best


@NO_PROCESS
def test_a_request_of_a_long_conversation_costs_little(benchmark, report, prose, tokenizer, load):
    lengths = LENGTHS if benchmark.enabled else LENGTHS[:1]

    async def run() -> dict[int, tuple[float, float]]:
        talk, measured = Conversation(prose), {}
        await talk.open(load.url)
        for length in lengths:
            while len(talk.messages) < length - 1:
                await talk.ask(OLD_WORDS)
            cpu, late = [], []
            for _ in range(REPEATS):
                before = load.cpu_s()
                late.append(await talk.ask(NEW_WORDS))
                cpu.append(load.cpu_s() - before)
            measured[length] = min(cpu), min(late)
        await talk.close()
        return measured

    measured = benchmark.pedantic(lambda: asyncio.run(run()), rounds=1)
    encoding = encode_s(tokenizer, prose)
    for length, (cpu, late) in measured.items():
        note = f"{cpu / encoding:.1f} times the bare encode; {1e3 * late:.1f} ms later than the policy"
        report(f"gateway, 2,000 new words at message {length:,}: CPU", 1e3 * cpu, "ms", at_most=15, note=note)


@NO_PROCESS
@pytest.mark.parametrize(("words", "requests"), [(OLD_WORDS, 20), (NEW_WORDS, 3)])
def test_five_hundred_sessions_at_the_same_time(benchmark, report, prose, tokenizer, load, words, requests):
    many = 500 if benchmark.enabled else 5

    async def run() -> tuple[float, float, float]:
        warm = Conversation(prose)
        await warm.open(load.url)
        await warm.ask(words)
        talks = [Conversation(prose, start=31 * number) for number in range(many)]
        resident, before = load.resident_kb(), load.cpu_s()
        await asyncio.gather(*(talk.open(load.url) for talk in talks))
        await asyncio.gather(*(play(talk) for talk in talks))
        held, cpu = (load.resident_kb() - resident) / many, (load.cpu_s() - before) / many / requests
        characters = sum(len(message["content"]) for talk in talks for message in talk.messages) / many / 1024
        await asyncio.gather(*(talk.close() for talk in [warm, *talks]))
        return held, cpu, characters

    async def play(talk: Conversation) -> None:
        for _ in range(requests):
            await talk.ask(words)

    held, cpu, characters = benchmark.pedantic(lambda: asyncio.run(run()), rounds=1)
    name = f"gateway, {many} sessions, {requests} requests of {words:,} new words"
    encoding = encode_s(tokenizer, prose)
    note = f"{cpu / encoding:.1f} times the bare encode of 2,000 words"
    report(f"{name}: CPU of each request", 1e3 * cpu, "ms", at_most=3, note=note)
    report(f"{name}: memory of each session", held, "KB", note=f"{characters:.0f} KB of text")
