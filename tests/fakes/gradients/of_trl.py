"""TRL's real trainers for the gradient suite: from recorded episodes to gradients of TRL's loss.

It runs on a CPU: the same formula replaces TRL's packed attention, a GPU kernel. Both trainers with
images remove placeholders from the model's distribution, as engines do. The reference formula does
not, so the comparison turns this off.
"""

import copy
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import trl.experimental.async_grpo.async_grpo_trainer as trl_async
import trl.experimental.async_grpo.packing as trl_packing
from accelerate import PartialState
from datasets import Dataset
from fakes.gradients import (
    CLIP,
    CONSTANT_TOKENS,
    GROUP_SIZE,
    Difference,
    GradientPath,
    LossCase,
    Policy,
    Reduction,
)
from fakes.packed_attention import packed_attention
from safetensors.torch import save_model
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2VLImageProcessorPil
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.async_grpo import AsyncGRPOConfig

from envkit.advantages import EPSILON, Baseline
from envkit.rollout.config import RolloutConfig
from envkit.rollout.request import EpisodeRequest
from envkit.tokens import join_features
from envkit.trajectory import Segment, SegmentKind, Trajectory
from envkit_conformance import Shape
from envkit_trl.async_trainer import EnvAsyncGRPOTrainer
from envkit_trl.batch import BatchPlayer
from envkit_trl.policy import Policy as EnginePolicy
from envkit_trl.processor import build_processor
from envkit_trl.rollout import EnvRollout
from envkit_trl.rows import env_reward
from envkit_trl.samples import group_samples
from envkit_trl.trainer import EnvGRPOTrainer
from envkit_trl.worker import EnvRolloutWorker

_ROW: Final = {
    "prompt": [{"role": "user", "content": "t3"}],
    "envkit": EpisodeRequest(env_id="recorded-v0").to_column(),
}
_LOSSES: Final = {
    Reduction.EPISODE_MEAN: "grpo",
    Reduction.TOKEN_MEAN: "dapo",
    Reduction.CONSTANT: "dr_grpo",
}
_EPSILON: Final = 1e-4
"""Epsilon that TRL's GRPOTrainer adds to a standard deviation."""


def _synchronous(
    make: Callable[..., Any],
    policy: Policy,
    trajectories: Sequence[Trajectory],
    shape: Shape,
    case: LossCase,
) -> None:
    """Accumulate the gradient of GRPOTrainer's loss in the policy; ranks share the rows."""
    del shape  # it takes only one row per prompt
    model = copy.deepcopy(policy.model)
    rows = len(trajectories) // PartialState(cpu=True).num_processes
    args = GRPOConfig(
        per_device_train_batch_size=rows,
        num_generations=GROUP_SIZE,
        loss_type=_LOSSES[case.reduction],
        scale_rewards="group" if case.is_scaled else "none",
        epsilon=CLIP,
        steps_per_generation=1,
        **_arguments(),
    )
    trainer, player = make(policy, model, args)
    first = trainer.accelerator.process_index * rows
    played = _small(trajectories[first : first + rows], policy, case)
    player.play = lambda _: played
    trainer.current_gradient_accumulation_steps = 1
    batch = trainer._generate_and_score_completions([dict(_ROW) for _ in range(rows)])
    if case.is_off_policy:  # what TRL computes if generation and optimizer steps are not aligned
        batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
    trainer.compute_loss(model, batch).backward()
    player.close()
    _set_gradients(policy, model, trainer)


def _by_function(policy: Policy, model: Any, args: GRPOConfig) -> tuple[Any, BatchPlayer]:
    """Return GRPOTrainer with a rollout function, and its player."""
    sampler = EnginePolicy(SimpleNamespace(), _nothing, is_owned=False)  # type: ignore[arg-type]
    rollout = EnvRollout(RolloutConfig(env_id="recorded-v0"), sampler, _codec(policy), None)
    trainer = GRPOTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list([_ROW] * GROUP_SIZE),
        processing_class=_tokenizer(policy),
        reward_funcs=env_reward,
        rollout_func=rollout,
    )
    return trainer, rollout.prepare(trainer)


def _by_trainer(policy: Policy, model: Any, args: GRPOConfig) -> tuple[Any, BatchPlayer]:
    """Return the trainer with images, and its player."""
    processing: Any = _tokenizer(policy)
    if policy.has_images:
        processing = build_processor(
            model.config, tokenizer=processing, image_processor=Qwen2VLImageProcessorPil()
        )
    trainer = EnvGRPOTrainer(
        model,
        args=args,
        engine=SimpleNamespace(),  # type: ignore[arg-type]
        send_weights=_nothing,
        codec=_codec(policy),
        train_dataset=Dataset.from_list([_ROW] * GROUP_SIZE),
        processing_class=processing,
    )
    return trainer, trainer.player


def _asynchronous(
    policy: Policy, trajectories: Sequence[Trajectory], shape: Shape, case: LossCase
) -> None:
    """Accumulate the gradient of AsyncGRPOTrainer's loss in the policy; ranks share the rows."""
    del shape
    trl_async.get_peak_flops_per_device = lambda *_, **__: 1.0
    trl_packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=packed_attention)
    with tempfile.TemporaryDirectory() as folder:
        config: Any = copy.deepcopy(policy.model.config)
        config.architectures = [type(policy.model).__name__]
        config.save_pretrained(folder)  # a model's own save_pretrained skips all ranks but one
        save_model(policy.model, f"{folder}/model.safetensors", metadata={"format": "pt"})
        args = AsyncGRPOConfig(
            num_generations=GROUP_SIZE,
            epsilon=CLIP,
            token_budget=0,  # a fixed number of rows
            **_arguments(),
        )
        image_id = getattr(policy.model.config, "image_token_id", None)
        engine = SimpleNamespace(name="replay", update_weights=_nothing)
        worker = EnvRolloutWorker(
            args,
            [_ROW],
            engine=engine,  # type: ignore[arg-type]
            codec=_codec(policy, [] if image_id is None else [image_id]),
            scale_rewards=case.is_scaled,
        )
        trainer = EnvAsyncGRPOTrainer(
            folder,
            rollout_worker=worker,
            args=args,
            train_dataset=Dataset.from_list([_ROW]),
            processing_class=_tokenizer(policy),
        )
    trainer.model.load_state_dict(policy.model.state_dict())
    trainer.model.double().train()
    trainer.current_gradient_accumulation_steps = 1
    groups: dict[str | None, list[Trajectory]] = {}
    for one in _small(trajectories, policy, case):
        groups.setdefault(one.group_id, []).append(one)
    samples = [
        sample
        for number, members in enumerate(groups.values())
        for sample in group_samples(
            members, group_id=number, version=0, settings=worker.row_settings()
        )[0]
    ]
    trainer.args.per_device_train_batch_size = len(samples) // trainer.accelerator.num_processes
    for sample in samples * 2:  # TRL's loader reads one batch ahead
        worker.rollout_buffer.put(sample)
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.media_ids = ()
    trainer.compute_loss(trainer.model, batch).backward()
    _set_gradients(policy, trainer.model, trainer)


def _small(
    trajectories: Sequence[Trajectory], policy: Policy, case: LossCase
) -> tuple[Trajectory, ...]:
    """Return trajectories in the policy's vocabulary, with its log-probabilities."""
    return tuple(
        replace(
            trajectory,
            segments=tuple(
                segment
                for sequence in trajectory.sequences()
                for segment in _small_sequence(sequence.segments, policy, case)[sequence.at :]
            ),
        )
        for trajectory in trajectories
    )


def _small_sequence(sequence: Sequence[Segment], policy: Policy, case: LossCase) -> list[Segment]:
    ids = policy.small([one for segment in sequence for one in segment.train_ids])
    tensors = join_features(one for segment in sequence for one in segment.features)
    score = policy.old_logprobs if case.is_off_policy else policy.logprobs
    scores = [0.0, *(score(ids, tensors).detach().tolist() if len(ids) > 1 else [])]
    changed: list[Segment] = []
    start = 0
    for segment in sequence:
        end = start + segment.token_count
        is_model = segment.kind is SegmentKind.MODEL
        changed.append(
            replace(
                segment,
                wire_ids=tuple(policy.small(segment.wire_ids)),
                train_ids=tuple(ids[start:end]),
                logprobs=tuple(scores[start:end]) if is_model else segment.logprobs,
            )
        )
        start = end
    return changed


def _set_gradients(policy: Policy, model: Any, trainer: Any) -> None:
    """Set the policy's gradients to the mean over ranks, as in data-parallel training."""
    found = dict(model.named_parameters())
    for name, own in policy.model.named_parameters():
        gradient = found[name].grad
        if gradient is not None:
            own.grad = trainer.accelerator.reduce(gradient, reduction="mean")


def _arguments() -> dict[str, Any]:
    return {
        "output_dir": tempfile.gettempdir(),
        "max_completion_length": CONSTANT_TOKENS,  # divisor of dr_grpo
        "max_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }


def _tokenizer(policy: Policy) -> Any:
    """Return a tokenizer of the policy's vocabulary; only its special tokens are used."""
    names = {f"t{number}": number for number in range(policy.vocabulary_size)}
    image_id = getattr(policy.model.config, "image_token_id", None)
    if image_id is not None:
        del names[f"t{image_id}"]
        names["<|image_pad|>"] = image_id
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(names, unk_token="t1")),
        eos_token=f"t{policy.filler_id}",
        pad_token="t2",
        unk_token="t1",
        padding_side="left",
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    return tokenizer


def _codec(policy: Policy, media_ids: Sequence[int] = ()) -> Any:
    """Return a codec with the parts that the adapters use."""
    return SimpleNamespace(
        decode=lambda _: "",
        stop_ids=(policy.filler_id,),
        media_ids=tuple(media_ids),
        history="keep",
        rewrites_history=False,
    )


async def _nothing(*_: object, **__: object) -> None:
    """Accept weights and do nothing."""


def _explain(shape: Shape, case: LossCase, trajectories: Sequence[Trajectory]) -> Difference | None:
    """Explain GRPOTrainer's epsilon, which shortens the step if rewards are close."""
    del shape
    if not case.is_scaled:
        return None
    groups: dict[str | None, list[float | None]] = {}
    for one in trajectories:
        groups.setdefault(one.group_id, []).append(one.reward)
    spreads = [Baseline.of(rewards).deviation for rewards in groups.values()]
    return Difference(
        norm_ratio=statistics.fmean((one + EPSILON) / (one + _EPSILON) for one in spreads),
        reason=f"GRPOTrainer adds {_EPSILON} to the deviation, other trainers add {EPSILON}",
        setting='scale_rewards="none"',
    )


GRADIENTS: Final = (
    GradientPath(
        name="trl",
        shapes=(Shape.WHOLE,),
        reductions=frozenset(_LOSSES),
        takes_images=False,
        backward=partial(_synchronous, _by_function),
        explain=_explain,
    ),
    GradientPath(
        name="trl-images",
        shapes=(Shape.WHOLE,),
        reductions=frozenset(_LOSSES),
        takes_images=True,
        backward=partial(_synchronous, _by_trainer),
        explain=_explain,
    ),
    GradientPath(
        name="trl-async",
        shapes=(Shape.MERGED,),
        reductions=frozenset({Reduction.TOKEN_MEAN}),
        takes_images=True,
        backward=_asynchronous,
        explain=lambda *_: None,
    ),
)
"""`make_rollout_func` under GRPOTrainer, `EnvGRPOTrainer`, and `EnvAsyncGRPOTrainer`."""
