"""What a chat template may cost: none takes 10 seconds or 500 MiB, and each that takes too much has a typed error."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from envsdk_renderers._templates import _chat_template as chat_template
from envsdk_renderers._templates._chat_template import MAX_TEXT, ChatTemplate, TemplateFailed
from envsdk_renderers._templates._template_process import MAX_CPU_S, MAX_MEMORY, MAX_OUTPUT

import envsdk
from envsdk.errors import EnvsdkError, TemplateUnsupported

TIME, MEMORY = r"more than [\d.]+ seconds", "more than 400 MiB of memory, or writes more than 64 MiB"
REFUSED, NO_TEMPLATE = "the chat template refuses", "is not a Jinja template|at most 1,048,576"

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
ATTACKS = {
    "nested loops": (LOOP + "{% endfor %}" * 3, TIME),
    "nested loops that write": (LOOP + "{{ c }}" + "{% endfor %}" * 3, f"{TIME}|{MEMORY}"),
    "lipsum": ("{{ lipsum(n=100000000) }}", f"{TIME}|{MEMORY}"),
    "a macro that calls itself twice": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        TIME,
    ),
    "a macro without an end": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", REFUSED),
    "a recursive loop": ("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}", REFUSED),
    "a power": ("{{ messages | length ** 9 ** 9 ** 9 }}{{ 9 ** (10 ** (7 + messages | length)) }}", f"{TIME}|{MEMORY}"),
    "a power of constants": ("{{ 9 ** (10 ** 9) }}", f"{TIME}|{MEMORY}"),
    "a rounded number": ("{{ 1.5 | round(10 ** 9, 'ceil') }}", f"{TIME}|{MEMORY}|{REFUSED}"),
    "a format of constants": ("{{ '%2000000000s' % 'a' }}", MEMORY),
    "a format": ("{{ '%2000000000s' % messages[0].content }}", MEMORY),
    "a format with a star": ("{{ '%*d' % (2000000000, 1) }}", MEMORY),
    "str.format": ("{{ '{:>2000000000}'.format(messages[0].content) }}", MEMORY),
    "a repeated text": ("{{ messages[0].content * 2000000000 }}", MEMORY),
    "a repeated list": ("{{ [1] * 2000000000 }}", MEMORY),
    "center": ("{{ messages[0].content | center(2000000000) }}", MEMORY),
    "ljust": ("{{ messages[0].content.ljust(2000000000) }}", MEMORY),
    "replace": ("{% set t = messages[0].content * 9000000 %}{{ t.replace('h', t) }}", MEMORY),
    "join": ("{{ ([messages[0].content * 9000000] * 100) | join }}", MEMORY),
    "tojson": ("{{ [[[1]]] | tojson(indent=1000000000) }}", MEMORY),
    "indent": ("{{ 'a\\nb' | indent(1000000000) }}", MEMORY),
    "batch": ("{{ [1] | batch(1000000000, 2) | list }}", MEMORY),
    "a list of a range": ("{{ (range(99999) | list) * 99999 }}", MEMORY),
    "a text that doubles": (
        "{% set ns = namespace(t='abc') %}{% for i in range(99) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}",
        MEMORY,
    ),
    "a list that grows": (
        "{% set ns = namespace(t=[1]) %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
        MEMORY,
    ),
    "a long output": (
        "{% set t = messages[0].content * 30000 %}{% for i in range(2000) %}{{ t }}{% endfor %}",
        MEMORY,
    ),
    "deep parentheses": ("{{ " + "(" * 200_000 + "1" + ")" * 200_000 + " }}", NO_TEMPLATE),
    "deep blocks": ("{% if 1 %}" * 40_000 + "{% endif %}" * 40_000, NO_TEMPLATE),
    "deep lists": ("{{ " + "[" * 900 + "]" * 900 + " }}", f"{NO_TEMPLATE}|ended the process"),
    "a long sum": ("{{ " + "+".join("1" * 100_000) + " }}", f"{NO_TEMPLATE}|ended the process|{TIME}"),
    "a long template": ("a" * (MAX_TEXT + 1), NO_TEMPLATE),
}


BY_DEFAULT = ("a recursive loop", "a power of constants", "a format", "deep lists", "a long template")


@pytest.fixture
def little_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process with a tenth of the usual time for each answer."""
    chat_template._process().end()
    monkeypatch.setattr(chat_template, "MAX_CPU_S", MAX_CPU_S / 10)
    yield
    chat_template._process().end()


def cpu_time_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("attack", [a if a in BY_DEFAULT else pytest.param(a, marks=pytest.mark.full) for a in ATTACKS])
def test_no_template_takes_much_time_or_memory(attack: str, monkeypatch: pytest.MonkeyPatch):
    text, message = ATTACKS[attack]
    if TIME in message:
        monkeypatch.setattr(chat_template, "MAX_CPU_S", MAX_CPU_S / 10)
    chat_template._process().end()
    before = cpu_time_of_children()
    with pytest.raises(EnvsdkError, match=message):
        ChatTemplate(text).render([{"role": "user", "content": "hi"}])
    chat_template._process().end()
    assert cpu_time_of_children() - before < 10


def test_the_limits_are_those_that_are_documented():
    assert (MAX_CPU_S, MAX_MEMORY, MAX_OUTPUT) == (3, 400 * 2**20, 64 * 2**20)


def test_a_template_that_exceeded_a_limit_is_not_rendered_again(little_time: None):
    template = ChatTemplate("{% if messages[0].content == 'long' %}" + LOOP + "{% endfor %}" * 3 + "{% endif %}a")
    assert template.render([{"role": "user", "content": "hi"}]) == "a"
    with pytest.raises(TemplateUnsupported, match=TIME):
        template.render([{"role": "user", "content": "long"}])
    before = cpu_time_of_children()
    with pytest.raises(TemplateUnsupported, match=TIME):
        template.render([{"role": "user", "content": "long"}])
    assert cpu_time_of_children() == before


def test_a_conversation_that_is_too_long_does_not_end_the_others():
    template = ChatTemplate("{{ messages[0].content * 40 }}")
    with pytest.raises(TemplateUnsupported, match=MEMORY):
        template.render([{"content": "word " * 400_000}])
    assert len(template.render([{"content": "word "}])) == 200


def test_other_templates_are_rendered_after_one_exceeded_a_limit():
    kept = ChatTemplate("{{ messages[0].content }}!")
    with pytest.raises(TemplateUnsupported, match=MEMORY):
        ChatTemplate("{{ 'a' * 1000000000 ~ messages }}").render([])
    assert kept.render([{"role": "user", "content": "hi"}]) == "hi!"


def test_a_renderer_refuses_a_template_that_exceeds_a_limit(little_time: None):
    with pytest.raises(TemplateUnsupported, match=TIME):
        envsdk.get_renderer("fixed_base", "embedded", template=LOOP + "{% endfor %}" * 3)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ ('%s' | attr('format')) }}{{ ''['__class__'] }}{{ lipsum.__globals__['os'].getpid() }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages[0].items) }}",
    ],
)
def test_a_template_does_not_leave_its_sandbox(text: str):
    try:
        rendered = ChatTemplate(text).render([{"role": "user", "content": "hi"}])
    except TemplateFailed:
        return
    assert "class" not in rendered and str(os.getpid()) not in rendered


def test_the_process_that_renders_has_no_secrets_in_its_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    process = chat_template._TemplateProcess()
    try:
        process.ask("a", "2025-01-01")
        assert "secret" not in Path(f"/proc/{process._process.pid}/environ").read_text()
    finally:
        process.end()


def test_more_templates_than_a_process_keeps_are_rendered():
    templates = [ChatTemplate(f"{{{{ messages }}}}{n}") for n in range(120)]
    assert [one.render([]) for one in templates] == [f"[]{n}" for n in range(120)]


def test_a_process_that_was_killed_is_started_again():
    template = ChatTemplate("{{ messages }}of a killed process")
    process = chat_template._process()._process
    process.kill()
    process.wait()
    assert template.render([]) == "[]of a killed process"


def test_a_fork_and_threads_have_their_own_answers():
    script = """
import os, threading
from envsdk_renderers._templates._chat_template import ChatTemplate
template = ChatTemplate("{{ messages }}")
template.render([])
if (child := os.fork()) == 0:
    assert template.render([1]) == "[1]"
    os._exit(0)
wrong = []
def check(n):
    wrong.extend(k for k in range(200) if template.render([n, k]) != f"[{n}, {k}]")
threads = [threading.Thread(target=check, args=(n,)) for n in range(4)]
[one.start() for one in threads], [one.join() for one in threads]
assert os.waitpid(child, 0)[1] == 0 and not wrong
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=600)


def test_a_conversation_of_many_megabytes_is_rendered():
    assert len(ChatTemplate("{{ messages[0].content }}").render([{"content": "word " * 2_000_000}])) == 10_000_000


def test_a_text_that_is_no_valid_unicode_is_rendered_as_it_is():
    assert ChatTemplate("{{ messages[0].content }}").render([{"content": "a\ud800b"}]) == "a\ud800b"
