"""File manager families: PCManFM on files and folders."""

from envkit_linux_desktop.tasks import words
from envkit_linux_desktop.tasks.checks import Gone, Kept, Listing, Text, moved
from envkit_linux_desktop.tasks.clues import told
from envkit_linux_desktop.tasks.scenario import Draft, families
from envkit_linux_desktop.tasks.words import listed

_ENDINGS = ("txt", "csv", "log", "md")


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _fill(
    draft: Draft, folder: str, count: int, endings: "tuple[str, ...]" = _ENDINGS
) -> list[str]:
    """Add different files to a folder and return their paths."""
    paths: list[str] = []
    for _ in range(count):
        path = draft.path(draft.one(endings), folder)
        text = "\n".join([*draft.some(words.LINES, 2), words.code(draft.rng)])
        paths.append(draft.add(path, text + "\n"))
    return paths


def _show(draft: Draft, folder: str = "Documents") -> None:
    """Open the folder, and from level 3 on other windows too."""
    draft.open("pcmanfm", folder)
    if draft.level >= 3:
        other = _fill(draft, "Downloads", draft.at(0, 0, 2, 3), ("txt",))[0]
        draft.launch.insert(draft.rng.randint(0, 1), ("mousepad", other))


def _folder_listing(draft: Draft, folder: str) -> Listing:
    """Return the check that a folder has the names that the other checks leave in it."""
    final = dict(draft.files)
    for check in draft.checks:
        check.apply(final)
    inside = {path[len(folder) + 1 :].partition("/")[0] for path in final if
              path.startswith(f"{folder}/")}  # fmt: skip
    return Listing(folder=folder, expected=frozenset(inside))


def _finish(draft: Draft, *folders: str) -> None:
    """Show Documents, and expect exactly the names that the checks leave in folders."""
    _show(draft)
    draft.expect(*(_folder_listing(draft, folder) for folder in folders))


def rename_file(draft: Draft) -> None:
    """Rename files."""
    files = _fill(draft, "Documents", draft.at(3, 5, 8, 12))
    said: list[str] = []
    for path in (chosen := draft.some(files, draft.at(1, 1, 2, 2))):
        new = f"{draft.one(words.PLAIN)}-{draft.rng.randint(41, 99)}.{path.rpartition('.')[2]}"
        draft.expect(*moved(path, f"Documents/{new}", draft.files[path]))
        phrase = new
        if path == chosen[-1] and draft.level == 4:
            others = [f"{word}-{draft.rng.randint(41, 99)}.{path.rpartition('.')[2]}"
                      for word in words.PLAIN]  # fmt: skip
            phrase = told(draft, "name", new, others)
        said.append(f"{_base(path)} to {phrase}")
    _finish(draft, "Documents")
    draft.say(
        f"In the folder Documents, rename {listed(said)}.",
        f"Please rename {listed(said)}. The folder is Documents.",
        f"Change file names in Documents: {listed(said)}. Leave the contents alone.",
    )


def rename_folder(draft: Draft) -> None:
    """Rename a folder with what is in it."""
    old, new, *others = draft.some(words.FOLDERS, 5)
    for folder in (old, *others):
        _fill(draft, f"Documents/{folder}", draft.at(1, 2, 3, 4))
    for path in [path for path in draft.files if path.startswith(f"Documents/{old}/")]:
        draft.expect(Kept(path=path.replace(f"/{old}/", f"/{new}/"), data=draft.files[path]))
    draft.expect(Gone(path=f"Documents/{old}"))
    said = told(draft, "name", new, words.FOLDERS)
    _finish(draft, "Documents", f"Documents/{new}")
    draft.say(
        f'Give the folder "{old}" inside Documents a new name: {said}.',
        f'Rename the folder "{old}" in Documents to {said}, keeping everything in it.',
        f"The folder Documents/{old} has the wrong name. It should be {said}.",
    )


def move_files(draft: Draft) -> None:
    """Move files into folders."""
    files = _fill(draft, "Documents", draft.at(3, 5, 8, 12))
    folders = draft.some(words.FOLDERS, draft.at(1, 2, 3, 4))
    for folder in folders:
        _fill(draft, f"Documents/{folder}", 1)
    said: list[str] = []
    for path in (chosen := draft.some(files, draft.at(1, 2, 3, 3))):
        folder = draft.one(folders)
        draft.expect(*moved(path, f"Documents/{folder}/{_base(path)}", draft.files[path]))
        phrase = folder
        if path == chosen[-1] and draft.level == 4:
            phrase = told(draft, "folder", folder, words.FOLDERS)
        said.append(f"{_base(path)} into {phrase}")
    _finish(draft, *(f"Documents/{folder}" for folder in folders))
    draft.say(
        f"In Documents, move {listed(said)}. Leave the other files where they are.",
        f"Please tidy up the folder Documents: move {listed(said)}, and nothing else.",
        f"Move files within Documents: {listed(said)}.",
    )


def copy_files(draft: Draft) -> None:
    """Copy files and keep the originals."""
    files = _fill(draft, "Documents", draft.at(3, 5, 8, 12))
    target = draft.one(words.FOLDERS)
    _fill(draft, target, 1)
    chosen = draft.some(files, draft.at(1, 2, 3, 3))
    said = [_base(path) for path in chosen]
    if draft.level == 4:
        said[-1] = told(draft, "file", said[-1], [_base(path) for path in files])
    for path in chosen:
        draft.expect(Kept(path=f"{target}/{_base(path)}", data=draft.files[path]))
        draft.expect(Kept(path=path, data=draft.files[path]))
    _finish(draft, target)
    draft.say(
        f'Copy {listed(said)} from Documents into the folder "{target}" in the home folder.',
        f'Put copies of {listed(said)}, which are in Documents, into the folder "{target}" of '
        "your home folder. The originals stay.",
        f'The home folder has a folder "{target}". Copy {listed(said)} from Documents to it.',
    )


def delete_files(draft: Draft) -> None:
    """Delete files by name or ending."""
    ending = draft.one(_ENDINGS)
    doomed = _fill(draft, "Documents", draft.at(1, 2, 4, 5), (ending,))
    rest = tuple(other for other in _ENDINGS if other != ending)
    _fill(draft, "Documents", draft.at(2, 4, 7, 10), rest)
    phrase = f"ending in .{ending}"
    if draft.level == 4:
        kinds = [f".{one}" for one in (*_ENDINGS, "bak", "tmp", "old")]
        phrase = f"with {told(draft, 'ending', f'.{ending}', kinds)}"
    for path in doomed:
        draft.expect(Gone(path=path))
    _show(draft)
    names = f" ({listed([_base(path) for path in doomed])})" if draft.level < 4 else ""
    draft.say(
        f"Delete the files {phrase} from Documents{names}, and no others.",
        f"In the folder Documents, remove each file {phrase}{names}. Keep all other files.",
        f"Please clean up Documents by deleting the files {phrase}{names} there and nothing else.",
    )


def make_folder(draft: Draft) -> None:
    """Make a folder and move files into it."""
    files = _fill(draft, "Documents", draft.at(3, 4, 7, 10))
    chosen = draft.some(files, draft.at(1, 2, 2, 3))
    name = f"{draft.one(words.FOLDERS)} {draft.rng.randint(2020, 2029)}"
    for path in chosen:
        draft.expect(*moved(path, f"Documents/{name}/{_base(path)}", draft.files[path]))
    others = [f"{folder} {draft.rng.randint(2020, 2029)}" for folder in words.FOLDERS]
    said = told(draft, "folder name", name, others)
    _finish(draft, f"Documents/{name}")
    names = listed([_base(path) for path in chosen])
    draft.say(
        f"Make a folder named {said} in Documents and move {names} into it.",
        f"Create a new folder {said} inside Documents. Then move {names} there from Documents.",
        f"{names} should be in a folder of their own in Documents. Its name is {said}.",
    )


def gather_type(draft: Draft) -> None:
    """Move all files of one type into a folder."""
    ending = draft.one(_ENDINGS)
    wanted = _fill(draft, "Documents", draft.at(2, 3, 5, 6), (ending,))
    rest = tuple(other for other in _ENDINGS if other != ending)
    _fill(draft, "Documents", draft.at(2, 4, 6, 8), rest)
    folder = draft.one(words.FOLDERS)
    _fill(draft, f"Documents/{folder}", 1, rest)
    said = told(draft, "folder", folder, words.FOLDERS, is_named=True)
    for path in wanted:
        draft.expect(*moved(path, f"Documents/{folder}/{_base(path)}", draft.files[path]))
    _finish(draft, f"Documents/{folder}")
    draft.say(
        f"Move every .{ending} file in Documents into {said}, which is in Documents too.",
        f"Sort Documents a little: all .{ending} files there belong in {said} inside Documents.",
        f"Inside Documents, put all files that end in .{ending} into {said}.",
    )


def flatten_folder(draft: Draft) -> None:
    """Move the files of a folder one level up and delete the folder."""
    folder, *others = draft.some(words.FOLDERS, draft.at(1, 2, 3, 4))
    inside = _fill(draft, f"Documents/{folder}", draft.at(2, 3, 4, 5))
    for other in others:
        _fill(draft, f"Documents/{other}", 2)
    _fill(draft, "Documents", 2, ("pdf",))
    said = told(draft, "folder", folder, words.FOLDERS, is_named=True)
    for path in inside:
        draft.expect(*moved(path, f"Documents/{_base(path)}", draft.files[path]))
    draft.expect(Gone(path=f"Documents/{folder}"))
    _finish(draft, "Documents")
    draft.say(
        f"Move all files out of {said} in Documents into Documents itself, then delete the empty "
        "folder.",
        f"Dissolve {said} inside Documents: move its files to Documents, then delete it.",
        f"We no longer need {said} in Documents. Move its files to Documents and delete it.",
    )


def swap_names(draft: Draft) -> None:
    """Swap the names of two files."""
    files = _fill(draft, "Documents", draft.at(2, 4, 8, 12), ("txt",))
    first, second = draft.some(files, 2)
    said = [_base(first), _base(second)]
    if draft.level == 4:
        said[1] = told(draft, "file", said[1], [_base(path) for path in files if path != first])
    draft.expect(
        Kept(path=first, data=draft.files[second]), Kept(path=second, data=draft.files[first])
    )
    _finish(draft, "Documents")
    draft.say(
        f"In Documents, the files {said[0]} and {said[1]} have each other's name. Swap the names.",
        f"Swap the names of {said[0]} and {said[1]} in Documents.",
        f"Rename two files in Documents so that {said[0]} gets the name of {said[1]}, and the "
        "other way round.",
    )


def find_file(draft: Draft) -> None:
    """Find the file that contains a code and move it."""
    files = _fill(draft, "Documents", draft.at(3, 5, 8, 10), ("txt",))
    folder = draft.one(words.FOLDERS)
    _fill(draft, f"Documents/{folder}", 1, ("md",))
    found = draft.one(files)
    code = draft.files[found].decode().split()[-1]
    said = told(draft, "code", code, [words.code(draft.rng) for _ in range(8)], is_named=True)
    draft.expect(*moved(found, f"Documents/{folder}/{_base(found)}", draft.files[found]))
    _finish(draft, f"Documents/{folder}")
    draft.say(
        f'One text file in Documents contains {said}. Move it into the folder "{folder}" there.',
        f'Find the .txt file in Documents with {said} in it and move the file into "{folder}" in '
        "Documents.",
        f"Which file in Documents has {said} on its last line? Move that file into the folder "
        f'"{folder}".',
    )


def copy_folder(draft: Draft) -> None:
    """Copy a whole folder into another."""
    source, target, *others = draft.some(words.FOLDERS, draft.at(2, 3, 4, 5))
    inside = _fill(draft, f"Documents/{source}", draft.at(2, 3, 3, 4))
    inside += _fill(draft, f"Documents/{source}/Old", draft.at(1, 1, 2, 2))
    for folder in (target, *others):
        _fill(draft, f"Documents/{folder}", 1)
    said = told(draft, "folder", source, words.FOLDERS, is_named=True)
    for path in inside:
        copy = path.replace("Documents/", f"Documents/{target}/", 1)
        draft.expect(Kept(path=copy, data=draft.files[path]))
        draft.expect(Kept(path=path, data=draft.files[path]))
    _finish(draft, f"Documents/{target}")
    draft.say(
        f'Copy {said} with everything in it into the folder "{target}". Both are in Documents.',
        f'In Documents, put a complete copy of {said} inside "{target}".',
        f'Back up {said}: copy it as a whole into "{target}". Both folders are in Documents.',
    )


def empty_folder(draft: Draft) -> None:
    """Delete what is in a folder except one file."""
    folder, *others = draft.some(words.FOLDERS, draft.at(1, 2, 3, 4))
    inside = _fill(draft, f"Documents/{folder}", draft.at(3, 5, 7, 9))
    for other in others:
        _fill(draft, f"Documents/{other}", 2)
    kept = draft.one(inside)
    said = told(draft, "file", _base(kept), [_base(path) for path in inside], is_named=True)
    for path in inside:
        if path != kept:
            draft.expect(Gone(path=path))
    draft.expect(Kept(path=kept, data=draft.files[kept]))
    _show(draft, f"Documents/{folder}")
    draft.say(
        f"Delete everything in Documents/{folder} except {said}.",
        f"In the folder Documents/{folder}, keep only {said}. Delete the rest.",
        f"Clear out Documents/{folder}, but spare {said}.",
    )


def sort_by_prefix(draft: Draft) -> None:
    """Move files into the folders that their names begin with."""
    prefixes = draft.some(words.FOLDERS, draft.at(2, 2, 3, 4))
    for prefix in prefixes:
        _fill(draft, f"Documents/{prefix}", 1)
        for number in draft.some(list(range(1, 60)), draft.at(1, 2, 2, 3)):
            path = f"Documents/{prefix.lower()}-{number}.txt"
            data = f"{words.code(draft.rng)}\n".encode()
            draft.add(path, data)
            draft.expect(*moved(path, f"Documents/{prefix}/{_base(path)}", data))
    _fill(draft, "Documents", draft.at(1, 2, 4, 5))
    index = "\n".join(draft.some(words.LINES, 2))
    title = ""
    if draft.level == 4:
        title = draft.one(words.TITLES)
        path = draft.add("Documents/index.txt", index + "\n")
        draft.open("mousepad", path)
        draft.expect(Text(path=path, text=f"{index}\n{title}"))
    _finish(draft, *(f"Documents/{prefix}" for prefix in prefixes))
    sample = f"{prefixes[0].lower()}-..."
    draft.say(
        "Move each file in Documents whose name starts with the name of a folder there into that "
        f"folder, for example {sample} into {prefixes[0]}.",
        f"Some files in Documents begin with the name of one of its folders, like {sample}. Move "
        f"each of them into its folder ({prefixes[0]} for this one).",
        f"Sort the files of Documents into its folders by the first word of their names: {sample} "
        f"belongs in {prefixes[0]}. Files without such a folder stay.",
    )
    if title:
        draft.also(
            f'Then add "{title}" as the last line of Documents/index.txt in the text editor.',
            f'Also write "{title}" at the end of Documents/index.txt, on a new line, and save it.',
        )


FAMILIES = families(
    "files",
    rename_file,
    rename_folder,
    move_files,
    copy_files,
    delete_files,
    make_folder,
    gather_type,
    flatten_folder,
    swap_names,
    find_file,
    copy_folder,
    empty_folder,
    sort_by_prefix,
)
