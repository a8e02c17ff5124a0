"""`renderer="auto"`: it chooses a family only if prompts, replies and reading are the template's, and reports why."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from envsdk_renderers import _choosing as choosing
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._qwen2_5 import Qwen25
from envsdk_renderers._templates import _turns as shared
from envsdk_renderers._templates._chat_template import ChatTemplate, template_hash
from envsdk_renderers._templates._store import VARIABLE
from families import CHATML, with_template
from template_conversations import templates

from envsdk import Message, get_renderer
from envsdk import _registry as registry
from envsdk.rendering.renderer import TokenIds
from envsdk.rendering.tokenizers import Tokenizer

ODD = CHATML.replace("message.content", "'> ' + message.content")
"""A template of no family."""


@pytest.fixture(autouse=True)
def measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_CHOICES", {})
    monkeypatch.setattr(registry, "_renderers", dict(registry._renderers))


def qwen25_with(**changes: str) -> Tokenizer:
    text = templates()["qwen2_5"]
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    return with_template("qwen2.5", text)


def test_a_family_is_chosen_that_renders_writes_and_reads_as_the_template_does() -> None:
    chosen = get_renderer("auto", qwen25_with())
    assert chosen.specification() == {"name": "qwen2.5"}
    digest = template_hash(templates()["qwen2_5"])
    reason = f"'qwen2.5' agrees with the chat template {digest} on 18 conversations and 84 replies"
    assert chosen.chosen_because == reason


def test_a_family_that_writes_other_replies_than_the_template_is_not_chosen() -> None:
    chosen = get_renderer("auto", qwen25_with(ascii=("arguments | tojson", "arguments | tojson(ensure_ascii=true)")))
    assert chosen.name == "fixed_base"
    nearest = "the nearest, 'qwen2.5', agrees on 18 conversations and "
    assert nearest in chosen.chosen_because
    assert "and differs at a reply with a call, " in chosen.chosen_because
    assert "\\\\u4f60" in chosen.chosen_because and "is written as" in chosen.chosen_because


def test_a_family_that_reads_a_reply_of_the_template_as_another_message_is_not_chosen() -> None:
    class Deaf(Qwen25):
        def parse(self, tokens: TokenIds, **options: Any) -> Message:
            return super().parse(tokens, **options).model_copy(update={"tool_calls": ()})

    assert get_renderer("auto", qwen25_with()).name == "qwen2.5"
    registry._renderers["qwen2.5"] = Deaf
    choosing._CHOICES.clear()
    chosen = get_renderer("auto", qwen25_with())
    assert not isinstance(chosen, Deaf)
    assert "a reply with a call" in chosen.chosen_because and "is read as ('', '', [])" in chosen.chosen_because


def test_the_reason_for_fixed_base_has_its_own_verdict_about_reading() -> None:
    chosen = get_renderer("auto", with_template("qwen2.5", ODD))
    assert chosen.chosen_because == (
        f"no family renders and reads as the chat template {template_hash(ODD)} does: none with its control tokens "
        "renders a single conversation as it does; 'fixed_base' measured how to read its replies: no calls"
    )
    chosen = get_renderer("auto", with_template("qwen2.5", ODD), reply_format="plain")
    assert chosen.chosen_because.endswith("; 'fixed_base' reads replies by a format that was not measured")


# Aliases of `fixed_base`.


@dataclass(frozen=True)
class Alias:
    """A name for `fixed_base`, with the hashes of the templates that it was checked on."""

    name: str
    templates: tuple[str, ...]

    def __call__(self, tokenizer: Tokenizer, **options: Any) -> FixedBase:
        return FixedBase(tokenizer, **{"date": "2026-01-01", **options})


def test_the_hash_of_a_template_is_that_of_its_bytes() -> None:
    assert template_hash("é") == hashlib.sha256(b"\xc3\xa9").hexdigest()[:16]


@pytest.mark.parametrize("length", [12, 16])
def test_an_alias_that_was_checked_on_the_template_is_chosen_before_fixed_base(length: int) -> None:
    registry.register_renderer("checked", Alias("checked", ("0" * 16, template_hash(ODD)[:length])))
    chosen = get_renderer("auto", with_template("qwen2.5", ODD))
    assert chosen.specification() == {"name": "fixed_base", "date": "2026-01-01"}
    assert chosen.chosen_because.startswith("'checked' was checked on this template; no family renders and reads")
    other = get_renderer("auto", with_template("qwen2.5", ODD + "{# another version #}"))
    assert "checked on" not in other.chosen_because


def test_a_class_that_agrees_is_chosen_before_an_alias() -> None:
    tokenizer = qwen25_with()
    assert tokenizer.chat_template is not None
    registry.register_renderer("a-checked", Alias("a-checked", (template_hash(tokenizer.chat_template.text),)))
    assert get_renderer("auto", tokenizer).name == "qwen2.5"


def test_an_alias_that_cannot_be_made_is_left_out() -> None:
    class Refusing(Alias):
        def __call__(self, tokenizer: Tokenizer, **options: Any) -> FixedBase:
            return FixedBase(tokenizer, template="{{ 1 }}")

    registry.register_renderer("refusing", Refusing("refusing", (template_hash(ODD),)))
    assert "checked on" not in get_renderer("auto", with_template("qwen2.5", ODD)).chosen_because


def test_a_name_of_somebody_elses_fixed_base_is_not_a_family() -> None:
    registry.register_renderer("mine", lambda tokenizer: FixedBase(tokenizer))
    assert "'mine'" not in get_renderer("auto", with_template("qwen2.5", ODD)).chosen_because


# Its cost.


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    calls: list[Mapping[str, Any]] = []
    render = ChatTemplate.render

    def counted(*args: Any, **kwargs: Any) -> str:
        calls.append(kwargs)
        return render(*args, **kwargs)

    monkeypatch.setattr(ChatTemplate, "render", counted)
    return calls


def test_a_process_compares_a_template_once(rendered: list[Mapping[str, Any]]) -> None:
    first = get_renderer("auto", qwen25_with())
    assert len(rendered) > 100
    rendered.clear()
    second = get_renderer("auto", qwen25_with())  # another object with the same vocabulary and template
    assert not rendered
    assert second.chosen_because == first.chosen_because


@pytest.mark.parametrize("text", ["qwen2_5", ODD])
def test_the_next_process_reads_what_was_compared(
    text: str, rendered: list[Mapping[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    shared._TURNS.clear()
    tokenizer = with_template("qwen2.5", templates().get(text, text))
    first = get_renderer("auto", tokenizer)
    measured = len(rendered)
    choosing._CHOICES.clear()
    shared._TURNS.clear()
    rendered.clear()
    second = get_renderer("auto", tokenizer)
    assert (second.specification(), second.chosen_because) == (first.specification(), first.chosen_because)
    assert len(rendered) < measured / 5


def test_what_another_package_renders_is_compared_in_each_process(
    rendered: list[Mapping[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(Qwen25):
        """Its code is not ours, so a file could be of an earlier version of it."""

    monkeypatch.setenv(VARIABLE, str(tmp_path))
    registry._renderers["qwen2.5"] = Own
    for _ in range(2):
        choosing._CHOICES.clear()
        rendered.clear()
        assert isinstance(get_renderer("auto", qwen25_with()), Own)
        assert len(rendered) > 100
