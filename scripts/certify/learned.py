"""Measure what a policy earns after learning from other tasks, without images or feedback.

    python scripts/certify/learned.py search-v0 --each hops=1,2,3 --train 2000 --test 2000
    python scripts/certify/learned.py computer-use-v0 --each level=1,2,3 --each families=drag_files

For each combination of the `--each` arguments, the oracle plays `--train` tasks. The policy keeps
rewarded replies by the task's wording: its text without numbers, quotes and names. On `--test`
other tasks it gives the most frequent replies for the wording, or for any task if the wording is
new. It gives all of them or only the last one, whichever earns more. Prints the mean return and the
replies that earned most.
"""
# ruff: noqa: T201  # a script prints its figures

import argparse
import itertools
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import envkit
from envkit.checker.under_test import CheckedEpisode
from envkit.env import Env
from envkit.seeds import derive_seed

_HIDDEN = re.compile(r"\"[^\"]*\"|\b[A-Z][\w'.@-]*|\S*\d\S*|\S+\.\w+")
Replies = tuple[str, ...]


def wording(text: str) -> str:
    """Return a text without the parts that differ between tasks of one kind."""
    return re.sub(r"(?:@[,\s]*(?:and )?)+", "@ ", _HIDDEN.sub("@", text))


def play(env: Env, seed: int, replies: Replies | None) -> CheckedEpisode:
    """Play the replies, or let the oracle reply if they are None."""
    if replies is None:
        return CheckedEpisode(env, env.oracle(), seed=seed).play()
    return CheckedEpisode(env, lambda context: replies[context.turn], seed=seed).play(len(replies))


def learned(env: Env, *, train: int, test: int) -> tuple[float, str]:
    """Return the mean return on the test tasks, and the replies that earned most there.

    Uses the better of two policies: all oracle replies, or its last one immediately.
    """
    whole: dict[str, Counter[Replies]] = defaultdict(Counter)
    last: dict[str, Counter[Replies]] = defaultdict(Counter)
    for number in range(train):
        episode = play(env, derive_seed("learned train", number), None)
        if episode.total > 0:
            text, replies = episode.start.observation["text"], episode.replies
            for known, said in ((whole, replies), (last, replies[-1:])):
                known[wording(text)][said] += 1
                known[""][said] += 1
    return max(_earned(env, known, test) for known in (whole, last))


def _earned(env: Env, known: dict[str, Counter[Replies]], test: int) -> tuple[float, str]:
    """Return the mean return of the most frequent replies, and the best-paid ones."""
    earned: dict[str, float] = defaultdict(float)
    for number in range(test):
        seed = derive_seed("learned test", number)
        asked = wording(env.reset(seed=seed)[0]["text"])
        said = known.get(asked) or known[""]
        replies = said.most_common(1)[0][0] if said else ("",)
        earned[" | ".join(replies)[:60]] += play(env, seed, replies).total
    return math.fsum(earned.values()) / test, max(earned, key=lambda name: earned[name])


def variants(each: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each combination."""
    axes: list[list[tuple[str, Any]]] = []
    for axis in each:
        name, _, values = axis.partition("=")
        axes.append([(name, _value(name, text)) for text in values.split(",")])
    for chosen in itertools.product(*axes):
        yield dict(chosen)


def _value(name: str, text: str) -> Any:  # noqa: ANN401  # an argument of any environment
    try:
        return json.loads(text)
    except ValueError:
        return [text] if name == "families" else text


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env_id", metavar="ID")
    parser.add_argument("--each", action="append", default=[], metavar="NAME=VALUE,VALUE")
    parser.add_argument("--train", type=int, default=300)
    parser.add_argument("--test", type=int, default=300)
    options = parser.parse_args()
    rows: list[tuple[float, str, str]] = []
    for kwargs in variants(options.each):
        env = envkit.make(options.env_id, **kwargs).unwrapped
        assert isinstance(env, Env)
        mean, best = learned(env, train=options.train, test=options.test)
        env.close()
        rows.append((mean, json.dumps(kwargs), best))
        print(f"{mean:.4f}  {json.dumps(kwargs)}", flush=True)
    print("\nhighest:")
    for mean, name, best in sorted(rows, reverse=True)[:12]:
        print(f"{mean:.4f}  {name:50} {best}")


if __name__ == "__main__":
    main()
