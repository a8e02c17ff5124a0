"""Policies as texts, as the command line takes them."""

from typing import Any

import pytest

from envsdk import Env, Message, Turn, rollout
from envsdk.errors import ConfigError, UnknownName
from envsdk.policies import VLLM, OpenAIChat, SGLang, policy_of


@pytest.mark.parametrize("name", ["random", "reference", "null"])
def test_a_built_in_policy_is_its_name(name):
    assert policy_of(name) == name


@pytest.mark.parametrize(("kind", "policy"), [("vllm", VLLM), ("sglang", SGLang), ("openai", OpenAIChat)])
def test_a_policy_on_a_server_is_its_kind_and_url(kind, policy):
    found: Any = policy_of(f"{kind}:http://localhost:8000/v1", model="m")
    assert isinstance(found, policy) and found.model == "m"


def test_several_urls_are_separated_by_commas():
    assert repr(policy_of("vllm:http://a:1,http://b:2")) == "VLLM(http://a:1, http://b:2, model=None)"


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        ("vlm:http://a", {}, UnknownName, "Did you mean"),
        ("greedy", {}, UnknownName, "No policy is named 'greedy'"),
        ("vllm", {}, ConfigError, "has no URL"),
        ("vllm:", {}, ConfigError, "has no URL"),
        ("vllm:localhost:8000", {}, ConfigError, "expected an HTTP URL"),
        ("vllm:http://a", {"temprature": 1}, ConfigError, "temprature"),
        ("openai:http://a", {}, ConfigError, "model"),
        ("random", {"model": "m"}, ConfigError, "has no options"),
        ("transformers:", {}, ConfigError, "has no folder; expected transformers:FOLDER"),
    ],
)
def test_a_text_that_is_not_a_policy_is_an_error(text, options, error, message):
    with pytest.raises(error, match=message):
        policy_of(text, **options)


def test_the_reference_reply_of_an_environment_may_have_its_reasoning_between_tags():
    class Sum(Env):
        def start(self) -> Turn:
            return Turn("2+2?")

        def reference_reply(self) -> str:
            return "<think>Two and two.</think>4"

        def respond(self, reply: Message) -> Turn:
            return Turn(terminated=True, reward=float(reply.reasoning == "Two and two." and reply.content == "4"))

    assert rollout(Sum(renderer="qwen3"), "reference").reward == 1.0
