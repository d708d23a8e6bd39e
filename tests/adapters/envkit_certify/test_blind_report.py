"""Blind policies and codes: leaks are found, and figures are those of the episodes."""

import base64
import codecs
import json
import zlib
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from fakes.envs import PROMISES, AdderEnv, AsyncEchoEnv
from hypothesis import example, given, settings
from hypothesis import strategies as st

import envkit
from envkit.certification_hooks import CertificationHooks
from envkit.env import Capabilities, Env, Policy, PolicyContext, Turn
from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit.tasks import ListSource, Task
from envkit.tools import ToolSpec
from envkit.turns import Step
from envkit_certify.blind_report import blind_report
from envkit_certify.codes import MORSE, VIEWS, forms_of, shows
from envkit_certify.forms import Form
from envkit_certify.policies import fill


class QuizEnv(Env):
    """Four options; `leak` chooses what it gives away."""

    capabilities: ClassVar[Capabilities] = PROMISES

    def __init__(
        self, *, leak: str = "", max_turns: int = 3, render_mode: str | None = None
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.leak = leak
        answers = "DDDDABCD" if leak == "skew" else "ABCD"
        self.tasks = ListSource([{"n": n, "answer": a} for n, a in enumerate(answers)])
        self.tools = (
            ToolSpec(name="look", description="Look."),
            ToolSpec(
                name="check",
                description="Check an answer.",
                parameters={
                    "type": "object",
                    "properties": {"answer": {"type": "string", "enum": list("ABCD")}},
                    "required": ["answer"],
                },
            ),
        )

    def on_reset(self, task: Task) -> Turn:
        shown = f" The answer is {task['answer']}." if self.leak == "prompt" else ""
        return Turn(f"Question {task['n']}: A, B, C or D?{shown}")

    def on_turn(self, response_text: str) -> Turn:
        answer = self.task["answer"]
        if self.leak == "fault" and self.task["n"] == 0:
            raise EnvFault("no backend", kind=FaultKind.PERMANENT)
        if self.leak == "raise" and not response_text:
            raise ValueError("empty")
        if response_text.startswith("check "):
            return Turn("Right." if response_text[6:] == answer else "Wrong.")
        if "<tool_call>" in response_text:
            is_paid = self.leak == "tools" and "look" in response_text
            return Turn("Seen.", reward=0.25 * is_paid)
        if self.leak in ("prompt", "everything"):
            right = f"is {answer}" in response_text or f"\nanswer {answer}" in response_text
        else:
            right = response_text.splitlines()[-1:] == [f"answer {answer}"]
        return Turn("Done.", reward=float(right), done=True)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        del state

    def oracle(self) -> Policy:
        return lambda context: f"answer {context.task['answer']}"

    def certification_hooks(self) -> CertificationHooks:
        return CertificationHooks(
            choices=lambda _: list("ABCD"),
            answer=lambda answer: f"answer {answer}",
            ask=lambda answer: f"check {answer}",
            confirms_guess=lambda step: step.observation["text"] == "Right.",
            closed_book=lambda task: "ABCD"[task["n"] % 2],
            grade=lambda task, answer: float(answer == task["answer"]),
            second_grade=lambda task, answer: float(answer.upper() == task["answer"]),
            answers=lambda task: [task["answer"], task["answer"].lower(), "E"],
        )


def means(env: Env, **options: Any) -> dict[str, float | None]:
    report = blind_report(env, episodes=60, **options)
    return {result.name: result.mean for result in report.policies}


def test_an_environment_without_a_leak_pays_about_chance() -> None:
    found = means(QuizEnv(max_turns=1))

    assert found["empty reply"] == found["copies the prompt"] == 0.0
    assert found["random choice"] == pytest.approx(0.25, abs=0.15)
    assert found["most frequent reply"] == pytest.approx(0.25, abs=0.15)


@pytest.mark.parametrize(
    ("leak", "policy", "least"),
    [
        ("skew", "most frequent reply", 0.5),
        ("prompt", "copies the prompt", 1.0),
        ("everything", "every choice at once", 0.6),
        ("tools", "calls every tool at once", 0.75),
    ],
)
def test_a_leak_is_found_by_the_policy_that_lives_on_it(
    leak: str, policy: str, least: float
) -> None:
    report = blind_report(QuizEnv(leak=leak), episodes=60)
    paid = {result.name: result.mean or 0.0 for result in report.policies}

    assert paid[policy] >= least
    assert paid["empty reply"] == 0.0
    assert report.best is not None
    assert report.best.mean == max(paid.values())


def test_guessing_with_the_scorer_earns_what_its_turns_allow() -> None:
    two_of_four = means(QuizEnv(max_turns=2))["guesses with the scorer"]
    all_four = means(QuizEnv(max_turns=5))["guesses with the scorer"]

    assert two_of_four == pytest.approx(0.5, abs=0.2)
    assert all_four == 1.0


def test_closed_book_and_caller_policies_are_rows() -> None:
    def cheats(context: PolicyContext) -> str:
        assert context.messages[-1]["role"] == "user"
        return f"answer {context.task['answer']}"

    report = blind_report(QuizEnv(), episodes=40, policies={"mine": cheats})
    found = {result.name: result.mean for result in report.policies}

    assert found["mine"] == 1.0
    assert found["closed book"] == pytest.approx(0.5, abs=0.25)
    assert report.oracle is not None
    assert report.oracle.mean == 1.0


def test_graders_that_differ_are_counted_with_examples() -> None:
    report = blind_report(QuizEnv(), episodes=30)

    assert (report.compared_answers, report.disagreement_count) == (90, 30)
    assert len(report.disagreements) == 20
    first = report.disagreements[0]
    assert (first.answer.islower(), first.grade, first.second_grade) == (True, 0.0, 1.0)


def test_faults_are_counted_and_have_no_reward() -> None:
    report = blind_report(QuizEnv(leak="fault"), episodes=40)

    for result in report.policies:
        assert result.faults + len(result.returns) == 40
        assert result.faults > 2


def test_a_reply_that_makes_the_environment_raise_is_a_finding() -> None:
    report = blind_report(QuizEnv(leak="raise"), episodes=5)
    problems = {result.name: result.problem for result in report.policies if result.problem}

    assert list(problems) == ["empty reply"]
    assert problems["empty reply"].endswith("ValueError: empty")  # pyright: ignore[reportOptionalMemberAccess]


def test_the_same_seed_gives_the_same_report() -> None:
    first, second = (blind_report(QuizEnv(), episodes=20, seed=3) for _ in range(2))
    other = blind_report(QuizEnv(), episodes=20, seed=4)

    assert first == second != other


def test_hooks_given_from_outside_replace_those_of_the_environment() -> None:
    report = blind_report(QuizEnv(), episodes=5, hooks=CertificationHooks())

    assert report.unplayed["random choice"] == "no hook 'choices'"
    assert report.compared_answers == 0


def test_asynchronous_environments_and_tools_are_played() -> None:
    assert means(AsyncEchoEnv())["most frequent reply"] == pytest.approx(1 / 3, abs=0.2)
    assert means(AdderEnv())["calls every tool at once"] == 0.0


def test_filled_arguments_fit_their_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 3},
            "b": {"enum": ["x", "y"]},
            "c": {"type": "array", "items": {"type": "number"}, "minItems": 2},
            "d": {"type": ["string", "null"]},
            "e": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "f": {"type": "object", "properties": {"g": {"default": 7}}, "required": ["g"]},
            "h": {"type": "string"},
        },
        "required": ["a", "b", "c", "d", "e", "f"],
    }
    spec = ToolSpec(name="any", description="Any.", parameters=schema)
    arguments = fill(schema)

    assert arguments == {"a": 3, "b": "x", "c": [1, 1], "d": "1", "e": True, "f": {"g": 7}}
    assert spec.validate(arguments) == []


def test_hooks_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="give all three"):
        CertificationHooks(grade=lambda task, answer: 0.0)
    with pytest.raises(ConfigurationError, match="choices and confirms_guess"):
        CertificationHooks(ask=lambda answer: answer)
    with pytest.raises(ConfigurationError, match="at least 1, got 0"):
        blind_report(QuizEnv(), episodes=0)


@pytest.mark.slow
def test_blind_policies_earn_the_chance_level_that_the_canary_states() -> None:
    env = envkit.make("canary-v0", length=1, alphabet="0123456789")
    report = blind_report(env, episodes=200)

    assert report.chance_level == pytest.approx(0.1)
    assert report.best is not None
    assert report.best.mean == pytest.approx(0.1, abs=0.04)


@pytest.mark.slow
def test_the_scorer_of_geo3k_gives_away_as_many_guesses_as_it_scores() -> None:
    env = envkit.make("geo3k-v0", max_turns=4, max_scored_attempts=3)
    decoys = ["-1", "-2", "-3"]

    def heard(step: Step) -> bool:
        return step.info.get("score") == 1

    def hooks(place: int) -> CertificationHooks:
        return CertificationHooks(
            choices=lambda task: [*decoys[:place], task["answer"], "-4", "-5"],
            answer=lambda answer: f"\\boxed{{{answer}}}",
            ask=lambda a: (
                '<tool_call>{"name": "calc_score", "arguments": '
                + json.dumps({"answer": a})
                + "}</tool_call>"
            ),
            confirms_guess=heard,
        )

    paid = [
        next(
            result.mean
            for result in blind_report(env, episodes=6, hooks=hooks(place)).policies
            if result.name == "guesses with the scorer"
        )
        for place in (0, 2, 3)
    ]
    assert paid == [1.0, 1.0, 1.0]  # the fourth guess is boxed unseen


HIDDEN: dict[str, Callable[[str], str]] = {
    "backwards": lambda gold: gold[::-1],
    "ROT13 and ROT5": lambda gold: codecs.encode(gold, "rot13").translate(
        str.maketrans("0123456789", "5678901234")
    ),
    "shifted by 4": lambda gold: "".join(
        chr((ord(c) - 65 + 4) % 26 + 65) if c.isalpha() else c for c in gold
    ),
    "base64": lambda gold: base64.b64encode(f"id=3;{gold}".encode()).decode(),
    "base64, backwards": lambda gold: base64.b64encode(gold.encode()).decode()[::-1],
    "base32": lambda gold: base64.b32encode(gold.encode()).decode(),
    "base85": lambda gold: base64.b85encode(gold.encode()).decode(),
    "hexadecimal": lambda gold: gold.encode().hex(),
    "character codes": lambda gold: " ".join(str(ord(c)) for c in gold),
    "bits": lambda gold: " ".join(f"{ord(c):08b}" for c in gold),
    "Morse code": lambda gold: " ".join(MORSE[c.lower()] for c in gold),
    "URL quoting": lambda gold: "".join(f"%{ord(c):02x}" for c in gold),
    "look-alike or invisible characters": "\u200d".join,
    "spaced letters": " . ".join,
    "first letters of lines": lambda gold: "\n".join(f"{c} is a letter" for c in gold),
    "first letters of words": lambda gold: " ".join(f"{c}qqq" for c in gold),
    "every second character": ".".join,
}


@pytest.mark.parametrize("name", HIDDEN)
@given(
    gold=st.text("BCDFGHJKLMNPRSTVWZ", min_size=5, max_size=9),
    other=st.text("BCDFGHJKLMNPRSTVWZ", min_size=5, max_size=9),
)
def test_a_code_shows_its_answer_and_no_other(name: str, gold: str, other: str) -> None:
    text = HIDDEN[name](gold)

    if gold in text or gold == gold[::-1]:
        return
    assert name in VIEWS
    assert shows(name, text, gold)
    assert other[:5] in gold or not shows(name, text, other)


ESCAPED = st.lists(st.sampled_from([*"\\xuUN{}018fF", "a"]), max_size=40).map("".join)


@settings(max_examples=10)
@example(gold="000", text=r"\8")
@given(gold=st.text(min_size=0, max_size=12), text=st.text(max_size=200) | ESCAPED)
def test_no_text_makes_a_code_raise(gold: str, text: str) -> None:
    for name in VIEWS:
        assert shows(name, text, gold) in (True, False)
    assert all(isinstance(form, str) for _, form in forms_of(gold.replace("\ud800", "")))


def test_numbers_have_forms_of_their_own() -> None:
    found = list(forms_of("53"))

    assert {("one more", "54"), ("binary number", "110101"), ("number words", "fifty-three")} <= {
        *found
    }
    assert ("Roman number", "LIII") in found
    assert ("CRC-32", f"{zlib.crc32(b'53'):08x}") in found


@pytest.mark.parametrize(
    ("form", "answer", "reply"),
    [
        (Form("\\boxed{", "}"), '"', '\\boxed{"}'),
        (Form('{"answer": "', '"}'), 'a"b\n', '{"answer": "a\\"b\\n"}'),
        (Form('{"answer": ', "}"), "53", '{"answer": 53}'),
        (Form('{"answer": ', "}"), "null", '{"answer": null}'),
        (Form('{"answer": ', "}"), "nan", '{"answer": "nan"}'),
        (Form('{"answer": "', '"}').unquoted(), "[1]", '{"answer": [1]}'),
    ],
)
def test_form_writes_an_answer_as_its_place_needs(form: Form, answer: str, reply: str) -> None:
    assert form.reply(answer) == reply


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (r"\x66\u006f\U0000006f", "foo"),
        (r"\U0001f600 \146\157", "\N{GRINNING FACE} fo"),
        (r"\N{LATIN SMALL LETTER F}o", "fo"),
        (r"\N{NO SUCH NAME} \8 \x6 \.", r"\N{NO SUCH NAME} \8 \x6 \."),
    ],
)
def test_escapes_are_read_and_what_is_none_stays(text: str, read: str) -> None:
    assert VIEWS["escapes"][0](text) == read
