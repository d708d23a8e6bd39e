"""The customer service environment `dialogue-v0`."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from envkit import ranges
from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, ObservationRole, Policy, Turn
from envkit.errors import ConfigurationError
from envkit.tasks import Task, TaskSource
from envkit.toolcalls import ParsedReply, ToolCallFormat, parse_tool_calls
from envkit.toolset import CallStatus, ToolResult, ToolRunner
from envkit_dialogue import database, policies
from envkit_dialogue.customer import Said, ScriptedCustomer
from envkit_dialogue.desk import Desk, Write
from envkit_dialogue.grading import grade
from envkit_dialogue.model_customer import ModelCustomer, PlayerModel
from envkit_dialogue.rules import SYSTEM_PROMPT
from envkit_dialogue.scenario import Scenario, expected_state
from envkit_dialogue.scenarios import LEVELS, DialogueTasks
from envkit_dialogue.shop import make_shop
from envkit_dialogue.values import values_in

_MOST_ERROR: Final = 400
_SPLITS: Final = ("train", "test")
_LIVE: Final = frozenset(("_database", "_desk", "_runner", "_player", "customer", "tools"))
"""What a copy opens anew."""
_EMPTY: Final = "Your message was empty: write to the customer, or call a tool."


class DialogueEnv(AsyncEnv):
    """Serve a customer of an online shop, who answers only what is asked.

    Task: a `Scenario`: the seed of the shop, the customer, and what they want. A generated one has
        `level`: 1, one request; 2, two, and the customer may not know their e-mail address or order
        number; 3, the customer also changes their mind; 4, the rules forbid one of two requests.
    Observation: the customer's message, role "user", sometimes with a photo; or the results of
        tool calls, role "tool".
    Action: a message to the customer; or calls of tools, and then the customer does not read the
        text beside them. The rules of the shop are in the system prompt.
    Reward: 1.0 at the end if the database holds exactly the changes that were asked for and are
        allowed, the customer agreed to each beforehand, and `end_chat` declares the value that the
        customer asked for and the rule by which a request was refused. Otherwise 0.0.
    Episode end: the tool `end_chat` terminates; `max_turns` replies truncate, with reward 0.0.
    Info: `speaker`, who wrote the observation: "customer" or "tools"; `customer_turns` and
        `tool_turns` so far; `heard`, what the customer understood; `checks` at the end.
    Chance: near 0. Dataset and licence: generated.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, replay_safe=True, snapshot=True, deterministic=True
    )
    policies: ClassVar[Mapping[str, Callable[[], Policy]]] = policies.POLICIES

    def __init__(
        self,
        *,
        levels: Sequence[int] = LEVELS,
        split: str = "train",
        tasks: TaskSource | None = None,
        user: Mapping[str, Any] | None = None,
        max_turns: int = 40,
        format: str = ToolCallFormat.AUTO,  # noqa: A002  # as in parse_tool_calls
        feedback_role: ObservationRole = "tool",
        render_mode: str | None = None,
    ) -> None:
        """Create the environment.

        Args:
            levels: Levels of the generated tasks, from 1 to 4.
            split: "train" or "test".
            tasks: Your own scenarios; None generates them.
            user: The model that plays the customer: `base_url` of a chat endpoint, `model`, and
                optionally `api_key`, such as "env:NAME". None is the scripted customer.
            max_turns: Replies per episode, to the customer and to the tools. The oracle needs at
                most 30.
            format: How the model writes calls, a `ToolCallFormat`.
            feedback_role: Role of the tools' results; "user" for chat templates without a tool
                role.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: A level or another argument is invalid.
        """
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        parse_tool_calls("", format)  # reject an unknown format now
        if not levels:
            raise ConfigurationError("levels must name at least one of 1, 2, 3, 4, got none")
        for level in levels:
            ranges.one_of("level", level, LEVELS)
        ranges.one_of("split", split, _SPLITS)
        self.tasks = DialogueTasks(levels, split) if tasks is None else tasks
        self.system_prompt = SYSTEM_PROMPT
        self._format = format
        self._feedback_role: ObservationRole = feedback_role
        self._user, self._player = user, None if user is None else PlayerModel(user)
        if user is not None:
            promised = replace(type(self).capabilities, deterministic=False, replay_safe=False)
            self.capabilities = promised  # pyright: ignore[reportAttributeAccessIssue]  # of this instance
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._open(database.load({}))
        self.customer: ScriptedCustomer | ModelCustomer | None = None
        """The customer of the running episode; None before the first one."""
        self._consented: list[bool] = []
        self._spoken: set[str] = set()
        self.replies: list[str] = []
        """The agent's replies in the running episode."""
        self._turns = {"customer": 0, "tools": 0}
        self._shows = ""

    @property
    def has_text_twin(self) -> bool:
        """Whether the photos can be put into words."""
        return True

    def text_twin(self) -> str:
        """Return what the photo of the current observation shows; empty without a photo."""
        return self._shows

    @property
    def desk(self) -> Desk:
        """The tools and the identified customer of the running episode."""
        return self._desk

    def oracle(self) -> Policy:
        """Return a policy that talks as a good agent does, and solves every task.

        Raises:
            ConfigurationError: A model plays the customer; the oracle follows the script.
        """
        if self._player is not None:
            raise ConfigurationError(
                "the oracle of dialogue-v0 follows the scripted customer: leave out user"
            )
        return policies.oracle()

    async def on_areset(self, task: Task) -> Turn:
        """Open the shop, and let the customer speak first.

        Raises:
            DatasetError: The task is not a scenario.
            EnvFault: A model plays the customer, and it failed or broke a rule.
        """
        scenario = Scenario.from_json(task)
        shop = make_shop(scenario.shop)
        self.customer = self._customer_of(scenario)
        self._open(database.open_database(shop))
        self._consented, self._spoken, self.replies = [], set(), []
        self._turns = {"customer": 0, "tools": 0}
        return self._spoke(await self.customer.open(), {"level": scenario.level})

    async def on_aturn(self, response_text: str) -> Turn:
        """Give the reply to the tools or to the customer.

        Raises:
            EnvFault: A model plays the customer, and it failed or broke a rule.
        """
        assert self.customer is not None  # a step follows a reset
        self.replies.append(response_text)
        reply = parse_tool_calls(self.reply, self._format, tools=self.tools)
        if reply.calls or reply.errors:
            return await self._call(reply)
        message = reply.text.strip()
        if not message:
            return Turn(_EMPTY, info={**self._counts(), "parse_error": "the reply is empty"})
        self._spoken |= values_in(message)
        return self._spoke(await self.customer.answer(message), {})

    def get_state(self) -> dict[str, Any]:
        """Return the database, the conversation and what grading needs."""
        assert self.customer is not None  # a snapshot is of a running episode
        return {
            "rows": database.dump(self._database),
            "customer": self.customer.get_state(),
            "identified": self._desk.customer,
            "consented": self._consented,
            "spoken": sorted(self._spoken),
            "replies": self.replies,
            "turns": self._turns,
            "shows": self._shows,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        scenario = Scenario.from_json(self.task)
        self.customer = self._customer_of(scenario)
        self.customer.set_state(state["customer"])
        self._open(database.load(state["rows"]))
        self._desk.customer = state["identified"]
        self._consented, self._spoken = list(state["consented"]), set(state["spoken"])
        self.replies = list(state["replies"])
        self._turns, self._shows = dict(state["turns"]), state["shows"]

    async def aclose(self) -> None:
        """Close the database, and the connections to a model that plays the customer."""
        if self._player is not None:
            await self._player.aclose()
        await self._runner.aclose()
        self._database.close()

    def __getstate__(self) -> dict[str, Any]:
        kept = {key: value for key, value in super().__getstate__().items() if key not in _LIVE}
        return {
            **kept,
            "rows": database.dump(self._database),
            "identified": self._desk.customer,
            "talk": None if self.customer is None else self.customer.get_state(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        rows, identified, talk = (state.pop(key) for key in ("rows", "identified", "talk"))
        self.__dict__.update(state)
        self._player = None if self._user is None else PlayerModel(self._user)
        self.customer = None
        if talk is not None:
            self.customer = self._customer_of(Scenario.from_json(self.task))
            self.customer.set_state(talk)
        self._database = sqlite3.connect(":memory:")
        self._open(database.load(rows))
        self._desk.customer = identified

    def _customer_of(self, scenario: Scenario) -> ScriptedCustomer | ModelCustomer:
        shop = make_shop(scenario.shop)
        if self._player is None:
            return ScriptedCustomer(scenario, shop)
        return ModelCustomer(scenario, shop, self._player)

    def _open(self, opened: sqlite3.Connection) -> None:
        self._database.close()
        self._database = opened
        self._desk = Desk(opened, self._wrote)
        self._runner = ToolRunner(self._desk.tools())
        self.tools = self._runner.tools.specs

    def _wrote(self, write: Write) -> None:
        consents = [] if self.customer is None else self.customer.consents
        self._consented.append(write in consents)

    def _spoke(self, said: Said, info: Mapping[str, Any]) -> Turn:
        self._turns["customer"] += 1
        self._shows = said.shows
        images = () if said.image is None else (said.image,)
        heard = {"speaker": "customer", "heard": list(said.acts), **self._counts()}
        return Turn(said.text, images=images, info={**info, **heard})

    async def _call(self, reply: ParsedReply) -> Turn:
        self._turns["tools"] += 1
        self._shows = ""
        results = await self._runner.run(reply.calls)
        problems = [error[:_MOST_ERROR] for error in reply.errors[:4]]
        lines = [
            result.text if len(results) == 1 else f"Result {number}, {result.name}:\n{result.text}"
            for number, result in enumerate(results, start=1)
        ]
        info = {
            "speaker": "tools",
            **self._counts(),
            "tool_call": reply.calls[0].recorded() if reply.calls else None,
            "parse_error": _first_problem(results, problems),
        }
        turn = Turn(
            "\n\n".join([*lines, *problems]),
            role=self._feedback_role if results else "user",
            info=info,
        )
        return turn if self._desk.closing is None else self._graded(turn)

    def _graded(self, turn: Turn) -> Turn:
        assert self._desk.closing is not None
        scenario = Scenario.from_json(self.task)
        checks = grade(
            scenario,
            found=database.state_of(self._database),
            wanted=expected_state(scenario),
            consented=self._consented,
            closing=self._desk.closing,
            said=frozenset(self._spoken),
        )
        info = {**turn.info, "checks": checks.to_json()}
        return replace(turn, reward=checks.reward, done=True, info=info)

    def _counts(self) -> dict[str, int]:
        return {
            "customer_turns": self._turns["customer"],
            "tool_turns": self._turns["tools"],
        }


def _first_problem(results: Sequence[ToolResult], problems: Sequence[str]) -> str | None:
    wrong = [result.text for result in results if result.status is CallStatus.INVALID]
    return next(iter([*wrong, *problems]), None)
