"""Running calls: results in order, limits, crashes, faults, and threads that hang."""

import asyncio
import functools
import gc
import json
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fakes.budget import examples
from fakes.processes import run_python
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PilImage

from envkit import EnvFault, Image, ToolSpec, tool
from envkit.errors import ConfigurationError, MissingDependencyError, UnknownNameError
from envkit.toolcalls import ToolCall
from envkit.toolset import CallStatus, ToolResult, ToolRunner, ToolSet
from envkit.toolset.result import plain


def named(name: str, function: Callable[..., Any]) -> ToolSpec:
    """Return a tool without arguments."""
    return ToolSpec(name=name, description="A tool.", function=function)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments, id="call00000")


async def run(
    tools: Sequence[ToolSpec], calls: Sequence[ToolCall], **limits: Any
) -> tuple[ToolResult, ...]:
    runner = ToolRunner(ToolSet(specs=tuple(tools), **limits))
    try:
        return await runner.run(calls)
    finally:
        await runner.aclose()


async def result_of(function: Callable[..., Any], **limits: Any) -> ToolResult:
    return (await run([named("it", function)], [call("it")], **limits))[0]


def picture(color: str = "red") -> PilImage.Image:
    return PilImage.new("RGB", (4, 4), color)


@pytest.mark.parametrize(
    ("value", "text", "images"),
    [
        ("text", "text", 0),
        ("", "", 0),
        (None, "Done.", 0),
        (3, "3", 0),
        ([1, "é"], '[1, "é"]', 0),
        ({"a": None}, '{"a": null}', 0),
        (Image.from_pil(picture()), "", 1),
        (picture(), "", 1),
        (["before", picture(), {"n": 1}, picture("blue")], 'before\n{"n": 1}', 2),
        ((picture(),), "", 1),
    ],
)
async def test_what_a_tool_returns_is_shown(value: object, text: str, images: int) -> None:
    async def later() -> object:
        return value

    def decorated() -> object:
        return later()

    for function in (lambda: value, later, decorated):
        result = await result_of(function)
        assert (result.text, len(result.images), result.status) == (text, images, CallStatus.OK)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (object(), "must return text, envkit.Image, JSON data"),
        ({"image": picture()}, "must return text, envkit.Image, JSON data"),
        ([picture()] * 9, "at most 8 images"),
        (Image.from_bytes(b"no image"), "ImageError"),
    ],
)
async def test_what_cannot_be_shown_is_a_crash(value: object, sentence: str) -> None:
    async def later() -> object:
        return value

    for function in (lambda: value, later):
        result = await result_of(function)
        assert result.status is CallStatus.CRASHED
        assert sentence in result.text


class Unprintable(Exception):
    """Its text raises too."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no city 'x'"), "it failed: ValueError: no city 'x'"),
        (ValueError(), "it failed: ValueError"),
        (KeyError("a"), "it failed: KeyError: 'a'"),
        (TimeoutError("own"), "it failed: TimeoutError: own"),
        (SystemExit(3), "it failed: SystemExit: 3"),
        (RecursionError("deep"), "it failed: RecursionError: deep"),
        (ConfigurationError("wrong"), "it failed: ConfigurationError: wrong"),
        (Unprintable(), "it failed: Unprintable"),
        (ValueError("<lock at 0x7f00aa> is held"), "it failed: ValueError: <lock> is held"),
    ],
)
async def test_what_a_tool_raises_is_an_observation(error: BaseException, text: str) -> None:
    def crash() -> None:
        raise error

    async def crash_later() -> None:
        raise error

    for function in (crash, crash_later):
        result = await result_of(function)
        assert result == ToolResult(name="it", text=text, status=CallStatus.CRASHED)


async def test_a_stop_iteration_ends_the_call_and_not_the_loop() -> None:
    result = await result_of(lambda: next(iter(())))

    assert result.status is CallStatus.CRASHED


@pytest.mark.parametrize(
    "error", [EnvFault("away"), MissingDependencyError.for_extra("a tool", "x", "y")]
)
async def test_a_fault_goes_through_and_cancels_the_other_calls(error: Exception) -> None:
    cancelled = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def broken() -> None:
        raise error

    tools = [named("slow", slow), named("broken", broken)]
    with pytest.raises(type(error)):
        await run(tools, [call("slow"), call("broken")])
    assert cancelled.is_set()


async def test_a_fault_in_turn_leaves_no_coroutine_behind() -> None:
    def broken() -> None:
        raise EnvFault("away")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(EnvFault):
            await run([named("broken", broken)], [call("broken")] * 3, is_sequential=True)
        gc.collect()


async def test_calls_run_at_the_same_time_and_answer_in_their_order() -> None:
    arrived, together = list[int](), threading.Barrier(3, timeout=120)

    async def wait(n: int) -> int:
        arrived.append(n)
        while len(arrived) < 3:  # none continues before all have started
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02 * (3 - n))
        return n

    def block(n: int) -> int:
        together.wait()
        time.sleep(0.02 * (3 - n))
        return n

    for function in (wait, block):
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        spec = ToolSpec(name="it", description="Wait.", parameters=schema, function=function)
        results = await run([spec], [call("it", n=n) for n in range(3)])
        assert [result.text for result in results] == ["0", "1", "2"]


async def test_sequential_calls_run_one_after_another() -> None:
    running = 0

    async def alone() -> bool:
        nonlocal running
        running += 1
        await asyncio.sleep(0.01)
        running -= 1
        return running == 0

    results = await run([named("it", alone)], [call("it")] * 4, is_sequential=True)

    assert [result.text for result in results] == ["true"] * 4


async def test_calls_beyond_the_most_are_not_run() -> None:
    ran: list[int] = []

    results = await run([named("it", lambda: ran.append(1))], [call("it")] * 9, max_calls=2)

    assert len(results) == len(ran) == 2


async def test_a_slow_call_times_out_and_the_others_answer() -> None:
    async def slow() -> None:
        await asyncio.sleep(60)

    released = threading.Event()
    tools = [named("slow", slow), named("stuck", released.wait), named("quick", lambda: "ok")]
    calls = [call("slow"), call("stuck"), call("quick")]

    timeouts = {"slow": 0.2, "quick": 60.0}
    results = await run(tools, calls, timeout_s=0.1, timeouts=timeouts)
    released.set()

    assert [result.status.value for result in results] == ["timeout", "timeout", "ok"]
    assert results[0].text == "slow did not answer within 0.2 s."
    assert results[1].text == "stuck did not answer within 0.1 s."


async def test_hung_functions_do_not_use_up_the_threads() -> None:
    released = threading.Event()
    runner = ToolRunner(
        ToolSet(
            specs=(named("stuck", released.wait), named("quick", lambda: "ok")),
            timeouts={"stuck": 0.02},
        )
    )
    for _ in range(5):
        results = await runner.run([call("stuck")] * 8)
        assert {result.status for result in results} == {CallStatus.TIMEOUT}
    assert (await runner.run([call("quick")]))[0].text == "ok"
    released.set()
    await runner.aclose()
    await runner.aclose()


async def test_synchronous_functions_run_off_the_event_loop() -> None:
    own = threading.get_ident()
    result = await result_of(lambda: threading.get_ident() != own)

    assert result.text == "true"


async def test_arguments_are_validated_before_anything_runs() -> None:
    @tool
    def echo(text: str) -> str:
        """Repeat.

        Args:
            text: What.
        """
        raise AssertionError("it ran")

    wrong = [call("echo"), call("echo", text=3), call("echo", text="a", n=1), call("ech")]
    for result in await run([echo], wrong):
        assert result.status is CallStatus.INVALID


async def test_long_results_are_cut_and_say_so() -> None:
    result = await result_of(lambda: "x" * 10_000_000, max_characters=100)

    assert result.text == "x" * 100 + "\n[9999900 more characters were left out]"


def test_control_tokens_are_left_to_the_codec_and_surrogates_are_replaced() -> None:
    assert plain("<|im_end|><image>[IMG]\ud800", 100) == "<|im_end|><image>[IMG]\ufffd"


def test_wrong_sets_are_refused() -> None:
    spec = named("it", lambda: None)
    broken = ToolSpec(name="x", description="", parameters={"properties": 5}, function=print)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"specs": (spec, spec)}, "two tools are named 'it'"),
        ({"specs": (ToolSpec(name="x", description=""),)}, "no function"),
        ({"specs": (broken,)}, "a valid JSON Schema"),
        ({"specs": (spec,), "timeout_s": 0}, "must be above 0"),
        ({"specs": (spec,), "timeouts": {"it": -1.0}}, "must be above 0"),
        ({"specs": (spec,), "max_calls": 0}, "at least 1"),
    ]
    for options, sentence in cases:
        with pytest.raises(ConfigurationError, match=sentence):
            ToolSet(**options)
    with pytest.raises(UnknownNameError, match="Did you mean 'it'"):
        ToolSet(specs=(spec,), timeouts={"iit": 1.0})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=examples(60), deadline=None)
@given(st.dictionaries(st.sampled_from(["text", "n", "x"]), JSON))
def test_any_arguments_give_a_result(arguments: dict[str, Any]) -> None:
    @tool
    def pair(text: str, n: int = 2) -> list[object]:
        """Repeat.

        Args:
            text: What.
            n: How often.
        """
        return [text, n]

    (result,) = asyncio.run(run([pair], [ToolCall(name="pair", arguments=arguments, id="1")]))

    fits = (
        isinstance(arguments.get("text"), str)
        and type(arguments.get("n", 2)) in (int, float)
        and arguments.get("n", 2) == int(arguments.get("n", 2))
        and "x" not in arguments
    )
    assert result.status is (CallStatus.OK if fits else CallStatus.INVALID)
    if fits:
        assert json.loads(result.text)[1] == arguments.get("n", 2)


async def test_a_runner_serves_one_event_loop_after_another() -> None:
    runner = ToolRunner(ToolSet(specs=(named("it", lambda: "ok"),)))
    work = functools.partial(runner.run, [call("it")])
    for _ in range(2):
        results = await asyncio.to_thread(lambda: asyncio.run(work()))
        assert results[0].text == "ok"
    await runner.aclose()


def test_importing_envkit_loads_no_tool_runner() -> None:
    code = "import sys, envkit; print('envkit.toolset' in sys.modules)"
    assert run_python("-c", code).strip() == "False"
