"""A SkyRL run for tests: real configuration, real trainer, fake client."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import AsyncMock, MagicMock

from fakes.codecs import text_codec, vision_codec
from fakes.skyrl_client import FakeClient, Policy, say
from loguru import logger  # pyright: ignore[reportMissingImports]
from skyrl.train.config import SkyRLTrainConfig  # pyright: ignore[reportMissingImports]
from skyrl.train.generators.base import BatchMetadata, TrajectoryID  # pyright: ignore[reportMissingImports]

from envkit.rollout import ENVKIT_COLUMN, EpisodeRequest
from envkit_skyrl import EnvGenerator, SkyRLOptions
from envkit_skyrl.trainer import EnvkitTrainer

logger.remove()


class Run:
    """One generator, its client and the trainer that takes its output."""

    def __init__(
        self,
        *words: Any,
        policy: Policy | None = None,
        vision: bool = False,
        step_wise: bool = False,
        samples: int = 2,
        prompts: int = 1,
        env: str = "obey-v0",
        env_kwargs: dict[str, Any] | None = None,
        envkit: dict[str, Any] | None = None,
        generator: dict[str, Any] | None = None,
        client: dict[str, Any] | None = None,
        codec: Any = None,
        dp: int = 1,
        **arguments: Any,
    ) -> None:
        self.samples, self.prompts, self.dp = samples, prompts, dp
        self.codec = codec or (vision_codec() if vision else text_codec())
        self.client = FakeClient(self.codec, policy or say(*words), **(client or {}))
        self.cfg: Any = SkyRLTrainConfig()
        self._configure(step_wise, generator or {})
        self.request = EpisodeRequest(env_id=env, env_kwargs=env_kwargs or {})
        section: dict[str, Any] = {"env_id": env, "env_kwargs": env_kwargs or {}}
        section["draw_tasks"] = True
        section["retries"] = {"backoff": {"initial_s": 0.01}}
        self.cfg.envkit = {**section, **(envkit or {})}
        self.options = SkyRLOptions.from_mapping(self.cfg.envkit)
        self.generator = EnvGenerator(
            self.cfg.generator, self.client, self.codec, options=self.options, **arguments
        )

    def _configure(self, step_wise: bool, generator: dict[str, Any]) -> None:
        cfg = self.cfg
        cfg.trainer.train_batch_size = self.prompts
        cfg.trainer.policy_mini_batch_size = cfg.trainer.critic_mini_batch_size = self.prompts
        cfg.trainer.resume_mode = "none"
        cfg.trainer.critic.model.path = None
        cfg.trainer.algorithm.advantage_estimator = "grpo"
        cfg.generator.n_samples_per_prompt = self.samples
        cfg.generator.step_wise_trajectories = step_wise
        cfg.generator.max_turns = 8
        cfg.generator.max_input_length = 4096
        cfg.generator.sampling_params.max_generate_length = 64
        cfg.generator.inference_engine.enable_ray_prometheus_stats = False  # else it wants a ray
        for key, value in generator.items():
            setattr(cfg.generator, key, value)

    def batch(
        self,
        requests: Sequence[EpisodeRequest | None] | None = None,
        *,
        uids: Sequence[str] | None = None,
        phase: str = "train",
        params: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return SkyRL's input: each prompt repeated for its group, next to each other."""
        uids = uids or [str(index) for index in range(self.prompts)]
        rows = requests or [None] * len(uids)
        extras: list[dict[str, Any]] = []
        ids: list[TrajectoryID] = []
        for uid, request in zip(uids, rows, strict=True):
            for member in range(self.samples):
                extras.append({} if request is None else {ENVKIT_COLUMN: request.to_column()})
                ids.append(TrajectoryID(instance_id=uid, repetition_id=member))
        return {
            "prompts": [[{"role": "user", "content": "from the dataset"}] for _ in ids],
            "env_classes": [self.request.env_id] * len(ids),
            "env_extras": extras,
            "sampling_params": params,
            "trajectory_ids": ids,
            "batch_metadata": BatchMetadata(global_step=1, training_phase=phase),
        }

    async def generate(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the generator's output for one batch."""
        return await self.generator.generate(self.batch(*args, **options), disable_tqdm=True)

    def trainer(self, *, merge: bool = False) -> Any:
        """Return SkyRL's real trainer; only its workers are missing."""
        self.cfg.generator.merge_stepwise_output = merge
        return real_trainer(self.cfg, dp=self.dp)

    async def train(
        self, output: dict[str, Any], *, merge: bool = False, trainer: Any = None
    ) -> Any:
        """Return the trainer's batch with advantages: everything before the optimizer."""
        trainer = trainer or self.trainer(merge=merge)
        return await trained(trainer, output, self.samples * self.prompts)


def real_trainer(cfg: Any, *, dp: int) -> Any:
    """Return SkyRL's trainer of a configuration, without workers."""
    dataset = MagicMock()
    dataset.__len__.return_value = max(8, cfg.trainer.train_batch_size)
    dataset.collate_fn = list
    trainer: Any = EnvkitTrainer(
        cfg=cfg, tracker=None, tokenizer=MagicMock(pad_token_id=0), train_dataset=dataset,
        eval_dataset=None, inference_engine_client=None, generator=MagicMock(),
    )  # fmt: skip
    trainer.dispatch = MagicMock()
    trainer.dispatch.get_lcm_dp_size.return_value = dp
    return trainer


async def trained(trainer: Any, output: dict[str, Any], prompts: int) -> Any:
    """Return the batch that a trainer builds from a generator's output, with advantages."""
    trainer.generator.generate = AsyncMock(return_value=output)
    checked = await trainer.generate({"prompts": [None] * prompts})
    uids = [identity.instance_id for identity in checked["trajectory_ids"]]
    batch = trainer.convert_to_training_input(*trainer.postprocess_generator_output(checked, uids))
    batch["values"] = None
    return trainer.compute_advantages_and_returns(batch)


def advantages(batch: Any) -> list[float]:
    """Return the advantage of each row, padding rows left out."""
    pairs = zip(batch["advantages"], batch["response_mask"], strict=True)
    return [round(float(row[mask.bool()][0]), 3) for row, mask in pairs if mask.any()]
