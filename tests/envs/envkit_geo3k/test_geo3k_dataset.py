import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as PilImage

from envkit.errors import DatasetError, MissingDependencyError
from envkit.images import Image
from envkit_geo3k import Geo3kEnv, load_tasks
from envkit_geo3k.choices import grade_choice
from envkit_geo3k.dataset import Flavour
from envkit_geo3k.dataset_rows import MAX_PIXELS, strip_prose


def _png(size: tuple[int, int] = (60, 40), mode: str = "RGB", colour: Any = "white") -> bytes:
    buffer = io.BytesIO()
    PilImage.new(mode, size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def _uri(data: bytes, mime: str = "image/None") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


PNG = _png()
GOLD = r"2 \sqrt { 221 }"
PROSE = (
    "You are a math assistant. You may call the calc_score tool with <tool_call> blocks.\n"
    "<image>Find x.\n"
    "Put your final answer in \\boxed{}."
)
HF = {"images": [{"bytes": PNG, "path": None}], "problem": "<image>Find x.", "answer": GOLD}
DATA_URI = {"images": [_uri(PNG)], "problem": "<image>Find x.", "answer": GOLD}
PROCESSED = {"images": [_uri(PNG)], "problem": PROSE, "answer": GOLD}
VERL: dict[str, Any] = {
    "data_source": "hiyouga/geometry3k",
    "prompt": [
        {
            "role": "user",
            "content": "<image>Find x. You FIRST think about the reasoning process as an internal "
            "monologue and then provide the final answer. The final answer MUST BE put in "
            "\\boxed{}.",
        }
    ],
    "images": [{"bytes": PNG, "path": None}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": GOLD},
    "extra_info": {"split": "train", "index": 7, "answer": GOLD, "question": "<image>Find x."},
}
VERL_TOOL: dict[str, Any] = {
    **VERL,
    "prompt": [{"role": "system", "content": "Use calc_geo3k_reward."}, *VERL["prompt"]],
    "extra_info": {
        **VERL["extra_info"],
        "need_tools_kwargs": True,
        "tools_kwargs": {"calc_geo3k_reward": {"create_kwargs": {"ground_truth": GOLD}}},
    },
}
SLIME = {"prompt": "<image>Find x.", "images": [_uri(PNG)], "label": GOLD}
SLIME_CHAT = {
    "prompt": [
        {"role": "system", "content": "Use calc_score."},
        {"role": "user", "content": "<image>Find x."},
    ],
    "images": [_uri(PNG)],
    "label": GOLD,
    "metadata": {},
}
SKYRL = {
    "prompt": [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": _uri(PNG, "image/jpeg")}},
                {"type": "text", "text": "<image>Find x."},
            ],
        }
    ],
    "env_class": "geometry3k",
    "reward_spec": {"method": "rule", "ground_truth": GOLD},
    "extra_info": {"split": "train", "index": 0, "problem": "<image>Find x.", "answer": GOLD},
}


SKYRL_PARTS = {"prompt": SKYRL["prompt"]}


def _write(path: Path, *rows: dict[str, Any]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("row", "suffix", "flavour"),
    [
        (HF, "parquet", Flavour.HF),
        (DATA_URI, "parquet", Flavour.DATA_URI),
        (DATA_URI, "jsonl", Flavour.DATA_URI),
        (PROCESSED, "parquet", Flavour.DATA_URI),
        (VERL, "parquet", Flavour.VERL),
        (VERL_TOOL, "parquet", Flavour.VERL_TOOL),
        (SLIME, "parquet", Flavour.SLIME),
        (SLIME, "jsonl", Flavour.SLIME),
        (SLIME_CHAT, "jsonl", Flavour.SLIME),
        ({**SLIME, "images": _uri(PNG)}, "jsonl", Flavour.SLIME),
        ({**SLIME, "label": 12, "answer": GOLD}, "jsonl", Flavour.SLIME),
        ({**SKYRL_PARTS, "label": GOLD}, "jsonl", Flavour.SLIME),
        (SKYRL, "parquet", Flavour.SKYRL),
        (SKYRL, "jsonl", Flavour.SKYRL),
    ],
)
def test_dataset_flavour_becomes_a_playable_task(
    tmp_path: Path, row: dict[str, Any], suffix: str, flavour: Flavour
) -> None:
    source = load_tasks(_write(tmp_path / f"train.{suffix}", row), "train")
    assert (source.size, source.flavours, source.skipped) == (1, (flavour,), {})
    task = source.task(0)
    assert json.loads(json.dumps(task)) == task
    assert (task["question"], task["answer"]) == ("Find x.", GOLD)
    assert task["raw"] == (row.get("problem") or task["raw"])
    env = Geo3kEnv(data=str(tmp_path / f"train.{suffix}"))
    observation, _ = env.reset(seed=0)
    assert observation["images"][0].size == (60, 40)
    assert env.step(r"\boxed{2√221}").reward == 1.0


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_dataset_images_are_upright(tmp_path: Path, kind: str) -> None:
    picture, exif = PilImage.new("RGB", (60, 40), "white"), PilImage.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    picture.save(buffer, kind, exif=exif)
    path = _write(tmp_path / "a.jsonl", {**DATA_URI, "images": [_uri(buffer.getvalue())]})

    observation, _ = Geo3kEnv(data=str(path)).reset(seed=0)

    assert observation["images"][0].size == (40, 60)


def test_dataset_prose_is_stripped_and_kept_as_raw(tmp_path: Path) -> None:
    task = load_tasks(_write(tmp_path / "a.jsonl", PROCESSED)).task(0)
    assert (task["question"], task["raw"]) == ("Find x.", PROSE)


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("<image>Find x.", "Find x."),
        ("<image>\nFind the area.", "Find the area."),
        ("Find x. Round to the nearest tenth.<image>", "Find x. Round to the nearest tenth."),
        ("<image>Find x. Please reason step by step. Use \\boxed{}.", "Find x."),
        ("Let AB = 3.\nFind BC.", "Let AB = 3. Find BC."),
        ("Think step by step about the figure.", "Think step by step about the figure."),
        ("<image>Find the area. You may use pi = 3.14.", "Find the area. You may use pi = 3.14."),
        ("You can assume that AB = CD. <image>Find x.", "You can assume that AB = CD. Find x."),
        ("You should round to a tenth.\nFind x.<image>", "You should round to a tenth. Find x."),
        ("Find x. You must leave your answer in radicals.<image>",) * 2,
        ("Find x. Round your final answer to the nearest tenth.",) * 2,
        ("Find x. Give your final answer as a fraction.",) * 2,
        ("You should check whether AB = CD. Find x.",) * 2,
        ("Carla uses a tool to cut a triangle. Find x.",) * 2,
        ("You are a surveyor. Find the height of the tower.",) * 2,
        ("<image>Let AB = 3.\nFind BC.", "Let AB = 3. Find BC."),
        ("Use the figure.\n<image>\nFind BC.", "Use the figure. Find BC."),
        ("<image>Find x. You must think before you reply.", "Find x."),
        ("<image>Find x. You may call the tool twice. You must wait for it.", "Find x."),
        (
            "You are an expert in math.\nRules: use \\boxed{}.\n<image>Let a = 3.\nx?",
            "Let a = 3. x?",
        ),
    ],
)
def test_strip_prose_keeps_the_question(text: str, question: str) -> None:
    assert strip_prose(text) == question.replace("<image>", "")


def test_dataset_composites_transparency_on_white(tmp_path: Path) -> None:
    row = {**DATA_URI, "images": [_uri(_png(mode="RGBA", colour=(0, 0, 0, 0)))]}
    task = load_tasks(_write(tmp_path / "a.jsonl", row)).task(0)
    assert Image.from_data_uri(task["images"][0]).pil().getpixel((0, 0)) == (255, 255, 255)


def test_dataset_makes_large_images_smaller(tmp_path: Path) -> None:
    row = {**DATA_URI, "images": [_uri(_png((5000, 4000), "L", 255))]}
    task = load_tasks(_write(tmp_path / "a.jsonl", row)).task(0)
    width, height = Image.from_data_uri(task["images"][0]).size
    assert 0.9 * MAX_PIXELS < width * height <= MAX_PIXELS
    assert abs(width / height - 1.25) < 0.01


def test_dataset_reads_only_images_next_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "secret.png").write_bytes(PNG)
    (tmp_path / "inside" / "a.png").write_bytes(PNG)
    rows = [
        {**HF, "images": [{"bytes": None, "path": path}]} for path in ("a.png", "../secret.png")
    ]
    path = _write(tmp_path / "inside" / "a.jsonl", *rows)
    with pytest.warns(RuntimeWarning, match="skipped 1 of 2 rows"):
        source = load_tasks(path, skip_bad=True)
    assert source.size == 1
    assert sum(source.skipped.values()) == 1


BROKEN = {
    "no answer": {**DATA_URI, "answer": None},
    "no question": {**DATA_URI, "problem": "  "},
    "no image": {**DATA_URI, "images": []},
    "the number of <image> tags is not the number of images": {
        **DATA_URI,
        "problem": "<image><image>Find x.",
    },
    "an image cannot be decoded": {**DATA_URI, "images": [_uri(PNG[:40])]},
    "an image is a web address; nothing is fetched": {
        **DATA_URI,
        "images": ["https://example.com/a.png"],
    },
    "an image is empty": {**DATA_URI, "images": [""]},
    "an image is neither a file here nor base64": {**DATA_URI, "images": ["what?\0"]},
}


def test_dataset_skips_bad_rows_and_counts_the_reasons(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl", DATA_URI, *BROKEN.values(), *BROKEN.values())
    with path.open("a") as lines:
        lines.write("{broken\n[1]\n\n")
    with pytest.warns(RuntimeWarning, match=r"skipped 18 of 19 rows of .*: no answer \(2\)"):
        source = load_tasks(path, skip_bad=True)
    assert source.size == 1
    assert source.skipped == {
        **dict.fromkeys(BROKEN, 2),
        "the line is not valid JSON": 1,
        "the line is not a JSON object": 1,
    }


@pytest.mark.parametrize("reason", BROKEN)
def test_dataset_names_the_first_bad_row_and_the_rule(tmp_path: Path, reason: str) -> None:
    path = _write(tmp_path / "a.jsonl", DATA_URI, BROKEN[reason])
    with pytest.raises(DatasetError) as caught:
        Geo3kEnv(data=str(path))
    assert str(caught.value).startswith(f"row 2 of {path} cannot be used: {reason}. ")
    path.write_text("\n\n{broken\n")
    with pytest.raises(DatasetError, match=r"row 3 of .* is not valid JSON"):
        load_tasks(path)


QUESTION = {"doc_id": 4, "question": "What is it?", "target": "a cat", "image": _uri(PNG)}
CHOICES = {"id": "q", "input": "Which?", "target": "B", "choices": ["4", "5"], "image": _uri(PNG)}
NUMBERED = {"choices": {"text": ["cat", "dog", "hen"], "label": ["1", "2", "3"]}}


@pytest.mark.parametrize(
    ("row", "answer", "images"),
    [
        (QUESTION, "a cat", 1),
        ({**QUESTION, "target": ["a cat"], "image": None, "visuals": [_uri(PNG)] * 2}, "a cat", 2),
        ({**QUESTION, "image": None, "image_1": _uri(PNG), "image_2": _uri(PNG)}, "a cat", 2),
        ({**QUESTION, "question": "Step by step.\nWhat is it?"}, "a cat", 1),
        (CHOICES, "B", 1),
        ({**CHOICES, "target": 1}, "B", 1),
        ({**CHOICES, "target": "5"}, "B", 1),
        ({**CHOICES, "target": "(b)"}, "B", 1),
        ({**CHOICES, "choices": "['4', '5']"}, "B", 1),
        ({**CHOICES, "choices": {"text": ["4", "5"], "label": ["1", "2"]}, "target": "2"}, "B", 1),
        ({**QUESTION, "options": "[]"}, "a cat", 1),
        (
            {
                "target": "x",
                "input": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "image": _uri(PNG)},
                            {"type": "text", "text": "Which?"},
                        ],
                    }
                ],
            },
            "x",
            1,
        ),
    ],
)
def test_questions_of_evaluation_suites_become_tasks(
    tmp_path: Path, row: dict[str, Any], answer: str, images: int
) -> None:
    path = _write(tmp_path / "a.jsonl", row)
    source = load_tasks(path)
    task = source.task(0)
    assert source.flavours == (Flavour.QUESTIONS,)
    assert (task["answer"], len(task["images"])) == (answer, images)
    assert task["id"] == f"a/{row.get('id', row.get('doc_id', 0))}"
    env = Geo3kEnv(data=str(path))
    assert "geometry" not in (env.system_prompt or "")
    observation, _ = env.reset(seed=0)
    assert len(observation["images"]) == images
    asked = row.get("question", "Which?")
    wanted = f"{asked}\nA. 4\nB. 5\nAnswer with the letter." if "choices" in task else asked
    assert observation["text"] == wanted
    assert env.step(rf"\boxed{{{answer}}}").reward == 1.0


@pytest.mark.parametrize(
    ("choices", "answer", "letter"),
    [
        (["cat", "dog", "cow", "hen"], 2, "C"),
        (["2", "4", "6", "8"], 2, "C"),
        ([2, 4, 6, 8], 2, "C"),
        (["1", "2", "3", "4"], 1, "B"),
        (["0", "1", "2", "3"], 3, "D"),
        (["10", "20", "30"], 2, "C"),
        (["3", "2", "1", "0"], 0, "A"),
        (["1", "0"], [1], "B"),
        ({"text": ["9", "8"], "label": ["0", "1"]}, 1, "B"),
        (["2", "4", "6", "8"], "2", "A"),  # a text names the choice itself
    ],
)
def test_integer_answer_is_an_index(tmp_path: Path, choices: Any, answer: Any, letter: str) -> None:
    row = {**CHOICES, "choices": choices, "target": answer}
    assert load_tasks(_write(tmp_path / "a.jsonl", row)).task(0)["answer"] == letter


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target": "C"}, "the answer names none of the choices"),
        ({"target": 2}, "the answer names none of the choices"),
        ({"target": True}, "the answer names none of the choices"),
        ({"target": -1}, "the answer names none of the choices"),
        ({"target": 1.0}, "the answer names none of the choices"),
        ({"target": 5}, "the answer names none of the choices"),
        ({**NUMBERED, "target": 1}, "the answer names more than one of the choices"),
        ({**NUMBERED, "target": 3}, "the answer names none of the choices"),
        ({"choices": ["A", "B"], "target": "A"}, None),
        ({"choices": ["B", "A"], "target": "A"}, "the answer names more than one of the choices"),
        ({"choices": ["4"]}, "the choices must be a list of 2 to 26 texts"),
        ({"choices": "4, 5"}, "the choices must be a list of 2 to 26 texts"),
        ({"choices": ["4", "4"]}, "two choices are the same"),
        ({"choices": [["4"], "5"]}, "the choices must be a list of 2 to 26 texts"),
        ({"choices": {"text": ["4", "5"], "label": ["1"]}}, "as many different labels as texts"),
        ({"target": ["A", "B"]}, "more than one answer"),
        ({"images": [_uri(PNG)]}, "images in more than one column: image, images"),
        ({"image": None}, "no image"),
        ({"image": ["data:image/png;base64,AAAA"]}, "an image cannot be decoded"),
        ({"image": 7}, "no image"),
        ({"image": [_uri(PNG), None]}, "an image is empty"),
    ],
)
def test_bad_questions_are_refused_and_no_image_is_dropped(
    tmp_path: Path, change: dict[str, Any], reason: str | None
) -> None:
    path = _write(tmp_path / "a.jsonl", CHOICES, {**CHOICES, **change})
    if reason is None:
        assert load_tasks(path).size == 2
        return
    with pytest.raises(DatasetError) as caught:
        load_tasks(path)
    assert f"row 2 of {path} cannot be used: " in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("B", 1),
        ("b", 1),
        ("(B)", 1),
        ("B.", 1),
        ("B) 9", 1),
        (r"\text{B}", 1),
        ("**B**", 1),
        ("12", 1),
        ("12 cm", 1),
        ("A", 0),
        ("9", 0),
        ("A or B", 0),
        ("A, B", 0),
        ("AB", 0),
        ("C", 0),
        ("", 0),
        ("neither", 0),
        ("12 or 9", 0),
    ],
)
def test_choices_are_graded_by_letter_or_by_what_they_say(reply: str, score: int) -> None:
    assert grade_choice(reply, "B", ("9", "12"), "round").score == score
    assert grade_choice(reply, "A", ("12", "9"), "round").score == (
        score if "12" in reply and "9" not in reply else reply == "A"
    )


@pytest.mark.parametrize("images", [0, 1.5, True, ["\0"], ["a" * 1000], [[]], [{"a": 1}], "\0/x"])
def test_dataset_with_foreign_values_skips_the_row(tmp_path: Path, images: Any) -> None:
    rows = [{**SLIME, "images": images}, {**SLIME, "extra_info": "none"}, SLIME]
    path = _write(tmp_path / "a.jsonl", *rows)
    with pytest.warns(RuntimeWarning, match="skipped 1 of 3 rows"):
        source = load_tasks(path, skip_bad=True)
    assert (source.size, sum(source.skipped.values())) == (2, 1)


def test_dataset_without_a_usable_row_says_why(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl", *BROKEN.values())
    with pytest.raises(DatasetError, match=r"no usable row.*no answer \(1\)"):
        load_tasks(path, skip_bad=True)
    with pytest.raises(DatasetError, match="no rows"):
        load_tasks(_write(tmp_path / "b.jsonl"))


def test_dataset_with_wrong_columns_names_found_and_expected(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.parquet", {"caption": "a", "pixels": 1})
    with pytest.raises(DatasetError, match=r"columns \['caption', 'pixels'\]; expected .*problem"):
        load_tasks(path)
    with pytest.raises(DatasetError, match="columns"):
        Geo3kEnv(data=str(path))


def test_dataset_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    broken, empty = tmp_path / "a.parquet", tmp_path / "empty"
    empty.mkdir()
    broken.write_bytes(b"PAR1 this is none")
    with pytest.raises(DatasetError, match="not a readable parquet"):
        load_tasks(broken)
    with pytest.raises(DatasetError, match=r"must end in \.parquet or \.jsonl"):
        load_tasks(_write(tmp_path / "a.txt", HF | {"images": []}))
    with pytest.raises(DatasetError, match="there is no file or folder"):
        load_tasks(tmp_path / "missing")
    with pytest.raises(DatasetError, match="has no"):
        load_tasks(empty)
    with pytest.raises(DatasetError, match="split must be one of"):
        load_tasks(broken, "dev")


def test_dataset_folder_and_rows_are_chosen_by_split(tmp_path: Path) -> None:
    for name, answer in (("train-00000", "1"), ("val-00000", "2"), ("test-00000", "3")):
        _write(tmp_path / f"{name}.jsonl", {**DATA_URI, "answer": answer})
    answers = [
        load_tasks(tmp_path, split).task(0)["answer"] for split in ("train", "validation", "test")
    ]
    assert answers == ["1", "2", "3"]
    assert load_tasks(tmp_path).size == 3
    mixed = [{**SKYRL, "extra_info": {"split": split}} for split in ("train", "test", "test")]
    assert load_tasks(_write(tmp_path / "all.jsonl", *mixed), "test").size == 2


def test_dataset_rows_are_copies_and_bounded(tmp_path: Path) -> None:
    source = load_tasks(_write(tmp_path / "a.jsonl", DATA_URI, DATA_URI))
    source.task(0)["answer"] = "changed"
    assert source.task(0)["answer"] == GOLD
    with pytest.raises(DatasetError, match="rows 0 to 1, got 2"):
        source.task(2)


def test_parquet_without_pyarrow_prints_the_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path / "a.parquet", HF)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"envkit-rl\[geo3k\]"):
        load_tasks(path)
