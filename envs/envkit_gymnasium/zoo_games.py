"""PettingZoo's classic games: their rules, the names of their actions, and what a player may see.

PettingZoo's pictures of card games show the cards of every player, and that of Rock Paper Scissors
shows the first player's choice to the second, so those games are described in words.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

_CARDS: Final = (
    "Cards are written with the suit first: HQ is the queen of hearts, ST the ten of spades."
)
_SIDE: Final = 480
_COLUMNS: Final = "ABCDEFGHJKLMNOPQRSTUVWXYZ"
"""Letters of a Go board's columns, which leave out I."""

Namer = Callable[[Any, str, int], str]
"""Takes the environment, the agent and the action; returns the action's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """What PettingZoo's interface does not say about a game."""

    rules: str = ""
    name_of: Namer = lambda _inner, _agent, action: str(action)
    words: Callable[[Any, str], str] | None = None
    """Takes the environment and an agent; returns what this agent may know. None if a picture of
    the board gives nothing away."""
    sides: tuple[str, ...] = ()
    """What the agents play with, in their order."""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """For an image of about 480 pixels: the games' own sizes take twice the time to draw."""
    prepare: Callable[[Any], None] | None = None
    """Restores the process-wide variables of the game before a call."""
    threshold: float | None = None
    """The smallest reward of a win."""


def _named(*names: str) -> Namer:
    return lambda _inner, _agent, action: names[action]


def _rps_name(inner: Any, _agent: str, action: int) -> str:  # noqa: ANN401  # a PettingZoo environment
    return str(inner.unwrapped._moves[action]).lower()


def _rps_words(inner: Any, agent: str) -> str:  # noqa: ANN401  # as above
    other = int(inner.observe(agent))
    names = inner.unwrapped._moves
    if other == len(names) - 1:
        return "This is the first round."
    return f"Your opponent chose {names[other].lower()} in the last round."


def _chess_name(inner: Any, agent: str, action: int) -> str:  # noqa: ANN401  # as above
    utils: Any = import_module("pettingzoo.classic.chess.chess_utils")
    place = inner.possible_agents.index(agent)
    return str(utils.action_to_move(inner.unwrapped.board, action, place).uci())


def _go_name(inner: Any, _agent: str, action: int) -> str:  # noqa: ANN401  # as above
    size = inner.unwrapped._N
    column, row = divmod(action, size)  # the picture draws the first coordinate from left to right
    return "pass" if column == size else f"{_COLUMNS[column]}{size - row}"


def _go_prepare(inner: Any) -> None:  # noqa: ANN401  # as above
    inner.unwrapped._overwrite_go_global_variables(inner.unwrapped._N)


def _poker_words(inner: Any, agent: str) -> str:  # noqa: ANN401  # as above
    place = inner.possible_agents.index(agent)
    state: Mapping[str, Any] = inner.unwrapped.env.game.get_state(place)
    hand, shown = state["hand"], state.get("public_cards", state.get("public_card"))
    lines = [
        f"Your cards: {_listed(hand)}.",
        f"Cards on the table: {_listed(shown)}.",
        f"Chips that were put in: {_by_agent(inner, state['all_chips'])}.",
    ]
    if "stakes" in state:
        lines.append(f"Chips that are left: {_by_agent(inner, state['stakes'])}.")
    return "\n".join(lines)


def _listed(cards: Any) -> str:  # noqa: ANN401  # a card, several, or None
    return cards if isinstance(cards, str) else ", ".join(map(str, cards or ())) or "none"


def _by_agent(inner: Any, counts: Any) -> str:  # noqa: ANN401  # as above
    pairs = zip(inner.possible_agents, counts, strict=True)
    return ", ".join(f"{agent} {count}" for agent, count in pairs)


_LIMIT: Final = _named("call", "raise", "fold", "check")

GAMES: Final[Mapping[str, Game]] = {
    "chess_v6": Game(
        rules="Chess. Moves are written as their two squares, such as e2e4 or g1f3; a promotion "
        "adds the piece, such as e7e8q. A win is worth 1, a loss -1, a draw 0.",
        name_of=_chess_name,
        sides=("white", "black"),
        arguments={"screen_height": _SIDE},
        threshold=1.0,
    ),
    "connect_four_v3": Game(
        rules="Connect Four. Players in turn drop a piece into one of seven columns, which are "
        "counted from the left. Four in a row, column or diagonal win. A win is worth 1, a loss "
        "-1, a draw 0.",
        name_of=_named(*(f"column_{n}" for n in range(1, 8))),
        sides=("red", "black"),
        arguments={"screen_scaling": 5},
        threshold=1.0,
    ),
    "go_v5": Game(
        rules="Go, counted by area. Points are written as a column letter, from A at the left and "
        "without I, and a row number, from 1 at the bottom. Two passes end the game. A win is "
        "worth 1, a loss -1.",
        name_of=_go_name,
        sides=("black", "white"),
        arguments={"screen_height": _SIDE},
        prepare=_go_prepare,
        threshold=1.0,
    ),
    "leduc_holdem_v4": Game(
        rules="Leduc Hold'em: poker with six cards, a jack, a queen and a king of two suits. Each "
        "player holds one card; after a round of bets one more is put on the table, and bets "
        "follow again. A pair with the card on the table wins, else the higher card. The reward is "
        f"half the chips that you win or lose. {_CARDS}",
        name_of=_LIMIT,
        words=_poker_words,
        threshold=0.5,
    ),
    "rps_v2": Game(
        rules="Rock Paper Scissors, for several rounds. Players choose at the same time: rock "
        "beats scissors, scissors beat paper, paper beats rock. A round is worth 1 or -1, or 0 if "
        "both choose the same.",
        name_of=_rps_name,
        words=_rps_words,
        threshold=1.0,
    ),
    "texas_holdem_no_limit_v6": Game(
        rules="Texas Hold'em without a limit: two cards of your own, five on the table that are "
        "shown in rounds of bets. The best five cards win. The reward is the chips that you win "
        f"or lose. {_CARDS}",
        name_of=_named("fold", "check_or_call", "raise_half_pot", "raise_pot", "all_in"),
        words=_poker_words,
        threshold=0.5,
    ),
    "texas_holdem_v4": Game(
        rules="Texas Hold'em with a limit: two cards of your own, five on the table that are "
        "shown in rounds of bets. The best five cards win. The reward is half the chips that you "
        f"win or lose. {_CARDS}",
        name_of=_LIMIT,
        words=_poker_words,
        threshold=0.5,
    ),
    "tictactoe_v3": Game(
        rules="Tic-tac-toe on three rows of three cells. Three in a row, column or diagonal win. "
        "A win is worth 1, a loss -1, a draw 0.",
        name_of=_named(
            *("top_left", "middle_left", "bottom_left"),
            *("top_center", "center", "bottom_center"),
            *("top_right", "middle_right", "bottom_right"),
        ),
        sides=("crosses", "circles"),
        arguments={"screen_height": _SIDE},
        threshold=1.0,
    ),
}
REFUSED: Final[Mapping[str, str]] = {
    "hanabi_v5": "its picture shows all hands and its observation is a list of 658 bits, so no "
    "player can be shown what it may know"
}
"""Classic games that are not played, and why."""
