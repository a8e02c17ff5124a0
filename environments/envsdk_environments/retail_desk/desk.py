"""The tools of the service desk, on a database in memory.

They refuse what makes no sense, such as a number that does not exist or the return of what was not delivered. They do
not refuse what the policy forbids: that is up to the agent.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from envsdk import tool
from envsdk.authoring.tools import Tool
from envsdk.errors import ToolError

from .policy import Policy
from .records import Address, Customer, Database, Item, Order, Payment, Reason, Ticket, Topic, money

MAX_CHARS = 120
"""The longest line of an address."""
View: TypeAlias = dict[str, Any]
"""What a tool shows of a record, as JSON."""


class Desk:
    """What agents can look up and change.

    Args:
        database: What there is at first.
        policy: What day it is, and what the shop keeps of a return.
    """

    def __init__(self, database: Database, policy: Policy) -> None:
        self.policy = policy
        self.products = {product.id: product for product in database.products}
        self.customers = {customer.id: customer for customer in database.customers}
        self.orders = {order.id: order for order in database.orders}
        self.tickets = list(database.tickets)
        self.next_number = database.next_number
        self.changes = 0
        """How often an order was changed."""

    def database(self) -> Database:
        """All records as they are now."""
        return Database(
            products=_sorted(self.products),
            customers=_sorted(self.customers),
            orders=_sorted(self.orders),
            tickets=tuple(self.tickets),
            next_number=self.next_number,
        )

    # What can be looked up.

    @tool
    def find_customer_by_email(self, email: str) -> View | str:
        """Find a customer by e-mail address.

        Args:
            email: The whole address.
        """
        wanted = email.strip().casefold()
        found = [customer for customer in self.customers.values() if customer.email.casefold() == wanted]
        return self._profile(found)

    @tool
    def find_customer_by_name(self, name: str, postal_code: str) -> View | str:
        """Find a customer by name and postal code; both have to be right.

        Args:
            name: First and last name.
            postal_code: The postal code of their home.
        """
        wanted, code = name.strip().casefold(), postal_code.strip()
        customers = self.customers.values()
        found = [c for c in customers if c.name.casefold() == wanted and c.address.postal_code == code]
        return self._profile(found)

    @tool
    def get_order(self, order_id: str) -> View:
        """Look up an order.

        Args:
            order_id: Its number, such as R-123456.
        """
        order = self._order(order_id)
        fields = ("id", "customer_id", "status", "placed_on", "expected_on", "delivered_on", "tracking_code")
        view: View = {name: getattr(order, name) for name in fields}
        view |= {"address": str(order.address), "items": [self._item_view(item) for item in order.items]}
        view |= {"shipping": money(order.shipping_cents), "total": money(order.total_cents)}
        view |= {"paid_with": order.paid_with, "changed_on": order.changed_on}
        if order.payments:
            view["payments"] = [f"{p.kind} of {money(p.cents)}, {p.method}" for p in order.payments]
        return {name: str(value) if name.endswith("_on") and value else value for name, value in view.items()}

    @tool
    def get_product(self, product: str) -> View:
        """Look up a product with its variants, their prices, and whether they are in stock.

        Args:
            product: Its number, such as P-1234, or its name.
        """
        wanted = product.strip().casefold()
        found = [p for p in self.products.values() if wanted in (p.id.casefold(), p.name.casefold())]
        if not found:
            raise ToolError(f"there is no product {product!r:.80}; give the number or the whole name, as in an order")
        variants = [
            {"variant_id": v.id, "option": v.option, "price": money(v.cents), "in_stock": v.in_stock}
            for v in found[0].variants
        ]
        name, is_final = found[0].name, found[0].final_sale
        return {"product_id": found[0].id, "name": name, "final_sale": is_final, "variants": variants}

    # What can be changed.

    @tool
    def cancel_order(self, order_id: str, reason: Reason) -> str:
        """Cancel a whole order. What was paid goes back to the payment method of the order.

        Args:
            order_id: Its number.
            reason: Why the customer does not want it.
        """
        order = self._order(order_id)
        if order.status in ("delivered", "cancelled"):
            raise ToolError(f"the order {order.id} is {order.status}, so it cannot be cancelled")
        self._pay(order, -order.total_cents, order.paid_with, status="cancelled", cancelled_for=reason)
        return f"{order.id} is cancelled. {money(order.total_cents)} goes back to {order.paid_with}."

    @tool
    def change_address(self, order_id: str, street: str, city: str, postal_code: str) -> str:
        """Let an order go to another address.

        Args:
            order_id: Its number.
            street: The street with the number of the house.
            city: The city.
            postal_code: The postal code.
        """
        order = self._order(order_id)
        if order.status in ("delivered", "cancelled"):
            raise ToolError(f"the order {order.id} is {order.status}, so it has no way to go")
        address = Address(street=_line(street), city=_line(city), postal_code=_line(postal_code))
        number = self._number()
        self._replace(order, address=address, changed_on=self.policy.today, change_number=number)
        return f"{order.id} goes to {address}. The change has the number {number}."

    @tool
    def return_items(self, order_id: str, item_ids: list[str], refund_to: str) -> str:
        """Take items of an order back. Their price, less the fee, goes to a payment method.

        Args:
            order_id: The number of the order.
            item_ids: The numbers of the items, such as I-12345.
            refund_to: A payment method of the customer, as their record names it.
        """
        order = self._order(order_id)
        chosen = [self._delivered_item(order, item_id) for item_id in item_ids]
        if not chosen or len({item.id for item in chosen}) < len(chosen):
            raise ToolError("there is no item to return, or one is named twice")
        cents = sum(self.policy.refund_cents(item.cents) for item in chosen)
        method = self._method(order, refund_to)
        items = [item.model_copy(update={"state": "returned"}) if item in chosen else item for item in order.items]
        self._pay(order, -cents, method, items=tuple(items), changed_on=self.policy.today)
        return f"The return is registered. {money(cents)} goes back to {method}."

    @tool
    def exchange_item(self, order_id: str, item_id: str, variant_id: str) -> str:
        """Exchange an item for another variant of the same product. A difference in price is charged or goes back.

        Args:
            order_id: The number of the order.
            item_id: The number of the item, such as I-12345.
            variant_id: The number of the variant that the customer gets, such as V-12345.
        """
        order = self._order(order_id)
        item = self._delivered_item(order, item_id)
        product = self.products[item.product_id]
        variant = product.variant(_key(variant_id))
        if variant is None or variant.id == item.variant_id:
            raise ToolError(f"{variant_id!r:.40} is no other variant of {product.name}")
        if not variant.in_stock:
            raise ToolError(f"{product.name} in {variant.option} is not in stock")
        changed = item.model_copy(update={"variant_id": variant.id, "cents": variant.cents, "state": "exchanged"})
        items = tuple(changed if one is item else one for one in order.items)
        cents = variant.cents - item.cents
        self._pay(order, cents, order.paid_with, items=items, changed_on=self.policy.today)
        what = "is charged to" if cents > 0 else "goes back to"
        return f"The exchange is registered. {money(abs(cents))} {what} {order.paid_with}."

    @tool
    def refund_shipping(self, order_id: str, refund_to: str) -> str:
        """Give back what the customer paid for shipping.

        Args:
            order_id: The number of the order.
            refund_to: A payment method of the customer, as their record names it.
        """
        order = self._order(order_id)
        if order.status != "delivered" or not order.shipping_cents:
            raise ToolError(f"the order {order.id} is {order.status}, and {money(order.shipping_cents)} can go back")
        method = self._method(order, refund_to)
        self._pay(order, -order.shipping_cents, method, shipping_cents=0)
        return f"{money(order.shipping_cents)} goes back to {method}."

    @tool
    def transfer_to_human(self, topic: Topic, customer_id: str = "") -> str:
        """Open a ticket, so that a human takes the case over.

        Args:
            topic: What it is about.
            customer_id: The customer's number, such as C-1234; empty if the customer could not be found.
        """
        customer = _key(customer_id)
        if customer and customer not in self.customers:
            raise ToolError(f"there is no customer {customer_id!r:.40}; leave it empty if nobody was found")
        ticket = Ticket(id=self._number(), customer_id=customer, topic=topic)
        self.tickets.append(ticket)
        return f"The ticket has the number {ticket.id}. A human writes to the customer within two days."

    # How it works.

    def _profile(self, found: Sequence[Customer]) -> View | str:
        if not found:
            return "No customer was found."
        customer = found[0]
        mine = [order for order in self.orders.values() if order.customer_id == customer.id]
        return {
            "customer_id": customer.id,
            "name": customer.name,
            "email": customer.email,
            "address": str(customer.address),
            "plus_member": customer.is_plus,
            "payment_methods": list(customer.payment_methods),
            "orders": [f"{order.id} ({order.status})" for order in sorted(mine, key=lambda order: order.id)],
        }

    def _item_view(self, item: Item) -> View:
        product = self.products[item.product_id]
        variant = product.variant(item.variant_id)
        return {
            "item_id": item.id,
            "product_id": product.id,
            "name": product.name,
            "option": variant.option if variant else "",
            "price": money(item.cents),
            "state": item.state,
        }

    def _order(self, order_id: str) -> Order:
        order = self.orders.get(_key(order_id))
        if order is None:
            raise ToolError(f"there is no order {order_id!r:.40}; a number of an order is like R-123456")
        return order

    def _delivered_item(self, order: Order, item_id: str) -> Item:
        item = next((item for item in order.items if item.id == _key(item_id)), None)
        if item is None:
            raise ToolError(f"there is no item {item_id!r:.40} in {order.id}; get_order shows the numbers of its items")
        if order.status != "delivered" or item.state == "returned":
            raise ToolError(f"{item.id} of {order.id} is {item.state}, and the order is {order.status}")
        return item

    def _number(self) -> str:
        """The next number of a ticket or a change."""
        self.next_number += 1
        return f"N-{self.next_number - 1}"

    def _method(self, order: Order, name: str) -> str:
        methods = self.customers[order.customer_id].payment_methods
        found = next((method for method in methods if method.casefold() == name.strip().casefold()), None)
        if found is None:
            raise ToolError(f"the customer has no payment method {name!r:.40}, but {', '.join(methods)}")
        return found

    def _pay(self, order: Order, cents: int, method: str, **changes: Any) -> None:
        """Record what is charged (or goes back, if it is below 0), together with other changes of an order."""
        payment = Payment(kind="charge" if cents > 0 else "refund", cents=abs(cents), method=method)
        self._replace(order, payments=(*order.payments, payment), **changes)

    def _replace(self, order: Order, **changes: Any) -> None:
        self.orders[order.id] = order.model_copy(update=changes)
        self.changes += 1


_TOOLS = (
    *("find_customer_by_email", "find_customer_by_name", "get_order", "get_product", "cancel_order"),
    *("change_address", "return_items", "exchange_item", "refund_shipping", "transfer_to_human"),
)


def tools_of(desk: Desk | type[Desk]) -> list[Tool]:
    """The tools of a desk; of the class, what they are, without a desk that they work on."""
    return [getattr(desk, name) for name in _TOOLS]


def call(desk: Desk, name: str, arguments: Mapping[str, Any]) -> str:
    """Call a tool by its name, as a plan does.

    Raises:
        ToolError: If it refuses.
        ValueError: If the arguments do not fit.
    """
    function: Tool = getattr(desk, name)
    return function(**function.read(dict(arguments)))


def _sorted(records: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(records[key] for key in sorted(records))


def _key(text: str) -> str:
    """A number as the database writes it."""
    return text.strip().upper()


def _line(text: str) -> str:
    """One line of an address, without needless spaces."""
    line = " ".join(text.split())
    if not line or len(line) > MAX_CHARS:
        raise ToolError(f"{text!r:.40} is no line of an address: it has 1 to {MAX_CHARS} characters")
    return line
