"""`envkit list` and `envkit info`: list environments, and describe one."""

import inspect
import json
from dataclasses import asdict
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from envkit.cli.console import note, say, say_json, table
from envkit.cli.installed import DISTRIBUTION
from envkit.cli.options import AsJson, EnvId, EnvKwargs, make_env, parse_env_kwargs

if TYPE_CHECKING:
    from envkit.env import Env
    from envkit.registration import EnvSpec


def list_environments(
    named: Annotated[
        str | None,
        typer.Argument(
            metavar="[COLLECTION[/TEXT]]",
            help="A collection to list, such as reasoning_gym; with a text, such as visual/grids, "
            "the members with this text in their id or description.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the installed environments and collections."""
    from envkit.collection import collections
    from envkit.errors import EnvkitError
    from envkit.registration import members, registry, spec

    namespace, _, text = (named or "").partition("/")
    rows: list[dict[str, str | None]] = []
    for name, listed in (members(namespace) if namespace else registry()).items():
        try:
            description = spec(name).description
        except EnvkitError as error:  # one broken plugin must not hide the others
            description = f"cannot be imported: {error}"
        if text.casefold() in f"{name.partition('/')[2]} {description}".casefold():
            rows.append(_row(name, listed.distribution or "-", description))
    if not namespace:
        for name, owner in sorted(collections().items()):  # importing one may take seconds
            hint = f"a collection: envkit list {name}"
            rows.append(_row(f"{name}/...", owner, hint))
    if text and not rows:
        spec(f"{namespace}/{text}")  # it suggests a name
    if not rows:
        note(f"no environment of the collection {namespace!r} is installed")
    elif not as_json:
        columns = [name for name in rows[0] if name != "origin" or any(row[name] for row in rows)]
        table(columns, [[row[name] or "-" for name in columns] for row in rows])
    if as_json:
        say_json(rows)


def _row(name: str, owner: str, description: str) -> dict[str, str | None]:
    return {"id": name, "from": owner, "origin": _origin(owner), "description": description}


@cache
def _origin(owner: str) -> str | None:
    """Return where a distribution of others was installed from."""
    try:
        return None if owner == DISTRIBUTION else origin_of(distribution(owner))
    except (PackageNotFoundError, ValueError):  # registered in Python, or of two distributions
        return None


def origin_of(found: Distribution) -> str | None:
    """Return where a distribution was installed from; None for a package index.

    Source: PEP 610, `direct_url.json`.
    """
    try:
        data: Any = json.loads(found.read_text("direct_url.json") or "{}")
        url, vcs = data.get("url"), data.get("vcs_info")
        if url and vcs:
            return f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    return url or None


def info(env_id: EnvId, env_kwargs: EnvKwargs = None, as_json: AsJson = False) -> None:
    """Describe one environment: its card, arguments, tools and policies."""
    from envkit.registration import spec

    found = spec(env_id)
    env = make_env(env_id, parse_env_kwargs(env_kwargs))
    try:
        facts = _facts(found, env)
    finally:
        env.close()
    if as_json:
        say_json(facts)
        return
    say(f"{facts['id']}: {facts['description']}")
    say()
    say(facts["card"])
    say()
    if not facts["sets_max_turns"]:
        facts["max_turns"] = f"{facts['max_turns']} (not set: an episode ends after one reply)"
    table(("", ""), [(name, _shown(value)) for name, value in facts.items() if name not in _ABOVE])


_ABOVE: Final = ("id", "description", "card", "system_prompt", "sets_max_turns")
"""Facts that the table of `envkit info` leaves out or shows in another line."""


def _facts(found: "EnvSpec", env: "Env") -> dict[str, Any]:
    from envkit.agents import MultiAgentEnv
    from envkit.cli.engines import policies_of

    size = None if env.tasks is None else env.tasks.size
    return {
        "id": found.id,
        "description": found.description,
        "card": inspect.getdoc(type(env)) or "",
        "distribution": found.distribution,
        "arguments": _arguments(type(env)),
        "system_prompt": env.system_prompt,
        "max_turns": env.max_turns,
        "sets_max_turns": env.sets_max_turns,
        "reward_threshold": env.reward_threshold,
        "tasks": "endless" if size is None else size,
        **({"roles": list(env.roles)} if isinstance(env, MultiAgentEnv) else {}),
        "tools": [spec.to_json()["function"] for spec in env.tools],
        "policies": sorted(policies_of(env)),
        "capabilities": asdict(env.capabilities),
    }


def _arguments(kind: type) -> list[str]:
    parameters = inspect.signature(kind).parameters.values()
    named = [one for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD]
    return [str(one.replace(annotation=inspect.Parameter.empty)) for one in named]


def _shown(value: Any) -> str:  # noqa: ANN401  # one of the facts above
    if isinstance(value, dict):
        flags = cast("dict[str, object]", value)
        return ", ".join(name if on is True else f"{name}={on}" for name, on in flags.items() if on)
    if isinstance(value, list):
        return ", ".join(map(_name, cast("list[Any]", value)))
    return "-" if value is None else str(value)


def _name(entry: Any) -> str:  # noqa: ANN401  # a tool's schema or a plain name
    return str(cast("dict[str, Any]", entry)["name"] if isinstance(entry, dict) else entry)
