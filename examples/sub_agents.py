"""Parallel sub-agents: an editor asks two readers, each with a separate context, and combines their answers.

Each context is one sample, with the role and the reward of its agent. Run it with `python examples/sub_agents.py`.
"""

import envsdk
from envsdk import Env, Handoff, HandoffResult, Message, Turn

PAGES = {"bees": "A hive has 40000 bees.", "ants": "A nest has 250000 ants."}


class Reader(Env):
    """Read one page, and report the number in it."""

    def start(self) -> Turn:
        """Show the page that the task names."""
        return Turn(f"{PAGES[self.task]} How many are there? Answer with a number.")

    def respond(self, reply: Message) -> Turn:
        """Score the report."""
        return Turn(reward=float(reply.content.strip() in PAGES[self.task]), terminated=True)

    def reference_reply(self) -> str:
        """Report the number."""
        return PAGES[self.task].split()[3]


class Editor(Env):
    """Compare two pages, with the help of two readers at the same time."""

    def start(self) -> Turn:
        """Ask for a plan."""
        return Turn("Are there more bees in a hive, or more ants in a nest? Write a plan first.")

    def respond(self, reply: Message) -> Turn | list[Handoff]:
        """Send the readers after the plan; score the answer that follows."""
        if sum(message.role == "assistant" for message in self.messages()) == 1:
            # The readers' rewards stay with their own contexts: they are not added to the editor's.
            return [Handoff(Reader(), task=page, role="reader", adds_reward=False) for page in PAGES]
        return Turn(reward=float("ants" in reply.content), terminated=True)

    def resume(self, results: list[HandoffResult]) -> Turn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Show what the readers reported, in the order of the handoffs."""
        reports = [f"{page}: {result.error or result.content}" for page, result in zip(PAGES, results, strict=True)]
        return Turn("\n".join(reports))

    def reference_reply(self) -> str:
        """Plan, then answer."""
        return "more ants" if len(self.messages()) > 2 else "I ask two readers."


def main() -> None:
    """Play one episode, and print its steps and samples."""
    env = Editor(renderer="qwen3", tokenizer="embedded")
    trajectory = envsdk.rollout(env, "reference", seed=0)
    for number, step in enumerate(trajectory.steps):
        print(f"step {number} in {step.context}: {step.break_.reason if step.break_ else 'no break'}")
    for sample in trajectory.samples():
        print(f"{sample.role} has {int(sample.mask.sum())} trained tokens and reward {sample.reward}")
    print(f"the editor saw: {env.messages()[2].content!r}")


if __name__ == "__main__":
    main()
