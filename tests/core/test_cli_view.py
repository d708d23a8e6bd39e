"""What `envkit view` shows of a run, and of images in a terminal."""

import re
from pathlib import Path

import numpy as np
import pytest
from fakes.command import run_envkit
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PilImage

from envkit.cli.pictures import ImageStyle, half_blocks, resolved, sixels
from envkit.images import Image
from envkit.trajectory.storage import FILE_NAME


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
    assert result.out.count("[assistant]") == result.out.count("  turn ") == 9
    assert "\x1b" not in result.out


def test_view_shows_one_episode_and_refuses_a_missing_one(run: Path) -> None:
    result = run_envkit("view", run, "-e", "2")
    assert "episode 2:" in result.out
    assert "episode 1:" not in result.out
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


def test_view_of_no_file_is_an_error(tmp_path: Path) -> None:
    assert run_envkit("view", tmp_path / "nowhere").code == 1


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

    typed = iter(["", "3", "n", "p", "1", "p", "q"])

    def answer(_prompt: str) -> str:
        return next(typed)

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    module.view(run, episode=None, images="none")
    seen = re.findall(r"episode (\d)", re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out))
    assert seen == ["1", "2", "3", "2", "1"]
