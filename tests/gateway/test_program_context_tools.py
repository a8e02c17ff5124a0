"""Agent programs whose model has context tools, which the program never sees."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import openai
import pytest
import soundness
from hypothesis import given, settings
from hypothesis import strategies as st

import envsdk
from envsdk import Action, Message, ToolCall, Trajectory, rollout
from envsdk.errors import ConfigError
from envsdk.gateway import Endpoint, ProgramEnv

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
SYSTEM = {"role": "system", "content": "Be brief."}
ALL = ("fold", "note", "recall")
LONG = "It was a long story about apples. " * 20


def calling(*calls: ToolCall, content: str = "") -> Message:
    return Message(role="assistant", content=content, reasoning="Hm.", tool_calls=calls)


FOLD = calling(ToolCall(name="fold", arguments={"summary": "Apples."}), content="I fold now.")
NOTE = calling(ToolCall(name="note", arguments={"text": "seven apples"}))
RECALL = calling(ToolCall(name="recall", arguments={"query": "pears blue"}))
LOOKS = calling(ToolCall(name="look"))
BLUE = Message(role="assistant", content="Blue.")


class Asking(ProgramEnv):
    """Sends some messages one after the other, each with all before it, and records what it receives."""

    def __init__(self, said: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self.said, self.given = said, list[Any]()
        self.edits: dict[int, int] = {}
        self.is_streamed = False
        self.tools: list[Any] = [LOOK]

    def run(self, model: Endpoint) -> float:
        self.given = []
        messages: list[Any] = [SYSTEM]
        with openai.OpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client:
            for number, text in enumerate(self.said):
                messages.append({"role": "user", "content": text})
                if self.edits.get(number, len(messages)) < len(messages):  # the program drops a message of the past
                    del messages[self.edits[number]]
                reply = self.asked(client, messages)
                self.given.append(reply)
                messages.append(reply)
                if reply.get("tool_calls"):
                    call_id = reply["tool_calls"][0]["id"]
                    messages.append({"role": "tool", "tool_call_id": call_id, "content": "A pear."})
        return 1.0

    def asked(self, client: openai.OpenAI, messages: Any) -> dict[str, Any]:
        options: Any = {"tools": self.tools} if self.tools else {}
        if not self.is_streamed:
            completion = client.chat.completions.create(model="any", messages=messages, **options)
            return completion.choices[0].message.model_dump(exclude_none=True)
        text, calls = "", list[Any]()
        for event in client.chat.completions.create(model="any", messages=messages, stream=True, **options):
            for choice in event.choices:
                text += choice.delta.content or ""
                calls += choice.delta.tool_calls or ()
        assert not calls
        return {"role": "assistant", "content": text}


def played(env: Asking, replies: Sequence[Message]) -> Trajectory:
    left = itertools.chain(replies, itertools.repeat(BLUE))

    def policy(prompt: Any, **_: Any) -> Action:
        tokens = env.renderer.reply(next(left))
        return Action(tokens, np.full(len(tokens), -0.5))

    policy.tokenizer = "any"  # type: ignore[attr-defined]
    trajectory = rollout(env, policy, seed=0)
    soundness.check(trajectory)
    return trajectory


def breaks(trajectory: Trajectory) -> list[str]:
    return [step.break_.reason for step in trajectory.steps if step.break_]


def texts(trajectory: Trajectory, env: Asking) -> list[str]:
    return [env.renderer.tokenizer.decode(prompt.prompt) for prompt in trajectory.prompts()]


def test_a_program_does_not_see_the_calls_of_context_tools():
    env = Asking([LONG, "And now?", "And then?"], context_tools=ALL)
    trajectory = played(env, [NOTE, BLUE, LOOKS, FOLD, RECALL, BLUE])
    assert [reply.get("content") or "" for reply in env.given] == ["Blue.", "", "Blue."]
    assert [bool(reply.get("tool_calls")) for reply in env.given] == [False, True, False]
    assert [*trajectory.contexts] == ["main"] and breaks(trajectory) == ["fold"]
    last = texts(trajectory, env)[-1]
    assert "[step 2, you] Blue." in last
    assert "I fold now." in last and "Your notes so far:\n1. seven apples" in last


def test_a_request_after_a_fold_continues_the_context():
    env = Asking([LONG, "Two.", "Three.", "Four."], context_tools=ALL)
    trajectory = played(env, [BLUE, FOLD, BLUE, BLUE, FOLD, BLUE])
    assert ([*trajectory.contexts], breaks(trajectory)) == (["main"], ["fold", "fold"])
    last = texts(trajectory, env)[-1]
    assert last.count("I fold now.") == 2 and "Two." not in last and last.count("Blue.") == 0


@pytest.mark.parametrize("dropped", [1, 2, 3])
def test_a_program_may_edit_what_its_model_has_folded(dropped: int):
    env = Asking([LONG, "Two.", "Three.", "Four."], context_tools=ALL)
    env.edits = {3: dropped}
    trajectory = played(env, [BLUE, BLUE, FOLD, BLUE, BLUE])
    plain = Asking(env.said)
    plain.edits = env.edits
    expected = played(plain, [BLUE, BLUE, BLUE, BLUE])
    assert [*trajectory.contexts] == [*expected.contexts]
    assert [reason for reason in breaks(trajectory) if reason != "fold"] == breaks(expected)
    last = texts(trajectory, env)[-1]
    assert "Three." in last or "Four." in last
    assert (LONG[:30] in last) == (dropped != 1)


def test_notes_survive_the_edits_of_a_program():
    env = Asking(["One.", "Two.", "Three.", "Four."], context_tools=ALL)
    env.edits = {2: 2, 3: 2}
    trajectory = played(env, [NOTE, BLUE, BLUE, BLUE])
    assert breaks(trajectory)
    assert all("seven apples" in text for text in texts(trajectory, env)[1:])


@pytest.mark.parametrize("tools", [[LOOK], []], ids=["with tools", "without tools"])
def test_a_stream_has_nothing_of_hidden_calls(tools: list[Any]):
    env = Asking([LONG, "Two."], context_tools=ALL)
    env.is_streamed, env.tools = True, tools
    played(env, [NOTE, BLUE, FOLD, BLUE])
    assert [reply["content"] for reply in env.given] == ["Blue.", "Blue."]


def test_calls_of_the_program_next_to_context_tools_are_not_run():
    env = Asking([LONG, "Two."], context_tools=ALL)
    both = calling(*NOTE.tool_calls, *LOOKS.tool_calls)
    trajectory = played(env, [both, LOOKS, BLUE])
    assert [bool(reply.get("tool_calls")) for reply in env.given] == [True, False]
    assert "it was not run: call it again" in texts(trajectory, env)[1]


def test_at_a_limit_the_program_gets_the_reply_without_the_hidden_call():
    env = Asking([LONG, "Two.", "Three."], context_tools=ALL, limits={"max_steps": 2})
    trajectory = played(env, [BLUE, FOLD])
    assert (trajectory.stop_reason, len(trajectory.steps)) == ("max_steps", 2)
    assert [(reply["content"], reply.get("tool_calls")) for reply in env.given[1:]] == [("I fold now.", None)]


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"Asking has the context tool 'branch'.* leave it out"):
        Asking([], context_tools=["branch"])
    env = Asking(["One."], context_tools=["note"])
    env.tools = [{"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}]
    with pytest.raises(ConfigError, match="the program has a tool of its own named 'note'"):
        played(env, [])


REPLIES = st.sampled_from([BLUE, BLUE, BLUE, FOLD, NOTE, RECALL, LOOKS, calling(*FOLD.tool_calls, *NOTE.tool_calls)])
HISTORIES: list[Any] = ["keep", "strip", "compact:every=2", {"name": "budget", "max_tokens": 900, "order": ("oldest",)}]


@settings(max_examples=settings.default.max_examples // 2, deadline=None)
@given(
    st.lists(REPLIES, max_size=8),
    st.dictionaries(st.integers(1, 4), st.integers(1, 5), max_size=2),
    st.sampled_from(HISTORIES),
)
def test_any_mixture_is_sound(replies: list[Message], edits: dict[int, int], history: Any):
    env = Asking([LONG, "Two.", "Three.", "Four.", "Five."], context_tools=ALL, history=history)
    env.edits = edits
    trajectory = played(env, replies)
    hidden = ("fold", "note", "recall", "Apples")
    assert all(word not in str(reply) for reply in env.given for word in hidden)
    assert envsdk.Trajectory.from_json(trajectory.to_json()).to_json() == trajectory.to_json()
