"""Golden trajectories: `-v0` keeps its meaning, and a change of it is named."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.command import run_envkit
from fakes.envs import DotsEnv, register_missing, register_toys
from fakes.hearing import Hearing
from hypothesis import example, given, settings
from hypothesis import strategies as st

import envkit
from envkit.env import Turn
from envkit.errors import ContractError, StorageError
from envkit.tasks import ListSource, Task
from envkit_certify.golden import Change, _differences, changes, load, play, record, save

GOLDEN = Path(__file__).parents[2] / "golden"
SHIPPED = sorted(GOLDEN.glob("*.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_environments_play_as_they_were_recorded(path: Path) -> None:
    """After a wanted change: a new version of the environment, then `envkit golden`."""
    content = load(path)

    assert content["env_id"] == path.stem
    assert len(content["episodes"]) >= 12
    assert [str(change) for change in changes(content)] == []


def test_golden_files_exist() -> None:
    assert {path.stem for path in SHIPPED} >= {
        "canary-v0",
        "computer-use-v0",
        "geo3k-v0",
        "refine-v0",
        "search-v0",
    }


class ChangingEnv(DotsEnv):
    """Behaves otherwise where a test says so."""

    change: ClassVar[str] = ""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        offset = 100 if self.change == "tasks" else 0
        self.tasks = ListSource([{"n": n + offset} for n in range(50)])
        self.system_prompt = "Count well." if self.change == "prompt" else "Count."

    def on_reset(self, task: Task) -> Turn:
        turn = super().on_reset(task)
        return Turn(f"{turn.text} {task['n'] % 2}", images=turn.images)

    def on_turn(self, response_text: str) -> Turn:
        turn = super().on_turn(response_text)
        if self.change == "raise" and "七" in response_text:
            raise ValueError("no such number")
        return Turn(
            turn.text.replace("Wrong", "Not right") if self.change == "text" else turn.text,
            images=turn.images,
            reward=turn.reward * (0.5 if self.change == "reward" else 1.0),
            done=turn.done,
            info={**turn.info, "dots": 1} if self.change == "info" else turn.info,
        )

    def _draw(self) -> Any:
        if self.change == "picture":
            self.size = 57
        return super()._draw()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    register_toys()
    register_missing({"toy-changing-v0": ChangingEnv})
    monkeypatch.setattr(ChangingEnv, "change", "")
    return record("toy-changing-v0", {"rounds": 2}, seeds=range(3))


def test_what_did_not_change_replays(recorded: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    save(recorded, path)

    assert load(path) == recorded
    assert changes(load(path)) == []
    policies = {episode["policy"] for episode in recorded["episodes"]}
    assert policies == {"oracle", "oracle and bad replies", "bad replies"}


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ("text", "oracle and bad replies, seed 0, turn 1: text: 'Wrong: "),
        ("reward", "oracle, seed 0, turn 2: reward: '1.0' became '0.5'"),
        ("info", "oracle, seed 0, turn 1: info.dots: '(missing)' became '1'"),
        ("prompt", "system_prompt: 'Count.' became 'Count well.'"),
        ("picture", "oracle, seed 0, start: images[0].sha256: "),
        ("tasks", "task of seed 0.n: "),
        ("raise", "bad replies, seed 0: 'no exception' became 'ValueError: no such number'"),
    ],
)
def test_a_change_is_named_where_it_first_shows(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch, change: str, first: str
) -> None:
    monkeypatch.setattr(ChangingEnv, "change", change)
    found = [str(entry) for entry in changes(recorded)]

    assert found[0].startswith(first), found[:5]
    assert len(found) == len(set(found))


def test_a_changed_draw_does_not_count_as_a_changed_game(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChangingEnv, "change", "tasks")

    assert {entry.where for entry in changes(recorded)} == {
        f"task of seed {seed}.n" for seed in range(3)
    }


def test_a_longer_episode_is_a_change(recorded: dict[str, Any]) -> None:
    longer = {**recorded, "kwargs": {"rounds": 3}}
    found = [str(entry) for entry in changes(longer)]

    assert any("terminated: 'true' became 'false'" in line for line in found) or any(
        "the episode continues after its 2" in line for line in found
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(before=JSON, after=JSON)
@example(before=[True], after=[1])
@example(before={"x": 1}, after={"x": 1.0})
def test_values_differ_in_a_named_place_or_are_equal(before: Any, after: Any) -> None:
    found = [str(change) for change in _differences("it", before, after)]

    assert bool(found) == (json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True))
    assert len(set(found)) == len(found)
    assert list(_differences("it", before, before)) == []


def test_a_long_text_is_shown_from_where_it_differs() -> None:
    shown = str(Change(where="x", before="a" * 500 + "b" * 9, after="a" * 500 + "c" * 9))

    assert "from character 480" in shown
    assert len(shown) < 160


def test_an_environment_that_is_not_deterministic_cannot_be_golden() -> None:
    class Fickle(DotsEnv):
        capabilities = envkit.Capabilities()

    register_missing({"toy-fickle-v0": Fickle})
    with pytest.raises(ContractError, match=r"capabilities\.deterministic"):
        record("toy-fickle-v0")


def test_command_records_and_certify_replays(tmp_path: Path) -> None:
    path = tmp_path / "canary.json"
    made = run_envkit("golden", "canary-v0", "--out", path, "--seeds", 2, "--env-kwargs", "turns=2")
    certify = ("certify", "canary-v0", "--only", "golden", "--golden", path)
    same = run_envkit(*certify)
    again = run_envkit("golden", "canary-v0", "--out", path)
    content = load(path)
    content["episodes"][0]["turns"][0]["reward"] = 7.0
    content["made_with"]["pillow"] = "1.0"
    save(content, path)
    changed = run_envkit(*certify)

    assert (made.code, same.code, again.code, changed.code) == (0, 0, 1, 1)
    assert "golden  pass     6       recorded episodes replayed" in same.out
    assert "add --overwrite" in again.last_error
    assert "oracle, seed 0, turn 1: reward: '7.0' became '0.5'" in changed.out
    assert "recorded with pillow 1.0" in changed.out


def test_a_file_that_is_not_a_recording_fails_the_line(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("[]")
    outcome = run_envkit("certify", "canary-v0", "--only", "golden", "--golden", other)

    assert outcome.code == 1
    assert "is not a golden file" in outcome.out
    with pytest.raises(StorageError, match="cannot read"):
        load(tmp_path / "missing.json")


def test_a_cut_reply_is_recorded_and_replayed_as_cut() -> None:
    whole = ["gold", {"text": "gold", "finish": "length", "opened": ""}, "gold", "gold"]
    first = play(Hearing(), 0, lambda context: whole[context.turn])
    again = play(Hearing(), 0, lambda context: first["turns"][context.turn]["reply"])

    assert [turn["reply"] for turn in first["turns"]] == whole
    assert [turn["info"]["finish"] for turn in first["turns"]] == ["stop", "length", "stop", "stop"]
    assert [turn["reward"] for turn in first["turns"]] == [1.0, 0.0, 1.0, 1.0]
    assert again == first
