"""Scripted policies: the oracle, and policies that must earn nothing.

They know the task, as oracles do. What they say to the customer is plain language, which the
customer understands as anybody's.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from envkit.env import Policy, PolicyContext
from envkit_dialogue.customer import ScriptedCustomer
from envkit_dialogue.desk import Desk
from envkit_dialogue.scenario import NOTHING, OrderBy, Request, RequestKind, Scenario, Topic
from envkit_dialogue.shop import Shop, make_shop, money

_ASK_MORE: Final = "That is done. Is there anything else I can do for you?"
_SAY_NO: Final = {
    "too late": "I am sorry, the 30 days for returns and exchanges are over, so I can not do that.",
    "final sale": "I am sorry, this is a final sale item. The rules do not allow it.",
    "already shipped": "I am sorry, this order has already shipped, so I can not change it.",
}
_TO: Final = {
    RequestKind.CANCEL: "cancel",
    RequestKind.ADDRESS: "redirect",
    RequestKind.EXCHANGE: "exchange something of",
    RequestKind.RETURN: "return something of",
}
_QUESTIONS: Final = (
    "Could you tell me your email address?",
    "What is your full name?",
    "What is your postcode?",
    "Which order is it about? What is the order number?",
    "Which item is it about?",
    "Which option would you like instead?",
    "What is the reason?",
    "How would you like to get your refund?",
    "What is the new address?",
    "Could you send me a photo?",
    "Is there anything else I can help you with?",
)


class _Agent:
    """One episode of the oracle: what it has asked so far."""

    def __init__(self, context: PolicyContext) -> None:
        env: Any = context.env.unwrapped
        self.customer: ScriptedCustomer = env.customer
        self.desk: Desk = env.desk
        self.scenario: Scenario = self.customer.scenario
        self.shop: Shop = make_shop(self.scenario.shop)
        self.said: list[str] = env.replies

    @property
    def request(self) -> Request:
        """The current request, as the customer wants it now."""
        return self.customer.request

    def unsaid(self, text: str) -> bool:
        """Return whether the oracle has not said this yet."""
        return not any(text in said for said in self.said)


def call(tool: str, /, **arguments: str) -> str:
    """Return a tool call as a reply."""
    body = json.dumps({"name": tool, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def oracle() -> Policy:
    """Return a policy that identifies, asks, proposes, changes and ends, in this order."""

    def reply(context: PolicyContext) -> str:
        agent = _Agent(context)
        if agent.desk.customer is None:
            return _identify(agent)
        if agent.customer.is_done:
            return _end(agent)
        request = agent.request
        if request.kind is RequestKind.QUESTION:
            return _answer(agent, request)
        if not request.is_allowed:
            return _decline(agent, request)
        return _question(agent, request) or _write(agent, request)

    return reply


def _identify(agent: _Agent) -> str:
    email, name = _QUESTIONS[0], "What is your full name, and what is your postcode?"
    customer = agent.shop.customer(agent.scenario.customer)
    if agent.unsaid(email):
        return email
    if agent.scenario.knows_email:
        return call("find_customer", email=customer.email)
    if agent.unsaid(name):
        return name
    return call("find_customer", name=customer.name, postcode=customer.address.postcode)


def _answer(agent: _Agent, request: Request) -> str:
    look = call("get_order", order_id=request.order)
    if agent.unsaid(look):
        return look
    told = agent.scenario.told
    if request.topic is Topic.ARRIVAL:
        return f"It will arrive on {told}."
    return f"That was {told}."


def _decline(agent: _Agent, request: Request) -> str:
    question = f"Before I look at it: {_QUESTIONS[3]}"
    look = call("get_order", order_id=request.order)
    for step in (question, look):
        if agent.unsaid(step):
            return step
    return _SAY_NO[request.refusal]


def _question(agent: _Agent, request: Request) -> str:
    """Return the next thing to ask about a request; empty once everything is known."""
    needed = [f"What is the number of the order that you want to {_TO[request.kind]}?"]
    if agent.scenario.order_by is OrderBy.ITEM:
        needed.append(call("list_orders"))
    if request.kind in (RequestKind.EXCHANGE, RequestKind.RETURN):
        needed.append(f"Which item of order {request.order} is it about?")
    if request.kind is RequestKind.EXCHANGE:
        needed.append(f"Which option of the {_product(agent, request)} would you like instead?")
        needed.append(call("find_items", product=_product(agent, request)))
    if request.kind in (RequestKind.CANCEL, RequestKind.RETURN):
        needed.append("What is the reason, please?")
    if request.photo_code:
        needed.append("Could you send me a photo of the damage, with the label?")
    if request.kind is RequestKind.RETURN:
        needed.append("Would you like the refund on the original payment, or as store credit?")
    if request.kind is RequestKind.ADDRESS:
        needed.append("Which address should it go to?")
    return next((step for step in needed if agent.unsaid(step)), "")


def _write(agent: _Agent, request: Request) -> str:
    if request.write not in agent.customer.consents:
        return f"{proposal(agent.shop, request)} Is that all right with you?"
    change = write_call(request)
    return change if agent.unsaid(change) else _ASK_MORE


def proposal(shop: Shop, request: Request) -> str:
    """Return what will be changed, as a statement."""
    item = shop.item(request.item)
    match request.kind:
        case RequestKind.CANCEL:
            return f"I would cancel order {request.order}."
        case RequestKind.ADDRESS:
            return f"I would change the address of order {request.order} to {request.address}."
        case RequestKind.EXCHANGE:
            new = shop.item(request.new_item)
            return (
                f"I would exchange the {item.product} in {item.option} of order {request.order} "
                f"for the one in {new.option}."
            )
        case _:
            return (
                f"I would book the return of the {item.product} of order {request.order}, "
                f"with {money(item.price)} back as {request.refund_to}."
            )


def write_call(request: Request) -> str:
    """Return the call that carries out a request."""
    match request.kind:
        case RequestKind.CANCEL:
            return call("cancel_order", order_id=request.order, reason=request.reason)
        case RequestKind.ADDRESS if request.address is not None:
            to = request.address
            return call(
                "change_address",
                order_id=request.order,
                street=to.street,
                city=to.city,
                postcode=to.postcode,
            )
        case RequestKind.EXCHANGE:
            return call(
                "exchange_item",
                order_id=request.order,
                item_id=request.item,
                new_item_id=request.new_item,
            )
        case _:
            return call(
                "return_item",
                order_id=request.order,
                item_id=request.item,
                reason=request.reason,
                refund_to=request.refund_to,
                photo_code=request.photo_code,
            )


def _end(agent: _Agent) -> str:
    return call("end_chat", told=agent.scenario.told, declined=agent.scenario.declined)


def _product(agent: _Agent, request: Request) -> str:
    return agent.shop.item(request.item).product


def never_asks_consent() -> Policy:
    """Return the oracle without the question for consent: it changes what it was asked to."""

    def reply(context: PolicyContext) -> str:
        agent = _Agent(context)
        if agent.desk.customer is None:
            return _identify(agent)
        changes = [write_call(r) for r in agent.scenario.requests if r.is_allowed and r.write]
        return next((change for change in changes if agent.unsaid(change)), "") or _tell(agent)

    return reply


def _tell(agent: _Agent) -> str:
    """Say the value that the customer asks for, if there is one, then end."""
    told = f"The value is {agent.scenario.told}."
    return told if agent.scenario.told and agent.unsaid(told) else _end(agent)


def first_said() -> Policy:
    """Return a policy that does the first request as it was first said, at once, and ends."""
    return _only_first(asks=False)


def first_only() -> Policy:
    """Return a policy that does the first request as it was first said, after a yes, and ends."""
    return _only_first(asks=True)


def _only_first(*, asks: bool) -> Policy:
    def reply(context: PolicyContext) -> str:
        agent = _Agent(context)
        if agent.desk.customer is None:
            return _identify(agent)
        first = agent.scenario.requests[0]
        first = first.earlier or first
        steps = [write_call(first)]
        if asks:
            steps.insert(0, f"{proposal(agent.shop, first)} Is that all right with you?")
        return next((step for step in steps if agent.unsaid(step)), "") or call("end_chat")

    return reply


def always_refuses() -> Policy:
    """Return a policy that says no to everything, and declares the likeliest rule."""

    def reply(context: PolicyContext) -> str:
        agent = _Agent(context)
        if agent.desk.customer is None:
            return _identify(agent)
        if agent.customer.is_done or context.turn > 16:
            declined = agent.scenario.declined
            return call("end_chat", declined="too late" if declined == NOTHING else declined)
        return _SAY_NO["too late"]

    return reply


def asks_everything() -> Policy:
    """Return a policy that asks every question, then ends."""

    def reply(context: PolicyContext) -> str:
        if context.turn < len(_QUESTIONS):
            return _QUESTIONS[context.turn]
        return _end(_Agent(context))

    return reply


def recites_everything() -> Policy:
    """Return the oracle that declares and says every amount and date of the customer's orders."""
    solve = oracle()

    def reply(context: PolicyContext) -> str:
        said = solve(context)
        agent = _Agent(context)
        if '"end_chat"' not in said:
            return said
        values: list[str] = []
        for order in agent.shop.orders_of(agent.scenario.customer):
            values += [order.due_on.isoformat(), money(agent.shop.total(order))]
            values += [money(agent.shop.item(item).price) for item in order.items]
        everything = f"For your information: {', '.join(values)}."
        if agent.unsaid(everything):
            return everything
        return call("end_chat", told=" ".join(values)[:76], declined=agent.scenario.declined)

    return reply


def does_nothing() -> Policy:
    """Return a policy that ends at once."""
    return lambda _: call("end_chat")


POLICIES: Final[Mapping[str, Callable[[], Policy]]] = {"oracle": oracle}
USELESS: Final[Mapping[str, Callable[[], Policy]]] = {
    "asks everything": asks_everything,
    "always refuses": always_refuses,
    "does what is said first": first_said,
    "never asks consent": never_asks_consent,
    "recites everything": recites_everything,
    "does nothing": does_nothing,
}
"""Policies that must earn nothing at any level, though they know the task."""
USELESS_ABOVE_1: Final[Mapping[str, Callable[[], Policy]]] = {"does only the first": first_only}
"""The same from level 2 on: level 1 has only one request."""
