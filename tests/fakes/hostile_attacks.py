"""The table of attacks: which place misbehaves, how, and what may become of the episode."""

import asyncio
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fakes.hostile_envs import Act, Attack, Ends, Form, HostileRun, Normal
from fakes.hostile_values import (
    BAD_IMAGES,
    BAD_REWARDS,
    CONTROLS,
    ENVKIT_ERRORS,
    EXCEPTIONS,
    NOT_INFOS,
    NOT_TURNS,
    ODD_INFOS,
    ODD_REWARDS,
    PLANTED,
    SURROGATE,
    BadText,
    nested,
    too_deep,
)
from PIL import Image as PilImage

from envkit.env import Reset, Step, Turn
from envkit.images import Image

BRIEF = ("exception", "system_exit_0", "cancelled")
"""The exceptions that every place is tried with; `step` and `astep` are tried with all."""


def raising(make: Callable[[], BaseException]) -> Act:
    """Return what raises a new exception."""

    def act(run: HostileRun, env: Any, normal: Normal) -> Any:
        raise make()

    return act


def giving(make: Callable[[], Any]) -> Act:
    """Return what answers with another value."""
    return lambda run, env, normal: make()


def changing(change: Callable[[Any], Any]) -> Act:
    """Return what answers with the good answer, changed."""
    return lambda run, env, normal: change(normal())


def of_step(**fields: Callable[[], Any]) -> Act:
    """Return what answers with a step that has other fields."""
    return changing(lambda step: Step(*step)._replace(**{k: make() for k, make in fields.items()}))


def of_reset(make_info: Callable[[], Any]) -> Act:
    """Return what answers with a reset that has another info."""
    return changing(lambda reset: Reset(reset[0], make_info()))


def of_observation(**fields: Any) -> Act:
    """Return what answers with a reset or step whose observation has other or further keys."""

    def change(answer: Any) -> Any:
        return (type(answer))({**answer[0], **fields}, *answer[1:])

    return changing(change)


def without(key: str) -> Act:
    """Return what answers with an observation that lacks a key."""

    def change(answer: Any) -> Any:
        return type(answer)({k: v for k, v in answer[0].items() if k != key}, *answer[1:])

    return changing(change)


def hanging(run: HostileRun, env: Any, normal: Normal) -> Any:
    """Hang until the run is over."""
    run.hang()
    return normal()


async def _answer_nothing() -> None:
    """Answer nothing."""


_unawaited: list[Coroutine[Any, Any, None]] = []


def _nothing() -> Coroutine[Any, Any, None]:
    """Return a coroutine that nobody awaits."""
    _unawaited.append(_answer_nothing())
    return _unawaited[-1]


def close_coroutines() -> None:
    """Close what nobody awaited: collected later, it would warn inside another test."""
    while _unawaited:
        _unawaited.pop().close()


def hanging_await(run: HostileRun, env: Any, normal: Normal) -> Any:
    """Answer with a coroutine that ends when the run is over."""

    async def hang() -> Any:
        while not run.released.is_set():
            await asyncio.sleep(0.005)
        return normal()

    return hang()


def cancelling_itself(run: HostileRun, env: Any, normal: Normal) -> Any:
    """Cancel the task that the environment is awaited in."""

    async def act() -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel(PLANTED)
        await asyncio.sleep(0)
        return normal()

    return act()


def thread_that_raises(run: HostileRun, env: Any, normal: Normal) -> Any:
    """Answer normally; a thread of the environment ends by an exception."""
    thread = threading.Thread(target=too_deep, daemon=True)
    thread.start()
    thread.join()
    return normal()


def warn(run: HostileRun, env: Any, normal: Normal) -> Any:
    """Warn, and answer normally."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn(PLANTED, RuntimeWarning, stacklevel=1)
    return normal()


def keep_and_spoil(run: HostileRun, env: Any, normal: Normal) -> Any:
    """Answer normally, and change what was answered when the rollout has moved on."""
    answer = normal()

    def spoil() -> None:
        time.sleep(0.002)
        answer[0]["text"] = b"other"
        answer[0]["images"] = None
        answer[-1]["late"] = {1, 2}

    threading.Thread(target=spoil, daemon=True).start()
    return answer


def setting(name: str, make: Callable[[], Any]) -> Act:
    """Return what sets an attribute of the environment to something else, and answers normally."""

    def act(run: HostileRun, env: Any, normal: Normal) -> Any:
        setattr(env, name, make())
        return normal()

    return act


def step_again(run: HostileRun, env: Any, normal: Normal) -> Any:
    """Step a second time from inside a step."""
    return env.step("again")


def _raised(
    place: str, names: Iterable[str], form: Form = Form.OWN_THREAD, **more: Any
) -> list[Attack]:
    made = {**EXCEPTIONS, **ENVKIT_ERRORS}
    return [
        Attack(name=name, place=place, act=raising(made[name]), form=form, **more) for name in names
    ]


def _values(
    place: str,
    table: dict[str, Callable[[], Any]],
    act: Callable[[Callable[[], Any]], Act],
    prefix: str,
    **more: Any,
) -> list[Attack]:
    return [
        Attack(name=f"{prefix}_{name}", place=place, act=act(make), **more)
        for name, make in table.items()
    ]


def _message(**fields: Any) -> Act:
    return giving(lambda: {"role": "user", "content": "Go on.", **fields})


def _exceptions() -> list[Attack]:
    """Every exception in a step; every place with a few."""
    attacks = [
        *_raised("step", [*EXCEPTIONS, *ENVKIT_ERRORS]),
        *_raised("step", BRIEF, Form.POOL),
        *_raised("step", BRIEF, Form.WRAPPED),
        *_raised("format_observation", BRIEF, Form.WRAPPED),
        *_raised("shorten", BRIEF, Form.WRAPPED),
        *_raised("astep", [*EXCEPTIONS, *ENVKIT_ERRORS], Form.ASYNC),
        *_raised("restore", BRIEF, has_snapshot=True),
        *_raised("snapshot", BRIEF, has_snapshot=True),
        *_raised("get_state", BRIEF, has_snapshot=True),
        *_raised("close", BRIEF, ends=Ends.FINE, is_once=False),
        *_raised("aclose", BRIEF, Form.ASYNC, ends=Ends.FINE, is_once=False),
        *_raised("shorten", BRIEF),
        # A build that fails once may be tried again.
        *_raised("build", [*BRIEF, "keyboard_interrupt", "mute"], ends=Ends.EITHER),
        *_raised("build", ["system_exit_0", "cancelled"], Form.ASYNC, ends=Ends.EITHER),
    ]
    for place in ("reset", "on_turn", "format_observation", "system_prompt", "tools", "task"):
        attacks += _raised(place, [*BRIEF, "generator_exit", "mute", "configuration"])
    for place in ("capabilities", "step_key", "unwrapped"):
        attacks += _raised(place, BRIEF, ends=Ends.EITHER)
    for place in ("areset", "on_aturn", "astep_call"):
        attacks += _raised(place, [*BRIEF, "generator_exit", "mute", "contract"], Form.ASYNC)
    recursion: Act = lambda run, env, normal: too_deep()  # noqa: E731  # one of a kind
    attacks += [
        Attack(name="recursion", place=place, act=recursion)
        for place in ("step", "format_observation", "reset")
    ]
    return attacks


def _answers() -> list[Attack]:
    """Wrong answers of reset and step."""
    wrong: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "empty": lambda: (),
        "text": lambda: "Right.",
        "four": lambda: ({"text": "a", "images": (), "role": "user"}, 0.0, False, {}),
        "list": lambda: [1, 2],
        "generator": lambda: iter([1, 2]),
        "coroutine": _nothing,
        "turn": lambda: Turn("Right."),
    }
    attacks = [
        *_values("step", wrong, giving, "answer"),
        *_values("astep", {k: v for k, v in wrong.items() if k != "coroutine"}, giving, "answer",
                 form=Form.ASYNC),
        *_values("reset", wrong, giving, "answer"),
        *_values("on_turn", NOT_TURNS, giving, "gives"),
        *_values("on_reset", NOT_TURNS, giving, "gives"),
        *_values("step", BAD_REWARDS, lambda make: of_step(reward=make), "reward"),
        *_values("step", ODD_REWARDS, lambda make: of_step(reward=make), "reward",
                 ends=Ends.EITHER),
        *_values("step", ODD_INFOS, lambda make: of_step(info=make), "info", ends=Ends.EITHER),
        *_values("step", NOT_INFOS, lambda make: of_step(info=make), "info"),
        *_values("reset", ODD_INFOS, of_reset, "info", ends=Ends.EITHER),
        *_values("reset", NOT_INFOS, of_reset, "info"),
    ]  # fmt: skip
    for name, flag in {"int": 1, "none": None, "text": "no"}.items():
        for field in ("terminated", "truncated"):
            act = of_step(**{field: lambda flag=flag: flag})
            attacks.append(Attack(name=f"{field}_{name}", place="step", act=act))
    return attacks


def _observations() -> list[Attack]:
    fields: dict[str, dict[str, Any]] = {
        "text_none": {"text": None},
        "text_bytes": {"text": b"go"},
        "text_number": {"text": 3},
        "images_none": {"images": None},
        "images_text": {"images": "a"},
        "images_foreign": {"images": (PilImage.new("RGB", (4, 4)),)},
        "role_system": {"role": "system"},
        "role_none": {"role": None},
        "extra_key": {"more": 1},
    }
    odd: dict[str, dict[str, Any]] = {
        "text_surrogate": {"text": SURROGATE},
        "text_controls": {"text": CONTROLS},
        "text_bad": {"text": BadText("go")},
        "images_list": {"images": []},
        "image_in_text_model": {"images": (Image.from_pil(PilImage.new("RGB", (4, 4))),)},
    }
    attacks: list[Attack] = []
    for place in ("reset", "step"):
        attacks += [
            Attack(name=name, place=place, act=of_observation(**change))
            for name, change in fields.items()
        ]
        attacks += [
            Attack(name=name, place=place, act=of_observation(**change), ends=Ends.EITHER)
            for name, change in odd.items()
        ]
        attacks += [
            Attack(name=f"lacks_{key}", place=place, act=without(key)) for key in ("text", "images")
        ]
    return attacks


def _messages() -> list[Attack]:
    picture = PilImage.new("RGB", (4, 4))
    wrong: dict[str, Act] = {
        "none": giving(lambda: None),
        "text": giving(lambda: "Go on."),
        "coroutine": giving(_nothing),
        "role_unknown": _message(role="narrator"),
        "role_object": _message(role=[]),
        "content_none": _message(content=None),
        "content_bytes": _message(content=b"go"),
        "part_unknown": _message(content=[{"type": "video", "video": "a"}]),
        "part_text_none": _message(content=[{"type": "text", "text": None}]),
        "image_foreign": _message(content=[{"type": "image", "image": picture}]),
        "image_in_system": _message(
            role="system", content=[{"type": "image", "image": Image.from_pil(picture)}]
        ),
    }
    odd: dict[str, Act] = {
        "role_system": _message(role="system"),
        "role_assistant": _message(role="assistant"),
        "content_empty": _message(content=[]),
        "content_surrogate": _message(content=SURROGATE),
        "extra_key": _message(tool_calls=nested(2_000)),
        "extra_bytes": _message(name=b"\xff"),
    }
    attacks = [Attack(name=k, place="format_observation", act=act) for k, act in wrong.items()]
    attacks += [
        Attack(name=k, place="format_observation", act=act, ends=Ends.EITHER)
        for k, act in odd.items()
    ]
    return attacks


def _properties() -> list[Attack]:
    """Values of properties, and of what a restore needs."""

    def values(place: str, ends: Ends, **makes: Callable[[], Any]) -> list[Attack]:
        return [
            Attack(name=name, place=place, act=giving(make), ends=ends, is_once=False)
            for name, make in makes.items()
        ]

    surrogate_tool = type("Fake", (), {"name": SURROGATE, "description": "", "parameters": {}})
    return [
        *values("task", Ends.FAULT, none=lambda: None, number=lambda: 5),
        *values(
            "task",
            Ends.EITHER,
            surrogate=lambda: {"number": 5, SURROGATE: SURROGATE},
            nan=lambda: {"number": 5, "x": float("nan")},
            set=lambda: {"number": 5, "x": {1}},
            deep=lambda: {"number": 5, "x": nested(10_000)},
            huge=lambda: {"number": 5, "x": 10**5000},
        ),
        *values("system_prompt", Ends.FAULT, number=lambda: 3, bytes=lambda: b"go"),
        *values(
            "system_prompt",
            Ends.EITHER,
            surrogate=lambda: SURROGATE,
            controls=lambda: CONTROLS,
            empty=lambda: "",
        ),
        *values("tools", Ends.FAULT, number=lambda: 3, objects=lambda: (object(),)),
        *values(
            "tools",
            Ends.EITHER,
            none=lambda: None,
            text=lambda: "add",
            surrogate_name=lambda: (surrogate_tool(),),
        ),
        *values("capabilities", Ends.EITHER, none=lambda: None, text=lambda: "all"),
        *values("unwrapped", Ends.EITHER, none=lambda: None, object=object),
        *_values("snapshot", {"none": lambda: None, "text": lambda: "{}", "number": lambda: 5},
                 giving, "gives", ends=Ends.EITHER, has_snapshot=True),
        *_values("get_state", {"set": lambda: {"a": {1}}, "deep": lambda: nested(10_000),
                               "cyclic": ODD_INFOS["cyclic"]},
                 giving, "gives", has_snapshot=True),
    ]  # fmt: skip


def _behaviour() -> list[Attack]:
    """What is wrong in time and not in one answer."""
    from envkit.tools import tool

    @tool
    def late(a: int) -> int:
        """Do something.

        Args:
            a: A number.
        """
        return a

    def tools_now(run: HostileRun, env: Any, normal: Normal) -> Any:
        return (late,) if env._running and env.turn else ()

    fine: dict[str, Any] = {"ends": Ends.FINE}
    short: dict[str, Any] = {"name": "hangs", "step_timeout_s": 0.4}
    awaits: dict[str, Any] = {"act": hanging_await, "form": Form.ASYNC}
    of_async: dict[str, Any] = {"form": Form.ASYNC}
    return [
        Attack(**short, place="step", act=hanging),
        Attack(**short, place="step", act=hanging, form=Form.POOL),
        Attack(**short, place="reset", act=hanging),
        Attack(**short, place="build", act=hanging, ends=Ends.EITHER),
        Attack(**short, place="astep", **awaits),
        Attack(**short, place="areset", **awaits),
        Attack(**short, place="snapshot", act=hanging, has_snapshot=True),
        Attack(name="hangs", place="close", act=hanging, is_once=False, **fine),
        Attack(name="hangs", place="aclose", **awaits, is_once=False, **fine),
        Attack(name="cancels_its_task", place="astep", act=cancelling_itself, **of_async),
        Attack(name="cancels_its_task", place="areset", act=cancelling_itself, **of_async),
        Attack(name="no_coroutine", place="astep_call", act=giving(lambda: (1, 2)), **of_async),
        Attack(name="thread_raises", place="step", act=thread_that_raises, **fine),
        Attack(name="warns", place="step", act=warn, **fine),
        Attack(name="spoils_later", place="step", act=keep_and_spoil, ends=Ends.EITHER),
        Attack(name="spoils_later", place="reset", act=keep_and_spoil, ends=Ends.EITHER),
        Attack(name="steps_again", place="step", act=step_again, ends=Ends.EITHER),
        Attack(name="max_turns_0", place="on_turn", act=setting("max_turns", lambda: 0), **fine),
        Attack(name="max_turns_text", place="on_turn", act=setting("max_turns", lambda: "4")),
        Attack(name="turn_counter_text", place="on_turn", act=setting("turn", lambda: "a")),
        Attack(name="change", place="tools", act=tools_now, ends=Ends.EITHER, is_once=False),
    ]


def _images() -> list[Attack]:
    """Images that fail when they are decoded, in an episode that shows good ones too."""
    attacks: list[Attack] = []
    for place in ("step", "reset"):
        for name, make in BAD_IMAGES.items():

            def change(answer: Any, make: Callable[[], Any] = make) -> Any:
                return type(answer)({**answer[0], "images": (make(),)}, *answer[1:])

            attacks.append(
                Attack(name=f"image_{name}", place=place, act=changing(change), has_images=True)
            )
    return attacks


PLACES = {
    Form.OWN_THREAD: (
        "build", "reset", "step", "on_reset", "on_turn", "format_observation", "system_prompt",
        "tools", "task", "capabilities", "step_key", "unwrapped", "shorten", "close",
    ),
    Form.POOL: ("reset", "step"),
    Form.WRAPPED: ("reset", "step", "format_observation", "close"),
    Form.ASYNC: ("areset", "astep", "astep_call", "on_areset", "on_aturn", "aclose"),
}  # fmt: skip
"""Every place that can misbehave without a snapshot."""
CONTROLS_OF_THE_TEST: tuple[Attack, ...] = tuple(
    Attack(name="does_nothing", place=place, form=form, act=changing(lambda normal: normal),
           ends=Ends.FINE)
    for form, places in PLACES.items()
    for place in places
)  # fmt: skip
"""A run in which the place is reached and nothing is wrong; all must be fine."""
ATTACKS: tuple[Attack, ...] = (
    *_exceptions(),
    *_answers(),
    *_observations(),
    *_messages(),
    *_properties(),
    *_behaviour(),
)
"""Every attack that a text model's codec can play."""
IMAGE_ATTACKS: tuple[Attack, ...] = tuple(_images())
"""Those that need a vision model's."""
