"""Episodes of `dialogue-v0`: the oracle, useless policies, and what the customer answers."""

import copy
import json
from typing import Any

import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.oracles import steps_of
from fakes.playing import play_one

import envkit
from envkit.env import Policy, Step
from envkit.errors import ConfigurationError, DatasetError
from envkit.metrics import aggregate
from envkit.metrics.intervals import share_interval
from envkit.rollout import Limits, ScriptedEngine
from envkit.trajectory import call_rows, check_trajectory, step_rows, whole_row
from envkit_dialogue import USELESS, DialogueEnv
from envkit_dialogue.customer import ScriptedCustomer
from envkit_dialogue.policies import USELESS_ABOVE_1, call, proposal, write_call
from envkit_dialogue.scenario import RequestKind, Scenario, Topic
from envkit_dialogue.scenarios import draw_scenario
from envkit_dialogue.shop import make_shop

EPISODES = 12
AT_SEED = list(range(EPISODES))


def play(env: DialogueEnv, replies: list[str]) -> list[Step]:
    return [env.step(reply) for reply in replies]


def started(level: int, seed: int = 0, **changes: Any) -> tuple[DialogueEnv, Scenario]:
    """Return an environment that plays a scenario, and the scenario."""
    task = {**draw_scenario(level, f"test {seed}").to_json(), **changes}
    env = DialogueEnv(levels=[level])
    env.reset(seed=1, options={"task": task})
    return env, Scenario.from_json(task)


def of_kind(level: int, kind: RequestKind) -> tuple[DialogueEnv, Scenario]:
    """Return a running scenario whose first request is of a kind."""
    for seed in range(200):
        scenario = draw_scenario(level, f"test {seed}")
        if scenario.requests[0].kind is kind:
            return started(level, seed, order_by="number", knows_email=True)
    raise AssertionError(f"no scenario of level {level} begins with {kind}")


def identify(scenario: Scenario) -> str:
    customer = make_shop(scenario.shop).customer(scenario.customer)
    return call("find_customer", email=customer.email)


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_oracle_solves_every_task(level: int) -> None:
    env = DialogueEnv(levels=[level])
    for seed in AT_SEED:
        steps = steps_of(env, seed=seed)
        assert sum(step.reward for step in steps) == 1.0, seed
        assert len(steps) <= 30
        assert set(steps[-1].info["checks"].values()) == {True}


@pytest.mark.slow
def test_oracle_solves_2000_tasks() -> None:
    env = DialogueEnv()
    for seed in range(2000):
        assert sum(step.reward for step in steps_of(env, seed=seed)) == 1.0, seed


@pytest.mark.parametrize("level", [1, 2, 3, 4])
@pytest.mark.parametrize("name", [*USELESS, *USELESS_ABOVE_1])
def test_useless_policy_earns_nothing(name: str, level: int) -> None:
    if name in USELESS_ABOVE_1 and level == 1:
        return  # there it is the solution
    policy: Policy = {**USELESS, **USELESS_ABOVE_1}[name]()
    env = DialogueEnv(levels=[level])
    rewards = [sum(s.reward for s in steps_of(env, policy, seed=seed)) for seed in AT_SEED]
    assert rewards == [0.0] * EPISODES


@pytest.mark.slow
@pytest.mark.parametrize("name", USELESS)
def test_interval_of_a_useless_policy_is_below_5_percent(name: str) -> None:
    env, policy = DialogueEnv(), USELESS[name]()
    rewards = [sum(s.reward for s in steps_of(env, policy, seed=seed)) for seed in range(200)]
    interval = share_interval(rewards, samples=len(rewards))
    assert interval is not None
    assert interval.high < 0.05


def test_dialogue_passes_the_checker() -> None:
    report = envkit.check_env(DialogueEnv())
    assert {"determinism", "replay", "snapshot", "oracle", "independence"} <= set(report.passed)


async def test_words_of_the_customer_have_mask_0_and_no_other_ids_are_trained() -> None:
    codec, env = vision_codec(), DialogueEnv(levels=[2])
    engine = ScriptedEngine(codec, env.oracle())

    played = await play_one(env, engine, codec, seed=3, limits=Limits(max_turns=40))

    assert played.reward == 1.0
    assert check_trajectory(played) == ()
    speakers = [turn.info.get("speaker") for turn in played.turns]
    assert {"customer", "tools"} <= set(speakers)
    trained = [
        token for token, mask in zip(played.train_ids(), played.loss_mask(), strict=True) if mask
    ]
    assert len(trained) == sum(turn.response_tokens for turn in played.turns)
    learned = codec.decode_all(trained)
    observed = [str(m["content"]) for m in played.messages if m["role"] == "user"]
    assert len(observed) == speakers.count("customer") + 1
    assert not any(text in learned for text in observed)
    whole = (whole_row(played, filler_id=0),)
    for rows in (whole, step_rows(played, filler_id=0), call_rows(played, filler_id=0)):
        kept = "".join(
            codec.decode_all([t for t, m in zip(row.response_ids, row.loss_mask, strict=True) if m])
            for row in rows
        )
        assert "find_customer" in kept
        assert not any(text in kept for text in observed)


async def test_turns_of_the_customer_and_of_the_tools_are_counted_apart() -> None:
    codec, env = text_codec(), DialogueEnv(levels=[1])
    engine = ScriptedEngine(codec, env.oracle())
    played = await play_one(env, engine, codec, seed=4, limits=Limits(max_turns=40))
    last = played.turns[-1].info
    assert last["customer_turns"] + last["tool_turns"] == len(played.turns) + 1
    assert last["tool_turns"] == sum(turn.tool_call is not None for turn in played.turns)
    counted = aggregate([played])
    assert counted["speaker/customer"] == last["customer_turns"] - 1
    assert counted["speaker/tools"] == last["tool_turns"]


def test_customer_tells_only_what_is_asked() -> None:
    env, scenario = of_kind(1, RequestKind.RETURN)
    shop, request = make_shop(scenario.shop), scenario.requests[0]
    customer, item = shop.customer(scenario.customer), shop.item(request.item)
    facts = {
        "What is your email address?": customer.email,
        "What is your name?": customer.name,
        "And your postcode, please?": customer.address.postcode,
        "What is the order number?": request.order,
        "Which item would you like to return?": item.product,
    }
    for question, fact in facts.items():
        said = env.step(question).observation["text"]
        assert fact in said
        assert [other for other in facts.values() if other in said] == [fact]


def test_message_that_is_not_understood_gets_a_question_back() -> None:
    env, _ = started(1)
    said = env.step("Item the shipping of, I the order.").observation["text"]
    assert said.endswith("?")
    assert env.step("").info["parse_error"] == "the reply is empty"


@pytest.mark.parametrize("kind", ["cancel", "address", "exchange", "return"])
def test_change_without_a_yes_earns_nothing_though_the_database_is_right(kind: str) -> None:
    env, scenario = of_kind(1, RequestKind(kind))
    request = scenario.requests[0]
    steps = play(env, [identify(scenario), write_call(request), call("end_chat")])
    assert steps[-1].terminated
    assert steps[-1].reward == 0.0
    assert steps[-1].info["checks"] == {
        "database": True,
        "consent": False,
        "told": True,
        "declined": True,
    }


def test_vague_or_wrong_proposals_get_no_yes() -> None:
    env, scenario = of_kind(1, RequestKind.EXCHANGE)
    shop, request = make_shop(scenario.shop), scenario.requests[0]
    old, new = shop.item(request.item), shop.item(request.new_item)
    third = next(
        i
        for i in shop.items
        if i.product == old.product and i.option not in (old.option, new.option)
    )
    said = [
        env.step(text).observation["text"]
        for text in (
            "Shall I go ahead?",
            "Shall I exchange it for you?",
            f"Shall I cancel order {request.order}?",
            f"Shall I exchange the {old.product} of order W00000?",
            f"Shall I exchange the {old.product} for the {third.option} one?",
        )
    ]
    assert not any("Yes" in text for text in said)
    assert "what exactly" in said[0]
    assert "which order or item" in said[1].lower()
    assert "not what I asked for" in said[2]
    assert request.order in said[3]
    assert new.option in said[4]
    yes = env.step(f"{proposal(shop, request)} Do you agree?").observation["text"]
    assert yes == "Yes, please go ahead."


def test_customer_changes_their_mind_at_the_first_proposal() -> None:
    env, scenario = of_kind(3, RequestKind.ADDRESS)
    shop, request = make_shop(scenario.shop), scenario.requests[0]
    assert request.earlier is not None
    env.step(identify(scenario))
    asked = env.step("What is the new address?").observation["text"]
    assert str(request.earlier.address) in asked
    changed = env.step(f"{proposal(shop, request.earlier)} Is that okay?").observation["text"]
    assert str(request.address) in changed
    wrong = env.step(f"{proposal(shop, request.earlier)} Is that okay?").observation["text"]
    assert wrong.startswith("No")
    right = env.step(f"{proposal(shop, request)} Is that okay?").observation["text"]
    assert right.startswith("Yes")


def test_customer_insists_once_on_what_is_forbidden_and_never_gives_up_what_is_allowed() -> None:
    env, scenario = started(4, seed=1)
    index = next(n for n, request in enumerate(scenario.requests) if not request.is_allowed)
    assert isinstance(env.customer, ScriptedCustomer)
    env.customer.current = index
    assert "exception" in env.step("I am afraid that is not possible.").observation["text"]
    assert "pity" in env.step("No, the rules do not allow it.").observation["text"]
    env, scenario = started(1)
    for _ in range(5):
        said = env.step("Sorry, I can not do that.").observation["text"]
        assert "check again" in said


def test_answer_to_a_question_must_be_said_and_declared_alone() -> None:
    def ended(say: str, declare: str) -> bool:
        env, scenario = asking()
        play(env, [say.format(told=scenario.told)])
        step = env.step(call("end_chat", told=declare.format(told=scenario.told)))
        return step.info["checks"]["told"]

    assert ended("That was {told}.", "{told}")
    assert not ended("I know it.", "{told}")
    assert not ended("That was {told}.", "")
    assert not ended("That was {told}.", "{told} or $3.00")


def asking() -> tuple[DialogueEnv, Scenario]:
    for seed in range(200):
        scenario = draw_scenario(2, f"test {seed}")
        if any(request.topic in (Topic.TOTAL, Topic.PRICE) for request in scenario.requests):
            return started(2, seed)
    raise AssertionError("no scenario asks for an amount")


def test_photos_have_a_text_twin_only_while_they_are_shown() -> None:
    env, scenario = of_kind(2, RequestKind.CANCEL)
    task = {**scenario.to_json(), "order_by": "receipt"}
    env.reset(seed=1, options={"task": task})
    step = env.step("What is the order number?")
    assert len(step.observation["images"]) == 1
    assert scenario.requests[0].order not in step.observation["text"]
    assert scenario.requests[0].order in env.text_twin()
    assert env.step("And your email address?").observation["images"] == ()
    assert env.text_twin() == ""


def test_reply_with_a_call_is_not_read_by_the_customer() -> None:
    env, scenario = started(1)
    step = env.step(f"What is your name? {identify(scenario)}")
    assert step.info["speaker"] == "tools"
    assert step.observation["role"] == "tool"
    assert step.info["customer_turns"] == 1
    broken = env.step('<tool_call>\n{"name": "get_order", "arguments": {"order_id":</tool_call>')
    assert broken.info["parse_error"]
    assert broken.reward == 0.0


def test_copies_are_independent_and_snapshots_go_on_alike() -> None:
    env, scenario = of_kind(1, RequestKind.CANCEL)
    env.step(identify(scenario))
    twin, saved = copy.deepcopy(env), env.snapshot()
    json.loads(saved)
    request = scenario.requests[0]
    replies = [f"{proposal(make_shop(scenario.shop), request)} Is that okay?", write_call(request)]
    first = play(env, [*replies, call("end_chat")])
    second = play(twin, [*replies, call("end_chat")])
    assert first[-1].reward == second[-1].reward == 1.0
    env.restore(saved)
    assert play(env, [*replies, call("end_chat")])[-1].reward == 1.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"levels": []}, "at least one"),
        ({"levels": [5]}, "level"),
        ({"split": "dev"}, "split"),
        ({"format": "yaml"}, "tool call format"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        DialogueEnv(**arguments)


def test_task_that_is_no_scenario_is_refused_at_reset() -> None:
    with pytest.raises(DatasetError, match="must be a scenario"):
        DialogueEnv().reset(options={"task": {"question": "?"}})
