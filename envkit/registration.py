"""Find, register and make environments by id, on top of Gymnasium's registry.

An id is `name-vN`; Gymnasium knows it as `envkit/name-vN`. Other distributions add environments
with an entry point in the group `envkit.envs`: its name is the id, and its value points to an
`EnvSpec`, such as `envkit_geo3k:SPEC`. Listing reads only package metadata; a plugin is imported
when one of its environments is made. Environments of a collection have its namespace in their id,
also in Gymnasium: `namespace/name-vN` (see `envkit.collection`).
"""

import json
import re
import sys
import warnings
from collections.abc import (
    Callable,
    ItemsView,
    Iterator,
    Mapping,
    Sequence,
    ValuesView,
)
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Final, Literal, cast, overload

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymSpec

from envkit.collection import collections, load_collection
from envkit.env import Env
from envkit.errors import (
    ConfigurationError,
    ContractError,
    EnvkitError,
    UnknownNameError,
    did_you_mean,
    nearest,
)
from envkit.plugins import foreign, installed, load_only, owners
from envkit.ranges import at_least
from envkit.secrets import stored
from envkit.signature import known_arguments, takes, wrong_types
from envkit.success import checked_threshold, finite

NAMESPACE: Final = "envkit"
ENTRY_POINT_GROUP: Final = "envkit.envs"
_LOADER: Final = "envkit.registration:make_plugin"
_ID: Final = re.compile(r"(?:envkit/)?((?:\w+/)?[\w.-]+?)(-v\d+)?", re.ASCII)

AnyEnv = gymnasium.Env[Any, Any]
Creator = Callable[..., AnyEnv]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """The specification of an environment."""

    id: str
    """`name-vN`; in a collection `namespace/name-vN`."""
    entry_point: str | Creator
    """`module:Class`. In a listing, `module:name` of a plugin's spec, which is not imported yet. A
    class that cannot be imported by name works only in this process."""
    description: str = ""
    """One line; empty in a listing until `spec` imports the plugin."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """Constructor arguments, JSON data; those given to `make` override them."""
    nondeterministic: bool = False
    """Whether the same seed, task and replies may give a different episode."""
    reward_threshold: float | None = None
    """Return from which an episode counts as solved (see `envkit.success`); with several agents,
    each role's return. None if `info["is_success"]` says so, or nothing does."""
    distribution: str | None = None
    """The distribution that provides it, set by the registry; None if registered at run time."""

    def __post_init__(self) -> None:
        """Check the threshold and the description.

        Raises:
            ConfigurationError: They are not a finite number and a string.
        """
        if not isinstance(self.description, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # a plugin may give anything
            raise ConfigurationError(f"a description must be a string, got {self.description!r}")
        object.__setattr__(self, "reward_threshold", checked_threshold(self.reward_threshold))


_registered: dict[str, EnvSpec] = {}
"""By id: specs that `register` added, and those of imported plugins."""
_plugins: dict[str, list[EntryPoint]] = {}
"""By id: the entry points of installed distributions. More than one is a conflict."""


def register(
    id: str,  # noqa: A002  # Gymnasium's word
    entry_point: str | Creator,
    *,
    description: str = "",
    kwargs: Mapping[str, Any] | None = None,
    nondeterministic: bool = False,
    reward_threshold: float | None = None,
) -> None:
    """Register an environment for `envkit.make` and `gymnasium.make` in this process.

    Registering the same class or function again replaces its entry, so a notebook cell can run
    twice. "The same" means the same module and name, which includes a redefined class.

    Args:
        id: `name-vN`, with or without the namespace `envkit/`.
        entry_point: `module:Class` or the class itself.
        description: One line for listings.
        kwargs: Constructor arguments, JSON data.
        nondeterministic: Whether the same seed, task and replies may give a different episode.
        reward_threshold: Return from which an episode counts as solved; None declares none.

    Raises:
        ConfigurationError: The id is malformed or taken, the entry point is invalid, the arguments
            are not JSON data, or the threshold is not a finite number.
    """
    name = _local_id(id)
    if "/" in name:
        raise ConfigurationError(
            f"an environment id must look like 'name-v0', got {id!r}; only installed collections "
            "have a namespace"
        )
    added = EnvSpec(
        id=name,
        entry_point=_place_of(entry_point),
        description=description,
        kwargs=dict(kwargs or {}),
        nondeterministic=nondeterministic,
        reward_threshold=reward_threshold,
    )
    _check_json(added)
    _remove_replaced(added)
    try:
        _add_to_gymnasium(added)
    except gymnasium.error.Error as error:
        raise ConfigurationError(f"cannot register environment {name!r}: {error}") from error
    _registered[name] = added


def _remove_replaced(added: EnvSpec) -> None:
    """Remove the entry that a spec replaces; raise if a different environment has the id."""
    if _gym_id(added.id) not in gymnasium.registry:
        return
    known = _listing(added.id, gymnasium.registry[_gym_id(added.id)])
    if known.distribution is not None or _name_of(known) != _name_of(added):
        owner = f" by {known.distribution!r}" if known.distribution else ""
        raise ConfigurationError(
            f"environment {added.id!r} is already registered{owner} as {_name_of(known)}, got "
            f"{_name_of(added)}; use another name or the next -vN"
        )
    # The same class again, as when a notebook's cell runs twice.
    del gymnasium.registry[_gym_id(added.id)]


def _name_of(found: EnvSpec) -> str:
    """Return the module and name of a spec's entry point."""
    point = found.entry_point
    if isinstance(point, str):
        return point
    name = getattr(point, "__qualname__", type(point).__qualname__)
    return f"{getattr(point, '__module__', '')}:{name}"


def register_plugins() -> None:
    """Read the installed entry points and register new ones in Gymnasium; imports no plugin.

    `import envkit` does this, and every listing repeats it, to find plugins that were installed in
    between.
    """
    found = installed(ENTRY_POINT_GROUP)
    _plugins.update(found)  # before the removals, since another thread may be reading
    for gone in _plugins.keys() - found.keys():
        del _plugins[gone]
        if gone not in _registered:  # otherwise its class is imported and keeps working
            gymnasium.registry.pop(_gym_id(gone), None)
    for name, points in found.items():
        if _gym_id(name) in gymnasium.registry:
            continue
        lazy = EnvSpec(id=name, entry_point=_LOADER, kwargs={"plugin": name})
        try:
            _add_to_gymnasium(lazy)
        except gymnasium.error.Error as error:  # one bad plugin must not break the others
            warnings.warn(f"{owners(points)}: environment {name!r}: {error}", stacklevel=2)


class Registry(Mapping[str, EnvSpec]):
    """Every known environment by id, including plugins, without importing any.

    A plugin's spec here names its distribution; call `spec` for its description and arguments.
    `register` adds environments. Those of collections are listed by `members`.
    """

    __slots__ = ()

    def __call__(self) -> Mapping[str, EnvSpec]:
        """Return the environments as they are now; later registrations do not change it."""
        register_plugins()
        listed = {
            found.name + ("" if found.version is None else f"-v{found.version}"): found
            for found in gymnasium.registry.values()
            if found.namespace == NAMESPACE
        }
        return MappingProxyType({name: _listing(name, listed[name]) for name in sorted(listed)})

    def __getitem__(self, key: str) -> EnvSpec:
        """Return the spec of an id, `name-vN`, with or without `envkit/`.

        Raises:
            UnknownNameError: There is no such environment; the message suggests the nearest name.
        """
        known, name = self(), _without_namespace(key)
        if name not in known:
            raise UnknownNameError.suggest("environment", str(key), known)
        return known[name]

    def __contains__(self, key: object) -> bool:
        return _without_namespace(key) in self()

    def __iter__(self) -> Iterator[str]:
        return iter(self())

    def __len__(self) -> int:
        return len(self())

    def items(self) -> ItemsView[str, EnvSpec]:
        """Return the ids with their specs; all are read once."""
        return self().items()

    def values(self) -> ValuesView[EnvSpec]:
        """Return the specs; all are read once."""
        return self().values()

    def __repr__(self) -> str:
        return f"<envkit.registry: {', '.join(self)}>"

    def __reduce__(self) -> str:
        return "registry"  # the one of the process that reads the pickle


def _without_namespace(key: object) -> Any:  # noqa: ANN401  # a caller may pass anything
    return key.removeprefix(f"{NAMESPACE}/") if isinstance(key, str) else key


registry: Final = Registry()


def pprint_registry(
    *,
    num_cols: int = 3,
    exclude_namespaces: Sequence[str] | None = None,
    disable_print: bool = False,
) -> str | None:
    """Print the ids of all environments by namespace, as `gymnasium.pprint_registry` does.

    It imports the collections. One that cannot be imported is listed with the reason.

    Args:
        num_cols: Number of columns.
        exclude_namespaces: Namespaces to leave out: `envkit`, or a collection.
        disable_print: True returns the text instead of printing it.
    """
    at_least(1, num_cols=num_cols)
    parts: list[str] = []
    for namespace in (NAMESPACE, *sorted(collections())):
        if namespace in (exclude_namespaces or ()):
            continue
        try:
            names = list(registry() if namespace == NAMESPACE else members(namespace))
        except EnvkitError as error:
            parts.append(f"===== {namespace} =====\n{error}")
            continue
        width = max(map(len, names), default=0)
        lines = [
            " ".join(name.ljust(width) for name in names[start : start + num_cols]).rstrip()
            for start in range(0, len(names), num_cols)
        ]
        if lines:
            parts.append("\n".join([f"===== {namespace} =====", *lines]))
    text = "\n\n".join(parts)
    if disable_print:
        return text
    print(text)  # noqa: T201  # what the function is for
    return None


def spec(id: str) -> EnvSpec:  # noqa: A002  # Gymnasium's word
    """Return the specification of an environment; imports its plugin.

    Args:
        id: `name-vN`, or `name` for the latest version, with or without `envkit/`; in a collection
            `namespace/name-vN`.

    Raises:
        UnknownNameError: There is no such environment; the message suggests the nearest name.
        ContractError: The plugin fails to import or has no `EnvSpec` there, or two distributions
            provide the same id. The message names them.
    """
    name = _resolve(id)
    if name in _plugins and name not in _registered:
        found = _registered[name] = _load(name, _plugins[name])
        gymnasium.registry[_gym_id(name)].reward_threshold = found.reward_threshold
    return _listing(name, gymnasium.registry[_gym_id(name)])


def members(namespace: str) -> Mapping[str, EnvSpec]:
    """Return the environments of a collection by id; imports its plugin.

    Raises:
        UnknownNameError: No distribution provides that namespace.
        ContractError: The collection fails to import, or an id in it is malformed.
        MissingDependencyError: The package it wraps is not installed.
    """
    collection = load_collection(namespace)
    if collection is None:
        raise UnknownNameError.suggest("collection", namespace, collections())
    with foreign(f"the collection {namespace!r} cannot be listed"):
        listed = collection.members()
        thresholds = {str(name): collection.threshold_of(name) for name in listed}
    owner = collections()[namespace]
    descriptions: Mapping[str, str] = cast(Any, listed) if isinstance(listed, Mapping) else {}
    found: dict[str, EnvSpec] = {}
    for name, threshold in thresholds.items():
        member = _ID.fullmatch(name)
        if member is None or member.group(2) is None or "/" in name:
            raise ContractError(
                f"the ids of the collection {namespace!r} must look like 'name-v0', got {name!r}"
            )
        found[f"{namespace}/{name}"] = EnvSpec(
            id=f"{namespace}/{name}",
            entry_point=collection.entry_point,
            description=descriptions.get(name, collection.description),
            kwargs={collection.argument: name if collection.keeps_version else member.group(1)},
            reward_threshold=threshold,
            distribution=owner,
        )
    for name in found.keys() - _registered.keys():
        if _gym_id(name) not in gymnasium.registry:
            _add_to_gymnasium(found[name])
        _registered[name] = found[name]
    return MappingProxyType(found)


@overload
def make(
    id: str | EnvSpec,
    *,
    disable_env_checker: Literal[True] = True,
    **kwargs: Any,  # noqa: ANN401
) -> Env: ...
@overload
def make(id: str | EnvSpec, *, disable_env_checker: bool, **kwargs: Any) -> AnyEnv: ...  # noqa: ANN401
def make(
    id: str | EnvSpec,  # noqa: A002  # Gymnasium's word
    *,
    disable_env_checker: bool = True,
    reward_threshold: float | None = None,
    **kwargs: Any,  # whatever the constructor takes
) -> AnyEnv:
    """Make an environment by id, without wrappers, as a rollout needs it.

    `gymnasium.make("envkit/" + id)` gives the same environment inside Gymnasium's usual wrappers.

    Args:
        id: `name-vN`, or `name` for the latest version, with or without `envkit/`; or the spec of
            an environment, whose arguments and threshold are then the defaults.
        disable_env_checker: False wraps it in Gymnasium's `PassiveEnvChecker`.
        reward_threshold: Return from which an episode counts as solved; None keeps the spec's.
        kwargs: Constructor arguments, such as max_turns.

    Raises:
        UnknownNameError: There is no such environment; the message suggests the nearest name.
        ConfigurationError: The constructor does not accept the arguments, or needs others, or the
            threshold is not a finite number. Use `max_turns` instead of `max_episode_steps`: an
            environment must know its last turn.
        ContractError: The plugin fails to import, two distributions provide the same id, or the
            result is not an `envkit.Env`.
    """
    # Gymnasium would add its own wrapper, which truncates without the environment's knowledge.
    if "max_episode_steps" in kwargs:
        raise ConfigurationError("pass max_turns instead of max_episode_steps")
    if isinstance(id, EnvSpec):
        kwargs = {**id.kwargs, **kwargs}
        reward_threshold = id.reward_threshold if reward_threshold is None else reward_threshold
        id = id.id  # noqa: A001
    found = spec(id)
    if reward_threshold is not None:
        found = replace(found, reward_threshold=reward_threshold)
    creator = _creator(found)
    if wrong := wrong_types(creator, kwargs):
        raise _refused_arguments(found, creator, kwargs, wrong)
    plain = replace(_gym_spec(found), order_enforce=False)
    try:
        made = gymnasium.make(plain, disable_env_checker=disable_env_checker, **kwargs)
    except EnvkitError:
        raise
    except Exception as error:
        wrong = wrong_types(creator, kwargs, is_strict=True)
        # A constructor may raise a TypeError of its own, which is not about the arguments' names.
        is_unknown = isinstance(error, TypeError) and not takes(creator, {**found.kwargs, **kwargs})
        if not wrong and not is_unknown:
            raise
        raise _refused_arguments(found, creator, kwargs, wrong or str(error)) from error
    return _checked(made, found)


def _refused_arguments(
    found: EnvSpec, creator: Creator, given: Mapping[str, Any], reason: str
) -> ConfigurationError:
    known = known_arguments(creator)
    typed = " ".join(f"{name}={value}" for name, value in stored(given).items())
    unknown = [name for name in given if name not in known]
    if not unknown:
        return ConfigurationError(
            f"{found.id} cannot be built with {typed}: {reason}. See `envkit info {found.id}`"
        )
    names = ", ".join(map(repr, unknown))
    meant = "".join(did_you_mean(name, known) for name in unknown)
    return ConfigurationError(
        f"{found.id} cannot be built with {typed}: it takes no argument {names}.{meant} "
        f"It takes {', '.join(sorted(known)) or 'none'}; see `envkit info {found.id}`"
    )


def make_plugin(plugin: str, **kwargs: Any) -> AnyEnv:  # noqa: ANN401  # as in make
    """Make a plugin's environment for `gymnasium.make`, which knows it by this function only.

    Args:
        plugin: The environment's id.
        kwargs: Constructor arguments, which override those in the plugin's spec.

    Raises:
        ContractError: As for `make`.
    """
    found = spec(plugin)
    return _checked(_creator(found)(**{**found.kwargs, **kwargs}), found)


# Gymnasium reads a creator's render modes to add the wrappers of "human" and "rgb_array_list".
setattr(make_plugin, "metadata", Env.metadata)  # noqa: B010  # a function declares no attributes


def _gym_id(name: str) -> str:
    """Return Gymnasium's id, with envkit's namespace unless a collection has its own."""
    return name if "/" in name else f"{NAMESPACE}/{name}"


def _local_id(env_id: object) -> str:
    match = _ID.fullmatch(env_id) if isinstance(env_id, str) else None
    if match is None:
        raise ConfigurationError(f"an environment id must look like 'name-v0', got {env_id!r}")
    return match.group(1) + (match.group(2) or "")


def _resolve(env_id: str) -> str:
    """Resolve a name to a known id, with the latest version if none is given."""
    match = _ID.fullmatch(env_id) if isinstance(env_id, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]  # a caller may pass anything
    name = _local_id(env_id) if match else ""
    if _gym_id(name) in gymnasium.registry and ("/" not in name or name in _registered):
        return name
    namespace, slash, _ = name.partition("/")
    meant = nearest(namespace, collections(), cutoff=0.6) if slash else None  # itself if it exists
    known = members(meant) if meant else registry()
    if name in known:
        return name
    if match and match.group(2) is None:
        versions = [found for found in known if re.fullmatch(re.escape(name) + r"-v\d+", found)]
        if versions:
            return max(versions, key=lambda found: int(found.rpartition("-v")[2]))
    _explain_unknown(env_id)
    raise UnknownNameError.suggest("environment", str(env_id), known)


def _explain_unknown(env_id: object) -> None:
    """Let the collection of an unknown id say what is wrong with it."""
    namespace, _, rest = str(env_id).removeprefix(f"{NAMESPACE}/").partition("/")
    collection = load_collection(namespace) if rest and namespace in collections() else None
    if collection is not None and collection.explain_unknown is not None:
        collection.explain_unknown(rest)


def _place_of(entry_point: str | Creator) -> str | Creator:
    """Return `module:name` for importable objects, so specs stay JSON data."""
    if isinstance(entry_point, str):
        if not re.fullmatch(r"[\w.]+:\w+", entry_point):
            raise ConfigurationError(f"an entry point must be 'module:Class', got {entry_point!r}")
        return entry_point
    if not callable(entry_point):
        raise ConfigurationError(
            f"an entry point must be 'module:Class' or a class, got {entry_point!r}"
        )
    name = getattr(entry_point, "__name__", "")
    module = sys.modules.get(getattr(entry_point, "__module__", ""))
    if module is not None and getattr(module, name, None) is entry_point:
        return f"{module.__name__}:{name}"
    return entry_point


def _check_json(found: EnvSpec) -> None:
    """Reject arguments that a spec cannot carry to another process."""
    try:
        json.dumps(dict(found.kwargs), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"environment {found.id!r}: kwargs must be JSON data ({error}); "
            "pass the name or path of a dataset, not its rows or a callable"
        ) from error


def _gym_spec(found: EnvSpec) -> GymSpec:
    return GymSpec(
        id=_gym_id(found.id),
        entry_point=cast(Any, found.entry_point),  # Gymnasium's protocol has keyword arguments only
        reward_threshold=found.reward_threshold,
        nondeterministic=found.nondeterministic,
        kwargs=dict(found.kwargs),
    )


def _add_to_gymnasium(added: EnvSpec) -> None:
    built = _gym_spec(added)
    gymnasium.register(  # pyright: ignore[reportUnknownMemberType]  # a bare dict in its signature
        built.id,
        built.entry_point,
        reward_threshold=built.reward_threshold,
        nondeterministic=built.nondeterministic,
        kwargs=built.kwargs,
    )


def _listing(name: str, found: GymSpec) -> EnvSpec:
    if name in _registered:
        return _registered[name]
    if points := _plugins.get(name):
        return EnvSpec(id=name, entry_point=points[0].value, distribution=owners(points))
    return EnvSpec(  # registered with Gymnasium directly
        id=name,
        entry_point=cast("str | Creator", found.entry_point),
        kwargs=found.kwargs,
        nondeterministic=found.nondeterministic,
        reward_threshold=finite(found.reward_threshold),  # Gymnasium checks nothing
    )


def _load(name: str, points: list[EntryPoint]) -> EnvSpec:
    distribution = owners(points)
    place = f"environment {name!r} of the distribution {distribution!r}"
    loaded = load_only(points, place)
    if callable(loaded):
        return EnvSpec(id=name, entry_point=points[0].value, distribution=distribution)
    if not isinstance(loaded, EnvSpec):
        raise ContractError(
            f"{place} must be an envkit.EnvSpec or a class, got {type(loaded).__name__}"
        )
    if _local_id(loaded.id) != name:
        raise ContractError(f"{place} must have that id, got {loaded.id!r}")
    _check_json(loaded)
    entry_point = _place_of(loaded.entry_point)
    return replace(loaded, id=name, entry_point=entry_point, distribution=distribution)


def _creator(found: EnvSpec) -> Creator:
    """Return the class behind a spec."""
    if callable(found.entry_point):
        return found.entry_point
    owner = f" of the distribution {found.distribution!r}" if found.distribution else ""
    place = f"environment {found.id!r}{owner} cannot be imported from {found.entry_point!r}"
    with foreign(place):
        return resolve_name(found.entry_point)


def _checked(made: AnyEnv, found: EnvSpec) -> AnyEnv:
    if not isinstance(made.unwrapped, Env):
        raise ContractError(
            f"environment {found.id!r} must be an envkit.Env, got {type(made.unwrapped).__name__}"
        )
    return made
