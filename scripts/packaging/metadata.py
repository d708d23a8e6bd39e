"""Build the package metadata that depends on the repository's address.

`repository` under `tool.hatch.metadata.hooks.custom` in pyproject.toml is the address of the
repository, or empty while there is no public one. With an address, `Project-URL` fields are set
and the README's relative links and images point to it. Without one, a package index shows the
README with links as plain text and without images, because relative addresses do not work there.
"""

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE: Final = re.compile(
    r'!\[[^\]]*\]\((?![a-z]+:)[^)\s]+\)|<img [^>]*src="(?![a-z]+:)[^"]+"[^>]*>'
)
_LINK: Final = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
_SOURCE: Final = re.compile(r'(src="|!\[[^\]]*\]\()(?![a-z]+:)([^")\s]+)')
_CODE: Final = re.compile(r"(```.*?```)", re.DOTALL)


def long_description(readme: str, repository: str) -> str:
    """Return the README in a form that a package index can show.

    Args:
        readme: Markdown with links relative to the repository.
        repository: Address without a final slash; empty turns links into plain text.
    """
    parts = _CODE.split(readme)
    parts[::2] = [_with_links(part, repository) for part in parts[::2]]
    return "".join(parts)


def project_urls(repository: str) -> dict[str, str]:
    """Return the links of the package's page; empty without a repository."""
    if not repository:
        return {}
    return {
        "Repository": repository,
        "Documentation": f"{repository}/blob/main/docs/index.md",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


class MetadataHook(MetadataHookInterface):
    """Fills `readme` and `urls`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set both fields of the metadata."""
        repository = str(self.config["repository"]).rstrip("/")
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": long_description(readme, repository),
        }
        metadata["urls"] = project_urls(repository)


def _with_links(text: str, repository: str) -> str:
    if not repository:
        return _LINK.sub(r"\1", _IMAGE.sub("", text))
    text = _SOURCE.sub(rf"\1{repository}/raw/main/\2", text)
    return _LINK.sub(rf"[\1]({repository}/blob/main/\2)", text)
