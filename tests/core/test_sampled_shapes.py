"""Whatever a model samples, the next prompt holds it: a battery of replies, whole and cut at every position."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import real_models
from conversations import emitted

from envsdk import Action, Env, Limits, Message, Renderer, Turn, load_tokenizer
from envsdk.rendering.tokenizers import Tokenizer

STOP = "<|im_end|>"
EMPTY_BLOCK = "<think>\n\n</think>\n\n"
NOT_ENDED = "the turn was not ended"
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Search.", "parameters": PARAMETERS}}


class Library(Env):
    """Answers each call with a result, and anything else with the same words; remembers the replies."""

    def start(self) -> Turn:
        self.replies: list[Message] = []
        return Turn("Look it up.", system="Use the tools.", tools=[SEARCH])

    def respond(self, reply: Message) -> Turn:
        self.replies.append(reply)
        return Turn([Message(role="tool", content="found") for _ in reply.tool_calls] or "Go on.")


class Spelled(str):
    """A text that was sampled character by character."""

    __slots__ = ()


@dataclass(frozen=True)
class Shape:
    """A reply as control tokens and texts, and what the environment gets of it when the model thinks."""

    pieces: Sequence[str]
    content: str = ""
    reasoning: str | None = None
    calls: Sequence[tuple[str, Mapping[str, Any] | str]] = ()
    errors: Sequence[str] = ()
    closing: str = "\n"


def think(text: str) -> tuple[str, str, str]:
    return "<think>", text, "</think>"


def call(text: str) -> tuple[str, str, str]:
    return "<tool_call>", text, "</tool_call>"


PARIS = '\n{"name": "search", "arguments": {"query": "Paris"}}\n'
FOUND = ("search", {"query": "Paris"})
R = think("\nr\n")
SHAPES = {
    "think unpadded": Shape([*think("abc"), "answer", STOP], "answer", "abc"),
    "think padded": Shape([*think("\nabc\n"), "\n\nanswer", STOP], "answer", "abc"),
    "no think": Shape(["answer", STOP], "answer"),
    "empty think": Shape([*think("\n\n"), "\n\nanswer", STOP], "answer", ""),
    "open think": Shape(
        ["<think>", "\nabc"], "", "abc", (), ["think block was not closed", NOT_ENDED], f"\n</think>\n\n{STOP}\n"
    ),
    "think never opened": Shape(["abc", "</think>", "answer", STOP], "answer", "abc", (), ["was never opened"]),
    "stop inside think": Shape(["<think>", "abc", STOP], "", "abc", (), ["think block was not closed"]),
    "spelled": Shape([*R, "\n\n", Spelled("Hello there, wörld"), STOP], "Hello there, wörld", "r"),
    "spelled names": Shape([*R, Spelled(f"<tool_call>{STOP}"), STOP], f"<tool_call>{STOP}", "r"),
    "think, call": Shape([*R, "\n\n", *call(PARIS), STOP], "", "r", [FOUND]),
    "think, text, call": Shape([*R, "\n\nLet us see.\n", *call(PARIS), STOP], "Let us see.", "r", [FOUND]),
    "call": Shape([*call(PARIS), STOP], calls=[FOUND]),
    "two calls": Shape([*R, "\n\n", *call(PARIS), "\n", *call(PARIS), STOP], "", "r", [FOUND] * 2),
    "text after a call": Shape([*call(PARIS), "after", STOP], "after", None, [FOUND], ["text after a tool call"]),
    "text between calls": Shape(
        [*R, *call(PARIS), "and", *call(PARIS), STOP], "and", "r", [FOUND] * 2, ["text after a tool call"]
    ),
    "compact JSON": Shape([*R, *call('{"name":"search","arguments":{"query":"Paris"}}'), STOP], "", "r", [FOUND]),
    "other key order": Shape([*call('{"arguments": {"query": "Paris"}, "name": "search"}'), STOP], calls=[FOUND]),
    "arguments as text": Shape([*call('{"name": "search", "arguments": " a\\tb"}'), STOP], calls=[("search", " a\tb")]),
    "broken JSON": Shape(
        [*R, *call('\n{"name": "search", "arg'), STOP], "", "r", [("", '\n{"name": "search", "arg')], ["not valid JSON"]
    ),
    "unknown tool": Shape(
        [*call('{"name": "delete"}'), STOP], calls=[("delete", {})], errors=["unknown tool 'delete'; known: search"]
    ),
    "missing argument": Shape(
        [*call('{"name": "search"}'), STOP], calls=[("search", {})], errors=["search: missing argument query"]
    ),
    "open call": Shape(
        [*R, "<tool_call>", '{"name": "sea'], "", "r", [("", '{"name": "sea')],
        ["tool call was not closed", NOT_ENDED], f"\n</tool_call>{STOP}\n",
    ),
    "tokens after the stop": Shape(
        [*R, "answer", STOP, "more"], "answer", "r", (), ["text after the end of the turn: 'more'"], f"{STOP}\n"
    ),
    "two stops": Shape(
        [*R, "answer", STOP, "more", STOP], "answer", "r", (), [f"text after the end of the turn: 'more{STOP}'"]
    ),
    "other stop": Shape([*R, "answer", "<|endoftext|>"], "answer", "r", closing=f"{STOP}\n"),
    "no stop": Shape([*R, "answer"], "answer", "r", (), [NOT_ENDED], f"{STOP}\n"),
    "nothing": Shape([], errors=[NOT_ENDED], closing=f"{STOP}\n"),
    "think in the middle": Shape(
        [*R, "foo", *think("bar"), STOP], "foo<think>bar</think>", "r", (), ["<think> is out of", "</think> is out of"]
    ),
}  # fmt: skip


@pytest.fixture(params=list(SHAPES))
def shape(request: pytest.FixtureRequest) -> Shape:
    return SHAPES[request.param]


def encode(tokenizer: Tokenizer, pieces: Sequence[str]) -> list[int]:
    tokens: list[int] = []
    for piece in pieces:
        if piece in tokenizer.control_tokens:
            tokens.append(tokenizer.token_id(piece))
        else:
            for text in piece if isinstance(piece, Spelled) else [piece]:
                tokens += tokenizer.encode(text).tolist()
    return tokens


def act(tokens: Sequence[int]) -> Action:
    return Action(tokens, logprobs=[-0.5] * len(tokens))


def said_next(renderer: Any, reply: Message) -> str:
    results = "\n<tool_response>\nfound\n</tool_response>" * len(reply.tool_calls)
    prompt = "<|im_start|>assistant\n" + ("" if renderer.enable_thinking else EMPTY_BLOCK)
    return f"<|im_start|>user{results or f'{chr(10)}Go on.'}{STOP}\n{prompt}"


def closing_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """What has to close a reply: the rule once more, on the names of its control tokens."""
    names = {token: name for name, token in tokenizer.control_tokens.items()}
    controls = "".join(names.get(token, "") for token in tokens)
    if tokens and names.get(tokens[-1]) == STOP:
        return "\n"
    left = re.sub("<think>.*?</think>|<tool_call>.*?</tool_call>", "", controls)
    opened = re.search("<think>|<tool_call>", left)
    block = {"<think>": "\n</think>\n\n", "<tool_call>": "\n</tool_call>"}[opened[0]] if opened else ""
    return f"{block}{STOP}\n"


def assert_kept(renderer: Renderer, tokens: Sequence[int], closing: str) -> Message:
    """Play the reply under `keep`; returns what the environment got."""
    env = Library(renderer=renderer, limits=Limits(end_on_cut=False))
    env.reset(seed=0)
    before = [*env.prompt(), *tokens]
    observation, _, terminated, truncated, info = env.step(act(tokens))
    after = env.prompt().tolist()
    assert after[: len(before)] == before
    assert renderer.tokenizer.decode(after[len(before) :]) == closing + said_next(renderer, env.replies[0])
    assert observation.tokens.tolist() == after[len(before) :]
    assert (observation.extends, observation.keep, terminated, truncated) == (True, len(before), False, False)
    assert info["truncated_reply"] == (closing != "\n")
    assert "break" not in info
    return env.replies[0]


def cuts_of(tokens: Sequence[int], step: int) -> list[Sequence[int]]:
    """The reply, and what it is if it is cut: at each position, or at each second one, and so on."""
    return [tokens[:length] for length in range(len(tokens), -1, -step)]


# The past is kept.


@pytest.mark.matrix(every=3)
def test_the_next_prompt_holds_a_reply_that_was_cut_anywhere(renderer: Renderer, shape: Shape, is_full: bool) -> None:
    tokens = encode(renderer.tokenizer, shape.pieces)
    for cut in cuts_of(tokens, 1 if is_full else 2):
        closing = closing_of(renderer.tokenizer, cut)
        errors = " ".join(assert_kept(renderer, cut, closing).errors)
        assert (NOT_ENDED in errors) == (not {*cut} & {*renderer.stop_token_ids})
        assert "think>" not in closing or "think block was not closed" in errors or "<think> is out of place" in errors
        assert "tool_call>" not in closing or "the tool call was not closed" in errors


def test_the_next_prompt_holds_random_ids(renderer: Renderer, is_full: bool) -> None:
    rng = Random(9)
    controls = list(renderer.tokenizer.control_tokens.values())
    for _ in range(150 if is_full else 40):
        ids = [rng.randrange(renderer.tokenizer.vocab_size) for _ in range(rng.randint(0, 40))]
        tokens = [rng.choice(controls) if rng.random() < 0.2 else token for token in ids]
        assert_kept(renderer, tokens, closing_of(renderer.tokenizer, tokens))


@pytest.mark.matrix(pairs=True)
def test_the_environment_gets_what_was_said_and_what_was_wrong(renderer: Any, shape: Shape) -> None:
    reply = assert_kept(renderer, encode(renderer.tokenizer, shape.pieces), shape.closing)
    errors = list(shape.errors)
    if renderer.enable_thinking:
        assert (reply.content, reply.reasoning) == (shape.content, shape.reasoning)
    else:  # the prompt holds an empty think block: another one is out of place, and text
        assert (reply.content.endswith(shape.content), reply.reasoning) == (True, "")
        marks = [f"{piece} is out of place" for piece in shape.pieces if piece in ("<think>", "</think>")]
        errors = [*dict.fromkeys(marks), *(error for error in errors if "think" not in error and "opened" not in error)]
    assert [(call.name, call.arguments) for call in reply.tool_calls] == list(shape.calls)
    assert len(reply.errors) == len(errors)
    for expected, error in zip(errors, reply.errors, strict=True):
        assert expected in error
    assert [call.error for call in reply.tool_calls if call.error] == [e for e in reply.errors if is_of_a_call(e)]


def is_of_a_call(error: str) -> bool:
    return any(words in error for words in ("JSON", "unknown tool", "missing argument", "tool call was not closed"))


# The past is rewritten.


def recorded_reply(env) -> Message:
    """The last reply in the record; the environment got a copy of it."""
    return next(message for message in reversed(env.episode.root.context.messages) if message.role == "assistant")


def assert_rewritten(renderer: Any, replies: Sequence[Sequence[int]], history: Any) -> int:
    """Play replies under a policy that rewrites and check each prompt against its messages; returns the rewrites."""
    env = Library(renderer=renderer, history=history, limits=Limits(max_steps=len(replies)))
    env.reset(seed=0)
    opening = "<|im_start|>assistant\n" + ("" if renderer.enable_thinking else EMPTY_BLOCK)
    decode = renderer.tokenizer.decode
    prompts, verbatim, done = [env.prompt()], {}, False
    for tokens in replies:
        observation, _, terminated, truncated, info = env.step(act(tokens))
        closing = closing_of(renderer.tokenizer, tokens)
        verbatim[id(recorded_reply(env))] = opening + decode(tokens) + closing
        if done := terminated or truncated:
            break
        kept = [*prompts[-1], *tokens][: observation.keep]
        prompts.append(env.prompt())
        assert prompts[-1].tolist() == [*kept, *observation.tokens]
        assert observation.extends == ("break" not in info)
        view = env.episode.root.context.view  # pyright: ignore
        rendered = emitted(renderer, view, [SEARCH], generation_prompt=True)
        bounds = zip(rendered.starts, rendered.starts[1:], strict=False)
        texts = [verbatim.get(id(m)) or decode(rendered.tokens[a:b]) for m, (a, b) in zip(view, bounds, strict=True)]
        assert decode(prompts[-1]) == "".join(texts) + opening
    assert done and env.trajectory is not None
    assert [step.prompt.tolist() for step in env.trajectory.prompts()] == [prompt.tolist() for prompt in prompts]
    samples = [sample.validate() for sample in env.trajectory.samples()]
    assert sum(int(sample.mask.sum()) for sample in samples) == env.trajectory.sampled_tokens
    return len(env.trajectory.breaks)


HISTORIES: dict[str, Any] = {
    "strip": "strip",
    "compact": {"name": "compact", "every": 1},
    "budget": {"name": "budget", "target": 0.9},
}


@pytest.fixture(params=list(HISTORIES))
def history(request: pytest.FixtureRequest, renderer: Renderer) -> Any:
    if request.param != "budget":
        return HISTORIES[request.param]
    env = Library(renderer=renderer)
    env.reset(seed=0)
    return {**HISTORIES["budget"], "max_tokens": len(env.prompt()) + 60}


@pytest.mark.matrix(every=3)
def test_a_rewritten_prompt_says_what_its_messages_say(
    renderer: Renderer, shape: Shape, history: Any, is_full: bool
) -> None:
    tokens = encode(renderer.tokenizer, shape.pieces)
    plain, call = (encode(renderer.tokenizer, SHAPES[name].pieces) for name in ("think padded", "think, call"))
    cuts = cuts_of(tokens, 1 if is_full else 4)
    assert sum(assert_rewritten(renderer, [cut, plain, call, cut], history) for cut in cuts) > len(cuts) // 2


@pytest.mark.parametrize("name", ["spelled", "spelled names", "compact JSON"])
def test_text_after_dropped_reasoning_keeps_its_sampled_tokens(tokenizer: Tokenizer, name: str) -> None:
    env = Library(tokenizer=tokenizer, history={"name": "compact", "every": 1})
    env.reset(seed=0)
    tokens = encode(tokenizer, SHAPES[name].pieces)
    answer = tokens[tokens.index(tokenizer.token_id("</think>")) + 1 + SHAPES[name].pieces.count("\n\n") :]
    length = len(env.prompt())
    observation, *_ = env.step(act(tokens))
    opening = encode(tokenizer, ["<|im_start|>", "assistant\n"])
    assert observation.keep == length - len(opening)
    assert observation.tokens[: len(opening) + len(answer)].tolist() == [*opening, *answer]


def test_an_answer_that_begins_inside_a_token_is_written_again() -> None:
    tokenizer = load_tokenizer(real_models.qwen3_folder())
    blank_lines = tokenizer.encode("\n  \n").tolist()
    assert len(blank_lines) == 1
    env = Library(tokenizer=tokenizer, history={"name": "compact", "every": 1})
    env.reset(seed=0)
    observation, *_ = env.step(act([*encode(tokenizer, R), *blank_lines, *encode(tokenizer, [Spelled("foo"), STOP])]))
    written = encode(tokenizer, ["<|im_start|>", "assistant\n  \nfoo", STOP])
    assert env.replies[0].content == "  \nfoo"
    assert observation.tokens[: len(written)].tolist() == written


def test_a_reply_after_a_dropped_round_is_kept_verbatim(renderer: Renderer) -> None:
    tokens = encode(renderer.tokenizer, SHAPES["compact JSON"].pieces)
    env = Library(renderer=renderer, history={"name": "budget", "max_tokens": 400, "order": ("oldest",)})
    env.reset(seed=0)
    info: dict[str, Any] = {}
    while "break" not in info:
        *_, info = env.step(act(tokens))
    assert env.episode.root.context.view[-2] is recorded_reply(env)  # pyright: ignore
    assert str(tokens)[1:-1] in str(env.prompt().tolist())
