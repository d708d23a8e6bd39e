"""What the trainers' adapters read alike: parameters of sampling, and tasks of dataset rows."""

from typing import Any

import pytest

from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest
from envkit_training.settings import read_sampling, refuse, with_task

ROW: dict[str, Any] = {"extra": {"question": "2+2", "a.b": 3}, "label": "4"}


def task(**fields: str) -> Any:
    return with_task(EpisodeRequest(env_id="toy-echo-v0"), ROW, fields).task


def test_task_fields_follow_dots_unless_a_name_has_them_itself() -> None:
    assert task(q="extra.question", n="extra.a.b", a="label") == {"q": "2+2", "n": 3, "a": "4"}
    assert task() is None
    own = EpisodeRequest(env_id="toy-echo-v0", task={"q": 1})
    assert with_task(own, ROW, {"q": "missing"}) is own


@pytest.mark.parametrize(
    ("place", "message"),
    [("extra.answer", r"'answer' is not among \['a.b', 'q"), ("label.x", "'x' is not among str")],
)
def test_task_fields_name_what_the_row_has_instead(place: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        task(q=place)


def test_sampling_takes_one_stop_string_and_drops_what_is_not_set() -> None:
    given = {"stop": "</s>", "top_k": 0, "temperature": None, "min_p": 0.1, "logit_bias": None}
    found = read_sampling(given, max_new_tokens=7)
    assert (found.stop, found.top_k, found.temperature) == (("</s>",), None, 1.0)
    assert (found.max_new_tokens, found.extras) == (7, {"min_p": 0.1})


def test_configuration_is_refused_for_all_its_problems() -> None:
    refuse({"never": False})
    with pytest.raises(ConfigurationError, match=r"^first; third$"):
        refuse({"first": True, "second": False, "third": True})
