"""How a reply ended reaches the environment, its record, and every way to play it again."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.hearing import Hearing, SavedHearing, plain_codec, thinking_codec
from fakes.templates import default_codec, encode

import envkit
from envkit.env import Env, PolicyContext
from envkit.messages import Message
from envkit.reply import CUT_NOTICE, FinishReason, Reply
from envkit.rollout import (
    AtTurns,
    Backoff,
    EpisodeSpec,
    Interrupt,
    Player,
    RetryBudget,
    RolloutConfig,
    Sampling,
    ScriptedEngine,
    play,
    play_tree,
)
from envkit.rollout.answers import ToolAnswers
from envkit.tokens import ChatCodec
from envkit.trajectory import StopReason, Trajectory, TrajectoryWriter, load
from envkit.turns import Turn
from envkit.wrappers import BudgetText, MixEnv, RescaleReward

LONG = "gold and many more words that do not fit into the limit of this reply"
LIMIT = 8
REPLIES = ("gold", LONG, "gold", LONG)
ENDS = ["stop", "length", "stop", "length"]
PATIENT = RetryBudget(max_env_retries_per_turn=3, backoff=Backoff(initial_s=0))


@pytest.fixture(autouse=True)
def _all_work() -> Iterator[None]:
    yield
    assert not Hearing.failing
    Hearing.failing.clear()


def say(context: PolicyContext) -> str:
    return REPLIES[context.turn]


async def played(env: Any = Hearing, codec: ChatCodec | None = None, **options: Any) -> Trajectory:
    codec = codec or plain_codec()
    policy = options.pop("policy", say)
    options = {"sampling": Sampling(max_new_tokens=LIMIT), "seed": 1, **options}
    return await play(env, ScriptedEngine(codec, policy), codec, **options)


def player(policy: Any = say, **options: Any) -> Player:
    config = RolloutConfig(sampling={"max_new_tokens": LIMIT}, **options)
    return Player(ScriptedEngine(plain_codec(), policy), plain_codec(), config)


def always(text: str) -> Callable[[PolicyContext], str]:
    return lambda _: text


def ends_of(trajectory: Trajectory) -> list[str]:
    return [turn.info["finish"] for turn in trajectory.turns]


async def test_the_environment_hears_how_each_reply_ended() -> None:
    trajectory = await played()

    assert ends_of(trajectory) == ENDS
    assert [turn.reward for turn in trajectory.turns] == [1.0, 0.0, 1.0, 0.0]
    assert [turn.parse_error for turn in trajectory.turns] == [None, "cut", None, "cut"]
    shown = [entry["content"] for entry in trajectory.messages if entry["role"] == "user"]
    assert [CUT_NOTICE in str(text) for text in shown] == [False, False, True, False, True]


async def test_an_environment_may_grade_text_as_it_comes() -> None:
    class Graded(Hearing):
        grades_cut_replies = True

    trajectory = await played(Graded)

    assert ends_of(trajectory) == ENDS
    assert [turn.parse_error for turn in trajectory.turns] == [None] * 4
    assert all(CUT_NOTICE not in str(entry["content"]) for entry in trajectory.messages)


def test_a_plain_step_takes_a_whole_reply() -> None:
    env = Hearing()
    env.reset(seed=0)
    env.announce(Reply(text="a", finish=FinishReason.LENGTH))

    assert [env.step("a")[4]["finish"], env.step("a")[4]["finish"]] == ["length", "stop"]
    env.announce(Reply(text="a", finish=FinishReason.LENGTH))
    env.reset(seed=0)
    assert env.step("a")[4]["finish"] == "stop"


@pytest.mark.parametrize("kind", [Hearing, SavedHearing])
@pytest.mark.parametrize("turn", range(4))
async def test_a_cut_turn_is_replayed_and_restored_to_the_same_outcome(
    kind: type[Hearing], turn: int
) -> None:
    whole = await played(kind)
    Hearing.failing.add(turn)
    again = await played(kind, retries=PATIENT)

    assert again.fault is None
    assert again.turns[turn].env_retries == {"transient": 1}
    assert [one.info for one in again.turns] == [one.info for one in whole.turns]
    assert [one.observation_hash for one in again.turns] == [
        one.observation_hash for one in whole.turns
    ]


@pytest.mark.parametrize("kind", [Hearing, SavedHearing])
@pytest.mark.parametrize("turn", range(1, 4))
async def test_a_cut_turn_is_stored_and_resumed_to_the_same_outcome(
    kind: type[Hearing], turn: int, tmp_path: Path
) -> None:
    whole = await played(kind)
    interrupt = Interrupt()

    def until(context: PolicyContext) -> str:
        if context.turn == turn:
            interrupt.fire()
        return say(context)

    spec = EpisodeSpec(seed=1, env_id="hearing")
    (cut,) = await player(until).play(kind, spec, interrupt=interrupt)
    assert cut.stop_reason is StopReason.ABORTED
    with TrajectoryWriter(tmp_path) as writer:
        writer.write(cut)
    for stored in (*load(tmp_path), pickle.loads(pickle.dumps(cut))):  # a file, another process
        (resumed,) = await player().resume(stored, kind)
        assert resumed.fault is None
        assert [one.info for one in resumed.turns] == [one.info for one in whole.turns]


@pytest.mark.parametrize("kind", [Hearing, SavedHearing])
async def test_a_cut_turn_is_forked_to_the_same_outcome(kind: type[Hearing]) -> None:
    leaves = await play_tree(
        kind, player(), branching=AtTurns(turns=(2, 3)), spec=EpisodeSpec(seed=1, env_id="hearing")
    )

    assert len(leaves) == 4
    assert [ends_of(leaf) for leaf in leaves] == [ENDS] * 4


def wrapped() -> Any:
    return RescaleReward(BudgetText(Hearing()), scale=2.0)


def mixed() -> Any:
    envkit.register("hearing-v0", Hearing)
    return MixEnv([{"id": "hearing-v0"}])


async def test_wrappers_pass_on_how_a_reply_ended() -> None:
    trajectory = await played(wrapped)

    assert ends_of(trajectory) == ENDS
    assert trajectory.reward == 4.0


async def test_a_mixture_passes_on_how_a_reply_ended() -> None:
    assert ends_of(await played(mixed)) == ENDS


async def test_a_wrapper_may_change_the_text_of_a_cut_reply() -> None:
    import gymnasium

    class Upper(gymnasium.ActionWrapper[Any, str, str]):
        def action(self, action: str) -> str:
            return action.upper()

    trajectory = await played(lambda: Upper(Hearing()))

    assert ends_of(trajectory) == ENDS
    assert trajectory.turns[1].info["answer"].startswith("GOLD AND")


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        ("gold is a draft", "gold is a draft", ""),
        ("draft\n</think>\n\ngold", "draft", "\n\ngold"),
    ],
)
async def test_the_codec_knows_that_the_prompt_opened_a_thought(
    text: str, thinking: str, answer: str
) -> None:
    sampling = Sampling(max_new_tokens=400)
    trajectory = await played(codec=thinking_codec(), policy=always(text), sampling=sampling)

    for turn in trajectory.turns:
        assert (turn.info["thinking"], turn.info["answer"]) == (thinking, answer)
        assert turn.info["finish"] == "stop"
        assert turn.opened == "<think>"
    assert trajectory.reward == 4.0 * ("gold" in answer)


async def test_several_agents_hear_how_each_reply_ended() -> None:

    class Pair(envkit.agents.MultiAgentEnv):
        roles = ("a", "b")
        capabilities = Hearing.capabilities

        def on_reset(self, task: Any) -> Any:
            return dict.fromkeys(self.roles, envkit.Turn("Talk."))

        def on_replies(self, replies: Any) -> Any:
            told = {role: one and one.finish.value for role, one in self.replies.items()}
            assert replies == {role: one and one.text for role, one in self.replies.items()}
            return {
                role: envkit.Turn(f"{told}", done=self.turn == 1, info={"told": told})
                for role in replies
            }

    def talk(context: PolicyContext) -> str:
        role = context.env.role  # type: ignore[attr-defined]
        return LONG if role == "b" else "short"

    one, other = await player(talk).play(Pair, EpisodeSpec(seed=1, env_id="pair"))

    assert [turn.info["told"] for turn in one.turns] == [{"a": "stop", "b": "length"}] * 2
    assert [turn.parse_error for turn in one.turns] == [None, None]
    assert [turn.parse_error for turn in other.turns] == ["cut", "cut"]


@pytest.mark.parametrize("build", [Hearing, wrapped])
def test_a_step_without_an_episode_takes_nothing(build: Callable[[], Any]) -> None:
    env = build()
    inner: Env = env.unwrapped
    with pytest.raises(envkit.errors.EpisodeStateError):
        inner.step("a")


# ---- the call that a tool message answers: carried by the loop, for every environment


CALL = '<tool_call>\n{"name": "calc", "arguments": {"q": "3*7"}}\n</tool_call>'


class Calculator(Env):
    """Answers every reply as a tool that knows nothing of the call."""

    metadata: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__(max_turns=3)

    def on_reset(self, task: Any) -> Turn:
        return Turn("What is 3*7?")

    def on_turn(self, response_text: str) -> Turn:
        return Turn("21", role="tool", done="It is" in response_text, reward=1.0)


def script(*replies: str) -> Any:
    words = iter(replies)

    def say(*_: object) -> str:
        return next(words)

    return say


@pytest.mark.parametrize("name", ["gpt-oss", "mistral-nemo"])
async def test_answers_carry_the_call_to_templates_that_write_it(name: str) -> None:
    codec = default_codec(name)
    engine = ScriptedEngine(codec, script(CALL, CALL, "It is 21."))
    trajectory = await play(Calculator(), engine, codec, seed=1)
    assert trajectory.fault is None
    answers = [entry for entry in trajectory.messages if entry["role"] == "tool"]
    assert [entry.get("name") for entry in answers][:2] == ["calc", "calc"]
    assert [entry.get("tool_call_id") for entry in answers][:2] == ["call00000", "call00001"]
    observed = codec.decode_all(trajectory.segments[2].wire_ids)
    assert ("functions.calc" if name == "gpt-oss" else "call00000") in observed


@pytest.mark.parametrize("name", ["gpt-oss", "mistral-nemo"])
async def test_answers_to_no_call_are_read_as_user_messages(name: str) -> None:
    codec = default_codec(name)
    engine = ScriptedEngine(codec, script("no call", "nor here", "It is 21."))
    trajectory = await play(Calculator(), engine, codec, seed=1)
    assert trajectory.fault is None
    assert len(trajectory.turns) == 3


async def test_answers_leave_other_templates_their_ids() -> None:
    codec = default_codec("qwen3")
    engine = ScriptedEngine(codec, script(CALL, "It is 21."))
    trajectory = await play(Calculator(), engine, codec, seed=1)
    said = "\n<|im_start|>user\n<tool_response>\n21\n</tool_response><|im_end|>\n"
    want = encode("qwen3", f"{said}<|im_start|>assistant\n")
    assert list(trajectory.segments[2].wire_ids) == want


@pytest.mark.parametrize(
    ("reply", "info", "name", "call_id"),
    [
        (CALL, None, "calc", "call00003"),
        ("<|channel|>commentary to=functions.calc<|message|>{}", None, "calc", "call00003"),
        ("<|tool_call>call:calc{q:1}<tool_call|>", None, "calc", "call00003"),
        (
            "x",
            {"tool_call": {"name": "calc", "id": "functions.calc:0"}},
            "calc",
            "functions.calc:0",
        ),
        ("x", {"tool_call": {"name": "calc", "id": "call00000"}}, "calc", "call00003"),
        ("x", {"tool_call": {"name": "<|im_end|>"}}, None, None),
        ("x", {"tool_call": "calc"}, None, None),
        ("no call", None, None, None),
    ],
)
def test_answers_find_the_call(
    reply: str, info: Any, name: str | None, call_id: str | None
) -> None:
    entry: Message = {"role": "tool", "content": "21"}
    answer = ToolAnswers(default_codec("qwen3")).readable(
        entry, reply=Reply(text=reply), info=info, turn=3
    )
    assert (answer.get("name"), answer.get("tool_call_id")) == (name, call_id)
    assert entry == {"role": "tool", "content": "21"}


@pytest.mark.slow  # its tokenizer takes seconds to load
def test_answers_replace_an_id_that_the_template_refuses() -> None:
    info = {"tool_call": {"name": "calc", "id": "x"}}
    answer = ToolAnswers(default_codec("mistral-nemo")).readable(
        {"role": "tool", "content": ""}, info=info, turn=3
    )
    assert answer.get("tool_call_id") == "call00003"


def test_answers_leave_user_messages_alone() -> None:
    entry = envkit.messages.message("user", "21")
    assert ToolAnswers(default_codec("qwen3")).readable(entry, reply=Reply(text=CALL)) is entry
