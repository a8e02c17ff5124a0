"""The errors that envsdk raises. Each message states what was given, what was expected, where, and what to do.

`docs/errors.md` has an entry for each: why it happens, and what to do. `envsdk explain NAME` prints it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Self

from ._describing import around_difference, likely


class EnvsdkError(Exception):
    """The base class of all errors that envsdk raises."""


class NoEndWarning(UserWarning):
    """An episode without a limit was ended after `STEPS_WITHOUT_LIMIT` steps."""


class RewriteWarning(UserWarning):
    """A chat template rewrites earlier text of users or the system; the model's prompt keeps the original text."""


class PlainTagsWarning(UserWarning):
    """An assistant's message that no model sampled has tags in its content. They are rendered as plain text."""


class MistakeWarning(UserWarning):
    """Code of an environment or a policy is likely a mistake. The warning is at the line that it is about."""


class ReservedName(EnvsdkError, AttributeError):
    """An environment defines an attribute or a method with a name that envsdk uses already."""


class UnknownName(EnvsdkError, LookupError):
    """No renderer, environment, history policy, tool or option has the given name."""

    @classmethod
    def of(cls, kind: str, name: object, known: Iterable[str], hint: str = "") -> Self:
        """Return the error, which suggests similar names or else lists all known ones."""
        names = sorted(known)
        if not isinstance(name, str):
            advice = "Expected a string."
        elif near := likely(name, names):
            advice = "Did you mean " + " or ".join(repr(n) for n in near) + "?"
        else:
            advice = f"Known: {', '.join(names) or 'none'}."
        return cls(" ".join(filter(None, (f"No {kind} is named {name!r}.", advice, hint))))


class PluginError(EnvsdkError):
    """A plug-in is registered, but it cannot be imported or does not contain what its entry point promises."""


class TokenizerError(EnvsdkError):
    """A tokenizer cannot be loaded, or lacks control tokens that the renderer needs."""


class RenderError(EnvsdkError, ValueError):
    """A conversation contains something that the model family cannot express."""


class TemplateUnsupported(RenderError):
    """A chat template does something that cannot be measured, so no tokens were emitted for it.

    Attributes:
        previous: The kind of the last reply; empty if the error is not about a turn.
        following: The kind of the messages that follow that reply, or empty.
        expected: The text that was expected, or empty.
        rendered: The text that the template rendered, or empty.
        advice: What to try.
    """

    def __init__(
        self, reason: str, *, pair: tuple[str, str] = ("", ""), expected: str = "", rendered: str = ""
    ) -> None:
        self.previous, self.following = pair
        self.expected, self.rendered = expected, rendered
        self.advice = (
            "Try other template_arguments, a renderer for this model family, or a template that keeps what it rendered"
        )
        where = f"{pair[0]} -> {pair[1]}: " if pair[0] else ""
        shown = zip(("expected", "rendered"), around_difference(expected, rendered, 300), strict=True)
        texts = [f"{name} {text!r}" for name, text in shown if text]
        super().__init__(f"{where}{reason}. {'; '.join([*texts, ''])}{self.advice}")

    def advising(self, advice: str) -> "TemplateUnsupported":
        """Return the same error with other advice."""
        changed = copy(self)
        changed.advice, changed.args = advice, (str(self).removesuffix(self.advice) + advice,)
        return changed


class ImageError(EnvsdkError, ValueError):
    """An image cannot be read: it is damaged, too large, animated, or at a URL that is not fetched."""


class ExportRefused(EnvsdkError, ValueError):
    """No chat template renders as a renderer does, so none was exported.

    Attributes:
        conversation: The name of the smallest conversation that differs; empty if none was compared.
        expected: The text that the renderer writes, or empty.
        rendered: The text that the nearest template writes, or empty.
    """

    def __init__(self, reason: str, *, conversation: str = "", expected: str = "", rendered: str = "") -> None:
        self.conversation, self.expected, self.rendered = conversation, expected, rendered
        super().__init__(reason)


class ActionError(EnvsdkError, ValueError):
    """An action is not valid: for example, a token id is out of range or the number of log-probabilities is wrong."""


class ConfigError(EnvsdkError, ValueError):
    """An argument of a class or function, or an option, is not valid: an unknown name, a wrong type, a wrong value."""


class InvalidFilter(ConfigError):
    """A filter of a list of episodes is not valid.

    Attributes:
        position: The index of the first character of the invalid term.
        length: The length of the term in characters.
    """

    def __init__(self, why: str, position: int, length: int) -> None:
        self.position, self.length = position, length
        super().__init__(f"at {position}: {why}")


class TokenizerMismatch(ConfigError):
    """The policy's tokenizer differs from the environment's, or no tokenizer was chosen for the environment."""


class SandboxError(EnvsdkError):
    """The sandbox failed to run a program, or lost track of how it ended. The program itself may be correct."""


class SandboxUnavailable(SandboxError):
    """This machine cannot isolate programs. The message names what is missing and what to do."""


class ContainerError(EnvsdkError):
    """A container could not be started or used. The command in it may be correct."""


class ContainerLost(ContainerError, ConnectionError):
    """A container ended while it was used. Rollouts play the episode again."""


class RemoteEnvError(EnvsdkError, ConnectionError):
    """The server of a `RemoteEnv` or an `OpenEnv` cannot be reached or lost the session. The episode is retried."""


class MissingPackage(EnvsdkError, ImportError):
    """A required package is not installed. The message explains how to install it."""


class HandoffError(EnvsdkError, ValueError):
    """A handoff is not valid: its target is not an Env or is running already, or it is nested too deeply."""


class EpisodeError(EnvsdkError, RuntimeError):
    """A call does not fit the state of the episode, such as `step` before `reset` or after the end."""


class TurnError(EnvsdkError, ValueError):
    """An environment returned something other than a valid `Turn`."""


class TaskError(EnvsdkError, ValueError):
    """Task data cannot be read, or a task does not fit the environment."""


class ToolError(EnvsdkError):
    """Raised by a tool to report to the model that its call failed. The model receives the message."""


class UndeclaredBreak(EnvsdkError):
    """Tokens of a context were dropped without a declared break."""


class ContextFull(EnvsdkError):
    """The context is too long and the history policy has nothing left to drop. The episode is truncated."""


class PolicyError(EnvsdkError, TypeError):
    """A policy cannot be used as one, or returned something other than an action."""


class PolicyUnavailable(EnvsdkError, ConnectionError):
    """A policy's server cannot be reached, fails, or does not answer, after all retries."""


class ServerUnreachable(PolicyUnavailable):
    """No connection to a policy's server can be opened, and none has been: it does not run, or its URL is wrong."""


class EngineDead(PolicyUnavailable):
    """A policy's server reports that its engine has died. Requests are not retried: restart the server."""


class ServerReplyError(EnvsdkError, ValueError):
    """A policy's server returned a response that is not a legal action."""


class RequestRefused(ServerReplyError):
    """A policy's server refused a request, such as a prompt that is too long. It is not retried.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class RequestError(EnvsdkError, ValueError):
    """A program's request for a model's reply cannot be answered. The message names the field and what to do.

    Attributes:
        status: The HTTP status, 4xx or 5xx.
        code: The error's code, such as `"invalid_request_error"` or `"context_length_exceeded"`.
        field: The field of the request, such as `messages[3].content`; None if it is not about one field.
    """

    def __init__(
        self, message: str, status: int = 400, code: str = "invalid_request_error", field: str | None = None
    ) -> None:
        super().__init__(message, status, code, field)
        self.status = status
        self.code = code
        self.field = field

    def __str__(self) -> str:
        return str(self.args[0])


class ServerMismatch(ConfigError):
    """A policy's server is configured in a way that would give wrong samples. The message names the server's flag."""


class DeadlineExceeded(EnvsdkError, TimeoutError):
    """A policy's call, a method of an environment, or an episode exceeded its time limit."""


class WorkerLost(EnvsdkError, RuntimeError):
    """A worker process ended or stopped answering while it ran episodes."""


class RunFailed(EnvsdkError, RuntimeError):
    """Too many episodes in a row failed in the environment's code; the message has the traceback of the first."""


class RunFolderError(EnvsdkError, ValueError):
    """A run folder is in use, belongs to another configuration, or is damaged."""


class CannotReplay(EnvsdkError, ValueError):
    """A stored episode cannot be repeated. The message states why."""


class InvalidSample(EnvsdkError, ValueError):
    """A training sample is inconsistent. The message names the field and the position."""


class SingleSampleOnly(EnvsdkError):
    """A trainer takes one sample per rollout, but a rollout has several.

    Attributes:
        trainer: The trainer's name.
        trajectory_id: The id of the rollout.
        breaks: The rollout's breaks, except for returns from sub-agents. Each starts another sample.
    """

    def __init__(self, trainer: str, trajectory_id: str, breaks: Sequence[Any], samples: int) -> None:
        self.trainer, self.trajectory_id = trainer, trajectory_id
        self.breaks = [break_ for break_ in breaks if break_.reason != "return"]
        named = Counter(f"{break_.reason} in {break_.context!r}" for break_ in self.breaks)
        listed = ", ".join(f"{count} x {name}" for name, count in named.most_common(5)) or "several players"
        super().__init__(
            f"{trainer} takes one sample per rollout, but {trajectory_id!r} has {samples}: {listed}. Choose "
            "on_break='last_segment' (train on the last segment of the main context) or 'drop', another history "
            "policy, or what takes several samples: TRL with trl.tree_trainer() and on_break='tree', or trl_async; "
            "ms-swift with on_break='split'; verl's V1 trainer; prime-rl, SkyRL, slime, tinker"
        )


class TreeTooLarge(EnvsdkError, ValueError):
    """A branch of a tree does not fit into a batch, or a dense mask does not fit into memory."""


class TreeUnsupported(EnvsdkError, ValueError):
    """A forward pass over a tree would not give the results of separate samples. The message names the model's part."""


class InvalidRecord(EnvsdkError, ValueError):
    """A stored trajectory or sample cannot be read: it has another schema, or it is damaged."""


class StorageError(EnvsdkError, OSError):
    """Records cannot be written, such as on a full disk or without permission. The message names what was kept."""
