"""What the widgets send to a front end and take from it, without one."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from fakes.branching import IMAGES, SUMMARY, rewritten, tree
from fakes.budget import examples
from fakes.trajectories import example, quick, trajectories
from fakes.waiting import until
from hypothesis import given, settings

import envkit
import envkit_notebook as notebook
from envkit.env import Turn
from envkit.errors import ConfigurationError, MissingDependencyError, StorageError
from envkit.trajectory import Trajectory, certify, save
from envkit_notebook import showing
from envkit_notebook.comparing import BranchWidget
from envkit_notebook.playing import PlayWidget
from envkit_notebook.scene import episode_view
from envkit_notebook.showing import read_episode
from envkit_notebook.widget import ImageStore


class EchoEnv(envkit.Env):
    def __init__(self) -> None:
        super().__init__(max_turns=2)

    def on_reset(self, task: object) -> Turn:
        return Turn("<script>alert(1)</script>\ud800")

    def on_turn(self, response_text: str) -> Turn:
        if response_text == "break":
            raise envkit.EnvFault("the backend is gone")
        return Turn(response_text, info={"odd": b"\xff", "nan": float("nan")})


class Sent:
    """Notes what a widget sends."""

    def __init__(self, widget: Any) -> None:
        self.messages: list[tuple[Any, list[bytes]]] = []
        widget.send = self.note

    def note(self, content: Any, buffers: list[bytes] | None = None) -> None:
        self.messages.append((content, buffers or []))


async def played(env: Any = None, **kwargs: Any) -> PlayWidget:
    widget = notebook.play(env or EchoEnv, **kwargs)
    await until(lambda: widget.view.get("is_busy") is False)
    return widget


def is_plain(view: Any) -> bool:
    """Whether a message to a front end can hold it."""
    json.dumps(view, ensure_ascii=False, allow_nan=False).encode("utf-8")
    return True


async def test_play_widget_takes_buttons_from_another_thread() -> None:
    widget = await played("canary-v0", seed=7)
    sent = Sent(widget)

    for wish in ({"do": "oracle"}, {"do": "reply", "text": "46XJ"}):
        thread = threading.Thread(target=widget._receive, args=(None, wish, []))
        thread.start()
        thread.join()
        await until(lambda: widget.view["is_busy"] is False and bool(sent.messages))

    await until(lambda: widget.game.turn == 1)
    assert sent.messages == [({"fill": "46XJ"}, [])]
    assert widget.game.reward == pytest.approx(1 / 3)
    await widget.close_game()


async def test_play_widget_sends_plain_data_for_any_text() -> None:
    widget = await played()

    await widget.act({"do": "reply", "text": "\udfff<img onerror=alert(1)>"})

    assert is_plain(widget.view)
    assert widget.view["steps"][0]["reads"][0]["text"] == "<script>alert(1)</script>?"
    await widget.close_game()


async def test_play_widget_shows_a_fault_and_starts_again() -> None:
    widget = await played()

    await widget.act({"do": "reply", "text": "break"})
    assert "the backend is gone" in widget.view["error"]
    await widget.act({"do": "start"})

    assert (widget.view["error"], widget.game.turn) == (None, 0)
    await widget.close_game()


@pytest.mark.parametrize(
    "wish",
    [{"do": "reply"}, {"do": 3}, {"do": "click", "x": "1", "y": None}, {"do": "undo"}, {"do": "x"}],
)
async def test_play_widget_survives_any_request(wish: dict[str, Any]) -> None:
    widget = await played()

    await widget.act(wish)

    assert widget.view["is_busy"] is False
    assert is_plain(widget.view)
    await widget.close_game()


async def test_play_widget_ignores_a_second_press() -> None:
    widget = await played()
    await asyncio.gather(*(widget.act({"do": "reply", "text": "once"}) for _ in range(2)))

    assert widget.game.replies == ("once",)
    await widget.close_game()


async def test_widget_sends_each_image_that_it_is_asked_for() -> None:
    widget = await played("canary-v0", seed=7)
    sent = Sent(widget)
    ((name, size),) = widget.view["steps"][0]["reads"][1]["images"]
    assert size is not None

    widget._receive(None, {"do": "pictures", "names": [name, "../x", 3]}, [])
    widget._receive(None, "nonsense", [])

    assert [content for content, _ in sent.messages] == [
        {"picture": name, "missing": False},
        {"picture": "../x", "missing": True},
    ]
    assert sent.messages[0][1][0].startswith(b"\x89PNG")
    await widget.close_game()


@settings(quick, max_examples=examples(15))
@given(trajectories())
def test_episode_view_is_plain_data_of_every_token(trajectory: Trajectory) -> None:
    view = episode_view(trajectory, ImageStore())

    assert is_plain(view)
    shown = [segment for step in view["steps"] for segment in step["tokens"]]
    kept = [s for s in trajectory.segments if s.turn < len(view["steps"])]
    assert [sum(segment["counts"]) for segment in shown] == [len(s.train_ids) for s in kept]
    assert all(len(s["mask"]) in (0, len(s["ids"])) for s in shown)


def test_episode_view_collapses_placeholders_and_keeps_replies_whole() -> None:
    prompt, *_ = episode_view(example(), ImageStore())["steps"][0]["tokens"]
    assert (prompt["ids"][1], prompt["counts"][1]) == (9000, 4)

    reply = episode_view(example(), ImageStore())["steps"][0]["tokens"][1]
    assert reply["counts"] == [1, 1, 1]
    assert reply["logprobs"] == [-0.5, -0.01, -2.25]


def test_show_reads_an_episode_of_a_file_and_checks_its_certificate(tmp_path: Path) -> None:
    save([example(0), example(1)], tmp_path / "run.jsonl")

    widget = notebook.show(tmp_path / "run.jsonl", -1)

    assert widget.trajectory.episode_id == "episode-1"
    assert (widget.view["index"], widget.view["count"]) == (1, 2)
    assert widget.view["proof"]["status"] == "verified"
    assert notebook.show(example()).view["proof"]["status"] == "computed now"


async def test_show_lists_the_leaves_of_a_tree_and_opens_one_at_its_fork() -> None:
    widget = notebook.show(await tree())

    assert is_plain(widget.view)
    (group,) = widget.view["run"]["groups"]
    assert group["facts"] == "Tree with 4 leaves: mean reward 6, best 6"
    listed = [(one["guide"], one["number"]) for one in group["members"]]
    assert listed == [
        ("", 1),
        ("├─ ", 2),
        ("│  └─ ", 4),
        ("└─ ", 3),
    ]
    titles = [section["title"] for section in widget.view["run"]["sections"]]
    assert titles[:3] == ["What matters", "Solve rate by group", "What ended the episodes"]
    await widget.act({"do": "episode", "index": 3})
    assert (widget.view["index"], widget.view["first"]) == (3, 3)
    assert "at turn 4" in widget.view["origin"]


async def test_show_reads_the_figures_of_a_large_run_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(await tree(), tmp_path / "run.jsonl")
    monkeypatch.setattr(showing, "_AT_ONCE_BYTES", 10)
    widget = notebook.show(tmp_path / "run.jsonl", 2)
    assert widget.view["run"] is None
    await widget.act({"do": "run"})
    assert widget.view["run"]["groups"][0]["members"][3]["number"] == 3
    assert widget.view["index"] == 2


async def test_episode_view_says_what_was_rewritten_and_labels_a_question() -> None:
    dropped = episode_view(await rewritten(IMAGES, images=True), ImageStore())
    start = dropped["steps"][2]["start"]
    assert "keep last images" in start["lines"][0]
    assert start["lines"][-1] == "Dropped: the images of turns 1, 2."
    assert any(who == "environment, rewritten" and "omitted" in text for who, text in start["saw"])
    summarised = episode_view(await rewritten(SUMMARY), ImageStore())
    asked = summarised["steps"][2]
    assert asked["summary"] == "question to the model · summarise"
    assert asked["reads"][-1]["who"] == "environment, then the question"
    assert asked["speaker"] == "model, for its own history"
    assert [label for label, _ in asked["facts"]][:3] == ["Reward", "Tokens", "Time"]


def test_show_names_a_forged_ledger() -> None:
    view = episode_view(example(1), ImageStore(), recorded=certify(example(2)))
    assert view["proof"]["holds"] is False


def test_show_names_missing_parts(tmp_path: Path) -> None:
    save(example(), tmp_path / "run.jsonl")
    with pytest.raises(ConfigurationError, match="one of the 1 episodes"):
        read_episode(tmp_path / "run.jsonl", 1)
    with pytest.raises(StorageError, match="no trajectory file"):
        notebook.show(tmp_path / "missing")
    text = (tmp_path / "run.jsonl").read_text()
    (tmp_path / "run.jsonl").write_text(text + text[:200])
    with pytest.raises(StorageError, match="line 2 is cut off"):
        read_episode(tmp_path / "run.jsonl", 1)


async def test_branch_widget_plays_by_hand_and_says_what_failed() -> None:
    from fakes.codecs import vision_codec

    from envkit.rollout import ScriptedEngine
    from envkit.rollout import play as roll

    env = envkit.make("canary-v0")
    engine = ScriptedEngine(vision_codec(), env.oracle())
    recorded = await roll(env, engine, vision_codec(), seed=7)

    by_hand = await notebook.branch(recorded, 1, "WRNG").settled()
    await by_hand.act({"do": "reply", "text": "7KF5"})
    assert by_hand.game is not None
    assert by_hand.game.reward == pytest.approx(2 / 3)
    assert by_hand.view["right"]["is_over"]

    by_engine = notebook.branch(recorded, 1, "WRNG", engine=engine, codec=vision_codec())
    assert isinstance(await by_engine.settled(), BranchWidget)
    assert by_engine.trajectory is not None
    assert by_engine.trajectory.reward == pytest.approx(2 / 3)

    other = notebook.branch(recorded, 1, "WRNG", env="geo3k-v0")
    with pytest.raises(ConfigurationError, match="another system prompt"):
        await other.settled()
    assert "another system prompt" in other.view["error"]
    with pytest.raises(ConfigurationError, match="needs the codec"):
        notebook.branch(recorded, 1, engine=engine)
    await by_hand.game.close()


def test_widgets_need_an_event_loop_and_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="a running event loop"):
        notebook.play("canary-v0")
    monkeypatch.setattr(notebook, "find_spec", dict[str, None]().get)
    for call in (
        lambda: notebook.play("canary-v0"),
        lambda: notebook.show(example()),
        lambda: notebook.branch(example()),
    ):
        with pytest.raises(MissingDependencyError, match=r"pip install 'envkit-rl\[notebook\]'"):
            call()


def test_front_end_never_writes_markup() -> None:
    script = (Path(notebook.__file__).parent / "widget.js").read_text(encoding="utf-8")
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http"):
        assert way not in script
