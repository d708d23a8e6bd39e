"""The shop's database: SQLite in memory, fresh per episode, compared by sorted rows.

Two databases are equal if every table has the same rows under the columns that `KEYS` declares, in
any order. Row ids and the order of writes do not count.
"""

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from envkit_dialogue.shop import Address, Shop

SCHEMA: Final = """
CREATE TABLE customers (customer_id TEXT PRIMARY KEY, name TEXT, email TEXT, postcode TEXT);
CREATE TABLE items (item_id TEXT PRIMARY KEY, product TEXT, option TEXT, price INTEGER,
    stock INTEGER, final_sale INTEGER);
CREATE TABLE orders (order_id TEXT PRIMARY KEY, customer_id TEXT, status TEXT, ordered_on TEXT,
    due_on TEXT, payment TEXT, street TEXT, city TEXT, postcode TEXT, cancel_reason TEXT);
CREATE TABLE order_items (order_id TEXT, item_id TEXT, state TEXT);
CREATE TABLE exchanges (order_id TEXT, item_id TEXT, new_item_id TEXT);
CREATE TABLE returns (order_id TEXT, item_id TEXT, reason TEXT, refund_to TEXT, photo_code TEXT);
"""
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "items": ("item_id", "stock"),
    "orders": ("order_id", "status", "street", "city", "postcode", "cancel_reason"),
    "order_items": ("order_id", "item_id", "state"),
    "exchanges": ("order_id", "item_id", "new_item_id"),
    "returns": ("order_id", "item_id", "reason", "refund_to", "photo_code"),
}
"""The columns that count in a comparison, by table."""

State = dict[str, list[list[Any]]]
"""The compared rows of each table, sorted; JSON data."""


def open_database(shop: Shop) -> sqlite3.Connection:
    """Return a new database in memory that holds a shop."""
    database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    database.executescript(SCHEMA)
    _insert(database, "customers", ((c.customer_id, c.name, c.email, c.address.postcode)
                                    for c in shop.customers))  # fmt: skip
    _insert(database, "items", ((i.item_id, i.product, i.option, i.price, i.stock,
                                 int(i.is_final_sale)) for i in shop.items))  # fmt: skip
    _insert(
        database,
        "orders",
        (
            (
                order.order_id,
                order.customer_id,
                order.status.value,
                order.ordered_on.isoformat(),
                order.due_on.isoformat(),
                order.payment,
                order.address.street,
                order.address.city,
                order.address.postcode,
                "",
            )
            for order in shop.orders
        ),
    )
    _insert(
        database,
        "order_items",
        ((order.order_id, item, "ordered") for order in shop.orders for item in order.items),
    )
    return database


def state_of(database: sqlite3.Connection) -> State:
    """Return the rows that a comparison reads."""
    state: State = {}
    for table, columns in KEYS.items():
        rows = database.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
        state[table] = sorted([_plain(value) for value in row] for row in rows)
    return state


def differences(found: State, wanted: State) -> list[str]:
    """Return one sentence per table whose rows differ; empty if the states are equal."""
    problems: list[str] = []
    for table in KEYS:
        extra = _without(found[table], wanted[table])
        missing = _without(wanted[table], found[table])
        if extra or missing:
            problems.append(f"{table}: {len(missing)} rows are missing, {len(extra)} are wrong")
    return problems


def dump(database: sqlite3.Connection) -> dict[str, list[list[Any]]]:
    """Return all rows of all tables, for a snapshot."""
    tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master").fetchall()
              if not row[0].startswith("sqlite_")]  # fmt: skip
    return {
        table: [list(row) for row in database.execute(f"SELECT * FROM {table}").fetchall()]
        for table in tables
    }


def load(rows: Mapping[str, Sequence[Sequence[Any]]]) -> sqlite3.Connection:
    """Return a database with the rows that `dump` returned."""
    database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    database.executescript(SCHEMA)
    for table, entries in rows.items():
        _insert(database, table, entries)
    return database


def same_address(left: Address, right: Address) -> bool:
    """Return whether two addresses differ at most in case, spaces and punctuation."""
    return _plain(str(left)) == _plain(str(right))


def _plain(value: Any) -> Any:  # noqa: ANN401  # a column of any type
    if not isinstance(value, str):
        return value
    return re.sub(r"[\W_]+", " ", value).strip().casefold()


def _without(left: list[list[Any]], right: list[list[Any]]) -> list[list[Any]]:
    rest = list(right)
    kept: list[list[Any]] = []
    for row in left:
        if row in rest:
            rest.remove(row)
        else:
            kept.append(row)
    return kept


def _insert(database: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]]) -> None:
    entries = list(rows)
    if entries:
        places = ", ".join("?" * len(entries[0]))
        database.executemany(f"INSERT INTO {table} VALUES ({places})", entries)
