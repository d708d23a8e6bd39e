"""A base class for objects that a `with` statement closes."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A closable object; a `with` statement closes it at its end, even after an error."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources; safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
