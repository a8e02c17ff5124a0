"""An errand through a town, from house to house, for several days: far more to read than the context may hold."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, Field

from envsdk import Edit, EnvConfig, Limits, Message, ToolEnv, ToolEnvConfig, Turn, tool
from envsdk._visible import brief
from envsdk.authoring.tasks import Split
from envsdk.errors import ToolError

from ._long_notes import FILLERS, Draws
from ._scoring import TaskData

_SYSTEM = (
    "You run an errand through a town, from house to house, for several days. Each house shows you its card, a list of "
    "numbers of birds, and gives you letters to carry. Then it asks questions: about its card, about an old card in "
    "one of its books, about the word of a gate, and about letters from earlier days. An answer is a number or a word. "
    "Of all that is said about gates, only a sentence that begins with `Mark this:` is true. Every night, the whole "
    "day vanishes from your context, except for what you wrote down as notes. A reply without a tool call ends the "
    "errand."
)


class LongErrandConfig(ToolEnvConfig):
    """The length of the errand."""

    split: Split = "train"
    """No letter is for the same person in both splits."""
    size: Literal["tiny", "small", "medium", "large"] = "small"
    """The number of days and houses, which also sets the default limits. A tiny errand has no books."""
    context_tools: tuple[Literal["fold", "branch", "note", "recall"], ...] = ("fold", "branch", "note", "recall")
    """The context tools of the model, as for any `ToolEnv`."""
    max_notes_chars: int = Field(default=400, ge=1)
    """The maximum length of all notes: enough for the words of all gates, but not for all letters."""
    max_reply_tokens: int = Field(default=256, ge=1)
    """The maximum length of a reply: too short to copy a card into a summary."""


class ErrandQuestion(TaskData):
    """A question at a house."""

    text: str
    clue: str
    """What is written on the card, in a book, or in the text of a house, and ends with the answer."""
    answer: str
    book: str = ""
    """The title of the book that has the clue; empty if it is not in a book."""


class ErrandHouse(TaskData):
    """A house on the way."""

    text: str
    """What it shows and says on arrival."""
    words: tuple[str, ...] = ()
    """The clues in it about words of gates."""
    letters: tuple[str, ...] = ()
    """The clues in it about letters."""
    books: dict[str, tuple[str, ...]] = Field(default_factory=dict[str, tuple[str, ...]])
    """The pages of its books, by title."""
    questions: tuple[ErrandQuestion, ...] = Field(min_length=1)


class ErrandDay(TaskData):
    """A day of the errand."""

    gate: ErrandQuestion | None = None
    """The question of the guard in the morning; None if there is no guard."""
    houses: tuple[ErrandHouse, ...] = Field(min_length=1)


class LongErrandTask(TaskData):
    """The days of an errand."""

    days: tuple[ErrandDay, ...] = Field(min_length=1)


class LongErrand(ToolEnv):
    """Run an errand through a town for several days, and answer questions at each house.

    Exercises: deciding what to forget, what to note, what to look up again, and what to read apart from the rest. Some
    details matter at once, some days later, most never. By default, the model has all context tools. Within the
    default limits, it needs each of them, except that a tiny errand has nothing to read in branches:

    - `fold`: two houses do not fit into the context. A branch cannot take its place, because a house has its own
      detours, and branches may not be nested (`max_handoff_depth=1`).
    - `branch`: to answer one question, up to three pages of a book are read. The card of the house, which is needed
      afterwards, does not fit into the context together with two books. A reply is too short to copy it into a summary
      (`max_reply_tokens`), and a search by words finds other cards as well, because all have the same words.
    - `note`: at night, the environment drops the whole day from the context, an `edit`. In the morning, a guard asks
      for the word of a gate. If the next reply does not answer, the day is lost. The words are said on the first day.
    - `recall`: questions about letters come days later, and the notes cannot hold all letters (`max_notes_chars`).

    Reward: `right`, the share of questions with the right answer. A task, if given, has `days` with `houses`, each of
    which has a `text`, `books` and `questions`.
    """

    Config: ClassVar[type[EnvConfig]] = LongErrandConfig
    Task: ClassVar[type[BaseModel] | None] = LongErrandTask
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, **options: Any) -> None:
        if (size := _SIZES.get(options.get("size", "small"))) is not None:  # another one is refused below
            default = Limits(max_steps=size.max_steps, max_context_tokens=size.max_context_tokens, max_handoff_depth=1)
            options["limits"] = Limits.of(options.get("limits"), default)
        super().__init__(**options)

    def start(self) -> Turn:
        """Announce the first day."""
        self.quest: LongErrandTask = self.task or random_task(self.np_random, self.config)
        self.count = sum(len(house.questions) for day in self.quest.days for house in day.houses)
        self.count += sum(day.gate is not None for day in self.quest.days)
        self.house: ErrandHouse | None = None
        self.past_days = self.right = 0
        return self._turn(self._begin_day(), system=_SYSTEM)

    @tool
    def visit(self) -> str:
        """Go to the next house of the day."""
        if self.gate is not None or self.is_over:
            raise ToolError("the gate is closed" if self.visits == 0 else "the day is over")
        if self.house is not None:
            raise ToolError(f"answer the question of this house first: {self.house.questions[self.asked].text}")
        self.house, self.asked = self.day.houses[self.visits], 0
        self.visits += 1
        questions = self.house.questions
        return (
            f"House {self.visits} of {len(self.day.houses)}.\n{self.house.text}\nQuestion 1 of {len(questions)}: "
            f"{questions[0].text}"
        )

    @tool
    def read(self, book: str, page: int) -> str:
        """Read a page of a book of this house.

        Args:
            book: The title of the book, such as `old book`.
            page: The number of the page, from 1.
        """
        books = self.house.books if self.house else {}
        pages = books.get(book, ())
        if not 1 <= page <= len(pages):
            here = ", ".join(f"{title} with {len(books[title])} pages" for title in books) or "no books"
            raise ToolError(f"there is no page {page} of {brief(book)}; there are: {here}")
        return f"{book}, page {page} of {len(pages)}: {pages[page - 1]}"

    @tool
    def answer(self, text: str) -> str:
        """Answer the question of the house or of the guard. There is one try.

        Args:
            text: A number or a word, and nothing else.
        """
        question = self.gate if self.house is None else self.house.questions[self.asked]
        if question is None:
            raise ToolError("there is no question to answer; visit the next house")
        is_right = text.strip().rstrip(".").casefold() == question.answer.casefold()
        if self.house is None:
            self.gate, self.is_over, self.right = None, not is_right, self.right + is_right
            return "The gate opens." if is_right else "The gate stays closed."
        questions = self.house.questions
        is_last = self.asked + 1 == len(questions)
        if is_last and self.visits == len(self.day.houses) and self.context != "main":
            raise ToolError("finish your branch first: this answer ends the day")
        self.right += is_right
        self.asked += 1
        verdict = "That is right." if is_right else "That is wrong."
        if not is_last:
            return f"{verdict} Question {self.asked + 1} of {len(questions)}: {questions[self.asked].text}"
        self.house, self.is_over = None, self.visits == len(self.day.houses)
        return f"{verdict} That was the last question here."

    def after_tools(self, reply: Message, results: list[Message]) -> Turn:
        """Reward right answers. At the end of a day, all its messages leave the context."""
        reward = {"right": self.right / self.count}
        self.right = 0
        if not self.is_over and self.gate is None:
            return self._turn(results, reward=reward)
        self.past_days += 1
        if self.past_days == len(self.quest.days):
            return Turn(results, reward=reward, terminated=True)
        yesterday = "The gate stayed closed, and a day was lost. " if self.visits == 0 else ""
        return self._turn(f"{yesterday}{self._begin_day()}", reward=reward, edit=Edit(1, "a night"))

    def finish(self, reply: Message) -> Turn:
        """End the errand."""
        return Turn("You gave up.", terminated=True)

    def _begin_day(self) -> str:
        self.day = self.quest.days[self.past_days]
        self.gate, self.visits, self.asked, self.is_over = self.day.gate, 0, 0, False
        guard = f" The guard does not wait and asks: {self.gate.text}" if self.gate else ""
        return (
            f"This is the morning of day {self.past_days + 1} of {len(self.quest.days)}. There are "
            f"{len(self.day.houses)} houses to visit.{guard}"
        )

    def _turn(self, messages: str | list[Message], **options: Any) -> Turn:
        return Turn(messages, max_tokens=self.config.max_reply_tokens, **options)

    def reference_reply(self) -> Message | str:
        """Note what is needed often, read books in branches, fold after each house, and recall what is out of sight.

        It uses only clues that its context shows. Without one of the context tools, it does as well as it can.
        """
        tools, view, most = self.config.context_tools, self.episode.agent.context.view, self.limits.max_context_tokens
        calls = (str(call.arguments) for message in view for call in message.tool_calls)
        seen = "\n".join([*(message.content for message in view), *calls])
        last, in_branch = view[-1].name, self.context != "main"
        words = [word for house in self.quest.days[0].houses for word in house.words]
        question = self.gate if self.house is None else self.house.questions[self.asked]
        book = question.book if question else ""
        titles = (
            [f"{book}, page {page + 1}" for page in range(len(self.house.books[book]))] if book and self.house else []
        )
        has_books = self.house is not None and bool(self.house.books)
        is_full = has_books and most is not None and len(self.prompt()) + _PAGE_TOKENS > most
        is_left = question is None and last == "answer" and self.visits > 0
        if "fold" in tools and not in_branch and (is_left or (is_full and last not in (None, "fold"))):
            needed = [clue for clue in (*titles, *(() if "note" in tools else words)) if clue in seen]
            return _call("fold", summary="; ".join([question.text if question else "This house is done", *needed]))
        if question is None:
            return _call("visit")
        if self.house and last == "visit" and "note" in tools:
            is_first = self.house is self.quest.days[0].houses[0]
            room = (self.config.max_notes_chars - sum(map(len, words))) // 20
            letters = self.house.letters[:room] if is_first and "recall" not in tools else ()
            if clues := [*self.house.words, *letters]:
                return _call("note", text="; ".join(clues))
        if question.clue in seen:
            return _call("finish", result=question.clue) if in_branch else _call("answer", text=question.answer)
        if book and "branch" in tools and not in_branch:
            return _call("branch", task=question.text)
        if unread := [page for page, title in enumerate(titles, start=1) if title not in seen]:
            return _call("read", book=book, page=unread[0])
        if "recall" in tools and self.house and last != "recall":
            return _call("recall", query=question.clue.removesuffix(question.answer))
        return _call("answer", text="unknown")


def _call(name: str, **arguments: str | int) -> Message:
    return Message.calling(name, arguments)


# Random tasks.


class _ErrandSize(NamedTuple):
    days: int
    houses: int
    """The number of houses of each day."""
    chatter: int
    """The number of useless sentences in the text of a house, and of rumors about gates."""
    labels: int
    """The number of entries of a card."""
    letters: int
    """The number of letters that a house gives."""
    books: int
    """The number of books in a house, each of which has three pages and one question."""
    asked: tuple[int, int, int]
    """The number of questions of a house about its card, words of gates (if enough are known), and letters."""
    max_steps: int
    max_context_tokens: int


_SIZES = {
    "tiny": _ErrandSize(2, 2, 6, 8, 4, 0, (1, 1, 1), 40, 2400),
    "small": _ErrandSize(2, 2, 6, 60, 24, 2, (3, 2, 3), 130, 5800),
    "medium": _ErrandSize(3, 2, 6, 60, 24, 2, (3, 2, 3), 200, 5800),
    "large": _ErrandSize(4, 2, 6, 60, 24, 2, (3, 2, 3), 280, 5800),
}
_PAGES, _PAGE_TOKENS = 3, 800
_GATES = ("North Gate", "South Gate", "East Gate", "West Gate")
_WORDS = (
    *("otter", "badger", "lizard", "salmon", "beaver", "rabbit", "spider", "turtle"),
    *("walnut", "cherry", "garlic", "pepper", "barley", "clover", "thistle", "poplar", "willow", "laurel", "saffron"),
    *("anvil", "bucket", "candle", "hammer", "kettle", "ladder", "needle", "saddle", "shovel", "basket", "lantern"),
)
_RUMORS = (
    "Mark told me this: the word of the {gate} is {word}.",
    "A boy said that Mark sang this: the word of the {gate} is {word}.",
    "Did Mark write this: the word of the {gate} is {word}?",
    "For years, Mark believed this: the word of the {gate} is {word}.",
)
_COLORS = ("red", "blue", "green", "white", "black")
_BIRDS = (
    *("crane", "falcon", "goose", "heron", "owl", "pigeon"),
    *("raven", "robin", "sparrow", "stork", "swallow", "swan"),
)
_LABELS = tuple(f"{color} {bird}" for color in _COLORS for bird in _BIRDS)
_BOOKS = ("old book", "thick book", "torn book", "thin book")


def random_task(rng: np.random.Generator, config: LongErrandConfig) -> LongErrandTask:
    """Draw an errand of the configured size and split."""
    size, draws = _SIZES[config.size], Draws(rng)
    letters = _numbered(draws, draws.names(config.split, size.days * size.houses * size.letters))
    true_words = zip(draws.some(_GATES, len(_GATES)), draws.some(_WORDS, len(_GATES)), strict=True)
    words = [f"the word of the {gate} is {word}" for gate, word in true_words]
    days = [
        ErrandDay(
            gate=_question("What is {}?", draws.pick(words)) if day else None,
            houses=tuple(_draw_house(draws, size, words, letters, day, place) for place in range(size.houses)),
        )
        for day in range(size.days)
    ]
    return LongErrandTask(days=tuple(days))


def _draw_house(
    draws: Draws, size: _ErrandSize, words: Sequence[str], letters: Sequence[str], day: int, place: int
) -> ErrandHouse:
    """Draw a house: what it says, and questions about that and about what earlier houses said."""
    index = day * size.houses + place
    own_words = words[place :: size.houses] if day == 0 else ()
    own_letters = letters[index * size.letters : (index + 1) * size.letters]
    known_words = [
        word for earlier in range(place if day == 0 else size.houses) for word in words[earlier :: size.houses]
    ]
    card = _numbered(draws, draws.some(_LABELS, size.labels))
    said = [f"Mark this: {word}." for word in own_words]
    for _ in range(size.chatter):
        rumor = draws.pick(_RUMORS).format(gate=draws.pick(_GATES), word=draws.pick(_WORDS))
        said += [draws.pick(FILLERS), rumor]
    n_cards, n_words, n_letters = size.asked
    old_letters = letters[: day * size.houses * size.letters]
    letter_form = "Which number does the letter for {} have?"
    questions = [
        *(_question("Which number does {} have on the card?", clue) for clue in draws.some(card, n_cards)),
        *(_question("What is {}?", clue) for clue in draws.some(known_words, min(n_words, len(known_words)))),
        *(_question(letter_form, clue) for clue in draws.some(old_letters, min(n_letters, len(old_letters)))),
    ]
    questions = draws.some(questions, len(questions))
    years = draws.some(range(1700, 1900), _PAGES * size.books)
    books: dict[str, tuple[str, ...]] = {}
    for number, book in enumerate(draws.some(_BOOKS, size.books)):
        cards = {year: _numbered(draws, draws.some(_LABELS, len(_LABELS))) for year in years[number :: size.books]}
        books[book] = tuple(f"The card of {year}: {', '.join(card)}." for year, card in cards.items())
        year = draws.pick(list(cards)[1:])
        form = f"Which number does {{}} have on the card of {year}, which is in the {book}?"
        # Before most of the others, which need what the house has said before this long detour.
        questions.insert(2 * number, _question(form, draws.pick(cards[year]), book))
    return ErrandHouse(
        text=f"Card: {', '.join(card)}.\nLetters: {', '.join(own_letters)}.\n{' '.join(draws.some(said, len(said)))}",
        words=tuple(own_words),
        letters=tuple(own_letters),
        books=books,
        questions=tuple(questions),
    )


def _numbered(draws: Draws, names: Iterable[str]) -> list[str]:
    """Draw a number for each name."""
    return [f"{name}:{1000 + draws.below(9000)}" for name in names]  # no space: recall does not cut it in two


def _question(form: str, clue: str, book: str = "") -> ErrandQuestion:
    subject, answer = re.split(":| is ", clue)
    return ErrandQuestion(text=form.format(subject), clue=clue, answer=answer, book=book)
