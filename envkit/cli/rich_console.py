"""A rich console for foreign text: no markup, and only rich's own control characters."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from envkit.cli.console import NO_READER, discard, printable


class PrintableConsole(Console):
    """Passes all drawn text through `printable`."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  # those of rich's console
        super().__init__(markup=False, emoji=False, highlight=False, **settings)
        self.has_reader = True
        """Whether nobody has closed the other end so far, as `head` does."""

    def print(self, *objects: Any, **settings: Any) -> None:  # noqa: ANN401  # as rich does
        """Print as rich does; drop the output if nobody reads it."""
        try:
            super().print(*objects, **settings)
        except OSError as error:  # of a terminal, or of a pipe before rich 13.8
            if error.errno not in NO_READER:
                raise
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Drop the output; rich would end the process, and drop standard output in any case."""
        self.has_reader = False
        discard(self.file)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does; only the text of the result changes."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
