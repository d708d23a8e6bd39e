"""SkyRL's generator interface on top of envkit's loop.

`EnvGenerator` plays every sample of a batch through envkit's one loop and returns SkyRL's
`GeneratorOutput` (skyrl/train/generators/base.py, 0.4.0), whole or step-wise, with images in
either. A failure of one environment never leaves `generate`: it becomes a masked row.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from envkit.agents import share_one_reward
from envkit.errors import ConfigurationError, RunFailedError
from envkit.metrics import aggregate
from envkit.rollout.engine import Sampling
from envkit.rollout.limits import Limits
from envkit.rollout.multi_agent import has_role
from envkit.rollout.player import AnyPlayer, Player, play_through
from envkit.tokens import ChatCodec
from envkit.trajectory.trajectory import Trajectory
from envkit_skyrl.contract import CONTRACT
from envkit_skyrl.engine import SkyRLEngine, weight_version_of
from envkit_skyrl.images import InferenceClient
from envkit_skyrl.options import SkyRLOptions
from envkit_skyrl.remote import WorkerRecipe
from envkit_skyrl.rows import Played, to_output
from envkit_skyrl.samples import Sample, read_samples
from envkit_skyrl.sampling import to_sampling
from envkit_skyrl.setup import check_logprobs, keeps_images, make_limits, prepare
from envkit_skyrl.validation import GeneratorOutput, ImageSettings, validate_output

CONTRACT.check()

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
"""Failures per batch logged in full; the rest are counted."""
_IS_RATIO: Final = re.compile(r"(p\d+|std|rate|share|second|stream|versions)$")
"""Metrics of the core that are neither counts nor named mean, min or max."""


class EnvGenerator(GeneratorInterface):
    """Plays envkit environments for SkyRL's trainers, the fully asynchronous one included.

    It may be called concurrently. Environments and threads are kept while the event loop runs, and
    closed when `asyncio.run` ends it, or by `aclose`.
    """

    def __init__(
        self,
        generator_cfg: Any,  # noqa: ANN401  # SkyRL's GeneratorConfig
        inference_engine_client: InferenceClient,
        codec: ChatCodec | Callable[[], ChatCodec],
        *,
        options: SkyRLOptions | None = None,
        policy_model_name: str | None = None,
        max_sequence_tokens: int | None = None,
        scalar_rewards: bool = False,
    ) -> None:
        """Check that the settings are compatible.

        Args:
            generator_cfg: SkyRL's `generator` section.
            inference_engine_client: SkyRL's.
            codec: Codec of the policy's model, or a function that makes it, which
                `envkit.workers` needs; its image processor must be the server's.
            options: The run's `envkit` section; None uses the defaults.
            policy_model_name: The server's name of the policy; None uses the client's model.
            max_sequence_tokens: SkyRL's `trainer.algorithm.max_seq_len`; None is unbounded.
            scalar_rewards: One reward per row instead of a list, for SkyRL's zero-variance filter;
                whole trajectories only.

        Raises:
            ConfigurationError: A combination that SkyRL or the loop cannot honour.
        """
        self._config, self._codec = generator_cfg, codec() if callable(codec) else codec
        self._options = options or SkyRLOptions()
        self._plan = prepare(
            generator_cfg, self._codec, self._options, scalar_rewards=scalar_rewards
        )
        self._max_sequence_tokens = max_sequence_tokens
        salt: Callable[[int], str] | None = None
        if generator_cfg.use_cache_salt:
            salt = partial(build_vllm_cache_salt, model_name=policy_model_name)
        arguments: dict[str, Any] = {
            "model": policy_model_name,
            "image_token_id": None if self.image_settings is None else self.image_settings.token_id,
            "keeps_images": keeps_images(generator_cfg),
            "timeout_s": self._options.timeout_s,
            "cache_salt": salt,
        }
        self._engine = SkyRLEngine(inference_engine_client, **arguments)
        self._recipe = self._worker_recipe(inference_engine_client, arguments, codec)
        self._player: tuple[asyncio.AbstractEventLoop, AnyPlayer, asyncio.Task[None]] | None = None

    def _worker_recipe(
        self,
        client: InferenceClient,
        arguments: Mapping[str, Any],
        codec: ChatCodec | Callable[[], ChatCodec],
    ) -> WorkerRecipe | None:
        """Return the recipe for workers' players; None if this process plays.

        Raises:
            ConfigurationError: Workers are requested with a codec, which they cannot share.
        """
        config = self._options.rollout
        if not config.workers:
            return None
        if not callable(codec):
            raise ConfigurationError(
                f"envkit.workers={config.workers} needs a function of a module that makes the "
                "codec in a worker, got a codec: give EnvGenerator the function instead"
            )
        return WorkerRecipe(
            client=client,
            engine=arguments,
            make_codec=codec,
            config=config.of_worker(),
            imports=self._options.imports,
        )

    @property
    def image_settings(self) -> ImageSettings | None:
        """Image settings of the model; None for a text model."""
        return self._plan.image_settings

    async def generate(
        self, input_batch: Mapping[str, Any], disable_tqdm: bool = False
    ) -> GeneratorOutput:
        """Play every sample and return their training rows, in the order of the input.

        Args:
            input_batch: SkyRL's GeneratorInput, each prompt repeated for its group.
            disable_tqdm: True logs no progress, as the fully asynchronous trainer requests.

        Raises:
            ConfigurationError: The input is malformed, or the run's configuration prevents every
                sample from playing.
        """
        metadata = input_batch.get("batch_metadata")
        is_eval = metadata is not None and metadata.training_phase == "eval"
        params = input_batch.get("sampling_params")
        if params is None:
            own = self._config.eval_sampling_params if is_eval else self._config.sampling_params
            params = get_vllm_sampling_params(own)
        sampling = self._options.rollout.sampling_over(to_sampling(params))
        exact = check_logprobs(self._config, self._options, sampling, is_eval=is_eval)
        limits = make_limits(self._config, self._options, sampling, self._max_sequence_tokens)
        samples = read_samples(input_batch, self._options, is_eval=is_eval)
        started = time.perf_counter()
        player = self._get_player()
        plays = [self._play(player, sample, sampling, limits) for sample in samples]
        played = await asyncio.gather(*plays)
        if not disable_tqdm:
            _LOG.info("played %d episodes in %.1f s", len(played), time.perf_counter() - started)
        _check_failures(played)
        output = self._output(played, with_logprobs=exact)
        validate_output(
            output,
            [one.trajectory_id for one in played if one.trajectory_id is not None] or None,
            max_tokens=limits.max_context_tokens,
            images=self.image_settings,
        )
        return output

    async def aclose(self) -> None:
        """Close the environments and stop the threads; safe to call twice."""
        if self._player is None:
            return
        loop, _, keeper = self._player
        self._player = None
        if loop is asyncio.get_running_loop():
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _play(
        self, player: AnyPlayer, sample: Sample, sampling: Sampling, limits: Limits
    ) -> Played:
        """Play one sample; a failure is part of the result."""
        started = time.perf_counter()
        played: tuple[Trajectory, ...] = ()
        error: Exception | None = None
        resumes = 0
        try:
            if isinstance(sample.request, ConfigurationError):
                raise sample.request
            spec = replace(sample.spec, limits=limits, sampling=sampling)
            found, resumes = await play_through(
                player, sample.request.factory(), spec, max_aborts=self._options.max_resumes
            )
            if has_role(found[0]):
                self._check_siblings(found)
            played = found
        except Exception as caught:  # noqa: BLE001  # one sample must not cost the batch
            error = caught
        return Played(
            group=str(sample.spec.group_id),
            trajectory_id=sample.trajectory_id,
            trajectories=played,
            error=error,
            resumes=resumes,
            seconds=time.perf_counter() - started,
        )

    def _check_siblings(self, played: tuple[Trajectory, ...]) -> None:
        """Reject settings that would compare the agents of an episode wrongly.

        Raises:
            ConfigurationError: The run uses one row per sample, or the rewards differ.
        """
        if not self._plan.step_wise:
            raise ConfigurationError(
                f"{played[0].env_id} has several agents, each with its own rows: set "
                "generator.step_wise_trajectories=true"
            )
        if self._options.turn_discount is not None:
            raise ConfigurationError(
                f"envkit.turn_discount compares the turns of one conversation, and "
                f"{played[0].env_id} has several agents: drop it"
            )
        share_one_reward(played, "SkyRL")

    def _output(self, played: Sequence[Played], *, with_logprobs: bool) -> GeneratorOutput:
        rows = to_output(played, replace(self._plan, with_logprobs=with_logprobs))
        output, tally = rows.output, rows.tally
        own: dict[str, float] = {
            **aggregate(trajectory for one in played for trajectory in one.trajectories),
            "unplayable": sum(not one.trajectories for one in played),
            "masked": rows.masked,
            "resumes": sum(one.resumes for one in played),
            "rows/merged": tally.merged,
            "rows/forked": tally.forked,
            "rows/drifted_tokens": tally.drifted_tokens,
        }
        output["rollout_metrics"] = {
            **get_rollout_metrics(
                output["response_ids"],
                output["rewards"],
                loss_masks=output["loss_masks"],
                trajectory_completion_times=[one.seconds for one in played],
            ),
            **joinable(own),
        }
        return output

    def _new_player(self) -> AnyPlayer:
        config = self._options.rollout
        if self._recipe is None:
            return Player(self._engine, self._codec, config)
        from envkit_ray import RayPlayer  # only for settings that ask for workers

        return RayPlayer(
            self._recipe,
            config,
            keeps_features=self.image_settings is not None,
            follows=partial(weight_version_of, self._recipe.client),
        )

    def _get_player(self) -> AnyPlayer:
        """Return the player of the running event loop; it is closed when that ends."""
        loop = asyncio.get_running_loop()
        if self._player is None or self._player[0] is not loop:
            player = self._new_player()
            self._player = loop, player, loop.create_task(_close_at_end(player))
        return self._player[1]


def joinable(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics under names that SkyRL aggregates correctly over groups.

    SkyRL aggregates by words in a name (`concatenate_generator_outputs` in
    skyrl/train/generators/utils.py, 0.4.0): "avg" or "mean" takes the mean, else "min" the
    smallest, else "max" the largest, and everything else the sum. "stop/terminated", a count, would
    get the minimum; its fraction carries the same information.
    """
    return {
        f"{'envkit_mean' if _IS_RATIO.search(name) else 'envkit'}/{name}": float(value)
        for name, value in metrics.items()
        if not name.startswith("stop/") or name.endswith("/share")
    }


def _check_failures(played: Sequence[Played]) -> None:
    """Log failures, and raise if the run's configuration prevents every sample from playing.

    Raises:
        ConfigurationError: The first sample's error; every batch would fail the same way.
        RunFailedError: As for `Player.play`.
    """
    failures = [one for one in played if one.failure is not None]
    for one in failures[:_SHOWN_FAILURES]:
        _LOG.warning("sample of prompt %s is masked: %s", one.group, one.failure)
    if len(failures) > _SHOWN_FAILURES:
        _LOG.warning("%d further samples are masked", len(failures) - _SHOWN_FAILURES)
    errors = [one.error for one in played]
    for error in errors:
        if isinstance(error, RunFailedError):
            raise error
    if all(isinstance(error, ConfigurationError) for error in errors):
        raise ConfigurationError(
            f"none of {len(errors)} samples can be played; the first one's reason: {errors[0]}"
        ) from errors[0]


async def _close_at_end(player: AnyPlayer) -> None:
    """Wait until the event loop ends, which cancels this task, and close the player."""
    try:
        await asyncio.Event().wait()
    finally:
        await player.aclose()
