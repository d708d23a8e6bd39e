"""History policies: what the model still sees of an episode when it samples the next turn.

A policy is a function that gets a `HistoryView` after every observation. It returns None to append
to the unchanged context, the messages of a shorter conversation, or a `Question` that the model
answers first. A rewrite starts a new sequence with a full prompt. Tokens sampled earlier are still
trained, in the sequence that sampled them.

    history: keep_last_images                                  # with its defaults
    history: {keep_last_images: {keep: 3, drop_at: 6}}
    history: "my_package.histories:drop_tool_output"           # your own function
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, did_you_mean, shown, type_name
from envkit.messages import Message, Part, images_of
from envkit.plugins import load_named
from envkit.rollout.setting_types import check_keys, check_types
from envkit.tokens.codec import ChatCodec

MAX_ANSWER_TOKENS: Final = 2**31 - 1
"""Maximum of `Question.max_tokens`; engines reject larger numbers."""

HistorySetting = str | Mapping[str, Any] | None
"""A setting as in a configuration; None uses the environment's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryView:
    """The conversation that the model would see next.

    Its messages are copies, so a policy may change them.
    """

    opening: tuple[Message, ...]
    """The system prompt, if there is one, and the first observation, unchanged."""
    messages: tuple[Message, ...]
    """What an earlier rewrite kept and everything since, ending with the new observation."""
    context_tokens: int
    """Length of the conversation in the current sequence, images expanded."""
    turn: int
    """Number of replies that the environment has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question that the model answers before its history is rewritten. The answer is trained."""

    text: str
    """Sent as a user message after the observation. Must not be empty."""
    max_tokens: int
    """Maximum tokens of the answer, at least 1."""
    rewrite: Callable[[str], Sequence[Message]]
    """Builds the new conversation from the answer."""


HistoryPolicy = Callable[[HistoryView], Sequence[Message] | Question | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLastImages:
    """Replace old images with a short text.

    The gap between the two bounds makes the context be re-encoded once every `drop_at - keep + 1`
    images instead of at every image.
    """

    keep: int = 3
    """Number of most recent images to keep."""
    drop_at: int = 6
    """Maximum images before the old ones are dropped."""
    text: str = "[image omitted]"
    """Replaces each dropped image."""

    def __post_init__(self) -> None:
        """Reject bounds that never leave room for a new image.

        Raises:
            ConfigurationError: `keep` is negative, or `drop_at` is not above it.
        """
        _check_gap(self, "keep", self.keep, 0)

    def __call__(self, view: HistoryView) -> Sequence[Message] | None:
        """Return the conversation with the last `keep` images if there are more than `drop_at`."""
        count = len(images_of(view.messages))
        if count <= self.drop_at:
            return None
        left = count - self.keep
        rewritten: list[Message] = []
        for entry in view.messages:
            dropped = min(left, len(images_of([entry])))
            left -= dropped
            rewritten.append(self._without(entry, dropped) if dropped else entry)
        return rewritten

    def _without(self, entry: Message, count: int) -> Message:
        """Return a message with its first `count` images replaced."""
        written = _MessageBuilder()
        for part, trusted in _parts(entry):
            if part["type"] == "image" and count:
                count -= 1
                written.add({"type": "text", "text": self.text + "\n"})
            else:
                written.add(part, trusted)
        return written.message(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLastTurns:
    """Drop old turns; keep the system prompt and the task."""

    keep: int = 5
    """Number of replies to keep, each with the messages that follow it."""
    drop_at: int = 10
    """Maximum replies before the old ones are dropped."""
    text: str = "[earlier turns omitted: {count}]"
    """Added to the task; `{count}` is the number of replies that the model no longer sees."""

    def __post_init__(self) -> None:
        """Reject bounds that never leave room for a new turn.

        Raises:
            ConfigurationError: `keep` is below 1, or `drop_at` is not above it.
        """
        _check_gap(self, "keep", self.keep, 1)

    def __call__(self, view: HistoryView) -> Sequence[Message] | None:
        """Return the task and the last `keep` turns if there are more than `drop_at`."""
        replies = [n for n, entry in enumerate(view.messages) if entry["role"] == "assistant"]
        if len(replies) <= self.drop_at:
            return None
        kept = view.messages[replies[-self.keep] :]
        note = self.text.replace("{count}", str(view.turn - self.keep))
        return [*view.opening[:-1], with_note(view.opening[-1], note), *kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarise:
    """Have the model summarise the conversation once it is long, and continue from the summary.

    The summary is sampled, recorded and trained like any other reply. The new conversation is the
    system prompt and one user message: the task, the summary and the latest observation.
    """

    at_tokens: int
    """Context length, images expanded, above which the model is asked.

    If the context exceeds it even after a summary, the model is asked every turn.
    """
    max_tokens: int = 512
    """Maximum tokens of the summary."""
    prompt: str = (
        "Your context is nearly full. Summarise what you have done and learned so far, and what "
        "remains to be done. You will continue from your summary alone."
    )
    heading: str = "Summary of the work so far:"
    """Precedes the summary in the new conversation."""

    def __post_init__(self) -> None:
        """Reject a policy that asks immediately or allows no answer.

        Raises:
            ConfigurationError: `at_tokens` or `max_tokens` is out of range, or `prompt` is empty.
        """
        for name in ("at_tokens", "max_tokens"):
            if not 1 <= getattr(self, name) <= MAX_ANSWER_TOKENS:
                raise ConfigurationError(
                    f"summarise: {name} must be at least 1 and at most {MAX_ANSWER_TOKENS}, "
                    f"got {getattr(self, name)}"
                )
        if not self.prompt.strip():
            raise ConfigurationError("summarise: prompt must not be empty")

    def __call__(self, view: HistoryView) -> Question | None:
        """Return the request for a summary if the context is long enough."""
        replies = [n for n, entry in enumerate(view.messages) if entry["role"] == "assistant"]
        if view.context_tokens <= self.at_tokens or not replies:
            return None
        head, tail = view.opening, view.messages[replies[-1] + 1 :]

        def rewrite(summary: str) -> Sequence[Message]:
            written = _MessageBuilder()
            written.add_message(head[-1])
            written.add_text(f"\n\n{self.heading}\n{summary.strip()}\n\n")
            for entry in tail:
                written.add_message(entry)
            return [*head[:-1], written.message({"role": "user", "content": ""})]

        return Question(text=self.prompt, max_tokens=self.max_tokens, rewrite=rewrite)


_POLICIES: Final[Mapping[str, type]] = {
    "keep_last_images": KeepLastImages,
    "keep_last_turns": KeepLastTurns,
    "summarise": Summarise,
}
_NAMES: Final[Mapping[type, str]] = {cls: name for name, cls in _POLICIES.items()}
_TEMPLATE: Final = ("keep", "rerender")
_NAME_CHARACTERS: Final = 200


def history_policy(setting: HistorySetting) -> HistoryPolicy | None:
    """Return the policy of a setting; None if everything is appended.

    Args:
        setting: "keep", "rerender", the name of a policy, a mapping of its name to its fields, or
            a function's path, `module:function`.

    Raises:
        ConfigurationError: A name or field is unknown, a value is invalid, or a function cannot be
            imported.
    """
    if setting is None or setting in _TEMPLATE:
        return None
    if isinstance(setting, str):
        return _imported(setting) if ":" in setting else _built(setting, {})
    if len(setting) != 1:
        raise ConfigurationError(
            f"history takes one policy, such as {{keep_last_images: {{keep: 3}}}}, got {setting!r}"
        )
    ((name, values),) = setting.items()
    if not isinstance(values, Mapping | None):
        raise ConfigurationError(f"history.{name} must be a mapping, got {shown(values)}")
    return _built(name, cast("Mapping[str, Any]", values or {}))


def check_codec(setting: HistorySetting, codec: ChatCodec | None) -> None:
    """Reject a setting that the codec does not support.

    Raises:
        ConfigurationError: The codec keeps what the setting re-renders or the reverse, or a setting
            that needs token ids has no codec.
    """
    needs_ids = setting == "rerender" or isinstance(history_policy(setting), Summarise)
    if codec is None and needs_ids:
        name = setting if isinstance(setting, str) else next(iter(setting or {}))
        raise ConfigurationError(
            f"history {name!r} needs an engine that returns token ids, got a chat endpoint, which "
            "returns text: it takes keep_last_images, keep_last_turns or your own function"
        )
    if codec is not None and setting in _TEMPLATE and codec.history != setting:
        raise ConfigurationError(
            f"history is {setting!r}, but the codec was built with history={codec.history!r}: "
            "build it with RolloutConfig.codec_history"
        )


def policy_name(policy: HistoryPolicy) -> str:
    """Return a policy's name in the record, even if reading it raises."""
    for cls, known in _NAMES.items():
        if type(policy) is cls:
            return known
    try:
        name: object = policy.__name__  # type: ignore[attr-defined]  # functions have one
    except BaseException:  # noqa: BLE001  # foreign code
        name = None
    usable = isinstance(name, str) and 0 < len(name) <= _NAME_CHARACTERS
    return str.__str__(cast("str", name)) if usable else type_name(policy)


def _check_gap(policy: Any, name: str, keep: int, least: int) -> None:  # noqa: ANN401
    if keep < least or policy.drop_at <= keep:
        raise ConfigurationError(
            f"{policy_name(policy)}: {name} must be at least {least} and drop_at above it, got "
            f"{name}={keep} and drop_at={policy.drop_at}"
        )


def _built(name: str, values: Mapping[str, Any]) -> HistoryPolicy:
    cls = _POLICIES.get(name)
    if cls is None:
        known = [*_TEMPLATE, *_POLICIES]
        raise ConfigurationError(
            f"no history policy {name!r}.{did_you_mean(name, known)} Known: {known}, or "
            "'module:function' for your own"
        )
    check_keys(cls, values, f"history.{name}")
    check_types(cls, values, f"history.{name}")
    if name == "summarise" and "at_tokens" not in values:
        raise ConfigurationError(
            "history.summarise needs at_tokens, the context length above which the model is asked"
        )
    return cls(**values)


def _imported(place: str) -> HistoryPolicy:
    name = f"the history policy {place!r}"
    found: object = load_named(place, "the history policy")
    if isinstance(found, type):
        raise ConfigurationError(
            f"{name} is a class: name a function, or an object of the class that the module makes"
        )
    if not callable(found):
        raise ConfigurationError(f"{name} is not callable")
    _check_kind(found, name)
    return cast("HistoryPolicy", found)


def _check_kind(function: Callable[..., object], name: str) -> None:
    """Reject a function that cannot be called with a view, or is not synchronous."""
    code: Any = function
    if not isinstance(function, FunctionType | MethodType | partial):
        code = type(function).__call__  # the object's own attributes are foreign code
    if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
        raise ConfigurationError(f"{name} must not be async: make it a plain function")
    if inspect.isgeneratorfunction(code):
        raise ConfigurationError(f"{name} is a generator: return a list of messages")
    try:
        signature = inspect.signature(code)
    except (TypeError, ValueError):  # a builtin may not have one
        return
    arguments: list[object] = [None] if code is function else [function, None]
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigurationError(
            f"{name} must take one argument, the HistoryView, got {signature}: bind the others "
            "with functools.partial"
        ) from error


def with_note(entry: Message, note: str) -> Message:
    """Return a message with a paragraph added to its text."""
    written = _MessageBuilder()
    written.add_message(entry)
    written.add_text(f"\n\n{note}")
    return written.message(entry)


_Ranges = Sequence[tuple[int, int]]


def _parts(entry: Message) -> list[tuple[Part, _Ranges]]:
    """Return the parts of a message, each with the trusted ranges of its text."""
    content = entry["content"]
    whole: list[Part] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    found: list[tuple[Part, _Ranges]] = []
    start = 0
    for part in whole:
        length = len(part["text"]) if part["type"] == "text" else 0
        inside = [
            (max(first, start) - start, min(last, start + length) - start)
            for first, last in entry.get("trusted", [])
            if first < start + length and last > start
        ]
        found.append((part, inside))
        start += length
    return found


class _MessageBuilder:
    """Assembles a message from parts of others."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._trusted: list[list[int]] = []
        self._length = 0

    def add(self, part: Part, trusted: _Ranges = ()) -> None:
        """Append a part, merging adjacent texts."""
        if part["type"] == "image":
            self._parts.append(part)
            return
        self._trusted += [[self._length + first, self._length + last] for first, last in trusted]
        self._length += len(part["text"])
        last = self._parts[-1] if self._parts else None
        if last is not None and last["type"] == "text":
            self._parts[-1] = {"type": "text", "text": last["text"] + part["text"]}
        else:
            self._parts.append(part)

    def add_text(self, text: str) -> None:
        """Append untrusted text."""
        self.add({"type": "text", "text": text})

    def add_message(self, entry: Message) -> None:
        """Append all parts of a message."""
        for part, trusted in _parts(entry):
            self.add(part, trusted)

    def message(self, like: Message) -> Message:
        """Return the message with the role and the other keys of a given one."""
        whole: Message = {**like, "content": self._parts}
        if all(part["type"] == "text" for part in self._parts):
            whole["content"] = "".join(p["text"] for p in self._parts if p["type"] == "text")
        whole.pop("trusted", None)
        if self._trusted:
            whole["trusted"] = self._trusted
        return whole
