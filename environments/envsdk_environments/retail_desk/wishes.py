"""Wishes that the policy grants, and some of which the customers think again on the way."""

from . import forms
from .forms import change
from .tasks import Call, Detail, Fact, Wish
from .world import World, random_address


def status(world: World) -> Wish:
    """Ask how an order stands."""
    order = world.add_order("shipped")
    requests = ("I would like to know where my order is.", "My order has not come yet. How does it stand?")
    return Wish(
        kind="status",
        request=world.dice.choice(requests),
        details=(forms.order_detail(world, order),),
        question="What is its status, on which day will it come, and what is its tracking code?",
        lookups=(forms.look_up(order),),
        facts=(Fact(value=order.status, meaning="The status"), forms.expected(order), forms.tracking(order)),
    )


def price(world: World) -> Wish:
    """Ask what something costs."""
    product = world.dice.choice(list(world.products.values()))
    variant = world.dice.choice(product.variants)
    what = f"the {product.name} in {variant.option}"
    return Wish(
        kind="price",
        request=world.dice.choice((f"What does {what} cost?", f"I think of buying {what}.")),
        question=f"How much is {what}?",
        lookups=(Call(name="get_product", arguments={"product": product.name}),),
        facts=(forms.amount(variant.cents, f"The price of {what}"),),
    )


def cancel(world: World) -> Wish:
    """Cancel an order that has not left."""
    return forms.cancel_wish(world, world.add_order("processing"))


def cancel_kept(world: World) -> Wish:
    """Want to cancel, and then not."""
    wish, order = cancel(world), world.orders[-1]
    return change(
        wish,
        kind="cancel_kept",
        second_thought=Detail(
            subject="reason", text="Wait, I have changed my mind: I keep it. When will it come, and what did I pay?"
        ),
        question="When will it come, and what did I pay in all?",
        actions=(),
        facts=(forms.expected(order), forms.paid(order)),
    )


def address(world: World) -> Wish:
    """Send an order that has not left somewhere else."""
    wish = forms.address_wish(world, world.add_order("processing"))
    return change(wish, facts=(forms.number(world.take_number(), "The number of the change"),))


def address_second(world: World) -> Wish:
    """Name an address, and then another one."""
    wish, order = address(world), world.orders[-1]
    new = random_address(world.dice)
    thought = Detail(subject="address", text=f"Wait, better send it to my office: {new}.")
    return change(wish, kind="address_second", second_thought=thought, actions=(forms.to_address(order, new),))


def give_back(world: World) -> Wish:
    """Return an item in time."""
    order = world.add_order("delivered", delivered_on=forms.in_time(world, world.policy.last_return), pieces=2)
    return forms.return_wish(world, order, order.items[0])


def give_back_second(world: World) -> Wish:
    """Want to return one item, and then the other one."""
    wish = give_back(world)
    order = world.orders[-1]
    item = order.items[1]
    name = world.product_of(item).name
    return change(
        wish,
        kind="return_second",
        second_thought=Detail(subject="item", text=f"Wait, I have changed my mind: only the {name} goes back."),
        actions=(forms.back(order, item),),
        facts=(forms.amount(world.policy.refund_cents(item.cents), "The amount that goes back"),),
    )


def give_back_other_method(world: World) -> Wish:
    """Want the money for a return somewhere else than where it came from."""
    wish = give_back(world)
    order = world.orders[-1]
    other = next(method for method in world.customer.payment_methods if method != order.paid_with)
    own = f"Then to {order.paid_with}, with which I paid."
    return change(
        wish,
        kind="return_other_method",
        details=(*wish.details[:-1], Detail(subject="refund", text=f"The money should go to my {other}.")),
        way_out=Detail(subject="refund", text=own),
        refusal="Money can only go back to the payment method of the order.",
    )


def exchange(world: World) -> Wish:
    """Exchange an item for another variant."""
    order = world.add_order("delivered", delivered_on=forms.in_time(world, world.policy.last_exchange))
    item = order.items[0]
    return forms.exchange_wish(world, order, item, forms.others(world, item)[0])


def exchange_second(world: World) -> Wish:
    """Choose a variant, and then another one."""
    order = world.add_order("delivered", delivered_on=forms.in_time(world, world.policy.last_exchange))
    item = order.items[0]
    first, second = forms.others(world, item)
    wish = forms.exchange_wish(world, order, item, first)
    thought = Detail(subject="option", text=f"Wait, I would rather have it in {second.option}.")
    outcome = forms.exchanged(order, item, second)
    return change(wish, kind="exchange_second", second_thought=thought, **outcome._asdict())


def exchange_sold_out(world: World) -> Wish:
    """Choose a variant that is sold out, and then another one."""
    order = world.add_order("delivered", delivered_on=forms.in_time(world, world.policy.last_exchange))
    item = order.items[0]
    product = world.product_of(item)
    gone = next(variant for variant in product.variants if not variant.in_stock)
    if gone.id == item.variant_id:  # the customer had the last one
        bought = next(variant for variant in product.variants if variant.in_stock)
        item = item.model_copy(update={"variant_id": bought.id, "cents": bought.cents})
        order = world.replace(order, items=(item, *order.items[1:]))
    wish = forms.exchange_wish(world, order, item, gone)
    new = forms.others(world, item)[0]
    return change(
        wish,
        kind="exchange_sold_out",
        way_out=Detail(subject="option", text=f"Then I take it in {new.option}."),
        refusal=f"The {product.name} in {gone.option} is out of stock.",
        **forms.exchanged(order, item, new)._asdict(),
    )


def shipping(world: World) -> Wish:
    """Ask for the cost of shipping of an order that came late."""
    return forms.shipping_wish(world, forms.late_order(world, world.policy.late_days + world.dice.below(6)))
