"""Text editor families: Mousepad on plain text files."""

from envkit_linux_desktop.tasks import words
from envkit_linux_desktop.tasks.checks import Kept, Number, Text
from envkit_linux_desktop.tasks.clues import clutter, expect, told
from envkit_linux_desktop.tasks.scenario import Draft, families
from envkit_linux_desktop.tasks.words import quoted


def joined(lines: list[str]) -> str:
    """Return lines as the text of a file."""
    return "\n".join(lines) + "\n"


def _open(draft: Draft, lines: list[str], ending: str = "txt") -> str:
    """Add a file of lines, open it in the editor and return its path."""
    path = draft.add(draft.path(ending), joined(lines))
    draft.open("mousepad", path)
    return path


def _expect(draft: Draft, path: str, lines: list[str]) -> None:
    """Add the clutter, and expect these lines in a file."""
    expect(draft, Text(path=path, text=joined(lines)))


def _notes(draft: Draft, *counts: int) -> tuple[str, list[str]]:
    """Open a file of random lines in the editor and return its path and lines."""
    lines = draft.some(words.LINES, draft.at(*(counts or (4, 6, 9, 12))))
    return _open(draft, lines), lines


def _new_line(draft: Draft, lines: list[str]) -> tuple[str, str]:
    """Return a line that is not there yet, and the phrase for it."""
    rest = [line for line in words.LINES if line not in lines]
    line = draft.one(rest)
    return line, told(draft, "line", line, rest)


def write_note(draft: Draft) -> None:
    """Write a new file."""
    count = draft.at(1, 2, 3, 4)
    lines = draft.some(words.LINES, count)
    said = [*map(quoted, lines[:-1]), told(draft, "line", lines[-1], words.LINES)]
    path = draft.path("txt")
    draft.open("mousepad")
    _expect(draft, path, lines)
    each = ", each on its own line" if count > 1 else ""
    draft.say(
        f"Create a new text file {path} that contains only {words.listed(said)}{each}.",
        f"Write a new text file with the content {words.listed(said)}{each}, and save it as "
        f"{path}.",
        f"I need a text file {path}. Its whole content is {words.listed(said)}{each}.",
    )


def append_line(draft: Draft) -> None:
    """Add a line at the end."""
    path, lines = _notes(draft)
    line, said = _new_line(draft, lines)
    _expect(draft, path, [*lines, line])
    draft.say(
        f"Add {said} as the last line of {path} and save the file.",
        f"In {path}, append {said} on a new line at the end. Save the file.",
        f"{path} is missing its last line: {said}. Please add it and save.",
    )


def insert_line(draft: Draft) -> None:
    """Insert a line next to another."""
    path, lines = _notes(draft)
    line, said = _new_line(draft, lines)
    at = draft.rng.randrange(1, len(lines))
    side = draft.one(("above", "below"))
    index = at if side == "above" else at + 1
    _expect(draft, path, [*lines[:index], line, *lines[index:]])
    draft.say(
        f"In {path}, insert {said} as a new line directly {side} {quoted(lines[at])}, then save.",
        f"Put {said} on a line of its own right {side} the line {quoted(lines[at])} in {path}. "
        "Save the file.",
        f"Open {path}, find the line {quoted(lines[at])}, add {said} as a separate line directly "
        f"{side} it, and save.",
    )


def replace_word(draft: Draft) -> None:
    """Replace a word everywhere."""
    old, new, *others = draft.some(words.PLAIN, 8)
    count = draft.at(3, 5, 9, 14)
    places = set(draft.some(list(range(count)), draft.at(1, 2, 4, 6)))
    lines = [
        f"{draft.one(words.CITIES)}: {old if n in places else draft.one(others)} "
        f"{draft.one(others)} {draft.rng.randint(10, 99)}"
        for n in range(count)
    ]
    path = _open(draft, lines)
    said = told(draft, "word", new, words.PLAIN)
    _expect(draft, path, [line.replace(old, new) for line in lines])
    draft.say(
        f'Replace every "{old}" in {path} with {said} and save.',
        f'In {path}, change the word "{old}" to {said} wherever it occurs. Save the file.',
        f'The word "{old}" in {path} is wrong. Put {said} in its place everywhere, and save.',
    )


def delete_lines(draft: Draft) -> None:
    """Delete the lines that contain a word."""
    word, *others = draft.some(words.PLAIN, 7)
    count = draft.at(4, 7, 12, 16)
    places = set(draft.some(list(range(count)), draft.at(1, 2, 4, 6)))
    lines = [
        f"{words.code(draft.rng, 4)} {word if n in places else draft.one(others)} "
        f"{draft.one(words.CITIES)}"
        for n in range(count)
    ]
    path = _open(draft, lines)
    said = told(draft, "word", word, words.PLAIN, is_named=True)
    kept = [line for line in lines if word not in line]
    _expect(draft, path, kept)
    draft.say(
        f"Delete every line of {path} that contains {said}, leave no gap, and save.",
        f"Remove all lines with {said} from {path}, without leaving empty lines. Save it.",
        f"In {path}, only lines without {said} should remain. Delete the others and save.",
    )


def sort_lines(draft: Draft) -> None:
    """Sort names by hand or by a menu."""
    names = words.full_names(draft.rng, draft.at(3, 4, 6, 8))
    while names == sorted(names):
        draft.rng.shuffle(names)
    path = _open(draft, names)
    extra: list[str] = []
    clause = ""
    if draft.level == 4:
        rest = [f"Zoe {last}" for last in words.LAST_NAMES]
        extra = [draft.one(rest)]
        clause = f", together with {told(draft, 'name', extra[0], rest)}"
    _expect(draft, path, sorted([*names, *extra]))
    draft.say(
        f"Sort the lines of {path} alphabetically from A to Z{clause}, and save.",
        f"The names in {path} must be in alphabetical order by first name{clause}. Fix that and "
        "save the file.",
        f"Put the lines of {path} into alphabetical order{clause}, one per line, and save.",
    )


def change_case(draft: Draft) -> None:
    """Write lines in capital letters."""
    path, lines = _notes(draft)
    places = sorted(draft.some(list(range(len(lines))), draft.at(1, 1, 2, 2)))
    said = [quoted(lines[place]) for place in places]
    said[-1] = told(draft, "line", lines[places[-1]], lines)
    changed = [line.upper() if n in places else line for n, line in enumerate(lines)]
    _expect(draft, path, changed)
    draft.say(
        f"In {path}, write {words.listed(said)} entirely in capital letters. Change nothing else, "
        "and save.",
        f"Change {words.listed(said)} in {path} to upper case and save the file.",
        f"Make {words.listed(said)} stand out in {path}: all letters in upper case. Save the file.",
    )


def split_notes(draft: Draft) -> None:
    """Move the part below a heading into a new file."""
    count = draft.at(2, 2, 3, 3)
    lines = draft.some(words.LINES, 3 * count)
    heads = draft.some(words.TITLES, count)
    sections = [[heads[n], *lines[3 * n : 3 * n + 3]] for n in range(count)]
    path = _open(draft, [line for part in sections for line in part])
    head = told(draft, "heading", heads[-1], words.TITLES, is_named=True)
    clutter(draft)
    new = draft.path("txt")
    rest = [line for part in sections[:-1] for line in part]
    draft.expect(Text(path=path, text=joined(rest)), Text(path=new, text=joined(sections[-1])))
    draft.say(
        f"Move the part of {path} from {head} to the end into a new file {new}. Save both.",
        f"Cut {path} in two: everything from {head} on, including it, belongs in the "
        f"new file {new} and no longer in {path}. Save both files.",
        f"The last part of {path} starts at {head}. Take it out, heading included, and save it as "
        f"{new}. Save the shortened {path} as well.",
    )


def merge_notes(draft: Draft) -> None:
    """Append the contents of files to another."""
    path, lines = _notes(draft, 3, 4, 5, 6)
    rest = [line for line in words.LINES if line not in lines]
    added, sources = list(lines), list[str]()
    for n in range(draft.at(1, 1, 2, 3)):
        part = rest[3 * n : 3 * n + 3]
        sources.append(draft.add(draft.path("txt"), joined(part)))
        added += part
        if n == 0:
            draft.open("mousepad", sources[0])
    if draft.level > 1:
        draft.open("pcmanfm", "Documents")
    _expect(draft, path, added)
    order = " in this order" if len(sources) > 1 else ""
    draft.say(
        f"Append the lines of {words.listed(sources)} to the end of {path}{order}. Save {path} "
        "and leave the other files as they are.",
        f"Copy everything in {words.listed(sources)} to the end of {path}{order}, without empty "
        "lines in between, and save it.",
        f"{path} should end with the lines of {words.listed(sources)}{order}. Add them below its "
        "own lines, without gaps, and save.",
    )


def fix_spelling(draft: Draft) -> None:
    """Correct misspelled words."""
    right = draft.some(list(words.MISSPELLED), draft.at(1, 2, 4, 5))
    frames = draft.some(
        [
            "Please note the {} on the board", "We talked about the {} for an hour",
            "Nobody mentioned the {} again", "The {} is the first point today",
            "She wrote {} on the envelope", "They asked for the {} twice",
            "There is one {} on every page",
        ],
        len(right) + draft.at(1, 2, 2, 2),
    )  # fmt: skip
    spelled = [*right, *draft.some([w for w in words.MISSPELLED if w not in right], 2)]
    pairs = [(frame, spelled[n]) for n, frame in enumerate(frames)]
    draft.rng.shuffle(pairs)
    wrong = [f.format(words.MISSPELLED[w] if w in right else w) for f, w in pairs]
    path = _open(draft, wrong)
    clause = ""
    lines = [frame.format(word) for frame, word in pairs]
    if draft.level == 4:
        title = draft.one(words.TITLES)
        clause = f", and add {told(draft, 'title', title, words.TITLES)} as a new first line"
        lines.insert(0, title)
    _expect(draft, path, lines)
    number = "a spelling mistake" if len(right) == 1 else f"{len(right)} spelling mistakes"
    noun = "word" if len(right) == 1 else "words"
    draft.say(
        f"Correct the misspelled {noun} in {path}{clause}. Save the file.",
        f"{path} has {number}. Fix nothing but the spelling{clause}, and save.",
        f"Proofread {path} for spelling, change only misspelled words{clause}, and save it.",
    )


def edit_option(draft: Draft) -> None:
    """Change values in a configuration file."""
    keys = draft.some(words.PLAIN, draft.at(4, 6, 9, 12))
    values = {key: str(draft.rng.randint(100, 999)) for key in keys}
    lines = ["# settings of the kiosk", *(f"{key}={value}" for key, value in values.items())]
    path = _open(draft, lines, "conf")
    chosen = draft.some(keys, draft.at(1, 2, 3, 3))
    said: list[str] = []
    for key in chosen:
        new = draft.one([str(n) for n in range(100, 1000) if str(n) != values[key]])
        values[key] = new
        phrase = new
        if key == chosen[-1] and draft.level == 4:
            phrase = told(draft, "number", new, [str(n) for n in range(100, 1000)])
        said.append(f"{key} to {phrase}")
    changed = [lines[0], *(f"{key}={value}" for key, value in values.items())]
    _expect(draft, path, changed)
    draft.say(
        f"In {path}, set {words.listed(said)}. Keep the other lines, and save.",
        f"Edit the configuration file {path}: change {words.listed(said)}. Save it.",
        f"Set {words.listed(said)} in {path} and save the file.",
    )


def tick_tasks(draft: Draft) -> None:
    """Mark tasks of a checklist as done."""
    lines = draft.some(words.LINES, draft.at(4, 6, 9, 12))
    done = set(draft.some(lines, draft.at(1, 2, 3, 4)))
    ticked = set(draft.some([line for line in lines if line not in done], draft.at(1, 1, 2, 2)))
    boxes = [f"[{'x' if line in ticked else ' '}] {line}" for line in lines]
    path = _open(draft, boxes)
    order = [line for line in lines if line in done]
    said = [*map(quoted, order[:-1]), told(draft, "task", order[-1], lines)]
    after = [f"[{'x' if line in ticked | done else ' '}] {line}" for line in lines]
    _expect(draft, path, after)
    draft.say(
        f"In the checklist {path}, mark {words.listed(said)} as done by changing [ ] to [x]. Save "
        "the file.",
        f"Tick off {words.listed(said)} in {path}: replace [ ] with [x] there, and save.",
        f"{words.listed(said)} can be ticked off in {path}. Put an x between the brackets, then "
        "save.",
    )


def move_line(draft: Draft) -> None:
    """Move a line to the top or the end."""
    path, lines = _notes(draft)
    line = draft.one(lines[1:-1])
    place = draft.one(("first", "last"))
    said = told(draft, "line", line, lines)
    rest = [other for other in lines if other != line]
    _expect(draft, path, [line, *rest] if place == "first" else [*rest, line])
    draft.say(
        f"In {path}, move {said} so that it becomes the {place} line. Save the file.",
        f"Make {said} the {place} line of {path} instead of where it is now, and save.",
        f"{said} belongs on the {place} line of {path}. Move it there and save.",
    )


def remove_repeats(draft: Draft) -> None:
    """Delete repeated lines."""
    lines = draft.some(words.LINES, draft.at(3, 5, 7, 9))
    repeated = list(lines)
    for line in draft.some(lines, draft.at(1, 2, 3, 4)):
        repeated.insert(draft.rng.randint(lines.index(line) + 1, len(repeated)), line)
    unique = list(dict.fromkeys(repeated))
    path = _open(draft, repeated)
    clause = ""
    if draft.level == 4:
        title = draft.one(words.TITLES)
        clause = f" Then add {told(draft, 'title', title, words.TITLES)} as the first line."
        unique.insert(0, title)
    _expect(draft, path, unique)
    draft.say(
        f"Some lines of {path} occur more than once. Keep only the first of each.{clause} Save it.",
        f"Remove repeated lines from {path} so that each remains once, at its first "
        f"place.{clause} Save the file.",
        f"Delete every line of {path} that repeats an earlier one.{clause} Save the result.",
    )


def count_lines(draft: Draft) -> None:
    """Count the lines with a word and note the number."""
    word, *others = draft.some(words.PLAIN, 6)
    low, high = draft.at((3, 12), (5, 18), (8, 26), (10, 34))
    count = draft.rng.randint(low, high)
    lines = [
        f"{draft.one(words.CITIES)} {word if n < count else draft.one(others)}"
        for n in range(count + draft.at(5, 8, 15, 20))
    ]
    draft.rng.shuffle(lines)
    path, answer = draft.add(draft.path("txt"), joined(lines)), draft.path("txt")
    draft.open("mousepad", path)
    said = told(draft, "word", word, words.PLAIN, is_named=True)
    expect(draft, Number(path=answer, value=count))
    draft.say(
        f"How many lines of {path} contain {said}? Save just the number as {answer}.",
        f"Count the lines with {said} in {path} and write only the number into a new file "
        f"{answer}.",
        f"Create {answer} with a single number in it: the lines of {path} that contain {said}.",
    )


def save_copy(draft: Draft) -> None:
    """Save a changed copy under a new name and leave the original."""
    path, lines = _notes(draft)
    line, said = _new_line(draft, lines)
    new = draft.path("txt", draft.at("Documents", "Documents", "Downloads", "Downloads"))
    draft.add("Downloads/readme.txt", "Downloads go here.\n")
    expect(
        draft,
        Text(path=new, text=joined([line, *lines])),
        Kept(path=path, data=joined(lines).encode()),
    )
    draft.say(
        f"Add {said} as a new first line to the text of {path}, but save the result as {new}. "
        f"{path} itself must not change.",
        f"Make a copy of {path} named {new} that starts with the extra line {said}. Leave the "
        "original untouched.",
        f"Without changing {path}, save a version of it as {new} with {said} added on top as the "
        "first line.",
    )


FAMILIES = families(
    "editor",
    write_note,
    append_line,
    insert_line,
    replace_word,
    delete_lines,
    sort_lines,
    change_case,
    split_notes,
    merge_notes,
    fix_spelling,
    edit_option,
    tick_tasks,
    move_line,
    remove_repeats,
    count_lines,
    save_copy,
)
