"""Turns that edit the conversation, and contexts that begin with a part of another one's conversation."""

import itertools
from typing import Any

import numpy as np
import pytest
import real_models
import soundness
from hypothesis import given, settings
from hypothesis import strategies as st

import envsdk
from envsdk import Edit, Env, Limits, Message, Opening, Trajectory, Turn, rollout
from envsdk.authoring._driver import driver_of
from envsdk.errors import TurnError

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
HISTORIES: list[Any] = [
    "keep",
    "strip",
    {"name": "compact", "every": 2},
    {"name": "budget", "max_tokens": 160},
    {"name": "summarize", "threshold": 100, "summarizer": lambda messages: f"{len(messages)} messages"},
    {"name": "planned", "max_tokens": 160, "drops": ["thinking", "oldest"], "cached": 0.6},
]
RENDERERS = {
    "qwen3": lambda: envsdk.get_renderer("qwen3", "embedded"),
    "harmony": lambda: envsdk.get_renderer("harmony", real_models.gpt_oss_tokenizer()),
    "fixed_base": lambda: envsdk.get_renderer("fixed_base", real_models.qwen3_folder()),
}


class Editing(Env):
    """Appends, edits, opens contexts and goes back to others, as its random numbers say."""

    def __init__(self, has_system: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.has_system = has_system
        self.told: dict[str, list[Message]] = {}
        self.prompts: list[tuple[list[Message], list[Any]]] = []
        self.tools: dict[str, list[Any]] = {}
        self.at = "main"

    def start(self) -> Turn:
        self.told, self.tools, self.at = {}, {"main": TOOLS}, "main"
        system = "Be brief." if self.has_system else None
        return self.noted("main", Turn("Go.", system=system, tools=TOOLS), int(self.has_system))

    def noted(self, name: str, turn: Turn, keep: int, base: str | None = None) -> Turn:
        before = list(self.told.get(base or name, []))
        if turn.system is not None:
            before[: bool(before) and before[0].role == "system"] = [Message(role="system", content=turn.system)]
        self.told[name] = [*before[:keep], *turn.messages]
        self.at = name
        return turn

    def respond(self, reply: Message) -> Turn:
        said = self.told[self.at]
        said.append(driver_of(self).running.context.conversation[-1])
        rng, count, has_system = self.np_random, len(said), said[0].role == "system"
        new = [Message(role="user", content=f"n{rng.integers(1000)}") for _ in range(rng.integers(1, 3))]
        match rng.integers(6):
            case 0 | 1:
                return self.noted(self.at, Turn(new, context=self.at), count)
            case 2:
                keep = int(rng.integers(int(has_system), count + 1))
                later = [message for message in said[keep:] if rng.random() < 0.5]
                return self.noted(
                    self.at, Turn([*later, *new], context=self.at, edit=Edit(keep, "as it pleases")), keep
                )
            case 3:
                name, base = f"side-{len(self.told)}", self.at
                keep = int(rng.integers(int(has_system), count + 1))
                self.tools[name] = TOOLS if rng.random() < 0.5 else []
                later = [message for message in said[keep:] if rng.random() < 0.3]
                new = [*later, *new]
                turn = Turn(new, context=name, tools=self.tools[name], opening=Opening("side", base, keep))
                return self.noted(name, turn, keep, base)
            case 4:
                name = str(rng.choice(list(self.told)))
                return self.noted(name, Turn(new, context=name), len(self.told[name]))
            case _:
                system, keep = f"Now {rng.integers(9)}.", count + (not has_system)
                keep -= int(rng.integers(0, 2))
                edit = Edit(keep, "with another system message")
                return self.noted(self.at, Turn(new, context=self.at, system=system, edit=edit), keep)


def replies(seed: int, renderer: envsdk.Renderer) -> Any:
    rng = np.random.default_rng(seed)

    def policy(prompt: Any, **_: Any) -> envsdk.Action:
        message = Message(role="assistant", content=f"a{rng.integers(100)}", reasoning=rng.choice(["Hm.", "Well?"]))
        tokens = renderer.reply(message)
        return envsdk.Action(tokens, np.full(len(tokens), -0.5))

    return policy


@settings(max_examples=settings.default.max_examples // 3)
@given(st.integers(0, 10**6), st.sampled_from(HISTORIES), st.sampled_from([*RENDERERS]), st.booleans())
def test_edits_are_declared_and_each_token_is_trained_once(seed: int, history: Any, renderer: str, has_system: bool):
    env = Editing(has_system, renderer=RENDERERS[renderer](), history=history, limits=Limits(max_steps=9))
    soundness.check(rollout(env, replies(seed, env.renderer), seed=seed))


@settings(max_examples=settings.default.max_examples // 3)
@given(st.integers(0, 10**6), st.booleans())
def test_the_model_sees_the_conversation_as_the_edits_left_it(seed: int, has_system: bool):
    env = Editing(has_system, renderer="qwen3", tokenizer="embedded", history="keep", limits=Limits(max_steps=9))
    policy = replies(seed, env.renderer)
    tokenizer = env.renderer.tokenizer

    def looking(prompt: Any, **request: Any) -> envsdk.Action:
        said, tools = env.told[env.at], env.tools.get(env.at, TOOLS)
        whole = env.renderer.render(said, tools=tools, history="keep").tokens
        shown = tokenizer.decode(prompt)
        asks = env.renderer.generation_prompt
        assert shown == tokenizer.decode(whole) + asks
        context = driver_of(env).running.context
        assert context.conversation == said
        assert all(message in context.messages for message in said)
        return policy(prompt, **request)

    trajectory = rollout(env, looking, seed=seed)
    soundness.check(trajectory)


class Trimming(Env):
    """Leaves out all but the last round."""

    def start(self) -> Turn:
        return Turn("One.", system="S")

    def respond(self, reply: Message) -> Turn:
        conversation = driver_of(self).running.context.conversation
        return Turn(
            [conversation[-2], conversation[-1], Message(role="user", content="More.")], edit=Edit(1, "trimmed")
        )


def played(env: Env, steps: int) -> Trajectory:
    env_limits = Limits(max_steps=steps)
    assert env.limits == env_limits
    return rollout(env, replies(0, env.renderer), seed=0)


@pytest.mark.parametrize("name", [*RENDERERS])
def test_new_tools_alone_are_shown_in_the_next_prompt(name: str):
    def tool(name: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "description": "Do it.", "parameters": {}}}

    class Changing(Env):
        def start(self) -> Turn:
            return Turn("q", tools=[tool("alpha")])

        def respond(self, reply: Message) -> Turn:
            return Turn("And?", tools=[tool("beta")])

    env = Changing(renderer=RENDERERS[name]())
    env.reset(seed=0)
    _, _, _, _, info = env.step(env.renderer.reply(Message(role="assistant", content="A")))
    text = env.renderer.tokenizer.decode(env.prompt())
    assert (info["break"].detail, "alpha" in text, "beta" in text) == ("new tools", False, True)


def test_messages_that_stay_keep_their_sampled_tokens():
    env = Trimming(renderer="qwen3", tokenizer="embedded", limits=Limits(max_steps=4))
    trajectory = played(env, 4)
    steps = trajectory.steps
    assert [step.break_ and (step.break_.reason, step.break_.detail) for step in steps] == [
        None,
        None,  # nothing is left out yet
        ("edit", "trimmed"),
        ("edit", "trimmed"),
    ]
    prompts = list(trajectory.prompts())
    for before, after in itertools.pairwise(prompts[1:]):
        sampled = before[2].tolist()
        text = after[1].tolist()
        assert any(text[i : i + len(sampled)] == sampled for i in range(len(text)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"edit": 3}, "edit is 3"),
        ({"edit": Edit(-1)}, "edit is"),
        ({"edit": Edit(1), "continues": True}, "continues=True is given together with edit"),
        ({"opening": Opening("side")}, "give context="),
        ({"opening": Opening("side"), "context": "x", "edit": Edit(0)}, "give context="),
        ({"opening": Opening("side", None, 3), "context": "x"}, "counts messages of its base"),
        ({"opening": Opening("", "main", 3), "context": "x"}, "expected an Opening.* a name as its role"),
    ],
)
def test_wrong_edits_and_openings_are_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(TurnError, match=message):
        Turn("x", **arguments)


def test_a_base_that_is_not_there_is_refused():
    class Lost(Env):
        def start(self) -> Turn:
            return Turn("x")

        def respond(self, reply: Message) -> Turn:
            return Turn("y", context="side", opening=Opening("side", "nowhere", 1))

    with pytest.raises(TurnError, match="names the context 'nowhere'"):
        rollout(Lost(), "random", seed=0)


class Anew(Env):
    """Replaces the whole conversation after each reply."""

    first = "One."

    def start(self) -> Turn:
        return Turn(self.first, system="S")

    def respond(self, reply: Message) -> Turn:
        return Turn([Message(role="system", content="S"), Message(role="user", content="Two.")], edit=Edit(0, "anew"))


class Fresh(Anew):
    first = "Two."


@pytest.mark.parametrize("name", RENDERERS)
def test_a_conversation_that_an_edit_replaces_is_written_like_a_new_one(name: str):
    renderer = RENDERERS[name]()
    prompts = [
        [prompt.prompt.tolist() for prompt in played(kind(renderer=renderer, limits=Limits(max_steps=2)), 2).prompts()]
        for kind in (Anew, Fresh)
    ]
    assert prompts[0][1] == prompts[1][0]
