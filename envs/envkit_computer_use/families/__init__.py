"""The families of desktop tasks: name -> the family."""

from collections.abc import Mapping
from typing import Final

from envkit_computer_use.families import files, pressing, rows, settings, windows
from envkit_computer_use.families.family import Family

FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family
    for family in (
        files.DeleteFiles(),
        files.RenameFiles(),
        files.SortFiles(),
        pressing.NestedMenu(),
        pressing.PressButton(),
        rows.LookUp(),
        rows.PickFromList(),
        rows.SortAndOpen(),
        settings.AnswerSurvey(),
        settings.ChangeSettings(),
        settings.OrderGoods(),
        settings.SetSliders(),
        settings.ToggleChecks(),
        windows.CloseWindows(),
        windows.MoveWindow(),
        windows.ResizeWindow(),
    )
}
"""Every family by its name."""
