"""The contract of environments where several roles share an episode.

It follows PettingZoo's parallel API: a hook says who speaks next and what each role reads, and is
called again when all of them have replied. A rollout gives every role its own conversation and its
own trajectory (see `envkit.rollout.joint`).

All other code sees an ordinary `Env` with *joint* replies: the observation is a JSON object of what
each role reads, the reply is a JSON object of what each role says, and a turn is one round. So
checks, certificates, golden files and fault injection need not know about roles. A reply that is
not such an object becomes the reply of every role.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

from envkit.env import Env
from envkit.errors import ConfigurationError, ContractError
from envkit.messages import Message, message
from envkit.reply import Reply
from envkit.tasks import Task
from envkit.tools import ToolSpec
from envkit.turns import Observation, ObservationRole, Reset, Step, Turn

_TURNS: Final = "agents"
_LATE: Final = "final_rewards"

Replies = Mapping[str, str | None]


class MultiAgentEnv(Env):
    """Base class of environments with several agents. `max_turns` counts rounds."""

    roles: tuple[str, ...] = ()
    """Names of the roles in record order; `on_reset` may set it per task."""
    prompts: Mapping[str, str] = {}
    """System prompts by role; roles that are not listed have none."""

    def __init__(self, *, max_turns: int = 8, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.conversations: dict[str, list[Message]] = {}
        """Messages of each role in the current episode, without system prompts."""
        self.replies: Mapping[str, Reply | None] = {}
        """The replies of the round that `on_replies` takes; None for a role that left."""
        self._addressed: tuple[str, ...] = ()
        self._done: set[str] = set()
        self._left: set[str] = set()

    def on_reset(self, task: Task) -> Mapping[str, Turn]:  # type: ignore[override]  # one turn for each role
        """Start the task and return the first observations of the roles that speak first.

        Every turn needs reward 0.0 and done False, because no role has replied yet.
        """
        raise ContractError(f"{type(self).__name__} must define on_reset(task)")

    def on_replies(self, replies: Replies) -> Mapping[str, Turn]:
        """Take one reply from each addressed role; return who speaks next.

        A turn's reward, done and info belong to the role's latest reply. A role that is done never
        speaks again; a role missing from the mapping waits. To end the episode, return {} when no
        role is left to speak. Never raise for a bad reply.

        Args:
            replies: Texts by role; `self.replies` says how they ended. None for a role that hit one
                of its limits and left the episode; it cannot speak again.
        """
        raise ContractError(f"{type(self).__name__} must define on_replies(replies)")

    def on_end(self) -> Mapping[str, float]:
        """Return rewards that are known only at the end, by role; none by default.

        They are added to each role's last reply, even if the role stopped speaking earlier. Called
        once after the last `on_replies`, including when `max_turns` rounds ended the episode.
        """
        return {}

    def system_prompt_of(self, role: str) -> str | None:
        """Return the system prompt of a role, or None."""
        return self.prompts.get(role)

    def tools_of(self, role: str) -> tuple[ToolSpec, ...]:
        """Return the tools of a role; those of `tools` by default."""
        return self.tools

    def history_policy_of(self, role: str) -> str | Mapping[str, Any] | None:
        """Return the history policy of a role; `history_policy` by default."""
        return self.history_policy

    @property
    def addressed(self) -> tuple[str, ...]:
        """Roles that speak next, in the order of `roles`; empty after the episode's end."""
        return self._addressed if self._running else ()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode; the arguments are those of `Env.reset`.

        Raises:
            ContractError: `on_reset` addressed no role, or an unknown one.
        """
        task = self._prepare(seed, options)
        self._done, self._left, self.conversations = set(), set(), {}
        turns = self._checked(self.on_reset(task), "on_reset")
        if not turns or any(turn.done for turn in turns.values()):
            raise ContractError(
                f"{type(self).__name__}.on_reset must address a role that is not done"
            )
        return self._begin(self._joint(turns, {}))

    def step(self, action: str) -> Step:
        """Play one round.

        Args:
            action: A JSON object of replies by role, each a text or `Reply.to_wire()`, null for a
                role that leaves. Any other text is the reply of every addressed role.

        Raises:
            EpisodeStateError: Before `reset`, or after the episode ended.
            ContractError: `on_replies` or `on_end` broke the contract.
        """
        self.replies = self._replies(self._hear(action))
        replies = {role: one and one.text for role, one in self.replies.items()}
        self._left |= {role for role, reply in replies.items() if reply is None}
        for role, reply in replies.items():
            if reply is not None:
                self.conversations[role].append(message("assistant", reply))
        turns = self._checked(self.on_replies(replies), "on_replies")
        self._done |= {role for role, turn in turns.items() if turn.done}
        is_over = not self._speakers(turns)
        late = self._late() if is_over or self.turn + 1 >= self.max_turns else {}
        return self._advance(action, self._joint(turns, late, done=is_over))

    def snapshot(self) -> bytes:
        """Reject snapshots, which would not contain the roles' conversations.

        Raises:
            ContractError: Always; a recovery replays the replies of all roles instead.
        """
        raise ContractError(
            f"{type(self).__name__} has several agents and no snapshot: declare replay_safe instead"
        )

    def _replies(self, joint: Reply) -> dict[str, Reply | None]:
        if joint.is_cut or (joint.opened and joint.problem):  # nobody may act on any of it
            return dict.fromkeys(self._addressed, joint)
        try:
            data: object = json.loads(joint.text)
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict):
            found = cast("dict[str, Any]", data)
            known = found.keys() <= set(self._addressed)
            if found and known:
                with suppress(ConfigurationError):
                    said = {
                        role: one if one is None else Reply.from_wire(one)
                        for role, one in found.items()
                    }
                    return {role: said.get(role) for role in self._addressed}
        return dict.fromkeys(self._addressed, joint)

    def _checked(self, turns: object, hook: str) -> dict[str, Turn]:
        """Return the turns in the order of `roles`."""
        where = f"{type(self).__name__}.{hook}"
        if not isinstance(turns, Mapping):
            raise ContractError(
                f"{where} must return a mapping of roles to envkit.Turn, got {type(turns).__name__}"
            )
        found = cast("Mapping[str, object]", turns)
        for role, turn in found.items():
            if role not in self.roles:
                raise ContractError(f"{where} names {role!r}, the roles are {list(self.roles)}")
            if not isinstance(turn, Turn):
                raise ContractError(
                    f"{where} must map {role!r} to envkit.Turn, got {type(turn).__name__}"
                )
            if role in self._done:
                raise ContractError(f"{where} addresses {role!r}, which is done")
            if role not in self.conversations and (turn.done or turn.reward):
                raise ContractError(f"{where}: {role!r} has not spoken: no reward, not done")
        return {role: cast(Turn, found[role]) for role in self.roles if role in found}

    def _speakers(self, turns: Mapping[str, Turn]) -> tuple[str, ...]:
        return tuple(r for r, turn in turns.items() if not (turn.done or r in self._left))

    def _late(self) -> dict[str, float]:
        late = dict(self.on_end())
        for role, reward in late.items():
            if role not in self.roles:
                name = type(self).__name__
                raise ContractError(f"{name}.on_end rewards {role!r}, which is not a role")
            Turn("", reward=reward)  # rejects a reward that is not a finite number
        return {role: float(reward) for role, reward in late.items()}

    def _joint(
        self, turns: Mapping[str, Turn], late: Mapping[str, float], *, done: bool = False
    ) -> Turn:
        self._addressed = self._speakers(turns)
        for role in self._addressed:
            turn = turns[role]
            kind = "user" if turn.images else turn.role
            entry = message(kind, turn.text, turn.images)
            self.conversations.setdefault(role, []).append(entry)
        return Turn(
            json.dumps({role: turn.text for role, turn in turns.items()}, ensure_ascii=False),
            images=tuple(image for turn in turns.values() for image in turn.images),
            reward=sum(turn.reward for turn in turns.values()) + sum(late.values()),
            done=done,
            info={
                _TURNS: {role: _as_info(turn) for role, turn in turns.items()},
                _LATE: dict(late),
            },
        )


def _as_info(turn: Turn) -> dict[str, Any]:
    return {
        "images": len(turn.images),
        "role": turn.role,
        "reward": float(turn.reward),
        "done": bool(turn.done),
        "info": dict(turn.info),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The observations of each role in one joint observation."""

    turns: Mapping[str, Turn]
    late: Mapping[str, float] = field(default_factory=dict[str, float])
    """Rewards of `on_end`."""
    terminated: bool = False
    truncated: bool = False

    @classmethod
    def of(
        cls,
        observation: Observation,
        info: Mapping[str, Any],
        *,
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
    ) -> "Round":
        """Read an observation and its info, which may have passed through wrappers.

        Raises:
            ConfigurationError: A wrapper has rewritten the text or the reward.
        """
        texts = _texts(observation["text"])
        if list(texts) != list(info[_TURNS]):
            raise _rewritten()
        turns: dict[str, Turn] = {}
        start = 0
        for role, told in info[_TURNS].items():
            pictures = observation["images"][start : start + told["images"]]
            start += told["images"]
            kind = cast(ObservationRole, told["role"])
            turns[role] = Turn(
                texts[role], pictures, kind, told["reward"], told["done"], told["info"]
            )
        total = sum(turn.reward for turn in turns.values()) + sum(info[_LATE].values())
        if not math.isclose(reward, total, abs_tol=1e-9):
            raise ConfigurationError(
                "a wrapper changed the reward of an environment with several agents, which has one "
                f"reward per role (total {total}, got {reward}): use adjust_rewards instead"
            )
        return cls(turns=turns, late=info[_LATE], terminated=terminated, truncated=truncated)

    @property
    def is_over(self) -> bool:
        """Whether no role speaks again."""
        return self.terminated or self.truncated


def _texts(text: str) -> dict[str, str]:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _rewritten() from error


def _rewritten() -> ConfigurationError:
    return ConfigurationError(
        "a wrapper rewrote the joint observation of an environment with several agents, which "
        "supports only wrappers of images and faults: leave this one out"
    )
