"""A procedural shop: its customers, products and orders, as a pure function of a seed."""

import functools
import random
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from typing import Final, NoReturn

from envkit_dialogue import goods

TODAY: Final = date(2026, 6, 15)
"""The day on which every conversation takes place."""
RETURN_DAYS: Final = 30
_CUSTOMERS: Final = 6
_PRODUCTS: Final = 16


class Status(StrEnum):
    """Where an order is."""

    PROCESSING = "processing"
    SHIPPED = "shipped"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a parcel goes."""

    street: str
    city: str
    postcode: str

    def __str__(self) -> str:
        return f"{self.street}, {self.city}, {self.postcode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One product in one option, as the shop sells it."""

    item_id: str
    product: str
    option: str
    price: int
    """In cents."""
    stock: int
    is_final_sale: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Customer:
    """A person with an account."""

    customer_id: str
    name: str
    email: str
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a customer ordered."""

    order_id: str
    customer_id: str
    status: Status
    ordered_on: date
    due_on: date
    """When it was or will be delivered."""
    payment: str
    address: Address
    items: tuple[str, ...]
    """Their ids; the products of one customer's orders are all different."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """Everything that the shop's database starts with."""

    customers: tuple[Customer, ...]
    items: tuple[Item, ...]
    orders: tuple[Order, ...]

    def item(self, item_id: str) -> Item:
        """Return an item by its id.

        Raises:
            KeyError: There is none.
        """
        return next((item for item in self.items if item.item_id == item_id), None) or _no(item_id)

    def order(self, order_id: str) -> Order:
        """Return an order by its id.

        Raises:
            KeyError: There is none.
        """
        found = (order for order in self.orders if order.order_id == order_id)
        return next(found, None) or _no(order_id)

    def customer(self, customer_id: str) -> Customer:
        """Return a customer by the id.

        Raises:
            KeyError: There is none.
        """
        found = (one for one in self.customers if one.customer_id == customer_id)
        return next(found, None) or _no(customer_id)

    def orders_of(self, customer_id: str, status: Status | None = None) -> list[Order]:
        """Return a customer's orders, of one status if it is given."""
        return [
            order
            for order in self.orders
            if order.customer_id == customer_id and status in (None, order.status)
        ]

    def total(self, order: Order) -> int:
        """Return what an order cost, in cents."""
        return sum(self.item(item_id).price for item_id in order.items)


def _no(name: str) -> NoReturn:
    raise KeyError(name)


def money(cents: int) -> str:
    """Return an amount as customers read it, such as "$49.90"."""
    return f"${cents // 100:,}.{cents % 100:02d}"


@functools.lru_cache(maxsize=64)
def make_shop(seed: int) -> Shop:
    """Return the shop of a seed; the same seed gives the same shop.

    Each customer has one order of each kind that the rules treat differently: processing, shipped,
    delivered within the return period, and delivered before it.
    """
    rng = random.Random(f"dialogue shop {seed}")
    products = rng.sample(sorted(goods.PRODUCTS), _PRODUCTS)
    items = _items(rng, products)
    customers = _customers(rng)
    numbers = iter(rng.sample(range(10_000, 99_999), 4 * len(customers)))
    orders: list[Order] = []
    for customer in customers:
        mine = rng.sample(products, 8)
        for place, status in enumerate(("processing", "shipped", "recent", "old")):
            chosen = [
                rng.choice([item for item in items if item.product == product])
                for product in mine[2 * place : 2 * place + 2]
            ]
            orders.append(_order(rng, f"W{next(numbers)}", customer, status, chosen))
    rng.shuffle(orders)
    return Shop(customers=customers, items=tuple(items), orders=tuple(orders))


def draw_address(rng: random.Random) -> Address:
    """Return an address; two draws are hardly ever the same."""
    letters = "ABCDEFGHJKLMNPRSTUVWXYZ"
    return Address(
        street=f"{rng.randint(1, 199)} {rng.choice(goods.STREETS)}",
        city=rng.choice(goods.CITIES),
        postcode=f"{rng.choice(letters)}{rng.randint(10, 99)} "
        f"{rng.randint(1, 9)}{rng.choice(letters)}{rng.choice(letters)}",
    )


def _items(rng: random.Random, products: list[str]) -> list[Item]:
    count = sum(min(4, len(goods.PRODUCTS[product])) for product in products)
    numbers = iter(rng.sample(range(1_000, 9_999), count))
    items: list[Item] = []
    for place, product in enumerate(products):
        base = rng.randrange(1_200, 18_000, 10)
        options = rng.sample(goods.PRODUCTS[product], min(4, len(goods.PRODUCTS[product])))
        for option in options:
            items.append(
                Item(
                    item_id=f"I{next(numbers)}",
                    product=product,
                    option=option,
                    price=base + rng.randrange(0, 900, 10),
                    stock=rng.choice((0, 3, 8, 15)) if option == options[-1] else rng.randint(2, 9),
                    is_final_sale=place % 4 == 3,
                )
            )
    return items


def _customers(rng: random.Random) -> tuple[Customer, ...]:
    firsts = rng.sample(goods.FIRST_NAMES, _CUSTOMERS)
    lasts = rng.sample(goods.LAST_NAMES, _CUSTOMERS)
    firsts[1], lasts[1] = firsts[0], lasts[0]  # a name alone does not identify a customer
    numbers = rng.sample(range(1_000, 9_999), _CUSTOMERS)
    years = rng.sample(range(10, 99), _CUSTOMERS)  # two of the same name have two addresses
    return tuple(
        Customer(
            customer_id=f"C{number}",
            name=f"{first} {last}",
            email=f"{first}.{last}{year}@mail.example".lower(),
            address=draw_address(rng),
        )
        for first, last, number, year in zip(firsts, lasts, numbers, years, strict=True)
    )


def _order(
    rng: random.Random, order_id: str, customer: Customer, kind: str, items: list[Item]
) -> Order:
    ago = {
        "processing": (0, 1),
        "shipped": (2, 4),
        "recent": (10, RETURN_DAYS - 2),
        "old": (RETURN_DAYS + 15, 120),
    }[kind]
    ordered = TODAY - timedelta(days=rng.randint(*ago))
    status = Status.DELIVERED if kind in ("recent", "old") else Status(kind)
    waiting = (3, 8) if status is Status.DELIVERED else (5, 12)
    return Order(
        order_id=order_id,
        customer_id=customer.customer_id,
        status=status,
        ordered_on=ordered,
        due_on=ordered + timedelta(days=rng.randint(*waiting)),
        payment=rng.choice((f"card ending in {rng.randint(1000, 9999)}", "PayPal")),
        address=customer.address,
        items=tuple(item.item_id for item in items),
    )
