"""Programs that hold several conversations at the same time, with every kind of policy: all are sampled together."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from model_servers import ModelServer
from parallel_conversations import TOKENIZER, Conversations, check, converse
from scripted_sessions import RunningGateway

import envsdk
from envsdk import Action, Message, Trajectory, arollout
from envsdk.gateway._outside import PlayedSessions
from envsdk.policies import VLLM, OpenAIChat, ReplyPolicy, SGLang, StopAfterCall

OPTIONS: dict[str, Any] = {"renderer": "qwen3", "tokenizer": "embedded"}
POLICIES = pytest.mark.parametrize("kind", ["vllm", "vllm, stopped", "sglang", "openai", "function"])
WIDTHS = pytest.mark.parametrize("width", [3, pytest.param(50, marks=pytest.mark.full)])


class Together:
    """A function that replies with the prompt's system message, once enough replies are requested."""

    tokenizer = "any"

    def __init__(self, width: int) -> None:
        self.width = width
        self.calls = self.active = self.most_active = 0

    async def __call__(self, prompt: Any, **request: Any) -> Action:
        self.calls, self.active = self.calls + 1, self.active + 1
        self.most_active = max(self.most_active, self.active)
        while self.most_active < self.width:
            await asyncio.sleep(0.005)
        self.active -= 1
        return self.reply(prompt, **request)

    def reply(self, prompt: Any, **_: Any) -> Action:
        message = Message(role="assistant", content=_agent_in(TOKENIZER.decode(prompt)))
        tokens = envsdk.get_renderer("qwen3", "embedded").reply(message)
        return Action(tokens, np.full(len(tokens), -0.5))


def _agent_in(text: str) -> str:
    return text[text.index("You are agent") :].partition(".")[0]


@contextlib.contextmanager
def policy_of(kind: str, width: int) -> Iterator[Any]:
    """A policy that replies to no request until `width` are in flight, and that was called once for each reply."""
    if kind == "function":
        policy = Together(width)
        yield policy
        assert policy.calls == 2 * width
        return
    with ModelServer(kind.partition(",")[0]) as server:
        server.together = width
        server.chat = lambda body: {"role": "assistant", "content": _agent_in(body["messages"][0]["content"])}
        yield {
            "vllm": lambda: VLLM(server.url),
            "vllm, stopped": lambda: StopAfterCall(VLLM(server.url)),
            "sglang": lambda: SGLang(server.url),
            "openai": lambda: OpenAIChat(f"{server.url}/v1", "toy", api_key="none"),
        }[kind]()
        paths = ("/inference/v1/generate", "/generate", "/v1/chat/completions")
        assert sum(len(server.bodies(path)) for path in paths) == 2 * width


def check_heard(kind: str, heard: list[list[Any]]) -> None:
    """Check that a policy that repeats its system message got that of the conversation."""
    if kind in ("openai", "function"):
        assert [[m.content for m in replies] for replies in heard] == [
            [f"You are agent {i}"] * 2 for i in range(len(heard))
        ]


async def _played(env: Conversations, policy: Any) -> Trajectory:
    try:
        return await arollout(env, policy, seed=0)
    finally:
        if hasattr(policy, "aclose"):
            await policy.aclose()


@pytest.mark.matrix(every=2)
@POLICIES
@WIDTHS
def test_the_conversations_of_an_environment_are_sampled_together(kind: str, width: int):
    with policy_of(kind, width) as policy, contextlib.closing(Conversations(width, **OPTIONS)) as env:
        trajectory = asyncio.run(_played(env, policy))
    check(trajectory, width)
    check_heard(kind, env.heard)


def test_a_function_of_the_environment_reads_the_conversation_whose_reply_is_requested():
    with contextlib.closing(Conversations(3, **OPTIONS)) as env:
        policy = Together(3)
        policy.reply = ReplyPolicy(env, lambda env: _agent_in(env.messages()[0].content))
        trajectory = asyncio.run(_played(env, policy))
    check(trajectory, 3)
    check_heard("function", env.heard)


@pytest.mark.matrix(every=2)
@POLICIES
@WIDTHS
def test_the_conversations_of_a_session_are_sampled_together(kind: str, width: int):
    ended: list[Trajectory] = []
    with (
        policy_of(kind, width) as policy,
        RunningGateway(PlayedSessions(policy, OPTIONS, on_trajectory=ended.append)) as url,
    ):
        session = httpx.post(f"{url}/sessions", json={}).json()
        heard = asyncio.run(converse(session["openai_base_url"], session["key"], width))
        httpx.post(f"{url}/sessions/{session['id']}/close", json={}, timeout=600)
    check(ended[0], width)
    check_heard(kind, heard)
