"""`envkit view` and `envkit ui`: what they show, how they end, and what they refuse."""

import asyncio
import errno
import io
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from fakes.branching import IMAGES, SUMMARY, rewritten, tree
from fakes.command import run_envkit, start_envkit
from fakes.marked_runs import grouped_run
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PilImage
from rich.cells import cell_len

from envkit.cli.images import ImageStyle, half_blocks, resolved, sixels
from envkit.cli.rich_console import PrintableConsole
from envkit.cli.run_page import print_run
from envkit.cli.view import view
from envkit.images import Image
from envkit.trajectory import StopReason, Trajectory, load, save
from envkit.trajectory.storage import FILE_NAME, LineReader, StoredLine
from envkit.viewer.run import RunData, read_run
from envkit.viewer.run_text import sections
from envkit.viewer.wording import STOPS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of the canary."""
    out = tmp_path_factory.mktemp("runs") / "canary"
    command = ["rollout", "canary-v0", "--policy", "oracle", "-n", "3", "--out", str(out)]
    assert run_envkit(*command).code == 0
    return out


def test_view_shows_every_episode_where_no_terminal_reads(run: Path) -> None:
    result = run_envkit("view", run)
    assert result.code == 0
    assert [f"episode {n}:" in result.out for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert result.out.count("[image ") == 9
    assert re.findall(r"^turn (\d)", result.out, re.M) == ["1", "2", "3"] * 3
    assert len(re.findall(r"^   Tokens  \d+ sampled", result.out, re.M)) == 9
    assert "\x1b" not in result.out


def test_view_reads_no_further_than_its_reader_does(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (episode, *_) = load(run)
    save([replace(episode, episode_id=f"copy {n}") for n in range(20)], tmp_path / FILE_NAME)
    asked: list[int] = []
    read = LineReader.read

    def counted(self: LineReader, position: int) -> StoredLine | None:
        asked.append(position)
        return read(self, position)

    monkeypatch.setattr(LineReader, "read", counted)
    lines, printed = io.StringIO(), io.StringIO.write

    class Head(io.StringIO):
        def write(self, text: str) -> int:
            if lines.getvalue().count("episode 3:"):
                raise BrokenPipeError(errno.EPIPE, "Broken pipe")
            return printed(lines, text)

    monkeypatch.setattr("sys.stdout", Head())
    view(tmp_path, episode=None, images="none")
    assert asked == [1, 2, 3]
    assert "episode 2:" in lines.getvalue()


def test_view_ends_quietly_when_its_reader_does(run: Path, tmp_path: Path) -> None:
    (episode, *_) = load(run)
    save([replace(episode, episode_id=f"copy {n}") for n in range(200)], tmp_path / FILE_NAME)
    process = start_envkit("view", tmp_path)
    assert process.stdout is not None
    assert "episode 1:" in process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(120) == 0


def test_view_shows_the_run_after_its_episodes_where_no_terminal_reads(run: Path) -> None:
    out = run_envkit("view", run).out
    assert out.index("episode 3:") < out.index("What matters")


def test_view_shows_one_episode_and_refuses_a_missing_one(run: Path) -> None:
    result = run_envkit("view", run, "-e", "2")
    assert "episode 2:" in result.out
    assert "episode 1:" not in result.out
    assert "What matters" not in result.out
    missing = run_envkit("view", run, "-e", "4")
    assert missing.code == 2
    assert "has 3 episodes" in missing.err


def test_view_draws_images_where_it_is_asked_to(run: Path) -> None:
    blocks = run_envkit("view", run, "-e", "1", "--images", "blocks").out
    assert "▀" in blocks
    assert "38;2;" in blocks
    sixel = run_envkit("view", run, "-e", "1", "--images", "sixel").out
    assert sixel.count("\x1bPq") == 3
    assert run_envkit("view", run, "--images", "big").code == 2


def test_view_shows_what_is_readable_and_names_what_is_not(run: Path, tmp_path: Path) -> None:
    lines = (run / FILE_NAME).read_bytes().splitlines(keepends=True)
    file = tmp_path / FILE_NAME
    file.write_bytes(lines[0] + b"garbage\n" + lines[1] + lines[2][:500])
    result = run_envkit("view", file)
    assert result.code == 0
    assert [f"episode {n}:" in result.out for n in (1, 2, 3, 4)] == [True, False, True, False]
    assert "episode 2 cannot be read" in result.err
    assert "episode 4 cannot be read" in result.err
    assert result.out.count("image missing") == 6  # the images were left behind


@pytest.mark.parametrize("content", ["", "notes\n", '{"a": 1}\n'])
@pytest.mark.parametrize("command", ["view", "report", "verify"])
def test_file_without_an_episode_is_an_error(command: str, content: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    result = run_envkit(command, tmp_path)
    assert result.code == 1
    assert re.search(
        "no readable episode|nothing to verify|1 problem$", result.out + result.err, re.M
    )
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize(
    ("term", "program", "style"),
    [
        ("foot", "", ImageStyle.SIXEL),
        ("xterm-256color", "WezTerm", ImageStyle.SIXEL),
        ("xterm-256color", "", ImageStyle.BLOCKS),
    ],
)
def test_auto_uses_sixels_if_the_terminal_draws_them(
    term: str, program: str, style: ImageStyle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("TERM_PROGRAM", program)
    assert resolved(ImageStyle.AUTO) is style
    assert resolved(ImageStyle.NONE) is ImageStyle.NONE


def _picture(width: int, height: int, seed: int) -> Image:
    colours = np.random.default_rng(seed).integers(0, 256, (4, 3), dtype=np.uint8)
    chosen = np.random.default_rng(seed + 1).integers(0, 4, (height, width))
    return Image.from_pil(PilImage.fromarray(colours[chosen]))


@given(st.integers(1, 30), st.integers(1, 20), st.integers(0, 99))
def test_half_blocks_show_every_pixel(width: int, height: int, seed: int) -> None:
    image = _picture(width, height, seed)
    text = half_blocks(image, 40)
    lines = text.split("\n", allow_blank=False)
    assert [len(line) for line in lines] == [width] * ((height + 1) // 2)
    pixels = np.asarray(image.pil().convert("RGB"))
    spans = [span.style for line in lines for span in line.spans]
    shown = [
        (*style.color.triplet, *style.bgcolor.triplet)  # type: ignore[union-attr]
        for style in spans
    ]
    wanted = [
        (*pixels[y, x], *pixels[min(y + 1, height - 1), x])
        for y in range(0, height, 2)
        for x in range(width)
    ]
    assert shown == wanted


@given(st.integers(1, 30), st.integers(1, 20), st.integers(0, 99))
def test_sixels_hold_every_pixel(width: int, height: int, seed: int) -> None:
    image = _picture(width, height, seed)
    shown = _decoded(sixels(image, 40), width, height)
    wanted = np.asarray(image.pil().convert("RGB")).astype(int)
    assert np.abs(shown - wanted).max() <= 2  # colours are given in hundredths


def _decoded(text: str, width: int, height: int) -> np.ndarray:
    """Read sixels as a terminal does."""
    assert text.startswith(f'\x1bPq"1;1;{width};{height}')
    assert text.endswith("\x1b\\")
    body = text[len(f'\x1bPq"1;1;{width};{height}') : -2]
    pixels = np.full((height, width, 3), -1)
    palette: dict[int, list[int]] = {}
    colour, x, top = 0, 0, 0
    for token in re.findall(r"#\d+;2;\d+;\d+;\d+|#\d+|!\d+[?-~]|[?-~]|\$|-", body):
        if token.startswith("#") and ";" in token:
            number, _, *shares = map(int, token[1:].split(";"))
            palette[number] = [round(share * 2.55) for share in shares]
        elif token.startswith("#"):
            colour = int(token[1:])
        elif token == "$":
            x = 0
        elif token == "-":
            x, top = 0, top + 6
        else:
            count = int(token[1:-1]) if token.startswith("!") else 1
            bits = ord(token[-1]) - 63
            for column in range(x, x + count):
                for row in range(6):
                    if bits >> row & 1:
                        pixels[top + row, column] = palette[colour]
            x += count
    return pixels


def test_image_that_is_wide_is_shrunk_and_never_enlarged() -> None:
    wide = Image.from_pil(PilImage.new("RGB", (400, 100), "red"))
    assert [len(line) for line in half_blocks(wide, 40).split("\n", allow_blank=False)] == [40] * 5
    small = Image.from_pil(PilImage.new("RGBA", (4, 2), (0, 0, 0, 0)))
    assert len(half_blocks(small, 40).split("\n", allow_blank=False)[0]) == 4


def test_view_pages_by_what_a_person_types(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from envkit.cli import view as module

    typed = iter(["", "", "3", "n", "p", "1", "p", "r", "q"])

    def answer(_prompt: str) -> str:
        return next(typed)

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    module.view(run, episode=None, images="none")
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    seen = re.findall(r"(What matters|episode \d:)", text)
    episodes = [f"episode {n}:" for n in (1, 2, 3, 2, 1)]
    assert seen == ["What matters", *episodes, "What matters"]


@pytest.fixture(scope="module")
def branched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A summarised episode, one whose images were dropped, and a tree of four leaves."""
    file = tmp_path_factory.mktemp("runs") / "branched.jsonl"

    async def played() -> list[Trajectory]:
        summarised, dropped = await rewritten(SUMMARY), await rewritten(IMAGES, images=True)
        return [summarised, dropped, *await tree()]

    save(asyncio.run(played()), file)
    return file


def test_view_draws_a_tree_and_shows_shared_turns_once(branched: Path) -> None:
    out = run_envkit("view", branched).out
    assert "Tree with 4 leaves: mean reward 6, best 6" in out
    drawn = re.findall(
        r"^   ([├└│─ ]*)episode (\d) +6  (forked at turn \d of 6|6 turns)", out, re.M
    )
    assert drawn[2:] == [
        ("", "3", "6 turns"),
        ("├─ ", "4", "forked at turn 2 of 6"),
        ("│  └─ ", "6", "forked at turn 4 of 6"),
        ("└─ ", "5", "forked at turn 4 of 6"),
    ]
    pages = dict(re.findall(r"─ episode (\d): (.*?)(?=─ episode \d:|\Z)", out, re.S))
    turns = {n: re.findall(r"^turn (\d)", page, re.M) for n, page in pages.items()}
    assert (turns["3"], turns["4"], turns["6"]) == (list("123456"), list("23456"), list("456"))
    assert "Forked from episode 4 at turn 4. Turns 1 to 3 are shown there." in pages["6"]
    whole = run_envkit("view", branched, "-e", "6").out
    assert re.findall(r"^turn (\d)", whole, re.M) == list("123456")
    assert " at turn 4. Turns 1 to 3 are the same as there." in " ".join(whole.split())


def test_view_says_what_was_rewritten_and_what_the_model_saw(branched: Path) -> None:
    summarised = run_envkit("view", branched, "-e", "1").out
    assert "turn 3  question to the model · summarise\n" in summarised
    assert "model, for its own history\n   I saw screens." in summarised
    assert re.search(r"History rewritten · summarise · \d+ → \d+ tokens", summarised)
    assert "environment, rewritten  Screen 0. Summary of the work so far: I saw" in summarised
    dropped = run_envkit("view", branched, "-e", "2").out
    assert "keep last images" in dropped
    assert "2 of 3 images dropped" in dropped
    assert "Dropped: the images of turns 1, 2." in dropped


@pytest.mark.parametrize("width", [60, 120])
def test_view_fits_the_terminal(branched: Path, run: Path, width: int) -> None:
    for source in (branched, run):
        for line in _printed(read_run(source), width).splitlines():
            assert cell_len(line) <= width


def _printed(run: RunData, width: int) -> str:
    console = PrintableConsole(width=width, file=io.StringIO())
    print_run(run, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_view_has_the_headings_of_the_browser_in_its_order(branched: Path, run: Path) -> None:
    page = (resources.files("envkit.viewer") / "assets" / "overview.js").read_text("utf-8")
    body = page[page.index("return [headline(") :]
    drawn_by = {
        "What matters": "headline(",
        "Causes of faults": "causes(",
        "Solve rate by group": "groupStrip(",
        "Time per turn": "times(",
        "Checked observations": "renders(",
        "By family": "families",
        "Slowest episodes": "slowest)",
    }
    for source in (branched, run):
        found = sections(read_run(source))
        for section in found:
            assert f'"{section.title}"' in page
        places = [body.index(drawn_by.get(one.title, f'"{one.title}"')) for one in found]
        assert places == sorted(places)
        labels = [page.index(f'figure("{row[0]}"') for row in found[0].rows]
        assert labels == sorted(labels)


def test_stop_reasons_have_the_words_of_the_browser() -> None:
    page = (resources.files("envkit.viewer") / "assets" / "model.js").read_text("utf-8")
    listed = re.search(r"const STOPS = \{(.*?)\};", page, re.S)
    assert listed is not None
    assert dict(re.findall(r'(\w+): "([^"]*)"', listed[1])).items() <= STOPS.items()
    assert set(STOPS) == set(StopReason)


def test_view_goes_on_after_a_damaged_image_and_a_huge_text(run: Path, tmp_path: Path) -> None:
    save([replace(one, engine="x" * 10_000_000) for one in load(run)], tmp_path / FILE_NAME)
    for image in (tmp_path / "images").iterdir():
        image.write_bytes(b"\x89PNG\r\n\x1a\n")
    result = run_envkit("view", tmp_path)
    assert result.code == 0
    assert result.out.count("image missing") == 9
    assert result.out.count("9,900,000 more characters") == 3
    assert len(result.out) < 1_000_000


@contextmanager
def shown(*arguments: object) -> Generator[tuple[str, "subprocess.Popen[str]"]]:
    """Run the command on a free port; give its address and its process."""
    process = start_envkit("ui", *arguments, "--port", 0, "--no-open")
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?key=\S{32}", line), line
        yield line, process
    finally:
        process.kill()
        process.communicate()


def interrupted(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Press Ctrl-C; return the exit code and standard error."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def test_ui_serves_until_ctrl_c(tmp_path: Path) -> None:
    save(grouped_run(groups=1), tmp_path / "run" / FILE_NAME)
    with shown(tmp_path) as (address, process):
        with urllib.request.urlopen(address, timeout=120) as page:
            assert page.status == 200
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(address.split("?")[0], timeout=120)
        code, errors = interrupted(process)
    assert code == 0
    assert errors.splitlines() == ["press Ctrl-C to stop", "stopped"]


@pytest.mark.slow
def test_ui_waits_in_a_folder_without_runs(tmp_path: Path) -> None:
    with shown(tmp_path) as (_, process):
        code, errors = interrupted(process)
    assert code == 0
    assert errors.splitlines()[0] == (
        f"{tmp_path} has no runs yet; they appear when a rollout starts"
    )


@pytest.mark.slow
def test_ui_makes_a_new_key_each_time(tmp_path: Path) -> None:
    with shown(tmp_path) as (first, _), shown(tmp_path) as (second, _):
        assert first.partition("key=")[2] != second.partition("key=")[2]


def test_ui_says_that_its_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = run_envkit("ui", tmp_path, "--port", port, "--no-open")
    assert outcome.code == 1
    assert f"port {port} of 127.0.0.1 is in use" in outcome.last_error


@pytest.mark.parametrize("name", ["missing", "file"])
def test_ui_refuses_what_is_not_a_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = run_envkit("ui", tmp_path / name, "--no-open")
    assert outcome.code == 1
    assert name in outcome.last_error


def test_ui_says_that_a_folder_cannot_be_read(tmp_path: Path) -> None:
    run_envkit("ui", tmp_path / "missing", "--no-open")  # imports what another user could not
    folder = tmp_path / "runs"
    folder.mkdir(mode=0)
    user = os.geteuid()
    if user == 0:  # root reads everything
        os.seteuid(65534)
    try:
        outcome = run_envkit("ui", folder, "--port", 0, "--no-open")
    finally:
        os.seteuid(user)
    assert outcome.code == 1
    assert "runs" in outcome.last_error
    assert "Permission denied" in outcome.last_error


@pytest.mark.slow
def test_ui_shows_the_folder_of_runs_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with shown() as (_, process):
        _, errors = interrupted(process)
    assert errors.startswith("runs has no runs yet")
