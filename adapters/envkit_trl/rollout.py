"""TRL's `rollout_func`: text episodes of any number of turns, played by envkit's loop.

TRL calls it with one prompt per row, groups already repeated, and expects token columns
(trl/trainer/grpo_trainer.py, `_generate`, 1.16). It cannot carry images: those need
`EnvGRPOTrainer`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envkit.errors import ConfigurationError
from envkit.messages import images_of
from envkit.rollout.config import RolloutConfig
from envkit.rollout.engine import Engine
from envkit.tokens import ChatCodec
from envkit.trajectory.trajectory import Trajectory
from envkit_trl.batch import BatchPlayer
from envkit_trl.contract import CONTRACT
from envkit_trl.policy import SendWeights, embedded_policy, external_policy
from envkit_trl.requests import RequestIndex
from envkit_trl.rows import REWARD_COLUMN, check_rows, episode_row, leave_out_faults
from envkit_trl.settings import TAIL_SETTING, check_arguments


def make_rollout_func(
    config: RolloutConfig | Mapping[str, Any] | None = None,
    *,
    engine: Engine | None = None,
    send_weights: SendWeights | None = None,
    codec: ChatCodec | None = None,
    rows: Iterable[Mapping[str, Any]] | None = None,
) -> "EnvRollout":
    """Return a `rollout_func` for `GRPOTrainer`; pass `reward_funcs=env_reward` too.

    Args:
        config: Environment, limits, retries, sampling and seed; a mapping is read strictly.
        engine: Samples the replies; None samples from the trainer's own model in this process.
        send_weights: Sends every step's weights to the engine; None uses the engine's
            `update_weights`.
        codec: Encodes observations; None builds one from the trainer's tokenizer.
        rows: Rows with columns "prompt" and "envkit" to look up requests; None uses the trainer's
            own datasets.

    Raises:
        ConfigurationError: The configuration cannot be read, or an engine would not get weights.
    """
    config = RolloutConfig.for_trainer(config, tail=TAIL_SETTING)
    policy = None if engine is None else external_policy(engine, send_weights)
    return EnvRollout(config, policy, codec, rows)


class EnvRollout:
    """A `rollout_func`; belongs to one trainer, whose model, tokenizer and datasets it uses.

    Attributes:
        trajectories: Trajectories of the last call, in row order.
        player: Plays for the trainer; None before the first call.
    """

    def __init__(
        self,
        config: RolloutConfig,
        policy: Any,  # noqa: ANN401  # a Policy, or None
        codec: ChatCodec | None,
        rows: Iterable[Mapping[str, Any]] | None,
    ) -> None:
        self._config, self._policy, self._codec, self._rows = config, policy, codec, rows
        self._index = RequestIndex(config)
        self.player: BatchPlayer | None = None
        self._trainer: Any = None
        self.trajectories: tuple[Trajectory, ...] = ()

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:  # noqa: ANN401
        """Play one episode per prompt and return TRL's columns.

        Raises:
            ConfigurationError: A prompt has no request, the environment shows images, or the
                rollouts cannot honour an argument.
            RunFailedError: As for `Player.play`.
        """
        player = self.player or self.prepare(trainer)
        if trainer is not self._trainer:
            raise ConfigurationError(
                "a rollout function belongs to the trainer that called it first; make another "
                "with make_rollout_func"
            )
        self.trajectories = player.play([self._index.find(prompt) for prompt in prompts])
        return rollout_columns(
            self.trajectories,
            end_id=trainer.eos_token_ids[0],
            max_completion=trainer.max_completion_length,
        )

    def close(self) -> None:
        """Close environments, the engine if it was created here, and the thread; idempotent."""
        if self.player is not None:
            self.player.close()

    def prepare(self, trainer: Any) -> BatchPlayer:  # noqa: ANN401
        """Build everything that needs the trainer; the first call does this.

        Raises:
            ConfigurationError: Arguments or datasets that the rollouts cannot honour.
        """
        CONTRACT.check()
        check_arguments(trainer.args, who="make_rollout_func", has_codec=self._codec is not None)
        if self._rows is not None:
            self._index.add(self._rows)
        else:
            self._index.add(trainer.train_dataset)
            self._index.add(trainer.eval_dataset)
        leave_out_faults()
        policy = self._policy or embedded_policy(trainer, self._config.engine)
        self._trainer = trainer
        self.player = BatchPlayer(trainer, policy, self._codec, self._config)
        return self.player


def rollout_columns(
    trajectories: Sequence[Trajectory], *, end_id: int, max_completion: int
) -> dict[str, list[Any]]:
    """Return TRL's columns; every key is a list with one entry per trajectory.

    Args:
        trajectories: Text trajectories; one without a reward becomes an end token with mask 0.
        end_id: A token that TRL treats as the end of a completion.
        max_completion: TRL's `max_completion_length`.

    Raises:
        ConfigurationError: There are images, or a trajectory is more than one sequence.
        LedgerFault: TRL would train on a row wrongly; see `check_rows`.
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
        "env_turns": [trajectory.step_count for trajectory in trajectories],
    }
