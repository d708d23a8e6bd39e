"""Compare the gateway's prompts with those of vLLM's own server, for requests of real clients.

The requests are those of `make contract-clients`, and variations of them. vLLM renders them with
its own code in the environment of `make contract-vllm`. The ids must be equal, or both refuse.
Control words in foreign text stay as they are here; the gateway neutralises them.

    python scripts/campaigns/prompts.py                       record, then compare every family
    python scripts/campaigns/prompts.py --requests requests.jsonl --model qwen3 --show 5
    python scripts/campaigns/prompts.py --sglang              check where SGLang's prompts differ

Exit status: 0 equal, 1 some prompt differs.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "scripts" / "contracts")]

from environment import Recipe, ensure_environment  # noqa: E402
from fakes.gateway_run import serving  # noqa: E402
from fakes.prompt_models import MODELS, variations, write_model  # noqa: E402
from fakes.request_recorder import PATH  # noqa: E402
from recipes import SGLANG, VLLM  # noqa: E402

from envkit.tokens import ChatCodec, load_codec  # noqa: E402
from envkit_gateway import anthropic, chat, responses  # noqa: E402
from envkit_gateway.request import RequestRefused  # noqa: E402

DIALECTS = {one.PATH: one for one in (chat, responses, anthropic)}


def main() -> int:
    """Record, render on both sides, compare; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--requests", type=Path, help="recorded ones; written if the file is new")
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--show", type=int, default=3, help="differences to print per family")
    parser.add_argument("--sglang", action="store_true", help="check the table of docs/gateway.md")
    options = parser.parse_args()
    if options.sglang:
        script = ROOT / "scripts" / "campaigns" / "sglang_messages.py"
        return run_in(SGLANG, script)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        path = options.requests or folder / "requests.jsonl"
        if not path.exists():
            record(path)
        lines = path.read_text(encoding="utf-8").splitlines()
        requests = list(variations([json.loads(line) for line in lines]))
        varied = folder / "varied.jsonl"
        varied.write_text("".join(json.dumps(one) + "\n" for one in requests), encoding="utf-8")
        names = options.model or list(MODELS)
        for name in names:
            write_model(MODELS[name], folder / name)
        render([folder / name for name in names], varied)
        total = Counter[str]()
        for name in names:
            codec = load_codec(folder / name, neutralise=False)
            theirs = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
            counts = asyncio.run(compare(name, codec, requests, theirs, options.show))
            total += counts
            sys.stdout.write(f"{name}: {json.dumps(dict(sorted(counts.items())))}\n")
    sys.stdout.write(f"{len(lines)} recorded requests: {json.dumps(dict(sorted(total.items())))}\n")
    return int(any(kind.startswith(("differs", "only")) for kind in total))


def record(path: Path) -> None:
    """Write the requests of the clients' contract tests to a file."""
    script = ROOT / "scripts" / "contracts" / "run.py"
    command = [sys.executable, str(script), "clients", "--", "-q", "-p", "fakes.request_recorder"]
    subprocess.run(command, check=True, env={**os.environ, PATH: str(path)})


def render(folders: list[Path], requests: Path) -> None:
    """Let vLLM write each model's prompts beside its folder."""
    script = ROOT / "scripts" / "campaigns" / "vllm_prompts.py"
    if run_in(VLLM, script, str(requests), *map(str, folders)):
        raise SystemExit("vLLM rendered no prompts: its output above says why")


def run_in(recipe: Recipe, script: Path, *arguments: str) -> int:
    """Run a script in the environment of a contract; return its exit status."""
    command = [str(ensure_environment(recipe)), str(script), *arguments]
    quiet = {"VLLM_LOGGING_LEVEL": "CRITICAL", "TRANSFORMERS_VERBOSITY": "error"}
    variables = {**os.environ, **dict(recipe.variables), **quiet}
    return subprocess.run(command, check=False, env=variables).returncode


async def compare(
    name: str,
    codec: ChatCodec,
    requests: list[dict[str, Any]],
    theirs: list[str],
    most: int,
) -> Counter[str]:
    """Return how many prompts are equal, and print some that differ."""
    counts = Counter[str]()
    for request, line in zip(requests, theirs, strict=True):
        own, known = await prompt(codec, request), json.loads(line)
        kind = _kind(own, known)
        counts[kind] += 1
        if kind.startswith(("differs", "only")) and counts["shown"] < most:
            counts["shown"] += 1
            title = f"{name}: {kind}: {request['path']}, {request['test']}"
            sys.stdout.write(f"{title}, {request.get('variation', 'as recorded')}\n")
            sys.stdout.writelines(_difference(codec, own, known))
            sys.stdout.flush()
    del counts["shown"]
    return counts


async def prompt(codec: ChatCodec, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `ids` of a request as the first one of an episode, or the `error`."""
    async with serving(codec=codec) as run:
        try:
            asked = DIALECTS[request["path"]].read(request["body"], ())
            return {"ids": list((await run.session.prompt(asked)).train_ids)}
        except RequestRefused as error:
            return {"error": str(error)}


def _kind(own: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    if "error" in own and "error" in known:
        return "both refuse"
    if "error" in own:
        return "only the gateway refuses"
    if "error" in known:
        return "vLLM refuses"
    if known["ids"][:1] == known["ids"][1:2] and own["ids"] == known["ids"][1:]:
        return "equal, but vLLM starts twice"  # its Responses add the start token to the template's
    return "equal" if own["ids"] == known["ids"] else "differs"


def _difference(
    codec: ChatCodec, own: Mapping[str, Any], known: Mapping[str, Any]
) -> Iterator[str]:
    texts = [
        one["error"] if "error" in one else codec.decode_all(one["ids"]) for one in (known, own)
    ]
    pairs = enumerate(zip(*texts, strict=False))
    place = next((n for n, (a, b) in pairs if a != b), min(map(len, texts)))
    for title, text in zip(("vLLM   ", "gateway"), texts, strict=True):
        yield f"  {title} {text[max(place - 60, 0) : place + 100]!r}\n"


if __name__ == "__main__":
    sys.exit(main())
