"""`envkit play`: play by hand in the terminal."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from envkit.cli.console import note, say
from envkit.cli.options import EnvId, EnvKwargs, make_env, parse_env_kwargs
from envkit.files import storage_errors

if TYPE_CHECKING:
    from envkit.env import Env
    from envkit.turns import Observation

_QUIT: Final = (":q", ":quit")


def play(
    env_id: EnvId,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same task (default: random).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for images (default: a temporary folder)."),
    ] = None,
    env_kwargs: EnvKwargs = None,
) -> None:
    """Play one episode by hand.

    An empty line sends the reply, so replies can have several lines. Ctrl-D or :quit leaves.
    """
    env = make_env(env_id, parse_env_kwargs(env_kwargs))
    try:
        _introduce(env)
        _episode(env, seed, out)
    finally:
        env.close()


def _introduce(env: "Env") -> None:
    note("An empty line sends your reply; Ctrl-D or :quit leaves.")
    if env.system_prompt:
        say(f"[system] {env.system_prompt}")
    for spec in env.tools:
        say(f"[tool] {spec.name}: {spec.description}")


def _episode(env: "Env", seed: int | None, out: Path | None) -> None:
    pictures = _Images(out)
    observation, _ = env.reset(seed=seed)
    total = 0.0
    while True:
        _show(observation, env.turn, pictures)
        reply = _read_reply()
        if reply is None:
            say(f"you left after {env.turn} turns; reward so far {total:g}")
            return
        observation, reward, terminated, truncated, info = env.step(reply)
        total += reward
        if info.get("parse_error"):
            note(f"not understood: {info['parse_error']}")
        if terminated or truncated:
            _show(observation, env.turn, pictures)
            end = "done" if terminated else "out of turns"
            say(f"{end} after {env.turn} turns; reward {total:g}")
            return


class _Images:
    """Writes images to files, in a folder created with the first one."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def save(self, name: str, png: bytes) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="envkit-play-"))
        path = self._folder / name
        with storage_errors(f"cannot write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png)
        return path


def _show(observation: "Observation", turn: int, pictures: _Images) -> None:
    say()
    for number, image in enumerate(observation["images"], start=1):
        path = pictures.save(f"turn-{turn}-{number}.png", image.png_bytes())
        say(f"[image {image.size[0]}x{image.size[1]}] {path}")
    say(f"[{observation['role']}] {observation['text']}")


def _read_reply() -> str | None:
    """Read a reply up to an empty line; None to leave."""
    lines: list[str] = []
    while True:
        try:
            line = input("... " if lines else ">>> ")
        except EOFError:
            return "\n".join(lines) if lines else None
        if line.strip() in _QUIT:
            return None
        if line:
            lines.append(line)
        elif lines:
            return "\n".join(lines)
