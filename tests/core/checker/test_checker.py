"""check_env: it passes what is right, and names everything that is wrong."""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
import pytest
from fakes.envs import AdderEnv, AsyncEchoEnv, DotsEnv, EchoEnv, register_toys

import envkit
from envkit.checker import check_env
from envkit.env import Capabilities, Env, Observation, Policy, Reset, Step, Turn
from envkit.errors import ContractError, EnvFault
from envkit.images import Image
from envkit.messages import Message, images_of, message, text_of
from envkit.tasks import Task
from envkit.tools import ToolSpec

ALWAYS = ("gymnasium", "order of calls", "replies")
PROMISES = ("determinism", "independence", "snapshot", "replay", "oracle")


@pytest.mark.parametrize("env_class", [EchoEnv, DotsEnv, AdderEnv, AsyncEchoEnv])
def test_check_passes_the_toys_and_says_what_it_did(env_class: type[Env]) -> None:
    env = env_class()
    report = check_env(env)

    assert {*ALWAYS, *PROMISES} <= set(report.passed)
    assert report.name == env_class.__name__
    assert report.turns > 40
    assert dict(report.skipped)["prefix"] == "no codec was given"
    env.close()


def test_check_passes_a_wrapped_environment_made_by_id() -> None:
    register_toys()
    env = gymnasium.make("envkit/toy-adder-v0", max_turns=3)

    report = envkit.check_env(env)

    assert report.name == "envkit/toy-adder-v0"
    assert "tools" in report.passed
    env.close()


def test_undeclared_promises_are_skipped_with_a_reason() -> None:
    class Modest(EchoEnv):
        capabilities: ClassVar[Capabilities] = Capabilities()

        oracle = Env.oracle

    skipped = dict(check_env(Modest()).skipped)

    assert skipped["determinism"] == "capabilities.deterministic is not declared"
    assert skipped["snapshot"] == "capabilities.snapshot is not declared"
    assert skipped["oracle"] == "it has no oracle"


class ForgetsTheEnd(EchoEnv):
    def step(self, action: str) -> Step:
        self._running = True
        return super().step(action)


class RaisesOnBadReply(EchoEnv):
    def on_turn(self, response_text: str) -> Turn:
        if response_text.startswith("<tool_call>["):
            raise KeyError("name")
        return super().on_turn(response_text)


class RaisesFault(EchoEnv):
    def on_turn(self, response_text: str) -> Turn:
        raise EnvFault("the backend is gone")


class ClockInInfo(EchoEnv):
    clock: ClassVar[Iterator[int]] = iter(range(10**9))

    def on_turn(self, response_text: str) -> Turn:
        turn = super().on_turn(response_text)
        return replace(turn, info={"time": next(self.clock)})


class SharedBetweenInstances(EchoEnv):
    seen: ClassVar[list[str]] = []

    def on_reset(self, task: Task) -> Turn:
        self.seen.clear()
        return super().on_reset(task)

    def on_turn(self, response_text: str) -> Turn:
        self.seen.append(response_text)
        return replace(super().on_turn(response_text), info={"seen": len(self.seen)})


class LosesState(DotsEnv):
    def set_state(self, state: dict[str, Any]) -> None:
        self.dots = state["dots"]


class NewImagesEachTime(DotsEnv):
    serial: ClassVar[Iterator[int]] = iter(range(10**9))

    def _draw(self) -> Image:
        picture = super()._draw().pil().copy()
        picture.putpixel((0, 0), (next(self.serial) % 256, 0, 0))
        return Image.from_pil(picture)


class InfoIsNoJson(EchoEnv):
    def on_turn(self, response_text: str) -> Turn:
        return replace(super().on_turn(response_text), info={"words": {"a"}, "parse_error": 5})


class TupleInInfo(EchoEnv):
    def on_turn(self, response_text: str) -> Turn:
        return replace(super().on_turn(response_text), info={"size": (1, 2)})


class ImagesInSystemRole(DotsEnv):
    def format_observation(self, observation: Observation) -> Message:
        entry = super().format_observation(observation)
        return {**entry, "role": "system"}


class DropsImages(DotsEnv):
    def format_observation(self, observation: Observation) -> Message:
        return message("user", observation["text"])


class WeakOracle(EchoEnv):
    def oracle(self) -> Policy:
        return lambda context: "no idea"


class Misjudged(EchoEnv):
    def on_turn(self, response_text: str) -> Turn:
        return replace(super().on_turn(response_text), info={"is_success": False})


class Overpriced(EchoEnv):
    default_threshold = 1.5


class NumpyReward(EchoEnv):
    def step(self, action: str) -> Step:
        step = super().step(action)
        return step._replace(reward=cast(float, np.float32(step.reward)))


class WideReward(EchoEnv):
    """Rewards in NumPy's float64, which is a float, as Gymnasium's own worlds give them."""

    def step(self, action: str) -> Step:
        step = super().step(action)
        return step._replace(reward=cast(float, np.float64(step.reward)))


class Costly(EchoEnv):
    """Solved by a return below 0."""

    default_threshold = -1.0

    def on_turn(self, response_text: str) -> Turn:
        turn = super().on_turn(response_text)
        return replace(turn, reward=turn.reward - 2.0)


class NeverEnds(EchoEnv):
    def step(self, action: str) -> Step:
        self.turn = 0
        return super().step(action)


class OtherKeys(EchoEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        reset = super().reset(seed=seed, options=options)
        return reset._replace(observation=cast(Observation, {"obs_str": "x"}))


class BadTools(AdderEnv):
    tools = (
        ToolSpec(name="add", description="", parameters={"properties": {"a": {"type": "text"}}}),
        ToolSpec(name="add", description=""),
    )


class UnsteadyTasks(EchoEnv):
    def __init__(self, *, max_turns: int = 3, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.tasks = Unsteady()


class Unsteady:
    size = 4
    serial: ClassVar[Iterator[int]] = iter(range(10**9))

    def task(self, index: int) -> Task:
        return {"word": str(next(self.serial))}


class ClosesOnce(EchoEnv):
    def close(self) -> None:
        if self.turn < 0:
            raise RuntimeError("closed already")
        self.turn = -1


@pytest.mark.parametrize(
    ("env_class", "said"),
    [
        (EchoEnv, "a return above 0, because no reward threshold is declared"),
        (WideReward, "a return above 0, because no reward threshold is declared"),
        (Costly, "a return of at least the reward threshold, -1"),
    ],
)
def test_check_says_what_a_solved_task_is(env_class: type[Env], said: str) -> None:
    report = check_env(env_class(), factory=env_class)

    assert f"passed   oracle: solved means {said}" in repr(report)


@pytest.mark.parametrize(
    ("env_class", "rule", "part"),
    [
        (ForgetsTheEnd, "order of calls", "after the episode's end must raise EpisodeStateError"),
        (ForgetsTheEnd, "order of calls", "before the first reset must raise EpisodeStateError"),
        (RaisesOnBadReply, "replies", "a reply must not raise: .* raised KeyError"),
        (RaisesFault, "replies", "the backend is gone"),
        (ClockInInfo, "determinism", r"a second play on the same instance differs at turn 1.*time"),
        (ClockInInfo, "determinism", r"also breaks: gymnasium"),
        (SharedBetweenInstances, "independence", "an interleaved play differs"),
        (LosesState, "snapshot", "differs right after restore|differs from the original's"),
        (NewImagesEachTime, "determinism", "differs at the start: .*images"),
        (NewImagesEachTime, "determinism", r"also breaks: .*replay"),
        (InfoIsNoJson, "replies", "info must be JSON data"),
        (InfoIsNoJson, "replies", r"info\['parse_error'\] must be a str, got 5"),
        (TupleInInfo, "replies", "must survive JSON unchanged"),
        (ImagesInSystemRole, "replies", "images must be in a 'user' or 'tool' message"),
        (DropsImages, "replies", "must keep the observation's images"),
        (WeakOracle, "oracle", "the oracle must solve its task: seed 0 ended with reward 0"),
        (Misjudged, "oracle", r"ended with reward 1.0.*solved means info\['is_success'\]"),
        (Overpriced, "oracle", "ended with reward 1.0.*at least the reward threshold, 1.5"),
        (NumpyReward, "replies", "must be a finite float, got"),
        (NeverEnds, "order of calls", "continues after max_turns=3"),
        (NeverEnds, "replies", "the episode must end at max_turns=3"),
        (OtherKeys, "replies", "an observation must be a dict of text, images and role"),
        (BadTools, "tools", "two tools are named 'add'"),
        (BadTools, "replies", r"a valid JSON Schema.*also breaks: tools"),
        (UnsteadyTasks, "tasks", "task 0 differs when it is read twice"),
        (ClosesOnce, "order of calls", r"close\(\) must not raise"),
    ],
)
def test_check_names_what_is_wrong(env_class: type[Env], rule: str, part: str) -> None:
    with pytest.raises(ContractError) as caught:
        check_env(env_class(), factory=env_class)

    lines = [line for line in str(caught.value).splitlines() if line.startswith(f"  - {rule}: ")]
    assert any(re.search(part, line) for line in lines), str(caught.value)


def test_check_lists_every_problem_at_once() -> None:
    class Wrong(WeakOracle, TupleInInfo):
        pass

    with pytest.raises(ContractError, match=r"^Wrong breaks the contract in \d+ ways:") as caught:
        check_env(Wrong())

    assert "  - oracle: " in str(caught.value)
    assert "  - replies: " in str(caught.value)


def test_episode_too_long_to_end_skips_the_rule_with_the_reason() -> None:
    skipped = dict(check_env(EchoEnv(max_turns=500)).skipped)

    assert skipped["order of calls"] == "empty replies end no episode within 64 turns"


def test_check_refuses_another_environment() -> None:
    env = gymnasium.make("CartPole-v1")

    with pytest.raises(ContractError, match=r"needs an instance of envkit\.Env.* got CartPoleEnv"):
        check_env(env)


@pytest.mark.parametrize("given", [EchoEnv, envkit.make, "toy-echo-v0", None])
def test_check_refuses_what_is_not_an_environment(given: Any) -> None:
    with pytest.raises(ContractError, match="needs an instance of envkit"):
        check_env(given)


class TypoEnv(EchoEnv):
    def on_turn(self, response_text: str) -> Turn:
        return Turn(cast(Any, self).missing)


class StringEnv(EchoEnv):
    def on_turn(self, response_text: str) -> Turn:
        return cast(Turn, "next")


class ForgetfulEnv(EchoEnv):
    def on_reset(self, task: Task) -> Turn:
        self._misses = 0
        return Turn(f"{random.SystemRandom().random()}")


@pytest.mark.parametrize(
    ("env_class", "part"),
    [
        (TypoEnv, r"no attribute 'missing' \(on_turn, line \d+\) \[11 more like it; also breaks: "),
        (StringEnv, r"must return envkit\.Turn\(text, .*, got str"),
        (
            ForgetfulEnv,
            r"determinism: a second play .*also breaks: .*independence, replay\]",
        ),
    ],
)
def test_check_shows_a_mistake_once(env_class: type[Env], part: str) -> None:
    with pytest.raises(ContractError, match=r"breaks the contract in 1 way:") as caught:
        check_env(env_class(), factory=env_class)

    assert len(str(caught.value).splitlines()) == 2
    assert re.search(part, str(caught.value)), str(caught.value)


def test_check_distinguishes_two_mistakes() -> None:
    class Both(ForgetfulEnv):
        def get_state(self) -> dict[str, Any]:
            return {"state": cast(Any, self).absent}

    with pytest.raises(ContractError, match=r"breaks the contract in 2 ways:") as caught:
        check_env(Both(), factory=Both)

    assert "  - determinism: " in str(caught.value)
    assert "  - snapshot: AttributeError: 'Both' object has no" in str(caught.value)


def test_check_report_prints_a_line_per_rule() -> None:
    lines = str(check_env(EchoEnv())).splitlines()

    assert re.fullmatch(r"EchoEnv keeps the contract \(\d+ turns played\)", lines[0])
    assert "  passed   determinism" in lines
    assert "  skipped  tools: it has no tools" in lines
    assert len(lines) == 13


def test_second_instance_that_cannot_be_made_skips_with_the_reason() -> None:
    class Locked(EchoEnv):
        def __deepcopy__(self, memo: dict[int, object]) -> "Locked":
            raise TypeError("cannot copy a lock")

    skipped = dict(check_env(Locked()).skipped)

    assert "pass factory= or make it by id" in skipped["snapshot"]
    assert set(skipped) & {*ALWAYS, *PROMISES} == {"order of calls", *PROMISES} - {"oracle"}


@dataclass(frozen=True)
class LetterIds:
    train_ids: Sequence[int]


class LetterCodec:
    """One token a character, three for an image, and 0 between messages."""

    def __init__(self, *, drops: Callable[[list[int]], list[int]] = lambda ids: ids) -> None:
        self._drops = drops

    def encode_prompt(self, messages: Sequence[Message]) -> LetterIds:
        replies = [n for n, entry in enumerate(messages) if entry["role"] == "assistant"]
        ids = [i for n, entry in enumerate(messages) for i in self._ids(entry, n - 1 in replies)]
        return LetterIds(self._drops(ids))

    def readable(self, entry: Message) -> Message:
        return entry

    def encode_observation(self, messages: Sequence[Message], **context: Any) -> LetterIds:
        del context
        return LetterIds([i for entry in messages for i in self._ids(entry, True)])

    def _ids(self, entry: Message, after_reply: bool) -> list[int]:
        images = [-1, -1, -1] * len(images_of([entry]))
        return [0] * after_reply + images + [ord(letter) for letter in text_of(entry)]


def test_codec_that_only_grows_passes_and_one_that_rewrites_does_not() -> None:
    assert "prefix" in check_env(DotsEnv(), codec=LetterCodec()).passed

    rewriting = LetterCodec(drops=lambda ids: ids if len(ids) < 60 else ids[5:])
    with pytest.raises(ContractError, match="the previous prompt is not a prefix"):
        check_env(DotsEnv(), codec=rewriting)


def test_codec_whose_observation_differs_alone_is_named() -> None:
    class Uneven(LetterCodec):
        def encode_observation(self, messages: Sequence[Message], **context: Any) -> LetterIds:
            return LetterIds([7, *super().encode_observation(messages, **context).train_ids])

    with pytest.raises(ContractError, match="the observation alone has different tokens"):
        check_env(EchoEnv(), codec=Uneven())


def test_budgets_are_kept_or_named() -> None:
    codec = LetterCodec()
    report = check_env(
        DotsEnv(), codec=codec, max_observation_pixels=56 * 56, max_observation_tokens=40
    )

    assert "budgets" in report.passed
    with pytest.raises(ContractError, match=r"has 3136 pixels; the budget is 3135"):
        check_env(DotsEnv(), max_observation_pixels=56 * 56 - 1)
    with pytest.raises(ContractError, match=r"has \d+ tokens; the budget is 20"):
        check_env(DotsEnv(), codec=codec, max_observation_tokens=20)
    with pytest.raises(ContractError, match="needs codec="):
        check_env(DotsEnv(), max_observation_tokens=20)
