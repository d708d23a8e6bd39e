import itertools
import json
from typing import Any

import pytest
from fakes.oracles import steps_of

import envkit
import envkit_geo3k
from envkit.env import Step
from envkit.errors import ConfigurationError, DatasetError, UnknownNameError
from envkit_geo3k import Geo3kEnv

TASK: dict[str, Any] = {**envkit_geo3k.ProceduralSource().task(0), "answer": r"\frac{5}{2}"}


def _started(**options: Any) -> Geo3kEnv:
    env = Geo3kEnv(**options)
    env.reset(seed=0, options={"task": TASK})
    return env


def _call(name: str, arguments: Any) -> str:
    payload = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{payload}</tool_call>"


def _score(answer: str) -> str:
    return _call("calc_score", {"answer": answer})


def _zoom(region: list[float]) -> str:
    return _call("zoom", {"region": region})


def _seen(step: Step) -> str:
    images = [image.png_bytes().hex() for image in step.observation["images"]]
    return json.dumps([step.observation["text"], images, *step[1:]], sort_keys=True)


def test_geo3k_passes_the_checker() -> None:
    env = envkit.make("geo3k-v0")
    report = envkit.check_env(env, max_observation_pixels=384 * 384)
    rules = {"gymnasium", "snapshot", "replay", "determinism", "independence", "oracle"}
    assert rules <= set(report.passed)


def test_first_observation_shows_the_figure_and_the_question() -> None:
    env = Geo3kEnv()
    observation, info = env.reset(seed=4)
    (image,) = observation["images"]
    assert image.size == (384, 384)
    assert observation["text"] == env.task["question"]
    assert env.task["answer"] not in json.dumps(info)
    message = env.format_observation(observation)
    assert message["role"] == "user"
    assert [part["type"] for part in message["content"] if not isinstance(part, str)] == [
        "image",
        "text",
    ]


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        (r"So it is \boxed{2.5}.", 1.0),
        (r"<think>maybe \boxed{1}</think> \boxed{\dfrac{10}{4}}", 1.0),
        (r"First \boxed{1}, no: \boxed{5/2}", 1.0),
        (r"\boxed{3}", 0.0),
        (r"\boxed{9**9**9**9}", 0.0),
        (r"\boxed{dunno}", 0.0),
    ],
)
def test_boxed_answer_ends_the_episode_with_its_grade(reply: str, reward: float) -> None:
    step = _started().step(reply)
    assert (step.reward, step.terminated, step.truncated) == (reward, True, False)
    assert step.info["reward_terms"] == {"answer": reward}


@pytest.mark.parametrize(
    "reply",
    [
        _score(r"\frac{5}{2}"),
        '<tool_call>{"name": "calc_score", "arguments": {"answer": "\\frac{5}{2}"}}</tool_call>',
        '<tool_call>{"name": "calc_score", "arguments": {"answer": "\\boxed{2.5}"}}</tool_call>',
        '<tool_call>{"name": "calc_score", "arguments": {"answer": 2.5}}</tool_call>',
        "<function=calc_score><parameter=answer>5/2</parameter></function>",
    ],
)
def test_calc_score_scores_a_latex_answer_like_the_plain_one(reply: str) -> None:
    step = _started().step(reply)
    assert step.info["score"] == 1.0
    assert step.info["parse_error"] is None
    assert step.info["tool_call"]["name"] == "calc_score"
    assert (step.reward, step.terminated, step.observation["role"]) == (0.0, False, "tool")


def test_calc_score_stops_scoring_after_its_limit() -> None:
    env = _started(max_turns=6, max_scored_attempts=2)
    texts = [env.step(_score(answer)).observation["text"] for answer in ("1", "2", "5/2")]
    assert "left: 1" in texts[0]
    assert "left: 0" in texts[1]
    assert "No scored attempt" in texts[2]
    assert "correct." not in texts[2]
    step = env.step(r"\boxed{5/2}")
    assert step.reward == 1.0


def test_feedback_never_boxes_or_reveals_the_answer() -> None:
    env = _started(max_turns=5)
    for reply in (_score("7"), _score("5/2"), "hm", _zoom([0, 0, 1, 1])):
        text = env.step(reply).observation["text"]
        assert "\\boxed" not in text
        assert "frac" not in text
        assert "2.5" not in text


@pytest.mark.parametrize(
    ("last", "reward"),
    [
        (_score("5/2"), 1.0),
        (_score("3"), 0.0),
        ("no idea", 1.0),
        (_score("3") + r"\boxed{2.5}", 1.0),
    ],
)
def test_last_scored_answer_counts_when_the_turns_run_out(last: str, reward: float) -> None:
    env = _started(max_turns=2)
    env.step(_score("2.5"))
    step = env.step(last)
    assert (step.reward, step.terminated or step.truncated) == (reward, True)
    assert step.info["reward_terms"]["answer"] == reward


def test_episode_without_any_answer_is_truncated_with_reward_0() -> None:
    env = _started(max_turns=2)
    assert env.step("hm").reward == 0.0
    step = env.step("hm")
    assert (step.reward, step.terminated, step.truncated) == (0.0, False, True)
    assert step.info["grade"] == "no_answer"


BAD_REPLIES = [
    "",
    "I am done.",
    r"\boxed{}",
    r"\boxed{5",
    "<tool_call></tool_call>",
    "<tool_call>{",
    '<tool_call>{"name": "calc_score"}</tool_call>',
    '<tool_call>{"name": "calc_score", "arguments": []}</tool_call>',
    '<tool_call>{"name": "calc_score", "arguments": "5"}</tool_call>',
    '<tool_call>{"name": {}, "arguments": {"answer": "5"}}</tool_call>',
    '<tool_call>{"name": "measure", "arguments": {"answer": "5"}}</tool_call>',
    '<tool_call>{"name": "calc_score", "arguments": {"answer": null}}</tool_call>',
    '<tool_call>{"name": "calc_score", "arguments": {"answer": NaN}}</tool_call>',
    '<tool_call>{"name": "zoom", "arguments": {"region": [0, 0, 9, 9]}}</tool_call>',
    '<tool_call>{"name": "zoom", "arguments": {"region": [0.5, 0, 0.5, 1]}}</tool_call>',
    '<tool_call>{"name": "zoom", "arguments": {"region": [0, 0, 1]}}</tool_call>',
    '<tool_call>{"name": "zoom", "arguments": {"region": [0, 0, 1, 1%s]}}</tool_call>'
    % ("0" * 380),
    '<tool_call>{"name": "calc_score", "arguments": {"<|image_pad|>": "5"}}</tool_call>',
]


@pytest.mark.parametrize("reply", BAD_REPLIES)
def test_bad_reply_is_an_observation_that_says_what_was_wrong(reply: str) -> None:
    step = _started(format_penalty=0.25).step(reply)
    assert step.info["parse_error"]
    assert step.observation["text"]
    assert "<|image_pad|>" not in step.observation["text"]
    assert not step.terminated
    assert step.reward == -0.25
    json.dumps(step.info)


def test_second_call_of_a_reply_is_left_out_and_said_so() -> None:
    step = _started().step(_score("1") + _score("5/2"))
    assert step.info["score"] == 0.0
    assert step.info["dropped_calls"] == 1
    assert "first call" in step.observation["text"]


def test_zoom_returns_the_enlarged_region_in_a_user_message() -> None:
    env = _started()
    step = env.step(_zoom([0.25, 0.5, 0.75, 0.75]))
    (crop,) = step.observation["images"]
    assert crop.size == (384, 192)
    assert env.format_observation(step.observation)["role"] == "user"
    whole = env.step(_zoom([0, 0, 1, 1])).observation["images"][0]
    assert whole.array().tolist() == env._pictures[0].array().tolist()


def test_penalties_are_off_by_default_and_add_up_to_the_reward() -> None:
    assert _started().step(_score("1")).reward == 0.0
    env = _started(attempt_penalty=0.125, format_penalty=0.25, max_turns=3)
    first, second = env.step(_score("1")), env.step("hm")
    last = env.step(_score("5/2"))
    assert (first.reward, second.reward, last.reward) == (-0.125, -0.25, 1.0)
    for step in (first, second, last):
        assert sum(step.info["reward_terms"].values()) == step.reward


def test_options_shape_tools_and_prompt() -> None:
    assert [tool.name for tool in Geo3kEnv().tools] == ["calc_score", "zoom"]
    plain = Geo3kEnv(zoom=False, max_scored_attempts=0, max_turns=1)
    assert plain.tools == ()
    assert "tool" not in (plain.system_prompt or "")
    user = _started(feedback_role="user").step(_score("1"))
    assert user.observation["role"] == "user"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 7}, "level must be one of"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"max_scored_attempts": -1}, "max_scored_attempts must be at least 0"),
        ({"attempt_penalty": -1.0}, "must be at least 0"),
        ({"feedback_role": "system"}, "feedback_role must be"),
        ({"image_size": 4000}, "image_size must be"),
        ({"split": "dev"}, "split must be"),
        ({"rounding": "loose"}, "rounding must be one of"),
        ({"data": "x.jsonl", "level": 1}, "omit them with data"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Geo3kEnv(**options)
    with pytest.raises(UnknownNameError, match="geometry family"):
        Geo3kEnv(families=["cubes"])


@pytest.mark.parametrize(
    "task",
    [
        {},
        {"question": "Find x.", "answer": "1"},
        {"question": "Find x.", "answer": 1, "figure": TASK["figure"]},
        {"question": "Find x.", "answer": "1", "images": []},
        {"question": "Find x.", "answer": "1", "figure": {"size": 384}},
    ],
)
def test_task_without_its_parts_is_refused(task: dict[str, Any]) -> None:
    with pytest.raises(DatasetError):
        Geo3kEnv().reset(options={"task": task})


def test_episode_is_rebuilt_from_its_task_row_alone() -> None:
    first, second = Geo3kEnv(level=3), Geo3kEnv(level=1, image_size=512)
    start = first.reset(seed=6)
    row = json.loads(json.dumps(first.task))
    again = second.reset(seed=99, options={"task": row})
    assert again.observation == start.observation


@pytest.mark.parametrize("seed", range(4))
def test_invariant_12_snapshot_and_replay_continue_byte_for_byte(seed: int) -> None:
    replies = [_score("1"), _zoom([0, 0, 0.5, 0.5]), "hm", _score("2")]
    env = Geo3kEnv(max_turns=5, attempt_penalty=0.5)
    env.reset(seed=seed)
    saved = [env.snapshot()]
    seen: list[str] = []
    for reply in [*replies, "hm"]:
        seen.append(_seen(env.step(reply)))
        saved.append(env.snapshot())
    for turn, data in enumerate(saved[:-1]):
        other = Geo3kEnv(max_turns=5, attempt_penalty=0.5)
        other.reset(seed=1234)
        other.restore(data)
        assert other.snapshot() == data
        assert [_seen(other.step(reply)) for reply in [*replies, "hm"][turn:]] == seen[turn:]


def test_oracle_solves_every_kind_of_problem() -> None:
    for family, level in itertools.product(envkit_geo3k.FAMILIES, (1, 2, 3, 4)):
        env = Geo3kEnv(families=[family], level=level)
        steps = steps_of(env, seed=level)
        assert sum(step.reward for step in steps) == 1.0
        assert len(steps) == 2
    single = Geo3kEnv(max_turns=1)
    assert steps_of(single)[-1].reward == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(envkit_geo3k.FAMILIES))
def test_oracle_solves_200_seeds_of_every_family_and_level(family: str) -> None:
    for level in (1, 2, 3, 4):
        env = Geo3kEnv(families=[family], level=level)
        for seed in range(200):
            assert sum(step.reward for step in steps_of(env, seed=seed)) == 1.0, seed


def test_noisy_oracle_is_right_in_the_share_it_was_asked_for() -> None:
    env = Geo3kEnv(max_turns=3)
    policy = Geo3kEnv.policies["noisy-oracle"]()
    episodes = [steps_of(env, policy, seed=seed) for seed in range(120)]
    rewards = [sum(step.reward for step in episode) for episode in episodes]
    assert 0.3 < sum(rewards) / len(rewards) < 0.7
    assert len({len(episode) for episode in episodes}) == 3
    assert any(step.info["parse_error"] for episode in episodes for step in episode)
    assert any(step.observation["images"] for episode in episodes for step in episode)
    for p in (0.0, 1.0):
        always = envkit_geo3k.noisy_oracle(p)
        assert {steps_of(env, always, seed=seed)[-1].reward for seed in range(12)} == {p}


def test_noisy_oracle_refuses_an_invalid_probability() -> None:
    with pytest.raises(ConfigurationError, match=r"zoom must be 0 to 1, got 2"):
        envkit_geo3k.noisy_oracle(zoom=2)
