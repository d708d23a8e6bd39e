"""What holds for every world of the collection, at every level."""

import json
import random
from contextlib import closing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envkit
from envkit.env import PolicyContext, Step
from envkit.errors import DatasetError
from envkit_visual.catalogue import WORLDS
from envkit_visual.env import MOST_MOVES, VisualEnv
from envkit_visual.world import LEVELS

NAMES = sorted(WORLDS)
MULTI = [name for name in NAMES if WORLDS[name].is_multi_turn]


def env_of(name: str, **arguments: Any) -> VisualEnv:
    return VisualEnv(name=name, **arguments)


def task(name: str, index: int, level: int = 1) -> dict[str, Any]:
    return {"seed": index * 7919 + 11, "level": level}


@pytest.mark.parametrize("reply", ["up,,down", "up,", ",up", "up, ,down", ","])
@pytest.mark.parametrize("name", ["lake", "sokoban"])
def test_reply_with_an_empty_part_is_refused_before_any_move(name: str, reply: str) -> None:
    env = env_of(name)
    env.reset(options={"task": task(name, 0)})
    before = env.get_state()
    step = env.step(f"<action>{reply}</action>")
    assert step.info["parse_error"] == "an action between commas is empty"
    assert env.get_state() == before | {"left": before["left"] - 1}
    assert not step.info["marks"]


def replies_of(env: VisualEnv) -> list[str]:
    """Play the oracle from a reset to the end; return its replies."""
    policy, said = env.oracle(), list[str]()
    while True:
        context = PolicyContext(env=env, task=env.task, turn=env.turn, messages=(), seed=0)
        said.append(policy(context))
        step = env.step(said[-1])
        if step.terminated or step.truncated:
            assert step.info["is_success"], (env.task, said, step)
            assert step.reward == 1.0
            assert step.info["progress"] == 1.0
            return said


@pytest.mark.parametrize("name", NAMES)
def test_world_is_solved_by_its_oracle_and_resumes_in_between(name: str) -> None:
    with closing(env_of(name)) as env, closing(env_of(name)) as other:
        first = env.reset(seed=0, options={"task": task(name, 3, 2)})
        assert [image.size for image in first.observation["images"]] == [(448, 448)]
        assert env.text_twin() not in first.observation["text"]
        said = replies_of(env)
        other.reset(seed=0, options={"task": task(name, 3, 2)})
        for reply in said[: len(said) // 2]:
            other.step(reply)
        saved = other.snapshot()
        env.restore(saved)
        for reply in said[len(said) // 2 :]:
            assert env.step(reply) == other.step(reply)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NAMES)
def test_oracle_solves_each_task_within_the_moves(name: str, level: int) -> None:
    with closing(env_of(name, shows_picture=False)) as env:
        for index in range(6):
            env.reset(seed=0, options={"task": task(name, index, level)})
            assert len(replies_of(env)) <= MOST_MOVES


@pytest.mark.parametrize("level", [0, 5, 2.0, True, "2", None, [1]])
def test_level_of_a_task_is_an_integer_from_1_to_4(level: Any) -> None:
    with closing(env_of("maze")) as env, pytest.raises(DatasetError, match="'level'"):
        env.reset(options={"task": {"seed": 1, "level": level}})


@pytest.mark.parametrize("name", NAMES)
def test_levels_get_harder_by_one_knob(name: str) -> None:
    world = WORLDS[name]
    assert len(set(world.levels)) == len(LEVELS)
    assert list(world.levels) in (sorted(world.levels), sorted(world.levels, reverse=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_world_repeats_byte_for_byte_and_after_a_restore(name: str) -> None:
    def played(env: VisualEnv, replies: list[str]) -> list[Step]:
        return [env.step(reply) for reply in replies]

    with closing(env_of(name)) as env, closing(env_of(name)) as other:
        first = env.reset(seed=3, options={"task": task(name, 1, 2)})
        assert first == other.reset(seed=3, options={"task": task(name, 1, 2)})
        saved = env.snapshot()
        assert json.loads(saved)["state"]
        replies = ["<action>nonsense</action>", "no action"][: 2 * env.world.is_multi_turn]
        replies += replies_of(env_at(other))
        env.restore(saved)
        other.reset(seed=3, options={"task": task(name, 1, 2)})
        assert played(env, replies) == played(other, replies)


def env_at(env: VisualEnv) -> VisualEnv:
    """Use up what the two unreadable replies of a test use."""
    for _ in range(2 * env.world.is_multi_turn):
        env.step("no action")
    return env


@pytest.mark.slow
@pytest.mark.parametrize("pixels", [336, 448, 672])
@pytest.mark.parametrize("name", NAMES)
def test_picture_has_the_size_that_was_asked_for(name: str, pixels: int) -> None:
    with closing(env_of(name, pixels=pixels)) as env:
        for level in LEVELS:
            shown = env.reset(options={"task": task(name, 2, level)}).observation["images"]
            assert [image.size for image in shown] == [(pixels, pixels)]


@pytest.mark.slow
@pytest.mark.parametrize("name", MULTI)
def test_picture_changes_with_the_state(name: str) -> None:
    with closing(env_of(name)) as env:
        before = env.reset(options={"task": task(name, 5, 1)}).observation["images"]
        pictures = {image.sha256 for image in before}
        done = False
        while not done:
            step = env.step(env.next_actions())
            pictures.add(step.observation["images"][0].sha256)
            done = step.terminated
        assert len(pictures) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_texts_do_not_tell_what_the_picture_shows(name: str) -> None:
    """A task is told in the same words as many others, and its twin differs from theirs."""
    with closing(env_of(name, shows_picture=False)) as env:
        twins = set[str]()
        for index in range(8):
            first = env.reset(options={"task": task(name, index)}).observation["text"]
            assert env.text_twin() not in first
            twins.add(env.text_twin())
        assert len(twins) == 8


@pytest.mark.slow
@settings(max_examples=30)
@given(text=st.text(max_size=60), level=st.sampled_from(LEVELS), data=st.data())
@pytest.mark.parametrize("name", NAMES)
def test_any_text_is_an_action_or_data(
    name: str, text: str, level: int, data: st.DataObject
) -> None:
    world: Any = WORLDS[name]()
    state = world.create(random.Random(level), world.levels[level - 1])
    tried = data.draw(st.sampled_from([text, *world.choices(state), *world.plan(state)]))
    tried = " ".join(tried.split()) or "x"
    outcome = world.act(state, tried)
    after = outcome.state
    if outcome.error is not None and world.is_multi_turn:
        assert after == state
    if outcome.mark is not None:
        assert envkit.marks.words(outcome.mark)
    assert 0.0 <= world.progress(after) <= 1.0
    saved = json.loads(json.dumps(msgspec.to_builtins(after)))
    assert msgspec.convert(saved, world.state_type()) == after
    if not world.is_over(after):
        assert world.plan(after)
    else:
        assert world.plan(after) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_guesses_rarely_solve_a_task(name: str) -> None:
    """Every certificate is made over many more episodes; this sees gross leaks."""
    world: Any = WORLDS[name]()
    solved, rng = 0, random.Random(0)
    with closing(env_of(name, shows_picture=False)) as env:
        for index in range(24):
            env.reset(options={"task": task(name, index)})
            choices = world.choices(world.create(random.Random(index), world.levels[0]))
            while True:
                reply = ", ".join(rng.choices(choices, k=world.moves_per_reply))
                step = env.step(f"<action>{reply}</action>")
                solved += bool(step.info["is_success"])
                if step.terminated:
                    break
    assert solved <= 24 * (world.chance + 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_environment_passes_the_checker(name: str) -> None:
    with closing(envkit.make(f"visual/{name}-v0")) as env:
        assert "gymnasium" in envkit.check_env(env).passed
