"""Any model with a chat template, which is measured and validated.

What a next message adds is the text that the template writes after the end of the last reply. It is measured once on a
fixed base (the episode's own system text and tools, and a sentinel exchange) and cached, so the cost of a delta depends
only on its own text. Before any token is emitted, the same is measured after other pasts: where the texts differ, the
turn is refused.
"""

import json
import warnings
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate, pairwise, product, takewhile
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import TypeAdapter

from envsdk.errors import ConfigError, RenderError, RewriteWarning, TemplateUnsupported, TokenizerError
from envsdk.messages import Message, ToolCall, ToolSchema
from envsdk.rendering._whole import WholeRenderer
from envsdk.rendering.emission import Emission, Encoder
from envsdk.rendering.reading import ReplyReader
from envsdk.rendering.renderer import EmittedDelta, Rendered, TokenIds, refuse_images, writable
from envsdk.rendering.tokenizers import ChatTemplateSource, Tokenizer, load_tokenizer

from ._grammars._proof import ReadingVerdict, prove
from ._grammars._reading import GrammarReader, StreamedReader
from ._replies._formats import PLAIN, ReplyFormat
from ._replies._response_template import ResponseTemplate
from ._templates._base import Stop, Tail
from ._templates._chat_template import FIXED_DATE, TemplateFailed
from ._templates._facts import TemplateFacts
from ._templates._history import HistoryRule, candidate_rules, refutation
from ._templates._sentinels import FOLLOWING, PREVIOUS, REASONING, Following, Previous, exchange
from ._templates._turns import turns_of
from ._templates._validation import DeltaText, Validation
from ._templates._verdicts import TemplateReport, Verdict, judge, sentinel_past, verdict_of
from ._templates._writer import TemplateEmission

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FixedBase", "HistoryRule", "TemplateUnsupported", "Verdict"]

_HISTORY = TypeAdapter(tuple[HistoryRule | None, str])
_QUESTIONS = ("x", "x?", "x.", "x!", "x}", "x)", "x\n", "")
"""Questions after which replies are read. The end of each may share a token with a generation prompt."""
_TEXT = TypeAdapter(str)
_READING = TypeAdapter(ReadingVerdict)
_TAGS = TypeAdapter(tuple[str, str] | None)


class FixedBase(WholeRenderer):
    """A renderer for any Hugging Face tokenizer with a chat template.

    Args:
        tokenizer: A folder with `tokenizer.json` and a chat template, a tokenizer of transformers, or a `Tokenizer` of
            envsdk, which needs `template` unless it was loaded from such a folder.
        template: The chat template's text, instead of the tokenizer's own.
        template_arguments: Further arguments of the template, such as `{"enable_thinking": False}`.
        special_tokens: The template's `bos_token`, `eos_token` and so on, instead of the tokenizer's own.
        stop: The tokens that end a turn, instead of those in the tokenizer's files.
        reply_format: The format of replies: a name in `replies.formats`, or `"auto"` for the tokenizer's own response
            template if it has one, else for the format that the template writes.
        response_template: A response template, instead of the tokenizer's own; see `ResponseTemplate`.
        date: The date that the template's `strftime_now` returns.
        validate: When deltas are compared with a rendering of the whole conversation: `"end"` (once for each episode),
            `"always"` (at each turn, O(context)) or `"off"`.
        on_rewrite: What happens if the template rewrites earlier text of users or the system, which prompts keep as the
            model saw it (Mistral moves the system text and the tools to the last user's message): `"warn"` emits one
            `RewriteWarning` for each renderer, `"raise"` refuses the episode.
        processor: The processor of a vision model; see `Renderer`.
        unsafe_content: See `Renderer`.

    Raises:
        TemplateUnsupported: If the template renders no user message, or no token ends a turn.
    """

    name: ClassVar[str] = "fixed_base"
    writes_images: ClassVar[bool] = True
    roles: ClassVar[frozenset[str]] = frozenset({"system", "developer", "user", "assistant", "tool"})
    unconfirmed_stops: tuple[str, ...]
    """The stop tokens that were only measured: no file of the tokenizer specifies them."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        template: str | None = None,
        template_arguments: Mapping[str, Any] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        stop: str | Sequence[str] = (),
        reply_format: str = "auto",
        response_template: Mapping[str, Any] | None = None,
        date: str = FIXED_DATE,
        validate: Literal["end", "always", "off"] = "end",
        on_rewrite: Literal["warn", "raise"] = "warn",
        processor: Any = None,
        unsafe_content: bool = False,
    ) -> None:
        if validate not in ("end", "always", "off"):
            raise ConfigError(f"validate is {validate!r}; expected 'end', 'always' or 'off'")
        if on_rewrite not in ("warn", "raise"):
            raise ConfigError(f"on_rewrite is {on_rewrite!r}; expected 'warn' or 'raise'")
        loaded = load_tokenizer(tokenizer)
        source = _source(loaded, template)
        self.validate: Literal["end", "always", "off"] = validate
        self._options: dict[str, Any] = {
            "template": template,
            "template_arguments": dict(template_arguments or {}),
            "special_tokens": dict(special_tokens or {}),
            "stop": [stop] if isinstance(stop, str) else list(stop),
            "reply_format": reply_format,
            "response_template": response_template,
            "date": date,
            "validate": validate,
            "on_rewrite": on_rewrite,
        }
        self._made_of = partial(type(self), loaded, **self._options, processor=processor, unsafe_content=unsafe_content)
        self._reads_by = json.dumps([reply_format, response_template, source.response_template], default=str)
        self._warned = False
        self._misreads: dict[bool, TemplateUnsupported | None] = {}
        names = {**source.special_tokens, **self._options["special_tokens"]}
        ends = self._options["stop"] or [*source.end_tokens, *filter(None, [names.get("eos_token")])]
        self._source = replace(source, special_tokens=names)
        self._ends = [end for end in dict.fromkeys(ends) if end in loaded.control_tokens]
        self._turns = turns_of(
            self._source,
            loaded,
            self._ends,
            date=date,
            arguments=self._options["template_arguments"],
            hides_names=not unsafe_content,
        )
        self._template = self._turns.template
        self._facts = TemplateFacts(
            self._turns,
            self._ends,
            reply_format=reply_format,
            response_template=response_template,
            own_template=source.response_template,
        )
        self._writer, self._probe = self._facts.writer, self._facts.probe
        self.stop_tokens, self.unconfirmed_stops = self._facts.stop_tokens, self._facts.unconfirmed_stops
        self.opening, self.blocks, self.structure = self._probe.opening, self._probe.blocks, self._facts.structure
        super().__init__(loaded, unsafe_content=unsafe_content, processor=processor)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it was made of, since a compiled template cannot be.

        What it measured is in the store of this machine, or is measured again.

        Raises:
            ConfigError: See `Renderer.__getstate__`.
        """
        self.__getstate__()  # refuses a processor that cannot be pickled
        return self._made_of, (), {"chosen_because": self.chosen_because}

    def __copy__(self) -> "FixedBase":
        copied = self._made_of()
        copied.chosen_because = self.chosen_because
        return copied

    def specification(self) -> dict[str, Any]:
        """See `Renderer.specification`."""
        defaults = {"reply_format": "auto", "date": FIXED_DATE, "validate": "end", "on_rewrite": "warn"}
        options = {k: v for k, v in self._options.items() if v and defaults.get(k) != v}
        return {**super().specification(), **options}

    @property
    def generation_prompt(self) -> str:
        """The scaffold after which a model samples a reply, as after a plain user message."""
        return self._facts.generation_prompt

    @property
    def reasoning_in_content(self) -> tuple[str, str] | None:
        """See `Renderer.reasoning_in_content`; measured when it is needed."""
        return self._turns.measured("reasoning in content", _TAGS, self._probe.tags_in_content)

    @property
    def chat_template(self) -> ChatTemplateSource:
        """The template that is measured."""
        return self._source

    @property
    def template_form(self) -> Callable[[Message], dict[str, Any]]:
        """See `Renderer.template_form`."""
        return self._template.dialect.in_openai_form

    # What can be relied on.

    def verdicts(self, tools: Sequence[ToolSchema] = (), system: str | None = None) -> list[Verdict]:
        """Return what can be relied on, for each pair of a previous reply and a next message.

        Args:
            tools: The tools that the model has.
            system: The episode's system message.
        """
        start = () if system is None else (Message(role="system", content=system),)
        base = self._turns.base(start, tools)
        return [verdict_of(base, previous, following) for previous in PREVIOUS for following in FOLLOWING]

    def report(self, tools: Sequence[ToolSchema] = (), system: str | None = None) -> TemplateReport:
        """Return everything that was measured: turns, reading, past reasoning and stop tokens.

        Args:
            tools: The tools that the model has.
            system: The episode's system message.
        """
        return TemplateReport(
            turns=tuple(self.verdicts(tools, system)),
            reading=self.reading if self._facts.is_measured else None,
            history_rule=self.history_rule,
            history_problem=self.history_problem,
            unconfirmed_stops=self.unconfirmed_stops,
            rewriting=self._turns.rewriting(has_system=system is not None, has_tools=bool(tools)),
        )

    @property
    def rewriting_note(self) -> str:
        """See `Renderer.rewriting_note`."""
        kinds = product((False, True), repeat=2)
        found = (self._turns.rewriting(has_system=system, has_tools=tools) for system, tools in kinds)
        return next(filter(None, found), "")

    def _report_rewriting(self, example: str) -> None:
        """Warn once, or refuse, if there is an example of how the template rewrites what prompts keep.

        Raises:
            TemplateUnsupported: With `on_rewrite="raise"`.
        """
        if not example or self._warned:
            return
        if self._options["on_rewrite"] == "raise":
            raise TemplateUnsupported(f"on_rewrite is 'raise', and the template rewrites earlier text: {example}")
        self._warned = True
        warnings.warn(
            f"this chat template rewrites earlier text, and prompts keep what the model saw first: {example}. A model "
            "that was trained with this template has not seen such prompts; on_rewrite='raise' refuses them",
            RewriteWarning,
            stacklevel=2,
        )

    def check_tools(self, tools: Sequence[ToolSchema]) -> None:
        """Refuse a template that cannot express a user's turn, or a tool's turn if there are tools.

        Raises:
            TemplateUnsupported: For the pair of previous and next message that is refused or not possible; if no reply
                format reads calls as the template writes them; or see `on_rewrite`.
        """
        error = self._find_unusable(tools)
        if error is not None:
            from ._choosing import choose_renderer  # which makes and compares all families

            raise error.advising(choose_renderer(self.tokenizer, self._source).reason) from None
        self._report_rewriting(self._turns.rewriting(has_system=False, has_tools=bool(tools)))

    def _find_unusable(self, tools: Sequence[ToolSchema]) -> TemplateUnsupported | None:
        """Return why environments with these tools cannot use the template; None if they can."""
        base = self._turns.base((), tools)
        pairs: list[tuple[Previous, Following]] = [("text", "user"), *([("call", "tool")] if tools else [])]
        for previous, following in pairs:
            reply, answers = exchange(previous, following)
            judgement = judge(base, reply, answers, is_after_tool=False, pair=(previous, following))
            if judgement.error is not None:
                return judgement.error
        try:
            error = self._find_misread(calls=False) if self._options["reply_format"] == "auto" else None
            if error is None and tools and self._facts.is_measured:
                error = self._find_misread(calls=True)
        except TemplateUnsupported as refused:
            return refused
        return error

    @property
    def why_unusable(self) -> str:
        """The reason why environments cannot use the template (see `check_tools`); empty if they can."""
        return self._turns.measured(f"usable {self._reads_by}", _TEXT, lambda: str(self._find_unusable(()) or ""))

    @property
    def reading(self) -> ReadingVerdict:
        """The verdict about replies that the measured grammar reads."""
        facts = self._facts
        name = f"reading {json.dumps(facts.stop_tokens)}"
        return self._turns.measured(name, _READING, lambda: prove(facts.grammar, facts.renderings))

    @property
    def reading_note(self) -> str:
        """A description of what reads replies and how far that can be relied on, for reports."""
        if self._facts.is_measured:
            why = f" ({self.reading.detail})" if self.reading.detail else ""
            return f"'fixed_base' measured how to read its replies: {self.reading.status}{why}"
        return "'fixed_base' reads replies by a format that was not measured"

    @property
    def proved_reading(self) -> str | None:
        """See `Renderer.proved_reading`; a reply format that was given by its name is not measured."""
        if not self._facts.is_measured:
            return None
        for calls in (False, True):
            error = self._find_misread(calls=calls)
            if error is not None:
                raise error.with_traceback(None)
        return str(self.reading)

    def _find_misread(self, *, calls: bool) -> TemplateUnsupported | None:
        """Return the error for the smallest reply that is not read back as it was written; None if there is none.

        Args:
            calls: Whether to try replies with calls; if not, replies with text.
        """
        if calls in self._misreads:
            return self._misreads[calls]
        verdict = self.reading if calls else None
        if verdict is not None and verdict.status in ("refused", "no calls"):
            return TemplateUnsupported(
                "calls as this template writes them do not read back, so they would be text; choose reply_format="
                f"{PLAIN!r} to read them as text, or register a format: {verdict.detail or 'its calls are not known'}",
                pair=("call", "tool"),
                expected=str(verdict.message.to_openai()) if verdict.message else "",
                rendered=self._probe.rendered,
            )
        error, plain = None, Message(role="assistant", content="x")
        messages = [Message(role="assistant", tool_calls=(ToolCall(name="f", arguments={"x": "y"}),))]
        if not calls:
            thinks = self._probe.reasoned is not None or self._probe.thinking is not None
            has_block = self._facts.reply_writer.prompt_closes_block
            messages = [plain, plain.with_reasoning("y")] if thinks and not has_block else [plain]
        tails: dict[bytes, NDArray[np.int32]] = {}
        for question in _QUESTIONS:
            with suppress(RenderError):
                prompt = self.render([Message(role="user", content=question)], generation_prompt=True)
                start = prompt.starts[-1]
                tail = prompt.tokens[start:]
                tails[tail.tobytes()] = tail
                if any(token in self.encoder.control_names for token in prompt.tokens[max(start - 1, 0) : start + 1]):
                    break  # a control token shares nothing
        for message, tail in product(messages, [*tails.values()]):
            tokens = self.reply(message)
            read = self.parse(tokens, prompt_tail=tail)
            why = f"a reply is not read back as it was written; choose reply_format={PLAIN!r} if its tags may be text"
            if calls:
                is_same = not read.errors and [call.name for call in read.tool_calls] == ["f"]
                why = "a call is not read back after the generation prompt: " + "; ".join(read.errors)
            else:
                is_same = (read.content.strip(), (read.reasoning or "").strip()) == ("x", message.reasoning or "")
            if not is_same:
                rendered = self.tokenizer.decode(tail) + self.tokenizer.decode(tokens)
                error = TemplateUnsupported(why, expected=str(message.to_openai()), rendered=rendered)
                break
        self._misreads[calls] = error
        return error

    # The whole conversation.

    def _emit_whole(
        self,
        out: Emission,
        messages: Sequence[Message],
        history: Literal["template", "keep"],
        *,
        tools: Sequence[ToolSchema],
        generation_prompt: bool,
    ) -> None:
        """Write a whole conversation, as the template does or by joining replies and deltas.

        Raises:
            TemplateUnsupported: If a message contains a string that changes how the template renders later turns.
            TemplateFailed: If the template refuses the conversation.
        """
        assert isinstance(out, TemplateEmission)
        replies = [index for index, message in enumerate(messages) if index and message.role == "assistant"]
        bounds = [*(replies if history == "keep" else []), len(messages)]
        first = messages[: bounds[0]]
        refuse_images(self, first)
        shown = self._shown(first)
        self._turns.refuse_triggers(shown[1:] if first[0].role == "system" else shown)
        self._facts.conversation_writer.write(out, shown, self._turns.hide_tools(tools))
        for reply, following in pairwise(bounds):
            written = messages[reply]
            if written.reasoning == "" and self._facts.reply_writer.prompt_closes_block:
                written = written.with_reasoning(None)  # the prompt has the empty block
            self._emit_generation_prompt(out, reply, written)
            out.attribute(reply, "assistant", is_sampled=True)
            stop = self._emit_unended(out, written)
            answers = messages[reply + 1 : following]
            if answers or following < len(messages) or generation_prompt:
                tail, contents = self._turns.tail(messages[:reply], messages[reply], answers, tools)
                self._writer.write(out, stop.sampled[0] if stop.written or stop.is_unwritten else tail.stop)
                self._emit_tail(out, tail, contents, answers, reply + 1)
            elif stop.written or stop.is_unwritten:
                self._writer.write(out, stop.sampled[0])

    def _emission(self) -> TemplateEmission:
        return TemplateEmission(self.encoder, self.generation_prompt)

    def _render_end(
        self,
        history: Sequence[Message],
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema],
        prefill: str | Message | None,
    ) -> Rendered | None:
        """See `WholeRenderer`; the first and the last message of the history are read.

        Raises:
            TemplateUnsupported: If a message contains a string that changes how the template renders later turns.
            TemplateFailed: If the template refuses the conversation.
        """
        if self.history_rule is None or messages[0].role != "assistant":
            return None
        out, shown = self._emission(), self._shown(messages)
        self._turns.refuse_triggers(shown)
        system = [self._turns.hide(history[0])] if history[0].role == "system" else []
        past = [*system, *sentinel_past(history[-1])]
        is_written = self._facts.conversation_writer.write(out, shown, self._turns.hide_tools(tools), past)
        return self._prompted(out, len(messages), prefill) if is_written else None

    def _shown(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages as the template may see them, with ids."""
        return self._template.dialect.addressed([self._turns.hide(message) for message in messages])

    def _emit_generation_prompt(self, out: Emission, index: int, prefill: str | Message | None = None) -> None:
        out.begin(index, "assistant")
        prompt = out.generation_prompt if isinstance(out, TemplateEmission) else self.generation_prompt
        has_block = isinstance(prefill, Message) and prefill.reasoning is not None
        writer = self._facts.reply_writer
        self._writer.write(out, prompt.split(writer.tag)[0] if has_block and writer.prompt_closes_block else prompt)

    # What follows a reply.

    def extension(
        self,
        reply: TokenIds,
        messages: Sequence[Message],
        *,
        history: Sequence[Message] = (),
        tools: Sequence[ToolSchema] = (),
        generation_prompt: bool = True,
        prefill: str | Message | None = None,
        drops_end: bool = False,
    ) -> Rendered:
        """See `Renderer.extension`.

        Of `history`, the first message (the system's) and the last two are read; with `validate="always"`, all are.

        Raises:
            TemplateUnsupported: If what follows is not known; no token is emitted then.
        """
        refuse_images(self, messages, first=len(history) or 1)
        message = history[-1] if history else self.parse(reply)
        out, closed_reply = self._emission(), self._stop_in(reply) is None
        dropped = self.rewritten_end(reply, messages) if drops_end else 0
        reply = reply[: len(reply) - dropped]
        if not messages and not generation_prompt:
            self._writer.write(out, self._end(reply, self._probe.stop_of(message).written))
            rendered = Rendered(out)
            rendered.closed_reply = closed_reply
            return rendered
        has_system = bool(history) and history[0].role == "system"
        rewriting = self._turns.rewriting(has_system=has_system, has_tools=bool(tools))
        self._report_rewriting(rewriting)
        before = [*history[:1], *history[-2:-1]] if len(history) > 2 else history[:-1]
        tail, contents = self._turns.tail(before, message, messages, tools)
        self._writer.write(out, self._end(reply, tail.stop))
        self._emit_tail(out, tail, contents, messages, 1)
        rendered = self._prompted(out, len(messages) + 1, prefill) if generation_prompt else Rendered(out)
        rendered.dropped, rendered.closed_reply, rendered.rewriting = dropped, closed_reply, rewriting
        if self.validate == "always" and history:
            delta = EmittedDelta(len(history) - 1, rendered.tokens[rendered.starts[0] :], generation_prompt)
            self.check_episode([*history, *messages], [delta], tools)
        return rendered

    def rewritten_end(self, reply: TokenIds, messages: Sequence[Message]) -> int:
        """Return 1 if the model sampled the opener of another message than the next one (GLM), else 0."""
        sampled = self._stop_in(reply)
        if not messages or sampled not in self._facts.openers:
            return 0
        opener = self._turns.opener(self.parse(reply), messages[0])
        return int(opener is not None and opener != sampled)

    def _stop_in(self, reply: TokenIds) -> str | None:
        """Return the stop token that ended a reply; None if it did not end its turn itself."""
        return dict(zip(self.stop_token_ids, self.stop_tokens, strict=True)).get(int(reply[-1])) if len(reply) else None

    def _end(self, reply: TokenIds, stop: str) -> str:
        """Return what a reply lacks of its end, which the template writes as `stop`."""
        sampled = self._stop_in(reply)
        if sampled is not None and (sampled == stop or sampled in self._facts.written_ends):
            return ""
        return self._close_open_block(reply) + stop

    def _close_open_block(self, reply: TokenIds) -> str:
        """See `Renderer`; a block that control tokens do not show is found by reading the reply."""
        known = super()._close_open_block(reply)
        thinks = self._facts.is_measured and self._probe.thinking is not None
        if known or not (thinks or self._probe.call_closing):
            return known
        block = self.parse(reply, prompt_tail=self._prompt_tail).open_block
        if block != "reasoning" or not thinks:
            return self._probe.call_closing if block == "tool_call" else ""
        closer, stop = self._facts.grammar.written.get(("reasoning", "text"), ""), self._facts.text_stop.written
        return "" if stop and closer.lstrip().startswith(stop) else closer  # the end of a turn closes it (Harmony)

    def _emit_tail(
        self, out: TemplateEmission, tail: Tail, contents: Mapping[str, str], messages: Sequence[Message], first: int
    ) -> None:
        """Write the text after a turn; `_emit_generation_prompt` writes its generation prompt."""
        bounds = [*tail.starts, len(tail.text)]
        for index, message in enumerate(messages):
            out.begin(first + index, message.role, message.images)
            self._writer.fill(out, tail.text[bounds[index] : bounds[index + 1]], contents)
        out.generation_prompt = tail.text[bounds[len(messages)] :]
        if not messages and out.generation_prompt.endswith(self.generation_prompt):
            # What else follows the reply ends it: an edit may write other messages before the generation prompt.
            self._writer.write(out, out.generation_prompt.removesuffix(self.generation_prompt))
            out.generation_prompt = self.generation_prompt

    # Validating.

    def check_episode(
        self, messages: Sequence[Message], deltas: Sequence[EmittedDelta], tools: Sequence[ToolSchema]
    ) -> None:
        """Compare the deltas with one rendering of the whole conversation, unless `validate` is `"off"`.

        Raises:
            TemplateUnsupported: If a delta is not what the template would have written; or see `on_rewrite`.
        """
        if not deltas or self.validate == "off":
            return
        base = self._turns.base(messages[:1], tools)
        shown = [base.without_moved_text(message) for message in self._shown(messages)]
        texts: list[DeltaText] = []
        for delta in deltas:
            text, vision, before = self.tokenizer.decode(delta.tokens), self.vision, ""
            answers = takewhile(lambda message: message.role != "assistant", messages[delta.reply + 1 :])
            images = [image for answer in answers for image in answer.images]
            if vision is not None:
                for image in images:
                    start, _, text = text.partition(vision.process(image).text)  # the template writes one token for it
                    before += start + vision.placeholder
            texts.append(DeltaText(delta.reply, before + text, delta.generation_prompt))
        encoder = Encoder(self.tokenizer, unsafe_content=self.unsafe_content)
        prompts, tag = (self.generation_prompt, self.opening), self._facts.reply_writer.tag
        validation = Validation(self._template, encoder, self._probe.stop_of, *prompts, tag)
        self._report_rewriting(validation.episode(shown, texts, self._turns.hide_tools(tools)))

    # One reply.

    def emit_reply(self, out: Emission, message: Message) -> None:
        """Write what an assistant would sample: the template's text from the generation prompt to the stop token.

        Raises:
            TemplateUnsupported: If the template does not write the reply's text or its calls.
        """
        self._writer.write(out, self._emit_unended(out, message).sampled[0])

    def _emit_unended(self, out: Emission, message: Message) -> Stop:
        """Write a reply without its end, and return how it ends."""
        (hidden,) = self._shown([message])
        (given,) = self._template.dialect.addressed([self._template.dialect.readable(message)])
        return self._facts.reply_writer.write(out, given, hidden)

    def _written_reply(self, message: Message) -> "NDArray[np.int32]":
        # Without control tokens for the tags of calls, content may spell a call. A format that was given may read calls
        # as text.
        has_block = self._facts.reply_writer.prompt_closes_block  # the prompt contains an empty one
        tokens = super()._written_reply(message.with_reasoning(None) if has_block else message)
        if not self._facts.is_measured:
            return tokens
        read = self.parse(tokens)
        names, found = ([call.name for call in one.tool_calls] for one in (message, read))
        if not read.errors and names != found:
            raise RenderError(
                f"a reply with calls of {names} would be read as one with calls of {found}: {message.to_openai()}; "
                "this chat template and vocabulary cannot distinguish its text from a call"
            )
        return tokens

    def _prefill(self, start: str | Message) -> "NDArray[np.int32]":
        if isinstance(start, Message):
            if start.reasoning is not None and self._probe.thinking is None:
                raise RenderError("a reply cannot begin with reasoning: this chat template has no think block")
            if start.reasoning is None and self._facts.reply_writer.prompt_opens_block:
                raise RenderError("a reply begins with reasoning: the generation prompt opens a think block")
        return super()._prefill(start)

    def parse(self, tokens: TokenIds, *, prompt_tail: TokenIds = (), tools: Sequence[ToolSchema] = ()) -> Message:
        """Parse a reply by its format, or with the tokenizer's own response template; see `Renderer.parse`."""
        begun, sampled = self._split_reply(tokens, prompt_tail)
        segments = [*begun, *sampled.segments]
        match self._facts.reader:
            case ResponseTemplate() as reader:
                return reader.read(self.opening, segments, sampled, self.stop_tokens)
            case ReplyFormat() as reader:
                return reader.read(segments, sampled, tools, self.tokenizer.control_tokens)
            case GrammarReader() as reader:
                return reader.read(segments, sampled, tools)

    def reader(self, *, tools: Sequence[ToolSchema] = (), prompt_tail: TokenIds = ()) -> ReplyReader:
        """See `Renderer.reader`; a measured grammar reads a reply as it comes, other formats read it at its end."""
        if not isinstance(self._facts.reader, GrammarReader):
            return super().reader(tools=tools, prompt_tail=prompt_tail)
        return StreamedReader(self._facts.reader.begin(tools), self.marks, self.after_opening(prompt_tail))

    def after_opening(self, prompt_tail: TokenIds) -> TokenIds:
        """See `Renderer.after_opening`; the opening may begin and end inside a token.

        Its first token may begin with the end of the text before it, since a token across a seam belongs to the later
        part. The text after it is encoded again if no token begins there.
        """
        tail, opening = np.asarray(prompt_tail, dtype=np.int32), self.tokenizer.normalize(self.opening).encode()
        pieces = self.tokenizer.token_bytes(tail)
        text, ends = b"".join(pieces), list(accumulate(map(len, pieces)))
        for begun in (self.tokenizer.normalize(self.generation_prompt).encode(), opening):
            at = text.rfind(begun, 0, ends[0] - 1 + len(begun)) if begun and ends else -1
            if at >= 0 and begun.startswith(opening):
                end = at + len(opening)
                count = bisect_right(ends, end)  # of the tokens that end in the opening
                if end in (0, *ends):
                    return tail[count:]
                controls = (
                    index for index in range(count, len(tail)) if int(tail[index]) in self.encoder.control_names
                )
                stop = next(controls, len(tail))
                return np.concatenate([self.tokenizer.encode(text[end : ends[stop - 1]].decode()), tail[stop:]])
        return super().after_opening(prompt_tail)

    # What a template shows of the past.

    @cached_property
    def history_rule(self) -> HistoryRule | None:
        """The template's rule for past reasoning, if one was measured and proved; measured when it is needed."""
        return self._judged_history[0]

    @property
    def history_problem(self) -> str:
        """The reason why `history_rule` is missing, so that `strip` costs O(context); empty if it is known."""
        return self._judged_history[1]

    @property
    def history_note(self) -> str:
        """See `Renderer.history_note`."""
        rule = self.history_rule
        if rule is None:
            return f"O(context): {self.history_problem}"
        return f"O(new): the template {rule}" + ("" if rule.has_calls else "; O(context) in conversations with calls")

    @cached_property
    def _judged_history(self) -> tuple[HistoryRule | None, str]:
        return self._turns.measured(f"history {self._reads_by}", _HISTORY, self._judge_history)

    def _judge_history(self) -> tuple[HistoryRule | None, str]:
        """Return the first rule for past reasoning that is proved, or why there is none."""
        problem = "the template shows past reasoning by a rule that is not known"
        for rule in candidate_rules(self._template):
            candidate = self._made_of()
            candidate.history_rule, candidate._warned = rule, True  # a proof is not an episode
            refuted = refutation(candidate, has_calls=rule.has_calls)
            if refuted is None:
                return rule, ""
            problem = f"{rule}, but {refuted}"
        return None, problem

    def visible(self, messages: Sequence[Message], settled: int = 0) -> list[Message]:
        """See `Renderer.visible`.

        A prompt's messages are shown by the `history_rule`. Without one, for a conversation that ends with a reply, and
        for one in which nothing settles, one rendering of the whole conversation shows which reasoning is visible.

        Raises:
            TemplateFailed: If the template refuses the conversation.
        """
        tail, rule = messages[settled:], self.history_rule
        settling = [self.settles(message) for message in tail]
        is_prompt = bool(tail) and tail[-1].role != "assistant" and (settled > 0 or any(settling))
        if rule is not None and is_prompt and None not in settling:
            return rule.visible(tail)
        marks = {
            index: f"{REASONING}{index}e"
            for index, message in enumerate(messages)
            if index >= settled and message.reasoning is not None
        }
        if not marks:
            return list(tail)
        marked = [m.with_reasoning(marks[i]) if i in marks else m for i, m in enumerate(self._shown(messages))]
        try:
            text = self._template.text(marked, ())
        except TemplateFailed:
            text = self._template.text([*map(writable, marked)], ())
        return [
            message.with_reasoning(None) if index in marks and marks[index] not in text else message
            for index, message in enumerate(tail, start=settled)
        ]

    def settles(self, message: Message) -> bool | None:
        """See `Renderer.settles`; None if the template's rule is not known, or not with this message."""
        rule = self.history_rule
        return rule.settles(message) if rule is not None and rule.covers(self._turns.hide(message)) else None

    @property
    def settling_messages(self) -> int:
        """See `Renderer.settling_messages`."""
        return self.history_rule.users if self.history_rule is not None else 1


def _source(tokenizer: Tokenizer, template: str | None) -> ChatTemplateSource:
    """Return the given template or the tokenizer's, with what else the tokenizer's files specify."""
    found = tokenizer.chat_template
    if found is None and template is None:
        raise TokenizerError(
            f"the tokenizer {tokenizer.name!r} has no chat template: give a folder that has one, a tokenizer of "
            "transformers, or the template's text as template="
        )
    found = found or ChatTemplateSource("")
    return found if template is None else replace(found, text=template)
