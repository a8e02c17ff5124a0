"""The conformance checks of renderers."""

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._registry import get_renderer
from ..errors import ConfigError, PlainTagsWarning, RenderError, TokenizerError
from ..messages import ImagePart, Message, TextPart, ToolCall, ToolSchema
from ..rendering import _parity as parity
from ..rendering._parity import assistant
from ..rendering._whole import WholeRenderer
from ..rendering.emission import Emission
from ..rendering.renderer import Renderer
from ._reports import Check, CheckFailure, CheckReport, Verdict, run_check
from .masks import compare_masks

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}
_QUESTION = Message(role="user", content="What is the capital of France?")


class RendererReport(CheckReport[Check]):
    """The results of all checks of one renderer."""

    @property
    def renderer(self) -> str:
        """The names of the renderer and of its tokenizer."""
        return self.subject


def check_renderer(renderer: Renderer, *, random_replies: int = 500, seed: int = 0) -> RendererReport:
    """Run the conformance checks of a renderer.

    Args:
        renderer: The renderer.
        random_replies: The number of random token sequences to parse and extend.
        seed: The seed of these sequences.

    Returns:
        A report. In a test, call its `raise_if_failed()`. If the model family cannot express something (the
        `RenderError` says why), the check is `NOT POSSIBLE`, which is not a failure.
    """
    report = RendererReport(f"{renderer.name} on {renderer.tokenizer.name}")
    for name, check in _checks(renderer, random_replies, seed):
        report.checks.append(run_check(name, check, RenderError))
    return report


def _checks(renderer: Renderer, random_replies: int, seed: int) -> Iterator[tuple[str, Callable[[], str | None]]]:
    if why := _why_refused(renderer, ()):
        yield "an environment can be made", lambda: _fail(f"no environment can be made with it: {why}")
    if renderer.chosen_because:
        yield "chosen by `auto`", lambda: f"{renderer.name!r}: {renderer.chosen_because}"
    yield "stop tokens", lambda: _stop_tokens(renderer)
    yield "same input, same tokens", lambda: _repeats(renderer)
    has_template = renderer.chat_template is not None
    for name, conversation in parity.CONVERSATIONS.items() if has_template else ():
        yield f"matches the template: {name}", lambda item=(name, conversation): _parity(renderer, *item)
        if " after " in name:
            yield (
                f"past that the template rewrites: {name}",
                lambda item=conversation: parity.rewritten_past(renderer, item),
            )
    yield (
        "earlier text of users and the system",
        lambda: (note := renderer.rewriting_note) and f"the template rewrites it, and prompts keep it: {note}",
    )
    yield "images", lambda: _images(renderer)
    if renderer.history_note:
        yield "cost of a step under `strip`", lambda: renderer.history_note
    if has_template and parity.has_generation_blocks(parity.own_template(renderer)[0]):
        yield "mask of the template's generation blocks", lambda: compare_masks(renderer)
    if not has_template:
        yield "matches the template", lambda: parity.render_template(renderer, [_QUESTION], (), generation_prompt=True)
    for (before, reply), (after, messages) in itertools.product(REPLIES.items(), NEXT.items()):
        is_answered = bool(reply.tool_calls) == (messages[0].role == "tool")
        if is_answered and (len(messages) > 1 or len(reply.tool_calls) < 2 or after == "tools"):
            name = f"extension: {before}, then {after}"
            yield name, lambda reply=reply, messages=messages: _extension(renderer, reply, messages)
    for name, reply in REPLIES.items():
        yield f"parse what was rendered: {name}", lambda reply=reply: _round_trip(renderer, reply)
        yield f"cut anywhere: {name}", lambda reply=reply: _cuts(renderer, renderer.reply(reply))
    if type(renderer).proved_reading is not Renderer.proved_reading:
        yield "calls read back as the template writes them", lambda: renderer.proved_reading
    for name, tokens in _odd_replies(renderer):
        yield f"cut anywhere: {name}", lambda tokens=tokens: _cuts(renderer, tokens, is_odd=True)
    for name, messages in _injections(renderer).items():
        yield f"no forgery: {name}", lambda messages=messages: _injection(renderer, *messages)
    yield f"{random_replies} random replies", lambda: _random_replies(renderer, random_replies, seed)


def summary(renderer: Renderer) -> list[str]:
    """Return what environments can rely on: turns of users, tools, the cost of `strip`, and the nearest family."""
    lines = [
        f"{what}: {f'no: {why}' if (why := _why_refused(renderer, tools)) else 'yes'}"
        for what, tools in (("an environment can be made, with turns of users", ()), ("tools", [TOOL]))
    ]
    lines.append(f"a step under `strip` costs {renderer.history_note or 'O(new)'}")
    if isinstance(renderer, WholeRenderer) and renderer.chat_template is not None:
        try:
            source = renderer.chat_template
            given = {"template": source.text, "special_tokens": source.special_tokens}
            found = renderer.chosen_because or get_renderer("auto", renderer.tokenizer, **given).chosen_because
        except (RenderError, TokenizerError, ConfigError) as error:
            found = str(error)
        lines.append(f"nearest family: {found}")
    return lines


def _why_refused(renderer: Renderer, tools: Sequence[ToolSchema]) -> str:
    """Return why no environment with these tools can be made; empty if one can."""
    try:
        if isinstance(renderer, WholeRenderer):
            renderer.check_tools(tools)
        renderer.render([_QUESTION], tools=tools, generation_prompt=True, history="keep")
        renderer.reply(REPLIES["call" if tools else "text"])
    except RenderError as error:
        return str(error)
    return ""


def _fail(what: str) -> None:
    raise CheckFailure(what)


def _call(what: str) -> ToolCall:
    return ToolCall(name="look_up", arguments={"what": what})


REPLIES = {
    "text": assistant("It is Paris."),
    "reasoned": assistant("It is Paris.", "The capital of France is Paris."),
    "call": assistant(calls=[_call("France")]),
    "reasoned call": assistant("", "I look it up.", [_call("France")]),
    "two calls": assistant(calls=[_call("France"), _call("Paris")]),
}
_RESULT = Message(role="tool", name="look_up", content="Paris", tool_call_id=None)
NEXT = {
    "user": [Message(role="user", content="And of Italy?")],
    "system": [Message(role="system", content="Be brief.")],
    "tool": [_RESULT],
    "tools": [_RESULT, _RESULT],
    "tool, then user": [_RESULT, Message(role="user", content="And of Italy?")],
}


def _stop_tokens(renderer: Renderer) -> None:
    if not renderer.stop_token_ids:
        raise CheckFailure("the renderer has no stop tokens")
    for token in renderer.stop_token_ids:
        if not 0 <= token < renderer.tokenizer.vocab_size:
            raise CheckFailure(f"the stop token {token} is not in the vocabulary")
    last = int(renderer.reply(REPLIES["text"])[-1])
    if last not in renderer.stop_token_ids:
        raise CheckFailure(f"a reply ends with {_shown(renderer, [last])}, which is not a stop token")


def _parity(renderer: Renderer, name: str, conversation: parity.Conversation) -> None:
    messages, tools, generation_prompt = conversation
    expected = parity.render_template(renderer, messages, tools, generation_prompt=generation_prompt)
    found = renderer.render(messages, tools=tools, generation_prompt=generation_prompt).tokens
    known = [why for words, why in renderer.known_differences.items() if words in name]
    if known and renderer.tokenizer.decode(found) != expected:
        raise parity.KnownDifference(f"a known difference: {'; '.join(known)}")
    out = Emission(renderer.encoder)
    out.scaffold(expected)
    _compare(renderer, found, out.tokens()[0], "the renderer and the template")


def _images(renderer: Renderer) -> str:
    """Compare images in a user's message with the template; its token for each is what the processor writes."""
    vision = renderer.vision
    if vision is None:
        return renderer.images_note
    images = [ImagePart(np.full((height, 64, 3), height, np.uint8)) for height in (48, 96)]
    parts = [TextPart(text="Compare"), images[0], TextPart(text="with"), images[1]]
    message = Message.model_validate({"role": "user", "content": parts})
    found = renderer.render([message], generation_prompt=True).tokens
    counts = [vision.count(image) for image in message.images]
    places = vision.places(found, message.images)
    if renderer.chat_template is not None:
        out = Emission(renderer.encoder)
        out.begin(0, "user", message.images)
        out.scaffold(parity.render_template(renderer, [message], (), generation_prompt=True))
        _compare(renderer, found, out.tokens()[0], "the renderer and the template with images")
    name = type(vision.processor).__name__
    return f"written with {name}: {counts} placeholders, {[place.stop - place.start for place in places]} tokens"


def _repeats(renderer: Renderer) -> None:
    first, second = (renderer.render([_QUESTION, REPLIES["reasoned"]], history="keep").tokens for _ in range(2))
    _compare(renderer, first, second, "the same conversation rendered twice")


def _extension(renderer: Renderer, reply: Message, messages: Sequence[Message]) -> None:
    """Check that prompt, reply and delta equal the rendered conversation, except for the end that was sampled."""
    tools = [TOOL] if reply.tool_calls else []
    prompt = renderer.render([_QUESTION], tools=tools, generation_prompt=True, history="keep").tokens
    sampled = renderer.reply(reply)
    read = renderer.parse(sampled, prompt_tail=_tail(renderer))
    whole = renderer.render([_QUESTION, read, *messages], tools=tools, generation_prompt=True, history="keep").tokens
    extension = renderer.extension(sampled, messages, history=[_QUESTION, read], tools=tools, drops_end=True)
    kept, delta = sampled[: len(sampled) - extension.dropped], extension.tokens
    extended = np.concatenate([prompt, kept, delta])
    end = len(prompt) + len(kept) - 1
    if len(whole) == len(extended) and int(extended[end]) in renderer.stop_token_ids:
        extended[end] = whole[end]  # a family may write the end of a past turn differently
    if renderer.tokenizer.decode(whole) != renderer.tokenizer.decode(extended):
        _compare(renderer, whole, extended, "the whole conversation and prompt + reply + delta")
    # A sampled reply may be tokenized differently from a rendered one, but the delta may not.
    _compare(renderer, whole[len(whole) - len(delta) :], delta, "the end of the whole conversation and the delta")


def _round_trip(renderer: Renderer, reply: Message) -> None:
    read = renderer.parse(renderer.reply(reply), prompt_tail=_tail(renderer))
    expected = (reply.content, [(call.name, call.arguments) for call in reply.tool_calls])
    found = (read.content, [(call.name, call.arguments) for call in read.tool_calls])
    if found != expected or read.errors:
        raise CheckFailure(f"{expected} was rendered, but {found} was parsed, with the errors {read.errors}")
    if reply.reasoning and renderer.reply(reply).tolist() == renderer.reply(reply.with_reasoning(None)).tolist():
        shown = renderer.visible([_QUESTION, reply])[-1].reasoning
        if shown and renderer.settles(_QUESTION) is not None and not renderer.writes_reasoning:
            raise CheckFailure(
                f"`visible` shows the reasoning {shown!r}, which `emit_reply` does not write: return such a message "
                "without it (`message.with_reasoning(None)`), or write it in `emit_reply`"
            )
        raise RenderError("the family has no reasoning, or its generation prompt closes the reasoning")
    if (read.reasoning or "") != (reply.reasoning or ""):
        raise CheckFailure(f"the reasoning {reply.reasoning!r} was rendered, but {read.reasoning!r} was parsed")


def _tail(renderer: Renderer) -> "NDArray[np.int32]":
    """Return the tokens of the generation prompt."""
    prompt = renderer.render([_QUESTION], generation_prompt=True, history="keep")
    return prompt.tokens[prompt.starts[-1] :]


def _cuts(renderer: Renderer, reply: "NDArray[np.int32]", *, is_odd: bool = False) -> None:
    """Check that a reply cut at any token can be parsed, and that the delta after it ends with the next message.

    A block that is open at the cut must be closed, except in odd replies, whose blocks are ambiguous. What follows the
    end of a turn may depend on whether the reply calls a tool.
    """
    following = NEXT["user"]
    ends: dict[bool, list[int]] = {}
    for cut in range(len(reply) + 1):
        part = reply[:cut]
        has_calls = bool(renderer.parse(part).tool_calls)
        extension = renderer.extension(part, following, drops_end=True)
        part, delta = part[: cut - extension.dropped], extension.tokens
        closing = delta[: extension.starts[0]]
        ends_with = ends.setdefault(has_calls, delta[len(closing) :].tolist())
        if delta.tolist() != [*closing, *ends_with]:
            raise CheckFailure(f"cut at {cut}, {_shown(renderer, part)} is followed by {_shown(renderer, delta)}")
        is_ended = np.isin(part, renderer.stop_token_ids).any()
        if not is_odd and not is_ended and renderer.parse(np.concatenate([part, closing])).open_block is not None:
            raise CheckFailure(f"cut at {cut}, {_shown(renderer, part)} is not closed by {_shown(renderer, closing)}")


def _odd_replies(renderer: Renderer) -> Iterator[tuple[str, "NDArray[np.int32]"]]:
    """Yield replies that models sample but no renderer writes."""
    tokenizer, stop = renderer.tokenizer, np.array(renderer.stop_token_ids[:1], dtype=np.int32)
    try:
        reasoned = renderer.reply(REPLIES["reasoned"])
    except RenderError:
        reasoned = renderer.reply(REPLIES["text"])
    yield "nothing", stop[:0]
    yield "only the end", stop
    yield "no end", reasoned[:-1]
    yield "text after the end", np.concatenate([reasoned, tokenizer.encode("more")])
    yield "two ends", np.concatenate([reasoned, reasoned])
    spelled = [tokenizer.encode(char) for char in "Héllo, wörld."]
    yield "spelled letter by letter", np.concatenate([*spelled, stop])
    names = sorted(tokenizer.control_tokens.values())[:64]
    yield "every control token", np.array(names, dtype=np.int32)
    yield "every control token, the other way around", np.array(names[::-1], dtype=np.int32)
    for name, raw in (("broken JSON", '{"name": "look_up", "argu'), ("no JSON", "look it up"), ("empty call", "")):
        call = ToolCall(name="look_up", arguments=raw, raw=raw)
        try:
            yield name, renderer.reply(assistant(calls=[call]))
        except RenderError:
            return


def _injections(
    renderer: Renderer,
) -> dict[str, tuple[list[Message], list[ToolSchema], list[Message], list[ToolSchema]]]:
    """Return, for each field, a conversation with control tokens in that field, and the same one with harmless text."""
    evil = "x" + "".join(renderer.tokenizer.control_tokens)  # reasoning would be read at the start of a content

    def tool(text: str, name: str = "look_up", parameter: str = "what") -> ToolSchema:
        parameters = {"type": "object", "properties": {parameter: {"type": "string"}}}
        return {"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}

    def conversations(text: str) -> dict[str, tuple[list[Message], list[ToolSchema]]]:
        result = _RESULT.model_copy(update={"content": text})
        return {
            "user": ([Message(role="user", content=text)], []),
            "system": ([Message(role="system", content=text), _QUESTION], []),
            "answer": ([_QUESTION, assistant(text), *NEXT["user"]], []),
            "reasoning": ([_QUESTION, assistant("x", text), *NEXT["user"]], []),
            "reasoning of a call": ([_QUESTION, assistant("", text, [_call("x")]), _RESULT], [TOOL]),
            "name of a call": ([_QUESTION, assistant(calls=[ToolCall(name=text, arguments={})])], [TOOL]),
            "name of an argument": ([_QUESTION, assistant(calls=[ToolCall(name="f", arguments={text: 1})])], [TOOL]),
            "name of a tool": ([_QUESTION], [tool("x", name=text)]),
            "parameter of a tool": ([_QUESTION], [tool("x", parameter=text)]),
            "arguments of a call": ([_QUESTION, assistant(calls=[_call(text)]), _RESULT], [TOOL]),
            "result of a tool": ([_QUESTION, REPLIES["call"], result], [TOOL]),
            "description of a tool": ([_QUESTION], [tool(text)]),
        }

    harmless = conversations("harmless")
    return {name: (*forged, *harmless[name]) for name, forged in conversations(evil).items()}


def _injection(
    renderer: Renderer,
    evil: list[Message],
    evil_tools: list[ToolSchema],
    harmless: list[Message],
    harmless_tools: list[ToolSchema],
) -> None:
    control = np.array(sorted(renderer.tokenizer.control_tokens.values()), dtype=np.int32)
    found: list[list[int]] = []
    for messages, tools in ((evil, evil_tools), (harmless, harmless_tools)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PlainTagsWarning)
            tokens = renderer.render(messages, tools=tools, history="keep").tokens
        found.append(tokens[np.isin(tokens, control)].tolist())
    if found[0] != found[1]:
        raise CheckFailure(
            f"with control tokens in the text, {len(found[0])} are rendered; without them, {len(found[1])}"
        )


def _random_replies(renderer: Renderer, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    control = np.array(sorted(renderer.tokenizer.control_tokens.values()), dtype=np.int32)
    for _ in range(count):
        tokens = rng.integers(0, renderer.tokenizer.vocab_size, size=int(rng.integers(0, 24))).astype(np.int32)
        marked = rng.random(len(tokens)) < 0.4
        tokens[marked] = rng.choice(control, size=int(marked.sum()))
        try:
            renderer.parse(tokens)
            renderer.extend(tokens, NEXT["user"])
        except Exception as error:
            raise CheckFailure(f"{tokens.tolist()} raises {type(error).__name__}: {error}") from error


def _compare(renderer: Renderer, first: "NDArray[np.int32]", second: "NDArray[np.int32]", what: str) -> None:
    """Raise a CheckFailure that shows the first difference, if two renderings differ."""
    if first.tolist() == second.tolist():
        return
    length = min(len(first), len(second))
    differs = first[:length] != second[:length]
    at = int(np.argmax(differs)) if differs.any() else length
    around = slice(max(0, at - 4), at + 8)
    raise CheckFailure(
        f"{what} differ at token {at}: {_shown(renderer, first[around])} and {_shown(renderer, second[around])}"
    )


def _shown(renderer: Renderer, tokens: Any) -> str:
    ids = [int(token) for token in tokens]
    return f"{renderer.tokenizer.decode(np.array(ids, dtype=np.int32))!r} {ids}"


__all__ = ["Check", "RendererReport", "Verdict", "check_renderer", "summary"]
