"""Generate one sample: plan, play or resume, and write.

Both slime and miles use this module, each with its own `Form`. An exception from a generate
function ends slime's whole rollout (slime/rollout/sglang_rollout.py awaits every task). Only wrong
settings do that. Any other failure becomes a failed sample that is counted and not trained on.
"""

import asyncio
import logging
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envkit.errors import ConfigurationError, RunFailedError, StorageError, TemplateError
from envkit.metrics import EpisodeFacts
from envkit.rollout import EpisodeSpec, can_resume, has_role, play_through
from envkit.trajectory import Row, StopReason, Trajectory, step_rows
from envkit_slime.checks import (
    check_baseline,
    check_fan_out,
    check_ignored,
    check_prompt,
    check_siblings,
    check_staleness,
)
from envkit_slime.engine import CURRENT, Call
from envkit_slime.form import Form
from envkit_slime.remote import wants_top_p
from envkit_slime.rewards import reward_value, sets_reward
from envkit_slime.runtime import Runtime, record, runtime_of
from envkit_slime.sample import FACTS_KEY, STATE_KEY, Sample
from envkit_slime.settings import FanOut, Plan, plan_episode
from envkit_slime.staleness import mask_stale
from envkit_slime.stored import from_state, to_state
from envkit_slime.writer import Earlier, clear, write_nothing, write_row

logger = logging.getLogger("envkit.slime")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One call of a generate function."""

    form: Form
    args: Namespace
    evaluation: bool


async def roll(
    form: Form,
    args: Namespace,
    sample: Sample,
    sampling_params: Mapping[str, Any],
    *,
    evaluation: bool,
) -> Any:  # noqa: ANN401  # the trainer's Sample, or a list of them by opt-in
    """Generate for one sample and return it, or several with fan-out.

    Args:
        form: slime or miles.
        args: The trainer's arguments.
        sample: A fresh or an aborted sample; changed in place.
        sampling_params: Not changed.
        evaluation: Whether this is the trainer's evaluation.
    """
    job = Job(form=form, args=args, evaluation=evaluation)
    if sample.metadata is None:  # pyright: ignore[reportUnnecessaryComparison]
        sample.metadata = {}
    is_list = False  # the trainer flattens a batch whose members are all lists, or none
    try:
        plan = await asyncio.to_thread(
            plan_episode, args, sample, sampling_params, evaluation=evaluation
        )
        is_list = plan.settings.fan_out is not FanOut.NONE
        extras = {**plan.sampling.extras, **form.request_fields(args, sample)}
        plan = replace(plan, sampling=replace(plan.sampling, extras=extras))
        check_prompt(args, sample, plan.settings.task_fields, evaluation=evaluation)
        check_ignored(args, sample, evaluation=evaluation)
        check_baseline(args, evaluation=evaluation)
        check_fan_out(args, plan.settings.fan_out, evaluation=evaluation)
        check_staleness(args, plan.settings.max_staleness, evaluation=evaluation)
        runtime = runtime_of(args, form.state, plan.settings.rollout.engine)
        keeps = form.keeps_partial(args) and not evaluation
        await check_siblings(args, plan, runtime, keeps_partial=keeps, evaluation=evaluation)
        state = sample.metadata.get(STATE_KEY)
        earlier = Earlier.of(sample) if state is not None else None
        played, aborts = await _play(job, sample, plan, runtime, state)
        is_list = is_list or has_role(played[0])
        return await asyncio.to_thread(_write, job, sample, plan, played, aborts, earlier)
    except (ConfigurationError, RunFailedError, TemplateError):
        raise  # a wrong setting fails every sample, and training on nothing looks like success
    except Exception as error:  # noqa: BLE001  # see above
        _fail(job, sample, error)
        return [sample] if is_list else sample


async def _play(
    job: Job, sample: Sample, plan: Plan, runtime: Runtime, state: object
) -> tuple[tuple[Trajectory, ...], int]:
    """Play the episode, or resume it; an abort by the server is resumed."""
    form, args = job.form, job.args
    kept = None if state is None else await asyncio.to_thread(_restored, state)
    player = await runtime.player(plan.settings.rollout)
    with runtime.episode() as interrupt:
        custom: Any = plan.sampling.extras.get("custom_params")
        call = Call(
            state=form.state,
            interrupt=interrupt,
            span=form.span(sample),
            attributes=form.attributes,
            wants_experts=bool(getattr(args, "use_rollout_routing_replay", False)),
            wants_top_p=wants_top_p(custom),
        )
        spec = EpisodeSpec(
            seed=plan.seed,
            task=plan.request.task,
            episode_id=form.session_id(sample),
            group_id=plan.group_id,
            group_start=runtime.group_start(plan.group_id),
            member=plan.member,
            metadata={"sample_index": sample.index},
        )

        async def play(earlier: Trajectory | None) -> tuple[Trajectory, ...]:
            env = plan.request.factory()
            budget: Any = {
                "interrupt": interrupt, "limits": plan.limits, "sampling": plan.sampling
            }  # fmt: skip
            if earlier is None:
                return await player.play(env, spec, **budget)
            call.take_over(earlier)
            return await player.resume(earlier, env, member=plan.member, **budget)

        token = CURRENT.set(call)
        try:
            return await play_through(
                player,
                play,
                earlier=kept,
                max_aborts=plan.settings.max_server_aborts,
                is_stopped=call.is_aborted,
            )
        finally:
            CURRENT.reset(token)


def _restored(state: object) -> Trajectory | None:
    """Return a stored trajectory; an unreadable one is replayed from its start."""
    try:
        return from_state(state)
    except StorageError as error:
        logger.warning("an aborted episode is played from its start: %s", error)
        return None


def _write(
    job: Job,
    sample: Sample,
    plan: Plan,
    played: Sequence[Trajectory],
    aborts: int,
    earlier: Earlier | None,
) -> Any:  # noqa: ANN401  # as for roll
    """Write the played episode to the sample. Blocks on tensors: run it on a thread."""
    form = job.form
    facts = [_facts(one, aborts) for one in played]
    clear(sample)
    sample.metadata[FACTS_KEY] = facts[0].to_json()
    seconds = [facts[0].seconds.get(part, ()) for part in ("env", "encode")]
    sample.non_generation_time = sum(map(sum, seconds))
    if played[0].stop_reason is StopReason.ABORTED:
        return _write_aborted(job, sample, played, earlier)
    for one in played:
        _record(plan, one)
    written = deliver(
        job,
        sample,
        played,
        facts,
        fan_out=plan.settings.fan_out,
        tokenizer=form.state.tokenizer,
        earlier=earlier,
    )
    if not isinstance(written, list):
        mask_stale([written], plan.settings.max_staleness)
    return written


def deliver(
    job: Job,
    sample: Sample,
    played: Sequence[Trajectory],
    facts: Sequence[EpisodeFacts],
    *,
    fan_out: FanOut,
    tokenizer: Any,  # noqa: ANN401  # a transformers tokenizer
    earlier: Earlier | None = None,
) -> Sample | list[Sample]:
    """Write finished trajectories to a sample, or to one sample per row.

    Args:
        job: Job of the samples.
        sample: A cleared sample, which gets the last row.
        played: One trajectory, or one per role.
        facts: One per trajectory.
        fan_out: Samples per trajectory; siblings share the rollout's id.
        tokenizer: As for `write_row`.
        earlier: As for `write_row`.
    """
    filler_id = filler_of(tokenizer)
    if fan_out is FanOut.NONE and not has_role(played[0]):
        sample.metadata[FACTS_KEY] = facts[0].to_json()
        row = _only_row(played[0], filler_id)
        write_row(job.form, job.args, sample, row, tokenizer=tokenizer, earlier=earlier)
        finish(job, sample, played[0], row)
        return sample
    rows = list(_rows(played, fan_out, filler_id))
    if not job.evaluation:
        job.form.check_rows(job.args, sample, [row for _, row in rows])
    if getattr(sample, "rollout_id", None) is None:  # miles 0.0.2 has no such field
        sample.rollout_id = sample.index
    siblings = [*(_sibling(sample) for _ in rows[:-1]), sample]
    for own, (number, row) in zip(siblings, rows, strict=True):
        own.metadata[FACTS_KEY] = _row_facts(facts[number], row)
        write_row(job.form, job.args, own, row, tokenizer=tokenizer)
        finish(job, own, played[number], row)
    return siblings


def _write_aborted(
    job: Job, sample: Sample, played: Sequence[Trajectory], earlier: Earlier | None
) -> Sample:
    """Write an aborted episode's partial row if it will be resumed, else an empty one."""
    (trajectory, *_) = played
    keeps = job.form.keeps_partial(job.args) and not job.evaluation and can_resume(trajectory)
    sample.status = type(sample.status)("aborted")
    if not keeps or not trajectory.turns:
        return sample  # it starts over
    sample.metadata[STATE_KEY] = to_state(trajectory)
    if len(trajectory.sequences()) > 1:
        return sample  # a sample holds one row; the episode is kept whole in its metadata
    tokenizer = job.form.state.tokenizer
    row = _only_row(trajectory, filler_of(tokenizer))
    if not row.is_placeholder:
        write_row(job.form, job.args, sample, row, tokenizer=tokenizer, earlier=earlier)
        finish(job, sample, trajectory, row)
    return sample


def _only_row(trajectory: Trajectory, filler_id: int) -> Row:
    *others, row = step_rows(trajectory, filler_id=filler_id, merge=True)
    if others and not trajectory.is_faulted:
        raise ConfigurationError(
            f"the history of episode {trajectory.episode_id} was rewritten, so it is "
            f"{len(others) + 1} rows, and slime expects one sample; set fan_out: sequences, or "
            "history: keep"
        )
    return row


def _facts(trajectory: Trajectory, aborts: int) -> EpisodeFacts:
    facts = EpisodeFacts.of(trajectory)
    retries = {"server_abort": aborts} if aborts else {}
    return replace(facts, retries={**facts.retries, **retries})


def _row_facts(facts: EpisodeFacts, row: Row) -> dict[str, Any]:
    """Return the facts for the last row of an episode, which represents it in counts.

    Earlier rows have only the facts about their reward.
    """
    known = facts.to_json()
    if not row.is_last:
        known = {key: known[key] for key in ("role", "reward", "fault")}
    return known


def _rows(
    played: Sequence[Trajectory], fan_out: FanOut, filler_id: int
) -> Iterator[tuple[int, Row]]:
    """Yield the numbered rows of every role. A faulted episode has one minimal row.

    A row without a trained token still counts as one token in a mean over tokens
    (slime/backends/megatron_utils/loss.py, loss_function).
    """
    if played[0].is_faulted:  # and so is every other role
        yield 0, step_rows(played[0], filler_id=filler_id, merge=True)[-1]
        return
    for number, one in enumerate(played):
        rows = step_rows(one, filler_id=filler_id, merge=fan_out is not FanOut.TURNS)
        yield from ((number, row) for row in rows)


def _record(plan: Plan, trajectory: Trajectory) -> None:
    if plan.settings.record_dir is None:
        return
    try:
        record(plan.settings.record_dir, trajectory)
    except StorageError as error:
        logger.error("a trajectory was not recorded: %s", error)


def _sibling(sample: Sample) -> Sample:
    """Return a cleared copy; time and statistics are counted in the last sample."""
    copied: Any = type(sample).from_dict(sample.to_dict())  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
    copied.metadata = dict(sample.metadata)
    copied.weight_versions = []
    copied.non_generation_time = 0.0
    return copied


def finish(job: Job, sample: Sample, trajectory: Trajectory, row: Row) -> None:
    """Set the reward, the training flag and the status, as the last step.

    A reward function, a teacher and miles' prefill scoring see the images of the row as the
    trainer's own process_vision_info gives them. A restarted sample keeps its dataset's.
    """
    job.form.annotate(job.args, sample, trajectory)
    is_faulted = trajectory.is_faulted
    if is_faulted or (not any(sample.loss_mask or ()) and not trajectory.turns):
        sample.remove_sample = True
        sample.metadata[FACTS_KEY]["removed"] = True
    status = _status(trajectory)
    is_ours = sets_reward(job.args, sample, is_faulted=is_faulted, evaluation=job.evaluation)
    if status != "aborted" and is_ours:
        sample.reward = reward_value(job.args, trajectory.reward)
    is_scored = not is_ours or getattr(job.args, "recompute_logprobs_via_prefill", False)
    if row.images and row.reward is not None and is_scored:
        sample.multimodal_inputs = {"images": [one.pil() for one in row.images], "videos": None}
    if trajectory.fault is not None:
        logger.warning(
            "sample %s is excluded from training: %s in %s: %s",
            sample.index,
            trajectory.fault.kind,
            trajectory.fault.where,
            trajectory.fault.message,
        )
    sample.status = type(sample.status)(status)


def _status(trajectory: Trajectory) -> str:
    """Return the value of `Sample.Status` that says how the trajectory ended."""
    if trajectory.is_faulted:
        return "failed"
    if trajectory.stop_reason is StopReason.ABORTED:
        return "aborted"
    return "truncated" if trajectory.stop_reason.is_truncation else "completed"


def filler_of(tokenizer: Any) -> int:  # noqa: ANN401  # a transformers tokenizer
    """Return the token for samples without sampled tokens."""
    for name in ("eos_token_id", "pad_token_id"):
        value = getattr(tokenizer, name, None)
        if isinstance(value, int):
            return value
    return 0


def _fail(job: Job, sample: Sample, error: Exception) -> None:
    """Turn a failure into an untrained sample with every column of the batch."""
    name = type(error).__name__
    logger.error(
        "sample %s is excluded from training: %s: %s", sample.index, name, error, exc_info=True
    )
    clear(sample)
    fault = {"where": "setup", "kind": "permanent", "message": f"{name}: {error}"}
    facts = EpisodeFacts(stop_reason=StopReason.ENV_FAULT.value, fault=fault)
    sample.metadata[FACTS_KEY] = {**facts.to_json(), "removed": True}
    write_nothing(job.form, job.args, sample, filler_of(getattr(job.form.state, "tokenizer", None)))
    if sets_reward(job.args, sample, is_faulted=True, evaluation=job.evaluation):
        sample.reward = reward_value(job.args, None)
    sample.remove_sample = True
    sample.status = type(sample.status)("failed")
