"""The program that compiles and renders chat templates, in a process with limits; `chat_template.py` starts it.

A template is third-party code: it may loop for ever or fill the memory, in a single operation. So it runs where both
cost only this process. It is started as a file, and imports nothing but jinja2 and the standard library.

A request is 8 bytes with its length, and a marshalled tuple. The answer is 8 bytes with its length, one byte with its
kind, and text in UTF-8.
"""

import datetime
import json
import marshal
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any, cast

import jinja2.meta
import jinja2.nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

RENDERED, DESCRIBED, REFUSED, NOT_A_TEMPLATE, TOO_LARGE = b"R", b"D", b"F", b"N", b"L"
MAX_CPU_S = 3
MAX_MEMORY = 400 * 2**20
MAX_OUTPUT = 2**26
"""The number of bytes in a rendered text."""
_MAX_ERROR = 2_000


class _GenerationTag(Extension):
    """The `generation` tag, which marks the text of a model; it renders its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own attribute

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [jinja2.nodes.Scope(body)]


class _Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox that caches which attributes are safe, since that check takes half of the rendering time."""

    def __init__(self, now: datetime.datetime) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self._safe: dict[tuple[type, str], bool] = {}
        self.filters["tojson"] = _to_json
        names: dict[str, Any] = self.globals
        names |= {"raise_exception": _raise_exception, "strftime_now": now.strftime}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        key = (cast("type[Any]", type(obj)), attr)
        is_safe = self._safe.get(key)
        if is_safe is None:
            is_safe = self._safe[key] = super().is_safe_attribute(obj, attr, value)
        return is_safe


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Write plain JSON; Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _literals(tree: jinja2.nodes.Template) -> list[str]:
    found = {node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}
    return sorted(text for text in found if text.strip())


def _edges(tree: jinja2.nodes.Template) -> list[list[str]]:
    found: dict[str, dict[str, None]] = {"startswith": {}, "endswith": {}}
    for call in tree.find_all(jinja2.nodes.Call):
        if isinstance(call.node, jinja2.nodes.Getattr) and call.node.attr in found:
            texts = [arg.value for arg in call.args if isinstance(arg, jinja2.nodes.Const)]
            found[call.node.attr].update(dict.fromkeys(text for text in texts if isinstance(text, str)))
    return [list(found["startswith"]), list(found["endswith"])]


class _Templates:
    """The templates that were compiled in this process, by the key that the other process gave them."""

    def __init__(self) -> None:
        self._compiled: dict[int, jinja2.Template] = {}

    def compile(self, key: int, text: str, date: str) -> tuple[bytes, str]:
        """Compile a template and describe it: the JSON text of its literals, its edges, and its variables."""
        try:
            environment = _Sandbox(datetime.datetime.fromisoformat(date))
            tree = environment.parse(text)
            described = [_literals(tree), _edges(tree), sorted(jinja2.meta.find_undeclared_variables(tree))]
            self._compiled[key] = environment.from_string(environment.parse(text))  # the compiler changes the tree
        except MemoryError:
            return TOO_LARGE, ""
        except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError, OverflowError) as error:
            return NOT_A_TEMPLATE, str(error) or type(error).__name__
        return DESCRIBED, json.dumps(described)

    def render(self, key: int, values: Mapping[str, Any]) -> tuple[bytes, str]:
        """Render a template."""
        try:
            return RENDERED, self._compiled[key].render(**values)
        except MemoryError:
            return TOO_LARGE, ""
        except Exception as error:  # third-party code: any exception is a refusal
            return REFUSED, f"{type(error).__name__}: {error}"


def main() -> None:
    """Answer requests until the input ends. A request that takes too much CPU time ends this process (SIGPROF)."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    templates, requests, answers = _Templates(), sys.stdin.buffer, sys.stdout.buffer
    while len(size := requests.read(8)) == 8:
        method, *arguments = marshal.loads(requests.read(int.from_bytes(size)))
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
        kind, text = templates.compile(*arguments) if method == "compile" else templates.render(*arguments)
        answer = b""
        if kind not in (RENDERED, DESCRIBED):
            text = text[:_MAX_ERROR]
        try:
            answer = text.encode(errors="surrogatepass")
        except MemoryError:
            kind = TOO_LARGE
        if len(answer) > MAX_OUTPUT:
            kind, answer = TOO_LARGE, b""
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(len(answer).to_bytes(8) + kind + answer)
        answers.flush()


if __name__ == "__main__":
    main()
