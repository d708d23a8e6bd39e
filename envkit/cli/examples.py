"""Examples for the help of each command."""

import inspect
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "list": ("list", "list --json"),
    "info": ("info geo3k-v0", "info reasoning_gym/sudoku-v0"),
    "new": ("new count-dots", "new count-dots --into ~/code"),
    "play": ("play geo3k-v0 --seed 7", "play computer-use-v0 --out images"),
    "rollout": (
        "rollout geo3k-v0 --policy oracle -n 8 --out runs/oracle",
        "rollout geo3k-v0 --engine transformers --model DIR -n 16 --group 4",
        "rollout search-v0 --engine sglang --base-url http://127.0.0.1:30000 --model DIR -n 64",
        "rollout canary-v0 --policy oracle --wrap blank-image",
        "rollout geo3k-v0 --policy noisy-oracle --tasks tasks.jsonl --group 8",
        "rollout geo3k-v0 --policy oracle -n 64 --shard 0/4 --out runs/base-0 --resume-or-start",
        "rollout canary-v0 --policy oracle --sink tensorboard=board --sink parquet=run.parquet",
    ),
    "merge": ("merge runs/base-0 runs/base-1 --out runs/base", "merge runs/base-* --out runs/base"),
    "ui": ("ui", "ui runs --port 9000 --no-open"),
    "report": (
        "report runs/oracle",
        "report runs/oracle/trajectories.jsonl --out page.html",
        "report runs/before runs/after",
    ),
    "view": ("view runs/oracle", "view runs/oracle -e 3 --images blocks"),
    "verify": ("verify runs/oracle", "verify runs/oracle --json"),
    "audit": ("audit DIR", "audit Qwen/Qwen2.5-VL-3B-Instruct --json"),
    "doctor": (
        "doctor",
        "doctor --json",
        "doctor --vision --engine sglang --base-url http://127.0.0.1:30000 --model DIR",
    ),
}
"""Examples by command, without `envkit`."""


_ATTRIBUTE: Final = "envkit_examples"
Command = TypeVar("Command", bound=Callable[..., object])


def with_examples(*lines: str, group: str | None = None) -> Callable[[Command], Command]:
    """Attach examples to a plugin's command.

    Args:
        lines: Commands without `envkit`.
        group: Title under which `envkit --help` lists the command. It must be a literal, since it
            is parsed from the source. None lists the command under "Commands of plugins".
    """
    del group

    def mark(command: Command) -> Command:
        setattr(command, _ATTRIBUTE, lines)
        return command

    return mark


def examples_of(command: Callable[..., object]) -> tuple[str, ...]:
    """Return the examples attached to a plugin's command."""
    return getattr(command, _ATTRIBUTE, ())


def epilog(lines: Sequence[str]) -> str | None:
    """Return examples for the end of a command's help, one per paragraph; None without any."""
    if not lines:
        return None
    return "\n\n".join(["Examples:", *(f"  envkit {line}" for line in lines)])


def help_text(command: Callable[..., object]) -> str:
    """Return a command's docstring, each paragraph on one line for the terminal to wrap."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
