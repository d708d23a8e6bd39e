"""A client of Search-R1's `POST /retrieve`.

The contract (Search-R1, search_r1/search/retrieval_server.py): `{"queries": [str], "topk": int,
"return_scores": bool}` is answered by `{"result": [...]}` with a list per query. An item is
`{"document": {"id", "contents"}, "score"}`, or the bare document `{"id", "contents"}` if no scores
were requested, or `{"document": {"contents"}}` from the proxies of web search engines. The first
line of `contents` is the title in quotes. Both shapes are accepted. Anything else is a fault,
because training would learn from a garbled answer shown as "nothing found".

A list is in the order of the ranking, best first, and stays so: scores may be similarities or
distances, as faiss returns them for an index of inner products or of L2.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from envkit.errors import EnvFault, FaultKind
from envkit_search.batching import Batcher, Outcome
from envkit_search.document import TITLE_CHARACTERS, Document, Hit, split_contents
from envkit_search.transport import HttpLimits, JsonService, RefusedFault

DOCUMENT_CHARACTERS: Final = 8000
"""Maximum characters kept of a document."""


class RetrieveClient:
    """Searches through a server with Search-R1's contract.

    Concurrent queries share one request. It always requests scores: without them Search-R1's server
    fails unless there are exactly two queries.
    """

    def __init__(
        self,
        address: str,
        *,
        limits: HttpLimits | None = None,
        max_batch: int = 64,
        window_s: float = 0.002,
        headers: Mapping[str, str] | None = None,
        seed: int = 0,
    ) -> None:
        """Describe the server; the first search connects to it.

        Args:
            address: Address of the server, with or without the path `/retrieve`.
            limits: Limits on time, connections, bytes and attempts; None uses the defaults.
            max_batch: Maximum queries per request.
            window_s: Seconds that a query waits for others to share its request.
            headers: Headers of every request, such as a key.
            seed: Seed of the retry jitter.

        Raises:
            ConfigurationError: The address is invalid, or a number is out of range.
        """
        base = address.rstrip("/").removesuffix("/retrieve")
        self._service = JsonService(
            f"{base}/retrieve",
            noun="the search server",
            limits=limits,
            headers=headers,
            seed=seed,
        )
        self._batcher = Batcher(self._send, max_batch=max_batch, window_s=window_s)

    @property
    def requests(self) -> int:
        """HTTP requests so far, repeated ones included."""
        return self._service.attempts

    async def search(self, queries: Sequence[str], *, topk: int) -> list[list[Hit]]:
        """Return the hits of each query, best first, at most `topk` each.

        Raises:
            EnvFault: The server failed or answered in a shape that is not the contract's.
        """
        return await self._batcher.search(queries, topk)

    async def aclose(self) -> None:
        """Cancel pending requests and close the connections."""
        await self._batcher.aclose()
        await self._service.aclose()

    async def _send(self, queries: list[str], topk: int) -> list[Outcome]:
        """Answer a batch; a rejected batch is split, so only the bad query fails.

        The halves are sent one after the other: a good query waits, but is answered.
        """
        payload = {"queries": queries, "topk": topk, "return_scores": True}
        try:
            answer = await self._service.post(payload)
            return [*read_answer(answer, queries=len(queries), topk=topk)]
        except RefusedFault as fault:
            if len(queries) == 1:
                return [fault]
        except EnvFault as fault:
            return [fault] * len(queries)
        middle = len(queries) // 2
        head = await self._send(queries[:middle], topk)
        return [*head, *await self._send(queries[middle:], topk)]


def read_answer(answer: object, *, queries: int, topk: int) -> list[list[Hit]]:
    """Return the hits of a `/retrieve` answer in the server's order.

    Args:
        answer: The JSON body.
        queries: Number of queries.
        topk: Hits to keep per query.

    Raises:
        EnvFault: It is not the contract's shape, or has another number of lists.
    """
    result = cast(dict[str, Any], answer).get("result") if isinstance(answer, dict) else None
    if not isinstance(result, list):
        raise _wrong(f"{{'result': [...]}} with a list for each query, got {answer!r:.200}")
    lists = cast(list[object], result)
    if len(lists) != queries:
        raise _wrong(f"a list for each of the {queries} queries, got {len(lists)} lists")
    return [_read_list(entries, topk) for entries in lists]


def _read_list(entries: object, topk: int) -> list[Hit]:
    if not isinstance(entries, list):
        raise _wrong(f"a list of documents for each query, got {entries!r:.200}")
    items = cast(list[object], entries)[:topk]
    return [_read_item(item, rank) for rank, item in enumerate(items)]


def _read_item(item: object, rank: int) -> Hit:
    if not isinstance(item, dict):
        raise _wrong(f"a document or {{'document', 'score'}} for each hit, got {item!r:.200}")
    fields = cast(dict[str, Any], item)
    document: object = fields.get("document", fields)
    if not isinstance(document, dict):
        raise _wrong(f"a 'document' that is an object, got {document!r:.200}")
    score: object = fields.get("score", -float(rank))  # without scores, the order is the ranking
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise _wrong(f"a finite number as 'score', got {score!r:.80}")
    return Hit(document=_read_document(cast(dict[str, Any], document), rank), score=float(score))


def _read_document(fields: dict[str, Any], rank: int) -> Document:
    contents: object = fields.get("contents")
    title: object = fields.get("title")
    if contents is None and isinstance(fields.get("text"), str):
        text, head = str(fields["text"]), title if isinstance(title, str) else ""
    elif isinstance(contents, str):
        head, text = split_contents(contents)
    else:
        raise _wrong(f"the string 'contents' in a document, got the keys {sorted(fields)[:8]}")
    return Document(
        id=str(fields.get("id", rank)),
        title=head[:TITLE_CHARACTERS],
        text=text[:DOCUMENT_CHARACTERS],
    )


def _wrong(rule: str) -> EnvFault:
    return EnvFault(f"the search server must answer with {rule}", kind=FaultKind.PERMANENT)
