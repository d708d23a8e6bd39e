"""Multi-hop question answering with a search engine: the environment `search-v0`."""

from typing import Final

from envkit.registration import EnvSpec
from envkit_search.corpora import Corpus, default_backend
from envkit_search.document import Document, Hit, SearchBackend
from envkit_search.env import SearchEnv
from envkit_search.grading import EpisodeGrade, exact_match, f1_score
from envkit_search.policies import noisy_oracle, oracle
from envkit_search.protocol import Protocol
from envkit_search.rewards import REWARDS, TERMS, FormatCredits

__all__ = [
    "REWARDS",
    "SPEC",
    "TERMS",
    "Corpus",
    "Document",
    "EpisodeGrade",
    "FormatCredits",
    "Hit",
    "Protocol",
    "SearchBackend",
    "SearchEnv",
    "default_backend",
    "exact_match",
    "f1_score",
    "noisy_oracle",
    "oracle",
]

SPEC: Final = EnvSpec(
    id="search-v0",
    entry_point="envkit_search.env:SearchEnv",
    description="Multi-hop questions with a search engine, by Search-R1's tags or tool calls.",
    reward_threshold=1.0,
)
