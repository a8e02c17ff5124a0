"""Logs of other tools become trajectories: what was logged of a program is imported, and compared with its episode."""

import contextlib
import copy
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import anthropic
import httpx
import numpy as np
import pytest
import soundness
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from protocol_bodies import ROUTES
from trainers import test_atif
from trainers.episodes import all_kinds, delegated, kept, played, stripped, truncated

import envsdk
from envsdk import Action, Limits, Message, Sample, ToolCall, Trajectory, rollout
from envsdk.errors import ConfigError, InvalidRecord
from envsdk.gateway import Endpoint, ImportResult, ProgramEnv, from_atif, from_requests
from envsdk.trainers.atif import to_atif

Ask = Callable[..., dict[str, Any]]
Records = list[dict[str, Any]]
RENDERER = envsdk.get_renderer("qwen3", "embedded")
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


# A program, and a proxy that logs what it asks.


class Proxy:
    """Logs the bodies of requests and responses, and the ids of what the policy saw and sampled."""

    def __init__(self) -> None:
        self.bodies: list[tuple[Any, Any]] = []
        self.sampled: list[tuple[list[int], list[int], list[float]]] = []
        self.random = Random(0)

    def policy(self, prompt: Any, **_: Any) -> Action:
        number = len(self.sampled)
        calls = [ToolCall(name="look", arguments={"n": number})] if self.random.random() < 0.3 else []
        message = Message(
            role="assistant", content=f"Reply number {number}, said once.", reasoning="Hm.", tool_calls=calls
        )
        tokens = RENDERER.reply(message)
        logprobs = np.linspace(-1, -0.5, len(tokens), dtype=np.float32)
        self.sampled.append((prompt.tolist(), tokens.tolist(), logprobs.tolist()))
        return Action(tokens, logprobs)

    def records(self) -> Records:
        """What it logged, as vLLM logs it."""
        left, records = iter(self.sampled), []
        for request, response in copy.deepcopy(self.bodies):
            if isinstance(response, list):
                add_ids(response, *next(left))
                records.append({"request": request, "response": response})
                continue
            for place in response.get("choices", [response]):
                response["prompt_token_ids"], place["token_ids"], logprobs = next(left)
                place["logprobs"] = {"content": [{"token": "?", "logprob": logprob} for logprob in logprobs]}
            records.append({"request": request, "response": response})
        assert next(left, None) is None
        return records


def add_ids(events: list[Any], prompt: list[int], tokens: list[int], logprobs: list[float]) -> None:
    """Add the ids of a streamed reply: to each chunk of Chat Completions its own, else to the response."""
    content = [{"token": "?", "logprob": logprob} for logprob in logprobs]
    if events[-1].get("type") == "response.completed":
        events[-1]["response"] |= {"prompt_token_ids": prompt, "token_ids": tokens, "logprobs": {"content": content}}
    elif events[0].get("type") == "message_start":
        events[0]["message"]["prompt_token_ids"] = prompt
        ended = next(event for event in events if event["type"] == "message_delta")
        ended["delta"] |= {"token_ids": tokens, "logprobs": {"content": content}}
    else:
        events[0]["prompt_token_ids"] = prompt
        chunks = [choice for event in events for choice in event["choices"]]
        for place, choice in enumerate(chunks):
            own = slice(place, place + 1 if choice is not chunks[-1] else None)
            choice |= {"token_ids": tokens[own], "logprobs": {"content": content[own]}}


@contextlib.contextmanager
def asking(model: Endpoint, proxy: Proxy, protocol: str) -> Iterator[Ask]:
    url = model.base_url if protocol != "anthropic" else f"{model.anthropic_base_url.removesuffix('/v1')}/v1"
    headers = {"authorization": f"Bearer {model.api_key}"}
    with httpx.Client(headers=headers, timeout=600) as client:

        def ask(said: Sequence[Any], **more: Any) -> dict[str, Any]:
            given = "input" if protocol == "responses" else "messages"
            body = {"model": "m", given: list(said), **({"max_tokens": 500} if protocol == "anthropic" else {}), **more}
            body = json.loads(json.dumps(body))
            if body.get("stream") and protocol == "anthropic":
                return streamed_by_anthropic(model, proxy, body)
            answer = client.post(url + ROUTES[protocol], json=body)
            assert answer.status_code == 200, answer.text
            if not body.get("stream"):
                proxy.bodies.append((body, answer.json()))
                return answer.json()
            lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
            events = [json.loads(line) for line in lines if line != "[DONE]"]
            proxy.bodies.append((body, events))
            if protocol == "responses":
                return events[-1]["response"]
            state = ChatCompletionStreamState()
            for event in events:
                state.handle_chunk(ChatCompletionChunk.model_validate(event))
            return state.get_final_completion().model_dump(exclude_none=True)

        yield ask


def streamed_by_anthropic(model: Endpoint, proxy: Proxy, body: dict[str, Any]) -> dict[str, Any]:
    """A reply that Anthropic's client assembles; the events that it read are logged."""
    given = {key: value for key, value in body.items() if key != "stream"}
    client = anthropic.Anthropic(base_url=model.anthropic_base_url, api_key=model.api_key)
    raw = ("message_start", "message_delta", "message_stop", "content_block_start", "content_block_delta")
    with client, client.messages.stream(**given) as stream:
        proxy.bodies.append((body, [event.to_dict(mode="json") for event in stream if event.type in raw]))
        return stream.get_final_message().to_dict(mode="json")


def logged(program: Callable[[Ask], Any], protocol: str = "chat", history: Any = "keep") -> tuple[Trajectory, Records]:
    """The episode of a program, and what a proxy logged of it."""
    proxy = Proxy()

    class Program(ProgramEnv):
        def run(self, model: Endpoint) -> float:
            with asking(model, proxy, protocol) as ask:
                program(ask)
            return 1.0

    with contextlib.closing(Program(renderer=RENDERER, history=history, limits=Limits(max_steps=99))) as env:
        trajectory = rollout(env, proxy.policy, seed=0)
    assert trajectory.status == "terminated", trajectory.error
    return trajectory, proxy.records()


def is_sound(imported: ImportResult) -> Trajectory:
    soundness.check(imported.trajectory)
    return imported.trajectory


def broken(trajectory: Trajectory) -> list[Any]:
    """The breaks, without what is only a matter of how many tokens happen to be the same."""
    return [
        break_ and (break_.kind, break_.reason, break_.base) for break_ in (step.break_ for step in trajectory.steps)
    ]


def trained(samples: Sequence[Sample]) -> list[Any]:
    return [
        (s.context, s.role, s.parent, s.tokens.tolist(), s.mask.tolist(), s.reward, [b.reason for b in s.breaks])
        for s in samples
    ]


def is_same(imported: ImportResult, original: Trajectory) -> None:
    """The import has the same contexts, steps, breaks and samples as the episode."""
    trajectory = is_sound(imported)
    assert imported.notes == () and imported.sft == []
    assert [step.context for step in trajectory.steps] == [step.context for step in original.steps]
    assert broken(trajectory) == broken(original)
    for mine, theirs in zip(trajectory.prompts(), original.prompts(), strict=True):
        assert mine.prompt.tolist() == theirs.prompt.tolist() and mine.action.tolist() == theirs.action.tolist()
        assert mine.step.keep >= theirs.step.keep
        assert replied(trajectory, mine.step) == replied(original, theirs.step)
    assert list(trajectory.contexts) == list(original.contexts)
    for name, log in trajectory.contexts.items():
        theirs = original.contexts[name]
        assert (log.role, log.parent, log.tools) == (theirs.role, theirs.parent, theirs.tools)
        # An episode leaves out messages that a context shares with its base after others that it does not share.
        found = iter((m.role, m.content) for m in log.messages)
        assert all((m.role, m.content) in found for m in theirs.messages)
    assert trained(trajectory.samples()) == trained(original.samples())


def replied(trajectory: Trajectory, step: Any) -> str:
    return trajectory.contexts[step.context].messages[step.reply].content


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


# Round trips.


def reply_of(protocol: str, response: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """A reply as a client sends it back, and the results of its calls."""
    if protocol == "chat":
        message = response["choices"][0]["message"]
        message.pop("reasoning_content", None)
        calls = [call["id"] for call in message.get("tool_calls") or ()]
        return [message], [{"role": "tool", "tool_call_id": call, "content": "4"} for call in calls]
    if protocol == "responses":
        calls = [item["call_id"] for item in response["output"] if item["type"] == "function_call"]
        return response["output"], [{"type": "function_call_output", "call_id": call, "output": "4"} for call in calls]
    calls = [block["id"] for block in response["content"] if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call, "content": "4"} for call in calls]
    return [{"role": "assistant", "content": response["content"]}], [{"role": "user", "content": results}] * bool(calls)


@pytest.mark.matrix
@pytest.mark.parametrize("history", ["keep", "strip"])
@pytest.mark.parametrize("protocol", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_a_program_s_log_becomes_its_episode(protocol: str, history: str, is_streamed: bool):
    function: dict[str, Any] = TOOLS[0]["function"]
    tools = {
        "chat": TOOLS,
        "responses": [{"type": "function", **function}],
        "anthropic": [{"name": "look", "input_schema": {"type": "object"}}],
    }[protocol]

    shown = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if protocol == "anthropic" else {}
    shown |= {"stream": True} if is_streamed else {}

    def program(ask: Ask) -> None:
        sent: list[Any] = [said("user", "What is the weather like in Zürich?")]
        for number in range(4):
            reply, results = reply_of(protocol, ask(sent, tools=tools, **shown))
            sent += [*reply, *results, said("user", f"Go on, number {number}.")]
        ask([said("user", "A question of another agent.")], **shown)
        ask([sent[0], *sent[-1:]], tools=tools, **shown)

    original, records = logged(program, protocol, history)
    assert all(isinstance(record["response"], list) == is_streamed for record in records)
    is_same(from_requests(records, reward=1.0), original)
    if history == "strip":
        assert "thinking_stripped" in [break_.reason for break_ in original.breaks]


def test_a_renderer_reads_reasoning_that_was_not_logged():
    def program(ask: Ask) -> None:
        sent = [said("user", "One, please.")]
        ask([*sent, said("assistant", ask(sent)["content"][0]["text"]), said("user", "Two, please.")])

    _, records = logged(program, "anthropic", "strip")
    (guessed,) = is_sound(from_requests(records)).breaks
    (break_,) = is_sound(from_requests(records, renderer=RENDERER)).breaks
    assert (guessed.reason, break_.reason) == ("undeclared", "thinking_stripped")


def test_responses_that_continue_others_by_id():
    tools = [{"type": "function", "name": "look", "parameters": {}}]

    def program(ask: Ask) -> None:
        first = ask([said("user", "One, please.")], tools=tools)
        second = ask([said("user", "Two, please.")], previous_response_id=first["id"], tools=tools)
        ask([said("user", "Three, please.")], previous_response_id=second["id"], tools=tools)
        ask([said("user", "Another two, please.")], previous_response_id=first["id"], tools=tools)

    original, records = logged(program, "responses")
    is_same(from_requests(records, reward=1.0), original)
    with pytest.raises(InvalidRecord, match=r"record 0\.request\.previous_response_id is 'resp_.*earlier record"):
        from_requests(records[1:])


class RandomProgram:
    """Continues, trims, edits, drops reasoning, changes tools, branches and starts sub-agents."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def __call__(self, ask: Ask) -> None:
        threads: list[tuple[list[Any], dict[str, Any]]] = []
        for number in range(self.random.randint(1, 9)):
            if not threads or self.random.random() < 0.2:
                system = [said("system", f"You are agent {len(threads)}.")] * (self.random.random() < 0.7)
                tools = {"tools": TOOLS} if self.random.random() < 0.5 else {}
                threads.append(([*system, said("user", f"The task of agent {len(threads)}, in words.")], tools))
                sent, options = threads[-1]
            else:
                sent, options = self.random.choice(threads)
                sent = self.changed(sent, number)
            n = 2 if self.random.random() < 0.15 else 1
            reply, results = reply_of("chat", ask(sent, **options, **({"n": n} if n > 1 else {})))
            sent += [*reply, *results, said("user", f"Request number {number}, said once.")]

    def changed(self, sent: list[Any], number: int) -> list[Any]:
        first = 1 + (sent[0]["role"] == "system")
        match self.random.randint(0, 6):
            case 0 if len(sent) > first + 3:
                del sent[first : first + 2]
            case 1:
                sent[first - 1] = said("user", f"An edited task, number {number}.")
            case 2:
                return [*sent, said("user", "Give it a title.")]
            case 3 if first == 2:
                sent[0] = said("system", f"You are another agent now, number {number}.")
        return sent


@settings(deadline=None, max_examples=settings().max_examples if settings().max_examples >= 100 else 5)
@given(seed=st.integers(0, 10**9), history=st.sampled_from(["keep", "strip"]))
def test_the_log_of_any_program_becomes_its_episode(seed: int, history: str):
    original, records = logged(RandomProgram(seed), history=history)
    is_same(from_requests(records, reward=1.0), original)


# What the tokens of a log show.


def exchange(messages: Sequence[Any], text: str, prompt: Sequence[int], tokens: Sequence[int], **more: Any) -> Any:
    """A record with ids of one's own choice."""
    reasoning = more.pop("reasoning", None)
    message: dict[str, Any] = {"role": "assistant", "content": text, "reasoning_content": reasoning}
    message.update(more.pop("message", {}))
    choice: dict[str, Any] = {"message": message, "finish_reason": "stop", "token_ids": list(tokens)}
    choice["logprobs"] = {"content": [{"logprob": -0.5} for _ in tokens]}
    response = {"choices": [choice], "prompt_token_ids": list(prompt)}
    return {"request": {"messages": list(messages)}, "response": response, **more}


def two_turns(
    second: Sequence[int], reasoning: str | None = None, tokens: Sequence[int] = (20, 21, 22, 9), **more: Any
) -> ImportResult:
    """The task, the reply, and the second prompt with the same messages."""
    task, reply, going_on = said("user", "The task."), said("assistant", "The reply."), said("user", "Go on.")
    return from_requests(
        [
            exchange([task], "The reply.", [1, 2, 3], tokens, reasoning=reasoning),
            exchange([task, reply, going_on], "The end.", second, [30, 9], **more),
        ]
    )


def test_a_prompt_with_all_that_was_held_extends_it():
    trajectory = is_sound(two_turns([1, 2, 3, 20, 21, 22, 9, 5, 6]))
    (sample,) = trajectory.samples()
    assert sample.tokens.tolist() == [1, 2, 3, 20, 21, 22, 9, 5, 6, 30, 9]
    assert sample.mask.tolist() == [False] * 3 + [True] * 4 + [False] * 2 + [True] * 2
    assert trajectory.breaks == []


@pytest.mark.parametrize(
    ("second", "reasoning", "reason", "kept"),
    [
        ([1, 2, 3, 22, 9, 5, 6], "Hm.", "thinking_stripped", 3),
        ([1, 2, 22, 9, 5, 6], "Hm.", "thinking_stripped", 2),  # with the opening of the block in the prompt
        ([1, 2, 3, 20, 40, 22, 9, 5], "Hm.", "thinking_stripped", 4),  # an empty block stays
        ([1, 2, 3, 22, 9, 5, 6], None, "undeclared", 3),  # there is no reasoning that could be gone
        ([1, 2, 3, 20, 41, 42, 9, 5], None, "undeclared", 4),  # tokenized again
        ([1, 2, 3, 20, 41, 42, 9, 5], "Hm.", "undeclared", 4),
        ([1, 2, 3, 20, 21, 22, 8, 5], None, "template", 6),  # another end of the reply
        ([1, 7, 3, 20, 21, 22, 9, 5], None, "template", 1),  # another beginning
        ([1, 7, 3, 22, 9, 5], "Hm.", "template", 1),
    ],
)
def test_what_is_dropped_is_declared_with_what_the_tokens_show(
    second: list[int], reasoning: str | None, reason: str, kept: int
):
    trajectory = is_sound(two_turns(second, reasoning))
    (break_,) = trajectory.breaks
    assert (break_.kind, break_.reason, break_.kept, break_.dropped) == ("rewrite", reason, kept, 7 - kept)
    assert break_.detail


def test_a_server_that_renders_each_request_strips_reasoning_and_nothing_else():
    sent, records = [said("system", "Be brief."), said("user", "The task.")], []
    for number in range(4):
        prompt = RENDERER.render(
            [Message.from_openai(message) for message in sent], generation_prompt=True, history="keep"
        ).tokens
        text = f"Reply {number}."
        tokens = RENDERER.reply(Message(role="assistant", content=text, reasoning=f"Thought {number}."))
        records.append(exchange(sent, text, prompt.tolist(), tokens.tolist(), reasoning=f"Thought {number}."))
        sent = [*sent, said("assistant", text), said("user", f"Go on, {number}.")]
    trajectory = is_sound(from_requests(records))
    assert [break_.reason for break_ in trajectory.breaks] == ["thinking_stripped"] * 3
    assert len(trajectory.samples()) == 4


@pytest.mark.parametrize("id", ["call_0", "functions.look:0"])
def test_calls_that_share_an_id_are_told_apart(id: str):
    def calling(number: int) -> dict[str, Any]:
        function = {"name": "look", "arguments": json.dumps({"number": number})}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": id, "type": "function", "function": function}],
        }

    sent, prompt, records = [said("user", "Look.")], [1], []
    for number in range(4):
        records.append(exchange(sent, "", prompt, [10 + number, 9], message=calling(number)))
        sent = [*sent, calling(number), {"role": "tool", "tool_call_id": id, "content": f"result {number}"}]
        prompt = [*prompt, 10 + number, 9, 3]
    imported = from_requests(records)
    (sample,) = is_sound(imported).samples()
    assert imported.notes == () and int(sample.mask.sum()) == 8
    messages = imported.trajectory.contexts["main"].messages
    assert [message.tool_calls[0].id for message in messages if message.tool_calls] == [id] * 4
    assert {message.tool_call_id for message in messages if message.role == "tool"} == {id}


# Where servers put ids.


def vllm(response: Any) -> None:
    """As `exchange` has it."""


def vllm_in_logprobs(response: Any) -> None:
    choice = response["choices"][0]
    for entry, token in zip(choice["logprobs"]["content"], choice.pop("token_ids"), strict=True):
        entry["token"] = f"token_id:{token}"


def sglang(response: Any) -> None:
    choice = response["choices"][0]
    choice["prompt_token_ids"] = response.pop("prompt_token_ids")
    triples = [[-0.5, token, None] for token in choice.pop("token_ids")]
    choice["meta_info"] = {"output_token_logprobs": triples, "weight_version": "default"}
    del choice["logprobs"]


def litellm(response: Any) -> None:
    choice = response["choices"][0]
    choice["provider_specific_fields"] = {"token_ids": choice.pop("token_ids")}


def nemo_gym(response: Any) -> None:
    choice = response["choices"][0]
    choice["message"]["prompt_token_ids"] = response.pop("prompt_token_ids")
    choice["message"]["generation_token_ids"] = choice.pop("token_ids")
    choice["message"]["generation_log_probs"] = [-0.5] * len(choice["message"]["generation_token_ids"])
    del choice["logprobs"]


@pytest.mark.parametrize("server", [vllm, vllm_in_logprobs, sglang, litellm, nemo_gym])
def test_ids_are_read_where_servers_and_proxies_put_them(server: Callable[[Any], None]):
    record = exchange([said("user", "Hi")], "Hello", [1, 2], [3, 4])
    server(record["response"])
    imported = from_requests([record])
    (sample,) = is_sound(imported).samples()
    assert imported.notes == ()
    assert sample.tokens.tolist() == [1, 2, 3, 4] and sample.logprobs is not None
    assert sample.logprobs.tolist() == [0, 0, -0.5, -0.5]


# Streams.


def in_chunks(response: Any, cuts: Sequence[int]) -> list[Any]:
    """A response as a server streams it: its texts cut at these places, and its ids one for each chunk."""
    (choice,), chunks = response["choices"], list[Any]()
    message, tokens = choice["message"], choice["token_ids"]

    def add(delta: dict[str, Any], **fields: Any) -> None:
        place = {"index": 0, "delta": delta, "finish_reason": None, **fields}
        chunks.append({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"})
        chunks[-1]["choices"] = [place]

    add({"role": "assistant", "content": ""})
    chunks[0]["prompt_token_ids"] = response["prompt_token_ids"]
    for key in ("reasoning_content", "content"):
        for piece in pieces(message.get(key) or "", cuts):
            add({key: piece})
    for index, call in enumerate(message.get("tool_calls") or ()):
        named = {"name": call["function"]["name"], "arguments": ""}
        add({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": named}]})
        for piece in pieces(call["function"]["arguments"], cuts):
            add({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    for place, token in enumerate(tokens):
        logprob = choice["logprobs"]["content"][place]
        add({}, token_ids=[token], logprobs={"content": [logprob]})
    add({}, finish_reason=choice["finish_reason"])
    return [*chunks, {**chunks[0], "choices": [], "usage": {"completion_tokens": len(tokens)}}]


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


CALLED = {
    "content": "Let me see: 4 °C.",
    "reasoning_content": "Hm, what?",
    "tool_calls": [
        {"id": f"c{i}", "type": "function", "function": {"name": "look", "arguments": json.dumps({"n": i})}}
        for i in range(2)
    ],
}


@given(cuts=st.lists(st.integers(0, 30), max_size=6))
def test_a_streamed_reply_is_read_like_the_whole_one(cuts: list[int]):
    whole = exchange([said("user", "Hi")], "", [1, 2], [3, 4, 5], message=CALLED)
    streamed = {**whole, "response": in_chunks(whole["response"], cuts)}
    before = copy.deepcopy(streamed)
    found, expected = from_requests([streamed]), from_requests([whole])
    assert found.trajectory.to_json() == expected.trajectory.to_json() and found.notes == ()
    assert streamed == before


@pytest.mark.parametrize(
    ("protocol", "end"),
    [("chat", '"finish_reason": "'), ("responses", '"response.completed"'), ("anthropic", '"stop_reason": "')],
)
def test_a_stream_that_ends_before_the_reply_does_is_left_out_with_a_note(protocol: str, end: str):
    _, (record,) = logged(lambda ask: ask([said("user", "Hi")], stream=True), protocol)
    whole = record["response"]
    last = next(place for place, event in enumerate(whole) if end in json.dumps(event))
    for stop in (0, last):
        record["response"] = whole[:stop]
        imported = from_requests([record], protocol=protocol)
        assert imported.trajectory.steps == []
        assert [(note.kind, str(note)) for note in imported.notes] == [
            ("left_out", "record 0: the stream of its response ends before the reply does: it is left out")
        ]
    record["response"] = [*whole[:last], {"type": "error", "error": {"message": "overloaded"}}]
    (note,) = from_requests([record], protocol=protocol).notes
    assert str(note) == "record 0: the request has no reply: it is left out"


def test_the_input_of_a_call_that_was_cut_is_what_its_json_has():
    started = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    events = [
        {"type": "message_start", "message": {"id": "m", "content": [], "prompt_token_ids": [1]}},
        {"type": "content_block_start", "index": 0, "content_block": started},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text}}
            for text in ('{"a": 1, ', '"b": "tw')
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens", "token_ids": [2, 3]}},
    ]
    imported = from_requests([{"request": {"messages": [said("user", "Hi")]}, "response": events}])
    (step,) = imported.trajectory.steps
    (call,) = imported.trajectory.contexts["main"].messages[-1].tool_calls
    assert (call.arguments, step.finish_reason) == ({"a": 1}, "length")


def test_sampling_rewards_and_roles_are_those_of_the_records():
    one = exchange([said("user", "One agent.")], "x", [1, 2], [3], reward={"style": 0.5, "facts": 1}, policy_version=7)
    one["request"]["temperature"] = 0.7
    two = exchange([said("user", "A judge.")], "y", [1, 5], [6], headers={"X-Envsdk-Role": "judge"}, reward=-1)
    two["response"]["choices"][0]["finish_reason"] = "length"
    imported = from_requests([one, two], temperature=0.2, trainable_roles=["main"], id="t", env="e", group_id="g")
    first, second = imported.trajectory.steps
    assert (first.reward, first.rewards, first.parts[0].temperature, first.parts[0].policy_version) == (
        1.5,
        {"style": 0.5, "facts": 1.0},
        0.7,
        7,
    )
    assert (second.reward, second.parts[0].temperature, second.finish_reason) == (-1.0, 0.2, "length")
    (sample,) = imported.trajectory.samples()
    assert (sample.context, sample.role, sample.reward, sample.group_id) == ("main", "main", 0.5, "g")
    assert imported.trajectory.contexts["main/judge-1"].is_trainable is False
    with pytest.raises(ConfigError, match="the log has rewards, too"):
        from_requests([one], reward=1.0)


def test_a_failed_session_gives_no_samples():
    trajectory = from_requests([exchange([said("user", "Hi")], "x", [1], [2])], error="it crashed").trajectory
    assert (trajectory.status, trajectory.stop_reason, trajectory.samples()) == ("error", "error", [])


# What is missing.


def without_ids(record: Any) -> Any:
    record = copy.deepcopy(record)
    del record["response"]["prompt_token_ids"]
    for choice in record["response"]["choices"]:
        del choice["token_ids"], choice["logprobs"]
    return record


def test_replies_without_ids_become_supervised_samples_and_a_note():
    _, records = logged(RandomProgram(5))
    imported = from_requests([without_ids(record) for record in records], renderer=RENDERER, reward=1.0)
    trajectory = imported.trajectory
    assert trajectory.steps == [] and trajectory.samples() == [] and trajectory.reward_of("main") == 1.0
    assert [note.kind for note in imported.notes] == ["no_ids"] * sum(len(r["response"]["choices"]) for r in records)
    assert str(imported.notes[0]).startswith(
        "record 0: record 0.response.prompt_token_ids and record 0.response.choices[0]"
    )
    replies = [choice["message"] for record in records for choice in record["response"]["choices"]]
    texts = [RENDERER.tokenizer.decode(sample.tokens[sample.mask]) for sample in imported.sft]
    for reply in replies:  # each one is trained once
        assert sum(text.count(reply["content"]) for text in texts) == 1
    assert all(
        sample.trajectory_id == trajectory.id and sample.context in trajectory.contexts for sample in imported.sft
    )


def test_ids_that_are_missing_here_and_there_split_the_replies_between_both_kinds_of_samples():
    def program(ask: Ask) -> None:
        sent = [said("user", "Begin with the first thing.")]
        for number in range(5):
            reply, results = reply_of("chat", ask(sent, tools=TOOLS))
            sent += [*reply, *results, said("user", f"Go on, number {number}.")]

    original, records = logged(program)
    partly = [without_ids(record) if index in (1, 3) else record for index, record in enumerate(records)]
    imported = from_requests(partly, renderer=RENDERER)
    (sample,) = is_sound(imported).samples()
    assert [note.where for note in imported.notes] == ["record 1", "record 3"]
    assert sample.tokens.tolist() == original.samples()[0].tokens.tolist()
    taught = "".join(RENDERER.tokenizer.decode(one.tokens[one.mask]) for one in imported.sft)
    for number in range(5):
        text = f"Reply number {number}"
        assert taught.count(text) == (number in (1, 3))
        assert (text in RENDERER.tokenizer.decode(sample.tokens[sample.mask])) == (number not in (1, 3))


def test_an_edit_between_replies_without_ids_is_declared_at_the_next_step():
    task, more = said("user", "The task of today."), said("user", "You did not call a tool.")
    third = [task, more, said("assistant", "The second reply."), said("user", "And now?")]
    records = [
        exchange([task], "The first reply.", [1, 2], [3, 4]),
        without_ids(exchange([task, more], "The second reply.", [1, 2, 5], [6])),
        exchange(third, "The end.", [1, 2, 5, 6, 7], [8]),
    ]
    trajectory = is_sound(from_requests(records))
    (break_,) = trajectory.breaks
    assert (break_.reason, break_.detail) == ("edit", "the reply 1 was left out")


def test_without_a_renderer_a_log_without_any_ids_is_refused():
    record = exchange([said("user", "Hi")], "x", [1], [2])
    with pytest.raises(InvalidRecord, match=r"no reply has the token ids .* pass renderer="):
        from_requests([without_ids(record)])
    kinds = [
        note.kind for note in from_requests([record, without_ids(exchange([said("user", "Ho")], "y", [], []))]).notes
    ]
    assert kinds == ["no_ids", "no_sft"]


def test_log_probabilities_may_be_missing():
    record = exchange([said("user", "Hi")], "x", [1], [2])
    record["response"]["choices"][0]["logprobs"] = None
    imported = from_requests([record])
    assert [note.kind for note in imported.notes] == ["no_logprobs"]
    assert is_sound(imported).samples()[0].logprobs is None


def test_requests_that_failed_and_records_that_come_twice_are_left_out():
    record = exchange([said("user", "Hi")], "x", [1], [2])
    record["response"]["id"] = "chatcmpl-1"
    failed = {"request": {"messages": [said("user", "Hi")]}, "response": {"error": {"message": "busy"}}}
    imported = from_requests([failed, record, copy.deepcopy(record), {**failed, "response": None}])
    assert [(note.kind, note.where) for note in imported.notes] == [
        ("left_out", "record 0"),
        ("left_out", "record 2"),
        ("left_out", "record 3"),
    ]
    assert "it is record 1 again" in imported.notes[1].text
    assert len(is_sound(imported).steps) == 1


def test_no_records_are_an_empty_trajectory():
    imported = from_requests([])
    assert (imported.trajectory.steps, imported.sft, imported.notes) == ([], [], ())
    assert Trajectory.from_json(imported.trajectory.to_json()) == imported.trajectory


# Hostile input.


def place(record: Any, path: Sequence[Any]) -> Any:
    for key in path:
        record = record[key]
    return record


BAD: list[tuple[tuple[Any, ...], Any, str]] = [
    ((), [], "record 1 is a list of 0; expected an object"),
    (("request",), "x", r"record 1\.request is 'x'; expected an object"),
    (("request", "messages"), [{"role": "boss", "content": "x"}], r"record 1: messages\[0\]\.role"),
    (("request", "temperature"), "hot", r"record 1\.request\.temperature is 'hot'"),
    (("response",), [1], r"record 1\.response\[0\] is 1; expected an object"),
    (("response",), [{"choices": [{"delta": "x"}]}], r"record 1\.response\[0\]\.choices\[0\]\.delta is 'x'; expected"),
    (
        ("response",),
        [{"choices": [{"delta": {"content": value}}]} for value in ("x", ["y"])],
        r"record 1\.response\[1\]\.choices\[0\]\.delta\.content is a list of 1; expected a str, as in the chunks",
    ),
    (
        ("response",),
        [{"type": "content_block_delta", "index": 2, "delta": {}}],
        r"record 1\.response\[0\]\.index is 2; expected the index of a block that an earlier event starts",
    ),
    (("response", "choices", 0, "message"), None, r"record 1\.response\.choices\[0\]\.message is missing"),
    (("response", "choices", 0, "message", "content"), 3, r"choices\[0\]\.message cannot be read: .*content"),
    (("response", "prompt_token_ids"), [], r"record 1\.response\.prompt_token_ids is a list of 0; expected the ids"),
    (("response", "prompt_token_ids"), [1, True], r"prompt_token_ids\[1\] is True; expected a token id"),
    (("response", "choices", 0, "token_ids"), [2, 500], r"choices\[0\]\.token_ids: token 500 at position 1"),
    (("response", "choices", 0, "token_ids"), [2.0], r"choices\[0\]\.token_ids\[0\] is 2\.0; expected a token id"),
    (
        ("response", "choices", 0, "token_ids"),
        [1, 2, 3],
        r"choices\[0\]\.logprobs\.content: logprobs have shape \(2,\)",
    ),
    (("response", "choices", 0, "logprobs", "content", 1, "logprob"), None, r"logprobs\.content\[1\] is missing"),
    (("response", "choices", 0, "logprobs", "content", 1, "logprob"), float("nan"), r"logprobs\.content: logprob nan"),
    (("response", "id"), 5, r"record 1\.response\.id is 5; expected a string"),
    (("reward",), "much", r"record 1\.reward is 'much'; expected a finite number"),
    (("policy_version",), -1, r"record 1\.policy_version is -1"),
    (("headers",), ["x"], r"record 1\.headers is a list of 1; expected an object"),
    (("headers",), {"x-envsdk-role": 5}, r"record 1: headers\.x-envsdk-role"),
    (("protocol",), "grpc", r"record 1\.protocol is 'grpc'; expected one of"),
]


@pytest.mark.parametrize(
    ("path", "value", "message"), BAD, ids=[f"{'.'.join(map(str, p))}={v!r:.20}" for p, v, _ in BAD]
)
def test_an_error_names_the_record_and_the_field(path: tuple[Any, ...], value: Any, message: str):
    records = [
        exchange([said("user", "One.")], "x", [1, 2], [3, 4]),
        exchange([said("user", "Two.")], "y", [1, 2], [3, 4], reward=1.0),
    ]
    if path:
        place(records[1], path[:-1])[path[-1]] = value
    else:
        records[1] = value
    with pytest.raises(InvalidRecord, match=message):
        from_requests(records, vocab_size=100)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from paths(value[key], (*path, key))


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@settings(deadline=None)
@given(data=st.data())
def test_any_damage_is_an_error_of_its_record_or_a_sound_trajectory(is_streamed: bool, data: st.DataObject):
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    sent = [said("user", "One."), {"role": "assistant", "content": "x", "tool_calls": [call]}]
    records: Any = [
        exchange(sent[:1], "x", [1, 2], [3, 4], message={"tool_calls": [call]}),
        exchange([*sent, {"role": "tool", "tool_call_id": "c", "content": "4"}], "y", [1, 2, 3, 4, 5], [6], reward=1.0),
    ]
    if is_streamed:
        for record in records:
            record["response"] = in_chunks(record["response"], [1])
    path = data.draw(st.sampled_from([path for path in paths(records) if path]))
    place(records, path[:-1])[path[-1]] = data.draw(JSON)
    try:
        imported = from_requests(records, vocab_size=100)
    except InvalidRecord as error:
        assert "record " in str(error) or "no reply has token ids" in str(error)
        return
    for record in imported.trajectory.contexts.values():
        assert all(isinstance(message, Message) for message in record.messages)
    if not any(note.kind == "no_logprobs" for note in imported.notes):
        is_sound(imported)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "embedded"}, "without renderer="),
        ({"renderer": 5}, "renderer is 5"),
        ({"protocol": "grpc"}, "protocol is 'grpc'"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"vocab_size": 7, "renderer": RENDERER}, "vocab_size is 7, but"),
        ({"temperature": -1}, "temperature is -1"),
        ({"status": "done"}, "status is 'done'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        from_requests([], **options)


@pytest.mark.parametrize("records", [{"request": {}}, "text", 5])
def test_records_have_to_be_a_list(records: Any):
    with pytest.raises(InvalidRecord, match="expected the records of one session"):
        from_requests(records)


# ATIF.


def through_json(trajectory: Trajectory, **options: Any) -> Any:
    return json.loads(json.dumps(to_atif(trajectory, **options)))


@pytest.mark.parametrize("original", [*all_kinds(), test_atif.nested()], ids=lambda trajectory: trajectory.env)
def test_what_was_exported_is_imported(original: Trajectory):
    imported = from_atif(through_json(original))
    trajectory = is_sound(imported)
    assert imported.notes == () and imported.sft == []
    assert (trajectory.id, trajectory.seed, trajectory.status, trajectory.stop_reason) == (
        original.id,
        original.seed,
        original.status,
        original.stop_reason,
    )
    assert trained(sorted(trajectory.samples(), key=by_context)) == trained(sorted(original.samples(), key=by_context))
    assert list(trajectory.contexts) == list(original.contexts)
    for name, log in trajectory.contexts.items():
        theirs = original.contexts[name]
        assert (log.role, log.parent, log.tools, log.stop_reason, log.error) == (
            theirs.role,
            theirs.parent,
            theirs.tools,
            theirs.stop_reason,
            theirs.error,
        )
        assert trajectory.reward_of(name) == original.reward_of(name)
        mine = [step for step in trajectory.steps if step.context == name]
        others = [step for step in original.steps if step.context == name]
        assert [
            (s.break_ and (s.break_.kind, s.break_.reason, s.break_.detail), s.reward, s.rewards) for s in mine
        ] == [
            (s.break_ and (s.break_.kind, s.break_.reason, s.break_.detail or None), s.reward, s.rewards)
            for s in others
        ] or name


def by_context(sample: Sample) -> str:
    return sample.context


def step(source: str, message: str, **fields: Any) -> dict[str, Any]:
    return {"source": source, "message": message, **fields}


def sampled(prompt: Sequence[int], tokens: Sequence[int]) -> dict[str, Any]:
    return {
        "metrics": {
            "prompt_token_ids": list(prompt),
            "completion_token_ids": list(tokens),
            "logprobs": [-0.5] * len(tokens),
        }
    }


def document(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    numbered = [{"step_id": number, **one} for number, one in enumerate(steps, start=1)]
    agent = {"name": "terminus-2", "version": "2.0.0", "model_name": "qwen3"}
    return {"schema_version": "ATIF-v1.7", "session_id": "run-1", "agent": agent, "steps": numbered, **fields}


def observing(text: str, **more: Any) -> dict[str, Any]:
    return {"observation": {"results": [{"content": text, **more}]}}


def test_a_document_of_another_tool_becomes_a_trajectory():
    call = {"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "ls"}}
    imported = from_atif(
        document(
            step("system", "Use the shell."),
            step("user", "List the files."),
            step(
                "agent",
                "I look.",
                reasoning_content="Hm.",
                tool_calls=[call],
                **sampled([1, 2, 3], [4, 5, 6]),
                **observing("a.txt", source_call_id="c1"),
            ),
            step("agent", "A terminal.", **sampled([1, 2, 3, 5, 6, 7], [8, 9]), **observing("$ ")),
            step("agent", "Done.", **sampled([1, 2, 3, 5, 6, 7, 8, 9, 10], [11])),
        ),
        reward=0.5,
    )
    trajectory = is_sound(imported)
    assert imported.notes == ()
    assert (trajectory.id, trajectory.env, trajectory.reward, trajectory.status) == (
        "run-1",
        "terminus-2",
        0.5,
        "terminated",
    )
    assert [m.role for m in trajectory.contexts["main"].messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert [(break_.reason, break_.kept) for break_ in trajectory.breaks] == [("thinking_stripped", 3)]
    assert [sample.tokens.tolist() for sample in trajectory.samples()] == [
        [1, 2, 3, 4, 5, 6],
        [1, 2, 3, 5, 6, 7, 8, 9, 10, 11],
    ]


def test_sub_agents_have_their_lineage_and_their_parent_is_one_sample():
    child = document(
        step("user", "The task.", is_copied_context=True),
        step("agent", "I delegate.", is_copied_context=True),
        step("user", "Summarize."),
        step("agent", "A summary.", **sampled([1, 2, 3, 20], [21])),
        trajectory_id="sub-1",
    )
    child["agent"]["name"] = "summarizer"
    root = document(
        step("user", "The task."),
        step(
            "agent",
            "I delegate.",
            **sampled([1, 2], [3]),
            observation={"results": [{"content": None, "subagent_trajectory_ref": [{"trajectory_id": "sub-1"}]}]},
        ),
        step("user", "Its result."),
        step("agent", "Done.", **sampled([1, 2, 3, 4], [5])),
        subagent_trajectories=[child],
    )
    imported = from_atif(root, trainable_roles=None)
    trajectory = is_sound(imported)
    assert [(name, log.role, log.parent) for name, log in trajectory.contexts.items()] == [
        ("main", "main", None),
        ("main/sub-1", "summarizer", "main"),
    ]
    assert [(s.context, s.base, s.keep) for s in trajectory.steps] == [
        ("main", "main", 0),
        ("main/sub-1", "main", 3),
        ("main", "main", 3),
    ]
    assert [(b.kind, b.reason) for b in trajectory.breaks] == [("switch", "handoff"), ("switch", "return")]
    assert [s.tokens.tolist() for s in trajectory.samples()] == [[1, 2, 3, 4, 5], [1, 2, 3, 20, 21]]
    assert [s.role for s in from_atif(root, trainable_roles=["main"]).trajectory.samples()] == ["main"]


def test_copied_steps_are_not_trained():
    copied = step("agent", "Earlier.", is_copied_context=True, **sampled([1], [2, 3]))
    imported = from_atif(document(step("user", "Hi"), copied, step("agent", "Now.", **sampled([1, 2, 3, 4], [5]))))
    (sample,) = is_sound(imported).samples()
    assert sample.mask.tolist() == [False] * 4 + [True] and imported.notes == ()


def test_a_document_without_prompts_becomes_supervised_samples():
    imported = from_atif(through_json(kept(), prompt_ids=False), renderer="qwen3", tokenizer="embedded")
    assert imported.trajectory.steps == [] and imported.trajectory.reward_of("main") == kept().reward
    assert {note.kind for note in imported.notes} == {"no_ids"} and len(imported.notes) == len(kept().steps)
    assert imported.notes[0].where == "documents[0].steps[2]"
    texts = "".join(RENDERER.tokenizer.decode(sample.tokens[sample.mask]) for sample in imported.sft)
    assert texts.count("<|im_end|>") == len(kept().steps)
    with pytest.raises(InvalidRecord, match="no reply has the token ids"):
        from_atif(through_json(kept(), prompt_ids=False))


def test_ids_of_several_calls_and_documents_elsewhere_are_notes():
    reference = {"subagent_trajectory_ref": [{"trajectory_path": "sub.json"}]}
    imported = from_atif(
        document(
            step("user", "Hi"),
            step("agent", "Two calls.", llm_call_count=2, **sampled([1], [2, 3]), observation={"results": [reference]}),
            step("agent", "A rule.", llm_call_count=0),
            step("user", "Go on"),
            step("agent", "Now.", **sampled([1, 2, 3, 4], [5])),
        )
    )
    assert [note.kind for note in imported.notes] == ["no_ids", "left_out", "no_sft"]
    assert [sample.mask.tolist() for sample in is_sound(imported).samples()] == [[False] * 4 + [True]]


ATIF_BAD: list[tuple[tuple[Any, ...], Any, str]] = [
    (("schema_version",), "ATIF-v2.0", "document.schema_version is 'ATIF-v2.0'"),
    (("steps",), [], "document.steps is a list of 0; expected at least one step"),
    (("agent",), None, "document.agent is missing"),
    (("steps", 0), 7, r"document\.steps\[0\] is 7; expected an object"),
    (("steps", 0, "source"), "boss", r"document\.steps\[0\]\.source is 'boss'"),
    (("steps", 0, "message"), None, r"document\.steps\[0\]\.message is missing"),
    (("steps", 0, "message"), [{"type": "video"}], r"document\.steps\[0\]\.message\[0\]\.type is 'video'"),
    (("steps", 1, "metrics", "prompt_token_ids"), [-1], r"steps\[1\]\.metrics\.prompt_token_ids: token -1"),
    (("steps", 1, "metrics", "completion_token_ids"), ["x"], r"completion_token_ids\[0\] is 'x'"),
    (("steps", 1, "metrics", "logprobs"), [-1.0], r"metrics\.logprobs: logprobs have shape \(1,\)"),
    (("steps", 1, "tool_calls"), [{}], r"steps\[1\]\.tool_calls\[0\]\.arguments is missing"),
    (("steps", 1, "extra"), {"temperatures": ["hot"]}, r"extra\.temperatures\[0\] is 'hot'"),
    (("subagent_trajectories",), [{}], "document.subagent_trajectories is a list of 1; expected documents with"),
    (("final_metrics",), {"extra": {"stop_reason": "bored"}}, r"extra\.stop_reason is 'bored'"),
]


@pytest.mark.parametrize(("path", "value", "message"), ATIF_BAD)
def test_an_error_names_the_document_the_step_and_the_field(path: tuple[Any, ...], value: Any, message: str):
    damaged = document(step("user", "Hi"), step("agent", "Hello", **sampled([1, 2], [3, 4])))
    place(damaged, path[:-1])[path[-1]] = value
    with pytest.raises(InvalidRecord, match=message):
        from_atif(damaged, vocab_size=100)


@settings(deadline=None)
@given(data=st.data())
def test_any_damaged_document_is_an_error_or_a_sound_trajectory(data: st.DataObject):
    whole = through_json(data.draw(st.sampled_from([truncated(), delegated(), stripped(), played()])))
    path = data.draw(st.sampled_from([path for path in paths(whole) if path and "prompt_token_ids" not in path[:-1]]))
    place(whole, path[:-1])[path[-1]] = data.draw(JSON)
    with contextlib.suppress(InvalidRecord):
        imported = from_atif(whole)
        if not any(note.kind == "no_logprobs" for note in imported.notes):
            is_sound(imported)
