"""Agent programs as environments: the program requests replies over HTTP, and each request is an observation."""

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast

from .._visible import brief
from ..authoring._driver import Driver, driver_of
from ..authoring._env import Env, EnvConfig
from ..authoring._mistakes import where
from ..containers import ContainerConfig
from ..episodes._turn import Turn
from ..errors import ConfigError
from ..messages import Message
from ._agents import AgentConfig
from ._driver import ProgramDriver
from ._programs import Endpoint, ProgramResult

Outcome: TypeAlias = float | Mapping[str, float] | Turn | None
"""The outcome of a program: a number, named rewards, or a last turn; None if it is not scored."""


class ProgramEnv(Env):
    """An environment in which a program that calls a chat endpoint works on the task: an agent of any framework.

    Write `run`, which is the program or calls it; or set `command`, which is started as a process, and write `score`;
    or name a program that envsdk has a recipe for, as in `ProgramEnv(agent="qwen-code", task="Fix the bug.")`.
    The program runs unchanged. It gets a base URL and a key, and speaks OpenAI's Chat Completions or Responses,
    Anthropic's Messages or Google's generateContent, streamed or not. Its first request is the first observation; each
    action is the reply to one request; when it ends, the episode is over.

    Requests are recognized by their meaning: a request continues the context whose conversation it extends. What the
    program changed of the past (it dropped messages, summarized, edited) is a declared `edit`. Another conversation is
    another context; one that begins with known messages has a `base`. Simultaneous requests are answered
    one after the other.

    When a limit is reached, the program's next request is refused with a 400 of its protocol, whose code names the
    limit. What the program returns within `limit_grace_s` seconds is still its reward. A request that does not fit into
    its context is refused, too (`context_length_exceeded`), and the episode goes on with the program's next request.

    With `context_tools`, the model gets these tools in all conversations. The program neither offers them nor sees the
    calls: they are answered here, and the program receives the reply after them, whole and not as it is sampled.

    It needs the packages of `pip install 'envsdk[gateway]'`. A program that runs cannot be copied: `fork` is refused.
    """

    Config: ClassVar[type[EnvConfig]] = AgentConfig
    """The options `agent`, the name of a recipe in `envsdk.gateway.agents`, and `task`, the task that it gets; with
    `task=None`, the task of the episode, a string or a mapping with the field `prompt`. Options of a subclass are in a
    subclass of this one, or of `EnvConfig` if no recipe is used."""
    _envsdk_program: ClassVar[Callable[[Driver], Any] | None] = ProgramDriver
    blocking: ClassVar[bool | None] = False  # its program runs in its own thread
    command: Sequence[str] | None = None
    """The program and its arguments; it may be set in `__init__` or `prepare`. None calls `run`."""
    environ: Mapping[str, str] = {}
    """Environment variables of `command`, next to those of the endpoint, and instead of its `HOME` and `TMPDIR`; it may
    be set in `__init__` or `prepare`."""
    container: ContainerConfig | None = None
    """The container that `command` runs in; it may be set in `__init__` or `prepare`. None runs it on this machine."""
    trainable_roles: ClassVar[frozenset[str] | None] = None
    """The roles whose contexts are trained; None trains all. A context of another role gives no samples."""
    roles: ClassVar[Mapping[str, str]] = {}
    """A rule for each role, `FIELD:REGEX`: a new conversation has the role of the first rule whose expression is found
    in the field. Fields are `system` (the text of the system message), `tools` (the names of the tools, separated by
    spaces; `tools:^$` means none), `model` (the name of the model that the program asks for), and names of headers."""
    train_unseen: ClassVar[bool] = False
    """Whether the parts of replies that the program did not receive are trained, because it closed the stream or the
    connection. A reply that it sends back whole was received."""
    sampling: ClassVar[Mapping[str, Any] | None] = None
    """Parameters of sampling in place of those that the program requests, such as `{"temperature": 1.0}`; None takes
    the program's. Trainers usually need one temperature for all."""
    limit_grace_s: ClassVar[float | None] = 10.0
    """The time that a program may still run after a limit refused a request, in seconds; None for any time."""

    def _envsdk_check(self) -> None:
        cls, command = type(self), self.command
        methods: list[Any] = [cls.start, cls.respond]
        if own := [method.__name__ for method in methods if not method.__module__.startswith("envsdk")]:
            raise ConfigError(f"{where(cls, own[0])} is not for a ProgramEnv: write its program, run(self, model)")
        if isinstance(command, str):
            raise ConfigError(f"{cls.__name__}.command is {command!r}; expected a list: {shlex.split(command)}")
        if not isinstance(self.container, (ContainerConfig, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{cls.__name__}.container is {brief(self.container)}; expected a ContainerConfig")
        if "branch" in getattr(self.config, "context_tools", ()):
            raise ConfigError(
                f"{type(self).__name__} has the context tool 'branch', which a program's conversation cannot have: "
                "leave it out of context_tools, and let the program start a sub-agent"
            )

    @property
    def _envsdk_has_run(self) -> bool:
        """True if `run` is written; if not, the program is `command`, which `prepare` may set."""
        return type(self).run is not ProgramEnv.run

    def run(self, model: Endpoint) -> Outcome | Awaitable[Outcome]:
        """Run the program and return its reward. It may be `async def`.

        It runs in a separate thread, with a separate event loop if it is `async def`; random choices come from
        `self.np_random`. An exception that it raises ends the episode as an error.

        Args:
            model: The endpoint that the program calls.
        """
        raise NotImplementedError(f"{type(self).__name__} has a command, and no run()")

    def prepare(self, folder: Path, endpoint: Endpoint) -> None:
        """Prepare the folder that `command` is started in: it is empty, and is removed after `score`.

        The program sees it at another path: the same in each episode where Linux allows mounts, or `container.workdir`,
        into which it is copied. `folder` in the words of `command` and the values of `environ` becomes that path; write
        relative paths into files.

        Args:
            folder: The folder.
            endpoint: The endpoint that the program calls, for its configuration.
        """

    def score(self, result: ProgramResult) -> Outcome | Awaitable[Outcome]:
        """Return the reward of `command`, given its result. It may be `async def`.

        Without it, an agent of a recipe is not scored.

        Score a program that ran in a container with `result.container`, where it cannot have changed the tests.
        """
        if getattr(self.config, "agent", None) is None:
            raise NotImplementedError(f"{type(self).__name__} has a command, but no score(): it returns the reward")
        return None

    def role_of(self, messages: Sequence[Message]) -> str | None:
        """Return the role of a new conversation, given its messages; None for `roles`, or else the built-in rule.

        A header `x-envsdk-role` comes first. The built-in rule, when the program has ended: `main` is the conversation
        with the most replies among those with tools (among all if none has tools). `side` is a request with few or no
        tools over known history, and a conversation without tools if `main` has some. Any other is an `agent`. Until
        the program ends, the first conversation is `main`, also for the policies of roles.
        """
        return None

    async def start(self) -> Turn:
        """Start the program, and return its first request."""
        return await cast("ProgramDriver", driver_of(self).program).first()

    async def respond(self, reply: Message) -> Turn:
        """Send the program its reply, and return its next request, or the end."""
        return await cast("ProgramDriver", driver_of(self).program).following(reply)

    def close(self) -> None:
        """End the program and all processes that its command started."""
        cast("ProgramDriver", driver_of(self).program).end_program()
        super().close()
