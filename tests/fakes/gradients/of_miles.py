"""miles' gradient of recorded episodes, for the gradient suite.

The same as `of_slime`, with miles' own conversion, schedule, advantages and loss. It runs with
`--true-on-policy-mode`: without it log-probabilities go through Megatron's fused cross entropy,
which rounds their gradient to bfloat16 (megatron/core/fusions/fused_cross_entropy.py) and would
hide every difference below 1e-3.

miles/ray/rollout/train_data_conversion.py, miles/backends/training_utils/loss.py.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fakes.gradients import of_slime
from fakes.gradients.cases import GradientPath, LossCase, Reduction

from envkit.trajectory import Trajectory
from envkit_conformance import Shape
from envkit_miles.generate import MilesForm
from envkit_slime.conformance import NO_STATE
from envkit_slime.rewards import post_process_rewards
from envkit_slime.upstream import require

if TYPE_CHECKING:
    from fakes.gradients.policy import Policy


def miles_arguments(episodes: int, case: LossCase, *, is_exact: bool = True) -> Namespace:
    """Return `arguments` with miles' additional fields."""
    return Namespace(
        **vars(of_slime.arguments(episodes, case)),
        custom_tis_function_path=None,
        lora_rank=0,
        multi_lora_n_adapters=0,
        observe_training_entropy=False,
        qkv_format="thd",
        skip_actor_forward_only=False,
        true_on_policy_mode=is_exact,
        use_dynamic_global_batch_size=False,
        use_rollout_indexer_replay=False,
    )


def backward(
    policy: "Policy",
    trajectories: Sequence[Trajectory],
    shape: Shape,
    case: LossCase,
    *,
    is_exact: bool = True,
) -> None:
    """Accumulate the gradient of miles' loss in the policy's parameters."""
    parallel = _join_world()
    loss, torch = require("miles.backends.training_utils.loss"), require("torch")
    conversion = require("miles.ray.rollout.train_data_conversion")
    args = miles_arguments(len(trajectories), case, is_exact=is_exact)
    form = MilesForm(NO_STATE, args)
    samples = of_slime.written(form, require("miles.utils.types").Sample, trajectories, shape)
    data = conversion.convert_samples_to_train_data(args, samples, {}, None, post_process_rewards)
    batches, count, rollouts = _schedule(conversion, args, data, parallel.intra_dp)
    total, per_token = torch.tensor(0.0), case.reduction is Reduction.TOKEN_MEAN
    for shard, numbers in batches:
        batch = of_slime.columns(shard, numbers, policy, is_off_policy=case.is_off_policy)
        logits = batch.pop("logits")
        if not case.is_off_policy:
            keys = ("unconcat_tokens", "total_lengths", "response_lengths")
            known = {key: batch[key] for key in keys}
            own = loss.get_log_probs_and_entropy(logits.detach(), args=args, **known)
            own = own[1] if isinstance(own, tuple) else own
            batch["log_probs"] = [one.detach() for one in own["log_probs"]]
        loss.compute_advantages_and_returns(args, batch)
        value, tokens, _ = loss.loss_function(
            args, batch, count, logits, apply_megatron_loss_scaling=True, num_rollouts=rollouts
        )
        total += tokens
        (value if per_token else value / count).backward()
    of_slime.reduced(policy, total, per_token=per_token)


def _schedule(
    conversion: Any,  # miles' module
    args: Namespace,
    data: dict[str, Any],
    ranks: Any,  # miles' GroupInfo
) -> tuple[list[tuple[Mapping[str, Any], list[int]]], int, int | None]:
    """Return this rank's micro-batches, their number, and how many rollouts the step holds."""
    config = {
        "dp_size": ranks.size,
        "cp_size": 1,
        "vpp_size": 1,
        "microbatch_group_size_per_vp_stage": 1,
    }
    if conversion.can_schedule_on_rollout_side(args, data, config):
        shards = conversion.split_train_data_by_dp_scheduled_raw(
            args, data, train_parallel_config=config
        )
        shard = shards[ranks.rank]
        batches = [(shard, list(places)) for places in shard["micro_batch_indices"]]
        return batches, shard["num_microbatches"][0], shard["num_rollouts"][0]
    # With images the training side splits a step by rows, training_utils/data.py.
    shard = conversion.split_train_data_by_dp_raw(args, data, dp_size=ranks.size)[ranks.rank]
    count = args.global_batch_size // ranks.size
    return [(shard, [place]) for place in range(count)], count, None


def _join_world() -> Any:  # miles' ParallelState
    mpu = of_slime.join_world()
    parallel, torch = require("miles.backends.training_utils.parallel"), require("torch")
    alone = mpu.get_tensor_model_parallel_group()
    everybody = torch.distributed.group.WORLD

    def info(group: Any) -> Any:
        rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
        return parallel.GroupInfo(rank=rank, size=size, group=group, gloo_group=group)

    one = dict.fromkeys(("cp", "tp", "pp", "ep", "etp", "indep_dp"), info(alone))
    state = parallel.ParallelState(intra_dp=info(everybody), intra_dp_cp=info(everybody), **one)
    parallel.set_parallel_state(state)
    return state


GRADIENTS: Final = (
    GradientPath(
        name="miles",
        shapes=tuple(of_slime.FAN_OUTS),
        reductions=frozenset(Reduction),
        takes_images=True,
        backward=backward,
        explain=of_slime.explain,
    ),
)
