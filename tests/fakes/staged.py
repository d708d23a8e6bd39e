"""An environment and an engine in which a test's own code runs at a chosen moment."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from fakes.codecs import text_codec

from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Observation, PolicyContext, Turn
from envkit.rollout import (
    FinishReason,
    GenerateRequest,
    Generation,
    LogprobKind,
    ScriptedEngine,
)
from envkit.tasks import Task

Happening = Callable[[], Awaitable[None] | None]


class Staged(AsyncEnv):
    """Ends after some turns with reward 1 each.

    `at` names the moments: "reset", "step 0" for the first reply, "snapshot" and "restore".
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, snapshot=True, replay_safe=True, deterministic=True
    )

    def __init__(
        self,
        at: Mapping[str, Happening] | None = None,
        *,
        turns: int = 3,
        role: str = "user",
        texts: Mapping[int, str] | None = None,
        truncates: bool = False,
        short: str | None = None,
    ) -> None:
        super().__init__(max_turns=turns if truncates else turns + 9)
        self._at, self._turns, self._role, self._texts = at or {}, turns, role, texts or {}
        self._truncates, self._short = truncates, short
        self.said: list[str] = []
        self.keys: list[str] = []
        """Episode ids of the step keys."""
        self.spaces: list[int] = []
        """Tokens that `shorten` was offered."""

    async def on_areset(self, task: Task) -> Turn:
        self.said = []
        await self._happens("reset")
        return Turn("Begin.", info={"started": True})

    async def on_aturn(self, response_text: str) -> Turn:
        number = self.turn
        assert self.step_key is not None
        self.keys.append(self.step_key.episode_id)
        await self._happens(f"step {number}")
        self.said.append(response_text)
        return Turn(
            self._texts.get(number, f"Answer {number}."),
            role=self._role,  # type: ignore[arg-type]
            reward=1.0,
            done=number + 1 >= self._turns and not self._truncates,
            info={
                "parse_error": "say something" if "bad" in response_text else None,
                "said": list(self.said),
            },
        )

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        self.spaces.append(tokens)
        return None if self._short is None else {**observation, "text": self._short}

    def get_state(self) -> dict[str, Any]:
        if "snapshot" in self._at:
            self._at["snapshot"]()
        return {"said": self.said}

    def set_state(self, state: dict[str, Any]) -> None:
        if "restore" in self._at:
            self._at["restore"]()
        self.said = state["said"]

    async def _happens(self, moment: str) -> None:
        found = self._at.get(moment)
        waiting = None if found is None else found()
        if inspect.isawaitable(waiting):
            await waiting


class Replayed(Staged):
    """Has no snapshots."""

    capabilities: ClassVar[Capabilities] = replace(Staged.capabilities, snapshot=False)


class Unsaved(Staged):
    """Can be brought back in no way."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)


Answer = Callable[[GenerateRequest, Generation], Generation | Awaitable[Generation]]


def say_go(context: PolicyContext) -> str:
    """Policy: the same reply in every turn."""
    return "go go go go"


class Answering(ScriptedEngine):
    """Changes what a scripted engine answers to each request, by the request's number."""

    def __init__(
        self,
        answers: Mapping[int, Answer] | None = None,
        *,
        policy: Callable[[PolicyContext], str] = say_go,
        codec: Any = None,
    ) -> None:
        super().__init__(codec or text_codec(), policy)
        self._answers = answers or {}
        self.requests: list[GenerateRequest] = []
        self.ended: list[str] = []
        """Sessions that the rollout ended."""

    async def generate(self, request: GenerateRequest) -> Generation:
        number = len(self.requests)
        self.requests.append(request)
        generation = await super().generate(request)
        if number not in self._answers:
            return generation
        answer = self._answers[number](request, generation)
        return await answer if inspect.isawaitable(answer) else answer

    async def end_session(self, session_id: str) -> None:
        self.ended.append(session_id)


class TextEngine(Answering):
    """Returns text, as a chat endpoint does."""

    logprob_kind = LogprobKind.SAMPLED  # type: ignore[assignment]

    async def generate(self, request: GenerateRequest) -> Generation:
        assert request.context is not None
        self.requests.append(request)
        text = self._policy(request.context)
        generation = Generation(
            token_ids=(),
            logprobs=(),
            finish_reason=FinishReason.STOP,
            prompt_tokens=7,
            text=text,
            text_tokens=len(text.split()),
        )
        answer = self._answers.get(len(self.requests) - 1, lambda _, same: same)
        return answer(request, generation)  # type: ignore[return-value]


def first(count: int, finish_reason: FinishReason) -> Answer:
    """Return only the first tokens of a reply."""
    return lambda _, whole: replace(
        whole,
        token_ids=whole.token_ids[:count],
        logprobs=whole.logprobs[:count],
        finish_reason=finish_reason,
    )
