"""Writing tasks: fill in forms, copy text between windows, correct a document, reply to mail."""

import random
from collections.abc import Iterator
from typing import Any

from envkit_actions.action import Action, ActionKind
from envkit_desktop import moves
from envkit_desktop.desktop import Desktop, Event
from envkit_desktop.families import words
from envkit_desktop.families.family import OVER, Data, Family, Form, SubmittedTask
from envkit_desktop.families.words import listed
from envkit_desktop.layout import MARGIN, buttons, clutter, frame, label, place, widest
from envkit_desktop.moves import Control, Value
from envkit_desktop.widgets import Button, Check, Dropdown, MenuBar, TextArea, TextField
from envkit_desktop.widgets.menus import BAR_HEIGHT

_FIELDS = ("First name", "Last name", "City", "E-mail", "Phone", "Street", "Room", "Code")
_COUNTRIES = ("Chile", "Finland", "Ghana", "Japan", "Latvia", "Portugal")


def _value(rng: random.Random, field: str) -> str:
    values = {
        "First name": rng.choice(words.FIRST_NAMES),
        "Last name": rng.choice(words.LAST_NAMES),
        "City": rng.choice(words.CITIES),
        "E-mail": f"{rng.choice(words.FIRST_NAMES).lower()}{rng.randint(2, 99)}@example.org",
        "Phone": f"0{rng.randint(20, 99)} {rng.randint(100000, 999999)}",
        "Street": f"{rng.choice(words.LAST_NAMES)} Road {rng.randint(1, 99)}",
        "Room": f"{rng.randint(1, 9)}.{rng.randint(10, 99)}",
        "Code": words.code(rng, 6),
    }
    return values[field]


class FillForm(Form):
    """Fill in a form; some fields hold something else at the start."""

    name = "fill_form"
    submit = "Save"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw the fields, their targets and their initial values."""
        names = sorted(rng.sample(_FIELDS, (1, 3, 4, 6, 8)[level - 1]), key=_FIELDS.index)
        asked = names if level < 4 else sorted(rng.sample(names, len(names) - 2), key=names.index)
        values = {name: _value(rng, name) for name in asked}
        start = {name: _value(rng, name) for name in rng.sample(names, level // 2)}
        said = listed([f"{name} {value}" for name, value in values.items()])
        country = rng.choice(_COUNTRIES) if level >= 2 else ""
        news = level >= 3 and rng.random() < 0.5
        extra = f" Choose the country {country}." if country else ""
        extra += " Tick Newsletter." if news else ""
        return {
            "goal": f"Fill in the form: {said}.{extra} Leave everything else as it is. "
            "Then press Save.",
            "names": names,
            "values": values,
            "start": start,
            "country": country,
            "news": news,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with one field per row."""
        names: list[str] = data["names"]
        left = widest([*names, "Country"], desk.type_pixels) + 2 * MARGIN
        window = frame(desk, rng, "main", "Contact", left + 230, len(names) * 32 + 120)
        for row, name in enumerate(names):
            label(window, name, MARGIN, 10 + row * 32, desk.type_pixels)
            text = data["start"].get(name, "")
            field = TextField(name=name, text=text, cursor=len(text), anchor=len(text))
            place(window, field, left, 10 + row * 32, 218)
        top = 10 + len(names) * 32
        label(window, "Country", MARGIN, top, desk.type_pixels)
        place(window, Dropdown(name="Country", options=_COUNTRIES), left, top, 140)
        place(window, Check(name="Newsletter", text="Newsletter"), left, top + 32, 120)
        self.finish(desk, window, data, rng)

    def wanted(self, data: Data) -> Iterator[tuple[type[Control], str, Value]]:
        """Yield each field, the country and the box."""
        for name in data["names"]:
            yield TextField, name, data["values"].get(name, data["start"].get(name, ""))
        yield Dropdown, "Country", data["country"]
        yield Check, "Newsletter", data["news"]


class CopyCode(SubmittedTask):
    """Copy codes from a note to a form in another window; the goal does not repeat them."""

    name = "copy_between_windows"
    submit = "Send"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw a note of named codes and the requested ones."""
        names = rng.sample(words.STEMS, (1, 2, 4, 6, 10)[level - 1])
        codes = {name: words.code(rng, (5, 6, 7, 8, 9)[level - 1]) for name in names}
        asked = rng.sample(names, (1, 1, 1, 2, 3)[level - 1])
        return {
            "goal": f"Copy the code of {listed(asked)} from the window Codes into the form, one "
            "in each field in this order. Then press Send.",
            "codes": codes,
            "asked": asked,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the note and the form."""
        lines = "\n".join(f"{name}: {value}" for name, value in data["codes"].items())
        note = frame(desk, rng, "codes", "Codes", 220, 130)
        place(note, TextArea(name="text", text=lines, is_locked=True), 8, 8, 204, 112)
        height = len(data["asked"]) * 32 + 60
        window = frame(desk, rng, "main", "Form", 300, height)
        for row in range(len(data["asked"])):
            label(window, f"Code {row + 1}", MARGIN, 10 + row * 32, desk.type_pixels)
            place(window, TextField(name=f"field{row}"), 80, 10 + row * 32, 208)
        self.finish(desk, window, data, rng)

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return for each field whether it holds its code, and whether it was sent."""
        fields = [desk.find(TextField, "main", f"field{row}") for row in range(len(data["asked"]))]
        codes = [data["codes"][name] for name in data["asked"]]
        same = [f.text.strip() == value for f, value in zip(fields, codes, strict=True)]
        return [*same, self.sent(desk)]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Write each code, then send."""
        for row, name in enumerate(data["asked"]):
            field = desk.find(TextField, "main", f"field{row}")
            yield from moves.fill(desk, field, data["codes"][name])
        yield from self.press_submit(desk)


class CorrectText(Family):
    """Replace wrong words in a document, and save it from its menu."""

    name = "correct_text"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw a list of people and cities, and which entries are wrong."""
        names = words.full_names(rng, (2, 4, 7, 10, 14)[level - 1])
        lines = [f"{name} lives in {rng.choice(words.CITIES)}." for name in names]
        wrong = rng.sample(range(len(lines)), (1, 1, 1, 2, 2)[level - 1])
        changed: list[str] = list(lines)
        said: list[str] = []
        for index in sorted(wrong):
            city = rng.choice([city for city in words.CITIES if city not in lines[index]])
            changed[index] = f"{names[index]} lives in {city}."
            said.append(f"{names[index]} lives in {city}")
        return {
            "goal": f"Correct the document: {listed(said)}. Save it with File > Save, then end "
            "the task.",
            "before": "\n".join(lines),
            "after": "\n".join(changed),
            "clutter": max(0, level - 2),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the document."""
        window = frame(desk, rng, "editor", "people.txt", 320, 210)
        files = (("New", "new", ()), ("Save", "save", ()), ("Close", "close", ()))
        edit = (("Undo all", "undo", ()), ("Select all", "all", ()))
        bar = MenuBar(name="bar", menus=(("File", files), ("Edit", edit)))
        place(window, bar, 0, 0, window.client[0], BAR_HEIGHT)
        area = TextArea(name="text", text=data["before"])
        place(window, area, 8, BAR_HEIGHT + 8, window.client[0] - 16, 150)
        label(window, "Not saved", 10, 184, desk.type_pixels, "status")
        clutter(desk, rng, data["clutter"], above=int(data["clutter"] > 1))

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """Save, or undo."""
        if event.kind not in ("command", "shortcut") or event.window.name != "editor":
            return False
        is_save = event.value in ("save", "ctrl+s")
        area = desk.find(TextArea, "editor", "text")
        if is_save:
            desk.model["saved"] = area.text
            desk.say("editor", "status", "Saved")
        elif event.value in ("new", "undo"):
            area.text = data["before"] if event.value == "undo" else ""
            area.cursor = area.anchor = 0
            area.reveal(desk)
        elif event.value == "all":
            area.anchor, area.cursor = 0, len(area.text)
        elif event.value == "close":
            desk.close(event.window)
        return False

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return whether the saved document is right."""
        return [str(desk.model.get("saved", "")).strip() == data["after"]]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Select the first difference, write over it, and save at the end."""
        if all(self.goals(desk, data)):
            return
        area = desk.find(TextArea, "editor", "text")
        if area.text == data["after"]:
            yield from moves.menu(desk, desk.find(MenuBar, "editor", "bar"), ["File", "Save"])
            return
        if not area.focused:
            yield from moves.press(desk, area, part=(4, 4, area.width - 20, 20))
        yield from _rewrite(desk, area, data["after"])


def _rewrite(desk: Desktop, area: TextArea, text: str) -> Iterator[Action]:
    """Replace the whole text if that is easier than finding the position."""
    if desk.top is not desk.window_of(area):
        yield from moves.press(desk, area)
    if area.selection != (0, len(area.text)):
        yield moves.key("ctrl", "a")
    yield Action(kind=ActionKind.TYPE, text=text)


class ReplyToMail(Family):
    """Open a sender's mail, write a given answer and send it."""

    name = "reply_to_mail"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw mails; at high levels several have the same sender and differ by subject."""
        senders = words.full_names(rng, (2, 4, 6, 8, 9)[level - 1])
        if level >= 3:
            senders[1:3] = [senders[0], senders[0]]
        stems = rng.sample(words.STEMS, len(senders))
        mails = [[sender, f"About the {stem}"] for sender, stem in zip(senders, stems, strict=True)]
        sender, subject = mails[0]
        answer = rng.choice(
            (
                "Yes, gladly.",
                "No, sorry.",
                "Let us meet on Monday.",
                f"The code is {words.code(rng, 5)}.",
            )
        )
        rng.shuffle(mails)
        return {
            "goal": f'Reply to the mail "{subject}" of {sender} with the text "{answer}" and '
            "send it.",
            "mails": mails,
            "target": subject,
            "answer": answer,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the list of mails, with one button "Reply" per row."""
        mails: list[Any] = data["mails"]
        senders = widest([sender for sender, _ in mails], desk.type_pixels) + 20
        subjects = widest([subject for _, subject in mails], desk.type_pixels) + 20
        window = frame(desk, rng, "mail", "Mail", senders + subjects + 100, len(mails) * 30 + 14)
        for row, (sender, subject) in enumerate(mails):
            label(window, sender, MARGIN, 8 + row * 30, desk.type_pixels)
            label(window, subject, MARGIN + senders, 8 + row * 30, desk.type_pixels)
            reply = Button(name=subject, text="Reply")
            place(window, reply, MARGIN + senders + subjects, 8 + row * 30, 70)
        clutter(desk, rng, data["clutter"])

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """Open an answer, and send it."""
        if event.kind != "clicked":
            return False
        if event.window.name == "mail" and desk.window("answer") is None:
            desk.model["to"] = event.source.name
            self._open_answer(desk, event.source.name)
        elif event.window.name == "answer":
            text = desk.find(TextArea, "answer", "text").text
            desk.close(event.window)
            if event.source.name == "Send":
                desk.model |= {"sent": [desk.model["to"], text.strip()], OVER: True}
        return False

    def _open_answer(self, desk: Desktop, subject: str) -> None:
        window = frame(desk, random.Random(subject), "answer", f"Re: {subject}", 320, 170)
        place(window, TextArea(name="text"), MARGIN, 10, 296, 110)
        buttons(window, ("Send", "Cancel"), desk.type_pixels)

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return whether the right mail was answered, and whether the text is right."""
        to, text = desk.model.get("sent", (None, None))
        return [to == data["target"], text == data["answer"]]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Open the answer, write, send."""
        if desk.window("answer") is None:
            yield from moves.press(desk, desk.find(Button, "mail", data["target"]))
            return
        if desk.model["to"] != data["target"]:
            yield from moves.press(desk, desk.find(Button, "answer", "Cancel"))
        yield from moves.fill(desk, desk.find(TextArea, "answer", "text"), data["answer"])
        yield from moves.press(desk, desk.find(Button, "answer", "Send"))
