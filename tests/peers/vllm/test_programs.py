"""Agent programs on a real vLLM, through the gateway: what is trained is what the server sampled."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import agents
import anthropic
import httpx
import openai
import pydantic_ai
import pytest
import smolagents
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from soundness import check
from vllm_checks import check_logprobs, check_tokens, samples_of
from vllm_server import MODEL_NAME, VLLMServer

from envsdk.gateway import Endpoint, ProgramEnv
from envsdk.rollouts import rollout_many
from envsdk.rollouts._stored_run import StoredRun

pytestmark = pytest.mark.filterwarnings("default")

EPISODES = 16
MAX_TOKENS = 16
QUESTIONS = ("What is your name?", "Which color has the sky?", "How many days has a week?")
SYSTEM = "You are a helpful assistant."
SUB_SYSTEM = "You count words."
ADD: Mapping[str, Any] = {
    "name": "add",
    "description": "Add two numbers",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
}
agents.set_tracing_disabled(True)


class OpenAIChat(ProgramEnv):
    """Three questions in one conversation, with the `openai` package."""

    async def run(self, model: Endpoint) -> float:
        messages: list[Any] = [{"role": "system", "content": SYSTEM}]
        async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:
            for question in QUESTIONS:
                messages.append({"role": "user", "content": question})
                completion = await client.chat.completions.create(
                    model=model.model, messages=messages, max_tokens=MAX_TOKENS
                )
                messages.append(completion.choices[0].message)
        return float(len(messages[-1].content))


class OpenAIResponses(ProgramEnv):
    """The same in Responses, streamed; each response names the one before."""

    def run(self, model: Endpoint) -> float:
        previous: dict[str, Any] = {}
        with openai.OpenAI(base_url=model.base_url, api_key=model.api_key) as client:
            for question in QUESTIONS:
                with client.responses.stream(
                    model=model.model, input=question, instructions=SYSTEM, max_output_tokens=MAX_TOKENS, **previous
                ) as stream:
                    for event in stream:
                        if event.type in ("response.completed", "response.incomplete"):
                            previous = {"previous_response_id": event.response.id}
        return 1.0


class AnthropicChat(ProgramEnv):
    """The same with the `anthropic` package, streamed, with thinking blocks."""

    def run(self, model: Endpoint) -> float:
        messages: list[Any] = []
        with anthropic.Anthropic(base_url=model.anthropic_base_url, api_key=model.api_key) as client:
            for question in QUESTIONS:
                messages.append({"role": "user", "content": question})
                with client.messages.stream(
                    model=model.model,
                    system=SYSTEM,
                    messages=messages,
                    max_tokens=MAX_TOKENS,
                    thinking={"type": "enabled", "budget_tokens": 1024},
                ) as stream:
                    messages.append({"role": "assistant", "content": stream.get_final_message().content})
        return 1.0


class OpenAITools(ProgramEnv):
    """An agent with a tool, and a sub-agent whose reply is in its second question."""

    async def run(self, model: Endpoint) -> float:
        async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as self._client:
            main: list[Any] = [{"role": "system", "content": SYSTEM}]
            text = await self._ask(main, "Add 1 and 2.")
            counted = await self._ask([{"role": "system", "content": SUB_SYSTEM}], f"Count: {text}")
            await self._ask(main, f"The sub-agent says: {counted}. Continue.")
        return 1.0

    async def _ask(self, messages: list[Any], question: str) -> str:
        tools: Any = [{"type": "function", "function": ADD}] if messages[0]["content"] == SYSTEM else openai.omit
        messages.append({"role": "user", "content": question})
        for _ in range(2):
            completion = await self._client.chat.completions.create(
                model="m", messages=messages, tools=tools, max_completion_tokens=MAX_TOKENS
            )
            message = completion.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in message.tool_calls]
        return message.content or ""


class AnthropicTools(ProgramEnv):
    """The same with the `anthropic` package."""

    def run(self, model: Endpoint) -> float:
        with anthropic.Anthropic(base_url=model.anthropic_base_url, api_key=model.api_key) as self._client:
            main: list[Any] = []
            tool = {"name": "add", "description": ADD["description"], "input_schema": ADD["parameters"]}
            text = self._ask(main, SYSTEM, "Add 1 and 2.", [tool])
            counted = self._ask([], SUB_SYSTEM, f"Count: {text}", [])
            self._ask(main, SYSTEM, f"The sub-agent says: {counted}. Continue.", [tool])
        return 1.0

    def _ask(self, messages: list[Any], system: str, question: str, tools: Any) -> str:
        messages.append({"role": "user", "content": question})
        for _ in range(2):
            reply = self._client.messages.create(
                model="m", system=system, messages=messages, tools=tools, max_tokens=MAX_TOKENS
            )
            messages.append({"role": "assistant", "content": reply.content})
            calls = [block for block in reply.content if block.type == "tool_use"]
            if not calls:
                break
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "3"} for call in calls]
            messages.append({"role": "user", "content": results})
        return "".join(block.text for block in reply.content if block.type == "text")


@agents.function_tool
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


class OpenAIAgents(ProgramEnv):
    """Two agents of `openai-agents`; the first has a tool, and goes on with what the second said."""

    async def run(self, model: Endpoint) -> float:
        async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:
            asked = agents.OpenAIChatCompletionsModel(model.model, client)
            settings = agents.ModelSettings(max_tokens=MAX_TOKENS)
            main = agents.Agent(name="Main", instructions=SYSTEM, tools=[add], model=asked, model_settings=settings)
            sub = agents.Agent(name="Sub", instructions=SUB_SYSTEM, model=asked, model_settings=settings)
            first = await self._run(main, "Add 1 and 2.")
            counted = await self._run(sub, f"Count: {first.final_output if first else None}")
            if first and counted:
                more = {"role": "user", "content": f"The sub-agent says: {counted.final_output}. Continue."}
                await self._run(main, [*first.to_input_list(), more])
        return 1.0

    async def _run(self, agent: Any, question: Any) -> Any:
        """Return the result; None if the model only thought, or called an unknown tool."""
        try:
            return await agents.Runner.run(agent, question, max_turns=2)
        except (agents.MaxTurnsExceeded, agents.ModelBehaviorError):
            return None


class PydanticAI(ProgramEnv):
    """The same with `pydantic-ai`. It asks again after a reply without a text or a call."""

    async def run(self, model: Endpoint) -> float:
        async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key) as client:
            asked = OpenAIChatModel(model.model, provider=OpenAIProvider(openai_client=client))
            settings: Any = {"max_tokens": MAX_TOKENS}
            main: Any = pydantic_ai.Agent(asked, instructions=SYSTEM, model_settings=settings)
            main.tool_plain(lambda a, b: a + b, name="add", description="Add two numbers")
            sub: Any = pydantic_ai.Agent(asked, instructions=SUB_SYSTEM, model_settings=settings)
            first = await self._run(main, "Add 1 and 2.")
            counted = await self._run(sub, f"Count: {first.output if first else None}")
            if first and counted:
                question = f"The sub-agent says: {counted.output}. Continue."
                await self._run(main, question, message_history=first.all_messages())
        return 1.0

    async def _run(self, agent: Any, question: str, **options: Any) -> Any:
        """Return the result; None if the model only thought, or called an unknown tool."""
        try:
            return await agent.run(question, usage_limits=pydantic_ai.UsageLimits(request_limit=3), **options)
        except (pydantic_ai.UnexpectedModelBehavior, pydantic_ai.UsageLimitExceeded):
            return None


PROMPTS: Any = {
    "system_prompt": SYSTEM,
    "planning": {"initial_plan": "", "update_plan_pre_messages": "", "update_plan_post_messages": ""},
    "managed_agent": {"task": "{{task}}", "report": "{{final_answer}}"},
    "final_answer": {"pre_messages": SUB_SYSTEM, "post_messages": "Answer: {{task}}"},
}


class SmolAgents(ProgramEnv):
    """`smolagents` with a short prompt: two steps, then the answer that it asks for with another system message."""

    def run(self, model: Endpoint) -> float:
        asked = smolagents.OpenAIModel(
            model_id=model.model, api_base=model.base_url, api_key=model.api_key, max_tokens=MAX_TOKENS
        )

        class Add(smolagents.Tool):
            name = "add"
            description = "Add two numbers"
            inputs: Any = {name: {"type": "number", "description": "a number"} for name in ("a", "b")}  # noqa: RUF012
            output_type = "number"

            def forward(self, a: float, b: float) -> float:
                return a + b

        agent = smolagents.ToolCallingAgent(
            [Add()], asked, prompt_templates=PROMPTS, max_steps=2, verbosity_level=smolagents.LogLevel.OFF
        )
        agent.run("Add 1 and 2.")
        return float(len(json.dumps(agent.memory.get_full_steps(), default=str)))


CHATS = (OpenAIChat, OpenAIResponses, AnthropicChat)
OTHERS = (OpenAITools, AnthropicTools, OpenAIAgents, PydanticAI, SmolAgents)


@pytest.mark.parametrize("program", [*CHATS, *OTHERS], ids=lambda program: program.__name__)
def test_what_a_program_was_answered_is_what_is_trained(
    program: type[ProgramEnv], policy_of: Any, env_options: Any, transformers_model: Any, compared: Counter[str]
) -> None:
    # Without a seed: vLLM 0.32 on the CPU dies when it prefills the prompt of a seeded request in parts ("CPU Generator
    # does not use offset"), as it does when many long prompts come at once.
    policy = policy_of(max_tokens=MAX_TOKENS, seed=None)
    options = env_options(max_steps=12)
    trajectories = rollout_many(lambda: program(**options), policy, seeds=range(EPISODES), max_concurrency=EPISODES)
    assert [one.status for one in trajectories] == ["terminated"] * EPISODES, [one.error for one in trajectories]
    check(*trajectories)
    samples = samples_of(trajectories)
    assert sum(int(sample.mask.sum()) for sample in samples) == sum(one.sampled_tokens for one in trajectories)
    breaks = Counter((break_.reason, break_.detail) for one in trajectories for break_ in one.breaks)
    print(f"{len(samples)} samples; {dict(breaks)}")
    if program in CHATS:
        assert [len(one.steps) for one in trajectories] == [3] * EPISODES
        assert (len(samples), breaks) == (EPISODES, {})
    else:
        assert {log.role for one in trajectories for log in one.contexts.values()} <= {"main", "agent", "side"}
        assert max(len(one.contexts) for one in trajectories) > 1
    check_tokens(policy, samples, compared)
    with contextlib.closing(program(**options)) as env:
        check_logprobs(samples, {-1: transformers_model}, compared, renderer=env.renderer)


class ParallelConversations(ProgramEnv):
    """Conversations with different system messages, all at the same time, of two turns each."""

    conversations = 3

    async def run(self, model: Endpoint) -> float:
        async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, timeout=600.0) as client:
            await asyncio.gather(*(ask_twice(client, model.model, number) for number in range(self.conversations)))
        return 1.0


class ManyConversations(ParallelConversations):
    conversations = 50


async def ask_twice(client: openai.AsyncOpenAI, model: str, number: int) -> None:
    """One conversation, which sends its reply back."""
    messages: list[Any] = [{"role": "system", "content": f"Your name is {number}."}]
    for question in QUESTIONS[:2]:
        messages.append({"role": "user", "content": question})
        completion = await client.chat.completions.create(model=model, messages=messages, max_tokens=8)
        messages.append({"role": "assistant", "content": completion.choices[0].message.content})


@pytest.mark.parametrize("program", [ParallelConversations, ManyConversations])
def test_parallel_conversations_of_a_program_are_sampled_on_the_server(
    program: type[ParallelConversations],
    policy_of: Any,
    env_options: Any,
    transformers_model: Any,
    compared: Counter[str],
) -> None:
    policy = policy_of(seed=None)
    options = {**env_options(), "limits": {"end_on_cut": False}}
    (trajectory,) = rollout_many(lambda: program(**options), policy, seeds=[0])
    assert (trajectory.status, trajectory.error) == ("terminated", None)
    assert len(trajectory.steps) == 2 * program.conversations
    samples = samples_of([trajectory])
    assert len(samples) == program.conversations
    check_tokens(policy, samples, compared)
    check_logprobs(samples, {-1: transformers_model}, compared)


@pytest.mark.parametrize("conversations", [3, 50])
def test_parallel_conversations_in_a_session_of_the_gateway_are_sampled_on_the_server(
    conversations: int,
    vllm_server: VLLMServer,
    model_folder: Path,
    tmp_path: Path,
    transformers_model: Any,
    compared: Counter[str],
) -> None:
    policy = ("--policy", f"vllm:{vllm_server.url}", "--model", MODEL_NAME)
    options = ("--renderer", "auto", "--tokenizer", str(model_folder), "--limit", "end_on_cut=false", "--port", "0")
    command = [str(Path(sys.executable).with_name("envsdk")), "gateway", *policy, *options, "--out", "run"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout is not None
        url = gateway.stdout.readline().split()[2]
        try:
            asyncio.run(ask_in_session(httpx.post(url, json={}, timeout=60.0).json(), conversations))
        finally:
            gateway.terminate()
    (trajectory,) = StoredRun(tmp_path / "run").trajectories()
    assert len(trajectory.steps) == 2 * conversations
    check_logprobs(samples_of([trajectory]), {-1: transformers_model}, compared)


async def ask_in_session(session: dict[str, Any], conversations: int) -> None:
    async with openai.AsyncOpenAI(base_url=session["openai_base_url"], api_key=session["key"], timeout=600.0) as client:
        await asyncio.gather(*(ask_twice(client, "any", number) for number in range(conversations)))
