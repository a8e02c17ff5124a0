"""The environments that verifiers tests itself with, as ours, each with a policy that solves it; and one of our own."""

import random
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

from envsdk import Message, ToolCall
from envsdk.adapters import Verifiers


def call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),))


class Echo(Verifiers):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"env": "echo_v1", **options})


class EchoTool(Verifiers):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"env": "echo_tool_v1", **options})

    def reference_reply(self) -> Any:
        return "Done." if self.messages()[-1].role == "tool" else call("echo_back", message="hello world")


class EchoUser(Verifiers):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"env": "echo_user_sim_v1", **options})

    def reference_reply(self) -> Any:
        return self.messages()[-1].content


class Duet(Verifiers):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"env": "duet_v1", **options})


class Counter(Verifiers):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"env": "counter_tool_v1", **options})

    def reference_reply(self) -> Any:
        is_done = sum(message.role == "tool" for message in self.messages()) == 3
        return "<answer>done</answer>" if is_done else call("counter_bump")


class DiceData(vf.TaskData):
    sides: int


class DiceTask(vf.Task[DiceData]):
    @vf.reward(weight=0.5)
    async def sum_of_dice(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == trace.info["sum"])

    @vf.reward(weight=0.5)
    async def polite(self, trace: vf.Trace) -> float:
        return float("please" in trace.assistant_messages[0].content)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return trace.num_turns


class DiceTaskset(vf.Taskset[DiceTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterator[DiceTask]:
        while True:
            yield DiceTask(DiceData(prompt="Ask for dice.", system_prompt="Add.", sides=random.randint(2, 20)))


class DiceEnv(vf.SingleAgentEnv):
    """Dice of the global random generator, thrown between the turns of a conversation."""

    async def run(self, task: Any, agents: Any) -> None:
        async with agents.agent.interaction(task) as interaction:
            await interaction.turn()
            dice = [random.randint(1, task.data.sides) for _ in range(2)]
            interaction.trace.info["sum"] = str(sum(dice))
            await interaction.turn(f"{dice[0]} and {dice[1]}. What is the sum?")


class Dice(Verifiers):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"env": "verifiers_environments", **options})

    def reference_reply(self) -> Any:
        words = self.messages()[-1].content.rstrip("?").replace(".", "").split()
        return "Dice, please." if words[0] == "Ask" else str(int(words[0]) + int(words[2]))


__all__ = ["DiceEnv", "DiceTaskset"]
