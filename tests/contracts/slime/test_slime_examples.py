"""slime's and miles' own examples: their flags and datasets' columns, changed as our pages say."""

import json
import sys
import types
from argparse import Namespace
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.codecs import text_codec
from fakes.search_server import FakeSearchServer
from fakes.search_server import served as search_served
from fakes.sglang_model import FakeRequest
from fakes.slime_examples import (
    changed,
    checkout,
    page_config,
    page_section,
    parsed,
    python_flags,
    shell_flags,
)
from fakes.slime_groups import load, rollout_manager
from fakes.slime_run import Served, text_server, vision_server

from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.trajectory import read_trajectories

pytestmark = pytest.mark.slime

GEO3K = "slime's geo3k example"

SEARCH = "slime's Search-R1 example"

COLOURS = ("red", "blue")

ANSWERS = ("5", "7")

SCALE = {"rollout_batch_size": 2, "n_samples_per_prompt": 2, "over_sampling_batch_size": 2}

"""A run of the example's 64 prompts of 8, made small."""


@pytest.fixture(autouse=True)
def environments_known() -> None:
    """Register the environments where envkit itself is not installed."""
    import envkit_geo3k
    import envkit_search
    from envkit.registration import register, registry

    for name, spec in (("geo3k-v0", envkit_geo3k.SPEC), ("search-v0", envkit_search.SPEC)):
        if name not in registry():
            register(name, spec.entry_point)


def write_geo3k(path: Path) -> list[Image]:
    """Write two rows in the columns of slime's geo3k parquet, and return their images."""
    from PIL import Image as PilImage

    images = [Image.from_pil(PilImage.new("RGB", (84, 56), colour)) for colour in COLOURS]
    write(
        path,
        [
            {"problem": "<image>Find x.", "answer": answer, "images": [image.data_uri()]}
            for answer, image in zip(ANSWERS, images, strict=True)
        ],
    )
    return images


def write_search(path: Path) -> None:
    """Write two rows in the columns of Search-R1's nq_hotpotqa_train/train.parquet."""
    rows: list[dict[str, Any]] = []
    for number, (question, answer) in enumerate((("who is it", "Ada"), ("where is it", "Bern"))):
        rule = {"style": "rule", "ground_truth": {"target": [answer]}}
        rows.append(
            {
                "id": f"train_{number}",
                "question": question,
                "golden_answers": [answer],
                "data_source": "nq",
                "prompt": [{"role": "user", "content": f"Answer. Question: {question}?\n"}],
                "ability": "fact-reasoning",
                "reward_model": rule,
                "extra_info": {"index": number, "split": "train"},
            }
        )
    write(path, rows)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def arguments(
    served: Served, flags: list[str], config: dict[str, Any], **changes: Any
) -> Namespace:
    """Return the parsed flags of a run, where the tests' server, model and size stand in."""
    with pytest.MonkeyPatch.context() as patch:
        known = vars(parsed("slime", flags, patch))
    here = vars(served.args({}))
    places = ("hf_checkpoint", "sglang_router_ip", "sglang_router_port")
    absent = {name: value for name, value in here.items() if name not in known}
    values = {**known, **absent, **{name: here[name] for name in places}}
    return Namespace(**{**values, **SCALE, **config, **changes})


def roll(args: Namespace) -> list[list[Any]]:
    from slime.rollout.sglang_rollout import generate_rollout
    from slime.utils.http_utils import init_http_client

    init_http_client(args)
    return generate_rollout(
        args, 0, load("slime.rollout.data_source.RolloutDataSourceWithBuffer")(args)
    ).samples


def converted(args: Namespace, groups: list[list[Any]]) -> dict[str, Any]:
    samples = [sample for group in groups for sample in group]
    return rollout_manager(args)._convert_samples_to_train_data(samples)


def search_once(request: FakeRequest) -> str:
    """Search, then answer with what one of the two questions wants."""
    context = text_codec().decode(list(request.wire_ids))
    asked = "<search>Ada Renn</search>", "<answer>Ada</answer>"
    return asked["cello" in context]  # of a page that was found


@contextmanager
def retriever(served: Served) -> Generator[str]:
    """Give the address of a server with Search-R1's `/retrieve`."""
    server = search_served(FakeSearchServer())
    try:
        yield served.run(server.__aenter__())
    finally:
        served.run(server.__aexit__(None, None, None))


def geo3k_flags() -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        module = "examples.geo3k_vlm_multi_turn.run_geo3k_vlm_multi_turn"
        return python_flags("slime", module, patch)


@pytest.mark.usefixtures("needs_slime")
@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_slime_geo3k_example_trains_with_the_changes_of_our_page(tmp_path: Path) -> None:
    images = write_geo3k(tmp_path / "train.parquet")
    section = page_section("slime.md", GEO3K)
    flags, config = changed(geo3k_flags(), section), page_config(section)
    config["envkit"]["record_dir"] = str(tmp_path / "runs")
    data = str(tmp_path / "train.parquet")
    with vision_server(lambda _: r"\boxed{5}") as served:
        args = arguments(served, flags, config, prompt_data=data, rollout_shuffle=False)
        groups = roll(args)
        batch = converted(args, groups)
    assert [[sample.reward for sample in group] for group in groups] == [[1.0, 1.0], [0.0, 0.0]]
    assert [len(inputs["image_grid_thw"]) for inputs in batch["multimodal_train_inputs"]] == [1] * 4
    assert batch["rewards"] == [0.0] * 4
    played = list(read_trajectories(tmp_path / "runs"))
    assert {one.task["question"] for one in played} == {"Find x."}
    assert {one.images()[0].sha256 for one in played} == {image.sha256 for image in images}


@pytest.mark.usefixtures("needs_slime")
@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_slime_geo3k_example_with_its_rendered_prompts_is_refused(tmp_path: Path) -> None:
    write_geo3k(tmp_path / "train.parquet")
    section = page_section("slime.md", GEO3K)
    flags = [*changed(geo3k_flags(), section), "--apply-chat-template"]
    data = str(tmp_path / "train.parquet")
    with (
        vision_server(lambda _: r"\boxed{5}") as served,
        pytest.raises(ConfigurationError, match="--apply-chat-template"),
    ):
        roll(arguments(served, flags, page_config(section), prompt_data=data))


@pytest.mark.usefixtures("needs_slime")
@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_slime_search_r1_example_trains_with_the_changes_of_our_page(tmp_path: Path) -> None:
    write_search(tmp_path / "train.parquet")
    section = page_section("slime.md", SEARCH)
    script = checkout("slime") / "examples" / "search-r1" / "run_qwen2.5_3B.sh"
    given = shell_flags(script, "ROLLOUT_ARGS", "GRPO_ARGS", "CUSTOM_ARGS")
    flags, config = changed(given, section), page_config(section)
    config["envkit"]["record_dir"] = str(tmp_path / "runs")
    data = str(tmp_path / "train.parquet")
    with text_server(search_once) as served, retriever(served) as url:
        assert config["envkit"]["env_kwargs"]["backend"] == "http://127.0.0.1:8000"  # as upstream
        config["envkit"]["env_kwargs"]["backend"] = url
        args = arguments(served, flags, config, prompt_data=data, rollout_shuffle=False)
        groups = roll(args)
        batch = converted(args, groups)
    assert [[sample.reward for sample in group] for group in groups] == [[1.0, 1.0], [0.0, 0.0]]
    facts = [sample.metadata["envkit_episode"] for group in groups for sample in group]
    assert [one["turns"] for one in facts] == [2] * 4
    assert batch["raw_reward"] == [1.0, 1.0, 0.0, 0.0]
    played = list(read_trajectories(tmp_path / "runs"))
    assert {json.dumps(one.task["answers"]) for one in played} == {'["Ada"]', '["Bern"]'}


MILES_SCALE: dict[str, Any] = {
    **SCALE,
    "rollout_num_gpus": 1,
    "rollout_num_gpus_per_engine": 1,
    "rollout_shuffle": False,
}


def stand_in_for_qwen_vl_utils(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode a conversation's images, as the package does that miles reads them with."""

    def images_of(messages: list[dict[str, Any]], **_: object) -> tuple[list[Any], None]:
        contents = [part for entry in messages for part in entry["content"]]
        uris = [part["image"] for part in contents if part["type"] == "image"]
        return [Image.from_data_uri(uri).pil() for uri in uris], None

    module: Any = types.ModuleType("qwen_vl_utils")
    module.process_vision_info = images_of
    monkeypatch.setitem(sys.modules, "qwen_vl_utils", module)


@pytest.mark.usefixtures("needs_miles")
async def test_miles_geo3k_example_trains_with_the_changes_of_our_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        args = Namespace(**{**known, **absent, **model, **MILES_SCALE, **config, **data})
        groups = await roll_miles(args, monkeypatch)
    rewards = [[sample.reward for sample in group] for group in groups]
    assert rewards == [[1.0, 1.0], [0.0, 0.0]]
    batch = convert_miles(args, [sample for group in groups for sample in group])
    assert batch["rewards"] == [0.0] * 4
    assert [len(one["image_grid_thw"]) for one in batch["multimodal_train_inputs"]] == [1] * 4


async def roll_miles(args: Namespace, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
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


def convert_miles(args: Namespace, samples: list[Any]) -> dict[str, Any]:
    from miles.ray.rollout.train_data_conversion import convert_samples_to_train_data
    from miles.utils.misc import load_function

    function = load_function(args.custom_reward_post_process_path)
    return convert_samples_to_train_data(args, samples, {}, None, function)
