"""The shop's desk: the tools of the agent over the database of one episode.

The tools check that what they are given exists and belongs to the customer whom the agent
identified. They do not check the shop's rules: keeping those is the agent's task.
"""

import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any, Final, Literal

from envkit.tools import ToolSpec
from envkit.toolset import ToolSet
from envkit_dialogue.shop import Address, Status, money

CancelReason = Literal["no longer needed", "ordered by mistake", "found cheaper elsewhere"]
ReturnReason = Literal["changed mind", "does not fit", "arrived damaged"]
RefundTo = Literal["original payment", "store credit"]
Declined = Literal["nothing", "too late", "final sale", "already shipped"]
_MAX_TEXT: Final = 80
_LOCKED: Final = "No customer is identified yet: call find_customer first."


class WriteKind(StrEnum):
    """What a tool changes in the database."""

    CANCEL = "cancel"
    ADDRESS = "address"
    EXCHANGE = "exchange"
    RETURN = "return"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One change that the agent made."""

    kind: WriteKind
    order: str
    item: str = ""
    """Empty for a change to the whole order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What the agent declared at the end."""

    told: str
    declined: str


class Desk:
    """The tools of one episode. Results are sentences, and so are refusals."""

    def __init__(self, database: sqlite3.Connection, write: Callable[[Write], None]) -> None:
        """Open the desk.

        Args:
            database: The episode's database.
            write: Called after each change.
        """
        self._database, self._write = database, write
        self.customer: str | None = None
        """Id of the identified customer."""
        self.closing: Closing | None = None

    def tools(self) -> ToolSet:
        """Return the tools, which run one after another."""
        functions = (
            self.find_customer,
            self.list_orders,
            self.get_order,
            self.find_items,
            self.cancel_order,
            self.change_address,
            self.exchange_item,
            self.return_item,
            self.end_chat,
        )
        specs = tuple(ToolSpec.from_function(function) for function in functions)
        return ToolSet(specs=specs, is_sequential=True, timeout_s=None)

    async def find_customer(self, email: str = "", name: str = "", postcode: str = "") -> str:
        """Identify the customer, by e-mail address or by full name and postcode.

        Args:
            email: The e-mail address of the account.
            name: The full name; needs the postcode, too.
            postcode: The postcode of the account; needs the name, too.
        """
        rows = self._rows("SELECT customer_id, name, email, postcode FROM customers")
        for customer_id, known_name, known_email, known_postcode in rows:
            is_name = _same(name, known_name) and _same(postcode, known_postcode)
            if (email and _same(email, known_email)) or (not email and name and is_name):
                self.customer = customer_id
                return f"Customer {customer_id}: {known_name}, {known_email}."
        return "No customer has these details."

    async def list_orders(self) -> str:
        """List the orders of the identified customer."""
        if self.customer is None:
            return _LOCKED
        rows = self._rows(
            "SELECT order_id FROM orders WHERE customer_id = ? ORDER BY order_id", self.customer
        )
        return "\n".join(self._order_line(row[0]) for row in rows)

    async def get_order(self, order_id: str) -> str:
        """Show one order of the identified customer with its items and prices.

        Args:
            order_id: The number of the order, such as W12345.
        """
        if problem := self._problem(order_id):
            return problem
        order_id = _number(order_id)
        payment, *address = self._rows(
            "SELECT payment, street, city, postcode FROM orders WHERE order_id = ?", order_id
        )[0]
        lines = [self._order_line(order_id), f"Paid with {payment}. Ships to {', '.join(address)}."]
        rows = self._rows(
            "SELECT i.item_id, product, option, price, final_sale, state FROM order_items o "
            "JOIN items i ON i.item_id = o.item_id WHERE order_id = ? ORDER BY i.item_id",
            order_id,
        )
        for item_id, product, option, price, is_final, state in rows:
            note = ", final sale" if is_final else ""
            lines.append(f"- {item_id}: {product}, {option}, {money(price)}{note} ({state})")
        return "\n".join(lines)

    async def find_items(self, product: str) -> str:
        """List the options of a product with item ids, prices and stock.

        Args:
            product: The name of the product, or a part of it.
        """
        rows = self._rows(
            "SELECT item_id, product, option, price, stock, final_sale FROM items "
            "WHERE instr(product, ?) > 0 ORDER BY item_id",
            product.strip().lower()[:_MAX_TEXT] or "-",
        )
        lines = [
            f"- {item_id}: {name}, {option}, {money(price)}, "
            f"{f'{stock} in stock' if stock else 'out of stock'}{', final sale' * is_final}"
            for item_id, name, option, price, stock, is_final in rows
        ]
        return "\n".join(lines) or "No product has this name."

    async def cancel_order(self, order_id: str, reason: CancelReason) -> str:
        """Cancel a whole order.

        Args:
            order_id: The number of the order.
            reason: Why the customer cancels.
        """
        if problem := self._problem(order_id):
            return problem
        order_id = _number(order_id)
        if self._status(order_id) == Status.CANCELLED:
            return f"Order {order_id} is cancelled already."
        self._run(
            "UPDATE orders SET status = ?, cancel_reason = ? WHERE order_id = ?",
            Status.CANCELLED.value, reason, order_id,
        )  # fmt: skip
        self._write(Write(kind=WriteKind.CANCEL, order=order_id))
        return f"Order {order_id} is cancelled."

    async def change_address(self, order_id: str, street: str, city: str, postcode: str) -> str:
        """Change where an order is delivered.

        Args:
            order_id: The number of the order.
            street: House number and street.
            city: The town or city.
            postcode: The postcode.
        """
        if problem := self._problem(order_id):
            return problem
        order_id = _number(order_id)
        address = Address(street=street.strip(), city=city.strip(), postcode=postcode.strip())
        parts = (address.street, address.city, address.postcode)
        if not all(0 < len(part) <= _MAX_TEXT for part in parts):
            return f"Street, city and postcode must each have 1 to {_MAX_TEXT} characters."
        self._run(
            "UPDATE orders SET street = ?, city = ?, postcode = ? WHERE order_id = ?",
            *parts, order_id,
        )  # fmt: skip
        self._write(Write(kind=WriteKind.ADDRESS, order=order_id))
        return f"Order {order_id} ships to {address}."

    async def exchange_item(self, order_id: str, item_id: str, new_item_id: str) -> str:
        """Exchange an item of an order for another option of the same product.

        Args:
            order_id: The number of the order.
            item_id: The item that the customer has.
            new_item_id: The item that the customer gets.
        """
        problem = self._problem(order_id) or self._item_problem(order_id, item_id)
        if problem:
            return problem
        order_id, item_id, new_item_id = _number(order_id), _number(item_id), _number(new_item_id)
        new = self._rows("SELECT product, stock FROM items WHERE item_id = ?", new_item_id)
        old = self._rows("SELECT product FROM items WHERE item_id = ?", item_id)
        if not new or new[0][0] != old[0][0] or new_item_id == item_id:
            return f"Item {new_item_id} is not another option of this product."
        if not new[0][1]:
            return f"Item {new_item_id} is out of stock."
        self._run("UPDATE items SET stock = stock - 1 WHERE item_id = ?", new_item_id)
        self._set_state(order_id, item_id, "exchanged")
        self._run("INSERT INTO exchanges VALUES (?, ?, ?)", order_id, item_id, new_item_id)
        self._write(Write(kind=WriteKind.EXCHANGE, order=order_id, item=item_id))
        return f"Item {item_id} of order {order_id} is exchanged for {new_item_id}."

    async def return_item(
        self,
        order_id: str,
        item_id: str,
        reason: ReturnReason,
        refund_to: RefundTo,
        photo_code: str = "",
    ) -> str:
        """Take an item back and refund its price.

        Args:
            order_id: The number of the order.
            item_id: The item that comes back.
            reason: Why the customer returns it.
            refund_to: Where the money goes.
            photo_code: For a damaged item, the code on its label in the customer's photo.
        """
        problem = self._problem(order_id) or self._item_problem(order_id, item_id)
        if problem:
            return problem
        order_id, item_id = _number(order_id), _number(item_id)
        self._set_state(order_id, item_id, "returned")
        code = photo_code.strip()[:_MAX_TEXT]
        self._run(
            "INSERT INTO returns VALUES (?, ?, ?, ?, ?)", order_id, item_id, reason, refund_to, code
        )
        self._write(Write(kind=WriteKind.RETURN, order=order_id, item=item_id))
        return f"Item {item_id} of order {order_id} is booked as returned."

    async def end_chat(self, told: str = "", declined: Declined = "nothing") -> str:
        """End the conversation, once the customer needs nothing else.

        Args:
            told: The one amount or date that the customer asked for, such as $12.50 or
                2026-06-30; empty if the customer asked for none.
            declined: The rule by which you refused a request; "nothing" if you refused none.
        """
        self.closing = Closing(told=told[:_MAX_TEXT], declined=declined)
        return "The conversation is over."

    def _problem(self, order_id: str) -> str:
        """Return why the agent may not touch an order; empty if it may."""
        if self.customer is None:
            return _LOCKED
        rows = self._rows(
            "SELECT 1 FROM orders WHERE order_id = ? AND customer_id = ?",
            _number(order_id), self.customer,
        )  # fmt: skip
        return "" if rows else "The customer has no order with this number."

    def _item_problem(self, order_id: str, item_id: str) -> str:
        rows = self._rows(
            "SELECT state FROM order_items WHERE order_id = ? AND item_id = ?",
            _number(order_id), _number(item_id),
        )  # fmt: skip
        if not rows:
            return "The order has no item with this id."
        return "" if rows[0][0] == "ordered" else f"This item is {rows[0][0]} already."

    def _order_line(self, order_id: str) -> str:
        status, ordered, due = self._rows(
            "SELECT status, ordered_on, due_on FROM orders WHERE order_id = ?", order_id
        )[0]
        names = [
            row[0]
            for row in self._rows(
                "SELECT product FROM order_items o JOIN items i ON i.item_id = o.item_id "
                "WHERE order_id = ? ORDER BY product",
                order_id,
            )
        ]
        word = "delivered" if status == Status.DELIVERED else "arrives"
        when = "" if status == Status.CANCELLED else f", {word} {date.fromisoformat(due)}"
        return f"Order {order_id}: {status}, ordered {ordered}{when}: {', '.join(names)}"

    def _status(self, order_id: str) -> str:
        return self._rows("SELECT status FROM orders WHERE order_id = ?", order_id)[0][0]

    def _set_state(self, order_id: str, item_id: str, state: str) -> None:
        self._run(
            "UPDATE order_items SET state = ? WHERE order_id = ? AND item_id = ?",
            state, order_id, item_id,
        )  # fmt: skip

    def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        return self._database.execute(query, values).fetchall()

    def _run(self, query: str, *values: str) -> None:
        self._database.execute(query, values)


def _same(left: str, right: str) -> bool:
    return re.sub(r"\s+", "", left).casefold() == re.sub(r"\s+", "", right).casefold()


def _number(text: str) -> str:
    """Return an id as the database holds it: without "#" and spaces, in capitals."""
    return text.strip().lstrip("#").upper()[:_MAX_TEXT]
