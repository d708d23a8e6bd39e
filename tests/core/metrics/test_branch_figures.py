"""Figures, rewards and exports of episodes that branch: nothing counts twice."""

from collections import Counter

from fakes.branching import IMAGES, SUMMARY, rewritten, tree

from envkit.agents.rewards import with_total
from envkit.messages import images_of, text_of
from envkit.metrics import EpisodeFacts, aggregate
from envkit.trajectory import check_trajectory
from envkit_eval.samples import Sample
from envkit_exchange.trajectories import chat_row


async def test_facts_of_a_tree_count_each_sampled_token_once() -> None:
    leaves = await tree()
    facts = [EpisodeFacts.of(leaf) for leaf in leaves]
    sampled = sum(leaf.sampled_token_count for leaf in leaves)
    assert sum(one.response_tokens for one in facts) == sampled
    assert sum(one.trained_tokens for one in facts) == sampled
    assert [one.turns for one in facts] == [6] * 4
    assert [len(one.seconds["generate"]) for one in facts] == [6, 5, 3, 3]
    assert sum(one.prompt_tokens for one in facts) == sum(
        turn.prompt_tokens for leaf in leaves for turn in leaf.own_turns
    )
    metrics = aggregate(leaves)
    assert metrics["tokens/response/total"] == metrics["tokens/trained"] == sampled
    assert metrics["turns/mean"] == 6
    assert "sequences/mean" not in metrics


async def test_facts_of_a_summarised_episode_leave_summaries_out_of_the_turns() -> None:
    trajectory = await rewritten(SUMMARY)
    facts = EpisodeFacts.of(trajectory)
    assert facts.turns == 6
    assert facts.sequences == len(trajectory.branches) + 1 > 2
    assert facts.response_tokens == facts.trained_tokens == trajectory.sampled_token_count
    metrics = aggregate([trajectory])
    assert metrics["rewrite/summarise"] == len(trajectory.branches)
    assert metrics["sequences/max"] == facts.sequences
    assert EpisodeFacts.from_json(facts.to_json()) == facts


async def test_facts_of_a_fork_leave_its_parents_rewrites_out() -> None:
    leaves = await tree(history={"keep_last_turns": {"keep": 1, "drop_at": 2}})
    facts = [EpisodeFacts.of(leaf) for leaf in leaves]
    assert facts[0].rewrites == Counter(keep_last_turns=len(leaves[0].branches))
    # The trunk was rewritten before turns 3 and 5, the forks begin at turns 1 and 3.
    assert [sum(one.rewrites.values()) for one in facts] == [2, 2, 1, 1]
    assert [len(leaf.branches) for leaf in leaves] == [2] * 4
    assert [one.sequences for one in facts] == [3, 3, 2, 2]
    assert sum(one.trained_tokens for one in facts) == sum(
        leaf.sampled_token_count for leaf in leaves
    )


async def test_images_sent_follow_the_rewritten_history() -> None:
    trajectory = await rewritten(IMAGES, images=True)
    sample = Sample.of(trajectory, by=())
    assert sample.images == 1 + 2 + 1 + 2 + 1 + 2
    assert sample.turns == 6


async def test_adjusted_reward_never_lands_on_a_summary() -> None:
    trajectory = await rewritten(SUMMARY)
    changed = with_total(trajectory, 2.5)
    assert changed.reward == 2.5
    assert check_trajectory(changed) == ()
    paid = {turn.turn for turn in changed.turns if turn.reward is not None}
    assert not paid & {turn.turn for turn in changed.turns if turn.purpose is not None}


async def test_exported_messages_are_those_that_the_model_saw() -> None:
    trajectory = await rewritten(IMAGES, images=True)
    rows = trajectory.steps(merge=True)
    assert len(rows) == 3
    for number, row in enumerate(rows):
        exported = chat_row(trajectory, row, number, with_parts=False)
        assert len(exported["images"]) == len(row.images)
        assert exported["messages"][-1]["role"] == "assistant"
    seen = trajectory.seen_at(5)
    assert len(images_of(seen)) == 2
    assert "[image omitted]" in text_of(seen[1])


async def test_seen_at_includes_the_question_and_the_summary() -> None:
    trajectory = await rewritten(SUMMARY)
    asked = next(turn.turn for turn in trajectory.turns if turn.purpose is not None)
    assert "Summarise" in text_of(trajectory.seen_at(asked)[-2])
    assert text_of(trajectory.seen_at(asked)[-1]) == "I saw screens."
    after = trajectory.seen_at(asked + 1)
    assert [entry["role"] for entry in after] == ["system", "user", "assistant"]
    assert "I saw screens." in text_of(after[1])
