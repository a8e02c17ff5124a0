"""The shop: its records, the tools of its service desk, and tasks.

Records never change; the desk replaces them. The tools refuse what makes no sense, such as an unknown order or the
return of an item that was not delivered. They do not refuse what the policy forbids: that is up to the agent.
"""

from datetime import date
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from envsdk import tool
from envsdk._visible import brief
from envsdk.authoring._tools import Tool
from envsdk.errors import ToolError

_DOCUMENT = Path(__file__).with_name("policy.md").read_text(encoding="utf-8")
Status: TypeAlias = Literal["processing", "shipped", "delivered", "canceled"]
Reason: TypeAlias = Literal["no longer needed", "ordered by mistake", "takes too long"]
Rule: TypeAlias = Literal[
    "other customer", "not processing", "too late", "final sale", "not in stock", "changed before"
]
Change: TypeAlias = Literal["cancel_order", "change_address", "return_item", "exchange_item"]
_MAX_ADDRESS_CHARS = 120


class ShopRecord(BaseModel):
    """A record that never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Customer(ShopRecord):
    """A person who has ordered."""

    id: str
    name: str
    email: str
    postal_code: str
    is_plus: bool


class Item(ShopRecord):
    """One piece of an order. Its name is unique in the order."""

    name: str
    option: str
    """Color and size, such as `red, large`."""
    in_stock: tuple[str, ...] = ()
    """The other options that are in stock."""
    final_sale: bool = False
    state: Literal["ordered", "returned", "exchanged"] = "ordered"


class Order(ShopRecord):
    """An order, and what became of it."""

    id: str
    customer_id: str
    status: Status
    address: str
    items: tuple[Item, ...] = Field(min_length=1)
    delivered_on: date | None = None
    changed_on: date | None = None
    """The day on which its address or one of its items was changed."""
    canceled_for: Reason | None = None


class RecordedRefusal(ShopRecord):
    """A request that was refused, and the rule that forbids it."""

    order_id: str
    rule: Rule


class Database(ShopRecord):
    """All records. Two databases are equal if they hold the same records in the same order."""

    customers: tuple[Customer, ...]
    orders: tuple[Order, ...]
    refusals: tuple[RecordedRefusal, ...] = ()

    @model_validator(mode="after")
    def _has_unique_ids(self) -> Self:
        if len({one.id for one in (*self.customers, *self.orders)}) < len(self.customers) + len(self.orders):
            raise ValueError("two customers, or two orders, have the same id; give each its own")
        return self


class ShopPolicy(ShopRecord):
    """The numbers in the shop's policy, which differ from task to task."""

    shop: str
    today: date
    return_days: int = Field(ge=1)
    exchange_days: int = Field(ge=1)
    plus_days: int = Field(ge=0)
    """The number of additional days that Plus members have."""

    def document(self) -> str:
        """Return the policy as the agent reads it."""
        return _DOCUMENT.format(**self.model_dump(mode="json"))


class Desk:
    """The records that an agent can look up and change, with its tools.

    Args:
        database: The records at first.
        policy: The shop's policy, for the day.
    """

    def __init__(self, database: Database, policy: ShopPolicy) -> None:
        self._today = policy.today
        self._customers = database.customers
        self._orders = {order.id: order for order in database.orders}
        self._refusals = list(database.refusals)
        self.changes = 0
        """The number of changes of orders so far."""

    def database(self) -> Database:
        """Return all records as they are now."""
        return Database(customers=self._customers, orders=tuple(self._orders.values()), refusals=tuple(self._refusals))

    @tool
    def find_customer(self, email: str = "", name: str = "", postal_code: str = "") -> dict[str, Any] | str:
        """Find a customer by e-mail address, or by name and postal code.

        Args:
            email: The whole e-mail address.
            name: First and last name.
            postal_code: The postal code of their home.
        """
        for customer in self._customers:
            is_named = _same(name, customer.name) and _same(postal_code, customer.postal_code)
            if is_named or _same(email, customer.email):
                orders = [order for order in self._orders.values() if order.customer_id == customer.id]
                return {**customer.model_dump(), "orders": [f"{order.id} ({order.status})" for order in orders]}
        return "No customer was found."

    @tool
    def get_order(self, order_id: str) -> dict[str, Any]:
        """Look up an order with its items.

        Args:
            order_id: Its number, such as R-123456.
        """
        return self._order(order_id).model_dump(mode="json")

    @tool
    def cancel_order(self, order_id: str, reason: Reason) -> str:
        """Cancel a whole order.

        Args:
            order_id: Its number.
            reason: Why the customer does not want it.
        """
        order = self._order(order_id, "processing", "shipped")
        return self._replace(order, status="canceled", canceled_for=reason)

    @tool
    def change_address(self, order_id: str, address: str) -> str:
        """Send an order to another address.

        Args:
            order_id: Its number.
            address: The new address, as the customer wrote it: street, city, postal code.
        """
        order, line = self._order(order_id, "processing", "shipped"), " ".join(address.split())
        if not line or len(line) > _MAX_ADDRESS_CHARS:
            raise ToolError(f"an address must have 1 to {_MAX_ADDRESS_CHARS} characters")
        return self._replace(order, address=line, changed_on=self._today)

    @tool
    def return_item(self, order_id: str, item: str) -> str:
        """Take an item back.

        Args:
            order_id: The number of the order.
            item: The name of the item, as in the order.
        """
        order, found = self._delivered_item(order_id, item)
        return self._replace_item(order, found, state="returned")

    @tool
    def exchange_item(self, order_id: str, item: str, option: str) -> str:
        """Exchange an item for another option of it.

        Args:
            order_id: The number of the order.
            item: The name of the item, as in the order.
            option: The option that the customer gets, such as "red, large".
        """
        order, found = self._delivered_item(order_id, item)
        new = next((one for one in found.in_stock if _same(option, one)), None)
        if new is None:
            raise ToolError(
                f"{found.name} in {brief(option, 40)} is not in stock; in stock are: {'; '.join(found.in_stock)}"
            )
        return self._replace_item(order, found, option=new, state="exchanged")

    @tool
    def refuse_request(self, order_id: str, rule: Rule) -> str:
        """Record that a request was refused.

        Args:
            order_id: The number of the order.
            rule: What forbids it.
        """
        refusal = RecordedRefusal(order_id=self._order(order_id).id, rule=rule)
        if refusal not in self._refusals:
            self._refusals.append(refusal)
        return "The refusal was recorded."

    def _order(self, order_id: str, *statuses: str) -> Order:
        order = self._orders.get(order_id.strip().upper())
        if order is None:
            raise ToolError(f"there is no order {brief(order_id, 40)}; an order number looks like R-123456")
        if statuses and order.status not in statuses:
            raise ToolError(
                f"the order {order.id} is {order.status}; this needs an order that is {' or '.join(statuses)}"
            )
        return order

    def _delivered_item(self, order_id: str, name: str) -> tuple[Order, Item]:
        order = self._order(order_id, "delivered")
        item = next((item for item in order.items if _same(name, item.name)), None)
        if item is None or item.state == "returned":
            raise ToolError(f"there is no item {brief(name, 40)} in {order.id}, or it was already returned")
        return order, item

    def _replace_item(self, order: Order, item: Item, **changes: object) -> str:
        new = item.model_copy(update=changes)
        items = tuple(new if one is item else one for one in order.items)
        return self._replace(order, items=items, changed_on=self._today)

    def _replace(self, order: Order, **changes: object) -> str:
        self._orders[order.id] = order.model_copy(update=changes)
        self.changes += 1
        return f"Done: {order.id} was changed."


def tools_of(desk: Desk | type[Desk]) -> list[Tool]:
    """Return the tools of a desk, or their descriptions, of the class."""
    return [getattr(desk, name) for name, value in vars(Desk).items() if isinstance(value, Tool)]


def _same(given: str, known: str) -> bool:
    return " ".join(given.split()).casefold() == known.casefold()


# Tasks.


class Wish(ShopRecord):
    """A change of an order that the customer wants."""

    request: str = Field(min_length=1)
    """The customer's first message about it."""
    order: str = Field(min_length=1)
    """The answer to a question about the order."""
    push: str = Field(min_length=1)
    """The answer, given once, to a message that neither asks nor follows their yes. It changes nothing."""
    order_id: str
    change: Change
    values: dict[str, str]
    """The other arguments of the change, by name: the slots that the agent may have to ask for."""
    new_values: dict[str, str] | None = None
    """The values that they want instead as soon as they are asked to confirm, if they change their mind."""
    rule: Rule | None = None
    """The rule that forbids it; None if it is granted."""

    @property
    def outcome(self) -> tuple[str, dict[str, str]]:
        """The only call of a good agent that changes the database: the tool's name and its arguments."""
        if self.rule is not None:
            return "refuse_request", {"order_id": self.order_id, "rule": self.rule}
        return self.change, {"order_id": self.order_id, **(self.new_values or self.values)}


class RetailDeskTask(ShopRecord):
    """One conversation: the database before it, the policy, and the customer with their wishes."""

    database: Database
    policy: ShopPolicy
    identity: dict[str, str] = Field(min_length=1)
    """The customer's knowledge of themselves: the arguments with which `find_customer` finds them."""
    wishes: tuple[Wish, ...] = Field(min_length=1)

    @property
    def introduction(self) -> str:
        """The customer's answer to the question who they are."""
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
