"""The errors that envsdk raises. Each says what was given, what was expected, and what to do."""

import difflib
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


class EnvsdkError(Exception):
    """The base of all errors of this package."""


class NoEndWarning(UserWarning):
    """An episode that nothing limits had so many steps that it was ended."""


class ReservedName(EnvsdkError, AttributeError):
    """An environment gives a name to something of its own that the SDK uses for something else."""


class UnknownName(EnvsdkError, LookupError):
    """A renderer, environment, history policy, tool or option of that name does not exist."""


class PluginError(EnvsdkError):
    """A plug-in is known by name, but could not be imported or does not hold what it should."""


class TokenizerError(EnvsdkError):
    """A tokenizer could not be loaded, or lacks the control tokens that a renderer needs."""


class RenderError(EnvsdkError, ValueError):
    """A conversation holds something that the model family cannot express."""


class TemplateUnsupported(RenderError):
    """A chat template does something that measuring cannot follow, or must not: no token was handed out for it.

    Attributes:
        previous: What the last reply was, or an empty string if it is not about a turn.
        following: What comes next, or an empty string.
        expected: What was expected.
        rendered: What the template rendered.
        advice: What to try.
    """

    def __init__(
        self, reason: str, *, pair: tuple[str, str] = ("", ""), expected: str = "", rendered: str = ""
    ) -> None:
        self.previous, self.following = pair
        self.expected, self.rendered = expected, rendered
        self.advice = (
            "Try other template_arguments, a renderer of that model family, or a template that keeps what it wrote"
        )
        where = f"{pair[0]} -> {pair[1]}: " if pair[0] else ""
        texts = [f"{name} {text!r:.300}" for name, text in (("expected", expected), ("rendered", rendered)) if text]
        super().__init__(f"{where}{reason}. {'; '.join([*texts, ''])}{self.advice}")


class ActionError(EnvsdkError, ValueError):
    """An action is not legal: a token out of range, or log-probabilities that do not fit."""


class ConfigError(EnvsdkError, ValueError):
    """An option of an environment, a renderer, a history policy or a limit is not valid."""


class TokenizerMismatch(ConfigError):
    """A policy was made for another tokenizer than the environment has, or nobody chose the environment's."""


class SandboxError(EnvsdkError):
    """A program could not be run, or nobody knows how it ended. It says nothing about the program."""


class SandboxUnavailable(SandboxError):
    """This machine does not isolate programs; the message says what is missing, and what can be done."""


class MissingPackage(EnvsdkError, ImportError):
    """Something needs a package that is not installed; the message says how to install it."""


class HandoffError(EnvsdkError, ValueError):
    """A handoff is not legal: to something that is no Env, to one that is running, or too deep."""


class EpisodeError(EnvsdkError, RuntimeError):
    """A call that does not fit the state of the episode, such as `step` before `reset` or after the end."""


class TurnError(EnvsdkError, ValueError):
    """An environment returned something that is not a legal `Turn`."""


class TaskError(EnvsdkError, ValueError):
    """Task data could not be read, or a task does not fit the environment."""


class ToolError(EnvsdkError):
    """What a tool raises to tell the model that its call failed; the message is what the model gets."""


class UndeclaredBreak(EnvsdkError):
    """Tokens of a context were dropped and nothing declared it."""


class ContextFull(EnvsdkError):
    """A history policy has nothing left to drop and the context is still too long; the episode is truncated."""


class PolicyError(EnvsdkError, TypeError):
    """A policy is none, or returned something that is no action."""


class InvalidSample(EnvsdkError, ValueError):
    """A training sample is not sound; the message names the field and the position."""


class SingleSampleOnly(EnvsdkError):
    """A trainer takes one sample of a rollout, and there are several.

    Attributes:
        trainer: The trainer.
        trajectory_id: The rollout.
        breaks: The rollout's breaks: each starts another sample, or a sub-agent's.
    """

    def __init__(self, trainer: str, trajectory_id: str, breaks: Sequence[Any], samples: int) -> None:
        self.trainer, self.trajectory_id = trainer, trajectory_id
        self.breaks = [break_ for break_ in breaks if break_.reason != "return"]
        named = Counter(f"{break_.reason} in {break_.context!r}" for break_ in self.breaks)
        listed = ", ".join(f"{count} x {name}" for name, count in named.most_common(5)) or "several players"
        super().__init__(
            f"{trainer} takes one sample of a rollout, and {trajectory_id!r} has {samples}: {listed}. Choose "
            "on_break='last_segment' (trains the last segment of the main context) or 'drop', another history policy, "
            "or a trainer that takes several"
        )


class TreeTooLarge(EnvsdkError, ValueError):
    """A tree does not fit: a branch into a batch, or a dense mask into memory."""


class TreeUnsupported(EnvsdkError, ValueError):
    """A forward pass over a tree would not give what the separate samples give; the message names the part."""


class InvalidRecord(EnvsdkError, ValueError):
    """A stored trajectory or sample cannot be read: another schema, or damaged."""


class StorageError(EnvsdkError, OSError):
    """Records could not be written: the disk is full, or there is no permission. The message names what was kept."""


def what_is_invalid(error: "ValidationError") -> str:
    """What a pydantic model refuses, on one line: each field with its reason and what was given; the first ten."""
    found = error.errors(include_url=False)
    listed = [
        f"{'.'.join(map(str, item['loc'])) or 'it'}: {item['msg']} (got {_shortened(item['input'])})"
        for item in found[:10]
    ]
    return "; ".join([*listed, f"and {len(found) - 10} more"] if len(found) > 10 else listed)


def message_of(error: BaseException) -> str:
    """Return the text of an exception, `encodable`, whatever its `__str__` does."""
    try:
        return encodable(str(error))
    except Exception:
        return "it cannot say what is wrong"


def encodable(text: str) -> str:
    """Return a text with each half of a surrogate pair, which UTF-8 does not have, written as Python escapes it."""
    return text.encode(errors="backslashreplace").decode()


def _shortened(value: object) -> str:
    """The beginning of a value's `repr`, which for long lists and texts is not made as a whole."""
    return _REPR.repr(value)[:80]


def unknown_name(kind: str, name: object, known: Iterable[str], hint: str = "") -> UnknownName:
    """Make an `UnknownName` that suggests near names, or lists the known ones."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    if near:
        advice = "Did you mean " + " or ".join(repr(n) for n in near) + "?"
    else:
        advice = f"Known: {', '.join(names) or 'none'}."
    return UnknownName(" ".join(filter(None, (f"No {kind} is named {name!r}.", advice, hint))))
