"""Several agents under TRL: the async worker takes them, one row for each prompt does not."""

from pathlib import Path

import pytest
from fakes.agents import GuessEnv, register_agents
from fakes.trl_run import async_arguments, byte_tokenizer
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest, EpisodeSpec, Player, Sampling, ScriptedEngine
from envkit.tokens import ChatCodec
from envkit_trl import EnvRolloutWorker, request_dataset
from envkit_trl.batch import BatchPlace, play_batch
from envkit_trl.samples import RowSettings, group_samples

pytestmark = [
    pytest.mark.trl,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error:.*envkit"),
]
REQUEST = EpisodeRequest(env_id="toy-guess-v0", task={"number": 3})


@pytest.fixture(autouse=True)
def toys() -> None:
    register_agents()


async def test_group_compares_a_role_with_the_same_role_of_its_group() -> None:
    codec = ChatCodec(byte_tokenizer())
    player = Player(ScriptedEngine(codec, GuessEnv().oracle()), codec)
    lost = Player(ScriptedEngine(codec, lambda context: "8"), codec)
    played = [
        one
        for each in (player, lost)
        for one in await each.play(REQUEST.factory(), EpisodeSpec(seed=1, task=REQUEST.task))
    ]
    for each in (player, lost):
        await each.aclose()

    samples, _ = group_samples(
        played, group_id=4, version=0, settings=RowSettings(end_id=codec.stop_ids[0])
    )

    assert [sample.metrics["reward"] for sample in samples] == [1.0, 0.0, 0.5, 0.25]
    assert all(isinstance(sample, RolloutSample) for sample in samples)
    assert [round(sample.advantage, 3) for sample in samples] == [0.707, -0.707, 0.707, -0.707]


def test_worker_delivers_rows_of_every_role(tmp_path: Path) -> None:
    codec = ChatCodec(byte_tokenizer())
    worker = EnvRolloutWorker(
        async_arguments(tmp_path),
        request_dataset([REQUEST]),
        engine=ScriptedEngine(codec, GuessEnv().oracle()),
        codec=codec,
        config={"sampling": {"max_new_tokens": 64}},
    )
    worker.start()
    try:
        samples = [worker.rollout_buffer.get(timeout=60) for _ in range(4)]
    finally:
        worker.stop()

    assert sorted(sample.metrics["reward"] for sample in samples[:4]) == [0.5, 0.5, 1.0, 1.0]


async def test_one_row_for_each_prompt_is_refused() -> None:
    codec = ChatCodec(byte_tokenizer())
    player = Player(ScriptedEngine(codec, GuessEnv().oracle()), codec)
    place = BatchPlace(seeds=(0,), first_row=0, group_size=2)
    try:
        with pytest.raises(ConfigurationError, match="AsyncGRPOTrainer"):
            await play_batch(player, [REQUEST], place, sampling=Sampling())
    finally:
        await player.aclose()
