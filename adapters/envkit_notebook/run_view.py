"""The run that an episode belongs to, for the front end: its figures and its trees."""

import os
from typing import Any, Final

from envkit.text import utf8
from envkit.trajectory.storage import trajectory_file
from envkit.trajectory.trajectory import Trajectory
from envkit.viewer.run import RunData, read_run
from envkit.viewer.run_text import groups, heading, notes, sections
from envkit_notebook.recorded import Source

_AT_ONCE_BYTES: Final = 16 << 20
"""A larger file is read only when a person asks for the figures."""


def is_small(source: Source) -> bool:
    """Return whether the figures of a source are there within a second or so."""
    if not isinstance(source, (str, os.PathLike)):
        return True
    return trajectory_file(source).stat().st_size <= _AT_ONCE_BYTES


def run_view(source: Source) -> dict[str, Any]:
    """Return the figures of a run and its episodes by group and tree, as JSON data.

    Raises:
        StorageError: The file cannot be read.
    """
    run = read_run([source] if isinstance(source, Trajectory) else source)
    if not run.rows:
        return {"title": "", "facts": "", "notes": list(map(utf8, run.notes)), "sections": []}
    title, facts = heading(run)
    return {
        "title": utf8(title),
        "facts": utf8(facts),
        "notes": list(map(utf8, notes(run))),
        "sections": [
            {
                "title": section.title,
                "note": section.note,
                "rows": [list(map(utf8, row)) for row in section.rows],
            }
            for section in sections(run)
        ],
        "groups": _groups(run),
    }


def _groups(run: RunData) -> list[dict[str, Any]]:
    return [
        {
            "task": utf8(group.task),
            "facts": group.facts,
            "members": [
                {
                    "index": member.number - 1,
                    "guide": member.guide,
                    "name": f"episode {member.number}",
                    "reward": member.reward,
                    "facts": utf8(member.facts),
                }
                for member in group.members
            ],
        }
        for group in groups(run)
    ]
