"""Plans for tasks of small applications: mail, feeds, search, tables of contacts and tickets."""

import re
from collections.abc import Iterator

from envkit_actions import Action
from envkit_browser.miniwob import moves
from envkit_browser.miniwob.page import Element, Page


def search_result(page: Page) -> Iterator[Action]:
    """Search, turn to the page of the result and press it."""
    name = page.quoted()[0]
    place = int(page.asked(r"(\d+)\w\w search result")) - 1
    yield from moves.fill(page, page.one("#search-text"), name)
    titles = page.shown("#page-content a")
    if not titles:
        yield moves.press(page, page.one("#search"))
    number = str(place // 3 + 1)
    item = next(li for li in page.all("#pagination li") if li.text == number)
    if "active" not in item.classes:
        yield moves.press(page, page.one("a", item))
    yield moves.press(page, titles[place % 3])


def contact(page: Page) -> Iterator[Action]:
    """Turn pages to a contact, press phone, mail or address."""
    name = page.asked(r"Find (.*) in the contact")
    kind = page.asked(r"their (\w+)")
    if page.one("#contact .name").text != name:
        following = next(li for li in page.all("#pagination li") if li.text == ">")
        yield moves.press(page, page.one("a", following))
    yield moves.press(page, page.one(f"#contact .{kind}"))


def ticket(page: Page) -> Iterator[Action]:
    """Buy the ticket with the least or most money or time."""
    is_least = "cheapest" in page.goal or "shortest" in page.goal
    button = (min if is_least else max)(
        page.all(".buy-ticket"), key=lambda found: _measure(page, found)
    )
    yield from moves.reach_and_press(page, button)


def _measure(page: Page, button: Element) -> float:
    if "cost" in page.goal:
        return button.number_of("data-price")
    flight = next(found for found in page.ancestors(button) if "flight" in found.classes)
    return page.one(".time-duration", flight).number_of("data-duration")


def post(page: Page) -> Iterator[Action]:
    """Press a button of a user's post, in its menu if needed."""
    user = re.findall(r"user (@\S+),", page.goal)[0]
    name = page.quoted()[0]
    media = next(found for found in page.all(".media") if page.one(".username", found).text == user)
    yield from _act_on(page, media, name)


def posts(page: Page) -> Iterator[Action]:
    """Mark all posts of a user, or the requested number, and submit."""
    name = page.quoted()[0].lower()
    user = page.asked(r"by (@\S+) and then")
    buttons = [
        page.one(f".{name}", media)
        for media in page.all(".media")
        if page.one(".username", media).text == user
    ]
    number = re.search(r"button on (\d+) post", page.goal)
    for button in buttons[: int(number.group(1))] if number else buttons:
        if "active" not in button.classes:
            yield from moves.reach_and_press(page, button)
    yield from moves.submit(page)


def _act_on(page: Page, media: Element, name: str) -> Iterator[Action]:
    direct = {"Reply": ".reply", "Retweet": ".retweet", "Like": ".like"}
    if name in direct:
        button = page.one(direct[name], media)
    else:
        button = next(item for item in page.all("li", media) if item.text.startswith(name))
        if not button.is_shown:
            yield from moves.reach_and_press(page, page.one(".more", media))
    yield from moves.reach_and_press(page, button)


def mail(page: Page) -> Iterator[Action]:
    """Find a mail by its sender; then reply, forward, delete or star it."""
    goal = page.goal
    sender = page.asked(r"by ([\w-]+) and")
    opened = page.first("#email")
    if "trash" in goal or "star" in goal:
        thread = _thread(page, sender)
        button = page.one(".trash" if "trash" in goal else ".star", thread)
        yield from moves.reach_and_press(page, button)
    if opened is None:
        yield from moves.reach_and_press(page, page.one(".email-sender", _thread(page, sender)))
    yield from _answer(page, "reply" in goal)


def _thread(page: Page, sender: str) -> Element:
    return next(
        found
        for found in page.all("#main .email-thread")
        if page.one(".email-sender", found).text == sender
    )


def _answer(page: Page, is_reply: bool) -> Iterator[Action]:
    kind = "reply" if is_reply else "forward"
    if page.first(f"#{kind}") is None:
        yield from moves.reach_and_press(page, page.one(f".email-{kind}"))
    if is_reply:
        yield from moves.fill(page, page.one("#reply-text"), page.quoted()[0])
    else:
        receiver = page.asked(r"forward that email to ([\w-]+)")
        yield from moves.fill(page, page.one(".forward-sender"), receiver)
    yield moves.press(page, page.one(f"#send-{kind}"))


def food(page: Page) -> Iterator[Action]:
    """Order the named items, or the requested number of a kind."""
    named = re.search(r"each item: (.*)", page.goal)
    items = page.all(".food-item")
    if named is not None:
        names = [name.strip() for name in named.group(1).split(", ")]
        wanted = [(item, 1) for item in items if page.one(".item-name", item).text in names]
    else:
        number, kind = re.findall(r"Order (\d+) items that are (\S+)", page.goal)[0]
        fitting = next(item for item in items if _is_of_kind(page, item, kind))
        wanted = [(fitting, int(number))]
    for item, quantity in wanted:
        if int(item.attributes["data-quantity"]) < quantity:
            yield from moves.reach_and_press(page, page.one(".add", item))
    yield from moves.reach_and_press(page, page.one("#submit-order button"))


def _is_of_kind(page: Page, item: Element, kind: str) -> bool:
    return any(image.attributes["alt"] == kind for image in page.all("img", item))


def terminal(page: Page) -> Iterator[Action]:
    """List the files, delete one with the extension."""
    if not page.one("#terminal-target").focused:
        yield moves.press(page, page.one("#terminal"))
    outputs = [found.text for found in page.all(".terminal-output")]
    extension = re.search(r"extension (\.\S+)", page.goal)
    for output in outputs[2:]:
        for name in output.split():
            fits = name.endswith(extension.group(1)) if extension else "." not in name
            if fits:
                yield moves.write(f"rm {name}\n")
    yield moves.write("ls\n")
