"""`VisualEnv`: plays any world of the collection `visual/...`."""

import functools
import math
import random
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import msgspec

from envkit import ranges
from envkit.certification_hooks import CertificationHooks
from envkit.env import Capabilities, Env, Policy, PolicyContext, Turn
from envkit.errors import ConfigurationError, DatasetError, UnknownNameError, shown
from envkit.images import Image
from envkit.marks import scale_marks
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit.twins import FEEDBACK
from envkit_visual.canvas import SIDE, Canvas, Look
from envkit_visual.catalogue import WORLDS
from envkit_visual.replies import ActionForm, Written, read_action, tool, write_action
from envkit_visual.world import LEVELS, Outcome, World

_SMALLEST: Final = 224
_LARGEST: Final = 1344
MOST_MOVES: Final = 98
"""Moves of the longest budget: a plan has at most 64."""


class VisualTasks:
    """Endless tasks of one world: `{"seed": 1, "level": 2}`."""

    size: int | None = None
    """None: there is a task for every index."""

    def __init__(self, name: str, level: int) -> None:
        self._name, self._level = name, level

    def task(self, index: int) -> Task:
        """Return the task at this index."""
        return {"seed": derive_seed("visual", self._name, index), "level": self._level}


class VisualEnv(Env):
    """A world of the collection, drawn as one picture per turn.

    Task: `seed`; optionally `level`, 1 to 4, and `size`, the value of the world's knob. Each
        overrides the constructor's.
    Observation: a square picture of the state; the text has the task, feedback on the last action,
        and the moves left.
    Action: `<action>...</action>` or a call of the tool `act`; the last one of a reply counts.
    Reward: 1.0 when the goal is reached, otherwise 0.0.
    Episode end: the goal is reached or out of reach, or no moves are left. A task of several turns
        gives half as many moves again as its shortest solution, and two more. A reply without a
        valid action uses a move.
    Info: `progress`, the part that is done from 0 to 1; `moves_left`; `feedback`, the part of the
        text that answers the action.
    Chance: `chance_level`. Dataset and licence: generated.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, compute_bound=True, replay_safe=True, snapshot=True, deterministic=True
    )
    has_text_twin: ClassVar[bool] = True
    marks_feedback: ClassVar[bool] = True
    history_policy: ClassVar[str | Mapping[str, Any] | None] = {
        "keep_last_images": {"keep": 3, "drop_at": 6}
    }

    def __init__(
        self,
        *,
        name: str,
        level: int = 1,
        size: int | None = None,
        pixels: int = SIDE,
        action_form: str = ActionForm.TAGS,
        shows_picture: bool = True,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Create the environment.

        Args:
            name: A world, such as "maze".
            level: Difficulty, 1 to 4.
            size: Value of the world's knob, from level 1's to level 4's; None uses the level's.
            pixels: Width and height of the pictures.
            action_form: "tags" or "tool".
            shows_picture: False shows an empty picture, for audits of blind policies.
            max_turns: Truncates the episode earlier; None leaves it to the moves.
            render_mode: As for `envkit.Env`.

        Raises:
            UnknownNameError: No world has the name.
            ConfigurationError: Another argument is out of range.
        """
        if name not in WORLDS:
            raise UnknownNameError.suggest("visual environment", name, WORLDS)
        self.world = WORLDS[name]()
        ranges.one_of("level", level, LEVELS)
        ranges.within(min(self.world.levels), max(self.world.levels), size=size)
        ranges.within(_SMALLEST, _LARGEST, pixels=pixels)
        self._form = ActionForm(ranges.one_of("action_form", action_form, ActionForm))
        self._level, self._size, self._pixels = level, size, pixels
        self._shows_picture = shows_picture
        most = MOST_MOVES if self.world.is_multi_turn else 1
        super().__init__(
            max_turns=most if max_turns is None else max_turns, render_mode=render_mode
        )
        self.tasks = VisualTasks(name, level)
        meaning = f"An action is {self.world.actions}."
        if self.world.moves_per_reply > 1:
            meaning += f" A reply may give up to {self.world.moves_per_reply}, separated by commas."
        self.system_prompt = f"{self.world.rules}\n{meaning}\n{_HOW[self._form]}"
        self.tools = (tool(meaning),) if self._form is ActionForm.TOOL else ()
        self.chance_level: float = self.world.chance
        self._state: Any = None
        self._left = 0

    def on_reset(self, task: Task) -> Turn:
        """Draw the task's state.

        Raises:
            DatasetError: The task's seed, level or size is not valid.
        """
        self._state, moves = self._create(task)
        self._left = math.ceil(1.5 * moves) + 2 if self.world.is_multi_turn else 1
        return self._turn(self.world.ask(self._state), {})

    def on_turn(self, response_text: str) -> Turn:
        """Play the actions of a reply."""
        written = read_action(self.reply, self._form)
        outcome, marks = self._play(written)
        self._state = outcome.state
        is_solved = self.world.is_solved(self._state)
        done = is_solved or self.world.is_over(self._state) or self._left <= 0
        said = outcome.text if outcome.error is None else f"Not valid: {outcome.error}."
        info = {
            "tool_call": written.call,
            "parse_error": outcome.error,
            "reward_terms": {"solved": float(is_solved)},
            "is_success": is_solved,
            "marks": scale_marks(marks, self._pixels / SIDE),
            FEEDBACK: said,
        }
        return self._turn(said, info, done=done)

    def text_twin(self) -> str:
        """Return in words what the picture shows."""
        return self.world.tell(self._state)

    @property
    def has_goal_picture(self) -> bool:
        """Whether the solved state is known before it is reached."""
        return any("goal" in vars(kind) for kind in type(self.world).__mro__ if kind is not World)

    def goal_picture(self) -> Image:
        """Return a picture of the solved task.

        Raises:
            ConfigurationError: The world has none.
        """
        goal = self.world.goal(self._state)
        if goal is None:
            raise ConfigurationError(f"visual/{self.world.name}-v0 has no picture of its goal")
        return self._picture(goal)

    def get_state(self) -> dict[str, Any]:
        """Return the world's state and the moves left."""
        return {"state": msgspec.to_builtins(self._state), "left": self._left}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._state = msgspec.convert(state["state"], self.world.state_type())
        self._left = state["left"]

    def oracle(self) -> Policy:
        """Return a policy that plans from the live state at every turn."""
        return _plan

    @property
    def policies(self) -> Mapping[str, Callable[[], Policy]]:
        """Return the policy `random`, which plays valid actions without looking."""
        return {"random": lambda: _guess}

    def choices(self) -> list[str]:
        """Return replies that someone who does not see would try, in a fixed order."""
        return [write_action(text, self._form) for text in self.world.choices(self._state)]

    def plan(self) -> list[str]:
        """Return the oracle's replies from the live state on."""
        moves, most = self.world.plan(self._state), self.world.moves_per_reply
        parts = [moves[at : at + most] for at in range(0, len(moves), most)]
        return [write_action(", ".join(part), self._form) for part in parts]

    def next_actions(self) -> str:
        """Return the oracle's next reply."""
        return self.plan()[0]

    def certification_hooks(self) -> CertificationHooks:
        """Return guesses without seeing, and a second drawing of a task."""
        return CertificationHooks(
            choices=lambda task: list(self.world.choices(self._create(task)[0])),
            answer=lambda text: write_action(text, self._form),
            shows=lambda task, images: images[0] == self._picture(self._create(task)[0], task),
        )

    def _create(self, task: Task) -> tuple[Any, int]:
        """Return the world's state and the moves of the oracle; 0 in a task of one turn."""
        seed = task.get("seed")
        if type(seed) is not int:
            raise DatasetError(f"'seed' of a visual task must be an integer, got {shown(seed)}")
        level: Any = task.get("level", self._level)
        if type(level) is not int or level not in LEVELS:
            raise DatasetError(f"'level' of a visual task must be 1 to 4, got {shown(level)}")
        size = task.get("size", self._size)
        if size is None:
            size = self.world.levels[level - 1]
        least, most = min(self.world.levels), max(self.world.levels)
        if type(size) is not int or not least <= size <= most:
            rule = f"'size' of {self.world.name} is its {self.world.knob}, {least} to {most}"
            raise DatasetError(f"{rule}, got {shown(size)}")
        return _created(self.world.name, seed, size)

    def _play(self, written: Written) -> tuple[Outcome[Any], list[dict[str, Any]]]:
        most, error = self.world.moves_per_reply, written.error
        texts = [text.strip() for text in written.text.split(",")] if most > 1 else [written.text]
        if error is None and len(texts) > most:
            error = f"more than {most} actions in a reply"
        elif error is None and not all(texts):
            error = "an action between commas is empty"
        if error is not None:
            self._left -= 1
            return Outcome(state=self._state, error=error), []
        marks: list[dict[str, Any]] = []
        outcome: Outcome[Any] = Outcome(state=self._state)
        for text in texts:
            outcome = self.world.act(outcome.state, text)
            self._left -= 1
            marks.append(outcome.mark or {"kind": "call", "label": text})
            if outcome.error is not None:
                marks[-1] = {**marks[-1], "ok": False, "note": outcome.error}
                break
            if self.world.is_over(outcome.state) or self._left <= 0:
                break
        return outcome, marks

    def _turn(self, said: str, info: dict[str, Any], *, done: bool = False) -> Turn:
        left = f"Moves left: {self._left}." if self.world.is_multi_turn and not done else ""
        added = {"progress": round(self.world.progress(self._state), 4), "moves_left": self._left}
        text = " ".join(filter(None, (said, left))) or "Answer the question about the picture."
        reward, pictures = float(info.get("is_success", False)), (self._picture(self._state),)
        return Turn(text, images=pictures, reward=reward, done=done, info=info | added)

    def _picture(self, state: Any, task: Task | None = None) -> Image:  # noqa: ANN401  # the world's state
        if not self._shows_picture:
            return _empty(self._pixels)
        seed = (self.task if task is None else task)["seed"]
        look = Look.of(derive_seed("visual", self.world.name, "look", seed))
        canvas = Canvas(self._pixels, look.paper)
        self.world.draw(state, canvas, look)
        return Image.from_pil(canvas.picture)


_HOW: Final = {
    ActionForm.TAGS: "Write it between <action> and </action>.",
    ActionForm.TOOL: "Give it by calling the tool act.",
}


@functools.lru_cache(maxsize=2048)  # episodes of a group play the same task
def _created(name: str, seed: int, size: int) -> tuple[Any, int]:
    world = WORLDS[name]()
    state = world.create(random.Random(derive_seed("visual", name, "task", seed, size)), size)
    return state, len(world.plan(state)) if world.is_multi_turn else 0


@functools.lru_cache(maxsize=4)
def _empty(pixels: int) -> Image:
    return Image.from_pil(Canvas(pixels, (255, 255, 255)).picture)


def _plan(context: PolicyContext) -> str:
    env: Any = context.env.unwrapped  # a wrapper hides the state
    return env.next_actions()


def _guess(context: PolicyContext) -> str:
    env: Any = context.env.unwrapped
    rng = random.Random(derive_seed("visual guess", context.seed, context.turn))
    return rng.choice(env.choices())
