"""The JSON that front ends get, as types. `make page` writes them as TypeScript (`viewer/src/types.ts`)."""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from ._contents import Hit
from ._rows import EpisodeRow
from ._sources import RunInfo

RangeJSON: TypeAlias = tuple[str, int, int]
"""Tokens of a log: the context, the first position, and the one after the last."""


class RunsAnswerJSON(TypedDict):
    """The runs."""

    follow: bool
    runs: list[RunInfo]


class RowsAnswerJSON(TypedDict):
    """The next rows of a run."""

    generation: int
    start: int
    rows: list[EpisodeRow]
    more: bool
    unread_bytes: int
    is_complete: bool | None


class MatchJSON(TypedDict):
    """An episode that matches a filter, with its first matches."""

    line: int
    count: int
    hits: list[Hit]


class SearchAnswerJSON(TypedDict):
    """The next matches of a search."""

    generation: int
    searched: int
    more: bool
    matches: list[MatchJSON]


class ImageFactsJSON(TypedDict):
    """An image."""

    media_type: str
    width: int
    height: int
    file: str
    tokens: int | None


class TextPartJSON(TypedDict):
    """A text part of a message with images."""

    text: str


class ImagePartJSON(TypedDict):
    """An image part of a message, by its hash."""

    image: str


class CallJSON(TypedDict):
    """A call, with the index of the message that is its result."""

    name: str
    arguments: Any
    id: str | None
    error: str | None
    result: int | None


class MessageJSON(TypedDict):
    """A message. `answers` has the indices of a message and of the call in it that this one answers."""

    role: str
    content: str
    parts: list[TextPartJSON | ImagePartJSON] | None
    reasoning: str | None
    name: str | None
    tool_call_id: str | None
    errors: list[str]
    open_block: str | None
    calls: list[CallJSON]
    is_inherited: bool
    steps: list[int]
    answers: tuple[int, int] | None


class ContextJSON(TypedDict):
    """A context."""

    name: str
    role: str
    parent: str | None
    base: str | None
    inherited_tokens: int
    tokens: int
    reward: float | None
    own_reward: float
    stop_reason: str
    error: str | None
    task: Any
    is_trainable: bool
    tools: list[str]
    messages: list[MessageJSON]


class BreakJSON(TypedDict):
    """A break. `observed_again` is the number of dropped tokens that its observation contains again."""

    kind: str
    reason: str
    context: str
    base: str
    kept: int
    dropped: int
    detail: str
    observed_again: int


class ReplyPartJSON(TypedDict):
    """A part of a sampled reply, up to the position `stop`."""

    stop: int
    temperature: float
    policy_version: int | None


StepJSON = TypedDict(
    "StepJSON",
    {
        "index": int,
        "context": str,
        "base": str,
        "keep": int,
        "extends": bool,
        "starts_segment": bool,
        "start": int,
        "action_start": int,
        "stop": int,
        "prompt_tokens": int,
        "observed": int,
        "sampled": int,
        "parts": list[ReplyPartJSON],
        "finish_reason": str,
        "reply": int | None,
        "reward": float | None,
        "rewards": Mapping[str, float],
        "metrics": Mapping[str, float],
        "is_copied": bool,
        "left": Mapping[str, int],
        "dropped": list[RangeJSON],
        "break": BreakJSON | None,
    },
)
"""A step. `index` counts from 0; `left` is what is left of each limit after it."""

LinkJSON = TypedDict("LinkJSON", {"kind": Literal["handoff", "return"], "from": str, "to": str, "step": int})
"""A handoff or a return between two contexts, at a step."""


class SampleJSON(TypedDict):
    """A sample."""

    index: int
    context: str
    segment_index: int
    tokens: int
    trained: int
    steps: list[int]


class NodeJSON(TypedDict):
    """A node of the tree of an episode: a run of tokens of one log. Branches begin only after its last token.

    `parent` is the number of the node before it, -1 for a root; `step` is the index of the step that opened it.
    """

    number: int
    context: str
    start: int
    stop: int
    parent: int
    step: int


class EpisodeJSON(TypedDict):
    """An episode without its tokens."""

    id: str
    env: str
    seed: int | None
    group_id: str | None
    status: str
    stop_reason: str
    error: str | None
    error_kind: str | None
    task: Any
    config: Mapping[str, Any]
    limits: Mapping[str, Any]
    renderer: Mapping[str, Any]
    history: Mapping[str, Any]
    tokenizer: str
    reward: float | None
    not_scored: str
    is_trainable: bool
    observed_tokens: int
    sampled_tokens: int
    origins: list[str]
    final_break: BreakJSON | None
    contexts: list[ContextJSON]
    steps: list[StepJSON]
    links: list[LinkJSON]
    samples: list[SampleJSON]
    nodes: list[NodeJSON]
    images: Mapping[str, ImageFactsJSON]


class TokensJSON(TypedDict):
    """The tokens of a context; see `context_tokens`. A pair is a position and the value from there on."""

    context: str
    ids: list[int]
    has_texts: bool
    texts: Mapping[str, str]
    bytes: Mapping[str, str]
    controls: list[int]
    logprobs: list[float | None]
    reference_logprobs: list[float | None] | None
    teacher: str | None
    advantages: list[float | None] | None
    steps: list[tuple[int, int]]
    sampled: list[tuple[int, bool]]
    trained: list[tuple[int, int | None]]
    samples: list[tuple[int, list[int]]]
    nodes: list[tuple[int, int]]
    dropped: list[tuple[int, int | None]]
    roles: list[tuple[int, str | None]]
    images: list[tuple[int, int, str]]
    problem: NotRequired[str | None]


class PromptJSON(TypedDict):
    """The ranges of the logs that make up a prompt."""

    ranges: list[RangeJSON]
