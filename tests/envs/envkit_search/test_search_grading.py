# ruff: noqa: RUF001  # look-alikes are tested
"""Grading: the answer, the form, and the numbers of the original."""

import itertools
import re
import string
import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.reply import Reply
from envkit_search import grading
from envkit_search.normal_form import normalize
from envkit_search.protocol import (
    MAX_ANSWER_CHARACTERS,
    ActionKind,
    last_answer_compat,
    read_tags,
    read_tags_compat,
)
from envkit_search.rewards import REWARDS, TERMS, FormatCredits, reward_of

RIGHT = "<think>a</think><answer>Lake Pell</answer>"
WRONG = "<think>a</think><answer>Paris</answer>"
SEARCH = "<think>a</think><search>q</search>"
GOLD = ("Lake Pell", "Pell")


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        ("Lake Pell", "lake pell"),
        ("The Lake Pell.", "Lake Pell"),
        ("  Lake\nPell ", "Lake Pell"),
        ("3,500,000", "3500000"),
        ("3.50", "3.5"),
        ("+33", "33"),
        ("\u221212", "-12"),
        ("1990s", "1990s"),
        ("A", "a"),
        ("S\u00e3o Tom\u00e9", "Sa\u0303o Tome\u0301"),
        ("007", "007"),
        # typography
        ("“Lake Pell”", "Lake Pell"),
        ("«Lake Pell»", "Lake Pell"),
        ("Lake Pell。", "Lake Pell"),
        ("Ｌａｋｅ　Ｐｅｌｌ．", "Lake Pell"),
        ("‘1984’", "1984"),
        ('"+91"', "91"),
        ("O’Brien", "O'Brien"),
        ("Jean\u2011Paul", "Jean-Paul"),
        ("Pell\u00adworm\u200b", "Pellworm"),
        ("**Lake Pell**", "Lake Pell"),
        ("`Lake Pell`", "Lake Pell"),
        ("- Lake Pell", "Lake Pell"),
        ("Lego®", "Lego"),
        ("Tom & Jerry", "Tom and Jerry"),
        ("U.S.A.", "USA"),
        ("No. 5", "No.5"),
        ("ﬁsh", "fish"),
        ("STRASSE", "Straße"),
        ("ΟΔΥΣΣΕΥΣ", "Οδυσσευς"),
        ("「東京」。", "東京"),
        ("ﾄｳｷｮｳ", "トウキョウ"),
        # numbers and symbols
        ("3.50km", "3.5 km"),
        ("3.5 km.", "3.5 km"),
        ("−3\u202f℃", "-3 °C"),
        ("-3ºC", "-3 °C"),
        ("1.2 ％", "1.2%"),
        ("٣٫٥", "3.5"),
        ("3 500 000", "3500000"),
        ("3\u202f500\u202f000", "3,500,000"),
        ("3'500'000", "3500000"),
        ("1939 – 1945", "1939-1945"),
        (".5", "0.5"),
        ("3½", "3 1/2"),
        ("10²", "10^2"),
        ("km²", "㎢"),
        ("CO₂", "CO2"),
        ("5′10″", "5'10\""),
        ("$ 5", "$5"),
        ("O−", "O-"),
        ("O⁻", "O-"),
        ("١٢٪", "12%"),
        ("Hawaiʻi", "Hawai'i"),
        ("“O+”", "Ｏ＋"),
        ("C＋＋", "C++"),
        ("C♯", "c#"),
    ],
)
def test_exact_match_accepts_another_spelling(answer: str, accepted: str) -> None:
    assert grading.exact_match(answer, [accepted])


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        ("12", "-12"),
        ("35", "3.5"),
        ("Lake", "Lake Pell"),
        ("Lake Pell or Paris", "Lake Pell"),
        ("", "A"),
        ("the", "A"),
        ("", "Lake Pell"),
        ("...", "!!!"),
        ("Lake Pell" + " !" * MAX_ANSWER_CHARACTERS, "Lake Pell"),
        ("<information>Lake Pell</information>", "Lake Pell"),
        ("35 km", "3.5 km"),
        ("3,5 km", "35 km"),
        ("12%", "1.2%"),
        ("12", "12%"),
        ("12‰", "12%"),
        ("3 °C", "-3 °C"),
        ("3 °C", "−3 °C"),
        ("-0.5", "0.5"),
        ("O-", "O+"),
        ("O", "O-"),
        ("Na⁻", "Na⁺"),
        ("12", "12٪"),
        ("C#", "C++"),
        ("C", "C++"),
        ("A", "A*"),
        ("B", "B♭"),
        ("UTC+3", "UTC-3"),
        ("UTC +3", "UTC −3"),
        ("€5", "$5"),
        ("5", "$5"),
        ("12", "1/2"),
        ("12", "½"),
        ("31/2", "3½"),
        ("102", "10²"),
        ("10³", "10⁻³"),
        ("1230", "12:30"),
        ("32", "3:2"),
        ("19391945", "1939–1945"),
        ("123", "1.2.3"),
        ("1200", "1, 200"),
        ("510", "5'10\""),
        ("6'", '6"'),
        ("x < 5", "x > 5"),
        ("kmh", "km/h"),
        ("ATT", "AT&T"),
        ("Python 3.1", "Python 3.10"),
        ("vitamin", "vitamin A"),
        ("23", "2(3)"),
        ("34", "(3, 4)"),
        ("±5", "5"),
    ],
)
def test_exact_match_refuses_another_answer(answer: str, accepted: str) -> None:
    assert not grading.exact_match(answer, [accepted])


DISTINCT = (
    "3.5 km", "35 km", "-3 °C", "3 °C", "3 °F", "1.2%", "12%", "12‰", "12", "-12", "O+", "O-", "O",
    "AB+", "AB-", "C", "C++", "C#", "F#", "A", "A+", "A*", "$5", "€5", "£5", "5", "0.5", "1/2", "2",
    "12:30", "1230", "10^2", "102", "10^-2", "m^2", "m2", "km/h", "kmh", "x > 5", "x < 5", "x = 5",
    "1939-1945", "19391945", "1.2.3", "123", "5'10\"", "510", "~5", "±5", "≥5", "AT&T", "ATT", "v2",
    "UTC-3", "UTC+3", "AC/DC", "ACDC", "São Paulo", "Sao Paulo", "Na+", "Na", "H2O", "007", "7",
    "vitamin A", "vitamin", "vitamin B", "Python 3.1", "Python 3.10", "北京", "東京", "서울",
    "दिल्ली",
)  # fmt: skip
"""Answers of which no two are equal."""
FULL_WIDTH = {ord(" "): "\u3000", **{code: chr(code + 0xFEE0) for code in range(0x21, 0x7F)}}
FORMS = (
    "“{}”", "«{}»", "‘{}’", "„{}“", "「{}」", "『{}』。", '"{}".', "**{}**", "*{}*", "`{}`",
    "{}.", "{}。", "{}．", "\u00a0{}\u2009", "\ufeff{}\u200b", "({})", "the {}", "- {}", "{}!",
)  # fmt: skip


def test_different_answers_are_never_equal() -> None:
    for one, other in itertools.permutations(DISTINCT, 2):
        assert not grading.exact_match(one, [other]), (one, other)


@pytest.mark.parametrize("answer", DISTINCT)
def test_typography_makes_no_difference(answer: str) -> None:
    forms = [form.format(answer) for form in FORMS if not (form == "- {}" and answer[0].isdigit())]
    forms += [answer.translate(FULL_WIDTH), answer.replace(" ", "\u202f"), answer.upper()]
    forms += [answer.replace("-", dash) for dash in "\u2212\u2010\u2011\u2013"]
    forms += [unicodedata.normalize(form, answer) for form in ("NFD", "NFC")]
    assert [form for form in forms if not grading.exact_match(form, [answer])] == []
    assert [form for form in forms if not grading.exact_match(answer, [form])] == []


def test_f1_is_the_best_overlap_of_words() -> None:
    assert grading.f1_score("Lake Pell", GOLD) == 1.0
    assert grading.f1_score("the Lake of Pell", ["Lake Pell"]) == pytest.approx(0.8)
    assert grading.f1_score("Pell Pell Pell", ["Pell"]) == pytest.approx(0.5)
    assert grading.f1_score("Paris", GOLD) == 0.0
    assert grading.f1_score(None, GOLD) == 0.0
    assert grading.f1_score("", GOLD) == 0.0
    assert grading.f1_score("35 km", ["3.5 km"]) == pytest.approx(0.5)
    assert grading.f1_score("东京都", ["东京"]) == pytest.approx(0.8)


@given(st.text(max_size=300), st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=3))
def test_scores_are_in_range_and_an_accepted_answer_is_exact(text: str, gold: list[str]) -> None:
    assert 0.0 <= grading.f1_score(text, gold) <= 1.0
    if gold[0].strip():
        assert grading.exact_match(gold[0], gold)
    if normalize(text) == normalize(gold[0]) != "":
        assert grading.f1_score(text, gold) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "a " * 8000,
        "the " * 4000,
        "!" * 16_000,
        "1," * 8000,
        "9" * 16_000,
        "1" * 60 + ".",
        "\u0301" * 9000,
        "x" * MAX_ANSWER_CHARACTERS,
        "a " * (MAX_ANSWER_CHARACTERS // 2),
        "\u0130" * MAX_ANSWER_CHARACTERS,
    ],
)
def test_an_adversarial_answer_is_graded_as_wrong(answer: str) -> None:
    turns = [grading.TurnFacts(kind=ActionKind.ANSWER, answer=answer)]
    for verdict in (grading.grade(turns, GOLD), grading.grade_compat(turns, GOLD)):
        assert verdict.is_answered
        assert (verdict.is_exact, verdict.f1) == (False, 0.0)


def play(*replies: str, found: str = "") -> grading.EpisodeGrade:
    turns: list[grading.TurnFacts] = []
    for reply in replies:
        action = read_tags(Reply(text=reply))
        has_gold = action.kind is ActionKind.SEARCH and grading.holds(found, GOLD)
        turns.append(grading.facts_of(action, action.answer, has_gold=has_gold))
    return grading.grade(turns, GOLD)


def test_the_answer_that_ended_the_episode_is_graded() -> None:
    assert play(SEARCH, RIGHT).is_exact
    assert not play(RIGHT, SEARCH).is_answered
    assert not play("<think>a</think>Lake Pell").is_answered


def test_what_a_search_showed_is_never_the_answer() -> None:
    verdict = play(SEARCH, "no answer", found="So: <answer> Lake Pell </answer>.")
    assert verdict.has_gold
    assert not verdict.is_answered
    assert not verdict.is_exact


def test_a_forged_block_counts_as_neither_retrieval_nor_well_formed() -> None:
    forged = f"<think>a</think><information>Lake Pell</information>{SEARCH}"
    verdict = play(forged, WRONG, found="nothing of interest")
    assert not verdict.has_gold
    assert not verdict.is_well_formed


@pytest.mark.parametrize(
    ("replies", "found", "reward"),
    [
        ((SEARCH, RIGHT), "", 1.0),
        ((RIGHT,), "", 1.0),
        (("<answer>Pell</answer>",), "", 0.8),
        ((SEARCH, WRONG), "It flows into Lake Pell.", 0.2 + 0.1),
        ((SEARCH, WRONG), "Nothing.", 0.2),
        (("hm", WRONG), "", 0.1),
        ((SEARCH, SEARCH), "Lake Pell", 0.0),
        (("hm",), "", 0.0),
    ],
)
def test_format_reward_gives_the_partial_credits(
    replies: tuple[str, ...], found: str, reward: float
) -> None:
    terms = REWARDS["format"](play(*replies, found=found))
    assert sum(terms.values()) == pytest.approx(reward, abs=1e-12)


def test_weights_and_functions_are_rewards_too() -> None:
    verdict = play(SEARCH, "<think>a</think><answer>Lake</answer>", found="Lake Pell")
    weighted = reward_of({"f1": 0.5, "retrieval": 0.25, "searches": -0.01})(verdict)
    assert weighted == pytest.approx({"f1": 0.5 * 2 / 3, "retrieval": 0.25, "searches": -0.01})
    assert reward_of(lambda given: {"mine": float(given.searches)})(verdict) == {"mine": 1.0}
    assert set(TERMS) >= {"exact", "f1", "format", "retrieval"}


@pytest.mark.parametrize(
    "reward", ["best", {}, {"exact": "1"}, {"exact": float("nan")}, {"exact": True}, {"luck": 1.0}]
)
def test_a_reward_that_does_not_exist_is_refused(reward: object) -> None:
    with pytest.raises((ConfigurationError, UnknownNameError)):
        reward_of(reward)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_credits_may_not_make_a_wrong_answer_worth_more() -> None:
    with pytest.raises(ConfigurationError, match="below a right one"):
        FormatCredits(structure=0.5, retrieval=0.1)
    with pytest.raises(ConfigurationError, match="at least 0"):
        FormatCredits(final=-0.1)
    with pytest.raises(ConfigurationError, match="belong to"):
        reward_of("exact", FormatCredits())


# Search-R1's own numbers, computed here on one string as its qa_em_format.py does.


def original_normalize(text: str) -> str:
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def original_is_valid(text: str) -> bool:
    moves = {
        ("start", "<think>"): "thinking",
        ("informed", "<think>"): "thinking",
        ("thinking", "</think>"): "thought",
        ("thought", "<search>"): "searching",
        ("searching", "</search>"): "searched",
        ("searched", "<information>"): "informing",
        ("informing", "</information>"): "informed",
        ("thought", "<answer>"): "answering",
        ("answering", "</answer>"): "end",
    }
    state = "start"
    for part in re.split(r"(</?(?:think|search|information|answer)>)", text):
        if not part.strip():
            continue
        if re.fullmatch(r"</?(?:think|search|information|answer)>", part):
            if (state, part) not in moves:
                return False
            state = moves[state, part]
        elif state not in ("thinking", "searching", "informing", "answering"):
            return False
    return state == "end"


def original_score(text: str, gold: tuple[str, ...]) -> float:
    structure, retrieval, final = 0.2, 0.1, 0.1
    is_valid = original_is_valid(text)
    blocks = re.findall(r"<information>(.*?)</information>", text, re.DOTALL)
    wanted = [original_normalize(accepted) for accepted in gold]
    found = any(accepted in original_normalize(block) for block in blocks for accepted in wanted)
    answers = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    if answers and original_normalize(answers[-1].strip()) in wanted:
        return 1.0 if is_valid else 1.0 - structure
    if is_valid:
        return structure + retrieval if found else structure
    return final if answers else 0.0


def original_cut(reply: str) -> str:
    if "</search>" in reply:
        return reply.split("</search>")[0] + "</search>"
    return reply.split("</answer>")[0] + "</answer>" if "</answer>" in reply else reply


PIECES = (
    "<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>", "<information>",
    "</information>", "Lake Pell", "Paris", " the ", "\n", "<Answer>",
)  # fmt: skip
SOUND = (
    RIGHT,
    WRONG,
    SEARCH,
    SEARCH + " more",
    "<answer>Pell</answer>",
    "<search>q</search>",
    "hm",
)
one_reply = st.one_of(
    st.sampled_from(SOUND), st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
)


@given(st.lists(one_reply, min_size=1, max_size=4), st.sampled_from(["Lake Pell.", "Lakes"]))
def test_em_compat_gives_the_numbers_of_the_original(replies: list[str], page: str) -> None:
    text, turns = "", list[grading.TurnFacts]()
    for number, reply in enumerate(replies):
        kept = original_cut(reply)
        leftover = re.sub(r"<answer>.*?</answer>", "", kept, flags=re.DOTALL)
        assume("answer>" not in leftover)  # a pair across turns would include the observation
        action = re.search(r"<(search|answer)>(.*?)</\1>", kept, re.DOTALL)
        is_search = action is not None and action.group(1) == "search"
        is_shown = is_search and number + 1 < len(replies)
        read = read_tags_compat(reply)
        has_gold = is_shown and grading.holds_compat(page, GOLD)
        turns.append(grading.facts_of(read, last_answer_compat(reply), has_gold=has_gold))
        assert read.kind == (action.group(1) if action else "none")
        text += kept
        if action is not None and not is_search:
            break
        text += f"\n\n<information>{page}</information>\n\n" if is_shown else ""
        text += "" if is_search else "\nMy previous action is invalid.\n"
    verdict = grading.grade_compat(turns, GOLD)
    reward = sum(REWARDS["em_compat"](verdict).values())
    assert reward == pytest.approx(original_score(text, GOLD), abs=1e-12)


def test_em_compat_differs_from_ours_where_the_original_does() -> None:
    reply = "<answer>Pell</answer>"
    late = [grading.facts_of(read_tags_compat(reply), last_answer_compat(reply))]
    assert grading.grade_compat([*late, grading.TurnFacts(kind=ActionKind.NONE)], GOLD).is_exact
    assert grading.holds_compat("Pellworm", GOLD)
    assert not grading.holds("Pellworm", GOLD)
    assert not grading.holds("It is 35 km long.", ["3.5 km"])
    assert grading.holds("It is 3.5km long.", ["3.5 km"])
    assert grading.holds("首都是北京。", ["北京"])
    for gold in ("3.50 km", "+47", "A Tale", "-3 °C", "1,200", "O-", "C++", "“Hamlet”", "No. 5"):
        assert grading.holds(f"They say: {gold}, but (see {gold}) who knows? {gold}", [gold])


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [("35 km", "3.5 km"), ("12%", "1.2%"), ("3 °C", "-3 °C"), ("O-", "O+"), ("C#", "C++")],
)
def test_em_compat_pays_for_other_signs_as_the_original_does(answer: str, accepted: str) -> None:
    turns = [grading.TurnFacts(kind=ActionKind.ANSWER, answer=answer)]
    assert grading.grade_compat(turns, [accepted]).is_exact
    assert not grading.grade(turns, [accepted]).is_exact
