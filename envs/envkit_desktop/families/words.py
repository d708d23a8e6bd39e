"""Words and names for tasks."""

import random
from collections.abc import Sequence
from typing import Final

ACTIONS: Final = (
    "Save", "Print", "Export", "Import", "Archive", "Restore", "Publish", "Refresh", "Compare",
    "Rotate", "Resize", "Rename", "Merge", "Split", "Share", "Verify", "Encrypt", "Compress",
)  # fmt: skip
OPTIONS: Final = (
    "Spell check", "Auto save", "Dark mode", "Line numbers", "Word wrap", "Read aloud",
    "Sync files", "Show hidden", "Snap to grid", "Play sounds", "Show tips", "Large icons",
    "Keep history", "Use proxy", "Send reports", "Start minimised", "Lock screen", "Auto update",
)  # fmt: skip
CITIES: Final = (
    "Lisbon", "Oslo", "Nairobi", "Lima", "Kyoto", "Quito", "Riga", "Accra", "Turin", "Porto",
    "Dakar", "Sofia", "Tunis", "Cork", "Graz", "Malmo", "Bergen", "Leipzig", "Ghent", "Valencia",
    "Split", "Tampere", "Utrecht", "Zadar",
)  # fmt: skip
FIRST_NAMES: Final = (
    "Ada", "Ben", "Chloe", "Dev", "Elif", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kira",
    "Liam", "Mona", "Nils", "Olga", "Pablo", "Rosa", "Sven", "Tara", "Umar", "Vera", "Yusuf",
)  # fmt: skip
LAST_NAMES: Final = (
    "Adler", "Brandt", "Costa", "Dietz", "Evans", "Fuchs", "Garcia", "Hansen", "Ito", "Jansen",
    "Keller", "Lopez", "Meyer", "Novak", "Okoye", "Petrov", "Quinn", "Rossi", "Silva", "Tanaka",
)  # fmt: skip
LEVELS_OF: Final = (
    "Volume",
    "Brightness",
    "Contrast",
    "Zoom",
    "Speed",
    "Balance",
    "Bass",
    "Warmth",
)
GOODS: Final = (
    "Apples", "Batteries", "Candles", "Envelopes", "Folders", "Glasses", "Hammers", "Kettles",
    "Lamps", "Mugs", "Notebooks", "Pencils", "Ropes", "Scissors", "Towels", "Vases",
)  # fmt: skip
STEMS: Final = (
    "report", "budget", "photo", "invoice", "letter", "recipe", "agenda", "poem", "survey", "map",
    "memo", "essay",
)  # fmt: skip
ENDINGS: Final = ("txt", "pdf", "png", "csv")
FOLDERS: Final = ("Work", "Home", "Travel", "Music", "Taxes", "School")
MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip


def full_names(rng: random.Random, count: int) -> list[str]:
    """Return different full names."""
    names: list[str] = []
    while len(names) < count:
        name = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"
        if name not in names:
            names.append(name)
    return names


def look_alikes(rng: random.Random, first: str, count: int) -> list[str]:
    """Return different full names, including the first; many share a part with it."""
    given, family = first.split(" ")
    names = [first]
    while len(names) < count:
        name = rng.choice(
            (
                f"{given} {rng.choice(LAST_NAMES)}",
                f"{rng.choice(FIRST_NAMES)} {family}",
                f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}",
            )
        )
        if name not in names:
            names.append(name)
    return names


def file_names(rng: random.Random, count: int, *, alike: bool = False) -> list[str]:
    """Return different file names; similar ones share their stems."""
    names: list[str] = []
    stems = rng.sample(STEMS, 2) if alike else list(STEMS)
    while len(names) < count:
        number = rng.randint(1, 12)
        name = f"{rng.choice(stems)}{number}.{rng.choice(ENDINGS)}"
        if name not in names:
            names.append(name)
    return names


def code(rng: random.Random, length: int) -> str:
    """Return a code of letters and digits that appears in no other word."""
    return "".join(rng.choice("ABCDEFGHKLMNPRSTUVWXYZ23456789") for _ in range(length))


def listed(texts: Sequence[str]) -> str:
    """Join texts as an English list."""
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1]
