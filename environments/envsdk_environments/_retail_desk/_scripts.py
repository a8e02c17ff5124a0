"""The two sides of a conversation without a model: the scripted customer, and the reference agent.

The customer is a state machine that gives the details it is asked for, and confirms what it wants. `briefing` lets a
language model play the customer instead.
"""

from collections.abc import Mapping, Sequence

from envsdk import Message

from ._shop import RetailDeskTask

YES = "Yes, please go ahead."
NEXT = "Thank you. And one more thing: {}"
END = "DONE"
"""The customer's last line, when the conversation is over."""
GREETING = "Welcome to the service desk. What can I do for you?"
_BRIEFING = """\
You are playing a customer who writes to the service desk of a shop, one or two sentences at a time. You know only \
what is written here. In your first message, state only your first request. Give other details only when you are asked \
for them. Go on to the next request when the current one is settled. When everything is settled, or when you see that \
the conversation is going nowhere, write {end} on a line by itself.

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
            return "This is going nowhere. Goodbye."
        if len(text) > _MAX_CHARS:
            return "That is too much at once for me."
        if _CONFIRM in text:
            terms = (self.wish.order_id, *self._values.values())
            if not all(term.casefold() in text for term in terms):
                return "What exactly are you about to do? That is not what I want."
            if self.wish.new_values is not None and self._values != self.wish.new_values:
                self._values = self.wish.new_values
                return f"Wait, I have changed my mind: {', '.join(self._values.values())}."
            self.has_agreed = True
            return YES
        if "?" in text or "please" in text:  # what is asked for; if it names nothing, the next thing that was not said
            known = ["identity", "order", *self._values]
            asked = [one for one in known if any(word in text for word in _WORDS.get(one, (one,)))]
            asked = asked or [one for one in known if one not in self._said][:1]
            if asked:
                self._said.update(asked)
                facts = {"identity": self._task.introduction, "order": self.wish.order}
                return " ".join(facts.get(one) or says(one, self._values) for one in asked)
        if not (self.has_agreed or self._has_pushed):
            self._has_pushed = True
            return self.wish.push
        if self.index + 1 == len(self._task.wishes):
            self.has_left = True
            return "Thank you, that is all. Goodbye."
        self._turn_to(self.index + 1)
        return NEXT.format(self.wish.request)

    def _turn_to(self, index: int) -> None:
        self.index, self.wish = index, self._task.wishes[index]
        self.has_agreed = False
        """True if they have confirmed what they want in the end."""
        self._has_pushed = False
        self._said &= {"identity"}
        self._values = self.wish.values


def says(slot: str, values: Mapping[str, str]) -> str:
    """Return the customer's answer to a question about a slot."""
    return f"The {slot} is {values[slot]}."


def briefing(task: RetailDeskTask) -> str:
    """Return the system message for a model that plays the customer."""
    parts: list[str] = []
    for number, wish in enumerate(task.wishes, start=1):
        lines = [f"\n# Request {number}", f'Say: "{wish.request}"', f'If you are asked for the order: "{wish.order}"']
        lines += [says(slot, wish.values) for slot in wish.values]
        if wish.new_values is not None:
            new = ", ".join(wish.new_values.values())
            lines.append(f"When you are first asked to confirm, change your mind: {new}")
        lines.append(f'If you are refused, say once: "{wish.push}" Then accept it.')
        parts += [*lines, "Say yes when the agent is about to do what you want in the end."]
    return _BRIEFING.format(end=END, identity=task.introduction, wishes="\n".join([*parts, ""]))


def is_end(text: str) -> bool:
    """Return whether the customer ends the conversation, or says nothing."""
    lines = text.strip().splitlines()
    return not lines or lines[-1].strip(" .!*\"'") == END


# The agent.


def reference_reply(task: RetailDeskTask, messages: Sequence[Message]) -> Message:
    """Return the next message of a good agent.

    Args:
        task: The task.
        messages: The conversation so far, as the agent sees it.
    """
    said = [message.content for message in messages if message.role == "user"]
    index, start = 0, 0  # of the wish that the customer named last, and of the message that named it
    for position, text in enumerate(said):
        if index + 1 < len(task.wishes) and NEXT.format(task.wishes[index + 1].request) in text:
            index, start = index + 1, position
    wish, recent = task.wishes[index], " ".join(said[start:])
    calls = [(call.name, call.arguments) for message in messages for call in message.tool_calls]
    tool, arguments = wish.outcome
    if not any(name == "find_customer" for name, _ in calls):
        if task.introduction not in " ".join(said):
            return _say(
                "First, I need to know who the customer is.",
                "What is your e-mail address, or your name and postal code?",
            )
        return _call("find_customer", task.identity)
    missing = ["order number"] if wish.order not in recent else []
    missing += [slot for slot in wish.values if says(slot, wish.values) not in recent]
    if missing:
        return _say("I need more information.", f"Please tell me the {' and the '.join(missing)}.")
    look_up = "get_order", {"order_id": wish.order_id}
    if look_up not in calls:
        return _call(*look_up)
    if wish.rule is None and YES not in recent:
        has_changed = wish.new_values is not None and ", ".join(wish.new_values.values()) in recent
        terms = (wish.order_id, *(wish.new_values if wish.new_values and has_changed else wish.values).values())
        return _say(
            "This is allowed, but I need a confirmation.", f"I am about to do this: {', '.join(terms)}. Do you confirm?"
        )
    if (tool, arguments) not in calls:
        return _call(tool, arguments)
    done = "It is done." if wish.rule is None else f"I am sorry, I cannot do that: {wish.rule}."
    return _say("There is nothing more to do for this request.", done)


def _call(name: str, arguments: dict[str, str]) -> Message:
    return Message.calling(name, arguments, reasoning="I need a tool for this.")


def _say(reasoning: str, content: str) -> Message:
    return Message(role="assistant", reasoning=reasoning, content=content)
