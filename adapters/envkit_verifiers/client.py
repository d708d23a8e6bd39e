"""The library's model client whose replies come from envkit's policy."""

from collections.abc import Awaitable, Callable
from functools import cache
from importlib import import_module
from typing import Any, Final

from envkit.errors import EnvFault, FaultKind
from envkit_verifiers.loading import library

MODEL: Final = "policy"
Respond = Callable[[list[Any], list[Any] | None], Awaitable[Any]]
"""Returns the reply to a conversation with tools, as the library's response."""


def context_of(respond: Respond) -> Any:  # noqa: ANN401
    """Return one episode's `ModelContext` of the library, with replies from a function."""
    return library().ModelContext(model=MODEL, client=_config_type()(respond))


def answer_policy_calls(interception: Any) -> None:  # noqa: ANN401
    """Let an interception server of the library answer the calls of an episode's policy."""
    clients = interception._client

    def client_of(config: Any) -> Any:  # noqa: ANN401
        if isinstance(config, _config_type()):
            return _client_type()(config._respond)
        return clients(config)

    interception._client = client_of


@cache
def _config_type() -> Any:  # noqa: ANN401
    base: Any = library().TrainClientConfig  # the server streams what such a client returned whole

    class PolicyConfig(base):
        """The endpoint of one episode: a function."""

        _respond: Any = None  # pydantic keeps such a name out of what it writes

        def __init__(self, respond: Respond) -> None:
            super().__init__(api_key_var="NO_KEY_IS_NEEDED")
            self._respond = respond

    return PolicyConfig


@cache
def _client_type() -> Any:  # noqa: ANN401
    base: Any = library().Client
    serialize: Any = import_module("verifiers.v1.clients.train").serialize_completion

    class PolicyClient(base):
        """Returns the policy's replies."""

        def __init__(self, respond: Respond) -> None:
            self._respond = respond

        async def get_response(self, dialect: Any, body: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            """Wait for a reply."""
            del args, kwargs
            if dialect.upstream_path != "/chat/completions":
                raise EnvFault(
                    "the harness must call the model by chat completions, got "
                    f"{dialect.upstream_path!r}; pass another agent.harness in arguments=",
                    kind=FaultKind.PERMANENT,
                )
            request = dialect.parse_request(body)
            response = await self._respond(request.messages, request.tools)
            response.raw = serialize(response, MODEL)
            return response

    return PolicyClient
