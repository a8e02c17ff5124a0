"""Streamed replies are sent while they are sampled, in each protocol, and nothing else changes."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import anthropic
import numpy as np
import openai
import pytest
import real_models
from envsdk_renderers._fixed_base import FixedBase

import envsdk
from envsdk import Action, Message, ToolCall, Trajectory, rollout
from envsdk.gateway import Endpoint, ProgramEnv

TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
REPLY = Message(role="assistant", content="One two three.", reasoning="So be it.")
CALLING = REPLY.model_copy(update={"content": "", "tool_calls": (ToolCall(name="look", arguments={"at": "x"}),)})
WAIT_S = 10.0


@cache
def renderer() -> FixedBase:
    """A renderer that reads replies by a measured grammar, as they come."""
    text = (real_models.qwen3_folder() / "chat_template.jinja").read_text()
    text = text.replace("<tool_call>", "<|object_ref_start|>").replace("</tool_call>", "<|object_ref_end|>")
    return FixedBase(real_models.qwen3_folder(), template=text)


class Streaming:
    """A policy that samples on only when the program has got what it sampled before.

    Args:
        reply: The reply.
        halts: The texts after which it waits for the program.
        fails: Whether it fails after the last of these.
    """

    tokenizer = "any"
    streams = True

    def __init__(self, reply: Message, *halts: str, fails: bool = False) -> None:
        self.tokens, self.halts, self.fails = renderer().reply(reply).tolist(), list(halts), fails
        self.goes_on = threading.Semaphore(0)
        self.was_streamed = False

    async def __call__(self, prompt: Any, *, on_tokens: Any = None, **_: Any) -> Action:
        sampled, halts = "", [*self.halts]
        self.was_streamed = on_tokens is not None
        for token in self.tokens if on_tokens else ():
            on_tokens([token])
            sampled += renderer().tokenizer.decode([token])
            if halts and halts[0] in sampled:
                del halts[0]
                assert await asyncio.to_thread(self.goes_on.acquire, timeout=WAIT_S), "the program got nothing"
                if self.fails and not halts:
                    raise ValueError("the server is down")
        return Action(self.tokens, np.linspace(-1, -0.5, len(self.tokens)))


def played(policy: Any, ask: Callable[[Endpoint], Any]) -> tuple[Any, Trajectory]:
    """What a program gets, and the episode."""
    got: list[Any] = []

    class Program(ProgramEnv):
        def run(self, model: Endpoint) -> float:
            got.append(ask(model))
            return 1.0

    with contextlib.closing(Program(renderer=renderer())) as env:
        return [rollout(env, policy, seed=0), got[0]][::-1]  # type: ignore[return-value]


def until(policy: Streaming, *texts: str) -> Callable[[str], None]:
    """A function that lets the policy go on whenever all text so far contains the next of these."""
    said, left = "", list(texts)

    def take(text: str) -> None:
        nonlocal said
        said += text
        while left and left[0] in said:
            del left[0]
            policy.goes_on.release()

    return take


def chat(policy: Streaming, *texts: str) -> Callable[[Endpoint], Any]:
    def ask(model: Endpoint) -> Any:
        take = until(policy, *texts)
        with (
            openai.OpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client,
            client.chat.completions.stream(
                model="m",
                messages=[{"role": "user", "content": "Hi"}],
                tools=[{"type": "function", "function": TOOL}],  # type: ignore[list-item]
                stream_options={"include_usage": True},
            ) as stream,
        ):
            for event in stream:
                if event.type == "chunk" and event.chunk.choices:
                    delta: Any = event.chunk.choices[0].delta
                    take(getattr(delta, "reasoning_content", None) or delta.content or "")
            completion: Any = stream.get_final_completion()
        message = completion.choices[0].message
        return message.reasoning_content, message.content or "", message.tool_calls or []

    return ask


def responses(policy: Streaming, *texts: str) -> Callable[[Endpoint], Any]:
    def ask(model: Endpoint) -> Any:
        take = until(policy, *texts)
        with (
            openai.OpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client,
            client.responses.stream(
                model="m",
                input="Hi",
                tools=[{"type": "function", "strict": False, **TOOL}],  # type: ignore[list-item]
            ) as stream,
        ):
            for event in stream:
                if event.type in ("response.reasoning_text.delta", "response.output_text.delta"):
                    take(event.delta)  # type: ignore[union-attr]
            response: Any = stream.get_final_response()
        reasoning = [item.content[0].text for item in response.output if item.type == "reasoning"]
        return reasoning[0], response.output_text, [item for item in response.output if item.type == "function_call"]

    return ask


def messages(policy: Streaming, *texts: str) -> Callable[[Endpoint], Any]:
    def ask(model: Endpoint) -> Any:
        take = until(policy, *texts)
        with (
            anthropic.Anthropic(base_url=model.anthropic_base_url, api_key=model.api_key, max_retries=0) as client,
            client.messages.stream(
                model="m",
                max_tokens=2000,
                thinking={"type": "enabled", "budget_tokens": 1024},
                messages=[{"role": "user", "content": "Hi"}],
                tools=[{"name": "look", "input_schema": {"type": "object"}}],
            ) as stream,
        ):
            for event in stream:
                if event.type in ("thinking", "text"):
                    take(getattr(event, event.type))
            found: Any = stream.get_final_message()
        texts_ = {
            kind: "".join(getattr(b, kind) for b in found.content if b.type == kind) for kind in ("thinking", "text")
        }
        return texts_["thinking"], texts_["text"], [b for b in found.content if b.type == "tool_use"]

    return ask


PROTOCOLS = {"chat": chat, "responses": responses, "anthropic": messages}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_reasoning_and_content_are_sent_while_they_are_sampled(name: str) -> None:
    policy = Streaming(REPLY, "So be", "One two")
    (reasoning, content, calls), _ = played(policy, PROTOCOLS[name](policy, "So be", "One two"))
    assert (reasoning, content, calls) == (REPLY.reasoning, REPLY.content, [])


@pytest.mark.parametrize("name", PROTOCOLS)
def test_calls_follow_what_was_streamed(name: str) -> None:
    policy = Streaming(CALLING, "So be")
    (reasoning, content, calls), _ = played(policy, PROTOCOLS[name](policy, "So be"))
    assert (reasoning, content, len(calls)) == (REPLY.reasoning, "", 1)
    [call] = calls
    if name == "anthropic":
        assert (call.name, call.input) == ("look", {"at": "x"})
    else:
        called = call.function if name == "chat" else call
        assert (called.name, called.arguments) == ("look", '{"at":"x"}')


@pytest.mark.parametrize("name", PROTOCOLS)
def test_an_error_after_the_stream_began_is_its_last_event(name: str) -> None:
    policy = Streaming(REPLY, "So be", fails=True)
    errors: list[Exception] = []

    def ask(model: Endpoint) -> None:
        try:
            PROTOCOLS[name](policy, "So be")(model)
        except (openai.APIError, anthropic.APIError) as error:
            errors.append(error)

    with pytest.raises(ValueError, match="the server is down"):
        played(policy, ask)
    wait = threading.Event()
    for _ in range(100):
        if errors:
            break
        wait.wait(0.1)
    [error] = errors
    assert "the policy failed" in str(error)


def test_the_record_is_the_same_as_without_streaming() -> None:
    streaming, plain = Streaming(CALLING), Streaming(CALLING)
    plain.streams = False
    (got, one), (expected, other) = (played(policy, chat(policy)) for policy in (streaming, plain))
    assert streaming.was_streamed
    assert not plain.was_streamed
    assert got == expected  # the ids, too
    [sample], [same] = one.samples(), other.samples()
    assert np.array_equal(sample.tokens, same.tokens)
    assert np.array_equal(sample.mask, same.mask)


def test_a_reply_that_is_not_streamed_to_the_program_is_not_reported() -> None:
    policy = Streaming(REPLY)

    def ask(model: Endpoint) -> Any:
        with openai.OpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client:
            return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])

    played(policy, ask)
    assert not policy.was_streamed


def test_content_is_held_back_where_it_may_be_a_stop_string() -> None:
    policy = Streaming(REPLY)
    given: list[Any] = []

    def ask(model: Endpoint) -> Any:
        with openai.OpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client:
            created = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Hi"}], stream=True, stop=["two three"]
            )
            given.extend(chunk.choices[0].delta.content or "" for chunk in created)

    played(policy, ask)
    assert "".join(given) == "One "


def test_a_renderer_that_reads_only_whole_replies_streams_them_at_the_end() -> None:
    tokens = envsdk.get_renderer("harmony", real_models.gpt_oss_tokenizer()).reply(REPLY)

    class Whole(Streaming):
        def __init__(self) -> None:
            self.tokens, self.halts = tokens.tolist(), []

    class Program(ProgramEnv):
        def run(self, model: Endpoint) -> float:
            return float(chat(Whole())(model) == (REPLY.reasoning, REPLY.content, []))

    with contextlib.closing(Program(renderer="harmony", tokenizer=real_models.gpt_oss_tokenizer())) as env:
        assert rollout(env, Whole(), seed=0).reward == 1.0
