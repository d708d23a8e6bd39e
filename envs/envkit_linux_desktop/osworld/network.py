"""Which tasks need a network, which a session does not have.

Setup and evaluator name their addresses, and `setup`, `sources` and `programs` refuse those. A task
whose own goal is on the web says so only in its instruction, or by the field `proxy` of newer task
files. Such a task would start, and no policy could solve it.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from envkit_linux_desktop.osworld.refusal import RefusalKind, RefusedError

_NEEDS: Final = {
    "a web address in the instruction": re.compile(
        r"https?://|ftp://|\bwww\.|(?<![@\w./-])[a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?:com|org|net|edu|gov)\b",
        re.IGNORECASE,
    ),
    "a search or a service on the web": re.compile(
        r"\b(?:internet|online|web\s?sites?|web\s?pages?|search engine|wikipedia|arxiv|youtube"
        r"|github|gitlab|kaggle|hugging\s?face|stack\s?overflow|google|bing|gmail|dropbox|onedrive"
        r"|search(?:ing)? the web|(?:on|from) the web)\b",
        re.IGNORECASE,
    ),
    "a download": re.compile(
        r"\bdownload(?:ing)?\b(?!s)(?!\s+(?:folder|directory))|\bclone\b.{0,40}\brepo",
        re.IGNORECASE,
    ),
    "packages from the network": re.compile(
        r"\b(?:install|reinstall|upgrade)(?:ing)?\b(?!.*(?:/home/|~/|\bDesktop\b|\bDownloads\b))"
        r"|\bpip\s+install\b",
        re.IGNORECASE | re.DOTALL,
    ),
}
_FETCHING: Final = re.compile(
    r"\bgit\s+(?:[\w.=/-]+\s+)*?(?:clone|fetch|pull|push|ls-remote|submodule)\b.*?(?:://|\w@)"
    r"|\b(?:xdg-open|chromium|google-chrome|firefox)\b[^;&|]*https?://",
    re.DOTALL,
)


def check_task(fields: Mapping[str, Any], instruction: str) -> None:
    """Refuse a task whose goal is on the web.

    Raises:
        RefusedError: The task asks for a proxy, or its instruction for something online.
    """
    if fields.get("proxy") is True:
        raise RefusedError(RefusalKind.NETWORK, "a proxy to the internet")
    for need, words in _NEEDS.items():
        if words.search(instruction):
            raise RefusedError(RefusalKind.NETWORK, need)


def check_command(text: str) -> None:
    """Refuse a command that fetches from the web.

    Raises:
        RefusedError: It names a remote repository, or opens a web page.
    """
    if _FETCHING.search(text):
        raise RefusedError(RefusalKind.NETWORK, "network")
