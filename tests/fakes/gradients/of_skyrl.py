"""SkyRL in the gradient suite: its real trainer and policy worker on a CPU.

Rows go through `EnvkitTrainer` up to the optimizer, and through `PolicyWorkerBase` of
skyrl/backends/skyrl_train/workers/worker.py (0.4.0), whose model is the suite's policy. FSDP's own
wrapper, which needs flash-attn and CUDA, is omitted.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import torch
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

from envkit.trajectory import Trajectory
from envkit_conformance import Shape
from envkit_skyrl.conformance import rows_of_groups
from envkit_skyrl.contract import CONTRACT
from envkit_skyrl.trainer import EnvkitTrainer

CONTRACT.check()

from skyrl.backends.skyrl_train.utils.ppo_utils import ppo_policy_loss  # noqa: E402  # after it
from skyrl.backends.skyrl_train.workers.worker import PolicyWorkerBase  # noqa: E402
from skyrl.backends.skyrl_train.workers.worker_utils import BaseBatchIterator  # noqa: E402
from skyrl.train.config import SkyRLTrainConfig  # noqa: E402

_REDUCTIONS: Final = {
    Reduction.EPISODE_MEAN: "sequence_mean",
    Reduction.TOKEN_MEAN: "token_mean",
    Reduction.CONSTANT: "seq_mean_token_sum_norm",
}


def training_batch(
    policy: Policy, trajectories: Sequence[Trajectory], shape: Shape, case: LossCase
) -> Any:  # SkyRL's TrainingInputBatch
    """Return the batch that SkyRL's trainer passes to its workers, with scaled advantages."""
    output = rows_of_groups(trajectories, shape, filler_id=_filler(trajectories))
    trainer: Any = object.__new__(EnvkitTrainer)  # the constructor would start a run
    trainer.cfg, trainer.all_metrics = make_config(shape, case, len(trajectories)), {}
    trainer.tokenizer = SimpleNamespace(pad_token_id=policy.filler_id)
    trainer.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 1)
    uids = [identity.instance_id for identity in output["trajectory_ids"]]
    batch = trainer.convert_to_training_input(*trainer.postprocess_generator_output(output, uids))
    batch["values"] = None
    batch = trainer.compute_advantages_and_returns(batch)
    metadata = batch.metadata
    batch = trainer._normalize_advantages(  # first calls of its training step
        batch, metadata["policy_mini_batch_boundaries"], metadata["policy_prompt_boundaries"]
    )
    scores = policy.old_logprobs if case.is_off_policy else policy.logprobs
    with torch.no_grad():
        batch["action_log_probs"] = torch.cat(
            [response_logprobs(policy, scores, batch[row : row + 1]) for row in range(len(batch))]
        )
    return batch


def _filler(trajectories: Sequence[Trajectory]) -> int:
    """Return a recorded id, for rows of untrainable episodes."""
    return trajectories[0].steps(merge=True)[0].response_ids[0]


def make_config(shape: Shape, case: LossCase, episodes: int) -> Any:  # SkyRL's
    """Return SkyRL's configuration of one optimizer step."""
    cfg: Any = SkyRLTrainConfig()
    trainer, algorithm = cfg.trainer, cfg.trainer.algorithm
    prompts = episodes // GROUP_SIZE
    trainer.train_batch_size = trainer.policy_mini_batch_size = prompts
    trainer.micro_train_batch_size_per_gpu, trainer.critic.model.path = 1, None
    algorithm.advantage_estimator, algorithm.grpo_norm_by_std = "grpo", case.is_scaled
    algorithm.loss_reduction, algorithm.max_seq_len = _REDUCTIONS[case.reduction], CONSTANT_TOKENS
    algorithm.eps_clip_low = algorithm.eps_clip_high = CLIP
    algorithm.use_kl_loss, algorithm.temperature = False, 1.0
    cfg.generator.n_samples_per_prompt = GROUP_SIZE
    cfg.generator.step_wise_trajectories = shape is not Shape.WHOLE
    return cfg


def response_logprobs(policy: Policy, scores: Any, batch: Any) -> torch.Tensor:
    """Return log-probabilities of one left-padded row, (1, response)."""
    ids = batch["sequences"][0][batch["attention_mask"][0].bool()].tolist()
    keys = ("pixel_values", "image_grid_thw")
    tensors = {key: batch[key][0] for key in keys if batch.get(key) is not None}
    tensors = tensors if tensors and len(tensors["pixel_values"]) else None
    width = batch["response_mask"].shape[1]
    known = scores(policy.small(ids), tensors)[-width:]
    return torch.cat([known.new_zeros(width - len(known)), known])[None]


class PolicyWorker(PolicyWorkerBase):
    """SkyRL's policy worker without its constructor's processes and model."""

    def __init__(self, policy: Policy, cfg: Any, *, dp_size: int = 1) -> None:
        self.cfg, self.policy_loss_fn = cfg.trainer, ppo_policy_loss
        self.mesh_rank: Any = SimpleNamespace(dp_size=dp_size)
        self.scheduler: Any = SimpleNamespace(get_last_lr=lambda: [0.0])
        self.strategy: Any = SimpleNamespace(
            backward=lambda loss, model, optimizer: loss.backward()
        )
        self.optimizer, self.model = None, _Model(policy)


class _Model(torch.nn.Module):
    """The suite's policy in place of SkyRL's wrapped model."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._policy = policy

    def forward(self, sequences: torch.Tensor, num_actions: int, **inputs: Any) -> Any:
        """Return the response's log-probabilities, and an entropy that the loss does not use."""
        row = {**inputs, "sequences": sequences, "response_mask": torch.ones(1, num_actions)}
        known = response_logprobs(self._policy, self._policy.logprobs, row)
        return known, {"entropy": torch.zeros(sequences.shape)}


@contextmanager
def on_cpu() -> Generator[None]:
    """Make SkyRL's worker, which expects a CUDA device, use the CPU."""
    with patch.object(torch.cuda, "current_device", return_value="cpu"):
        yield


def _backward(
    policy: Policy, trajectories: Sequence[Trajectory], shape: Shape, case: LossCase
) -> None:
    batch = training_batch(policy, trajectories, shape, case)
    worker = PolicyWorker(policy, make_config(shape, case, len(trajectories)))
    with on_cpu():
        for row in batch.chunk(1):
            experience = BaseBatchIterator.batch_to_experience(row)
            worker._forward_backward_micro(experience, 1 / len(batch))


def _explain(shape: Shape, case: LossCase, trajectories: Sequence[Trajectory]) -> Difference | None:
    del shape, case, trajectories


GRADIENTS: Final = (
    GradientPath(
        name="skyrl",
        shapes=(Shape.WHOLE, Shape.STEPS, Shape.MERGED),
        reductions=frozenset(Reduction),
        takes_images=True,
        backward=_backward,
        explain=_explain,
    ),
)
