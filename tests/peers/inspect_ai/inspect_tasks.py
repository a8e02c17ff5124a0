"""Tasks over the data sets that inspect_ai contains, with its solvers, tools, agents and scorers; and environments."""

import random
from typing import Any

from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import FieldSpec, Sample, example_dataset
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import Score, accuracy, choice, includes, match, model_graded_fact, pattern, scorer
from inspect_ai.solver import chain_of_thought, generate, multiple_choice, self_critique, system_message, use_tools
from inspect_ai.tool import tool
from inspect_ai.util import store

from envsdk import Message, ToolCall
from envsdk.adapters import Inspect


@tool
def add() -> Any:
    async def execute(x: int, y: int) -> str:
        """Add two numbers.

        Args:
            x: The first.
            y: The second.
        """
        store().set("calls", store().get("calls", 0) + 1)
        return f"{x + y} ({random.randint(0, 999)})"

    return execute


@scorer(metrics=[accuracy()])
def calls() -> Any:
    async def score(state: Any, target: Any) -> Score:
        return Score(value={"used": min(state.store.get("calls", 0), 1), "style": "P"})

    return score


@scorer(metrics=[accuracy()])
def vague() -> Any:
    async def score(state: Any, target: Any) -> Score:
        return Score(value="maybe")

    return score


SUMS = [Sample(input=f"What is {n} + {n + 2}?", target=str(2 * n + 2)) for n in range(10, 20)]


@task
def popularity() -> Task:
    fields = FieldSpec(input="question", target="answer_matching_behavior")
    dataset = example_dataset("popularity", fields)
    dataset.shuffle()
    return Task(dataset=dataset, solver=[system_message("Answer with Yes or No."), generate()], scorer=match())


@task
def biology() -> Task:
    fields = FieldSpec(input="question", target="answer")
    return Task(dataset=example_dataset("biology_qa", fields), scorer=includes())


@task
def stories() -> Task:
    solver = [chain_of_thought(), generate(), self_critique(completion_template="{question} {completion} {critique}")]
    return Task(dataset=example_dataset("theory_of_mind"), solver=solver, scorer=includes())


@task
def choices() -> Task:
    samples = [Sample(input=f"Choose {letter}.", choices=["one", "two", "three"], target=letter) for letter in "ABC"]
    return Task(dataset=samples, solver=multiple_choice(), scorer=choice())


@task
def sums() -> Task:
    return Task(dataset=SUMS, solver=[use_tools(add()), generate()], scorer=pattern(r"^(\d+)"))


@task
def agent() -> Task:
    return Task(dataset=SUMS, solver=react(tools=[add()]), scorer=includes(), message_limit=12)


@task
def scored_twice() -> Task:
    return Task(dataset=SUMS, solver=[use_tools(add()), generate()], scorer=[includes(), calls()])


@task
def strictly_scored() -> Task:
    config = GenerateConfig(temperature=0.5, top_p=0.9, max_tokens=50)
    samples = [Sample(input="Agree.", target="yes")]
    return Task(dataset=samples, scorer=[includes(), includes(ignore_case=False)], config=config)


@task
def judged() -> Task:
    return Task(dataset=SUMS, scorer=model_graded_fact())


@task
def vaguely_scored() -> Task:
    return Task(dataset=SUMS, scorer=vague())


@task
def boxed() -> Task:
    return Task(dataset=SUMS, scorer=includes(), sandbox="docker")


class Popularity(Inspect):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"task": popularity, **options})


class Biology(Inspect):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"task": biology, **options})


class Stories(Inspect):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"task": stories, **options})


class Choices(Inspect):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"task": choices, **options})


def addition(env: Inspect) -> Any:
    """A call of the tool with the numbers of the question, and then its result."""
    messages = env.messages()
    if messages[-1].role == "tool":
        return messages[-1].content
    words = messages[-1].content.rstrip("?").split()
    call = ToolCall(name="add", arguments={"x": int(words[2]), "y": int(words[4])})
    return Message(role="assistant", tool_calls=(call,))


class Sums(Inspect):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"task": sums, **options})

    def reference_reply(self) -> Any:
        return addition(self)


class Agent(Inspect):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"task": agent, **options})

    def reference_reply(self) -> Any:
        reply = addition(self)
        if isinstance(reply, Message):
            return reply
        call = ToolCall(name="submit", arguments={"answer": reply.partition(" ")[0]})
        return Message(role="assistant", tool_calls=(call,))
