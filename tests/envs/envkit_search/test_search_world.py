"""Fictional worlds: one answer by the stated rule, the same everywhere, harder by its knobs."""

import functools
import hashlib
import json
import re
from collections import defaultdict
from dataclasses import replace

import pytest

from envkit.errors import ConfigurationError
from envkit.tasks import Task, TaskSource
from envkit_search import world_questions
from envkit_search.bm25 import Bm25Index
from envkit_search.document import Document
from envkit_search.env import SearchEnv
from envkit_search.words import title_key
from envkit_search.world import RULE, World, WorldShape, world_documents, world_index, world_of
from envkit_search.world_questions import WorldQuestions
from envkit_search.world_schema import KINDS

SAMPLES = 1500
HARD = WorldShape(seed=3, size=400, aliases=0.6, distractors=0.6, contradictions=0.6)


@functools.cache
def sampled(shape: WorldShape = HARD, count: int = SAMPLES) -> list[Task]:
    source = WorldQuestions(shape=shape)
    return [source.task(index) for index in range(count)]


class Reader:
    """Solves questions from the text of the pages alone, the newest almanac first."""

    def __init__(self, documents: list[Document]) -> None:
        self.names: dict[str, str] = {}
        self.claims: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
        patterns = [
            (
                fact.key,
                re.compile(
                    re.escape(fact.sentence).replace(r"\{0\}", "(.+)").replace(r"\{1\}", "(.+)")
                ),
            )
            for kind in KINDS.values()
            for fact in kind.facts
        ]
        for document in documents:
            if match := re.fullmatch(r"(.+) is another name of (.+)\.", document.text):
                self.names[match[1]] = match[2]
                continue
            year = re.match(r"From the Almanac of (\d+)\.", document.text)
            assert year
            for sentence in re.findall(r"[^.]+\.", document.text):
                for key, pattern in patterns:
                    if match := pattern.fullmatch(sentence.strip()):
                        self.claims[match[1], key].append((int(year[1]), match[2]))

    def value(self, name: str, key: str) -> str:
        """Return what the newest almanac says; there must be one newest."""
        claims = sorted(self.claims[name, key])
        assert claims
        assert len(claims) == 1 or claims[-1][0] > claims[-2][0]
        return self.first_name(claims[-1][1])

    def first_name(self, name: str) -> str:
        """Return whose other name this is, or the name itself."""
        return self.names.get(name, name)


def test_reading_the_pages_by_the_rule_gives_the_only_answer() -> None:
    reader = Reader(world_documents(World(HARD)))
    disputed = 0
    for task in sampled():
        _, *keys = task["kind"].split(".")
        name = reader.first_name(task["gold_titles"][0])
        for key in keys:
            disputed += len({value for _, value in reader.claims[name, key]}) > 1
            name = reader.value(name, key)
        assert name in task["answers"], task

    assert disputed > 300


def test_older_page_is_never_accepted() -> None:
    reader = Reader(world_documents(World(HARD)))
    refused = 0
    for task in sampled():
        if task["hops"] > 1:
            continue
        start = reader.first_name(task["gold_titles"][0])
        older = sorted(reader.claims[start, task["kind"].split(".")[-1]])[:-1]
        for _, value in older:
            assert value not in task["answers"]
            refused += 1

    assert refused > 20


def test_oracle_finds_each_page_and_each_page_names_the_next() -> None:
    index = world_index(HARD)
    for task in sampled():
        before = task["question"]
        for title in task["gold_titles"]:
            assert title in before
            (hit,) = index.search(title, 1)
            assert hit.document.title == title
            before = hit.document.text
        assert any(answer in before for answer in task["answers"]), task


def test_newer_page_is_as_often_the_first_as_the_second() -> None:
    things = [thing for thing in World(HARD).things if thing.dispute is not None]

    newer = sum(thing.second_page_is_right(thing.dispute.fact) for thing in things if thing.dispute)

    assert 0.35 < newer / len(things) < 0.65


def test_titles_and_ids_are_unique() -> None:
    documents = world_documents(World(HARD))

    assert len({title_key(document.title) for document in documents}) == len(documents)
    assert len({document.id for document in documents}) == len(documents)


def test_knobs_add_pages_and_change_no_fact() -> None:
    easy = World(replace(HARD, aliases=0.0, distractors=0.0, contradictions=0.0))
    hard = World(HARD)

    assert [(thing.name, thing.values) for thing in easy.things] == [
        (thing.name, thing.values) for thing in hard.things
    ]
    assert len(world_documents(easy)) == HARD.size
    assert len(world_documents(hard)) == pytest.approx(2.8 * HARD.size, rel=0.1)


def test_rule_is_stated_on_every_page_that_another_disputes_and_nowhere_else() -> None:
    things = World(HARD).things
    disputed = {thing.name for thing in things if thing.dispute is not None}
    disputed |= {thing.second_title for thing in things if thing.dispute is not None}

    stated = {page.title for page in world_documents(World(HARD)) if RULE in page.text}

    assert stated == disputed
    assert all(RULE not in task["question"] for task in sampled())


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_hops_are_the_things_on_the_way(hops: int) -> None:
    source = WorldQuestions(shape=HARD, hops=[hops])
    names = {thing.name for thing in world_of(WorldShape.from_json(source.task(0)["world"])).things}

    for index in range(100):
        task = source.task(index)
        assert task["hops"] == hops == len(task["kind"].split(".")) - 1
        assert len([title for title in task["gold_titles"] if title in names]) == hops


def test_questions_vary_and_no_constant_answer_is_right() -> None:
    answers = [task["answers"][0] for task in sampled()]

    assert len({task["question"] for task in sampled()}) > 0.8 * SAMPLES
    assert len({task["kind"] for task in sampled()}) > 100
    assert max(map(answers.count, set(answers))) < 0.05 * SAMPLES


def test_training_and_test_questions_share_no_start() -> None:
    reader = Reader(world_documents(World(HARD)))
    starts: list[set[str]] = []
    for split in ("train", "test"):
        source = WorldQuestions(shape=HARD, split=split)
        tasks = [source.task(index) for index in range(600)]
        assert {task["split"] for task in tasks} == {split}
        starts.append({reader.first_name(task["gold_titles"][0]) for task in tasks})

    assert not starts[0] & starts[1]
    assert len(starts[1]) > 20
    assert {
        WorldQuestions(shape=HARD, split="all").task(index)["split"] for index in range(100)
    } == {"train", "test"}


def test_worlds_of_different_seeds_share_no_page() -> None:
    one, other = (
        {document.title for document in world_documents(World(replace(HARD, seed=seed)))}
        for seed in (1, 2)
    )

    assert not one & other


def test_task_holds_all_that_its_corpus_needs() -> None:
    task = json.loads(json.dumps(sampled()[0]))
    shape = WorldShape.from_json(task["world"])

    assert task == sampled()[0]
    assert list(task) == [
        "id",
        "question",
        "answers",
        "hops",
        "kind",
        "gold_titles",
        "corpus",
        "world",
        "split",
    ]
    assert shape == HARD
    assert world_index(shape).documents == Bm25Index.build(world_documents(World(HARD))).documents


def test_source_is_endless_and_says_what_is_wrong() -> None:
    source = WorldQuestions(shape=WorldShape(size=60))
    assert isinstance(source, TaskSource)
    assert source.size is None
    assert source.task(2**47)["answers"]

    with pytest.raises(ConfigurationError, match=r"split must be one of .*, got 'dev'"):
        WorldQuestions(split="dev")
    with pytest.raises(ConfigurationError, match=r"hops must be some of 1 to 4, got \[5\]"):
        WorldQuestions(hops=[5])
    with pytest.raises(ConfigurationError, match="index must be at least 0, got -1"):
        source.task(-1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"size": 49}, "size must be 50 to 200000, got 49"),
        ({"aliases": 1.5}, "aliases must be 0 to 1, got 1.5"),
        ({"contradictions": -0.1}, "contradictions must be 0 to 1"),
        ({"towns": 3}, "no shape of a world"),
    ],
)
def test_shape_out_of_range_is_refused(data: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        WorldShape.from_json(data)


def test_world_too_small_for_a_question_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_questions, "TEST_BELOW", 0)
    source = WorldQuestions(shape=WorldShape(size=50), split="test")

    with pytest.raises(ConfigurationError, match="a world of 50 things has no question"):
        source.task(0)


@pytest.mark.parametrize("size", [50, 51, 997])
def test_world_has_as_many_things_as_asked(size: int) -> None:
    shape = WorldShape(size=size)

    assert len(World(shape).things) == size
    assert WorldQuestions(shape=shape, hops=[4]).task(0)["hops"] == 4


def test_worlds_keep_their_meaning() -> None:
    """Pinned: a change of pages or questions needs a new version of the environment."""
    digest = hashlib.sha256(json.dumps(sampled()[:200]).encode()).hexdigest()

    assert (world_index(HARD).corpus_hash[:16], digest[:16]) == (
        "67bfd4afa701b8b9",
        "18d296bfa6390596",
    )


def test_every_question_of_a_tangled_world_fits_the_default_turns() -> None:
    shape = {"seed": 1, "size": 500, "aliases": 1.0, "distractors": 1.0, "contradictions": 1.0}
    env = SearchEnv(corpus_options=shape, split="all")
    source = env.tasks
    assert source is not None

    pages = [len(source.task(index)["gold_titles"]) for index in range(4000)]

    assert max(pages) + 1 <= env.max_turns
