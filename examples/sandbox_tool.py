"""A tool that runs the model's programs in a sandbox, and a failed program whose error the model reads.

Run it with `python examples/sandbox_tool.py`. The sandbox needs Linux.
"""

import envsdk
from envsdk import Message, ToolEnv, Turn, tool
from envsdk.sandbox import SandboxLimits, arun_python

LIMITS = SandboxLimits(timeout_s=5, memory_mib=256, output_kib=4)
PROGRAMS = ("print(sum(range(1000)", "print(sum(range(1000)))")  # the first one lacks a parenthesis


class SumUp(ToolEnv):
    """Add the numbers below a limit, with a program."""

    def start(self) -> Turn:
        """Ask."""
        return Turn("What is the sum of the integers from 0 to 999?")

    @tool
    async def run_python(self, code: str) -> str:
        """Run a Python program and return what it prints, and its errors.

        Args:
            code: The whole program.
        """
        return (await arun_python(code, limits=LIMITS)).report()

    def finish(self, reply: Message) -> Turn:
        """Score the answer, which is a reply without a call."""
        return Turn(reward=float(reply.content.strip() == "499500"), terminated=True)

    def reference_reply(self) -> Message:
        """Run both programs, and answer with what the second one printed."""
        replies = sum(message.role == "assistant" for message in self.messages())
        if replies < len(PROGRAMS):
            return Message.calling("run_python", {"code": PROGRAMS[replies]})
        return Message(role="assistant", content=self.messages()[-1].content)


def main() -> None:
    """Play one episode, and print each result of the tool."""
    env = SumUp(renderer="qwen3", tokenizer="embedded")
    trajectory = envsdk.rollout(env, "reference", seed=0)
    for message in env.messages():
        if message.role == "tool":
            print(f"tool: {message.content.splitlines()[-1]}")
    print(f"reward {trajectory.reward:g} after {len(trajectory.steps)} steps")


if __name__ == "__main__":
    main()
