"""A question that is too large for one agent: a parent delegates parts of it to researchers, its sub-agents."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field, model_validator

from envsdk import EnvConfig, Handoff, HandoffResult, Limits, Message, StopReason, ToolEnv, ToolEnvConfig, Turn, tool
from envsdk._visible import brief
from envsdk.errors import ToolError

from ._scoring import TaskData, decline, end_with_verdict, last_word

CORRECT, FOUND = 0.75, 0.25
"""The reward for the right answer, and the rewards that researchers can earn in all."""
MAX_TITLES = 5
_SYSTEM = (
    "Answer a question about a fictional world that you know nothing about. Delegate parts of it to researchers. Each "
    "researcher gets one question, does not see yours, and can read only a few articles. When you know the answer, "
    "reply with just the name, without a tool call."
)
_RESEARCHER_SYSTEM = (
    "You are a researcher. Search the articles, read the relevant ones (at most {}), and answer the question in one "
    "sentence that contains everything you were asked for."
)
_SYLLABLES = ("ba", "do", "fe", "gu", "ka", "li", "mo", "ne", "pa", "ri", "so", "tu", "va", "ze")
_LAST_SYLLABLES = {"train": _SYLLABLES[:10], "test": _SYLLABLES[10:]}
_TRADES = ("baker", "carpenter", "doctor", "gardener", "painter", "sailor", "teacher", "weaver")


class DelegateConfig(ToolEnvConfig):
    """The size of the question and of the world, and the limits of researchers."""

    candidates: int = Field(default=3, ge=2, le=6)
    """The number of people in the question."""
    people: int = Field(default=8, ge=2, le=100)
    """The number of people in the world, each of whom lives in a different town."""
    max_researchers: int = Field(default=12, ge=1)
    """The maximum number of researchers in an episode."""
    researcher_steps: int = Field(default=8, ge=1)
    """The maximum number of steps of a researcher."""
    researcher_articles: int = Field(default=3, ge=1)
    """The maximum number of articles that a researcher may read: too few for the whole question."""
    split: Literal["train", "test"] = "train"
    """No name is in worlds of both splits."""

    @model_validator(mode="after")
    def _has_the_candidates(self) -> "DelegateConfig":
        if self.candidates > self.people:
            raise ValueError(
                f"candidates is {self.candidates} and people is {self.people}; expected candidates <= people"
            )
        return self


class Article(TaskData):
    """An article of the corpus."""

    title: str
    text: str


class Lead(TaskData):
    """A piece of information that the parent needs."""

    subject: str
    """The name that a question about it has to contain."""
    value: str
    """The name that an answer has to contain."""
    question: str
    """The question that the reference policy asks."""
    titles: tuple[str, ...]
    """The articles that the reference policy reads."""
    answer: str
    """The answer that the reference policy gives."""


class DelegateTask(TaskData):
    """A question, the corpus, and the leads to the answer."""

    question: str
    answer: str = Field(min_length=1)
    articles: tuple[Article, ...] = Field(min_length=1)
    rounds: tuple[tuple[Lead, ...], ...] = ()
    """Rounds of leads. Those of one round can be followed in parallel."""

    @property
    def leads(self) -> list[Lead]:
        """The leads of all rounds."""
        return [lead for leads in self.rounds for lead in leads]


class ResearcherTask(TaskData):
    """The question to a researcher, and what it can earn."""

    question: str
    leads: tuple[Lead, ...] = ()
    """The leads whose subjects the question names."""
    rewards: dict[str, float] = Field(default_factory=dict[str, float])
    """The reward for each value."""


class Researcher(ToolEnv):
    """Answer a question by searching and reading articles. This is the sub-agent of `Delegate`.

    Reward: `found`, the sum of the task's rewards for the values that an article the researcher read and its answer
    both name.

    Args:
        articles: The corpus.
        max_articles: The maximum number of articles that may be read.
        **options: The options of every `ToolEnv`.
    """

    Task: ClassVar[type[BaseModel] | None] = ResearcherTask

    def __init__(self, articles: Sequence[Article], max_articles: int, **options: Any) -> None:
        super().__init__(**options)
        self.articles = {article.title.casefold(): article for article in articles}
        self.max_articles = max_articles

    def start(self) -> Turn:
        """Ask the question."""
        self.articles_read = 0
        return Turn(self.task.question, system=_RESEARCHER_SYSTEM.format(self.max_articles))

    @tool
    def search(self, words: str) -> str:
        """Search the articles by words, and return their titles, the best matches first.

        Args:
            words: One or more words, such as a name.
        """
        wanted = set(re.findall(r"\w+", words.casefold()))
        scores: dict[str, int] = {}
        for article in self.articles.values():
            found = (wanted.intersection(re.findall(r"\w+", part.casefold())) for part in (article.title, article.text))
            scores[article.title] = sum(map(len, found))
        titles = sorted((title for title, score in scores.items() if score), key=lambda title: (-scores[title], title))
        return ", ".join(titles[:MAX_TITLES]) or "No articles were found."

    @tool
    def read(self, title: str) -> str:
        """Read an article.

        Args:
            title: Its title.
        """
        article = self.articles.get(title.strip().casefold())
        if article is None:
            raise ToolError(f"there is no article {title!r}; search for a title")
        if self.articles_read == self.max_articles:
            raise ToolError(f"you have read {self.max_articles} articles, which is the limit; answer now")
        self.articles_read += 1
        return article.text

    def finish(self, reply: Message) -> Turn:
        """Score the answer: only values that were read count, not guesses."""
        read = _tool_texts(self.messages())
        said = [value for value in self.task.rewards if _names(reply.content, value) and _names(read, value)]
        return Turn(reward={"found": sum(self.task.rewards[value] for value in said)}, terminated=True)

    def reference_reply(self) -> Message | str:
        """Search once, read the articles of the leads, and report what they say."""
        titles = list(dict.fromkeys(title for lead in self.task.leads for title in lead.titles))[: self.max_articles]
        replies = _replies(self.messages())
        if titles and not replies:
            return Message.calling("search", {"words": titles[0]}, reasoning="Which articles are relevant?")
        if replies <= len(titles) and titles:
            title = titles[replies - 1]
            return Message.calling("read", {"title": title}, reasoning=f"I will read about {title}.")
        known = [lead.answer for lead in self.task.leads if _names(_tool_texts(self.messages()), lead.value)]
        return Message(role="assistant", reasoning="I have what I need.", content=" ".join(known) or "I do not know.")


class Delegate(ToolEnv):
    """Answer a question about a made-up world by delegating parts of it to researchers.

    Exercises: splitting a question into parts that can be answered without the whole, delegating several at a time, and
    combining the answers; as a researcher, searching, reading and reporting. The parent is one sample, and each
    researcher is one.

    Reward: `correct`, 0.75 if the last word of the answer is right, and `found`, at most 0.25, which researchers earn:
    an equal share for each value that the parent needs, if the first researcher that is asked about it reads and
    reports it. The parent receives an error for a researcher that ends without an answer.

    One policy may play all roles, or each role may have its own: `rollout(env, {"main": policy, "researcher":
    "reference"})`.
    """

    Config: ClassVar[type[EnvConfig]] = DelegateConfig
    Task: ClassVar[type[BaseModel] | None] = DelegateTask
    default_limits: ClassVar[Limits] = Limits(max_steps=128)
    reward_range: ClassVar[tuple[float, float]] = (0.0, CORRECT + FOUND)

    def start(self) -> Turn:
        """Ask the question."""
        self.quest: DelegateTask = self.task or _draw_quest(self.np_random, self.config)
        self.researchers = 0
        self.asked_for: set[str] = set()
        return Turn(self.quest.question, system=_SYSTEM)

    @tool
    def delegate(self, questions: list[str]) -> list[Handoff]:
        """Ask researchers, who each search and read a few articles. The answers come in the order of the questions.

        Args:
            questions: One question for each researcher. It must be self-contained, because the researcher knows nothing
                else.
        """
        config: DelegateConfig = self.config
        left = config.max_researchers - self.researchers
        if not questions or not all(question.strip() for question in questions):
            raise ToolError("questions is empty, or contains an empty question")
        if len(questions) > left:
            raise ToolError(f"you asked {len(questions)} questions, but only {left} more researchers are available")
        self.researchers += len(questions)
        share = FOUND / max(1, len(self.quest.leads))
        handoffs: list[Handoff] = []
        for question in questions:
            leads = [lead for lead in self.quest.leads if _names(question, lead.subject)]
            # A subject that another researcher was asked about earns nothing.
            values = [lead.value for lead in leads if lead.subject not in self.asked_for]
            self.asked_for.update(lead.subject for lead in leads)
            task = ResearcherTask(question=question, leads=tuple(leads), rewards=dict.fromkeys(values, share))
            researcher = Researcher(self.quest.articles, config.researcher_articles, history=self.history)
            limits = Limits(max_steps=config.researcher_steps)
            handoffs.append(Handoff(researcher, task, limits=limits, result=partial(_with_failure, question)))
        return handoffs

    def finish(self, reply: Message) -> Turn:
        """Score the answer and end the episode."""
        is_right = last_word(reply.content).rstrip(".").casefold() == self.quest.answer.casefold()
        return end_with_verdict(is_right, self.quest.answer, CORRECT)

    def reference_reply(self) -> Message | str:
        """Delegate the leads of one round at a time, then answer if the researchers reported every value."""
        replies, reported = _replies(self.messages()), _tool_texts(self.messages())
        if replies < len(self.quest.rounds):
            questions = [lead.question for lead in self.quest.rounds[replies]]
            return Message.calling(
                "delegate", {"questions": questions}, reasoning="I need researchers to look this up."
            )
        knows_all = all(_names(reported, lead.value) for lead in self.quest.leads)
        answer = self.quest.answer if knows_all else "I do not know."
        return Message(role="assistant", reasoning="Now I can put the answers together.", content=answer)

    null_reply = decline


def _with_failure(question: str, result: HandoffResult) -> HandoffResult:
    """Return the result, with an error if there is no answer."""
    error = result.error
    if error is None and result.stop_reason != StopReason.TERMINATED:
        error = f"no answer to {brief(question)}: the researcher was cut off ({result.stop_reason})"
    elif error is None and not result.content.strip():
        error = f"no answer to {brief(question)}"
    return replace(result, error=error)


def _names(text: str, name: str) -> bool:
    """Return whether a string contains a name."""
    return re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE) is not None


def _tool_texts(messages: Sequence[Message]) -> str:
    """Return the results of all tools as one text."""
    return "\n".join(message.content for message in messages if message.role == "tool")


def _replies(messages: Sequence[Message]) -> int:
    return sum(message.role == "assistant" for message in messages)


# Worlds.


class _Town(TaskData):
    name: str
    region: str
    year: int
    inhabitant: str


def _draw_quest(rng: np.random.Generator, config: DelegateConfig) -> DelegateTask:
    """Draw a world in which each person lives in a different town, and a question about some of the towns."""
    count = config.people
    # Names of three syllables, so that none is a part of another. The last syllable decides the split.
    last = _LAST_SYLLABLES[config.split]
    first = len(_SYLLABLES)
    numbers: list[int] = rng.choice(first * first * len(last), size=3 * count, replace=False).tolist()
    syllables = [(_SYLLABLES[n % first], _SYLLABLES[n // first % first], last[n // first // first]) for n in numbers]
    names = ["".join(parts).title() for parts in syllables]
    years: list[int] = rng.choice(np.arange(1100, 1900), size=count, replace=False).tolist()
    towns = [
        _Town(name=names[count + i], region=names[2 * count + i], year=years[i], inhabitant=names[i])
        for i in range(count)
    ]
    articles: list[Article] = []
    for town in towns:  # about the town, its region and its inhabitant, with irrelevant facts among the relevant ones
        born, ruled = (int(year) for year in rng.integers(1900, 2000, size=2))
        person, trade = town.inhabitant, _TRADES[int(rng.integers(len(_TRADES)))]
        texts = {
            person: f"{person} was born in {born} and is a {trade}. {person} lives in the town of {town.name}.",
            town.name: f"The town of {town.name} was founded in {town.year}. It lies in the region of {town.region}.",
            town.region: f"{town.region} has been a region since {ruled}. It is known for its {trade}s.",
        }
        articles += [Article(title=title, text=text) for title, text in texts.items()]
    order: list[int] = rng.permutation(len(articles)).tolist()
    asked = towns[: config.candidates]
    oldest = min(asked, key=lambda town: town.year)
    *others, last = (town.inhabitant for town in asked)
    leads = [
        Lead(
            subject=town.inhabitant,
            value=str(town.year),
            question=f"In which town does {town.inhabitant} live, and in which year was it founded?",
            titles=(town.inhabitant, town.name),
            answer=f"{town.inhabitant} lives in {town.name}, which was founded in {town.year}.",
        )
        for town in asked
    ]
    to_region = Lead(
        subject=oldest.name,
        value=oldest.region,
        question=f"In which region is the town of {oldest.name}?",
        titles=(oldest.name,),
        answer=f"{oldest.name} lies in the region of {oldest.region}.",
    )
    return DelegateTask(
        question=f"{', '.join(others)} and {last} each live in a different town. "
        "In which region is the oldest of these towns?",
        answer=oldest.region,
        articles=tuple(articles[i] for i in order),
        rounds=(tuple(leads), (to_region,)),
    )
