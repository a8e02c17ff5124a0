"""A step of envsdk, and the least that any implementation must do: encode the new text."""

from collections.abc import Callable
from time import process_time

import numpy as np
import real_models

from benchmarks.contender import Repetition, contender
from benchmarks.workloads import QUESTION, SYSTEM, Kind, answer, conversation, renderer, reply, tools
from envsdk import Action, Env, Limits, Message, Renderer, Turn, get_renderer
from envsdk.rendering.tokenizers import Tokenizer

STEPS = 20
"""The steps that one repetition measures."""
VERSIONS = ("tiktoken", "tokenizers", "numpy")


class Talk(Env):
    """Answers each reply with the next message of the workload."""

    kind: Kind
    answers: list[Message]

    def start(self) -> Turn:
        """Ask."""
        self.step_index = 0
        return Turn(QUESTION, system=SYSTEM, tools=tools(self.kind) or None)

    def respond(self, reply: Message) -> Turn:
        """Answer."""
        self.step_index += 1
        return Turn(self.answers[self.step_index - 1])


class Steps:
    """Measures the steps around step number `at`, in episodes from the start.

    Args:
        env: The environment.
        kind: Who answers.
        at: The number of steps before those that are measured.
        after: What else is done in each step.
    """

    def __init__(self, env: Talk, kind: Kind, at: int, after: Callable[[], object] | None = None) -> None:
        self.env, self.after = env, after
        self.window = max(5, at // 50)
        self.first = at - self.window // 2
        self.episodes = max(1, STEPS // self.window)
        last = self.first + self.window
        env.kind = kind
        env.answers = [Message.from_openai(answer(step, kind)) for step in range(last)]
        replies = (env.renderer.reply(Message.from_openai(reply(step, kind))) for step in range(last))
        self.actions = [Action(tokens, np.full(len(tokens), -0.5, dtype=np.float32)) for tokens in replies]
        self._episode()
        self._check(last, kind)

    def _check(self, steps: int, kind: Kind) -> None:
        messages = [Message.from_openai(message) for message in conversation(steps, kind)]
        expected = self.env.renderer.render(messages, tools=tools(kind), generation_prompt=True).tokens
        if not np.array_equal(self.env.prompt(), expected):
            raise ValueError("its prompt is not that of the conversation")

    def __call__(self) -> float:
        """Return the CPU seconds of one step."""
        return sum(self._episode() for _ in range(self.episodes)) / (self.episodes * self.window)

    def _episode(self) -> float:
        self.env.reset(seed=0)
        for action in self.actions[: self.first]:
            self.env.step(action)
        start = process_time()
        for action in self.actions[self.first :]:
            self.env.step(action)
            if self.after is not None:
                self.after()
        return process_time() - start


def talk(history: str, family: Renderer | None = None) -> Talk:
    """Return an environment without a limit of steps that matters; its family is Qwen3 unless a renderer is given."""
    return Talk(renderer=family or renderer("qwen3"), history=history, limits=Limits(max_steps=10**6))


@contender("tool-turns", "envsdk", packages=VERSIONS)
def tool_turns(size: int) -> Repetition:
    """Steps with a tool under `keep`."""
    return Steps(talk("keep"), "tools", size)


@contender("tool-turns", "envsdk, and a copy of the prompt", note="also returns the whole prompt as an array")
def tool_turns_with_prompt(size: int) -> Repetition:
    """The same, and the prompt."""
    env = talk("keep")
    return Steps(env, "tools", size, env.prompt)


@contender("user-turns", "envsdk")
def user_turns(size: int) -> Repetition:
    """Steps with a user under `strip`."""
    return Steps(talk("strip"), "users", size)


@contender("user-turns", "envsdk, and a copy of the prompt", note="also returns the whole prompt as an array")
def user_turns_with_prompt(size: int) -> Repetition:
    """The same, and the prompt."""
    env = talk("strip")
    return Steps(env, "users", size, env.prompt)


def encoding(tokenizer: Tokenizer, kind: Kind, size: int) -> Repetition:
    """Return the encoding of the answers of the measured steps."""
    texts = [answer(step, kind)["content"] for step in range(size, size + STEPS)]

    def encode() -> float:
        start = process_time()
        for text in texts:
            tokenizer.encode(text)
        return (process_time() - start) / STEPS

    return encode


NOTE = "encodes the 200 words of the answer, and nothing else, with the tokenizer that envsdk uses"


@contender("tool-turns", "encode", note=NOTE)
def encode_tool_answers(size: int) -> Repetition:
    """The limit of a step with a tool."""
    return encoding(renderer("qwen3").tokenizer, "tools", size)


@contender("harmony-tool-turns", "envsdk", packages=("openai-harmony", *VERSIONS))
def harmony_tool_turns(size: int) -> Repetition:
    """Steps of gpt-oss with a tool under `keep`."""
    return Steps(talk("keep", renderer("harmony")), "tools", size)


@contender("unknown-template", "envsdk", note="`fixed_base`, which measures the template at the start of an episode")
def unknown_template(size: int) -> Repetition:
    """Steps with a tool, by a template that is measured."""
    return Steps(talk("keep", unknown()), "tools", size)


def unknown() -> Renderer:
    """Return `fixed_base` for Qwen3's template with a comment, so that no table has the template's hash."""
    template = "{#- a template of one's own -#}" + real_models.template("qwen3")
    return get_renderer("fixed_base", renderer("qwen3").tokenizer, template=template)


@contender("user-turns", "encode", note=NOTE)
def encode_user_answers(size: int) -> Repetition:
    """The limit of a step with a user."""
    return encoding(renderer("qwen3").tokenizer, "users", size)


@contender("harmony-tool-turns", "encode", note=NOTE)
def encode_harmony_tool_answers(size: int) -> Repetition:
    """The limit of a step of gpt-oss with a tool."""
    return encoding(renderer("harmony").tokenizer, "tools", size)


@contender("unknown-template", "encode", note=NOTE)
def encode_for_unknown_template(size: int) -> Repetition:
    """The limit of a step by a template."""
    return encoding(renderer("qwen3").tokenizer, "tools", size)
