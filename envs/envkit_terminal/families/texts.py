"""Families about text and tables."""

from envkit_terminal.families.draft import Draft

_SEVERITIES = ("DEBUG", "INFO", "WARNING", "ERROR")


def count_log(draft: Draft) -> None:
    """Count the lines of a log by severity."""
    name, kinds = draft.name(), _SEVERITIES[: draft.at(3, 4, 4)]
    rows: list[tuple[str, str]] = []
    for _ in range(draft.at(20, 80, 300)):
        kind = draft.one(kinds)
        other = draft.one(kinds).lower()  # a severity inside a message is not one
        rows.append(
            (kind, f"{draft.one(draft.words(3))} reported {other} {draft.rng.randint(1, 99)}")
        )
    days = [f"2026-03-{1 + n * 20 // len(rows):02d}" for n in range(len(rows))]
    lines = [f"{day} {kind} {text}" for day, (kind, text) in zip(days, rows, strict=True)]
    draft.files[f"logs/{name}.log"] = "\n".join(lines) + "\n"
    first = days[0] if draft.level == 1 else f"2026-03-{draft.rng.randint(4, 16):02d}"
    counted = [kind for day, (kind, _) in zip(days, rows, strict=True) if day >= first]
    wanted = sorted(set(counted), key=lambda kind: (-counted.count(kind), kind))
    draft.expect(f"{name}.txt", "\n".join(f"{kind} {counted.count(kind)}" for kind in wanted))
    draft.keep(f"logs/{name}.log")
    since = "" if draft.level == 1 else f" Count only lines from {first} on."
    draft.say(
        f"Each line of ~/logs/{name}.log has a date, a severity and a message. Count the lines of "
        f"each severity and write 'SEVERITY COUNT' lines to ~/{name}.txt, most frequent first, "
        f"ties in alphabetical order.{since}",
        f"Summarise ~/logs/{name}.log by its second column: one line 'SEVERITY COUNT' each in "
        f"~/{name}.txt, sorted by count from high to low and then by name.{since}",
    )
    draft.solution = [
        f"cd ~ && awk '$1 >= \"{first}\" {{c[$2]++}} END {{for (k in c) print k, c[k]}}' "
        f"logs/{name}.log | LC_ALL=C sort -k2,2nr -k1,1 > {name}.txt"
    ]


def total_table(draft: Draft) -> None:
    """Sum a column of a CSV file by group."""
    groups = draft.words(draft.at(2, 4, 8))
    rows = [
        (draft.one(groups), draft.words(1)[0], draft.rng.randint(1, 500))
        for _ in range(draft.at(8, 40, 200))
    ]
    folder, name = draft.folder(), draft.one(("sales", "orders", "hours"))
    group, item, amount = (
        draft.one(names)
        for names in (("team", "region", "shop"), ("item", "note"), ("amount", "value"))
    )
    head = f"id,{group},{item},{amount}"
    body = [f"{n},{team},{what},{count}" for n, (team, what, count) in enumerate(rows, 1)]
    draft.files[f"{folder}/{name}.csv"] = "\n".join([head, *body]) + "\n"
    totals = {team: sum(row[2] for row in rows if row[0] == team) for team, _, _ in rows}
    lines = [f"{group},total", *(f"{team},{totals[team]}" for team in sorted(totals))]
    draft.expect(f"{folder}/totals.csv", "\n".join(lines))
    draft.say(
        f"~/{folder}/{name}.csv has the columns id, {group}, {item} and {amount}. Write "
        f"~/{folder}/totals.csv with the header {group},total and one row per {group} with the "
        f"sum of its column {amount}, sorted by {group}.",
        f"Add up the column {amount} of ~/{folder}/{name}.csv per {group}. The result goes to "
        f"~/{folder}/totals.csv: first the line {group},total, then one line per {group} in "
        "alphabetical order.",
    )
    draft.solution = [
        f"cd ~/{folder} && {{ echo {group},total; "
        "awk -F, 'NR>1 {t[$2]+=$4} END {for (k in t) print k\",\"t[k]}' "
        f"{name}.csv | LC_ALL=C sort; }} > totals.csv"
    ]


def replace_word(draft: Draft) -> None:
    """Replace a setting in some files."""
    folder = draft.folder()
    old, new = (f"{word}.example.com" for word in draft.words(2))
    for number, name in enumerate(draft.words(draft.at(4, 8, 15))):
        ending = ("conf", "conf", "bak")[number % 3]
        inner = f"{draft.words(1)[0]}/" if draft.level == 3 and number % 2 else ""
        path = f"{folder}/{inner}{name}.{ending}"
        near = old.replace(".example", "-example")
        lines = [f"host = {old}", f"port = {draft.rng.randint(1000, 9999)}", f"spare = {near}"]
        draft.files[path] = "\n".join([*lines, f"url = http://{old}/{name}", ""])
        changed = draft.files[path].replace(old, new) if ending == "conf" else draft.files[path]
        draft.expect(path, changed)
    draft.say(
        f"The server {old} is now {new}. Update every .conf file below ~/{folder}, and leave .bak "
        "files as they are.",
        f"Replace {old} by {new} in all .conf files in ~/{folder} and its subfolders. Do not "
        "touch other files.",
    )
    pattern = old.replace(".", "\\.")
    draft.solution = [f"find ~/{folder} -name '*.conf' -exec sed -i 's/{pattern}/{new}/g' {{}} +"]


def merge_lists(draft: Draft) -> None:
    """Merge lists without duplicates."""
    folder, result = draft.folder(), draft.name()
    names, domains = draft.words(draft.at(2, 3, 5)), draft.words(draft.at(1, 2, 3))
    pool = [
        f"{word}{draft.rng.randint(1, 9)}@{draft.one(domains)}.example.com"
        for word in draft.words(draft.at(8, 20, 40))
    ]
    dropped = f"@{domains[0]}.example.com"
    kept_all = draft.level == 1
    kept: set[str] = set()
    for name in names:
        some = draft.rng.sample(pool, len(pool) * 2 // 3)
        written = [
            one.upper() if draft.level > 1 and draft.rng.random() < 0.3 else one for one in some
        ]
        draft.files[f"{folder}/{name}.txt"] = "\n".join(written) + "\n"
        kept |= {one for one in some if kept_all or not one.endswith(dropped)}
    draft.expect(f"{result}.txt", "\n".join(sorted(kept)))
    rule = (
        ""
        if kept_all
        else f" Leave out addresses that end in {dropped}. Upper and lower case do not matter; "
        "write lowercase."
    )
    draft.say(
        f"Merge the address lists in ~/{folder} into ~/{result}.txt: every address once, sorted "
        f"alphabetically.{rule}",
        f"~/{result}.txt shall contain each address from the files in ~/{folder} exactly once, in "
        f"alphabetical order, one per line.{rule}",
    )
    drop = "" if kept_all else f"grep -vF '{dropped}' | "
    draft.solution = [
        f"cat ~/{folder}/*.txt | tr 'A-Z' 'a-z' | {drop}LC_ALL=C sort -u > ~/{result}.txt"
    ]


def convert_table(draft: Draft) -> None:
    """Convert CSV rows to JSON."""
    folder, source = draft.folder(), draft.words(1)[0]
    least = draft.rng.randint(5, 60)
    names = draft.words(draft.at(4, 8, 20))
    rows = [(name, draft.rng.randint(1, 99), draft.rng.random() < 0.7) for name in names[:-1]]
    rows.append((names[-1], draft.rng.randint(least, 99), True))
    draft.rng.shuffle(rows)
    lines = [f"{name};{count};{'yes' if used else 'no'}" for name, count, used in rows]
    draft.files[f"{folder}/{source}.csv"] = "\n".join(["name;count;used", *lines]) + "\n"
    wanted = [row for row in rows if row[2] and row[1] >= least]
    show = (
        "import json\n"
        f"rows = json.load(open('/home/agent/{folder}/used.json'))\n"
        "for row in rows:\n    print(row['name'], row['count'] + 0, len(row))\n"
    )
    text = "".join(f"{name} {count} 2\n" for name, count, _ in wanted)
    draft.expect_run("python3 -I /tests/show.py", text, {"show.py": show})
    draft.say(
        f"Write ~/{folder}/used.json: a JSON list of the rows of ~/{folder}/{source}.csv whose "
        f"column used is yes and whose count is at least {least}, in the same order, each an "
        "object with name (text) and count (number).",
        f"Convert ~/{folder}/{source}.csv (fields separated by semicolons) to JSON: a list of "
        "objects with the keys name and count, where count is a number, only for rows with used = "
        f"yes and a count of {least} or more. Save it as ~/{folder}/used.json and keep the order.",
    )
    draft.solution = [
        f'cd ~/{folder} && python3 -c "import csv, json; '
        f"rows = csv.DictReader(open('{source}.csv'), delimiter=';'); "
        "json.dump([{'name': r['name'], 'count': int(r['count'])} for r in rows if "
        f"r['used'] == 'yes' and int(r['count']) >= {least}], open('used.json', 'w'))\""
    ]
