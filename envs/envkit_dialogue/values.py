"""Amounts and dates in plain text, for what the customer must be told."""

import re
from datetime import date
from typing import Final

from envkit_dialogue.shop import TODAY

_AMOUNT: Final = re.compile(
    r"\$ ?(\d[\d,]*(?:\.\d{1,2})?)(?![\d,]*\d)|\b(\d[\d,]*(?:\.\d{1,2})?) ?(?:dollars|usd)\b"
)
_ISO: Final = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")
_MONTHS: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_MONTH: Final = "|".join(f"{name}|{name[:3]}" for name in _MONTHS)
_DAY_FIRST: Final = re.compile(
    rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_MONTH})\b\.?,?(?: (\d{{4}}))?"
)
_MONTH_FIRST: Final = re.compile(
    rf"\b({_MONTH})\.? (?:the )?(\d{{1,2}})(?:st|nd|rd|th)?\b,?(?: (\d{{4}}))?"
)


_BESIDE: Final = frozenset(("on", "the", "usd", "dollars"))
"""Words that may stand beside a value in a slot."""
_NONE: Final = frozenset(("", "none", "nothing", "null", "n/a"))


def values_in(text: str) -> set[str]:
    """Return the amounts, such as "$12.50", and the dates, such as "2026-06-30", in a text."""
    lower = text.lower()
    found = {_money(one or other) for one, other in _AMOUNT.findall(lower)}
    dates = [(year, month, day) for year, month, day in _ISO.findall(lower)]
    dates += [(year, _number(month), day) for day, month, year in _DAY_FIRST.findall(lower)]
    dates += [(year, _number(month), day) for month, day, year in _MONTH_FIRST.findall(lower)]
    return (found | {_date(*parts) for parts in dates}) - {""}


def is_told(slot: str, wanted: str) -> bool:
    """Return whether a slot holds the wanted value and nothing else; empty if none is wanted.

    A bare number is an amount, and "none" is empty.
    """
    text = slot.strip().lower()
    if text in _NONE:
        return not wanted
    if re.fullmatch(r"\d[\d,]*(?:\.\d{1,2})?", text):
        text = f"${text}"
    if values_in(text) != ({wanted} if wanted else set()):
        return False
    for pattern in (_AMOUNT, _ISO, _DAY_FIRST, _MONTH_FIRST):
        text = pattern.sub(" ", text)
    return set(re.findall(r"[^\W_]+", text)) <= _BESIDE


def _money(text: str) -> str:
    whole, _, cents = text.replace(",", "").partition(".")
    return f"${int(whole or 0):,}.{cents:0<2}" if len(whole) < 10 else ""


def _number(month: str) -> str:
    return str(next(n for n, name in enumerate(_MONTHS, start=1) if name.startswith(month[:3])))


def _date(year: str, month: str, day: str) -> str:
    try:
        return date(int(year or TODAY.year), int(month), int(day)).isoformat()
    except ValueError:
        return ""
