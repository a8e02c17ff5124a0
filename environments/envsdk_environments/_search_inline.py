"""Search inside the assistant's own message: the model writes a query between tags, and the results follow it."""

from typing import ClassVar

import numpy as np
from pydantic import BaseModel, Field

from envsdk import Env, EnvConfig, Limits, Message, Turn
from envsdk.authoring.tasks import Split, draw_in_split

from ._scoring import TaskData, end_with_verdict

_TAGS = ("search", "answer")
_STOP = ("</search>", "</answer>")
_SYSTEM = (
    "Answer the question. To look something up, write <search>words</search>; the results then appear between "
    "<information> and </information>. When you know the answer, write <answer>the answer</answer>."
)
_SYLLABLES = ("ba", "do", "fe", "gu", "ka", "li", "mo", "ne", "pa", "ri", "so", "tu", "va", "ze")
_QUESTIONS = (
    "In which town does {} live?",
    "In which region is the town where {} lives?",
    "Which river flows through the region where {} lives?",
)
_FACTS = (
    "{} lives in the town of {}.",
    "The town of {} lies in the region of {}.",
    "The region of {} is crossed by the river {}.",
)
_MAX_FOUND = 3


class SearchInlineConfig(EnvConfig):
    """The size of the world, and the number of searches that lead to the answer."""

    people: int = Field(default=8, ge=1, le=1000)
    """The number of people in the world."""
    hops: int = Field(default=2, ge=1, le=len(_QUESTIONS))
    """The number of searches that lead to the answer."""
    split: Split = "train"
    """No question is in both splits."""


class SearchFact(TaskData):
    """A sentence that a search for its subject finds."""

    subject: str
    text: str


class SearchInlineTask(TaskData):
    """A question, and the facts that a search finds."""

    question: str
    answer: str
    facts: tuple[SearchFact, ...] = Field(min_length=1)
    path: tuple[str, ...] = ()
    """The searches that lead to the answer, in order. The reference policy makes them."""


class SearchInline(Env):
    """Answer a question about a made-up world by searching it, all in one message.

    Exercises: searching in several hops, and continuing a message into which results were inserted. The inserted text
    was not sampled and is not trained. Reward: `correct`, 1 if the text between `<answer>` and `</answer>` is right.
    """

    Config: ClassVar[type[EnvConfig]] = SearchInlineConfig
    Task: ClassVar[type[BaseModel] | None] = SearchInlineTask
    default_limits: ClassVar[Limits] = Limits(max_steps=12)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def start(self) -> Turn:
        """Ask the question."""
        config: SearchInlineConfig = self.config
        self.quest: SearchInlineTask = self.task or draw_in_split(
            config.split, lambda: _random(self.np_random, config), lambda quest: quest.question
        )
        self.searches = 0
        return Turn(self.quest.question, system=_SYSTEM, stop=_STOP)

    def respond(self, reply: Message) -> Turn:
        """Append the results of a query, or score an answer: whichever comes first in the new text."""
        tag, said = first_tagged(reply.new_text)
        if tag is None:
            return Turn("Write <search>words</search> or <answer>the answer</answer>.", stop=_STOP)
        if tag == "answer":
            is_right = said.strip().casefold() == self.quest.answer.casefold()
            return end_with_verdict(is_right, self.quest.answer)
        self.searches += 1
        found = self.search(said)
        return Turn(f"\n<information>{found}</information>\n", continues=True, stop=_STOP, metrics={"searches": 1})

    def search(self, words: str) -> str:
        """Return the facts whose subject is in the query."""
        found = [fact.text for fact in self.quest.facts if fact.subject.casefold() in words.casefold()]
        return " ".join(found[:_MAX_FOUND]) or "No results were found."

    def reference_reply(self) -> str:
        """Make the searches of the path, then answer."""
        if self.searches < len(self.quest.path):
            return f"I will look up <search>{self.quest.path[self.searches]}</search>"
        return f"The answer is <answer>{self.quest.answer}</answer>"

    def null_reply(self) -> str:
        """Guess."""
        return "<answer>I do not know</answer>"


def first_tagged(text: str) -> tuple[str | None, str]:
    """Return the first tag that is closed and the text inside it, or (None, ""), in time linear in the text."""
    found: list[tuple[int, str, str]] = []
    for tag in _TAGS:
        # If the first opening tag is not closed, no later one is.
        start = text.find(f"<{tag}>")
        end = text.find(f"</{tag}>", start)
        if 0 <= start < end:
            found.append((start, tag, text[start + len(tag) + 2 : end]))
    return min(found)[1:] if found else (None, "")


def _random(rng: np.random.Generator, config: SearchInlineConfig) -> SearchInlineTask:
    """Draw a world in which each person lives in a different town, and a question about one of them."""
    # Names of four syllables, so that none is a part of another.
    count = config.people * (len(_QUESTIONS) + 1)
    numbers: list[int] = rng.choice(len(_SYLLABLES) ** 4, size=count, replace=False).tolist()
    places: list[int] = [len(_SYLLABLES) ** place for place in range(4)]
    names = ["".join(_SYLLABLES[number // place % len(_SYLLABLES)] for place in places).title() for number in numbers]
    chains = [names[i :: config.people] for i in range(config.people)]  # person, town, region, river
    facts = [
        SearchFact(subject=subject, text=text.format(subject, value))
        for chain in chains
        for text, subject, value in zip(_FACTS, chain[:-1], chain[1:], strict=True)
    ]
    chain = chains[int(rng.integers(config.people))]
    return SearchInlineTask(
        question=_QUESTIONS[config.hops - 1].format(chain[0]),
        answer=chain[config.hops],
        facts=tuple(facts),
        path=tuple(chain[: config.hops]),
    )
