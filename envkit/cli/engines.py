"""Engines by name, and everything a rollout needs to talk to one.

Engines are found through the entry-point group `envkit.engines` and nowhere else. A value names a
factory `create_engine(model=None, ...)`; one that talks to a server also takes `base_url`. What a
plugin may offer besides, and is used where it is there:

- `builtin_model_dir(name, progress)` beside the factory: the folder of a model that it brings;
  `name` starts with "builtin", and "builtin" alone is what `model=None` means;
- `engine.health()`: whether a server answers, and which model it serves.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from envkit.errors import (
    ConfigurationError,
    ContractError,
    EngineFault,
    FaultKind,
    MissingDependencyError,
    UnknownNameError,
)

if TYPE_CHECKING:
    from envkit.env import Env, Policy
    from envkit.rollout.engine import Engine
    from envkit.tokens import ChatCodec

GROUP: Final = "envkit.engines"
DEFAULT_ENGINE: Final = "transformers"
DEFAULT_KEY_ENV: Final = "OPENAI_API_KEY"
_BUILTIN: Final = "builtin"
"""Begins the names of models that come with an engine; alone, it is the default model."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """Which engine, as the options of a command say it."""

    name: str | None = None
    """Entry-point name; None takes the default."""
    model: str | None = None
    """Folder or hub name; None takes the engine's own."""
    base_url: str | None = None
    """Address of the server; None for an engine in this process."""
    policy: str | None = None
    """A scripted policy instead of a model: one of the environment's, or `module:function`."""
    chat: str | None = None
    """Address of a chat endpoint, which serves `model`, instead of an engine."""
    key_env: str | None = None
    """Environment variable with the endpoint's key; None takes `DEFAULT_KEY_ENV` if it is set."""

    def __post_init__(self) -> None:
        self._check_chat()
        if self.policy is not None and (self.name is not None or self.base_url is not None):
            raise ConfigurationError(
                f"--policy {self.policy} needs no engine: drop --engine and --base-url "
                "(--model may stay; its tokenizer writes the replies)"
            )

    def _check_chat(self) -> None:
        if self.key_env is not None and self.chat is None:
            raise ConfigurationError("--key-env is the key of a chat endpoint: add --chat URL")
        if self.chat is None:
            return
        others = {"--engine": self.name, "--base-url": self.base_url, "--policy": self.policy}
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise ConfigurationError(f"--chat {self.chat} replaces an engine: drop {given[0]}")
        if self.model is None:
            raise ConfigurationError("--chat needs --model, the model's name at the endpoint")

    @property
    def label(self) -> str:
        """Short name for folders and headings."""
        chat = None if self.chat is None else "chat"
        return (self.policy or chat or self.name or DEFAULT_ENGINE).replace(":", ".")

    def at(self, address: str | None) -> "EngineChoice":
        """Return the choice with its server at another address; None keeps it."""
        if address is None:
            return self
        return replace(self, **{"base_url" if self.chat is None else "chat": address})


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing:
    """What plays episodes."""

    engine: "Engine"
    codec: "ChatCodec | None"
    """None for a chat endpoint, which returns text."""
    model: str
    """Folder or name that the codec came from, or the endpoint's model, for headings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built(Playing):
    """An engine and the codec of its model."""

    codec: "ChatCodec"


def registered_engines() -> dict[str, EntryPoint]:
    """Return every registered engine by name; none is imported."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def engine_entry(name: str) -> EntryPoint:
    """Return one registered engine.

    Raises:
        UnknownNameError: No engine has the name.
    """
    known = registered_engines()
    if name not in known:
        raise UnknownNameError.suggest("engine", name, known)
    return known[name]


def load_factory(entry: EntryPoint) -> Callable[..., Any]:
    """Import a plugin's factory.

    Raises:
        MissingDependencyError: Something that the plugin needs is not installed.
        ContractError: The entry point names nothing that can be called.
    """
    try:
        factory: Any = entry.load()
    except ImportError as error:
        extra = {"transformers": "hf"}.get(entry.name, entry.name)
        raise MissingDependencyError.for_extra(
            f"engine {entry.name!r}", error.name or str(error), extra
        ) from error
    except AttributeError as error:
        raise ContractError(f"engine {entry.name!r}: {error}; reinstall its package") from error
    if not callable(factory):
        raise ContractError(f"engine {entry.name!r}: {entry.value} must be a function")
    return factory


def engine_maker(choice: EngineChoice) -> "Callable[[], Engine]":
    """Return what makes the chosen engine, checked as far as that needs no model and no server.

    Raises:
        ConfigurationError: An unknown name, an address where none is taken, or none where one is
            needed.
    """
    name = choice.name or DEFAULT_ENGINE
    factory = load_factory(engine_entry(name))
    is_client = "base_url" in inspect.signature(factory).parameters
    if is_client and choice.base_url is None:
        raise ConfigurationError(
            f"engine {name!r} talks to a server: add --base-url, "
            "such as --base-url http://127.0.0.1:30000"
        )
    if not is_client and choice.base_url is not None:
        raise ConfigurationError(
            f"engine {name!r} runs in this process: drop --base-url, or name a server's engine"
        )
    address = {"base_url": choice.base_url} if is_client else {}
    return partial(factory, choice.model, **address)


async def build_any(
    choice: EngineChoice, env: "Env", *, progress: Progress | None = None
) -> Playing:
    """Make what plays an environment: a chat endpoint's client, or what `build` makes.

    Args:
        choice: What the options say.
        env: As for `build`.
        progress: As for `build`.

    Raises:
        EnvkitError: As for `build`, or the endpoint's key is not in its environment variable.
    """
    if choice.chat is None:
        return await build(choice, env, progress=progress)
    from envkit.chat import ChatEngine

    key, model = os.environ.get(choice.key_env or DEFAULT_KEY_ENV), choice.model or ""
    if choice.key_env is not None and not key:
        raise ConfigurationError(
            f"the environment variable {choice.key_env!r} of --key-env is not set: "
            f"export {choice.key_env}=KEY, or drop --key-env for an endpoint without keys"
        )
    engine = ChatEngine(choice.chat, model=model, api_key=key or None)
    return Playing(engine=engine, codec=None, model=model)


async def build_here(
    choice: EngineChoice, env: "Env", *, progress: Progress | None = None
) -> Playing:
    """Make what this process needs of what plays elsewhere: a codec, and a client that checks.

    Weights are not loaded. A server is asked whether it answers, as in `build_any`.

    Args:
        choice: What the options say.
        env: As for `build`.
        progress: As for `build`.

    Raises:
        EnvkitError: As for `build_any`.
    """
    if any((choice.policy, choice.chat, choice.base_url)):
        return await build_any(choice, env, progress=progress)
    from envkit.rollout.scripted import ScriptedEngine
    from envkit.tokens import load_codec

    engine_maker(choice)  # refuses a wrong option
    source = model_source(choice.model, progress)
    codec = load_codec(source, tools=env.tools)
    return Built(engine=ScriptedEngine(codec, lambda _: ""), codec=codec, model=source)


async def build(
    choice: EngineChoice, env: "Env | None" = None, *, progress: Progress | None = None
) -> Built:
    """Make the engine and the codec of its model; a policy needs the codec only.

    Args:
        choice: What the options say.
        env: Gives the codec its tools, and the policy; None for neither.
        progress: Takes lines while a built-in model is made for the first time.

    Raises:
        EnvkitError: A name is unknown, a server does not answer, a model cannot be read, or its
            template cannot be made exact.
    """
    from envkit.tokens import load_codec

    tools = () if env is None else env.tools
    if choice.policy is not None:
        return _scripted(choice, choice.policy, env, progress)
    engine_maker(choice)  # a wrong option is found before a model is made
    if choice.base_url is None:
        source = model_source(choice.model, progress)
        codec = load_codec(source, tools=tools)  # a wrong template is found before the weights load
        engine = engine_maker(replace(choice, model=source))()
        return Built(engine=engine, codec=codec, model=source)
    source = None if choice.model is None else model_source(choice.model, progress)
    engine = engine_maker(replace(choice, model=source))()
    try:
        served = await _served_model(engine)
        if source is None:
            source = _local_folder(served, choice.base_url)
            await engine.aclose()
            engine = engine_maker(replace(choice, model=source))()  # it reads the model's facts
        codec = load_codec(source, tools=tools, lazy_features=True)  # servers process images
        return Built(engine=engine, codec=codec, model=source)
    except BaseException:
        await engine.aclose()
        raise


def policies_of(env: "Env") -> "dict[str, Callable[[], Policy]]":
    """Return the makers of an environment's scripted policies by name.

    An environment may have `policies`, a mapping of such makers; its oracle is always there.
    """
    offer: Mapping[str, Callable[[], Policy]] = getattr(env, "policies", {})  # optional
    return {"oracle": env.oracle, **offer}


def policy_of(env: "Env", name: str) -> "Policy":
    """Return a scripted policy.

    Args:
        env: The environment that it plays.
        name: One of the environment's own, or `module:function` of any.

    Raises:
        UnknownNameError: The environment has no policy of the name.
        ConfigurationError: It cannot be made or imported.
    """
    if ":" in name:
        from envkit.certify.worker import load_policy  # rarely needed

        return load_policy(name)
    known = policies_of(env)
    if name not in known:
        raise UnknownNameError.suggest("policy", name, known)
    return known[name]()


def model_source(model: str | None, progress: Progress | None = None) -> str:
    """Return the folder or hub name that an option `--model` stands for.

    Args:
        model: A folder or hub name, which is returned as it is, or the name of a model that comes
            with the default engine, such as "builtin-text"; None takes its default.
        progress: Takes lines while such a model is made for the first time.

    Raises:
        ConfigurationError: The default engine's package offers none.
        UnknownNameError: The default engine's package offers no model of the name.
    """
    name = _BUILTIN if model is None else model
    if not name.startswith(_BUILTIN) or "/" in name:
        return name
    entry = engine_entry(DEFAULT_ENGINE)
    load_factory(entry)
    offer = getattr(import_module(entry.module), "builtin_model_dir", None)
    if offer is None:
        raise ConfigurationError(f"engine {entry.name!r} has no built-in model: add --model")
    return str(offer(name, progress))


def _scripted(
    choice: EngineChoice, policy: str, env: "Env | None", progress: Progress | None
) -> Built:
    from envkit.rollout.scripted import ScriptedEngine
    from envkit.tokens import load_codec

    if env is None:
        raise ConfigurationError("a policy belongs to an environment")
    script = policy_of(env, policy)
    source = model_source(choice.model, progress)
    codec = load_codec(source, tools=env.tools, lazy_features=True)  # no script reads tensors
    return Built(engine=ScriptedEngine(codec, script), codec=codec, model=source)


async def _served_model(engine: "Engine") -> str | None:
    """Ask a server whether it answers and what it serves; None where it does not say.

    Raises:
        EngineFault: It does not answer.
    """
    health = getattr(engine, "health", None)
    if health is None:
        return None
    answer = await health()
    if not answer.healthy:
        raise EngineFault(
            f"the server at {answer.url} does not answer: {answer.detail}", kind=FaultKind.TRANSIENT
        )
    return None if answer.info is None else answer.info.model


def _local_folder(served: str | None, base_url: str) -> str:
    if served is not None and Path(served).is_dir():
        return served
    which = "the model" if served is None else repr(served)
    raise ConfigurationError(
        f"the tokenizer of {which}, which {base_url} serves, is not on this machine: add --model "
        "with the model's folder or hub name"
    )
