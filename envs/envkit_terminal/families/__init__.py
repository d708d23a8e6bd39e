"""Families of generated tasks: each draws a task of a level from a seed."""

import random
from typing import Any, Final

from envkit_terminal.families import filing, scripts, texts
from envkit_terminal.families.draft import LEVELS, Draft, Draw

FAMILIES: Final[dict[str, Draw]] = {
    draw.__name__: draw
    for draw in (
        filing.sort_by_ending,
        filing.rename_files,
        filing.find_file,
        filing.delete_files,
        filing.set_modes,
        filing.pack_folder,
        texts.count_log,
        texts.total_table,
        texts.replace_word,
        texts.merge_lists,
        texts.convert_table,
        scripts.fix_script,
        scripts.write_script,
        scripts.edit_settings,
        scripts.git_commit,
    )
}
NEEDS_GIT: Final = ("git_commit",)
"""Families that need git in the sandbox; drawn only when named."""


def draw(name: str, level: int, seed: int) -> dict[str, Any]:
    """Return the task of a family, a level and a seed, the same on every machine."""
    draft = Draft(rng=random.Random(seed), level=level)
    FAMILIES[name](draft)
    return {
        "family": name,
        "level": level,
        "goal": draft.goal,
        "files": draft.files,
        "setup": draft.setup,
        "environment": draft.environment,
        "checks": draft.checks,
        "solution": draft.solution,
        "reward_range": [0.0, 1.0],
    }


__all__ = ["FAMILIES", "LEVELS", "NEEDS_GIT", "draw"]
