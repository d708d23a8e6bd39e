"""Families about files and folders."""

import shlex
import stat

from envkit_terminal.families.draft import Draft

_ENDINGS = ("txt", "csv", "log", "md", "json", "ini")


def sort_by_ending(draft: Draft) -> None:
    """Move files into folders named after their endings."""
    folder, endings = draft.folder(), draft.rng.sample(_ENDINGS, draft.at(2, 3, 4))
    names = draft.words(draft.at(5, 9, 14))
    for number, name in enumerate(names):
        ending = endings[number % len(endings)]
        shown = f"{name} {number}" if draft.level == 3 and number % 3 == 0 else name
        draft.files[f"{folder}/{shown}.{ending}"] = f"{name} {draft.rng.randint(100, 999)}\n"
    for path, text in list(draft.files.items()):
        name = path.rpartition("/")[2]
        draft.expect(f"{folder}/{name.rpartition('.')[2]}/{name}", text)
        draft.expect_gone(path)
    draft.say(
        f"In ~/{folder}, move every file into a subfolder named after its extension, for example "
        f"report.{endings[0]} into {endings[0]}/report.{endings[0]}.",
        f"Sort the files in ~/{folder} by type: each one goes into a subfolder with the name of "
        f"its extension (x.{endings[0]} into ~/{folder}/{endings[0]}/).",
    )
    draft.solution = [
        f'cd ~/{folder} && for f in *.*; do e=${{f##*.}}; mkdir -p "$e"; mv "$f" "$e/"; done'
    ]


def rename_files(draft: Draft) -> None:
    """Give numbered files a new prefix."""
    folder = draft.folder()
    old, new, other = draft.words(3)
    count = draft.at(4, 9, 15)
    for number in range(1, count + 1):
        text = f"page {number} {draft.rng.randint(1000, 9999)}\n"
        draft.files[f"{folder}/{old}-{number}.txt"] = text
        draft.expect(f"{folder}/{new}_{number:03d}.txt", text)
        draft.expect_gone(f"{folder}/{old}-{number}.txt")
    if draft.level > 1:
        draft.files[f"{folder}/{other}-1.txt"] = "leave me\n"
        draft.keep(f"{folder}/{other}-1.txt")
    draft.say(
        f"Rename the files {old}-N.txt in ~/{folder} to {new}_NNN.txt, with the number padded to "
        "three digits. Leave other files alone.",
        f"The files called {old}-1.txt, {old}-2.txt and so on in ~/{folder} need new names: "
        f"{new}_001.txt, {new}_002.txt, ... Nothing else may change.",
    )
    draft.solution = [
        f"cd ~/{folder} && for f in {old}-*.txt; do n=${{f#{old}-}}; n=${{n%.txt}}; "
        f'mv "$f" "$(printf "{new}_%03d.txt" "$n")"; done'
    ]


def find_file(draft: Draft) -> None:
    """Find the file that contains a code."""
    folder, target = draft.folder(), draft.rng.randint(0, draft.at(5, 15, 40) - 1)
    code = f"{draft.one(('KX', 'QT', 'ZB'))}-{draft.rng.randint(10000, 99999)}"
    found = ""
    for number in range(draft.at(6, 16, 41)):
        depth = draft.rng.randint(0, draft.level)
        path = "/".join([folder, *draft.words(depth), f"note{number}.txt"])
        near = code[:-1] + str((int(code[-1]) + 1 + number % 8) % 10)
        text = f"reference {code if number == target else near}\n"
        draft.files[path] = text
        found = path if number == target else found
    draft.expect("answer.txt", found)
    draft.say(
        f"Exactly one file below ~/{folder} contains the reference {code}. Write its path, "
        f"relative to your home folder (such as {folder}/x/note0.txt), to ~/answer.txt.",
        f"Which file below ~/{folder} mentions {code}? Put its path into ~/answer.txt, starting "
        f"with {folder}/.",
    )
    draft.solution = [f"cd ~ && grep -rlw -e {code} {folder} > answer.txt"]


def delete_files(draft: Draft) -> None:
    """Delete the empty files of a type, and nothing else."""
    folder = draft.folder()
    ending, other = draft.rng.sample(("bak", "dat", "part", "tmp"), 2)
    for number, name in enumerate(draft.words(draft.at(6, 12, 20))):
        inner = f"{folder}/{draft.words(1)[0]}/" if draft.level > 1 and number % 2 else f"{folder}/"
        is_empty, is_other = number % 3 == 0, number % 4 > 1
        path = f"{inner}{name}.{other if is_other else ending}"
        draft.files[path] = "" if is_empty else f"{draft.rng.randint(1, 10**6)}\n"
        if is_empty and not is_other:
            draft.expect_gone(path)
        else:
            draft.keep(path)
    draft.say(
        f"Delete all empty .{ending} files below ~/{folder}, at any depth. Keep everything else.",
        f"Some .{ending} files in ~/{folder} and its subfolders have no content. Remove those and "
        "only those.",
    )
    draft.solution = [f"find ~/{folder} -name '*.{ending}' -type f -empty -delete"]


def set_modes(draft: Draft) -> None:
    """Make scripts executable and data private."""
    folder = draft.folder()
    script, data = draft.one(("sh", "bash", "run")), draft.one(("key", "pem", "secret"))
    modes = draft.one((0o755, 0o750, 0o700)), draft.one((0o600, 0o640, 0o400))
    for number, name in enumerate(draft.words(draft.at(4, 8, 12))):
        is_script = number % 2 == 0
        path = f"{folder}/{name}.{script if is_script else data}"
        draft.files[path] = f"#!/bin/sh\necho {name}\n" if is_script else f"{name}\n"
        draft.checks.append({"type": "mode", "path": path, "mode": modes[number % 2]})
        draft.keep(path)
    octal = [f"{mode:o}" for mode in modes]
    letters = [stat.filemode(mode)[1:] for mode in modes]
    draft.say(
        f"In ~/{folder}, give every .{script} file the permissions {letters[0]} and every .{data} "
        f"file {letters[1]}.",
        f"Set the modes in ~/{folder}: {octal[0]} for the .{script} files, {octal[1]} for the "
        f".{data} files.",
    )
    draft.solution = [f"cd ~/{folder} && chmod {octal[0]} *.{script} && chmod {octal[1]} *.{data}"]


def pack_folder(draft: Draft) -> None:
    """Pack some files into an archive."""
    folder = draft.folder()
    name, ending = draft.name(), draft.one(("csv", "md"))
    packed: dict[str, str] = {}
    for number, word in enumerate(draft.words(draft.at(4, 8, 14))):
        inner = f"{draft.words(1)[0]}/" if draft.level > 1 and number % 3 == 1 else ""
        kind = ending if number % 2 == 0 else "tmp"
        path = f"{inner}{word}.{kind}"
        draft.files[f"{folder}/{path}"] = f"{word} {number}\n"
        if kind == ending:
            packed[path] = f"{word} {number}\n"
    listing = "\n".join(sorted(packed))
    archive = shlex.quote(f"{name}.tar.gz")
    draft.expect_run(
        f"cd ~ && tar -tzf {archive} | sed 's|^\\./||' | grep -v '/$' | LC_ALL=C sort", listing
    )
    contents = "".join(packed[path] for path in sorted(packed))
    draft.expect_run(
        f"mkdir /tmp/x && cd /tmp/x && tar -xzf ~/{archive} && "
        'find . -type f | LC_ALL=C sort | while read -r f; do cat "$f"; done',
        contents,
    )
    draft.say(
        f"Pack all .{ending} files below ~/{folder}, and no others, into ~/{name}.tar.gz. Paths "
        f"in the archive are relative to ~/{folder}.",
        f"Create the gzipped tar archive ~/{name}.tar.gz from the .{ending} files in ~/{folder} "
        f"and its subfolders. Store their paths relative to ~/{folder}, and leave other files out.",
    )
    draft.solution = [
        f"cd ~/{folder} && find . -name '*.{ending}' -type f -printf '%P\\n' | "
        f"tar -czf ~/{name}.tar.gz -T -"
    ]
