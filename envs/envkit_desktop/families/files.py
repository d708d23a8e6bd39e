"""Tasks with files: drag them into folders, delete them, or rename them."""

import random
from collections.abc import Iterator, Sequence

from envkit_actions.action import Action
from envkit_desktop import moves
from envkit_desktop.desktop import Desktop, Event
from envkit_desktop.families.family import Data, Family, is_feasible, or_fail
from envkit_desktop.families.words import FOLDERS, STEMS, file_names, listed
from envkit_desktop.layout import MARGIN, buttons, clutter, frame, label, place, widest
from envkit_desktop.widgets import Button, Icon, TextField, Window
from envkit_desktop.widgets.labels import ICON_HEIGHT, ICON_WIDTH
from envkit_desktop.widgets.widget import MenuItems

_ROW_OF_ICONS = 5
_STEP = (ICON_WIDTH + 8, ICON_HEIGHT + 8)
_MENU: MenuItems = (("Open", "open", ()), ("Rename...", "rename", ()), ("Delete", "delete", ()))


def _show_files(
    desk: Desktop,
    rng: random.Random,
    folders: list[str],
    files: list[str],
    later: Sequence[str] = (),
) -> Window:
    """Open the window "files" with folders first and room for later names."""
    names = [*folders, *files]
    width = max(_STEP[0], widest([*names, *later], desk.type_pixels) + 12)
    rows = -(-len(names) // _ROW_OF_ICONS)
    window = frame(
        desk, rng, "files", "Files", _ROW_OF_ICONS * width + 2 * MARGIN, rows * _STEP[1] + 16
    )
    for index, name in enumerate(names):
        mark = "folder" if name in folders else "file"
        icon = Icon(name=name, text=name, mark=mark, context=() if name in folders else _MENU)
        x, y = MARGIN + index % _ROW_OF_ICONS * width, 10 + index // _ROW_OF_ICONS * _STEP[1]
        place(window, icon, x, y, width - 4, ICON_HEIGHT)
    return window


class SortFiles(Family):
    """Drag files into folders."""

    name = "drag_files"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw files and folders, and destinations of some files."""
        count = (3, 5, 8, 11, 15)[level - 1]
        files = file_names(rng, count, alike=level >= 3)
        folders: list[str] = list(rng.sample(FOLDERS, (1, 2, 3, 4, 5)[level - 1]))
        moved = rng.sample(files, (1, 1, 2, 3, 4)[level - 1])
        targets = {name: rng.choice(folders) for name in moved}
        said = listed([f"{name} into {folder}" for name, folder in targets.items()])
        feasible = is_feasible(rng, level)
        if not feasible:
            folders.remove(targets[rng.choice(moved)])
        return {
            "goal": f"Drag {said}. Leave the other files where they are. Then end the task."
            f"{or_fail(level)}",
            "files": files,
            "folders": folders,
            "targets": targets,
            "feasible": feasible,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with the icons."""
        _show_files(desk, rng, data["folders"], data["files"])
        desk.model["inside"] = {}
        clutter(desk, rng, data["clutter"])

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """Move a file that was dropped on a folder."""
        target, name = event.target, event.source.name
        if event.kind != "dropped" or not isinstance(target, Icon) or name not in data["files"]:
            return False
        if target.mark == "folder":
            desk.model["inside"][name] = target.name
            desk.siblings(event.source).remove(event.source)
            desk.set_focus(None)
        return False

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return for each file whether it is where it should be."""
        inside = desk.model["inside"]
        return [inside.get(name) == data["targets"].get(name) for name in data["files"]]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Drag the files one by one."""
        for name, folder in data["targets"].items():
            if name not in desk.model["inside"]:
                icon, target = desk.find(Icon, "files", name), desk.find(Icon, "files", folder)
                yield from moves.drop(desk, icon, target)


class DeleteFiles(Family):
    """Delete every file with a given extension, one or several at a time, by context menu."""

    name = "delete_files"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw files, some with the extension; at level 3 and above there may be none."""
        files = file_names(rng, (3, 6, 10, 13, 17)[level - 1], alike=level >= 3)
        ending = files[0].partition(".")[2]
        doomed = [name for name in files if name.endswith(ending)][: 2 + level]
        files = [name for name in files if name in doomed or not name.endswith(ending)]
        feasible = is_feasible(rng, level)
        if not feasible:
            files, doomed = [name for name in files if name not in doomed], []
        rng.shuffle(files)
        rest = " If there is none, end with failure." if level >= 3 else ""
        return {
            "goal": f"Delete every .{ending} file and no other. Then end the task.{rest}",
            "files": files or ["notes.doc"],
            "doomed": doomed,
            "asks": level >= 4,
            "feasible": feasible,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with the icons."""
        _show_files(desk, rng, [], data["files"])
        desk.model["deleted"] = []
        clutter(desk, rng, data["clutter"])

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """Delete a file, at high levels after a confirmation."""
        if event.kind == "command" and event.value == "delete":
            icons = [item for item in desk.siblings(event.source) if isinstance(item, Icon)]
            names = [icon.name for icon in icons if icon.selected or icon is event.source]
            if not data["asks"]:
                self._delete(desk, names)
                return False
            desk.model["asked"] = names
            what = names[0] if len(names) == 1 else f"{len(names)} files"
            _ask(desk, f"Delete {what}?", ("Delete", "Cancel"))
        elif event.window.name == "question" and event.kind == "clicked":
            desk.close(event.window)
            if event.source.name == "Delete":
                self._delete(desk, desk.model["asked"])
        return False

    def _delete(self, desk: Desktop, names: list[str]) -> None:
        for name in names:
            icon = desk.find(Icon, "files", name)
            desk.siblings(icon).remove(icon)
            desk.model["deleted"].append(name)
        desk.set_focus(None)

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return for each file whether it was correctly kept or deleted."""
        gone = desk.model["deleted"]
        return [(name in gone) == (name in data["doomed"]) for name in data["files"]]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Delete the files one by one."""
        if desk.window("question") is not None:
            right = {*desk.model["asked"]} <= {*data["doomed"]}
            text = "Delete" if right else "Cancel"
            yield from moves.press(desk, desk.find(Button, "question", text))
        for name in data["doomed"]:
            if name not in desk.model["deleted"]:
                yield from moves.context(desk, desk.find(Icon, "files", name), ["Delete"])


class RenameFiles(Family):
    """Rename files by context menu and dialog."""

    name = "rename_files"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw files and the new names of some."""
        files = file_names(rng, (3, 5, 8, 11, 15)[level - 1], alike=level >= 3)
        renamed: dict[str, str] = {}
        for name in rng.sample(files, (1, 1, 1, 2, 3)[level - 1]):
            renamed[name] = f"{rng.choice(STEMS)}{rng.randint(20, 99)}.{name.partition('.')[2]}"
        said = listed([f"{old} to {new}" for old, new in renamed.items()])
        feasible = is_feasible(rng, level)
        if not feasible:
            files.remove(rng.choice(list(renamed)))
        return {
            "goal": f"Rename {said}. Leave the other names as they are. Then end the task."
            f"{or_fail(level)}",
            "files": files,
            "renamed": renamed,
            "feasible": feasible,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with the icons."""
        _show_files(desk, rng, [], data["files"], list(data["renamed"].values()))
        desk.model["renamed"] = {}
        clutter(desk, rng, data["clutter"])

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """Ask for the new name and show it under the icon."""
        if event.kind == "command" and event.value == "rename":
            desk.model["asked"] = event.source.name
            window = _ask(desk, "New name:", ("OK", "Cancel"))
            icon = desk.find(Icon, "files", event.source.name)
            field = TextField(name="new", text=icon.text, cursor=len(icon.text))
            place(window, field, MARGIN, 36, window.client[0] - 2 * MARGIN)
        elif event.window.name == "question" and event.kind == "clicked":
            text = desk.find(TextField, "question", "new").text.strip()[:24]
            desk.close(event.window)
            if event.source.name == "OK" and text:
                desk.find(Icon, "files", desk.model["asked"]).text = text
                desk.model["renamed"][desk.model["asked"]] = text
        return False

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return for each file whether it has the right name."""
        renamed = desk.model["renamed"]
        return [renamed.get(n, n) == data["renamed"].get(n, n) for n in data["files"]]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Rename the files one by one."""
        if desk.window("question") is not None:
            field = desk.find(TextField, "question", "new")
            asked = desk.model["asked"]
            yield from moves.fill(desk, field, data["renamed"].get(asked, asked))
            yield from moves.press(desk, desk.find(Button, "question", "OK"))
        for old, new in data["renamed"].items():
            if desk.model["renamed"].get(old) != new:
                yield from moves.context(desk, desk.find(Icon, "files", old), ["Rename..."])


def _ask(desk: Desktop, text: str, answers: tuple[str, ...]) -> Window:
    """Open a modal dialog in the middle."""
    window = Window(
        name="question",
        title="Files",
        width=max(280, widest([text], desk.type_pixels) + 30),
        height=136,
        is_modal=True,
        is_closable=False,
    )
    window.x, window.y = (desk.width - window.width) // 2, (desk.height - 136) // 2
    label(window, text, MARGIN, 10, desk.type_pixels)
    buttons(window, answers, desk.type_pixels)
    return desk.open(window)
