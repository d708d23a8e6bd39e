"""The canary: read a code that only the image shows."""

import random
from typing import Any, ClassVar, Final, cast

from envkit import ranges
from envkit.certification_hooks import CertificationHooks
from envkit.env import Capabilities, Env, Policy, PolicyContext, Turn
from envkit.errors import ConfigurationError, DatasetError
from envkit.images import Image
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit_canary.certifying import hooks
from envkit_canary.drawing import draw_code
from envkit_canary.glyphs import GLYPHS
from envkit_canary.reply import read_code

DEFAULT_ALPHABET: Final = "2345679CDFHJKMNPRTVWX"
"""No vowels, so no English word is a code, and no two characters that look alike."""
_LONGEST_CODE: Final = 16


class CodeTasks:
    """Endless tasks: `{"codes": [...], "look": n}`, one code per turn."""

    size: int | None = None
    """None: there is a task for every index."""

    def __init__(self, *, turns: int, length: int, alphabet: str) -> None:
        self._turns, self._length, self._alphabet = turns, length, alphabet

    def task(self, index: int) -> Task:
        """Return the task at this index."""
        rng = random.Random(derive_seed("canary", index))
        return {
            "codes": [
                "".join(rng.choice(self._alphabet) for _ in range(self._length))
                for _ in range(self._turns)
            ],
            "look": rng.getrandbits(31),
        }


class CanaryEnv(Env):
    """Read a code off an image, several times, with a new image each turn.

    Task: `{"codes": ["K7MX", ...], "look": 7}`: one code of capital letters and digits per turn,
        and a seed for colours and positions (0 if missing).
    Observation: an image of the code; the text is the same for every code.
    Action: the code, anywhere in the reply; the last run of characters that could be one counts.
    Reward: 1 / turns for each right code, so 1.0 at most. Episode end: after the last code. A reply
    without a code counts as wrong.
    Chance: a reply that ignores the image is right with probability `len(alphabet) ** -length` per
    turn: 5e-6 with the defaults, 0.1 for one decimal digit. Dataset and licence: generated; drawn
    with glyphs of this package.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True, compute_bound=True, replay_safe=True, snapshot=True, deterministic=True
    )
    system_prompt = "You read codes off pictures. Reply with the code only."

    def __init__(
        self,
        *,
        turns: int = 3,
        length: int = 4,
        alphabet: str = DEFAULT_ALPHABET,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Create the environment.

        Args:
            turns: Codes per episode.
            length: Characters per code.
            alphabet: Characters to draw from.
            max_turns: Truncates the episode earlier; None uses `turns`.
            render_mode: As for `envkit.Env`.

        Raises:
            ConfigurationError: A number is out of range, or a character cannot be drawn.
        """
        ranges.at_least(1, turns=turns)
        ranges.within(1, _LONGEST_CODE, length=length)
        if len(set(alphabet)) < max(2, len(alphabet)) or not set(alphabet) <= set(GLYPHS):
            raise ConfigurationError(
                "alphabet must be two or more different characters of A-Z and 0-9, "
                f"got {alphabet!r}"
            )
        super().__init__(
            max_turns=turns if max_turns is None else max_turns, render_mode=render_mode
        )
        self.tasks = CodeTasks(turns=turns, length=length, alphabet=alphabet)
        self._alphabet = alphabet
        self.chance_level: float = len(alphabet) ** -float(length)
        """Probability of a right reply without seeing the image."""

    def on_reset(self, task: Task) -> Turn:
        """Show the first code.

        Raises:
            DatasetError: The task's codes cannot be drawn, or its look is not an integer.
        """
        codes = _checked_codes(task)
        return Turn(_question(codes[0]), images=(self._picture(0),))

    def on_turn(self, response_text: str) -> Turn:
        """Compare the reply with the code shown and show the next one."""
        codes: list[str] = self.task["codes"]
        code = codes[self.turn]
        answer = read_code(self.reply.final, len(code))
        is_right = answer == code
        reward = 1.0 / len(codes) if is_right else 0.0
        error = None if answer else f"no run of {len(code)} letters and digits in the reply"
        info: dict[str, Any] = {
            "parse_error": error,
            "answer": answer,
            "reward_terms": {"code": reward},
        }
        info["marks"] = [{"kind": "answer", "text": answer}] if answer else []
        verdict = "Right." if is_right else "Wrong." if answer else f"Wrong: {error}."
        if self.turn + 1 == len(codes):
            return Turn(verdict, reward=reward, done=True, info=info)
        following = codes[self.turn + 1]
        return Turn(
            f"{verdict} {_question(following)}",
            images=(self._picture(self.turn + 1),),
            reward=reward,
            info=info,
        )

    def get_state(self) -> dict[str, Any]:
        """Return an empty state: the task and the turn are enough to restore it."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""

    def oracle(self) -> Policy:
        """Return a policy that reads the code from the task instead of the image."""
        return _answer

    def certification_hooks(self) -> CertificationHooks:
        """Return blind guesses and a second reader of codes; see `certifying`."""
        return hooks(self._alphabet)

    def _picture(self, turn: int) -> Image:
        look = derive_seed("canary", self.task.get("look", 0), turn)
        return draw_code(self.task["codes"][turn], look=look)


def _answer(context: PolicyContext) -> str:
    return str(context.task["codes"][context.turn])


def _question(code: str) -> str:
    return f"Which code of length {len(code)} does the picture show?"


def _checked_codes(task: Task) -> list[str]:
    if not isinstance(task.get("look", 0), int):
        raise DatasetError(f"'look' must be an integer, got {task['look']!r:.80}")
    codes: object = task.get("codes")
    if not isinstance(codes, list) or not codes:
        raise DatasetError(f"a canary task must have a list 'codes', got {task!r:.120}")
    for code in cast("list[object]", codes):
        if not isinstance(code, str) or not 1 <= len(code) <= _LONGEST_CODE:
            raise DatasetError(f"a code must be 1 to {_LONGEST_CODE} characters, got {code!r:.80}")
        if not set(code) <= set(GLYPHS):
            raise DatasetError(f"a code must use only A-Z and 0-9, got {code!r}")
    return cast("list[str]", codes)
