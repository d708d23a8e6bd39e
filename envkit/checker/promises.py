"""Rules for declared capabilities: determinism, independence, snapshots, an oracle."""

import math
from collections.abc import Iterator
from typing import Final

from envkit.checker.conduct import BAD_REPLIES
from envkit.checker.problems import NOT_REPEATABLE, Note, Problem
from envkit.checker.subject import Episode, Player, Reply, Skip, Subject, play, row
from envkit.env import Env, Policy, PolicyContext, Step
from envkit.errors import ConfigurationError
from envkit.messages import Message
from envkit.success import IS_SUCCESS, UNDECLARED, solved_by
from envkit.tasks import Task

_TURNS: Final = 8
"""Maximum turns per episode in these rules."""


def determinism_rule(subject: Subject) -> Iterator[Problem]:
    """Check that the same seed and replies give the same episode, image bytes included."""
    if not subject.env.capabilities.deterministic:
        raise Skip("capabilities.deterministic is not declared")
    for seed in _seeds(subject):
        first = _probe(subject, subject.env, seed)
        for name, env in (("the same", subject.env), ("another", subject.fresh())):
            again = _again(subject, env, first, seed)
            yield from _difference(first, again, f"a second play on {name} instance")


def replay_rule(subject: Subject) -> Iterator[Problem]:
    """Check that seed, task and replies rebuild the episode, if replay_safe is declared."""
    if not subject.env.capabilities.replay_safe:
        raise Skip("capabilities.replay_safe is not declared")
    for seed in _seeds(subject):
        first = _probe(subject, subject.env, seed)
        again = _again(subject, subject.fresh(), first, seed, task=first.task)
        yield from _difference(first, again, "a replay of its seed, task and replies")


def independence_rule(subject: Subject) -> Iterator[Problem]:
    """Check that two instances played in alternation do not affect each other."""
    if not subject.env.capabilities.deterministic:
        raise Skip("capabilities.deterministic is not declared")
    if subject.env.capabilities.max_sessions == 1:
        raise Skip("capabilities.max_sessions is 1")
    first = _probe(subject, subject.env, subject.seed)
    second = _probe(subject, subject.env, subject.seed + 1)
    pair = ((first, subject.seed), (second, subject.seed + 1))
    for order in (pair, pair[::-1]):  # the instance that is reset last may win
        players = [
            Player(subject, subject.fresh(), _recorded(episode), seed=seed)
            for episode, seed in order
        ]
        for turn in range(_TURNS):
            for player, (episode, _) in zip(players, order, strict=True):
                if turn < len(episode.steps):
                    player.turn()
        for player, (episode, _) in zip(players, order, strict=True):
            yield from _difference(episode, player.episode(), "an interleaved play")


def snapshot_rule(subject: Subject) -> Iterator[str]:
    """Check that restore(snapshot()) continues like the original, byte by byte, at every turn."""
    if not subject.env.capabilities.snapshot:
        raise Skip("capabilities.snapshot is not declared")
    for seed in (subject.seed, subject.seed + 1):  # begins with a bad and a good reply
        yield from _snapshots_of(subject, seed)


def _snapshots_of(subject: Subject, seed: int) -> Iterator[str]:
    whole = _probe(subject, subject.env, seed)
    player = Player(subject, subject.env, _recorded(whole), seed=seed)
    saved = [subject.env.snapshot()]
    while len(player.steps) < len(whole.steps):
        player.turn()
        saved.append(subject.env.snapshot())
    for turn, data in enumerate(saved):
        for name, env in (("the same instance", subject.env), ("a fresh one", subject.fresh())):
            env.restore(data)
            if env.snapshot() != data:
                yield f"turn {turn}: snapshot() differs right after restore() on {name}"
            yield from _continuation(subject, env, whole, turn, f"turn {turn}, {name}")


def _continuation(
    subject: Subject, env: Env, whole: Episode, turn: int, where: str
) -> Iterator[str]:
    for number in range(turn, len(whole.steps)):
        subject.turns += 1
        step = env.step(whole.replies[number])
        if row(Step(*step)) != row(whole.steps[number]):
            yield f"{where}: after restore() step {number + 1} differs from the original's"
            return


def oracle_rule(subject: Subject) -> Iterator[str | Note]:
    """Check that the oracle, if there is one, solves every task, by the declared success."""
    env = subject.env
    policy = _oracle_of(env)
    if policy is None:
        raise Skip("it has no oracle")
    for seed in _seeds(subject):
        episode = play(subject, env, policy, seed=seed)
        reward = sum(step.reward for step in episode.steps)
        if not episode.steps[-1].terminated or not is_solved(episode, env):
            yield (
                f"the oracle must solve its task: seed {seed} ended with reward {reward}, "
                f"terminated={episode.steps[-1].terminated} after {len(episode.steps)} turns; "
                f"solved means {meaning_of_solved(episode, env)}"
            )
        yield Note(f"solved means {meaning_of_solved(episode, env)}")


def is_solved(episode: Episode, env: Env) -> bool:
    """Return whether an oracle's episode counts as solved.

    That is the environment's declared success. Without one, or if its threshold is about the mean
    over episodes, it is a return above 0.
    """
    threshold = None if env.threshold_is_mean else env.reward_threshold
    rewards, infos = [s.reward for s in episode.steps], [s.info for s in episode.steps]
    found = solved_by(rewards, infos, threshold)
    return math.fsum(rewards) > 0 if found is None else found


def meaning_of_solved(episode: Episode, env: Env) -> str:
    """Return what `is_solved` goes by, in words."""
    if any(step.info.get(IS_SUCCESS) is not None for step in episode.steps):
        return f"info[{IS_SUCCESS!r}]"
    if env.reward_threshold is None:
        return f"a return above 0, because {UNDECLARED}"
    if env.threshold_is_mean:
        return "a return above 0, because the reward threshold is about the mean over episodes"
    return f"a return of at least the reward threshold, {env.reward_threshold:g}"


def prefix_rule(subject: Subject) -> Iterator[str]:
    """Check that each prompt is a prefix of the next and ends with its observation."""
    if subject.codec is None:
        raise Skip("no codec was given")
    episode = play(subject, subject.env, lambda _: "ok", seed=subject.seed, max_turns=_TURNS)
    spoken = [subject.codec.readable(entry) for entry in episode.messages]
    before = subject.codec.encode_prompt(_up_to_reply(spoken, 0)).train_ids
    for turn in range(1, len(episode.steps)):
        conversation = _up_to_reply(spoken, turn)
        now = subject.codec.encode_prompt(conversation).train_ids
        if tuple(now[: len(before)]) != tuple(before):
            yield f"turn {turn}: the previous prompt is not a prefix of this one"
            return
        middle = now[len(before) :]
        delta = subject.codec.encode_observation(
            conversation[-1:], sampled_ids=(), history=conversation[:-1]
        ).train_ids
        if tuple(middle[len(middle) - len(delta) :]) != tuple(delta):
            yield f"turn {turn}: the observation alone has different tokens than within the prompt"
            return
        before = now


def _up_to_reply(messages: list[Message], turn: int) -> list[Message]:
    """Return the conversation that asks for reply number `turn`."""
    replies = [n for n, entry in enumerate(messages) if entry["role"] == "assistant"]
    return messages[: replies[turn]]


def _oracle_of(env: Env) -> Policy | None:
    """Return the oracle; None if the class or this instance has none."""
    try:
        return env.oracle()
    except ConfigurationError:
        return None


def _seeds(subject: Subject) -> range:
    return range(subject.seed, subject.seed + subject.episodes)


def _probe(subject: Subject, env: Env, seed: int) -> Episode:
    """Play good and bad replies in turn, to cover both kinds of state change."""
    oracle = _oracle_of(env)

    def reply(context: PolicyContext) -> str:
        if oracle is not None and (seed + context.turn) % 2:
            return oracle(context)
        return BAD_REPLIES[(seed + context.turn) % len(BAD_REPLIES)]

    return play(subject, env, reply, seed=seed, max_turns=_TURNS)


def _again(
    subject: Subject, env: Env, first: Episode, seed: int, task: Task | None = None
) -> Episode:
    """Replay the recorded replies."""
    turns = len(first.replies)
    return play(subject, env, _recorded(first), seed=seed, task=task, max_turns=turns)


def _recorded(episode: Episode) -> Reply:
    return lambda context: episode.replies[context.turn]


def _difference(first: Episode, again: Episode, what: str) -> Iterator[Problem]:
    before, after = first.rows(), again.rows()
    if before == after and first.task == again.task:
        return
    if first.task != again.task:
        yield Problem(text=f"{what} drew a different task", cause=NOT_REPEATABLE)
        return
    pairs = enumerate(zip(before, after, strict=False))
    turn, (left, right) = next(
        ((n, pair) for n, pair in pairs if pair[0] != pair[1]),
        (min(len(before), len(after)), ("the end", "another turn")),
    )
    where = "the start" if turn == 0 else f"turn {turn}"
    text = f"{what} differs at {where}: {_excerpt(left, right)} became {_excerpt(right, left)}"
    yield Problem(text=text, cause=NOT_REPEATABLE)


def _excerpt(line: str, other: str) -> str:
    """Return the part of a line from where it differs from another."""
    pairs = enumerate(zip(line, other, strict=False))
    same = next((n for n, (left, right) in pairs if left != right), min(len(line), len(other)))
    return repr(line[max(0, same - 20) : same + 40])
