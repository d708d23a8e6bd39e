"""Rewards composed of named terms with weights and gates.

    rewards = Rewards(
        Term(name="format", score=is_boxed, weight=0.1),
        Term(name="answer", score=is_right, gate=Gate(term="format")),
    )
    reward = rewards.score(RewardContext(task=self.task, answer=text))
    Turn(..., reward=reward.total, info=reward.info())

A term that what the policy did makes fail scores the episode 0. One that cannot be computed for a
policy that does nothing either is an `EnvFault` of kind GRADER.
"""

from envkit.rewards.rewards import Reward, Rewards
from envkit.rewards.term import Gate, RewardContext, Term

__all__ = ["Gate", "Reward", "RewardContext", "Rewards", "Term"]
