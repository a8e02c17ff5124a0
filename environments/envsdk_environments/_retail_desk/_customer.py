"""The customer: a state machine that says what it is asked for, and says yes to what it wants.

The end of this file briefs a language model that plays the customer instead.
"""

from collections.abc import Mapping

from ._tasks import RetailDeskTask, Wish

YES = "Yes, please go ahead."
NEXT = "Thank you. And one more thing: {}"
END = "DONE"
"""The customer's last line, when the conversation is over."""
GREETING = "Welcome to the service desk. What can I do for you?"
_BRIEFING = """\
You play a customer who writes to the service desk of a shop, one or two sentences at a time. You know only what is \
written here. Say in your first message only your first wish, and anything else when you are asked for it. Go on to \
the next wish when the last one is settled. When all is settled, or you see that it leads nowhere, write {end} on a \
line of its own.

# Who you are
{identity}
{wishes}"""
_CONFIRM = "do you confirm?"
_MAX_CHARS = 1_000
_MESSAGES_PER_WISH = 12
_WORDS = {"identity": ("email", "e-mail", "name", "postal code"), "order": ("order number", "which order")}
"""The words by which a question asks for something; for a slot, its name."""


class ScriptedCustomer:
    """Answers an agent's messages. The same messages always get the same answers.

    Args:
        task: Who the customer is and what they want. The customer knows nothing of the database.
    """

    def __init__(self, task: RetailDeskTask) -> None:
        self._task = task
        self._said = set[str]()
        self._messages_left = _MESSAGES_PER_WISH * len(task.wishes)
        self.has_left = False
        self._turn_to(0)

    def opening(self) -> str:
        """Return the first message."""
        return f"Hello. {self.wish.request}"

    def answer(self, text: str) -> str:
        """Return the answer to a message of the agent, which is all that the customer ever sees of it."""
        text = text.casefold()
        self._messages_left -= 1
        if not self._messages_left:
            self.has_left = True
            return "This leads nowhere. Goodbye."
        if len(text) > _MAX_CHARS:
            return "That is too much for me at once."
        if _CONFIRM in text:
            return self._confirm(text)
        answers = self._answers(text) if "?" in text or "please" in text else ""
        if answers:
            return answers
        if self.has_agreed or self._has_pushed:
            return self._next()
        self._has_pushed = True
        return self.wish.push

    def _confirm(self, text: str) -> str:
        """Say yes to what is wanted, or change one's mind."""
        terms = (self.wish.order_id, *self._values.values())
        if not all(term.casefold() in text for term in terms):
            return "What exactly are you about to do? That is not what I want."
        if self.wish.new_values is not None and self._values != self.wish.new_values:
            self._values = self.wish.new_values
            return f"Wait, I have changed my mind: {', '.join(self._values.values())}."
        self.has_agreed = True
        return YES

    def _answers(self, text: str) -> str:
        """Return what a question asks for; if it names nothing, the next thing that was not said."""
        known = ["identity", "order", *self._values]
        asked = [one for one in known if any(word in text for word in _WORDS.get(one, (one,)))]
        return " ".join(map(self._say, asked or [one for one in known if one not in self._said][:1]))

    def _say(self, what: str) -> str:
        self._said.add(what)
        if what == "identity":
            return self._task.introduction
        return self.wish.order if what == "order" else says(what, self._values)

    def _next(self) -> str:
        if self.index + 1 == len(self._task.wishes):
            self.has_left = True
            return "Thank you, that was all. Goodbye."
        self._turn_to(self.index + 1)
        return NEXT.format(self.wish.request)

    def _turn_to(self, index: int) -> None:
        self.index, self.wish = index, self._task.wishes[index]
        self.has_agreed = False
        """Whether they have said yes to what they want in the end."""
        self._has_pushed = False
        self._said &= {"identity"}
        self._values = self.wish.values


def says(slot: str, values: Mapping[str, str]) -> str:
    """Return what a customer says who is asked for a slot."""
    return f"The {slot} is {values[slot]}."


def briefing(task: RetailDeskTask) -> str:
    """Return the system message."""
    wishes = "".join(_wish(number, wish) for number, wish in enumerate(task.wishes, start=1))
    return _BRIEFING.format(end=END, identity=task.introduction, wishes=wishes)


def _wish(number: int, wish: Wish) -> str:
    lines = [f"\n# Wish {number}", f'You say: "{wish.request}"', f'Asked for the order: "{wish.order}"']
    lines += [says(slot, wish.values) for slot in wish.values]
    if wish.new_values is not None:
        new = ", ".join(wish.new_values.values())
        lines.append(f"When you are first asked to confirm, you change your mind: {new}")
    lines.append(f'If you are refused, you say once: "{wish.push}" Then you take it as it is.')
    return "\n".join([*lines, "You say yes when the agent is about to do what you want in the end.", ""])


def is_end(text: str) -> bool:
    """Return whether the customer ends the conversation, or says nothing."""
    lines = text.strip().splitlines()
    return not lines or lines[-1].strip(" .!*\"'") == END
