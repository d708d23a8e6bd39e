"""A run folder is data: resuming it runs and contacts only what the command line confirms."""

import hashlib
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.command import Outcome, run_envkit
from hypothesis import given
from hypothesis import strategies as st

from envkit.cli.play_options import PlayOptions
from envkit.cli.run_plan import RolloutPlan
from envkit.cli.trust import Confirmation, references
from envkit.errors import ConfigurationError
from envkit.secrets import stored
from envkit.trajectory.storage import load

RUN = Path("run")
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(autouse=True)
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a module that leaves a file when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    witness = tmp_path / "imported"
    Path("planted.py").write_text(
        f"open({str(witness)!r}, 'w').close()\n"
        "def policy(context):\n    return 'x'\n"
        "def adjust(*trajectories):\n    return list(trajectories)\n"
        "def keep(view):\n    return None\n"
        "async def agent(task):\n    return 1.0\n"
    )
    sys.modules.pop("planted", None)
    return witness


def rollout(*more: object, env_id: str = "canary-v0", policy: str = "oracle") -> Outcome:
    return run_envkit(
        "rollout", env_id, "--policy", policy, "-n", "2", "--out", RUN, "--quiet", *more
    )


def resume(*more: object) -> Outcome:
    return run_envkit("rollout", "--resume", RUN, "--quiet", *more)


def change(change_settings: Change, run: Path = RUN) -> None:
    """Change the settings as whoever hands the folder around can: the seal has no key."""
    data = json.loads((run / "run.json").read_text())
    data["settings"]["episodes"] = 4
    change_settings(data["settings"])
    text = json.dumps(data["settings"], sort_keys=True)
    data["seal"] = hashlib.sha256(text.encode()).hexdigest()
    (run / "run.json").write_text(json.dumps(data))


def config(**values: object) -> Change:
    return lambda settings: settings["config"].update(values)


def engine(**values: object) -> Change:
    return lambda settings: settings["engine"].update(values)


def of_env(env_id: str, **arguments: object) -> Change:
    def apply(settings: dict[str, Any]) -> None:
        settings["env_id"] = settings["config"]["env_id"] = env_id
        settings["config"]["env_kwargs"] = arguments

    return apply


PAGE = "http://models.example:30000"
CASES: dict[str, tuple[Change, str]] = {
    "policy": (engine(policy="planted:policy"), "planted:policy"),
    "agent path": (config(agent="planted:agent"), "planted:agent"),
    "dotted agent": (config(agent="planted.agent"), "planted.agent"),
    "agent function": (config(agent={"function": "planted:agent"}), "planted:agent"),
    "agent command": (config(agent={"command": "touch imported"}), "touch imported"),
    "agent words": (config(agent={"command": ["touch", "imported"]}), '["touch", "imported"]'),
    "grade": (config(agent={"command": "true", "grade": "touch imported"}), "touch imported"),
    "harness": (config(agent="claude-code --x y"), "claude-code --x y"),
    "harness setting": (config(agent={"harness": "codex"}), "codex"),
    "agent elsewhere": (
        config(agent={"command": "x", "url": "http://a.example"}),
        "http://a.example",
    ),
    "open gateway": (config(agent={"command": "x", "bind": "0.0.0.0:80"}), "0.0.0.0:80"),
    "adjust_rewards": (config(adjust_rewards="planted:adjust"), "planted:adjust"),
    "history": (config(history="planted:keep"), "planted:keep"),
    "gymnasium": (of_env("gymnasium-v0", env="planted:Planted-v0"), "planted:Planted-v0"),
    "nested": (
        of_env("refine-v0", task_env="gymnasium-v0", task_env_kwargs={"env": "planted:A-v0"}),
        "planted:A-v0",
    ),
    "verifiers": (of_env("verifiers-v0", environment="planted"), "planted"),
    "ray address": (
        config(workers=1, player_options={"address": "cluster.example:6379"}),
        "cluster.example:6379",
    ),
    "ray environment": (
        config(workers=1, player_options={"runtime_env": {"py_modules": ["."]}}),
        '{"py_modules": ["."]}',
    ),
    "server": (engine(policy=None, name="sglang", base_url=PAGE), PAGE),
    "chat": (engine(policy=None, chat=PAGE, model="m"), PAGE),
    "one of two": (
        engine(policy=None, name="sglang", base_url=f"http://127.0.0.1:1,{PAGE}"),
        f"http://127.0.0.1:1,{PAGE}",
    ),
    "environment's server": (of_env("openenv-v0", base_url=PAGE), PAGE),
    "program of a server": (
        of_env("mcp-v0", servers={"x": {"command": ["touch", "imported"]}}),
        '["touch", "imported"]',
    ),
    "variables of a server": (
        of_env("mcp-v0", servers={"x": {"command": [], "env": {"LD_PRELOAD": "planted.so"}}}),
        '{"LD_PRELOAD": "planted.so"}',
    ),
    "server in a mapping": (of_env("mcp-v0", servers={"x": {"url": PAGE}}), PAGE),
    "variable": (
        of_env("openenv-v0", base_url="http://127.0.0.1:1", headers={"X-Key": "env:HOME"}),
        "env:HOME",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_resume_lists_what_it_would_run_and_runs_none(name: str, planted: Path) -> None:
    assert rollout().code == 0
    apply, listed = CASES[name]
    change(apply)
    before = {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
    shown = resume()
    assert shown.code == 2, shown.err
    assert listed in shown.err
    assert "--trust" in shown.err
    assert not planted.exists()
    assert "planted" not in sys.modules
    assert {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()} == before
    if name not in ("grade", "agent elsewhere", "open gateway"):  # these have a command too
        assert "must be confirmed" not in resume("--trust", listed).err


@pytest.mark.parametrize(
    "given", [["--policy", "planted:policy"], ["--trust", "planted:policy"]], ids=["again", "trust"]
)
def test_resume_runs_a_reference_given_again_or_trusted(given: list[str], planted: Path) -> None:
    assert rollout().code == 0
    change(engine(policy="planted:policy"))
    shown = resume(*given)
    assert shown.code == 0, shown.err
    assert planted.exists()
    assert len(load(RUN)) == 4


@pytest.mark.parametrize(
    "given",
    [
        ["--trust", "planted:other"],
        ["--trust", "planted"],
        ["--trust", " planted:policy"],
        ["--policy", "planted:other"],
        ["--policy", "oracle"],
        ["--agent", "planted:policy"],
        ["--set", "adjust_rewards=planted:policy"],
    ],
)
def test_resume_refuses_other_options_than_the_run_has(given: list[str], planted: Path) -> None:
    assert rollout().code == 0
    change(engine(policy="planted:policy"))
    assert resume(*given).code == 2
    assert not planted.exists()


def test_resume_lists_every_reference_at_once(planted: Path) -> None:
    assert rollout().code == 0
    change(engine(policy="planted:policy"))
    change(config(adjust_rewards="planted:adjust"))
    shown = resume()
    assert "planted:policy" in shown.err
    assert "planted:adjust" in shown.err
    half = resume("--trust", "planted:policy")
    assert half.code == 2
    assert "planted:policy" not in half.err
    assert not planted.exists()


def test_listed_reference_shows_control_characters_and_is_trusted_as_shown(planted: Path) -> None:
    assert rollout().code == 0
    change(config(agent={"command": "touch imported\n\x1b[2Kecho \u202esafe"}))
    shown = resume()
    listed = r'"touch imported\n\u001b[2Kecho \u202esafe"'
    assert listed in shown.err
    assert "must be confirmed" not in resume("--trust", listed).err


def test_names_of_installed_things_resume_without_trust() -> None:
    more = ["--set", "history=keep_last_images", "--wrap", "rescale-reward:scale=2"]
    assert rollout(*more, "--env-kwargs", "turns=2").code == 0
    change(config(adjust_rewards="team_mean"))
    shown = resume()
    assert shown.code == 0, shown.err
    assert len(load(RUN)) == 4


def test_resume_or_start_needs_no_trust_but_the_same_options(planted: Path) -> None:
    assert rollout("--resume-or-start", policy="planted:policy").code == 0
    change(config())
    sys.modules.pop("planted")
    planted.unlink()
    assert rollout("--resume-or-start").code == 2
    assert not planted.exists()
    shown = rollout("--resume-or-start", "-n", 4, policy="planted:policy")
    assert shown.code == 0, shown.err
    assert len(load(RUN)) == 4


def test_trust_without_resume_is_refused() -> None:
    shown = rollout("--trust", "planted:policy")
    assert shown.code == 2
    assert "--resume" in shown.err


def evaluate(*more: object) -> Outcome:
    return run_envkit("eval", *more, "--quiet")


def change_eval(apply: Change) -> None:
    file = Path("ev/eval.json")
    data = json.loads(file.read_text())
    for settings in data["runs"].values():
        apply(settings)
    file.write_text(json.dumps(data))


@pytest.mark.parametrize("place", ["eval.json", "run.json", "neither run"])
def test_eval_resume_and_resume_or_start_run_nothing_unconfirmed(place: str, planted: Path) -> None:
    start = ("canary-v0", "--policy", "oracle", "-n", "2", "--out", "ev")
    assert evaluate(*start).code == 0
    run = Path("ev/canary-v0")
    if place != "eval.json":
        change(config(adjust_rewards="planted:adjust"), run)
    if place != "run.json":
        change_eval(config(adjust_rewards="planted:adjust"))
    if place == "neither run":
        for file in run.iterdir():
            if file.is_file():
                file.unlink()
    again = evaluate(*start, "--resume-or-start")
    assert not planted.exists()
    if place != "eval.json":
        shown = evaluate("--resume", "ev")
        assert shown.code == 2
        assert "planted:adjust" in shown.err
    assert again.code == 2, again.err
    assert not planted.exists()


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp/elsewhere", "a/b", ".", ""])
def test_eval_resume_refuses_a_run_outside_its_folder(name: str) -> None:
    assert evaluate("canary-v0", "--policy", "oracle", "-n", "2", "--out", "ev").code == 0
    file = Path("ev/eval.json")
    data = json.loads(file.read_text())
    data["runs"] = {name: data["runs"]["canary-v0"]}
    file.write_text(json.dumps(data))
    shown = evaluate("--resume", "ev")
    assert shown.code == 1
    assert "does not describe an evaluation" in shown.err
    assert not Path("elsewhere").exists()


def test_task_rows_run_nothing_unconfirmed(planted: Path) -> None:
    row = {"env_id": "gymnasium-v0", "env_kwargs": {"env": "planted:A-v0"}, "seed": 1}
    Path("rows.jsonl").write_text(json.dumps({"envkit": json.dumps(row)}) + "\n")
    play = ("rollout", "gymnasium-v0", "--policy", "oracle", "--tasks", "rows.jsonl")
    shown = run_envkit(*play, "--out", "r")
    assert shown.code == 2
    assert "planted:A-v0" in shown.err
    assert not planted.exists()
    exported = run_envkit("export", "gymnasium-v0", "--tasks", "rows.jsonl", "--out", "d")
    assert exported.code == 2, exported.err
    assert not planted.exists()
    run_envkit(*play, "--out", "r", "--trust", "planted:A-v0")
    assert planted.exists()


READERS: list[list[object]] = [
    ["view", RUN, "--no-pager"],
    ["view", RUN],
    ["report", RUN],
    ["report", RUN, RUN],
    ["verify", RUN],
    ["merge", RUN, RUN, "--out", "merged"],
    ["merge", RUN, "--out", "merged"],
    ["filter", RUN, "--reward-threshold", "1", "--out", "kept.jsonl"],
    ["export", RUN, "--format", "rows", "--out", "rows.parquet"],
    ["export", RUN, "--format", "inspect", "--out", "log.eval"],
    ["eval", RUN, RUN, "--paired"],
]


def name_everything(settings: dict[str, Any]) -> None:
    """Name the planted module wherever a run may name code."""
    config(agent="planted:agent", adjust_rewards="planted:adjust", history="planted:keep")(settings)
    config(env_kwargs={"env": "planted:A-v0", "module": "planted"})(settings)
    engine(policy="planted:policy", model="planted")(settings)


@pytest.mark.parametrize("words", READERS, ids=lambda words: " ".join(map(str, words)))
def test_reading_a_folder_runs_nothing_that_it_names(words: list[object], planted: Path) -> None:
    assert rollout().code == 0
    change(name_everything)
    run_envkit(*words)
    assert not planted.exists()
    assert "planted" not in sys.modules


def test_stopped_run_prints_the_command_that_resumes_it() -> None:
    assert rollout(policy="planted:policy").code == 0
    change(config(agent={"command": "echo 'a b'"}))
    trusted = ("planted:policy", "echo 'a b'")
    plan = RolloutPlan.resumed(RUN, Confirmation(trusted=trusted), base_url=None)
    assert shlex.split(plan.resume_options()) == [
        "--trust", "echo 'a b'", "--trust", "planted:policy"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1", "http://127.0.0.1:30000/v1", "http://localhost:1,http://[::1]:2",
        "HTTPS://LOCALHOST/", "ws://127.8.0.1:9/a?b",
    ],
)  # fmt: skip
def test_address_on_this_machine_needs_no_trust(address: str) -> None:
    assert list(references({"engine": {"base_url": address}})) == []
    assert list(references({"config": {"env_kwargs": {"base_url": address}}})) == []


@pytest.mark.parametrize(
    "address",
    [
        "http://models.example", "http://127.0.0.1@models.example", "http://me@127.0.0.1",
        "http://127.0.0.1.models.example", "http://localhost.example:1", "http://2130706433",
        "http://127.0.0.1:1,http://models.example", "http://127.0.0.1 http://models.example",
        "http://127.0.0.1\\@models.example", "http://127.0.0.1/@models.example", "http://[::1",
        "see http://models.example", "http://", "://", "http:///x", "http://127.0.0.1:1 ,x://y",
        "http://\uff11\uff12\uff17.0.0.1", "http://[::ffff:8.8.8.8]", "http://127.0.0.1#@x://y",
    ],
)  # fmt: skip
def test_any_other_address_needs_trust(address: str) -> None:
    for settings in (
        {"engine": {"base_url": address}},
        {"engine": {"chat": address}},
        {"config": {"env_kwargs": {"a": [{"b": address}]}}},
        {"wrap_kwargs": {"a": {"b": address}}},
    ):
        assert len(list(references(settings))) == 1, settings


NAMES = """
config engine agent function command player_options address workers history policy chat base_url
adjust_rewards env_kwargs wrap_kwargs key_env runtime_env grade
"""
HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES.split()),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(data=st.dictionaries(st.sampled_from(["config", "engine", "wrap_kwargs"]), HOSTILE))
def test_any_settings_are_listed_in_one_printable_line(data: dict[str, Any]) -> None:
    for one in references(data):
        assert one.text.isprintable()
        assert one.text == " ".join(one.text.split())


@given(command=st.text(min_size=1))
def test_trust_of_one_command_is_not_trust_of_another(command: str) -> None:
    def listed(text: str) -> str:
        (one,) = references({"config": {"agent": {"command": text}}})
        return one.text

    others = {command + " ", command + "x", json.dumps(command), f" {command}", command + "\n"}
    assert listed(command) not in {listed(other) for other in others - {command}}


def test_address_with_a_user_must_be_given_again() -> None:
    settings = stored({"engine": {"base_url": "http://me:pw@127.0.0.1:1"}})
    (one,) = references(settings)
    with pytest.raises(ConfigurationError, match=r"secrets engine\.base_url"):
        Confirmation(trusted=(one.text,)).confirm(RUN, {"": settings})
    given_again = Confirmation(replaced=("engine.base_url",))
    assert given_again.confirm(RUN, {"": settings}) == {"": settings}


@pytest.mark.parametrize("agent", ["planted:agent", "claude-code", "claude-code --agents a:b"])
def test_agent_of_one_word_is_confirmed_by_the_same_option(agent: str) -> None:
    settings = {"config": {"agent": agent}, "engine": {}, "wrap_kwargs": {}}
    again = PlayOptions(agent=agent).confirmation()
    assert again.confirm(RUN, {"": settings}) == {"": settings}
    other = PlayOptions(agent=agent.replace("a", "o", 1)).confirmation()
    with pytest.raises(ConfigurationError, match="cannot change"):
        other.confirm(RUN, {"": settings})


WRONG_TYPES: dict[str, Change] = {
    "episodes": lambda settings: settings.update(episodes="4"),
    "group_size": lambda settings: settings.update(group_size=0),
    "concurrency": lambda settings: settings.update(concurrency=10**400),
    "config": lambda settings: settings.update(config=[]),
    "config.env_kwargs": lambda settings: settings["config"].pop("env_kwargs"),
    "engine.model": lambda settings: settings["engine"].update(model=[]),
    "wrap": lambda settings: settings.update(wrap="blank-image"),
    "wrap_kwargs": lambda settings: settings.update(wrap_kwargs=[]),
    "shard": lambda settings: settings.update(shard=5),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_sealed_setting_of_a_wrong_type_is_one_clear_error(name: str) -> None:
    rollout()
    change(WRONG_TYPES[name])
    for command in (
        ("rollout", "--resume", RUN), ("merge", RUN, "--out", "merged"),
        ("filter", RUN, "--out", "kept.jsonl"), ("eval", "--paired", RUN, RUN),
    ):  # fmt: skip
        done = run_envkit(*command)
        assert done.code == 1, command
        assert f"run.json does not describe a run of envkit rollout: {name} must be" in done.err
        assert done.err.count("\n") == 1
