"""Questions whose answer is reached by following relations from article to article."""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from envsdk.authoring.tasks import Split, split_of

from ._world import World, get_world

if TYPE_CHECKING:
    from numpy.typing import NDArray

Difficulty: TypeAlias = Literal["easy", "medium", "hard"]
HOPS: Mapping[Difficulty, int] = {"easy": 2, "medium": 3, "hard": 4}


class CorpusSearchTask(BaseModel):
    """A question about the world of the articles."""

    model_config = ConfigDict(frozen=True)

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
        start = int(chains.starts[index - int(self._ends[at])])
        return _ask(self._world, start, chains.relations)


@cache
def get_questions(difficulty: Difficulty, split: Split) -> Questions:
    """Return the questions, which are computed on first use."""
    return Questions(get_world(), HOPS[difficulty], split)


def _follow(world: World, hops: int, split: Split) -> Iterator[_Chains]:
    """Yield the chains of distinct relations that visit no entity twice and end at an answer of the split."""
    is_answer = np.array([*(split_of(name) == split for name in world.names), False])
    for relations in _sequences(world, hops):
        numbers = world.members[world.relations[relations[0]].source]
        path = [np.arange(numbers.start, numbers.stop, dtype=np.int32)]
        for relation in relations:
            path.append(world.targets[relation][path[-1]])
        is_good = is_answer[path[-1]]
        for one, other in combinations(path, 2):
            is_good &= one != other
        if is_good.any():
            yield _Chains(relations, path[0][is_good])


def _sequences(world: World, hops: int) -> list[tuple[int, ...]]:
    """Return all sequences of distinct relations in which each starts at the kind where the previous one ends."""
    sequences: list[tuple[int, ...]] = [(number,) for number in range(len(world.relations))]
    for _ in range(hops - 1):
        sequences = [
            (*before, number)
            for before in sequences
            for number, relation in enumerate(world.relations)
            if relation.source == world.relations[before[-1]].target and number not in before
        ]
    return sequences


def _ask(world: World, start: int, relations: tuple[int, ...]) -> CorpusSearchTask:
    called, entity = world.mentions[start], start
    path: list[str] = []
    for number in relations:
        path.append(world.names[entity])
        entity = int(world.targets[number][entity])
        if number != relations[-1]:
            called = world.relations[number].phrase.format(called)
    question = world.relations[relations[-1]].question.format(called)
    return CorpusSearchTask(question=question, answer=world.names[entity], path=tuple(path))
