"""Generate one sample: plan, play or resume, and write.

Both slime and miles use this module, each with its own `Form`. An exception from a generate
function ends slime's whole rollout (slime/rollout/sglang_rollout.py awaits every task). Only wrong
settings do that. Any other failure becomes a failed sample that is counted and not trained on.
"""

import asyncio
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from envkit.errors import ConfigurationError, RunFailedError, StorageError, TemplateError
from envkit.metrics import EpisodeFacts
from envkit.rollout.engine import Sampling
from envkit.rollout.multi_agent import can_resume, has_role
from envkit.rollout.player import play_through
from envkit.rollout.setup import EpisodeSpec
from envkit.rollout.sources import EnvSource
from envkit.trajectory import Row, StopReason, Trajectory, TrajectoryWriter, step_rows
from envkit_slime.checks import check_settings, check_siblings
from envkit_slime.engine import Call
from envkit_slime.form import Form
from envkit_slime.remote import wants_top_p
from envkit_slime.rewards import reward_value, sets_reward
from envkit_slime.runtime import Runtime, runtime_of
from envkit_slime.sample import FACTS_KEY, STATE_KEY, Sample
from envkit_slime.settings import FanOut, Settings, episode_of
from envkit_slime.staleness import mask_stale
from envkit_slime.stored import from_state, to_state
from envkit_slime.writer import Earlier, clear, write_nothing, write_row
from envkit_training.rows import check_one_row

logger = logging.getLogger("envkit.slime")


async def roll(form: Form, sample: Sample, sampling_params: Mapping[str, Any]) -> Any:  # noqa: ANN401  # the trainer's Sample, or a list of them by opt-in
    """Generate for one sample and return it, or several with fan-out.

    Args:
        form: The call of slime or miles.
        sample: A fresh or an aborted sample; changed in place.
        sampling_params: Not changed.
    """
    args, evaluation = form.args, form.evaluation
    trainer = form.state  # a trainer that lacks something ends the rollout, not one sample
    if sample.metadata is None:  # pyright: ignore[reportUnnecessaryComparison]
        sample.metadata = {}
    is_list = False  # the trainer flattens a batch whose members are all lists, or none
    try:
        settings = Settings.from_args(args)
        source, spec = await asyncio.to_thread(
            episode_of, args, settings, sample, sampling_params, evaluation=evaluation
        )
        is_list = settings.fan_out is not FanOut.NONE
        check_settings(args, sample, settings, evaluation=evaluation)
        runtime = runtime_of(args, trainer, settings.rollout.engine)
        await check_siblings(form, settings, source, runtime)
        earlier = Earlier.of(sample) if STATE_KEY in sample.metadata else None
        played, aborts = await _play(form, sample, settings, runtime, source, spec)
        is_list = is_list or has_role(played[0])
        return await asyncio.to_thread(
            deliver, form, sample, played, settings, aborts=aborts, earlier=earlier
        )
    except (ConfigurationError, RunFailedError, TemplateError):
        raise  # a wrong setting fails every sample, and training on nothing looks like success
    except Exception as error:  # noqa: BLE001  # see above
        _fail(form, sample, error)
        return [sample] if is_list else sample


async def _play(
    form: Form,
    sample: Sample,
    settings: Settings,
    runtime: Runtime,
    source: EnvSource,
    spec: EpisodeSpec,
) -> tuple[tuple[Trajectory, ...], int]:
    """Play the episode, or resume it; an abort by the server is resumed."""
    state = sample.metadata.get(STATE_KEY)
    kept = None if state is None else await asyncio.to_thread(_restored, state)
    player = await runtime.player(settings.rollout)
    sampling = spec.sampling or Sampling()
    extras = {**sampling.extras, **form.request_fields(sample)}
    spec = replace(
        spec,
        episode_id=form.session_id(sample),
        group_start=runtime.group_start(spec.group_id),
        sampling=replace(sampling, extras=extras),
    )
    with runtime.episode() as interrupt:
        call = Call(
            state=form.state,
            interrupt=interrupt,
            span=form.span(sample),
            attributes=form.attributes,
            wants_experts=bool(getattr(form.args, "use_rollout_routing_replay", False)),
            wants_top_p=wants_top_p(spec.sampling),
        )
        if kept is not None:
            call.take_over(kept)
        with call.current():
            return await play_through(
                player,
                source,
                spec,
                earlier=kept,
                interrupt=interrupt,
                max_aborts=settings.max_server_aborts,
                is_stopped=call.is_aborted,
            )


def _restored(state: object) -> Trajectory | None:
    """Return a stored trajectory; an unreadable one is replayed from its start."""
    try:
        return from_state(state)
    except StorageError as error:
        logger.warning("an aborted episode is played from its start: %s", error)
        return None


def deliver(
    form: Form,
    sample: Sample,
    played: Sequence[Trajectory],
    settings: Settings,
    *,
    aborts: int = 0,
    earlier: Earlier | None = None,
) -> Sample | list[Sample]:
    """Write a played episode to a sample, or to one sample per row. Blocks: run it on a thread.

    Args:
        form: The call.
        sample: Gets the last row; siblings share its rollout's id.
        played: One trajectory, or one per role.
        settings: Those of the episode.
        aborts: Aborts by the server, after which the episode went on.
        earlier: As for `write_row`.
    """
    facts = [_facts(one, aborts) for one in played]
    clear(sample)
    sample.metadata[FACTS_KEY] = facts[0].to_json()
    seconds = [facts[0].seconds.get(part, ()) for part in ("env", "encode")]
    sample.non_generation_time = sum(map(sum, seconds))
    first = played[0]
    if first.stop_reason is StopReason.ABORTED:
        return _deliver_aborted(form, sample, first, earlier)
    for one in played:
        _record(settings.record_dir, one)
    if settings.fan_out is FanOut.NONE and not has_role(first):
        write_row(form, sample, first, _only_row(first, form.filler_id), earlier=earlier)
        mask_stale([sample], settings.max_staleness)
        return sample
    rows = list(_rows(played, settings.fan_out, form.filler_id))
    if not form.evaluation:
        form.check_rows(sample, [row for _, row in rows])
    if getattr(sample, "rollout_id", None) is None:  # miles 0.0.2 has no such field
        sample.rollout_id = sample.index
    siblings = [*(_sibling(sample) for _ in rows[:-1]), sample]
    for own, (number, row) in zip(siblings, rows, strict=True):
        own.metadata[FACTS_KEY] = _row_facts(facts[number], row)
        write_row(form, own, played[number], row)
    return siblings


def _deliver_aborted(
    form: Form, sample: Sample, trajectory: Trajectory, earlier: Earlier | None
) -> Sample:
    """Write an aborted episode's partial row if it will be resumed, else an empty one."""
    sample.status = type(sample.status)("aborted")
    if not (form.keeps_partial and can_resume(trajectory) and trajectory.turns):
        return sample  # it starts over
    sample.metadata[STATE_KEY] = to_state(trajectory)
    if len(trajectory.sequences()) > 1:
        return sample  # a sample holds one row; the episode is kept whole in its metadata
    row = _only_row(trajectory, form.filler_id)
    if not row.is_placeholder:
        write_row(form, sample, trajectory, row, earlier=earlier)
    return sample


def _only_row(trajectory: Trajectory, filler_id: int) -> Row:
    rows = step_rows(trajectory, filler_id=filler_id, merge=True)
    if not trajectory.is_faulted:
        remedy = "slime expects one sample; set fan_out: sequences, or history: keep"
        check_one_row(trajectory, rows, remedy)
    return rows[-1]


def _facts(trajectory: Trajectory, aborts: int) -> EpisodeFacts:
    facts = EpisodeFacts.of(trajectory)
    retries = {"server_abort": aborts} if aborts else {}
    return structs.replace(facts, retries={**facts.retries, **retries})


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
    """Yield the numbered rows of every role. A faulted episode has one minimal row."""
    # A row without a trained token still counts as one token in a mean over tokens
    # (slime/backends/megatron_utils/loss.py, loss_function).
    if played[0].is_faulted:  # and so is every other role
        yield 0, step_rows(played[0], filler_id=filler_id, merge=True)[-1]
        return
    for number, one in enumerate(played):
        rows = step_rows(one, filler_id=filler_id, merge=fan_out is not FanOut.TURNS)
        yield from ((number, row) for row in rows)


_writers: dict[str, TrajectoryWriter] = {}
_writers_lock = threading.Lock()


def _record(folder: str | None, trajectory: Trajectory) -> None:
    """Append a finished trajectory to a run directory, if there is one."""
    if folder is None:
        return
    try:
        with _writers_lock:
            if folder not in _writers:
                _writers[folder] = TrajectoryWriter(folder, mode="append")
            writer = _writers[folder]
        writer.write(trajectory)
    except StorageError as error:
        logger.error("a trajectory was not recorded: %s", error)


def _sibling(sample: Sample) -> Sample:
    """Return a cleared copy; time and statistics are counted in the last sample."""
    copied: Any = type(sample).from_dict(sample.to_dict())  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
    copied.metadata = dict(sample.metadata)
    copied.weight_versions = []
    copied.non_generation_time = 0.0
    return copied


def _fail(form: Form, sample: Sample, error: Exception) -> None:
    """Turn a failure into an untrained sample with every column of the batch."""
    name = type(error).__name__
    logger.error(
        "sample %s is excluded from training: %s: %s", sample.index, name, error, exc_info=True
    )
    clear(sample)
    fault = {"where": "setup", "kind": "permanent", "message": f"{name}: {error}"}
    facts = EpisodeFacts(stop_reason=StopReason.ENV_FAULT.value, fault=fault)
    sample.metadata[FACTS_KEY] = {**facts.to_json(), "removed": True}
    write_nothing(form, sample, form.filler_id)
    if sets_reward(form.args, sample, is_faulted=True, evaluation=form.evaluation):
        sample.reward = reward_value(form.args, None)
    sample.remove_sample = True
    sample.status = type(sample.status)("failed")
