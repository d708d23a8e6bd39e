"""Certification lines: texts that give away answers, and images that show too little."""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

import PIL.Image

from envkit.checker.subject import Episode
from envkit.env import Env
from envkit.errors import EnvkitError
from envkit.images import Image
from envkit_certify.audit.policies import gold_of, holds
from envkit_certify.bench import Bench, as_text, lower_bound
from envkit_certify.lines import Line, judged, skipped

_LEAK: Final = 0.1
"""Tolerated excess of tasks whose own answer appears in a text, over the chance rate."""
_EXCERPT: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class _Paid:
    """An oracle answer that earned a reward."""

    seed: int
    turn: int
    gold: str
    is_last: bool


def images(bench: Bench) -> Line:
    """Check that images are not blank, show their task, and differ where answers differ."""
    played = bench.solved or [(s, bench.play(lambda _: "", s)) for s in bench.few_seeds]
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
    problems += _mismatches(bench, [episode for _, episode in played])
    detail = f"of {shown} images are blank" if shown else "no images; texts differ by task"
    if not bench.solved:
        detail = f"{detail}; without an oracle, texts and images are not compared with answers"
    return judged("images", blank if shown else None, detail, problems=problems[:10])


def _mismatches(bench: Bench, episodes: Sequence[Episode]) -> Iterator[str]:
    """Yield images that fail the hook `shows`, and flaws in the hook itself.

    A hook that accepts a blank image, or another task's image, proves nothing.
    """
    shows = bench.hooks.shows
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


def _contradictions(episode: Episode, seed: int, seen: dict[str, tuple[int, str]]) -> Iterator[str]:
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


def leaks(bench: Bench) -> Line:
    """Look for answers in texts, info, tools and renderings before the answer is given."""
    if not bench.solved:
        return skipped("leaks", "it has no oracle, so its answers are unknown")
    paid = [entry for seed, episode in bench.solved for entry in _paid(seed, episode)]
    if not paid:
        return skipped("leaks", "no task value appears in a rewarded reply")
    if len({entry.gold.lower() for entry in paid}) == 1:
        return skipped("leaks", f"every answer is {paid[0].gold[:_EXCERPT]!r}")
    found: dict[str, list[float]] = {}
    examples: dict[str, str] = {}
    wrong = {entry.seed: paid[n - 1].gold for n, entry in enumerate(paid)}
    texts: dict[int, list[dict[str, str]]] = {}
    for number, entry in enumerate(paid):
        if entry.seed not in texts:
            texts[entry.seed] = list(_given_away(bench, entry.seed, wrong[entry.seed]))
        moments = texts[entry.seed]
        moments = moments if entry.is_last else moments[: entry.turn + 1]
        others = [other.gold for other in paid if other.gold.lower() != entry.gold.lower()]
        other = others[number % len(others)]
        fields = sorted({field for moment in moments for field in moment})
        for field in fields:
            text = "\n".join(moment[field] for moment in moments if field in moment)
            own, foreign = _names_answer(text, entry.gold), _names_answer(text, other)
            found.setdefault(field, []).append(float(own) - float(foreign))
            if own:
                examples.setdefault(
                    field, f"seed {entry.seed}: {entry.gold!r} in {_around(text, entry.gold)}"
                )
    count = len(paid)
    shares = {name: sum(values) / count for name, values in found.items()}
    problems = [
        f"{name} holds the answer of {shares[name]:.0%} more tasks than chance; {examples[name]}"
        for name, values in found.items()
        if lower_bound([*values, *[0.0] * (count - len(values))]) > _LEAK
    ]
    worst = max(shares.values(), default=0.0)
    return judged("leaks", worst, f"of {count} answers given away, above chance", problems=problems)


def _paid(seed: int, episode: Episode) -> list[_Paid]:
    found: list[_Paid] = []
    rewarded = [n for n, step in enumerate(episode.steps) if step.reward > 0]
    for turn in rewarded:
        gold = gold_of(episode.task, episode.replies[turn])
        if gold is not None:
            found.append(_Paid(seed=seed, turn=turn, gold=gold, is_last=len(rewarded) == 1))
    return found


def _given_away(bench: Bench, seed: int, wrong: str) -> Iterator[dict[str, str]]:
    """Yield everything readable before each turn to a policy that gives empty and wrong replies."""
    answers = ("", bench.hooks.reply(wrong))
    episode = bench.play(lambda context: answers[context.turn % 2], seed)
    constant = {
        "system prompt": bench.env.system_prompt or "",
        "tools": json.dumps([spec.to_json() for spec in bench.env.tools]),
        "rendering": _rendered(bench.env, seed),
    }
    started = {**constant, "text": episode.start.observation["text"], **_infos(episode.start.info)}
    yield started
    for reply, step in zip(episode.replies, episode.steps, strict=True):
        if step.terminated or step.truncated:
            return
        text = step.observation["text"]
        said = {"text": text.replace(reply, "") if reply else text, **_infos(step.info)}
        yield {name: value.replace(wrong, "") for name, value in said.items()}


def _infos(info: dict[str, object]) -> dict[str, str]:
    return {f"info[{key!r}]": as_text(value) for key, value in info.items() if key != "turn"}


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


def _names_answer(text: str, gold: str) -> bool:
    """Return whether a text names an answer, plainly or in a simple disguise."""
    if holds(text, gold):
        return True
    if len(gold) < 3:
        return False
    data = gold.encode()
    disguises = (gold[::-1], base64.b64encode(data).decode().rstrip("="), data.hex())
    return any(disguise in text for disguise in disguises if disguise != gold)


def _around(text: str, gold: str) -> str:
    at = max(0, text.lower().find(gold.lower()))
    return repr(text[max(0, at - _EXCERPT) : at + len(gold) + _EXCERPT])
