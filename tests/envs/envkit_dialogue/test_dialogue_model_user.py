"""A model that plays the customer of `dialogue-v0`: same facts, checked words."""

import copy
import json
from contextlib import closing
from typing import Any

import pytest
from fakes.chat_server import MODEL, ChatServer
from fakes.judge_server import KEY, Trouble

from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit_dialogue import DialogueEnv
from envkit_dialogue.policies import call, proposal, write_call
from envkit_dialogue.scenario import OrderBy, RequestKind, Scenario
from envkit_dialogue.scenarios import draw_scenario
from envkit_dialogue.shop import make_shop


def says(text: str, *, agrees: bool = False, photo: str = "none") -> str:
    return json.dumps({"say": text, "agrees": agrees, "photo": photo})


def scenario_of(kind: RequestKind) -> Scenario:
    for seed in range(200):
        scenario = draw_scenario(1, f"model {seed}")
        if scenario.requests[0].kind is kind:
            return scenario
    raise AssertionError(f"no scenario begins with {kind}")


def env_of(server: ChatServer) -> DialogueEnv:
    return DialogueEnv(user={"base_url": server.url, "model": MODEL, "api_key": KEY})


def talk(scenario: Scenario, replies: list[str], *script: Any) -> DialogueEnv:
    """Play replies of the agent against a scripted endpoint."""
    with ChatServer(*script) as server, closing(env_of(server)) as env:
        env.reset(seed=1, options={"task": scenario.to_json()})
        for reply in replies:
            env.step(reply)
        return env


def test_episode_with_a_model_as_customer_is_graded_alike() -> None:
    scenario = scenario_of(RequestKind.CANCEL)
    shop, request = make_shop(scenario.shop), scenario.requests[0]
    email = shop.customer(scenario.customer).email
    script = (
        says("Hi, could you cancel something for me?"),
        f"Sure! {says(f'It is {email}.')}",
        says(f"Number {request.order}."),
        says("Yes, do it.", agrees=True),
    )
    with ChatServer(*script) as server, closing(env_of(server)) as env:
        observation, _ = env.reset(seed=1, options={"task": scenario.to_json()})
        assert observation["text"] == "Hi, could you cancel something for me?"
        assert env.step("What is your email address?").observation["text"] == f"It is {email}."
        env.step(call("find_customer", email=email))
        env.step("What is the order number?")
        env.restore(env.snapshot())
        assert copy.deepcopy(env).snapshot() == env.snapshot()
        env.step(f"{proposal(shop, request)} Is that okay?")
        env.step(write_call(request))
        step = env.step(call("end_chat"))
        assert (step.reward, step.terminated) == (1.0, True)
        system = server.requests[-1]["messages"][0]["content"]
        roles = [message["role"] for message in server.requests[-1]["messages"]]
    assert email in system
    assert request.order in system
    assert roles == ["system", "user", *["assistant", "user"] * 3]


@pytest.mark.parametrize(
    ("reply", "said", "broken"),
    [
        ("What is your name?", "I am {name}, order {order}.", "had not asked"),
        ("What is your name?", "I am {name}, {postcode}.", "had not asked"),
        ("What is the order number?", "It is W00001.", "invented 'w00001'"),
        ("What is your email address?", "me@other.example", "invented 'me@other.example'"),
        ("When did you buy it?", "On June 3, for $12.00.", "invented"),
    ],
)
def test_leaked_or_invented_fact_is_a_fault(reply: str, said: str, broken: str) -> None:
    scenario = scenario_of(RequestKind.CANCEL)
    customer = make_shop(scenario.shop).customer(scenario.customer)
    text = said.format(
        name=customer.name,
        postcode=customer.address.postcode,
        order=scenario.requests[0].order,
    )
    with pytest.raises(EnvFault, match=broken) as caught:
        talk(scenario, [reply], says("Hello."), says(text))
    assert caught.value.kind is FaultKind.PERMANENT


def test_fact_in_the_first_message_is_a_fault() -> None:
    scenario = scenario_of(RequestKind.CANCEL)
    with pytest.raises(EnvFault, match="had not asked"):
        talk(scenario, [], says(f"Cancel {scenario.requests[0].order}!"))


def test_yes_to_a_wrong_proposal_is_a_fault() -> None:
    scenario = scenario_of(RequestKind.CANCEL)
    question = "I would cancel order W00001. Is that okay?"
    with pytest.raises(EnvFault, match="agreed to what it does not want"):
        talk(scenario, [question], says("Hello."), says("Yes.", agrees=True))


def test_facts_that_the_agent_said_may_be_repeated() -> None:
    scenario = scenario_of(RequestKind.CANCEL)
    order = scenario.requests[0].order
    talk(scenario, [f"Is it about order {order}?"], says("Hello."), says(f"Yes, {order}."))


@pytest.mark.parametrize("raw", ["Hello there.", '{"say": 3}', '{"say": "', "[1]", '{"say": " "}'])
def test_reply_that_is_no_message_is_a_fault_that_may_be_retried(raw: str) -> None:
    with pytest.raises(EnvFault, match="must answer with JSON") as caught:
        talk(scenario_of(RequestKind.CANCEL), [], raw)
    assert caught.value.kind is FaultKind.TRANSIENT


def test_endpoint_that_fails_is_a_fault() -> None:
    with pytest.raises(EnvFault, match="plays the customer failed") as caught:
        talk(scenario_of(RequestKind.CANCEL), [], Trouble.BAD_GATEWAY)
    assert caught.value.retryable


def test_model_sends_the_photo_of_the_receipt() -> None:
    scenario = Scenario.from_json(
        {**scenario_of(RequestKind.CANCEL).to_json(), "order_by": OrderBy.RECEIPT.value}
    )
    script = (says("Hi."), says("Here it is.", photo="receipt"))
    with ChatServer(*script) as server, closing(env_of(server)) as env:
        env.reset(seed=1, options={"task": scenario.to_json()})
        step = env.step("What is the order number?")
        assert len(step.observation["images"]) == 1
        assert scenario.requests[0].order in env.text_twin()


@pytest.mark.parametrize("user", [{}, {"model": "m"}, {"base_url": "u", "model": "m", "key": "k"}])
def test_settings_of_the_model_are_checked(user: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="user must have"):
        DialogueEnv(user=user)


def test_environment_with_a_model_promises_neither_determinism_nor_an_oracle() -> None:
    env = DialogueEnv(user={"base_url": "http://127.0.0.1:9/v1", "model": "m"})
    assert not env.capabilities.deterministic
    assert not env.capabilities.replay_safe
    with pytest.raises(ConfigurationError, match="scripted customer"):
        env.oracle()
