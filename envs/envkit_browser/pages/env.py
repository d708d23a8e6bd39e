"""The environment `computer-use-page-v0`: your own page in a real browser."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final

from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Policy, Turn
from envkit.errors import DatasetError, EnvFault, FaultKind
from envkit.faults import FaultPlan
from envkit.grading import UngradedError, asettle
from envkit.images import Image
from envkit.marks import Mark
from envkit.tasks import Task
from envkit_actions import Action, ActionKind, mark
from envkit_actions.action import Status
from envkit_actions.dialect import Dialect
from envkit_actions.random_clicks import random_clicks
from envkit_browser import driver
from envkit_browser.driver.injection import inject
from envkit_browser.driver.performing import refusal
from envkit_browser.pages.policies import oracle
from envkit_browser.pages.scripts import GoalCheck, check_script, read_verdict, setup_script
from envkit_browser.pages.source import DEMOS, PageTasks, check_task, read_rows

WIDTH: Final = 672
HEIGHT: Final = 448
_SHOWN_DIALOGS: Final = 4
_BROKEN: Final = (driver.Trouble.HUNG, driver.Trouble.RENDERER_CRASHED)
"""What scripts of a page can do to it."""
_Act = tuple[Action, Action | None]
"""An action of the policy, and the one that ends the episode, if it does."""


class PageEnv(AsyncEnv):
    """Do something on a web page with mouse and keyboard, seeing screenshots.

    Task: a page, a goal and a checker in JavaScript: `html` (the page's text) or `path` (a file of
        `folder`), `goal`, `check`, and optionally `setup`, `assets`, `oracle`, `seed`, `name`.
    Observation: a screenshot of `width` x `height` pixels after each reply, with the goal at first,
        and later with unreadable actions and the dialogs that the page showed.
    Action: one or several actions in the form of the model family that `action` names.
    Reward: the checker's result. A number ends the episode if it is above 0; `{done, reward}` ends
        it if `done`. It runs after each action, and with `answer` and `status` at the end. Episode
        end: the checker's verdict, `terminate` or `answer`, or a page that was left, closed or
        broken by the actions (reward 0.0); `max_turns` replies truncate. Budget: `max_turns`
        replies, one screenshot each. Dataset: two demo pages, part of this package. Source:
        original.
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
        tasks: str | Sequence[Mapping[str, Any]] | None = None,
        folder: str | None = None,
        action: str = "canonical",
        max_turns: int = 20,
        width: int = WIDTH,
        height: int = HEIGHT,
        scale: float = 1.0,
        settle_ms: float = 100.0,
        deadline_s: float = 10.0,
        faults: FaultPlan | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Set up tasks and rules.

        Args:
            tasks: A file of JSON lines, or the rows themselves; None uses the demos.
            folder: Folder whose files pages may load; None uses the demos' folder.
            action: The form of replies, by the name of a model family.
            max_turns: Replies per episode.
            width: Screen width in pixels.
            height: Screen height in pixels.
            scale: Pixels per CSS pixel.
            settle_ms: Milliseconds of page time that pass after each action.
            deadline_s: Seconds after which a page that does not answer counts as hung.
            faults: Failures to inject into the browser, see `driver.injection`; None injects none.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: A value is out of range.
            DatasetError: A row cannot be played.
            UnknownNameError: There is no such action family.
        """
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self._options = driver.PageOptions(
            width=width, height=height, scale=scale, settle_ms=settle_ms, deadline_s=deadline_s
        )
        self._folder = str(DEMOS) if folder is None and tasks is None else folder
        driver.Site(folder=self._folder)
        self.dialect = Dialect(action, width, height)
        self.tools = self.dialect.tools
        self.tasks = PageTasks(read_rows(tasks))
        self.system_prompt = _PROMPT.format(turns=max_turns, actions=self.dialect.prompt)
        self.plan: Any = None
        """The next action by the task's own oracle, as canonical JSON; None without one."""
        self._faults = faults
        self._pool: driver.BrowserPool | None = None
        self.page: driver.Page | None = None
        """The page of the running episode; None before the first and after a fault."""
        self._input: driver.PageInput | None = None
        self._failure: dict[str, Any] = {}
        self._done: list[list[_Act]] = []

    @property
    def size(self) -> tuple[int, int]:
        """Screen size, in pixels."""
        return self._options.width, self._options.height

    async def on_areset(self, task: Task) -> Turn:
        """Load the page in a fresh session and state the goal.

        Raises:
            DatasetError: The task cannot be played.
            MissingDependencyError: No browser is installed.
            EnvFault: The browser failed.
        """
        check_task(task)
        site, path = self._site_of(task)
        await self._close_page()
        if self._pool is None:
            self._pool = driver.join_pool(self)
        self.page = await self._pool.open(self._options.with_site(site))
        self._input = driver.PageInput(self.page)
        self._done = []
        try:
            return await self._start(self.page, task, path)
        except BaseException as error:
            await self._fail(error)
            raise

    async def on_aturn(self, response_text: str) -> Turn:
        """Carry out the actions of the reply.

        Raises:
            EnvFault: The browser failed, or the checker did.
        """
        if self.page is None or self._input is None:
            raise driver.BrowserFault(
                "the page of this episode is gone: reset the environment",
                trouble=driver.Trouble.PAGE_GONE,
            )
        page, page_input = self.page, self._input
        try:
            return await self._play(page, page_input)
        except driver.BrowserFault as fault:
            await self._fail(fault)
            if fault.trouble not in _BROKEN:
                raise
            return await self._end_broken(fault, page, (page_input.x, page_input.y))
        except BaseException as error:
            await self._fail(error)
            raise

    async def aclose(self) -> None:
        """Close the page; the last environment of the loop ends the browsers."""
        try:
            await self._close_page()
        finally:
            pool, self._pool = self._pool, None
            if pool is not None:
                await driver.leave_pool(self, pool)

    def write_click(self, x: int, y: int) -> str:
        """Return the reply that clicks at a pixel of the screenshot, for playing by hand."""
        return self.dialect.write_click(x, y)

    def oracle(self) -> Policy:
        """Return a policy that follows the `oracle` of the tasks."""
        return oracle()

    def __getstate__(self) -> dict[str, Any]:
        nothing = {"_pool": None, "page": None, "_input": None}
        return {**super().__getstate__(), **nothing}  # a copy opens its own page

    def _site_of(self, task: Task) -> tuple[driver.Site, str]:
        texts: dict[str, str] = dict(task.get("assets", {}))
        path = task.get("path", "index.html")
        if "html" in task:
            texts[path] = task["html"]
        site = driver.Site(texts, folder=self._folder)
        if not site.has(path):
            raise DatasetError(f"the page {path!r} must be in 'assets' or in the folder, got none")
        return site, path

    async def _start(self, page: driver.Page, task: Task, path: str) -> Turn:
        await page.goto(path, seed=task.get("seed", 0))
        prepared = await _run_script(page, setup_script(task, self._options.scale), "setup")
        self.plan = prepared.get("oracle")
        goal = prepared.get("setup")
        goal = goal if isinstance(goal, str) and goal else task.get("goal", "")
        if not goal:
            raise DatasetError("the 'setup' of a page task without 'goal' must be the goal")
        await page.pass_time(self._options.settle_ms or 1.0)
        info = {key: task[key] for key in ("id", "name", "seed") if key in task}
        return await self._turn(page, f"Task: {goal}", info)

    async def _play(self, page: driver.Page, page_input: driver.PageInput) -> Turn:
        if self._faults is not None:
            await inject(self._faults, page, self._key())
        parsed = self.dialect.read(self.reply)
        end: Action | None = None
        verdict = GoalCheck(done=False, reward=0.0)
        self._failure = {}
        actions = parsed.actions or (Action(kind=ActionKind.SCREENSHOT),)
        self._done.append([])
        marks: list[Mark] = []
        told: list[str] = []
        for action in actions:
            if parsed.actions:
                cursor = page_input.x, page_input.y
                marks.append(mark(action, cursor=cursor, note=refusal(action)))
                told += self.dialect.answers(action, cursor)
            if action.is_end:
                end = action
            self._done[-1].append((action, end))
            found = await self._act(page, page_input, action, end)
            if found is None:
                break
            verdict = found
            if verdict.done or end is not None:
                break
        done = verdict.done or end is not None or page.left is not None
        reward = 0.0 if page.left is not None else verdict.reward
        events = page.take_events()
        info = {
            **parsed.info,
            **self._failure,
            "events": {kind.value: count for kind, count in sorted(events.counts.items())},
            "left": page.left,
            "reward_terms": {"task": reward},
            "marks": marks,
        }
        said = [*told, *parsed.problems, *parsed.warnings, *_sentences(events)]
        text = "The task is over." if done else "\n".join(said[:8]) or "Done."
        return await self._turn(page, text, info, reward=reward, done=done)

    async def _act(
        self, page: driver.Page, page_input: driver.PageInput, action: Action, end: Action | None
    ) -> GoalCheck | None:
        """Carry out an action and judge the page; None if the page was left or closed."""
        try:
            if end is None:
                await page_input.perform(action)
            return await self._judge(page, end) if page.left is None else None
        except driver.BrowserFault:
            if page.left is None:
                raise
            return None

    async def _judge(self, page: driver.Page, end: Action | None) -> GoalCheck:
        answer = end.text if end is not None and end.kind is ActionKind.ANSWER else None
        is_status = end is not None and end.kind is ActionKind.TERMINATE
        status = end.status.value if end is not None and is_status else None
        verdict = GoalCheck(done=True, reward=0.0)

        async def grade() -> float:
            nonlocal verdict
            verdict = await self._check(page, answer=answer, status=status)
            return verdict.reward

        settled = await asettle(
            grade, untouched=self._check_untouched, grader="pages", task=self.task
        )
        self._failure = settled.info()
        return verdict

    async def _check(
        self, page: driver.Page, *, answer: str | None, status: str | None
    ) -> GoalCheck:
        script = check_script(self.task, self._options.scale, answer=answer, status=status)
        judged = await _run_script(page, script, "check")
        self.plan = judged.get("oracle")
        return read_verdict(judged.get("check"))

    async def _check_untouched(self) -> None:
        """Judge a new page on which nothing was done: while the episode runs, and given up."""
        async with self._another_page() as page:
            for status in (None, Status.FAILURE.value):
                await self._check(page, answer=None, status=status)

    @asynccontextmanager
    async def _another_page(self) -> AsyncGenerator[driver.Page]:
        """Show the task on a page of its own."""
        assert self._pool is not None
        site, path = self._site_of(self.task)
        page = await self._pool.open(self._options.with_site(site))
        plan = self.plan
        try:
            await self._start(page, self.task, path)
            yield page
        finally:
            self.plan = plan
            await asyncio.shield(asyncio.ensure_future(self._pool.release(page)))

    async def _end_broken(
        self, fault: driver.BrowserFault, page: driver.Page, cursor: tuple[int, int]
    ) -> Turn:
        """End the episode if its actions broke the page: they do so again, and nothing else does.

        Raises:
            EnvFault: The browser failed by itself.
        """
        done = self._done

        async def repeat() -> float:
            try:
                async with self._another_page() as another:
                    await self._repeat(another, done)
            except driver.BrowserFault as again:
                if again.trouble in _BROKEN:  # memory may run out before the deadline, or after
                    raise UngradedError(f"these actions break the page: {again}") from again
                raise
            raise fault

        settled = await asettle(
            repeat, untouched=self._check_untouched, grader="pages broken", task=self.task
        )
        parsed = self.dialect.read(self.reply)
        info = {
            **parsed.info,
            **settled.info(),
            "events": {},
            "left": fault.trouble.value,
            "reward_terms": {"task": 0.0},
            "marks": [mark(one, cursor=cursor, note=refusal(one)) for one, _ in done[-1]],
        }
        shot = page.last_screenshot
        images = () if shot is None else (Image.from_bytes(shot),)
        return Turn("The page no longer answers. The task is over.", images, done=True, info=info)

    async def _repeat(self, page: driver.Page, turns: Sequence[Sequence[_Act]]) -> None:
        page_input = driver.PageInput(page)
        for actions in turns:
            for action, end in actions:
                if await self._act(page, page_input, action, end) is None:
                    return
            await page.screenshot()

    async def _turn(
        self,
        page: driver.Page,
        text: str,
        info: Mapping[str, Any],
        *,
        reward: float = 0.0,
        done: bool = False,
    ) -> Turn:
        shot = page.last_screenshot if page.left == "closed" else await page.screenshot()
        images = () if shot is None else (Image.from_bytes(shot),)
        return Turn(text, images=images, reward=reward, done=done, info=info)

    def _key(self) -> tuple[int, int, int | None]:
        attempt = None if self.step_key is None else self.step_key.attempt
        return self.task.get("seed", 0), self.turn, attempt

    async def _fail(self, error: BaseException) -> None:
        if isinstance(error, driver.BrowserFault) and self._pool is not None:
            self._pool.count(error)
        await self._close_page()

    async def _close_page(self) -> None:
        """Close the page, even if the caller is cancelled."""
        page, self.page, self._input, self.plan = self.page, None, None, None
        if page is not None and self._pool is not None:
            await asyncio.shield(asyncio.ensure_future(self._pool.release(page)))


_PROMPT: Final = """You use a web page by mouse and keyboard. You see a screenshot after each reply.
{actions}
Some tasks end by themselves when they are solved or handed in. End the others yourself: with
answer where a question is asked, else with terminate. You have {turns} replies."""


async def _run_script(page: driver.Page, script: str, what: str) -> dict[str, Any]:
    """Run a script of the task; its exception is the task's fault, not the browser's."""
    try:
        return await page.evaluate(script)
    except driver.BrowserFault as fault:
        if fault.trouble is not driver.Trouble.SCRIPT_FAILED:
            raise
        reason = f"the {what!r} of this page task fails: {fault}"
        if what == "check":
            raise UngradedError(reason) from fault
        raise EnvFault(reason, kind=FaultKind.PERMANENT) from fault


def _sentences(events: driver.PageEvents) -> list[str]:
    sentences = [
        f'The page showed this {dialog.kind}: "{dialog.text[:200]}". It was answered with OK.'
        for dialog in events.dialogs[:_SHOWN_DIALOGS]
    ]
    if events.counts[driver.PageEvent.BLOCKED_NAVIGATION] or events.counts[driver.PageEvent.POPUP]:
        sentences.append("The page tried to open another address, which is not allowed.")
    return sentences
