"""The geometry environment `geo3k-v0`."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, cast

from envkit import ranges
from envkit.certification_hooks import CertificationHooks
from envkit.env import Capabilities, Env, ObservationRole, Policy, Turn
from envkit.errors import ConfigurationError, DatasetError
from envkit.images import Image
from envkit.marks import Mark, clip
from envkit.messages import Trusted
from envkit.success import OWN_REWARD
from envkit.tasks import Task
from envkit.toolcalls import ToolCall, call_errors, parse_tool_calls
from envkit_geo3k.answer_text import last_boxed
from envkit_geo3k.choices import grade_choice, with_choices
from envkit_geo3k.dataset import Flavour, load_tasks
from envkit_geo3k.drawing import draw
from envkit_geo3k.figure import Figure
from envkit_geo3k.grading import Grade, How, Rounding, grade, rounding_of
from envkit_geo3k.policies import noisy_oracle, oracle
from envkit_geo3k.source import ProceduralSource
from envkit_geo3k.tools import CALC_SCORE, ZOOM, crop, pixels

_MAX_RECORDED: Final = 200
"""Maximum characters of an answer in info."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """Result of one reply, before the reward."""

    text: str
    images: tuple[Image, ...] = ()
    role: ObservationRole = "user"
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    penalty: str | None = None
    """Reward term of the reply's penalty; None without one."""


class Geo3kEnv(Env):
    r"""Geometry problems with a diagram, a scoring tool and a magnifier.

    Task: find a length, an angle, an area, a ratio or a point in a drawn figure. Some facts are in
        the text, some only in the figure. Generated problems come from 27 families at 4 levels: 1
        one fact, 2 an algebra label such as 3x + 2, 3 two facts in a chain, 4 the same with a
        distractor and a number in the text only. The text alone never gives the answer.
    Observation: the question with the figure; then the result of each tool call, or what was wrong
        with the reply. `zoom` answers with an image.
    Action: a reply with one call in a `<tool_call>` block, `calc_score(answer)` or `zoom(region)`,
        or with the final answer in `\boxed{}`. In a reply with a call, a box counts only on the
        last turn.
    Reward: 1.0 if the final answer is correct, else 0.0, on the turn that ends the episode; 0.0 on
        all others. The final answer is the boxed one. If the turns run out without a box, it is the
        last answer given to `calc_score`. `attempt_penalty` and `format_penalty` are subtracted on
        the turn that earns them; both are 0.0 by default. `info["reward_terms"]` adds up to the
        reward.
    Episode end: a boxed answer terminates; `max_turns` replies truncate.
    Budget: `max_turns` replies and `max_scored_attempts` scores; later calls of `calc_score` get no
        score. One image of `image_size` squared pixels at the start, and one for each zoom.
    Dataset: generated, no licence needed; or a local file of Geometry3K, whose images are scans
        of textbooks and are not shipped, or of other questions about images, with or without
        choices.
    Source: the multi-turn Geometry3K recipes of slime and verl. Unlike slime's example the score is
        capped, the reward comes from here, and a malformed call does not end the episode.
    """

    capabilities = Capabilities(
        thread_safe=True, compute_bound=True, replay_safe=True, snapshot=True, deterministic=True
    )
    policies: ClassVar[Mapping[str, Callable[[], Policy]]] = {
        "noisy-oracle": noisy_oracle,
        "oracle": oracle,
    }
    """Named scripted policies: name -> a factory that takes no argument."""

    def __init__(
        self,
        *,
        level: int | None = None,
        families: Sequence[str] | None = None,
        split: str = "train",
        max_turns: int = 4,
        max_scored_attempts: int = 3,
        zoom: bool = True,
        data: str | None = None,
        skip_bad: bool = False,
        image_size: int = 384,
        rounding: str = Rounding.ROUND,
        feedback_role: ObservationRole = "tool",
        attempt_penalty: float = 0.0,
        format_penalty: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        """Set up tasks and rules.

        Args:
            level: Level of generated problems, 1 to 4; None mixes all.
            families: Families of generated problems, see `FAMILIES`; None means all.
            split: "train" or "test"; for a dataset also "validation".
            max_turns: Replies per episode.
            max_scored_attempts: Calls of `calc_score` that get a score; 0 removes the tool.
            zoom: Whether the magnifier is offered.
            data: A parquet or jsonl file of Geometry3K or of other questions about images, or a
                folder of them; None generates.
            skip_bad: Skip unusable rows of the data, with a warning that counts them; otherwise the
                first one is an error.
            image_size: Side of generated figures in pixels.
            rounding: A `Rounding` value, for grading.
            feedback_role: Role of tool results without images. "user" for chat templates without a
                tool role.
            attempt_penalty: Subtracted for each wrong scored attempt, at least 0.
            format_penalty: Subtracted for each reply that is neither a call nor an answer, at least
                0.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: A value is out of range.
            DatasetError: The data cannot be read.
        """
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        penalties = {"attempt_penalty": attempt_penalty, "format_penalty": format_penalty}
        ranges.at_least(0, max_scored_attempts=max_scored_attempts, **penalties)
        if data is not None and (level is not None or families is not None):
            raise ConfigurationError(
                "level and families choose generated problems: omit them with data, or omit data, "
                f"got level={level!r}, families={families!r}, data={data!r}"
            )
        self.max_scored_attempts = max_scored_attempts
        self.rounding = rounding_of(rounding)
        self.tools = (CALC_SCORE,) * (max_scored_attempts > 0) + (ZOOM,) * zoom
        self.tasks = (
            ProceduralSource(split=split, level=level, families=families, image_size=image_size)
            if data is None
            else load_tasks(data, split, skip_bad=skip_bad)
        )
        is_geometry = getattr(self.tasks, "flavours", ()) != (Flavour.QUESTIONS,)
        self.system_prompt = _system_prompt(
            max_turns, max_scored_attempts, zoom=zoom, is_geometry=is_geometry
        )
        self._feedback_role: ObservationRole = feedback_role
        self._penalties = penalties
        self._pictures: tuple[Image, ...] = ()
        self._attempts = 0
        self._last_answer: str | None = None

    def oracle(self) -> Policy:
        """Return a policy that checks the right answer with `calc_score`, then boxes it."""
        return oracle()

    def certification_hooks(self) -> CertificationHooks:
        """Return guesses from the text and a second grader; see `certifying`."""
        from envkit_geo3k.certifying import hooks

        return hooks()

    def on_reset(self, task: Task) -> Turn:
        """Show the figure and the question.

        Raises:
            DatasetError: The task lacks a question, an answer or an image.
        """
        for name in ("question", "answer"):
            if not isinstance(task.get(name), str):
                raise DatasetError(
                    f"a geo3k task needs the string {name!r}, got the keys {sorted(task)}"
                )
        self._pictures = _images_of(task)
        self._attempts, self._last_answer = 0, None
        info = {key: task[key] for key in ("id", "family", "level") if key in task}
        question = task["question"]
        if task.get("choices"):
            question = with_choices(question, task["choices"])
        return Turn(question, images=self._pictures, info=info)

    def on_turn(self, response_text: str) -> Turn:
        """Run the tool call or grade the final answer."""
        reply = parse_tool_calls(self.reply, tools=self.tools)
        boxed = last_boxed(reply.text)
        has_call = bool(reply.calls or reply.errors)
        if boxed and (not has_call or self._is_last_turn):
            return self._finish(boxed)
        if reply.calls:
            outcome = self._call(reply.calls[0], dropped=len(reply.calls) - 1)
        else:
            outcome = self._misunderstood(reply.errors, is_empty_box=boxed is not None)
        return self._turn(outcome)

    @property
    def _is_last_turn(self) -> bool:
        return self.turn + 1 >= self.max_turns

    def _finish(self, answer: str) -> Turn:
        verdict = self._grade(answer)
        text = "Correct." if verdict.score else "Not correct."
        info = {
            **_answer_info(answer, verdict),
            "marks": [{"kind": "answer", "text": clip(answer)}],
            "reward_terms": {"answer": verdict.score},
            "scored_attempts": self._attempts,
        }
        return Turn(text, reward=verdict.score, done=True, info=info)

    def _turn(self, outcome: _Outcome) -> Turn:
        """Add the reward; on the last turn, grade the last answer given to `calc_score`."""
        terms: dict[str, float] = {}
        info = dict(outcome.info)
        if outcome.penalty is not None and self._penalties[outcome.penalty]:
            terms[outcome.penalty] = -self._penalties[outcome.penalty]
            info[OWN_REWARD] = 0.0
        if self._is_last_turn:
            verdict = self._grade(self._last_answer)
            terms["answer"] = verdict.score
            info |= _answer_info(self._last_answer, verdict)
            info |= {OWN_REWARD: verdict.score} if OWN_REWARD in info else {}
        return Turn(
            outcome.text,
            images=outcome.images,
            role=outcome.role,
            reward=sum(terms.values()),
            info={**info, "reward_terms": terms, "scored_attempts": self._attempts},
        )

    def _grade(self, answer: str | None) -> Grade:
        gold, choices = self.task["answer"], self.task.get("choices")
        if choices:
            return grade_choice(answer, gold, choices, self.rounding)
        return grade(answer, gold, self.rounding)

    def _call(self, call: ToolCall, dropped: int) -> _Outcome:
        if isinstance(call.arguments.get("answer"), int | float):  # accept a number as an answer
            call = replace(call, arguments={"answer": str(call.arguments["answer"])})
        errors = call_errors(call, self.tools)
        record: dict[str, Any] = {"tool_call": _recorded(call), "marks": [self._mark(call, errors)]}
        if errors:
            names = " and ".join(spec.name for spec in self.tools)
            text = f"The call was not run: its name or its arguments are wrong. Tools: {names}."
            info = {**record, "parse_error": errors[0][:_MAX_RECORDED]}
            return _Outcome(text=text, info=info, penalty="format_penalty")
        outcome = (
            self._zoom(call.arguments["region"], record)
            if call.name == ZOOM.name
            else self._score(call.arguments["answer"], record)
        )
        if not dropped:
            return outcome
        note = f" Only the first call of a reply is run; {dropped} more were left out."
        info = {**outcome.info, "dropped_calls": dropped}
        return replace(outcome, text=outcome.text + note, info=info)

    def _mark(self, call: ToolCall, errors: Sequence[str]) -> Mark:
        """Return the mark of a call; a zoom refers to the figure, not to a later image."""
        said = call.arguments.get("answer", call.arguments)
        text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        made: Mark = {"kind": "call", "label": call.name[:_MAX_RECORDED], "text": clip(text)}
        if errors:
            return {**made, "ok": False, "note": "not run"}
        if call.name != ZOOM.name:
            is_refused = self._attempts >= self.max_scored_attempts
            return {**made, "ok": False, "note": "no attempt left"} if is_refused else made
        box = pixels(self._pictures[0], call.arguments["region"])
        if box is None:
            return {**made, "ok": False, "note": "outside the figure"}
        return {"kind": "box", "box": list(box), "label": "zoom", "image": 0}

    def _score(self, answer: str, record: Mapping[str, Any]) -> _Outcome:
        self._last_answer = answer
        if self._attempts >= self.max_scored_attempts:
            text = "No scored attempt is left. Give your final answer in a box."
            return _Outcome(text=text, role=self._feedback_role, info=record)
        self._attempts += 1
        verdict = self._grade(answer)
        left = self.max_scored_attempts - self._attempts
        if verdict.score:
            text = "Score 1: correct. Now give this as your final answer in a box."
        else:
            why = "cannot be read as a value" if verdict.how is How.UNREADABLE else "not correct"
            text = f"Score 0: {why}. Scored attempts left: {left}."
        return _Outcome(
            text=text,
            role=self._feedback_role,
            info={**record, **_answer_info(answer, verdict)},
            penalty=None if verdict.score else "attempt_penalty",
        )

    def _zoom(self, region: Sequence[float], record: Mapping[str, Any]) -> _Outcome:
        picture = crop(self._pictures[0], region)
        if picture is None:
            text = (
                "The region must be [left, top, right, bottom] with 0 <= left < right <= 1 and "
                "0 <= top < bottom <= 1, at least 0.05 wide and high."
            )
            info = {**record, "parse_error": "zoom: the region is not inside the figure"}
            return _Outcome(text=text, info=info, penalty="format_penalty")
        return _Outcome(text="The region, enlarged.", images=(picture,), info=record)

    def _misunderstood(self, errors: Sequence[str], *, is_empty_box: bool) -> _Outcome:
        # The parser's message may quote the reply, and with it image placeholder tokens.
        if errors:
            text = Trusted(
                "The tool call could not be read. Write one JSON object with name and arguments "
                "between <tool_call> and </tool_call>."
            )
            reason = errors[0][:_MAX_RECORDED]
        elif is_empty_box:
            text, reason = "The box of the final answer is empty.", "empty_box"
        else:
            text = "There is no tool call and no boxed final answer in this reply."
            reason = "no_answer"
        return _Outcome(text=text, info={"parse_error": reason}, penalty="format_penalty")

    def get_state(self) -> dict[str, Any]:
        """Return the episode's state in addition to its task."""
        return {"attempts": self._attempts, "last_answer": self._last_answer}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned; images are rebuilt from the task."""
        self._attempts, self._last_answer = state["attempts"], state["last_answer"]
        self._pictures = _images_of(self.task) if self.task else ()


def _system_prompt(
    max_turns: int, max_scored_attempts: int, *, zoom: bool, is_geometry: bool
) -> Trusted:
    lines = [
        "You solve geometry problems. Facts stand in the text and in the figure. Think step by "
        "step."
        if is_geometry
        else "You answer questions about images. Think step by step."
    ]
    if max_scored_attempts:
        lines += [
            f"The tool calc_score checks an answer, at most {max_scored_attempts} times:",
            '<tool_call>{"name": "calc_score", "arguments": {"answer": "..."}}</tool_call>',
        ]
    if zoom:
        lines += [
            "The tool zoom enlarges a region of the figure, given as left, top, right and bottom, "
            "each from 0 to 1:",
            '<tool_call>{"name": "zoom", "arguments": {"region": [0, 0, 0.5, 0.5]}}</tool_call>',
        ]
    if len(lines) > 1:
        lines.append("Make at most one call in a reply and wait for its result.")
    lines.append(
        "When you are sure, give the final answer in \\boxed{} without a call. "
        f"You have {max_turns} {'reply' if max_turns == 1 else 'replies'} in all."
    )
    return Trusted("\n".join(lines))


def _answer_info(answer: str | None, verdict: Grade) -> dict[str, Any]:
    shown = None if answer is None else answer[:_MAX_RECORDED]
    return {"answer": shown, "score": verdict.score, "grade": str(verdict.how)}


def _recorded(call: ToolCall) -> dict[str, Any]:
    """Return the call for info, with a huge argument truncated."""
    arguments: dict[str, Any] = {}
    for name, value in call.arguments.items():
        text = value if isinstance(value, str) else repr(value)
        arguments[name[:_MAX_RECORDED]] = value if len(text) <= 1000 else text[:1000]
    return {**call.to_json(), "name": call.name[:_MAX_RECORDED], "arguments": arguments}


def _images_of(task: Task) -> tuple[Image, ...]:
    if task.get("figure") is not None:
        return (draw(Figure.from_json(task["figure"])),)
    images: Any = task.get("images")
    if isinstance(images, list) and images:
        return tuple(_shared_image(str(uri)) for uri in cast(list[object], images))
    raise DatasetError(f"a geo3k task needs 'figure' or 'images', got the keys {sorted(task)}")


@functools.lru_cache(maxsize=64)
def _shared_image(uri: str) -> Image:
    """Return one image object for the episodes of a group."""
    return Image.from_data_uri(uri)
