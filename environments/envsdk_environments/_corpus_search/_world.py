"""A made-up world: its entities, the relations between them, an article about each, and the questions about it.

The world is generated once per process from the words of `world.json` and a fixed seed, so it is always the same.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from pydantic import Field

from envsdk.authoring.tasks import Split, split_of

from .._scoring import TaskData

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")
Kind: TypeAlias = Literal["person", "town", "region", "company", "school", "work"]
_SEED = 20_240_601
_ASIDE_SHARE = 0.6
Difficulty: TypeAlias = Literal["easy", "medium", "hard"]
HOPS: Mapping[Difficulty, int] = {"easy": 2, "medium": 3, "hard": 4}


class Relation(TaskData):
    """A relation that leads from one entity, the source, to another one, the target."""

    source: Kind
    target: Kind
    share: float
    """The share of entities of the source's kind that have it."""
    phrase: str
    """The phrase for the target in a question that names only the source."""
    question: str
    sentences: tuple[str, ...]
    """Sentences for the source's article: `{s}` is the source, `{t}` the target."""


class _Aside(TaskData):
    """A distracting sentence, which mentions another entity and answers no question."""

    target: Kind
    sentence: str


class _WorldWords(TaskData):
    """The parts of names and sentences."""

    counts: dict[Kind, int]
    relations: tuple[Relation, ...]
    mentions: dict[Kind, str]
    """The phrase for an entity of each kind in questions."""
    openings: dict[Kind, tuple[str, ...]]
    nouns: dict[Kind, tuple[str, ...]]
    """Words for what an entity of each kind is, makes, or is known for."""
    asides: dict[Kind, tuple[_Aside, ...]]
    onsets: tuple[str, ...]
    vowels: tuple[str, ...]
    surname_ends: tuple[str, ...]
    town_ends: tuple[str, ...]
    region_ends: tuple[str, ...]
    company_ends: tuple[str, ...]
    school_ends: tuple[str, ...]
    work_starts: tuple[str, ...]
    work_ends: tuple[str, ...]


class World(NamedTuple):
    """All entities, identified by their number."""

    names: tuple[str, ...]
    members: Mapping[Kind, range]
    mentions: tuple[str, ...]
    """The phrase for each entity in questions."""
    relations: tuple[Relation, ...]
    targets: "NDArray[np.int32]"
    """The target of each relation from each entity, int32 of shape (n_relations, n_entities + 1).

    The number n_entities stands for no target, and leads to itself."""
    articles: tuple[tuple[str, ...], ...]
    """The sentences of the article about each entity; its title is the entity's name."""


@cache
def get_world() -> World:
    """Return the world, which is generated on first use."""
    words = _WorldWords.model_validate_json(Path(__file__).with_name("world.json").read_bytes())
    return _Maker(words, random.Random(_SEED).random).make()


@dataclass(eq=False, repr=False)
class _Maker:
    words: _WorldWords
    random: Callable[[], float]  # the only method whose numbers are the same in every version of Python

    def make(self) -> World:
        words = self.words
        names = tuple(self._draw_names())
        ends = np.cumsum(list(words.counts.values())).tolist()
        members: dict[Kind, range] = {
            kind: range(end - count, end) for (kind, count), end in zip(words.counts.items(), ends, strict=True)
        }
        kinds: list[Kind] = [kind for kind, numbers in members.items() for _ in numbers]
        nouns = [self._one_of(words.nouns[kind]) for kind in kinds]
        targets = np.full((len(words.relations), len(names) + 1), len(names), np.int32)
        for number, relation in enumerate(words.relations):
            for source in members[relation.source]:
                target = self._one_of(members[relation.target])
                if target != source and self.random() < relation.share:
                    targets[number, source] = target
        mentions = [
            words.mentions[kind].format(name=name, noun=noun)
            for kind, name, noun in zip(kinds, names, nouns, strict=True)
        ]
        articles = self._write(names, members, nouns, targets)
        return World(names, members, tuple(mentions), words.relations, targets, tuple(articles))

    def _draw_names(self) -> Iterator[str]:
        """Yield a distinct name for each entity."""
        makers: Mapping[Kind, Callable[[], str]] = {
            "person": lambda: f"{self._syllables(2)} {self._one_of(surnames)}",
            "town": lambda: self._syllables(2) + self._one_of(self.words.town_ends),
            "region": lambda: self._syllables(2) + self._one_of(self.words.region_ends),
            "company": lambda: f"{self._syllables(3)} {self._one_of(self.words.company_ends)}",
            "school": lambda: f"{self._syllables(3)} {self._one_of(self.words.school_ends)}",
            "work": lambda: f"{self._one_of(self.words.work_starts)} {self._one_of(self.words.work_ends)}",
        }
        surnames = [self._syllables(2) + self._one_of(self.words.surname_ends) for _ in range(400)]
        for kind, count in self.words.counts.items():
            names: dict[str, None] = {}
            while len(names) < count:
                names[makers[kind]()] = None
            yield from names

    def _write(
        self, names: Sequence[str], members: Mapping[Kind, range], nouns: Sequence[str], targets: "NDArray[np.int32]"
    ) -> Iterator[tuple[str, ...]]:
        """Yield an article about each entity: what it is, then its relations and distractors in random order."""
        for kind, numbers in members.items():
            own = [
                (relation.sentences, column)
                for relation, column in zip(self.words.relations, targets.tolist(), strict=True)
                if relation.source == kind
            ]
            asides = self.words.asides[kind]
            for number in numbers:
                name = names[number]
                rest = [
                    self._one_of(sentences).format(s=name, t=names[column[number]])
                    for sentences, column in own
                    if column[number] < len(names)
                ]
                rest += [
                    aside.sentence.format(s=name, t=names[self._one_of(members[aside.target])])
                    for aside in asides
                    if self.random() < _ASIDE_SHARE
                ]
                year = 1500 + int(self.random() * 450)
                opening = self._one_of(self.words.openings[kind]).format(s=name, noun=nouns[number], year=year)
                yield opening, *sorted(rest, key=lambda _: self.random())

    def _one_of(self, choices: Sequence[T]) -> T:
        return choices[int(self.random() * len(choices))]

    def _syllables(self, count: int) -> str:
        return "".join(self._one_of(self.words.onsets) + self._one_of(self.words.vowels) for _ in range(count)).title()


# Questions: the answer is reached by following relations from article to article.


class CorpusSearchTask(TaskData):
    """A question about the world of the articles."""

    question: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    """The name that is asked for."""
    path: tuple[str, ...] = ()
    """The titles of the articles that lead to the answer, in order. The reference policy reads them."""


class _Chains(NamedTuple):
    """A chain of relations, and the entities from which it leads to an answer."""

    relations: tuple[int, ...]
    starts: "NDArray[np.int32]"


class Questions:
    """The sequence of all questions of a split with a number of hops. No entity is the answer in both splits."""

    def __init__(self, world: World, hops: int, split: Split) -> None:
        self._world = world
        self._chains = list(_follow(world, hops, split))
        self._ends = np.cumsum([len(chains.starts) for chains in self._chains])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> CorpusSearchTask:
        if not 0 <= index < len(self):
            raise IndexError(f"question {index} is out of range; expected 0 to {len(self) - 1}")
        at = int(np.searchsorted(self._ends, index, side="right"))
        chains = self._chains[at]
        world, entity = self._world, int(chains.starts[index - int(self._ends[at])])
        called, path = world.mentions[entity], list[str]()
        for number in chains.relations:
            path.append(world.names[entity])
            entity = int(world.targets[number][entity])
            if number != chains.relations[-1]:
                called = world.relations[number].phrase.format(called)
        question = world.relations[chains.relations[-1]].question.format(called)
        return CorpusSearchTask(question=question, answer=world.names[entity], path=tuple(path))


@cache
def get_questions(difficulty: Difficulty, split: Split) -> Questions:
    """Return the questions, which are computed on first use."""
    return Questions(get_world(), HOPS[difficulty], split)


def _follow(world: World, hops: int, split: Split) -> Iterator[_Chains]:
    """Yield the chains of distinct relations that visit no entity twice and end at an answer of the split."""
    is_answer = np.array([*(split_of(name) == split for name in world.names), False])
    sequences: list[tuple[int, ...]] = [(number,) for number in range(len(world.relations))]
    for _ in range(hops - 1):  # each relation starts at the kind where the previous one ends
        sequences = [
            (*before, number)
            for before in sequences
            for number, relation in enumerate(world.relations)
            if relation.source == world.relations[before[-1]].target and number not in before
        ]
    for relations in sequences:
        numbers = world.members[world.relations[relations[0]].source]
        path = [np.arange(numbers.start, numbers.stop, dtype=np.int32)]
        for relation in relations:
            path.append(world.targets[relation][path[-1]])
        is_good = is_answer[path[-1]]
        for one, other in combinations(path, 2):
            is_good &= one != other
        if is_good.any():
            yield _Chains(relations, path[0][is_good])
