"""Detect the flags that a vLLM server was started with, from their effects."""

import json
from typing import TYPE_CHECKING, Any, Final

from envkit.errors import EngineFault
from envkit.rollout.engine import LogprobKind
from envkit_remote import FlagCheck
from envkit_remote.faults import asking
from envkit_remote.transport import Answer, Transport

if TYPE_CHECKING:
    from envkit_vllm.dialect import VLLMDialect

_TIMEOUT_S: Final = 60.0
_TOKEN: Final = 1


async def read_flags(http: Transport, dialect: "VLLMDialect") -> list[FlagCheck]:
    """Sample one token and inspect the answer.

    Raises:
        EngineFault: The server does not answer.
    """
    body = json.dumps(dialect.kind_probe(_TOKEN)).encode()
    async with asking(dialect.title, http, _TIMEOUT_S, "for its flags"):
        answer = await http.post(dialect.generate_path, body)
        development = await http.get("/is_sleeping")
    if answer.status not in (200, 403):
        raise await dialect.status_fault(http, answer)
    is_open = answer.status == 200
    found = [
        FlagCheck(
            flag="--enable-scale-out",
            is_set=is_open,
            is_required=True,
            matters="the token route answers 403, so nothing can be sampled",
        )
    ]
    if is_open:
        found += _of_answer(answer, dialect)
    found.append(
        FlagCheck(
            flag="VLLM_SERVER_DEV_MODE=1",
            is_set=development.status == 200,
            is_required=False,
            matters="no pause, weight or cache routes, which a trainer that updates weights needs; "
            "do not expose them to an open network",
        )
    )
    return found


def _of_answer(answer: Answer, dialect: "VLLMDialect") -> list[FlagCheck]:
    try:
        usage: Any = json.loads(answer.body)["usage"]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise EngineFault(f"not an answer of vLLM's token route: {answer.body[:80]!r}") from error
    return [
        FlagCheck(
            flag="--logprobs-mode processed_logprobs",
            is_set=dialect.probed_kind(answer.body) is LogprobKind.SAMPLED,
            is_required=True,
            matters="log-probabilities are those before temperature, bans and top-p",
        ),
        FlagCheck(
            flag="--enable-prompt-tokens-details",
            is_set=isinstance(usage.get("prompt_tokens_details"), dict),
            is_required=False,
            matters="cached tokens are reported as 0",
        ),
    ]
