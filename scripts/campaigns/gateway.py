"""Rewrite conversations at random as clients do, and check the gateway's response.

A rewrite that keeps the meaning must continue the last reply, and any other must not. At the end of
each conversation every reply must follow exactly the tokens that the engine saw, and be trained
once. `tests/adapters/envkit_gateway/test_gateway_property.py` runs part of it.

    python scripts/campaigns/gateway.py --requests 200000
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakes.gateway_campaign import run_conversation  # noqa: E402

from envkit.threads.pool import WorkerPool  # noqa: E402
from envkit.tokens import load_codec  # noqa: E402
from envkit_transformers import builtin_model_dir  # noqa: E402


async def run(requests: int, seed: int) -> Counter[str]:
    """Return how often each rewriting was continued."""
    codec, pool, counts = load_codec(builtin_model_dir()), WorkerPool(), Counter[str]()
    shown = time.monotonic()
    while counts["requests"] < requests:
        await run_conversation(codec, seed, pool, counts)
        seed += 1
        if time.monotonic() - shown > 20:
            shown = time.monotonic()
            sys.stdout.write(f"{counts['requests']:,} requests, {time.process_time():.0f} CPU s\n")
            sys.stdout.flush()
    pool.close()
    return counts


def main() -> None:
    """Run the campaign and print the counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first conversation")
    options = parser.parse_args()
    counts = asyncio.run(run(options.requests, options.seed))
    sys.stdout.write(json.dumps(dict(sorted(counts.items())), indent=2) + "\n")


if __name__ == "__main__":
    main()
