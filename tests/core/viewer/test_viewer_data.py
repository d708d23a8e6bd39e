"""What the viewer knows of a run, and its self-contained file: whole, true and harmless."""

import base64
import hashlib
import json
import math
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from fakes.branching import IMAGES, SUMMARY, tree
from fakes.branching import rewritten as rewritten_by
from fakes.marked_runs import CLICK, SIZE, click, grouped_run, marked, rewritten
from fakes.trajectories import (
    Context,
    Reply,
    build,
    example,
    picture,
    quick,
    trajectories,
    with_sanity,
)
from fakes.viewer_page import Page
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError, StorageError
from envkit.messages import images_of, message
from envkit.metrics import aggregate
from envkit.metrics.intervals import mean_interval
from envkit.tokens import SanityStatus
from envkit.trajectory import REWARD_THRESHOLD, SegmentKind, StopReason, Trajectory, save
from envkit.viewer import document, single_file, write_report
from envkit.viewer.bundle import asset, bundled
from envkit.viewer.episodes import ShownEpisode, episode, shown_episode
from envkit.viewer.figures import distribution
from envkit.viewer.images import is_whole_png
from envkit.viewer.rows import COLUMNS, episode_row
from envkit.viewer.run import RunData, read_run
from envkit.viewer.run_text import notes
from envkit.viewer.search import SearchText, search_pieces
from envkit_conformance import shipped_recordings


def read(rows: list[Trajectory]) -> RunData:
    run = RunData("a run")
    for number, one in enumerate(rows, start=1):
        run.add(one, episode_row(one, number=number))
    return run


def turns_of(one: Trajectory) -> list[dict[str, Any]]:
    return episode(one, None, number=1).data["sequences"][0]["turns"]


def episode_final(one: Trajectory) -> list[dict[str, Any]]:
    return episode(one, None, number=1).data["sequences"][0]["final"]


def test_row_has_a_value_for_every_column() -> None:
    row = dict(zip(COLUMNS, episode_row(example(0), number=7).to_json(), strict=True))
    assert (row["number"], row["reward"], row["turns"], row["unread"]) == (7, 1.0, 3, 1)


def test_row_names_the_task_by_the_first_user_text() -> None:
    one = build([Reply()], task={"id": "t-1", "goal": ["length", "L", "E"]})
    assert episode_row(one, number=1).excerpt == "solve it"
    silent = replace(one, messages=(message("assistant", "hello"),))
    assert episode_row(silent, number=1).excerpt == "t-1"


def test_row_without_a_task_is_named_by_its_seed() -> None:
    one = replace(example(0, seed=7), messages=(), task={})
    assert episode_row(one, number=1).excerpt == "no task, seed 7"


def test_figures_count_groups_as_the_independent_draws() -> None:
    rows = grouped_run(groups=6)
    figures = read(rows).index()["figures"]
    means = [mean(one.reward or 0.0 for one in rows[n : n + 4]) for n in range(0, 24, 4)]
    interval = mean_interval(means)
    assert interval is not None
    assert figures["reward"]["mean"] == pytest.approx(mean(means))
    assert (figures["reward"]["low"], figures["reward"]["high"]) == (interval.low, interval.high)
    assert figures["groups"] == {"count": 6, "compared": 6, "signal": 5}
    assert figures["solved"]["count"] == sum(one.reward == 1.0 for one in rows)
    assert dict(figure[:2] for figure in figures["stops"]) == {
        "terminated": sum(one.stop_reason is StopReason.TERMINATED for one in rows),
        "max_turns": sum(one.stop_reason is StopReason.MAX_TURNS for one in rows),
    }
    ((name, average, episodes),) = figures["terms"]
    assert (name, episodes) == ("task", figures["solved"]["count"])
    assert average == pytest.approx(figures["reward"]["mean"])


def test_figures_say_what_success_goes_by() -> None:
    def rule(*episodes: Trajectory) -> dict[str, Any]:
        return read(list(episodes)).index()["figures"]["solved"]["by"]

    def one(number: int, threshold: float | None, verdict: bool | None = None) -> Trajectory:
        metadata = {} if threshold is None else {REWARD_THRESHOLD: threshold}
        made = build([Reply(reward=0.5)], metadata=metadata, episode_id=f"e{number}")
        info = {} if verdict is None else {"is_success": verdict}
        return replace(made, turns=tuple(replace(turn, info=info) for turn in made.turns))

    assert rule(one(1, 0.5), one(2, 0.5)) == {"thresholds": [0.5], "verdicts": 0}
    assert rule(one(1, 0.9), one(2, 0.5), one(3, 0.7)) == {"thresholds": [0.5, 0.9], "verdicts": 0}
    assert rule(one(1, 0.5, True), one(2, None, False)) == {"thresholds": [], "verdicts": 2}
    assert rule(one(1, 0.5), one(2, 0.5, True)) == {"thresholds": [0.5], "verdicts": 1}
    assert rule(one(1, None)) == {"thresholds": [], "verdicts": 0}


@pytest.mark.parametrize("reward", [1e308, -1e308, 1e200, math.inf, math.nan])
def test_figures_leave_out_rewards_whose_sums_overflow(reward: float) -> None:
    rewards = [reward, reward, *(n / 7 for n in range(8))]
    rows = [build([Reply(reward=one)], episode_id=f"e{n}") for n, one in enumerate(rewards)]
    figures = read(rows).index()["figures"]
    assert figures["reward"]["mean"] == pytest.approx(0.5)
    assert figures["distributions"][0]["max"] == 1.0
    assert read(rows[:2]).index()["figures"]["reward"] is None


def test_figures_of_one_group_have_no_interval() -> None:
    figures = read(grouped_run(groups=1)).index()["figures"]
    assert figures["reward"]["low"] is None
    assert figures["solved"]["low"] is None


def test_figures_survive_a_run_without_any_reward() -> None:
    faulted = build([], stop_reason=StopReason.ENV_FAULT)
    figures = read([faulted, replace(faulted, reward=float("nan"))]).index()["figures"]
    assert figures["reward"] is None
    assert figures["faults"] == 2


def test_distribution_of_up_to_four_values_is_counts_else_a_histogram() -> None:
    assert distribution("Reward", "", [1, 0, 0, 0.5])["values"] == [[0, 2], [0.5, 1], [1, 1]]
    whole = distribution("Turns", "", [1, 2, 3, 4, 7, 7])
    assert (whole["bars"], whole["width"], whole["is_whole"]) == ([1, 1, 1, 1, 0, 0, 2], 1, True)
    assert (whole["min"], whole["median"], whole["max"]) == (1, 3, 7)
    broad = distribution("Seconds", "s", [n / 7 for n in range(500)])
    assert sum(broad["bars"]) == 500
    assert len(broad["bars"]) == 24


def test_figures_count_what_the_list_leaves_out() -> None:
    index = read([example(n) for n in range(5)]).index(most=2)
    assert len(index["rows"]) == 2
    assert index["figures"]["episodes"] == 5


def test_episode_without_a_rewrite_is_one_sequence() -> None:
    (only,) = episode(example(0), None, number=1).data["sequences"]
    assert (only["parent"], only["branch_turn"], only["reason"], only["prompt"]) == (
        None,
        0,
        "",
        None,
    )
    assert len(only["turns"]) == 3


def test_episode_with_a_rewritten_history_says_where_and_what_the_model_saw() -> None:
    one = rewritten()
    data = episode(one, None, number=1).data
    first, second = data["sequences"]
    assert [len(part["turns"]) for part in (first, second)] == [2, 2]
    assert (second["parent"], second["branch_turn"]) == (0, 2)
    assert "template" in second["reason"]
    prompt = next(s for s in one.segments if s.kind is SegmentKind.PROMPT and s.turn == 2)
    assert second["prompt"]["images"] == [[image.sha256, 3] for image in prompt.images]
    assert second["prompt"]["before"] == sum(s.token_count for s in one.segments if s.turn < 2)
    assert [turn for _, turn in second["prompt"]["dropped"]] == [1, 2]
    context = second["turns"][0]["tokens"]["context"]
    assert context[: second["prompt"]["tokens"]] == list(prompt.train_ids)
    assert (first["final"], [said["text"] for said in second["final"]]) == (
        [],
        ["The task is over."],
    )
    shown = second["prompt"]["images"] + second["prompt"]["dropped"]
    assert {sha256 for sha256, _ in shown} <= set(data["pictures"])


async def test_episode_lists_what_a_policy_kept_rewrote_and_left_out() -> None:
    one = await rewritten_by(IMAGES, images=True)
    prompt = episode(one, None, number=1).data["sequences"][1]["prompt"]
    assert [turn for _, turn in prompt["dropped"]] == [1, 2]
    assert [turn for _, turn in prompt["images"]] == [3]
    omitted = ["[image omitted]\nScreen 0.", "[image omitted]\nScreen 1 after Reply 0 3."]
    assert [entry["text"] for entry in prompt["history"] if "text" in entry] == omitted
    assert [entry["kept"] for entry in prompt["history"] if "kept" in entry] == [1, 1, 2]
    one = await rewritten_by({"keep_last_turns": {"keep": 1, "drop_at": 2}})
    history = episode(one, None, number=1).data["sequences"][1]["prompt"]["history"]
    assert [entry for entry in history if "text" not in entry] == [
        {"kept": 1, "turns": [1, 1]},
        {"dropped": 4, "turns": [1, 3]},
        {"kept": 2, "turns": [3, 4]},
    ]


async def test_episode_says_which_reply_answers_a_question() -> None:
    parts = episode(await rewritten_by(SUMMARY), None, number=1).data["sequences"]
    turns = [turn for part in parts for turn in part["turns"]]
    assert [turn["purpose"] for turn in parts[0]["turns"]] == [None, None, "summarise"]
    asked = [turn["heard"][-1]["role"] for turn in turns if turn["purpose"]]
    assert set(asked) == {"question"}
    assert episode_row(await rewritten_by(SUMMARY), number=1).turns == 6


async def test_rows_of_a_tree_count_each_reply_and_token_once() -> None:
    leaves = await tree()
    rows = [episode_row(leaf, number=n) for n, leaf in enumerate(leaves, start=1)]
    ids = [row.episode_id for row in rows]
    assert [row.parent for row in rows] == [None, ids[0], ids[0], ids[1]]
    assert [row.shared for row in rows] == [0, 1, 3, 3]
    assert [row.shared + row.replies for row in rows] == [6] * 4
    assert sum(row.sampled for row in rows) == sum(leaf.sampled_token_count for leaf in leaves)
    unread = read(list(leaves)).index()["figures"]["unread"]
    assert unread["of"] == sum(row.replies for row in rows) < sum(row.turns for row in rows)


async def test_row_counts_the_rewrites_of_the_episode_itself() -> None:
    leaves = await tree(history={"keep_last_turns": {"keep": 1, "drop_at": 2}})
    assert [episode_row(leaf, number=1).rewrites for leaf in leaves] == [2, 2, 1, 1]


def test_episode_that_was_played_with_a_rewriting_template_shows_each_sequence() -> None:
    (one,) = (
        found.trajectory for found in shipped_recordings() if found.name == "thinking_rerender"
    )
    parts = episode(one, None, number=1).data["sequences"]
    assert [(part["parent"], part["branch_turn"]) for part in parts] == [(None, 0), (0, 1), (1, 2)]
    assert sum(len(part["turns"]) for part in parts) == len(one.turns)


def test_episode_marks_are_drawn_on_the_image_before_the_reply() -> None:
    one = marked([[click(*CLICK)], [click(1, 2)]], rewards=[0.0, 1.0])
    first, second = turns_of(one)
    images = [image.sha256 for image in images_of(one.messages)]
    assert [first["shown"], second["shown"]] == images[:2]
    assert first["words"] == [f"click {CLICK[0]}, {CLICK[1]}"]
    assert first["thought"] == "I go on."
    assert first["info"] == {}
    assert episode(one, None, number=1).data["sizes"][images[0]] == SIZE
    assert [said["text"] for said in episode_final(one)] == ["The task is over."]


def test_episode_mark_may_name_an_earlier_image() -> None:
    zoom = {"kind": "box", "box": [1, 2, 3, 4], "label": "zoom", "image": 0}
    one = marked([[click(5, 5)], [zoom]], rewards=[0.0, 0.0])
    first, second = turns_of(one)
    (mark,) = second["marks"]
    assert mark["on"] == first["shown"]


def test_episode_counts_marks_beyond_the_limit_and_draws_no_broken_one() -> None:
    marks: list[Any] = [{"kind": "click", "x": "left"}, "click"]
    marks += [click(n, n) for n in range(80)]
    (turn,) = turns_of(marked([marks], rewards=[0.0]))
    assert turn["marks_left_out"] == 18
    assert turn["words"][:3] == ["unreadable mark", "unreadable mark", "click 0, 0"]
    assert turn["marks"][0] == {
        "kind": "unreadable",
        "on": None,
        "words": "unreadable mark",
    }


def test_episode_shows_a_tool_call_once_and_in_words() -> None:
    text = 'I look.\n<tool_call>{"name": "search", "arguments": {"query": "Oslo"}}</tool_call>'
    call = {"id": "a", "name": "search", "arguments": {"query": "Oslo"}}
    (turn,) = turns_of(build([Reply(text=text, tool_call=call)]))
    assert turn["words"] == ["search(“Oslo”)"]
    assert turn["thought"] == "I look."
    assert turn["reply"] == text


def test_episode_separates_context_and_sampled_tokens() -> None:
    one = build([Reply(observation=Context(text_ids=(21, 22))), Reply()])
    first, second = turns_of(one)
    assert first["tokens"] == {
        "context": [11, 12, 13, 14],
        "ids": [101, 102, 103],
        "mask": [1, 1, 1],
        "logprobs": [-0.5, -0.01, -2.25],
    }
    assert second["tokens"]["context"] == [21, 22]


def test_search_finds_replies_and_observations_but_not_the_system_prompt() -> None:
    one = build(
        [
            Reply(text="The İstanbul ZOOM", observation=Context(), observation_text="Now see Oslo"),
            Reply(text="done"),
        ]
    )
    one = replace(one, messages=(message("system", "You may scroll."), *one.messages))
    text = SearchText()
    text.add(1, search_pieces(one))
    assert text.find(" zoom ")[1] == {
        "where": "reply 1",
        "before": "the i̇stanbul ",
        "hit": "zoom",
        "after": "",
    }
    found = text.find("oslo")[1]
    assert (found["where"], found["before"], found["hit"]) == ("seen, turn 2", "Now see ", "Oslo")
    assert text.find("solve")[1]["where"] == "task"
    assert text.find("scroll") == {}


def test_script_is_one_scope_without_imports() -> None:
    script = bundled("single")
    assert "import {" not in script
    assert "\nexport " not in script
    assert script.count("const SVG =") == 1


def test_script_refuses_a_name_that_two_modules_have(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "one.js": 'import { two } from "./two.js";\nconst same = 1;\n',
        "two.js": "export const two = 2, other = 3;\nfunction same() {}\n",
        "round.js": 'import { round } from "./round.js";\n',
    }
    monkeypatch.setattr("envkit.viewer.bundle.asset", texts.__getitem__)
    with pytest.raises(ValueError, match=r"got same in two\.js and one\.js"):
        bundled("one")
    with pytest.raises(ValueError, match="got round -> round"):
        bundled("round")


def test_style_has_no_address() -> None:
    assert "url(" not in asset("style.css")


HOSTILE = "</script><!--<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;\u2028"


def _hostile() -> Trajectory:
    replies = (
        Reply(text=HOSTILE, observation=Context(), observation_text=HOSTILE, parse_error=HOSTILE),
        Reply(tool_call={HOSTILE: HOSTILE}, weight_version=HOSTILE),
    )
    return build(replies, episode_id=HOSTILE, env_id=HOSTILE, task={"q": HOSTILE}, group_id=HOSTILE)


def test_report_holds_the_run(tmp_path: Path) -> None:
    rows = [example(0), example(1, stop_reason=StopReason.ENV_FAULT), example(2)]
    save(rows, tmp_path / "trajectories.jsonl")
    assert write_report(tmp_path, tmp_path / "report.html") == tmp_path / "report.html"
    found = Page(tmp_path / "report.html")
    assert f"Rollout report: {tmp_path.name}" in found.text
    assert str(tmp_path) not in (tmp_path / "report.html").read_text()
    assert [row["number"] for row in found.rows] == [1, 2, 3]
    assert [row["stop"] for row in found.rows] == ["terminated", "env_fault", "terminated"]
    assert found.rows[0]["task"] == "solve it"
    assert found.rows[0]["flags"] == ["parse error", "retry"]
    episode = found.episode(2)
    assert episode["fault"]["message"] == "no answer in 5 s"
    assert episode["reward"] is None
    assert found.episode(1)["certificate"]["status"] == "verified"
    assert [turn["parse_error"] for turn in found.turns(1)] == [None, "no call found", None]
    assert found.turns(1)[0]["tokens"]["logprobs"] == [-0.5, -0.01, -2.25]


def test_report_embeds_every_image_once(tmp_path: Path) -> None:
    target = write_report([example(0), example(0), example(1)], tmp_path / "report.html")
    found = Page(target)
    names = {name for name in found.blocks if name.startswith("image-")}
    assert names == {f"image-{picture(n).sha256}" for n in (0, 1, 2)}
    stored = base64.b64decode(found.blocks[f"image-{picture(0).sha256}"])
    assert stored == picture(0).png_bytes()
    seen = [name for turn in found.turns(1) for said in turn["heard"] for name in said["images"]]
    assert picture(1).sha256 in seen
    assert found.episode(1)["sizes"][picture(1).sha256] == list(picture(1).size)


def test_report_lets_only_its_own_code_run(tmp_path: Path) -> None:
    target = write_report([_hostile()], tmp_path / "report.html")
    found = Page(target)
    policy = next(v["content"] for t, v in found.tags if t == "meta" and "http-equiv" in v) or ""
    for name in ("script", "style"):
        digest = hashlib.sha256(found.code[name].encode()).digest()
        assert f"{name}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", target.read_text())
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", bundled("single")
    )
    assert "@import" not in found.code["style"]
    assert not any(name.startswith("on") or name == "style" for _, v in found.tags for name in v)


def test_report_holds_hostile_content_as_data(tmp_path: Path) -> None:
    target = write_report([_hostile()], tmp_path / "report.html", title=HOSTILE)
    found, harmless = Page(target), Page(write_report([example()], tmp_path / "other.html"))
    assert found.count("img") == 0
    assert found.count("script") == harmless.count("script") - 2  # as many images fewer
    assert HOSTILE in found.text
    assert found.rows[0]["id"] == HOSTILE
    assert not {"<", ">", "\u2028"} & set(found.blocks["index"])
    first, second = found.turns(1)
    assert first["reply"] == HOSTILE
    assert second["heard"][0]["text"] == HOSTILE
    assert json.loads(second["words"][0]) == {HOSTILE: HOSTILE}


@quick
@given(st.lists(trajectories(), min_size=1, max_size=2))
def test_report_of_anything_can_be_read_by_a_browser(drawn: list[Trajectory]) -> None:
    rows = [replace(row, episode_id=f"{n} {row.episode_id}") for n, row in enumerate(drawn)]

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not valid JSON")

    with tempfile.TemporaryDirectory() as folder:
        found = Page(write_report(rows, Path(folder) / "report.html"))
    json.loads(found.blocks["index"], parse_constant=refuse)
    assert len(found.rows) == len(rows)
    for number, row in enumerate(rows, start=1):
        episode = found.episode(number, parse_constant=refuse)
        turns = [turn for sequence in episode["sequences"] for turn in sequence["turns"]]
        tokens = [turn["tokens"] for turn in turns]
        kinds = [segment.kind.value for segment in row.segments]
        assert sum(len(one["ids"]) for one in tokens) == sum(
            len(segment.train_ids)
            for segment, kind in zip(row.segments, kinds, strict=True)
            if kind == "model"
        )
        assert episode["problems"] == []
        assert [turn["reply"] for turn in turns] == [turn.response_text for turn in row.turns]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no readable episode$"),
        (b"notes\n", "line 1 .* valid JSON"),
        (b"\xff\xfe\n", "line 1"),
    ],
)
def test_report_of_no_readable_episode_is_refused(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    file.write_bytes(content)
    with pytest.raises(StorageError, match="no readable episode") as caught:
        write_report(file, tmp_path / "report.html")
    assert re.search(reason, str(caught.value))
    assert list(tmp_path.iterdir()) == [file]


def test_report_shows_tokens_as_text_where_it_can(tmp_path: Path) -> None:
    found = Page(write_report([example()], tmp_path / "report.html", token_text="<t{}>".format))
    vocabulary = found.unpack("vocabulary-0")["vocabulary"]
    assert vocabulary["101"] == "<t101>"
    assert set(vocabulary) == {str(i) for s in example().segments for i in s.train_ids}
    plain = Page(write_report([example()], tmp_path / "report.html"))
    assert plain.unpack("vocabulary-0") == {"vocabulary": None, "vocabulary_note": ""}


def test_report_says_what_it_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = len(base64.b64encode(picture(0).png_bytes()))
    monkeypatch.setattr(document, "IMAGE_BUDGET_BYTES", one)
    rows = [example(n) for n in range(3)]
    found = Page(write_report(rows, tmp_path / "report.html", max_episodes=2))
    assert "the list shows the first 2 and leaves out 1" in found.notes
    assert "2 images are not embedded" in found.notes
    assert [name for name in found.blocks if name.startswith("image-")] == [
        f"image-{picture(0).sha256}"
    ]
    assert len(found.rows) == 2
    assert found.index["runs"][0]["figures"]["episodes"] == 3


def test_report_lists_no_more_episodes_than_fit_in_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_file, "MAX_CHARACTERS", 1)
    rows = [example(n) for n in range(3)]
    found = Page(write_report(rows, tmp_path / "report.html"))
    assert "the list shows the first 1 and leaves out 2" in found.notes
    assert [name for name in found.blocks if name.startswith("episode-")] == ["episode-0-1"]
    assert len(found.rows) == 1
    assert found.index["runs"][0]["figures"] == read(rows).index()["figures"]


def test_report_renders_only_the_episodes_that_it_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Trajectory] = []

    def counted(trajectory: Trajectory, *given: Any, **named: Any) -> ShownEpisode:
        shown.append(trajectory)
        return shown_episode(trajectory, *given, **named)

    monkeypatch.setattr(document, "shown_episode", counted)
    write_report([example(n) for n in range(5)], tmp_path / "report.html", max_episodes=2)
    assert len(shown) == 2


def test_report_says_on_its_first_page_what_was_not_compared(tmp_path: Path) -> None:
    equal, unchecked = SanityStatus.EQUAL, SanityStatus.UNCHECKED
    rows = [with_sanity(example(0), equal, unchecked), with_sanity(example(1), equal)]
    figures = Page(write_report(rows, tmp_path / "report.html")).index["runs"][0]["figures"]
    counts = {status: n for status, n, _ in figures["renders"]}
    assert counts == {"equal": 2, "unchecked": 1, "rest": 1}
    said = ["Observations that could not be compared with a full render: 1 of 3."]
    assert notes(read_run(rows)) == said
    assert notes(read_run([with_sanity(example(0), equal)])) == []


def test_report_of_a_damaged_run_says_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    save([example(0), example(1), example(2)], file)
    first, second, third = file.read_text().splitlines()
    changed = second.replace('"train_ids":[101', '"train_ids":[102').replace(
        '"wire_ids":[101', '"wire_ids":[102'
    )
    file.write_text(f"{first}\n{changed}\n{third[:-40]}")
    (tmp_path / "images" / f"{picture(0).sha256}.png").unlink()
    found = Page(write_report(file, tmp_path / "report.html"))
    assert "line 3 is cut off" in found.notes
    assert f"{picture(0).sha256}.png" in found.notes
    assert str(tmp_path) not in found.notes
    assert [row["flags"] for row in found.rows][1][0] == "broken"
    assert found.index["runs"][0]["figures"]["broken"] == 1
    certificate = found.episode(2)["certificate"]
    assert certificate["status"] == "broken: segment 1 (counted from 0)"
    assert found.episode(1)["certificate"]["kind"] == "good"
    assert picture(0).sha256 not in found.episode(1)["sizes"]


def test_report_refuses_wrong_arguments_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="max_episodes must be at least 1, got 0"):
        write_report([], tmp_path / "report.html", max_episodes=0)
    with pytest.raises(StorageError, match="no trajectory file"):
        write_report(tmp_path / "none", tmp_path / "report.html")
    with pytest.raises(StorageError, match="cannot write"):
        write_report([example()], tmp_path / "missing" / "report.html")
    assert not list(tmp_path.iterdir())


def test_report_knows_throughput_only_from_the_rollout_itself(tmp_path: Path) -> None:
    rows = [example(0), example(1)]
    save(rows, tmp_path / "trajectories.jsonl")

    def names_with(metrics: str) -> set[str]:
        (tmp_path / "metrics.json").write_text(metrics)
        found = Page(write_report(tmp_path, tmp_path / "report.html"))
        return {name for name, _ in found.index["runs"][0]["figures"]["metrics"]}

    speed = "throughput/tokens_per_second"
    assert speed in names_with(json.dumps(aggregate(rows, elapsed_seconds=20.0)))
    for other in (json.dumps(aggregate(rows[:1], elapsed_seconds=20.0)), "{", "[1]", "{}"):
        assert speed not in names_with(other)


def test_stored_images_are_whole_or_not_taken_as_they_are() -> None:
    data = picture(0).png_bytes()
    assert is_whole_png(data)
    assert not any(is_whole_png(data[:end]) for end in range(len(data)))
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        assert not is_whole_png(bytes(changed))
