"""Draw the pages' flows from real runs into docs/images/flows/.

    python scripts/docs/flows.py            # write the images
    python scripts/docs/flows.py --check    # fail if one is out of date

Each flow has stations, `module:function` in order. Its run is played in this process, and a
profiler waits for one station after the other. It is an error if a station was renamed, if the run
no longer passes it in this order, or if it gets None. Names, first lines of docstrings and the
types between the stations come from the code.
"""

import asyncio
import inspect
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import aiohttp

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from fakes.codecs import vision_codec  # noqa: E402
from fakes.command import run_envkit  # noqa: E402
from fakes.sglang_server import FakeSGLang  # noqa: E402

import envkit  # noqa: E402
from envkit.rollout import Engine, Player, RolloutConfig, ScriptedEngine  # noqa: E402
from envkit.rollout.setup import EpisodeSpec  # noqa: E402
from envkit.trajectory.trajectory import Trajectory  # noqa: E402
from envkit_gateway import AgentTask  # noqa: E402
from envkit_sglang import SGLangEngine  # noqa: E402

FOLDER: Final = ROOT / "docs" / "images" / "flows"
WIDTH: Final = 760
_BOX: Final = 64
_ARROW: Final = 34
_STYLE: Final = """
text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #161a20; }
.name { font-weight: 600; font-size: 13px; }
.type { font: 12px ui-monospace, monospace; fill: #3a4352; }
.dim { fill: #5b6472; }
.core { fill: #f6f7f9; stroke: #dde1e7; }
.plugin { fill: #e6edff; stroke: #c3d1f5; }
.line { stroke: #8a94a3; fill: none; } .head { fill: #8a94a3; }
@media (prefers-color-scheme: dark) {
  text { fill: #e8ebf0; } .dim { fill: #98a2b1; } .type { fill: #c2cad6; }
  .core { fill: #181c22; stroke: #2a3039; } .plugin { fill: #1c2a49; stroke: #2d4272; }
}
"""


class FlowError(Exception):
    """A station does not exist, or the run did not pass it in its place."""


@dataclass(frozen=True, kw_only=True)
class Station:
    """A function that a flow passes."""

    place: str
    """`module:function`."""
    takes: str
    """The parameter with what the flow brings; "self" is the object itself."""

    @property
    def module(self) -> str:
        """The dotted name of the module."""
        return self.place.partition(":")[0]

    @property
    def name(self) -> str:
        """The function's name inside the module; a class for its constructor."""
        return self.place.partition(":")[2].removesuffix(".__init__")

    def function(self) -> Callable[..., Any]:
        """Return the function, without its decorators.

        Raises:
            FlowError: It does not exist.
        """
        found: Any = import_module(self.module)
        for part in self.place.partition(":")[2].split("."):
            found = getattr(found, part, None)
        if not callable(found):
            raise FlowError(f"{self.place} does not exist: follow it in scripts/docs/flows.py")
        return inspect.unwrap(found)

    def code(self) -> CodeType:
        """Return the function's code."""
        function = self.function()
        return getattr(function, "__func__", function).__code__

    def says(self) -> str:
        """Return the first line of the docstring."""
        return (
            (inspect.getdoc(self.function()) or "").partition("\n")[0].rstrip(".").replace("`", "")
        )

    def given(self) -> str:
        """Return the parameter that the flow brings, with its type.

        Raises:
            FlowError: There is no such parameter.
        """
        parameters = inspect.signature(self.function()).parameters
        if self.takes not in parameters:
            raise FlowError(f"{self.place} has no parameter {self.takes!r}")
        if self.takes == "self":
            return self.name.partition(".")[0]
        kind = inspect.formatannotation(parameters[self.takes].annotation).strip("'")
        kind = re.sub(r"(?:[a-z_]+[.])+", "", kind).removesuffix(" | None")  # `trace` saw a value
        return f"{self.takes}: {kind}"


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A run and the stations that it passes."""

    title: str
    run: Callable[[], str]
    """Returns what the flow ends with."""
    stations: tuple[Station, ...]


def trace(flow: Flow) -> str:
    """Play the run of a flow and return what it ends with.

    Raises:
        FlowError: It did not pass all stations, in order, or one of them got None.
    """
    vision_codec()  # now: its imports would take ten times as long under the profiler
    waiting = [(station.code(), station.takes) for station in flow.stations]
    codes = {code for code, _ in waiting}
    seen: set[FrameType] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        # A coroutine is "called" again whenever it resumes: only its first call is in order.
        if event != "call" or frame.f_code not in codes or frame in seen or not waiting:
            return
        seen.add(frame)
        code, takes = waiting[0]
        if frame.f_code is code and frame.f_locals.get(takes) is not None:
            del waiting[0]

    before = sys.getprofile(), threading.getprofile()
    sys.setprofile(profile)
    threading.setprofile(profile)
    try:
        result = flow.run()
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])
    if waiting:
        missed = flow.stations[-len(waiting)]
        raise FlowError(
            f"{flow.title!r} did not pass {missed.place} in its place, or without {missed.takes}: "
            "follow the code in scripts/docs/flows.py, and in the page of the flow"
        )
    return result


def draw(flow: Flow, result: str) -> str:
    """Return the picture of a flow as SVG.

    Args:
        flow: The flow.
        result: What it ends with.
    """
    body: list[str] = []
    top = 8
    for station in flow.stations:
        body += [*_arrow(top, station.given()), *_box(top + _ARROW, station)]
        top += _ARROW + _BOX
    body += _arrow(top, result)
    top += _ARROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img" '
        f'aria-label="{escape(flow.title)}: the functions that one run passes, in order">'
        f"<style>{_STYLE}</style>\n" + "\n".join(body) + "\n</svg>\n"
    )


def _box(top: int, station: Station) -> list[str]:
    kind = "core" if station.module.startswith("envkit.") else "plugin"
    return [
        f'<rect class="{kind}" x="1" y="{top}" width="{WIDTH - 2}" height="{_BOX}" rx="8"/>',
        f'<text class="name" x="16" y="{top + 25}">{escape(station.name)}</text>',
        f'<text class="dim" x="{WIDTH - 16}" y="{top + 25}" text-anchor="end">'
        f"{escape(station.module)}</text>",
        f'<text x="16" y="{top + 47}">{escape(station.says())}</text>',
    ]


def _arrow(top: int, carried: str) -> list[str]:
    end = top + _ARROW
    return [
        f'<path class="line" d="M28 {top}V{end - 6}"/>',
        f'<path class="head" d="M23 {end - 8}h10l-5 8z"/>',
        f'<text class="type" x="44" y="{top + 21}">{escape(carried)}</text>',
    ]


def _stations(*places: tuple[str, str]) -> tuple[Station, ...]:
    return tuple(Station(place=place, takes=takes) for place, takes in places)


async def _played(engine: Engine, config: RolloutConfig | None = None) -> Trajectory:
    player = Player(engine, vision_codec(), config)
    try:
        (played,) = await player.play(envkit.make("canary-v0"), EpisodeSpec(seed=7))
    finally:
        await player.aclose()
        await engine.aclose()
    if played.fault is not None:
        raise FlowError(f"the run of a flow faulted: {played.fault.message}")
    return played


def _scripted() -> ScriptedEngine:
    return ScriptedEngine(vision_codec(), envkit.make("canary-v0").unwrapped.oracle())


def task_to_row() -> str:
    """Play an episode with a scripted policy, and make its row."""
    trajectory = asyncio.run(_played(_scripted()))
    (row,) = trajectory.steps(merge=True)
    return type(row).__name__


def request_to_segment() -> str:
    """Play an episode with a server that answers as SGLang does."""

    async def run() -> Trajectory:
        codec = vision_codec()
        script = codec.encode_reply("a reply")
        server = FakeSGLang(
            lambda request: script,
            eos_ids=codec.stop_ids,
            image_token_id=codec.media_ids[0],
            decode=codec.decode,
        )
        async with server:
            engine = SGLangEngine(server.url, image_token_id=codec.media_ids[0])
            return await _played(engine)

    return type(asyncio.run(run()).segments[-1]).__name__


def argv_to_folder() -> str:
    """Run `envkit rollout` into a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        done = run_envkit("rollout", "canary-v0", "-n", "2", "--policy", "oracle", "--out", folder)
        if done.code:
            raise FlowError(f"envkit rollout failed: {done.err}")
        names = sorted(f"{file.name}{'/' * file.is_dir()}" for file in folder.iterdir())
    return ", ".join(names)


async def agent(task: AgentTask) -> str:
    """Send a request to the gateway, and one that continues its reply."""
    said: list[dict[str, str]] = [{"role": "user", "content": task.prompt}]
    text = ""
    headers = {"authorization": f"Bearer {task.api_key}"}
    async with aiohttp.ClientSession(headers=headers) as client:
        for _ in range(2):
            body = {"model": "envkit", "messages": said}
            async with client.post(f"{task.base_url}/chat/completions", json=body) as answer:
                (choice,) = (await answer.json())["choices"]
            text = str(choice["message"]["content"])
            said += [choice["message"], {"role": "user", "content": "Go on."}]
    return text


def gateway_to_ledger() -> str:
    """Play an episode with the agent."""
    config = RolloutConfig(agent=f"{__name__}:agent")
    return type(asyncio.run(_played(_scripted(), config))).__name__


FLOWS: Final = {
    "task-to-row": Flow(
        title="From a task to a row",
        run=task_to_row,
        stations=_stations(
            ("envkit.rollout.player:AnyPlayer.play", "spec"),
            ("envkit.rollout.recovery:play_with_restarts", "spec"),
            ("envkit.rollout.loop:Episode.run", "self"),
            ("envkit.rollout.host:EnvHost.reset", "seed"),
            ("envkit.env:Env.reset", "seed"),
            ("envkit.tokens.codec:ChatCodec.encode_prompt", "messages"),
            ("envkit.trajectory.ledger:Ledger.start", "encoded"),
            ("envkit.rollout.sampler:Sampler.generate", "record"),
            ("envkit.trajectory.ledger:Ledger.add_reply", "token_ids"),
            ("envkit.rollout.recovery:RecoveringEnv.step", "reply"),
            ("envkit.env:Env.step", "action"),
            ("envkit.tokens.codec:ChatCodec.encode_observation", "messages"),
            ("envkit.trajectory.ledger:Ledger.add_observation", "encoded"),
            ("envkit.rollout.record:EpisodeRecord.trajectory", "stop_reason"),
            ("envkit.trajectory.projection:rows_of", "sequences"),
        ),
    ),
    "request-to-segment": Flow(
        title="From a request to a segment",
        run=request_to_segment,
        stations=_stations(
            ("envkit.rollout.sampler:Sampler.generate", "record"),
            ("envkit_remote.engine:RemoteEngine.generate", "request"),
            ("envkit_remote.conversations:Conversations.prompt", "ids"),
            ("envkit_remote.prompt:check_placeholders", "placeholders"),
            ("envkit_remote.probe:ServerProbe.prepare", "sampling"),
            ("envkit_sglang.dialect:SGLangDialect.generate_fields", "request"),
            ("envkit_remote.call:Call.run", "self"),
            ("envkit_sglang.dialect:SGLangDialect.encode", "outgoing"),
            ("envkit_remote.transport:Transport.post", "body"),
            ("envkit_sglang.dialect:SGLangDialect.parse", "answer"),
            ("envkit_remote.prompt:check_prompt_ids", "wire_ids"),
            ("envkit_sglang.dialect:SGLangDialect.generation", "answer"),
            ("envkit.rollout.generation:checked", "value"),
            ("envkit.trajectory.ledger:Ledger.add_reply", "token_ids"),
            ("envkit.trajectory.ledger:Ledger.finished", "rewards"),
        ),
    ),
    "argv-to-folder": Flow(
        title="From a command to a run folder",
        run=argv_to_folder,
        stations=_stations(
            ("envkit.cli.rollout:rollout", "given"),
            ("envkit.cli.run_plan:RolloutPlan.of_options", "given"),
            ("envkit.cli.run_rollout:run_rollout", "plan"),
            ("envkit.rollout.run_claim:RunClaim.__init__", "path"),
            ("envkit.cli.engines:build_any", "choice"),
            ("envkit.rollout.run_folder:RunFolder.create", "settings"),
            ("envkit.rollout.run:Run.play", "deliver"),
            ("envkit.rollout.run_folder:RunFolder.deliver", "played"),
            ("envkit.trajectory.storage:TrajectoryWriter.prepare", "trajectory"),
            ("envkit.trajectory.storage:TrajectoryWriter.append", "prepared"),
            ("envkit.cli.run_digest:RunDigest.add", "prepared"),
            ("envkit.sinks.guarded:GuardedSinks.write", "trajectory"),
            ("envkit.rollout.run_folder:RunFolder.complete", "self"),
            ("envkit.cli.summary:summarise", "directory"),
        ),
    ),
    "gateway-to-ledger": Flow(
        title="From an agent's request to the ledger",
        run=gateway_to_ledger,
        stations=_stations(
            ("envkit_gateway.chat:read", "body"),
            ("envkit_gateway.session:Session.open", "request"),
            ("envkit_gateway.matching:Committed.longest", "keys"),
            ("envkit_gateway.open_sequences:OpenSequences.start", "request"),
            ("envkit.tokens.codec:ChatCodec.encode_prompt", "messages"),
            ("envkit.trajectory.ledger:Ledger.start", "encoded"),
            ("envkit.rollout.sampler:Sampler.generate", "record"),
            ("envkit.trajectory.ledger:Ledger.add_reply", "token_ids"),
            ("envkit_gateway.replies:reply_of", "generation"),
            ("envkit_gateway.matching:Committed.add", "turn"),
            ("envkit_gateway.chat:answer", "choices"),
            ("envkit_gateway.open_sequences:OpenSequences.after", "parent"),
            ("envkit.tokens.codec:ChatCodec.encode_observation", "messages"),
            ("envkit.trajectory.ledger:Ledger.add_observation", "encoded"),
            ("envkit_gateway.recording:trajectory_of", "session"),
        ),
    ),
}


def main() -> int:
    """Write the images, or compare them; return the exit status."""
    is_check = "--check" in sys.argv[1:]
    outdated: list[str] = []
    for name, flow in FLOWS.items():
        drawing, picture = FOLDER / f"{name}.svg", draw(flow, trace(flow))
        if not is_check:
            drawing.write_text(picture, encoding="utf-8")
        elif not drawing.is_file() or drawing.read_text("utf-8") != picture:
            outdated.append(drawing.name)
    if outdated:
        sys.stderr.write(f"{', '.join(outdated)} out of date: run scripts/docs/flows.py\n")
    return int(bool(outdated))


if __name__ == "__main__":
    sys.exit(main())
