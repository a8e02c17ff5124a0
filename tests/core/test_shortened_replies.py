"""Whatever an author masks or drops of replies, the invariants hold, in each kind of family."""

import functools
from typing import Any

import numpy as np
import pytest
import real_models
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk import Action, Env, Mask, Message, Trajectory, Turn, get_renderer, load_tokenizer, tree_batch
from envsdk.rendering.renderer import Renderer

WORDS = ["so", " one", " two", "\n\n", "é🜁", " </search>", "<think>\n", "\n</think>\n\n", "{}"]
FRACTIONS = st.floats(0, 1)
SPANS = st.lists(st.tuples(FRACTIONS, FRACTIONS).map(sorted), max_size=2)
PLAN = st.lists(
    st.fixed_dictionaries(
        {"words": st.lists(st.sampled_from(WORDS), max_size=6), "is_ended": st.sampled_from([True, True, False])},
        optional={
            "characters": SPANS,
            "tokens": SPANS,
            "keep_reply": st.integers(0, 9),
            "up_to": st.sampled_from(["s", "two", "\n", "</search>", "think"]),
            "train_dropped": st.booleans(),
            "continues": st.just(True),
        },
    ),
    min_size=1,
    max_size=5,
)
HISTORIES = st.sampled_from(["keep", "strip", "compact:every=2", "compact:every=1,keep_last=1"])


@functools.cache
def family(name: str) -> Renderer:
    if name == "harmony":
        return get_renderer("harmony", real_models.gpt_oss_tokenizer())
    return get_renderer(name, load_tokenizer(real_models.qwen3_folder()))


class Shortens(Env):
    """Asks, and masks and drops what the plan says of each reply."""

    plan: list[dict[str, Any]]

    def start(self) -> Turn:
        self.steps = 0
        return Turn("Q?")

    def respond(self, reply: Message) -> Turn:
        plan = self.plan[self.steps]
        self.steps += 1
        tokens, text = self.sampled, reply.new_text
        spans = {"tokens": len(tokens), "characters": len(text)}
        mask = Mask(
            **{name: [(round(a * n), round(b * n)) for a, b in plan.get(name, ())] for name, n in spans.items()}
        )
        if self.steps == len(self.plan):
            return Turn("Bye.", mask=mask, terminated=True)
        options = {name: plan[name] for name in ("keep_reply", "train_dropped", "continues") if name in plan}
        if "keep_reply" not in plan:
            options["up_to"] = plan.get("up_to")
        return Turn("Go on.", mask=mask, **options)


@pytest.mark.parametrize("name", ["qwen3", "harmony", "fixed_base"])
@settings(max_examples=settings.default.max_examples // 2)
@given(plan=PLAN, history=HISTORIES)
def test_each_prompt_is_replayed_and_each_token_is_trained_once_unless_it_is_masked(
    name: str, plan: list[dict[str, Any]], history: str
):
    renderer = family(name)
    env = Shortens(renderer=renderer, history=history, limits={"end_on_cut": False})
    env.plan = plan
    observation, _ = env.reset(seed=0)
    prompts, sampled, context = [], [], []
    for step in plan:
        prompt = [*context[: observation.keep], *observation.tokens.tolist()]
        assert prompt == env.prompt().tolist()
        ends = renderer.stop_token_ids[:1] if step["is_ended"] else ()
        env.sampled = [*renderer.tokenizer.encode("".join(step["words"])).tolist(), *ends]
        prompts.append(prompt)
        sampled.append(env.sampled)
        context = [*prompt, *env.sampled]
        observation, *_ = env.step(Action(env.sampled, [-0.5] * len(env.sampled), "stop" if ends else "length"))
    check(env.trajectory, prompts, sampled)


def check(trajectory: Trajectory | None, prompts: list[list[int]], sampled: list[list[int]]) -> None:
    assert trajectory is not None
    assert [prompt.tolist() for _, prompt, _ in trajectory.prompts()] == prompts
    line = trajectory.to_json()
    assert Trajectory.from_json(line).to_json() == line
    trained: list[tuple[int, int]] = []
    for sample in trajectory.samples():
        at = np.flatnonzero(sample.validate().mask)
        trained += [
            (sample.metadata["steps"][step], token)
            for step, token in zip(sample.step_ids[at].tolist(), sample.tokens[at].tolist(), strict=True)
        ]
        for position, index in enumerate(sample.metadata["steps"]):
            where = np.flatnonzero(sample.step_ids == position)
            if len(where):
                assert sample.tokens[: where[0]].tolist() == prompts[index]
                assert sample.tokens[where].tolist() == sampled[index][: len(where)]
    expected: list[tuple[int, int]] = []
    for index, (step, tokens) in enumerate(zip(trajectory.steps, sampled, strict=True)):
        masked = {at for start, stop in step.masked for at in range(start, stop)}
        expected += [(index, token) for at, token in enumerate(tokens, step.action_start) if at not in masked]
    assert sorted(trained) == sorted(expected)
    if trained:
        batch = tree_batch(trajectory)
        assert len(batch.tokens) == trajectory.tree_size()
        assert int(batch.mask.sum()) == len(trained)
