"""Write a measured format as a Jinja chat template."""

import re
from collections.abc import Mapping
from itertools import product

from ._measured import CALLS, CONTENT, REASONING, SYSTEM, TOOLS, Calls, Measured, NotRegular

_REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")
"""The names under which servers and trainers pass the reasoning of a message."""


_SYSTEM = """\
{%- set system, messages_ = none, messages -%}
{%- if messages[0].role == 'system' -%}
{%- set system, messages_ = messages[0].content or '', messages[1:] -%}
{%- if system is not string -%}
{{- raise_exception("this template reads content that is a text") -}}
{%- endif -%}
{%- endif -%}"""
_BETWEEN = """\
{%- set ns = namespace(previous='') -%}
{%- for message in messages_ -%}
{%- set table = between[ns.previous] if ns.previous else first -%}
{%- if message.role not in table -%}
{{- raise_exception("this model has no place for a message of this role here: " ~ message.role) -}}
{%- endif -%}
{{- table[message.role] -}}
{%- set content = message.content or '' -%}
{%- if content is not string -%}
{{- raise_exception("this template reads content that is a text") -}}
{%- endif -%}
{%- if message.role == 'assistant' -%}"""
_END = """\
{%- set ns.previous = message.role -%}
{%- endif -%}
{%- endfor -%}
{%- set table = between[ns.previous] if ns.previous else first -%}
{%- set end = 'prompt' if add_generation_prompt else 'end' -%}
{%- if end not in table -%}
{{- raise_exception("this model cannot reply after this message") -}}
{%- endif -%}
{{- table[end] -}}"""


def write_template(measured: Measured, title: str) -> str:
    """Return a chat template that renders as the measured renderer does under `keep`.

    Args:
        measured: The renderer's format.
        title: A comment for the first line.

    Raises:
        NotRegular: If the renderer writes something in a form that is not measured.
    """
    tables = [f"  {quoted(kind)}: {_table(following)}," for kind, following in measured.following.items()]
    lines = [f"{{#- {title} -#}}", f"{{%- set first = {_table(measured.first)} -%}}"]
    lines += ["{%- set between = {", *tables, "} -%}", _SYSTEM]
    if measured.start(tools=True) is None:
        lines += ["{%- if tools -%}", _refusal("this model has no place for tools"), "{%- endif -%}"]
    elif not measured.ignores_tools:
        lines += ["{%- set tool_list -%}", "{%- for tool in tools or [] -%}"]
        lines += [f"{{{{- '' if loop.first else {quoted(measured.tool_separator)} -}}}}{{{{- tool | tojson -}}}}"]
        lines += ["{%- endfor -%}", "{%- endset -%}"]
    plain, with_tools = measured.start(tools=False), measured.start(tools=True)
    if plain is None:
        raise NotRegular("a plain conversation is refused")
    starts: list[list[str]] = []
    for start in (plain, with_tools):
        if start is not None:
            condition = "(system or '') | trim" if start.needs_text else "system is not none"
            names = {SYSTEM: f"system{start.slot.jinja}", TOOLS: "tool_list"}
            with_system, without = _print(start.with_system, names), _print(start.without, names)
            starts.append([f"{{%- if {condition} -%}}", with_system, "{%- else -%}", without, "{%- endif -%}"])
    if with_tools is None or measured.ignores_tools:
        lines += starts[0]
    else:
        lines += ["{%- if tools -%}", *starts[1], "{%- else -%}", *starts[0], "{%- endif -%}"]
    lines += [_BETWEEN, *_reply(measured), "{%- else -%}"]
    slots = measured.contents  # of a message of another role than assistant
    if len({slot.jinja for slot in slots.values()}) == 1:
        return "\n".join([*lines, f"{{{{- content{slots['user'].jinja} -}}}}", _END])
    for index, (role, slot) in enumerate(slots.items()):
        lines += [f"{{%- {'elif' if index else 'if'} message.role == '{role}' -%}}", f"{{{{- content{slot.jinja} -}}}}"]
    return "\n".join([*lines, "{%- endif -%}", _END])


def _table(texts: Mapping[str, str]) -> str:
    """Write the text between messages as a table by the role of the next message."""
    return "{" + ", ".join(f"{quoted(name)}: {quoted(text)}" for name, text in texts.items()) + "}"


# A reply.


def _reply(measured: Measured) -> list[str]:
    """Write a reply by its shape: with or without reasoning, with or without calls."""
    lines = ["{%- set calls = message.tool_calls or [] -%}"]
    if measured.calls is None:
        lines += ["{%- if calls -%}", _refusal("this model cannot express a tool call"), "{%- endif -%}"]
    else:
        lines += ["{%- set call_list -%}", *_calls(measured.calls), "{%- endset -%}"]
    if measured.writes_reasoning:
        given = " else ".join(f"message.{name} if message.{name} is string" for name in _REASONING_NAMES)
        lines += [f"{{%- set reasoning = {given} else none -%}}"]
    shapes: list[str] = []
    for reasoning, calls in product((True, False), repeat=2):
        if (reasoning and not measured.writes_reasoning) or (calls and measured.calls is None):
            continue
        body = measured.body(reasoning, calls)
        if body is None:
            raise NotRegular("a reply with reasoning and calls is refused")
        conditions = ["reasoning is not none"] * reasoning + ["calls"] * calls
        branch = "elif" if shapes else "if"
        shapes += [f"{{%- {branch} {' and '.join(conditions)} -%}}" if conditions else "{%- else -%}"]
        slots = {CONTENT: f"content{body.slot.jinja}", CALLS: "call_list"}
        if measured.writes_reasoning:
            slots[REASONING] = f"reasoning{measured.reasoning_slot.jinja}"
        with_text, without = _print(body.with_text, slots), _print(body.without, slots)
        if body.with_text.replace(CONTENT, "") == body.without:
            shapes.append(with_text)
        else:
            condition = f"content{' | trim' if body.needs_text else ''}"
            shapes += [f"{{%- if {condition} -%}}", with_text, "{%- else -%}", without, "{%- endif -%}"]
    lines += [*shapes, "{%- endif -%}"] if shapes[0] != "{%- else -%}" else shapes[1:]
    return [*lines, "{%- set ns.previous = 'calls' if calls else 'assistant' -%}"]


def _calls(calls: Calls) -> list[str]:
    """Write the calls of a reply."""
    lines = ["{%- for given in calls -%}", "{%- set call = given.function or given -%}"]
    if calls.separator is None:
        lines += ["{%- if loop.index > 1 -%}", _refusal("this model makes one tool call at a time"), "{%- endif -%}"]
    else:
        lines += [f"{{{{- '' if loop.first else {quoted(calls.separator)} -}}}}"]
    lines += [f"{{{{- call.name -}}}}{{{{- {quoted(calls.middle)} -}}}}", "{%- if call.arguments is string -%}"]
    match calls.text_arguments:
        case "verbatim":
            lines += ["{{- call.arguments -}}"]
        case "JSON":
            lines += ["{{- call.arguments | tojson -}}"]
        case _:
            lines += [_refusal("the arguments of a tool call are a text, not an object")]
    lines += ["{%- else -%}"]
    if calls.argument is None:
        return [*lines, "{{- call.arguments | tojson -}}", "{%- endif -%}", "{%- endfor -%}"]
    before, equals, after = calls.argument
    value = "value if value is string else (value | tojson)"
    if calls.is_python:
        value += " if value is mapping or value is iterable else (value | string)"
    return [
        *lines,
        "{%- for key, value in (call.arguments or {}) | items -%}",
        f"{{{{- {quoted(before)} -}}}}{{{{- key -}}}}{{{{- {quoted(equals)} -}}}}",
        f"{{{{- {value} -}}}}{{{{- {quoted(after)} -}}}}",
        *["{%- endfor -%}", "{%- endif -%}", "{%- endfor -%}"],
    ]


# Jinja.


def _print(text: str, slots: Mapping[str, str]) -> str:
    """Return Jinja code that prints text with an expression in place of each word."""
    parts = re.split(f"({'|'.join(slots)})", text)
    return "".join(f"{{{{- {slots.get(part) or quoted(part)} -}}}}" for part in parts if part)


def _refusal(reason: str) -> str:
    return f"{{{{- raise_exception({quoted(reason)}) -}}}}"


def quoted(text: str) -> str:
    """Return text as a string literal of Jinja."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(char, char) for char in text) + '"'
