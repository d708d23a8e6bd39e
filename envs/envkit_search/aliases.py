"""Aliases of places, currencies and elements, by their name in the fact table.

They are accepted as answers and appear on no page. A name with accents needs no entry without them.
"""

from typing import Final

Aliases = dict[str, tuple[str, ...]]

COUNTRIES: Final[Aliases] = {
    "Aland Islands": ("Åland", "Åland Islands"),
    "Bahamas": ("The Bahamas",),
    "Brunei": ("Brunei Darussalam",),
    "Cabo Verde": ("Cape Verde",),
    "China": ("People's Republic of China",),
    "Cocos Islands": ("Cocos (Keeling) Islands", "Keeling Islands"),
    "Czechia": ("Czech Republic",),
    "Democratic Republic of the Congo": ("DR Congo", "DRC", "Congo-Kinshasa"),
    "Eswatini": ("Swaziland",),
    "Gambia": ("The Gambia",),
    "Hong Kong": ("Hong Kong SAR",),
    "Iran": ("Islamic Republic of Iran",),
    "Ivory Coast": ("Côte d'Ivoire", "Cote d'Ivoire"),
    "Kyrgyzstan": ("Kyrgyz Republic",),
    "Laos": ("Lao PDR",),
    "Macao": ("Macau",),
    "Micronesia": ("Federated States of Micronesia",),
    "Myanmar": ("Burma",),
    "Netherlands": ("The Netherlands", "Holland"),
    "North Korea": ("Democratic People's Republic of Korea", "DPRK"),
    "North Macedonia": ("Macedonia",),
    "Palestinian Territory": ("Palestine", "State of Palestine", "Palestinian Territories"),
    "Republic of the Congo": ("Congo-Brazzaville", "Congo Republic"),
    "Russia": ("Russian Federation",),
    "Saint Martin": ("Saint-Martin",),
    "Slovakia": ("Slovak Republic",),
    "South Korea": ("Republic of Korea", "Korea, Republic of"),
    "Svalbard and Jan Mayen": ("Svalbard",),
    "Syria": ("Syrian Arab Republic",),
    "Taiwan": ("Republic of China",),
    "Timor Leste": ("Timor-Leste", "East Timor"),
    "Turkey": ("Türkiye",),
    "U.S. Virgin Islands": ("US Virgin Islands", "United States Virgin Islands"),
    "United Arab Emirates": ("UAE", "The United Arab Emirates"),
    "United Kingdom": ("UK", "U.K.", "Great Britain", "Britain"),
    "United States": ("USA", "US", "U.S.", "U.S.A.", "United States of America"),
    "Vietnam": ("Viet Nam",),
}
"""No alias is another country's name."""

CAPITALS: Final[Aliases] = {
    "Asuncion": ("Asunción",),
    "Astana": ("Nur-Sultan",),
    "Bern": ("Berne",),
    "Bogota": ("Bogotá",),
    "Brasilia": ("Brasília",),
    "Chisinau": ("Chișinău",),
    "Ciudad de la Paz": ("Oyala",),
    "El-Aaiun": ("Laayoune", "El Aaiún"),
    "Hagatna": ("Hagåtña",),
    "Kyiv": ("Kiev",),
    "Lome": ("Lomé",),
    "Luxembourg": ("Luxembourg City",),
    "Macao": ("Macau",),
    "Male": ("Malé",),
    "Mexico City": ("Ciudad de México",),
    "Nay Pyi Taw": ("Naypyidaw", "Naypyitaw"),
    "Noumea": ("Nouméa",),
    "Port-aux-Francais": ("Port-aux-Français",),
    "Pristina": ("Prishtina", "Priština"),
    "Reykjavik": ("Reykjavík",),
    "Saint Helier": ("St Helier", "St. Helier"),
    "San Jose": ("San José",),
    "Sanaa": ("Sana'a",),
    "Sao Tome": ("São Tomé",),
    "St Peter Port": ("St. Peter Port", "Saint Peter Port"),
    "St. George's": ("Saint George's", "St George's"),
    "St. John's": ("Saint John's", "St John's"),
    "Tarawa": ("South Tarawa",),
    "Torshavn": ("Tórshavn",),
    "Ulaanbaatar": ("Ulan Bator",),
    "Washington": ("Washington, D.C.", "Washington DC", "Washington D.C."),
    "Yaounde": ("Yaoundé",),
}

CURRENCIES: Final[Aliases] = {
    "Bolivar Soberano": ("Bolivar", "Bolívar", "Sovereign bolivar"),
    "Colon": ("Colón",),
    "Cordoba": ("Córdoba",),
    "Guarani": ("Guaraní",),
    "Marka": ("Convertible mark", "Convertible marka"),
    "Riels": ("Riel",),
    "Ruble": ("Rouble",),
    "Belarusian ruble": ("Ruble", "Rouble", "Belarusian rouble"),
    "Tugrik": ("Tögrög", "Togrog"),
    "Yuan Renminbi": ("Yuan", "Renminbi"),
    "Zloty": ("Złoty",),
}

ELEMENTS: Final[Aliases] = {
    "Aluminum": ("Aluminium",),
    "Cesium": ("Caesium",),
    "Sulfur": ("Sulphur",),
}
