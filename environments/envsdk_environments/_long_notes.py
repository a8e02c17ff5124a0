"""Many messages, one after the other, and questions at the end: more to read than may stay in the context."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, Field, model_validator

from envsdk import EnvConfig, Limits, Message, ToolEnv, ToolEnvConfig, Turn, tool
from envsdk._visible import brief
from envsdk.authoring.tasks import Split, draw_in_split
from envsdk.errors import ToolError

from ._scoring import TaskData

T = TypeVar("T")
_SYSTEM = (
    "You will see messages, one at a time. After the last one, you will be asked questions. By then, early messages "
    "and your own replies may no longer be visible, but your notes are kept: use write_note to write down what you may "
    "be asked about, and read_notes to read your notes before you answer. A reply without a tool call shows the next "
    "message."
)
_QUESTIONS = "That was the last message. Answer each question on a separate line, in digits, such as `1. 42`:"
_REFERENCE_ROOM = 1200
"""The room that the reference policy keeps, in tokens: for a message, or the notes and the questions."""
_ANSWER = re.compile(r"([0-9]{1,3})[.:)][ \t]*(-?[0-9]{1,15})")
_NOTED = re.compile(r"(.+) ([=+]) (-?[0-9]+)")


class LongNotesConfig(ToolEnvConfig):
    """The amount to read, and the limits of notes."""

    split: Split = "train"
    """No depot is in messages of both splits."""
    difficulty: Literal["easy", "medium", "hard"] = "medium"
    """Easy, medium and hard tasks have 10, 20 and 40 messages of about 100, 160 and 215 words, and 2, 3 and 5
    questions."""
    max_note_chars: int = Field(default=400, ge=1)
    """The maximum length of a note, in characters."""
    max_notes_chars: int = Field(default=4000, ge=1)
    """The maximum length of all notes together, in characters: far less than the messages have."""


class NotedFact(TaskData):
    """A fact in a message that a question may be about."""

    about: str = Field(pattern=r"^[^;\n]+$")
    """The subject of the fact; the question is `What is ...?`."""
    value: int = Field(ge=-(10**9), le=10**9)
    """The value."""
    adds: bool = False
    """True if the value is added to the earlier one; otherwise it replaces it."""


class Document(TaskData):
    """A message to read."""

    text: str = Field(min_length=1)
    facts: tuple[NotedFact, ...] = ()
    """The facts in it."""


class LongNotesTask(TaskData):
    """The messages, and the questions at the end."""

    topic: str
    """The announcement of the questions. The first message contains it."""
    documents: tuple[Document, ...] = Field(min_length=1, max_length=1000)
    questions: tuple[str, ...] = Field(min_length=1, max_length=100)
    """For each question, what a fact is about."""

    @model_validator(mode="after")
    def _can_be_answered(self) -> "LongNotesTask":
        unknown = set(self.questions) - {fact.about for document in self.documents for fact in document.facts}
        if unknown:
            raise ValueError(f"a question is about {brief(min(unknown))}, but no document has a fact about it")
        return self

    def answers(self) -> list[int]:
        """Return the answers to the questions."""
        known = put_together(fact for document in self.documents for fact in document.facts)
        return [known[about] for about in self.questions]


class LongNotes(ToolEnv):
    """Read many messages, and answer questions about facts that are scattered over them.

    Exercises: separating relevant from irrelevant facts, noting them in time, and adding up values that come in parts.
    Each message is a user message; the tools `write_note` and `read_notes` keep notes, which outlive every rewrite of
    the context. The history policy decides what the context still shows at the end, and which breaks an episode has:

    - `keep`: no break. The context holds all messages: about 3,000, 6,500 and 15,000 tokens of Qwen3 in the three
      difficulties. A smaller `Limits(max_context_tokens=...)` ends the episode before the questions. There is no such
      limit by default, so that every history policy can be compared with this one.
    - `strip`: `thinking_stripped`, at each message and at the questions, as the family's template does.
    - `compact`: `compaction`, every N steps.
    - `budget`: `budget`, whenever the prompt would exceed the limit. Old messages are dropped, and their facts are lost
      unless they were noted. The budget has to hold a message and the notes: 1,500 tokens suffice for easy tasks, 2,500
      for hard ones.
    - `summarize`: `summary`. A fact that is in neither the summary nor the notes is lost.

    With `context_tools=("fold",)`, the model itself drops the messages that it has noted, a `fold`.

    Reward: `correct`, the share of questions with the right answer. An answer is a line `1. 42`; a question with two
    different answers has none. A task, if given, has a `topic`, `documents` with a `text` and its `facts` (`{"about":
    "the gate code of Zorvan", "value": 4821}`; with `"adds": true`, values add up), and `questions`, each of which is
    what a fact is about. More than 90 documents need larger `limits`.
    """

    Config: ClassVar[type[EnvConfig]] = LongNotesConfig
    Task: ClassVar[type[BaseModel] | None] = LongNotesTask
    default_limits: ClassVar[Limits] = Limits(max_steps=200)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def start(self) -> Turn:
        """Announce what the questions will be about."""
        self.quest: LongNotesTask = self.task or random_task(self.np_random, self.config)
        self.shown = 0
        self.asked = False
        self.notes: list[str] = []
        count = len(self.quest.documents)
        return Turn(f"{self.quest.topic} There are {count} messages. Say `next` for the first one.", system=_SYSTEM)

    @tool
    def write_note(self, text: str) -> str:
        """Write a note. Notes are kept, even when messages are no longer visible.

        Args:
            text: The note, as short as possible.
        """
        config: LongNotesConfig = self.config
        left = config.max_notes_chars - sum(map(len, self.notes))
        if not text.strip():
            raise ToolError("the note is empty")
        if len(text) > config.max_note_chars:
            raise ToolError(f"the note has {len(text)} characters; the limit is {config.max_note_chars}")
        if len(text) > left:
            raise ToolError(f"the note has {len(text)} characters, but only {left} characters are left for notes")
        self.notes.append(text)
        return f"Noted. {left - len(text)} characters are left for notes. Reply without a tool call to continue."

    @tool
    def read_notes(self) -> str:
        """Read all your notes, in the order in which you wrote them, and the questions, if you were asked any."""
        notes = [f"Note {number}: {note}" for number, note in enumerate(self.notes, start=1)] or ["There are no notes."]
        return "\n".join([*notes, *([self._questions()] if self.asked else [])])

    def finish(self, reply: Message) -> Turn:
        """Show the next message, ask the questions, or score the answers."""
        documents, answers = self.quest.documents, self.quest.answers()
        if self.asked:
            said = read_answers(reply.content)
            right = sum(said.get(number) == answer for number, answer in enumerate(answers, start=1))
            return Turn(
                f"{right} of {len(answers)} answers are right.",
                reward={"correct": right / len(answers)},
                metrics={"notes": len(self.notes), "note_chars": sum(map(len, self.notes))},
                terminated=True,
            )
        if self.shown == len(documents):
            self.asked = True
            return Turn(self._questions())
        self.shown += 1
        return Turn(f"Message {self.shown} of {len(documents)}\n\n{documents[self.shown - 1].text}")

    def reference_reply(self) -> Message | str:
        """Note the facts of each message while the context shows it, and answer from the notes.

        With the context tool `fold`, it folds the messages whenever a further one might not fit.
        """
        last, most = self.messages()[-1], self.limits.max_context_tokens
        facts = self.quest.documents[self.shown - 1].facts if self.shown and not self.asked else ()
        if facts and last.role == "user":
            note = "; ".join(f"{fact.about} {'+' if fact.adds else '='} {fact.value}" for fact in facts)
            return Message.calling("write_note", {"text": note}, reasoning="I may be asked about this.")
        is_full = most is not None and len(self.prompt()) + _REFERENCE_ROOM > most
        if "fold" in self.config.context_tools and is_full and last.name not in ("fold", "read_notes"):
            summary = f"I have read {self.shown} messages, and noted what I may be asked about."
            return Message.calling("fold", {"summary": summary}, reasoning="There is no room for more.")
        if not self.asked:
            return Message(role="assistant", reasoning="There is nothing to write down.", content="next")
        if last.name != "read_notes":
            return Message.calling("read_notes", reasoning="I should check my notes.")
        lines = [re.sub(r"\ANote [0-9]+: ", "", line) for line in last.content.split("\n")]
        matches = [match for line in lines for part in line.split("; ") if (match := _NOTED.fullmatch(part))]
        known = put_together(NotedFact(about=m[1], value=int(m[3]), adds=m[2] == "+") for m in matches)
        answers = [f"{number}. {known.get(about, 0)}" for number, about in enumerate(self.quest.questions, start=1)]
        return Message(role="assistant", reasoning="The answers are in my notes.", content="\n".join(answers))

    def null_reply(self) -> str:
        """Ask for the next message, and answer nothing."""
        return "next"

    def _questions(self) -> str:
        questions = (f"{number}. What is {about}?" for number, about in enumerate(self.quest.questions, start=1))
        return "\n".join([_QUESTIONS, *questions])


def put_together(facts: Iterable[NotedFact]) -> dict[str, int]:
    """Return the value of each subject after all facts, in order: a fact adds to the earlier value or replaces it."""
    known: dict[str, int] = {}
    for fact in facts:
        known[fact.about] = fact.value + (known.get(fact.about, 0) if fact.adds else 0)
    return known


def read_answers(content: str) -> dict[int, int]:
    """Return the answers of a reply by the number of the question, without questions that have different answers."""
    found: dict[int, set[int]] = {}
    for line in content.split("\n"):
        match = _ANSWER.fullmatch(line.strip())
        if match:
            found.setdefault(int(match[1]), set()).add(int(match[2]))
    return {number: min(values) for number, values in found.items() if len(values) == 1}


# Random tasks: the letters to an office that manages depots.


class _NotesSize(NamedTuple):
    documents: int
    sentences: int
    depots: int
    questions: int


_SIZES = {"easy": _NotesSize(10, 4, 3, 2), "medium": _NotesSize(20, 7, 5, 3), "hard": _NotesSize(40, 10, 8, 5)}
_TOPIC = (
    "You keep the records of several depots. You will be asked for the gate code of a depot, which is the latest code "
    "that a message gives, and for its crate count, which is the total number of crates that it received according to "
    "all messages. Crates that it expects, sends or has room for do not count."
)
_CODES = (
    "As of today, the gate code of {depot} is {number}.",
    "Please note that the gate of {depot} now opens only with the code {number}.",
    "After the trouble with the lock, {depot} has {number} as its new gate code.",
)
_CRATES = (
    "{depot} received {number} crates in good order.",
    "The early train brought {number} crates to {depot}, and all of them were taken in.",
    "Another {number} crates reached {depot} by boat.",
)
_IRRELEVANT = (
    "{depot} expects {number} crates in the spring.",
    "Someone asked whether {depot} has room for {number} crates.",
    "{number} crates went from {depot} to the coast.",
    "The gate of {depot} has been painted, which took {number} hours.",
    "Long before our time, the gate code of {depot} was {number}.",
    "They counted {number} sparrows under the roof at {depot}.",
)
_WHO = (
    "The harbor master",
    "My cousin from the mill",
    "The new clerk",
    "The cook of the second shift",
    "Our neighbour across the yard",
    "The night watch",
    "The driver of the gray van",
    "A lady from the ministry",
    "The apprentice",
    "The man who winds the clocks",
    "The inspector of scales",
    "The widow who rents us the shed",
    "A student of bridges",
    "The conductor of the brass band",
    "The lock keeper",
    "The printer of our forms",
)
_DID_WHAT = (
    "has asked three times for a longer rope, and no one has one to spare.",
    "wants to know who left the lamp burning in the cellar on Sunday.",
    "thinks that the rain will last until the end of the week, if not longer.",
    "sends kind regards, and a basket of pears that has already been eaten.",
    "has lost a glove near the stairs, brown, for the left hand.",
    "would like to move the long table to the window, where there is more light.",
    "complained about the noise of the pump, which starts at four in the morning.",
    "has found a better way to fold the blue covers, and will show it to everyone.",
    "was stuck on the bridge for two hours, because a cow would not leave it.",
    "promises to bring back the ladder as soon as the gutters are clean.",
    "thinks that tea should be served before the meeting, not after it.",
    "repaired the bell, but it now rings twice when it should ring once.",
    "reads the newspaper aloud, which half of the office enjoys and the other half does not.",
    "has planted beans along the fence, and asks that no one park there.",
    "told the story of the great flood again, and it was longer than last time.",
    "will be away for the wedding of a sister, and leaves the keys with the porter.",
    "needs a new pair of boots before the snow comes, size eleven.",
    "has drawn a map of the yard on which nothing is where it should be.",
    "believes that the cat belongs to the bakery, though it sleeps here.",
    "forgot the umbrella in the waiting room, and it has not been seen since.",
    "bought too much glue, and offers some of it to whoever has a use for it.",
    "has not slept since the owl moved into the tower, but does not want it to leave.",
    "asks whether the calendar on the wall is last year's, as it seems to be.",
    "won the second prize for a marrow, and says that the first was not deserved.",
    "has begun to learn the flute, and practices where it echoes most.",
    "put the scissors back into the wrong drawer, which led to a long search.",
    "saw a fox near the compost early in the morning, and so did the fox.",
    "prefers the green ink, though it fades when the sun shines on it.",
    "carried the piano up with six others, only to learn that it belongs downstairs.",
    "hopes that the soup will be hot for once when the whistle blows at noon.",
)
FILLERS = tuple(f"{who} {did}" for who in _WHO for did in _DID_WHAT)
_SYLLABLES = (
    *("bar", "bel", "cor", "dan", "del", "fen", "gar", "hol", "jas", "kel", "lor", "mar", "nim", "or", "pel", "quin"),
    *("ros", "sel", "tam", "ul", "ver", "wen", "yor", "zan"),
)
_CODE_RANGE, _CRATE_RANGE = (1000, 10_000), (2, 60)


@dataclass(eq=False, repr=False)
class Draws:
    """Make random choices from numbers that are drawn in batches."""

    _rng: np.random.Generator
    _left: list[float] = field(default_factory=list[float])

    def below(self, stop: int) -> int:
        """Draw an integer from 0 to `stop - 1`."""
        if not self._left:
            self._left = self._rng.random(512).tolist()
        return int(self._left.pop() * stop)

    def pick(self, items: Sequence[T]) -> T:
        """Draw one of the items."""
        return items[self.below(len(items))]

    def some(self, items: Iterable[T], count: int) -> list[T]:
        """Draw items without replacement."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def names(self, split: Split, count: int) -> list[str]:
        """Draw different names of a split."""
        names: dict[str, None] = {}
        while len(names) < count:
            names[draw_in_split(split, lambda: "".join(self.pick(_SYLLABLES) for _ in range(3)).title())] = None
        return list(names)


def random_task(rng: np.random.Generator, config: LongNotesConfig) -> LongNotesTask:
    """Draw messages and questions of the configured difficulty and split."""
    size, draws = _SIZES[config.difficulty], Draws(rng)
    depots = draws.names(config.split, size.depots)
    news, abouts = list[list[tuple[str, NotedFact]]](), dict[str, None]()
    while len(abouts) < size.questions:  # up to two facts in a message, of different depots
        news = [
            [_draw_news(draws, depot) for depot in draws.some(depots, draws.below(3))] for _ in range(size.documents)
        ]
        abouts = {fact.about: None for one in news for _, fact in one}
    documents: list[Document] = []
    for facts in news:  # they are hidden among irrelevant sentences, some of which look like facts
        text = [FILLERS[int(draw * len(FILLERS))] for draw in rng.random(size.sentences).tolist()]
        irrelevant: list[str] = []
        for _ in range(1 + draws.below(2)):
            depot, sentence = draws.pick(depots), draws.pick(_IRRELEVANT)
            low, high = _CODE_RANGE if "code" in sentence else _CRATE_RANGE
            irrelevant.append(sentence.format(depot=depot, number=low + draws.below(high - low)))
        for sentence in (*irrelevant, *(sentence for sentence, _ in facts)):
            text.insert(draws.below(len(text) + 1), sentence)
        documents.append(Document(text=" ".join(text), facts=tuple(fact for _, fact in facts)))
    questions = tuple(draws.some(abouts, size.questions))
    return LongNotesTask(topic=_TOPIC, documents=tuple(documents), questions=questions)


def _draw_news(draws: Draws, depot: str) -> tuple[str, NotedFact]:
    """Draw a sentence of a message and its fact."""
    is_code = draws.below(2)
    about, forms, (low, high) = (
        ("gate code", _CODES, _CODE_RANGE) if is_code else ("crate count", _CRATES, _CRATE_RANGE)
    )
    fact = NotedFact(about=f"the {about} of {depot}", value=low + draws.below(high - low), adds=not is_code)
    return draws.pick(forms).format(depot=depot, number=fact.value), fact
