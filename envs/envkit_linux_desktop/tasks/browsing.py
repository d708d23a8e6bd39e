"""Browser families: Chromium on pages in the home folder, without a network."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit_linux_desktop.tasks import words
from envkit_linux_desktop.tasks.checks import Home, Kept, Number, Text, read_text
from envkit_linux_desktop.tasks.clues import clutter, expect, html_table, page, then_log, told
from envkit_linux_desktop.tasks.scenario import BROWSER, Draft, families
from envkit_linux_desktop.tasks.words import listed, quoted

_BOOKMARKS: Final = ".config/chromium/Default/Bookmarks"
_SAVE: Final = """
function save(name, lines) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([lines.join("\\n") + "\\n"], {type: "text/plain"}));
  link.download = name;
  link.click();
}
document.getElementById("send").addEventListener("click", (event) => {
  event.preventDefault();
  const lines = [];
  for (const field of document.querySelectorAll("[data-label]")) {
    const isChoice = field.type === "radio" || field.type === "checkbox";
    if (isChoice ? field.checked : field.value !== "" && field.value !== "0")
      lines.push(field.dataset.label + ": " + field.value);
  }
  save(document.body.dataset.file || "form.txt", lines);
});
"""


def _show(draft: Draft, name: str, html: str) -> str:
    """Add a page, open it in the browser and return its path."""
    path = draft.add(f"Documents/{name}", html)
    draft.open(*BROWSER, path)
    return path


def _form(draft: Draft, title: str, fields: str, button: str, file: str, lines: list[str]) -> None:
    """Show a form whose button saves a file of the entries, and expect that file."""
    script = f'document.body.dataset.file = "{file}";{_SAVE}'
    body = f'<form>{fields}<button id="send">{button}</button></form>'
    _show(draft, f"{title.lower()}.html", page(title, body, script))
    draft.expect(Text(path=f"Downloads/{file}", text="\n".join(lines)))


def _field(label: str, kind: str = "text", value: str = "") -> str:
    return f'<label>{label} <input type="{kind}" data-label="{label}" value="{value}"></label>\n'


def fill_form(draft: Draft) -> None:
    """Fill in a registration form."""
    name, *others = words.full_names(draft.rng, 7)
    fields = {
        "Name": name,
        "City": draft.one(words.CITIES),
        "Phone": f"0{draft.rng.randint(10**6, 10**7)}",
        "Company": draft.one(words.GOODS),
        "Room": str(draft.rng.randint(100, 999)),
        "Remark": draft.one(words.LINES),
    }
    kept = dict(list(fields.items())[: draft.at(2, 4, 5, 6)])
    said = {label: quoted(value) for label, value in kept.items()}
    said["Name"] = told(draft, "name", name, others)
    html = "".join(_field(label) for label in fields)
    lines = [f"{label}: {value}" for label, value in kept.items()]
    _form(draft, "Registration", html, "Register", "registration.txt", lines)
    clutter(draft)
    entries = listed([f"{value} as {label}" for label, value in said.items()])
    draft.say(
        f"Fill in the registration form in the browser with {entries}. Leave other fields empty "
        "and press Register, which saves a file in Downloads.",
        f"Register in the open web page with {entries}, and nothing else. The button Register "
        "saves the entries in Downloads.",
    )


def order_goods(draft: Draft) -> None:
    """Order amounts of goods on a page."""
    goods = draft.some(words.GOODS, draft.at(4, 8, 14, 20))
    wanted = draft.some(goods, draft.at(2, 3, 4, 5))
    chosen = [good for good in goods if good in wanted]  # the page lists them in this order
    amounts = {good: draft.rng.randint(2, 60) for good in chosen}
    said = [f"{amount} {good}" for good, amount in amounts.items()]
    last = told(draft, "amount", str(amounts[chosen[-1]]), [str(n) for n in range(2, 60)])
    if draft.level == 4:
        said[-1] = f"as many {chosen[-1]} as {last}"
    fields = "".join(_field(good, "number", "0") for good in goods)
    lines = [f"{good}: {amount}" for good, amount in amounts.items()]
    _form(draft, "Order", fields, "Place order", "order.txt", lines)
    clutter(draft)
    draft.say(
        f"Order {listed(said)} on the web page, and nothing else. Then press Place order, which "
        "saves the order in Downloads.",
        f"Use the order page in the browser to order {listed(said)}. Press Place order to save "
        "the order to Downloads.",
    )


def answer_survey(draft: Draft) -> None:
    """Choose options in a survey."""
    count = draft.at(4, 5, 7, 9)
    topics = draft.some(words.TITLES, count)
    rows, lines, said = "", list[str](), list[str]()
    for number, topic in enumerate(topics):
        options = draft.some(words.PLAIN, 4)
        answer = draft.one(options)
        rows += f"<fieldset><legend>{topic}</legend>" + "".join(
            f'<label><input type="radio" name="q{number}" data-label="{topic}" value="{option}"> '
            f"{option}</label>"
            for option in options
        )
        rows += "</fieldset>\n"
        lines.append(f"{topic}: {answer}")
        said.append(f'"{answer}" for {topic}')
    _form(draft, "Survey", rows, "Send answers", "survey.txt", lines)
    clutter(draft)
    draft.say(
        f"Answer the survey in the browser with {listed(said)}. Press Send answers, which saves a "
        "file in Downloads.",
        f"On the survey page, choose {listed(said)}. Then press Send answers to save them to "
        "Downloads.",
    )
    then_log(draft)


def look_up_value(draft: Draft) -> None:
    """Look up a value in a table and note it."""
    names = words.full_names(draft.rng, draft.at(6, 12, 18, 20))
    rows = [("Name", "City", "Account", "Room")]
    for name in names:
        rows.append(
            (name, draft.one(words.CITIES), words.code(draft.rng), words.code(draft.rng, 4))
        )
    row = draft.one(rows[1:])
    at = draft.one((2, 3))
    _show(draft, "staff.html", page("Staff", html_table(rows)))
    said = told(draft, "name", row[0], names)
    new = draft.path("txt")
    draft.open("mousepad")
    expect(draft, Text(path=new, text=row[at]))
    draft.say(
        f"Find the {rows[0][at].lower()} of {said} on the page in the browser and save it, alone, "
        f"in a new text file {new}.",
        f"What is the {rows[0][at].lower()} of {said} according to the web page? Write only that "
        f"into {new}.",
    )


def download_file(draft: Draft) -> None:
    """Download one of many files."""
    count = draft.at(2, 4, 8, 12)
    names = [f"{draft.one(words.PLAIN)}-{n}.bin" for n in draft.some(list(range(10, 99)), count)]
    titles = draft.some([f"{city} {good}" for city in words.CITIES for good in words.GOODS], count)
    for name in names:
        draft.add(f"Documents/files/{name}", draft.rng.randbytes(300))
    links = "".join(
        f'<li><a href="files/{name}">{title}</a></li>\n'
        for name, title in zip(names, titles, strict=True)
    )
    _show(draft, "archive.html", page("Archive", f"<ul>{links}</ul>"))
    at = draft.rng.randrange(count)
    said = told(
        draft,
        "link",
        titles[at],
        titles if count > 5 else [*titles, *words.CITIES],
        is_named=True,
    )
    data = draft.files[f"Documents/files/{names[at]}"]
    expect(draft, Kept(path=f"Downloads/{names[at]}", data=data))
    draft.say(
        f"Use {said} on the page in the browser to download a file. It belongs in Downloads under "
        "its own name.",
        f"On the web page, find {said} and download its file to Downloads. Keep the file name.",
    )


@dataclass(frozen=True, kw_only=True)
class Bookmarks:
    """The browser has bookmarks of these pages under these names, and no others."""

    expected: tuple[tuple[str, str], ...]
    """Path and name."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The browser's file of bookmarks."""
        return (_BOOKMARKS,)

    def holds(self, home: Home) -> bool:
        """Compare the bookmarks; the home folder's own path does not matter."""
        try:
            found = list(_marks(json.loads(read_text(home, _BOOKMARKS) or "{}")))
        except (ValueError, RecursionError):
            return False
        return len(found) == len(self.expected) and all(
            any(
                url.startswith("file:///") and url.endswith(f"/{path}") and name == title
                for url, name in found
            )
            for path, title in self.expected
        )

    def apply(self, files: dict[str, bytes]) -> None:
        """Write the file of bookmarks."""
        children = [
            {"type": "url", "name": name, "url": f"file:///home/user/{path}"}
            for path, name in self.expected
        ]
        roots = {"bookmark_bar": {"type": "folder", "children": children}}
        files[_BOOKMARKS] = json.dumps({"roots": roots}).encode()


def _marks(node: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401  # JSON of any shape
    """Yield address and name of every bookmark."""
    if isinstance(node, dict):
        fields = cast("dict[str, Any]", node)
        if fields.get("type") == "url":
            yield str(fields.get("url")), str(fields.get("name"))
        node = list(fields.values())
    if isinstance(node, list):
        for child in cast("list[Any]", node):
            yield from _marks(child)


def bookmark_page(draft: Draft) -> None:
    """Bookmark pages under given names."""
    titles = draft.some(words.TITLES, draft.at(1, 3, 5, 7))
    paths = [f"Documents/{title.lower().replace(' ', '-')}.html" for title in titles]
    for path, title in zip(paths, titles, strict=True):
        text = "".join(f"<p>{sentence}</p>" for sentence in draft.some(words.SENTENCES, 3))
        draft.add(path, page(title, text))
    links = "".join(
        f'<li><a href="{path.partition("/")[2]}">{title}</a></li>'
        for path, title in zip(paths, titles, strict=True)
    )
    _show(draft, "index.html", page("Index", f"<ul>{links}</ul>"))
    chosen = draft.some(list(range(len(titles))), draft.at(1, 1, 2, 2))
    marks, said = list[tuple[str, str]](), list[str]()
    for at in chosen:
        name = f"{draft.one(words.PLAIN)} {draft.rng.randint(10, 99)}"
        phrase = quoted(name)
        if at == chosen[-1]:
            others = [f"{word} {draft.rng.randint(10, 99)}" for word in words.PLAIN]
            phrase = told(draft, "bookmark name", name, others)
        marks.append((paths[at], name))
        said.append(f"{quoted(titles[at])} under the name {phrase}")
    expect(draft, Bookmarks(expected=tuple(marks)))
    draft.grace = 8.0
    draft.say(
        f"From the index page in the browser, open and bookmark {listed(said)}. No other "
        "bookmarks.",
        f"Bookmark {listed(said)} in the browser, starting from the index page, and nothing else.",
    )


def follow_links(draft: Draft) -> None:
    """Follow links by instructions to a code."""
    steps = draft.at(2, 3, 4, 5)
    names = [f"stop-{n}.html" for n in draft.some(list(range(100, 999)), steps * 3)]
    choices = [draft.some(words.CITIES, 3) for _ in range(steps)]
    route = [draft.one(cities) for cities in choices]
    codes = [words.code(draft.rng, 8) for _ in range(3)]
    for step in range(1, steps):
        for n in range(3):
            places = names[3 * step : 3 * step + 3]
            _stop(draft, names[3 * (step - 1) + n], choices[step], places)
    for n in range(3):
        body = f"<p>The code is <b>{codes[n]}</b>.</p>"
        draft.add(f"Documents/{names[3 * (steps - 1) + n]}", page("Arrived", body))
    start = _stop(draft, "start.html", choices[0], names[:3])
    draft.open(*BROWSER, start)
    code = codes[choices[-1].index(route[-1])]
    said = [*route[:-1], told(draft, "city", route[-1], choices[-1] + list(words.CITIES))]
    if draft.level < 4:
        said[-1] = route[-1]
    draft.open("mousepad")
    new = draft.path("txt")
    expect(draft, Text(path=new, text=code))
    draft.say(
        f"Starting from the page in the browser, follow the links {listed(said)}, one after the "
        f"other. Save the code on the last page, and nothing else, as {new}.",
        f"On the web page click {listed(said)}, in this order, each on the page that follows. "
        f"Write just the code you arrive at into {new}.",
    )


def _stop(draft: Draft, name: str, cities: list[str], targets: list[str]) -> str:
    links = "".join(
        f'<li><a href="{target}">{city}</a></li>'
        for city, target in zip(cities, targets, strict=True)
    )
    return draft.add(f"Documents/{name}", page("Where next?", f"<ul>{links}</ul>"))


def compare_pages(draft: Draft) -> None:
    """Find the cheapest of some shops."""
    shops = draft.some(words.CITIES, draft.at(2, 3, 4, 5))
    goods = draft.some(words.GOODS, draft.at(4, 6, 10, 12))
    prices = {shop: dict(zip(goods, draft.some(list(range(101, 999)), len(goods)), strict=True))
              for shop in shops}  # fmt: skip
    links = ""
    for shop in shops:
        rows = [("Item", "Price"), *((good, str(price)) for good, price in prices[shop].items())]
        file = f"shop-{shop.lower()}.html"
        draft.add(f"Documents/{file}", page(f"Shop in {shop}", html_table(rows)))
        links += f'<li><a href="{file}">{shop}</a></li>'
    _show(draft, "shops.html", page("Shops", f"<ul>{links}</ul>"))
    wanted = draft.some(goods, draft.at(1, 1, 2, 2))
    said = list(wanted)
    said[-1] = told(draft, "item", wanted[-1], goods) if draft.level == 4 else wanted[-1]
    new = draft.path("txt")
    draft.open("mousepad")
    clutter(draft)
    value = min(sum(prices[shop][good] for good in wanted) for shop in shops)
    draft.expect(Number(path=new, value=value))
    together = "" if len(said) == 1 else ", bought together in one shop,"
    draft.say(
        f"The pages in the browser are shops. Find the lowest price of {listed(said)}{together} "
        f"and save only that number as {new}.",
        "Compare the shops in the browser. Write just the lowest price of "
        f"{listed(said)}{together} to {new}.",
    )


def copy_table(draft: Draft) -> None:
    """Write the rows of a table into a text file."""
    goods = draft.some(words.GOODS, draft.at(3, 6, 10, 14))
    rows = [("Item", "Code", "Place")]
    rows += [(good, words.code(draft.rng, 4), draft.one(words.CITIES[:4])) for good in goods]
    place = rows[1][2]
    _show(draft, "stock.html", page("Stock", html_table(rows)))
    said = told(draft, "place", place, words.CITIES)
    new = draft.path("csv")
    draft.open("mousepad")
    clutter(draft)
    lines = [f"{good},{code}" for good, code, city in rows[1:] if city == place]
    draft.expect(Text(path=new, text="\n".join(lines)))
    draft.say(
        f"For each row of the table in the browser whose place is {said}, write item and code, "
        f"joined by a comma without spaces, as a line of {new}. Keep the order of the table.",
        f"Create {new} from the web page: one line like Item,Code for every row whose place is "
        f"{said}, in the order of the page and without a head.",
    )


FAMILIES = families(
    "browser",
    fill_form,
    order_goods,
    answer_survey,
    look_up_value,
    download_file,
    bookmark_page,
    follow_links,
    compare_pages,
    copy_table,
)
