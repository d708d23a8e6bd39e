"""Check LibreOffice's settings in `registrymodifications.xcu`."""

from collections.abc import Callable, Mapping
from typing import Any, Final
from xml.etree import ElementTree

from envkit_linux_desktop.osworld.evaluators.values import Evaluator, File, of_one_file

_OOR: Final = "{http://openoffice.org/2001/registry}"


def _setting(path: str, name: str, check: Callable[[str, Mapping[str, Any]], bool]) -> Evaluator:
    """Return an evaluator that checks the value of one setting."""

    def evaluate(file: File, rules: Mapping[str, Any]) -> float:
        values = _values(file, path, name)
        return float(bool(values) and check(values[-1], rules))

    return of_one_file(evaluate)


def _values(file: File, path: str, name: str) -> list[str]:
    """Return the values of a setting; none if the file cannot be read."""
    try:
        root = ElementTree.fromstring(file.data)
    except (ElementTree.ParseError, ValueError, LookupError):
        return []
    return [
        prop.findtext("value", "")
        for item in root.iter("item")
        if item.get(f"{_OOR}path") == f"/org.openoffice.Office.{path}"
        for prop in item.iter("prop")
        if prop.get(f"{_OOR}name") == name
    ]


def _is_minutes(value: str, rules: Mapping[str, Any]) -> bool:
    return value.strip().isdecimal() and int(value) == rules["minutes"]


presenter_console_disabled = _setting(
    "Impress/Misc/Start", "EnablePresenterScreen", lambda value, _: value.lower() == "false"
)
auto_saving_time = _setting("Common/Save/Document", "AutoSaveTimeIntervall", _is_minutes)
default_font = _setting(
    "Writer/DefaultFont", "Standard", lambda value, rules: value == rules["font_name"]
)
