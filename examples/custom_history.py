"""Your own history policy: hide the results of tools, except for those since the last reply.

Run it with `python examples/custom_history.py`. It prints what the policy drops, and checks it.
"""

import envsdk
from envsdk import HistoryPolicy
from envsdk.history import History, Rewrite
from envsdk.testing import check_history


class HideOldResults(HistoryPolicy):
    """Replaces the results of tools with a note, except for the newest ones."""

    note: str = "[hidden]"

    def view(self, history: History) -> Rewrite | None:
        """Return the messages that the model sees from the first old result on that is not hidden yet."""
        start = history.state.get("hidden", history.opening)
        old = history.messages[start : history.new]
        history.state["hidden"] = max(start, history.new)
        if all(message.role != "tool" for message in old):
            return None
        shown = [m.model_copy(update={"content": self.note}) if m.role == "tool" else m for m in old]
        return Rewrite(start, [*shown, *history.messages[history.new :]], "edit", "results of tools")


def main() -> None:
    """Play the same episode with and without the policy."""
    for history in ("keep", HideOldResults()):
        env = envsdk.make("envsdk/Calculator-v1", history=history, renderer="qwen3", tokenizer="embedded")
        trajectory = envsdk.rollout(env, "reference", seed=0)
        longest = max(len(prompt.prompt) for prompt in trajectory.prompts())
        print(f"{history}: {len(trajectory.samples())} samples, longest prompt {longest} tokens")
        for break_ in trajectory.breaks:
            print(f"  {break_.reason}, {break_.detail}: kept {break_.kept} tokens, dropped {break_.dropped}")
    print(str(check_history(HideOldResults()).raise_if_failed()).splitlines()[0])


if __name__ == "__main__":
    main()
