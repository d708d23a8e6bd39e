"""Facts of an episode and its turns as text, with the wording of the browser viewer."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from envkit.text import counted
from envkit.viewer.wording import (
    CHECKS,
    TIMES,
    clipped,
    number,
    numeric,
    seconds,
    signed,
    stop_words,
)

Facts = list[tuple[str, str]]
"""Labels and texts."""
_ROLES: Final = {
    "tool": "tool",
    "user": "environment",
    "system": "system prompt",
    "question": "environment, then the question",
}
_REASONS: Final = {
    "keep last images": "Old images became a short text.",
    "keep last turns": "Old turns were left out.",
    "summarise": "The model continues from its own summary.",
}


def role_words(role: str) -> str:
    """Return the author of a message for display."""
    return _ROLES.get(role, role)


def summary(turn: Mapping[str, Any]) -> str:
    """Return a turn in a few words: its actions, or the start of its reply."""
    if turn["purpose"] is not None:
        return f"question to the model · {turn['purpose']}"
    words = clipped(" · ".join(turn["words"]) or turn["reply"], 90) or "(empty reply)"
    words += f" · cut: {turn['cut']}" if turn["cut"] else ""
    return f"{words} · not trained: {turn['untrained']}" if turn["untrained"] else words


def episode_facts(data: Mapping[str, Any], turns: int) -> list[str]:
    """Return the facts below an episode's title."""
    facts = [
        data["env"],
        f"reward {number(data['reward'])}",
        data["success"],
        stop_words(data["stop"]),
        counted(turns, "turn"),
        "" if data["seed"] is None else f"seed {data['seed']}",
    ]
    return [fact for fact in facts if fact]


def warnings(data: Mapping[str, Any]) -> list[str]:
    """Return the problems of an episode."""
    found: list[str] = []
    fault, certificate = data["fault"], data["certificate"]
    if fault is not None:
        found.append(f"Fault in {fault['where']} ({fault['kind']}): {fault['message']}")
    problems = [f"{one['rule']}: {one['message']}" for one in data["problems"]]
    if certificate["kind"] == "bad":
        problems.append(f"certificate {certificate['status']}")
    if problems:
        found.append(f"Do not train on this episode. {'; '.join(problems)}")
    if not data["has_ledger"]:
        found.append("No token ledger: the engine recorded text only.")
    return found


def identity(data: Mapping[str, Any]) -> Facts:
    """Return identifiers, seal and task."""
    values = (
        ("episode", data["id"]),
        ("line", str(data["number"])),
        ("group", data["group"]),
        ("engine", data["engine"]),
        ("duration", seconds(data["seconds"])),
        ("restarts", str(data["restarts"] or "")),
        ("certificate", data["certificate"]["status"]),
        ("seal", data["certificate"]["seal"]),
        ("task", clipped(_json(data["task"]), 400)),
    )
    return [(name, value) for name, value in values if value]


def turn_facts(turn: Mapping[str, Any]) -> Facts:
    """Return reward, tokens, time, info and engine of a turn."""
    if "finish" not in turn:
        return []
    found = (
        ("Reward", _reward(turn)),
        ("Tokens", _tokens(turn)),
        ("Time", _time(turn["times"])),
        ("Info", " · ".join(f"{k} {clipped(_json(v))}" for k, v in turn["info"].items())),
        ("Engine", " · ".join(_engine(turn))),
    )
    return [(name, text) for name, text in found if text]


def _reward(turn: Mapping[str, Any]) -> str:
    value, terms = turn["reward"], turn["terms"]
    total = "none" if value is None else signed(numeric(value))
    shown = ", ".join(f"{name} {signed(numeric(term))}" for name, term in terms.items())
    return f"{total or '0'}{f' ({shown})' if shown else ''}"


def _tokens(turn: Mapping[str, Any]) -> str:
    ids, mask = turn["tokens"]["ids"], turn["tokens"]["mask"]
    if not ids:
        return ""
    values = [numeric(value) for value in turn["tokens"]["logprobs"]]
    parts = [f"{len(ids):,} sampled"]
    if all(value == 0 for value in values):
        parts.append("scripted: every log-probability is 0")
    else:
        low = min(range(len(values)), key=values.__getitem__)
        parts.append(f"mean log p {number(sum(values) / len(values))}")
        parts.append(f"lowest {number(values[low])} at token {low + 1}")
    masked = len(mask) - sum(mask)
    parts += [f"{masked:,} of them have mask 0"] if masked else []
    context = len(turn["tokens"]["context"])
    parts += [f"{context:,} context tokens before the reply"] if context else []
    return " · ".join(parts)


def _time(times: Mapping[str, Any]) -> str:
    total = sum(map(numeric, times.values()))
    if not total > 0:
        return ""
    return f"{seconds(total)} ({', '.join(f'{k} {seconds(v)}' for k, v in times.items())})"


def _engine(turn: Mapping[str, Any]) -> Iterator[str]:
    retries = ", ".join(f"{kind} {TIMES} {n}" for kind, n in turn["env_retries"].items())
    values = (
        ("finish", turn["finish"]),
        ("weights", turn["version"]),
        ("prompt tokens", number(turn["prompt_tokens"]) if turn["prompt_tokens"] else None),
        ("from the cache", number(turn["cached_tokens"]) if turn["cached_tokens"] else None),
        ("observation", CHECKS.get(turn["sanity"])),
        ("engine retries", turn["engine_retries"] or None),
        ("resampled replies", turn["resamples"] or None),
        ("environment retries", retries),
    )
    return (f"{name} {value}" for name, value in values if value)


def speaker(turn: Mapping[str, Any]) -> str:
    """Return the author of a reply for display."""
    if turn.get("agent"):
        return f"model: {turn['agent']}"
    return "model" if turn["purpose"] is None else "model, for its own history"


def rewritten(sequence: Mapping[str, Any]) -> list[str]:
    """Describe the start of a sequence: branch or rewrite, reason and images."""
    prompt, reason = sequence["prompt"], sequence["reason"]
    if prompt is None:
        return [" · ".join(filter(None, ("Branch starts here", reason)))]
    images, dropped = prompt["images"], prompt["dropped"]
    before = f"{prompt['before']:,} → " if prompt["before"] else ""
    parts = ["History rewritten", reason, before + counted(prompt["tokens"], "token")]
    if dropped:
        parts.append(f"{len(dropped)} of {counted(len(dropped) + len(images), 'image')} dropped")
    elif images:
        parts.append(counted(len(images), "image"))
    if sequence["parent"] is None:
        parts[0] = "Another conversation"
    found = [" · ".join(filter(None, parts)), _REASONS.get(reason, "")]
    found += [f"Dropped: the image of {_turns(dropped)}."] if len(dropped) == 1 else []
    found += [f"Dropped: the images of {_turns(dropped)}."] if len(dropped) > 1 else []
    return [line for line in found if line]


def _turns(images: Sequence[Sequence[Any]]) -> str:
    """Return the turns before which images were first seen."""
    turns = sorted({turn for _, turn in images})
    if len(turns) == 1:
        return f"turn {turns[0]}"
    return "turns " + ", ".join(map(str, turns))


def history_lines(prompt: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the conversation in a rewritten prompt: author or placeholder, and text."""
    for entry in prompt["history"]:
        kind = next((one for one in ("kept", "dropped") if one in entry), None)
        if kind is None:
            images = f" [{counted(len(entry['images']), 'image')}]" if entry["images"] else ""
            yield f"{role_words(entry['role'])}, rewritten", entry["text"] + images
            continue
        first, last = entry["turns"]
        where = f"turn {first}" if first == last else f"turns {first} to {last}"
        fate = "as before" if kind == "kept" else "left out"
        yield counted(entry[kind], "message"), f"{fate} ({where})"


def _json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
