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
TEMPLATE = Entry("chat template", "transformers")

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
        at_most(6, "encode"),
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
        at_most(6, "encode"),
        Growth(0.1),
        ahead(100, "renderers", "tinker-cookbook", "chat template", at=(200,)),
    ),
)
HARMONY_TURNS = Row(
    id="harmony-tool-turns",
    title="Next prompt: gpt-oss, tool turns",
    measures=f"{STEP} gpt-oss with its real vocabulary; each reply calls a tool; nothing of the past is dropped.",
    contenders=(Entry(OURS, OURS), ENCODE, Entry("openai-harmony", "openai_harmony")),
    sizes=SIZES,
    size_name="T",
    quick_sizes=QUICK,
    limit="encode",
    targets=(ahead(20, "openai-harmony", at=(200,)),),
)
UNKNOWN_TEMPLATE = Row(
    id="unknown-template",
    title="Next prompt: an unknown template, tool turns",
    measures=f"{STEP} The template is Qwen3's, which is given as an unknown text; each reply calls a tool.",
    contenders=(Entry(OURS, OURS), ENCODE, Entry("verl", "verl"), TEMPLATE),
    sizes=SIZES,
    size_name="T",
    quick_sizes=QUICK,
    limit="encode",
    targets=(at_most(6, "encode"),),
)
REPLY = Row(
    id="reply",
    title="Read a reply",
    measures="The CPU time to read the tokens of a reply of Qwen3: 500 words of reasoning, 200 of text, and two calls "
    "of 60 words each, about 1,000 tokens.",
    contenders=(
        Entry(OURS, OURS),
        Entry("renderers", "renderers"),
        Entry("tinker-cookbook", "tinker"),
        Entry("vLLM", "vllm"),
    ),
    sizes=(1000,),
    size_name="tokens",
    quick_sizes=(1000,),
    targets=(at_most(1, "renderers", "tinker-cookbook", "vLLM"),),
)
HARMONY_REPLY = Row(
    id="harmony-reply",
    title="Read a reply of gpt-oss",
    measures="The CPU time to read the tokens of a reply of gpt-oss: 500 words of reasoning, 200 of text, and one call "
    "of 60 words, about 1,000 tokens.",
    contenders=(
        Entry(OURS, OURS),
        Entry("openai-harmony", "openai_harmony"),
        Entry("renderers", "renderers"),
        Entry("tinker-cookbook", "tinker"),
        Entry("vLLM", "vllm"),
    ),
    sizes=(1000,),
    size_name="tokens",
    quick_sizes=(1000,),
    targets=(at_most(1, "openai-harmony", "renderers", "tinker-cookbook", "vLLM"),),
)
PROMPT_ROWS = (TOOL_TURNS, USER_TURNS, HARMONY_TURNS, UNKNOWN_TEMPLATE, REPLY, HARMONY_REPLY)
