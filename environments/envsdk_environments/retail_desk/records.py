"""The shop's database: products, customers and orders. Records never change; the desk replaces them."""

import hashlib
from datetime import date
from typing import Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

Status: TypeAlias = Literal["processing", "shipped", "delivered", "cancelled"]
Reason: TypeAlias = Literal["no longer needed", "ordered by mistake", "takes too long"]
Topic: TypeAlias = Literal["identity", "damaged product", "unknown payment", "complaint"]


class Frozen(BaseModel):
    """A record that never changes, so a copy of it is itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __deepcopy__(self, memo: dict[int, object] | None = None) -> Self:
        return self


class Address(Frozen):
    """Where an order goes."""

    street: str
    city: str
    postal_code: str

    def __str__(self) -> str:
        return f"{self.street}, {self.city}, {self.postal_code}"


class Variant(Frozen):
    """One form of a product that can be ordered."""

    id: str
    option: str
    """What sets it apart, such as `red, large`."""
    cents: int = Field(ge=0)
    in_stock: bool


class Product(Frozen):
    """A product in its variants."""

    id: str
    name: str
    final_sale: bool
    variants: tuple[Variant, ...]

    def variant(self, variant_id: str) -> Variant | None:
        """Its variant of that number, if there is one."""
        return next((variant for variant in self.variants if variant.id == variant_id), None)


class Customer(Frozen):
    """Somebody who has ordered."""

    id: str
    name: str
    email: str
    address: Address
    is_plus: bool
    payment_methods: tuple[str, ...]


class Item(Frozen):
    """One piece of an order."""

    id: str
    product_id: str
    variant_id: str
    cents: int = Field(ge=0)
    """What was paid for it."""
    state: Literal["ordered", "returned", "exchanged"] = "ordered"


class Payment(Frozen):
    """Money that goes back to a customer, or is charged after the order."""

    kind: Literal["refund", "charge"]
    cents: int = Field(ge=0)
    method: str


class Order(Frozen):
    """What a customer ordered, and what became of it."""

    id: str
    customer_id: str
    status: Status
    placed_on: date
    expected_on: date
    delivered_on: date | None
    tracking_code: str | None
    address: Address
    items: tuple[Item, ...]
    shipping_cents: int = Field(ge=0)
    paid_with: str
    changed_on: date | None = None
    """The day on which its address or one of its items was changed."""
    change_number: str | None = None
    """The number of the change of its address."""
    cancelled_for: Reason | None = None
    payments: tuple[Payment, ...] = ()

    @property
    def total_cents(self) -> int:
        """What was paid for all of it, shipping included."""
        return sum(item.cents for item in self.items) + self.shipping_cents


class Ticket(Frozen):
    """A case that a human takes over."""

    id: str
    customer_id: str
    topic: Topic


class Database(Frozen):
    """All records, sorted by their numbers."""

    products: tuple[Product, ...]
    customers: tuple[Customer, ...]
    orders: tuple[Order, ...]
    tickets: tuple[Ticket, ...] = ()
    next_number: int = Field(default=10_000, ge=1)
    """The number of the next ticket, or of the next change of an address."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        products = {product.id: product for product in self.products}
        customers = {customer.id for customer in self.customers}
        if (len(products), len(customers)) != (len(self.products), len(self.customers)):
            raise ValueError("two products, or two customers, have the same number")
        if len({order.id for order in self.orders}) < len(self.orders):
            raise ValueError("two orders have the same number")
        for order in self.orders:
            if order.customer_id not in customers:
                raise ValueError(f"there is no customer {order.customer_id!r}, whose order {order.id} is")
            for item in order.items:
                product = products.get(item.product_id)
                if product is None or product.variant(item.variant_id) is None:
                    raise ValueError(f"there is no product for the item {item.id} of the order {order.id}")
        return self

    def digest(self) -> str:
        """The hash of its JSON, whose fields and records always have the same order."""
        return hashlib.blake2b(self.model_dump_json().encode(), digest_size=16).hexdigest()


def money(cents: int) -> str:
    """An amount as everybody writes it here: `59.90`."""
    return f"{cents // 100}.{cents % 100:02}"
