"""miles' own geo3k example: its script's flags and dataset columns, changed as our page says."""

import sys
import types
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from fakes.slime_examples import changed, page_config, page_section, parsed, python_flags
from fakes.slime_run import vision_server

from envkit.images import Image

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_miles")]

COLOURS = ("red", "blue")
SCALE: dict[str, Any] = {
    "rollout_batch_size": 2,
    "n_samples_per_prompt": 2,
    "over_sampling_batch_size": 2,
    "rollout_num_gpus": 1,
    "rollout_num_gpus_per_engine": 1,
    "rollout_shuffle": False,
}
"""A run of the example's 64 prompts of 8, made small."""


def write_geo3k(path: Path) -> None:
    """Write two rows in the columns of the example's parquet."""
    import pyarrow
    import pyarrow.parquet
    from PIL import Image as PilImage

    rows = [
        {
            "problem": "<image>Find x.",
            "answer": answer,
            "images": [Image.from_pil(PilImage.new("RGB", (84, 56), colour)).data_uri()],
        }
        for answer, colour in zip(("5", "7"), COLOURS, strict=True)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def stand_in_for_qwen_vl_utils(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode a conversation's images, as the package does that miles reads them with."""

    def images_of(messages: list[dict[str, Any]], **_: object) -> tuple[list[Any], None]:
        contents = [part for entry in messages for part in entry["content"]]
        uris = [part["image"] for part in contents if part["type"] == "image"]
        return [Image.from_data_uri(uri).pil() for uri in uris], None

    module: Any = types.ModuleType("qwen_vl_utils")
    module.process_vision_info = images_of
    monkeypatch.setitem(sys.modules, "qwen_vl_utils", module)


async def test_miles_geo3k_example_trains_with_the_changes_of_our_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import envkit_geo3k
    from envkit.registration import register, registry

    if "geo3k-v0" not in registry():
        register("geo3k-v0", envkit_geo3k.SPEC.entry_point)
    write_geo3k(tmp_path / "train.parquet")
    stand_in_for_qwen_vl_utils(monkeypatch)
    module = "examples.geo3k_vlm.multi_turn.run_geo3k_vlm_multi_turn"
    section = page_section("miles.md", "miles' geo3k example")
    flags = changed(python_flags("miles", module, monkeypatch), section)
    known = vars(parsed("miles", flags, monkeypatch))
    with vision_server(lambda _: r"\boxed{5}") as served:
        here = vars(served.args({}))
        absent = {name: value for name, value in here.items() if name not in known}
        places = ("hf_checkpoint", "sglang_router_ip", "sglang_router_port")
        model = {name: here[name] for name in places}
        config = page_config(section)
        data = {"prompt_data": str(tmp_path / "train.parquet")}
        args = Namespace(**{**known, **absent, **model, **SCALE, **config, **data})
        groups = await roll(args, monkeypatch)
    rewards = [[sample.reward for sample in group] for group in groups]
    assert rewards == [[1.0, 1.0], [0.0, 0.0]]
    batch = convert(args, [sample for group in groups for sample in group])
    assert batch["rewards"] == [0.0] * 4
    assert [len(one["image_grid_thw"]) for one in batch["multimodal_train_inputs"]] == [1] * 4


async def roll(args: Namespace, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Run miles' default rollout function for one rollout."""
    from miles.rollout.data_source import RolloutDataSourceWithBuffer
    from miles.rollout.inference_rollout import inference_rollout_common as common
    from miles.rollout.inference_rollout import inference_rollout_train as train
    from miles.utils import http_utils

    async def nothing(*_: object, **__: object) -> None:
        """SGLang's dumper, which needs SGLang, is off by default."""

    monkeypatch.setattr(train.dumper_utils, "configure_sglang", nothing)
    http_utils.init_http_client(args)
    state = common.GenerateState(args)
    source = RolloutDataSourceWithBuffer(args)
    output, _ = await train.generate_rollout_async(state, 0, source.get_samples)
    return output.samples


def convert(args: Namespace, samples: list[Any]) -> dict[str, Any]:
    from miles.ray.rollout.train_data_conversion import convert_samples_to_train_data
    from miles.utils.misc import load_function

    function = load_function(args.custom_reward_post_process_path)
    return convert_samples_to_train_data(args, samples, {}, None, function)
