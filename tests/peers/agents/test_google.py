"""The package of Google, unchanged, in front of the gateway: chats with tools, streamed or not, and errors."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import soundness
from google import genai
from google.genai import errors, types

from envsdk import Message, rollout
from envsdk.gateway import Endpoint, ProgramEnv
from envsdk.messages import ToolCall


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CONFIG = types.GenerateContentConfig(
    tools=[add, types.Tool(google_search=types.GoogleSearch())],
    system_instruction="Be brief.",
    temperature=0.5,
    top_k=40,
    max_output_tokens=1000,
    thinking_config=types.ThinkingConfig(include_thoughts=True),
)


class Chats(ProgramEnv):
    """A chat with a tool, which the package calls itself, and with messages that are streamed."""

    def __init__(self, base: Callable[[Endpoint], str]) -> None:
        super().__init__(renderer="qwen3", tokenizer="embedded")
        self.base, self.replies = base, 0

    def run(self, model: Endpoint) -> float:
        options = types.HttpOptions(base_url=self.base(model), timeout=600_000)
        with contextlib.closing(genai.Client(api_key=model.api_key, http_options=options)) as client:
            chat = client.chats.create(model="any", config=CONFIG)
            first = chat.send_message("Add 1 and 2.")
            assert first.text == "answer 2" and first.usage_metadata is not None
            assert "".join(chunk.text or "" for chunk in chat.send_message_stream("And 3?")) == "Let me.answer 4"
            assert chat.send_message("Thanks.").text == "answer 5"
            assert client.models.get(model="any").name == "models/any"
            counted = client.models.count_tokens(model="any", contents="Hi")
            assert counted.total_tokens
            with pytest.raises(errors.ClientError) as found:
                client.models.generate_content(model="any", contents="Hi", config={"cached_content": "c"})
            assert (found.value.code, found.value.status) == (400, "INVALID_ARGUMENT")
        return 1.0

    def null_reply(self) -> Message:
        self.replies += 1
        if self.replies in (1, 3):
            calls: list[Any] = [ToolCall(name="add", arguments={"a": self.replies, "b": 2}) for _ in range(2)]
            return Message(role="assistant", content="Let me.", reasoning="Hm.", tool_calls=calls)
        return Message(role="assistant", content=f"answer {self.replies}", reasoning="So.")


@pytest.mark.parametrize("base", [lambda model: model.base_url, lambda model: model.anthropic_base_url])
def test_a_chat_of_google_is_one_context_that_only_grows(base: Callable[[Endpoint], str]) -> None:
    with contextlib.closing(Chats(base)) as env:
        trajectory = rollout(env, "null", seed=0)
    assert (trajectory.error, trajectory.reward, len(trajectory.steps)) == (None, 1.0, 5)
    assert trajectory.breaks == [] and len(trajectory.samples()) == 1
    soundness.check(trajectory)
