"""Chat endpoints: what is sent, what each answer means, and that nothing of it can be trained."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fakes.chat_server import MODEL, ChatServer, by_turn, call, last_text, pictures_of
from fakes.command import Outcome, run_envkit
from fakes.envs import EchoEnv, register_toys
from fakes.judge_server import KEY, Trouble
from fakes.search_server import running

from envkit.errors import ConfigurationError, EngineFault
from envkit.messages import Message, Trusted, message
from envkit.rollout import EpisodeSpec, GenerateRequest, Generation, Limits, Player, RolloutConfig
from envkit.rollout.engine import FinishReason
from envkit.tools import ToolSpec
from envkit.trajectory import StopReason, Trajectory, load, step_rows, verify_file, whole_row
from envkit_chat import ChatEngine, wire_messages
from envkit_chat.client import ChatClient
from envkit_chat.reply import read_reply

ADD = ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {}})
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.fixture(autouse=True)
def _key_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    register_toys()


def echo(body: dict[str, Any]) -> str:
    return last_text(body).rsplit(" ", 1)[-1].rstrip(".")


def dots(body: dict[str, Any]) -> str:
    """Look at the last image as a model would: any dot at all makes it say 1."""
    picture = list(pictures_of(body))[-1].convert("L")
    return "1" if min(picture.tobytes()) < 128 else "0"


def evaluate(server: ChatServer, env_id: str, *options: object, tasks: int = 4) -> Outcome:
    return run_envkit(
        "eval", env_id, "--chat", server.url, "--model", MODEL, "-n", tasks, "--out", "out", "-q",
        "--set", "retries.backoff.initial_s=0.01", *options,
    )  # fmt: skip


def played(env_id: str) -> list[Trajectory]:
    return list(load(Path("out") / env_id))


def test_endpoint_solves_text_tasks_and_its_counts_are_kept() -> None:
    with ChatServer(echo) as server:
        shown = evaluate(server, "toy-echo-v0", "--json")
    assert shown.code == 0, shown.err
    (line,) = [line for line in json.loads(shown.out)["lines"] if line["tag"] is None]
    assert (line["success"]["mean"], line["faulted"]) == (1.0, 0)
    assert line["prompt_tokens"] > 5
    for one in played("toy-echo-v0"):
        assert one.segments == ()
        assert one.engine == "chat"
        assert one.turns[0].response_tokens == 1
        assert one.turns[0].weight_version == f"{MODEL}-2026-01-01"
        assert [entry["role"] for entry in one.messages[:3]] == ["system", "user", "assistant"]
    sent = server.requests[0]
    assert sent["messages"][0] == {"role": "system", "content": "Answer with the word only."}
    assert sent["max_tokens"] == 96
    assert "tools" not in sent


@pytest.mark.slow
def test_run_of_an_endpoint_can_be_verified_viewed_and_reported() -> None:
    with ChatServer(by_turn(call("add", a=1, b=11), "12")) as server:
        assert evaluate(server, "toy-adder-v0", tasks=2).code == 0
    run = "out/toy-adder-v0"
    assert verify_file(run).is_sound
    assert "all sound" in run_envkit("verify", run).out
    assert "add" in run_envkit("view", run, "-e", 1).out
    assert run_envkit("report", run).code == 0
    assert run_envkit("report", run, run, "--out", "diff.html").code == 0
    assert run_envkit("eval", "out", "out", "--paired").code == 0


def test_calls_and_their_results_travel_as_calls_and_results() -> None:
    def model(body: dict[str, Any]) -> Any:
        if body["messages"][-1]["role"] == "tool":
            return body["messages"][-1]["content"]
        a, b = map(int, re.findall(r"\d+", last_text(body)))
        return call("add", a=a, b=b)

    with ChatServer(model) as server:
        assert evaluate(server, "toy-adder-v0", tasks=3).code == 0
    assert [one.reward for one in played("toy-adder-v0")] == [1.0] * 3
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == ["add"]
    second = next(body for body in server.requests if body["messages"][-1]["role"] == "tool")
    spoken, result = second["messages"][-2:]
    assert spoken["content"] is None
    assert result["tool_call_id"] == spoken["tool_calls"][0]["id"]


def test_images_reach_the_endpoint() -> None:
    with ChatServer(dots) as server:
        assert evaluate(server, "toy-dots-v0", tasks=3).code == 0
    assert all(one.image_count >= 1 for one in played("toy-dots-v0"))
    most = max(len(list(pictures_of(body))) for body in server.requests)
    assert most == max(one.image_count for one in played("toy-dots-v0")) == 5
    said = [turn.response_text for one in played("toy-dots-v0") for turn in one.turns]
    assert set(said) == {"1"}  # a blank image would have made it say 0


def test_endpoint_that_refuses_max_tokens_gets_the_newer_field() -> None:
    with ChatServer(echo, reasons=True) as server:
        assert evaluate(server, "toy-echo-v0").code == 0
    assert all(body["max_completion_tokens"] == 96 for body in server.requests)


@pytest.mark.parametrize(
    ("server", "options", "words"),
    [
        (lambda: ChatServer(echo, key="other"), (), "HTTP 401 (the key was refused"),
        (lambda: ChatServer(echo), ("--model", "gpt-wrong"), "HTTP 404 (no such address or model"),
        (lambda: ChatServer(Trouble.QUOTA), (), "You exceeded your current quota"),
        (lambda: ChatServer({"content": None}), (), "no content (finish_reason 'stop')"),
        (
            lambda: ChatServer({"content": None, "finish_reason": "content_filter"}),
            (),
            "the endpoint's content filter withheld the reply",
        ),
        (
            lambda: ChatServer(echo),
            ("--set", "sampling.extras.logit_bias=1"),
            "Unrecognized request argument supplied: logit_bias",
        ),
    ],
)
def test_refusal_is_one_clear_error(
    server: Callable[[], ChatServer], options: tuple[str, ...], words: str
) -> None:
    with server() as running:
        shown = evaluate(running, "toy-echo-v0", *options)
    assert shown.code in (2, 3)
    assert words in shown.err
    assert "Traceback" not in shown.err
    assert KEY not in shown.err + shown.out


def test_refused_image_says_that_the_request_has_some() -> None:
    with ChatServer(dots, reads_images=False) as server:
        shown = evaluate(server, "toy-dots-v0")
    assert shown.code in (1, 3)
    assert "The request has images (1): does the model read any?" in shown.err


def test_missing_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with ChatServer(echo) as server:
        shown = evaluate(server, "toy-echo-v0")
        assert shown.code == 2
        assert "You didn't provide an API key" in shown.last_error
        assert "--key-env" in shown.last_error
        unset = evaluate(server, "toy-echo-v0", "--key-env", "NO_SUCH_KEY", "--overwrite")
        assert "'NO_SUCH_KEY' of --key-env is not set" in unset.last_error
        monkeypatch.setenv("OTHER_KEY", KEY)
        named = evaluate(server, "toy-echo-v0", "--key-env", "OTHER_KEY", "--overwrite")
        assert named.code == 0, named.err
    assert KEY not in Path("out/toy-echo-v0/run.json").read_text()


def test_rate_limit_is_waited_for() -> None:
    with ChatServer(Trouble.RATE_LIMIT, Trouble.RATE_LIMIT_SHORT, echo) as server:
        shown = evaluate(server, "toy-echo-v0")
    assert shown.code == 0, shown.err
    assert [one.reward for one in played("toy-echo-v0")] == [1.0] * 4


@pytest.mark.parametrize(
    "trouble", [Trouble.SERVER_ERROR, Trouble.HTML, Trouble.EMPTY, Trouble.CUT_JSON]
)
def test_temporary_failure_is_retried(trouble: Trouble) -> None:
    with ChatServer(trouble, echo) as server:
        assert evaluate(server, "toy-echo-v0").code == 0
    retries = [turn.engine_retries for one in played("toy-echo-v0") for turn in one.turns]
    assert sum(retries) == 1


def test_reply_cut_by_its_length_is_a_reply() -> None:
    with ChatServer(by_turn({"content": None, "finish_reason": "length"}, echo_word)) as server:
        shown = evaluate(server, "toy-echo-v0")
    assert shown.code == 0, shown.err
    for one in played("toy-echo-v0"):
        assert (one.turns[0].response_text, one.turns[0].finish_reason) == ("", "length")
        assert one.reward == 1.0


def test_failures_in_the_middle_keep_what_was_played() -> None:
    """The quota ends after two tasks: both stay, and a resumed evaluation plays the rest."""
    with ChatServer(echo, echo, Trouble.QUOTA) as server:
        shown = evaluate(server, "toy-echo-v0", "--concurrency", 1, "--json", tasks=8)
    assert shown.code == 1
    kept = json.loads(shown.out)["lines"][0]
    assert (kept["episodes"], kept["success"]["mean"]) == (2, 1.0)
    assert kept["faulted"] >= 3


async def test_limits_on_tokens_are_refused_without_a_codec() -> None:
    config = RolloutConfig(limits=Limits(max_context_tokens=100))
    with pytest.raises(ConfigurationError, match="max_context_tokens counts tokens"):
        Player(ChatEngine("http://127.0.0.1:9/v1", model=MODEL), None, config)


class IdsEngine(ChatEngine):
    """Returns ids, as most engines do."""

    async def generate(self, request: GenerateRequest) -> Generation:
        return Generation(
            token_ids=(1, 2), logprobs=(0.0, 0.0), finish_reason=FinishReason.STOP, prompt_tokens=3
        )


async def test_reply_of_ids_needs_a_codec() -> None:
    player = Player(IdsEngine("http://127.0.0.1:9/v1", model=MODEL), None)
    (one,) = await player.play(EchoEnv(), EpisodeSpec(seed=1))
    await player.aclose()
    assert one.stop_reason is StopReason.ENGINE_FAULT
    assert one.fault is not None
    assert "returned no text" in one.fault.message


# ---- none of it can be trained


@pytest.fixture
def untrainable() -> Trajectory:
    with ChatServer(echo) as server:
        assert evaluate(server, "toy-echo-v0", tasks=1).code == 0
    return played("toy-echo-v0")[0]


def test_every_projection_refuses_a_trajectory_without_ledger(untrainable: Trajectory) -> None:
    assert not untrainable.has_ledger
    for project in (
        untrainable.train_ids,
        untrainable.loss_mask,
        untrainable.logprobs,
        untrainable.steps,
        lambda: whole_row(untrainable, filler_id=0),
        lambda: step_rows(untrainable, filler_id=0),
        lambda: step_rows(untrainable, filler_id=0, merge=True),
    ):
        with pytest.raises(ConfigurationError, match="has no token ledger"):
            project()
    shown = run_envkit("conformance", "--recordings", "out/toy-echo-v0", "--json")
    found = [one["verdict"] for one in json.loads(shown.out)["outcomes"]]
    assert len(found) >= 3  # those of the core, and of the trainers that are installed
    assert set(found) == {"refused"}
    exported = run_envkit("export", "out/toy-echo-v0", "--format", "sft", "--out", "rows.jsonl")
    assert exported.code == 2
    assert not Path("rows.jsonl").exists()


# ---- messages on the wire


def roles(wired: list[dict[str, Any]]) -> list[str]:
    return [entry["role"] for entry in wired]


def test_image_after_a_call_is_a_user_message_after_a_result() -> None:
    from fakes.trajectories import picture

    spoken: list[Message] = [
        message("user", "go"), message("assistant", CALL), message("user", "look", [picture(1)]),
    ]  # fmt: skip
    wired = wire_messages(spoken, (ADD,))
    assert roles(wired) == ["user", "assistant", "tool", "user"]
    assert wired[2]["content"] == "See the next message."
    assert wired[3]["content"][1] == {"type": "text", "text": "look"}


def test_every_call_of_a_reply_gets_a_result() -> None:
    spoken = [message("user", "go"), message("assistant", CALL + CALL), message("tool", "both")]
    wired = wire_messages(spoken, (ADD,))
    assert [entry["content"] for entry in wired[2:]] == [
        "both",
        "See the result of the first call.",
    ]
    ids = [one["id"] for one in wired[1]["tool_calls"]]
    assert [entry["tool_call_id"] for entry in wired[2:]] == ids == ["call00000", "call00001"]


def test_result_without_a_call_is_a_user_message() -> None:
    spoken = [message("user", "go"), message("assistant", "no call"), message("tool", "which?")]
    assert roles(wire_messages(spoken, (ADD,))) == ["user", "assistant", "user"]
    spoken[1] = message("assistant", CALL)
    assert roles(wire_messages(spoken, ())) == ["user", "assistant", "user"]


def test_foreign_text_has_no_control_tokens_and_trusted_text_keeps_its_own() -> None:
    (wired,) = wire_messages([message("user", "<|im_end|> <think>")], ())
    assert "<|im_end|>" not in wired["content"]
    assert "<think>" not in wired["content"]
    (wired,) = wire_messages([message("user", Trusted("Use <think>. ") + "<think>")], ())
    assert wired["content"] == "Use <think>. < think>"


def test_arguments_that_are_not_json_reach_the_environment_as_they_are() -> None:
    function = {"name": "add", "arguments": '{"a": 1,'}
    body = {"choices": [{"message": {"content": "So:", "tool_calls": [{"function": function}]}}]}
    reply = read_reply(json.dumps(body).encode())
    block = json.dumps({"name": "add", "arguments": '{"a": 1,'})
    assert reply.text == f"So:\n<tool_call>\n{block}\n</tool_call>"


def echo_word(body: dict[str, Any]) -> str:
    words = re.findall(r"word(?: is)?:? (\S+?)\.?$", last_text(body))
    return words[-1]


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_completion_has_at_most_so_many_values(more: int) -> None:
    async def answer(_request: web.Request) -> web.Response:
        text = {"choices": [{"message": {"content": "," * ((1 << 17) + more - 7)}}]}
        return web.json_response(text)

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with running(app) as address:
        client = ChatClient(base_url=address, api_key=None, advice={})
        try:
            if more <= 0:
                assert read_reply(await client.complete({}, [])).text.startswith(",")
                return
            with pytest.raises(EngineFault, match="more than 131072 JSON values"):
                await client.complete({}, [])
        finally:
            await client.aclose()
