"""Settings families: preferences of the desktop and of applications, read from their files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from envkit_linux_desktop.tasks import packing, reading, words
from envkit_linux_desktop.tasks.checks import MAX_BYTES, Home, PathCheck, read_text
from envkit_linux_desktop.tasks.clues import expect, then_log, told
from envkit_linux_desktop.tasks.scenario import Draft, families
from envkit_linux_desktop.tasks.words import listed

_GRACE: Final = 8.0
"""Xfconf writes a changed channel after 5 seconds."""
_BOOLS: Final = ("true", "false")
_FLAGS: Final = ("1", "0")
Values = Mapping[str, tuple[str, str]]
"""Property path -> type and value."""


def channel_path(name: str) -> str:
    """Return the path of an Xfconf channel's file."""
    return f".config/xfce4/xfconf/xfce-perchannel-xml/{name}.xml"


def channel(name: str, values: Values) -> bytes:
    """Return the file of an Xfconf channel."""
    tree: dict[str, dict[str, str]] = {"": {}}
    for path in values:
        parts = path.strip("/").split("/")
        for n in range(len(parts)):
            tree.setdefault("/".join(["", *parts[:n]]), {})[parts[n]] = "/".join(
                ["", *parts[: n + 1]]
            )

    def properties(path: str, indent: str) -> str:
        lines = ""
        for part, child in tree.get(path, {}).items():
            kind, value = values.get(child, ("empty", ""))
            head = f'{indent}<property name={packing.attribute(part)} type="{kind}"'
            head += f" value={packing.attribute(value)}" if child in values else ""
            inner = properties(child, f"{indent}  ")
            lines += f"{head}>\n{inner}{indent}</property>\n" if inner else f"{head}/>\n"
        return lines

    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n\n'
        f'<channel name={packing.attribute(name)} version="1.0">\n'
        f"{properties('', '  ')}</channel>\n"
    ).encode()


@dataclass(frozen=True, kw_only=True)
class Channel:
    """An Xfconf channel has these values."""

    name: str
    values: Values
    absent: tuple[str, ...] = ()
    """Properties that must not exist."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The channel's file."""
        return (channel_path(self.name),)

    def holds(self, home: Home) -> bool:
        """Compare the values as text; their types may differ in width."""
        data = home.read(channel_path(self.name), limit=MAX_BYTES)
        model = reading.read_document("xfconf", data) if data else None
        if model is None:
            return False
        found = {path: value for path, (_, value) in model["properties"].items()}
        return not set(self.absent) & set(found) and all(
            found.get(path) == value for path, (_, value) in self.values.items()
        )

    def apply(self, files: dict[str, bytes]) -> None:
        """Write the channel."""
        files[channel_path(self.name)] = channel(self.name, self.values)


def keyfile(sections: Mapping[str, Mapping[str, str]]) -> str:
    """Return the text of a key file."""
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in values.items())
        for name, values in sections.items()
    )


def read_keyfile(text: str) -> dict[tuple[str, str], str]:
    """Return the values of a key file by section and key; GVariant type names are left out."""
    found: dict[tuple[str, str], str] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found[section, key.strip()] = value.strip().removeprefix("uint32 ").strip("'")
    return found


@dataclass(frozen=True, kw_only=True)
class Keyfile(PathCheck):
    """A key file has these values."""

    sections: Mapping[str, Mapping[str, str]]

    def holds(self, home: Home) -> bool:
        """Compare the values."""
        found = read_keyfile(read_text(home, self.path) or "")
        return all(
            found.get((name, key)) == value
            for name, values in self.sections.items()
            for key, value in values.items()
        )

    def apply(self, files: dict[str, bytes]) -> None:
        """Write the file."""
        files[self.path] = keyfile(self.sections).encode()


@dataclass(frozen=True, kw_only=True)
class Option:
    """One preference as its dialog shows it."""

    key: str
    label: str
    kind: str = "bool"
    choices: tuple[str, ...] = _BOOLS


def _changed(
    draft: Draft, options: tuple[Option, ...], always: str, on: tuple[str, ...] = ()
) -> tuple[dict[str, str], dict[str, str], str]:
    """Return initial and final values of options, and what the goal says about the changes.

    The option `always` has many values and changes in every task, which makes blind guesses fail.
    Options in `on` are on and stay so: others depend on them.
    """
    before = {o.key: "true" if o.key in on else draft.one(o.choices) for o in options}
    after = dict(before)
    free = [option for option in options if option.key not in (*on, always)]
    number = next(option for option in options if option.key == always)
    chosen = [*draft.some(free, min(len(free), draft.at(1, 2, 3, 3))), number]
    said: list[str] = []
    for option in chosen:
        new = draft.one([value for value in option.choices if value != before[option.key]])
        after[option.key] = new
        verb = {"true": "turn on", "1": "turn on", "false": "turn off", "0": "turn off"}
        if option.choices in (_BOOLS, _FLAGS):
            said.append(f'{verb[new]} "{option.label}"')
        else:
            is_told = option is number and draft.level == 4
            phrase = told(draft, "number", new, option.choices) if is_told else new
            said.append(f'set "{option.label}" to {phrase}')
    return before, after, listed(said)


def _say(draft: Draft, where: str, said: str) -> None:
    draft.say(
        f"In {where}, {said}. Leave the other settings alone.",
        f"Please {said} in {where}, and change nothing else.",
        f"Open {where}: {said}. All other settings stay as they are.",
    )


_NUMBERS: Final = tuple(str(n) for n in range(2, 17))
_VIEW: Final = "org/xfce/mousepad/preferences/view"
_EDITOR: Final = (
    Option(key="show-line-numbers", label="Show line numbers"),
    Option(key="show-right-margin", label="Long line margin at column"),
    Option(key="highlight-current-line", label="Highlight current line"),
    Option(key="match-braces", label="Highlight matching brackets"),
    Option(key="word-wrap", label="Wrap long lines"),
    Option(key="auto-indent", label="Enable automatic indentation"),
    Option(key="tab-width", label="Tab width", choices=_NUMBERS),
)


def editor_preferences(draft: Draft) -> None:
    """Change preferences of the text editor."""
    before, after, said = _changed(draft, _EDITOR, "tab-width")
    path = ".config/glib-2.0/settings/keyfile"
    scheme = {"color-scheme": "'classic'"}  # without one, brackets cannot be highlighted
    draft.add(path, keyfile({_VIEW: {**before, **scheme}}))
    draft.add("Documents/sample.txt", "\n".join(draft.some(words.LINES, 3)) + "\n")
    draft.open("mousepad", "Documents/sample.txt")
    expect(draft, Keyfile(path=path, sections={_VIEW: after}))
    _say(draft, "the preferences of the text editor Mousepad", said)


def _channels(
    draft: Draft, name: str, command: str, options: tuple[Option, ...], always: str, *on: str
) -> None:
    """Change options of one Xfconf channel in a dialog."""
    where = f"the {command.split('-')[1]} settings"
    before, after, said = _changed(draft, options, always, on)
    kinds = {option.key: option.kind for option in options}
    draft.add(channel_path(name), channel(name, {k: (kinds[k], v) for k, v in before.items()}))
    draft.open(command)
    if draft.level >= 2:
        draft.open("xfce4-settings-editor")
    expect(draft, Channel(name=name, values={k: (kinds[k], v) for k, v in after.items()}))
    draft.grace = _GRACE
    _say(draft, where, said)


def _steps(first: int, last: int, step: int) -> tuple[str, ...]:
    """Return the values that a slider or a spin button can take."""
    return tuple(str(n) for n in range(first, last + 1, step))


def keyboard_repeat(draft: Draft) -> None:
    """Set how keys repeat."""
    repeat, numlock = "/Default/KeyRepeat", "/Default/RestoreNumlock"
    rates, delays = _steps(5, 60, 1), _steps(460, 540, 1)
    options = (
        Option(key=repeat, label="Enable key repeat"),
        Option(key=f"{repeat}/Delay", label="Repeat delay", kind="int", choices=delays),
        Option(key=f"{repeat}/Rate", label="Repeat speed", kind="int", choices=rates),
        Option(key=numlock, label="Restore num lock state on startup"),
    )
    _channels(draft, "keyboards", "xfce4-keyboard-settings", options, f"{repeat}/Rate", repeat)


def accessibility_keys(draft: Draft) -> None:
    """Turn on or off what helps people type."""
    sticky, slow, delays = "/StickyKeys", "/SlowKeys", _steps(100, 900, 10)
    both = "Disable sticky keys if two keys are pressed"
    options = (
        Option(key=sticky, label="Use sticky keys"),
        Option(key=f"{sticky}/LatchToLock", label="Lock sticky keys"),
        Option(key=f"{sticky}/TwoKeysDisable", label=both),
        Option(key=slow, label="Use slow keys"),
        Option(key=f"{slow}/Delay", label="Acceptance delay", kind="int", choices=delays),
        Option(key="/BounceKeys", label="Use bounce keys"),
        Option(key="/MouseKeys", label="Use mouse emulation"),
    )
    command = "xfce4-accessibility-settings"
    _channels(draft, "accessibility", command, options, f"{slow}/Delay", sticky, slow)


def appearance_options(draft: Draft) -> None:
    """Change the size of text, buttons, menus and sounds."""
    options = (
        Option(key="/Xft/DPI", label="Custom DPI setting", kind="int", choices=_steps(60, 200, 1)),
        Option(key="/Gtk/ButtonImages", label="Show images on buttons"),
        Option(key="/Gtk/MenuImages", label="Show images in menus"),
        Option(key="/Gtk/CanChangeAccels", label="Enable editable accelerators"),
        Option(key="/Gtk/DialogsUseHeader", label="Enable header bars in dialogs"),
        Option(key="/Net/EnableEventSounds", label="Enable event sounds"),
    )
    _channels(draft, "xsettings", "xfce4-appearance-settings", options, "/Xft/DPI")


def file_manager_options(draft: Draft) -> None:
    """Change preferences of the file manager."""
    limit = "Do not generate thumbnails for files exceeding this size"
    config = (
        Option(key="single_click", label="Open files with single click", choices=_FLAGS),
        Option(key="confirm_del", label="Confirm before deleting files", choices=_FLAGS),
        Option(key="backup_as_hidden", label="Treat backup files as hidden", choices=_FLAGS),
        Option(key="si_unit", label="Use SI decimal prefixes instead of IEC binary prefixes",
               choices=_FLAGS),
        Option(key="show_full_names", label="Always show full file names", choices=_FLAGS),
        Option(key="thumbnail_max", label=limit, choices=_steps(500, 9000, 1)),
    )  # fmt: skip
    before, after, said = _changed(draft, config, "thumbnail_max")
    path = ".config/libfm/libfm.conf"
    draft.add(path, keyfile({"config": before}))
    draft.add("Documents/sample.txt", "\n".join(draft.some(words.LINES, 3)) + "\n")
    draft.open("pcmanfm", "Documents")
    expect(draft, Keyfile(path=path, sections={"config": after}))
    draft.grace = 2.0
    _say(draft, "the preferences of the file manager", said)


def _kiosk(draft: Draft, *counts: int) -> dict[str, tuple[str, str]]:
    """Return properties of an invented channel."""
    values: dict[str, tuple[str, str]] = {}
    for word in draft.some(words.PLAIN, draft.at(*counts)):
        group = draft.one(("display", "sound", "printer"))
        kind, value = draft.one(
            (
                ("int", str(draft.rng.randint(10, 999))),
                ("string", draft.one(words.CITIES)),
                ("bool", draft.one(_BOOLS)),
            )
        )
        values[f"/{group}/{word}"] = (kind, value)
    return values


def _editor(draft: Draft, before: Values, after: Values, absent: tuple[str, ...] = ()) -> None:
    draft.add(channel_path("kiosk"), channel("kiosk", before))
    draft.open("xfce4-settings-editor")
    expect(draft, Channel(name="kiosk", values=after, absent=absent))
    draft.grace = _GRACE


def edit_properties(draft: Draft) -> None:
    """Change numbers and texts in the settings editor."""
    before = _kiosk(draft, 4, 6, 9, 12)
    after = dict(before)
    chosen = draft.some(list(before), draft.at(1, 2, 3, 3))
    said: list[str] = []
    for path in chosen:
        kind = before[path][0]
        new = draft.rng.randint(10, 999)
        values = {"int": str(new), "string": f"{draft.one(words.CITIES)}-{new}"}
        value = values.get(kind, "false" if before[path][1] == "true" else "true")
        phrase = value
        if path == chosen[-1] and draft.level == 4 and kind != "bool":
            others = [str(draft.rng.randint(10, 999)) for _ in range(9)]
            phrase = told(draft, "value", value, others)
        after[path] = (kind, value)
        said.append(f"{path} to {phrase}")
    _editor(draft, before, after)
    draft.say(
        f"In the settings editor, open the channel kiosk and set {listed(said)}.",
        f"Use the settings editor to change the channel kiosk: set {listed(said)}.",
        f"The channel kiosk in the settings editor needs new values. Set {listed(said)}.",
    )
    if "listed for" not in draft.goal:  # the last property may be a switch
        then_log(draft)


def add_properties(draft: Draft) -> None:
    """Add properties in the settings editor."""
    before = _kiosk(draft, 3, 4, 6, 8)
    after, said = dict(before), list[str]()
    rest = [word for word in words.PLAIN if not any(path.endswith(word) for path in before)]
    for word in draft.some(rest, draft.at(1, 2, 2, 3)):
        value = f"{draft.one(words.CITIES)}-{draft.rng.randint(10, 999)}"
        after[f"/custom/{word}"] = ("string", value)
        said.append(f'/custom/{word} with the value "{value}"')
    _editor(draft, before, after)
    noun = "property" if len(said) == 1 else "properties"
    draft.say(
        f"In the settings editor, add to the channel kiosk the string {noun} {listed(said)}.",
        "Create new properties of the type string in the channel kiosk, with the settings editor: "
        f"{listed(said)}.",
    )
    then_log(draft)


def remove_properties(draft: Draft) -> None:
    """Remove properties in the settings editor."""
    before = _kiosk(draft, 4, 7, 10, 14)
    gone = draft.some(list(before), draft.at(1, 2, 3, 3))
    after = {path: value for path, value in before.items() if path not in gone}
    _editor(draft, before, after, tuple(gone))
    draft.say(
        f"Reset {listed(gone)} in the channel kiosk with the settings editor, so that no such "
        "setting remains.",
        f"With the settings editor, remove {listed(gone)} from the channel kiosk by resetting.",
        "The channel kiosk in the settings editor has settings nobody needs: reset "
        f"{listed(gone)}.",
    )
    then_log(draft)


FAMILIES = families("editor", editor_preferences) + families(
    "settings",
    keyboard_repeat,
    accessibility_keys,
    appearance_options,
    file_manager_options,
    edit_properties,
    add_properties,
    remove_properties,
)
