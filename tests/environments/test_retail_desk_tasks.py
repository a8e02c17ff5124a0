"""The tasks of the service desk, its tools, and its policy."""

import re
from collections import Counter
from datetime import date, timedelta

import numpy as np
import pytest
from envsdk_environments.retail_desk import RetailDeskTask
from envsdk_environments.retail_desk.desk import Desk, tools_of
from envsdk_environments.retail_desk.figures import figures, is_fact
from envsdk_environments.retail_desk.generator import draw_name, draw_task
from envsdk_environments.retail_desk.records import Customer, Database, Order, money
from envsdk_environments.retail_desk.tasks import arguments_of
from envsdk_environments.retail_desk.world import Dice
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envsdk.errors import ToolError

KINDS = {
    "easy": {
        *("status", "price", "cancel", "address", "return", "exchange", "shipping"),
        *("damaged", "unknown_payment", "complaint"),
    },
    "hard": {
        *("cancel_shipped", "address_shipped", "return_late", "return_final", "exchange_late", "changed_before"),
        *("shipping_early", "foreign", "cancel_kept", "address_second", "return_second", "return_other_method"),
        *("exchange_second", "exchange_sold_out"),
    },
}


def draw(seed: int, difficulty: str = "medium", split: str = "train") -> RetailDeskTask:
    return draw_task(np.random.default_rng(seed), split, difficulty)


def order_of(task: RetailDeskTask, status: str) -> Order | None:
    return next((order for order in task.database.orders if order.status == status), None)


def desk_with(status: str) -> tuple[Desk, Order]:
    """A desk, and an order of that status."""
    task = next(task for task in map(draw, range(200)) if order_of(task, status) is not None)
    return Desk(task.database, task.policy), order_of(task, status)


# Tasks.


def test_ten_thousand_seeds_give_ten_thousand_customers_in_each_split_and_none_in_both():
    names = {
        split: [draw_name(Dice(np.random.default_rng(seed)), split) for seed in range(10_000)]
        for split in ("train", "test")
    }
    train, test = set(names["train"]), set(names["test"])
    assert len(train) >= 9_995 and len(test) >= 9_995
    assert not train & test


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_another_seed_gives_another_task_and_the_same_one_the_same(difficulty: str):
    tasks = [draw(seed, difficulty).model_dump_json() for seed in range(150)]
    assert len(set(tasks)) == 150
    assert tasks[:20] == [draw(seed, difficulty).model_dump_json() for seed in range(20)]


def test_a_task_is_json():
    for seed in range(30):
        task = draw(seed, "hard")
        assert RetailDeskTask.model_validate_json(task.model_dump_json()) == task
        assert RetailDeskTask.model_validate(task.model_dump(mode="json")) == task


def test_the_difficulty_decides_what_customers_want():
    kinds = {
        difficulty: Counter(wish.kind for seed in range(250) for wish in draw(seed, difficulty).wishes)
        for difficulty in ("easy", "medium", "hard")
    }
    assert set(kinds["easy"]) == KINDS["easy"]
    assert set(kinds["medium"]) == {*KINDS["easy"], *KINDS["hard"], "impostor"}
    assert set(kinds["hard"]) == {*KINDS["easy"], *KINDS["hard"]}
    assert {len(draw(seed, "hard").wishes) for seed in range(50)} == {2, 3}


def test_every_wish_has_a_fact_that_cannot_be_guessed():
    for seed in range(150):
        task = draw(seed, "hard")
        for wish in task.wishes:
            values = [fact.value for fact in wish.facts]
            assert all(map(is_fact, values))
            assert any(re.fullmatch(r"[0-9]+\.[0-9]{2}|(N|TR)-[0-9]{5,8}", value) for value in values)


def test_no_fact_is_in_what_the_customer_says_or_in_the_policy():
    for seed in range(150):
        task = draw(seed, "hard")
        known = figures(task.policy.document())
        for wish in task.wishes:
            words = [wish.request, wish.protest, wish.question, wish.refusal, *(d.text for d in wish.details)]
            words += [d.text for d in (wish.second_thought, wish.way_out) if d is not None]
            known |= figures(" ".join(words))
        assert not known & {fact.value for wish in task.wishes for fact in wish.facts}


def test_a_product_names_one_order_of_the_customer():
    for seed in range(100):
        task = draw(seed, "hard")
        customer = next(c for c in task.database.customers if c.name == task.persona.name)
        mine = [order for order in task.database.orders if order.customer_id == customer.id]
        products = [item.product_id for order in mine for item in order.items]
        assert len(set(products)) == len(products)


def allowed(task: RetailDeskTask, order: Order, kind: str) -> bool:
    """The policy, read once more: whether something is granted."""
    policy, today = task.policy, task.policy.today
    owner = next(c for c in task.database.customers if c.id == order.customer_id)
    plus = policy.plus_days if owner.is_plus else 0
    since = None if order.delivered_on is None else (today - order.delivered_on).days
    final = {p.id: p.final_sale for p in task.database.products}[order.items[0].product_id]
    match kind.split("_")[0]:
        case "cancel":
            return order.status == "processing"
        case "address":
            return order.status == "processing" and order.changed_on is None
        case "return":
            return since is not None and since <= policy.return_days + plus and not final and not order.changed_on
        case "exchange":
            return since is not None and since <= policy.exchange_days + plus and not order.changed_on
        case "shipping":
            return since is not None and (order.delivered_on - order.expected_on).days >= policy.late_days
        case _:
            raise AssertionError(kind)


def test_what_is_granted_and_what_is_refused_follows_from_the_policy():
    seen: Counter[tuple[str, bool]] = Counter()
    for seed in range(400):
        task = draw(seed, "hard")
        orders = {order.id: order for order in task.database.orders}
        for wish in task.wishes:
            kind = wish.kind.removesuffix("_kept").removesuffix("_before")
            if not wish.lookups or kind in ("status", "price", "foreign", "damaged", "changed"):
                continue
            order = orders[wish.lookups[0].arguments["order_id"]]
            is_granted = not wish.protest
            assert allowed(task, order, kind) == is_granted, (seed, wish.kind)
            seen[kind, is_granted] += 1
    assert len(seen) >= 15


def test_actions_and_facts_must_fit():
    row = draw(0, "easy").model_dump(mode="json")

    def refused(what: str, **changes: object) -> None:
        with pytest.raises(ValidationError, match=what):
            RetailDeskTask.model_validate({**row, "wishes": [{**row["wishes"][0], **changes}]})

    refused("no amount like", facts=[{"value": "much", "meaning": "The price"}])
    refused("at least 1 item", facts=[])
    refused(
        "there is no order", actions=[{"name": "refund_shipping", "arguments": {"order_id": "R-1", "refund_to": ""}}]
    )
    refused("Field required", actions=[{"name": "cancel_order", "arguments": {}}])
    refused("Input should be", actions=[{"name": "get_order", "arguments": {"order_id": "R-1"}}])
    refused("two details of one subject", details=[{"subject": "order", "text": "x"}] * 2)
    refused("way_out is about the item", details=[], way_out={"subject": "item", "text": "x"})


@pytest.mark.parametrize(
    ("what", "part"),
    [("two orders", "orders"), ("two products", "products"), ("there is no customer", "customers")],
)
def test_a_database_is_consistent(what: str, part: str):
    row = draw(0).database.model_dump(mode="json")
    row[part] = [] if part == "customers" else [*row[part], row[part][0]]
    with pytest.raises(ValidationError, match=what):
        Database.model_validate(row)


def test_the_hash_is_that_of_the_records_whatever_was_done_in_between():
    task = draw(3, "hard")
    desk = Desk(task.database, task.policy)
    assert desk.database().digest() == task.database.digest()
    desk.transfer_to_human("complaint")
    assert desk.database().digest() != task.database.digest()


# The policy.


@given(st.integers(0, 10**7), st.integers(0, 100))
def test_a_refund_and_its_fee_add_up_to_the_price(cents: int, percent: int):
    policy = draw(0).policy.model_copy(update={"fee_percent": percent})
    refund = policy.refund_cents(cents)
    assert 0 <= refund <= cents
    assert abs((cents - refund) - cents * percent / 100) <= 0.5


def test_plus_members_have_more_time():
    policy = draw(0).policy
    customer = draw(0).database.customers[0]
    day = date(2025, 3, 1)
    for is_plus in (False, True):
        owner: Customer = customer.model_copy(update={"is_plus": is_plus})
        extra = timedelta(days=policy.plus_days if is_plus else 0)
        assert policy.last_return(owner, day) == day + timedelta(days=policy.return_days) + extra
        assert policy.last_exchange(owner, day) == day + timedelta(days=policy.exchange_days) + extra


def test_the_policy_says_its_numbers():
    policy = draw(0).policy
    document = policy.document()
    assert policy.shop in document and str(policy.today) in document
    assert f"within {policy.return_days} days" in document and f"within {policy.exchange_days} days" in document
    assert "There is no fee." in policy.model_copy(update={"fee_percent": 0}).document()


@pytest.mark.parametrize(("cents", "text"), [(0, "0.00"), (5, "0.05"), (5990, "59.90"), (123456, "1234.56")])
def test_amounts_have_two_decimals(cents: int, text: str):
    assert money(cents) == text


# The tools.


def test_a_customer_is_found_by_address_or_by_name_and_postal_code():
    task = draw(0)
    desk, customer = Desk(task.database, task.policy), task.database.customers[0]
    profile = desk.find_customer_by_email(f" {customer.email.upper()} ")
    assert profile["customer_id"] == customer.id
    assert profile == desk.find_customer_by_name(customer.name.lower(), customer.address.postal_code)
    assert (
        desk.find_customer_by_name(customer.name, "1") == desk.find_customer_by_email("x") == "No customer was found."
    )


def test_an_order_shows_its_items_and_what_was_paid():
    desk, order = desk_with("delivered")
    view = desk.get_order(f" {order.id.lower()} ")
    prices = [round(float(item["price"]) * 100) for item in view["items"]]
    assert sum(prices) + round(float(view["shipping"]) * 100) == round(float(view["total"]) * 100)
    assert view["delivered_on"] == order.delivered_on.isoformat()
    product = desk.get_product(view["items"][0]["name"].upper())
    assert product["product_id"] == view["items"][0]["product_id"]
    assert desk.get_product(product["product_id"]) == product


def test_what_makes_no_sense_is_refused_and_changes_nothing():
    desk, order = desk_with("delivered")
    before, item, method = desk.database(), order.items[0], order.paid_with
    _, new = desk_with("processing")
    product = desk.products[item.product_id]
    gone = next(variant for variant in product.variants if not variant.in_stock)
    refused = [
        (desk.get_order, ("R-1",), "there is no order 'R-1'"),
        (desk.get_product, ("x",), "there is no product 'x'"),
        (desk.cancel_order, (order.id, "no longer needed"), "is delivered, so it cannot be cancelled"),
        (desk.change_address, (order.id, "a", "b", "c"), "is delivered"),
        (desk.return_items, (order.id, [], method), "no item to return"),
        (desk.return_items, (order.id, [item.id, item.id], method), "named twice"),
        (desk.return_items, (order.id, ["I-1"], method), "there is no item 'I-1'"),
        (desk.return_items, (order.id, [item.id], "cash"), "no payment method 'cash', but "),
        (desk.exchange_item, (order.id, item.id, item.variant_id), "no other variant"),
        (desk.exchange_item, (order.id, item.id, "V-1"), "no other variant"),
        (desk.transfer_to_human, ("complaint", "C-1"), "there is no customer 'C-1'"),
    ]
    if gone.id != item.variant_id:
        refused.append((desk.exchange_item, (order.id, item.id, gone.id), "not in stock"))
    for tool, arguments, why in refused:
        with pytest.raises(ToolError, match=why):
            tool(*arguments)
    assert desk.database() == before
    assert new.status == "processing"


def test_an_order_that_has_not_been_delivered_has_nothing_to_return():
    desk, order = desk_with("processing")
    with pytest.raises(ToolError, match="the order is processing"):
        desk.return_items(order.id, [order.items[0].id], order.paid_with)
    with pytest.raises(ToolError, match="is processing"):
        desk.refund_shipping(order.id, order.paid_with)
    for street in ("", " ", "x" * 121):
        with pytest.raises(ToolError, match="no line of an address"):
            desk.change_address(order.id, street, "Norvik", "12345")


def test_nothing_is_given_back_twice():
    desk, order = desk_with("delivered")
    desk.refund_shipping(order.id, order.paid_with)
    with pytest.raises(ToolError, match=re.escape("0.00 can go back")):
        desk.refund_shipping(order.id, order.paid_with)
    item = order.items[0]
    desk.return_items(order.id, [item.id], order.paid_with)
    with pytest.raises(ToolError, match="is returned"):
        desk.return_items(order.id, [item.id], order.paid_with)
    desk, order = desk_with("processing")
    desk.cancel_order(order.id, "takes too long")
    with pytest.raises(ToolError, match="is cancelled"):
        desk.cancel_order(order.id, "takes too long")


def test_an_address_is_the_same_with_other_spaces():
    first, order = desk_with("processing")
    second, _ = desk_with("processing")
    first.change_address(order.id, "12  Mill Lane ", "Norvik", "12345")
    second.change_address(order.id.lower(), "12 Mill Lane", " Norvik", "12345\n")
    assert first.database().digest() == second.database().digest()


def test_what_is_changed_stands_in_the_order():
    desk, order = desk_with("delivered")
    item = order.items[0]
    product = desk.products[item.product_id]
    variant = next(v for v in product.variants if v.in_stock and v.id != item.variant_id)
    result = desk.exchange_item(order.id, item.id, variant.id)
    view = desk.get_order(order.id)
    assert money(abs(variant.cents - item.cents)) in result
    assert view["items"][0]["option"] == variant.option and view["items"][0]["state"] == "exchanged"
    assert view["changed_on"] == desk.policy.today.isoformat()
    assert len(view["payments"]) == 1


def test_every_tool_and_argument_is_described():
    for tool in tools_of(Desk):
        assert tool.description
        assert all(field.get("description") for field in tool.parameters["properties"].values()), tool.name


def test_a_plan_may_be_called_as_a_model_would():
    task = next(task for task in map(draw, range(200)) if task.wishes[0].kind == "return_second")
    action = task.wishes[0].actions[0]
    desk = Desk(task.database, task.policy)
    tool = getattr(desk, action.name)
    tool(**tool.read(arguments_of(action)))
    assert desk.database() == task.gold()
