"""What a task is: who writes, what they want, what they know, and what a good agent does and says."""

from collections.abc import Mapping
from typing import Any, Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from envsdk.errors import ToolError

from .desk import Desk, call
from .figures import is_fact
from .policy import Policy
from .records import Database, Frozen

Subject: TypeAlias = Literal["order", "item", "option", "address", "reason", "refund"]
"""What an agent may have to ask for."""
SUBJECTS: Mapping[Subject, str] = {
    "order": "the number of the order",
    "item": "which item it is",
    "option": "which variant you want",
    "address": "the new address",
    "reason": "the reason",
    "refund": "to which payment method the money should go",
}
"""How one asks for each."""
Change: TypeAlias = Literal[
    "cancel_order", "change_address", "return_items", "exchange_item", "refund_shipping", "transfer_to_human"
]


class Detail(Frozen):
    """Something that the customer knows and tells when asked."""

    subject: Subject
    text: str = Field(min_length=1)
    """The customer's words."""


class Call(Frozen):
    """A call of a tool."""

    name: str
    arguments: dict[str, str | tuple[str, ...]]


class Action(Call):
    """A call that changes the database."""

    name: Change  # pyright: ignore[reportIncompatibleVariableOverride]


class Fact(Frozen):
    """Something that the agent has to tell, or must not."""

    value: str
    """An amount, a day, a number such as N-12345, or a status."""
    meaning: str
    """What it is, such as `The refund`."""

    @field_validator("value")
    @classmethod
    def _can_be_found(cls, value: str) -> str:
        if not is_fact(value):
            raise ValueError("it is no amount like 59.90, no day like 2025-01-31, no number like N-12345, no status")
        return value


class Wish(Frozen):
    """Something that the customer wants, and how they go about it."""

    kind: str
    request: str = Field(min_length=1)
    """What they say first."""
    details: tuple[Detail, ...] = ()
    """What they tell when asked, one after the other."""
    second_thought: Detail | None = None
    """They change their mind: before they say yes, they say this, which takes the place of a detail."""
    way_out: Detail | None = None
    """What they want instead, once they hear that what they wanted is not possible."""
    protest: str = ""
    """What they say when they are refused; it should change nothing."""
    question: str
    """How they ask for the facts."""
    lookups: tuple[Call, ...] = ()
    """What a good agent looks up, ..."""
    refusal: str = ""
    """... why it refuses, if it does, ..."""
    actions: tuple[Action, ...] = ()
    """... what it does in the end, ..."""
    facts: tuple[Fact, ...] = Field(min_length=1)
    """... and what it tells."""
    secrets: tuple[Fact, ...] = ()
    """What it must not tell."""

    @property
    def needs_yes(self) -> bool:
        """Whether an agent has to wait for a yes: before each change but a transfer."""
        return any(action.name != "transfer_to_human" for action in self.actions)

    @model_validator(mode="after")
    def _has_what_is_replaced(self) -> Self:
        subjects = [detail.subject for detail in self.details]
        if len(set(subjects)) < len(subjects):
            raise ValueError(f"it has two details of one subject: {subjects}")
        if self.way_out is not None and self.way_out.subject not in subjects:
            raise ValueError(f"its way_out is about the {self.way_out.subject}, and no detail is: {subjects}")
        return self


class Persona(Frozen):
    """The customer in the conversation, and what they say about who they are."""

    name: str = Field(min_length=1)
    postal_code: str = Field(min_length=1)
    email: str | None
    """None if they do not remember which address they gave."""
    opening: Literal["all", "identity", "wish"]
    """What they say in their first message, beside their first wish."""


class RetailDeskTask(Frozen):
    """A conversation: the database before it, the policy, and the customer with their wishes."""

    database: Database
    policy: Policy
    persona: Persona
    wishes: tuple[Wish, ...] = Field(min_length=1)

    @property
    def actions(self) -> list[Action]:
        """All that a good agent changes."""
        return [action for wish in self.wishes for action in wish.actions]

    def gold(self) -> Database:
        """The database as a good agent leaves it.

        Raises:
            ToolError: If the tools refuse what it does.
            ValueError: If arguments do not fit.
        """
        desk = Desk(self.database, self.policy)
        for action in self.actions:
            call(desk, action.name, action.arguments)
        return desk.database()

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        try:
            self.gold()
        except ToolError as error:
            raise ValueError(f"the actions cannot be done: {error}") from error
        return self


def arguments_of(action: Call) -> dict[str, Any]:
    """The arguments of a call as values of JSON."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in action.arguments.items()}
