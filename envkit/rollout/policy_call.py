"""One call of a history policy, which is foreign code.

The policy sees copies of the record's messages, and its result is copied and checked. Any exception
becomes a `HistoryFault`, including SystemExit and CancelledError, which would otherwise end the
event loop or look like a cancellation of the caller.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final, TypeVar, cast

from envkit.errors import ContractError, HistoryFault, StorageError, describe, shown
from envkit.images import Image
from envkit.messages import Message, Part, check_message, images_of
from envkit.rollout.history import MAX_ANSWER_TOKENS, HistoryPolicy, HistoryView, Question
from envkit.trajectory.plain import check_plain

T = TypeVar("T")

_MAX_MESSAGES: Final = 100_000
_SHARED: Final = frozenset({str, Image, int, float, bool, type(None)})
"""Types of which a copy would be the same; nearly all values of messages have one of them."""


class PolicyCall:
    """Calls a policy with a conversation, and checks its results."""

    def __init__(
        self, policy: HistoryPolicy, name: str, view: HistoryView, *, copies: bool = True
    ) -> None:
        """Prepare the call.

        Args:
            policy: The policy.
            name: Name of the policy, for errors.
            view: The view with the record's own messages.
            copies: Whether the policy gets copies of them; False for envkit's own policies.
        """
        self._policy, self._source = policy, f"history policy {name!r}"
        self._view, self._given = view, view
        self._is_copying = copies
        self._originals: dict[int, Message] = {}
        """The record's messages, by the `id` of the messages that the policy gets."""
        if not copies:
            self._originals = {id(entry): entry for entry in (*view.opening, *view.messages)}

    def __call__(self) -> tuple[Message, ...] | Question | None:
        """Return the messages of a rewrite, a question, or None to append.

        Raises:
            HistoryFault: The policy failed, or its result is invalid.
        """
        if self._is_copying:  # here, off the event loop
            self._given = self._copied_view()
        found = self._checked(self._sorted, self._called(lambda: self._policy(self._given)))
        return None if found == self._view.messages else found

    def rewritten(self, question: Question, answer: str) -> tuple[Message, ...]:
        """Return the messages that a question builds from its answer.

        Raises:
            HistoryFault: As for `__call__`.
        """
        return self._checked(self._messages, self._called(lambda: question.rewrite(answer)))

    def _copied_view(self) -> HistoryView:
        copies: dict[int, Message] = {}
        for entry in (*self._view.opening, *self._view.messages):
            if id(entry) not in copies:
                copies[id(entry)] = copy = cast("Message", _copied(entry))
                self._originals[id(copy)] = entry
        return replace(
            self._view,
            opening=tuple(copies[id(entry)] for entry in self._view.opening),
            messages=tuple(copies[id(entry)] for entry in self._view.messages),
        )

    def _called(self, function: Callable[[], Any]) -> Any:  # noqa: ANN401  # foreign data
        """Call foreign code; raise only `HistoryFault`."""
        try:
            return function()
        except BaseException as error:  # foreign code may raise anything
            raise HistoryFault(f"{self._source} failed: {describe(error)}") from error

    def _checked(self, check: Callable[[Any], T], found: object) -> T:
        """Check foreign data; raise only `HistoryFault`."""
        try:
            return check(found)
        except (ContractError, StorageError) as error:
            raise HistoryFault(str(error)) from error
        except BaseException as error:  # foreign objects may raise anything
            raise HistoryFault(
                f"the result of {self._source} cannot be read: {describe(error)}"
            ) from error

    def _sorted(self, found: object) -> tuple[Message, ...] | Question | None:
        if found is None:
            return None
        return self._question(found) if isinstance(found, Question) else self._messages(found)

    def _question(self, found: Question) -> Question:
        text, tokens, rewrite = cast(
            "tuple[Any, ...]", (found.text, found.max_tokens, found.rewrite)
        )
        source = f"{self._source} must ask a Question whose"
        if not isinstance(text, str) or not text.strip():
            raise ContractError(f"{source} text is a non-empty str, got {shown(text)}")
        if type(tokens) is not int or not 1 <= tokens <= MAX_ANSWER_TOKENS:
            raise ContractError(
                f"{source} max_tokens is an integer from 1 to {MAX_ANSWER_TOKENS}, "
                f"got {shown(tokens)}"
            )
        if not callable(cast("object", rewrite)):
            raise ContractError(f"{source} rewrite is a function, got {shown(rewrite)}")
        return Question(text=str.__str__(text), max_tokens=tokens, rewrite=rewrite)

    def _messages(self, found: object) -> tuple[Message, ...]:
        if isinstance(found, Coroutine):
            found.close()  # otherwise Python warns that it was never awaited
            raise ContractError(f"{self._source} must not be async: make it a plain function")
        if isinstance(found, str) or not isinstance(found, Sequence):
            raise ContractError(
                f"{self._source} must return None, a Question or a list of messages, "
                f"got {shown(found)}"
            )
        entries = list(islice(cast("Sequence[object]", found), _MAX_MESSAGES + 1))
        if not 1 <= len(entries) <= _MAX_MESSAGES:
            raise ContractError(
                f"{self._source} must return at least one message and at most {_MAX_MESSAGES}, "
                f"got {shown(found)}"
            )
        known = {
            image.sha256: image for image in images_of((*self._view.opening, *self._view.messages))
        }
        messages = tuple(self._message(entry, known) for entry in entries)
        self._check_roles(messages)
        return messages

    def _message(self, entry: object, known: dict[str, Image]) -> Message:
        """Return the record's own message if the policy did not change it, else a checked copy."""
        original = self._originals.get(id(entry))
        if original is entry and original is not None:
            return original
        copy = check_message(cast("Message", _copied(entry)), source=self._source)
        if original is not None and copy == original:
            return original
        check_plain(copy, self._source)
        if not isinstance(copy["content"], str):
            copy["content"] = [self._part(part, known) for part in copy["content"]]
        return copy

    def _part(self, part: Part, known: dict[str, Image]) -> Part:
        if part["type"] == "text":
            return part
        image = known.get(part["image"].sha256)
        if image is None:
            raise ContractError(
                f"{self._source} may drop images but not add any, got one that the "
                "conversation does not have"
            )
        return {**part, "image": image}

    def _check_roles(self, messages: Sequence[Message]) -> None:
        roles = [entry["role"] for entry in messages]
        if roles[-1] not in ("user", "tool"):
            raise ContractError(
                f"{self._source} must end with a user or tool message, which the model answers, "
                f"got role {roles[-1]!r}"
            )
        if "system" in roles[1:]:
            raise ContractError(
                f"{self._source} must put a system message first, got one at index "
                f"{roles.index('system', 1)}: many templates drop or reject it there"
            )
        opening = {id(entry) for entry in self._view.opening}
        before = ""
        for place, (role, entry) in enumerate(zip(roles, messages, strict=True)):
            is_orphan = role == "tool" and before not in ("assistant", "tool")
            if is_orphan and id(entry) not in opening:
                raise ContractError(
                    f"{self._source} must keep a tool message with the reply that called the tool, "
                    f"got the tool message at index {place} after {before or 'nothing'!r}: drop "
                    "both, or make it a user message"
                )
            before = role


def _copied(value: Any) -> Any:  # noqa: ANN401  # foreign data
    """Copy containers and make texts plain; share everything else, such as images."""
    if type(value) in _SHARED:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        items = dict[Any, Any].items(entries)  # not a method of a foreign subclass
        return {_copied(key): _copied(one) for key, one in items}
    if isinstance(value, list):
        return [_copied(one) for one in cast("list[Any]", value)]
    if isinstance(value, tuple):
        return tuple(_copied(one) for one in cast("tuple[Any, ...]", value))
    return value
