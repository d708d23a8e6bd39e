"""SkyRL's own PromptDataset reads what `envkit export --format skyrl` writes."""

from pathlib import Path
from typing import Any

import pytest
from fakes.envs import register_toys
from skyrl.train.dataset.dataset import PromptDataset

from envkit.images import Image
from envkit.rollout import EpisodeRequest
from envkit_exchange import TaskDraw, TaskFormat, export_tasks

pytestmark = pytest.mark.skyrl


class _Tokenizer:
    """All that the length filter needs."""

    def apply_chat_template(self, messages: Any, **options: Any) -> list[int]:
        return [0] * len(messages)


@pytest.mark.parametrize("with_images", [False, True])
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_skyrls_dataset_reads_exported_tasks(
    suffix: str, with_images: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    register_toys()
    path = tmp_path / f"tasks{suffix}"
    with TaskDraw("toy-dots-v0", count=3) as draw:
        export_tasks(draw, path, TaskFormat.SKYRL, with_images=with_images)
        examples = list(draw)
    tokenizer: Any = _Tokenizer()
    dataset = PromptDataset(str(path), tokenizer, 100, num_workers=1)

    assert len(dataset) == 3
    for number, example in enumerate(examples):
        messages, env_class, extras, uid = dataset[number]
        assert (env_class, uid) == ("toy-dots-v0", str(number))
        assert EpisodeRequest.from_column(extras["envkit"]) == example.request
        if with_images:
            url = messages[-1]["content"][0]["image_url"]["url"]
            assert Image.from_data_uri(url) == example.images[0]
