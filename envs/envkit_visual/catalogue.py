"""Every world by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from envkit_visual import boards, charts, graphs, grids, pages, scenes, screens, warps
from envkit_visual.world import World

_DOMAINS: Final = (grids, boards, graphs, charts, warps, scenes, screens, pages)

WORLDS: Final[Mapping[str, type[World[Any]]]] = MappingProxyType(
    {world.name: world for domain in _DOMAINS for world in domain.WORLDS}
)
