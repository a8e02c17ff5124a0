"""Lets a container without a network reach chosen addresses, through its loopback interface.

A helper process joins the container's network namespace, opens listening sockets there, and passes them to this
process, which forwards what arrives: a socket stays in the namespace that it was opened in. So nothing is needed in the
container, and nothing but these addresses can be reached.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from functools import cache

from ..authoring._event_loops import LoopThread
from ..errors import ContainerError

HERE = ("127.0.0.1", "localhost")
"""The names of this machine's loopback interface, which are the container's as well."""
_MAX_CONNECTIONS = 64
"""The maximum number of simultaneous connections of a container; further ones are closed at once."""
_JOIN = """import ctypes, os, socket, sys
control, process, *addresses = sys.argv[1:]
for kind in ("user", "net"):
    theirs = os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY)
    is_ours = os.path.samestat(os.fstat(theirs), os.stat(f"/proc/self/ns/{kind}"))
    if not is_ours and ctypes.CDLL(None, use_errno=True).setns(theirs, 0):
        sys.exit(f"{os.strerror(ctypes.get_errno())}: its {kind} namespace cannot be joined")
listeners = []
for address in addresses:
    host, _, port = address.rpartition(":")
    listeners.append(socket.create_server((host, int(port)), backlog=64))
socket.send_fds(socket.socket(fileno=int(control)), [b"."], [listener.fileno() for listener in listeners])
"""


def locals_of(allow: Sequence[str]) -> list[tuple[str, str]]:
    """Return the host of each address, and the loopback address in the container that leads to it."""
    hosts = [address.rpartition(":")[0] for address in allow]
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts), 1)}
    return [
        (host, "127.0.0.1" if host in HERE else f"127.1.{numbers[host] // 256}.{numbers[host] % 256}") for host in hosts
    ]


class Forwarding:
    """The listening sockets of a container, and the connections that are forwarded."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._connections = 0

    async def open(self, process: int, allow: Sequence[str]) -> None:
        """Listen in the network namespace of a process.

        Args:
            process: The id of the process.
            allow: The addresses that are reached, as `host:port`.

        Raises:
            ContainerError: If this process may not join the namespace.
        """
        # Some have the same local address, such as localhost and 127.0.0.1.
        places = zip(locals_of(allow), allow, strict=True)
        local = {f"{there}:{address.rpartition(':')[2]}": address for (_, there), address in places}
        ours, theirs = socket.socketpair()
        with ours, theirs:
            control = str(theirs.fileno())
            helper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", _JOIN, control, str(process), *local),
                pass_fds=[theirs.fileno()],
                env={},
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            _, errors = await helper.communicate()
            if helper.returncode:
                why = errors.decode(errors="replace").strip()[-300:]
                raise ContainerError(f"allow needs Linux, and root or a rootless podman: {why}")
            _, descriptors, _, _ = socket.recv_fds(ours, 1, len(local))
        listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        try:
            for address, listener in zip(local.values(), listeners, strict=True):
                serving = background_loop(os.getpid()).submit(self._serve(listener, address))
                self._servers.append(await asyncio.wrap_future(serving))
        except BaseException:
            self.close()
            for listener in listeners:
                listener.close()
            raise

    def close(self) -> None:
        """Stop listening."""
        servers, self._servers = self._servers, []
        for server in servers:
            background_loop(os.getpid()).submit(_close(server))

    async def _serve(self, listener: socket.socket, address: str) -> asyncio.Server:
        host, _, port = address.rpartition(":")

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._connections >= _MAX_CONNECTIONS:
                writer.close()
                return
            self._connections += 1
            writers = [writer]
            try:
                far_reader, far_writer = await asyncio.open_connection(host, int(port))
                writers.append(far_writer)
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
            except (OSError, RuntimeError):  # one direction failed, so the other is of no use
                pass
            finally:
                self._connections -= 1
                for each in writers:
                    each.close()

        return await asyncio.start_server(forward, sock=listener)


@cache
def background_loop(process: int) -> LoopThread:
    """Return the thread that forwards connections; a forked process gets its own."""
    return LoopThread("envsdk-containers")


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward one direction of a connection to its end."""
    while data := await reader.read(2**16):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def _close(server: asyncio.Server) -> None:
    server.close()
