"""Web search by Serper (google.serper.dev).

The contract: `POST /search {"q", "num", "gl", "hl"}` with the header `X-API-KEY`. The answer
repeats the request under `searchParameters` and lists pages under `organic`, each with `title`,
`link` and `snippet`. A query that finds nothing is answered without `organic`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit_search.document import Document, Hit
from envkit_search.transport import HttpLimits, JsonService

ADDRESS: Final = "https://google.serper.dev"


class SerperBackend:
    """Searches the web, one request a query. Each costs money: put a `CachedBackend` in front."""

    def __init__(
        self,
        api_key: str,
        *,
        country: str = "us",
        language: str = "en",
        address: str = ADDRESS,
        limits: HttpLimits | None = None,
        seed: int = 0,
    ) -> None:
        """Describe the service; nothing is sent before the first search.

        Args:
            api_key: Of an account at Serper; it stands in no message and no `repr`.
            country: Where to search from, such as "us".
            language: Of the results, such as "en".
            address: Another server of the same contract.
            limits: Of time, connections, bytes and attempts; None takes the defaults.
            seed: Of the jitter of waiting times.

        Raises:
            ConfigurationError: The key is empty, or the address is none.
        """
        if not api_key.strip():
            raise ConfigurationError("api_key must be a key of Serper, got an empty string")
        self._country, self._language = country, language
        self._service = JsonService(
            f"{address.rstrip('/')}/search",
            noun="Serper",
            headers={"X-API-KEY": api_key.strip()},
            limits=limits,
            seed=seed,
        )

    async def search(self, queries: Sequence[str], *, topk: int) -> list[list[Hit]]:
        """Return the pages of each query, best first, at most `topk` each.

        Raises:
            EnvFault: Serper failed or answered in another shape.
        """
        outcomes = await asyncio.gather(
            *(self._one(query, topk) for query in queries), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._service.aclose()

    async def _one(self, query: str, topk: int) -> list[Hit]:
        payload = {"q": query, "num": topk, "gl": self._country, "hl": self._language}
        return read_answer(await self._service.post(payload), topk)


def read_answer(answer: object, topk: int) -> list[Hit]:
    """Return the pages of an answer of Serper.

    Raises:
        EnvFault: It is not the contract's shape.
    """
    fields = cast(dict[str, Any], answer) if isinstance(answer, dict) else {}
    organic: object = fields.get("organic", [])
    if not isinstance(fields.get("searchParameters"), dict) or not isinstance(organic, list):
        raise _wrong(f"an object with 'searchParameters' and a list 'organic', got {answer!r:.200}")
    pages = cast(list[object], organic)[:topk]
    return [_read_page(page, rank) for rank, page in enumerate(pages, start=1)]


def _read_page(page: object, rank: int) -> Hit:
    fields = cast(dict[str, Any], page) if isinstance(page, dict) else {}
    title, link = fields.get("title"), fields.get("link")
    if not isinstance(title, str) or not isinstance(link, str):
        raise _wrong(f"pages with the strings 'title' and 'link', got {page!r:.200}")
    snippet: object = fields.get("snippet", "")  # some pages have none
    text = snippet if isinstance(snippet, str) else ""
    return Hit(document=Document(id=link, title=title, text=text), score=1.0 / rank)


def _wrong(rule: str) -> EnvFault:
    return EnvFault(f"Serper must answer with {rule}", kind=FaultKind.PERMANENT)
