"""Checks the named families that are aliases on official chat templates, and prints what was found as a table.

    python tests/family_checks.py FOLDER... [--vocabulary NAME=TOKENIZER]... [--conversations 600] [--only NAME]

A template is one of a family's if its hash is in the family's `templates`. Without `--vocabulary`, a family is checked
on a substitute: the embedded vocabulary with the family's control tokens.
"""

import argparse
import copy
import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
from envsdk_renderers._aliases import Alias
from envsdk_renderers._families import ALIASES
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._grammars._probes import TOOLS as PROBED
from envsdk_renderers._templates._chat_template import ChatTemplate
from stand_in_tokenizers import MORE_SHAPES, NAMES, SHAPE, tokenizer_with
from template_conversations import TOOLS, called, emitted, random_conversation, random_reply, result
from transformers.utils import chat_template_utils

from envsdk import Message, Renderer, load_tokenizer
from envsdk.contexts._context import Context
from envsdk.errors import EnvsdkError, RenderError
from envsdk.history import Strip
from envsdk.rendering._parity import own_template
from envsdk.rendering.tokenizers import ChatTemplateSource, Tokenizer
from envsdk.testing import check_renderer

Messages = list[Message]
SAMPLES: dict[type, tuple[object, ...]] = {str: ("another",), int: (0, 512)}
"""Values of switches that take any value of a type."""
USER, LAST = Message(role="user", content="u"), Message(role="user", content="v")
ANSWER = Message(role="assistant", content="a", reasoning="r")
CALL = called("search").with_reasoning("I search.")
ROUND = [USER, CALL, result(CALL.tool_calls[0]), ANSWER, LAST]
SYSTEM = Message(role="system", content="s")
PROMPTS: tuple[tuple[Messages, Any], ...] = (
    ([USER], ()),
    ([SYSTEM, USER], ()),
    ([SYSTEM, USER], TOOLS),
    ([USER, ANSWER, LAST], ()),
    ([SYSTEM, USER, ANSWER, LAST], ()),
    (ROUND, TOOLS),
    (ROUND[:3], TOOLS),
)
"""Prompts that switches may change."""


KNOWN_DIFFERENCES: dict[str, dict[str, str]] = {
    "gemma-4": {"doctor": "reasoning with `enable_thinking=False` is refused"},
    "mistral-3": {
        "doctor": "the template takes no user's message after a call",
        "strip": "Small 3.2 writes the tools before the last user's message",
    },
    "llama-4": {"strip": "the pythonic template writes numbers as strings, and the renderer as numbers"},
    "hunyuan": {"strip": "with tools, the template writes a prefix before a text"},
}
"""Kinds of differences that are known, for each family, with the reason."""


@dataclass
class Figures:
    """What was found for one family and one template."""

    family: str
    template: str
    conversations: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    deltas: int = 0
    replies: int = 0
    prompts: int = 0
    switches: int = 0
    reading: str = ""
    history: str = ""
    wrong: list[str] = field(default_factory=list[str])

    @property
    def differences(self) -> str:
        """Return how many differences there are of each kind."""
        kinds = Counter(wrong.split(":")[0] for wrong in self.wrong)
        return ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none wrong"


@cache
def stand_in(alias: str, text: str = "") -> Tokenizer:
    """Return the embedded vocabulary with a family's control tokens and those that templates seem to have."""
    names = [*ALIASES[alias].controls, *ALIASES[alias].special_tokens.values(), *NAMES]
    return tokenizer_with({*names, *SHAPE.findall(text), *MORE_SHAPES.findall(text)})


def with_template(tokenizer: Tokenizer, alias: Alias, text: str) -> Tokenizer:
    """Return the tokenizer as if it had come with a template."""
    found = copy.copy(tokenizer)
    found.chat_template = ChatTemplateSource(text, dict(alias.special_tokens))
    return found


def check(alias: Alias, tokenizer: Tokenizer, text: str, *, conversations: int, name: str = "") -> Figures:
    """Check a family on one of its templates."""
    found = Figures(alias.name, name)
    renderer = alias(with_template(tokenizer, alias, text))
    assert isinstance(renderer, FixedBase)
    rng = random.Random(alias.name)
    found.reading, found.history = renderer.reading.status, renderer.history_note
    has_calls = found.reading not in ("no calls", "refused")
    for _ in range(3 * conversations):
        if found.conversations == conversations:
            break
        _check_conversation(renderer, found, rng, has_calls)
    _check_replies(renderer, found, rng, conversations, has_calls)
    _check_doctor(renderer, found)
    _check_switches(alias, tokenizer, text, found)
    return found


def _check_conversation(renderer: FixedBase, found: Figures, rng: random.Random, has_calls: bool) -> None:
    """Compare the whole conversation, every delta, and the prompt under `strip` with the template's renderings."""
    calls = has_calls and rng.random() < 0.6
    messages = random_conversation(rng, calls=calls, reasoning=True, system=True)
    tools = TOOLS if calls or (has_calls and rng.random() < 0.2) else ()
    generation_prompt = messages[-1].role != "assistant"
    try:
        expected = render_template(renderer, messages, tools, generation_prompt=generation_prompt)
        rendered = renderer.render(messages, tools=tools, generation_prompt=generation_prompt)
        turns = emitted(renderer, messages, tools)
    except RenderError as error:
        found.refused[str(error).split(". ")[0][:90]] += 1
        return
    if renderer.tokenizer.decode(rendered.tokens) != expected:
        found.wrong.append(f"rendering: {messages}")
    try:
        renderer.check_episode(messages, turns, tools)
    except RenderError as error:
        found.wrong.append(f"delta: {error}")
    found.conversations += 1
    found.deltas += len(turns)
    if renderer.history_rule is not None:
        moves = renderer._turns.base((), TOOLS).moves_text  # the sampled text stays before its calls
        _check_strip(renderer, found, [_without_spaces(message, moves=moves) for message in messages], tools)


def _check_strip(renderer: FixedBase, found: Figures, messages: Messages, tools: Any) -> None:
    try:
        for context in _strip_contexts(renderer, messages, tools):
            whole = renderer.render(context.messages, tools=tools, generation_prompt=True)
            shown, expected = (renderer.tokenizer.decode(tokens) for tokens in (context.prompt(), whole.tokens))
            found.prompts += 1
            if shown != expected:
                found.wrong.append(f"strip: {shown!r} is {expected!r}")
    except RenderError as error:
        found.refused[f"strip: {str(error).split('. ')[0][:80]}"] += 1


def _without_spaces(message: Message, *, moves: bool) -> Message:
    """Return a message whose texts have no whitespace around them, which templates remove but a model samples.

    If the template moves the text of a reply with calls, the reply has none.
    """
    if moves and message.tool_calls:
        message = message.model_copy(update={"content": ""})
    reasoning = message.reasoning and (message.reasoning.strip() or "r")
    content = message.content.strip() if message.tool_calls else message.content.strip() or "c"
    return message.model_copy(update={"content": content, "reasoning": reasoning})


def _strip_contexts(renderer: FixedBase, messages: Messages, tools: Any) -> Iterator[Context]:
    """Yield the context of an episode under `strip` at each prompt."""
    context = Context("main", "", renderer, Strip())
    replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
    context.open(messages[: replies[0]], tools)
    yield context
    for reply, following in pairwise([*replies, len(messages)]):
        if following == reply + 1:
            return
        context.act(renderer.reply(messages[reply]), None)
        context.take_reply()
        context.observe(messages[reply + 1 : following])
        yield context


def _check_replies(renderer: FixedBase, found: Figures, rng: random.Random, count: int, has_calls: bool) -> None:
    """Write replies and read them back; an error has to report each difference of the calls."""
    prompt = renderer.render([Message(role="user", content="u")], generation_prompt=True)
    tail = prompt.tokens[prompt.starts[-1] :]
    for _ in range(count):
        message = random_reply(rng, fewest_calls=int(has_calls))
        message = message if has_calls else message.model_copy(update={"tool_calls": ()})
        try:
            tokens = renderer.reply(message)
        except EnvsdkError:
            continue
        found.replies += 1
        read = renderer.parse(tokens, prompt_tail=tail, tools=PROBED)
        calls = [[(call.name, call.arguments) for call in one.tool_calls] for one in (read, message)]
        if not read.errors and calls[0] != calls[1]:
            found.wrong.append(f"reading: {renderer.tokenizer.decode(tokens)!r} reads as {read.to_openai()}")


def _check_doctor(renderer: FixedBase, found: Figures) -> None:
    for failed in check_renderer(renderer, random_replies=20).failed:
        found.wrong.append(f"doctor: {failed.name}: {failed.detail}")


def _check_switches(alias: Alias, tokenizer: Tokenizer, text: str, found: Figures) -> None:
    """Check that each value of each switch renders as the template does with that argument, and changes something."""
    own = with_template(tokenizer, alias, text)
    for name, accepted in alias.switches.items():
        if name not in ChatTemplate(text).variables:
            continue
        values = SAMPLES[accepted] if isinstance(accepted, type) else accepted
        thinks = {flag: True for flag in ("thinking", "enable_thinking") if flag in alias.switches and flag != name}
        thinks = {flag: True for flag in thinks if flag in ChatTemplate(text).variables}
        shown = [
            {_shown_with(alias(own, **given), found, given) for given in (base, *({**base, name: v} for v in values))}
            for base in ({}, thinks)
        ]
        found.switches += 1
        if max(map(len, shown)) == 1:
            found.wrong.append(f"switch: {name} changes nothing")


def _shown_with(renderer: Renderer, found: Figures, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how some prompts are rendered, after a comparison with the template."""
    assert isinstance(renderer, FixedBase)
    shown: list[str] = []
    for messages, tools in PROMPTS:
        try:
            expected = render_template(renderer, messages, tools, generation_prompt=True)
            tokens = renderer.render(messages, tools=tools, generation_prompt=True).tokens
        except RenderError:
            continue
        shown.append(expected)
        if renderer.tokenizer.decode(tokens) != expected:
            found.wrong.append(f"switch: {given}: {expected!r}")
    return tuple(shown)


def render_template(renderer: FixedBase, messages: Messages, tools: Any, *, generation_prompt: bool) -> str:
    """Render with the template in transformers' own environment, in the form of messages that the renderer measured."""
    text, arguments = own_template(renderer)
    dialect = renderer._template.dialect
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            [dialect.messages(dialect.addressed(messages))],
            tools=dialect.tools(tools),
            chat_template=text,
            add_generation_prompt=generation_prompt,
            **arguments,
        )
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise RenderError(f"the template refuses: {error}") from error
    return texts[0]


def family_of(text: str) -> Alias | None:
    """Return the family that was checked on a template."""
    return next((alias for alias in ALIASES.values() if alias.knows(text)), None)


def main() -> None:
    """Print a row for each template of a family in the folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--vocabulary", action="append", default=[])
    parser.add_argument("--conversations", type=int, default=600)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", type=int, default=0, help="how many of the differences are printed")
    given = parser.parse_args()
    vocabularies = dict(item.split("=", 1) for item in given.vocabulary)
    seen: set[str] = set()
    for path in sorted(path for folder in given.folders for path in folder.rglob("*.jinja")):
        text = path.read_bytes().decode()
        alias, digest = family_of(text), hashlib.sha256(text.strip().encode()).hexdigest()
        if alias is None or digest in seen or given.only not in ("", alias.name):
            continue
        seen.add(digest)
        tokenizer = vocabularies.get(alias.name)
        try:
            row = check(
                alias,
                load_tokenizer(tokenizer) if tokenizer else stand_in(alias.name, text),
                text,
                conversations=given.conversations,
                name=path.stem,
            )
        except EnvsdkError as error:
            print(f"| {alias.name} | {path.stem} | ERROR {str(error)[:300]}", flush=True)
            continue
        print(
            f"| {row.family} | {row.template} | {row.conversations} conversations | {row.deltas} deltas | "
            f"{row.replies} replies | {row.prompts} prompts under strip | {row.switches} switches | {row.reading} | "
            f"{row.history} | {row.differences} | {dict(row.refused.most_common(3))}",
            flush=True,
        )
        for wrong in row.wrong[: given.show]:
            print("    ", wrong[:400])


if __name__ == "__main__":
    main()
