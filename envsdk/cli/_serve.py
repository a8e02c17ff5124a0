"""`envsdk serve`: environments behind OpenEnv's own server."""

import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from .._packages import load
from .._untrusted import is_loopback
from ..adapters import openenv_app
from ..errors import ConfigError
from ._options import (
    ENVIRONMENT,
    EnvOptions,
    HistoryOption,
    RendererOption,
    TasksOption,
    TokenizerOption,
    env_options,
    environment,
)
from ._output import print_text


def serve(
    envs: Annotated[list[str], typer.Argument(help=ENVIRONMENT, metavar="ENV...")],
    option: EnvOptions = None,
    renderer: RendererOption = None,
    tokenizer: TokenizerOption = None,
    history: HistoryOption = None,
    tasks: TasksOption = None,
    host: Annotated[str, typer.Option(help="The address. If other machines can reach it, set a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with the bearer token of all requests. Default: the variable ENVSDK_SERVE_TOKEN."),
    ] = None,
    token: Annotated[str | None, typer.Option(envvar="ENVSDK_SERVE_TOKEN", hidden=True)] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="The maximum number of sessions of an environment.")] = 256,
    idle_timeout_s: Annotated[
        float, typer.Option(min=1, help="A session ends after this many seconds without a message.")
    ] = 600,
    max_message_mib: Annotated[int, typer.Option(min=1, help="The largest message, in MiB.")] = 64,
) -> None:
    """Serve environments by OpenEnv's protocol, for its clients and for RemoteEnv. SIGINT or SIGTERM ends it.

    A client of http://HOST:PORT/NAME plays an environment at the level of messages or of tokens, or is a RemoteEnv.
    """
    uvicorn: Any = load("uvicorn", "a server of environments needs", "pip install 'envsdk[serve]'")
    if token_file is not None:
        try:
            token = token_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the token file {str(token_file)!r} cannot be read: {error}") from error
    if token is None and not is_loopback(host):
        raise ConfigError(f"host is {host!r}, which other machines may reach; give --token-file, or 127.0.0.1")
    app: Any = openenv_app(
        [environment(env) for env in envs],
        token=token,
        max_sessions=max_sessions,
        idle_timeout_s=idle_timeout_s,
        max_message_bytes=max_message_mib * 2**20,
        **env_options(option, renderer, tokenizer, history, tasks),
    )
    config = uvicorn.Config(
        app,
        log_level="warning",
        lifespan="on",
        server_header=False,
        proxy_headers=False,
        ws_max_size=max_message_mib * 2**20,
        ws_per_message_deflate=False,
        limit_concurrency=4 * max_sessions * len(envs) + 100,
        timeout_graceful_shutdown=5,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:  # so that TCP_NODELAY is set
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error}; choose another host or port") from error
        named = f"[{host}]" if ":" in host else host
        url = f"http://{named}:{listening.getsockname()[1]}"
        listening.listen(2048)
        print_text(f"envsdk serve: {', '.join(f'{url}/{name}' for name in app.names)}")
        uvicorn.Server(config).run([listening])
