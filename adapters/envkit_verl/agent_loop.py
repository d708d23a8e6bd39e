"""The agent loop that verl's workers build by name: one envkit episode for each sample.

Valid for verl 0.7.1 to 0.9.1 and for both workers: `AgentLoopWorker` (V0) and `AgentLoopWorkerTQ`
(V1). Only what those releases have in common is used: see `run`.
"""

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from envkit.agents import share_one_reward
from envkit.errors import ConfigurationError, EnvFault, Fault, FaultKind
from envkit.rollout import (
    ENVKIT_COLUMN,
    EnvSource,
    EpisodeRequest,
    EpisodeSpec,
    RolloutConfig,
)
from envkit.seeds import derive_seed
from envkit.trajectory import RewardPlacement, Trajectory
from envkit_verl.groups import Member
from envkit_verl.output import Scored, outputs_of, rows_for
from envkit_verl.shared import SharedRollout, WorkerParts, plain, shared_rollout

_LOGGER: Final = logging.getLogger(__name__)
_ON_FAULT: Final = ("mask", "raise")
_OWN_KEYS: Final = ("envkit", "rewards", "on_fault")
_REQUEST_KEYS: Final = ("env_id", "env_kwargs", "task", "seed")


class EnvAgentLoop(AgentLoopBase):
    """Plays the environment that a dataset row names, through envkit's one loop.

    In the file of `actor_rollout_ref.rollout.agent.agent_loop_config_path`::

        - name: envkit
          _target_: envkit_verl.EnvAgentLoop
          envkit: {env_id: geo3k-v0, limits: {max_turns: 5}}
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  # verl's own
        envkit: Mapping[str, Any] | None = None,
        rewards: str = RewardPlacement.TURNS,
        on_fault: str = "mask",
        tools: Any = None,  # noqa: ANN401  # verl's, always passed from 0.8.0 on
        **kwargs: Any,  # noqa: ANN401  # verl's own
    ) -> None:
        """Take what hydra passes; cheap, since verl does it for every trajectory.

        Args:
            args: verl's own, for `AgentLoopBase`.
            envkit: The fields of `envkit.rollout.RolloutConfig`; None takes the defaults, and every
                dataset row must then name its environment.
            rewards: "turns" or "last": where rewards stand in V1's `rm_scores`. V0 has one number
                for each trajectory.
            on_fault: What becomes of an episode whose infrastructure failed. "mask": a valid row
                with mask 0 and the mean reward of its group. "raise", V1 only: verl marks the
                group as failed, pads what is missing or draws another prompt.
            tools: verl's tools; an environment brings its own, so they are not used.
            kwargs: verl's own, for `AgentLoopBase`.

        Raises:
            ConfigurationError: An unknown option, or a value that is none of its choices.
        """
        del tools
        _check_options(kwargs, rewards, on_fault)
        super().__init__(*args, **kwargs)
        self._placement = RewardPlacement(rewards)
        self._on_fault = on_fault
        self._options = plain(envkit)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:  # noqa: ANN401  # AgentLoopOutput or, in V1, a list of them
        """Play one episode.

        Args:
            sampling_params: verl's, without a token budget.
            kwargs: The columns of the dataset row; V1 adds `session_id` and `global_steps`.

        Raises:
            ConfigurationError: No environment is named, or an option does not work with V0.
            RunFailedError: The first episodes all failed in the same way.
            Fault: The episode failed, and `on_fault` is "raise".
        """
        shared = shared_rollout(
            WorkerParts(
                server_manager=self.server_manager,
                tokenizer=self.tokenizer,
                processor=self.processor,
                rollout=self.rollout_config,
                data=self.data_config,
            ),
            self._options,
        )
        is_v1 = "session_id" in kwargs
        if not is_v1:
            self._check_v0(shared)
        uid = kwargs.get("uid")
        request = _request(kwargs, shared.config)
        sampling = shared.config.sampling_over(
            shared.settings.sampling(sampling_params, priority=int(kwargs.get("priority") or 0))
        )
        with shared.groups.member(None if uid is None else str(uid)) as member:
            source = request.factory()
            if not is_v1:
                await _refuse_roles(shared, source)
            seed = _seed(request, kwargs, shared.config.seed)
            spec = EpisodeSpec(
                task=None if request.task is None else dict(request.task),
                group_id=None if uid is None else str(uid),
                group_start=member.group.start,
                member=member.number,
            )
            spec = spec if seed is None else replace(spec, seed=seed)
            played = await shared.player.play(source, spec, sampling=sampling)
            scored = await self._scored_roles(played, shared, member)
        # Siblings have one reward, which no turn of a single one has earned.
        placement = self._placement if len(scored) == 1 else RewardPlacement.LAST
        outputs: list[AgentLoopOutput] = [
            output
            for one in scored
            for output in outputs_of(
                one,
                shared.settings,
                placement=placement,
                with_logprobs=bool(sampling_params.get("logprobs")),
                global_steps=int(kwargs.get("global_steps") or 0),
                routing_shape=shared.engine.routing_shape,
                mm_processor_kwargs=shared.mm_processor_kwargs,
            )
        ]
        return outputs[0] if len(outputs) == 1 else outputs

    async def _scored_roles(
        self, played: Sequence[Trajectory], shared: SharedRollout, member: Member
    ) -> list[Scored]:
        """Return what verl is told of each role; V1 gives all of them the last one's advantage.

        Raises:
            ConfigurationError: The roles have different rewards.
        """
        if len(played) == 1 or played[0].reward is None:
            return [await self._scored(played[0], shared, member)]
        share_one_reward(played, "verl")
        reward = float(played[0].reward)
        member.leave(reward)
        scored: list[Scored] = []
        for one in played:
            rows, problem = rows_for(one, shared.settings, filler_id=shared.filler_id)
            scored.append(Scored(trajectory=one, rows=rows, problem=problem, reward=reward))
        # The advantage is read off the last row, so one that is trained must stand there.
        return sorted(scored, key=lambda one: one.problem is None)

    async def _scored(
        self, trajectory: Trajectory, shared: SharedRollout, member: Member
    ) -> Scored:
        rows, problem = rows_for(trajectory, shared.settings, filler_id=shared.filler_id)
        if problem is None:
            reward = float(trajectory.reward or 0.0)
            member.leave(reward)
            return Scored(trajectory=trajectory, rows=rows, problem=None, reward=reward)
        fault = trajectory.fault
        text = f"episode {trajectory.episode_id} of {trajectory.env_id} is not trained: {problem}"
        text += "" if fault is None else f": {fault.message}"
        _LOGGER.warning("%s", text)
        member.leave(None)
        if self._on_fault == "raise":
            raise Fault(text, kind=FaultKind.PERMANENT if fault is None else fault.kind)
        mean = await member.group.mean()
        return Scored(trajectory=trajectory, rows=rows, problem=problem, reward=mean or 0.0)

    def _check_v0(self, shared: SharedRollout) -> None:
        if shared.splits_history:
            raise ConfigurationError(
                "history 'rerender' makes several rows of an episode with this chat template, and "
                "verl's V0 worker takes one; use trainer.use_v1=true, or history 'keep'"
            )
        if self._on_fault == "raise":
            raise ConfigurationError(
                "on_fault 'raise' would lose the whole chunk in verl's V0 worker; "
                "use on_fault 'mask', or trainer.use_v1=true"
            )


async def _refuse_roles(shared: SharedRollout, source: EnvSource) -> None:
    try:
        roles = await shared.player.roles_of(source)
    except EnvFault:
        return  # the episode meets it again, and records it
    if roles:
        raise ConfigurationError(
            f"{source.env_id} has several agents, each with a row of its own, and verl's V0 worker "
            "takes one row; use trainer.use_v1=true"
        )


def _check_options(kwargs: Mapping[str, Any], rewards: str, on_fault: str) -> None:
    """Refuse misspelt options: verl's own base class swallows what it does not know."""
    inner = [entry.name for entry in fields(RolloutConfig)]
    for key in kwargs:
        if key in inner:
            raise ConfigurationError(f"put {key!r} under 'envkit:' in the loop's YAML entry")
        nearest = difflib.get_close_matches(key, _OWN_KEYS, n=1, cutoff=0.8)
        if nearest:
            raise ConfigurationError(
                f"the loop's YAML entry has no key {key!r}; did you mean {nearest[0]!r}?"
            )
    places = [member.value for member in RewardPlacement]
    for name, value, choices in (("rewards", rewards, places), ("on_fault", on_fault, _ON_FAULT)):
        if value not in choices:
            raise ConfigurationError(f"{name} must be one of {list(choices)}, got {value!r}")


def _request(kwargs: Mapping[str, Any], config: RolloutConfig) -> EpisodeRequest:
    """Return what a row asks for: the column `envkit`, else keys of its `extra_info`."""
    extra: Mapping[str, Any] = kwargs.get("extra_info") or {}
    column: Any = kwargs.get(ENVKIT_COLUMN)
    if column is None:
        column = extra.get(ENVKIT_COLUMN)
    if column is None:
        column = {key: extra[key] for key in _REQUEST_KEYS if extra.get(key) is not None}
    return EpisodeRequest.from_column(column, default=config.request())


def _seed(request: EpisodeRequest, kwargs: Mapping[str, Any], run_seed: int) -> int | None:
    """Return the environment's seed, the same for a prompt's whole group; None draws one.

    A row's index is the same in every epoch, its uid only within a step.
    """
    if request.seed is not None:
        return request.seed
    extra: Mapping[str, Any] = kwargs.get("extra_info") or {}
    if extra.get("index") is not None:
        return derive_seed("group", run_seed, extra.get("split", ""), extra["index"])
    uid = kwargs.get("uid")
    return None if uid is None else derive_seed("group", run_seed, uid)
