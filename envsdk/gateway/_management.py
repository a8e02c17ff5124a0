"""The management of a standalone gateway over HTTP: open, reward and close sessions; health and metrics."""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Send

from ..errors import ConfigError, EpisodeError, RequestError, TaskError, UnknownName, message_of, what_is_invalid
from ._app import RouteHandler, ServerLimits, keys_of, model_app
from ._description import description
from ._exchange import Refusal, is_loopback, json_response, read_json
from ._sessions import OpenSession
from ._standalone import ClosedSession, ManagedSessions, SessionFactory, SessionLimits

_MIN_TOKEN = 16
Answer: TypeAlias = Callable[[Request, Send], Awaitable[Response]]
Body = TypeVar("Body", bound=BaseModel)
Name = Annotated[str, Field(min_length=1, max_length=256)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class OpenRequest(BaseModel):
    """The description of a new session. Every field may be left out.

    Attributes:
        task: The task, as the environment takes it.
        seed: The seed of the episode.
        limits: Changes of the environment's limits, by name.
        episode_id: The id of the episode in the records; drawn if it is left out.
        group_id: The group that the episode belongs to.
        role: The role of the requests that do not name one.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    task: Any = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    limits: dict[str, Any] | None = None
    episode_id: Name | None = None
    group_id: Name | None = None
    role: Name | None = None


class RewardRequest(BaseModel):
    """A reward.

    Attributes:
        reward: A number, or several by name.
    """

    model_config = ConfigDict(extra="forbid")

    reward: Number | Annotated[dict[Name, Number], Field(min_length=1, max_length=256)]


class Gateway:
    """A standalone gateway: an application for `serve`, with its sessions.

    Args:
        factory: Opens, rewards and closes sessions.
        token: The bearer token that managing sessions requires, at least 16 characters; None for no token, which only
            an address of this machine allows.
        limits: The limits of requests.
        session_limits: The limits of sessions.
        model: The name of the model that `/v1/models` lists.

    Raises:
        ConfigError: If the token is short.
    """

    def __init__(
        self,
        factory: SessionFactory,
        *,
        token: str | None = None,
        limits: ServerLimits | None = None,
        session_limits: SessionLimits | None = None,
        model: str = "envsdk",
    ) -> None:
        if token is not None and len(token) < _MIN_TOKEN:
            raise ConfigError(f"the token has {len(token)} characters; expected at least {_MIN_TOKEN} random ones")
        self._token = token
        self.limits = limits or ServerLimits()
        self._sessions = ManagedSessions(factory, session_limits or SessionLimits())
        self.app: Starlette = model_app(
            self._sessions.open_sessions,
            limits=self.limits,
            model=model,
            metrics=self._sessions.metrics,
            routes=self._routes(),
            lifespan=self._sessions.lifespan,
        )

    @property
    def has_token(self) -> bool:
        """True if managing sessions requires a token."""
        return self._token is not None

    def _routes(self) -> list[Route]:
        session = "/sessions/{session_id}"
        managed = [
            ("/sessions", "POST", self._open),
            (session, "GET", self._show),
            (f"{session}/reward", "POST", self._reward),
            (f"{session}/close", "POST", self._close),
            ("/metrics", "GET", self._show_metrics),
        ]
        public = [("/health", "GET", self._health), ("/openapi.json", "GET", self._describe)]
        handlers = [
            *(RouteHandler(path, (method,), self._guarded(answer)) for path, method, answer in managed),
            *(RouteHandler(path, (method,), answer) for path, method, answer in public),
        ]
        return [Route(handler.route, handler) for handler in handlers]

    def _guarded(self, answer: Answer) -> Answer:
        """Return an endpoint that requires the token, and whose errors have a status."""

        async def guarded(request: Request, send: Send) -> Response:
            host = request.url.hostname or ""
            if self._token is None and not is_loopback(host):  # against DNS rebinding
                text = f"without a token, sessions can be managed under the host localhost only, not {host!r:.80}"
                raise RequestError(f"{text}; start the gateway with a token", 403, "host_refused")
            given = (key.encode() for key in keys_of(request))
            if self._token is not None and not any(hmac.compare_digest(key, self._token.encode()) for key in given):
                text = "managing sessions requires the token of the gateway as a bearer token"
                raise Refusal(401, "invalid_token", text, {"www-authenticate": "Bearer"})
            try:
                return await answer(request, send)
            except (ConfigError, TaskError, UnknownName) as error:
                raise RequestError(message_of(error), 400, "invalid_request_error") from None
            except EpisodeError as error:
                raise RequestError(message_of(error), 409, "conflict") from None

        return guarded

    async def _open(self, request: Request, send: Send) -> Response:
        given = await self._read(request, OpenRequest)
        session = await self._sessions.open(given.model_dump(exclude_unset=True))
        base = f"{str(request.base_url).rstrip('/')}/s/{session.id}"
        created = {"id": session.id, "key": session.key, "openai_base_url": f"{base}/v1", "anthropic_base_url": base}
        return json_response(created, 201)

    async def _reward(self, request: Request, send: Send) -> Response:
        given = (await self._read(request, RewardRequest)).reward
        rewards = given if isinstance(given, dict) else {"reward": given}
        opened = await self._sessions.reward(request.path_params["session_id"], rewards)
        return json_response(_described(opened.session.id, opened))

    async def _close(self, request: Request, send: Send) -> Response:
        session_id = request.path_params["session_id"]
        return json_response(_described(session_id, await self._sessions.close(session_id, "closed")))

    async def _show(self, request: Request, send: Send) -> Response:
        session_id = request.path_params["session_id"]
        return json_response(_described(session_id, await self._sessions.find(session_id)))

    async def _show_metrics(self, request: Request, send: Send) -> Response:
        return Response(generate_latest(self._sessions.metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _health(self, request: Request, send: Send) -> Response:
        return json_response({"status": "ok", "open_sessions": len(self._sessions.open_sessions.by_id)})

    async def _describe(self, request: Request, send: Send) -> Response:
        return json_response(description(OpenRequest, RewardRequest, has_token=self.has_token))

    async def _read(self, request: Request, body: type[Body]) -> Body:
        """Return a checked body."""
        value, _ = await read_json(request, self.limits.max_body_bytes, self.limits.body_timeout_s)
        try:
            return body.model_validate(value)
        except ValidationError as error:
            raise RequestError(what_is_invalid(error)) from None


def _described(session_id: str, session: OpenSession | ClosedSession) -> Mapping[str, Any]:
    if isinstance(session, ClosedSession):
        return {"id": session_id, "status": "closed", "reason": session.reason, "summary": session.summary}
    return {
        "id": session_id,
        "status": "open",
        "opened": int(session.opened),
        "requests": session.requests,
        "waiting": session.waiting,
        "idle_s": round(session.idle_s(), 3),
    }
