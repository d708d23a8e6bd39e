"""The environment `computer-use-miniwob-v0`: MiniWoB++ in a real browser, seen in screenshots."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from envkit import ranges
from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Policy, Turn
from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.marks import Mark
from envkit.success import OWN_REWARD
from envkit.tasks import Task
from envkit_actions import Action, mark
from envkit_actions.dialect import Dialect
from envkit_actions.parsed import ParsedActions, feedback
from envkit_actions.random_clicks import random_clicks
from envkit_browser.driver.performing import refusal
from envkit_browser.miniwob.page import Page
from envkit_browser.miniwob.plans import PLANS
from envkit_browser.miniwob.policies import oracle
from envkit_browser.miniwob.scoring import Scoring, score
from envkit_browser.miniwob.session import ActionResult, MiniwobSession
from envkit_browser.miniwob.site import miniwob_site
from envkit_browser.miniwob.source import MiniwobTasks, check_task
from envkit_browser.miniwob.tasks import HEIGHT, TASKS, WIDTH


class MiniwobEnv(AsyncEnv):
    """Do one of MiniWoB++'s web tasks with mouse and keyboard, seeing screenshots.

    Task: a page and a sentence such as 'Click on the "Okay" button.'; the seed decides what the
        page shows. `TASKS` lists them.
    Observation: a screenshot of 160 x 210 page pixels, `scale` times as large, with the goal as
        text at first and then what could not be read, if anything. The page's yellow bar with the
        goal is blank unless `shows_goal` is set or the goal has an image.
    Action: one or several actions in the form of the model family that `action` names. Actions
        after one that ends the episode are ignored. Page time passes only with actions, half a
        second for each that has an effect, so the same actions give the same page.
    Reward: at the end, from the page's raw reward, without its decay over time: 1.0 if the task is
        solved, else 0.0. A page that gives a part of the reward for a partial answer gives it with
        another `scoring`. `info["raw_reward"]` is the page's own.
    Episode end: the page submits the task, `terminate` or `answer`; `max_turns` replies truncate.
        The page's own time limit is off.
    Budget: `max_turns` replies, one screenshot each; by default each task has its own budget, two
        replies per oracle action.
    Dataset: the package miniwob 1.1.0, MIT licence.
    Source: Farama-Foundation/miniwob-plusplus; its pages and rewards, on our own clock.
    """

    capabilities = Capabilities(replay_safe=True, deterministic=True)
    policies: ClassVar[Mapping[str, Callable[[], Policy]]] = {
        "oracle": oracle,
        "random": random_clicks,
    }
    """Named scripted policies: name -> a factory that takes no argument."""

    def __init__(
        self,
        *,
        task: str | None = None,
        mix: str = "solved",
        kinds: Sequence[str] | None = None,
        action: str = "canonical",
        scoring: str = Scoring.FULL,
        split: str = "train",
        max_turns: int | None = None,
        scale: int = 2,
        shows_goal: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Set up tasks and rules; a browser starts with the first reset.

        Args:
            task: The name of the only task, a key of `TASKS`; None mixes many.
            mix: "solved" mixes the tasks that the oracle solves, "all" every task.
            kinds: Values of `Kind`, to mix only tasks of these; None means all.
            action: The form of replies, by the name of a model family.
            scoring: A value of `Scoring`.
            split: "train" or "test".
            max_turns: Replies per episode; None gives each task its own `TaskEntry.turns`. Then
                `max_turns` and `system_prompt` change with every reset, and before the first reset
                they are those of the task with the largest budget.
            scale: Screenshot pixels per page pixel, 1 to 4.
            shows_goal: Whether screenshots show the page's yellow bar with the goal.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: A value is out of range.
            UnknownNameError: There is no such task, kind or action family.
            MissingDependencyError: The package miniwob is not installed.
        """
        source = MiniwobTasks(names=_names(task, mix), kinds=kinds, split=split)
        most = max(TASKS[name].turns for name in source.names)
        super().__init__(
            max_turns=most if max_turns is None else max_turns, render_mode=render_mode
        )
        ranges.within(1, 4, scale=scale)
        self.scale = scale
        self.dialect = Dialect(action, WIDTH * scale, HEIGHT * scale)
        self.tools = self.dialect.tools
        self.tasks, self._names = source, source.names
        self._has_own_turns = max_turns is None
        self.system_prompt = self._prompt()
        self.page: Page | None = None
        """The page as the oracle reads it; None until `reads_page` is set and a reply was
        played."""
        self.reads_page = False
        """Whether the page is read after each reply; a policy sets it in every episode."""
        self.performed: list[Action] = []
        """Actions of the current episode since the page was first read."""
        self._scoring = Scoring(ranges.one_of("scoring", scoring, Scoring))
        self._shows_goal = shows_goal
        self._goal = ""
        self._session = MiniwobSession(site=miniwob_site(), scale=scale)

    async def on_areset(self, task: Task) -> Turn:
        """Show a new problem and state its goal.

        Raises:
            DatasetError: The task names no page or no seed.
            BrowserFault: The browser is gone or hung.
        """
        check_task(task)
        entry = TASKS[task["name"]]
        if self._has_own_turns:
            self.max_turns = entry.turns
            self.system_prompt = self._prompt()
        self.performed, self.page, self.reads_page = [], None, False
        self._goal = await self._session.start(
            entry,
            seed=task["seed"],
            mode="test" if task.get("split") == "test" else "train",
            shows_goal=self._shows_goal or entry.draws_goal,
        )
        info = {"id": task.get("id"), "task": entry.name, "kind": entry.kind.value}
        return await self._turn(f"Task: {self._goal}", info)

    async def on_aturn(self, response_text: str) -> Turn:
        """Carry out the actions of the reply.

        Raises:
            BrowserFault: The browser is gone or hung.
        """
        parsed = self.dialect.read(self.reply)
        end: Action | None = None
        outcome = ActionResult()
        marks: list[Mark] = []
        told: list[str] = []
        for action in parsed.actions:
            cursor = self._session.cursor
            marks.append(mark(action, cursor=cursor, note=refusal(action)))
            told += self.dialect.answers(action, cursor)
            if action.is_end:
                end = action
                break
            if self.page is not None:
                self.performed.append(action)
            outcome = await self._session.perform(action)
            if outcome.is_over:
                break
        await self._read_page()
        said = [*told, *parsed.problems, *parsed.warnings]
        return await self._judge(parsed, outcome, marks, said, is_given_up=end is not None)

    def _prompt(self) -> str:
        return _PROMPT.format(turns=self.max_turns, actions=self.dialect.prompt)

    async def _judge(
        self,
        parsed: ParsedActions,
        outcome: ActionResult,
        marks: list[Mark],
        said: list[str],
        *,
        is_given_up: bool,
    ) -> Turn:
        done = is_given_up or outcome.is_over
        terms: dict[str, float] = {}
        own = 0.0
        if done or self.turn + 1 >= self.max_turns:
            full = TASKS[self.task["name"]].full
            terms["task"] = score(self._scoring, outcome.raw, full)
            own = score(Scoring.FULL, outcome.raw, full)
        info: dict[str, Any] = {
            **parsed.info,
            "reward_terms": terms,
            "marks": marks,
            "raw_reward": outcome.raw,
            "left": outcome.left,
            "events": self._session.take_events(),
        }
        if self._scoring is Scoring.RAW:
            info[OWN_REWARD] = own
        text = feedback(said)
        if done:
            text = "The task is over."
        return await self._turn(text, info, reward=sum(terms.values()), done=done)

    async def _turn(
        self, text: str, info: Mapping[str, Any], *, reward: float = 0.0, done: bool = False
    ) -> Turn:
        image = Image.from_bytes(await self._session.screenshot())
        return Turn(text, images=(image,), reward=reward, done=done, info=info)

    async def _read_page(self) -> None:
        self.page = (
            await self._session.read(self._goal, self.performed) if self.reads_page else None
        )

    async def aclose(self) -> None:
        """Release the browser; the last environment of the event loop ends it."""
        await self._session.aclose()

    def write_click(self, x: int, y: int) -> str:
        """Return the reply that clicks at a pixel of the screenshot, for playing by hand."""
        return self.dialect.write_click(x, y)

    def oracle(self) -> Policy:
        """Return a policy that reads the page and solves the tasks in `PLANS`.

        Raises:
            ConfigurationError: Some of this environment's tasks have no plan.
        """
        missing = [name for name in self._names if name not in PLANS]
        if missing:
            raise ConfigurationError(f"the oracle has no plan for {missing}")
        return oracle()


def _names(task: str | None, mix: str) -> list[str]:
    ranges.one_of("mix", mix, ("solved", "all"))
    return [task] if task is not None else list(PLANS if mix == "solved" else TASKS)


_PROMPT: Final = """You use a web page by mouse and keyboard. You see a screenshot after each reply.
{actions}
A task ends when the page takes it, such as at a press of Submit. You have {turns} replies."""
