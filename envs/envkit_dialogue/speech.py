"""How the scripted customer words things."""

import random
from typing import Final

from envkit_dialogue.scenario import OrderBy, Request, RequestKind, Scenario, Temper, Topic
from envkit_dialogue.shop import Shop

_GREETINGS: Final = {
    Temper.POLITE: "Hello, I hope you can help me.",
    Temper.BRIEF: "Hi.",
    Temper.CHATTY: "Hi there! First time that I write to you, nice to have this chat.",
    Temper.IMPATIENT: "Hello, I am in a hurry.",
}
_BEFORE: Final = {
    Temper.POLITE: ("Of course.", "Certainly.", "Sure, happy to help."),
    Temper.BRIEF: ("",),
    Temper.CHATTY: ("Ah, right.", "Let me see.", "Good that you ask."),
    Temper.IMPATIENT: ("", "Fine.", "If it has to be."),
}
_UNCLEAR: Final = (
    "Sorry, I am not sure what you mean. What do you need from me?",
    "I did not quite get that. Could you put it another way?",
    "Sorry, what exactly do you want to know?",
)
_REASONS: Final = {
    "no longer needed": "I simply do not need it any more.",
    "ordered by mistake": "I ordered it by mistake.",
    "found cheaper elsewhere": "I found it cheaper somewhere else.",
    "changed mind": "Nothing is wrong with it, I just changed my mind.",
    "does not fit": "It does not fit me.",
}
_REFUNDS: Final = {
    "original payment": "Back to the way I paid, please.",
    "store credit": "As store credit, please.",
}
_BECAUSE: Final = {
    RequestKind.ADDRESS: "I will not be at the old address when it comes.",
    RequestKind.EXCHANGE: "I would simply like a different one.",
    RequestKind.QUESTION: "I would just like to know.",
}


class Speech:
    """The sentences of one customer."""

    def __init__(self, scenario: Scenario, shop: Shop) -> None:
        self._scenario, self._shop = scenario, shop
        self._customer = shop.customer(scenario.customer)

    def greeting(self, request: Request) -> str:
        """Return the first message, which says roughly what the customer wants."""
        return f"{_GREETINGS[self._scenario.temper]} {self.goal(request)}"

    def styled(self, text: str, turn: int) -> str:
        """Return an answer in the customer's temper."""
        before = self._pick(_BEFORE[self._scenario.temper], turn)
        return f"{before} {text}".strip()

    def unclear(self, turn: int) -> str:
        """Return the question back after a message that was not understood."""
        return self._pick(_UNCLEAR, turn)

    def goal(self, request: Request) -> str:
        """Return roughly what the customer wants, without any detail."""
        product = self._product(request)
        match request.kind, request.topic:
            case RequestKind.CANCEL, _:
                return "I want to cancel an order."
            case RequestKind.ADDRESS, _:
                return "I need one of my orders to go to a different address."
            case RequestKind.EXCHANGE, _:
                return "I would like to exchange something that I ordered."
            case RequestKind.RETURN, _:
                return "I want to send back something that I bought."
            case _, Topic.ARRIVAL:
                return f"I would like to know on which day my {product} will arrive."
            case _, Topic.TOTAL:
                return f"I would like to know what the whole order with the {product} cost me."
            case _:
                return f"I would like to know what I paid for the {product} alone."

    def changed(self, request: Request, earlier: Request) -> str:
        """Return how the customer changes their mind."""
        if request.kind is not earlier.kind:
            return "Wait, I have changed my mind. Please cancel the whole order instead."
        match request.kind:
            case RequestKind.ADDRESS:
                return f"Wait, I have changed my mind. Please send it to {request.address} instead."
            case RequestKind.EXCHANGE:
                option = self._shop.item(request.new_item).option
                return f"Wait, I have changed my mind. I would rather have it in {option}."
            case _:
                way = {"store credit": "as store credit", "original payment": "back to how I paid"}
                return f"Wait, I have changed my mind. I want the refund {way[request.refund_to]}."

    def email(self) -> str:
        """Return the e-mail address, if the customer remembers it."""
        if self._scenario.knows_email:
            return f"My e-mail address is {self._customer.email}."
        return "I do not remember which e-mail address I used."

    def name(self) -> str:
        """Return the full name."""
        return f"My name is {self._customer.name}."

    def postcode(self) -> str:
        """Return the postcode of the account."""
        return f"The postcode of my account is {self._customer.address.postcode}."

    def order(self, request: Request) -> str:
        """Return how the customer refers to the order."""
        match self._scenario.order_by:
            case OrderBy.NUMBER:
                return f"The order number is {request.order}."
            case OrderBy.RECEIPT:
                return "I do not know the number, but here is a photo of the receipt."
            case OrderBy.ITEM:
                return (
                    f"I do not have the number. It is the order with the {self._product(request)}."
                )

    def item(self, request: Request) -> str:
        """Return which item it is about."""
        item = self._shop.item(request.item)
        if request.kind in (RequestKind.CANCEL, RequestKind.ADDRESS):
            return f"It is about the whole order, the one with the {item.product}."
        return f"The {item.product} in {item.option}."

    def option(self, request: Request) -> str:
        """Return what the customer wants instead."""
        if request.kind is not RequestKind.EXCHANGE:
            return f"I do not want another one. {self.goal(request)}"
        return f"I would like it in {self._shop.item(request.new_item).option} instead."

    def reason(self, request: Request) -> str:
        """Return why."""
        if request.damage:
            return f"It arrived damaged, with a {request.damage} in it."
        return _REASONS.get(request.reason) or _BECAUSE[request.kind]

    def refund(self, request: Request) -> str:
        """Return where the refund goes."""
        if request.refund_to:
            return _REFUNDS[request.refund_to]
        if request.kind is RequestKind.CANCEL:
            return "The usual way is fine."
        return "I am not asking for any money."

    def address(self, request: Request) -> str:
        """Return the new address."""
        if request.address is None:
            return "My address has not changed."
        return f"Please send it to {request.address}."

    def correction(self, request: Request, field: str) -> str:
        """Return what is wrong with a proposal: the right value of one field."""
        right = {
            "order": self.order(request),
            "item": self.item(request),
            "option": self.option(request),
            "refund": self.refund(request),
            "address": self.address(request),
        }
        return f"No, that is not right. {right[field]}"

    def _product(self, request: Request) -> str:
        return self._shop.item(request.item).product

    def _pick(self, choices: tuple[str, ...], turn: int) -> str:
        return random.Random(f"{self._scenario.id} {turn}").choice(choices)
