"""The agent loop that verl's workers build by name: one envkit episode per sample.

Valid for verl 0.7.1 to 0.9.1 and for both workers: `AgentLoopWorker` (V0) and `AgentLoopWorkerTQ`
(V1). It uses only what those releases have in common: see `run`.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase

from envkit.errors import ConfigurationError, EnvkitError, RunFailedError, nearest
from envkit.ranges import one_of
from envkit.rollout.config import RolloutConfig
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.rollout.setup import EpisodeSpec
from envkit.rollout.sources import EnvSource
from envkit.seeds import derive_seed
from envkit.trajectory import RewardPlacement
from envkit_training.rows import roles_of
from envkit_verl.output import outputs_of
from envkit_verl.rows import Delivery
from envkit_verl.settings import TURNS, VerlSettings
from envkit_verl.shared import SharedRollout, plain, shared_rollout

_OWN_KEYS: Final = ("envkit", "rewards")
_REQUEST_KEYS: Final = ("env_id", "env_kwargs", "task", "seed")
_READ_FIRST: Final = "actor_rollout_ref.rollout.calculate_log_probs"
"""Read by every call of `generate_sequences`, and by nothing else that the loop uses."""
_refusals: Final[list[EnvkitError]] = []


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
        tools: Any = None,  # noqa: ANN401  # verl's, always passed from 0.8.0 on
        **kwargs: Any,  # noqa: ANN401  # verl's own
    ) -> None:
        """Store hydra's arguments; cheap, since verl calls it for every trajectory.

        Args:
            args: Arguments of `AgentLoopBase`.
            envkit: The fields of `envkit.rollout.RolloutConfig`; None uses the defaults; every
                dataset row must then name its environment.
            rewards: "turns" or "last": where rewards are placed in V1's `rm_scores`. V0 has one
                number per trajectory.
            tools: verl's tools; unused, since environments have their own.
            kwargs: Arguments of `AgentLoopBase`.

        Raises:
            ConfigurationError: An unknown option or value.
        """
        del tools
        _check_options(kwargs, rewards)
        super().__init__(*args, **kwargs)
        self._placement = RewardPlacement(rewards)
        self._options = plain(envkit)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:  # noqa: ANN401  # AgentLoopOutput or, in V1, a list of them
        """Play one episode.

        Args:
            sampling_params: verl's sampling parameters, without a token budget.
            kwargs: The columns of the dataset row; V1 adds `session_id` and `global_steps`.

        Raises:
            ConfigurationError: No environment is named, or an option does not work here.
            RunFailedError: The first episodes all failed in the same way, or too many in a row.
        """
        is_v1 = "session_id" in kwargs
        try:
            outputs = await self._outputs(sampling_params, kwargs, is_v1=is_v1)
        except (ConfigurationError, RunFailedError) as error:
            if is_v1:  # V0 passes it on to the trainer
                _refuse_next(self.config, error)
            raise
        return outputs if is_v1 else outputs[0]

    async def _outputs(
        self, sampling_params: dict[str, Any], kwargs: dict[str, Any], *, is_v1: bool
    ) -> list[Any]:
        shared = shared_rollout(self, self._options)
        _check_turns(shared.settings, self._placement, is_v1=is_v1)
        uid = None if kwargs.get("uid") is None else str(kwargs["uid"])
        request = _request(kwargs, shared.config)
        sampling = shared.config.sampling_over(
            shared.settings.sampling(sampling_params, priority=int(kwargs.get("priority") or 0))
        )
        with shared.groups.member(uid) as member:
            source = request.factory()
            await _check_rows(shared, source, is_v1=is_v1)
            seed = _seed(request, kwargs, shared.config.seed)
            spec = EpisodeSpec(
                task=None if request.task is None else dict(request.task),
                group_id=uid,
                group_start=member.group.start,
                member=member.number,
                sampling=sampling,
            )
            spec = spec if seed is None else replace(spec, seed=seed)
            played = await shared.player.play(source, spec)
            delivery = Delivery(
                settings=shared.settings,
                filler_id=shared.filler_id,
                is_v1=is_v1,
                placement=self._placement,
                with_logprobs=bool(sampling_params.get("logprobs")),
                global_steps=int(kwargs.get("global_steps") or 0),
                routing_shape=shared.engine.routing_shape,
                mm_processor_kwargs=shared.mm_processor_kwargs,
            )
            return await outputs_of(played, member, delivery)


def _check_turns(settings: VerlSettings, placement: RewardPlacement, *, is_v1: bool) -> None:
    if settings.estimator == TURNS and not (is_v1 and placement is RewardPlacement.TURNS):
        raise ConfigurationError(
            f"algorithm.adv_estimator={TURNS} needs the reward of each turn: set "
            f"trainer.use_v1=true and, in the loop's YAML entry, rewards: turns; got "
            f"trainer.use_v1={str(is_v1).lower()} and rewards: {placement.value}"
        )


async def _check_rows(shared: SharedRollout, source: EnvSource, *, is_v1: bool) -> None:
    """Reject settings that split an episode into rows that verl would weight wrongly."""
    rule = shared.settings.why_one_row(is_v1=is_v1)
    if rule is None:
        return
    cause = f"envkit.{shared.branching_setting}"
    if shared.branching_setting is None:
        if not await roles_of(shared.player, source):
            return
        cause = f"{source.env_id}, which has several agents,"
    raise ConfigurationError(f"{cause} splits an episode into several rows, and {rule}")


def _check_options(kwargs: Mapping[str, Any], rewards: str) -> None:
    """Reject misspelt options: verl's own base class ignores unknown ones."""
    inner = [entry.name for entry in fields(RolloutConfig)]
    for key in kwargs:
        if key in inner:
            raise ConfigurationError(f"put {key!r} under 'envkit:' in the loop's YAML entry")
        meant = nearest(key, _OWN_KEYS, cutoff=0.8)
        if meant is not None:
            raise ConfigurationError(
                f"the loop's YAML entry has no key {key!r}; did you mean {meant!r}?"
            )
    one_of("rewards", rewards, RewardPlacement)


def _request(kwargs: Mapping[str, Any], config: RolloutConfig) -> EpisodeRequest:
    """Return a row's request: the column `envkit`, or else keys of its `extra_info`."""
    extra: Mapping[str, Any] = kwargs.get("extra_info") or {}
    column: Any = kwargs.get(ENVKIT_COLUMN)
    if column is None:
        column = extra.get(ENVKIT_COLUMN)
    if column is None:
        column = {key: extra[key] for key in _REQUEST_KEYS if extra.get(key) is not None} or None
    return config.row_request(column)


def _seed(request: EpisodeRequest, kwargs: Mapping[str, Any], run_seed: int) -> int | None:
    """Return the environment's seed, the same for a prompt's whole group; None draws one."""
    if request.seed is not None:
        return request.seed
    extra: Mapping[str, Any] = kwargs.get("extra_info") or {}
    # A row's index is the same in every epoch, its uid only within a step.
    if extra.get("index") is not None:
        return derive_seed("group", run_seed, extra.get("split", ""), extra["index"])
    uid = kwargs.get("uid")
    return None if uid is None else derive_seed("group", run_seed, uid)


def _refuse_next(config: Any, error: EnvkitError) -> None:  # noqa: ANN401  # verl's DictConfig
    """Let the worker's next `generate_sequences` raise an error that would fail every episode.

    V1 plays prompts in the background: it logs an exception of the loop, marks the prompt as failed
    and goes on (verl/trainer/ppo/v1/agent_loop_tq.py, `_run_prompt`). Only an exception while it
    starts the next prompts reaches the trainer. `generate_sequences` reads the worker's
    configuration, which the loop shares, so a value that cannot be resolved raises there.
    """
    _refusals[:] = [error]
    OmegaConf.register_new_resolver("envkit_failure", _raise, replace=True)
    OmegaConf.update(config, _READ_FIRST, "${envkit_failure:}", force_add=True)


def _raise() -> None:
    raise _refusals[0]
