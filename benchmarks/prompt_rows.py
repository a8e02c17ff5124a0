"""The rows about prompts and replies: messages to tokens and back."""

from .row import OURS, Entry, Growth, Row, ahead, at_most

SIZES, QUICK = (10, 50, 200, 1000), (10, 50)
STEP = (
    "The CPU time of one step, T steps into an episode: from the tokens of a reply to the tokens of the next prompt. "
    "A step adds a reply of 200 words and an answer of 200 words. The figure of envsdk is all of `Env.step`: it reads "
    "the reply, calls the environment, renders the answer, and records the step. The others do what their note states."
)
ENCODE = Entry("encode", OURS)
WITH_PROMPT = Entry("envsdk, and a copy of the prompt", OURS)
TEMPLATE = Entry("chat template", OURS)

TOOL_TURNS = Row(
    id="tool-turns",
    title="Next prompt: tool turns, thinking kept",
    measures=f"{STEP} Qwen3 with its real vocabulary; each reply calls a tool; nothing of the past is dropped.",
    contenders=(
        Entry(OURS, OURS),
        WITH_PROMPT,
        ENCODE,
        Entry("renderers, bridge", "renderers"),
        Entry("tinker-cookbook", "tinker"),
        TEMPLATE,
    ),
    sizes=SIZES,
    size_name="T",
    quick_sizes=QUICK,
    limit="encode",
    targets=(
        at_most(3, "encode"),
        ahead(10, "renderers, bridge", at=(200,)),
        ahead(250, "chat template", at=(50,)),
    ),
)
USER_TURNS = Row(
    id="user-turns",
    title="Next prompt: user turns, thinking stripped",
    measures=f"{STEP} Qwen3 with its real vocabulary; a user answers each reply, which drops the reasoning before it.",
    contenders=(
        Entry(OURS, OURS),
        WITH_PROMPT,
        ENCODE,
        Entry("renderers", "renderers"),
        Entry("tinker-cookbook", "tinker"),
        TEMPLATE,
    ),
    sizes=SIZES,
    size_name="T",
    quick_sizes=QUICK,
    limit="encode",
    targets=(
        at_most(4, "encode"),
        Growth(0.1),
        ahead(100, "renderers", "tinker-cookbook", "chat template", at=(200,)),
    ),
)
PROMPT_ROWS = (TOOL_TURNS, USER_TURNS)
