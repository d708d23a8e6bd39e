"""`envkit doctor`: what is installed, what answers, and whether pictures reach the model."""

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Annotated, Final

import typer

from envkit.cli.console import one_line, say, table
from envkit.cli.options import BaseUrl, EngineName, ModelName

if TYPE_CHECKING:
    from envkit.cli.engines import Built, EngineChoice
    from envkit.cli.vision import Verdict

_EXIT_FAILED: Final = 1


def doctor(
    vision: Annotated[
        bool, typer.Option("--vision", help="Check that pictures reach the model.")
    ] = False,
    engine: EngineName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
) -> None:
    """Say what is installed and what is missing; with an engine, whether it answers.

    The exit code is 1 when the engine does not answer, or with --vision when pictures do not reach
    the model.
    """
    from envkit.cli.engines import EngineChoice

    _tell_installed()
    if not (vision or engine or model or base_url):
        return
    choice = EngineChoice(name=engine, model=model, base_url=base_url)
    if not asyncio.run(_examine(choice, vision=vision)):
        raise typer.Exit(_EXIT_FAILED)


def _tell_installed() -> None:
    from envkit.cli import installed
    from envkit.registration import registry

    table(("", ""), installed.machine().items())
    say()
    found = installed.packages()
    rows = [(p.extra or "core", p.name, p.version or "missing") for p in found]
    table(("extra", "package", "version"), rows)
    for extra in installed.missing_extras(found):
        say(f"missing: pip install '{installed.DISTRIBUTION}[{extra}]'")
    say()
    states = [(s.name, s.source, s.problem or "can be used") for s in installed.engines()]
    table(("engine", "from", "state"), states)
    say()
    say(f"environments: {', '.join(registry()) or 'none'}")


async def _examine(choice: "EngineChoice", *, vision: bool) -> bool:
    """Ask the engine for a token, and about pictures; return whether all is well."""
    from envkit.cli.engines import build
    from envkit.errors import EnvkitError

    say()
    try:
        built = await build(choice)
    except EnvkitError as error:
        say(f"engine {choice.label}: no: {one_line(error)}")
        return False
    try:
        return await _answers(built) and (not vision or await _sees(built))
    finally:
        await built.engine.aclose()


async def _answers(built: "Built") -> bool:
    from envkit.errors import EnvkitError
    from envkit.messages import message
    from envkit.rollout.engine import GenerateRequest, Sampling

    session = uuid.uuid4().hex
    started = time.perf_counter()
    try:
        prompt = built.codec.encode_prompt([message("user", "Say hello.")])
        answer = await built.engine.generate(
            GenerateRequest(
                request_id=uuid.uuid4().hex,
                session_id=session,
                wire_ids=prompt.wire_ids,
                images=(),
                train_length=len(prompt.train_ids),
                sampling=Sampling(max_new_tokens=1, banned_ids=tuple(built.codec.media_ids)),
            )
        )
    except EnvkitError as error:
        say(f"engine {built.engine.name}: no: {one_line(error)}")
        return False
    finally:
        await built.engine.end_session(session)
    seconds = time.perf_counter() - started
    say(
        f"engine {built.engine.name} answers: {len(answer.token_ids)} token in {seconds:.2f} s, "
        f"weights {answer.weight_version or 'unnamed'}, model {built.model}"
    )
    return True


async def _sees(built: "Built") -> bool:
    from envkit.cli.vision import look

    verdict = await look(built)
    _tell_probes(verdict)
    say(f"the picture reaches the model: {'yes' if verdict.reaches else 'no'}")
    for reason in verdict.reasons:
        say(f"  {reason}")
    if verdict.reaches:
        reads = "reads the code" if verdict.reads else "does not read the code off it"
        say(f"  and the model {reads}")
    return verdict.reaches


def _tell_probes(verdict: "Verdict") -> None:
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
    table(("picture", "tokens", "counted", "first ids", "log-probabilities", "reply"), rows)
