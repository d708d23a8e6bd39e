"""slime's debug dumps of our own samples come in again, images and all."""

from pathlib import Path

import pytest
from fakes.slime_groups import group_of, roll_group
from fakes.slime_run import DOTS, vision_server

from envkit_exchange import DumpFormat, SlimeOptions, read_dump

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_slime")]


async def test_slime_debug_dumps_of_our_samples_are_read_without_pickle(tmp_path: Path) -> None:
    data_utils = pytest.importorskip("slime.observability.rollout_data_utils")

    with vision_server(lambda _: "5") as served:
        group = await roll_group(served.args(DOTS), group_of(2))
    data_utils.save_debug_rollout_data(
        str(tmp_path / "{rollout_id}.pt"), group, rollout_id=7, evaluation=False
    )
    found = list(read_dump(tmp_path / "7.pt", DumpFormat.SLIME, SlimeOptions()))
    assert [one.train_ids() for one in found] == [tuple(sample.tokens) for sample in group]
