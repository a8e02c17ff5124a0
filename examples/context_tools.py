"""What each context tool is worth in a long errand: the reference policy plays with all of them, and without one.

The errand is longer than the context (`envsdk/LongErrand-v0`). Without any tool, the context is full on the first day.
`docs/builtin-environments.md` explains what each tool is needed for.
"""

from statistics import mean

import envsdk

TOOLS = ("fold", "branch", "note", "recall")
CHOICES = {"all": TOOLS, **{f"no {name}": tuple(tool for tool in TOOLS if tool != name) for name in TOOLS}, "none": ()}


def main(size: str = "small", episodes: int = 2) -> None:
    """Play the same errands with each choice of tools, and print a line for each."""
    print("tools      reward  steps  breaks  prompt tokens  longest prompt  ends")
    for name, tools in CHOICES.items():
        env = envsdk.make("envsdk/LongErrand-v0", size=size, context_tools=tools)
        played = [envsdk.rollout(env, "reference", seed=seed) for seed in range(episodes)]
        prompts = [[len(prompt.prompt) for prompt in trajectory.prompts()] for trajectory in played]
        rewrites = [sum(break_.kind == "rewrite" for break_ in trajectory.breaks) for trajectory in played]
        print(
            f"{name:10} {mean(trajectory.reward for trajectory in played):6.2f} "
            f"{mean(map(len, prompts)):6.0f} {mean(rewrites):7.1f} {mean(map(sum, prompts)):14,.0f} "
            f"{max(map(max, prompts)):15,}  {', '.join(sorted({str(trajectory.stop_reason) for trajectory in played}))}"
        )


if __name__ == "__main__":
    main()
