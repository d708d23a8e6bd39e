"""Words that shops are made of: products with their options, names, streets and towns."""

from typing import Final

COLOURS: Final = ("black", "white", "green", "blue", "red", "grey")
SIZES: Final = ("small", "medium", "large", "extra large")
WOODS: Final = ("oak", "walnut", "pine", "bamboo")

PRODUCTS: Final[dict[str, tuple[str, ...]]] = {
    "desk lamp": COLOURS,
    "kettle": COLOURS,
    "backpack": COLOURS,
    "umbrella": COLOURS,
    "headphones": COLOURS,
    "notebook": COLOURS,
    "water bottle": COLOURS,
    "alarm clock": COLOURS,
    "keyboard": COLOURS,
    "suitcase": COLOURS,
    "rain jacket": SIZES,
    "sweater": SIZES,
    "hiking socks": SIZES,
    "wool hat": SIZES,
    "yoga pants": SIZES,
    "bathrobe": SIZES,
    "picture frame": WOODS,
    "cutting board": WOODS,
    "bookshelf": WOODS,
    "serving tray": WOODS,
}
"""Products with the options that each may come in. No product's name contains another's."""

FIRST_NAMES: Final = (
    "Amara", "Boris", "Carla", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas",
    "Keiko", "Lars", "Mina", "Nadia", "Oscar", "Priya", "Rosa", "Samir", "Tilda", "Viktor",
)  # fmt: skip
LAST_NAMES: Final = (
    "Abbott", "Bergman", "Castillo", "Dunmore", "Eriksen", "Fontaine", "Galloway", "Hartwell",
    "Ivanov", "Jansen", "Kowalski", "Lindgren", "Moreau", "Novak", "Okafor", "Petrov",
    "Quinlan", "Rossi", "Sandoval", "Thornton",
)  # fmt: skip
STREETS: Final = (
    "Ash Lane", "Birch Road", "Canal Street", "Dover Avenue", "Elder Close", "Fern Hill",
    "Garden Row", "Harbour Street", "Ivy Court", "Juniper Way", "Kiln Lane", "Larch Drive",
)  # fmt: skip
CITIES: Final = (
    "Ashford", "Brookvale", "Crestwick", "Dunhollow", "Eastmere", "Fairhaven", "Glenport",
    "Highmoor", "Kingsbay", "Lowfield",
)  # fmt: skip
DAMAGES: Final = ("crack", "stain", "dent", "scratch")
