"""What the viewer knows of a run: rows, figures, episodes, and where a search finds a text."""

from dataclasses import replace
from statistics import mean
from typing import Any

import pytest
from fakes.branching import IMAGES, SUMMARY, tree
from fakes.branching import rewritten as rewritten_by
from fakes.marked_runs import CLICK, SIZE, click, grouped_run, marked, rewritten
from fakes.trajectories import Context, Reply, build, example

from envkit.messages import images_of, message
from envkit.metrics.intervals import mean_interval
from envkit.trajectory import SegmentKind, StopReason, Trajectory
from envkit.viewer.bundle import asset, bundled
from envkit.viewer.episodes import episode
from envkit.viewer.figures import distribution
from envkit.viewer.rows import COLUMNS, episode_row
from envkit.viewer.run import RunData
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
