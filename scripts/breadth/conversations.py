"""Conversations of six turns and more; every reply ends with its own marker.

Rounds come in the order that a template is most likely to accept. If it refuses one, the
conversation continues with the next.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envkit.images import Image

Message = dict[str, Any]
Tools = list[dict[str, Any]] | None
MARKER = "ZQX%dK"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Run {name}.",
            "parameters": {
                "type": "object",
                "properties": {"q": {"type": "string", "description": "what"}},
                "required": ["q"],
            },
        },
    }
    for name in ("get_weather", "calc")
]
_TEXTS = (
    "Are you OBS sure?",
    "obs OBS\n",
    "\n lines \n\nand \u00e9 OBS \u4e16\u754c \U0001f680 ",
    '{"temp": 21, "sky": ["OBS"]}',
    "OBS",
    "",
    "12 + 3 = 15. OBS Don't.",
    '<div class="a"><p>OBS &amp; <b>2+2</b></p>\n<br/></div>',
    "<information>OBS [1] <title>Euler</title> 1 < 2 && x >= y</information>",
    "```python\nif a < b and c > d:  # OBS\n    print(f'{a!r} | {b}', {{'k': [1]}})\n```",
    'Doc 1(Title: "OBS") The {{ capital }} is {% raw %}Paris{% endraw %}. <doc id=3>\n',
    "<!-- OBS --> <tag",
)
"""Texts of observations, each with a unique word; the last ones are web pages, search results and
code."""
MARKUP = tuple(text for text in _TEXTS if "<" in text)
_THOUGHT = "<think>\nhm, 2+2\n</think>\n\n"
_IMAGE = Image.from_bytes(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d494844520000000100000001080200000090"
        "7753de0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
    )
)


@dataclass(frozen=True)
class Writing:
    """How a template expects calls."""

    as_text: bool = False
    content: str | None = ""


WRITINGS = (Writing(), Writing(as_text=True), Writing(content=None), Writing(True, None))


@dataclass(frozen=True)
class Point:
    """One reply, and everything between it and the next one."""

    name: str
    history: list[Message]
    observations: list[Message]
    tools: list[dict[str, Any]] | None
    marker: str
    is_call: bool


# A round is a reply and its observations: "reply form/observations".
SCRIPTS: dict[str, tuple[str, ...]] = {
    "plain": ("plain/u",) * 6,
    "thinking": ("think/u", "plain/u", "think/u", "think/u", "plain/u", "think/u"),
    "tool rounds": ("call/t", "call/t", "plain/u", "call/t", "plain/u", "call/t", "plain/u"),
    "thinking calls": ("thinkcall/t", "thinkcall/t", "think/u", "thinkcall/t", "think/u", "call/t"),
    "text calls": ("plain/t", "plain/t", "plain/u", "plain/t", "think/t", "plain/u"),
    "users after calls": ("call/u", "call/t", "call/u", "plain/u", "call/tu", "call/u"),
    "parallel calls": ("calls/tt", "plain/u", "calls/tt", "call/t", "calls/ttu", "plain/u"),
    "mixed": ("call/t", "plain/t", "call/u", "think/t", "plain/u", "saycall/t", "plain/u"),
    "tool then user": ("call/tu", "plain/u", "call/tu", "plain/tu", "plain/uu", "call/t"),
    "images": ("plain/i", "plain/u", "plain/ii", "call/t", "plain/i", "call/i", "plain/u"),
}  # fmt: skip
PLACEMENTS = (
    ("system", "SW"),
    ("system", "You are terse. SW"),
    ("first", "SW"),
    ("first", "SW Solve <b>2+2</b>."),
    ("first", "Solve <b>2+2</b>. SW"),
    ("first", "If a < b:\nSW\nelse:"),
    ("first", "xSWx"),
    ("reply", "SW It is so."),
    ("reply", "It is <i>so</i>. SW"),
    ("user", "SW"),
    ("user", "<p>SW</p> OBS"),
    ("tool", "SW"),
    ("tool", "<information>21</information> SW"),
    ("both", "Now: SW"),
)
"""Where a switch is said, and in which text; "both" is the first user message and a later one."""
FORMS = ("plain", "think", "call", "thinkcall", "saycall", "calls")
FOLLOWERS = ("u", "u", "t", "t", "tu", "uu")


def points(
    accepts: Callable[[Sequence[Message], Tools], bool], writing: Writing, seeds: Sequence[int]
) -> Iterator[Point]:
    """Yield every point of every conversation that a template accepts.

    Args:
        accepts: Whether the template renders messages with some tools.
        writing: How it expects calls.
        seeds: One random conversation per seed.
    """
    for name, rounds in SCRIPTS.items():
        yield from _play(name, rounds, "You are terse.", TOOLS, accepts, writing)
        if "call" not in name:
            yield from _play(name, rounds, None, None, accepts, writing)
    for seed in seeds:
        draw = random.Random(seed)  # reproducible, not secret
        rounds = tuple(f"{draw.choice(FORMS)}/{draw.choice(FOLLOWERS)}" for _ in range(9))
        system = draw.choice((None, "You are terse.", "Use tools.\n\n/no_think"))
        tools = draw.choice((None, TOOLS))
        yield from _play(f"random {seed}", rounds, system, tools, accepts, writing)


def switched(
    accepts: Callable[[Sequence[Message], Tools], bool], writing: Writing, words: Sequence[str]
) -> Iterator[Point]:
    """Yield the points of conversations of five turns in which each word is said once or twice."""
    for word in words:
        for place, pattern in PLACEMENTS:
            name = f"switch {word!r} in {place} {pattern!r}"
            text = pattern.replace("SW", word)
            kept = {"content": text, "trusted": [[0, len(text)]]}
            system: Message | None = {"role": "system", **kept} if place == "system" else None
            first: Message = {"role": "user", "content": "Start <here>."}
            if place in ("first", "both"):
                first = {"role": "user", **kept}
            head = [first] if system is None else [system, first]
            rounds = ("call/t" if place == "tool" else "plain/u", *("plain/u",) * 4)
            yield from _rounds(name, rounds, head, None, accepts, writing, (place, kept))


def _play(
    name: str,
    rounds: Sequence[str],
    system: str | None,
    tools: Tools,
    accepts: Callable[[Sequence[Message], Tools], bool],
    writing: Writing,
) -> Iterator[Point]:
    head: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    head.append({"role": "user", "content": "Start."})
    yield from _rounds(name, rounds, head, tools, accepts, writing)


def _rounds(
    name: str,
    rounds: Sequence[str],
    history: list[Message],
    tools: Tools,
    accepts: Callable[[Sequence[Message], Tools], bool],
    writing: Writing,
    said: tuple[str, Message] | None = None,
) -> Iterator[Point]:
    """Play rounds after some messages; the first may say a text in a reply or observation."""
    if not accepts(history, tools):
        return
    number = 0
    for index, rule in enumerate(rounds):
        form, followers = rule.split("/")
        marker = MARKER % number
        reply = _reply(form, marker, number, writing)
        seen = _observations(form, followers, number)
        if said is not None and index == 0:
            place, kept = said
            if place == "reply":
                reply["content"] = f"{kept['content']} {marker}"
            elif place in ("user", "tool"):
                seen = [{**seen[0], **kept}]
        if said is not None and index == 2 and said[0] == "both":
            seen = [{**seen[0], **said[1]}]
        if not accepts([*history, reply, *seen], tools):
            continue
        before = [*history, reply]
        yield Point(name, before, seen, tools, marker, "tool_calls" in reply)
        history = [*before, *seen]
        number += 1


def _reply(form: str, marker: str, number: int, writing: Writing) -> Message:
    if "call" not in form:
        thought = _THOUGHT if form == "think" else ""
        return {"role": "assistant", "content": f"{thought}It is so. {marker}"}
    content = {"thinkcall": _THOUGHT, "saycall": "Let me look."}.get(form, writing.content)
    names = ("get_weather", "calc") if form == "calls" else ("get_weather",)
    return {
        "role": "assistant",
        **({} if content is None else {"content": content}),
        "tool_calls": [
            call(name, number * 2 + offset, f"x {marker}", writing)
            for offset, name in enumerate(names)
        ],
    }


def call(name: str, number: int, argument: str, writing: Writing) -> Mapping[str, Any]:
    """Return a call in the chat-completions form."""
    arguments: Any = {"q": argument}
    if writing.as_text:
        arguments = json.dumps(arguments)
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "id": f"call{number:05d}", "function": function}


def _observations(form: str, followers: str, number: int) -> list[Message]:
    seen: list[Message] = []
    names = ("get_weather", "calc") if form == "calls" else ("get_weather",)
    for place, kind in enumerate(followers):
        chosen = _TEXTS[(7 * number + place) % len(_TEXTS)]  # 7 is coprime to their number
        text = chosen.replace("OBS", f"Oq{number}v{place}Vt")
        if kind == "t":
            if place >= len(names):
                continue
            called = {"name": names[place], "tool_call_id": f"call{number * 2 + place:05d}"}
            seen.append({"role": "tool", **called, "content": text})
        elif kind == "i":
            parts: list[Any] = [{"type": "image", "image": _IMAGE}, {"type": "text", "text": text}]
            seen.append({"role": "user", "content": parts})
        else:
            seen.append({"role": "user", "content": text})
    return seen
