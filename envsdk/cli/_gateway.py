"""`envsdk gateway`: a server in front of any policy, to which agent programs send requests."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .._packages import load
from ..errors import ConfigError
from ._options import (
    SPECIFICATION,
    HistoryOption,
    ModelOption,
    PolicyOption,
    PolicyOptions,
    PolicyTimeout,
    TokenizerOption,
    env_options,
    function_from,
    options_of,
    policy_from,
)
from ._output import print_text


def gateway(
    policy: PolicyOption,
    model: ModelOption = None,
    policy_option: PolicyOptions = None,
    renderer: Annotated[str, typer.Option(help=SPECIFICATION)] = "qwen3",
    tokenizer: TokenizerOption = None,
    history: HistoryOption = None,
    limit: Annotated[list[str] | None, typer.Option(help="A limit of each session: max_steps=50.")] = None,
    trainable_role: Annotated[list[str] | None, typer.Option(help="A role that gives samples; by default all.")] = None,
    role_of: Annotated[
        str | None, typer.Option(help="module:function from the messages of a new conversation to its role, or None.")
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FIELD:REGEX, a rule for a role. FIELD is system, tools, model or a header."),
    ] = None,
    train_unseen: Annotated[
        bool, typer.Option("--train-unseen", help="Train what a client that went away did not receive.")
    ] = False,
    sampling: Annotated[
        list[str] | None,
        typer.Option(help="A sampling parameter in place of those that programs request: temperature=1.0."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder, if sessions are recorded.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    compress: Annotated[bool, typer.Option("--compress", help="Compress the trajectories in the folder.")] = False,
    log_to: Annotated[str | None, typer.Option(help="otel sends spans over OTLP.")] = None,
    record: Annotated[
        Literal["on", "off"], typer.Option(help="off serves without recording, as in production.")
    ] = "on",
    host: Annotated[str, typer.Option(help="The address. If other machines can reach it, set a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any free one.")] = 8808,
    token: Annotated[
        str | None,
        typer.Option(envvar="ENVSDK_GATEWAY_TOKEN", help="The bearer token that managing sessions requires."),
    ] = None,
    policy_timeout_s: PolicyTimeout = 600,
    max_sessions: Annotated[int, typer.Option(min=1, help="The maximum number of open sessions.")] = 1000,
    idle_timeout_s: Annotated[
        float, typer.Option(help="A session ends after this many seconds without a request.")
    ] = 3600,
    rate: Annotated[float | None, typer.Option(help="The maximum requests per second of a session.")] = None,
    max_body_mib: Annotated[int, typer.Option(min=1, help="The largest request, in MiB.")] = 64,
) -> None:
    """Serve the protocols of OpenAI, Anthropic and Google in front of a policy; each session is an episode.

    POST /sessions opens a session, and returns its base URLs and its key. Its requests are recognized by their meaning,
    rendered with the history policy, and recorded when the session is closed. SIGINT or SIGTERM closes all sessions.
    """
    if (record == "on") != (out is not None):
        raise ConfigError("name a run folder with --out, or serve without recording with --record off; expected one")
    what, advice = "the gateway needs", "pip install 'envsdk[gateway]'"
    for module in ("starlette", "uvicorn", "prometheus_client"):
        load(module, what, advice)
    from ..gateway._app import ServerLimits
    from ..gateway._management import Gateway, serve
    from ..gateway._outside import PlayedSessions
    from ..gateway._standalone import SessionLimits

    found: Any = policy_from(policy, model, policy_option)
    declared: dict[str, Any] = {
        "trainable_roles": None if trainable_role is None else frozenset(trainable_role),
        "roles": {name: rule for name, _, rule in (each.partition("=") for each in role or ())},
        "train_unseen": train_unseen,
        "sampling": None if sampling is None else options_of(sampling),
    }
    if role_of is not None:
        declared["role_of"] = staticmethod(function_from(role_of, "a list of messages"))
    sessions = PlayedSessions(
        found,
        {**env_options((), renderer, tokenizer, history), "limits": options_of(limit or ())},
        declared=declared,
        out=out,
        resume=resume,
        compress=compress,
        policy_timeout_s=policy_timeout_s,
        log_to=log_to,
    )
    server = Gateway(
        sessions,
        token=token,
        limits=ServerLimits(max_body_bytes=max_body_mib * 2**20),
        session_limits=SessionLimits(max_sessions, rate, None, idle_timeout_s),
        model=model or policy,
    )
    serve(server, host, port, on_start=lambda url: print_text(f"envsdk gateway: {url}/sessions opens a session"))
