"""Plays the batches of a GRPOTrainer, each episode at its own pace."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envkit.errors import ConfigurationError
from envkit.rollout.config import RolloutConfig
from envkit.rollout.engine import Sampling
from envkit.rollout.multi_agent import has_role
from envkit.rollout.player import Player
from envkit.rollout.request import EpisodeRequest
from envkit.rollout.setup import EpisodeSpec, GroupStart
from envkit.seeds import derive_seed
from envkit.threads.workers import gather_or_cancel
from envkit.tokens import ChatCodec
from envkit.trajectory.trajectory import Trajectory
from envkit_trl.loop_thread import LoopThread
from envkit_trl.place import first_row, group_size
from envkit_trl.policy import Policy, evaluating
from envkit_trl.settings import rollout_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlace:
    """Position of a batch in training, which determines its seeds."""

    seeds: tuple[object, ...]
    """Seed of the run, the optimizer step and the generation in it; an evaluation omits the step,
    so every evaluation plays the same episodes."""
    first_row: int
    """Index of the batch's first row over all processes."""
    group_size: int
    """Consecutive rows per group."""


class BatchPlayer:
    """Samples and plays for one trainer, on its own thread."""

    def __init__(
        self,
        trainer: Any,  # noqa: ANN401
        policy: Policy,
        codec: ChatCodec | None,
        config: RolloutConfig,
    ) -> None:
        """Set up for a fully constructed trainer.

        Args:
            trainer: A trl.GRPOTrainer.
            policy: Samples the replies.
            codec: Encodes observations; None builds one from the trainer's processing class.
            config: Configuration of the rollouts.

        Raises:
            ConfigurationError: The trainer's arguments contradict the configuration.
        """
        self.codec = codec or ChatCodec(
            trainer.processing_class,
            template_kwargs={**(trainer.chat_template_kwargs or {}), **config.template_kwargs},
            history=config.codec_history,
            stop_ids=trainer.eos_token_ids,
            vocabulary_size=trainer.model.config.get_text_config().vocab_size,
        )
        # An agent may well hold one conversation; `episode_row` refuses an episode with more.
        if config.branching_setting(self.codec) == "history":
            raise ConfigurationError(
                f"envkit.history {config.history!r} splits an episode into several rows, and "
                "GRPOTrainer needs one per completion: set it to keep, or use "
                "envkit_trl.EnvAsyncGRPOTrainer"
            )
        self._config, self._sampling = rollout_settings(trainer.args, config)
        self._trainer, self._policy = trainer, policy
        self._loop = LoopThread()
        self._player: Player | None = None
        self._place: tuple[object, ...] = ()
        self._generation = 0
        _when_evaluated(trainer, self._forget_place)

    def play(self, requests: Sequence[EpisodeRequest]) -> tuple[Trajectory, ...]:
        """Play one episode per request, with the weights of the trainer's last step.

        Raises:
            ConfigurationError: Engine, sampling and environment are incompatible.
            RunFailedError: As for `Player.play`.
        """
        place = self._next_place(len(requests))
        with evaluating(self._model()):
            self.sync_weights()
            return self._loop.run(self._play(requests, place))

    def sync_weights(self) -> None:
        """Send the weights to the engine, unless it has those of this optimizer step."""
        version = str(self._trainer.state.global_step)
        self._loop.run(self._policy.sync(self._model(), version))

    def close(self) -> None:
        """Close environments, the engine if it was created here, and the thread; idempotent."""
        if self._player is not None:
            self._loop.run(self._player.aclose())
            self._player = None
            self._loop.run(self._policy.aclose())
        self._loop.close()

    def _model(self) -> Any:  # noqa: ANN401
        return self._trainer.accelerator.unwrap_model(self._trainer.model)

    def _next_place(self, rows: int) -> BatchPlace:
        trainer = self._trainer
        is_training = bool(trainer.model.training)
        place = ("train", trainer.state.global_step) if is_training else ("evaluation",)
        # One optimizer step may generate several times, and must not play the same episodes again.
        self._generation = self._generation + 1 if place == self._place else 0
        self._place = place
        return BatchPlace(
            seeds=(self._config.seed, *place, self._generation),
            first_row=first_row(trainer, rows),
            group_size=group_size(trainer),
        )

    def _forget_place(self) -> None:
        self._place = ()

    async def _play(
        self, requests: Sequence[EpisodeRequest], place: BatchPlace
    ) -> tuple[Trajectory, ...]:
        if (
            self._player is None
        ):  # here, because a player belongs to the event loop it is created on
            self._player = Player(self._policy.engine, self.codec, self._config)
        return await play_batch(self._player, requests, place, sampling=self._sampling)


async def play_batch(
    player: Player,
    requests: Sequence[EpisodeRequest],
    place: BatchPlace,
    *,
    sampling: Sampling,
) -> tuple[Trajectory, ...]:
    """Play one episode per request and return the trajectories in the same order.

    The members of a group play the same task from the same seed, each with its own sampling seed.

    Raises:
        ConfigurationError: Engine, sampling and environment are incompatible.
        RunFailedError: As for `Player.play`.
    """
    starts: dict[int, GroupStart] = {}
    # A repeated task must not get the same replies.
    sampling = reseeded(sampling, *place.seeds)

    async def episode(row: int, request: EpisodeRequest) -> Trajectory:
        group, member = divmod(place.first_row + row, place.group_size)
        spec = group_spec(
            request, starts.setdefault(group, GroupStart()), member, (*place.seeds, group)
        )
        played = await player.play(request.factory(), replace(spec, sampling=sampling))
        if has_role(played[0]):
            raise ConfigurationError(
                f"{request.env_id} has several agents, each with its own row, and TRL's "
                "GRPOTrainer needs exactly one row per prompt: use AsyncGRPOTrainer with "
                "envkit_trl's rollout worker"
            )
        return played[0]

    return await gather_or_cancel([episode(row, request) for row, request in enumerate(requests)])


def group_spec(
    request: EpisodeRequest, start: GroupStart, member: int, seeds: Sequence[object]
) -> EpisodeSpec:
    """Return the episode spec of a group's member; seeds are shared and identify the group."""
    seed = request.seed if request.seed is not None else derive_seed("group", *seeds)
    group_id = "-".join(map(str, seeds[1:]))
    return EpisodeSpec(
        seed=seed, task=request.task, group_id=group_id, group_start=start, member=member
    )


def reseeded(sampling: Sampling, *parts: object) -> Sampling:
    """Return sampling with a seed derived from its own, if any."""
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=derive_seed(sampling.seed, *parts))


def _when_evaluated(trainer: Any, call: Callable[[], None]) -> None:  # noqa: ANN401
    from transformers import TrainerCallback

    class Evaluated(TrainerCallback):
        def on_evaluate(self, *_: object, **__: object) -> None:
            call()

    trainer.add_callback(Evaluated())
