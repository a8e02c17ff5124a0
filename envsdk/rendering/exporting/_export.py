"""Exports a chat template that renders as a renderer does under a history policy.

The candidates are the tokenizer's own template with the renderer's options fixed in it, and a template that is written
from measurements. The first one that renders all conversations of the proof as the renderer does is exported.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from ...errors import ConfigError, ExportRefused
from .._parity import with_fixed_date
from ..renderer import Renderer
from ._measured import Measured, NotRegular, shared_length
from ._proof import Difference, Proof, prove
from ._writing import quoted, write_template

ExportedHistory: TypeAlias = Literal["keep", "strip"]
"""The history policies that a chat template can express."""
_OPTIONS = ("enable_thinking", "preserve_thinking", "reasoning_effort")
"""The options of renderers that are arguments of their families' templates."""
_KEEPS: Mapping[str, Any] = {
    "preserve_thinking": True,
    "keep_thinking": True,
    "clear_thinking": False,
    "truncate_history_thinking": False,
}
"""The arguments with which templates keep the reasoning of the past."""


@dataclass(frozen=True)
class ExportedTemplate:
    """A chat template that renders as a renderer does."""

    text: str
    """The Jinja text."""
    history: ExportedHistory
    """The part of the past that it shows."""
    source: Literal["tokenizer", "measured"]
    """The origin: the tokenizer's own template with fixed arguments, or a template written from measurements."""
    renderer: Mapping[str, Any]
    """The specification of the renderer."""
    conversations: tuple[str, ...]
    """The conversations for which it was proved to render the same."""
    same_at_end: bool
    """True if it also renders conversations without a generation prompt, which servers never render, the same way."""

    def save(self, path: str | Path) -> Path:
        """Write the template to a file, and return its path."""
        file = Path(path)
        file.write_text(self.text, encoding="utf-8", newline="")
        return file

    def vllm_flags(self, path: str | Path) -> list[str]:
        """Return the flags of `vllm serve` for the saved template."""
        return ["--chat-template", str(path), "--chat-template-content-format", "string"]

    def sglang_flags(self, path: str | Path) -> list[str]:
        """Return the flags of `sglang.launch_server` for the saved template."""
        return ["--chat-template", str(path)]


_NAMES = {"tokenizer": "the tokenizer's own template", "measured": "the template written from measurements"}


_NOTHING = Difference("", "", "", "")


class _Candidate(NamedTuple):
    source: Literal["tokenizer", "measured"]
    text: str


def export_template(renderer: Renderer, history: ExportedHistory = "keep") -> ExportedTemplate:
    """Return a chat template with which a server renders a conversation as the renderer does.

    Args:
        renderer: The renderer that rollouts and training use.
        history: `"keep"` for a template that shows all messages as they are, or `"strip"` for one that shows what the
            model's own template shows.

    Returns:
        The template. It rendered every prompt of the proof to the same text and the same tokens.

    Raises:
        ConfigError: If `history` is a policy that no chat template can express.
        ExportRefused: If no template renders as the renderer does; the error names the smallest conversation that
            differs.
    """
    if history not in ("keep", "strip"):  # pyright: ignore[reportUnnecessaryContains]
        raise ConfigError(
            f"history is {history!r}; expected 'keep' or 'strip'. A chat template knows only the messages: it cannot "
            "express a policy that depends on steps, on a number of tokens or on a summary: serve such a policy "
            "through the gateway (`envsdk gateway`, docs/programs.md), which renders with envsdk"
        )
    special_tokens: Mapping[str, str] = renderer.chat_template.special_tokens if renderer.chat_template else {}
    shown = "keep" if history == "keep" else "template"
    reasons: list[str] = []
    proofs: list[tuple[_Candidate, Proof]] = []
    for candidate in _candidates(renderer, history, reasons):
        proofs.append((candidate, prove(renderer, shown, candidate.text, special_tokens)))
        if proofs[-1][1].difference is None and proofs[-1][1].end is None:
            break
    equal = [found for found in proofs if found[1].difference is None]
    if not equal:
        raise _refusal(renderer, history, proofs, reasons)
    candidate, proof = min(equal, key=lambda found: found[1].end is not None)
    return ExportedTemplate(
        text=candidate.text,
        history=history,
        source=candidate.source,
        renderer=renderer.specification(),
        conversations=tuple(proof.same),
        same_at_end=proof.end is None,
    )


def _candidates(renderer: Renderer, history: ExportedHistory, reasons: list[str]) -> Iterator[_Candidate]:
    if renderer.chat_template is None:
        reasons.append("the tokenizer came without a chat template: load the model's own tokenizer")
    else:  # with the renderer's options, its date, and the switch for `keep` fixed in it
        text, specification = renderer.chat_template.text, renderer.specification()
        arguments: dict[str, Any] = {name: getattr(renderer, name) for name in _OPTIONS if hasattr(renderer, name)}
        arguments |= _KEEPS if history == "keep" else {}
        arguments |= specification.get("special_tokens", {}) | specification.get("template_arguments", {})
        read = {name: value for name, value in arguments.items() if re.search(rf"\b{name}\b", text)}
        lines = [f"{{%- set {name} = {_literal(value)} %}}\n" for name, value in read.items()]
        yield _Candidate("tokenizer", "".join(lines) + with_fixed_date(text, renderer))
    title = f"{renderer.name} with history={history!r}, exported by envsdk."
    try:
        yield _Candidate("measured", write_template(Measured(renderer), title))
    except NotRegular as reason:
        reasons.append(f"no template can be written from measurements, since {reason}")


def _literal(value: Any) -> str:
    """Return a JSON value as Jinja writes it."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return "{" + ", ".join(f"{quoted(key)}: {_literal(item)}" for key, item in items) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, cast('list[Any]', value)))}]"
    return {True: "true", False: "false", None: "none"}.get(value) or repr(value)


def _refusal(
    renderer: Renderer, history: ExportedHistory, proofs: Sequence[tuple[_Candidate, Proof]], reasons: Sequence[str]
) -> ExportRefused:
    """Return the error about all candidates; its attributes are those of the nearest one."""
    different = [(candidate, proof.difference) for candidate, proof in proofs if proof.difference is not None]
    found = [f"{_NAMES[c.source]} differs at {d.conversation!r}: {_shown(d)}" for c, d in different]
    reason = f"no chat template renders as {renderer.name!r} does under history={history!r}"
    nearest = max((proof for _, proof in proofs), key=lambda proof: len(proof.same), default=None)
    _, _, expected, rendered = difference = nearest.difference if nearest and nearest.difference else _NOTHING
    advice = "Serve through the gateway (`envsdk gateway`), which renders with envsdk"
    return ExportRefused(
        f"{reason}: {'; '.join([*found, *reasons])}. {advice}",
        conversation=difference.conversation,
        expected=expected,
        rendered=rendered,
    )


def _shown(difference: Difference) -> str:
    """Describe a difference, with the text around the first different character."""
    _, reason, expected, rendered = difference
    if not rendered or expected == rendered:
        return reason
    at = shared_length([expected, rendered])
    around = slice(max(0, at - 40), at + 40)
    return f"{reason}: the renderer writes {expected[around]!r}, the template {rendered[around]!r}"
