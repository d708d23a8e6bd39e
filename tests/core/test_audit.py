"""`envkit audit-env`: leaks are found, and figures are those of the episodes."""

import json
import signal
from typing import Any, ClassVar

import gymnasium
import pytest
from fakes.command import run_envkit, start_envkit
from fakes.envs import PROMISES, AdderEnv, AsyncEchoEnv

import envkit
from envkit.certify.audit import AuditHooks, audit_env
from envkit.certify.audit.policies import fill
from envkit.env import Capabilities, Env, Policy, PolicyContext, Turn
from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit.tasks import ListSource, Task
from envkit.tools import ToolSpec
from envkit.turns import Step


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

    def audit_hooks(self) -> AuditHooks:
        return AuditHooks(
            choices=lambda _: list("ABCD"),
            answer=lambda answer: f"answer {answer}",
            ask=lambda answer: f"check {answer}",
            heard_right=lambda step: step.observation["text"] == "Right.",
            closed_book=lambda task: "ABCD"[task["n"] % 2],
            grade=lambda task, answer: float(answer == task["answer"]),
            second_grade=lambda task, answer: float(answer.upper() == task["answer"]),
            answers=lambda task: [task["answer"], task["answer"].lower(), "E"],
        )


def means(env: Env, **options: Any) -> dict[str, float | None]:
    report = audit_env(env, episodes=60, **options)
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
    report = audit_env(QuizEnv(leak=leak), episodes=60)
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


def test_closed_book_and_policies_of_the_callers_are_rows() -> None:
    def cheats(context: PolicyContext) -> str:
        assert context.messages[-1]["role"] == "user"
        return f"answer {context.task['answer']}"

    report = audit_env(QuizEnv(), episodes=40, policies={"mine": cheats})
    found = {result.name: result.mean for result in report.policies}

    assert found["mine"] == 1.0
    assert found["closed book"] == pytest.approx(0.5, abs=0.25)
    assert report.oracle is not None
    assert report.oracle.mean == 1.0


def test_graders_that_differ_are_counted_with_examples() -> None:
    report = audit_env(QuizEnv(), episodes=30)

    assert (report.compared_answers, report.disagreement_count) == (90, 30)
    assert len(report.disagreements) == 20
    first = report.disagreements[0]
    assert (first.answer.islower(), first.grade, first.second_grade) == (True, 0.0, 1.0)


def test_faults_are_counted_and_are_no_reward() -> None:
    report = audit_env(QuizEnv(leak="fault"), episodes=40)

    for result in report.policies:
        assert result.faults + len(result.returns) == 40
        assert result.faults > 2


def test_a_reply_that_makes_the_environment_raise_is_a_finding() -> None:
    report = audit_env(QuizEnv(leak="raise"), episodes=5)
    problems = {result.name: result.problem for result in report.policies if result.problem}

    assert list(problems) == ["empty reply"]
    assert problems["empty reply"].endswith("ValueError: empty")  # pyright: ignore[reportOptionalMemberAccess]


def test_the_same_seed_gives_the_same_report() -> None:
    first, second = (audit_env(QuizEnv(), episodes=20, seed=3).to_json() for _ in range(2))
    other = audit_env(QuizEnv(), episodes=20, seed=4).to_json()

    assert first == second != other
    assert json.loads(json.dumps(first)) == first


def test_hooks_given_from_outside_replace_those_of_the_environment() -> None:
    report = audit_env(QuizEnv(), episodes=5, hooks=AuditHooks())
    reasons = {entry.name: entry.reason for entry in report.unplayed}

    assert reasons["random choice"] == "no hook 'choices'"
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
        AuditHooks(grade=lambda task, answer: 0.0)
    with pytest.raises(ConfigurationError, match="choices and heard_right"):
        AuditHooks(ask=lambda answer: answer)
    with pytest.raises(ConfigurationError, match="at least 1, got 0"):
        audit_env(QuizEnv(), episodes=0)


@pytest.mark.parametrize("env_id", ["canary-v0", "geo3k-v0"])
def test_environments_that_ship_pay_trivial_policies_next_to_nothing(env_id: str) -> None:
    outcome = run_envkit("audit-env", env_id, "-n", 15, "--max-reward", 0.15, "--json", "-q")
    report = json.loads(outcome.out)

    assert outcome.code == 0, outcome.err
    assert report["best_mean_reward"] <= 0.15
    assert report["oracle"]["mean"] == pytest.approx(1.0)
    assert report["is_complete"]


@pytest.mark.slow
def test_blind_policies_earn_the_chance_level_that_the_canary_states() -> None:
    env = envkit.make("canary-v0", length=1, alphabet="0123456789")
    report = audit_env(env, episodes=200)

    assert report.chance_level == pytest.approx(0.1)
    assert report.best is not None
    assert report.best.mean == pytest.approx(0.1, abs=0.04)


@pytest.mark.slow
def test_the_scorer_of_geo3k_gives_away_as_many_guesses_as_it_scores() -> None:
    env = envkit.make("geo3k-v0", max_turns=4, max_scored_attempts=3)
    decoys = ["-1", "-2", "-3"]

    def heard(step: Step) -> bool:
        return step.info.get("score") == 1

    def hooks(place: int) -> AuditHooks:
        return AuditHooks(
            choices=lambda task: [*decoys[:place], task["answer"], "-4", "-5"],
            answer=lambda answer: f"\\boxed{{{answer}}}",
            ask=lambda a: (
                '<tool_call>{"name": "calc_score", "arguments": '
                + json.dumps({"answer": a})
                + "}</tool_call>"
            ),
            heard_right=heard,
        )

    paid = [
        next(
            result.mean
            for result in audit_env(env, episodes=6, hooks=hooks(place)).policies
            if result.name == "guesses with the scorer"
        )
        for place in (0, 2, 3)
    ]
    assert paid == [1.0, 1.0, 1.0]  # the fourth guess is boxed unseen


def quiz(leak: str) -> str:
    name = f"toy-quiz{leak}-v0"
    if f"envkit/{name}" not in gymnasium.registry:
        envkit.register(name, entry_point=QuizEnv, kwargs={"leak": leak})
    return name


def test_command_prints_a_table_and_fails_above_the_threshold() -> None:
    outcome = run_envkit("audit-env", quiz("prompt"), "-n", 10, "--max-reward", 0.5)

    assert outcome.code == 1
    assert "copies the prompt             1.0000" in outcome.out
    assert "graders disagree on 10 of 30 answers" in outcome.out
    assert "above --max-reward 0.5" in outcome.last_error


def test_command_plays_a_policy_by_its_place() -> None:
    place = "fakes.faults:say_turn"
    outcome = run_envkit("audit-env", "canary-v0", "-n", 3, "--policy", place, "--json")
    names = [row["policy"] for row in json.loads(outcome.out)["policies"]]
    wrong = run_envkit("audit-env", "canary-v0", "--policy", "fakes.faults:nothing")

    assert outcome.code == 0
    assert place in names
    assert wrong.code == 1
    assert "no policy at 'fakes.faults:nothing'" in wrong.last_error


PLAYS_LOUDLY = """
from fakes.envs import EchoEnv, register_toys
register_toys()
quiet, played = EchoEnv.on_reset, []
def loud(self, task):
    played.append(task)
    if len(played) == 3000:
        print("playing", flush=True)
    return quiet(self, task)
EchoEnv.on_reset = loud
"""


def test_ctrl_c_prints_the_figures_so_far() -> None:
    process = start_envkit("audit-env", "toy-echo-v0", "-n", 5_000_000, before=PLAYS_LOUDLY)
    assert process.stdout is not None
    assert process.stdout.readline() == "playing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 130, err
    assert "stopped; these are the figures so far" in err
    assert "empty reply  0.0000" in out
