"""What a good agent says. It knows what the task asks for, and acts on what it has read of customer and tools."""

from collections.abc import Mapping, Sequence

from envsdk import Message

from .customer import NEXT, YES
from .tasks import SUBJECTS, Action, Call, Detail, RetailDeskTask, Wish, arguments_of

_ABOUT: Mapping[str, str] = {
    "cancel_order": "cancel {order_id}, with the reason that it is {reason}",
    "change_address": "send {order_id} to {street}, {city}, {postal_code}",
    "return_items": "take {item_ids} of {order_id} back, with the money going to {refund_to}",
    "exchange_item": "exchange {item_id} of {order_id} for {variant_id}",
    "refund_shipping": "give the cost of shipping of {order_id} back to {refund_to}",
}


class ReferenceAgent:
    """Says what comes next in a conversation.

    Args:
        task: The task.
        messages: The conversation so far, as the agent sees it.
    """

    def __init__(self, task: RetailDeskTask, messages: Sequence[Message]) -> None:
        self.task = task
        self.calls = [(call.name, call.arguments) for message in messages for call in message.tool_calls]
        self.results = [message.content for message in messages if message.role == "tool"]
        self.wish, recent = _current_wish(task, [m.content for m in messages if m.role == "user"])
        self.said = "\n".join(recent)
        """What the customer wrote about this wish."""
        self.all_said = "\n".join(message.content for message in messages if message.role == "user")

    def reply(self) -> Message:
        """The next reply."""
        steps = (self._identify, self._ask, self._look_up, self._refuse, self._repeat, self._offer, self._act)
        replies = (step() for step in steps)
        return next((reply for reply in replies if reply is not None), None) or self._tell()

    @property
    def _is_unknown(self) -> bool:
        """Whether the customer could not be found."""
        return "No customer was found." in self.results

    def _identify(self) -> Message | None:
        persona = self.task.persona
        if self.wish.kind == "price" or any(name.startswith("find_customer") for name, _ in self.calls):
            return None
        if persona.email is not None and persona.email in self.all_said:
            return Message.calling("find_customer_by_email", {"email": persona.email}, reasoning="Who is it?")
        if persona.name in self.all_said and persona.postal_code in self.all_said:
            arguments = {"name": persona.name, "postal_code": persona.postal_code}
            return Message.calling("find_customer_by_name", arguments, reasoning="Who is it?")
        return _say(
            "First I have to know who it is.", "Please tell me your e-mail address, or your name and postal code."
        )

    def _ask(self) -> Message | None:
        replaced = {detail.subject for detail in self._turns if detail.text in self.said}
        details = [detail for detail in self.wish.details if detail.subject not in replaced]
        missing = [SUBJECTS[detail.subject] for detail in details if detail.text not in self.said]
        if self._is_unknown or not missing:
            return None
        return _say("I do not know enough yet.", f"Please tell me {', and '.join(missing)}.")

    def _look_up(self) -> Message | None:
        for lookup in self.wish.lookups:
            if not self._was_called(lookup):
                return Message.calling(lookup.name, arguments_of(lookup), reasoning="Let me see.")
        return None

    def _refuse(self) -> Message | None:
        wish = self.wish
        if not wish.refusal or (wish.way_out is not None and wish.way_out.text in self.said):
            return None
        rest = _facts(wish) if wish.way_out is None else "What would you like instead?"
        return _say("The policy does not allow that.", f"I am sorry. {wish.refusal} {rest}")

    def _repeat(self) -> Message | None:
        """Say what was understood, where the customer has not made up their mind."""
        thought = self.wish.second_thought
        if thought is None or thought.text in self.said:
            return None
        return _say("Before I do anything, I ask.", f"I have noted: {self._noted()} Is that right?")

    def _noted(self) -> str:
        return " ".join(f'"{detail.text}"' for detail in self.wish.details)

    def _offer(self) -> Message | None:
        turns = [self.said.index(detail.text) for detail in self._turns if detail.text in self.said]
        if not self.wish.needs_yes or YES in self.said[max(turns, default=0) :]:
            return None
        plans = " and ".join(map(_about, self.wish.actions))
        return _say("It is allowed. First I need a yes.", f"I am about to {plans}. Shall I go ahead?")

    def _act(self) -> Message | None:
        for action in self.wish.actions:
            if not self._was_called(action):
                return Message.calling(action.name, arguments_of(action), reasoning="Now I may do it.")
        return None

    def _tell(self) -> Message:
        done = "It is done. " if self.wish.actions else ""
        return _say("That is all that they have to know.", f"{done}{_facts(self.wish)}")

    @property
    def _turns(self) -> list[Detail]:
        """What the customer says in the place of something that they said before."""
        return [detail for detail in (self.wish.second_thought, self.wish.way_out) if detail is not None]

    def _was_called(self, call: Call) -> bool:
        return (call.name, arguments_of(call)) in self.calls


def _current_wish(task: RetailDeskTask, said: Sequence[str]) -> tuple[Wish, Sequence[str]]:
    """The wish that the customer named last, and what they have said since."""
    index, start = 0, 0
    for position, text in enumerate(said):
        if index + 1 < len(task.wishes) and NEXT.format(task.wishes[index + 1].request) in text:
            index, start = index + 1, position
    return task.wishes[index], said[start:]


def _about(action: Action) -> str:
    arguments = {
        name: value if isinstance(value, str) else ", ".join(value) for name, value in action.arguments.items()
    }
    return _ABOUT[action.name].format(**arguments)


def _facts(wish: Wish) -> str:
    return " ".join(f"{fact.meaning}: {fact.value}." for fact in wish.facts)


def _say(reasoning: str, content: str) -> Message:
    return Message(role="assistant", reasoning=reasoning, content=content)
