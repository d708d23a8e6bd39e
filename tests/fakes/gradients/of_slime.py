"""slime's gradient of recorded episodes, for the gradient suite.

The samples are those that `generate` writes. Conversion to training data, the schedule of ranks and
micro-batches, advantages and loss are slime's own code; only the forward pass is ours.
slime/ray/rollout.py needs SGLang, so two methods of it are compiled from their source.

slime/backends/megatron_utils/loss.py, cp_utils.py and slime/utils/dp_schedule.py.
"""

import inspect
import tempfile
import textwrap
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from fakes.gradients import cases

from envkit.errors import MissingDependencyError
from envkit.rollout import RolloutConfig
from envkit.trajectory import Trajectory
from envkit_conformance import Shape
from envkit_slime.conformance import NO_STATE
from envkit_slime.form import Form
from envkit_slime.generate import SlimeForm
from envkit_slime.rewards import post_process_rewards
from envkit_slime.rollout import deliver
from envkit_slime.settings import FanOut, Settings
from envkit_slime.upstream import require

if TYPE_CHECKING:
    from fakes.gradients.policy import Policy

FAN_OUTS: Final = {
    Shape.WHOLE: FanOut.NONE,
    Shape.MERGED: FanOut.SEQUENCES,
    Shape.STEPS: FanOut.TURNS,
}
_METHODS: Final = ("_post_process_rewards", "_convert_samples_to_train_data")


def arguments(episodes: int, case: cases.LossCase) -> Namespace:
    """Return the arguments that slime and miles read between samples and loss."""
    reducer = f"{__name__}.constant_reducer" if case.reduction is cases.Reduction.CONSTANT else None
    return Namespace(
        advantage_estimator="grpo",
        allgather_cp=False,
        balance_by_flops=False,
        balance_data=False,
        calculate_per_token_loss=case.reduction is cases.Reduction.TOKEN_MEAN,
        custom_advantage_function_path=None,
        custom_pg_loss_reducer_function_path=reducer,
        entropy_coef=0.0,
        eps_clip=cases.CLIP,
        eps_clip_c=None,
        eps_clip_high=cases.CLIP,
        eval_reward_key=None,
        get_mismatch_metrics=False,
        global_batch_size=episodes,
        group_rm=False,
        grpo_std_normalization=case.is_scaled,
        kl_coef=0.0,
        kl_loss_type="k1",
        log_probs_chunk_size=-1,
        loss_type="policy_loss",
        micro_batch_size=1,
        n_samples_per_prompt=cases.GROUP_SIZE,
        normalize_advantages=False,
        recompute_loss_function=False,
        reward_key=None,
        rewards_normalization=True,
        rollout_batch_size=episodes // cases.GROUP_SIZE,
        rollout_temperature=1.0,
        rollout_top_p=1.0,
        sglang_speculative_algorithm=None,
        use_dynamic_batch_size=False,
        use_kl_loss=False,
        use_opd=False,
        use_opsm=False,
        use_rollout_logprobs=False,
        use_rollout_routing_replay=False,
        use_tis=False,
        use_unbiased_kl=False,
    )


def constant_reducer(
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    loss_masks: Sequence[Any],
    per_token: bool,
) -> Callable[[Any], Any]:
    """Return Dr. GRPO's sum over a constant: `--custom-pg-loss-reducer-function-path`.

    The trainer divides by the number of episodes itself.
    """
    del total_lengths, per_token

    def reduce(values: Any) -> Any:  # tensors
        parts = zip(values.split(response_lengths), loss_masks, strict=True)
        return sum((part * mask).sum() for part, mask in parts) / cases.CONSTANT_TOKENS

    return reduce


def written(
    form: Form, sample_class: Any, trajectories: Sequence[Trajectory], shape: Shape
) -> list[Any]:
    """Return the samples of whole groups as a rollout returns them, flattened."""
    settings = Settings(rollout=RolloutConfig(), fan_out=FAN_OUTS[shape])
    groups = list(dict.fromkeys(one.group_id for one in trajectories))
    samples: list[Any] = []
    for index, one in enumerate(trajectories):
        sample = sample_class(group_index=groups.index(one.group_id), index=index)
        done = deliver(form, sample, [one], settings)
        samples += done if isinstance(done, list) else [done]
    return samples


def rollout_manager(args: Namespace, post_process: Any) -> Any:
    """Return slime's own conversion to training data, compiled from its source."""
    types = require("slime.utils.types")
    source = Path(types.__file__).parents[1] / "ray" / "rollout.py"
    text = source.read_text()
    lines = text.splitlines(keepends=True)
    check = "validate_rollout_routed_experts_for_replay"
    names: dict[str, Any] = {
        "torch": require("torch"),
        "Sample": types.Sample,
        "get_source": require("slime.utils.data").get_source,
    }
    if check in text:  # slime 2a60f00d has no such check
        names[check] = getattr(require("slime.observability.rollout_data_utils"), check)
    for name in _METHODS:
        (start,) = (n for n, line in enumerate(lines) if line.startswith(f"    def {name}("))
        method = textwrap.dedent("".join(inspect.getblock(lines[start:])))
        exec(compile(method, str(source), "exec"), names)
    manager = SimpleNamespace(
        args=args,
        custom_convert_samples_to_train_data_func=None,
        custom_reward_post_process_func=post_process,
    )
    for name in _METHODS:
        setattr(manager, name, names[name].__get__(manager))
    return manager


def columns(
    data: Mapping[str, Any], numbers: Sequence[int], policy: "Policy", *, is_off_policy: bool
) -> dict[str, Any]:
    """Return rows of training data as the trainer's workers see them, in the small vocabulary."""
    torch = require("torch")
    ids = [policy.small(data["tokens"][number]) for number in numbers]
    pictures = data.get("multimodal_train_inputs") or dict.fromkeys(numbers)
    tensors = [pictures[number] for number in numbers]
    lengths = [data["response_lengths"][number] for number in numbers]
    batch: dict[str, Any] = {
        "unconcat_tokens": [torch.tensor(one) for one in ids],
        "total_lengths": [len(one) for one in ids],
        "response_lengths": lengths,
        "rewards": [data["rewards"][number] for number in numbers],
        "loss_masks": [torch.tensor(data["loss_masks"][n], dtype=torch.float32) for n in numbers],
        "rollout_mask_sums": [torch.tensor(float(data["rollout_mask_sums"][n])) for n in numbers],
        "logits": torch.cat(list(map(policy.logits, ids, tensors)))[None].float(),
    }
    if is_off_policy:
        old = map(policy.old_logprobs, ids, tensors)
        batch["log_probs"] = [o[-n:].float() for o, n in zip(old, lengths, strict=True)]
    return batch


def join_world() -> Any:
    """Return Megatron's groups, creating single-process CPU groups if there are none."""
    torch = require("torch")
    torch._dynamo.config.disable = True  # losses would be compiled for GPUs
    distributed = torch.distributed
    if not distributed.is_initialized():
        file = Path(tempfile.mkdtemp()) / "rendezvous"
        distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    try:
        mpu = require("megatron.core").mpu
    except ImportError as error:
        raise MissingDependencyError(
            "the gradients of slime and miles need Megatron: install megatron-core"
        ) from error
    if not mpu.model_parallel_is_initialized():
        mpu.initialize_model_parallel(1, create_gloo_process_groups=True)
    return mpu


def reduced(policy: "Policy", tokens: Any, *, per_token: bool) -> None:
    """Join the gradients of all ranks as Megatron does.

    Means are averaged; sums over tokens are added and divided by their number
    (megatron/core/distributed/finalize_model_grads.py).
    """
    distributed = require("torch").distributed
    distributed.all_reduce(tokens)
    divisor = tokens if per_token else distributed.get_world_size()
    for parameter in policy.model.parameters():
        if parameter.grad is not None:
            distributed.all_reduce(parameter.grad)
            parameter.grad /= divisor


def _backward(
    policy: "Policy", trajectories: Sequence[Trajectory], shape: Shape, case: cases.LossCase
) -> None:
    mpu, torch = join_world(), require("torch")
    loss = require("slime.backends.megatron_utils.loss")
    args = arguments(len(trajectories), case)
    sample_class = require("slime.utils.types").Sample
    samples = written(SlimeForm(args, state=NO_STATE), sample_class, trajectories, shape)
    data = rollout_manager(args, post_process_rewards)._convert_samples_to_train_data(samples)
    rank, world = mpu.get_data_parallel_rank(), mpu.get_data_parallel_world_size()
    config = {
        "dp_size": world, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1
    }  # fmt: skip
    partitions, micro_batches, counts, sizes = require("slime.utils.dp_schedule").build_dp_schedule(
        args,
        config,
        [len(tokens) for tokens in data["tokens"]],
        global_batch_size=args.global_batch_size,
        rollout_indices=data["rollout_ids"],
    )
    total = torch.tensor(0.0)
    for places in micro_batches[rank]:
        numbers = [partitions[rank][place] for place in places]
        batch = columns(data, numbers, policy, is_off_policy=case.is_off_policy)
        logits = batch.pop("logits")
        if not case.is_off_policy:
            keys = ("unconcat_tokens", "total_lengths", "response_lengths")
            known = {key: batch[key] for key in keys}
            _, own = loss.get_log_probs_and_entropy(logits.detach(), args=args, **known)
            batch["log_probs"] = own["log_probs"]
        loss.compute_advantages_and_returns(args, batch)
        value, tokens, _ = loss.loss_function(args, batch, counts[0], sizes[0], logits)
        total += tokens
        per_token = case.reduction is cases.Reduction.TOKEN_MEAN
        (value if per_token else value / counts[0]).backward()
    reduced(policy, total, per_token=case.reduction is cases.Reduction.TOKEN_MEAN)


def explain(
    shape: Shape, case: cases.LossCase, trajectories: Sequence[Trajectory]
) -> cases.Difference | None:
    """Explain what a fault adds to the number of tokens: its row counts as one."""
    del shape
    faults = sum(one.is_faulted for one in trajectories)
    if case.reduction is not cases.Reduction.TOKEN_MEAN or not faults:
        return None
    tokens = sum(sum(row.loss_mask) for one in trajectories for row in one.steps(merge=True))
    return cases.Difference(
        reason="a row without a trained token counts as one token in a mean over tokens",
        setting="no --calculate-per-token-loss; a step of many tokens hardly shows it",
        norm_ratio=tokens / (tokens + faults),
    )


GRADIENTS: Final = (
    cases.GradientPath(
        name="slime",
        shapes=tuple(FAN_OUTS),
        reductions=frozenset(cases.Reduction),
        takes_images=True,
        backward=_backward,
        explain=explain,
    ),
)
