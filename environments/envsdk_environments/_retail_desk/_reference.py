"""The reference agent. It knows the task, and acts on what it has read of customer and tools."""

from collections.abc import Sequence

from envsdk import Message

from ._customer import NEXT, YES, says
from ._tasks import RetailDeskTask, Wish


def reference_reply(task: RetailDeskTask, messages: Sequence[Message]) -> Message:
    """Return what a good agent says next.

    Args:
        task: The task.
        messages: The conversation so far, as the agent sees it.
    """
    said = [message.content for message in messages if message.role == "user"]
    wish, recent = _current_wish(task, said)
    calls = [(call.name, call.arguments) for message in messages for call in message.tool_calls]
    tool, arguments = wish.outcome
    if not any(name == "find_customer" for name, _ in calls):
        if task.introduction not in " ".join(said):
            return _say("First I have to know who it is.", "What is your e-mail address, or your name and postal code?")
        return _call("find_customer", task.identity)
    missing = ["order number"] if wish.order not in recent else []
    missing += [slot for slot in wish.values if says(slot, wish.values) not in recent]
    if missing:
        return _say("Something is missing.", f"Please tell me the {' and the '.join(missing)}.")
    look_up = "get_order", {"order_id": wish.order_id}
    if look_up not in calls:
        return _call(*look_up)
    if wish.rule is None and YES not in recent:
        has_changed = wish.new_values is not None and ", ".join(wish.new_values.values()) in recent
        terms = (wish.order_id, *(wish.new_values if wish.new_values and has_changed else wish.values).values())
        return _say("It is allowed. I need a yes.", f"I am about to do this: {', '.join(terms)}. Do you confirm?")
    if (tool, arguments) not in calls:
        return _call(tool, arguments)
    done = "It is done." if wish.rule is None else f"I am sorry, I cannot do that: {wish.rule}."
    return _say("That is all that I can do.", done)


def _current_wish(task: RetailDeskTask, said: Sequence[str]) -> tuple[Wish, str]:
    """Return the wish that the customer named last, and what they have said since."""
    index, start = 0, 0
    for position, text in enumerate(said):
        if index + 1 < len(task.wishes) and NEXT.format(task.wishes[index + 1].request) in text:
            index, start = index + 1, position
    return task.wishes[index], " ".join(said[start:])


def _call(name: str, arguments: dict[str, str]) -> Message:
    return Message.calling(name, arguments, reasoning="I need a tool for this.")


def _say(reasoning: str, content: str) -> Message:
    return Message(role="assistant", reasoning=reasoning, content=content)
