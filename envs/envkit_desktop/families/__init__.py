"""The families of desktop tasks: name -> the family."""

from collections.abc import Mapping
from typing import Final

from envkit_desktop.families import (
    counting,
    files,
    pressing,
    rows,
    settings,
    windows,
    writing,
)
from envkit_desktop.families.family import Family

FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family
    for family in (
        counting.Calculate(),
        counting.PickDate(),
        counting.WaitForDownload(),
        files.DeleteFiles(),
        files.RenameFiles(),
        files.SortFiles(),
        pressing.NestedMenu(),
        pressing.PressButton(),
        rows.LookUp(),
        rows.PickFromList(),
        rows.SortAndOpen(),
        rows.SelectRows(),
        settings.AnswerSurvey(),
        settings.ChangeSettings(),
        settings.OrderGoods(),
        settings.SetSliders(),
        settings.ToggleChecks(),
        windows.CloseWindows(),
        windows.MoveWindow(),
        windows.ResizeWindow(),
        writing.CopyCode(),
        writing.CorrectText(),
        writing.FillForm(),
        writing.ReplyToMail(),
    )
}
"""Every family by its name."""
