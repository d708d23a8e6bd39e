"""What a `with` statement closes."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Something to close; a `with` statement does that at its end, after an error too."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held; safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
