"""The customer as a script: it knows its wishes, tells what it is asked for, and says nothing at random."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .figures import is_crowded
from .hearing import Asked, Ears, Understood, understand
from .tasks import Detail, RetailDeskTask, Subject, Wish

PATIENCE = 4
"""After so many messages in a row that lead nowhere, the customer leaves."""
MAX_YES = 3
"""How often a customer says yes to the same thing."""
ANSWERS_PER_WISH = 12
"""How many messages a customer writes at most, for each wish."""
YES = "Yes, please go ahead."
NEXT = "And one more thing: {}"
_THANKS = "Thank you."
_GOODBYE = "Thank you, that was all. Goodbye."
_GIVES_UP = "This leads nowhere. I will try again another day. Goodbye."
_LEAVE_IT = "Please leave everything as it is."
_TOO_MUCH = "That is too much for me at once; tell me only what I asked for."
_HELLO = "Hello? Is anybody there?"
_NOTHING_MORE = "I cannot tell you more about that."


@dataclass(slots=True)
class _Talk:
    """How far the customer is with a wish."""

    details: dict[Subject, str]
    second_thought: Detail | None
    """What it has not said yet, ..."""
    way_out: Detail | None
    protest: str
    told: set[Subject] = field(default_factory=set[Subject])
    yes: int = 0
    is_refused: bool = False

    @classmethod
    def about(cls, wish: Wish) -> "_Talk":
        """The beginning of it."""
        details: dict[Subject, str] = {detail.subject: detail.text for detail in wish.details}
        return cls(details, wish.second_thought, wish.way_out, wish.protest)

    @property
    def untold(self) -> list[Subject]:
        """What the agent does not know yet."""
        return [subject for subject in self.details if subject not in self.told]


class ScriptedCustomer:
    """Answers an agent's messages; the same messages always get the same answers.

    Args:
        task: Who it is and what it wants. Of the database it knows nothing.
    """

    def __init__(self, task: RetailDeskTask) -> None:
        self.persona = task.persona
        self.wishes = task.wishes
        self.ears = Ears(task.wishes)
        self.index = 0
        """Which of its wishes it is at."""
        self.has_left = False
        self._talk = _Talk.about(self.wish)
        self._told_identity: set[Asked] = set()
        self._news = 0  # how often it said something new
        self._idle = 0
        self._answers = 0

    @property
    def wish(self) -> Wish:
        """What it is at."""
        return self.wishes[self.index]

    @property
    def has_agreed(self) -> bool:
        """Whether it has said yes to what the agent is about to do, and has not thought again since."""
        return self._talk.yes > 0

    def opening(self) -> str:
        """Its first message."""
        parts = ["Hello.", self.wish.request]
        if self.persona.opening != "wish":
            parts.append(self._who(()))
        if self.persona.opening == "all":
            parts += [self._tell(detail.subject) for detail in self.wish.details]
        return " ".join(parts)

    def answer(self, text: str) -> str:
        """React to a message of the agent, the only thing that it ever sees of it."""
        before = self._news
        self._news += self.ears.listen(text, self.index)
        reaction = self._react(understand(text)) if text.strip() else _HELLO
        self._idle = self._idle + 1 if self._news == before else 0
        self._answers += 1
        if self.has_left:
            return reaction
        if self._idle >= PATIENCE or self._answers >= ANSWERS_PER_WISH * len(self.wishes):
            self.has_left = True
            return _GIVES_UP
        return f"{_TOO_MUCH} {reaction}" if is_crowded(text) else reaction

    def _react(self, said: Understood) -> str:
        """What it says, by the first rule that applies."""
        answers, is_news = self._answers_to(said)
        if said.refuses and not is_news:
            self._talk.is_refused = True
        refused = None if is_news else self._hears_no()
        if refused is not None:
            return refused
        if self._is_settled(said, is_news):
            return self._thinks_again() or self._next_wish()
        if said.confirms and (not is_news or not self._talk.untold):
            return " ".join([*(answers if is_news else []), self._thinks_again() or self._agrees()])
        if answers and (is_news or not self.ears.knows(self.index)):
            return " ".join(answers if is_news else [*answers, *map(self._tell, self._talk.untold[:1])])
        return self._goes_on(said)

    def _hears_no(self) -> str | None:
        """Where something is not possible: what it wants instead, or that it does not like that."""
        talk, wish = self._talk, self.wish
        knows = self.ears.knows(self.index)
        if talk.is_refused and talk.way_out is not None and talk.way_out.subject in talk.told:
            detail, talk.way_out, talk.is_refused = talk.way_out, None, False
            return self._instead(detail)
        if talk.protest and (talk.is_refused or knows) and "order" in talk.told:
            protest, talk.protest, talk.is_refused = talk.protest, "", True
            self._news += 1
            return protest if knows else f"{protest} {wish.question}"
        return None

    def _is_settled(self, said: Understood, is_news: bool) -> bool:
        """Whether nothing is left of the wish: all facts are told, and what has to be done is done."""
        if not self.ears.knows(self.index):
            return False
        if not self.wish.needs_yes:
            return not is_news
        if self._talk.yes:
            return said.is_done or not (said.confirms or is_news)
        return said.is_done and not said.confirms

    def _thinks_again(self) -> str | None:
        """Another idea that it has, once."""
        detail, self._talk.second_thought = self._talk.second_thought, None
        return None if detail is None else self._instead(detail)

    def _instead(self, detail: Detail) -> str:
        self._news += 1
        self._talk.details[detail.subject] = detail.text
        self._talk.told.add(detail.subject)
        self._talk.yes = 0
        return detail.text

    def _agrees(self) -> str:
        """A yes, unless it wants nothing done, or has said it too often."""
        if not self.wish.actions and (self._talk.is_refused or self.wish.second_thought is not None):
            return _LEAVE_IT
        if self._talk.yes >= MAX_YES:
            return self.wish.question
        self._news += 1
        self._talk.yes += 1
        return YES

    def _next_wish(self) -> str:
        if self.index == len(self.wishes) - 1:
            self.has_left = True
            return _GOODBYE
        self._news += 1
        self.index += 1
        self._talk = _Talk.about(self.wish)
        return f"{_THANKS} {NEXT.format(self.wish.request)}"

    def _goes_on(self, said: Understood) -> str:
        """What it says where it was asked for nothing that it knows."""
        talk, question = self._talk, self.wish.question
        if self.ears.knows(self.index):  # the agent says what it will do, and asks for nothing
            return self._thinks_again() or self._agrees()
        if said.refuses and self.wish.actions:
            return f"Are you sure? {self.wish.request} {question}"
        if not (said.refuses or said.is_done or said.offers_more):
            if not self._told_identity:
                return self._who(())
            if talk.untold:
                return self._tell(talk.untold[0])
            if said.intends and self.wish.needs_yes and not talk.yes:
                return self._thinks_again() or self._agrees()
        return self._thinks_again() or (f"{_NOTHING_MORE} {question}" if said.asked else question)

    # What it knows.

    def _answers_to(self, said: Understood) -> tuple[list[str], bool]:
        """What it says to what it was asked for, and whether that is news."""
        before, details = self._news, self._talk.details
        who: list[Asked] = [
            subject for subject in said.asked if subject in ("identity", "email", "name", "postal_code")
        ]
        if "address" in said.asked:  # if it has an address to tell, that is what is meant
            who = [one for one in who if one != "postal_code"] if "address" in details else [*who, "postal_code"]
        answers = [self._who(who)] if who else []
        answers += [self._tell(subject) for subject in details if subject in said.asked]
        return answers, self._news > before

    def _tell(self, subject: Subject) -> str:
        self._news += subject not in self._talk.told
        self._talk.told.add(subject)
        return self._talk.details[subject]

    def _who(self, asked: Sequence[Asked]) -> str:
        """Who it is: by e-mail address, or by name and postal code, whatever it was asked for and knows."""
        persona = self.persona
        by_name = "name" in asked or "postal_code" in asked
        is_first = "email" not in self._told_identity
        way: Asked = "name" if persona.email is None or (by_name and not ("email" in asked and is_first)) else "email"
        self._news += way not in self._told_identity
        self._told_identity.add(way)
        if way == "email":
            return f"My e-mail address is {persona.email}."
        return f"My name is {persona.name}, and my postal code is {persona.postal_code}."
