"""Templates that rewrite earlier replies: the two policies, and templates without a tool role."""

from typing import ClassVar

import pytest
from fakes.faults import say_turn
from fakes.templates import encode, make_codec, render

from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.errors import ConfigurationError
from envkit.rollout import GenerateRequest, Generation, ScriptedEngine, play
from envkit.tasks import Task
from envkit.trajectory import SegmentKind, Trajectory


class Quiz(Env):
    """Three turns; answers come as user or as tool messages."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, replay_safe=True)

    def __init__(self, *, role: str = "user") -> None:
        super().__init__(max_turns=3)
        self._role = role

    def on_reset(self, task: Task) -> Turn:
        return Turn("First question.")

    def on_turn(self, response_text: str) -> Turn:
        return Turn(f"Question {self.turn + 2}.", role=self._role, reward=1.0, done=self.turn == 2)  # type: ignore[arg-type]


class Recording(ScriptedEngine):
    """Keeps every prompt that was sent."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.prompts: list[tuple[int, ...]] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        self.prompts.append(tuple(request.wire_ids))
        return await super().generate(request)


def think(context: PolicyContext) -> str:
    return f"<think>\nreason {context.turn}\n</think>\n\nAnswer {context.turn}."


async def run(history: str, policy: object = think) -> tuple[Trajectory, Recording]:
    codec = make_codec("qwen3", history=history)
    assert codec.rewrites_history
    engine = Recording(codec, policy)
    return await play(Quiz(), engine, codec, seed=1), engine


async def test_play_keep_is_one_sequence_with_the_sampled_reasoning() -> None:
    trajectory, engine = await run("keep")
    assert trajectory.fault is None
    assert len(trajectory.sequences()) == 1
    assert len(trajectory.steps(merge=True)) == 1
    for earlier, later in zip(engine.prompts, engine.prompts[1:], strict=False):
        assert later[: len(earlier)] == earlier


async def test_play_rerender_sends_rendered_history_in_separate_rows() -> None:
    trajectory, engine = await run("rerender")
    assert trajectory.fault is None
    prompts = [s for s in trajectory.segments if s.kind is SegmentKind.PROMPT]
    assert len(prompts) == 3
    rows = trajectory.steps(merge=True)
    assert [row.turns for row in rows] == [(0,), (1,), (2,)]
    assert [row.is_last for row in rows] == [False, False, True]
    assert [row.reward for row in rows] == [0.0, 0.0, 3.0]
    messages = list(trajectory.messages)
    for turn, prompt in enumerate(engine.prompts):
        text = render("qwen3", messages[: 2 * turn + 1], generation_prompt=True)
        assert list(prompt) == encode("qwen3", text)


async def test_play_rerender_refuses_to_flatten_more_than_one_sequence() -> None:
    trajectory, _ = await run("rerender")
    with pytest.raises(ConfigurationError, match="steps"):
        trajectory.train_ids()


async def test_play_rerender_is_one_sequence_where_nothing_is_rewritten() -> None:
    codec = make_codec("qwen2.5", history="rerender")
    trajectory = await play(Quiz(), ScriptedEngine(codec, say_turn), codec, seed=1)
    assert len(trajectory.sequences()) == 1


@pytest.mark.parametrize(("template", "expected"), [("gemma3", "user"), ("qwen3", "tool")])
async def test_play_gives_tool_answers_to_templates_without_that_role_as_user_messages(
    template: str, expected: str
) -> None:
    codec = make_codec(template)
    env = Quiz(role="tool")
    trajectory = await play(env, ScriptedEngine(codec, say_turn), codec, seed=1)
    assert trajectory.fault is None, trajectory.fault
    assert trajectory.reward == 3.0
    assert trajectory.messages[2]["role"] == expected
