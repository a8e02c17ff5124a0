"""Draws a made-up shop: products, customers and orders."""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import NamedTuple, TypeVar

import numpy as np

from .policy import Policy
from .records import Address, Customer, Database, Item, Order, Product, Status, Variant

T = TypeVar("T")

_FIRST_DAY = date(2025, 1, 15)
_SHOPS = (
    "Alderwick",
    "Brambleway",
    "Copperlane",
    "Dovetail House",
    "Elmstead",
    "Fernhollow",
    "Gableworks",
    "Harrowmill",
)
_FIRST_NAMES = (
    *("Ada", "Bela", "Carla", "Dario", "Edda", "Falk", "Greta", "Hugo", "Iris", "Jonas", "Kira", "Leon", "Mila"),
    *("Nora", "Oskar", "Paula", "Quinn", "Rosa", "Silas", "Tilda", "Ugo", "Vera", "Wanda", "Xenia", "Yann", "Zoe"),
)
_SYLLABLES = ("bar", "den", "fol", "gri", "hal", "kem", "lor", "mas", "nel", "por", "rud", "sten", "tov", "wick")
_STREETS = ("Mill Lane", "Harbour Road", "Orchard Street", "Station Road", "Chapel Hill", "Quarry Street", "Lime Walk")
_CITIES = ("Norvik", "Ashford Bay", "Lindenau", "Port Merrin", "Oakhurst", "Santa Vela", "Greywater", "Tillbury")
_CARDS = ("Visa", "Mastercard", "Debit card")
_COLOURS = ("red", "blue", "green", "black", "white", "grey", "yellow")
_SIZES = ("small", "medium", "large")
_PRODUCTS = (
    *("desk lamp", "wool blanket", "office chair", "backpack", "rain jacket", "tea kettle", "wall clock", "yoga mat"),
    *("bath towel", "garden hose", "bookshelf", "picture frame", "water bottle", "bicycle helmet", "storage box"),
    *("pillow case", "flower pot", "door mat", "table cloth", "camping tent"),
)
_CATALOGUE = 9
"""How many products a shop has."""


class Dice:
    """Cheap random choices, drawn from a generator many at a time."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._drawn: list[int] = []

    def below(self, count: int) -> int:
        """A number from 0 on, below `count`."""
        if not self._drawn:
            self._drawn = self._rng.integers(0, 2**62, size=256).tolist()
        return self._drawn.pop() % count

    def number(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        return low + self.below(high - low + 1)

    def choice(self, items: Sequence[T]) -> T:
        """One of them."""
        return items[self.below(len(items))]

    def chance(self, percent: int) -> bool:
        """True so many times in a hundred."""
        return self.below(100) < percent

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """So many of them, in any order, none twice."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(count)]


class World:
    """A shop that is being made up, around one customer who will write to it.

    Args:
        dice: Draws everything.
        policy: Whose day it is in the shop.
        customer: Who will write.
        knows_numbers: Whether they know the numbers of their orders.
    """

    def __init__(self, dice: Dice, policy: Policy, customer: Customer, *, knows_numbers: bool = True) -> None:
        self.dice = dice
        self.policy = policy
        self.customer = customer
        self.knows_numbers = knows_numbers
        self.customers = [customer]
        self.orders: list[Order] = []
        self.next_number = self.first_number = dice.number(10_000, 99_000)
        self._ids: set[str] = {customer.id}
        self.products = {product.id: product for product in self._random_products()}
        self._shelf = list(self.products)
        """Products that the customer has not ordered yet: so a product names one of their orders."""

    def database(self) -> Database:
        """All that there is."""
        products, customers, orders = (
            tuple(sorted(records, key=lambda record: record.id))
            for records in (self.products.values(), self.customers, self.orders)
        )
        return Database(products=products, customers=customers, orders=orders, next_number=self.first_number)  # pyright: ignore[reportArgumentType]

    def add_stranger(self) -> Customer:
        """Another customer."""
        stranger = random_customer(self.dice, self.new_id("C", 4), random_name(self.dice))
        self.customers.append(stranger)
        return stranger

    def add_order(
        self,
        status: Status,
        *,
        owner: Customer | None = None,
        delivered_on: date | None = None,
        days_late: int = 0,
        pieces: int = 0,
        final_sale: bool = False,
    ) -> Order:
        """Another order.

        Args:
            status: How far it is.
            owner: Whose it is; by default the customer's.
            delivered_on: When it was delivered, if it was.
            days_late: How many days after the expected day that was.
            pieces: How many items it has; by default one or two.
            final_sale: Whether its first item is in final sale.
        """
        dice, today = self.dice, self.policy.today
        owner = owner or self.customer
        pieces = pieces or dice.number(1, 2)
        if delivered_on is None:
            expected_on = today + timedelta(days=dice.number(1, 9))
        else:
            expected_on = delivered_on - timedelta(days=days_late)
        placed_on = min(today, expected_on) - timedelta(days=dice.number(2, 9))
        has_left = status in ("shipped", "delivered")
        order = Order(
            id=self.new_id("R", 6),
            customer_id=owner.id,
            status=status,
            placed_on=placed_on,
            expected_on=expected_on,
            delivered_on=delivered_on,
            tracking_code=self.new_id("TR", 8) if has_left else None,
            address=owner.address,
            items=tuple(self._random_item(owner, final_sale and index == 0) for index in range(pieces)),
            shipping_cents=dice.number(249, 1499),
            paid_with=dice.choice(owner.payment_methods),
        )
        self.orders.append(order)
        return order

    def replace(self, order: Order, **changes: object) -> Order:
        """Change an order that was just added."""
        self.orders[self.orders.index(order)] = changed = order.model_copy(update=changes)
        return changed

    def product_of(self, item: Item) -> Product:
        """What an item is."""
        return self.products[item.product_id]

    def take_number(self) -> str:
        """The number that the next ticket or change of address gets."""
        self.next_number += 1
        return f"N-{self.next_number - 1}"

    def new_id(self, prefix: str, digits: int) -> str:
        """A number that nothing else has."""
        low = 10 ** (digits - 1)
        while (new := f"{prefix}-{self.dice.number(low, 10 * low - 1)}") in self._ids:
            pass
        self._ids.add(new)
        return new

    def _random_item(self, owner: Customer, is_final: bool) -> Item:
        is_own = owner is self.customer
        product_id = self._shelf.pop() if is_own else self.dice.choice(list(self.products))
        product = self.products[product_id]
        if is_final:
            self.products[product_id] = product.model_copy(update={"final_sale": True})
        elif is_own and product.final_sale:
            self.products[product_id] = product.model_copy(update={"final_sale": False})
        variant = self.dice.choice(product.variants)
        return Item(id=self.new_id("I", 5), product_id=product_id, variant_id=variant.id, cents=variant.cents)

    def _random_products(self) -> list[Product]:
        names = self.dice.sample(_PRODUCTS, _CATALOGUE)
        return [self._random_product(name) for name in names]

    def _random_product(self, name: str) -> Product:
        """A product in four variants, one of them sold out; no two cost the same."""
        dice = self.dice
        digits = self.new_id("P", 4)[2:]
        size, cents, step = dice.choice(_SIZES), dice.number(1200, 16_000), dice.number(101, 499)
        first, stride, sold_out = dice.below(len(_COLOURS)), dice.number(1, 3), dice.below(4)
        variants = tuple(
            Variant(
                id=f"V-{digits}{index}",
                option=f"{_COLOURS[(first + index * stride) % len(_COLOURS)]}, {size}",
                cents=cents + step * index * (index + 1) // 2,
                in_stock=index != sold_out,
            )
            for index in range(4)
        )
        return Product(id=f"P-{digits}", name=name, final_sale=dice.chance(20), variants=variants)


def random_policy(dice: Dice) -> Policy:
    """A policy and a day."""
    return Policy(
        shop=dice.choice(_SHOPS),
        today=_FIRST_DAY + timedelta(days=dice.below(700)),
        return_days=dice.choice((14, 21, 28, 30, 45, 60)),
        exchange_days=dice.choice((14, 21, 28, 30, 45, 60)),
        plus_days=dice.choice((5, 7, 10, 14)),
        fee_percent=dice.choice((0, 5, 8, 10, 15)),
        late_days=dice.number(2, 5),
    )


class Name(NamedTuple):
    """Who a customer is."""

    first: str
    last: str
    postal_code: str


def random_name(dice: Dice) -> Name:
    """A name, and the postal code that goes with it."""
    last = "".join(dice.choice(_SYLLABLES) for _ in range(3)).title()
    return Name(dice.choice(_FIRST_NAMES), last, str(dice.number(10_000, 99_999)))


def random_customer(dice: Dice, customer_id: str, name: Name) -> Customer:
    """A customer with an address of their own, and two ways to pay."""
    card = f"{dice.choice(_CARDS)} ending in {dice.number(1000, 9999)}"
    other = dice.choice(("PayPal", f"gift card {dice.number(1000, 9999)}"))
    return Customer(
        id=customer_id,
        name=f"{name.first} {name.last}",
        email=f"{name.first}.{name.last}{dice.below(100)}@mail.example".lower(),
        address=random_address(dice, name.postal_code),
        is_plus=dice.chance(40),
        payment_methods=(card, other),
    )


def random_address(dice: Dice, postal_code: str | None = None) -> Address:
    """An address, with that postal code or any."""
    street = f"{dice.number(1, 180)} {dice.choice(_STREETS)}"
    code = postal_code or str(dice.number(10_000, 99_999))
    return Address(street=street, city=dice.choice(_CITIES), postal_code=code)
