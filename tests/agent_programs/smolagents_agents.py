"""`smolagents`: an agent that calls tools, one that writes code, planning, and a managed agent."""

from typing import Any

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

from envsdk.gateway import Endpoint

from .cases import TWO_AGENTS, Case, own
from .replies import LOOK, TEXT_AND_CALL, TWO_CALLS, said


@tool
def get_weather(city: str, unit: str = "c") -> str:
    """The weather in a city.

    Args:
        city: The city.
        unit: The unit.
    """
    return f" sunny in {city} \n"


@tool
def add(a: float, b: float) -> float:
    """The sum of two numbers.

    Args:
        a: A number.
        b: Another.
    """
    return a + b


def model_of(model: Endpoint) -> Any:
    return OpenAIModel(model_id="m", api_base=model.base_url, api_key=model.api_key)


def tools(model: Endpoint, *, again: bool = True, **options: Any) -> float:
    """Two tasks; the second goes on where the first ended."""
    agent = ToolCallingAgent([get_weather, add], model_of(model), verbosity_level=0, max_steps=8, **options)
    answers = [agent.run("Weather, and 100 + 3.5?")]
    if again:
        answers.append(agent.run("Again, please.", reset=False))
    return float(answers == [" The answer is 103.5 \n", "東京"][: len(answers)])


def code(model: Endpoint, **options: Any) -> float:
    agent = CodeAgent([get_weather, add], model_of(model), verbosity_level=0, max_steps=8, **options)
    return float(agent.run("Weather, and 1 + 2?") == "done 3")


def managed(model: Endpoint) -> float:
    """An agent that another one calls like a tool."""
    asked = model_of(model)
    helper = ToolCallingAgent([add], asked, name="helper", description="Does sums", verbosity_level=0)
    main = ToolCallingAgent([get_weather], asked, managed_agents=[helper], verbosity_level=0)
    return float(main.run("Weather, and 1 + 2?") == "three")


def exhausted(model: Endpoint) -> float:
    """After the last step, the framework asks for an answer with other instructions."""
    agent = ToolCallingAgent([get_weather, add], model_of(model), verbosity_level=0, max_steps=2)
    return float(agent.run("Weather, and 100 + 3.5?") == "It is sunny.")


ANSWERED = said("", ("final_answer", '{"answer" : " The answer is 103.5 \\n"}'), thinking="fin")
AGAIN = said("", ("final_answer", '{"answer" : "\\u6771京"}'))
PLAN = said(" Here is a plan:\n1. Do it. \n<end_plan>")
CODE = (
    said("\nThought: I will compute.  \n<code>\nx = add(a=1,  b=2)\nprint(x)\n</code>\n\n", thinking="code think"),
    said("Thought: again\n<code>\ny = get_weather(city='Zürich')\nprint(y)\n</code>", thinking="again"),
    said("There is no code here at all. "),
    said("Thought: finish\n<code>\nfinal_answer('done 3')\n</code>"),
)
MANAGED = {
    "Sum of one and two": (
        said("", ("add", '{"b":2,"a":1}'), thinking="sum"),
        said("", ("final_answer", '{"answer":"three"}')),
    ),
    "": (
        said("", ("helper", '{"task" : "Sum of one and two", "additional_args": {}}'), thinking="delegate"),
        said("", ("final_answer", '{"answer" : "three"}')),
    ),
}

CASES = [
    Case("smolagents: tools", tools, {"": (LOOK, TWO_CALLS, TEXT_AND_CALL, ANSWERED, AGAIN)}),
    Case(
        "smolagents: tools, streamed",
        lambda model: tools(model, stream_outputs=True),
        {"": (LOOK, TWO_CALLS, TEXT_AND_CALL, ANSWERED, AGAIN)},
    ),
    Case(
        "smolagents: tools with planning",
        lambda model: tools(model, again=False, planning_interval=2),
        {
            "Below I will present you a task": (PLAN,),
            "Find the task and history below": (PLAN,),
            "": (LOOK, TWO_CALLS, TEXT_AND_CALL, ANSWERED),
        },
        {"main": "side", "main/agent-1": "main", "main/side-1": "side"},  # the first plan; the steps; the second plan
        (own("main/agent-1"), own("main/side-1")),
        samples=3,
    ),
    Case("smolagents: code", code, {"": CODE}),
    Case("smolagents: code, streamed", lambda model: code(model, stream_outputs=True), {"": CODE}),
    Case("smolagents: managed agent", managed, MANAGED, TWO_AGENTS, [own("main/agent-1")], 2),
    Case(
        "smolagents: no steps left",
        exhausted,
        {"An agent tried to answer": (said("It is sunny."),), "": (LOOK, TWO_CALLS)},
        {"main": "main", "main/side-1": "side"},
        [("main/side-1", "switch handoff", "from main")],
        samples=2,
    ),
]
