"""Families about programs: scripts to fix, to write, and repositories."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from envkit_terminal.families.draft import Draft


@dataclass(frozen=True, kw_only=True)
class _Program:
    """A small program with a bug."""

    about: str
    right: str
    wrong: str
    make: Callable[[random.Random], str]
    """Draws an input."""
    answer: Callable[[str], str]


def _numbers(rng: random.Random) -> str:
    return "\n".join(str(rng.randint(-50, 50)) for _ in range(rng.randint(3, 9))) + "\n"


def _words(rng: random.Random) -> str:
    return " ".join(rng.choice(("ash", "elm", "oak", "fir", "yew")) for _ in range(12)) + "\n"


def _values(text: str) -> list[int]:
    return [int(line) for line in text.split()]


def _longest(text: str) -> str:
    best = run = 0
    last = ""
    for word in text.split():
        run = run + 1 if word == last else 1
        best, last = max(best, run), word
    return str(best)


_PROGRAMS = (
    _Program(
        about="prints the largest of the numbers in the file, one per line",
        right="best = values[0]",
        wrong="best = 0",
        make=lambda rng: "".join(f"{-rng.randint(1, 60)}\n" for _ in range(rng.randint(2, 6))),
        answer=lambda text: str(max(_values(text))),
    ),
    _Program(
        about="prints the sum of the numbers in the file, one per line",
        right="for value in values:",
        wrong="for value in values[:-1]:",
        make=_numbers,
        answer=lambda text: str(sum(_values(text))),
    ),
    _Program(
        about="prints the number of different words in the file",
        right="words = set(text.split())",
        wrong="words = text.split()",
        make=_words,
        answer=lambda text: str(len(set(text.split()))),
    ),
    _Program(
        about="prints the length of the longest run of equal consecutive words",
        right="run = run + 1 if word == last else 1",
        wrong="run = run + 1 if word == last else 0",
        make=_words,
        answer=_longest,
    ),
)
_BODIES = (
    "values = [int(line) for line in text.split()]\n{line}\nfor value in values:\n"
    "    if value > best:\n        best = value\nprint(best)\n",
    "values = [int(line) for line in text.split()]\ntotal = 0\n{line}\n    total += value\n"
    "print(total)\n",
    "{line}\nprint(len(words))\n",
    "best = run = 0\nlast = ''\nfor word in text.split():\n    {line}\n"
    "    best = max(best, run)\n    last = word\nprint(best)\n",
)


def fix_script(draft: Draft) -> None:
    """Fix a wrong script."""
    index = draft.rng.randrange(len(_PROGRAMS))
    program, body = _PROGRAMS[index], _BODIES[index]
    path = f"{draft.folder()}.py"
    head = "import sys\n\ntext = open(sys.argv[1]).read()\n"
    draft.files[path] = head + body.format(line=program.wrong)
    given = program.make(draft.rng)
    draft.files["example.txt"] = given
    hint = ""
    if draft.level < 3:
        hint = f" For ~/example.txt it must print {program.answer(given)}."
    hidden = _hidden(draft, program)
    for number, text in enumerate(hidden):
        draft.expect_run(
            f"python3 ~/{path} /tests/{number}.txt",
            program.answer(text),
            {f"{number}.txt": text},
        )
    draft.say(
        f"~/{path} FILE {program.about}. It has a bug and prints a wrong result. Fix it.{hint}",
        f"Find and fix the mistake in ~/{path}. When called with a file it {program.about}.{hint}",
    )
    fixed = head + body.format(line=program.right)
    draft.solution = [f"cat > ~/{path} <<'END'\n{fixed}END"]


def _hidden(draft: Draft, program: _Program) -> list[str]:
    """Return inputs for the tests; the wrong program fails on at least one of them."""
    texts = [program.make(draft.rng) for _ in range(draft.at(2, 3, 4))]
    sure = {
        "best = 0": "-7\n-3\n",
        "for value in values[:-1]:": "4\n5\n",
        "words = text.split()": "elm elm ash\n",
        "run = run + 1 if word == last else 0": "oak fir oak\n",
    }
    return [*texts, sure[program.wrong]]


def write_script(draft: Draft) -> None:
    """Write a script that works on other inputs too."""
    name = draft.name()
    program = draft.one(_PROGRAMS)
    given = program.make(draft.rng)
    draft.files["example.txt"] = given
    texts = [program.make(draft.rng) for _ in range(draft.at(2, 3, 4))]
    while {program.answer(text) for text in texts} == {program.answer(given)}:
        texts[-1] = program.make(draft.rng)  # printing the example's result must not pass
    for number, text in enumerate(texts):
        draft.expect_run(
            f"~/bin/{name} /tests/{number}.txt", program.answer(text), {f"{number}.txt": text}
        )
    draft.say(
        f"Write an executable program ~/bin/{name} that takes a file as its argument and "
        f"{program.about}. For ~/example.txt the result is {program.answer(given)}.",
        f"I need a command ~/bin/{name} FILE that {program.about}. Any language that is installed "
        f"will do. With ~/example.txt it gives {program.answer(given)}.",
    )
    body = _BODIES[_PROGRAMS.index(program)].format(line=program.right)
    text = f"#!/usr/bin/python3\nimport sys\n\ntext = open(sys.argv[1]).read()\n{body}"
    draft.solution = [
        f"mkdir -p ~/bin && cat > ~/bin/{name} <<'END'\n{text}END",
        f"chmod +x ~/bin/{name} && ~/bin/{name} ~/example.txt",
    ]


def edit_settings(draft: Draft) -> None:
    """Change values in a JSON file."""
    keys = draft.words(draft.at(3, 6, 10))
    settings: dict[str, dict[str, object]] = {
        key: {"enabled": draft.rng.random() < 0.5, "port": draft.rng.randint(1000, 9999)}
        for key in keys
    }
    path = "settings.json"
    draft.files[path] = json.dumps(settings, indent=2) + "\n"
    chosen = draft.rng.sample(keys, draft.at(1, 2, 3))
    port = draft.rng.randint(10000, 20000)
    wanted = dict(settings)
    for offset, key in enumerate(chosen):
        wanted[key] = {"enabled": True, "port": port + offset}
    shown = json.dumps(wanted, sort_keys=True)
    draft.expect_run(
        'python3 -I -c "import json; print(json.dumps(json.load(open('
        "'/home/agent/settings.json')), sort_keys=True))\"",
        shown,
    )
    changes = "; ".join(f"{key}: port {port + n}" for n, key in enumerate(chosen))
    draft.say(
        f"In ~/settings.json, enable these services and give them new ports: {changes}. The file "
        "must stay valid JSON and nothing else may change.",
        "Set enabled to true and change the port in ~/settings.json for the following: "
        f"{changes}. Keep all other values.",
    )
    edits = "; ".join(
        f"s['{key}'] = dict(enabled=True, port={port + n})" for n, key in enumerate(chosen)
    )
    draft.solution = [
        f"cd ~ && python3 -c \"import json; s = json.load(open('{path}')); {edits}; "
        f"json.dump(s, open('{path}', 'w'), indent=2)\""
    ]


_GIT = """# Read a repository's objects; its settings, filters and hooks could run programs.
set -e
from=/home/agent/$1; shift
git init -q /tmp/read
cd /tmp/read/.git
rm -r refs objects hooks
for part in HEAD index refs objects packed-refs; do
  if [ -e "$from/.git/$part" ]; then cp -r "$from/.git/$part" .; fi
done
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_DIR=/tmp/read/.git
export GIT_WORK_TREE="$from"
exec git --no-pager "$@"
"""


def git_commit(draft: Draft) -> None:
    """Commit one of several changes."""
    repository, *names = draft.words(draft.at(3, 4, 6))
    message = f"Update {names[0]} to {draft.rng.randint(2, 99)}"
    for name in names:
        draft.files[f"{repository}/{name}.txt"] = f"{name} 1\n"
    draft.environment = {
        "GIT_AUTHOR_NAME": "Agent",
        "GIT_AUTHOR_EMAIL": "agent@example.com",
        "GIT_COMMITTER_NAME": "Agent",
        "GIT_COMMITTER_EMAIL": "agent@example.com",
    }
    changed = " ".join(f"{name}.txt" for name in names)
    draft.setup = [
        f"cd ~/{repository} && git init -q -b main && git add . && git commit -qm 'Start' && "
        f"for f in {changed}; do echo changed >> $f; done; cd ~"
    ]
    rest = "\n".join(f" M {name}.txt" for name in sorted(names[1:]))
    for command, output in (
        ("log --format=%s -2", f"{message}\nStart"),
        ("show --name-only --format= HEAD", f"{names[0]}.txt"),
        ("status --porcelain", rest),
    ):
        draft.expect_run(f"sh /tests/git.sh {repository} {command}", output, {"git.sh": _GIT})
    draft.say(
        f"Several files in the git repository ~/{repository} have changed. Commit only "
        f"{names[0]}.txt, with the message '{message}', and leave the other changes uncommitted.",
        f"In ~/{repository}, make one commit that contains nothing but the change to "
        f"{names[0]}.txt. Its message is: {message}. Do not commit or undo the other changes.",
    )
    draft.solution = [f"cd ~/{repository} && git commit -qm '{message}' -- {names[0]}.txt"]
