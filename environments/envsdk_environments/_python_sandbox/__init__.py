"""Small problems that need a program, and a sandbox to run it in."""

from functools import partial
from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from envsdk import EnvConfig, Limits, Message, ToolEnv, ToolEnvConfig, Turn, tool
from envsdk.authoring import NeedsTrust
from envsdk.authoring.tasks import Split
from envsdk.sandbox import Isolation, SandboxLimits, arun_python, check_isolation

from .._scoring import TaskData, decline, end_with_verdict, last_word
from ._problems import Difficulty, Problem, random_problem

_SYSTEM = (
    "Solve the problem by running Python programs. Each program may run for {timeout_s:g} seconds and use {memory_mib} "
    "MiB of memory. When you know the answer, reply with just the number, without a tool call."
)


class PythonSandboxConfig(ToolEnvConfig):
    """The difficulty of the problems, and the limits of programs."""

    split: Split = "train"
    """No problem is in both splits."""
    difficulty: Difficulty = "medium"
    """`easy` problems need a loop, `medium` ones a well-known algorithm, `hard` ones an algorithm to be designed."""
    sandbox_limits: Annotated[SandboxLimits, NeedsTrust("isolation")] = SandboxLimits(
        timeout_s=5, cpu_s=5, memory_mib=256, output_kib=8
    )
    """The limits of each program."""
    isolation: Annotated[Isolation, NeedsTrust("isolation")] = "auto"
    """The isolation of programs from the machine; see `envsdk.sandbox`."""


class PythonSandboxTask(TaskData):
    """A problem with its answer."""

    question: str = Field(min_length=1)
    answer: str = Field(pattern=r"^\S*[^\s.]$")
    """A number, or one word."""
    solution: str | None = None
    """A program that prints the answer, for the reference policy. Without it, the policy answers without a program."""


class PythonSandbox(ToolEnv):
    """Answer a question about numbers or data that is too long to compute by hand, by running Python programs.

    Exercises: writing programs, reading their output, and fixing them. Reward: `correct`, 1 if the last word of the
    answer is right. The model reads the error of a program that fails or reaches a limit. If programs cannot be run at
    all, the episode fails. A task, if given, is `{"question": "What is 2 to the 100th power?", "answer":
    "1267650600228229401496703205376", "solution": "print(2**100)"}`.
    """

    Config: ClassVar[type[EnvConfig]] = PythonSandboxConfig
    Task: ClassVar[type[BaseModel] | None] = PythonSandboxTask
    default_limits: ClassVar[Limits] = Limits(max_steps=12, max_tool_calls=20)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    # No exception is a mistake of the model: any exception is a failure of the sandbox.
    reported_exceptions: ClassVar[tuple[type[Exception], ...]] = ()

    def start(self) -> Turn:
        """Ask the question, after a check that programs can be run here."""
        config: PythonSandboxConfig = self.config
        check_isolation(config.isolation)
        task: PythonSandboxTask | None = self.task
        if task is None:
            self.problem = random_problem(self.np_random, config.difficulty, config.split)
        else:
            self.problem = Problem(task.question, task.solution, partial(str, task.answer))
        return Turn(self.problem.question, system=_SYSTEM.format(**config.sandbox_limits.model_dump()))

    @tool
    async def run_python(self, code: str) -> str:
        """Run a Python program, and return its output and its errors.

        Each call starts fresh: variables and files from earlier calls are gone. Only the standard library is available,
        without network access and without input.

        Args:
            code: The whole program. Print everything that you want to see.
        """
        config: PythonSandboxConfig = self.config
        result = await arun_python(code, limits=config.sandbox_limits, isolation=config.isolation)
        return result.report()

    def finish(self, reply: Message) -> Turn:
        """Score the answer and end the episode."""
        answer = str(self.problem.answer())
        return end_with_verdict(last_word(reply.content).rstrip(".") == answer, answer)

    def reference_reply(self) -> Message:
        """Run the solution, and answer with its output."""
        last = self.messages()[-1]
        if last.role == "tool":
            return Message(role="assistant", reasoning="That is the answer.", content=last.content)
        if self.problem.solution is None:
            return Message(role="assistant", content=str(self.problem.answer()))
        return Message.calling("run_python", {"code": self.problem.solution}, reasoning="A program can compute this.")

    null_reply = decline
