"""Reject combinations of settings and flags that break inside the trainer."""

import logging
from argparse import Namespace
from collections.abc import Mapping
from functools import cache
from typing import Final

from envkit.errors import ConfigurationError
from envkit.ranges import at_least
from envkit.rollout import EnvSource
from envkit_slime.form import Form
from envkit_slime.rewards import is_distilled, is_normalised, sets_reward
from envkit_slime.runtime import Runtime
from envkit_slime.sample import Sample
from envkit_slime.settings import FanOut, Settings
from envkit_training.rows import roles_of

logger = logging.getLogger("envkit.slime")

_NORMALISE: Final = "--custom-reward-post-process-path envkit_slime.post_process_rewards"


def check_settings(
    args: Namespace, sample: Sample, settings: Settings, *, evaluation: bool
) -> None:
    """Reject settings that break inside the trainer, or that would have no effect.

    It warns, once, that a faulted episode's 0.0 will count in the mean of its group.

    Raises:
        ConfigurationError: See the message.
    """
    check_ignored(args, sample, evaluation=evaluation)
    _check_fan_out(args, settings.fan_out, evaluation=evaluation)
    if evaluation:
        return
    _check_prompt(args, sample, settings.task_fields)
    _check_staleness(args, settings.max_staleness)
    if is_normalised(args) and not _has_post_process(args):
        _warn_once(
            "the trainer's own normalisation counts a faulted episode as reward 0.0 in the mean of "
            f"its group: add {_NORMALISE}"
        )


def _check_prompt(args: Namespace, sample: Sample, task_fields: Mapping[str, str]) -> None:
    """Reject a task whose text is a prompt that the trainer has already rendered."""
    # An evaluation dataset has its own flag, which does not reach a generate function.
    is_rendered = getattr(args, "apply_chat_template", False) and isinstance(sample.prompt, str)
    if is_rendered and "prompt" in task_fields.values():
        raise ConfigurationError(
            "task_fields takes the task's text from the dataset's own prompt, got a "
            f"prompt that --apply-chat-template has rendered: {sample.prompt!r:.60}; drop "
            "--apply-chat-template"
        )


def check_ignored(args: Namespace, sample: Sample, *, evaluation: bool) -> None:
    """Refuse flags that have no effect if the environment rewards the sample.

    Raises:
        ConfigurationError: See the message.
    """
    metadata = sample.metadata or {}
    if metadata.get("tools"):
        raise ConfigurationError(
            "the dataset's column of --tool-key has no effect, because the environment has its own "
            f"tools, got {str(metadata['tools'])[:80]}; name a column that does not exist"
        )
    kind = metadata.get("rm_type") or getattr(args, "rm_type", None)
    if kind and sets_reward(args, sample, is_faulted=False, evaluation=evaluation):
        raise ConfigurationError(
            f"--rm-type {kind} has no effect, because the environment's reward is the one that "
            "counts; drop the flag, or 'rm_type' in the row's metadata"
        )


def _check_fan_out(args: Namespace, fan_out: FanOut, *, evaluation: bool) -> None:
    """Reject settings that break inside slime if a sample becomes several."""
    if fan_out is FanOut.NONE:
        return
    for name in ("partial_rollout", "group_rm"):
        if getattr(args, name, False):
            raise ConfigurationError(
                f"fan_out: {fan_out.value} cannot go with --{name.replace('_', '-')}, which takes "
                "one sample per trajectory; drop one of the two"
            )
    if is_distilled(args):
        raise ConfigurationError(
            f"fan_out: {fan_out.value} cannot go with --opd-type sglang, whose reward function "
            "scores one sample at a time; drop fan_out"
        )
    if evaluation or not is_normalised(args) or _has_post_process(args):
        return
    # slime/ray/rollout.py, _post_process_rewards
    raise ConfigurationError(
        f"fan_out: {fan_out.value} gives a trajectory several samples, and slime itself would "
        f"normalise the whole batch as one group; add {_NORMALISE}"
    )


async def check_siblings(
    form: Form, settings: Settings, source: EnvSource, runtime: Runtime
) -> None:
    """Reject settings that break inside the trainer if a sample becomes one per agent.

    Args:
        form: The call.
        settings: Those of the run.
        source: The environment.
        runtime: Builds it.

    Raises:
        ConfigurationError: See the message.
    """
    groups_alone = bool(getattr(form.args, "group_rm", False))
    if form.evaluation or not (
        form.keeps_partial or groups_alone or not _has_post_process(form.args)
    ):
        return
    player = await runtime.player(settings.rollout)
    if not await roles_of(player, source):
        return
    who = f"{source.env_id} has several agents, each with its own sample and reward"
    if form.keeps_partial:
        raise ConfigurationError(
            f"{who}, and an aborted one cannot be resumed without its siblings: drop "
            "--partial-rollout and fully asynchronous rollouts"
        )
    if groups_alone:
        raise ConfigurationError(f"{who}: drop --group-rm, which takes one sample per trajectory")
    raise ConfigurationError(
        f"{who}, which the trainer's own normalisation does not distinguish: add {_NORMALISE}"
    )


@cache
def _warn_once(message: str) -> None:
    logger.warning(message)


def _check_staleness(args: Namespace, limit: int | None) -> None:
    """Reject a limit that would miss finished samples in the buffer."""
    if limit is None:
        return
    at_least(0, max_staleness=limit)
    if not _has_post_process(args):
        raise ConfigurationError(
            "max_staleness compares a finished sample with the rollout that it is trained in: add "
            f"{_NORMALISE}"
        )


def _has_post_process(args: Namespace) -> bool:
    return getattr(args, "custom_reward_post_process_path", None) is not None
