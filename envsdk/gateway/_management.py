"""A standalone gateway, and its management over HTTP: open, reward and close sessions; health and metrics."""

import contextlib
import hmac
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Send

from .._describing import message_of, what_is_invalid
from .._untrusted import is_loopback
from .._visible import brief
from ..errors import ConfigError, EpisodeError, RequestError, TaskError, UnknownName
from ._app import RouteHandler, ServerLimits, keys_of, model_app
from ._description import description
from ._exchange import Refusal, json_response, read_json
from ._outside import PlayedSessions
from ._serving import Server, listen
from ._sessions import OpenSession
from ._standalone import ClosedSession, ManagedSessions, SessionLimits

_MIN_TOKEN = 16
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

    Attributes:
        has_token: True if managing sessions requires a token.
        app: The application.

    Raises:
        ConfigError: If the token is short.
    """

    def __init__(
        self,
        factory: PlayedSessions,
        *,
        token: str | None = None,
        limits: ServerLimits | None = None,
        session_limits: SessionLimits | None = None,
        model: str = "envsdk",
    ) -> None:
        if token is not None and len(token) < _MIN_TOKEN:
            raise ConfigError(f"the token has {len(token)} characters; expected at least {_MIN_TOKEN} random ones")
        self._token, self.has_token = token, token is not None
        self.limits = limits or ServerLimits()
        self._sessions = ManagedSessions(factory, session_limits or SessionLimits())
        named = "/sessions/{session_id}"
        handlers = [
            RouteHandler("/sessions", ("POST",), partial(self._manage, "open")),
            RouteHandler(named, ("GET",), partial(self._manage, "show")),
            RouteHandler(f"{named}/reward", ("POST",), partial(self._manage, "reward")),
            RouteHandler(f"{named}/close", ("POST",), partial(self._manage, "close")),
            RouteHandler("/metrics", ("GET",), partial(self._manage, "metrics")),
            RouteHandler("/health", ("GET",), self._health),
            RouteHandler("/openapi.json", ("GET",), self._describe),
        ]
        self.app = model_app(
            self._sessions.open_sessions,
            limits=self.limits,
            model=model,
            metrics=self._sessions.metrics,
            routes=[Route(handler.route, handler) for handler in handlers],
            lifespan=self._sessions.lifespan,
        )

    async def _manage(self, action: str, request: Request, send: Send) -> Response:
        """Answer a request that requires the token; errors of the environment have a status."""
        host = request.url.hostname or ""
        if self._token is None and not is_loopback(host):  # against DNS rebinding
            text = f"without a token, sessions can be managed under the host localhost only, not {brief(host)}"
            raise RequestError(f"{text}; start the gateway with a token", 403, "host_refused")
        given = (key.encode() for key in keys_of(request))
        if self._token is not None and not any(hmac.compare_digest(key, self._token.encode()) for key in given):
            text = "managing sessions requires the token of the gateway as a bearer token"
            raise Refusal(401, "invalid_token", text, {"www-authenticate": "Bearer"})
        try:
            if action == "open":
                options = (await self._read(request, OpenRequest)).model_dump(exclude_unset=True)
                session = await self._sessions.open(options)
                base = f"{str(request.base_url).rstrip('/')}/s/{session.id}"
                urls = {"openai_base_url": f"{base}/v1", "anthropic_base_url": base}
                return json_response({"id": session.id, "key": session.key, **urls}, 201)
            if action == "metrics":
                content_type = {"content-type": CONTENT_TYPE_LATEST}
                return Response(generate_latest(self._sessions.metrics.registry), headers=content_type)
            session_id: str = request.path_params["session_id"]
            if action == "reward":
                reward = (await self._read(request, RewardRequest)).reward
                rewards = reward if isinstance(reward, dict) else {"reward": reward}
                found = await self._sessions.reward(session_id, rewards)
            elif action == "close":
                found = await self._sessions.close(session_id, "closed")
            else:
                found = await self._sessions.find(session_id)
            return json_response(_described(session_id, found))
        except (ConfigError, TaskError, UnknownName) as error:
            raise RequestError(message_of(error), 400, "invalid_request_error") from None
        except EpisodeError as error:
            raise RequestError(message_of(error), 409, "conflict") from None

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


def serve(
    gateway: Gateway,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    grace_s: float = 10.0,
    on_start: Callable[[str], object] = lambda url: None,
) -> None:
    """Serve a gateway until SIGINT or SIGTERM; then close its sessions and return.

    Args:
        gateway: The gateway.
        host: The address. One that other machines can reach requires a gateway with a token.
        port: The port; 0 for any free one.
        grace_s: How long requests that are being answered have to end, in seconds. A second SIGINT ends them at once.
        on_start: Called with the URL as soon as clients can connect.

    Raises:
        ConfigError: If other machines can reach the address and the gateway has no token, or it cannot be used.
    """
    if not is_loopback(host) and not gateway.has_token:
        raise ConfigError(f"host is {host!r}, which other machines may reach; give a token, or 127.0.0.1")
    with contextlib.closing(listen(host, port)) as listening:
        named = f"[{host}]" if ":" in host else host
        on_start(f"http://{named}:{listening.getsockname()[1]}")
        Server(gateway.app, grace_s=grace_s, lifespan="on", limits=gateway.limits).run([listening])
