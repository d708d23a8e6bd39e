"""TRL's GRPOTrainer with envkit's rollouts: images of every turn reach the loss.

TRL's `rollout_func` carries no images, so this trainer overrides `_generate`, whose result can
carry them. It wraps four more private methods and copies none. Written for TRL 1.16
(trl/trainer/grpo_trainer.py); the contract tests pin the version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from envkit.advantages import TurnRewards, turn_advantages
from envkit.errors import ConfigurationError, LedgerFault, MissingDependencyError
from envkit.rollout.config import RolloutConfig
from envkit.rollout.engine import Engine
from envkit.rollout.request import EpisodeRequest
from envkit.tokens import ChatCodec, join_features
from envkit.trajectory.projection import Row
from envkit.trajectory.trajectory import Trajectory
from envkit_trl.batch import BatchPlayer
from envkit_trl.contract import CONTRACT
from envkit_trl.place import group_size
from envkit_trl.policy import SendWeights, embedded_policy, external_policy, without_ids
from envkit_trl.processor import load_processor
from envkit_trl.requests import row_request
from envkit_trl.rows import REWARD_COLUMN, check_rows, env_reward, episode_row, leave_out_faults
from envkit_trl.settings import TAIL_SETTING, check_arguments, check_turn_credit

try:
    from trl import GRPOConfig, GRPOTrainer
except ImportError as error:
    raise MissingDependencyError.for_extra("training with TRL", "trl", "trl") from error
CONTRACT.check()

_EPSILON: Final = 1e-4
"""Added to a standard deviation, as in GRPOTrainer."""
_IMAGE_COLUMNS: Final = frozenset({"image", "images"})
_NOT_OURS: Final = frozenset({"rollout_func", "environment_factory", "tools"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Difference of the engine's and the trainer's log-probabilities on the sampled tokens."""

    tokens: int = 0
    largest: float = 0.0
    mean: float = 0.0

    def joined(self, differences: torch.Tensor) -> "Mismatch":
        """Return this with more tokens' absolute differences (N,)."""
        tokens = self.tokens + differences.numel()
        if tokens == self.tokens:
            return self
        total = self.mean * self.tokens + float(differences.sum())
        largest = max(self.largest, float(differences.max()))
        return Mismatch(tokens=tokens, largest=largest, mean=total / tokens)


class EnvGRPOTrainer(GRPOTrainer):
    """GRPO on environments, with text or images and any number of turns; one row per episode.

    Dataset: column "prompt" (any; the environment writes the real one) and column "envkit", an
    `EpisodeRequest` as JSON. With only prompts, the configuration's environment draws the tasks;
    other columns, which no episode reads, need `draw_tasks: true`. The
    members of a group play the same task from the same seed. Images of the dataset are not used.

    Faults: a rollout that failed for infrastructure reasons becomes one end token with mask 0 and
        no reward. A broken contract, such as an invalid configuration, ends training.

    Attributes:
        trajectories: Trajectories of the last generation, in row order.
        mismatch: Mismatch of the last generation's rows at their first forward, if it used the
            weights that sampled them.
    """

    def __init__(
        self,
        model: Any,  # noqa: ANN401  # a transformers model, or the name of one
        *,
        args: GRPOConfig,
        engine: Engine | None = None,
        codec: ChatCodec | None = None,
        config: RolloutConfig | Mapping[str, Any] | None = None,
        reward_funcs: Any = None,  # noqa: ANN401  # what GRPOTrainer takes: one, or several
        send_weights: SendWeights | None = None,
        turn_discount: float | None = None,
        **options: Any,  # noqa: ANN401  # of GRPOTrainer
    ) -> None:
        """Create the trainer.

        Args:
            model: As for GRPOTrainer.
            args: As for GRPOTrainer. `max_completion_length` bounds an episode's tokens after its
                prompt, observations included.
            engine: Samples the replies; the caller closes it. None samples from the trainer's own
                model in this process.
            codec: Encodes observations, with the model's image settings; None builds one from the
                processing class.
            config: Environment, limits, retries, sampling and seed of the rollouts; a mapping is
                read strictly.
            reward_funcs: One or a list, as for GRPOTrainer. None uses the environments' rewards.
                Functions receive those in the argument `env_reward`.
            send_weights: Sends the model's weights to the engine under a version; None uses the
                engine's own `update_weights`.
            turn_discount: None gives all tokens of an episode one advantage, as TRL does. A number
                from 0 to 1 gives each turn its own: its reward plus discounted later ones, compared
                with the same turn of the group's other members.
            options: train_dataset, processing_class and others. Without a processing class,
                `load_processor` loads the model's.

        Raises:
            ConfigurationError: The rollouts cannot honour an option.
        """
        refused = sorted(_NOT_OURS & set(options))
        if refused:
            raise ConfigurationError(f"EnvGRPOTrainer plays episodes itself; omit {refused}")
        check_arguments(args, who="EnvGRPOTrainer", has_codec=codec is not None)
        several = isinstance(reward_funcs, list | tuple)
        functions = list(reward_funcs) if several else [reward_funcs or env_reward]
        if turn_discount is not None:
            check_turn_credit(args, turn_discount, has_reward_funcs=functions != [env_reward])
        config = RolloutConfig.for_trainer(config, tail=TAIL_SETTING)
        policy = None if engine is None else external_policy(engine, send_weights)
        self._rollouts = config
        self._turn_discount = turn_discount
        if options.get("processing_class") is None:
            options["processing_class"] = _processor_of(model, args)
        super().__init__(model=model, args=args, reward_funcs=functions, **options)
        leave_out_faults()
        # TRL forwards images of later turns only if there are tools; none is ever called.
        self.tools: list[Any] = [env_reward]
        self.trajectories: tuple[Trajectory, ...] = ()
        self.mismatch = Mismatch()
        self._sampled_at = -1
        self._requests: list[EpisodeRequest] = []
        self._rows: list[Row] = []
        self._trainer_logprobs: torch.Tensor | None = None
        self._pictures: _LedgerImages | None = None
        policy = policy or embedded_policy(self, config.engine)
        self.player = BatchPlayer(self, policy, codec, config)

    def close(self) -> None:
        """Close the environments and stop the rollout thread; safe to call twice."""
        self.player.close()

    def sync_weights(self) -> None:
        """Send the weights to the engine, unless it has those of this optimizer step.

        Every generation calls it; call it after the last step, before further use of the engine.
        """
        self.player.sync_weights()

    # ---- what TRL calls

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Read the rows' requests, and let TRL use the ledger's images."""
        self._requests = [row_request(row, self._rollouts) for row in inputs]
        # TRL would put the dataset's images in front of the environment's.
        inputs = [{key: row[key] for key in row if key not in _IMAGE_COLUMNS} for row in inputs]
        output = self._scored(inputs)
        if self._turn_discount is not None:
            output["advantages"] = self._turn_advantages(self._turn_discount, output)
        return output

    def _turn_advantages(self, discount: float, output: dict[str, Any]) -> torch.Tensor:
        """Return each token's advantage, (B, T)."""
        size = group_size(self)
        found = turn_advantages(
            [TurnRewards.of_rows([row]) for row in self._rows],
            [number // size for number in range(len(self._rows))],
            discount=discount,
            is_scaled=self.scale_rewards == "group",
            epsilon=_EPSILON,
        )
        advantages = torch.zeros(output["completion_ids"].shape)
        for line, values in zip(advantages, found, strict=True):
            line[: len(values)] = torch.from_numpy(values)
        return advantages.to(self.accelerator.device)

    def _scored(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Let TRL play, score and batch the rows."""
        holder: Any = self.processing_class
        original: Any = getattr(holder, "image_processor", None)
        if original is None:
            return super()._generate_and_score_completions(inputs)
        self._pictures = holder.image_processor = _LedgerImages(original)
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            holder.image_processor = original
        if self._pictures.count and "pixel_values" not in output:
            raise LedgerFault(
                f"TRL dropped the {self._pictures.count} images of this batch: placeholders and "
                "features disagree"
            )
        return output

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        """Play one episode per row and return TRL's columns (1.16: eight)."""
        is_training = bool(self.model.training)
        self.trajectories = self.player.play(self._requests)
        self.mismatch, self._sampled_at = Mismatch(), self.state.global_step
        end = self.eos_token_ids[0]
        rows = [episode_row(trajectory, end_id=end) for trajectory in self.trajectories]
        check_rows(
            rows, image_id=self._image_pad_token_id, max_completion=self.max_completion_length
        )
        self._record(rows, "train" if is_training else "eval")
        self._rows = rows
        images = [[image.pil().convert("RGB") for image in row.images] for row in rows]
        if any(images):
            if self._pictures is None:
                raise ConfigurationError(
                    "the environment shows images; give processing_class=, the model's processor, "
                    "and a vision-language model"
                )
            self._pictures.expect(rows)
        texts = [self.player.codec.decode(row.response_ids) for row in rows]
        return (
            [list(row.prompt_ids) for row in rows],
            [list(row.response_ids) for row in rows],
            [list(row.loss_mask) for row in rows],
            [[{"role": "assistant", "content": text}] for text in texts],
            [list(row.logprobs) for row in rows],
            {REWARD_COLUMN: [row.reward for row in rows]},
            images if any(images) else None,
            images,
        )

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:  # noqa: ANN401
        """Score sampled tokens under the distribution that the engine sampled from."""
        # Engines never sample media placeholders. Training never pushes their probability down, so
        # log-probabilities that include it drift away from the engine's.
        with without_ids(self.accelerator.unwrap_model(self.model), self.player.codec.media_ids):
            result: tuple[Any, ...] = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._trainer_logprobs = result[0].detach()
        return result

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:  # noqa: ANN401
        """Compute TRL's loss and compare the log-probabilities that went into it."""
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        sampled: torch.Tensor | None = inputs.get("sampling_per_token_logps")
        own, self._trainer_logprobs = self._trainer_logprobs, None
        if own is None or sampled is None or self._sampled_at != self.state.global_step:
            return loss
        mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        differences = (own - sampled).abs()[mask]
        self.mismatch = self.mismatch.joined(differences)
        if differences.numel():
            mode = "train" if self.model.training else "eval"
            for name, value in (("max", differences.max()), ("mean", differences.mean())):
                self._metrics[mode][f"envkit/logprob_difference_{name}"].append(float(value))
        return loss

    def _record(self, rows: Sequence[Row], mode: str) -> None:
        """Add to TRL's metrics what its own `_generate` would have, and envkit's."""
        metrics: Any = self._metrics[mode]
        sampled = [float(sum(row.loss_mask)) for row in rows]
        reasons = [trajectory.stop_reason for trajectory in self.trajectories]
        columns = torch.tensor(
            [
                sampled,
                [float(len(row.prompt_ids)) for row in rows],
                [float(reason.is_truncation) for reason in reasons],
                [float(reason.is_fault) for reason in reasons],
                [float(trajectory.step_count) for trajectory in self.trajectories],
            ],
            device=self.accelerator.device,
        ).T.contiguous()
        lengths, prompts, truncated, faults, turns = self.accelerator.gather(columns).T
        if mode == "train":
            self.state.num_input_tokens_seen += float(prompts.sum() + lengths.sum())
        metrics["num_tokens"] = [self.state.num_input_tokens_seen]
        for name, value in (
            ("completions/mean_length", lengths.mean()),
            ("completions/min_length", lengths.min()),
            ("completions/max_length", lengths.max()),
            ("completions/clipped_ratio", truncated.mean()),
            ("envkit/faults", faults.sum()),
            ("envkit/turns", turns.mean()),
        ):
            metrics[name].append(float(value))


def _processor_of(model: Any, args: GRPOConfig) -> Any:  # noqa: ANN401  # transformers objects
    """Load the processor of the model that GRPOTrainer loads, or has got."""
    name = model if isinstance(model, str) else model.config._name_or_path
    given: Mapping[str, Any] = args.model_init_kwargs or {}
    trust = bool(args.trust_remote_code)
    return load_processor(name, revision=given.get("revision"), trust_remote_code=trust)


class _LedgerImages:
    """Stands in for the image processor while TRL makes a batch.

    It returns the tensors that the ledger's images were sampled with, so images are processed once,
    and engine and trainer see the same rounding.
    """

    def __init__(self, original: Any) -> None:  # noqa: ANN401  # a transformers image processor
        self._original = original
        self._rows: Sequence[Row] = ()
        self.count = 0

    def expect(self, rows: Sequence[Row]) -> None:
        """Set the rows whose images TRL is about to process."""
        self._rows, self.count = rows, sum(len(row.images) for row in rows)

    def __call__(self, images: Any, **options: Any) -> Any:  # noqa: ANN401
        if not self.count or len(images) != self.count:
            return self._original(images, **options)
        arrays = join_features(feature for row in self._rows for feature in row.features)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._original, name)
