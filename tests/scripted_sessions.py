"""Sessions of a gateway whose replies are scripted by what is asked, and a gateway that runs while a test does."""

import asyncio
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from envsdk.errors import ConfigError, EpisodeError, RequestError
from envsdk.gateway._management import Gateway
from envsdk.gateway._outside import PlayedSessions
from envsdk.gateway._requests import ModelReply, ModelRequest
from envsdk.gateway._serving import Server, listen
from envsdk.gateway._session import ProgramSession
from envsdk.messages import Message

SECRET = "swordfish"


class ScriptedSession(ProgramSession):
    """Answers with its name and the last message, or does what the last message commands.

    `fail` is refused with status 502, `break` raises an unexpected error, `wait` never ends, `sleep` takes 0.5 s,
    `together` waits until `together` sessions were asked that, `long` has a reply of a million characters, and
    `longest` one that no socket buffers as a whole.

    Attributes:
        asking: How many sessions were asked `together`.
        together: How many are waited for.
    """

    asking: ClassVar[int] = 0
    together: ClassVar[int] = 0

    def __init__(self, name: str = "session") -> None:
        super().__init__(count_tokens=lambda request: 7, check_image=lambda image: None)
        self.name = name
        self.asked: list[ModelRequest] = []
        self.refusals: list[RequestError] = []
        self.canceled = 0

    async def ask(self, request: ModelRequest) -> Sequence[ModelReply]:
        self.asked.append(request)
        text = request.messages[-1].message.content
        if text == "fail":
            raise RequestError("the policy failed", 502, "policy_failed")
        if text == "break":
            raise ValueError(f"invalid literal: {SECRET}")
        if text == "wait":
            await self._wait()
        if text == "sleep":
            await asyncio.sleep(0.5)
        if text == "together":
            ScriptedSession.asking += 1
            async with asyncio.timeout(600):
                while ScriptedSession.asking < self.together:
                    await asyncio.sleep(0.01)
        times = {"long": 100_000, "longest": 2_000_000}.get(text)
        content = f"{self.name}: {text}" if times is None else "0123456789" * times
        return [self._reply(content) for _ in range(request.n)]

    async def _wait(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.canceled += 1
            raise

    def _reply(self, content: str) -> ModelReply:
        return ModelReply(
            id=secrets.token_hex(8),
            message=Message(role="assistant", content=content),
            finish_reason="stop",
            prompt_tokens=7,
            tokens=(1, 2, 3),
        )

    def note_refusal(self, error: RequestError) -> None:
        self.refusals.append(error)


class ScriptedFactory(PlayedSessions):
    """Opens scripted sessions. The task `broken` is refused, `unexpected` fails, and `slow` takes 0.2 s to close."""

    def __init__(self) -> None:
        self.sessions: dict[str, ScriptedSession] = {}
        self.options: dict[str, Mapping[str, Any]] = {}
        self.rewards: dict[str, list[Mapping[str, float]]] = {}
        self.closed: dict[str, str] = {}
        self.is_released = False

    async def warm_up(self) -> None:
        pass

    async def open(self, options: Mapping[str, Any]) -> ScriptedSession:
        if options.get("task") == "broken":
            raise ConfigError("there is no such task")
        if options.get("task") == "unexpected":
            raise ValueError(SECRET)
        session = ScriptedSession()
        self.sessions[session.id] = session
        self.options[session.id] = options
        self.rewards[session.id] = []
        return session

    async def reward(self, session_id: str, rewards: Mapping[str, float]) -> None:
        if "again" in rewards and self.rewards[session_id]:
            raise EpisodeError("the session has a reward")
        self.rewards[session_id].append(rewards)

    async def close(self, session_id: str, reason: str) -> Mapping[str, Any]:
        assert session_id not in self.closed, "closed twice"
        self.closed[session_id] = reason
        if self.options[session_id].get("task") == "slow":
            await asyncio.sleep(0.2)
        return {"steps": len(self.sessions[session_id].asked)}

    async def aclose(self) -> None:
        self.is_released = True


class RunningGateway:
    """A gateway in a thread: `with RunningGateway(factory, ...) as url`."""

    def __init__(self, factory: PlayedSessions, **options: Any) -> None:
        self._socket = listen("127.0.0.1", 0)
        gateway = Gateway(factory, **options)
        self._server = Server(gateway.app, grace_s=0.2, lifespan="on", limits=gateway.limits)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(600)
        assert not self._thread.is_alive()
