"""The search environment `search-v0`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Final, cast

from envkit import ranges
from envkit.async_env import AsyncEnv
from envkit.certification_hooks import CertificationHooks
from envkit.env import Capabilities, Observation, ObservationRole, Policy, Reset, Turn
from envkit.errors import ConfigurationError, DatasetError, EnvFault, FaultKind
from envkit.marks import Mark
from envkit.reply import Reply
from envkit.success import OWN_REWARD
from envkit.tasks import Task, TaskSource
from envkit_search import grading, prompts
from envkit_search.corpora import Options, corpus_of, default_backend, default_tasks
from envkit_search.document import Hit, SearchBackend
from envkit_search.markup import plain
from envkit_search.policies import noisy_oracle, oracle
from envkit_search.protocol import (
    MAX_TOPK,
    Action,
    ActionKind,
    Protocol,
    Query,
    last_answer_compat,
    read_tags,
    read_tags_compat,
    read_tools,
)
from envkit_search.rewards import FormatCredits, Reward, reward_of

_MAX_RECORDED: Final = 200
"""Maximum characters of model text in info."""
_CHARACTERS_PER_TOKEN: Final = 2
"""Low for English, so a truncated observation also fits in other scripts."""
_READ_ON_THREAD: Final = 64_000
"""Replies at least this long, in characters, are parsed off the event loop."""
EM_COMPAT: Final = "em_compat"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Results of the searches of one reply."""

    titles: list[str]
    texts: list[list[str]]
    """Documents per query, as the model reads them."""

    @property
    def shown(self) -> str:
        """All shown text, to check whether an answer was retrieved."""
        return "\n".join(text for texts in self.texts for text in texts)


class SearchEnv(AsyncEnv):
    """Answer a question with a search engine, from one or several pages.

    Task: `{"question", "answers": [accepted spellings], "hops", "kind", "gold_titles", ...}`.
        `gold_titles` are the pages that the oracle searches, in order; only the first two keys are
        needed. `corpus` and `world` select the embedded index, if it is not the environment's own.
    Observation: the question; then the results of each search, at most `topk` pages truncated to
        `document_characters`, or an error about the reply. Tags and special tokens in pages are
        escaped.
    Action: protocol "tags" (Search-R1): thoughts in `<think>`, then `<search>query</search>` or
        `<answer>text</answer>`. Protocol "tools": calls of `search(query, topk)`, then a reply
        without a call, whose `<answer>` or else whole text is the answer.
    Reward: on the turn that ends the episode, 0.0 on all others. "exact" is 1.0 for an accepted
        answer, else 0.0; "f1" is the overlap of words; "format" and "em_compat" give partial
        credits, see `envkit_search.rewards`; a mapping weights terms. `info["reward_terms"]` adds
        up to the reward. Grading reads the model's replies alone.
    Episode end: an answer terminates; `max_turns` replies truncate. A search with the last reply is
        not run.
    Chance: near 0 with "exact", since answers are names and numbers. "format" gives up to 0.3 for
    the form alone. Dataset and licence: the corpus "facts" (see its NOTICE), or a generated world;
    or your own tasks and backend. Models have memorised many of the facts: train on the world.
    Source: Search-R1 and slime's search-r1 example. Unlike theirs, a failed search is a fault,
        never an empty result, and a block that the model forges is ignored.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        thread_safe=True,
        replay_safe=True,
        snapshot=True,
        deterministic=True,
    )
    """For the embedded backend. With a nondeterministic backend, an instance declares neither
    `deterministic` nor `replay_safe`."""
    policies: ClassVar[Mapping[str, Callable[[], Policy]]] = {
        "noisy-oracle": noisy_oracle,
        "oracle": oracle,
    }

    def __init__(
        self,
        *,
        protocol: str = Protocol.TAGS,
        corpus: str = "world",
        corpus_options: Options | None = None,
        split: str = "train",
        hops: int | Sequence[int] | None = None,
        topk: int = 3,
        max_turns: int = 12,
        reward: str | Mapping[str, float] | Reward = "exact",
        format_credits: Mapping[str, float] | None = None,
        backend: str | SearchBackend | None = None,
        backend_key: str | None = None,
        tasks: TaskSource | None = None,
        document_characters: int = 1200,
        feedback_role: ObservationRole = "tool",
        render_mode: str | None = None,
    ) -> None:
        """Set up tasks, rules and backend.

        Args:
            protocol: "tags" or "tools".
            corpus: "world" (fictional) or "facts", for the questions and the embedded backend.
            corpus_options: Options of the world, the fields of a `WorldShape`, such as `{"seed":
                1}`; None uses the defaults.
            split: "train", "test" or "all".
            hops: Pages that an answer needs, one number or several; None mixes all.
            topk: Pages that a search returns, 1 to 20. A call may set its own number.
            max_turns: Replies per episode, including the answer. The default suffices for all pages
                of every bundled question, and the answer.
            reward: A name ("exact", "f1", "format", "em_compat"), weights over
                `envkit_search.rewards.TERMS`, or a function from an `EpisodeGrade` to terms.
            format_credits: `structure`, `retrieval` and `final` of "format" and "em_compat"; None
                uses 0.2, 0.1 and 0.1.
            backend: None for the embedded index; the address of a server with `POST /retrieve`;
                "serper"; "tantivy:FOLDER" for an index on disk; or any `SearchBackend`, which the
                caller closes and which is deterministic if it has an attribute `is_deterministic`
                that is True.
            backend_key: Key for that server; None uses the variable ENVKIT_SEARCH_KEY, which run
                records never contain.
            tasks: Your own questions; None uses those of the corpus.
            document_characters: Maximum characters shown per page.
            feedback_role: Role of results in the tools protocol. "user" for chat templates without
                a tool role.
            render_mode: As for every environment.

        Raises:
            ConfigurationError: A value is out of range, or two conflict.
            UnknownNameError: There is no such protocol, corpus, reward or term.
        """
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.protocol = Protocol(ranges.one_of("protocol", protocol, Protocol))
        corpus_of(corpus, corpus_options)
        ranges.within(1, MAX_TOPK, topk=topk)
        ranges.at_least(1, document_characters=document_characters)
        self._is_compat = reward == EM_COMPAT
        self.grades_cut_replies = self._is_compat  # Search-R1 reads whatever was written
        if self._is_compat and self.protocol is not Protocol.TAGS:
            raise ConfigurationError(
                "reward='em_compat' grades the tags of Search-R1: set protocol='tags', got "
                f"{protocol!r}"
            )
        self._reward = reward_of(reward, _credits_of(format_credits))
        self.topk, self._document_characters = topk, document_characters
        self._is_tools = self.protocol is Protocol.TOOLS
        self._feedback_role: ObservationRole = feedback_role if self._is_tools else "user"
        self.tools = (prompts.SEARCH,) if self._is_tools else ()
        self.system_prompt = prompts.system_prompt(self.protocol, max_turns)
        wanted = (hops,) if isinstance(hops, int) else hops
        self._source = (
            default_tasks(corpus, split=split, hops=wanted, options=corpus_options)
            if tasks is None
            else tasks
        )
        self.tasks, self._is_warm = self._source, False
        self._corpus, self._corpus_options = corpus, corpus_options
        self._given, self._backend_key = _checked_backend(backend), backend_key
        self._lease: SearchBackend | None = None
        self._embedded: tuple[tuple[str, Options | None], SearchBackend] | None = None
        self._turns: list[grading.TurnFacts] = []
        if not _is_deterministic(backend):
            promised = replace(type(self).capabilities, deterministic=False, replay_safe=False)
            self.capabilities = promised  # pyright: ignore[reportAttributeAccessIssue]  # of this instance

    def oracle(self) -> Policy:
        """Return a policy that searches the gold titles in turn, then answers."""
        return oracle()

    def certification_hooks(self) -> CertificationHooks:
        """Return guesses without a search and a second grader; see `certifying`."""
        from envkit_search.certifying import hooks

        return hooks(self._source)

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Reset:
        """Start an episode; see `Env.reset`. The first one may build a world, off-loop."""
        if not self._is_warm and not (options or {}).get("task"):
            await asyncio.to_thread(self._source.task, 0)
            self._is_warm = True
        return await super().areset(seed=seed, options=options)

    async def on_areset(self, task: Task) -> Turn:
        """Open the backend and ask the question.

        Raises:
            DatasetError: The task lacks a question or an answer.
        """
        _check_task(task)
        await self._backend()
        self._turns = []
        info = {key: task[key] for key in ("id", "hops", "kind", "corpus") if key in task}
        return Turn(f"Question: {task['question']}", info=info)

    async def on_aturn(self, response_text: str) -> Turn:
        """Run the search or grade the answer.

        Raises:
            EnvFault: The backend failed; the turn is discarded.
        """
        if len(response_text) > _READ_ON_THREAD:
            action = await asyncio.to_thread(self._read, self.reply)
        else:
            action = self._read(self.reply)
        is_last = self.turn + 1 >= self.max_turns
        found = None
        if action.kind is ActionKind.SEARCH and not is_last:
            found = await self._search(action.queries)
        self._turns.append(self._facts(action, response_text, found))
        info = self._info_of(action, found)
        if action.kind is ActionKind.ANSWER:
            verdict = self._verdict()
            text = "Correct." if verdict.is_exact else "Not correct."
            return self._graded(text, verdict, info, done=True)
        if is_last:
            return self._graded(prompts.NO_TURN_LEFT, self._verdict(), info, done=False)
        if found is None:
            return Turn(prompts.MISUNDERSTOOD[self.protocol], info=info)
        results = prompts.results_text([query.text for query in action.queries], found.texts)
        if action.dropped_calls:
            results += (
                f"\n\nOnly the first searches were run; {action.dropped_calls} were left out."
            )
        text = prompts.observation_text(results, self.protocol)
        return Turn(text, role=self._feedback_role, info=info)

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return results truncated to the remaining room, with their block closed."""
        text = prompts.shortened(observation["text"], tokens * _CHARACTERS_PER_TOKEN)
        return None if text is None else {**observation, "text": text}

    async def aclose(self) -> None:
        """Release the backend that this environment shares with others."""
        if self._lease is not None:
            given_back, self._lease = self._lease, None
            await given_back.aclose()

    def get_state(self) -> dict[str, Any]:
        """Return the facts of past turns that grading needs."""
        return {"turns": [asdict(turn) for turn in self._turns]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._turns = [grading.facts_from_json(turn) for turn in state["turns"]]

    def _read(self, reply: Reply) -> Action:
        if self._is_compat:
            return read_tags_compat(reply.text)
        return read_tools(reply, self.tools) if self._is_tools else read_tags(reply)

    async def _backend(self) -> SearchBackend:
        if self._given is not None and not isinstance(self._given, str):
            return self._given
        if self._given is not None:
            if self._lease is None:
                from envkit_search.leases import lease  # here: aiohttp is slow to import

                self._lease = lease(self._given, self._backend_key)
            return self._lease
        corpus, options = self._corpus_of_task()
        if self._embedded is None or self._embedded[0] != (corpus, options):
            # An index takes a second to build: off the event loop.
            index = await asyncio.to_thread(default_backend, corpus, options)
            self._embedded = (corpus, options), index
        return self._embedded[1]

    def _corpus_of_task(self) -> tuple[str, Options | None]:
        """Return the task's corpus, which may differ from the environment's."""
        corpus = self.task.get("corpus", self._corpus)
        mine = self._corpus_options if corpus == self._corpus else None
        return corpus, self.task.get("world", mine)

    async def _search(self, queries: Sequence[Query]) -> _Found:
        """Run the searches of a reply as one call; an empty query is not sent."""
        wanted = [query for query in queries if query.text]
        topk = [min(MAX_TOPK, int(query.topk or self.topk)) for query in wanted]
        answered: list[list[Hit]] = []
        if wanted:
            backend = await self._backend()
            answered = await backend.search([query.text for query in wanted], topk=max(topk))
        if len(answered) != len(wanted):
            raise EnvFault(
                f"a search backend must return a list of hits for each query, got {len(answered)} "
                f"lists for {len(wanted)} queries from {type(backend).__name__}",  # pyright: ignore[reportPossiblyUnboundVariable]  # wanted is empty otherwise
                kind=FaultKind.PERMANENT,
            )
        hits = [found[:most] for found, most in zip(answered, topk, strict=True)]
        given = iter(hits)
        in_order = [next(given) if query.text else [] for query in queries]
        return _Found(
            titles=[plain(hit.document.title, _MAX_RECORDED) for found in hits for hit in found],
            texts=[prompts.hit_texts(found, self._document_characters) for found in in_order],
        )

    def _facts(self, action: Action, reply: str, found: _Found | None) -> grading.TurnFacts:
        holds = grading.holds_compat if self._is_compat else grading.holds
        answer = last_answer_compat(reply) if self._is_compat else action.answer
        has_gold = found is not None and holds(found.shown, self.task["answers"])
        return grading.facts_of(action, answer, has_gold=has_gold)

    def _verdict(self) -> grading.EpisodeGrade:
        judge = grading.grade_compat if self._is_compat else grading.grade
        return judge(self._turns, self.task["answers"])

    def _graded(
        self, text: str, verdict: grading.EpisodeGrade, info: dict[str, Any], *, done: bool
    ) -> Turn:
        terms = self._reward(verdict)
        reward, exact = sum(terms.values()), float(verdict.is_exact)
        info |= {"reward_terms": terms, "verdict": asdict(verdict)}
        if reward != exact:
            info[OWN_REWARD] = exact  # an answer is right or not, whatever is paid for it
        return Turn(text, reward=reward, done=done, info=info)

    def _info_of(self, action: Action, found: _Found | None) -> dict[str, Any]:
        info: dict[str, Any] = {
            "action": str(action.kind),
            "parse_error": None if action.error is None else plain(action.error, _MAX_RECORDED),
            "tool_call": _recorded(action),
        }
        info["marks"] = _marks_of(action, is_run=found is not None)
        if action.is_forged:
            info["is_forged"] = True
        if action.answer is not None:
            info["answer"] = plain(action.answer, _MAX_RECORDED)
        if found is not None:
            info["titles"] = found.titles
        return info


def _credits_of(credits_: Mapping[str, float] | None) -> FormatCredits | None:
    if credits_ is None:
        return None
    known = {"structure", "retrieval", "final"}
    if not set(credits_) <= known:
        raise ConfigurationError(
            f"format_credits may have the keys {sorted(known)}, got {sorted(credits_)}"
        )
    return FormatCredits(**credits_)


def _checked_backend(backend: str | SearchBackend | None) -> str | SearchBackend | None:
    if not isinstance(backend, str):
        return backend
    from envkit_search.leases import check_address

    return check_address(backend)


def _is_deterministic(backend: str | SearchBackend | None) -> bool:
    if backend is None or (isinstance(backend, str) and backend.startswith("tantivy:")):
        return True
    # A foreign object: the backend protocol does not require the attribute.
    return getattr(backend, "is_deterministic", False) is True


def _check_task(task: Task) -> None:
    question, answers = task.get("question"), cast(object, task.get("answers"))
    if not isinstance(question, str) or not question.strip():
        raise DatasetError(
            f"a search task needs the string 'question', got the keys {sorted(task)}"
        )
    is_list = isinstance(answers, list) and bool(cast(list[object], answers))
    if not is_list or not all(
        isinstance(answer, str) and answer.strip() for answer in cast(list[object], answers)
    ):
        raise DatasetError(
            f"a search task needs 'answers', a list of accepted spellings, got {answers!r:.120}"
        )


def _marks_of(action: Action, *, is_run: bool) -> list[Mark]:
    """Return the marks of a reply, one per search."""
    if action.answer is not None:
        return [{"kind": "answer", "text": plain(action.answer, _MAX_RECORDED)}]
    refused: Mark = {} if is_run else {"ok": False, "note": "not run"}
    return [
        {"kind": "call", "label": "search", "text": plain(query.text, _MAX_RECORDED), **refused}
        for query in action.queries
    ]


def _recorded(action: Action) -> dict[str, Any] | None:
    """Return the call for info; in the tags protocol a search counts as one."""
    if action.call is not None:
        arguments = {
            plain(name, _MAX_RECORDED): value
            if isinstance(value, int | float | bool | None)
            else plain(value if isinstance(value, str) else repr(value), _MAX_RECORDED)
            for name, value in action.call.arguments.items()
        }
        name = plain(action.call.name, _MAX_RECORDED)
        return {"id": plain(action.call.id, 64), "name": name, "arguments": arguments}
    if action.kind is not ActionKind.SEARCH:
        return None
    return {"id": "call00000", "name": "search", "arguments": {"query": action.queries[0].text}}
