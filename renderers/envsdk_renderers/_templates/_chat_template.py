"""Runs a model's chat template as `transformers.apply_chat_template` does.

A template is third-party code. It runs in another process, with limits of time, memory and output, in a sandbox that
reads no clock: `strftime_now` returns a fixed date. Knows nothing about tokens.
"""

import atexit
import contextlib
import datetime
import hashlib
import json
import marshal
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envsdk.errors import ConfigError, RenderError, TemplateUnsupported

from . import _template_process as template_process
from ._template_process import DESCRIBED, MAX_CPU_S, MAX_MEMORY, MAX_OUTPUT, NOT_A_TEMPLATE, REFUSED, TOO_LARGE

FIXED_DATE = "2025-01-01"
"""The date that `strftime_now` returns by default."""
MAX_TEXT = 2**20
"""The maximum number of characters in a template."""
_VARIABLES = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""The environment variables that the process may need to start Python."""
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)  # from outside
_SMALL = 2**20
"""A conversation of fewer bytes is not what made a template exceed its limits."""
_MAX_TEMPLATES = 100
"""The number of templates that a process keeps; then another one begins."""


class TemplateFailed(RenderError):
    """A chat template raised an error: it refuses the conversation, or cannot read its form."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        text: The template in Jinja.
        date: The date that `strftime_now` returns, as `YYYY-MM-DD`.
        special_tokens: The values of `bos_token`, `eos_token` and so on.

    Raises:
        ConfigError: If the text is not a Jinja template, or the date is not a date.
        TemplateUnsupported: If compiling it exceeds the limits.
    """

    def __init__(self, text: str, *, date: str = FIXED_DATE, special_tokens: Mapping[str, str] | None = None) -> None:
        try:
            datetime.datetime.fromisoformat(date)
        except (TypeError, ValueError):
            raise ConfigError(f"date is {date!r}; expected a date such as {FIXED_DATE!r}") from None
        if len(text) > MAX_TEXT:
            raise ConfigError(f"the chat template has {len(text):,} characters; expected at most {MAX_TEXT:,}")
        self.text = text
        self.date = date
        self._special_tokens = dict(special_tokens or {})
        kind, answer = _process().ask(text, date)
        if kind == NOT_A_TEMPLATE:
            raise ConfigError(f"the chat template is not a Jinja template: {answer}")
        literals, (starts, ends), variables = json.loads(answer)
        self.literals: tuple[str, ...] = tuple(literals)
        """The strings in the template's code, with which it may compare content."""
        self.edges: tuple[tuple[str, ...], tuple[str, ...]] = tuple(starts), tuple(ends)
        """The strings with which the template's code searches the start, and those with which it searches the end."""
        self.variables: frozenset[str] = frozenset(variables)
        """The names that it reads without having set them: its arguments, and some of its own."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        generation_prompt: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Render a conversation as `apply_chat_template(tokenize=False)` does, except for the clock.

        Raises:
            TemplateFailed: If the template raises an error, which the message contains.
            TemplateUnsupported: If rendering exceeds the limits, now or earlier.
        """
        values: dict[str, Any] = {"messages": messages, "tools": tools, "documents": None}
        values |= {"add_generation_prompt": generation_prompt, **self._special_tokens, **(arguments or {})}
        kind, text = _process().ask(self.text, self.date, values)
        if kind == REFUSED:
            raise TemplateFailed(f"the chat template refuses: {text}")
        return text


def template_hash(text: str) -> str:
    """Return the SHA-256 of a chat template's UTF-8 bytes, first 16 hexadecimal digits: the name of a version of it."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def is_one_of(text: str, hashes: Sequence[str]) -> bool:
    """Return whether a template has one of the given hashes, also with other whitespace around it.

    Args:
        text: The template.
        hashes: The first digits of each `template_hash`, any number of them.
    """
    return any(digest.startswith(tuple(hashes)) for digest in {template_hash(text), template_hash(text.strip())})


class _ProcessEnd(Exception):
    """The process ended before it answered, or refused to answer; the argument is its exit status."""


@dataclass(eq=False, repr=False)
class _TemplateProcess:
    """The process that compiles and renders templates; another one is started when it has ended."""

    _lock: threading.RLock = field(default_factory=threading.RLock)
    _process: subprocess.Popen[bytes] | None = None
    _keys: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _exceeded: dict[str, str] = field(default_factory=dict[str, str])
    """What a template exceeded: it is not rendered again."""

    def ask(self, text: str, date: str, values: Mapping[str, Any] | None = None) -> tuple[bytes, str]:
        """Compile a template, and render it if there are values.

        Returns:
            The kind of the answer, and its text.

        Raises:
            TemplateUnsupported: If the template exceeds the limits, now or earlier.
        """
        with self._lock:
            if text in self._exceeded:
                raise TemplateUnsupported(self._exceeded[text])
            was_killed = self._process is not None and self._process.poll() is not None
            if was_killed or len(self._keys) >= _MAX_TEMPLATES:
                self.end()
            try:
                key = self._keys.get((text, date))
                if key is None or values is None:
                    key = self._keys.setdefault((text, date), len(self._keys))
                    kind, answer = self._exchange(("compile", key, text, date))
                    if values is None or kind != DESCRIBED:
                        return kind, answer
                return self._exchange(("render", key, dict(values)))
            except _ProcessEnd as ended:
                (status,) = ended.args
                why = f"takes more than {MAX_MEMORY >> 20} MiB of memory, or writes more than {MAX_OUTPUT >> 20} MiB"
                if status == -signal.SIGPROF:
                    why = f"takes more than {MAX_CPU_S} seconds to render"
                elif status:
                    why = f"ended the process that renders it (status {status})"
                is_small = values is None or len(marshal.dumps(dict(values))) < _SMALL
                if is_small and status not in _KILLED:
                    self._exceeded[text] = f"the chat template {why}"
                raise TemplateUnsupported(f"the chat template {why}") from None

    def _exchange(self, request: tuple[Any, ...]) -> tuple[bytes, str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", template_process.__file__, str(MAX_CPU_S)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C in a terminal does not end it
                env={name: value for name, value in os.environ.items() if name in _VARIABLES},
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        content, head = marshal.dumps(request), b""
        with contextlib.suppress(BrokenPipeError):  # it has ended: the head is empty
            process.stdin.write(len(content).to_bytes(8) + content)
            process.stdin.flush()
            head = process.stdout.read(9)
        answer = process.stdout.read(int.from_bytes(head[:8]))
        if not head or head[8:] == TOO_LARGE:
            raise _ProcessEnd(self.end())
        return head[8:], answer.decode(errors="surrogatepass")

    def end(self) -> int:
        """End the process, and return its exit status."""
        with self._lock:
            process, self._process = self._process, None
            self._keys.clear()
            if process is None:
                return 0
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()
            return process.wait()


_PROCESSES: dict[int, _TemplateProcess] = {}
"""By the id of the process that uses it, since a fork begins its own."""


def _process() -> _TemplateProcess:
    return _PROCESSES.get(os.getpid()) or _PROCESSES.setdefault(os.getpid(), _TemplateProcess())


@atexit.register
def _end_process() -> None:
    if (process := _PROCESSES.pop(os.getpid(), None)) is not None:
        process.end()
