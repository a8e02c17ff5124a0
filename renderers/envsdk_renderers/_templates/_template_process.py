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


def _answer(templates: dict[int, jinja2.Template], method: str, key: int, *arguments: Any) -> tuple[bytes, str]:
    """Compile a template under a key, or render it; return the kind of the answer and its text."""
    try:
        if method == "render":
            return RENDERED, templates[key].render(**arguments[0])
        text, date = arguments
        environment = _Sandbox(datetime.datetime.fromisoformat(date))
        # The description is JSON: the literals of the template, the edges that it searches, and its variables.
        tree = environment.parse(text)
        literals = {node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}
        edges: dict[str, dict[str, None]] = {"startswith": {}, "endswith": {}}
        for call in tree.find_all(jinja2.nodes.Call):
            if isinstance(call.node, jinja2.nodes.Getattr) and call.node.attr in edges:
                texts = [arg.value for arg in call.args if isinstance(arg, jinja2.nodes.Const)]
                edges[call.node.attr].update(dict.fromkeys(text for text in texts if isinstance(text, str)))
        variables = sorted(jinja2.meta.find_undeclared_variables(tree))
        described = json.dumps([sorted(filter(str.strip, literals)), [*map(list, edges.values())], variables])
        templates[key] = environment.from_string(environment.parse(text))  # parsed again: the compiler changes the tree
        return DESCRIBED, described
    except MemoryError:
        return TOO_LARGE, ""
    except Exception as error:  # third-party code: any exception is a refusal
        if method == "render":
            return REFUSED, f"{type(error).__name__}: {error}"[:_MAX_ERROR]
        return NOT_A_TEMPLATE, (str(error) or type(error).__name__)[:_MAX_ERROR]


def main(max_cpu_s: float) -> None:
    """Answer requests until the input ends. A request that takes too much CPU time ends this process (SIGPROF)."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    templates, requests, answers = dict[int, jinja2.Template](), sys.stdin.buffer, sys.stdout.buffer
    while len(size := requests.read(8)) == 8:
        request = marshal.loads(requests.read(int.from_bytes(size)))
        signal.setitimer(signal.ITIMER_PROF, max_cpu_s)
        kind, text = _answer(templates, *request)
        try:
            answer = text.encode(errors="surrogatepass")
        except MemoryError:
            kind, answer = TOO_LARGE, b""
        if len(answer) > MAX_OUTPUT:
            kind, answer = TOO_LARGE, b""
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(len(answer).to_bytes(8) + kind + answer)
        answers.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))
