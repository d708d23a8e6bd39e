"""The same rollouts against a real SGLang server: scripts/contracts/slime/real_server.py starts it.

The model is tiny and random, so replies mean nothing; ids, counts, log-probabilities, the prefix
cache and aborts are real.
"""

import asyncio
import os
import pickle
from typing import Any

import pytest
from fakes.needs import SLIME_SERVER
from fakes.slime_run import slime_args

from envkit.trajectory import SegmentKind, read_trajectories, verify_file

URL, MODEL = os.environ.get("ENVKIT_SGLANG_URL", ""), os.environ.get("ENVKIT_SGLANG_MODEL", "")
pytestmark = [
    pytest.mark.slime,
    pytest.mark.sglang,
    pytest.mark.usefixtures("needs_slime"),
    SLIME_SERVER.mark,
]

DOTS: dict[str, Any] = {
    "env_id": "toy-dots-v0",
    "env_kwargs": {"rounds": 3, "max_turns": 3, "size": 112},
    "sampling": {"max_new_tokens": 24},
    "engine": {"timeout_s": 300},
}


def samples_of(size: int) -> list[Any]:
    from slime.utils.types import Sample

    return [Sample(group_index=0, index=n) for n in range(size)]


async def test_slime_real_server_plays_turns_with_new_images(tmp_path: Any) -> None:
    from slime.rollout.sglang_rollout import GenerateState, generate_and_rm_group

    args = slime_args(URL, MODEL, {**DOTS, "record_dir": str(tmp_path)})
    params = GenerateState(args).sampling_params.copy()
    group = await generate_and_rm_group(args, samples_of(2), params)
    assert verify_file(tmp_path).is_sound
    ledgers = {t.metadata["sample_index"]: t for t in read_trajectories(tmp_path)}
    for sample in group:
        assert sample.status is sample.Status.TRUNCATED, sample.metadata
        sample._validate_response_metadata_lengths()
        trajectory = ledgers[sample.index]
        assert tuple(sample.tokens) == trajectory.train_ids()
        assert len(sample.multimodal_train_inputs["image_grid_thw"]) == 3
        assert sample.prefix_cache_info.cached_tokens > 0
        assert all(value <= 0.0 for value in sample.rollout_log_probs)


async def test_slime_real_server_abort_and_resume_with_images(tmp_path: Any) -> None:
    from slime.backends.sglang_utils.server_control import abort_servers_until_idle
    from slime.rollout.sglang_rollout import GenerateState, generate_and_rm_group
    from slime.utils.http_utils import get, init_http_client
    from slime.utils.types import Sample

    long = {**DOTS, "sampling": {"max_new_tokens": 200}, "record_dir": str(tmp_path)}
    args = slime_args(URL, MODEL, long, partial_rollout=True, rollout_max_response_len=1024)
    init_http_client(args)
    state = GenerateState(args)
    workers = [worker["url"] for worker in (await get(f"{URL}/workers"))["workers"]]
    group, aborts = samples_of(2), 0
    for delay in (1.5, 4.0, None):
        params = state.sampling_params.copy()
        task = asyncio.create_task(generate_and_rm_group(args, group, params))
        await asyncio.wait({task}, timeout=delay)
        if not task.done():
            state.aborted = True
            await abort_servers_until_idle(workers)
        group = await task
        state.reset()
        aborts += any(s.status is Sample.Status.ABORTED for s in group)
        group = [Sample.from_dict(pickle.loads(pickle.dumps(s.to_dict()))) for s in group]
    assert aborts
    report = verify_file(tmp_path)
    assert report.is_sound, str(report)
    ledgers = {t.metadata["sample_index"]: t for t in read_trajectories(tmp_path)}
    for sample in group:
        assert sample.status is Sample.Status.TRUNCATED, sample.metadata
        trajectory = ledgers[sample.index]
        assert tuple(sample.tokens) == trajectory.train_ids()
        replies = [s for s in trajectory.segments if s.kind is SegmentKind.MODEL]
        assert len(sample.weight_versions) == len(replies)
        assert len(replies) >= len(trajectory.turns)


def test_slime_real_server_generate_rollout_with_over_sampling(tmp_path: Any) -> None:
    from slime.rollout.sglang_rollout import generate_rollout
    from slime.utils.http_utils import init_http_client

    from envkit_slime import DataSource

    args = slime_args(
        URL,
        MODEL,
        {**DOTS, "record_dir": str(tmp_path)},
        partial_rollout=True,
        over_sampling_batch_size=3,
        rollout_batch_size=1,
    )
    init_http_client(args)
    source = DataSource(args)
    seen: list[Any] = []
    for rollout_id in range(3):
        seen += generate_rollout(args, rollout_id, source).samples[0]
    assert all(s.status is s.Status.TRUNCATED for s in seen), [s.metadata for s in seen]
    assert verify_file(tmp_path).is_sound
