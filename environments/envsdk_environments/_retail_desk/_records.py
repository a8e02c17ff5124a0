"""The records of the shop. They never change; the desk replaces them."""

from datetime import date
from pathlib import Path
from typing import Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

_DOCUMENT = Path(__file__).with_name("policy.md").read_text(encoding="utf-8")
Status: TypeAlias = Literal["processing", "shipped", "delivered", "cancelled"]
Reason: TypeAlias = Literal["no longer needed", "ordered by mistake", "takes too long"]
Rule: TypeAlias = Literal[
    "other customer", "not processing", "too late", "final sale", "not in stock", "changed before"
]


class Frozen(BaseModel):
    """A record that never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Customer(Frozen):
    """A person who has ordered."""

    id: str
    name: str
    email: str
    postal_code: str
    is_plus: bool


class Item(Frozen):
    """One piece of an order. Its name is unique in the order."""

    name: str
    option: str
    """Color and size, such as `red, large`."""
    in_stock: tuple[str, ...] = ()
    """The other options that are in stock."""
    final_sale: bool = False
    state: Literal["ordered", "returned", "exchanged"] = "ordered"


class Order(Frozen):
    """An order, and what became of it."""

    id: str
    customer_id: str
    status: Status
    address: str
    items: tuple[Item, ...] = Field(min_length=1)
    delivered_on: date | None = None
    changed_on: date | None = None
    """The day on which its address or one of its items was changed."""
    cancelled_for: Reason | None = None


class Refusal(Frozen):
    """A request that was refused, and the rule that forbids it."""

    order_id: str
    rule: Rule


class Database(Frozen):
    """All records. Two databases are equal if they hold the same records in the same order."""

    customers: tuple[Customer, ...]
    orders: tuple[Order, ...]
    refusals: tuple[Refusal, ...] = ()

    @model_validator(mode="after")
    def _has_unique_ids(self) -> Self:
        if len({one.id for one in (*self.customers, *self.orders)}) < len(self.customers) + len(self.orders):
            raise ValueError("two customers, or two orders, have the same id; give each its own")
        return self


class Policy(Frozen):
    """The numbers in the shop's policy, which differ from task to task."""

    shop: str
    today: date
    return_days: int = Field(ge=1)
    exchange_days: int = Field(ge=1)
    plus_days: int = Field(ge=0)
    """How many more days Plus members have."""

    def document(self) -> str:
        """Return the policy as the agent reads it."""
        return _DOCUMENT.format(**self.model_dump(mode="json"))
