"""The shop of `dialogue-v0`: its data, its database and its tools."""

import random
from typing import Any

import pytest

from envkit.errors import DatasetError
from envkit.toolcalls import ToolCall
from envkit.toolset import ToolRunner
from envkit_dialogue.database import differences, dump, load, open_database, state_of
from envkit_dialogue.desk import Desk, Write, WriteKind
from envkit_dialogue.photos import draw_damage, draw_receipt
from envkit_dialogue.rules import forbids
from envkit_dialogue.scenario import Request, RequestKind, Scenario, expected_state
from envkit_dialogue.scenarios import LEVELS, DialogueTasks, draw_scenario
from envkit_dialogue.shop import Shop, Status, make_shop
from envkit_dialogue.values import is_told, values_in


def desk_of(seed: int = 1) -> tuple[Desk, Shop, list[Write]]:
    shop, writes = make_shop(seed), list[Write]()
    return Desk(open_database(shop), writes.append), shop, writes


async def run(desk: Desk, tool: str, **arguments: Any) -> str:
    call = ToolCall(id="call", name=tool, arguments=arguments)
    (result,) = await ToolRunner(desk.tools()).run([call])
    return result.text


def test_each_customer_has_orders_for_every_rule_with_different_products() -> None:
    for seed in range(20):
        shop = make_shop(seed)
        assert make_shop(seed) == shop
        for customer in shop.customers:
            orders = shop.orders_of(customer.customer_id)
            states = sorted(order.status for order in orders)
            assert states == ["delivered", "delivered", "processing", "shipped"]
            products = [shop.item(item).product for order in orders for item in order.items]
            assert len(set(products)) == len(products)
            verdicts = [
                forbids(shop, Request(kind=RequestKind.RETURN, order=o.order_id, item=o.items[0]))
                for o in orders
            ]
            assert {"too late", "already shipped"} <= set(verdicts)


def test_name_alone_does_not_identify_a_customer() -> None:
    for seed in range(100):
        first, second = make_shop(seed).customers[:2]
        assert first.name == second.name
        assert first.address.postcode != second.address.postcode
        assert first.email != second.email


async def test_tools_need_an_identified_customer_and_show_only_their_orders() -> None:
    desk, shop, writes = desk_of()
    mine, other = shop.customers[2], shop.customers[3]
    foreign = shop.orders_of(other.customer_id)[0].order_id
    own = shop.orders_of(mine.customer_id, Status.PROCESSING)[0].order_id
    for tool, arguments in (
        ("list_orders", {}),
        ("get_order", {"order_id": own}),
        ("cancel_order", {"order_id": own, "reason": "no longer needed"}),
    ):
        assert "No customer is identified" in await run(desk, tool, **arguments)
    assert "No customer" in await run(desk, "find_customer", name=mine.name)
    assert "No customer" in await run(desk, "find_customer", email="who@mail.example")
    assert mine.customer_id in await run(
        desk, "find_customer", name=mine.name.upper(), postcode=mine.address.postcode.lower()
    )
    assert "no order with this number" in await run(desk, "get_order", order_id=foreign)
    assert "processing" in await run(desk, "get_order", order_id=f"#{own.lower()}")
    assert foreign not in await run(desk, "list_orders")
    assert writes == []


async def test_wrong_ids_and_texts_are_answered_and_change_nothing() -> None:
    desk, shop, writes = desk_of()
    customer = shop.customers[2]
    await run(desk, "find_customer", email=customer.email)
    order = shop.orders_of(customer.customer_id, Status.PROCESSING)[0]
    other = next(i for i in shop.items if i.product != shop.item(order.items[0]).product)
    before = state_of(desk._database)
    bad: list[tuple[str, dict[str, Any], str]] = [
        ("exchange_item", {"item_id": "I1", "new_item_id": "I2"}, "no item with this id"),
        (
            "exchange_item",
            {"item_id": order.items[0], "new_item_id": other.item_id},
            "not another option",
        ),
        (
            "change_address",
            {"street": "x" * 10_000, "city": "y", "postcode": "z"},
            "1 to 80 characters",
        ),
        ("change_address", {"street": " ", "city": "y", "postcode": "z"}, "1 to 80 characters"),
        ("cancel_order", {"reason": "bad mood"}, "is not one of"),
        ("drop_tables", {}, "drop_tables"),
    ]
    for tool, arguments, said in bad:
        assert said in await run(desk, tool, order_id=order.order_id, **arguments)
    injected = "'; DROP TABLE orders; --"
    assert "no order" in await run(desk, "get_order", order_id=injected)
    assert "No product" in await run(desk, "find_items", product=injected)
    assert state_of(desk._database) == before
    assert writes == []


async def test_an_item_can_be_returned_once() -> None:
    desk, shop, writes = desk_of()
    customer = shop.customers[2]
    await run(desk, "find_customer", email=customer.email)
    order = shop.orders_of(customer.customer_id, Status.DELIVERED)[0]
    arguments = {
        "order_id": order.order_id,
        "item_id": order.items[0],
        "reason": "changed mind",
        "refund_to": "store credit",
    }
    assert "booked" in await run(desk, "return_item", **arguments)
    assert "returned already" in await run(desk, "return_item", **arguments)
    assert writes == [Write(kind=WriteKind.RETURN, order=order.order_id, item=order.items[0])]


async def test_states_compare_rows_in_any_order_and_addresses_in_any_spelling() -> None:
    one, shop, _ = desk_of()
    two, _, _ = desk_of()
    customer = shop.customers[2]
    order = shop.orders_of(customer.customer_id, Status.PROCESSING)[0]
    delivered = shop.orders_of(customer.customer_id, Status.DELIVERED)[0]
    to = {"order_id": order.order_id, "street": "5 Fern Hill", "city": "Lowfield"}
    back = {
        "order_id": delivered.order_id,
        "reason": "changed mind",
        "refund_to": "store credit",
    }
    for desk in (one, two):
        await run(desk, "find_customer", email=customer.email)
    await run(one, "change_address", **to, postcode="A12 3BC")
    for item in delivered.items:
        await run(one, "return_item", **back, item_id=item)
    for item in reversed(delivered.items):
        await run(two, "return_item", **back, item_id=item)
    spelled = {**to, "street": "5, fern  hill."}
    await run(two, "change_address", **spelled, postcode="a12 3bc")
    left, right = state_of(one._database), state_of(two._database)
    assert differences(left, right) == []
    await run(two, "change_address", **to, postcode="A12 3BD")
    assert differences(state_of(two._database), left) == ["orders: 1 rows are missing, 1 are wrong"]


def test_a_dump_restores_the_database() -> None:
    database = open_database(make_shop(5))
    database.execute("DELETE FROM orders WHERE status = 'shipped'")
    again = load(dump(database))
    assert state_of(again) == state_of(database)
    assert dump(again) == dump(database)


def test_every_drawn_scenario_changes_the_database_and_round_trips() -> None:
    source = DialogueTasks(LEVELS, "train")
    for index in range(200):
        scenario = Scenario.from_json(source.task(index))
        shop = make_shop(scenario.shop)
        assert scenario.to_json() == source.task(index)
        assert expected_state(scenario) != state_of(open_database(shop))
        assert [forbids(shop, request) for request in scenario.requests] == [
            request.refusal for request in scenario.requests
        ]
        allowed = [request.is_allowed for request in scenario.requests]
        assert len(allowed) == (1 if scenario.level == 1 else 2)
        assert allowed.count(False) == (scenario.level == 4)
        assert any(request.earlier for request in scenario.requests) == (scenario.level == 3)
        for request in scenario.requests:
            if request.earlier is not None:
                assert forbids(shop, request.earlier) == ""


def test_splits_and_levels_have_different_scenarios() -> None:
    names = [("train", 1), ("test", 1), ("train", 2)]
    drawn = [draw_scenario(level, f"{split}/7") for split, level in names]
    assert len({(one.shop, one.customer) for one in drawn}) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"requests": []}, "at least one request"),
        ({"level": "one"}, "level"),
        ({"customer": "C1"}, "names 'C1'"),
        ({"temper": "furious"}, "temper"),
        ({"shop": None}, "shop"),
    ],
)
def test_tasks_that_are_no_scenario_are_refused(change: dict[str, Any], said: str) -> None:
    task = {**draw_scenario(1, "x").to_json(), **change}
    with pytest.raises(DatasetError, match=said):
        Scenario.from_json(task)


def test_photos_differ_by_code_and_are_the_same_each_time() -> None:
    shop = make_shop(2)
    order = shop.orders[0]
    request = Request(
        kind=RequestKind.RETURN,
        order=order.order_id,
        item=order.items[0],
        damage="crack",
        photo_code="K1234",
    )
    other = Request(
        kind=RequestKind.RETURN,
        order=order.order_id,
        item=order.items[0],
        damage="stain",
        photo_code="L9876",
    )
    pictures = [draw_damage(shop, request), draw_damage(shop, other), draw_receipt(shop, request)]
    assert len({picture.sha256 for picture in pictures}) == 3
    assert draw_damage(shop, request).sha256 == pictures[0].sha256


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It costs $1,249.50 or 12 dollars.", {"$1,249.50", "$12.00"}),
        ("On 2026-06-22, that is June 22nd", {"2026-06-22"}),
        ("the 3rd of July, 4 Aug 2027", {"2026-07-03", "2027-08-04"}),
        ("on May 40 or 2026-13-01, order W12345, 5 items", set[str]()),
        ("$" + "9" * 40, set[str]()),
    ],
)
def test_amounts_and_dates_are_read_in_their_usual_forms(text: str, found: set[str]) -> None:
    assert values_in(text) == found


@pytest.mark.parametrize(
    ("slot", "wanted", "is_right"),
    [
        ("$12.50", "$12.50", True),
        ("12.50", "$12.50", True),
        ("12.5 dollars", "$12.50", True),
        ("June 22", "2026-06-22", True),
        ("$12.50 or $13.50", "$12.50", False),
        ("", "$12.50", False),
        ("", "", True),
        ("$12.50", "", False),
        ("not $12.50", "$12.50", False),
        ("not 2026-06-22", "2026-06-22", False),
        ("on June 22nd, 2026", "2026-06-22", True),
        ("nothing", "", True),
        ("nothing", "$12.50", False),
    ],
)
def test_a_slot_holds_the_wanted_value_and_no_other(slot: str, wanted: str, is_right: bool) -> None:
    assert is_told(slot, wanted) is is_right


def test_comparison_ignores_the_order_of_rows_but_not_their_number() -> None:
    state = state_of(open_database(make_shop(4)))
    mixed = {table: random.Random(1).sample(rows, len(rows)) for table, rows in state.items()}
    assert differences(mixed, state) == []
    doubled = {**state, "orders": [*state["orders"], state["orders"][0]]}
    assert differences(doubled, state) == ["orders: 0 rows are missing, 1 are wrong"]
