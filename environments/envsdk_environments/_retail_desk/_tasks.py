"""A task: who writes, what they want and know, and the one call that is right for each wish."""

from typing import Literal, Self, TypeAlias

from pydantic import Field, model_validator

from envsdk.authoring._tools import Tool
from envsdk.errors import ToolError

from ._desk import Desk
from ._records import Database, Frozen, Policy, Rule

Change: TypeAlias = Literal["cancel_order", "change_address", "return_item", "exchange_item"]


class Wish(Frozen):
    """A change of an order that the customer wants."""

    request: str = Field(min_length=1)
    """What they say first."""
    order: str = Field(min_length=1)
    """What they say when they are asked for the order."""
    push: str = Field(min_length=1)
    """What they say, once, to a message that neither asks nor follows their yes. It changes nothing."""
    order_id: str
    change: Change
    values: dict[str, str]
    """The other arguments of the change, by name: the slots that the agent may have to ask for."""
    new_values: dict[str, str] | None = None
    """What they want instead, as soon as they are asked for their yes, if they change their mind."""
    rule: Rule | None = None
    """The rule that forbids it; None if it is granted."""

    @property
    def outcome(self) -> tuple[str, dict[str, str]]:
        """The only call of a good agent that changes the database: the tool's name and its arguments."""
        if self.rule is not None:
            return "refuse_request", {"order_id": self.order_id, "rule": self.rule}
        return self.change, {"order_id": self.order_id, **(self.new_values or self.values)}


class RetailDeskTask(Frozen):
    """One conversation: the database before it, the policy, and the customer with their wishes."""

    database: Database
    policy: Policy
    identity: dict[str, str] = Field(min_length=1)
    """What the customer knows of themselves: the arguments with which `find_customer` finds them."""
    wishes: tuple[Wish, ...] = Field(min_length=1)

    @property
    def introduction(self) -> str:
        """What the customer says when they are asked who they are."""
        return " ".join(f"My {key.replace('_', ' ')} is {value}." for key, value in self.identity.items())

    def gold(self) -> Database:
        """Return the database as a good agent leaves it.

        Raises:
            ToolError: If a tool refuses a right call.
            ValueError: If its arguments do not fit.
        """
        desk = Desk(self.database, self.policy)
        for wish in self.wishes:
            name, arguments = wish.outcome
            tool: Tool = getattr(desk, name)
            tool(**tool.read(arguments))
        return desk.database()

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        try:
            self.gold()
        except ToolError as error:
            raise ValueError(f"what its wishes ask for cannot be done: {error}") from error
        return self
