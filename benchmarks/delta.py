"""Measure a text observation's overhead on top of tokenization.

For each real template: the median time of `encode_observation` on a 200-token user observation
minus the median time in which the tokenizer encodes the same text (Rust backend, called directly),
at turn 1 and after 100 turns of history, which is passed. Both are measured in alternation. Goals:
at most 25 us on top of encoding; turn 100 / turn 1 at most 1.1. "rendered" is the same through the
template itself, for observations that the template treats specially.

Then the CPU time on top of tokenization at turn 100, for every published template of
scripts/breadth: user messages, and tool messages after plain replies and after structured calls.
Goal: at most 1 ms. One short series of calls finds the costly templates, which get more. The worst
ten get more again at the end, and turn 1 for comparison. A series is the median of nine calls, and
the fastest series counts, because other programs on the machine slow every call. Takes about four
minutes of CPU time, most of them for making codecs.
"""

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from harness import run, sized

from envkit.errors import EnvkitError
from envkit.messages import Message
from envkit.tokens import ChatCodec, load_codec

GOAL_US, GOAL_RATIO, GOAL_CORPUS_MS = 25.0, 1.1, 1.0
TEMPLATES = {
    "qwen3": ("qwen3", "qwen3"),
    "qwen2.5-vl": ("qwen2.5", "qwen2_5_vl"),
    "qwen3-vl": ("qwen3", "qwen3_vl"),
    "llama3.2": ("llama3.2", "llama3_2"),
    "smollm2": ("smollm2", "smollm2"),
}
"""Name to (tokenizer, template) in the cache of scripts/fetch_templates.py."""
LOOPS = ("user", "tool", "call")
"""Kinds of turns: the observation's role, or a tool message after a structured call."""
SCRIPTS = Path(__file__).parents[1] / "scripts"
CALLS, SERIES, WORST = 9, 12, 10
"""Calls per series, series of a costly template, and number of templates in the list."""


def fetched_codecs() -> dict[str, tuple[ChatCodec, Any]]:
    """Return codecs of the fetched templates, with their tokenizers."""
    script = _script("fetch_templates", SCRIPTS)
    folder: Path = script.cache_folder()
    if not script.is_complete(folder):
        raise SystemExit("the templates are not fetched; run scripts/fetch_templates.py first")
    from transformers import AutoTokenizer

    loader: Any = AutoTokenizer
    codecs: dict[str, tuple[ChatCodec, Any]] = {}
    for name, (tokenizer_name, template) in TEMPLATES.items():
        tokenizer = loader.from_pretrained(str(folder / "tokenizers" / tokenizer_name))
        source = folder / "templates" / f"{template}.jinja"
        tokenizer.chat_template = source.read_text(encoding="utf-8")
        codecs[name] = ChatCodec(tokenizer), tokenizer
    return codecs


def observation(tokenizer: Any, tokens: int, *, start: str = "") -> Message:  # noqa: ANN401
    """Return a user observation of about this many tokens."""
    words: list[str] = []
    while len(tokenizer.encode(" ".join(words), add_special_tokens=False)) < tokens:
        words.append(f"At step {len(words)} the door to the north is closed, again.")
    return {"role": "user", "content": start + " ".join(words)}


def medians(
    first: Callable[[], object],
    second: Callable[[], object],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Return each function's median in microseconds, calling them in alternation."""
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, kept in zip((first, second), samples, strict=True):
            started = clock()
            call()
            kept.append((clock() - started) * 1e6)
    return [statistics.median(kept) for kept in samples]


def measure(codec: ChatCodec, tokenizer: Any, rounds: int) -> dict[str, float]:  # noqa: ANN401
    """Return the figures of one template."""
    message = observation(tokenizer, 200)
    question: Message = {"role": "user", "content": "Begin."}
    answer: Message = {"role": "assistant", "content": "north"}
    reply = codec.encode_reply("north")
    tail = codec.decode(
        [*reply[-1:], *codec.encode_observation([message], sampled_ids=reply).wire_ids]
    )
    backend: Any = tokenizer.backend_tokenizer
    short, long = [question, answer], [question, *[answer, message] * 99, answer]

    def encode() -> object:
        return backend.encode(tail, add_special_tokens=False).ids

    def delta(history: list[Message]) -> Callable[[], object]:
        return lambda: codec.encode_observation([message], sampled_ids=reply, history=history)

    encode_us, first_us = medians(encode, delta(short), rounds)
    again_us, last_us = medians(delta(short), delta(long), rounds)
    parts: list[Message] = [
        {"role": "user", "content": [{"type": "text", "text": str(message["content"])}]}
    ]
    try:
        codec.encode_observation(parts, sampled_ids=reply)
        _, rendered_us = medians(
            encode, lambda: codec.encode_observation(parts, sampled_ids=reply), rounds // 2
        )
    except ValueError:
        rendered_us = float("nan")
    return {
        "encode_us": round(encode_us, 1),
        "delta_us": round(first_us, 1),
        "beyond_encode_us": round(first_us - encode_us, 1),
        "rendered_beyond_encode_us": round(rendered_us - encode_us, 1),
        "turn_100_over_turn_1": round(last_us / again_us, 3),
    }


def corpus_costs(words: list[str], most: int | None) -> dict[str, dict[str, float]]:
    """Return each template's milliseconds on top of tokenization at turn 100, by loop.

    Args:
        words: Only templates whose name contains one of these; empty for all.
        most: The number of templates tried; None for all.
    """
    wanted = [name for name in _names() if not words or any(word in name for word in words)]
    made = ((name, _codec(name)) for name in wanted[:most])
    return {name: _costs(*pair) for name, pair in made if pair is not None}


def _script(name: str, folder: Path) -> Any:  # noqa: ANN401  # a script
    """Return a script as a module."""
    sys.path.append(str(folder))
    return importlib.import_module(name)


@cache
def _breadth() -> Any:  # noqa: ANN401  # a script
    """Return the script that knows the published templates."""
    return _script("run", SCRIPTS / "breadth")


@cache
def _names() -> dict[str, str]:
    """Return the text of every published template by name."""
    return _breadth().find(_breadth().cache_folder() / "templates")


def _codec(name: str) -> tuple[ChatCodec, Any] | None:
    """Return a template's codec and how it expects calls; None if envkit refuses it."""
    breadth = _breadth()
    published = breadth.load(breadth.cache_folder(), name, _names()[name])
    oracle = breadth.Oracle(published)
    try:
        codec = ChatCodec(published.tokenizer, stop_ids=oracle.stop_ids)
    except EnvkitError:
        return None
    return codec, breadth.writing_of(oracle)


def _costs(codec: ChatCodec, writing: Any) -> dict[str, float]:  # noqa: ANN401
    """Return a template's milliseconds by loop; more series for a costly one."""
    costs: dict[str, float] = {}
    for kind in LOOPS:
        loop = _loop(kind, 100, writing)
        cost = _cost(codec, *loop, series=1)
        if cost is not None and cost > GOAL_CORPUS_MS / 2:
            cost = _cost(codec, *loop, series=SERIES)
        if cost is not None:
            costs[kind] = cost
    return costs


def _loop(kind: str, turns: int, writing: Any) -> tuple[list[Message], Message]:  # noqa: ANN401
    """Return a conversation up to its last reply, and the observation that follows."""
    history: list[Any] = [{"role": "user", "content": "Begin."}]
    for turn in range(turns):
        reply: dict[str, Any] = {"role": "assistant", "content": "north"}
        words = f"At step {turn} the door to the north is closed, again. " * 16
        seen = {"role": "user", "content": words}
        if kind == "call":
            function = {"name": "look", "arguments": {"at": "north"}}
            if writing.as_text:
                function["arguments"] = json.dumps(function["arguments"])
            call = {"type": "function", "id": f"call{turn:05d}", "function": function}
            reply = {"role": "assistant", "tool_calls": [call]}
            if writing.content is not None:
                reply["content"] = writing.content
        if kind != "user":
            called = {"name": "look", "tool_call_id": f"call{turn:05d}"}
            seen = {"role": "tool", **called, "content": words}
        history += [reply, seen]
    return history[:-1], history[-1]


def _cost(
    codec: ChatCodec, history: list[Message], message: Message, *, series: int
) -> float | None:
    """Return the CPU milliseconds of a delta beyond its tokenization; None if it is refused."""
    sampled = [0]  # not a stop token, so that the closer is encoded as well

    def delta() -> Sequence[int]:
        made = codec.encode_observation([message], sampled_ids=sampled, history=history)
        return made.wire_ids

    try:
        text = codec.decode(delta())
    except EnvkitError:
        return None
    pairs = [
        medians(lambda: codec.encode_text(text), delta, CALLS, time.thread_time)
        for _ in range(series)
    ]
    alone, with_delta = (min(each) for each in zip(*pairs, strict=True))
    return round((with_delta - alone) / 1000, 3)


def published(words: list[str], most: int | None) -> dict[str, Any]:
    """Return figures, and the ten templates with the highest cost at turn 100."""
    costs = corpus_costs(words, most)
    if not costs:
        raise SystemExit(f"no published template has a name with one of {words}")
    highest = {name: max(row.values(), default=0.0) for name, row in costs.items()}
    for name in sorted(highest, key=lambda name: -highest[name])[:WORST]:
        again = _codec(name)
        if again is not None:
            more = _costs(*again)
            costs[name] = {kind: min(ms, more[kind]) for kind, ms in costs[name].items()}
            highest[name] = max(costs[name].values())
    worst = sorted(highest, key=lambda name: -highest[name])[:WORST]
    over = [name for name in highest if highest[name] > GOAL_CORPUS_MS]
    rows = {str(place): _worst(name, costs[name]) for place, name in enumerate(worst, 1)}
    return {
        "templates": len(costs),
        "above_goal": len(over),
        "median_ms": round(statistics.median(highest.values()), 3),
        "worst": rows,
    }


def _worst(name: str, row: dict[str, float]) -> dict[str, Any]:
    """Return the loop of a template that costs most at turn 100, with its cost at both turns."""
    kind = max(row, key=lambda kind: row[kind])
    made = _codec(name)
    first = made and _cost(made[0], *_loop(kind, 1, made[1]), series=SERIES)
    return {"name": name, "loop": kind, "turn_1_ms": first, "turn_100_ms": row[kind]}


def figures_of(
    model: list[str] | None, corpus: list[str] | None, templates: int | None, rounds: int
) -> dict[str, Any]:
    """Return the figures of some templates or models, or only those of published templates."""
    if corpus is not None:
        return published(corpus, templates)
    if model:
        from transformers import AutoTokenizer

        loader: Any = AutoTokenizer
        codecs = {m: (load_codec(m), loader.from_pretrained(m)) for m in model}
    else:
        codecs = fetched_codecs()
    results = {name: measure(*pair, rounds) for name, pair in codecs.items()}
    beyond = max(result["beyond_encode_us"] for result in results.values())
    ratio = max(result["turn_100_over_turn_1"] for result in results.values())
    figures: dict[str, Any] = {
        "beyond_encode_us": beyond,
        "turn_100_over_turn_1": ratio,
        "templates": results,
        "goals": {
            "beyond_encode_us": GOAL_US,
            "turn_100_over_turn_1": GOAL_RATIO,
            "corpus_turn_100_ms": GOAL_CORPUS_MS,
        },
        "reached": beyond <= GOAL_US and ratio <= GOAL_RATIO,
    }
    if not model:
        figures["corpus"] = published([], templates)
        figures["reached"] &= figures["corpus"]["above_goal"] <= 3
    return figures


if __name__ == "__main__":
    run(
        figures_of,
        model={"action": "append", "help": "a model folder, instead of the templates"},
        corpus={
            "nargs": "*",
            "metavar": "NAME",
            "help": "only published templates (with these names)",
        },
        templates=sized(None, 2, "published templates, if not all"),
        rounds=sized(800, 4, "calls per figure"),
    )
