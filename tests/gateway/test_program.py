"""Programs as environments: they ask over HTTP, and an episode answers."""

import asyncio
import contextlib
import json
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import anthropic
import gymnasium
import httpx
import numpy as np
import openai
import pytest
import soundness
from model_servers import Fault, ModelServer
from protocol_bodies import ROUTES, until

import envsdk
from envsdk import Action, Limits, Message, ToolCall, Trajectory, Turn, arollout, rollout
from envsdk.errors import ConfigError, EpisodeError, PolicyUnavailable
from envsdk.gateway import Endpoint, ProgramEnv, ProgramResult
from envsdk.gateway._program import Outcome
from envsdk.history import History, Keep
from envsdk.policies import VLLM, OpenAIChat, SGLang
from envsdk.rollouts import Rollouts
from envsdk.testing import _environments as environments
from envsdk.testing import check_env

Messages = list[dict[str, Any]]


def saying(*contents: str, calls: Sequence[Any] = ()) -> Any:
    """A policy that says these texts, the last one again and again."""
    left = list(contents)
    renderer = envsdk.get_renderer("qwen3", "embedded")

    def policy(prompt: Any, **_: Any) -> Action:
        content = left.pop(0) if len(left) > 1 else left[0]
        tokens = renderer.reply(Message(role="assistant", content=content, reasoning="Hm.", tool_calls=calls))
        return Action(tokens, np.linspace(-1, -0.5, len(tokens)))

    policy.tokenizer = "any"  # type: ignore[attr-defined]
    return policy


@contextlib.contextmanager
def asking(model: Endpoint) -> Iterator[Callable[..., str]]:
    """A function that sends messages and returns the reply's text."""
    with openai.OpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client:

        def ask(*said: str, system: str | None = None, **options: Any) -> str:
            messages = [] if system is None else [{"role": "system", "content": system}]
            messages += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
            return client.chat.completions.create(model="m", messages=messages, **options).choices[0].message.content

        yield ask


def env_of(program: Callable[[Callable[..., str]], Outcome], **options: Any) -> ProgramEnv:
    class Program(ProgramEnv):
        trainable_roles = options.pop("trainable_roles", None)
        limit_grace_s = 1.0

        def run(self, model: Endpoint) -> Outcome:
            with asking(model) as ask:
                return program(ask)

    return Program(**options)


def played(program: Callable[[Callable[..., str]], Outcome], *says: str, **options: Any) -> Trajectory:
    with contextlib.closing(env_of(program, **options)) as env:
        trajectory = rollout(env, saying(*(says or ("one", "two", "three"))), seed=0)
    if env.trainable_roles is None:
        soundness.check(trajectory)
    return trajectory


class InFlight:
    """A policy that takes its time, and knows how many replies it sampled at the same time."""

    tokenizer = "any"

    def __init__(self, seconds: float = 0.2, fails_at: int = -1) -> None:
        self.renderer = envsdk.get_renderer("qwen3", "embedded")
        self.seconds, self.fails_at = seconds, fails_at
        self.now = self.most = self.calls = 0

    async def __call__(self, prompt: Any, **request: Any) -> Action:
        self.calls, self.now = self.calls + 1, self.now + 1
        number = self.calls
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.now -= 1
        if number == self.fails_at:
            raise PolicyUnavailable("no server")
        text = self.renderer.tokenizer.decode(prompt)
        tokens = self.renderer.reply(
            Message(role="assistant", content=f"to {text.count('<|im_start|>user')}: {number}")
        )
        return Action(tokens, np.linspace(-1, -0.5, len(tokens)))


class Delegates(ProgramEnv):
    """Five sub-agents at the same time, of two requests each, then a last request of the main one."""

    def __init__(self, width: int = 5, **options: Any) -> None:
        super().__init__(**options)
        self.width = width

    async def run(self, model: Endpoint) -> float:
        async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client:

            async def ask(messages: Messages) -> Messages:
                reply = await client.chat.completions.create(model="m", messages=messages)
                return [*messages, {"role": "assistant", "content": reply.choices[0].message.content}]

            async def sub_agent(number: int) -> str:
                system = {"role": "system", "content": f"You are sub-agent number {number} of all of them."}
                said = await ask([system, {"role": "user", "content": f"Look for {number} in the long list."}])
                said = await ask([*said, {"role": "user", "content": f"And now for {number} again, please."}])
                return str(said[-1]["content"])

            main = await ask([{"role": "user", "content": "What is to be done?"}])
            found = await asyncio.gather(*(sub_agent(number) for number in range(self.width)))
            await ask([*main, {"role": "user", "content": " ".join(found)}])
        return 1.0


def test_requests_that_wait_for_each_other_s_replies_are_sampled_at_the_same_time():
    policy = InFlight()
    with contextlib.closing(Delegates()) as env:
        trajectory = rollout(env, policy, seed=0)
    soundness.check(trajectory)
    assert policy.most == 5
    assert policy.calls == len(trajectory.steps) == 12  # no reply was sampled twice
    assert len(trajectory.contexts) == 6 and not [b for b in trajectory.breaks if b.kind == "rewrite"]
    assert sorted(len(sample.step_rewards) for sample in trajectory.samples()) == [2] * 6


def test_a_reply_that_fails_while_others_are_sampled_ends_the_episode():
    policy = InFlight(0.05, fails_at=4)
    (trajectory,) = Rollouts(Delegates, policy, seeds=[0], group_size=1, max_retries=0).run()
    assert (trajectory.status, trajectory.error_kind) == ("error", "infrastructure")
    assert policy.now == 0


def test_requests_that_were_to_be_answered_next_are_refused_when_the_episode_fails():
    class Threads(ProgramEnv):
        """A plain function: nothing but the answers to its requests can end it."""

        def run(self, model: Endpoint) -> float:
            def refusal(ask: Callable[..., str], number: int) -> int:
                try:
                    ask(f"question {number}", system=f"You answer question {number}.", timeout=600)
                except openai.APIStatusError as error:
                    return error.status_code
                except openai.APITimeoutError:
                    return -1
                return 200

            with asking(model) as ask, ThreadPoolExecutor() as pool:
                ask("begin")
                statuses.extend(pool.map(refusal, [ask] * 4, range(4)))
            ended.set()
            return 0.0

    ended, statuses = threading.Event(), list[int]()
    policy = InFlight(0.2, fails_at=2)
    (trajectory,) = Rollouts(Threads, policy, seeds=[0], group_size=1, max_retries=0).run()
    assert (trajectory.status, trajectory.error_kind) == ("error", "infrastructure")
    assert ended.wait(600)
    assert policy.most == 4 and statuses == [502] * 4


def test_a_limit_counts_replies_in_the_order_of_the_record():
    policy = InFlight(0.05)
    with contextlib.closing(Delegates(limits={"max_steps": 4})) as env:
        trajectory = rollout(env, policy, seed=0)
    assert (trajectory.stop_reason, len(trajectory.steps)) == ("max_steps", 4)
    assert policy.now == 0
    soundness.check(trajectory)


def test_equal_requests_at_the_same_time_are_answered_one_after_the_other():
    async def program(client: Any) -> None:
        ask = {"model": "m", "messages": [{"role": "user", "content": "the same"}]}
        await asyncio.gather(*(client.chat.completions.create(**ask) for _ in range(3)))

    class Same(ProgramEnv):
        async def run(self, model: Endpoint) -> float:
            async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client:
                await program(client)
            return 1.0

    policy = InFlight(0.05)
    with contextlib.closing(Same()) as env:
        trajectory = rollout(env, policy, seed=0)
    assert (policy.most, len(trajectory.steps)) == (1, 3)


# What a program returns.


def test_a_linear_program_is_one_sample():
    def program(ask: Any) -> float:
        first = ask("a", system="S")
        second = ask("a", first, "b", system="S")
        assert (first, second) == ("one", "two")
        ask("a", first, "b", second, "c", system="S")
        return 0.5

    trajectory = played(program)
    assert (trajectory.status, trajectory.reward, len(trajectory.steps)) == ("terminated", 0.5, 3)
    assert not list(trajectory.breaks)
    (sample,) = trajectory.samples()
    assert int(sample.mask.sum()) == sum(step.stop - step.action_start for step in trajectory.steps)


@pytest.mark.filterwarnings("ignore:Program.run.. .* returned None, so the episode is not scored")
@pytest.mark.parametrize(
    ("outcome", "reward", "rewards", "status"),
    [
        ({"a": 1.0, "b": -0.25}, 0.75, {"a": 1.0, "b": -0.25}, "terminated"),
        (2, 2.0, {"reward": 2.0}, "terminated"),
        (None, 0.0, {}, "terminated"),
        (Turn(reward=1.0), 1.0, {"reward": 1.0}, "terminated"),
        (Turn(reward=1.0, truncated=True), 1.0, {"reward": 1.0}, "truncated"),
    ],
)
def test_what_it_returns_is_the_reward(outcome: Any, reward: float, rewards: dict[str, float], status: str):
    trajectory = played(lambda ask: ask("a") and outcome)
    assert (trajectory.reward, trajectory.status) == (reward, status)
    assert {name: value for step in trajectory.steps for name, value in step.rewards.items() if value} == rewards


def test_what_it_raises_ends_the_episode_as_an_error():
    def program(ask: Any) -> float:
        ask("a")
        raise LookupError("broken tool")

    with contextlib.closing(env_of(program)) as env, pytest.raises(LookupError, match="broken tool"):
        rollout(env, saying("x"), seed=0)
    (ended,) = Rollouts(lambda: env_of(program), saying("x"), seeds=[0], group_size=1).run()
    assert (ended.status, ended.error_kind, len(ended.steps)) == ("error", "environment", 1)


def test_a_program_that_asks_nothing_is_an_error():
    with contextlib.closing(env_of(lambda ask: 1.0)) as env, pytest.raises(EpisodeError, match="without a request"):
        env.reset(seed=0)


def test_a_program_whose_requests_are_all_refused_is_an_error_that_says_why():
    def program(ask: Any) -> float:
        with pytest.raises(openai.BadRequestError):
            ask("a", response_format={"type": "regex"})  # refused by the server
        with pytest.raises(openai.BadRequestError):
            ask("a", system="S", tools=[{"type": "function", "function": {"name": "f"}}])  # refused by the environment
        return 1.0

    why = r"2 requests were refused, the last one because: .*tools"
    with contextlib.closing(env_of(program, renderer="chatml")) as env, pytest.raises(EpisodeError, match=why):
        rollout(env, saying("x"), seed=0)


# What requests mean.


def test_reasoning_in_the_content_of_an_assistant_s_message_is_reasoning():
    """It is the program's own example, no reply; the next request repeats it, and continues the context."""

    def program(ask: Callable[..., str]) -> float:
        talk = ["1?", "<think>One.</think>1", "2?"]
        ask(*talk, ask(*talk), "3?")
        return 1.0

    trajectory = played(program)
    tokenizer, (_, prompt, _) = envsdk.load_tokenizer("embedded"), next(trajectory.prompts())[:3]
    assert "<think>\nOne.\n</think>\n\n1<|im_end|>" in tokenizer.decode(prompt)
    assert tokenizer.token_id("<think>") in prompt
    assert len(trajectory.steps) == 2 and not trajectory.breaks


TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("look", "find")
]


@pytest.mark.parametrize(
    ("change", "written"),
    [
        ({"content": "I will not look."}, "I will not look."),
        ({"function": {"name": "look", "arguments": '{"place": "Bern"}'}}, "Bern"),
        ({"function": {"name": "find", "arguments": '{"place": "Zug"}'}}, "find"),
    ],
)
def test_a_reply_that_the_program_changes_is_a_declared_edit_and_the_model_sees_the_change(change, written):
    class Changes(ProgramEnv):
        def run(self, model: Endpoint) -> float:
            with openai.OpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client:
                said: list[Any] = [{"role": "user", "content": "Where is it?"}]
                ask = {"model": "m", "tools": TOOLS}
                reply = client.chat.completions.create(messages=said, **ask).choices[0].message
                sent = reply.model_dump(exclude_none=True)
                sent["content"] = change.get("content", sent["content"])
                sent["tool_calls"][0]["function"] = change.get("function", sent["tool_calls"][0]["function"])
                said += [sent, {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "here"}]
                last = client.chat.completions.create(messages=said, **ask).choices[0].message
                client.chat.completions.create(messages=[*said, last, {"role": "user", "content": "Go on"}], **ask)
            return 1.0

    family = envsdk.get_renderer("qwen3", "embedded")
    calling = Message(
        role="assistant", content="I look.", tool_calls=(envsdk.ToolCall(name="look", arguments={"place": "Zug"}),)
    )
    replies = [family.reply(message) for message in (calling, *[Message(role="assistant", content="It is here.")] * 2)]

    def policy(prompt: Any, **_: Any) -> Action:
        prompts.append(family.tokenizer.decode(prompt))
        return Action(replies[len(prompts) - 1], np.full(len(replies[len(prompts) - 1]), -1.0))

    prompts: list[str] = []
    policy.tokenizer = "any"  # type: ignore[attr-defined]
    with contextlib.closing(Changes(renderer="qwen3", tokenizer="embedded", history="keep")) as env:
        trajectory = rollout(env, policy, seed=0)
    soundness.check(trajectory)
    (break_,) = [one for one in trajectory.breaks if one.reason == "edit"]
    assert "(assistant) differs" in break_.detail
    old, new = prompts[0], prompts[1].removeprefix(prompts[0])
    assert written not in old.partition("Where is it?")[2] and written in new and prompts[2].startswith(prompts[1])


def test_sub_agents_and_side_questions_are_contexts():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]

    def program(ask: Any) -> float:
        first = ask("a long task to work on", system="S", tools=tools)
        ask("search the library", system="You search.")
        ask("a long task to work on", first, "Write a title", system="S")
        ask("a long task to work on", first, "go on", system="S", tools=tools)
        return 1.0

    trajectory = played(program)
    roles = {name: (log.role, log.parent) for name, log in trajectory.contexts.items()}
    assert roles == {"main": ("main", None), "main/side-1": ("side", None), "main/side-2": ("side", "main")}
    assert [step.context for step in trajectory.steps] == ["main", "main/side-1", "main/side-2", "main"]
    assert trajectory.steps[2].base == "main"
    assert {sample.context for sample in trajectory.samples()} == set(roles)
    only = played(program, trainable_roles=frozenset({"main"}))
    assert {sample.context for sample in only.samples()} == {"main"}


def test_headers_name_contexts_and_roles():
    def program(ask: Any) -> float:
        ask("x", extra_headers={"x-envsdk-role": "planner"})
        ask("x", extra_headers={"x-envsdk-role": "coder", "x-envsdk-context": "mine"})
        return 1.0

    trajectory = played(program)
    assert {name: log.role for name, log in trajectory.contexts.items()} == {"main": "planner", "mine": "coder"}


def test_several_replies_to_one_request_are_contexts_that_share_it():
    class Two(ProgramEnv):
        def run(self, model: Endpoint) -> float:
            with openai.OpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client:
                ask = client.chat.completions.create
                choices = ask(model="m", n=3, messages=[{"role": "user", "content": "a"}]).choices
                assert [choice.message.content for choice in choices] == ["one", "two", "three"]
                chosen = choices[1].message.content
                messages = [("user", "a"), ("assistant", chosen), ("user", "b")]
                ask(model="m", messages=[{"role": role, "content": content} for role, content in messages])
            return 1.0

    with contextlib.closing(Two()) as env:
        trajectory = rollout(env, saying("one", "two", "three", "four"), seed=0)
    soundness.check(trajectory)
    assert [step.context for step in trajectory.steps] == ["main", "main/main-1", "main/main-2", "main/main-1"]
    prompts = [prompt.tolist() for _, prompt, _ in trajectory.prompts()]
    assert prompts[0] == prompts[1] == prompts[2] == prompts[3][: len(prompts[0])]


def test_a_history_policy_decides_what_the_model_sees():
    def program(ask: Any) -> float:
        said = ["a"]
        for _ in range(3):
            said += [ask(*said), "go on"]
        return 1.0

    trajectory = played(program, history="strip")
    assert [break_.reason for break_ in trajectory.breaks] == ["thinking_stripped"] * 2


# Limits and ends.


def test_a_limit_is_an_error_of_the_protocol_and_what_it_returns_then_counts():
    seen: list[openai.BadRequestError] = []

    def program(ask: Any) -> float:
        said = ["a"]
        try:
            while True:
                said += [ask(*said), "go on"]
        except openai.BadRequestError as error:
            seen.append(error)
            return 0.25

    trajectory = played(program, limits=Limits(max_steps=3))
    assert (trajectory.stop_reason, trajectory.status, trajectory.reward) == ("max_steps", "truncated", 0.25)
    assert seen[0].code == "max_steps"


def test_a_program_that_ends_when_the_context_is_full_is_truncated():
    def program(ask: Any) -> float:
        first = ask("a")
        ask("a", first, "b " * 300)
        return 1.0

    trajectory = played(program, limits=Limits(max_context_tokens=200))
    assert (trajectory.stop_reason, trajectory.reward) == ("max_context_tokens", 0.0)
    assert len(trajectory.contexts["main"].messages) == 2  # what was refused is not recorded
    caught = played(lambda ask: refused(ask, "a", ask("a"), "b " * 300) and 0.5, limits=Limits(max_context_tokens=200))
    assert (caught.stop_reason, caught.status, caught.reward) == ("max_context_tokens", "truncated", 0.5)
    first = played(lambda ask: ask("a " * 300) and 1.0, limits=Limits(max_context_tokens=200))
    assert (first.stop_reason, first.status, len(first.steps)) == ("max_context_tokens", "truncated", 0)


def refused(ask: Any, *said: str, **options: Any) -> openai.BadRequestError:
    """The error of a request that is refused because the context is full."""
    with pytest.raises(openai.BadRequestError) as caught:
        ask(*said, **options)
    assert caught.value.code == "context_length_exceeded"
    return caught.value


def test_a_program_that_compacts_when_the_context_is_full_goes_on_in_the_same_episode():
    long = "Please look into this: " + "all of it. " * 20

    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]

    def program(ask: Any) -> float:
        refused(ask, long * 9, tools=tools)  # the first request may be too long, too
        first = ask(long, tools=tools)
        second = ask(long, first, long, tools=tools)
        error = refused(ask, long, first, long, second, long * 3, tools=tools)
        assert "maximum context length is 500 tokens" in str(error)
        summary = ask(long, first, long, second, "Sum up.")
        again = ask(f"So far: {summary}", tools=tools)
        ask(f"So far: {summary}", again, "Go on.", tools=tools)
        return 1.0

    says = ("one is done", "two is done", "The first and the second thing are done.", "three is done", "four")
    trajectory = played(program, *says, limits=Limits(max_context_tokens=500))
    assert (trajectory.status, trajectory.reward, trajectory.stop_reason) == ("terminated", 1.0, "terminated")
    assert [step.context for step in trajectory.steps] == ["main", "main", "main/side-1", "main", "main"]
    assert [(break_.reason, break_.detail[:9]) for break_ in trajectory.breaks if break_.context == "main"] == [
        ("edit", "compacted")
    ]
    assert len(trajectory.samples()) == 3


@pytest.mark.parametrize("n", [1, 2])
def test_a_reply_that_the_context_cut_does_not_end_the_episode_if_the_program_compacts(n: int):
    def cut(prompt: Any, max_tokens: int | None = None, **_: Any) -> Action:
        action = saying("word " * 100)(prompt)
        is_cut = max_tokens is not None and len(action.tokens) > max_tokens
        return Action(action.tokens[:max_tokens], None, finish_reason="length" if is_cut else "stop")

    cut.tokenizer = "any"  # type: ignore[attr-defined]

    def program(ask: Any) -> float:
        long = "Tell me more about it. " * 5
        first = ask(long, n=n)
        refused(ask, long, first, "Go on.")
        ask("Tell me less.", max_tokens=5)
        return 1.0

    with contextlib.closing(env_of(program, limits=Limits(max_context_tokens=100))) as env:
        trajectory = rollout(env, cut, seed=0)
    soundness.check(trajectory)
    assert (trajectory.status, trajectory.reward, len(trajectory.steps)) == ("terminated", 1.0, n + 1)
    with contextlib.closing(env_of(lambda ask: ask("Hello. " * 5) and 0.5, limits={"max_context_tokens": 60})) as env:
        ended = rollout(env, cut, seed=0)
    assert (ended.stop_reason, ended.status, ended.reward) == ("max_context_tokens", "truncated", 0.5)


def test_only_what_the_history_policy_cannot_fit_is_refused():
    def program(ask: Any) -> float:
        said = ["a"]
        for _ in range(8):
            said += [ask(*said), "go on with it"]
        refused(ask, *said[:-1], "b " * 300)
        ask(*said)
        return 1.0

    trajectory = played(program, "word " * 20, history="budget:max_tokens=200")
    assert (trajectory.status, len(trajectory.steps)) == ("terminated", 9)
    assert {break_.reason for break_ in trajectory.breaks} == {"budget"}
    ended = played(lambda ask: ask("a") and refused(ask, "b " * 300) and 1.0, history="budget:max_tokens=200")
    assert (ended.stop_reason, ended.reward) == ("context_full", 1.0)


def test_other_limits_count_although_the_context_was_full():
    def program(ask: Any) -> float:
        first = ask("a")
        refused(ask, "a", first, "b " * 300)
        second = ask("a", first, "c")
        with pytest.raises(openai.BadRequestError) as caught:
            ask("a", first, "c", second, "d")
        assert caught.value.code == "max_steps"
        return 1.0

    trajectory = played(program, limits=Limits(max_context_tokens=200, max_steps=2))
    assert (trajectory.stop_reason, trajectory.reward, len(trajectory.steps)) == ("max_steps", 1.0, 2)


def test_a_program_that_ignores_that_the_context_is_full_is_ended():
    def program(ask: Any) -> float:
        first = ask("a")
        errors = [str(refused(ask, "a", first, "b " * 300)) for _ in range(33)]
        assert ["the episode ends here" in error for error in errors] == [False] * 32 + [True]
        refused(ask, "a", first, "a request that would fit")
        return 1.0

    trajectory = played(program, limits=Limits(max_context_tokens=200))
    assert (trajectory.stop_reason, trajectory.reward, len(trajectory.steps)) == ("max_context_tokens", 1.0, 1)


@pytest.mark.parametrize(("sampling", "told"), [(None, {"temperature": 0.25}), ({}, {}), ({"top_k": 3}, {"top_k": 3})])
def test_sampling_is_the_programs_unless_the_environment_sets_it(sampling: Any, told: dict[str, Any]):
    seen: list[Any] = []

    def noting(prompt: Any, **request: Any) -> Action:
        seen.append(request["sampling"])
        return saying("x")(prompt)

    noting.tokenizer = "any"  # type: ignore[attr-defined]
    env = env_of(lambda ask: ask("a", temperature=0.25) and 1.0)
    type(env).sampling = sampling
    with contextlib.closing(env):
        rollout(env, noting, seed=0)
    assert seen == [told]


NEUTRAL = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1.0,
    "min_p": 0,
    "min_tokens": 0,
    "top_k": -1,
    "top_p": 1,
    "temperature": 1,
    "logit_bias": {},
    "ignore_eos": False,
}
NOT_HONORED = [
    *({"min_p": 0.1}, {"repetition_penalty": 1.1}, {"frequency_penalty": 0.5}, {"presence_penalty": 1}),
    *({"logit_bias": {"5": 1}}, {"min_tokens": 3}, {"stop_token_ids": [5]}, {"ignore_eos": True}, {"regex": "a+"}),
]


class AsksFor(ProgramEnv):
    """Asks with each of the given parameters, and notes the status and the field of each error; then asks without."""

    def __init__(self, protocol: str, wanted: Sequence[dict[str, Any]], **options: Any) -> None:
        super().__init__(**options)
        self.protocol, self.wanted, self.answers = protocol, wanted, list[tuple[int, str]]()

    def run(self, model: Endpoint) -> float:
        with httpx.Client(base_url=model.anthropic_base_url, timeout=600) as client:
            for sampling in (*self.wanted, {}):
                asked = {"input" if self.protocol == "responses" else "messages": [{"role": "user", "content": "a"}]}
                body = {"model": "m", "max_tokens": 20, **asked, **sampling}
                response = client.post(f"/v1{ROUTES[self.protocol]}", json=body, headers={"x-api-key": model.api_key})
                error = response.json().get("error") or {}
                self.answers.append((response.status_code, str(error.get("message", "")).partition(":")[0]))
        return 1.0


def played_by_server(kind: str, env: ProgramEnv, *faults: Fault) -> tuple[Trajectory, ModelServer]:
    async def play(url: str) -> Trajectory:
        if kind == "OpenAIChat":
            policy: Any = OpenAIChat(f"{url}/v1", "toy", api_key="any")
        else:
            policy = {"VLLM": VLLM, "SGLang": SGLang}[kind](url)
        try:
            return await arollout(env, policy, seed=0)
        finally:
            await policy.aclose()

    kinds = {"VLLM": "vllm", "SGLang": "sglang", "OpenAIChat": "openai"}
    with contextlib.closing(env), ModelServer(kinds[kind]) as server:
        server.faults.extend(faults)
        env.server = server  # type: ignore[attr-defined]
        return asyncio.run(play(server.url)), server


@pytest.mark.matrix
@pytest.mark.parametrize("protocol", ROUTES)
@pytest.mark.parametrize("kind", ["VLLM", "SGLang", "OpenAIChat"])
def test_sampling_parameters_that_change_nothing_are_ignored(kind: str, protocol: str):
    env = AsksFor(protocol, [NEUTRAL], tokenizer="embedded")
    trajectory, _ = played_by_server(kind, env)
    assert trajectory.error is None
    assert [status for status, _ in env.answers] == [200, 200]


@pytest.mark.parametrize(
    ("kind", "protocol", "sampling"),
    [
        *(("VLLM", protocol, [{"temperature": 0.005}, *NOT_HONORED]) for protocol in ROUTES),
        ("SGLang", "anthropic", [{"top_k": 5}, {"top_p": 0.9}]),
        ("OpenAIChat", "chat", [{"min_p": 0.1}, {"top_k": 5}]),
    ],
)
def test_a_sampling_parameter_that_the_policy_cannot_honor_is_refused_by_name_and_the_session_goes_on(
    kind: str, protocol: str, sampling: list[dict[str, Any]]
):
    env = AsksFor(protocol, sampling, tokenizer="embedded")
    trajectory, _ = played_by_server(kind, env)
    assert (trajectory.error, len(trajectory.steps)) == (None, 1)
    assert env.answers == [*((400, next(iter(one))) for one in sampling), (200, "")]


def test_a_seed_that_the_policy_cannot_honor_is_left_out_and_recorded():
    env = AsksFor("chat", [{"seed": 3, "temperature": 0.5, "stop": "", "max_tokens": -1}], tokenizer="embedded")
    trajectory, _ = played_by_server("VLLM", env)
    assert (trajectory.error, [status for status, _ in env.answers]) == (None, [200, 200])
    first, second = trajectory.steps
    assert first.parts[-1].extra["request"] == {"sampling": {"seed": 3, "temperature": 0.5}}
    assert first.parts[-1].temperature == 0.5 and "request" not in second.parts[-1].extra


def test_each_role_has_the_sampling_parameters_of_its_policy():
    class Refuses:
        tokenizer = "any"

        def refuses_sampling(self, name: str, value: Any) -> str | None:
            return f"{value} is too much"

        def __call__(self, prompt: Any, **request: Any) -> Action:
            return saying("x")(prompt)

    def program(ask: Any) -> float:
        with pytest.raises(openai.BadRequestError, match=r"top_p: 0\.5 is too much"):
            ask("a", top_p=0.5)
        assert ask("a", top_p=0.5, extra_headers={"x-envsdk-role": "helper"}) == "x"
        return 1.0

    with contextlib.closing(env_of(program)) as env:
        trajectory = rollout(env, {"main": Refuses(), "helper": saying("x")}, seed=0)
    assert (trajectory.error, trajectory.reward) == (None, 1.0)


@pytest.mark.full
def test_a_program_that_ignores_a_limit_is_left_alone():
    def program(ask: Any) -> float:
        said = ["a"]
        while True:
            with contextlib.suppress(openai.BadRequestError):
                said += [ask(*said), "go on"]
            time.sleep(0.01)

    trajectory = played(program, limits=Limits(max_steps=1))
    assert (trajectory.stop_reason, trajectory.reward) == ("max_steps", 0.0)


def test_close_ends_an_async_program():
    ended = threading.Event()

    class Waiting(ProgramEnv):
        async def run(self, model: Endpoint) -> float:
            try:
                async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:
                    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
            finally:
                ended.set()
            return 1.0

    env = Waiting()
    env.reset(seed=0)
    env.close()
    assert ended.wait(600)
    env.reset(seed=0)  # a used environment starts again
    env.close()


def test_close_ends_a_plain_program_that_waits_for_its_reply():
    seen: list[Exception] = []

    def program(ask: Any) -> float:
        try:
            ask("a")
        except openai.APIStatusError as error:
            seen.append(error)
            raise
        return 1.0

    env = env_of(program)
    env.reset(seed=0)
    env.close()
    until(lambda: bool(seen))
    assert isinstance(seen[0], openai.BadRequestError)


class Prefills(ProgramEnv):
    """Writes the beginning of two replies, and sends them back whole."""

    def __init__(self, protocol: str, stream: bool) -> None:
        super().__init__(renderer="qwen3", tokenizer="embedded")
        self.protocol, self.stream, self.heard = protocol, stream, list[str]()

    def run(self, model: Endpoint) -> float:
        said: list[Any] = [{"role": "user", "content": "Hi"}]
        settings = {"base_url": model.anthropic_base_url, "api_key": model.api_key}
        with anthropic.Anthropic(**settings) as client, openai.OpenAI(**settings) as other:
            for begun in ("The answer is", "{"):
                said.append({"role": "assistant", "content": begun})
                if self.protocol == "chat":
                    more = {"continue_final_message": True, "add_generation_prompt": False}
                    reply = other.chat.completions.create(model="m", messages=said, stop=["is"], extra_body=more)
                    text = reply.choices[0].message.content or ""
                elif self.stream:
                    with client.messages.stream(model="m", max_tokens=9, messages=said) as streamed:
                        text = streamed.get_final_text()
                else:
                    stops = ["is"]
                    message = client.messages.create(model="m", max_tokens=9, messages=said, stop_sequences=stops)
                    text = cast("anthropic.types.TextBlock", message.content[0]).text
                self.heard.append(text)
                said[-1:] = [{"role": "assistant", "content": begun + text}, {"role": "user", "content": "More"}]
        return 1.0


@pytest.mark.parametrize(("protocol", "stream"), [("anthropic", False), ("anthropic", True), ("chat", False)])
def test_a_reply_continues_the_beginning_that_the_program_wrote(protocol: str, stream: bool):
    encode = envsdk.get_renderer("qwen3", "embedded").tokenizer.encode

    def policy(prompt: Any, **_: Any) -> Action:
        tokens = [*encode(" forty-two"), *envsdk.get_renderer("qwen3", "embedded").stop_token_ids[:1]]
        return Action(tokens, np.full(len(tokens), -0.5))

    policy.tokenizer = "any"  # type: ignore[attr-defined]
    with contextlib.closing(Prefills(protocol, stream)) as env:
        trajectory = rollout(env, policy, seed=0)
    assert (trajectory.error, trajectory.breaks, len(trajectory.samples())) == (None, [], 1)
    assert env.heard == [" forty-two"] * 2
    (sample,) = trajectory.samples()
    assert sum(sample.mask) == 2 * (len(encode(" forty-two")) + 1)
    soundness.check(trajectory)


class OldClient(ProgramEnv):
    """Speaks Chat Completions as of 2023: functions, and no ids of calls."""

    def __init__(self, is_streamed: bool) -> None:
        super().__init__(renderer="qwen3", tokenizer="embedded")
        self.is_streamed = is_streamed

    def run(self, model: Endpoint) -> float:
        said: list[Any] = [{"role": "user", "content": "Add."}]
        functions: Any = [{"name": "add", "parameters": {"type": "object", "properties": {}}}]
        with openai.OpenAI(base_url=model.base_url, api_key=model.api_key) as client:
            for _ in range(3):
                asked: Any = {"model": "m", "messages": said, "functions": functions, "function_call": "auto"}
                if self.is_streamed:
                    choices = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
                    call, finish = next(c.delta.function_call for c in choices if c.delta.function_call), choices[-1]
                else:
                    finish = client.chat.completions.create(**asked).choices[0]
                    call = finish.message.function_call
                assert finish.finish_reason == "function_call" and call is not None
                called = {"name": call.name, "arguments": call.arguments}
                said.append({"role": "assistant", "content": None, "function_call": called})
                said.append({"role": "function", "name": "add", "content": "3"})
        return 1.0

    def null_reply(self) -> Message:
        calls = [{"name": "add", "arguments": {"a": 1}}]
        return Message(role="assistant", content="", reasoning="Hm.", tool_calls=calls)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_old_client_without_ids_of_calls_has_one_context(is_streamed: bool):
    with contextlib.closing(OldClient(is_streamed)) as env:
        trajectory = rollout(env, "null", seed=0)
    assert (trajectory.error, trajectory.reward, trajectory.breaks) == (None, 1.0, [])
    assert (len(trajectory.steps), len(trajectory.samples())) == (3, 1)


class LeavesItsReplies(ProgramEnv):
    """Closes the connection of its first request when that is sampled, and then asks something else, or the same.

    With `reads`, it closes the connection of a streamed reply when it has its beginning.
    """

    def __init__(self, *, stream: bool = False, reads: bool = True, again: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.stream, self.reads, self.again = stream, reads, again
        self.server = cast("ModelServer", None)

    def run(self, model: Endpoint) -> float:
        said: list[Any] = [{"role": "user", "content": "Count."}]
        url = httpx.URL(f"{model.base_url}/chat/completions")
        with httpx.Client(timeout=600) as client:
            if self.stream and self.reads:
                begun = ""
                with client.stream("POST", url, json={"model": "m", "stream": True, "messages": said}) as response:
                    for line in response.iter_lines():
                        delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"] if line else {}
                        begun += delta.get("content") or ""
                        if len(begun) > 20:
                            break
                said += [] if self.again else [{"role": "assistant", "content": begun}]
            else:
                with socket.create_connection((url.host, url.port or 80)) as connection:
                    body = json.dumps({"model": "m", "stream": self.stream, "messages": said})
                    head = f"POST {url.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                    connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
                    until(lambda: not self.server.faults)
            said += [] if self.again else [{"role": "user", "content": "Stop."}]
            reply = client.post(url, json={"model": "m", "messages": said}).json()
            assert reply["choices"][0]["message"]["content"] == "x" or self.server is not None
        return 1.0


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_server_stops_sampling_for_a_client_that_went_away(stream: bool):
    env = LeavesItsReplies(tokenizer="embedded", stream=stream, reads=False)
    trajectory, server = played_by_server("VLLM", env, Fault(how="hang"))
    assert (trajectory.error, trajectory.reward) == (None, 1.0)
    assert len(server.closed_by_client) == 1
    soundness.check(trajectory)


@pytest.mark.parametrize("again", [False, True])
def test_what_a_client_has_of_a_streamed_reply_stays_and_is_no_answer_to_the_same_request(again: bool):
    renderer = envsdk.get_renderer("qwen3", "embedded")
    counted = renderer.reply(Message(role="assistant", content=" ".join(map(str, range(5000))), reasoning=""))
    sampled: list[int] = []

    class Counts:
        tokenizer, streams = "any", True

        async def __call__(self, prompt: Any, *, on_tokens: Any = None, **_: Any) -> Action:
            if sampled:
                return saying("x")(prompt)
            left = 8  # it samples a little more than the client has received
            for token in counted:
                sampled.append(int(token))
                left -= bool(on_tokens([int(token)]))
                if not left:
                    break
                await asyncio.sleep(0.0005)
            return Action(sampled, np.full(len(sampled), -0.5))

    with contextlib.closing(LeavesItsReplies(stream=True, again=again)) as env:
        trajectory = rollout(env, Counts(), seed=0)
    assert (trajectory.error, trajectory.reward, len(trajectory.steps)) == (None, 1.0, 2)
    assert len(sampled) < len(counted)
    log, first = trajectory.contexts["main"], trajectory.steps[0]
    assert log.tokens[first.action_start : first.stop].tolist() == sampled
    ((unseen, end),) = first.masked
    assert end == first.stop and (unseen == first.action_start if again else unseen > first.action_start)
    detail = "the reply 1 was cut, and is asked for again" if again else "message 1 (assistant) was cut"
    assert trajectory.breaks[0].detail == detail
    soundness.check(trajectory)


def failing_with(error: BaseException | None) -> Any:
    """A policy that raises an error; without one, it never replies."""

    async def policy(prompt: Any, **_: Any) -> Action:
        await (asyncio.Event().wait() if error is None else asyncio.sleep(0))
        raise error or AssertionError

    policy.tokenizer = "any"  # type: ignore[attr-defined]
    return policy


def illegal(prompt: Any, **_: Any) -> Action:
    return Action(np.array([10**6], dtype=np.int32), None)


illegal.tokenizer = "any"  # type: ignore[attr-defined]
FAILURES: dict[str, tuple[Any, dict[str, Any], int, str, str]] = {
    "raises": (failing_with(RuntimeError("no GPU, secret detail")), {}, 502, "policy", "no GPU"),
    "not legal": (illegal, {}, 502, "policy", "ActionError"),
    "unavailable": (failing_with(PolicyUnavailable("down: secret")), {}, 502, "infrastructure", "down"),
    "own deadline": (failing_with(TimeoutError("secret")), {}, 504, "infrastructure", "TimeoutError"),
    "deadline": (failing_with(None), {"policy_timeout_s": 0.2}, 504, "infrastructure", "raise policy_timeout_s"),
    "episode's deadline": (failing_with(None), {"episode_timeout_s": 0.4}, 504, "environment", "the episode took"),
}


@pytest.mark.matrix
@pytest.mark.parametrize("package", [openai, anthropic])
@pytest.mark.parametrize(("policy", "options", "status", "kind", "text"), FAILURES.values(), ids=list(FAILURES))
def test_what_fails_while_a_program_waits_is_a_server_error_that_its_client_does_not_retry(
    package: Any, policy: Any, options: dict[str, Any], status: int, kind: str, text: str
):
    seen: list[Any] = []

    class Asking(ProgramEnv):
        def run(self, model: Endpoint) -> float:
            messages: Any = [{"role": "user", "content": "a"}]
            try:  # with the retries that the clients have by default
                if package is openai:
                    with openai.OpenAI(base_url=model.base_url, api_key=model.api_key) as client:
                        client.chat.completions.create(model="m", messages=messages)
                else:
                    with anthropic.Anthropic(base_url=model.anthropic_base_url, api_key=model.api_key) as client:
                        client.messages.create(model="m", max_tokens=9, messages=messages)
            except (openai.APIStatusError, anthropic.APIStatusError) as error:
                seen.append(error)
                raise
            return 1.0

    (ended,) = Rollouts(Asking, policy, seeds=[0], group_size=1, max_retries=0, **options).run()
    assert (ended.status, ended.error_kind) == ("error", kind)
    assert text in (ended.error or "")
    until(lambda: bool(seen))
    assert isinstance(seen[0], package.InternalServerError)
    assert seen[0].status_code == status
    assert "secret" not in str(seen[0])
    named = seen[0].code if package is openai else seen[0].body["error"]["type"]
    names = {502: ("policy_failed", "api_error"), 504: ("deadline_exceeded", "timeout_error")}
    assert named in names[status]


@pytest.mark.parametrize(("error", "status"), [(RuntimeError("no GPU"), 502), (TimeoutError("no reply"), 504)])
def test_what_fails_in_a_single_rollout_is_the_same_server_error(error: Exception, status: int):
    seen: list[openai.APIStatusError] = []

    def program(ask: Any) -> float:
        try:
            ask("a")
        except openai.APIStatusError as refused:
            seen.append(refused)
            raise
        return 1.0

    with contextlib.closing(env_of(program)) as env, pytest.raises(type(error)):
        rollout(env, failing_with(error), seed=0)
    until(lambda: bool(seen))
    assert seen[0].status_code == status


def test_an_environment_that_fails_while_a_program_waits_is_a_plain_server_error():
    class Failing(Keep):
        def view(self, history: History) -> None:
            raise LookupError("broken history policy")

    seen: list[openai.APIStatusError] = []

    def program(ask: Any) -> float:
        try:
            ask("a")
        except openai.APIStatusError as error:
            seen.append(error)
            raise
        return 1.0

    (ended,) = Rollouts(lambda: env_of(program, history=Failing()), saying("x"), seeds=[0], group_size=1).run()
    assert (ended.error_kind, "broken history" in (ended.error or "")) == ("environment", True)
    until(lambda: bool(seen))
    assert (seen[0].status_code, seen[0].code) == (500, "episode_failed")


def test_a_program_whose_tools_take_too_long_is_named_with_the_option_to_raise():
    def program(ask: Any) -> float:
        ask("a")
        time.sleep(1)
        return 1.0

    made = Rollouts(lambda: env_of(program), saying("x"), seeds=[0], group_size=1, method_timeout_s=0.3)
    (ended,) = made.run()
    assert (ended.error_kind, len(ended.steps)) == ("environment", 1)
    text = "waiting for a request of the program of Program took longer than 0.3 s; raise method_timeout_s"
    assert text in (ended.error or "")


# Other protocols.


# Commands.


class Command(ProgramEnv):
    def __init__(self, script: str, **options: Any) -> None:
        super().__init__(**options)
        self.script = script
        self.command = [sys.executable, "program.py"]
        self.results: list[ProgramResult] = []

    def prepare(self, folder: Path, endpoint: Endpoint) -> None:
        (folder / "program.py").write_text(self.script)

    def score(self, result: ProgramResult) -> float:
        self.results.append(result)
        return float((result.folder / "answer").exists())


ASKS = """
import json, os, urllib.request
def ask(*messages):
    body = json.dumps({"model": "m", "messages": messages}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
"""


def test_a_command_is_a_program():
    script = (
        ASKS
        + """
print(ask({"role": "user", "content": "a"}), os.environ["ENVSDK_SEED"], json.loads(os.environ["ENVSDK_TASK"]))
open("answer", "w").close()
raise SystemExit(3)
"""
    )
    with contextlib.closing(Command(script, tasks=[{"question": "é"}])) as env:
        trajectory = rollout(env, saying("hello"), seed=5)
    (result,) = env.results
    assert (result.returncode, result.stdout) == (3, "hello 5 {'question': 'é'}\n")
    assert (trajectory.reward, trajectory.status) == (1.0, "terminated")
    assert not result.folder.exists()


def processes_with(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("how", ["close", "end"])
def test_all_processes_of_a_command_end_with_it(how: str):
    mark = f"3{time.time_ns()}"  # how long they sleep
    script = (
        ASKS
        + f"""
import subprocess
subprocess.Popen(["sleep", "{mark}"])
subprocess.Popen(["sh", "-c", "trap '' TERM; sleep {mark} & sleep {mark}"], start_new_session=True)
ask({{"role": "user", "content": "a"}})
"""
    )
    env = Command(script)
    if how == "close":
        env.reset(seed=0)
        assert processes_with(mark)
        env.close()
    else:
        rollout(env, saying("hello"), seed=0)
    until(lambda: not processes_with(mark))
    env.close()


def test_a_command_that_reaches_a_limit_is_ended_and_scored():
    script = (
        ASKS
        + """
import time
open("answer", "w").close()
ask({"role": "user", "content": "a"})
try:
    ask({"role": "user", "content": "b"})
finally:
    time.sleep(1000)
"""
    )
    with contextlib.closing(Command(script, limits=Limits(max_steps=1))) as env:
        trajectory = rollout(env, saying("hello"), seed=0)
    assert (trajectory.stop_reason, trajectory.reward) == ("max_steps", 1.0)
    assert env.results[0].returncode is None


def test_a_command_that_is_a_text_is_refused():
    with contextlib.closing(Command("")) as env:
        env.command = "ls -l"  # type: ignore[assignment]
        with pytest.raises(ConfigError, match="expected a list"):
            env.reset(seed=0)


# What takes an Env takes a program.


class Guess(ProgramEnv):
    """Guesses a number."""

    reward_range = (0.0, 1.0)
    n_tasks = 3

    def run(self, model: Endpoint) -> float:
        self.secret = str(int(self.np_random.integers(3)))
        with asking(model) as ask:
            said = [f"Not {self.secret}5."]
            for _ in range(3):
                said += [ask(*said) or "", "No."]
                if (said[-2] or "").strip() == self.secret:
                    return 1.0
        return 0.0

    def reference_reply(self) -> Message:
        return Message(role="assistant", content=self.secret)


def test_check_env_names_what_cannot_hold(is_full: bool, monkeypatch: pytest.MonkeyPatch):
    """A short run makes a few checks that need a program; `cut replies` attacks it, too."""
    few = ("episodes end", "reference policy", "same bytes", "forks", "calls out of order", "cut replies")
    if not is_full:
        monkeypatch.setattr(environments, "CHECKS", {name: environments.CHECKS[name] for name in few})
    report = check_env(Guess, seeds=4 if is_full else 1)
    report.raise_if_failed()
    (forks,) = [check for check in report.checks if check.name == "forks"]
    assert forks.verdict == "NOT POSSIBLE" and "program" in forks.detail


def test_a_fork_is_refused():
    with contextlib.closing(Guess()) as env:
        env.reset(seed=0)
        with pytest.raises(EpisodeError, match="its program runs"):
            env.fork()


def test_it_runs_in_the_engine_and_the_same_seed_gives_the_same_bytes():
    def contents(concurrency: int) -> list[bytes]:
        rollouts = Rollouts(Guess, "random", seeds=range(2), group_size=2, max_concurrency=concurrency)
        return sorted(trajectory.to_json() for trajectory in rollouts.run())

    assert contents(1) == contents(8)


def test_it_runs_in_vector_environments():
    vector = gymnasium.vector.SyncVectorEnv([Guess, Guess], autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED)
    observations, _ = vector.reset(seed=1)
    assert len(observations) == 2
    vector.close()


def test_it_runs_inside_an_event_loop():
    async def play() -> list[Trajectory]:
        envs = [Guess() for _ in range(3)]
        try:
            return await asyncio.gather(*(arollout(env, "random", seed=i) for i, env in enumerate(envs)))
        finally:
            for env in envs:
                env.close()

    assert [trajectory.status for trajectory in asyncio.run(play())] == ["terminated"] * 3


def test_an_environment_that_is_not_running_can_be_pickled():
    env = pickle.loads(pickle.dumps(Guess()))
    assert rollout(env, "random", seed=0).status == "terminated"
    env.close()


def test_a_system_message_that_is_left_out_is_an_edit():
    def program(ask: Any) -> float:
        first = ask("What is the capital of France?", system="You are brief. You answer in one word, or in two.")
        ask("What is the capital of France?", first, "And of Spain?")
        return 1.0

    trajectory = played(program, "The capital of France is Paris.", "Madrid.", history="keep")
    assert [break_.reason for break_ in trajectory.breaks] in (["edit"], ["handoff"])
    prompt = list(trajectory.prompts())[1][1]
    assert "brief" not in envsdk.load_tokenizer("embedded").decode(prompt)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_calls_that_nobody_asked_for_are_text(is_streamed: bool):
    sent = [{"role": "user", "content": "Look."}]
    tokens = envsdk.get_renderer("qwen3", "embedded").reply(
        Message(role="assistant", content="I look.", reasoning="Hm.", tool_calls=(ToolCall(name="look", arguments={}),))
    )
    heard: list[Any] = []

    class Texts(ProgramEnv):
        def run(self, model: Endpoint) -> float:
            with openai.OpenAI(base_url=model.base_url, api_key=model.api_key) as client:
                for _ in range(2):
                    made: Any = client.chat.completions.create(model="m", messages=sent, stream=is_streamed)
                    deltas = [chunk.choices[0].delta for chunk in made] if is_streamed else [made.choices[0].message]
                    heard.append("".join(delta.content or "" for delta in deltas))
                    assert not any(delta.tool_calls for delta in deltas)
                    sent.extend([{"role": "assistant", "content": heard[-1]}, {"role": "user", "content": "4"}])
            return 1.0

    class Streams:
        tokenizer, streams = "any", True

        async def __call__(self, prompt: Any, *, on_tokens: Any = None, **_: Any) -> Action:
            for token in tokens if on_tokens else ():
                on_tokens([int(token)])
            return Action(tokens, np.full(len(tokens), -0.5))

    with contextlib.closing(Texts(tokenizer="embedded")) as env:
        trajectory = rollout(env, Streams(), seed=0)
    assert heard == ['I look.\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'] * 2
    assert [step.extends for step in trajectory.steps] == [False, True]
    soundness.check(trajectory)
