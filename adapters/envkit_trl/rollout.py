"""TRL's `rollout_func`: text episodes of any number of turns, played by envkit's loop.

TRL calls it with one prompt for each row, groups already repeated, and takes token columns back
(trl/trainer/grpo_trainer.py, `_generate`, 1.16). It has no room for pictures: those need
`EnvGRPOTrainer`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from envkit.errors import ConfigurationError
from envkit.messages import images_of
from envkit.rollout.config import RolloutConfig
from envkit.rollout.engine import Engine
from envkit.rollout.player import Player
from envkit.rollout.request import EpisodeRequest
from envkit.tokens import ChatCodec
from envkit.trajectory.trajectory import Trajectory
from envkit_trl.batch import BatchPlace, play_batch
from envkit_trl.loop_thread import LoopThread
from envkit_trl.policy import HandOver, Policy, embedded_policy, evaluating, external_policy
from envkit_trl.requests import RequestIndex
from envkit_trl.rows import REWARD_COLUMN, check_rows, episode_row, leave_out_faults
from envkit_trl.settings import check_arguments, limits_of, sampling_of


def make_rollout_func(
    config: RolloutConfig | Mapping[str, Any] | None = None,
    *,
    engine: Engine | None = None,
    hand_over: HandOver | None = None,
    codec: ChatCodec | None = None,
    rows: Iterable[Mapping[str, Any]] | None = None,
) -> "EnvRollout":
    """Return what `GRPOTrainer(rollout_func=...)` takes; give it `reward_funcs=env_reward` too.

    Args:
        config: Environment, limits, retries, sampling and seed; a mapping is read strictly.
        engine: Samples the replies; None samples from the trainer's own model in this process.
        hand_over: Gives the engine the weights of every step; None takes its `update_weights`.
        codec: Encodes what the environments say; None makes one of the trainer's tokenizer.
        rows: Where a prompt's request is found, with columns "prompt" and "envkit"; None takes the
            trainer's own datasets.

    Raises:
        ConfigurationError: The configuration cannot be read, or an engine would not get weights.
    """
    if not isinstance(config, RolloutConfig):
        config = RolloutConfig.from_mapping(config)
    policy = None if engine is None else external_policy(engine, hand_over)
    return EnvRollout(config, policy=policy, codec=codec, rows=rows)


class EnvRollout:
    """A `rollout_func`; belongs to one trainer, whose model, tokenizer and datasets it uses.

    Attributes:
        trajectories: Of the last call, in the order of its rows.
    """

    def __init__(
        self,
        config: RolloutConfig,
        *,
        policy: Policy | None,
        codec: ChatCodec | None,
        rows: Iterable[Mapping[str, Any]] | None,
    ) -> None:
        self._config = config
        self._policy = policy
        self._codec = codec
        self._rows = rows
        self._loop: LoopThread | None = None
        self._player: Player | None = None
        self._index: RequestIndex | None = None
        self._trainer: Any = None
        self.trajectories: tuple[Trajectory, ...] = ()

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:  # noqa: ANN401
        """Play one episode for each prompt and return TRL's columns.

        Raises:
            ConfigurationError: A prompt without a request, an environment with pictures, or
                arguments that the rollouts cannot honour.
            RunFailedError: The first episodes all failed in the same way.
        """
        index, policy, loop = self._prepare(trainer)
        requests = [index.find(prompt) for prompt in prompts]
        model = trainer.accelerator.unwrap_model(trainer.model)
        is_training = bool(model.training)
        place = self._place(trainer, len(requests), is_training=is_training)
        with evaluating(model):
            loop.run(policy.sync(model, str(trainer.state.global_step)))
            self.trajectories = loop.run(self._play(requests, place))
        return rollout_columns(
            self.trajectories,
            end_id=trainer.eos_token_ids[0],
            max_completion=trainer.max_completion_length,
        )

    def close(self) -> None:
        """Close environments, the engine if it was made here, and the thread; twice is fine."""
        if self._loop is None:
            return
        loop, self._loop = self._loop, None
        if self._player is not None:
            loop.run(self._player.aclose())
            self._player = None
        if self._policy is not None:
            loop.run(self._policy.aclose())
        loop.close()

    def _prepare(self, trainer: Any) -> tuple[RequestIndex, Policy, LoopThread]:  # noqa: ANN401
        """Build on the first call what needs the trainer."""
        if self._index is not None and self._policy is not None and self._loop is not None:
            if trainer is not self._trainer:
                raise ConfigurationError(
                    "a rollout function belongs to the trainer that called it first; make another "
                    "with make_rollout_func"
                )
            return self._index, self._policy, self._loop
        check_arguments(trainer.args, who="make_rollout_func")
        index = RequestIndex(default=self._config.request())
        if self._rows is not None:
            index.add(self._rows)
        else:
            index.add(trainer.train_dataset)
            index.add(trainer.eval_dataset)
        leave_out_faults(trainer)
        self._trainer, self._index, self._loop = trainer, index, LoopThread()
        if self._policy is None:
            self._policy = embedded_policy(trainer, self._config.engine)
        return index, self._policy, self._loop

    def _place(self, trainer: Any, rows: int, *, is_training: bool) -> BatchPlace:  # noqa: ANN401
        return BatchPlace(
            run_seed=self._config.seed,
            step=trainer.state.global_step,
            is_training=is_training,
            first_row=trainer.accelerator.process_index * rows,
            group_size=trainer.num_generations if is_training else trainer.num_generations_eval,
        )

    async def _play(
        self, requests: Sequence[EpisodeRequest], place: BatchPlace
    ) -> tuple[Trajectory, ...]:
        player = self._player
        sampling = sampling_of(self._trainer.args, self._config)
        if player is None:
            player = self._player = self._new_player()
        return await play_batch(player, requests, place, sampling=sampling)

    def _new_player(self) -> Player:
        """Make the player on the loop's own thread, to which it belongs."""
        config, trainer, policy = self._config, self._trainer, self._policy
        if policy is None:
            raise ConfigurationError("the rollout function is closed")
        codec = self._codec or ChatCodec(
            trainer.processing_class,
            template_kwargs=config.template_kwargs,
            history=config.history,
            stop_ids=trainer.eos_token_ids,
        )
        return Player(
            policy.engine,
            codec,
            replace(config, limits=limits_of(trainer.args, config.limits)),
        )


def rollout_columns(
    trajectories: Sequence[Trajectory], *, end_id: int, max_completion: int
) -> dict[str, list[Any]]:
    """Return TRL's columns; every key is a list with one entry for each trajectory.

    Args:
        trajectories: Of text; one without a reward becomes an end token with mask 0.
        end_id: A token that TRL takes for the end of a completion.
        max_completion: TRL's `max_completion_length`.

    Raises:
        ConfigurationError: There are pictures, or a trajectory is more than one sequence.
        LedgerFault: A row that TRL would train on wrongly; see `check_rows`.
    """
    if any(images_of(trajectory.messages) for trajectory in trajectories):
        raise ConfigurationError(
            "the environment shows images, and TRL carries none from a rollout_func to the loss; "
            "use envkit_trl.EnvGRPOTrainer"
        )
    rows = [episode_row(trajectory, end_id=end_id) for trajectory in trajectories]
    check_rows(rows, image_id=None, max_completion=max_completion)
    return {
        "prompt_ids": [list(row.prompt_ids) for row in rows],
        "completion_ids": [list(row.response_ids) for row in rows],
        "logprobs": [list(row.logprobs) for row in rows],
        "env_mask": [list(row.loss_mask) for row in rows],
        REWARD_COLUMN: [row.reward for row in rows],
        "env_stop": [trajectory.stop_reason.value for trajectory in trajectories],
        "env_turns": [len(trajectory.turns) for trajectory in trajectories],
    }
