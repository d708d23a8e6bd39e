"""envkit's metadata, for environments that have its sources on their path only."""

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def install_metadata(folder: Path) -> Path:
    """Write the metadata of an installed envkit; whoever has the folder on its path finds plugins.

    Args:
        folder: An existing one, which is returned.
    """
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"envkit_rl-{project['version']}.dist-info"
    info.mkdir()
    header = f"Metadata-Version: 2.1\nName: envkit-rl\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(header)
    lines: list[str] = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder
