"""The scripted customer: what it understands of an agent's words, and that it always comes to an end."""

from typing import Any

import numpy as np
import pytest
from envsdk_environments.retail_desk.customer import ANSWERS_PER_WISH, PATIENCE, YES, ScriptedCustomer
from envsdk_environments.retail_desk.desk import Desk, call
from envsdk_environments.retail_desk.figures import figures, is_crowded, tells
from envsdk_environments.retail_desk.generator import draw_task
from envsdk_environments.retail_desk.hearing import understand
from envsdk_environments.retail_desk.reference import ReferenceAgent
from envsdk_environments.retail_desk.tasks import RetailDeskTask
from hypothesis import given, settings
from hypothesis import strategies as st

from envsdk import Message

NULL = "I am sorry, I cannot help you with that."


def draw(seed: int, difficulty: str = "medium") -> RetailDeskTask:
    return draw_task(np.random.default_rng(seed), "train", difficulty)


def task_of(kind: str) -> RetailDeskTask:
    """The first task with a single wish of that kind."""
    return next(task for task in map(draw, range(2000)) if [wish.kind for wish in task.wishes] == [kind])


def converse(task: RetailDeskTask, agent: Any = ReferenceAgent) -> tuple[float, bool, list[Message]]:
    """Let an agent talk with the customer: the share of wishes told, if the database is right, and what was said."""
    customer, desk = ScriptedCustomer(task), Desk(task.database, task.policy)
    messages = [Message(role="user", content=customer.opening())]
    while not customer.has_left:
        reply = agent(task, messages).reply()
        messages.append(reply)
        results = [str(call(desk, one.name, one.arguments)) for one in reply.tool_calls]
        messages += [Message(role="tool", content=result) for result in results]
        if not reply.tool_calls:
            messages.append(Message(role="user", content=customer.answer(reply.content)))
        assert len(messages) < 400
    return customer.ears.share(), desk.database().digest() == task.gold().digest(), messages


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_a_good_agent_settles_every_wish(difficulty: str):
    for seed in range(100, 180):
        share, is_right, _ = converse(draw(seed, difficulty))
        assert (share, is_right) == (1.0, True), seed


STYLES = {
    "polite": {
        "who": "Hello! I'd be happy to help. To get started, could you please provide your email address, or your full "
        "name and zip code, so I can verify your identity?",
        "order": "Could you share the order number with me?",
        "item": "Which item would you like to send back or exchange?",
        "option": "What color and size would you like instead?",
        "address": "What's the new shipping address (street, city, postal code)?",
        "reason": "May I know the reason for the cancellation?",
        "refund": "How would you like to receive your refund?",
        "repeat": "Just to make sure I understood you correctly, you'd like me to go ahead with this. Is that correct?",
        "offer": "Thank you! Here is what I'll do:\n\n- **Action:** {plan}\n\nWould you like me to proceed? (yes/no)",
        "done": "Great news! Your request has been processed. {facts} Is there anything else I can help you with?",
        "info": "Thank you for waiting. {facts} Is there anything else I can help you with?",
        "no": "I'm really sorry, but I'm unable to do that: {why} {facts} Is there anything else?",
        "else": "Unfortunately, that isn't possible. {why} Would you like a different option?",
    },
    "short": {
        "who": "I can help. Before that: name and postal code, or email on file?",
        "order": "Order number?",
        "item": "Item?",
        "option": "Colour/size?",
        "address": "New address?",
        "reason": "Reason?",
        "refund": "Refund to?",
        "repeat": "Shall I do it?",
        "offer": "Plan: {plan}. OK to proceed?",
        "done": "All set: it's done. {facts}",
        "info": "{facts} Anything else?",
        "no": "Can't do: {why} {facts}",
        "else": "{why} Can't do. Alternative?",
    },
    "formal": {
        "who": "Dear customer, I have to verify your identity first. Please provide the email of your account.",
        "order": "Please provide your order number.",
        "item": "Please specify the item.",
        "option": "Please let me know which option you'd prefer.",
        "address": "Please provide the full new address.",
        "reason": "Please let me know the reason for the cancellation.",
        "refund": "Please confirm the payment method for the refund.",
        "repeat": "Before I go on, please confirm that I have understood you correctly.",
        "offer": "I need your confirmation: I would {plan}. Do you agree?",
        "done": "Done! {facts} Have a great day!",
        "info": "Here is what I found: {facts}",
        "no": "Regrettably our policy does not allow this. {why} It is not possible. {facts}",
        "else": "Regrettably this is not available. {why} Please let me know how you would like to continue.",
    },
    "asks nothing": {
        "who": "One moment.",
        **dict.fromkeys(("order", "item", "option", "address", "reason", "refund"), "Hmm, I see."),
        "repeat": "OK.",
        "offer": "I am going to {plan}.",
        "done": "The change was made. {facts}",
        "info": "{facts}",
        "no": "That does not work. {why} {facts}",
        "else": "{why}",
    },
}


def in_the_words_of(style: dict[str, str]) -> Any:
    """An agent that does the same and says it in other words, and asks for one thing at a time."""

    class Agent(ReferenceAgent):
        def _identify(self) -> Message | None:
            return self._said(super()._identify(), "who")

        def _ask(self) -> Message | None:
            replaced = {detail.subject for detail in self._turns if detail.text in self.said}
            missing = [d.subject for d in self.wish.details if d.subject not in replaced and d.text not in self.said]
            return self._said(super()._ask(), *missing[:1])

        def _refuse(self) -> Message | None:
            return self._said(super()._refuse(), "no" if self.wish.way_out is None else "else")

        def _repeat(self) -> Message | None:
            return self._said(super()._repeat(), "repeat")

        def _offer(self) -> Message | None:
            return self._said(super()._offer(), "offer")

        def _tell(self) -> Message:
            return self._said(super()._tell(), "done" if self.wish.actions else "info")

        def _said(self, reply: Message | None, *what: str) -> Message | None:
            if reply is None or reply.tool_calls:
                return reply
            plan = ", ".join(action.name.replace("_", " ") for action in self.wish.actions)
            facts = " ".join(f"{fact.meaning} is {fact.value}." for fact in self.wish.facts)
            words = style[what[0]].format(plan=plan, why=self.wish.refusal, facts=facts)
            return Message(role="assistant", content=words)

    return Agent


@pytest.mark.parametrize("style", STYLES)
def test_it_understands_other_words(style: str):
    for difficulty in ("easy", "medium", "hard"):
        for seed in range(25):
            share, is_right, messages = converse(draw(seed, difficulty), in_the_words_of(STYLES[style]))
            assert (share, is_right) == (1.0, True), "\n".join(f"{m.role}: {m.content}" for m in messages)


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["easy", "medium", "hard"]),
    st.lists(st.one_of(st.text(max_size=60), st.sampled_from([t for s in STYLES.values() for t in s.values()]))),
)
def test_whatever_the_agent_says_it_answers_and_ends(seed: int, difficulty: str, said: list[str]):
    task = draw(seed, difficulty)
    customers = [ScriptedCustomer(task) for _ in range(2)]
    assert customers[0].opening() == customers[1].opening()
    for count, text in enumerate([*said, *["Hm."] * 200], start=1):  # noqa: B007
        answers = [customer.answer(text) for customer in customers]
        assert answers[0] == answers[1] != ""
        if customers[0].has_left:
            break
    assert customers[0].has_left
    assert count <= ANSWERS_PER_WISH * len(task.wishes)
    assert customers[0].ears.share() == 0.0


def test_it_leaves_when_nothing_comes_of_it():
    customer = ScriptedCustomer(task_of("complaint"))
    customer.opening()
    answers = [customer.answer(NULL) for _ in range(PATIENCE)]
    assert customer.has_left
    assert answers[-1].startswith("This leads nowhere.")


def test_it_tells_what_it_is_asked_for_and_no_more():
    task = task_of("exchange")
    customer = ScriptedCustomer(task)
    details = {detail.subject: detail.text for detail in task.wishes[0].details}
    assert not any(text in customer.opening() for text in details.values())
    assert customer.answer("Which item is it?") == details["item"]
    assert customer.answer("Which colour, and what is the number of the order?") == (
        f"{details['order']} {details['option']}"
    )
    assert customer.answer("And where do you live?") != ""


def test_who_does_not_know_an_e_mail_address_gives_name_and_postal_code():
    for seed in range(20):
        task = draw(seed)
        persona, customer = task.persona, ScriptedCustomer(task)
        if persona.opening != "wish":
            continue
        name = f"My name is {persona.name}, and my postal code is {persona.postal_code}."
        email = name if persona.email is None else f"My e-mail address is {persona.email}."
        assert customer.answer("Please tell me your e-mail address, or your name and postal code.") == email
        assert customer.answer("Could I have your full name and your zip code?").startswith(name)


def test_it_protests_once_and_then_takes_it_as_it_is():
    task = task_of("return_late")
    wish, customer = task.wishes[0], ScriptedCustomer(task)
    facts = " ".join(fact.value for fact in wish.facts)
    customer.answer("What is your name? What is the number of the order, and which item?")
    assert customer.answer("I am sorry, that is not possible.") == f"{wish.protest} {wish.question}"
    assert customer.answer("Would you like me to exchange it?") == "Please leave everything as it is."
    assert customer.answer(f"No: {facts}") == "Thank you, that was all. Goodbye."


def test_it_changes_its_mind_before_it_says_yes():
    task = task_of("address_second")
    wish, customer = task.wishes[0], ScriptedCustomer(task)
    customer.answer("What is your name? What is the number of the order, and the new address?")
    assert customer.answer("Shall I go ahead?") == wish.second_thought.text
    assert customer.answer("Shall I go ahead?") == YES
    done = f"I have changed it; the number is {wish.facts[0].value}."
    assert customer.answer(done) == "Thank you, that was all. Goodbye."


def test_who_does_not_wait_for_the_yes_hears_the_second_thought_too_late():
    task = task_of("address_second")
    wish, customer = task.wishes[0], ScriptedCustomer(task)
    done = f"I have changed it; the number is {wish.facts[0].value}."
    assert customer.answer(done) == wish.second_thought.text


def test_it_does_not_say_yes_when_it_still_has_to_tell_something():
    task = task_of("cancel")
    details = {detail.subject: detail.text for detail in task.wishes[0].details}
    customer = ScriptedCustomer(task)
    asked = "Do you want me to cancel it? What is the number of the order?"
    assert customer.answer(asked) == details["order"]
    assert customer.answer("Shall I cancel it? And why?") == f"{details['reason']} {YES}"


def test_a_message_with_too_many_figures_tells_nothing():
    task = task_of("price")
    customer = ScriptedCustomer(task)
    price = task.wishes[0].facts[0].value
    guesses = " ".join(f"{n}.99" for n in range(10, 20))
    assert customer.answer(f"{guesses} {price}").startswith("That is too much for me at once")
    assert not customer.has_left
    assert customer.answer(f"It is {price}.") == "Thank you, that was all. Goodbye."


@pytest.mark.parametrize(
    ("text", "value", "is_told"),
    [
        ("It is 59.90.", "59.90", True),
        ("$59.90, EUR59.90 or **59.90**", "59.90", True),
        ("159.90", "59.90", False),
        ("59.901", "59.90", False),
        ("59.9", "59.90", False),
        ("59,90", "59.90", False),
        ("1.59.90", "59.90", False),
        ("1,059.90", "1059.90", True),
        ("by 2025-03-04.", "2025-03-04", True),
        ("12025-03-04", "2025-03-04", False),
        ("March 4, 2025", "2025-03-04", False),
        ("ticket n-12345", "N-12345", True),
        ("N-123456", "N-12345", False),
        ("XN-12345", "N-12345", False),
        ("It has been Shipped.", "shipped", True),
        ("It is processing, shipped or delivered.", "shipped", False),
        ("unshipped", "shipped", False),
        ("x" * 4_000 + " 59.90", "59.90", False),
    ],
)
def test_facts_are_found_strictly(text: str, value: str, is_told: bool):
    assert tells(text, value) == is_told


def test_figures_are_counted_once():
    assert figures("59.90, 59.90, N-10000 on 2025-01-31") == {"59.90", "N-10000", "2025-01-31"}
    assert not is_crowded(" ".join(f"{n}.00" for n in range(10)))
    assert is_crowded(" ".join(f"{n}.00" for n in range(11)))


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("Please confirm your e-mail address.", ("email",)),
        ("I need your full name and ZIP.", ("name", "postal_code")),
        ("Which order is it?", ("order",)),
        ("I have cancelled your order.", ()),
        ("Where should it go?", ("address",)),
        ("Why?", ("reason",)),
        ("Is there anything else, such as another item?", ()),
    ],
)
def test_it_understands_what_it_is_asked_for(text: str, asked: tuple):
    assert understand(text).asked == asked


@pytest.mark.parametrize(
    ("text", "confirms", "is_done"),
    [
        ("Shall I go ahead?", True, False),
        ("Please confirm your name.", False, False),
        ("What would you like to change?", False, False),
        ("I have cancelled it.", False, True),
        ("It can be cancelled.", False, False),
        ("Once it is cancelled, 9.90 goes back. Do you agree?", True, False),
        ("I haven't cancelled it.", False, False),
    ],
)
def test_it_knows_a_plan_from_what_was_done(text: str, confirms: bool, is_done: bool):
    understood = understand(text)
    assert (understood.confirms, understood.is_done) == (confirms, is_done)


@pytest.mark.parametrize("text", ["?" * 10**6, "a? " * 10**6, "confirm " * 10**6, "1,111" * 10**6, "\n" * 10**6])
def test_a_huge_message_is_answered(text: str):
    assert ScriptedCustomer(draw(0, "hard")).answer(text)  # what is quadratic takes minutes
