"""Engines by name, and the codecs that rollouts need to use them.

Engines are found only through the entry-point group `envkit.engines`. Each entry point names a
factory `create_engine(model=None, ...)`; a server's factory also takes `base_url`. An engine may
also offer `health()`: whether a server answers, and which model it serves. Bundled models are those
of `envkit.builtin_models`.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from envkit.builtin_models import DEFAULT_ENGINE, ENGINES, model_source
from envkit.errors import ConfigurationError, EngineFault, FaultKind, UnknownNameError
from envkit.plugins import load_plugin, load_policy, plugins

if TYPE_CHECKING:
    from envkit.env import Env, Policy
    from envkit.rollout.config import RolloutConfig
    from envkit.rollout.engine import Engine
    from envkit.tokens import ChatCodec

POLICIES: Final = "envkit.policies"
"""Entry-point group of policies for every environment: functions of a `PolicyContext`."""
ENDPOINTS: Final = "envkit.endpoints"
"""Entry-point group of text-only engines, called with an address, `model` and `api_key`."""
DEFAULT_KEY_ENV: Final = "OPENAI_API_KEY"
_ALSO_CALLED: Final = {"hf": "transformers", "huggingface": "transformers"}
"""Names that people give to engines, and those engines."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """Choice of an engine by a command's options."""

    name: str | None = None
    """Entry-point name; None uses the default."""
    model: str | None = None
    """Folder or hub name; None uses the engine's own model."""
    base_url: str | None = None
    """Address of the server; None for an engine in this process."""
    policy: str | None = None
    """A scripted policy instead of a model: one of the environment's, or `module:function`."""
    chat: str | None = None
    """Address of a chat endpoint, which serves `model`, instead of an engine."""
    key_env: str | None = None
    """Environment variable with the endpoint's key; None uses `DEFAULT_KEY_ENV` if it is set."""

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
    """An engine or endpoint that plays episodes."""

    engine: "Engine"
    codec: "ChatCodec | None"
    """None for a chat endpoint, which returns text."""
    model: str
    """Folder or name that the codec came from, or the endpoint's model, for headings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built(Playing):
    """An engine and the codec of its model."""

    codec: "ChatCodec"


def check_engine(name: str) -> None:
    """Reject the name of an engine that is not installed.

    Raises:
        UnknownNameError: There is none; the message suggests the nearest.
    """
    known = plugins(ENGINES)
    if name not in known:
        raise UnknownNameError.suggest("engine", name, known, meant=_ALSO_CALLED.get(name.lower()))


def load_engine(name: str) -> Callable[..., Any]:
    """Import an engine's factory; it raises as `check_engine` and `load_plugin` do."""
    check_engine(name)
    return load_plugin(ENGINES, name, kind="engine")


def engine_maker(choice: EngineChoice) -> "Callable[[], Engine]":
    """Return the chosen engine's factory, with checks that need no model or server.

    Raises:
        ConfigurationError: The name is unknown, or an address is missing or unexpected.
    """
    name = choice.name or DEFAULT_ENGINE
    factory = load_engine(name)
    is_client = "base_url" in inspect.signature(factory).parameters
    if is_client and choice.base_url is None:
        raise ConfigurationError(
            f"engine {name!r} talks to a server: add --base-url, "
            "such as --base-url http://127.0.0.1:30000"
        )
    if not is_client and choice.base_url is not None:
        raise ConfigurationError(
            f"engine {name!r} runs in this process: drop --base-url, or choose a server's engine"
        )
    address = {"base_url": choice.base_url} if is_client else {}
    return partial(factory, choice.model, **address)


async def build_any(
    choice: EngineChoice,
    env: "Env",
    config: "RolloutConfig",
    *,
    progress: Progress | None = None,
) -> Playing:
    """Build the player of an environment: a chat endpoint's client, or the result of `build`.

    Args:
        choice: The choice of the options.
        env: As for `build`.
        config: As for `build`.
        progress: As for `build`.

    Raises:
        EnvkitError: As for `build`, or the environment variable for the endpoint's key is not set.
    """
    if choice.chat is None:
        return await build(choice, env, config, progress=progress)
    key, model = os.environ.get(choice.key_env or DEFAULT_KEY_ENV), choice.model or ""
    if choice.key_env is not None and not key:
        raise ConfigurationError(
            f"the environment variable {choice.key_env!r} of --key-env is not set: "
            f"export {choice.key_env}=KEY, or drop --key-env for an endpoint without keys"
        )
    make = load_plugin(ENDPOINTS, None, kind="endpoint")
    engine = make(choice.chat, model=model, api_key=key or None)
    return Playing(engine=engine, codec=None, model=model)


async def build_here(
    choice: EngineChoice,
    env: "Env",
    config: "RolloutConfig",
    *,
    progress: Progress | None = None,
) -> Playing:
    """Build a codec, and a client for checks, for this process while workers play.

    It loads no weights. It checks a server, as `build_any` does.

    Args:
        choice: The choice of the options.
        env: As for `build`.
        config: As for `build`.
        progress: As for `build`.

    Raises:
        EnvkitError: As for `build_any`.
    """
    if any((choice.policy, choice.chat, choice.base_url)):
        return await build_any(choice, env, config, progress=progress)
    from envkit.rollout.scripted import ScriptedEngine

    engine_maker(choice)  # rejects a wrong option
    source = model_source(choice.model, progress)
    codec = _codec(source, env, config)
    return Built(engine=ScriptedEngine(codec, lambda _: ""), codec=codec, model=source)


async def build(
    choice: EngineChoice,
    env: "Env | None" = None,
    config: "RolloutConfig | None" = None,
    *,
    progress: Progress | None = None,
) -> Built:
    """Build the engine and the codec of its model; a policy needs only the codec.

    Args:
        choice: The choice of the options.
        env: Provides the codec's tools, and the policy; None for neither.
        config: How the codec uses the chat template; None uses the defaults.
        progress: Receives lines while a built-in model is built for the first time.

    Raises:
        EnvkitError: A name is unknown, a server does not answer, a model cannot be read, or its
            template cannot be encoded exactly.
    """
    if choice.policy is not None:
        return _scripted(choice, choice.policy, env, config, progress)
    engine_maker(choice)  # detects a wrong option before building a model
    if choice.base_url is None:
        source = model_source(choice.model, progress)
        codec = _codec(source, env, config)  # detects a wrong template before the weights load
        engine = engine_maker(replace(choice, model=source))()
        return Built(engine=engine, codec=codec, model=source)
    source = None if choice.model is None else model_source(choice.model, progress)
    engine = engine_maker(replace(choice, model=source))()
    try:
        served = await _served_model(engine)
        if source is None:
            source = _local_folder(served, choice.base_url)
            await engine.aclose()
            engine = engine_maker(replace(choice, model=source))()  # now with the model's folder
        codec = _codec(source, env, config, lazy_features=True)  # servers process images
        return Built(engine=engine, codec=codec, model=source)
    except BaseException:
        await engine.aclose()
        raise


def policies_of(env: "Env") -> "dict[str, Callable[[], Policy]]":
    """Return the factories of an environment's scripted policies by name.

    An environment may have `policies`, a mapping of such factories. Its oracle and `random` are
    always included.
    """
    from envkit.random_replies import random_policy

    offer: Mapping[str, Callable[[], Policy]] = getattr(env, "policies", {})  # optional
    return {"oracle": env.oracle, "random": partial(random_policy, env), **offer}


def policy_of(env: "Env", name: str) -> "Policy":
    """Return a scripted policy.

    Args:
        env: The environment that it plays.
        name: One of the environment's policies, of the installed ones of the group
            `envkit.policies`, or `module:function` for your own.

    Raises:
        UnknownNameError: The environment has no policy with this name.
        ConfigurationError: The policy cannot be imported or created.
    """
    if ":" in name:
        return load_policy(name)
    known = policies_of(env)
    if name in known:
        return known[name]()
    if name in (others := plugins(POLICIES)):
        return load_plugin(POLICIES, name, kind="policy")
    raise UnknownNameError.suggest("policy", name, [*known, *others])


def _codec(
    source: str, env: "Env | None", config: "RolloutConfig | None", *, lazy_features: bool = False
) -> "ChatCodec":
    from envkit.rollout.config import RolloutConfig
    from envkit.tokens import load_codec

    config = config or RolloutConfig()
    return load_codec(
        source,
        tools=() if env is None else env.tools,
        history=config.codec_history,
        template_kwargs=config.template_kwargs,
        lazy_features=lazy_features,
    )


def _scripted(
    choice: EngineChoice,
    policy: str,
    env: "Env | None",
    config: "RolloutConfig | None",
    progress: Progress | None,
) -> Built:
    from envkit.rollout.scripted import ScriptedEngine

    if env is None:
        raise ConfigurationError("--policy needs an environment, got none")
    script = policy_of(env, policy)
    source = model_source(choice.model, progress)
    codec = _codec(source, env, config, lazy_features=True)  # scripts read no tensors
    return Built(engine=ScriptedEngine(codec, script), codec=codec, model=source)


async def _served_model(engine: "Engine") -> str | None:
    """Return the model that a server serves; None if it does not report it.

    Raises:
        EngineFault: The server does not answer.
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
