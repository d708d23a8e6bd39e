"""What an agent's message asks or says: frames over the concepts of its clauses.

A message is split into sentences and clauses. In each clause the lexicon finds concepts, and a
frame applies if the clause has one concept of each of its groups and none that it excludes. A
clause asks if it has a word of asking, ends in a question mark, or is a short fragment. A sentence
whose clauses say nothing alone is read as a whole, and so is a message. What no frame understands
is `()`, and the customer then asks back.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from envkit_dialogue.lexicon import Concept, hits

C = Concept


class Act(StrEnum):
    """What an agent may ask or say."""

    GOAL = "ask_goal"
    EMAIL = "ask_email"
    NAME = "ask_name"
    ZIP = "ask_zip"
    PHONE = "ask_phone"
    ORDER = "ask_order_number"
    ITEM = "ask_item"
    OPTION = "ask_exchange_option"
    REASON = "ask_reason"
    REFUND = "ask_refund_target"
    ADDRESS = "ask_new_address"
    PICTURE = "ask_picture"
    CONSENT = "ask_consent"
    ELSE = "ask_anything_else"
    WAIT = "ask_wait"
    DONE = "tell_done"
    REFUSE = "refuse"
    OFFER = "offer_alternative"
    BYE = "say_goodbye"
    CHAT = "small_talk_irrelevant"


@dataclass(frozen=True, slots=True)
class Frame:
    """A pattern of concepts that means an act."""

    act: Act
    needs: tuple[frozenset[Concept], ...]
    """Groups of concepts; the clause has one of each."""
    lacks: frozenset[Concept] = frozenset()
    """Concepts that the clause does not have."""
    asks: bool = True
    """Whether the clause must ask."""


def _frame(
    act: Act,
    *needs: Concept | tuple[Concept, ...],
    lacks: Iterable[Concept] = (),
    asks: bool = True,
) -> Frame:
    groups = tuple(frozenset(n) if isinstance(n, tuple) else frozenset((n,)) for n in needs)
    return Frame(act, groups, frozenset(lacks), asks)


_OPEN: Final = (C.WHAT, C.WHERE, C.OR, C.ASK)
FRAMES: Final = (
    _frame(Act.EMAIL, C.EMAIL, lacks=(C.DONE,)),
    _frame(Act.NAME, C.NAME, lacks=(C.DONE, C.ITEM, C.CONSENT)),
    _frame(Act.NAME, C.NAME, C.NOT, lacks=(C.DONE, C.ITEM, C.CONSENT, C.POSSIBLE), asks=False),
    _frame(Act.ZIP, C.ZIP, lacks=(C.DONE,), asks=False),
    _frame(Act.PHONE, C.PHONE, lacks=(C.DONE,), asks=False),
    _frame(Act.ORDER, (C.ORDER_NUMBER, C.WHICH_ORDER), lacks=(C.DONE, C.REFUSE)),
    _frame(
        Act.ORDER,
        C.ORDER,
        C.WHAT,
        lacks=(
            C.BOUGHT,
            C.ITEM,
            C.SHIP,
            C.ADDRESS,
            C.OPTION,
            C.GOAL,
            C.DONE,
            C.WHERE,
            C.ELSE,
            C.WHY,
            C.PICTURE,
            C.PRODUCT,
            C.NAME,
            C.ZIP,
            C.EMAIL,
            C.CONSENT,
        ),
    ),
    _frame(
        Act.ORDER,
        C.ORDER,
        C.OR,
        lacks=(C.DONE, C.CONSENT, C.ITEM, C.CANCEL, C.RETURN, C.EXCHANGE, C.GOAL, C.SHIP, C.METHOD),
    ),
    _frame(
        Act.ITEM,
        (C.ITEM, C.BOUGHT),
        (C.WHAT, C.ASK),
        lacks=(
            C.EMAIL,
            C.NAME,
            C.WHY,
            C.FAULT,
            C.INSTEAD,
            C.OPTION,
            C.DONE,
            C.CONSENT,
            C.PICTURE,
            C.ORDER_NUMBER,
            C.WHICH_ORDER,
            C.REFUSE,
            C.ELSE,
            C.ADDRESS,
            C.REFUND,
            C.ZIP,
            C.PHONE,
            C.METHOD,
            C.OFFER,
        ),
    ),
    _frame(Act.ITEM, (C.ITEM, C.BOUGHT), (C.WHAT,), C.FAULT, lacks=(C.INSTEAD, C.OPTION, C.DONE)),
    _frame(Act.ITEM, C.BOUGHT, C.WHY, C.WHAT),
    _frame(
        Act.ITEM,
        (C.RETURN, C.EXCHANGE),
        C.WHAT,
        lacks=(
            C.NAME,
            C.EMAIL,
            C.PHONE,
            C.ZIP,
            C.WHY,
            C.FAULT,
            C.INSTEAD,
            C.OPTION,
            C.DONE,
            C.CONSENT,
            C.PICTURE,
            C.ORDER,
            C.ORDER_NUMBER,
            C.WHICH_ORDER,
            C.GOAL,
            C.REFUND,
            C.METHOD,
            C.ADDRESS,
            C.SHIP,
            C.VALUE,
        ),
    ),
    _frame(
        Act.ITEM,
        C.PRODUCT,
        C.OR,
        lacks=(C.INSTEAD, C.EXCHANGE, C.OPTION, C.FAULT, C.DONE, C.CONSENT, C.VALUE, C.CHAT),
    ),
    _frame(
        Act.ITEM,
        C.ITEM,
        lacks=(
            C.WHY,
            C.FAULT,
            C.INSTEAD,
            C.OPTION,
            C.DONE,
            C.CONSENT,
            C.PICTURE,
            C.REFUSE,
            C.OFFER,
            C.REFUND,
            C.ADDRESS,
            C.ELSE,
            C.WHAT,
            C.ASK,
        ),
    ),
    _frame(
        Act.OPTION,
        C.OPTION,
        lacks=(C.DONE, C.CONSENT, C.REFUSE, C.METHOD, C.REFUND, C.OFFER, C.ADDRESS, C.ORDER),
    ),
    _frame(
        Act.OPTION,
        C.INSTEAD,
        (C.WHAT, C.ASK, C.OR, C.VALUE),
        lacks=(
            C.NAME,
            C.ZIP,
            C.EMAIL,
            C.PHONE,
            C.ORDER_NUMBER,
            C.WHICH_ORDER,
            C.PICTURE,
            C.DONE,
            C.CONSENT,
            C.SHIP,
            C.ADDRESS,
            C.REFUND,
            C.METHOD,
            C.OFFER,
            C.WHERE,
            C.REFUSE,
        ),
    ),
    _frame(Act.OPTION, C.RANGE, lacks=(C.DONE, C.CONSENT, C.REFUSE), asks=False),
    _frame(Act.OPTION, C.VALUE, C.OR, lacks=(C.DONE, C.CONSENT, C.REFUSE, C.REFUND, C.METHOD)),
    _frame(Act.OPTION, C.VALUE, C.WHAT, lacks=(C.DONE, C.CONSENT, C.REFUSE, C.REFUND, C.METHOD)),
    _frame(
        Act.REASON,
        (C.WHY, C.FAULT),
        lacks=(C.DONE, C.REFUSE, C.CONSENT, C.PICTURE, C.REFUND, C.METHOD),
    ),
    _frame(
        Act.REFUND,
        C.REFUND,
        (C.WHERE, C.WHAT, C.METHOD, C.ASK, C.OR, C.LAND),
        lacks=(C.DONE, C.CONSENT, C.OFFER, C.REFUSE, C.GOAL, C.ELSE, C.EXCHANGE, C.INSTEAD),
    ),
    _frame(
        Act.REFUND,
        C.METHOD,
        (*_OPEN, C.LAND),
        lacks=(C.DONE, C.CONSENT, C.OFFER, C.REFUSE, C.ADDRESS, C.ELSE),
    ),
    _frame(Act.REFUND, (C.REFUND, C.METHOD), (C.WHERE, C.WHAT, C.OR), C.WANT_ME, lacks=(C.DONE,)),
    _frame(
        Act.ADDRESS,
        C.ADDRESS,
        lacks=(C.DONE, C.CONSENT, C.REFUSE, C.REFUND, C.METHOD, C.CHAT),
    ),
    _frame(
        Act.ADDRESS,
        C.WHERE,
        (C.SHIP, C.ORDER),
        lacks=(C.DONE, C.CONSENT, C.REFUND, C.METHOD, C.ZIP, C.CHAT, C.ORDER_NUMBER, C.BOUGHT),
    ),
    _frame(Act.PICTURE, C.PICTURE, lacks=(C.DONE,)),
    _frame(
        Act.CONSENT,
        C.CONSENT,
        lacks=(
            C.EMAIL,
            C.NAME,
            C.PHONE,
            C.ZIP,
            C.ORDER_NUMBER,
            C.WHICH_ORDER,
            C.PICTURE,
            C.WHAT,
            C.WHERE,
            C.WHY,
            C.ELSE,
        ),
    ),
    _frame(
        Act.CONSENT,
        C.WANT_ME,
        lacks=(
            C.WHICH_ORDER,
            C.PHONE,
            C.EMAIL,
            C.NAME,
            C.PICTURE,
            C.WHAT,
            C.WHERE,
            C.ELSE,
            C.GOAL,
            C.OR,
            C.OFFER,
        ),
    ),
    _frame(Act.GOAL, C.GOAL, lacks=(C.DONE, C.ELSE, C.REFUSE, C.CONSENT, C.WHY, C.FAULT, C.BYE)),
    _frame(Act.GOAL, C.REFUND, C.OR, (C.EXCHANGE, C.INSTEAD), lacks=(C.DONE, C.REFUSE, C.METHOD)),
    _frame(Act.ELSE, C.ELSE, lacks=(C.DONE,)),
    _frame(
        Act.GOAL,
        C.WHAT,
        C.WANT_ME,
        lacks=(
            C.EMAIL,
            C.ZIP,
            C.PHONE,
            C.PICTURE,
            C.WHICH_ORDER,
            C.REFUND,
            C.METHOD,
            C.ADDRESS,
            C.SHIP,
            C.ELSE,
            C.ORDER_NUMBER,
            C.INSTEAD,
            C.NAME,
            C.ORDER,
            C.ITEM,
            C.LAND,
            C.DONE,
            C.EXCHANGE,
        ),
    ),
    _frame(Act.GOAL, C.RETURN, C.OR, C.EXCHANGE, lacks=(C.DONE, C.CONSENT)),
    _frame(Act.GOAL, C.CANCEL, C.OR, (C.RETURN, C.EXCHANGE), lacks=(C.DONE, C.CONSENT)),
    _frame(Act.REFUSE, C.NOT, C.POSSIBLE, lacks=(C.CONSENT, C.WHAT, C.WHY, C.OR), asks=False),
    _frame(
        Act.DONE,
        C.HAVE,
        C.PAST,
        lacks=(C.REFUSE, C.NOT, C.CONSENT, C.WHAT, C.WHERE, C.WHY, C.FAULT, C.OR, C.ASK),
        asks=False,
    ),
    _frame(Act.WAIT, C.WAIT, lacks=(C.DONE, C.BYE, C.REFUSE), asks=False),
    _frame(Act.DONE, C.DONE, lacks=(C.REFUSE, C.CONSENT, C.OFFER), asks=False),
    _frame(Act.REFUSE, C.REFUSE, lacks=(C.CONSENT,), asks=False),
    _frame(Act.OFFER, C.OFFER, lacks=(C.DONE,), asks=False),
    _frame(Act.BYE, C.BYE, asks=False),
    _frame(Act.CHAT, C.CHAT, asks=False),
)

_FACTS: Final = frozenset(
    (Act.GOAL, Act.EMAIL, Act.NAME, Act.ZIP, Act.PHONE, Act.ORDER, Act.ITEM, Act.OPTION, Act.REASON,
     Act.REFUND, Act.ADDRESS, Act.PICTURE)
)  # fmt: skip
_IDLE: Final = frozenset(
    (C.ASK, C.WHAT, C.WHERE, C.WHY, C.OR, C.NEUTRAL, C.VALUE, C.LAND, C.NOT, C.POSSIBLE, C.HAVE,
     C.PAST)
)  # fmt: skip
_NAMED: Final = frozenset((C.PRODUCT, C.OPTION, C.ITEM, C.CHAT))
"""What a statement may name without being about the customer's request."""
_ASKING: Final = _FACTS | {Act.CONSENT, Act.ELSE}
_YIELDS: Final[dict[Act, frozenset[Act]]] = {
    Act.CHAT: frozenset(Act) - {Act.CHAT},
    Act.WAIT: _ASKING | {Act.DONE, Act.REFUSE, Act.OFFER},
    Act.BYE: _ASKING | {Act.OFFER, Act.REFUSE, Act.WAIT},
    Act.DONE: _FACTS | {Act.CONSENT, Act.REFUSE},
    Act.REFUSE: _FACTS | {Act.CONSENT, Act.OFFER},
    Act.OFFER: _FACTS | {Act.CONSENT},
    Act.ZIP: frozenset((Act.ADDRESS, Act.CONSENT)),
    Act.ADDRESS: frozenset((Act.EMAIL, Act.CONSENT)),
    Act.REASON: frozenset((Act.CONSENT,)),
    Act.OPTION: frozenset((Act.CONSENT,)),
    Act.ITEM: frozenset((Act.CONSENT,)),
    Act.ORDER: frozenset((Act.CONSENT,)),
    Act.GOAL: _ASKING - {Act.GOAL, Act.NAME, Act.EMAIL, Act.ZIP, Act.PHONE},
}
"""What an act gives way to: one that is also in the message is what the customer answers."""

_MOST: Final = 2_000
_SHORT: Final = 5
_DASH: Final = re.compile(r"\s+-+\s+|[\u2013\u2014]")
_TITLE: Final = re.compile(r"\b(ms|mr|mrs|dr|no|nr|[a-z])\.(?=\s)")
_SENTENCE: Final = re.compile(r"[^.!?;:\n]*(?:\.(?=\w)[^.!?;:\n]*)*[.!?;:\n]*")
_TAG: Final = re.compile(r"\b(?:all right|alright|ok|okay|right|agreed|deal|yes)\s*\?")
"""The end of a statement that asks for a yes."""
_CLAUSE: Final = re.compile(
    r",|\band (?=(?:which|what|why|how|where|whether|could|would|can|please|is|are)\b)"
)
_WORD: Final = re.compile(r"[a-z0-9]+|#")
_FILLERS: Final = frozenset(
    ("also", "just", "really", "kindly", "quickly", "perhaps", "maybe", "possibly", "actually",
     "then", "so", "well", "again", "briefly", "simply", "exactly", "quick", "very")
)  # fmt: skip
_SHORTENED: Final = (
    (re.compile(r"\bcan't\b|\bcannot\b"), "can not"),
    (re.compile(r"\bwon't\b"), "will not"),
    (re.compile(r"n't\b"), " not"),
    (re.compile(r"\blet's\b"), "let us"),
    (re.compile(r"\b(what|where|who|how|that|it|there|here|which|everything)'s\b"), r"\1 is"),
    (re.compile(r"\b(what|where|who|how|that|it|there|you|we|they|i)'d\b"), r"\1 would"),
    (re.compile(r"'ll\b"), " will"),
    (re.compile(r"'ve\b"), " have"),
    (re.compile(r"'re\b"), " are"),
    (re.compile(r"\bi'm\b"), "i am"),
    (re.compile(r"\bwhats\b"), "what is"),
    (re.compile(r"'s\b"), ""),
)


def hear(message: str) -> tuple[Act, ...]:
    """Return what a message of the agent asks and says, in order; `()` if nothing is understood.

    Only the first 2,000 characters are read. A message without any word about the shop is small
    talk.
    """
    text = _normal(message[:_MOST])
    acts: list[Act] = []
    for sentence in _SENTENCE.findall(text):
        if sentence.strip():
            acts += _heard_in(sentence)
    if not acts:
        acts = _frames_of(text, asks="?" in text)
    if not acts:
        acts = _last_resort(text)
    kept = [act for act in dict.fromkeys(acts) if not _YIELDS.get(act, frozenset()) & set(acts)]
    return tuple(kept)


def _normal(message: str) -> str:
    text = message.lower().replace("\u2019", "'").replace("\u2018", "'").replace("e-mail", "email")
    for pattern, plain in _SHORTENED:
        text = pattern.sub(plain, text)
    return _TITLE.sub(r"\1", _DASH.sub(": ", text))


def _heard_in(sentence: str) -> list[Act]:
    """Return the acts of a sentence: of its clauses, or else of the whole."""
    is_question = "?" in sentence
    clauses = [clause for clause in _CLAUSE.split(sentence) if clause.strip()]
    acts: list[Act] = []
    asks = False
    for place, clause in enumerate(clauses):
        goes_on = asks and clause.split()[0] in ("and", "or", "plus")
        asks = goes_on or (is_question and place == len(clauses) - 1)
        asks = asks or (len(clauses) == 1 and len(_words(sentence)) <= _SHORT)
        found = _frames_of(clause, asks=asks)
        acts += found
        asks = asks or bool(_ASKING & set(found))
    if is_question and not acts and _TAG.search(sentence):
        acts.append(Act.CONSENT)
    informs = {Act.WAIT, Act.DONE, Act.CHAT, Act.REFUSE, Act.BYE}
    if is_question and not set(acts) - informs:
        acts += _frames_of(sentence, asks=True)
    return acts or _frames_of(sentence, asks=is_question)


def _frames_of(text: str, *, asks: bool) -> list[Act]:
    concepts = {hit.concept for hit in hits(_words(text))}
    asks = asks or bool(concepts & {C.ASK, C.WHAT, C.WHERE, C.WHY, C.ELSE, C.GOAL, C.CONSENT})
    asks = asks or C.WANT_ME in concepts
    return [
        frame.act
        for frame in FRAMES
        if (asks or not frame.asks)
        and all(group & concepts for group in frame.needs)
        and not frame.lacks & concepts
    ]


def _last_resort(text: str) -> list[Act]:
    """Read a choice that names no concept by what it is about, and idle words as small talk."""
    concepts = {hit.concept for hit in hits(_words(text))}
    if "?" in text and C.EXCHANGE in concepts and C.OR in concepts:
        return [Act.OPTION]
    if C.WHERE in concepts and C.LAND in concepts:
        return [Act.REFUND if concepts & {C.REFUND, C.METHOD} else Act.ADDRESS]
    shop = concepts - _IDLE - (set[Concept]() if "?" in text else _NAMED)
    return [] if shop else [Act.CHAT]


def _words(text: str) -> list[str]:
    """Return the words without those that change no meaning, and a mark of the end."""
    return [word for word in _WORD.findall(text) if word not in _FILLERS] + ["$"]
