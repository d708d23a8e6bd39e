"""Whether a question for consent says what the customer wants.

A proposal names what will be done and the order or the item. What it says of the details must be
right: the order's number, item ids, the new option, where the refund goes, the new postcode.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from envkit_dialogue.scenario import Request, RequestKind
from envkit_dialogue.shop import Shop

_KINDS: Final = {
    RequestKind.CANCEL: re.compile(r"\bcancel|\bcall(?:ing)? off"),
    RequestKind.ADDRESS: re.compile(
        r"\baddress|\b(?:ship|deliver|send|go|redirect|sent|shipped|delivered)\b[^.?!]*\bto\b"
    ),
    RequestKind.EXCHANGE: re.compile(r"\bexchang|\bswap|\breplac|\bswitch"),
    RequestKind.RETURN: re.compile(
        r"\breturn|\brefund|\b(?:send|sent|take|taken|giv\w+)(?: \w+){0,4} back"
    ),
}
_ORDER: Final = re.compile(r"\bw\s?(\d{5})\b")
_ITEM: Final = re.compile(r"\bi(\d{4})\b")
_POSTCODE: Final = re.compile(r"\b[a-z]\d{2} ?\d[a-z]{2}\b")
_CREDIT: Final = re.compile(r"\bcredit\b(?! card)|\bvoucher|\bgift")
_ORIGINAL: Final = re.compile(r"\boriginal|\bcard\b|\bpaypal|\bhow you paid|\bway you paid")


class Match(StrEnum):
    """How a proposal compares with a request."""

    RIGHT = "right"
    OTHER = "other"
    """It proposes something else."""
    VAGUE = "vague"
    """It does not say what will be done."""
    NO_TARGET = "no target"
    """It does not say in which order, or for which item."""
    WRONG = "wrong"
    """A detail is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A comparison with its finding."""

    match: Match
    field: str = ""
    """The wrong detail: order, item, option, refund or address."""


def judge(message: str, request: Request, shop: Shop) -> Judged:
    """Compare a proposal with a request.

    Args:
        message: The agent's whole message.
        request: What the customer wants now; no question.
        shop: Where its items are.
    """
    text = " ".join(message.lower().split())
    named = {kind for kind, pattern in _KINDS.items() if pattern.search(text)}
    if request.kind not in named:
        return Judged(match=Match.OTHER if named else Match.VAGUE)
    orders = {f"W{number}" for number in _ORDER.findall(text)}
    items = {f"I{number}" for number in _ITEM.findall(text)}
    product = shop.item(request.item).product
    if orders and request.order not in orders:
        return Judged(match=Match.WRONG, field="order")
    if not orders and not items and product not in text:
        return Judged(match=Match.NO_TARGET)
    field = _wrong_detail(text, request, shop, items)
    return Judged(match=Match.WRONG if field else Match.RIGHT, field=field)


def _wrong_detail(text: str, request: Request, shop: Shop, items: set[str]) -> str:
    """Return the detail that the text has wrong; empty if there is none."""
    match request.kind:
        case RequestKind.EXCHANGE:
            return _wrong_exchange(text, request, shop, items)
        case RequestKind.RETURN:
            if items and request.item not in items:
                return "item"
            said = {
                "store credit": _CREDIT.search(text) is not None,
                "original payment": _ORIGINAL.search(text) is not None,
            }
            return "refund" if any(said.values()) and not said[request.refund_to] else ""
        case RequestKind.ADDRESS if request.address is not None:
            codes = {code.replace(" ", "") for code in _POSTCODE.findall(text)}
            wanted = request.address.postcode.lower().replace(" ", "")
            return "address" if codes and wanted not in codes else ""
        case _:
            return ""


def _wrong_exchange(text: str, request: Request, shop: Shop, items: set[str]) -> str:
    new, old = shop.item(request.new_item), shop.item(request.item)
    if items - {new.item_id, old.item_id}:
        return "option" if old.item_id in items else "item"
    options = {
        item.option
        for item in shop.items
        if item.product == old.product and re.search(rf"\b{item.option}\b", text)
    }
    if "extra large" in options and not re.search(r"(?<!extra )\blarge\b", text):
        options.discard("large")
    others = options - {old.option}
    return "option" if others and others != {new.option} else ""
