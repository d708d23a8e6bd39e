"""What one customer wants: the hidden side of a conversation, as JSON data.

A `Scenario` is the task of an episode. Nothing of it is shown to the model, except what the
customer says when asked and what the tools read from the shop's database.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, Self

import msgspec

from envkit.errors import DatasetError
from envkit_dialogue.database import State, open_database, state_of
from envkit_dialogue.desk import Write, WriteKind
from envkit_dialogue.shop import Address, Shop, Status, make_shop

NOTHING: Final = "nothing"
"""What the agent declares if it refused nothing."""


class RequestKind(StrEnum):
    """What a customer may ask for."""

    CANCEL = "cancel"
    ADDRESS = "address"
    EXCHANGE = "exchange"
    RETURN = "return"
    QUESTION = "question"


class Topic(StrEnum):
    """What a question is about."""

    ARRIVAL = "arrival"
    TOTAL = "total"
    PRICE = "price"


class OrderBy(StrEnum):
    """How a customer refers to an order."""

    NUMBER = "number"
    RECEIPT = "receipt"
    """By a photo of the receipt, in which the number can be read."""
    ITEM = "item"
    """By what is in it."""


class Temper(StrEnum):
    """How a customer talks."""

    POLITE = "polite"
    BRIEF = "brief"
    CHATTY = "chatty"
    IMPATIENT = "impatient"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One thing that the customer wants."""

    kind: RequestKind
    order: str
    item: str = ""
    """The item that the customer has; for a whole order or a question, one that describes it."""
    new_item: str = ""
    reason: str = ""
    refund_to: str = ""
    address: Address | None = None
    photo_code: str = ""
    damage: str = ""
    topic: Topic | None = None
    refusal: str = ""
    """The rule that forbids it, a value of `declined` in `end_chat`; empty if none does."""
    earlier: "Request | None" = None
    """What the customer asks for first, until they change their mind; None if they do not."""

    @property
    def write(self) -> Write | None:
        """The change that it needs; None for a question."""
        if self.kind is RequestKind.QUESTION:
            return None
        is_whole = self.kind in (RequestKind.CANCEL, RequestKind.ADDRESS)
        item = "" if is_whole else self.item
        return Write(kind=WriteKind(self.kind.value), order=self.order, item=item)

    @property
    def is_allowed(self) -> bool:
        """Whether the shop's rules allow it."""
        return not self.refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The task of an episode."""

    id: str
    level: int
    shop: int
    """Seed of the shop."""
    customer: str
    knows_email: bool
    order_by: OrderBy
    temper: Temper
    requests: tuple[Request, ...]
    told: str = ""
    """The amount or date that the customer must be told; empty if there is none."""

    @property
    def declined(self) -> str:
        """The rule by which a request must be refused, or "nothing"."""
        return next((r.refusal for r in self.requests if not r.is_allowed), NOTHING)

    def to_json(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return msgspec.to_builtins(asdict(self))

    @classmethod
    def from_json(cls, task: Mapping[str, Any]) -> Self:
        """Read a task, and check that its ids exist in its shop.

        Raises:
            DatasetError: A field is missing or has the wrong type, or an id is unknown.
        """
        try:
            scenario = msgspec.convert(dict(task), cls)
        except msgspec.ValidationError as error:
            raise DatasetError(f"a task of dialogue-v0 must be a scenario: {error}") from error
        if not scenario.requests:
            raise DatasetError("a task of dialogue-v0 must have at least one request, got none")
        try:
            _check(scenario, make_shop(scenario.shop))
        except KeyError as error:
            raise DatasetError(
                f"a task of dialogue-v0 names {error}, which shop {scenario.shop} does not have"
            ) from error
        return scenario


def expected_state(scenario: Scenario) -> State:
    """Return the database rows after everything that was asked for and is allowed."""
    shop = make_shop(scenario.shop)
    database = open_database(shop)
    for request in scenario.requests:
        if not request.is_allowed:
            continue
        match request.kind:
            case RequestKind.CANCEL:
                database.execute(
                    "UPDATE orders SET status = ?, cancel_reason = ? WHERE order_id = ?",
                    (Status.CANCELLED.value, request.reason, request.order),
                )
            case RequestKind.ADDRESS if request.address is not None:
                to = request.address
                database.execute(
                    "UPDATE orders SET street = ?, city = ?, postcode = ? WHERE order_id = ?",
                    (to.street, to.city, to.postcode, request.order),
                )
            case RequestKind.EXCHANGE:
                row = (request.order, request.item, request.new_item)
                database.execute(
                    "UPDATE items SET stock = stock - 1 WHERE item_id = ?", (request.new_item,)
                )
                database.execute("INSERT INTO exchanges VALUES (?, ?, ?)", row)
                _set_state(database.execute, request, "exchanged")
            case RequestKind.RETURN:
                row = (request.order, request.item, request.reason, request.refund_to)
                database.execute(
                    "INSERT INTO returns VALUES (?, ?, ?, ?, ?)", (*row, request.photo_code)
                )
                _set_state(database.execute, request, "returned")
            case _:
                pass
    state = state_of(database)
    database.close()
    return state


def later(request: Request) -> Request:
    """Return a request after the customer changed their mind."""
    return replace(request, earlier=None)


def _set_state(execute: Any, request: Request, state: str) -> None:  # noqa: ANN401  # sqlite3's own
    execute(
        "UPDATE order_items SET state = ? WHERE order_id = ? AND item_id = ?",
        (state, request.order, request.item),
    )


def _check(scenario: Scenario, shop: Shop) -> None:
    shop.customer(scenario.customer)
    for request in scenario.requests:
        for version in filter(None, (request, request.earlier)):
            shop.order(version.order)
            shop.item(version.item)
            if version.new_item:
                shop.item(version.new_item)
