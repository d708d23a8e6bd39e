"""Rules for declared capabilities: determinism, independence, snapshots, an oracle."""

import math
from collections.abc import Iterator
from typing import Final

from envkit.checker.conduct import BAD_REPLIES
from envkit.checker.problems import NOT_REPEATABLE, Note, Problem
from envkit.checker.under_test import (
    CheckedEpisode,
    EnvUnderTest,
    Skip,
    difference,
    oracle_of,
    recorded,
    row,
)
from envkit.env import Env, PolicyContext, Step
from envkit.messages import Message
from envkit.success import IS_SUCCESS, UNDECLARED, solved_by

_TURNS: Final = 8
"""Maximum turns per episode in these rules."""


def determinism_rule(subject: EnvUnderTest) -> Iterator[Problem]:
    """Check that the same seed and replies give the same episode, image bytes included."""
    if not subject.env.capabilities.deterministic:
        raise Skip("capabilities.deterministic is not declared")
    for seed in _seeds(subject):
        first = _probe(subject, seed)
        for name, env in (("the same", subject.env), ("another", subject.fresh())):
            again = subject.replay(first, seed=seed, env=env)
            yield from _difference(first, again, f"a second play on {name} instance")


def replay_rule(subject: EnvUnderTest) -> Iterator[Problem]:
    """Check that seed, task and replies rebuild the episode, if replay_safe is declared."""
    if not subject.env.capabilities.replay_safe:
        raise Skip("capabilities.replay_safe is not declared")
    for seed in _seeds(subject):
        first = _probe(subject, seed)
        again = subject.replay(first, seed=seed, task=first.task, env=subject.fresh())
        yield from _difference(first, again, "a replay of its seed, task and replies")


def independence_rule(subject: EnvUnderTest) -> Iterator[Problem]:
    """Check that two instances played in alternation do not affect each other."""
    if not subject.env.capabilities.deterministic:
        raise Skip("capabilities.deterministic is not declared")
    if subject.env.capabilities.max_sessions == 1:
        raise Skip("capabilities.max_sessions is 1")
    first = _probe(subject, subject.seed)
    second = _probe(subject, subject.seed + 1)
    pair = ((first, subject.seed), (second, subject.seed + 1))
    for order in (pair, pair[::-1]):  # the instance that is reset last may win
        players = [
            subject.begin(recorded(episode), seed=seed, env=subject.fresh())
            for episode, seed in order
        ]
        for turn in range(_TURNS):
            for player, (episode, _) in zip(players, order, strict=True):
                if turn < len(episode.steps):
                    player.turn()
        for player, (episode, _) in zip(players, order, strict=True):
            yield from _difference(episode, player, "an interleaved play")


def snapshot_rule(subject: EnvUnderTest) -> Iterator[str]:
    """Check that restore(snapshot()) continues like the original, byte by byte, at every turn."""
    if not subject.env.capabilities.snapshot:
        raise Skip("capabilities.snapshot is not declared")
    for seed in (subject.seed, subject.seed + 1):  # begins with a bad and a good reply
        yield from _snapshots_of(subject, seed)


def _snapshots_of(subject: EnvUnderTest, seed: int) -> Iterator[str]:
    whole = _probe(subject, seed)
    player = subject.begin(recorded(whole), seed=seed)
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
    subject: EnvUnderTest, env: Env, whole: CheckedEpisode, turn: int, where: str
) -> Iterator[str]:
    for number in range(turn, len(whole.steps)):
        subject.turns += 1
        step = env.step(whole.replies[number])
        if row(Step(*step)) != row(whole.steps[number]):
            yield f"{where}: after restore() step {number + 1} differs from the original's"
            return


def oracle_rule(subject: EnvUnderTest) -> Iterator[str | Note]:
    """Check that the oracle, if there is one, solves every task, by the declared success."""
    env = subject.env
    policy = oracle_of(env)
    if policy is None:
        raise Skip("it has no oracle")
    for seed in _seeds(subject):
        episode = subject.play(policy, seed=seed)
        if not episode.steps[-1].terminated or not is_solved(episode, env):
            yield (
                f"the oracle must solve its task: seed {seed} ended with reward {episode.total}, "
                f"terminated={episode.steps[-1].terminated} after {len(episode.steps)} turns; "
                f"solved means {meaning_of_solved(episode, env)}"
            )
        yield Note(f"solved means {meaning_of_solved(episode, env)}")


def is_solved(episode: CheckedEpisode, env: Env) -> bool:
    """Return whether an oracle's episode counts as solved.

    That is the environment's declared success. Without one, or if its threshold is about the mean
    over episodes, it is a return above 0.
    """
    threshold = None if env.threshold_is_mean else env.reward_threshold
    rewards, infos = [s.reward for s in episode.steps], [s.info for s in episode.steps]
    found = solved_by(rewards, infos, threshold)
    return math.fsum(rewards) > 0 if found is None else found


def meaning_of_solved(episode: CheckedEpisode, env: Env) -> str:
    """Return what `is_solved` goes by, in words."""
    if any(step.info.get(IS_SUCCESS) is not None for step in episode.steps):
        return f"info[{IS_SUCCESS!r}]"
    if env.reward_threshold is None:
        return f"a return above 0, because {UNDECLARED}"
    if env.threshold_is_mean:
        return "a return above 0, because the reward threshold is about the mean over episodes"
    return f"a return of at least the reward threshold, {env.reward_threshold:g}"


def prefix_rule(subject: EnvUnderTest) -> Iterator[str]:
    """Check that each prompt is a prefix of the next and ends with its observation."""
    if subject.codec is None:
        raise Skip("no codec was given")
    episode = subject.play(lambda _: "ok", seed=subject.seed, max_turns=_TURNS)
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


def _seeds(subject: EnvUnderTest) -> range:
    return range(subject.seed, subject.seed + subject.episodes)


def _probe(subject: EnvUnderTest, seed: int) -> CheckedEpisode:
    """Play good and bad replies in turn, to cover both kinds of state change."""
    oracle = oracle_of(subject.env)

    def reply(context: PolicyContext) -> str:
        if oracle is not None and (seed + context.turn) % 2:
            return oracle(context)
        return BAD_REPLIES[(seed + context.turn) % len(BAD_REPLIES)]

    return subject.play(reply, seed=seed, max_turns=_TURNS)


def _difference(first: CheckedEpisode, again: CheckedEpisode, what: str) -> Iterator[Problem]:
    if first.task != again.task:
        yield Problem(text=f"{what} drew a different task", cause=NOT_REPEATABLE)
    elif (where := difference(first.rows(), again.rows())) is not None:
        yield Problem(text=f"{what} differs at {where}", cause=NOT_REPEATABLE)
