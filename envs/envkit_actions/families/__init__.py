"""The dialects of actions, by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from envkit.errors import UnknownNameError
from envkit_actions.families.anthropic import (
    ANTHROPIC_20250124,
    ANTHROPIC_20251124,
)
from envkit_actions.families.autoglm import AUTOGLM_PHONE
from envkit_actions.families.browsergym import BROWSERGYM
from envkit_actions.families.canonical import CANONICAL
from envkit_actions.families.gemini import GEMINI_25, GEMINI_35
from envkit_actions.families.glm import GLM_45V
from envkit_actions.families.openai import OPENAI
from envkit_actions.families.osworld import OSWORLD
from envkit_actions.families.qwen import QWEN3_VL, QWEN25_VL
from envkit_actions.families.ui_tars import UI_TARS_10, UI_TARS_15
from envkit_actions.families.ui_tars_mobile import UI_TARS_15_MOBILE
from envkit_actions.family import ActionFamily

_ALL: Final[tuple[ActionFamily, ...]] = (
    CANONICAL,
    OPENAI,
    ANTHROPIC_20250124,
    ANTHROPIC_20251124,
    GEMINI_25,
    GEMINI_35,
    QWEN25_VL,
    QWEN3_VL,
    GLM_45V,
    UI_TARS_10,
    UI_TARS_15,
    UI_TARS_15_MOBILE,
    AUTOGLM_PHONE,
    BROWSERGYM,
    OSWORLD,
)
FAMILIES: Final[Mapping[str, ActionFamily]] = MappingProxyType(
    {family.name: family for family in _ALL}
)
"""Every family by its name."""


def find_family(name: str) -> ActionFamily:
    """Return a family.

    Raises:
        UnknownNameError: There is no such family; the message suggests the nearest name.
    """
    family = FAMILIES.get(name)
    if family is None:
        raise UnknownNameError.suggest("action family", name, FAMILIES)
    return family
