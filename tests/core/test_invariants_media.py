"""The invariants of the design, as properties of random episodes whose messages have images.

A `Plan` specifies what the environment shows, what the policy samples (placeholders of images among it), what stays
visible, and the limits. `play` drives it and checks each observation where it is seen.
"""

import random
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from vision_families import renderer_of
from vision_models import picture

from envsdk import Action, Env, HistoryPolicy, Limits, Message, Renderer, Trajectory, Turn
from envsdk.contexts._edits import Edit
from envsdk.contexts._protocol import RewriteReason
from envsdk.episodes._handoff import Handoff, HandoffResult
from envsdk.errors import TemplateUnsupported
from envsdk.history import History, Rewrite
from envsdk.images import PlacedImage
from envsdk.messages import TextPart

FAMILIES = ("qwen3.5", "qwen3-vl")
PICTURES = tuple(picture(seed, *size) for seed, size in enumerate([(28, 28), (64, 48), (40, 90), (64, 48), (100, 30)]))
IMAGE = "<|image_pad|>"

# What happens in an episode.


@dataclass(frozen=True)
class Plan:
    family: str
    turns: tuple[dict[str, Any], ...]
    """What the environment returns: the first one begins the episode, and the last one ends it."""
    replies: tuple[tuple[str, ...], ...]
    """What is sampled: texts, and names of control tokens."""
    history: Any
    limits: dict[str, Any] = field(default_factory=dict)

    @property
    def samples_placeholders(self) -> bool:
        """Whether the policy samples placeholders, which are not images."""
        return any(IMAGE in reply for reply in self.replies)


class Gallery(Env):
    """Shows pictures, changes what was shown, and lets another agent look at them."""

    def __init__(self, plan: Plan, first: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.plan, self.first = plan, first

    def start(self) -> Turn:
        self.at = self.first
        turn = self.plan.turns[0]
        return Turn(turn["messages"], system=turn.get("system"))

    def respond(self, reply: Message) -> Turn | Handoff:
        self.at += 1
        turn = self.plan.turns[self.at % len(self.plan.turns)]
        if self.at >= len(self.plan.turns) - 1:
            return Turn(turn["messages"], reward=1.0, terminated=True)
        if turn["kind"] == "handoff" and not self.first:
            child = Gallery(self.plan, first=len(self.plan.turns) - 2)
            return Handoff(child, role="looker", history=turn["history"])
        if turn["kind"] == "edit":
            return Turn(turn["messages"], edit=Edit(min(turn["keep"], len(self.messages()))))
        return Turn(turn["messages"], system=turn.get("system"))

    def resume(self, result: HandoffResult) -> Turn:
        return Turn(self.plan.turns[self.at]["messages"])


class Arbitrary(HistoryPolicy):
    """Drops, adds, moves and repeats images and messages, anywhere."""

    seed: int

    def view(self, history: History) -> Rewrite | None:
        rng = random.Random(f"{self.seed} {history.steps}")
        start = rng.randint(0, len(history.messages))
        messages = [new for old in history.messages[start:] for new in self._changed(rng, old)]
        if rng.random() < 0.4 or (not start and not messages):
            return None
        if not any(message.role == "user" for message in [*history.messages[:start], *messages]):
            return None  # the templates need a query
        return Rewrite(start, messages, rng.choice(get_args(RewriteReason)), "as it pleases")

    def _changed(self, rng: random.Random, old: Message) -> list[Message]:
        if old.role != "user":
            return [old]
        new = Message(role="user", content=[TextPart(text="new"), rng.choice(PICTURES)])
        shuffled = list(old.parts or [TextPart(text=old.content)])
        rng.shuffle(shuffled)
        moved = Message(role="user", content=shuffled)
        return rng.choice([[old], [old], [old], [new], [new, old], [moved], [Message(role="user", content="short")]])


TEXTS = st.sampled_from(
    ["What is it?", "", " ", "\n\na\n\n", "é 你好", IMAGE, f"<|vision_start|>{IMAGE}", "<|im_end|>"]
)
PARTS = st.lists(TEXTS.map(lambda text: TextPart(text=text)) | st.sampled_from(PICTURES), min_size=1, max_size=4)
CONTENTS = st.one_of(PARTS, PARTS, TEXTS)
MESSAGES = CONTENTS.map(lambda content: [Message(role="user", content=content)])
TURNS = st.fixed_dictionaries(
    {
        "messages": MESSAGES,
        "kind": st.sampled_from(["say", "say", "say", "edit", "handoff"]),
        "keep": st.integers(0, 5),
        "history": st.sampled_from(["fresh", "full"]),
    },
    optional={"system": st.sampled_from(["Be brief.", "Look closely."])},
)
PIECES = st.sampled_from(["A plot.", "\n", "é", "</think>", "</think>\n\nA cat.", IMAGE, "<|vision_start|>"])
REPLIES = st.lists(PIECES, max_size=4).flatmap(lambda some: st.sampled_from([(*some, "<|im_end|>"), tuple(some)]))
HISTORIES = st.one_of(
    st.just("keep"),
    st.just("strip"),
    st.builds(lambda n, k: {"name": "compact", "every": n, "keep_images": k}, st.integers(1, 3), st.integers(0, 2)),
    st.builds(
        lambda n, order, k: {"name": "budget", "max_tokens": n, "order": order, "keep_images": k * ("images" in order)},
        st.integers(60, 300),
        st.sampled_from([["images"], ["images", "thinking", "oldest"], ["oldest"], ["thinking", "images", "oldest"]]),
        st.integers(0, 2),
    ),
    st.builds(lambda seed: Arbitrary(seed=seed), st.integers(0, 10**6)),
)
LIMITS = st.fixed_dictionaries(
    {"end_on_cut": st.booleans()},
    optional={"max_steps": st.integers(1, 6), "max_context_tokens": st.integers(30, 400)},
)
PLANS = st.builds(
    Plan,
    family=st.sampled_from(FAMILIES),
    turns=st.lists(TURNS, min_size=2, max_size=7).map(tuple),
    replies=st.lists(REPLIES, min_size=7, max_size=7).map(tuple),
    history=HISTORIES,
    limits=LIMITS,
)

# Driving an episode, and checking what is seen of it.


@dataclass
class Model:
    """What a policy knows of a context: its tokens and the images in them."""

    tokens: list[int] = field(default_factory=list)
    media: list[PlacedImage] = field(default_factory=list)


@dataclass
class Run:
    trajectory: Trajectory
    prompts: list[list[int]]
    media: list[tuple[PlacedImage, ...]]
    n_sampled: int


def sampled(renderer: Renderer, pieces: tuple[str, ...]) -> list[int]:
    controls = renderer.tokenizer.control_tokens
    return [
        token
        for piece in pieces
        for token in ([controls[piece]] if piece in controls else renderer.tokenizer.encode(piece).tolist())
    ]


def play(plan: Plan) -> Run:
    renderer = renderer_of(plan.family)
    env = Gallery(plan, renderer=renderer, history=plan.history, limits=Limits(**{"max_steps": 12, **plan.limits}))
    observation, info = env.reset(seed=3)
    contexts: dict[str, Model] = {}
    prompts, media, count = [], [], 0
    for step in range(13):
        model = follow(contexts, observation, info, renderer, exactly=not plan.samples_placeholders)
        assert model.tokens == env.prompt().tolist()
        if env.trajectory is not None:
            break
        prompts.append(model.tokens[:])
        media.append(info.get("media", ()))
        tokens = sampled(renderer, plan.replies[step % len(plan.replies)])
        reason = "stop" if tokens and tokens[-1] in renderer.stop_token_ids else "length"
        action = Action(tokens, logprobs=[-0.5] * len(tokens), finish_reason=reason)
        model.tokens += tokens
        count += len(tokens)
        observation, _, _, _, info = env.step(action)
    assert env.trajectory is not None
    return Run(env.trajectory, prompts, media, count)


def follow(
    contexts: dict[str, Model], observation: Any, info: dict[str, Any], renderer: Renderer, *, exactly: bool
) -> Model:
    """Apply a delta, and check that it holds exactly its images, and that it cut none."""
    base, keep = contexts.get(observation.base, Model()), observation.keep
    is_first = observation.context not in contexts
    extends = observation.base == observation.context and keep == len(base.tokens) and not is_first
    assert observation.extends == (extends and "break" not in info)
    assert observation.extends or is_first or info["break"] is not None
    assert not any(placed.start < keep < placed.stop for placed in base.media)
    kept = [placed for placed in base.media if placed.stop <= keep]
    model = Model(
        [*base.tokens[:keep], *observation.tokens.tolist()],
        [*kept, *(placed.moved(keep) for placed in observation.media)],
    )
    contexts[observation.context] = model
    check_places(observation.tokens, observation.media, renderer, exactly=exactly)
    assert tuple(model.media) == tuple(info.get("media", ()))
    check_places(model.tokens, model.media, renderer, exactly=exactly)
    return model


def check_places(tokens: Any, media: Any, renderer: Renderer, *, exactly: bool) -> None:
    """Check that each image has the run of its placeholders, and, with `exactly`, that there are no others."""
    vision = renderer.vision
    assert vision is not None
    found = np.isin(np.asarray(tokens, np.int32), vision.token_ids)
    inside = np.zeros(len(found), bool)
    for placed in media:
        assert placed.stop - placed.start == vision.count(placed.image)
        assert not inside[placed.start : placed.stop].any()
        inside[placed.start : placed.stop] = True
    assert found[inside].all()
    assert not exactly or np.array_equal(found, inside)


@given(PLANS)
def test_the_invariants_hold_with_images(plan: Plan) -> None:
    try:
        run = play(plan)
    except TemplateUnsupported as error:  # `fixed_base` refuses what its template cannot express
        assert plan.family == "qwen3-vl", error
        return
    trajectory, renderer = run.trajectory, renderer_of(plan.family)
    assert [media for media in trajectory.prompt_images() if media] == [media for media in run.media if media]
    samples = trajectory.samples()
    assert sum(int(sample.mask.sum()) for sample in samples) == run.n_sampled
    for sample in samples:
        sample.validate()
        for placed in sample.media:
            assert not sample.mask[placed.start : placed.stop].any()
            inside = sample.tokens[placed.start : placed.stop]
            assert np.isin(inside, renderer.vision.token_ids).all()
            assert len(inside) == renderer.vision.count(placed.image)
    again = Trajectory.from_json(trajectory.to_json())
    assert again.to_json() == trajectory.to_json()
