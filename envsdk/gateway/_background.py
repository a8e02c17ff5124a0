"""The server of one process: in a separate thread, on loopback, started when it is first used."""

import atexit
import contextvars
import os
import threading
from concurrent.futures import wait

from ..authoring._event_loops import LoopThread
from ._app import ServerLimits, model_app
from ._serving import Server, listen
from ._sessions import Session, Sessions

_GRACE_S, _STOP_S = 1.0, 5.0


class BackgroundServer:
    """Answers the requests of sessions in this process, on loopback, from a daemon thread with its own event loop.

    Programs in the process should share the one that `background_server` returns. It listens once it is created.

    Args:
        limits: The limits of the server.

    Attributes:
        sessions: The sessions that it serves. Requests that are being answered are not interrupted when one is removed.
        socket: The socket at which it listens.
    """

    def __init__(self, limits: ServerLimits | None = None) -> None:
        self.sessions = Sessions()
        self.socket = listen("127.0.0.1", 0)
        self._address = "http://{}:{}".format(*self.socket.getsockname())
        limits = limits or ServerLimits()
        self._server = Server(model_app(self.sessions, limits=limits), grace_s=_GRACE_S, limits=limits)
        self._thread = LoopThread("envsdk-gateway")
        # The server must not inherit context variables of the first caller, such as its collector of tasks.
        self._serving = contextvars.Context().run(self._thread.submit, self._server.serve([self.socket]))

    @property
    def is_running(self) -> bool:
        """True while it answers requests."""
        return not self._serving.done() and not self._server.should_exit

    def openai_base_url(self, session: Session) -> str:
        """Return the base URL of a session for clients of OpenAI's protocols."""
        return f"{self.anthropic_base_url(session)}/v1"

    def anthropic_base_url(self, session: Session) -> str:
        """Return the base URL of a session for clients of Anthropic's protocol."""
        return f"{self._address}/s/{session.id}"

    def stop(self) -> None:
        """Stop answering, and close all connections. Requests that are being answered have a second to end."""
        self._server.should_exit = True
        wait([self._serving], _STOP_S)
        self._thread.stop(_STOP_S)


_server: BackgroundServer | None = None
_starting = threading.Lock()
_of_parents: list[BackgroundServer] = []
"""Servers that a forked child inherited. Their threads do not exist in it, so their event loops must not be closed."""


def background_server() -> BackgroundServer:
    """Return the server of this process, which is started at the first call, and again in each forked child."""
    global _server
    with _starting:
        if _server is None or not _server.is_running:
            _server = BackgroundServer()
            atexit.register(_server.stop)
        return _server


def _forget_parent() -> None:
    """Leave the parent's server to the parent, in a forked child."""
    global _server, _starting
    if _server is not None:
        _server.socket.close()  # else the port would stay open as long as the child lives
        atexit.unregister(_server.stop)
        _of_parents.append(_server)
    _server, _starting = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_parent)
