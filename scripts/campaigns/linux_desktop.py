"""Play many episodes on real desktops, kill processes of some, and count rewards and leaks.

Each episode appends one JSON line to the file. The same command plays what the file lacks.

    python scripts/campaigns/linux_desktop.py oracle.jsonl --policy oracle --seeds 50
    python scripts/campaigns/linux_desktop.py kills.jsonl --kill 0.05 --seeds 1000 \
        --families write_note,rename_folder,append_line
"""

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from envkit.env import PolicyContext
from envkit.errors import EnvFault
from envkit.seeds import derive_seed
from envkit_linux_desktop import LinuxDesktopEnv
from envkit_linux_desktop.tasks import FAMILIES
from envkit_sandbox.watchdog import processes

_LEAK_SECONDS: Final = 20.0
"""Time after which what a session used counts as leaked."""
stop: Final = threading.Event()
seen: Final = set[tuple[int, str]]()
"""Every process of every session, as (number, start time)."""


def started(process: int) -> str | None:
    """Return when a process started, in ticks since boot; None if it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    return None


def note(env: LinuxDesktopEnv) -> tuple[list[int], list[int]]:
    """Return the processes of display and desk, those that started first at the beginning."""
    session = env.session
    display, desk = (
        processes(part.sandbox.pid) if part is not None and part.sandbox is not None else []
        for part in (session.display, session.desk)
    )
    seen.update((one, begun) for one in (*display, *desk) if (begun := started(one)))
    return display, desk


class Killer:
    """Kills one process of a session at a random time of its episode."""

    def __init__(self, env: LinuxDesktopEnv, rng: random.Random, seconds: float) -> None:
        self._env, self._rng = env, rng
        self._killed: dict[str, Any] = {}
        self._timer = threading.Timer(rng.uniform(0.0, seconds), self._kill)
        self._timer.start()

    def end(self) -> dict[str, Any]:
        """Stop; return whether a process was killed that the session cannot live without."""
        self._timer.cancel()
        self._timer.join()
        return self._killed

    def _kill(self) -> None:
        with suppress(EnvFault, OSError, IndexError):
            display, desk = note(self._env)
            vital = [*display, *desk[:2]]  # bubblewraps and first processes, and Xvfb
            target = self._rng.choice(self._rng.choice((vital, desk)))
            os.kill(target, signal.SIGKILL)
            self._killed = {"is_vital": target in vital, "at": time.monotonic()}


def play(env: LinuxDesktopEnv, task: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Play one episode and return its line."""
    rng = random.Random(derive_seed("kill", task["id"]))
    policy, begun, last = env.policies[options.policy](), time.monotonic(), 0.0
    line: dict[str, Any] = {"outcome": "stopped"}
    killer: Killer | None = None
    try:
        env.reset(seed=task["draw"], options={"task": task})
        note(env)
        if rng.random() < options.kill:
            killer = Killer(env, rng, options.within)
        for turn in range(env.max_turns):
            seed = task["draw"]
            reply = policy(PolicyContext(env=env, task=task, turn=turn, messages=(), seed=seed))
            last = time.monotonic()
            _, reward, terminated, truncated, _ = env.step(reply)
            if terminated or truncated:
                line = {"outcome": "played", "reward": reward}
            if terminated or truncated or stop.is_set():
                break
    except EnvFault as fault:
        line = {"outcome": f"{fault.kind.value} fault", "says": str(fault)[:300]}
    except Exception as error:  # noqa: BLE001  # a campaign counts failures of every kind
        line = {"outcome": type(error).__name__, "says": str(error)[:300]}
    killed = {} if killer is None else killer.end()
    with suppress(EnvFault):
        note(env)
    if killed:
        line["killed"] = "vital" if killed["is_vital"] else "other"
        line["from_dead"] = killed["is_vital"] and killed["at"] < last and "reward" in line
    return {**task, "policy": options.policy, **line, "seconds": round(time.monotonic() - begun, 2)}


def work(tasks: Iterator[dict[str, Any]], out: BinaryIO, options: argparse.Namespace) -> None:
    """Play tasks until none is left."""
    turns = options.turns or (300 if options.policy == "oracle" else 30)
    env = LinuxDesktopEnv(max_turns=turns, ready=options.ready)
    while not stop.is_set() and (task := next(tasks, None)) is not None:
        line = play(env, task, options)
        if line["outcome"] != "stopped":
            out.write(json.dumps(line).encode() + b"\n")
    env.close()


def held() -> dict[str, set[str]]:
    """Return what sessions use: processes, descriptors, mounts, sockets and folders."""
    running = {number for number, begun in set(seen) if started(number) == begun}
    links: set[str] = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            links.add(os.readlink(f"/proc/self/fd/{name}"))
    sockets = Path("/proc/net/unix").read_text().splitlines()
    places = (Path("/dev/shm"), Path("/tmp"))
    return {
        "processes": {str(one) for one in running | set(processes(os.getpid()))},
        "descriptors": {link for link in links if not link.startswith("/proc/")},
        "mounts": set(Path("/proc/self/mounts").read_text().splitlines()),
        "sockets": {line.split()[-1] for line in sockets if "envkit-desk" in line},
        "files": {str(one) for place in places for one in place.glob("envkit-desk-*")},
    }


def leaks(before: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return what stays for `_LEAK_SECONDS` and was not there before."""
    left = {kind: now - before[kind] for kind, now in held().items()}
    until = time.monotonic() + _LEAK_SECONDS
    while any(left.values()) and time.monotonic() < until:
        time.sleep(0.5)
        left = {kind: left[kind] & now for kind, now in held().items()}
    return left


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of earlier runs; one that was cut off does not count."""
    found: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def report(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return rewards by family and counts of outcomes."""
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for line in found:
        if "reward" in line and "killed" not in line:
            rewards[line["family"]].append(line["reward"])
    every = [reward for some in rewards.values() for reward in some]
    return {
        "families": {
            name: f"{sum(some):g} of {len(some)}" for name, some in sorted(rewards.items())
        },
        "reward of episodes without a kill": f"{sum(every):g} of {len(every)}",
        "outcomes": dict(Counter(line["outcome"] for line in found)),
        "after a kill": dict(
            Counter(f"{line['killed']}: {line['outcome']}" for line in found if "killed" in line)
        ),
        "rewards from dead sessions": sum(line.get("from_dead", False) for line in found),
        "episode seconds": round(sum(line["seconds"] for line in found) / max(1, len(found)), 2),
    }


def main() -> None:
    """Play the episodes and print the report as JSON; exit with 1 if anything leaked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("file", type=Path, help="where to append lines")
    parser.add_argument("--policy", choices=sorted(LinuxDesktopEnv.policies), default="oracle")
    parser.add_argument("--families", help="names with commas; all by default")
    parser.add_argument("--seeds", type=int, default=1, help="episodes of each family")
    parser.add_argument("--workers", type=int, default=4, help="sessions at a time")
    parser.add_argument("--ready", type=int, default=1, help="ready sessions per worker")
    parser.add_argument("--turns", type=int, help="replies per episode; oracle 300, others 30")
    parser.add_argument("--kill", type=float, default=0.0, help="chance of a kill per episode")
    parser.add_argument("--within", type=float, default=2.0, help="latest kill, in seconds")
    options = parser.parse_args()
    names = options.families.split(",") if options.families else sorted(FAMILIES)
    had = {line["id"] for line in lines(options.file)}
    tasks = [
        {"id": f"{name}/{seed}", "family": name, "level": seed % 4 + 1, "draw": seed}
        for seed in range(options.seeds)
        for name in names
    ]
    left = iter([task for task in tasks if task["id"] not in had])
    with open(options.file, "ab", buffering=0) as out:
        if out.tell():
            out.write(b"\n")  # after a line that was cut off; empty lines do not count
        before = held()
        threads = [
            threading.Thread(target=work, args=(left, out, options)) for _ in range(options.workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                try:
                    thread.join(1.0)
                except KeyboardInterrupt:  # episodes end early; the next run plays them
                    stop.set()
        left_over = leaks(before)
    figures = {
        **report(lines(options.file)),
        "leaked": {k: sorted(v) for k, v in left_over.items()},
    }
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    sys.exit(bool(any(left_over.values()) or figures["rewards from dead sessions"]))


if __name__ == "__main__":
    main()
