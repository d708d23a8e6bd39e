"""Train on geo3k-v0 with TRL's GRPO. run.sh starts it; `--help` lists all options."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from transformers.trainer_utils import get_last_checkpoint
from trl import (
    GRPOConfig,  # pyright: ignore[reportAttributeAccessIssue]  # of the package, not this folder
    ModelConfig,  # pyright: ignore[reportAttributeAccessIssue]
    TrlParser,  # pyright: ignore[reportAttributeAccessIssue]
)

from envkit_trl import EnvGRPOTrainer, task_dataset


@dataclass
class EnvArguments:
    """What to play."""

    envkit: str = field(metadata={"help": "File with the rollout's configuration."})
    tasks: int = field(default=2048, metadata={"help": "Generated training tasks."})
    eval_tasks: int = field(default=256, metadata={"help": "Generated evaluation tasks."})


def read_config(path: str) -> dict[str, Any]:
    """Read the rollout's configuration, with environment variables replaced."""
    return yaml.safe_load(os.path.expandvars(Path(path).read_text(encoding="utf-8")))


def main() -> None:
    """Train, or resume from the last checkpoint in the output folder."""
    parser = TrlParser((EnvArguments, GRPOConfig, ModelConfig))
    env, args, model = parser.parse_args_and_config()
    config = read_config(env.envkit)
    args.model_init_kwargs = {"dtype": model.dtype, "revision": model.model_revision}
    rows: dict[str, Any] = {}
    for split, count in (("train", env.tasks), ("test", env.eval_tasks)):
        kwargs = {**config["env_kwargs"], "split": split}
        size = None if kwargs.get("data") else count  # all rows of a dataset
        rows[split] = task_dataset(config["env_id"], count=size, env_kwargs=kwargs)
    trainer = EnvGRPOTrainer(
        model.model_name_or_path,
        args=args,
        config=config,
        train_dataset=rows["train"],
        eval_dataset=rows["test"],
    )
    folder = args.output_dir
    last = get_last_checkpoint(folder) if os.path.isdir(folder) else None
    try:
        trainer.train(resume_from_checkpoint=last)
    finally:
        trainer.close()


if __name__ == "__main__":
    main()
