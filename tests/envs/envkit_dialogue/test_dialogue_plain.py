"""An agent that words things as chat models do solves `dialogue-v0`, too."""

from typing import Any

import pytest

from envkit.env import Step
from envkit_dialogue import DialogueEnv
from envkit_dialogue.customer import ScriptedCustomer
from envkit_dialogue.policies import call, write_call
from envkit_dialogue.scenario import Request, RequestKind
from envkit_dialogue.shop import Shop, make_shop

MORE = "Is there anything else I can help you with today?"
REFUSALS = {
    "too late": "Unfortunately, the 30-day window has passed, so I'm unable to do that.",
    "final sale": "I apologize, but final-sale items cannot be returned or exchanged.",
    "already shipped": "I'm afraid that order has already been shipped, so I can't change it.",
}
ASKED = {
    RequestKind.CANCEL: "Could you give me the order number and the reason for the cancellation?",
    RequestKind.ADDRESS: "Sure! Which order is it, and what's the new delivery address?",
    RequestKind.EXCHANGE: "Which order is this about, which item would you like to exchange, and "
    "what would you like instead?",
    RequestKind.RETURN: "Could you tell me which order and which item it is? Why would you like to "
    "return it, and would you prefer the refund to the original payment or store credit?",
}


def proposed(shop: Shop, request: Request) -> str:
    item = shop.item(request.item)
    match request.kind:
        case RequestKind.CANCEL:
            return f"To summarize: I'll cancel order {request.order}. Do you confirm?"
        case RequestKind.ADDRESS:
            where = str(request.address)
            return f"I'll have order {request.order} delivered to {where}. Is this correct?"
        case RequestKind.EXCHANGE:
            new = shop.item(request.new_item)
            return (
                f"Just to confirm: I'll swap the {item.product} ({item.option}) for the "
                f"{new.option} one. Would you like me to proceed?"
            )
        case _:
            return (
                f"Here's what I'll do: return the {item.product} from order {request.order} and "
                f"refund you as {request.refund_to}. Shall I go ahead?"
            )


class Agent:
    """Plays an episode; knows the task, and has its own words."""

    def __init__(self, env: DialogueEnv) -> None:
        assert isinstance(env.customer, ScriptedCustomer)
        self.env, self.customer = env, env.customer
        self.scenario = self.customer.scenario
        self.shop = make_shop(self.scenario.shop)
        self.pictures = 0

    def say(self, text: str) -> Step:
        step = self.env.step(text)
        self.pictures += len(step.observation["images"])
        return step

    def play(self) -> Step:
        person = self.shop.customer(self.scenario.customer)
        self.say(
            "Hello! I'd be happy to help you with that. To get started, could you please provide "
            "your email address, or your full name and postcode?"
        )
        self.say(call("find_customer", name=person.name, postcode=person.address.postcode))
        while not self.customer.is_done:
            self.handle(self.customer.request)
        told, declined = self.scenario.told, self.scenario.declined
        return self.say(call("end_chat", told=told, declined=declined))

    def handle(self, request: Request) -> None:
        if request.kind is RequestKind.QUESTION:
            self.say("Let me check that for you.")
            self.say(f"Thanks for waiting! The answer is {self.scenario.told}. {MORE}")
            return
        first = self.say(f"Thank you. {ASKED[request.kind]}")
        assert len(first.info["heard"]) >= 2
        if not request.is_allowed:
            for _ in range(2):
                self.say(REFUSALS[request.refusal])
            return
        if request.photo_code:
            self.say("I'm sorry to hear that. Could you please upload a photo of the damage?")
            assert self.pictures
        self.say(proposed(self.shop, request))
        if request != self.customer.request:
            self.say(proposed(self.shop, self.customer.request))
        self.say(write_call(self.customer.request))
        self.say(f"Your request has been processed successfully. {MORE}")


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_agent_in_other_words_solves_tasks_of_every_level(level: int) -> None:
    env = DialogueEnv(levels=[level], split="test")
    failed: list[Any] = []
    for seed in range(8):
        env.reset(seed=seed)
        last = Agent(env).play()
        if last.reward != 1.0:
            failed.append((seed, last.info["checks"]))
    assert failed == []
