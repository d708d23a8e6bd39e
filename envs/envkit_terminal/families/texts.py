"""Families about text and tables."""

from envkit_terminal.families.draft import Draft

_SEVERITIES = ("DEBUG", "INFO", "WARNING", "ERROR")


def count_log(draft: Draft) -> None:
    """Count the lines of a log by severity."""
    kinds = _SEVERITIES[: draft.at(3, 4, 4)]
    rows: list[tuple[str, str]] = []
    for _ in range(draft.at(20, 80, 300)):
        kind = draft.one(kinds)
        other = draft.one(kinds).lower()  # a severity inside a message is not one
        rows.append(
            (kind, f"{draft.one(draft.words(3))} reported {other} {draft.rng.randint(1, 99)}")
        )
    days = [f"2026-03-{1 + n * 20 // len(rows):02d}" for n in range(len(rows))]
    lines = [f"{day} {kind} {text}" for day, (kind, text) in zip(days, rows, strict=True)]
    draft.files["app.log"] = "\n".join(lines) + "\n"
    counts = {kind: sum(row[0] == kind for row in rows) for kind in kinds}
    wanted = sorted(
        (kind for kind in kinds if counts[kind]), key=lambda kind: (-counts[kind], kind)
    )
    draft.expect("counts.txt", "\n".join(f"{kind} {counts[kind]}" for kind in wanted))
    draft.keep("app.log")
    draft.say(
        "Each line of ~/app.log has a date, a severity and a message. Count the lines of each "
        "severity and write 'SEVERITY COUNT' lines to ~/counts.txt, most frequent first, ties in "
        "alphabetical order.",
        "Summarise ~/app.log by its second column: one line 'SEVERITY COUNT' each in ~/counts.txt, "
        "sorted by count from high to low and then by name.",
    )
    draft.solution = [
        "cd ~ && awk '{c[$2]++} END {for (k in c) print k, c[k]}' app.log | "
        "LC_ALL=C sort -k2,2nr -k1,1 > counts.txt"
    ]


def total_table(draft: Draft) -> None:
    """Sum a column of a CSV file by group."""
    groups = draft.words(draft.at(2, 4, 8))
    rows = [
        (draft.one(groups), draft.words(1)[0], draft.rng.randint(1, 500))
        for _ in range(draft.at(8, 40, 200))
    ]
    name = draft.one(("sales", "orders", "hours"))
    head = "id,team,item,amount"
    body = [f"{n},{team},{item},{amount}" for n, (team, item, amount) in enumerate(rows, 1)]
    draft.files[f"{name}.csv"] = "\n".join([head, *body]) + "\n"
    totals = {team: sum(row[2] for row in rows if row[0] == team) for team, _, _ in rows}
    lines = ["team,total", *(f"{team},{totals[team]}" for team in sorted(totals))]
    draft.expect("totals.csv", "\n".join(lines))
    draft.say(
        "~/{name}.csv has the columns id, team, item and amount. Write ~/totals.csv with the "
        "header team,total and one row per team with the sum of its amounts, sorted by team.",
        "Add up the amounts in ~/{name}.csv per team. The result goes to ~/totals.csv: first the "
        "line team,total, then the teams in alphabetical order.",
        name=name,
    )
    draft.solution = [
        "cd ~ && { echo team,total; awk -F, 'NR>1 {t[$2]+=$4} END {for (k in t) print k\",\"t[k]}' "
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
        "The server {old} is now {new}. Update every .conf file below ~/{folder}, and leave .bak "
        "files as they are.",
        "Replace {old} by {new} in all .conf files in ~/{folder} and its subfolders. Do not touch "
        "other files.",
        folder=folder,
        old=old,
        new=new,
    )
    pattern = old.replace(".", "\\.")
    draft.solution = [f"find ~/{folder} -name '*.conf' -exec sed -i 's/{pattern}/{new}/g' {{}} +"]


def merge_lists(draft: Draft) -> None:
    """Merge lists without duplicates."""
    names = draft.words(draft.at(2, 3, 5))
    pool = [
        f"{word}{draft.rng.randint(1, 9)}@example.com" for word in draft.words(draft.at(8, 20, 40))
    ]
    kept: set[str] = set()
    for name in names:
        some = draft.rng.sample(pool, len(pool) * 2 // 3)
        written = [
            one.upper() if draft.level > 1 and draft.rng.random() < 0.3 else one for one in some
        ]
        draft.files[f"lists/{name}.txt"] = "\n".join(written) + "\n"
        kept |= set(some)
    draft.expect("all.txt", "\n".join(sorted(kept)))
    case = " Upper and lower case do not matter; write lowercase." if draft.level > 1 else ""
    draft.say(
        "Merge the address lists in ~/lists into ~/all.txt: every address once, sorted "
        "alphabetically.{case}",
        "~/all.txt shall contain each address from the files in ~/lists exactly once, in "
        "alphabetical order, one per line.{case}",
        case=case,
    )
    draft.solution = ["cat ~/lists/*.txt | tr 'A-Z' 'a-z' | LC_ALL=C sort -u > ~/all.txt"]


def convert_table(draft: Draft) -> None:
    """Convert CSV rows to JSON."""
    names = draft.words(draft.at(3, 8, 20))
    rows = [(name, draft.rng.randint(1, 99), draft.rng.random() < 0.5) for name in names]
    lines = [f"{name};{count};{'yes' if used else 'no'}" for name, count, used in rows]
    draft.files["stock.csv"] = "\n".join(["name;count;used", *lines]) + "\n"
    wanted = [row for row in rows if row[2]]
    show = (
        "import json\n"
        "rows = json.load(open('/home/agent/used.json'))\n"
        "for row in rows:\n    print(row['name'], row['count'] + 0, len(row))\n"
    )
    text = "".join(f"{name} {count} 2\n" for name, count, _ in wanted)
    draft.expect_run("python3 -I /tests/show.py", text, {"show.py": show})
    draft.say(
        "Write ~/used.json: a JSON list of the rows of ~/stock.csv whose column used is yes, in "
        "the same order, each an object with name (text) and count (number).",
        "Convert ~/stock.csv (fields separated by semicolons) to JSON: a list of objects with the "
        "keys name and count, where count is a number, only for rows with used = yes. Save it as "
        "~/used.json and keep the order.",
    )
    draft.solution = [
        "cd ~ && python3 -c \"import csv, json; rows = csv.DictReader(open('stock.csv'), "
        "delimiter=';'); json.dump([{'name': r['name'], 'count': int(r['count'])} for r in rows if "
        "r['used'] == 'yes'], open('used.json', 'w'))\""
    ]
