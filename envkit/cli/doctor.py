"""`envkit doctor`: check what is installed, what answers, and whether images reach the model."""

import asyncio
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from envkit.cli import checks
from envkit.cli.checks import Check, Status
from envkit.cli.console import one_line, say, say_json, table
from envkit.cli.engines import Built, EngineChoice, build
from envkit.cli.options import AsJson, BaseUrl, EngineName, ModelName
from envkit.errors import EnvkitError

if TYPE_CHECKING:
    from envkit.cli.vision import VisionResult

_EXIT_FAILED: Final = 1


def doctor(
    vision: Annotated[
        bool, typer.Option("--vision", help="Check that images reach the model.")
    ] = False,
    engine: EngineName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Check the installation, and whether a given engine answers; suggest fixes.

    A line "no" is something that should work but does not. It comes with what is wrong, why it
    matters and the command that fixes it, and the exit code is 1. A line "off" is an optional part
    that is not installed.
    """
    found = list(checks.all_checks())
    verdict = None
    if vision or engine or model or base_url:
        choice = EngineChoice(name=engine, model=model, base_url=base_url)
        answers, verdict = asyncio.run(_examine(choice, vision=vision))
        found += answers
    is_sound = all(check.status is not Status.FAILED for check in found)
    if as_json:
        rows = [asdict(check) for check in found]
        say_json({"machine": checks.machine(), "checks": rows, "is_sound": is_sound})
    else:
        _print(checks.machine(), found, verdict)
    if not is_sound:
        raise typer.Exit(_EXIT_FAILED)


def _print(machine: dict[str, str], found: list[Check], verdict: "VisionResult | None") -> None:
    table(("", ""), machine.items())
    say()
    rows = [(c.status.value, c.area, c.name, "" if c.fix else c.found) for c in found]
    table(("", "what", "name", "found"), rows)
    if verdict is not None:
        say()
        _print_probes(verdict)
    for check in found:
        if check.fix:
            say()
            say(f"{check.status.value}: {check.area} {check.name}")
            say(f"  what     {' '.join(check.found.split())}")
            say(f"  matters  {check.matters}")
            say(f"  fix      {check.fix}")


async def _examine(
    choice: EngineChoice, *, vision: bool
) -> "tuple[list[Check], VisionResult | None]":
    """Sample a token from the engine, and check images."""
    try:
        built = await build(choice)
    except EnvkitError as error:
        return [_no_answer(choice, choice.label, one_line(error))], None
    try:
        flags = await _flags(built)
        answer = await _answers(choice, built)
        if not vision or answer.fix:
            return [*flags, answer], None
        check, verdict = await _sees(built)
        return [*flags, answer, check], verdict
    finally:
        await built.engine.aclose()


async def _flags(built: Built) -> list[Check]:
    """Return a server's relevant flags; empty for engines without such a list."""
    ask = getattr(built.engine, "flags", None)
    if ask is None:
        return []
    try:
        rows = await ask()
    except EnvkitError:
        return []  # sampling a token reports the same
    return [
        Check(
            area="server",
            name=row.flag,
            status=Status.OK if row.is_set else Status.FAILED if row.is_required else Status.OFF,
            found="set" if row.is_set else f"not set: {row.matters}",
            matters="" if row.is_set else row.matters,
            fix="" if row.is_set or not row.is_required else f"start the server with {row.flag}",
        )
        for row in rows
    ]


async def _answers(choice: EngineChoice, built: Built) -> Check:
    from envkit.messages import message
    from envkit.rollout.engine import CheckingEngine, Sampling, sample_once

    try:
        if isinstance(built.engine, CheckingEngine):
            await built.engine.check(built.codec, Sampling())
        started = time.perf_counter()
        prompt = built.codec.encode_prompt([message("user", "Say hello.")])
        sampling = Sampling(max_new_tokens=1).for_codec(built.codec)
        answer = await sample_once(built.engine, prompt, sampling)
    except EnvkitError as error:
        return _no_answer(choice, built.engine.name, one_line(error))
    seconds = time.perf_counter() - started
    found = (
        f"answers: {len(answer.token_ids)} token in {seconds:.2f} s, "
        f"weights {answer.weight_version or 'unnamed'}, model {built.model}"
    )
    return Check(area="answer", name=built.engine.name, status=Status.OK, found=found)


def _no_answer(choice: EngineChoice, name: str, found: str) -> Check:
    fix = "envkit doctor --model DIR_OR_NAME"
    if choice.base_url is not None:
        first = choice.base_url.split(",")[0].rstrip("/")
        fix = f"curl -i {first}/health  # start the server if this fails"
    return Check(
        area="answer",
        name=name,
        status=Status.FAILED,
        found=found,
        matters="every episode with it would fault",
        fix=fix,
    )


async def _sees(built: Built) -> "tuple[Check, VisionResult]":
    from envkit.cli.vision import look

    verdict = await look(built)
    if verdict.reaches:
        reads = "reads the code" if verdict.reads else "does not read the code in it"
        found = "; ".join(
            ("the image reaches the model: yes", *verdict.reasons, f"and the model {reads}")
        )
        return Check(area="vision", name=built.engine.name, status=Status.OK, found=found), verdict
    check = Check(
        area="vision",
        name=built.engine.name,
        status=Status.FAILED,
        found="; ".join(("the image reaches the model: no", *verdict.reasons)),
        matters="the policy would be trained on images that it never saw",
        fix="envkit doctor --vision --model DIR_OR_NAME  # of a vision model, its server started "
        "with images enabled (SGLang: --enable-multimodal)",
    )
    return check, verdict


def _print_probes(verdict: "VisionResult") -> None:
    if not verdict.probes:
        return
    rows = [
        (
            probe.picture,
            probe.expected_tokens,
            "-" if probe.prompt_tokens is None else probe.prompt_tokens,
            " ".join(map(str, probe.token_ids[:4])),
            " ".join(f"{value:.4f}" for value in probe.logprobs[:4]),
            repr(probe.reply),
        )
        for probe in verdict.probes
    ]
    table(("image", "tokens", "counted", "first ids", "log-probabilities", "reply"), rows)
