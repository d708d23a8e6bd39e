"""Web search by Serper (google.serper.dev).

The contract: `POST /search {"q", "num", "gl", "hl"}` with the header `X-API-KEY`. The answer
repeats the request under `searchParameters` and lists pages under `organic`, each with `title`,
`link` and `snippet`. A query without results has no `organic`. Google answers some queries
directly: `answerBox` and `knowledgeGraph` become the first results.
"""

from collections.abc import Sequence
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit_search.batching import gathered
from envkit_search.document import Document, Hit
from envkit_search.transport import HttpLimits, JsonService

ADDRESS: Final = "https://google.serper.dev"


class SerperBackend:
    """Searches the web, one request per query. Each costs money: put a `CachedBackend` in front."""

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
        """Describe the service; the first search connects to it.

        Args:
            api_key: Key of a Serper account; it never appears in messages or a `repr`.
            country: Where to search from, such as "us".
            language: Language of the results, such as "en".
            address: Another server with the same contract.
            limits: Limits on time, connections, bytes and attempts; None uses the defaults.
            seed: Seed of the retry jitter.

        Raises:
            ConfigurationError: The key is empty, or the address is invalid.
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
        return await gathered(self._one(query, topk) for query in queries)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._service.aclose()

    async def _one(self, query: str, topk: int) -> list[Hit]:
        payload = {"q": query, "num": topk, "gl": self._country, "hl": self._language}
        return read_answer(await self._service.post(payload), topk)


def read_answer(answer: object, topk: int) -> list[Hit]:
    """Return the direct answers and then the pages of an answer of Serper, at most `topk`.

    Raises:
        EnvFault: It is not the contract's shape.
    """
    fields = cast(dict[str, Any], answer) if isinstance(answer, dict) else {}
    organic: object = fields.get("organic", [])
    if not isinstance(fields.get("searchParameters"), dict) or not isinstance(organic, list):
        raise _wrong(f"an object with 'searchParameters' and a list 'organic', got {answer!r:.200}")
    boxes = (_answer_box(fields.get("answerBox")), _knowledge_graph(fields.get("knowledgeGraph")))
    found = [box for box in boxes if box is not None]
    found += [_read_page(page) for page in cast(list[object], organic)[:topk]]
    return [
        Hit(document=document, score=1.0 / rank)
        for rank, document in enumerate(found[:topk], start=1)
    ]


def _answer_box(box: object) -> Document | None:
    """Return the direct answer to a question; None without one."""
    fields = cast(dict[str, Any], box) if isinstance(box, dict) else {}
    said = _strings(fields, "answer", "snippet")
    return _document(fields, "Answer box", said, link="link")


def _knowledge_graph(box: object) -> Document | None:
    """Return Google's knowledge graph entry; None if it is empty."""
    fields = cast(dict[str, Any], box) if isinstance(box, dict) else {}
    said = _strings(fields, "type", "description")
    attributes: object = fields.get("attributes")
    if isinstance(attributes, dict):
        known = cast(dict[object, object], attributes)
        said += [f"{name}: {value}" for name, value in known.items() if isinstance(value, str)]
    return _document(fields, "Knowledge graph", said, link="website")


def _strings(fields: dict[str, Any], *names: str) -> list[str]:
    return [value for name in names if isinstance(value := fields.get(name), str) and value.strip()]


def _document(fields: dict[str, Any], kind: str, said: list[str], *, link: str) -> Document | None:
    if not said:
        return None
    title = next(iter(_strings(fields, "title")), kind)
    identity = next(iter(_strings(fields, link)), f"serper:{kind}")
    return Document(id=identity, title=title, text="\n".join(said))


def _read_page(page: object) -> Document:
    fields = cast(dict[str, Any], page) if isinstance(page, dict) else {}
    title, link = fields.get("title"), fields.get("link")
    if not isinstance(title, str) or not isinstance(link, str):
        raise _wrong(f"pages with the strings 'title' and 'link', got {page!r:.200}")
    snippet: object = fields.get("snippet", "")  # some pages have no snippet
    text = snippet if isinstance(snippet, str) else ""
    return Document(id=link, title=title, text=text)


def _wrong(rule: str) -> EnvFault:
    return EnvFault(f"Serper must answer with {rule}", kind=FaultKind.PERMANENT)
