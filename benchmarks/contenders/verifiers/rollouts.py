"""Episodes of verifiers: an agent with a harness that runs inside the process, which its documentation allows.

Its own harnesses start a process for each episode. Model calls go to the interception server, as they must.
"""

import asyncio
from typing import Any

import httpx
from verifiers.v1.agent import Agent
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.harnesses.null import NullHarness, NullHarnessConfig
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig
from verifiers.v1.task import Task, TaskData

from benchmarks.contender import Repetition, contender
from benchmarks.retained import retained_bytes
from benchmarks.talks import QUESTION, STEPS, answered, begun, parsed, seconds_per_step

from .engine import MODEL, Engine, config, script, server_of
from .samples import PACKAGES


class Conversation(NullHarness):
    """A program that sends each reply back, with the user's answer."""

    http: httpx.AsyncClient
    before: int

    async def setup(self, runtime: Any) -> None:
        """There is nothing to install."""

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: TaskData,
        tool_interception_url: str | None = None,
    ) -> ProgramResult:
        """Talk up to the last step."""
        messages: list[Any] = [*begun(self.before)]
        headers = {"Authorization": f"Bearer {secret}"}
        for step in range(self.before, STEPS):
            body = {"model": MODEL, "messages": messages}
            response = await self.http.post(f"{endpoint}/chat/completions", json=body, headers=headers)
            response.raise_for_status()
            messages += [response.json()["choices"][0]["message"], {"role": "user", "content": answered(step)}]
        return ProgramResult(exit_code=0, stdout="", stderr="")


async def rolled(engine: Engine, episodes: int, before: int = 0) -> list[Any]:
    """Return the traces of the finished episodes."""
    agent_config = AgentConfig(
        harness=NullHarnessConfig(id="null"), model=MODEL, client=config(), runtime=SubprocessConfig()
    )
    limits = httpx.Limits(max_connections=None)
    async with server_of(engine) as server, httpx.AsyncClient(timeout=None, limits=limits) as http:
        agent = Agent(agent_config, interception=server)
        harness = Conversation(agent_config.harness)
        harness.http, harness.before = http, before
        agent.harness = harness
        tasks = [Task(TaskData(idx=index, prompt=QUESTION)) for index in range(episodes)]
        return await asyncio.gather(*(agent.run(task) for task in tasks))


@contender(
    "rollouts",
    "verifiers",
    packages=PACKAGES,
    note="`Agent.run` with a harness inside the process, one interception server, and `TrainClient` with renderers' "
    "`Qwen3Renderer`; its engine answers inside the process",
)
def rollouts(size: str) -> Repetition:
    """Roll out episodes of 200 steps."""
    parameters = parsed(size)
    seconds, episodes, before = parameters

    def repetition() -> float:
        replies = script()
        return seconds_per_step(rolled(Engine(replies, seconds), episodes, before), replies, parameters)

    return repetition


@contender("trajectory-memory", "verifiers", packages=PACKAGES, note="the nodes of the trace that `Agent.run` returns")
def memory(steps: int) -> Repetition:
    """Keep one episode."""

    def repetition() -> float:
        [trace] = asyncio.run(rolled(Engine(script(), 0.0), 1))
        if sum(node.sampled for node in trace.nodes) != steps:
            raise ValueError(f"the episode has another length: {trace.errors}")
        return retained_bytes(trace.nodes)

    return repetition
