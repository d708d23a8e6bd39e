"""One sample from start to end: planned, played or resumed, and written.

slime and miles both come here, each with its own `Form`. An exception that leaves a generate
function ends slime's whole rollout (slime/rollout/sglang_rollout.py awaits every task). A wrong
setting must do that. Whatever else goes wrong becomes a failed sample that is counted and not
trained on.
"""

import asyncio
import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from envkit.errors import (
    ConfigurationError,
    FaultKind,
    RunFailedError,
    StorageError,
    TemplateError,
)
from envkit.rollout import EpisodeSpec, Interrupt, Player, has_role, role_of
from envkit.trajectory import FaultPlace, FaultRecord, StopReason, Trajectory, step_rows, whole_row
from envkit_slime.checks import check_fan_out, check_prompt, check_siblings
from envkit_slime.engine import CURRENT, Call, Span
from envkit_slime.rewards import reward_value, sets_reward
from envkit_slime.runtime import GenerateState, Runtime, record, runtime_of
from envkit_slime.sample import STATE_KEY, SUMMARY_KEY, Sample
from envkit_slime.settings import FanOut, Plan, plan_episode
from envkit_slime.stored import freeze, thaw
from envkit_slime.summary import summarise, summarise_failure
from envkit_slime.writer import Earlier, SampleForm, clear, status_value, write_nothing, write_row

logger = logging.getLogger("envkit.slime")

_ABORT_PAUSE_S: Final = 0.1


class Form(SampleForm, Protocol):
    """What differs between slime and miles."""

    @property
    def state(self) -> GenerateState:
        """Tokenizer, processor and abort flag."""
        ...

    def session_id(self, sample: Sample) -> str:
        """Return the key that routes the sample's requests, making one where it has none."""
        ...

    def span(self, sample: Sample) -> Span:
        """Return what opens a trace span on the sample."""
        ...

    def attributes(self, meta_info: dict[str, Any]) -> dict[str, Any]:
        """Return what a span keeps of an answer's `meta_info`."""
        ...

    def request_fields(self, args: Namespace, sample: Sample) -> Mapping[str, Any]:
        """Return what the trainer adds to each of a sample's requests."""
        ...

    def keeps_partial(self, args: Namespace) -> bool:
        """Return whether aborted samples come back to be played on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    trajectories: tuple[Trajectory, ...]
    """One, or with several agents one for each role that spoke."""
    server_aborts: int

    @property
    def trajectory(self) -> Trajectory:
        """The only one, or the first role's."""
        return self.trajectories[0]


async def roll(
    form: Form,
    args: Namespace,
    sample: Sample,
    sampling_params: Mapping[str, Any],
    *,
    evaluation: bool,
) -> Any:  # noqa: ANN401  # the trainer's Sample, or a list of them by opt-in
    """Generate for one sample and return it, or several where fan-out was asked for.

    Args:
        form: slime or miles.
        args: The trainer's arguments.
        sample: Fresh, or one that came back after an abort; changed in place.
        sampling_params: Not changed.
        evaluation: Whether this is the trainer's evaluation.
    """
    if sample.metadata is None:  # pyright: ignore[reportUnnecessaryComparison]
        sample.metadata = {}
    try:
        plan = await asyncio.to_thread(
            plan_episode, args, sample, sampling_params, evaluation=evaluation
        )
        extras = {**plan.sampling.extras, **form.request_fields(args, sample)}
        plan = replace(plan, sampling=replace(plan.sampling, extras=extras))
        check_prompt(args, sample, plan.settings.task_fields, evaluation=evaluation)
        check_fan_out(args, plan.settings.fan_out, evaluation=evaluation)
        runtime = runtime_of(args, form.state, plan.settings.rollout.engine)
        await check_siblings(
            args, plan, runtime, keeps_partial=form.keeps_partial(args), evaluation=evaluation
        )
        earlier_state = sample.metadata.get(STATE_KEY)
        earlier = Earlier.of(sample) if earlier_state is not None else None
        played = await _play(form, args, sample, plan, runtime, earlier_state)
        return await asyncio.to_thread(
            _write, form, args, sample, plan, played, earlier, evaluation
        )
    except (ConfigurationError, RunFailedError, TemplateError):
        raise  # a wrong setting fails every sample, and training on nothing looks like success
    except Exception as error:  # noqa: BLE001  # see above
        _fail(form, args, sample, error, evaluation=evaluation)
        return sample


async def _play(
    form: Form,
    args: Namespace,
    sample: Sample,
    plan: Plan,
    runtime: Runtime,
    state: object,
) -> _Played:
    """Play the episode, or go on with it; an abort that is not the trainer's is gone on with."""
    earlier = None if state is None else await asyncio.to_thread(_thawed, state)
    player = await runtime.player(plan.settings.rollout)
    server_aborts = 0
    with runtime.episode() as interrupt:
        call = Call(
            state=form.state,
            interrupt=interrupt,
            span=form.span(sample),
            attributes=form.attributes,
            wants_experts=bool(getattr(args, "use_rollout_routing_replay", False)),
            wants_top_p="return_top_p_token_ids" in _custom_params(plan),
        )
        token = CURRENT.set(call)
        try:
            while True:
                if earlier is not None:
                    call.take_over(earlier)
                played = await _play_once(form, sample, plan, runtime, player, interrupt, earlier)
                if played[0].stop_reason is not StopReason.ABORTED or call.is_aborted():
                    return _Played(trajectories=played, server_aborts=server_aborts)
                server_aborts += 1
                if server_aborts > plan.settings.max_server_aborts:
                    lost = tuple(_given_up(one, server_aborts) for one in played)
                    return _Played(trajectories=lost, server_aborts=server_aborts)
                # Several agents start anew: none can go on without its siblings.
                earlier = None if _has_roles(played) else played[0]
                await asyncio.sleep(_ABORT_PAUSE_S)
        finally:
            CURRENT.reset(token)


def _custom_params(plan: Plan) -> Mapping[str, Any]:
    params: Any = plan.sampling.extras.get("custom_params")
    return params if isinstance(params, Mapping) else {}


async def _play_once(
    form: Form,
    sample: Sample,
    plan: Plan,
    runtime: Runtime,
    player: Player,
    interrupt: Interrupt,
    earlier: Trajectory | None,
) -> tuple[Trajectory, ...]:
    env = plan.request.factory()
    if earlier is not None:
        return await player.resume(
            earlier,
            env,
            member=plan.member,
            interrupt=interrupt,
            limits=plan.limits,
            sampling=plan.sampling,
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
    return await player.play(
        env, spec, interrupt=interrupt, limits=plan.limits, sampling=plan.sampling
    )


def _has_roles(played: Sequence[Trajectory]) -> bool:
    """Whether the episode had several agents."""
    return all(map(has_role, played))


def _thawed(state: object) -> Trajectory | None:
    """Return a kept trajectory; one that cannot be read is played anew from its start."""
    try:
        return thaw(state)
    except StorageError as error:
        logger.warning("an aborted episode is played from its start: %s", error)
        return None


def _given_up(trajectory: Trajectory, count: int) -> Trajectory:
    """Return an aborted trajectory as a faulted one."""
    message = f"the server aborted the episode's request {count} times; is it being shut down?"
    fault = FaultRecord(where=FaultPlace.GENERATE, kind=FaultKind.TRANSIENT, message=message)
    return replace(trajectory, stop_reason=StopReason.ENGINE_FAULT, fault=fault, reward=None)


def _write(
    form: Form,
    args: Namespace,
    sample: Sample,
    plan: Plan,
    played: _Played,
    earlier: Earlier | None,
    evaluation: bool,
) -> Any:  # noqa: ANN401  # as for roll
    """Write the trajectory into the sample. Blocks on tensors: runs on a thread."""
    trajectory = played.trajectory
    summary = summarise(trajectory, server_aborts=played.server_aborts)
    is_aborted = trajectory.stop_reason is StopReason.ABORTED
    clear(sample)
    sample.metadata[SUMMARY_KEY] = summary
    has_roles = _has_roles(played.trajectories)
    keeps = form.keeps_partial(args) and not evaluation and not has_roles
    if is_aborted and keeps and trajectory.turns:
        sample.metadata[STATE_KEY] = freeze(trajectory)
    if not is_aborted:
        for one in played.trajectories:
            _record(plan, one)
    sample.non_generation_time = summary["env_seconds"] + summary["encode_seconds"]
    tokenizer = form.state.tokenizer
    filler_id = filler_of(tokenizer)
    if plan.settings.fan_out is not FanOut.NONE and not is_aborted and not has_roles:
        return _fan_out(form, args, sample, plan, trajectory, filler_id, evaluation=evaluation)
    if has_roles:
        return _write_roles(form, args, sample, played, filler_id, evaluation=evaluation)
    row = whole_row(trajectory, filler_id=filler_id)
    if is_aborted and row.is_placeholder:
        sample.status = type(sample.status)("aborted")  # nothing was sampled: it starts anew
        return sample
    write_row(form, args, sample, row, tokenizer=tokenizer, earlier=earlier)
    finish(form, args, sample, trajectory, evaluation=evaluation)
    return sample


def _record(plan: Plan, trajectory: Trajectory) -> None:
    if plan.settings.record_dir is None:
        return
    try:
        record(plan.settings.record_dir, trajectory)
    except StorageError as error:
        logger.error("a trajectory was not recorded: %s", error)


def _fan_out(
    form: Form,
    args: Namespace,
    sample: Sample,
    plan: Plan,
    trajectory: Trajectory,
    filler_id: int,
    *,
    evaluation: bool,
) -> list[Sample]:
    """Return a sample for each row; all share the rollout's id and its reward."""
    merge = plan.settings.fan_out is FanOut.SEQUENCES
    rows = step_rows(trajectory, filler_id=filler_id, merge=merge)
    if getattr(sample, "rollout_id", None) is None:  # miles 0.0.2 has no such field
        sample.rollout_id = sample.index
    siblings: list[Sample] = []
    for number, row in enumerate(rows):
        own = sample if number == len(rows) - 1 else _sibling(sample, trajectory)
        write_row(form, args, own, row, tokenizer=form.state.tokenizer)
        finish(form, args, own, trajectory, evaluation=evaluation)
        siblings.append(own)
    return siblings


def _write_roles(
    form: Form,
    args: Namespace,
    sample: Sample,
    played: _Played,
    filler_id: int,
    *,
    evaluation: bool,
) -> Any:  # noqa: ANN401  # as for roll
    """Return a sample for each row of each role; all share the rollout's id.

    An aborted episode is the one sample that it was, with nothing in it: it starts anew.
    """
    if played.trajectory.stop_reason is StopReason.ABORTED:
        sample.status = type(sample.status)("aborted")
        return sample
    if getattr(sample, "rollout_id", None) is None:
        sample.rollout_id = sample.index
    siblings: list[Sample] = []
    for number, trajectory in enumerate(played.trajectories):
        is_last_role = number == len(played.trajectories) - 1
        rows = step_rows(trajectory, filler_id=filler_id, merge=True)
        for place, row in enumerate(rows):
            is_own = place == len(rows) - 1
            own = sample if is_last_role and is_own else _sibling(sample, trajectory)
            if is_own:
                own.metadata[SUMMARY_KEY] = summarise(
                    trajectory, server_aborts=played.server_aborts
                )
            else:
                own.metadata[SUMMARY_KEY] = _sibling_summary(trajectory)
            write_row(form, args, own, row, tokenizer=form.state.tokenizer)
            finish(form, args, own, trajectory, evaluation=evaluation)
            siblings.append(own)
    return siblings


def _sibling(sample: Sample, trajectory: Trajectory) -> Sample:
    """Return a cleared copy; its time and its statistics are counted in the last one."""
    copied: Any = type(sample).from_dict(sample.to_dict())  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
    copied.metadata = {**sample.metadata, SUMMARY_KEY: _sibling_summary(trajectory)}
    copied.weight_versions = []
    copied.non_generation_time = 0.0
    return copied


def _sibling_summary(trajectory: Trajectory) -> dict[str, Any]:
    """Return what a row says of its episode where another row is counted for it."""
    return {"sibling": True, "role": role_of(trajectory), "reward": trajectory.reward}


def finish(
    form: SampleForm,
    args: Namespace,
    sample: Sample,
    trajectory: Trajectory,
    *,
    evaluation: bool = False,
) -> None:
    """Set the reward, whether the sample is trained on, and its status, last of all."""
    summary = sample.metadata[SUMMARY_KEY]
    form.annotate(args, sample, trajectory)
    is_faulted = trajectory.is_faulted
    nothing = not any(sample.loss_mask or ())
    if is_faulted or (nothing and not trajectory.turns):
        sample.remove_sample = True
        summary["removed"] = True
    status = status_value(trajectory)
    if status != "aborted" and sets_reward(
        args, sample, is_faulted=is_faulted, evaluation=evaluation
    ):
        sample.reward = reward_value(args, trajectory.reward)
    if trajectory.fault is not None:
        logger.warning(
            "sample %s is left out of training: %s in %s: %s",
            sample.index,
            trajectory.fault.kind,
            trajectory.fault.where,
            trajectory.fault.message,
        )
    sample.status = type(sample.status)(status)


def filler_of(tokenizer: Any) -> int:  # noqa: ANN401  # a transformers tokenizer
    """Return the token that stands where nothing was sampled."""
    for name in ("eos_token_id", "pad_token_id"):
        value = getattr(tokenizer, name, None)
        if isinstance(value, int):
            return value
    return 0


def _fail(
    form: Form, args: Namespace, sample: Sample, error: Exception, *, evaluation: bool
) -> None:
    """Turn any failure into a sample that every column of a batch fits, and that is not trained."""
    logger.error(
        "sample %s is left out of training: %s: %s",
        sample.index,
        type(error).__name__,
        error,
        exc_info=not isinstance(error, ConfigurationError),
    )
    clear(sample)
    summary = summarise_failure(error)
    summary["removed"] = True
    sample.metadata[SUMMARY_KEY] = summary
    write_nothing(form, args, sample, _safe_filler(form))
    if sets_reward(args, sample, is_faulted=True, evaluation=evaluation):
        sample.reward = reward_value(args, None)
    sample.remove_sample = True
    sample.status = type(sample.status)("failed")


def _safe_filler(form: Form) -> int:
    try:
        return filler_of(form.state.tokenizer)
    except Exception:  # noqa: BLE001  # the state itself may be what failed
        return 0
