"""Contracts with other people's packages: what moved is named, before anything uses it."""

import inspect
from pathlib import Path

import gymnasium
import pytest

from envkit.errors import ConfigurationError, MissingDependencyError
from envkit.upstream import Contract

SOURCE = '''
try:
    import fast
except ImportError:
    def loads(text): ...

class Output:
    """Rows."""
    ids: list[int]
    mask = ()
    def __init__(self, *, width):
        self.width, self.height = width, 1
    async def run(self, params, /, extra=None, *, seed): ...

def collate(rows, **options): ...
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "loops").mkdir()
    (tmp_path / "loops" / "__init__.py").write_text("def start(port): ...\n")
    (tmp_path / "loops" / "agent.py").write_text(SOURCE)
    (tmp_path / "__init__.py").write_text("def main(): ...\n")
    return tmp_path


def test_contract_holds_if_every_name_exists(root: Path) -> None:
    held = Contract(
        package="trainer",
        tested="1.0",
        install="pip install trainer",
        uses={
            "trainer.loops.agent:Output": ("ids", "mask", "width", "height", "run"),
            "trainer.loops.agent:Output.run": ("params", "extra", "seed"),
            "trainer.loops.agent:collate": ("anything",),
            "trainer.loops.agent:loads": ("text",),
            "trainer.loops:start": ("port",),
            "trainer:main": (),
            "trainer.gone|trainer.loops:start": ("port",),  # before and after a move
        },
    )
    assert held.moved(root) == ()


@pytest.mark.parametrize(
    ("place", "names", "said"),
    [
        ("trainer.gone:Output", (), "no module trainer.gone"),
        ("trainer.gone|trainer.lost:f", (), "no module trainer.gone or trainer.lost"),
        ("trainer.loops.agent:Gone", ("ids",), "no trainer.loops.agent:Gone"),
        ("trainer.loops.agent:Output.gone", (), "no trainer.loops.agent:Output.gone"),
        ("trainer.loops.agent:Output", ("ids", "rows"), "trainer.loops.agent:Output has no 'rows'"),
        (
            "trainer.loops.agent:Output.run",
            ("params", "step"),
            "trainer.loops.agent:Output.run has no 'step'",
        ),
    ],
)
def test_contract_names_moved_parts(
    root: Path, place: str, names: tuple[str, ...], said: str
) -> None:
    moved = Contract(
        package="trainer", tested="1.0", install="pip install trainer", uses={place: names}
    ).moved(root)
    assert moved == (said,)


def test_contract_of_an_installed_package_is_checked_against_its_real_signatures() -> None:
    real = inspect.signature(gymnasium.Env.step).parameters
    Contract(
        package="gymnasium",
        tested="1.0",
        install="pip install gymnasium",
        uses={
            "gymnasium.core:Env.step": tuple(real),
            "gymnasium.core:Env": ("reset", "render", "close", "action_space"),
        },
    ).check()
    broken = Contract(
        package="gymnasium",
        tested="0.1",
        install="pip install it",
        uses={"gymnasium.core:Env.step": ("reward",)},
    )
    with pytest.raises(ConfigurationError, match=r"gymnasium \d.*\(0\.1\).*has no 'reward'"):
        broken.check()


def test_contract_with_a_package_that_is_not_installed_says_so() -> None:
    with pytest.raises(MissingDependencyError, match=r"no_such_trainer.*pip install it"):
        Contract(package="no_such_trainer", tested="1.0", install="pip install it", uses={}).check()


def test_contract_reads_the_same_names_as_the_interpreter() -> None:
    public = [name for name in vars(gymnasium.Env) if not name.startswith("__")]
    uses = {"gymnasium.core:Env": tuple(public)}
    assert (
        Contract(package="gymnasium", tested="1.0", install="pip install it", uses=uses).moved()
        == ()
    )
