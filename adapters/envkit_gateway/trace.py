"""A file with every reply of an agent's episode, which survives the agent and envkit itself.

An agent's episode cannot be continued after a crash, and its record is written when it ends. A
trace has each reply before the agent has it.
"""

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from envkit.errors import describe
from envkit.messages import Part
from envkit.threads.pool import WorkerPool
from envkit.trajectory.image_folder import IMAGE_FOLDER, ImageFolder
from envkit.trajectory.segment import column_of
from envkit_gateway.messages import AgentMessage
from envkit_gateway.turn import Turn

_LOG: Final = logging.getLogger(__name__)


class Trace:
    """Appends to `EPISODE_ID.jsonl` in a folder, in order, without blocking the event loop."""

    def __init__(self, folder: Path, episode_id: str, pool: WorkerPool) -> None:
        """Take the place of the file; the first line creates it.

        Args:
            folder: Holds the traces of all episodes, and their images once each.
            episode_id: Names the file.
            pool: Its threads write.
        """
        self.path = folder / f"{episode_id}.jsonl"
        self._images = ImageFolder(folder / IMAGE_FOLDER)
        self._pool = pool
        self._todo: list[Turn | Mapping[str, Any]] = []
        self._writing: asyncio.Task[None] | None = None

    def add(self, entry: Turn | Mapping[str, Any]) -> None:
        """Append a committed reply, or any JSON object, soon."""
        self._todo.append(entry)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def flush(self) -> None:
        """Wait until everything is written."""
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        while self._todo:
            todo, self._todo = self._todo, []
            try:
                await self._pool.run(lambda todo=todo: self._append(todo))
            except Exception as error:  # noqa: BLE001  # a trace must not end an episode
                _LOG.warning("cannot write the trace %s: %s", self.path, describe(error))

    def _append(self, entries: Sequence[Turn | Mapping[str, Any]]) -> None:
        lines = [
            json.dumps(self._fields(one) if isinstance(one, Turn) else one, ensure_ascii=False)
            for one in entries
        ]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", errors="surrogatepass") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def _fields(self, turn: Turn) -> dict[str, Any]:
        reply, parent = turn.reply, turn.parent
        assert reply is not None  # it was committed
        new = turn.request.messages[0 if parent is None else parent.place + 1 :]
        segments = turn.sequence.record.ledger.segments[: turn.segments]
        return {
            "time": time.time(),
            "turn": turn.number,
            "continues": None if parent is None else parent.number,
            "reason": turn.sequence.reason,
            "messages": [self._message(one) for one in new],
            "reply": self._message(reply.message),
            "finish": reply.finish,
            "new_ids": column_of(segments[-2:-1], "wire_ids"),
            "reply_ids": column_of(segments[-1:], "wire_ids"),
            "logprobs": [*map(float, reply.generation.logprobs)],
        }

    def _message(self, entry: AgentMessage) -> dict[str, Any]:
        fields: dict[str, Any] = {"role": entry.role, "content": [*map(self._part, entry.parts)]}
        if entry.thinking:
            fields["reasoning_content"] = entry.thinking
        if entry.calls:
            fields["tool_calls"] = [one.wire() for one in entry.calls]
        if entry.call_id:
            fields["tool_call_id"] = entry.call_id
        return fields

    def _part(self, part: Part) -> dict[str, Any]:
        if part["type"] == "text":
            return {**part}
        self._images.write(part["image"])
        return {"type": "image", "sha256": part["image"].sha256}
