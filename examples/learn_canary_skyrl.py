"""Train a vision-language model to read digits off images with SkyRL's own code on a CPU.

    python examples/learn_canary_skyrl.py --seed 0

The same run as learn_canary_trl.py with another trainer. SkyRL's `train()` gets episodes from
envkit's generator, computes advantages and calls SkyRL's policy worker, which holds SkyRL's model
wrapper and steps the optimizer. The embedded engine samples. FSDP's sharding, Ray's actors and vLLM
need CUDA and are omitted; one process calls the worker directly instead.

Needs: pip install 'envkit-rl[transformers,skyrl]'
"""

# ruff: noqa: ANN401, D102  # parts of SkyRL, whose methods say what they do

import asyncio
import copy
import importlib
import importlib.util
import os
import sys
import tempfile
import time
import typing
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import typing_extensions
from canary_run import (
    CHANCE,
    ENV,
    ENV_ID,
    GROUP,
    check_quick,
    evaluate,
    make_policy,
    parse_options,
    warm_up,
)
from canary_run import report as write_report
from curves import Run
from transformers import get_scheduler

import envkit_canary
from envkit.images import Image
from envkit.registration import register, registry
from envkit.rollout import GenerateRequest
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.seeds import derive_seed
from envkit.tokens import ChatCodec
from envkit_skyrl.images import RenderedImage
from envkit_skyrl.sampling import to_sampling
from envkit_transformers import TransformersEngine

_STAND_INS: Final[Mapping[str, tuple[str, ...]]] = {
    "flash_attn.bert_padding": ("pad_input", "unpad_input"),
    "peft": ("LoraConfig", "TaskType", "get_peft_model"),
    "peft.tuners.lora": ("LoraLayer",),
    "peft.utils.save_and_load": ("get_peft_model_state_dict",),
}
"""Imports of SkyRL's worker modules that a run without LoRA and CUDA never calls."""


def stand_in() -> None:
    """Make SkyRL's worker modules importable without flash-attn and peft."""
    for place in ("trainer_utils", "models.qwen2_5_vl.modeling_qwen2_5_vl"):
        importlib.import_module(f"transformers.{place}")  # these check for peft themselves
    if sys.version_info < (3, 12):  # skyrl/tinker/types.py
        typing.TypedDict = typing_extensions.TypedDict  # pyright: ignore[reportAttributeAccessIssue]
    missing = [name for name in ("flash_attn", "peft") if not importlib.util.find_spec(name)]
    for place, names in _STAND_INS.items():
        if place.partition(".")[0] not in missing:
            continue
        words = place.split(".")
        for end in range(1, len(words) + 1):
            name = ".".join(words[:end])
            made = sys.modules.setdefault(name, ModuleType(name))
            made.__spec__ = ModuleSpec(name, None)
        for name in names:
            setattr(sys.modules[place], name, type(name, (), {}))


stand_in()

from skyrl.backends.skyrl_train.distributed.dispatch import MeshDispatch  # noqa: E402
from skyrl.backends.skyrl_train.distributed.fsdp_strategy import FSDPStrategy  # noqa: E402
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry  # noqa: E402
from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper  # noqa: E402
from skyrl.backends.skyrl_train.workers.worker import PolicyWorkerBase  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

from envkit_skyrl.experiment import (  # noqa: E402
    EnvkitTrainConfig,
    make_generator,
    prepare_config,
)
from envkit_skyrl.trainer import EnvkitTrainer  # noqa: E402


def main() -> int:
    """Run warm-up, GRPO and evaluation; returns the exit status."""
    options = parse_options((__doc__ or "").split("\n\n")[0])
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    if ENV_ID not in registry():
        register(ENV_ID, envkit_canary.SPEC.entry_point)
    started = time.monotonic()
    policy = make_policy(options)
    codec = policy.codec()
    run = Run(seed=options.seed, parameters=policy.parameter_count, chance=CHANCE)
    warm_up(policy, codec, run, options)
    engine = TransformersEngine(copy.deepcopy(policy.model), policy.processor, seed=options.seed)
    before = [parameter.detach().clone() for parameter in policy.model.parameters()]
    run.start = evaluate(engine, codec, options)
    print(f"before GRPO: {run.start['images']:.3f} with images", flush=True)
    with patch.object(torch.cuda, "current_device", return_value="cpu"):  # SkyRL's worker asks
        trainer = make_trainer(policy, engine, codec, run, options)
        asyncio.run(trainer.train())
    run.end = evaluate(engine, codec, options, ablations=True)
    asyncio.run(engine.aclose())
    torch.distributed.destroy_process_group()
    after = policy.model.parameters()
    run.changed = sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    run.tensors = len(before)
    run.seconds, run.cpu_seconds = time.monotonic() - started, time.process_time()
    write_report(run, options, "skyrl-canary")
    return check_quick(run, mismatch=1e-2) if options.quick else 0


def make_trainer(
    policy: Any,
    engine: TransformersEngine,
    codec: ChatCodec,
    run: Run,
    options: Any,
) -> EnvkitTrainer:
    """Return SkyRL's trainer with everything around it; the settings are those of the TRL run."""
    cfg: Any = EnvkitTrainConfig.from_cli_overrides(
        [
            f"trainer.train_batch_size={options.prompts}",
            f"trainer.policy_mini_batch_size={options.prompts}",
            f"trainer.critic_mini_batch_size={options.prompts}",
            "trainer.micro_train_batch_size_per_gpu=32",
            "trainer.micro_forward_batch_size_per_gpu=32",
            "trainer.algorithm.advantage_estimator=grpo",
            "trainer.algorithm.loss_reduction=token_mean",
            "trainer.algorithm.use_kl_loss=false",
            "trainer.algorithm.temperature=1.0",
            f"trainer.policy.optimizer_config.lr={options.learning_rate}",
            "trainer.policy.optimizer_config.weight_decay=0.0",
            "trainer.policy.optimizer_config.max_grad_norm=1.0",
            "trainer.policy.optimizer_config.adam_betas=[0.9,0.95]",
            "trainer.placement.colocate_all=false",
            "trainer.resume_mode=none",
            "trainer.epochs=1",
            "trainer.eval_interval=-1",
            "trainer.ckpt_interval=-1",
            "trainer.hf_save_interval=-1",
            "trainer.enable_ray_gpu_monitor=false",
            "trainer.remove_microbatch_padding=false",
            "data.dataloader.num_workers=0",
            f"generator.n_samples_per_prompt={GROUP}",
            "generator.max_turns=2",
            "generator.max_input_length=1024",
            "generator.sampling_params.max_generate_length=8",
            "generator.inference_engine.enable_ray_prometheus_stats=false",
            f"envkit.seed={options.seed}",
            "envkit.turn_discount=0.0",  # no image depends on an earlier reply
        ]
    )
    prepare_config(cfg)
    client = EngineClient(engine, codec)
    trainer = EnvkitTrainer(
        cfg=cfg,
        tracker=Tracker(run, options.steps),
        tokenizer=policy.processor.tokenizer,
        train_dataset=Prompts(options),
        inference_engine_client=client,
        generator=make_generator(cfg, client, codec=codec),
    )
    store = f"file://{tempfile.mkdtemp(prefix='learn-canary-')}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    trainer.dispatch = Dispatch(Worker(cfg.trainer, policy.model, options.steps), engine)
    return trainer


class EngineClient:
    """SkyRL's inference client in front of the embedded engine."""

    model_name = "policy"

    def __init__(self, engine: TransformersEngine, codec: ChatCodec) -> None:
        self._engine, self._codec, self._count = engine, codec, 0

    async def render_chat_completion(self, request_payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return an image's placeholders, and the image itself as its "serialised" form."""
        uri = request_payload["json"]["messages"][0]["content"][0]["image_url"]["url"]
        image = Image.from_data_uri(uri)
        (feature,) = self._codec.image_features([image])
        length = feature.token_count
        made = RenderedImage(identity=image.sha256, data=uri, token_count=length)
        return {
            "token_ids": [self._codec.media_ids[0]] * length,
            "features": {
                "mm_hashes": {"image": [made.identity]},
                "mm_placeholders": {"image": [{"offset": 0, "length": length}]},
                "kwargs_data": {"image": [made.data]},
            },
        }

    async def generate(
        self, input_batch: Mapping[str, Any], model: str | None = None
    ) -> dict[str, Any]:
        """Sample one turn."""
        (ids,), (session,) = input_batch["prompt_token_ids"], input_batch["session_ids"]
        (features,) = input_batch.get("mm_features") or [None]
        wire, images, at = [], [], 0
        if features:
            uris = features["kwargs_data"]["image"]
            for place, uri in zip(features["mm_placeholders"]["image"], uris, strict=True):
                wire += [*ids[at : place["offset"]], self._codec.media_ids[0]]
                at = place["offset"] + place["length"]
                images.append(Image.from_data_uri(uri))
        self._count += 1
        params = dict(input_batch["sampling_params"])
        kept = {key: params[key] for key in ("max_tokens", "temperature", "stop_token_ids")}
        found = await self._engine.generate(
            GenerateRequest(
                request_id=f"request-{self._count:09d}",
                session_id=session,
                wire_ids=[*wire, *ids[at:]],
                images=images,
                features=self._codec.image_features(images) if images else (),
                train_length=len(ids),
                sampling=to_sampling(kept),
            )
        )
        return {
            "response_ids": [list(found.token_ids)],
            "response_logprobs": [list(found.logprobs)],
            "stop_reasons": [found.finish_reason.value],
        }

    async def finish_session(self, session_id: str) -> None:
        """Free the episode's cache."""
        await self._engine.end_session(session_id)


class Worker(PolicyWorkerBase):  # pyright: ignore[reportUntypedBaseClass]
    """SkyRL's policy worker in this process, with the model wrapped but not sharded."""

    def __init__(self, cfg: Any, model: Any, steps: int) -> None:
        self.cfg: Any = cfg
        self.policy_loss_fn = PolicyLossRegistry.get(cfg.algorithm.policy_loss_type)
        self.model: Any = HFModelWrapper(model)
        self.model.is_vlm = True
        settings = cfg.policy.optimizer_config
        self.strategy: Any = FSDPStrategy(
            fsdp_config=cfg.policy.fsdp_config,
            optimizer_config=settings,
            model_config=cfg.policy.model,
            num_training_steps=steps,
        )
        self.strategy.world_size = 1
        self.optimizer: Any = torch.optim.AdamW(
            model.parameters(), settings.lr, settings.adam_betas, weight_decay=settings.weight_decay
        )
        self.scheduler: Any = get_scheduler(
            "warmup_stable_decay",
            self.optimizer,
            num_warmup_steps=min(10, steps // 3),
            num_training_steps=steps,
            scheduler_specific_kwargs={"num_decay_steps": 2 * steps // 3},
        )
        self.mesh_rank: Any = SimpleNamespace(dp_size=1)
        self.device_mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))


class Dispatch:
    """SkyRL's WorkerDispatch for one worker in this process."""

    def __init__(self, worker: Worker, engine: TransformersEngine) -> None:
        self._worker, self._engine, self._version = worker, engine, 0

    def get_lcm_dp_size(self) -> int:
        return 1

    def stage_data(self, model: str, data: Any, boundaries: Sequence[tuple[int, int]]) -> Any:
        with patch("skyrl.backends.skyrl_train.distributed.dispatch.ray.put", _itself):
            return MeshDispatch.stage_chunks(1, data, list(boundaries))

    def forward_from_staged(self, model: str, chunks: Any) -> Any:
        return self._worker.forward(chunks[0])

    def forward_backward_from_staged(self, model: str, chunks: Any) -> Any:
        return self._worker.forward_backward(chunks[0])

    def optim_step(self, model: str) -> Any:
        return self._worker.optim_step()

    async def save_weights_for_sampler(self) -> None:
        """Pass the weights to the engine."""
        self._version += 1
        weights = dict(self._worker.model.model.state_dict())
        await self._engine.update_weights(weights, version=str(self._version))

    def get_timing_metrics(self) -> dict[str, float]:
        return {}

    def __getattr__(self, name: str) -> Any:
        if name in ("init_weight_sync_state", "empty_cache", "finalize_pending_saves"):
            return lambda *_: None
        raise AttributeError(name)


def _itself(chunk: Any) -> Any:
    return chunk


class Prompts:
    """The training set: one seed per prompt."""

    def __init__(self, options: Any) -> None:
        count = options.steps * options.prompts
        self._seeds = [derive_seed("train", options.seed, number) for number in range(count)]

    def __len__(self) -> int:
        return len(self._seeds)

    def __getitem__(self, number: int) -> dict[str, Any]:
        request = EpisodeRequest(env_id=ENV_ID, env_kwargs=ENV, seed=self._seeds[number])
        return {
            "prompt": [{"role": "user", "content": ENV_ID}],
            "env_class": None,
            "env_extras": {ENVKIT_COLUMN: request.to_column()},
            "uid": str(number),
        }

    def collate_fn(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return rows


class Tracker:
    """Prints a line after every optimizer step and keeps the figures."""

    def __init__(self, run: Run, steps: int) -> None:
        self._run, self._steps, self._last = run, steps, time.monotonic()

    def log(self, data: Mapping[str, float], step: int, commit: bool = False) -> None:
        """Record the step's figures."""
        diff = "policy/rollout_train_logprobs_abs_diff"
        self._run.rewards.append(data["envkit/reward/mean"])
        self._run.mismatch.append((data[f"{diff}_max"], data[f"{diff}_mean"]))
        now = time.monotonic()
        print(
            f"GRPO {step:4d}/{self._steps}  reward {self._run.rewards[-1]:.3f}  engine - trainer: "
            f"max {self._run.mismatch[-1][0]:.1e} mean {self._run.mismatch[-1][1]:.1e}  "
            f"{now - self._last:.1f} s",
            flush=True,
        )
        self._last = now

    def finish(self) -> None:
        """Do nothing: nothing is open."""


if __name__ == "__main__":
    sys.exit(main())
