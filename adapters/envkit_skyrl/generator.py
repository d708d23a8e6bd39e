"""envkit's loop behind SkyRL's generator interface.

`EnvGenerator` plays every sample of a batch through envkit's one loop and returns SkyRL's
`GeneratorOutput` (skyrl/train/generators/base.py, 0.4.0), whole or step-wise, with pictures in
either. A failure of one environment never leaves `generate`: it becomes a masked row.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from envkit.agents import share_one_reward
from envkit.errors import ConfigurationError, RunFailedError
from envkit.rollout.engine import Sampling
from envkit.rollout.limits import Backoff, Limits
from envkit.rollout.multi_agent import has_role
from envkit.rollout.player import Player
from envkit.rollout.setup import EpisodeSpec
from envkit.tokens import ChatCodec
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory
from envkit_skyrl.contracts import GeneratorInput, GeneratorOutput, InferenceClient
from envkit_skyrl.dependencies import require_skyrl
from envkit_skyrl.engine import SkyRLEngine
from envkit_skyrl.metrics import batch_metrics
from envkit_skyrl.options import SkyRLOptions
from envkit_skyrl.rows import Played, number_siblings, to_output
from envkit_skyrl.samples import Sample, read_samples
from envkit_skyrl.sampling import to_sampling
from envkit_skyrl.setup import RunSetup, check_logprobs, make_limits, prepare
from envkit_skyrl.validation import Pictures, validate_output

require_skyrl()

from skyrl.backends.skyrl_train.inference_servers.engine_utils import (  # noqa: E402  # after it
    get_vllm_sampling_params,
)
from skyrl.train.generators.base import GeneratorInterface  # noqa: E402
from skyrl.train.generators.utils import (  # noqa: E402
    build_vllm_cache_salt,
    get_rollout_metrics,
)

_LOG: Final = logging.getLogger(__name__)
_SHOWN_FAILURES: Final = 3
"""Failures of one batch that are logged in full; the rest is counted."""


class EnvGenerator(GeneratorInterface):
    """Plays envkit environments for SkyRL's trainers, the fully asynchronous one included.

    It may be called any number of times at once. Environments and threads are kept while the event
    loop runs, and closed when `asyncio.run` ends it, or by `aclose`.
    """

    def __init__(
        self,
        generator_cfg: Any,  # noqa: ANN401  # SkyRL's GeneratorConfig
        inference_engine_client: InferenceClient,
        codec: ChatCodec,
        *,
        options: SkyRLOptions | None = None,
        policy_model_name: str | None = None,
        max_sequence_tokens: int | None = None,
        scalar_rewards: bool = False,
    ) -> None:
        """Check that the settings fit together.

        Args:
            generator_cfg: SkyRL's `generator` section.
            inference_engine_client: SkyRL's.
            codec: Of the policy's model; its image processor must be the server's.
            options: The run's `envkit` section; None takes the defaults.
            policy_model_name: What the server calls the policy; None takes the client's model.
            max_sequence_tokens: SkyRL's `trainer.algorithm.max_seq_len`; None is unbounded.
            scalar_rewards: One reward for each row instead of a list, for SkyRL's zero-variance
                filter; whole trajectories only.

        Raises:
            ConfigurationError: A combination that SkyRL or the loop cannot honour.
        """
        self._config, self._codec = generator_cfg, codec
        self._options = options or SkyRLOptions()
        self._setup: RunSetup = prepare(
            generator_cfg, codec, self._options, scalar_rewards=scalar_rewards
        )
        self._max_sequence_tokens = max_sequence_tokens
        salt: Callable[[int], str] | None = None
        if generator_cfg.use_cache_salt:
            salt = partial(build_vllm_cache_salt, model_name=policy_model_name)
        pictures = self._setup.plan.pictures
        self._engine = SkyRLEngine(
            inference_engine_client,
            model=policy_model_name,
            image_token_id=None if pictures is None else pictures.token_id,
            timeout_s=self._options.timeout_s,
            cache_salt=salt,
        )
        self._backoff, self._rng = Backoff(), random.Random()
        self._player: tuple[asyncio.AbstractEventLoop, Player, asyncio.Task[None]] | None = None

    @property
    def pictures(self) -> Pictures | None:
        """How the model takes pictures; None for a text model."""
        return self._setup.plan.pictures

    async def generate(
        self, input_batch: GeneratorInput, disable_tqdm: bool = False
    ) -> GeneratorOutput:
        """Play every sample and return their training rows, in the order of the input.

        Args:
            input_batch: SkyRL's, each prompt repeated for its group.
            disable_tqdm: True logs no progress; the fully asynchronous trainer asks for that.

        Raises:
            ConfigurationError: The input is malformed, or no sample of it can be played because of
                how the run is configured.
        """
        metadata = input_batch.get("batch_metadata")
        is_eval = metadata is not None and metadata.training_phase == "eval"
        params = input_batch.get("sampling_params")
        if params is None:
            params = self._default_params(is_eval)
        sampling = self._options.rollout.sampling_over(to_sampling(params))
        exact = check_logprobs(self._setup.logprob_kind, sampling, is_eval=is_eval)
        limits = make_limits(self._config, self._options, sampling, self._max_sequence_tokens)
        rollout = self._options.rollout
        samples = read_samples(
            input_batch, default=rollout.request(), seed=rollout.seed, is_eval=is_eval
        )
        started = time.perf_counter()
        player = self._get_player()
        plays = [self._play(player, sample, sampling, limits) for sample in samples]
        played = number_siblings(await asyncio.gather(*plays))
        self._report(played, time.perf_counter() - started, quiet=disable_tqdm)
        self._refuse_if_nothing_can_work(played)
        return self._output(input_batch, played, limits, with_logprobs=exact)

    async def aclose(self) -> None:
        """Close the environments and end the threads; closing twice is fine."""
        if self._player is None:
            return
        loop, _, keeper = self._player
        self._player = None
        if loop is asyncio.get_running_loop():
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _play(
        self, player: Player, sample: Sample, sampling: Sampling, limits: Limits
    ) -> tuple[Played, ...]:
        """Play one sample, one result for each of its agents; whatever goes wrong is in it."""
        started = time.perf_counter()
        played: tuple[Trajectory, ...] = ()
        error: Exception | None = None
        resumes = 0
        try:
            played = await self._episode(player, sample, sampling, limits)
            while played[0].stop_reason is StopReason.ABORTED:
                if resumes == self._options.max_resumes:
                    break
                await asyncio.sleep(self._backoff.delay(resumes, self._rng))
                resumes += 1
                # Several agents start anew: none can go on without its siblings.
                earlier = None if has_role(played[0]) else played[0]
                played = await self._episode(player, sample, sampling, limits, earlier)
            if has_role(played[0]):
                self._check_siblings(played)
        except Exception as caught:  # noqa: BLE001  # one sample must not cost the batch
            error, played = caught, ()
        return tuple(
            Played(
                group=sample.group,
                trajectory_id=sample.trajectory_id,
                trajectory=one,
                error=error,
                resumes=resumes,
                seconds=time.perf_counter() - started,
            )
            for one in played or (None,)
        )

    async def _episode(
        self,
        player: Player,
        sample: Sample,
        sampling: Sampling,
        limits: Limits,
        earlier: Trajectory | None = None,
    ) -> tuple[Trajectory, ...]:
        if isinstance(sample.request, ConfigurationError):
            raise sample.request
        source = sample.request.factory()
        if earlier is None:
            spec = EpisodeSpec(
                seed=sample.seed,
                task=sample.request.task,
                episode_id=sample.episode_id,
                group_id=sample.group,
                group_start=sample.start,
                member=sample.member,
            )
            return await player.play(source, spec, limits=limits, sampling=sampling)
        return await player.resume(
            earlier, source, member=sample.member, limits=limits, sampling=sampling
        )

    def _check_siblings(self, played: tuple[Trajectory, ...]) -> None:
        """Refuse what would compare the agents of an episode wrongly.

        Raises:
            ConfigurationError: One row for each sample is asked for, or the rewards differ.
        """
        if not self._setup.plan.step_wise:
            raise ConfigurationError(
                f"{played[0].env_id} has several agents, each with rows of its own: set "
                "generator.step_wise_trajectories=true"
            )
        share_one_reward(played, "SkyRL")

    def _output(
        self,
        input_batch: GeneratorInput,
        played: Sequence[Played],
        limits: Limits,
        *,
        with_logprobs: bool,
    ) -> GeneratorOutput:
        plan = replace(self._setup.plan, with_logprobs=with_logprobs)
        rows = to_output(played, plan)
        output = rows.output
        durations = [sample.seconds for sample in played]
        output["rollout_metrics"] = {
            **get_rollout_metrics(
                output["response_ids"],
                output["rewards"],
                loss_masks=output["loss_masks"],
                trajectory_completion_times=durations,
            ),
            **batch_metrics(played, tally=rows.tally, masked=rows.masked),
        }
        validate_output(
            output,
            None
            if input_batch.get("trajectory_ids") is None
            else [sample.trajectory_id for sample in played if sample.trajectory_id is not None],
            step_wise=plan.step_wise,
            allow_forks=self._codec.history == "rerender",
            max_tokens=limits.max_context_tokens,
            pictures=plan.pictures,
        )
        return output

    def _default_params(self, is_eval: bool) -> Mapping[str, Any]:
        config = self._config
        params = config.eval_sampling_params if is_eval else config.sampling_params
        return get_vllm_sampling_params(params)

    def _get_player(self) -> Player:
        """Return the player of the running event loop; it is closed when that ends."""
        loop = asyncio.get_running_loop()
        if self._player is None or self._player[0] is not loop:
            rollout = self._options.rollout
            player = Player(self._engine, self._codec, rollout)
            self._player = loop, player, loop.create_task(_close_at_end(player))
        return self._player[1]

    def _report(self, played: Sequence[Played], seconds: float, *, quiet: bool) -> None:
        failures = [sample for sample in played if sample.failure is not None]
        for sample in failures[:_SHOWN_FAILURES]:
            _LOG.warning("sample of prompt %s is masked: %s", sample.group, sample.failure)
        if len(failures) > _SHOWN_FAILURES:
            _LOG.warning("%d further samples are masked", len(failures) - _SHOWN_FAILURES)
        if not quiet:
            _LOG.info("played %d episodes in %.1f s", len(played), seconds)

    def _refuse_if_nothing_can_work(self, played: Sequence[Played]) -> None:
        """Raise what is wrong with the run, where that keeps every sample from being played.

        Raises:
            ConfigurationError: Of the first sample; the same will happen to every batch.
            RunFailedError: The first episodes all failed in the same way.
        """
        errors = [sample.error for sample in played]
        for error in errors:
            if isinstance(error, RunFailedError):
                raise error
        if all(isinstance(error, ConfigurationError) for error in errors):
            first = errors[0]
            raise ConfigurationError(
                f"none of {len(errors)} samples can be played; the first one's reason: {first}"
            ) from first


async def _close_at_end(player: Player) -> None:
    """Wait until the event loop ends, which cancels this, and close what the player keeps."""
    try:
        await asyncio.Event().wait()
    finally:
        await player.aclose()
