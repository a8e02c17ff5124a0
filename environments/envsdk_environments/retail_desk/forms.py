"""What granted and refused wishes have in common: how they are said, what is looked up, done and told."""

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import NamedTuple, TypeAlias

from .records import Address, Customer, Item, Order, Reason, Variant, money
from .tasks import Action, Call, Detail, Fact, Wish
from .world import World, random_address

Builder: TypeAlias = Callable[[World], Wish]
"""Makes up a wish, with the records that it is about."""
LastDay: TypeAlias = Callable[[Customer, date], date]
"""The last day on which something is possible, for a customer and a day of delivery."""
_REASONS: Mapping[Reason, str] = {
    "no longer needed": "I do not need it any more.",
    "ordered by mistake": "I ordered it by mistake.",
    "takes too long": "It takes too long.",
}


def cancel_wish(world: World, order: Order) -> Wish:
    """Cancel an order."""
    reason, why = world.dice.choice(list(_REASONS.items()))
    return Wish(
        kind="cancel",
        request=world.dice.choice(("I want to cancel an order.", "I have to ask you to cancel what I ordered.")),
        details=(order_detail(world, order), Detail(subject="reason", text=why)),
        question="How much do I get back?",
        lookups=(look_up(order),),
        actions=(Action(name="cancel_order", arguments={"order_id": order.id, "reason": reason}),),
        facts=(amount(order.total_cents, "The amount that goes back"),),
    )


def address_wish(world: World, order: Order) -> Wish:
    """Send an order somewhere else."""
    new = random_address(world.dice)
    requests = ("I have moved, and an order of mine goes to the old address.", "My order has to go somewhere else.")
    return Wish(
        kind="address",
        request=world.dice.choice(requests),
        details=(order_detail(world, order), Detail(subject="address", text=f"The new address is {new}.")),
        question="What is the number of the change?",
        lookups=(look_up(order),),
        actions=(to_address(order, new),),
        facts=(expected(order),),
    )


def return_wish(world: World, order: Order, item: Item) -> Wish:
    """Return an item."""
    name = world.product_of(item).name
    requests = ("I want to send something back.", "I am not happy with what I ordered, and want to return it.")
    return Wish(
        kind="return",
        request=world.dice.choice(requests),
        details=(
            order_detail(world, order),
            Detail(subject="item", text=f"It is the {name}."),
            Detail(subject="refund", text=f"The money should go to {order.paid_with}, with which I paid."),
        ),
        question="How much do I get back?",
        lookups=(look_up(order), Call(name="get_product", arguments={"product": name})),
        actions=(back(order, item),),
        facts=(amount(world.policy.refund_cents(item.cents), "The amount that goes back"),),
    )


def exchange_wish(world: World, order: Order, item: Item, new: Variant) -> Wish:
    """Exchange an item."""
    name = world.product_of(item).name
    outcome = exchanged(order, item, new)
    requests = ("I would like to exchange something that I ordered.", "I took the wrong variant of something.")
    return Wish(
        kind="exchange",
        request=world.dice.choice(requests),
        details=(
            order_detail(world, order),
            Detail(subject="item", text=f"It is the {name}."),
            Detail(subject="option", text=f"I want it in {new.option}."),
        ),
        question="How much is the difference in price?",
        lookups=(look_up(order), Call(name="get_product", arguments={"product": name})),
        actions=outcome.actions,
        facts=outcome.facts,
    )


def shipping_wish(world: World, order: Order) -> Wish:
    """Ask for the cost of shipping."""
    arguments: dict[str, str | tuple[str, ...]] = {"order_id": order.id, "refund_to": order.paid_with}
    return Wish(
        kind="shipping",
        request="My order came late. I want back what I paid for shipping.",
        details=(
            order_detail(world, order),
            Detail(subject="refund", text=f"Please give it back to {order.paid_with}, with which I paid."),
        ),
        question="How much is that?",
        lookups=(look_up(order),),
        actions=(Action(name="refund_shipping", arguments=arguments),),
        facts=(amount(order.shipping_cents, "The cost of shipping, which goes back"),),
    )


def late_order(world: World, days_late: int) -> Order:
    """An order that was delivered after the expected day."""
    delivered_on = world.policy.today - timedelta(days=world.dice.number(1, 20))
    return world.add_order("delivered", delivered_on=delivered_on, days_late=days_late)


def change(wish: Wish, **changes: object) -> Wish:
    """The same wish, but for some of it."""
    return wish.model_copy(update=changes)


def order_detail(world: World, order: Order) -> Detail:
    """How the customer says which order it is: some do not know its number."""
    name = world.product_of(order.items[0]).name
    if world.knows_numbers or order.customer_id != world.customer.id:
        return Detail(subject="order", text=f"It is the order {order.id}.")
    return Detail(subject="order", text=f"I do not have the number at hand; it is the order with the {name}.")


def look_up(order: Order) -> Call:
    """Look up an order."""
    return Call(name="get_order", arguments={"order_id": order.id})


def in_time(world: World, last_day: LastDay) -> date:
    """A day of delivery after which there is time until today, or longer."""
    today = world.policy.today
    days = (last_day(world.customer, today) - today).days
    return today - timedelta(days=world.dice.number(1, days))


def too_late(world: World, last_day: LastDay) -> date:
    """A day of delivery after which the time is over."""
    today = world.policy.today
    days = (last_day(world.customer, today) - today).days
    return today - timedelta(days=days + world.dice.number(1, 40))


def amount(cents: int, meaning: str) -> Fact:
    """An amount to tell."""
    return Fact(value=money(cents), meaning=meaning)


def day(value: date, meaning: str) -> Fact:
    """A day to tell."""
    return Fact(value=value.isoformat(), meaning=meaning)


def number(value: str, meaning: str) -> Fact:
    """A number to tell, of a ticket and the like."""
    return Fact(value=value, meaning=meaning)


def expected(order: Order) -> Fact:
    """When an order is expected."""
    return day(order.expected_on, "The expected day")


def tracking(order: Order) -> Fact:
    """How to follow an order."""
    return number(order.tracking_code or "", "The tracking code")


def paid(order: Order) -> Fact:
    """What was paid for an order."""
    return amount(order.total_cents, "The amount that was paid in all")


def to_address(order: Order, new: Address) -> Action:
    """Send an order to an address."""
    return Action(name="change_address", arguments={"order_id": order.id, **new.model_dump()})


def back(order: Order, item: Item) -> Action:
    """Take an item back."""
    arguments = {"order_id": order.id, "item_ids": (item.id,), "refund_to": order.paid_with}
    return Action(name="return_items", arguments=arguments)


def others(world: World, item: Item) -> list[Variant]:
    """Two variants that an item can be exchanged for."""
    variants = world.product_of(item).variants
    free = [variant for variant in variants if variant.in_stock and variant.id != item.variant_id]
    return world.dice.sample(free, 2)


class Outcome(NamedTuple):
    """What is done, and what is told."""

    actions: tuple[Action, ...]
    facts: tuple[Fact, ...]


def exchanged(order: Order, item: Item, new: Variant) -> Outcome:
    """An exchange."""
    arguments: dict[str, str | tuple[str, ...]] = {"order_id": order.id, "item_id": item.id, "variant_id": new.id}
    meaning = "The difference, which is charged" if new.cents > item.cents else "The difference, which goes back"
    return Outcome(
        (Action(name="exchange_item", arguments=arguments),),
        (amount(abs(new.cents - item.cents), meaning),),
    )
