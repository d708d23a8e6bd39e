"""Words, names and sentences that scenarios are made of."""

import random
from collections.abc import Sequence
from typing import Final

CITIES: Final = (
    "Lisbon", "Oslo", "Nairobi", "Lima", "Kyoto", "Quito", "Riga", "Accra", "Turin", "Porto",
    "Dakar", "Sofia", "Tunis", "Cork", "Graz", "Malmo", "Bergen", "Leipzig", "Ghent", "Valencia",
    "Tampere", "Utrecht", "Zadar", "Bristol",
)  # fmt: skip
FIRST_NAMES: Final = (
    "Ada", "Ben", "Chloe", "Dev", "Elif", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kira",
    "Liam", "Mona", "Nils", "Olga", "Pablo", "Rosa", "Sven", "Tara", "Umar", "Vera", "Yusuf",
)  # fmt: skip
LAST_NAMES: Final = (
    "Adler", "Brandt", "Costa", "Dietz", "Evans", "Fuchs", "Garcia", "Hansen", "Ito", "Jansen",
    "Keller", "Lopez", "Meyer", "Novak", "Okoye", "Petrov", "Quinn", "Rossi", "Silva", "Tanaka",
)  # fmt: skip
GOODS: Final = (
    "Apples", "Batteries", "Candles", "Envelopes", "Folders", "Glasses", "Hammers", "Kettles",
    "Lamps", "Mugs", "Notebooks", "Pencils", "Ropes", "Scissors", "Towels", "Vases", "Blankets",
    "Chairs", "Drills", "Funnels",
)  # fmt: skip
STEMS: Final = (
    "report", "budget", "invoice", "letter", "recipe", "agenda", "survey", "memo", "essay",
    "minutes", "draft", "summary", "outline", "journal",
)  # fmt: skip
FOLDERS: Final = (
    "Work", "Travel", "Music", "Taxes", "School", "Garden", "Archive", "Clients", "Photos",
    "Projects", "Recipes", "Letters",
)  # fmt: skip
TITLES: Final = (
    "Opening hours", "Travel plans", "Budget review", "Meeting notes", "Safety rules",
    "Reading list", "House rules", "Project goals", "Office move", "Summer menu",
    "Field report", "Training plan",
)  # fmt: skip
LINES: Final = (
    "Call the plumber about the kitchen tap", "Order new chairs for the meeting room",
    "Send the signed contract to the landlord", "Water the plants on the second floor",
    "Book a table for six on Friday", "Return the library books before noon",
    "Ask the printer for a new estimate", "Check the batteries in the smoke alarm",
    "Collect the parcel from the post office", "Update the guest list for the party",
    "Translate the manual into Spanish", "Back up the photos from the trip",
    "Repair the broken window in the hall", "Renew the parking permit for the van",
    "Prepare the slides for the lecture", "Taste the soup and add more salt",
    "Measure the shelves in the store room", "Print the tickets for the night train",
    "Clean the coffee machine every week", "Invite the neighbours to the concert",
    "Paint the garden fence in dark green", "Compare the offers of three suppliers",
    "Pack warm clothes for the mountain hut", "Write a short biography for the website",
)  # fmt: skip
SENTENCES: Final = (
    "The river floods the lower meadow every spring.",
    "Our train leaves from the third platform.",
    "The bakery opens an hour before the school.",
    "Nobody has found the key to the old cellar.",
    "The museum shows maps from four centuries.",
    "Rain is expected in the northern valleys.",
    "The committee meets again after the holidays.",
    "A new bridge will replace the ferry next year.",
    "The orchestra rehearses in the town hall.",
    "Most visitors arrive by bus or by bicycle.",
    "The harvest was smaller than the year before.",
    "Two engineers inspected the turbine on site.",
    "The library lends tools as well as books.",
    "Every member may bring one guest to the dinner.",
    "The lighthouse was painted white and red.",
    "Fresh bread is delivered on weekdays only.",
    "The survey covers nine villages on the coast.",
    "Volunteers planted two hundred young trees.",
)  # fmt: skip
PLAIN: Final = (
    "amber", "barrel", "cactus", "dolphin", "ember", "falcon", "granite", "harbor", "island",
    "juniper", "kettle", "lantern", "meadow", "nectar", "orchid", "pepper", "quartz", "ribbon",
    "saffron", "timber", "umbrella", "velvet", "walnut", "yellow",
)  # fmt: skip
MISSPELLED: Final = {
    "receive": "recieve", "separate": "seperate", "calendar": "calender", "necessary": "neccessary",
    "address": "adress", "tomorrow": "tommorow", "business": "buisness", "committee": "comittee",
    "beginning": "begining", "government": "goverment", "restaurant": "restaraunt",
    "definitely": "definately",
}  # fmt: skip
"""A word and a common misspelling of it."""


def full_names(rng: random.Random, count: int) -> list[str]:
    """Return different full names; no two share a first or a last name while enough are left."""
    firsts, lasts = rng.sample(FIRST_NAMES, count), rng.sample(LAST_NAMES, count)
    return [f"{first} {last}" for first, last in zip(firsts, lasts, strict=True)]


def code(rng: random.Random, length: int = 6) -> str:
    """Return a code of letters and digits that appears in no other word."""
    return "".join(rng.choice("ABCDEFGHKLMNPRSTUVWXYZ23456789") for _ in range(length))


def listed(texts: Sequence[str]) -> str:
    """Join texts as an English list."""
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1]


def quoted(text: str) -> str:
    """Return the text in double quotes."""
    return f'"{text}"'
