"""The conformance kit: our renderers pass it, and renderers with a bug do not."""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
import real_models
from envsdk_renderers._chatml import ChatML
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._harmony import Harmony
from envsdk_renderers._qwen3 import Qwen3
from families import CHATML
from typer.testing import CliRunner

from envsdk import Message, Renderer, get_renderer, load_tokenizer
from envsdk.cli import app
from envsdk.errors import TemplateUnsupported
from envsdk.rendering.emission import Emission
from envsdk.rendering.tokenizers import ChatTemplateSource
from envsdk.testing import check_renderer
from envsdk.testing._renderers import summary

RENDERERS = {
    "qwen3": lambda: Qwen3(load_tokenizer(real_models.qwen3_folder())),
    "qwen3 on the embedded tokenizer": lambda: Qwen3(load_tokenizer("embedded")),
    "qwen3 that does not think": lambda: Qwen3(load_tokenizer("embedded"), enable_thinking=False),
    "harmony": lambda: Harmony(real_models.gpt_oss_tokenizer()),
    "harmony with the official history": lambda: Harmony(real_models.gpt_oss_tokenizer(), official_history=True),
}


@pytest.mark.parametrize("make", RENDERERS.values(), ids=list(RENDERERS))
def test_our_renderers_conform(make: Any, is_full: bool):
    report = check_renderer(make(), random_replies=300 if is_full else 8).raise_if_failed()
    possible = [check for check in report.checks if check.verdict == "PASS"]
    assert len(possible) >= 39


def with_template(tokenizer: Any, name: str) -> Any:
    """The tokenizer with a template, as if it had come with it."""
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = ChatTemplateSource(real_models.template(name))
    return tokenizer


def test_the_template_is_the_measure_where_there_is_one():
    report = check_renderer(Qwen3(with_template(load_tokenizer("embedded"), "qwen3")), random_replies=0)
    checks = {check.name: check for check in report.raise_if_failed().checks}
    assert checks["matches the template: tools after calls"].verdict == "PASS"
    past = checks["past that the template rewrites: user after reasoning"]
    assert past.verdict == "PASS" and "'|>assistant\n<think>\nWhich?\n</think>\n' becomes" in past.detail.replace(
        "\\n", "\n"
    )
    without = check_renderer(Qwen3(load_tokenizer("embedded")), random_replies=0)
    assert {check.name: check.detail for check in without.checks}["matches the template"].startswith("the tokenizer")


def test_a_renderer_that_is_not_its_template_fails_with_both_texts():
    checked = ForgetsANewline(with_template(load_tokenizer("embedded"), "qwen3"))
    failed = {check.name: check.detail for check in check_renderer(checked, random_replies=0).failed}
    said = failed["matches the template: user after text"]
    assert "' is it?<|im_end|><|im_start|>" in said and "' is it?<|im_end|>\\n<|im_start|>" in said


def test_where_harmony_differs_from_its_template_is_listed():
    report = check_renderer(Harmony(with_template(real_models.gpt_oss_tokenizer(), "gptoss")), random_replies=0)
    checks = {check.name: check for check in report.raise_if_failed().checks}
    assert checks["matches the template: user after reasoning"].verdict == "PASS"
    assert "`commentary json`" in checks["matches the template: tool after call"].detail


class ForgetsANewline(Qwen3):
    after_turn: ClassVar[str] = ""


class ForgetsToCloseThinking(Qwen3):
    blocks: Mapping[str, str] = {"<tool_call>": "\n</tool_call>"}
    structure: tuple[str, ...] = ("<think>", "</think>", "</tool_call>")


class MatchesControlTokens(Qwen3):
    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer, unsafe_content=True)


class RaisesOnJunk(Qwen3):
    def parse(self, tokens: Any, *, prompt_tail: Any = (), tools: Any = ()) -> Message:
        message = super().parse(tokens, prompt_tail=prompt_tail, tools=tools)
        if message.errors:
            raise ValueError(message.errors[0])
        return message


class LosesReasoning(Qwen3):
    def parse(self, tokens: Any, *, prompt_tail: Any = (), tools: Any = ()) -> Message:
        message = super().parse(tokens, prompt_tail=prompt_tail, tools=tools)
        return message.model_copy(update={"reasoning": message.reasoning and "hm"})


class ShowsReasoningThatItNeverWrites(ChatML):
    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        return list(messages[settled:])


class LosesACall(Qwen3):
    def parse(self, tokens: Any, *, prompt_tail: Any = (), tools: Any = ()) -> Message:
        message = super().parse(tokens, prompt_tail=prompt_tail, tools=tools)
        return message.model_copy(update={"tool_calls": message.tool_calls[:1]})


class StopsElsewhere(Qwen3):
    stop_tokens: tuple[str, ...] = ("<|endoftext|>",)


class Counts(Qwen3):
    count = 0

    def emit_message(self, out: Emission, message: Message, previous: Any, following: Any) -> None:
        self.count += 1
        super().emit_message(out, message.model_copy(update={"content": f"{self.count}"}), previous, following)


class HasAHeaderOfItsOwn(Qwen3):
    def _emit_generation_prompt(self, out: Emission, index: int, prefill: Any = None) -> None:
        super()._emit_generation_prompt(out, index, prefill)
        out.scaffold("\n")


MUTANTS: Sequence[tuple[type[Renderer], str]] = (
    (ForgetsANewline, "extension"),
    (ForgetsToCloseThinking, "cut anywhere: reasoned"),
    (MatchesControlTokens, "no forgery: user"),
    (RaisesOnJunk, "20 random replies"),
    (LosesReasoning, "parse what was rendered: reasoned"),
    (ShowsReasoningThatItNeverWrites, "parse what was rendered: reasoned"),
    (LosesACall, "parse what was rendered: two calls"),
    (StopsElsewhere, "stop tokens"),
    (Counts, "same input, same tokens"),
    (HasAHeaderOfItsOwn, "extension: text, then user"),
)


@pytest.mark.parametrize(("mutant", "check"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_renderer_with_a_bug_fails_with_the_place(mutant: type[Renderer], check: str):
    report = check_renderer(mutant(load_tokenizer("embedded")), random_replies=20 if "random" in check else 0)
    if mutant is ForgetsANewline:
        # The whole conversation lacks it, too: only the model's template knows that it is there.
        assert report.failed == []
        return
    assert any(failed.name.startswith(check) for failed in report.failed)
    assert all(failed.detail for failed in report.failed)
    with pytest.raises(AssertionError, match=check):
        report.raise_if_failed()


def test_a_renderer_whose_visible_shows_reasoning_that_no_reply_has_fails_with_what_to_change():
    report = check_renderer(ShowsReasoningThatItNeverWrites(load_tokenizer("embedded")), random_replies=0)
    (failed,) = report.failed
    assert failed.detail == (
        "`visible` shows the reasoning 'The capital of France is Paris.', which `emit_reply` does not write: return "
        "such a message without it (`message.with_reasoning(None)`), or write it in `emit_reply`"
    )


def test_the_doctor_prints_each_check_and_its_verdict():
    result = CliRunner().invoke(app, ["doctor", "--renderer", "qwen3:enable_thinking=False", "--random-replies", "20"])
    assert result.exit_code == 0
    assert "PASS         stop tokens" in result.output
    assert "NOT POSSIBLE parse what was rendered: reasoned: the family has no reasoning" in result.output
    assert "0 of 51 checks failed" in result.output


def test_the_doctor_speaks_json():
    result = CliRunner().invoke(app, ["doctor", "--random-replies", "0", "--json"])
    checks = json.loads(result.output)["checks"]
    assert {check["verdict"] for check in checks} == {"PASS", "NOT POSSIBLE"}


@pytest.mark.full
def test_the_doctor_begins_with_what_environments_can_rely_on() -> None:
    result = CliRunner().invoke(app, ["doctor", "--renderer", "chatml", "--random-replies", "1"])
    lines = result.output.splitlines()
    assert lines[0] == "an environment can be made, with turns of users: yes"
    assert lines[1].startswith("tools: no: 'chatml' has no place for tools")
    assert lines[2] == "a step under `strip` costs O(new)"
    (nearest,) = [line for line in summary(FixedBase(real_models.qwen3_folder())) if line.startswith("nearest family")]
    assert "'qwen3' agrees with the chat template" in nearest


def test_the_doctor_compares_a_given_template_not_the_tokenizers_own() -> None:
    qwen3, embedded = real_models.qwen3_folder(), load_tokenizer("embedded")
    given = FixedBase(qwen3, template="{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", stop="<|im_end|>")
    (nearest,) = [line for line in summary(given) if line.startswith("nearest family")]
    assert "no family renders and reads" in nearest
    (nearest,) = [
        line for line in summary(FixedBase(embedded, template=CHATML, stop="<|im_end|>")) if "nearest" in line
    ]
    assert "nearest family: 'chatml' agrees with the chat template" in nearest
    option = json.dumps({"name": "fixed_base", "template": CHATML, "stop": "<|im_end|>"})
    given_options = ["doctor", "--renderer", option, "--tokenizer", "embedded", "--random-replies", "1"]
    result = CliRunner().invoke(app, given_options)
    assert "nearest family: 'chatml'" in result.output and "checks" in result.output


@pytest.mark.full
def test_a_template_that_every_environment_refuses_fails_the_doctor_and_auto_with_the_family_to_take() -> None:
    tokenizer = copy.copy(real_models.gpt_oss_tokenizer())
    final, reasoning = "<|channel|>final<|message|>", "<|channel|>analysis<|message|>"
    tokenizer.chat_template = ChatTemplateSource(real_models.template("gptoss").replace(final, reasoning))
    report = check_renderer(FixedBase(tokenizer), random_replies=0)
    assert [check.name for check in report.failed][:1] == ["an environment can be made"]
    with pytest.raises(TemplateUnsupported, match=r"no environment can be made.*not read back.*renderer='harmony'"):
        get_renderer("auto", tokenizer)
    with pytest.raises(
        TemplateUnsupported, match=r"not read back.*no family renders and reads.*the nearest, 'harmony'"
    ):
        FixedBase(tokenizer).check_tools(())  # as an environment does
