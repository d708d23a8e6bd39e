"""The OpenEnv client against a strict server: what it plays, and what it makes of failures."""

import asyncio
import base64
import importlib
import io
import json
import pickle
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from fakes.codecs import text_codec
from fakes.openenv_server import (
    COUNTER_ACTION,
    TOOLS_ACTION,
    Failure,
    FakeOpenEnvServer,
    openenv_served,
)
from fakes.playing import collected
from fakes.search_server import HANG_S, running
from fakes.waiting import until
from PIL import Image as PilImage

import envkit
from envkit.env import Step
from envkit.errors import (
    ConfigurationError,
    EnvFault,
    EpisodeStateError,
    FaultKind,
    MissingDependencyError,
)
from envkit.reply import CUT_NOTICE, UNFINISHED, FinishReason, Reply
from envkit.rollout import ScriptedEngine
from envkit_openenv import SPEC, OpenEnvEnv
from envkit_openenv.interface import WholeReply

QUICK = {"step_timeout_s": HANG_S, "reset_timeout_s": HANG_S, "max_message_bytes": 100_000}


def call(number: object, *, name: str = "act") -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': {'number': number}})}</tool_call>"


def made(address: str, **options: Any) -> OpenEnvEnv:
    arguments: dict[str, Any] = {"base_url": address, "limits": QUICK, **options}
    env: Any = envkit.make("openenv-v0", **arguments)
    assert isinstance(env, OpenEnvEnv)
    return env


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, "Bearer of the variable"),
        ({"key": "of the argument"}, "Bearer of the argument"),
        ({"key": "k", "headers": {"authorization": "Basic own"}}, "Basic own"),
    ],
)
async def test_key_goes_with_the_handshake(
    options: dict[str, Any], sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVKIT_OPENENV_KEY", "of the variable")
    server = FakeOpenEnvServer()
    async with openenv_served(server) as address:
        env = made(address, **options)
        await env.areset(seed=0)
        await env.aclose()
    assert set(server.headers) == {sent}


def test_password_in_the_address_is_refused_because_messages_show_addresses() -> None:
    with pytest.raises(ConfigurationError, match="give the password as key") as caught:
        made("http://:secret@127.0.0.1:9")
    assert "secret" not in str(caught.value)


async def test_client_plays_an_action_schema_as_a_tool() -> None:
    server = FakeOpenEnvServer()
    async with openenv_served(server) as address:
        env = made(address, headers={"Authorization": "Bearer key"})
        task = {"prompt": "Reach 10.", "start": 3}
        observation, _ = await env.areset(seed=5, options={"task": task})
        assert observation["text"] == "Reach 10.\n\nThe sum is 3."
        (tool,) = env.tools
        assert set(tool.parameters["properties"]) == {"number", "note"}
        assert tool.description == "Add to the sum."
        step = await env.astep(call(4))
        assert (step.observation["text"], step.observation["role"]) == ("The sum is 7.", "tool")
        assert (await env.state())["step_count"] == 1
        last = await env.astep(call(3))
        assert last.observation["text"] == "The sum is 10."  # metadata is not for the model
        await until(lambda: server.open == 0)  # an episode that is over holds no session
    assert (last.reward, last.terminated, last.truncated) == (1.0, True, False)
    assert last.info["reward_terms"] == {"env": 1.0}
    assert server.resets == [{"seed": 5, "start": 3}]
    assert server.steps == [{"number": 4}, {"number": 3}]
    assert server.headers == ["Bearer key"]
    assert server.complaints == []


async def test_client_sends_no_bad_action_and_survives_refused_ones() -> None:
    server = FakeOpenEnvServer()
    async with openenv_served(server) as address:
        env = made(address, max_turns=20)
        await env.areset(seed=0)
        bad = ["", "I add 3.", "<tool_call>{", call("x"), call(1.5), call(1, name="add")]
        bad += [call(1) + call(1), call(1).replace('"number"', '"n"')]
        for reply in bad:
            step = await env.astep(reply)
            assert step.info["parse_error"], reply
            assert step.info["parse_error"] in step.observation["text"]
        assert server.steps == []
        refused = await env.astep(call(13))
        assert "number: 13 is not allowed" in refused.info["parse_error"]
        assert (await env.astep(call(10))).reward == 1.0
    assert server.opened == 1


async def test_client_plays_mcp_tools_and_reports_their_errors() -> None:
    server = FakeOpenEnvServer(schema=TOOLS_ACTION)
    async with openenv_served(server) as address:
        env = made(address, calls_per_turn=3)
        await env.areset(seed=0)
        assert [tool.name for tool in env.tools] == ["add"]
        step = await env.astep(call(2, name="add") + call(3, name="add"))
        assert step.observation["text"] == "The sum is 2.\n\nThe sum is 5."
        failed = await env.astep(call(-1, name="add"))
        assert failed.info["tool_error"] == "add: no negative numbers"
        assert failed.info["parse_error"] is None
        last = await env.astep(call(5, name="add") + call(5, name="add"))
        assert (last.reward, last.terminated) == (1.0, True)
    tool_steps = [step for step in server.steps if step["type"] == "call_tool"]
    assert len(tool_steps) == 4  # the call after the end was not sent


async def test_client_sends_the_whole_reply_as_a_field() -> None:
    server = FakeOpenEnvServer()
    async with openenv_served(server) as address:
        env = made(address, reply_field="note", interface="text")
        await env.areset(seed=0)
        assert env.tools == ()
        await env.astep("<think>hm</think> hello ")
        await env.aclose()
        with pytest.raises(ConfigurationError, match="reply_field must be a field"):
            await made(address, reply_field="message").areset(seed=0)
    assert server.steps == [{"note": "hello"}]


async def test_client_truncates_where_the_server_or_the_last_turn_does() -> None:
    server = FakeOpenEnvServer()
    server.truncates = True
    async with openenv_served(server) as address:
        env = made(address, max_turns=2)
        await env.areset(seed=0)
        step = await env.astep(call(10))
        assert (step.terminated, step.truncated, step.reward) == (False, True, 1.0)
        with pytest.raises(EpisodeStateError):
            await env.astep(call(1))
        await env.areset(seed=0)
        steps = [await env.astep(call(1)) for _ in range(2)]
        assert [step.truncated for step in steps] == [False, True]
    assert server.opened == 2


async def test_client_reads_images_in_every_form() -> None:
    pixels = np.arange(10 * 12 * 3, dtype=np.uint32).astype(np.uint8).reshape(10, 12, 3)
    buffer = io.BytesIO()
    PilImage.fromarray(pixels).save(buffer, format="PNG")
    encoded = base64.b64encode(buffer.getvalue()).decode()
    server = FakeOpenEnvServer()
    server.pictures = [f"data:image/png;base64,{encoded}", encoded, pixels.tolist(), [encoded] * 2]
    server.pictures += [pixels[:, :, 0].tolist()] * 2
    async with openenv_served(server) as address:
        env = made(address)
        shown = [(await env.areset(seed=0)).observation]
        for _ in range(4):
            shown.append((await env.astep(call(1))).observation)
        assert shown[0]["text"] == "text: The sum is 0.\nscreen: [image 1]"
        assert [len(observation["images"]) for observation in shown] == [1, 1, 1, 2, 0]
        for observation in shown[:4]:
            for image in observation["images"]:
                assert np.array_equal(image.array(), pixels)
        grey = made(address, image_fields=["screen"])
        observation, _ = await grey.areset(seed=0)
        assert np.array_equal(observation["images"][0].array(), pixels[:, :, 0])
        await env.aclose()
        await grey.aclose()


STEP_FAILURES = {
    Failure.HANG: FaultKind.TIMEOUT,
    Failure.DROP: FaultKind.CRASHED,
    Failure.CLOSE: FaultKind.CRASHED,
    Failure.PROSE: FaultKind.PERMANENT,
    Failure.BYTES: FaultKind.PERMANENT,
    Failure.LIST: FaultKind.PERMANENT,
    Failure.NO_DATA: FaultKind.PERMANENT,
    Failure.NO_DONE: FaultKind.PERMANENT,
    Failure.TEXT_REWARD: FaultKind.PERMANENT,
    Failure.NAN_REWARD: FaultKind.GRADER,
    Failure.HUGE: FaultKind.PERMANENT,
    Failure.BAD_IMAGE: FaultKind.PERMANENT,
    Failure.EXECUTION: FaultKind.PERMANENT,
    Failure.FULL: FaultKind.TRANSIENT,
}


@pytest.mark.parametrize(("failure", "kind"), STEP_FAILURES.items())
async def test_failed_step_is_a_typed_fault_and_is_sent_once(
    failure: Failure, kind: FaultKind
) -> None:
    server = FakeOpenEnvServer(script=[None, failure])
    async with openenv_served(server) as address:
        env = made(address)
        await env.areset(seed=0)
        with pytest.raises(EnvFault) as caught:
            await env.astep(call(1))
        assert caught.value.kind is kind
        assert len(server.steps) == 1
        assert env.turn == 0
        # A new episode works: the broken session is dropped.
        await env.areset(seed=0)
        assert (await env.astep(call(10))).reward == 1.0
    assert len(server.steps) == 2


@pytest.mark.parametrize(
    "failure",
    [Failure.HANG, Failure.DROP, Failure.CLOSE, Failure.FULL],
)
@pytest.mark.slow
async def test_failed_reset_is_tried_again_on_a_fresh_session(failure: Failure) -> None:
    server = FakeOpenEnvServer(script=[failure, failure], handshakes=[503])
    async with openenv_served(server) as address:
        env = made(address)
        if failure is Failure.HANG:  # the whole reset has one deadline
            with pytest.raises(EnvFault) as caught:
                await env.areset(seed=0)
            assert caught.value.kind is FaultKind.TIMEOUT
            return
        await env.areset(seed=0)
        assert (await env.astep(call(10))).reward == 1.0
    assert (server.opened, len(server.resets)) == (3, 1)


@pytest.mark.parametrize("failure", [Failure.FACTORY, Failure.PROSE, Failure.INVALID])
async def test_reset_that_fails_for_good_is_not_repeated(failure: Failure) -> None:
    server = FakeOpenEnvServer(script=[failure])
    async with openenv_served(server) as address:
        with pytest.raises(EnvFault) as caught:
            await made(address).areset(seed=0)
    assert caught.value.kind is FaultKind.PERMANENT
    assert server.opened == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (503, FaultKind.TRANSIENT),
        (429, FaultKind.TRANSIENT),
        (200, FaultKind.TRANSIENT),  # a proxy's page
        (403, FaultKind.PERMANENT),
        (404, FaultKind.PERMANENT),
    ],
)
async def test_refused_handshake_is_typed_by_its_status(status: int, kind: FaultKind) -> None:
    server = FakeOpenEnvServer(handshakes=[status] * 9)
    async with openenv_served(server) as address:
        env = made(address, limits={**QUICK, "open_attempts": 2})
        with pytest.raises(EnvFault, match=str(status)) as caught:
            await env.areset(seed=0)
    assert caught.value.kind is kind
    assert len(server.handshakes) == (7 if kind is FaultKind.TRANSIENT else 8)


@pytest.mark.parametrize("page", ["", "<html>Back soon</html>"])
async def test_page_in_place_of_the_schema_is_asked_again(page: str) -> None:
    server = FakeOpenEnvServer()
    server.pages = [page, page]
    async with openenv_served(server) as address:
        env = made(address)
        await env.areset(seed=0)
        await env.aclose()
    assert (server.pages, server.opened) == ([], 1)


async def test_missing_or_foreign_server_is_a_fault() -> None:
    from aiohttp import web

    limits = {**QUICK, "open_attempts": 2}
    async with running(web.Application()) as address:
        pass
    with pytest.raises(EnvFault, match="cannot be reached") as caught:
        await made(address, limits=limits).areset(seed=0)
    assert caught.value.kind is FaultKind.TRANSIENT
    async with running(web.Application()) as address:
        with pytest.raises(EnvFault, match="404") as caught:
            await made(address, limits=limits).areset(seed=0)
    assert caught.value.kind is FaultKind.PERMANENT
    for schema in ("x", {"title": "A", "properties": 3}, {"title": "A", "properties": {"a": 1}}):
        server = FakeOpenEnvServer(schema=schema)
        async with openenv_served(server) as address:
            env = made(address, limits=limits)
            if isinstance(schema, dict) and schema["properties"] != 3:
                await env.areset(seed=0)  # any object is a schema
                await env.aclose()
                continue
            with pytest.raises(EnvFault) as caught:
                await env.areset(seed=0)
            assert caught.value.kind is FaultKind.PERMANENT


async def test_rollout_recovers_from_a_crash_by_replay() -> None:
    script = [None, None, Failure.DROP]
    server = FakeOpenEnvServer(script=script)
    codec = text_codec()
    engine = ScriptedEngine(codec, lambda context: call([4, 6][context.turn]))
    async with openenv_served(server) as address:
        kwargs = {"base_url": address, "limits": QUICK, "is_repeatable": True}
        played = collected("openenv-v0", engine, codec, episodes=1, env_kwargs=kwargs)
        trajectories = [trajectory async for trajectory in played]
    (trajectory,) = trajectories
    assert trajectory.reward == 1.0
    assert trajectory.fault is None
    # The lost step is played in a new session, after a replay of the earlier steps.
    assert [step["number"] for step in server.steps] == [4, 6, 4, 6]
    assert server.opened == 2


async def test_bad_arguments_are_refused_with_a_sentence() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"base_url": "localhost:8000"}, "base_url must be"),
        ({"base_url": 3}, "base_url must be"),
        ({"interface": "song"}, "interface must be one of"),
        ({"interface": "text"}, "needs reply_field"),
        ({"calls_per_turn": 0}, "at least 1"),
        ({"limits": {"patience": 3}}, "patience"),
        ({"limits": {"step_timeout_s": 0}}, "must be positive"),
        ({"limits": {"open_attempts": 0}}, "must be positive"),
        ({"call_format": "song"}, "tool call format"),
    ]
    valid: dict[str, Any] = {"base_url": "ws://127.0.0.1:1/ws"}
    for options, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            OpenEnvEnv(**{**valid, **options})
    with pytest.raises(ConfigurationError, match="openenv-v0 plays a server"):
        envkit.make("openenv-v0")
    assert OpenEnvEnv(base_url="ws://127.0.0.1:1/ws")._address == "http://127.0.0.1:1"


def test_checker_passes_on_a_server_and_sync_calls_work() -> None:
    import threading

    ready, stop = threading.Event(), threading.Event()
    addresses: list[str] = []

    async def serve() -> None:
        async with openenv_served(FakeOpenEnvServer()) as address:
            addresses.append(address)
            ready.set()
            while not stop.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(120)
    try:
        env = made(addresses[0], max_turns=4, is_repeatable=True)
        report = envkit.check_env(env)
        assert {"gymnasium", "order of calls", "determinism", "replay"} <= set(report.passed)
        env.reset(seed=0)
        assert isinstance(env.step(call(10)), Step)
        env.close()
        env.close()
    finally:
        stop.set()
        thread.join(120)


def test_spec_survives_pickling_and_the_schema_is_that_of_the_fake() -> None:
    assert pickle.loads(pickle.dumps(SPEC)) == SPEC
    assert "metadata" in COUNTER_ACTION["properties"]


@pytest.mark.skipif(find_spec("openenv") is not None, reason="openenv is installed")
def test_serving_without_the_package_names_the_extra() -> None:
    with pytest.raises(MissingDependencyError, match=r"envkit-rl\[openenv\]"):
        importlib.import_module("envkit_openenv.server")


CUT = Reply(text="gold and", finish=FinishReason.LENGTH, opened="<think>")


@pytest.mark.parametrize(
    ("reply", "sent"),
    [
        (Reply(text="<think>a</think>b"), {"response_text": "<think>a</think>b"}),
        (CUT, {"response_text": "gold and", "finish": "length", "opened": "<think>"}),
        (
            Reply(text="a", opened="<think>"),
            {"response_text": "a", "finish": "stop", "opened": "<think>"},
        ),
    ],
)
def test_an_envkit_server_is_told_how_a_reply_ended(reply: Reply, sent: dict[str, Any]) -> None:
    assert WholeReply("response_text", with_thoughts=True).read(reply).actions == (sent,)


@pytest.mark.parametrize(
    ("reply", "sent", "error"),
    [
        (Reply(text="<think>a</think>\n\nb"), ({"message": "b"},), None),
        (Reply(text="a</think>b", opened="<think>"), ({"message": "b"},), None),
        (Reply(text=""), ({"message": ""},), None),
        (CUT, (), CUT_NOTICE),
        (Reply(text="b", finish=FinishReason.LENGTH), (), CUT_NOTICE),
        (Reply(text="<think>a"), (), UNFINISHED),
    ],
)
def test_a_foreign_server_gets_only_whole_answers(
    reply: Reply, sent: tuple[Any, ...], error: str | None
) -> None:
    found = WholeReply("message", with_thoughts=False).read(reply)
    assert (found.actions, found.error) == (sent, error)
