"""Where a row stands in TRL's batch, which TRL does not tell an environment of its tool loop."""

from typing import Any, Final

from envkit_trl.wrapping import wrap_trainer

_generating: Final[list[Any]] = []
"""The trainer that is generating; a process has one at a time."""


def watch_generation() -> None:
    """Remember the trainer while it generates, for `group_of`.

    GRPOTrainer's `_generate_and_score_completions` resets the environments
    (trl/trainer/grpo_trainer.py, 1.16); it is wrapped by `wrap_trainer`.
    """
    wrap_trainer("_generate_and_score_completions", _watched)


def _watched(generate: Any) -> Any:  # noqa: ANN401  # a method of TRL's
    def generating(trainer: Any, inputs: Any) -> Any:  # noqa: ANN401  # TRL's
        _generating.append(trainer)
        try:
            return generate(trainer, inputs)
        finally:
            _generating.remove(trainer)

    return generating


def group_of(environment: object) -> int:
    """Return the number of an environment's group in the batch of all processes.

    Args:
        environment: One of the trainer's environments; outside a trainer the number is 0.
    """
    for trainer in _generating:
        environments: list[Any] = trainer.environments or []
        for row, one in enumerate(environments):
            if one is environment:
                return (first_row(trainer, len(environments)) + row) // group_size(trainer)
    return 0


def group_size(trainer: Any) -> int:  # noqa: ANN401  # TRL's GRPOTrainer
    """Return the consecutive rows per group, in training or evaluation as the trainer is now."""
    size: int = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
    return size


def first_row(trainer: Any, rows: int) -> int:  # noqa: ANN401  # TRL's GRPOTrainer
    """Return the index over all processes of the first of this process's rows."""
    return int(trainer.accelerator.process_index) * rows
