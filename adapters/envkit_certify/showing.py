"""Certification lines: texts that give away answers, and images that show too little."""

import io
import json
from collections.abc import Iterator, Sequence
from typing import Final, cast

import PIL.Image

from envkit.checker.under_test import CheckedEpisode
from envkit.env import Env
from envkit.errors import EnvkitError
from envkit.images import Image
from envkit_certify.certified import CertifiedEnv, as_text, lower_bound
from envkit_certify.codes import VIEWS, forms_of, is_layout, is_named, shows
from envkit_certify.forms import Paid
from envkit_certify.lines import CertificateLine, judged, skipped
from envkit_certify.payloads import without_options
from envkit_certify.places import follows
from envkit_certify.policies import holds

_LEAK: Final = 0.1
"""Tolerated excess of tasks whose own answer appears in a text, over the chance rate."""
_EXCERPT: Final = 40
_MALFORMED: Final = (
    "<tool_call>{",
    '<tool_call>{"name": "no_such_tool", "arguments": {}}</tool_call>',
)
_CODED: Final = 4.0
"""Standard errors for an answer in a code, because there are many codes."""


def images(subject: CertifiedEnv) -> CertificateLine:
    """Check that images are not blank, show their task, and differ where answers differ."""
    played = subject.solved or [(s, subject.play(lambda _: "", seed=s)) for s in subject.few_seeds]
    problems: list[str] = []
    seen: dict[str, tuple[int, str]] = {}
    shown = blank = 0
    for seed, episode in played:
        moments = [episode.start.observation, *(step.observation for step in episode.steps[:-1])]
        images = [image for moment in moments for image in moment["images"]]
        empty = [n for n, image in enumerate(images) if _is_blank(image)]
        shown, blank = shown + len(images), blank + len(empty)
        if empty:
            problems.append(f"seed {seed}: image {empty[0]} has a single colour")
        problems += _contradictions(episode, seed, seen)
    problems += _mismatches(subject, [episode for _, episode in played])
    detail = f"of {shown} images are blank" if shown else "no images; texts differ by task"
    if not subject.solved:
        detail = f"{detail}; without an oracle, texts and images are not compared with answers"
    return judged("images", blank if shown else None, detail, problems=problems[:10])


def _mismatches(subject: CertifiedEnv, episodes: Sequence[CheckedEpisode]) -> Iterator[str]:
    """Yield images that fail the hook `shows`, and flaws in the hook itself.

    A hook that accepts a blank image, or another task's image, proves nothing.
    """
    shows = subject.hooks.shows
    if shows is None:
        return
    starts = [(episode.task, tuple(episode.start.observation["images"])) for episode in episodes]
    starts = [(task, images) for task, images in starts if images]
    for number, (task, images) in enumerate(starts):
        name = task.get("id", f"task {number}")
        if not shows(task, images):
            yield f"{name}: the image does not show the task"
        blank = [Image.from_pil(PIL.Image.new("RGB", image.size, "white")) for image in images]
        if shows(task, blank):
            yield f"{name}: the hook 'shows' accepts a blank image"
        other_task, other = starts[number - 1]
        if other_task != task and shows(task, other):
            yield f"{name}: the hook 'shows' accepts the image of another task"


def _is_blank(image: Image) -> bool:
    extremes = image.pil().getextrema()
    bands = cast("Sequence[tuple[float, float] | float]", extremes)
    if bands and isinstance(bands[0], tuple):
        return all(low == high for low, high in cast("Sequence[tuple[float, float]]", bands))
    return len(set(cast("Sequence[float]", bands))) == 1


def _contradictions(
    episode: CheckedEpisode, seed: int, seen: dict[str, tuple[int, str]]
) -> Iterator[str]:
    """Yield turns where two tasks with different answers look exactly the same."""
    rows = episode.rows()
    history = ""
    for turn, (reply, step) in enumerate(zip(episode.replies, episode.steps, strict=True)):
        observation = json.loads(rows[turn])["observation"]
        history += json.dumps(observation, sort_keys=True)
        if step.reward > 0:
            other, answer = seen.setdefault(history, (seed, reply))
            if answer != reply:
                yield (
                    f"seeds {other} and {seed} look the same up to turn {turn + 1}, but their "
                    f"answers differ: {answer[:_EXCERPT]!r} and {reply[:_EXCERPT]!r}"
                )
        history += reply


def leaks(subject: CertifiedEnv) -> CertificateLine:
    """Look for answers in texts, info, tools and renderings before the answer is given."""
    if not subject.solved:
        return skipped("leaks", "it has no oracle, so its answers are unknown")
    paid = subject.paid
    if not paid:
        return skipped("leaks", "no answer can be told from a rewarded reply")
    if len({entry.gold.lower() for entry in paid}) == 1:
        return skipped("leaks", f"every answer is {paid[0].gold[:_EXCERPT]!r}")
    found: dict[tuple[str, str], list[float]] = {}
    firsts: dict[tuple[str, str], list[float]] = {}
    examples: dict[tuple[str, str], str] = {}
    rows = list(_rows(subject, paid))
    constant = {name for name, texts in _by_field(rows).items() if len(texts) == 1}
    for entry, other, fields in rows:
        for field, text in fields.items():
            known = {} if field in constant else _hits(field, text, entry.gold, other)
            if entry.is_stated or not _is_said(field):
                known[""] = float(holds(text, entry.gold)) - holds(text, other)
            for code, value in known.items():
                found.setdefault((field, code), []).append(value)
                if entry.turn == min(e.turn for e in paid if e.seed == entry.seed):
                    firsts.setdefault((field, code), []).append(value)
                if value > 0:
                    examples.setdefault(
                        (field, code),
                        f"seed {entry.seed}: {entry.gold!r} in {_around(text, entry.gold)}",
                    )
    count = len(paid)
    shares = {key: sum(values) / count for key, values in found.items()}
    episodes = len({entry.seed for entry in paid})
    leaking = {
        key
        for known, most in ((found, count), (firsts, episodes))
        for key, values in known.items()
        if sum(values) > (2 if key[1] else 0)
        and lower_bound([*values, *[0.0] * (most - len(values))], _CODED if key[1] else 1.96)
        > _LEAK
    }
    problems = [
        f"{field} holds the answer{f' ({code})' if code else ''} of {shares[field, code]:.0%} "
        f"more tasks than chance; {examples[field, code]}"
        for field, code in sorted(leaking)
        if not code or (field, "") not in leaking
    ]
    problems += follows(paid)
    worst = max((shares[key] for key in shares if not key[1]), default=0.0)
    detail = f"of {count} answers given away in plain text, above chance"
    return judged("leaks", worst, detail, problems=problems[:20])


_Row = tuple[Paid, str, dict[str, str]]


def _rows(subject: CertifiedEnv, paid: Sequence[Paid]) -> Iterator[_Row]:
    """Yield each answer with another task's, and what can be read before it is given, by field."""
    wrong = {entry.seed: paid[n - 1].gold for n, entry in enumerate(paid)}
    texts: dict[int, list[dict[str, str]]] = {}
    for number, entry in enumerate(paid):
        if entry.seed not in texts:
            texts[entry.seed] = list(_given_away(subject, entry.seed, wrong[entry.seed]))
        moments = texts[entry.seed]
        moments = moments if entry.is_last else moments[: entry.turn + 1]
        others = [other.gold for other in paid if other.gold.lower() != entry.gold.lower()]
        fields = {
            field: "\n".join(moment[field] for moment in moments if field in moment)
            for field in sorted({field for moment in moments for field in moment})
        }
        fields |= {f: without_options(t, entry.gold) for f, t in fields.items() if _is_said(f)}
        fields["everything together"] = "\n".join(fields.values())
        yield entry, others[number % len(others)], fields


def _by_field(rows: Sequence[_Row]) -> dict[str, set[str]]:
    texts: dict[str, set[str]] = {}
    for _, _, fields in rows:
        for field, text in fields.items():
            texts.setdefault(field, set()).add(text)
    return texts


def _is_said(field: str) -> bool:
    """Return whether a field has the question, which may hold what it asks for."""
    return field in ("text", "rendering", "everything together")


def _hits(field: str, text: str, gold: str, other: str) -> dict[str, float]:
    """Return by code whether a text holds an answer (1), another task's (-1), or both (0)."""
    if field == "everything together":
        return {"in two places": float(_is_split(text, gold)) - _is_split(text, other)}
    said = _is_said(field)
    found: dict[str, float] = {}
    for code in VIEWS:
        if not (said and (is_named(code, text) or is_layout(code, gold))):
            found[code] = float(shows(code, text, gold)) - shows(code, text, other)
    for sign, answer in ((1.0, gold), (-1.0, other)):
        for code, form in forms_of(answer):
            is_held = form.lower() in text.lower() if len(form) > 12 else holds(text, form)
            is_given = len(form) > 1 and form != answer and is_held
            if is_given and not (said and (len(form) < 8 or is_named(code, text))):
                found[code] = max(-1.0, min(1.0, found.get(code, 0.0) + sign))
    own, foreign = (sum(v == sign for v in found.values()) for sign in (1.0, -1.0))
    found["in some code"] = float(own > 0) - (foreign > 0)
    return found


def _is_split(text: str, gold: str) -> bool:
    """Return whether a text holds both parts of an answer, but not the whole."""
    return (
        len(gold) > 3
        and not holds(text, gold)
        and any(
            holds(text, gold[:at]) and holds(text, gold[at:])
            for at in range(2, min(len(gold) - 1, 24))
        )
    )


def _given_away(subject: CertifiedEnv, seed: int, wrong: str) -> Iterator[dict[str, str]]:
    """Yield everything readable before each turn to a policy that gives empty and wrong replies."""
    answers = ("", subject.hooks.reply(wrong), *_MALFORMED)
    first = 2 * (seed % 2)
    episode = subject.play(
        lambda context: answers[(first + context.turn) % len(answers)], seed=seed
    )
    constant = {
        "system prompt": subject.env.system_prompt or "",
        "tools": json.dumps([spec.to_json() for spec in subject.env.tools]),
        "rendering": _rendered(subject.env, seed),
    }
    started = {**constant, "text": episode.start.observation["text"], **_infos(episode.start.info)}
    yield {**started, **_in_images(episode.start.observation["images"])}
    for reply, step in zip(episode.replies, episode.steps, strict=True):
        if step.terminated or step.truncated:
            return
        text = step.observation["text"]
        said = {"text": text.replace(reply, "") if reply else text, **_infos(step.info)}
        said = {name: value.replace(wrong, "") for name, value in said.items()}
        yield {**said, **_in_images(step.observation["images"])}


def _infos(info: dict[str, object]) -> dict[str, str]:
    return {f"info[{key!r}]": as_text(value) for key, value in info.items() if key != "turn"}


def _in_images(images: Sequence[Image]) -> dict[str, str]:
    """Return what the files of images say apart from their picture."""
    found: dict[str, list[str]] = {}
    for image in images:
        file = PIL.Image.open(io.BytesIO(image.png_bytes()))
        said = [*file.info.items(), *file.getexif().items()]
        found.setdefault("image metadata", []).append(as_text([list(map(str, e)) for e in said]))
        found.setdefault("image size", []).append(f"{image.size[0]} {image.size[1]}")
        pixels = file.convert("RGB").crop((0, 0, min(64, file.width), 1)).tobytes()
        told = [*map(str, pixels[:24]), "".join(chr(p) for p in pixels[:48] if 32 <= p < 127)]
        bits = "".join(str(p & 1) for p in pixels[::3])
        found.setdefault("first pixels of an image", []).append(" ".join([*told, bits]))
    return {name: "\n".join(values) for name, values in found.items()}


def _rendered(env: Env, seed: int) -> str:
    mode = env.render_mode
    try:
        env.render_mode = "ansi"
        env.reset(seed=seed)
        return str(env.render() or "")
    except (EnvkitError, NotImplementedError):
        return ""
    finally:
        env.render_mode = mode


def _around(text: str, gold: str) -> str:
    at = max(0, text.lower().find(gold.lower()))
    return repr(text[max(0, at - _EXCERPT) : at + len(gold) + _EXCERPT])
