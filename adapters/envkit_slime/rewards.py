"""Rewards for slime: per sample, per group, and normalised without faulted samples.

A faulted episode has no reward. slime needs a number in every sample, so it carries 0.0 and is not
trained on; but in its group that 0.0 would shift the baseline. The functions here use the mean of
the other members instead.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, Final

from envkit.advantages import EPSILON, Baseline
from envkit_slime.sample import Sample, facts_of, is_faulted, trainer_of
from envkit_slime.settings import Settings
from envkit_slime.staleness import mask_stale
from envkit_slime.upstream import require

_CENTRED: Final = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_SCALED: Final = ("grpo", "gspo", "cispo")
_OURS: Final = ("envkit_slime", "envkit_miles")


def reward_value(args: Namespace, reward: float | None) -> Any:  # noqa: ANN401  # as slime types it
    """Return a reward as the trainer reads it: a number, or a mapping with its reward keys.

    None, the reward of a faulted episode, becomes 0.0: the trainer needs a number. The functions
    below replace it by the mean of the group.
    """
    value = 0.0 if reward is None else float(reward)
    keys = {
        key
        for name in ("reward_key", "eval_reward_key")
        if (key := getattr(args, name, None)) is not None
    }
    return dict.fromkeys(sorted(keys), value) if keys else value


def is_normalised(args: Namespace) -> bool:
    """Return whether the trainer subtracts the mean of a group from its rewards."""
    estimator = getattr(args, "advantage_estimator", None)
    return estimator in _CENTRED and bool(getattr(args, "rewards_normalization", True))


def is_distilled(args: Namespace) -> bool:
    """Return whether the reward function asks a teacher's server for log-probabilities.

    Training data then needs them for every sample, faulted ones too (slime and miles,
    rollout/on_policy_distillation.py, post_process_rewards).
    """
    return bool(getattr(args, "use_opd", False)) and getattr(args, "opd_type", None) == "sglang"


def sets_reward(args: Namespace, sample: Any, *, is_faulted: bool, evaluation: bool) -> bool:  # noqa: ANN401
    """Return whether `generate` sets a sample's reward; else the trainer calls a reward function.

    The trainer calls the user's function, named in the sample or by `--custom-rm-path`, only if the
    reward is still None; `--group-rm` requires that in miles (rollout/rm_hub/__init__.py). It never
    sees faulted samples; a teacher does.
    """
    if getattr(args, "group_rm", False):
        return False
    everywhere: str | None = getattr(args, "custom_rm_path", None)
    named = (sample, getattr(sample, "reward_spec", None))  # of slime, of miles
    own = (getattr(one, "custom_rm_path", None) for one in named)
    path = next(filter(None, own), everywhere)
    if path is None or path.partition(".")[0] in _OURS:
        return True
    if is_distilled(args):
        return evaluation and path == everywhere
    return is_faulted


async def reward(
    args: Namespace,
    sample: Any,  # noqa: ANN401  # slime's Sample, or a list of them
    **kwargs: Any,  # noqa: ANN401  # slime's, unused
) -> Any:  # noqa: ANN401  # a reward, or a list of them
    """Return the environment's reward: `--custom-rm-path envkit_slime.reward`.

    slime calls the same function with one sample and, for `--group-rm` and for fan-out, with a list
    (slime/rollout/rm_hub/__init__.py). In a list, a faulted sample gets the mean of the others.
    `generate` sets the reward itself, so this is needed only if slime requires a function.

    Args:
        args: slime's arguments.
        sample: One sample, or several.
        kwargs: Unused.
    """
    del kwargs
    if not isinstance(sample, list):
        return reward_value(args, _known(args, sample))
    return [reward_value(args, value) for value in _compared(args, sample)[1]]


def dynamic_filter(args: Namespace, samples: list[Any], **kwargs: Any) -> Any:  # noqa: ANN401
    """Keep a group whose survivors' rewards differ: `--dynamic-sampling-filter-path`.

    With several agents, the rewards of at least one role must differ. As slime's
    check_reward_nonzero_std (slime/rollout/filter_hub), which would count a fault's 0.0 as a
    reward.

    Args:
        args: slime's arguments.
        samples: One group.
        kwargs: slime's, unused.

    Returns:
        slime's DynamicFilterOutput.
    """
    del kwargs
    output = require("slime.rollout.filter_hub.base_types").DynamicFilterOutput
    compared = [
        rewards
        for members in _by_role(_flat(samples))
        if (rewards := [known for one in members if (known := _known(args, one)) is not None])
    ]
    if not compared:
        return output(keep=False, reason="all_faulted")
    if any(max(rewards) - min(rewards) > EPSILON for rewards in compared):
        return output(keep=True)
    rewards = compared[0]
    return output(keep=False, reason=f"zero_std_{round(rewards[0], 1)}")


def post_process_rewards(
    args: Namespace, samples: Sequence[Any]
) -> tuple[list[float], list[float]]:
    """Return raw and normalised rewards: `--custom-reward-post-process-path`.

    Without faults and fan-out these are slime's own numbers. A faulted sample gets the mean of its
    group's survivors as raw reward and 0.0 as normalised one, and counts in neither mean nor
    deviation. Groups are identified by `group_index`, so fan-out and groups of unequal size are
    normalised within their group; siblings of one rollout count once. With several agents a role is
    compared with the same role of the group's other episodes.

    With on-policy distillation the teacher's answers become `teacher_log_probs`, as by the
    trainer's own function, and the rewards are the environment's instead of 0.0. Replies older
    than `max_staleness` allows are masked.

    Args:
        args: slime's arguments.
        samples: Samples of a whole rollout, in any order.
    """
    if is_distilled(args):
        _take_teachers(args, samples)
    mask_stale(samples, Settings.from_args(args).max_staleness)
    raw = [0.0] * len(samples)
    normalised = [0.0] * len(samples)
    groups: dict[object, list[int]] = {}
    for position, sample in enumerate(samples):
        key = (sample.group_index, facts_of(sample).get("role"))
        groups.setdefault(key, []).append(position)
    is_scaled = args.advantage_estimator in _SCALED and getattr(
        args, "grpo_std_normalization", True
    )
    for positions in groups.values():
        members = [samples[position] for position in positions]
        baseline, values = _compared(args, members)
        for position, member, value in zip(positions, members, values, strict=True):
            raw[position] = normalised[position] = value
            if is_normalised(args):
                known = _known(args, member)
                normalised[position] = baseline.advantage(known, is_scaled=is_scaled)
    return raw, normalised


def _take_teachers(args: Namespace, samples: Sequence[Any]) -> None:
    """Store the teacher's log-probabilities, and restore the environment's rewards."""
    require(f"{trainer_of(samples[0])}.rollout.on_policy_distillation").post_process_rewards(
        args, samples
    )
    for sample in samples:
        sample.reward = reward_value(args, facts_of(sample).get("reward"))


def _compared(args: Namespace, members: Sequence[Sample]) -> tuple[Baseline, list[float]]:
    """Return a group's baseline rewards, and each member's reward.

    A member without a reward gets the mean of the others, or 0.0 without any. Siblings that fan-out
    made of one rollout count once.
    """
    rewards = [_known(args, one) for one in members]
    once: dict[object, float | None] = {}
    for number, (member, reward) in enumerate(zip(members, rewards, strict=True)):
        rollout = getattr(member, "rollout_id", None)  # miles 0.0.2 has no such field
        once[("own", number) if rollout is None else ("rollout", rollout)] = reward
    baseline = Baseline.of(once.values())
    return baseline, [baseline.mean if one is None else one for one in rewards]


def _known(args: Namespace, sample: Sample) -> float | None:
    """Return a sample's reward; None after a fault, or if none was computed."""
    # A teacher's answer is not a reward: the environment's counts.
    value: Any = None if is_faulted(sample) or is_distilled(args) else sample.reward
    if value is None:
        value = facts_of(sample).get("reward")
    if isinstance(value, Mapping):
        key = getattr(args, "reward_key", None)
        value = value.get(key) if key in value else next(iter(value.values()), None)
    return None if value is None else float(value)


def _flat(members: Sequence[Any]) -> list[Any]:
    """Return the samples of a group whose members may be lists, which fan-out makes."""
    return [
        leaf for member in members for leaf in (member if isinstance(member, list) else [member])
    ]


def _by_role(members: Sequence[Any]) -> list[list[Any]]:
    """Return the samples of a group by role."""
    roles: dict[object, list[Any]] = {}
    for member in members:
        roles.setdefault(facts_of(member).get("role"), []).append(member)
    return list(roles.values())
