"""Wrappers that change how a state is shown: words, goal, feedback, history, grid and size."""

import pickle
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from fakes.codecs import vision_codec
from fakes.command import run_envkit
from fakes.envs import DotsEnv, EchoEnv
from fakes.playing import play_one
from PIL import Image as PilImage

import envkit
from envkit.env import Capabilities, Env, Turn
from envkit.errors import ConfigurationError, UnknownNameError
from envkit.images import Image
from envkit.reply import CUT, CUT_NOTICE, FinishReason, Reply
from envkit.rollout import ScriptedEngine
from envkit.tasks import Task
from envkit.trajectory import load
from envkit.wrappers import (
    BlankImage,
    Curriculum,
    GridOverlay,
    HideFeedback,
    HistoryWindow,
    ResizeImage,
    ShowGoal,
    TextTwin,
    Wrapped,
)


def dot(x: int) -> Image:
    picture = PilImage.new("RGB", (200, 100), (255, 255, 255))
    picture.paste((0, 0, 0), (x * 10, 40, x * 10 + 10, 50))
    return Image.from_pil(picture)


class WalkEnv(Env):
    """Walk right from a random place to the edge of a picture."""

    capabilities: ClassVar[Capabilities] = Capabilities(snapshot=True, replay_safe=True)
    has_text_twin = has_goal_picture = marks_feedback = True

    def __init__(self, *, goal: int = 6) -> None:
        super().__init__(max_turns=8)
        self._at, self._goal = 0, goal

    def on_reset(self, task: Task) -> Turn:
        self._at = int(self.np_random.integers(0, 3))
        return Turn("Walk.", images=(dot(self._at),))

    def on_turn(self, response_text: str) -> Turn:
        is_move = response_text == "right"
        self._at += is_move
        said = "Moved." if is_move else "That is not a move."
        error = None if is_move else said
        mark = {"kind": "click", "x": 100, "y": 50}
        info = {"feedback": said, "parse_error": error, "marks": [mark]}
        done = self._at == self._goal
        return Turn(f"{said} Go on.", images=(dot(self._at),), done=done, info=info)

    def text_twin(self) -> str:
        return f"The dot is at {self._at} of {self._goal}."

    def goal_picture(self) -> Image:
        return dot(self._goal)

    def get_state(self) -> dict[str, Any]:
        return {"at": self._at}

    def set_state(self, state: dict[str, Any]) -> None:
        self._at = state["at"]


def test_text_twin_describes_every_picture_beside_or_instead_of_it() -> None:
    for place, count in (("beside", 1), ("instead", 0)):
        with closing(TextTwin(WalkEnv(), place=place)) as env:
            first, _ = env.reset(seed=1)
            at = env.unwrapped.text_twin()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
            assert first["text"] == f"Walk.\n\n{at}"
            assert len(first["images"]) == count
            saved = env.unwrapped.snapshot()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
            second = env.step("right")[0]
            assert second["text"] != first["text"]
            env.unwrapped.restore(saved)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
            assert env.step("right")[0] == second


def test_goal_picture_is_shown_first_or_at_every_turn() -> None:
    for every_turn, later in ((False, 1), (True, 2)):
        with closing(ShowGoal(WalkEnv(), every_turn=every_turn)) as env:
            first, _ = env.reset(seed=1)
            assert first["images"][1] == dot(6)
            assert first["text"] == "Walk. The last picture shows the goal."
            while True:
                shown, _, done, _, _ = env.step("right")
                if done:
                    break
                assert len(shown["images"]) == later
            assert len(shown["images"]) == 1


def test_feedback_is_hidden_and_errors_may_stay() -> None:
    for keeps_errors, after_error in ((False, "Go on."), (True, "That is not a move. Go on.")):
        with closing(HideFeedback(WalkEnv(), keeps_errors=keeps_errors)) as env:
            env.reset(seed=1)
            assert env.step("right")[0]["text"] == "Go on."
            shown, _, _, _, info = env.step("left")
            assert shown["text"] == after_error
            assert info["feedback"] == "That is not a move."


def test_hidden_feedback_includes_that_a_reply_was_cut() -> None:
    for keeps_errors in (False, True):
        with closing(HideFeedback(WalkEnv(), keeps_errors=keeps_errors)) as env:
            env.reset(seed=1)
            env.inner.announce(Reply(text="right", finish=FinishReason.LENGTH))
            shown, _, _, _, info = env.step("right")
            assert info["parse_error"] == CUT
            assert (CUT_NOTICE in shown["text"]) == keeps_errors
            assert shown["text"].endswith("Go on.")


@pytest.mark.parametrize(
    ("wrap", "missing"),
    [
        (TextTwin, "EchoEnv has no text twin"),
        (ShowGoal, "EchoEnv has no picture of its goal"),
        (HideFeedback, "EchoEnv does not mark its feedback"),
        (partial(TextTwin, place="under"), "place must be one of"),
        (partial(HistoryWindow, images=0), "images must be at least 1"),
        (partial(HistoryWindow, images=2, turns=2), "got both"),
        (partial(GridOverlay, lines=0), "lines must be 1 to 49"),
        (partial(ResizeImage, side=5), "side must be 28 to 4096"),
    ],
)
def test_wrapper_says_what_an_environment_lacks(wrap: Callable[[Env], Any], missing: str) -> None:
    env = WalkEnv() if "place" in missing else EchoEnv()
    with pytest.raises(ConfigurationError, match=missing):
        wrap(env)


async def test_history_window_sets_the_history_policy_of_rollouts() -> None:
    codec = vision_codec()

    async def rewrites(env: Any) -> set[str]:
        engine = ScriptedEngine(codec, lambda _: "right")
        played = await play_one(env, engine, codec, seed=2)
        return {branch.reason for branch in played.branches}

    assert await rewrites(WalkEnv()) == set()
    assert await rewrites(HistoryWindow(WalkEnv(), images=2)) == {"keep_last_images"}
    assert await rewrites(HistoryWindow(WalkEnv(), turns=1)) == {"keep_last_turns"}


def test_grid_is_drawn_over_the_picture_and_leaves_the_cells() -> None:
    with closing(GridOverlay(DotsEnv(), lines=3)) as env, closing(DotsEnv()) as plain:
        shown = env.reset(seed=3)[0]["images"][0].array().astype(int)
        drawn = plain.reset(seed=3)[0]["images"][0].array().astype(int)
    changed = (shown != drawn).any(axis=-1)
    height, width = changed.shape
    assert changed[:, width // 4].all()
    assert changed[height // 2].all()
    assert changed.mean() < 0.3


@pytest.mark.parametrize(("side", "size"), [(100, (100, 50)), (200, (200, 100)), (400, (400, 200))])
def test_resized_picture_keeps_its_shape_and_its_marks(side: int, size: tuple[int, int]) -> None:
    with closing(ResizeImage(WalkEnv(), side=side)) as env:
        assert env.reset(seed=1)[0]["images"][0].size == size
        marks = env.step("right")[4]["marks"]
        assert [marks[0]["x"], marks[0]["y"]] == [side // 2, side // 4]
    if side == 400:  # enlarged without blur
        assert len(np.unique(ResizeImage(WalkEnv(), side=400).replace(dot(1), 0).array())) == 2


def test_image_wrappers_are_named_in_order() -> None:
    with closing(GridOverlay(BlankImage(DotsEnv()))) as env:
        assert env.reset(seed=1)[1]["image_wrapper"] == "blank+grid"


def test_wrapped_shares_what_its_environments_share() -> None:
    build = Wrapped(
        partial(envkit.make, "geo3k-v0"), {"curriculum": {"levels": [1, 2]}, "grid-overlay": {}}
    )
    first, second = build(), build()
    assert isinstance(first, GridOverlay)
    inner = [env.env for env in (first, second)]  # type: ignore[attr-defined]
    assert all(isinstance(env, Curriculum) for env in inner)
    assert inner[0].progress is inner[1].progress  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    again = pickle.loads(pickle.dumps(build))()
    assert again.env.progress is not inner[0].progress  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    with pytest.raises(UnknownNameError, match="Did you mean 'blank-image'"):
        Wrapped(EchoEnv, {"blank-imag": {}})


def test_curriculum_climbs_where_several_episodes_run_at_once(tmp_path: Path) -> None:
    outcome = run_envkit(
        "rollout", "geo3k-v0", "--policy", "oracle", "-n", 24, "--concurrency", 4, "-q",
        "--wrap", "curriculum:levels=[1,2,3],window=4", "--out", tmp_path / "run",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    levels = [played.reset_info["curriculum_level"] for played in load(tmp_path / "run")]
    assert max(levels) == 3  # the last one stored may have started early


def test_wrappers_compose_on_the_command_line(tmp_path: Path) -> None:
    outcome = run_envkit(
        "rollout", "canary-v0", "--policy", "oracle", "-n", 1, "-q", "--out", tmp_path / "run",
        "--wrap", "blank-image", "--wrap", "resize-image:side=112",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    (played,) = load(tmp_path / "run")
    assert played.metadata["wrap"] == ["blank-image", "resize-image"]
    assert played.metadata["wrap_kwargs"] == {"resize-image": {"side": 112}}
    assert {max(image.size) for image in played.images()} == {112}
    assert played.reset_info["image_wrapper"] == "blank+resized"
