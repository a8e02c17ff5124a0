"""Decides which of several servers an episode uses. It does no I/O."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from ..errors import ConfigError

_MAX_EPISODES = 100_000
"""How many episodes are remembered. An older one that goes on may move to another server."""


class Server:
    """A server, and what is known about it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.load = 0
        """Calls that wait for an answer of it."""
        self.episodes = 0
        """Episodes that it was chosen for."""
        self.down_until = 0.0
        """When it may be used again after it failed, as `time.monotonic()`."""
        self.has_answered = False
        """Whether a connection to it was ever opened."""
        self.is_checked = False
        """Whether the startup checks have passed since it was last reached."""
        self.tokenizers: set[str] = set()
        """The fingerprints of the tokenizers that its vocabulary was compared with."""
        self.max_model_len: int | None = None
        """The largest number of tokens of a prompt and its reply; None if it is not known."""
        self.lacks_token_endpoint = False
        """Whether it has no endpoint of its own for token ids, so that `/v1/completions` is used."""
        self.has_model = False
        """Whether it lists the policy's model."""
        self.adapter: str | None = None
        """The name of the policy's model if that is a LoRA adapter of the server's model."""
        self.is_dead = False
        """Whether it reported that its engine has died, and has not answered since."""

    def __repr__(self) -> str:
        return f"<Server {self.url}>"


class Servers:
    """The servers of a policy. An episode stays on one server, which has its prefixes in a cache, until that fails.

    Args:
        urls: The base URLs.
        rest_s: How long a server that failed is not used, in seconds, unless all have failed.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, urls: Sequence[str], *, rest_s: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.all = [Server(url) for url in urls]
        self._rest_s = rest_s
        self._clock = clock
        self._of_episode: OrderedDict[str, Server] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, episode_id: str) -> Server:
        """Return the server of an episode: the one that it used last, or else the least loaded one that works."""
        with self._lock:
            working = self._working()
            server = self._of_episode.get(episode_id)
            if server is None or (working and server not in working):
                server = min(working or self.all, key=lambda one: (one.load, one.episodes))
                server.episodes += 1
                self._of_episode[episode_id] = server
                if len(self._of_episode) > _MAX_EPISODES:
                    self._of_episode.popitem(last=False)
            self._of_episode.move_to_end(episode_id)
            return server

    @contextmanager
    def calling(self, server: Server) -> Generator[None]:
        """Count a call of a server while it runs."""
        with self._lock:
            server.load += 1
        try:
            yield
        finally:
            with self._lock:
                server.load -= 1

    def failed(self, server: Server, *, is_unreachable: bool) -> bool:
        """Note that a server failed.

        Args:
            server: The server.
            is_unreachable: Whether no connection could be opened: the server may come back with other options.

        Returns:
            Whether another one works, so that its episodes move there.
        """
        with self._lock:
            server.down_until = self._clock() + self._rest_s
            if is_unreachable:
                server.is_checked = server.has_model = False
                server.tokenizers.clear()
            return bool(self._working())

    def _working(self) -> list[Server]:
        now = self._clock()
        return [server for server in self.all if server.down_until <= now]


def base_urls(url: str | Sequence[str]) -> list[str]:
    """Return the base URLs of one or several servers, without a path `/v1` at their ends.

    Raises:
        ConfigError: If there is none, one is given twice, or one is not an HTTP URL.
    """
    given: Sequence[str] = [url] if isinstance(url, str) else list(url or ())
    urls = [checked_url(one).removesuffix("/v1") for one in given]
    if not urls or len(set(urls)) < len(urls):
        raise ConfigError(f"url is {url!r:.200}; expected the URL of a server, or a list of different ones")
    return urls


def checked_url(url: object) -> str:
    """Return a base URL without a slash at its end.

    Raises:
        ConfigError: If it is not an HTTP URL.
    """
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"url is {url!r:.200}; expected an HTTP URL, such as 'http://localhost:8000'")
    return parts.geturl().rstrip("/")
