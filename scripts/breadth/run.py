#!/usr/bin/env python3
# ruff: noqa: T201  # a script prints its progress
"""Compare token deltas with full renders over all available published templates.

    .venv/bin/python scripts/breadth/run.py [NAME ...] [--sample N] [--json FILE] [--docs FILE]

Needs the cache of scripts/fetch_templates.py. For each template it plays conversations of six or
more turns, with a system prompt, tools, tool rounds, thinking and images if the template supports
them, and says each word that the template looks for in 14 places. It compares every delta of the
codec with the ids after the reply in a full render by transformers. `--docs` writes the table into
a page. The whole run takes about 40 minutes on one core.
"""

import argparse
import importlib.util
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from conversations import WRITINGS, Point, Writing, call, points, switched
from corpus import Published, find, load, sample, switches
from oracle import Oracle
from table import write_table

from envkit.errors import EnvkitError
from envkit.tokens import ChatCodec

OFFENDERS = (
    *("Falcon-H1", "Bielik-11B", "gemma-4", "gemma4", "functiongemma", "HyperCLOVAX", "r7b"),
    *("command-a-plus", "DeepSeek-V3.2", "LLaDA2.2", "Mistral-Nemo", "gptoss", "gpt-oss"),
    *("SmolVLM", "llama3", "Llama-3.1-8B"),
)  # fmt: skip
"""Templates that earlier versions got wrong, included in every sample."""


class OneToken:
    """A processor that gives every image one token, so wire and train ids agree."""

    chat_template = None

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401  # transformers is untyped
        """Wrap a tokenizer."""
        self.tokenizer = tokenizer
        self.image_processor = dict

    def __call__(
        self, *, text: Sequence[str], images: Sequence[object], **_: object
    ) -> dict[str, Any]:
        """Return the ids of a text and the tensors of its images."""
        ids = self.tokenizer.encode(text[0], add_special_tokens=False)
        return {"input_ids": np.array([ids]), "pixel_values": np.zeros((len(images), 1))}


def judge(codec: ChatCodec, oracle: Oracle, point: Point) -> Iterator[tuple[str, str]]:
    """Yield outcome and detail of a point: first closed by the model, then truncated."""
    truth = oracle.truth(point.history, point.observations, point.tools, point.marker)
    if truth is None:
        yield "not applicable", ""
        return

    def encode(sampled: list[int]) -> tuple[str, list[int]]:
        try:
            made = codec.encode_observation(
                point.observations,
                sampled_ids=sampled,
                history=point.history,
                tools=point.tools or (),
            )
        except EnvkitError as error:
            return str(error), []
        return "", list(made.wire_ids)

    decode = oracle.tokenizer.decode
    cut_short = truth.tail if truth.is_open else [truth.closer, *truth.tail]
    for sampled, want in (([5, truth.closer], truth.tail), ([5, 6], cut_short)):
        problem, got = encode(sampled)
        if problem:
            yield "refused", problem
            return
        if sampled[-1] == 6:  # text between reply and closer also belongs to the template
            got = got[max(0, len(got) - len(want)) :] if _closes(decode(got), truth.cut) else got
        same = got == want
        yield (
            "exact" if same else "wrong",
            "" if same else f"{decode(got)!r} is not {decode(want)!r}",
        )


def _closes(got: str, cut: str) -> bool:
    return cut.strip().endswith(got.strip())


def writing_of(oracle: Oracle) -> Writing:
    """Return how the template expects calls, or the first way if it renders none."""
    for writing in WRITINGS:
        reply: dict[str, Any] = {
            "role": "assistant",
            "tool_calls": [call("f", 0, "Zc9Wm", writing)],
        }
        if writing.content is not None:
            reply["content"] = writing.content
        answer = {"role": "tool", "name": "f", "tool_call_id": "call00000", "content": "21"}
        text = oracle.render([{"role": "user", "content": "u"}, reply, answer], None)
        if text is not None and "Zc9Wm" in text:
            return writing
    return WRITINGS[0]


def measure(published: Published, seeds: int, words: int = 4) -> dict[str, Any]:
    """Return the record of one template."""
    row: dict[str, Any] = {"name": published.name, "stops": published.stops}
    oracle = Oracle(published)
    user, reply = {"role": "user", "content": "u"}, {"role": "assistant", "content": "w ZQX0K"}
    row["renders"] = oracle.accepts([user, reply, user], None) and oracle.takes_turns()
    started = time.process_time()
    try:
        codec = ChatCodec(OneToken(published.tokenizer), stop_ids=oracle.stop_ids)
    except EnvkitError as error:
        return row | {"refusal": str(error), "ms": 1000 * (time.process_time() - started)}
    row["ms"] = 1000 * (time.process_time() - started)
    audit = codec.audit()
    row["roles"] = {name: role.status for name, role in audit.roles.items()}
    row["depends"] = {name: role.depends_on for name, role in audit.roles.items()}
    row["reason"] = audit.roles["tool"].reason
    counts: Counter[str] = Counter()
    details: list[tuple[str, str, str]] = []
    writing = writing_of(oracle)
    played = points(oracle.accepts, writing, range(seeds))
    said = switched(oracle.accepts, writing, switches(published, words))
    for point in (*played, *said):
        kind = "after call" if point.is_call else "after text"
        kind = f"{point.observations[0]['role']} {kind}"
        for outcome, detail in judge(codec, oracle, point):
            counts[f"{kind}: {outcome}"] += 1
            if detail and sum(known == outcome for _, known, _ in details) < 6:
                details.append((f"{point.name} {kind}", outcome, detail[:4000]))
    return row | {"counts": counts, "details": details}


def cache_folder() -> Path:
    """Return the folder that scripts/fetch_templates.py fills."""
    path = Path(__file__).parents[1] / "fetch_templates.py"
    found = importlib.util.spec_from_file_location("fetch_templates", path)
    if found is None or found.loader is None:
        raise SystemExit(f"{path} is missing")
    script: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    if not script.is_complete(script.cache_folder()):
        raise SystemExit("the templates are missing; run scripts/fetch_templates.py")
    return script.cache_folder()


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of what the scripts of this folder have in common."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="only templates whose name contains one of these")
    parser.add_argument("--sample", type=int, help="about this many templates and known offenders")
    parser.add_argument("--json", type=Path, help="write one record per template")
    parser.add_argument("--docs", type=Path, help="write the table between the page's markers")
    return parser


def chosen(options: argparse.Namespace) -> Iterator[Published]:
    """Yield the templates that the arguments choose, and print each one's number after its turn."""
    folder = cache_folder()
    texts = find(folder / "templates")
    names = [n for n in texts if not options.names or any(word in n for word in options.names)]
    if options.sample:
        names = sample(iter(names), options.sample, OFFENDERS)
    for number, name in enumerate(names, 1):
        yield load(folder, name, texts[name])
        print(f"{number}/{len(names)} {name}", file=sys.stderr, flush=True)


def write_records(rows: Sequence[Mapping[str, Any]], path: Path | None) -> None:
    """Write one record per template as JSON, if there is a path."""
    if path:
        path.write_text(json.dumps(rows, indent=0, ensure_ascii=False), encoding="utf-8")


def main() -> None:
    """Measure templates and print wrong and refused points."""
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=4, help="random conversations per template")
    parser.add_argument("--words", type=int, default=4, help="switches per template")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for published in chosen(options):
        name, row = published.name, measure(published, options.seeds, options.words)
        rows.append(row)
        if any(outcome == "wrong" for _, outcome, _ in row.get("details", ())):
            wrong = next(entry for entry in row["details"] if entry[1] == "wrong")
            print(f"WRONG {name}: {wrong[0]}: {wrong[2]}", flush=True)
        elif "refusal" in row and row["renders"]:
            print(f"REFUSED {name}: {row['refusal'][:300]}", flush=True)
    write_records(rows, options.json)
    print(write_table(rows, options.docs))


if __name__ == "__main__":
    main()
