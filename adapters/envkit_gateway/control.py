"""Control of an episode over HTTP: an agent's process takes steps and gives rewards.

The requests need a key that only this process has. The model's key would not do: commands that the
policy runs can read it from the environment, and could end the episode or reward themselves.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from envkit.errors import EpisodeStateError
from envkit.messages import Message
from envkit.rollout.boundary import StepOutcome
from envkit.success import finite
from envkit_gateway.agents import AgentSettings, AgentTask
from envkit_gateway.request import RequestRefused, bad_request, take

PATH: Final = "/v1/env"
"""Requests are POSTed to `reset`, `step` and `reward` below it."""
_MOST_IDS: Final = 65_536
"""Rewards per episode; each id is kept, to know a retry."""


class Control:
    """What one agent's process may do with its episode."""

    def __init__(
        self,
        task: AgentTask,
        step: Callable[[str], Awaitable[StepOutcome]],
        settings: AgentSettings,
    ) -> None:
        """Take an episode after its reset.

        Args:
            task: The agent's input.
            step: Takes a step, as for `AgentTask.step`.
            settings: Whether the process may reset and step, and whether it may give rewards and
                sees those of its steps.
        """
        self.key: Final = f"sk-envkit-control-{secrets.token_hex(16)}"
        self._task, self._step = task, step
        self._settings = settings
        self._taken = 0
        self._last: tuple[str, asyncio.Task[dict[str, Any]]] | None = None
        self._rewards: dict[str, float] = {}

    async def answer(self, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request.

        Args:
            name: "reset", "step" or "reward".
            body: Its JSON.

        Raises:
            RequestRefused: It is malformed, or not allowed now.
            Fault: The environment failed.
            EpisodeLostError: The episode starts over in a new environment.
        """
        known = {"reset": self._reset, "step": self._stepped, "reward": self._rewarded}
        if name not in known:
            raise RequestRefused(404, f"no {PATH}/{name} here; POST to {list(known)} below {PATH}")
        is_allowed = self._settings.rewards if name == "reward" else self._settings.steps
        if not is_allowed:
            setting = "agent.rewards" if name == "reward" else "agent.steps"
            raise RequestRefused(403, f"{PATH}/{name} needs {setting}: true in the configuration")
        try:
            return await known[name](body)
        except EpisodeStateError as error:
            raise RequestRefused(403, str(error)) from error

    async def close(self) -> None:
        """Cancel a step that is still running, and wait for its end."""
        if self._last is not None:
            self._last[1].cancel()
            await asyncio.gather(self._last[1], return_exceptions=True)

    async def _reset(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self._taken:
            raise bad_request(
                f"an agent has one episode, and {self._taken} steps of it are taken: reset only at "
                "its start"
            )
        return {
            "step": 0,
            "messages": [_wire(one) for one in self._task.messages],
            "tools": [one.to_json() for one in self._task.tools],
            "done": False,
        }

    async def _stepped(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Take a step, or wait for the one that a request repeats."""
        number, text = take(body, "step", int), take(body, "text", str)
        if number is None or text is None:
            raise bad_request(
                'a step needs its number, counted from 0, and a text: {"step": 0, "text": "..."}'
            )
        if number == self._taken and (self._last is None or self._last[1].done()):
            self._taken += 1
            self._last = text, asyncio.create_task(self._apply(number, text))
            self._last[1].add_done_callback(lambda one: one.cancelled() or one.exception())
        elif number != self._taken - 1 or self._last is None or self._last[0] != text:
            raise bad_request(self._why_not(number))
        return await asyncio.shield(self._last[1])  # a client may leave and ask again

    def _why_not(self, number: int) -> str:
        latest = self._taken - 1
        if number == self._taken:
            return f"step {latest} is still running: wait for its answer before step {number}"
        if number == latest:
            return f"step {number} was taken with another text: a retry repeats the text"
        return f"the next step is {self._taken}, got {number}"

    async def _apply(self, number: int, text: str) -> dict[str, Any]:
        outcome = await self._step(text)
        step = outcome.step
        found: dict[str, Any] = {
            "step": number + 1,
            "messages": [_wire(outcome.message)],
            "done": step.terminated or step.truncated,
        }
        return {**found, "reward": step.reward} if self._settings.rewards else found

    async def _rewarded(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Give a reward once for each id."""
        name, reward = take(body, "id", str), finite(body.get("reward"))
        if not name or reward is None:
            raise bad_request(
                "a reward needs an id, which a retry repeats, and a finite number: "
                f'{{"id": "1", "reward": 0.5}}, got {body!r:.80}'
            )
        known = self._rewards.get(name)
        if known is None:
            if len(self._rewards) >= _MOST_IDS:
                raise bad_request(f"an episode may have {_MOST_IDS} rewards")
            self._task.reward(reward)
            self._rewards[name] = reward
        elif known != reward:
            raise bad_request(f"reward {name!r:.80} was given as {known}, got {reward}")
        return {"id": name, "reward": reward}


def _wire(entry: Message) -> dict[str, Any]:
    """Return a message as chat completions have it, with images as data URIs."""
    content = entry["content"]
    if isinstance(content, str):
        return {"role": entry["role"], "content": content}
    return {
        "role": entry["role"],
        "content": [
            {"type": "text", "text": part["text"]}
            if part["type"] == "text"
            else {
                "type": "image_url",
                "image_url": {"url": part["image"].data_uri(part["image"].file_format)},
            }
            for part in content
        ],
    }
