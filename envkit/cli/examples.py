"""Examples that stand below the help of each command."""

from typing import Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "list": ("list", "list --json"),
    "info": ("info geo3k-v0", "info reasoning_gym/sudoku-v0"),
    "check": ("check geo3k-v0", "check search-v0 --env-kwargs protocol=tools --episodes 10"),
    "new": ("new count-dots", "new count-dots --into ~/code"),
    "play": ("play geo3k-v0 --seed 7", "play computer-use-v0 --out pictures"),
    "rollout": (
        "rollout geo3k-v0 --policy oracle -n 8 --out runs/oracle",
        "rollout geo3k-v0 --engine transformers --model DIR -n 16 --group 4",
        "rollout search-v0 --engine sglang --base-url http://127.0.0.1:30000 --model DIR -n 64",
        "rollout canary-v0 --policy oracle --wrap blank-image",
    ),
    "report": (
        "report runs/oracle",
        "report runs/oracle/trajectories.jsonl --out page.html",
        "report runs/before --diff runs/after",
    ),
    "view": ("view runs/oracle", "view runs/oracle -e 3 --images blocks"),
    "verify": ("verify runs/oracle", "verify runs/oracle --json"),
    "audit": ("audit DIR", "audit Qwen/Qwen2.5-VL-3B-Instruct --json"),
    "audit-env": ("audit-env canary-v0 -n 200", "audit-env geo3k-v0 --max-reward 0.1"),
    "golden": (
        "golden canary-v0 --out canary.json.gz",
        "golden --check canary.json.gz",
    ),
    "conformance": (
        "conformance",
        "conformance --adapter trl --recordings runs/oracle --model DIR",
    ),
    "doctor": (
        "doctor",
        "doctor --vision --engine sglang --base-url http://127.0.0.1:30000 --model DIR",
    ),
    "export": (
        "export geo3k-v0 --format verl -n 1000 --out train.parquet",
        "export runs/oracle --format sft --min-reward 1 --out sft.jsonl",
    ),
    "import": ("import dump.pt --from slime --model DIR --out runs/slime --allow-pickle",),
}
"""Command -> what to type behind `envkit`."""


def epilog(command: str) -> str:
    """Return the examples of a command for the end of its help, a paragraph each."""
    return "\n\n".join(["Examples:", *(f"  envkit {line}" for line in EXAMPLES[command])])
