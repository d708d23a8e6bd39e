"""The families of desktop tasks: name -> the family."""

from collections.abc import Mapping
from typing import Final

from envkit_computer_use.families import pressing, settings
from envkit_computer_use.families.family import Family

FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family
    for family in (
        pressing.NestedMenu(),
        pressing.PressButton(),
        settings.AnswerSurvey(),
        settings.ChangeSettings(),
        settings.OrderGoods(),
        settings.SetSliders(),
        settings.ToggleChecks(),
    )
}
"""Every family by its name."""
