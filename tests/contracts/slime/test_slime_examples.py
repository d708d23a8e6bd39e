"""slime's own geo3k example: its parquet columns and its flags, changed as our page says."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.slime_run import Served, vision_server

from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.trajectory import read_trajectories

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_slime")]

PAGE = Path(__file__).parents[3] / "docs" / "trainers" / "slime.md"
COLOURS = ("red", "blue")
ANSWERS = ("5", "7")


def documented_run() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the mapping `envkit` and the flags of the page's run over slime's dataset."""
    section = PAGE.read_text().partition("## A run over slime's own dataset")[2]
    config, command = re.findall(r"```(?:yaml|bash)\n(.*?)```", section, re.DOTALL)[:2]
    words = shlex.split(command.replace("\\\n", " "))
    words = words[words.index("...") + 1 :]
    flags = {
        name.removeprefix("--").replace("-", "_"): value
        for name, value in zip(words[::2], words[1::2], strict=True)
    }
    flags["multimodal_keys"] = json.loads(flags["multimodal_keys"])  # as slime's parser does
    return yaml.safe_load(config)["envkit"], flags


def write_geo3k(path: Path) -> list[Image]:
    """Write two rows in the columns of slime's geo3k parquet, and return their images."""
    import pyarrow
    import pyarrow.parquet
    from PIL import Image as PilImage

    images = [Image.from_pil(PilImage.new("RGB", (84, 56), colour)) for colour in COLOURS]
    rows = [
        {"problem": "<image>Find x.", "answer": answer, "images": [image.data_uri()]}
        for answer, image in zip(ANSWERS, images, strict=True)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return images


def roll(served: Served, tmp_path: Path, **changes: Any) -> list[list[Any]]:
    from slime.rollout.data_source import RolloutDataSourceWithBuffer
    from slime.rollout.sglang_rollout import generate_rollout
    from slime.utils.http_utils import init_http_client

    envkit, flags = documented_run()
    defaults = {
        "metadata_key": "metadata",
        "tool_key": None,
        "dump_details": None,
        "rollout_max_prompt_len": None,
        "apply_chat_template": False,
    }
    flags = {**defaults, **flags, "prompt_data": str(tmp_path / "train.parquet"), **changes}
    args = served.args({**envkit, "record_dir": str(tmp_path / "runs")}, **flags)
    init_http_client(args)
    return generate_rollout(args, 0, RolloutDataSourceWithBuffer(args)).samples


@pytest.fixture(autouse=True)
def geo3k_known() -> None:
    """Register the environment where envkit itself is not installed."""
    import envkit_geo3k
    from envkit.registration import register, registry

    if "geo3k-v0" not in registry():
        register("geo3k-v0", envkit_geo3k.SPEC.entry_point)


def test_slime_geo3k_rows_are_played_with_the_documented_run(tmp_path: Path) -> None:
    images = write_geo3k(tmp_path / "train.parquet")
    with vision_server(lambda _: r"\boxed{5}") as served:
        groups = roll(served, tmp_path)
    assert [[sample.reward for sample in group] for group in groups] == [[1.0, 1.0], [0.0, 0.0]]
    for sample in (sample for group in groups for sample in group):
        assert sample.status is sample.Status.COMPLETED
        assert len(sample.multimodal_train_inputs["image_grid_thw"]) == 1
    played = list(read_trajectories(tmp_path / "runs"))
    assert {one.task["question"] for one in played} == {"Find x."}
    assert {one.images()[0].sha256 for one in played} == {image.sha256 for image in images}


def test_slime_task_fields_refuses_a_prompt_that_slime_has_rendered(tmp_path: Path) -> None:
    write_geo3k(tmp_path / "train.parquet")
    with (
        vision_server(lambda _: r"\boxed{5}") as served,
        pytest.raises(ConfigurationError, match="--apply-chat-template"),
    ):
        roll(served, tmp_path, apply_chat_template=True)
