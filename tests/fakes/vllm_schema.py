"""What vLLM 0.32.0 refuses at its token route, and in which words.

Every status and text was recorded from a real server; `test_vllm_contract.py` compares them again.
"""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

_SAMPLING_TYPES: dict[str, tuple[type, ...]] = {
    "max_tokens": (int, type(None)),
    "temperature": (int, float),
    "top_p": (int, float),
    "top_k": (int,),
    "logprobs": (int, type(None)),
    "prompt_logprobs": (int, type(None)),
    "seed": (int, type(None)),
    "stop_token_ids": (list, type(None)),
    "detokenize": (bool,),
    "ignore_eos": (bool,),
    "logit_bias": (dict, type(None)),
    "allowed_token_ids": (list, type(None)),
}


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str = ""
    ) -> None:
        super().__init__(message)
        self.message, self.status = message, status
        self._kind, self._param = kind, param or None

    def response(self) -> web.Response:
        """Return the answer in vLLM's shape; the connection is closed after a 500."""
        error = {
            "message": self.message, "type": self._kind, "param": self._param, "code": self.status,
        }  # fmt: skip
        answer = web.json_response({"error": error}, status=self.status)
        if self.status >= 500:
            answer.force_close()
        return answer


def internal_error(message: str) -> Refusal:
    """Return the answer to an exception inside the server."""
    return Refusal(message, status=500, kind="InternalServerError")


def _invalid(kind: str, where: str, message: str) -> Refusal:
    text = f"1 validation error:\n  {{'type': '{kind}', 'loc': 'body{where}', 'msg': '{message}'}}"
    return Refusal(text, kind="Bad Request", param=f"body{where}")


def check_body(body: Any) -> None:
    """Refuse a body as the server's schema does; unknown keys pass unseen.

    Raises:
        Refusal: A 400 that names the field.
    """
    if not isinstance(body, dict):
        raise _invalid("model_attributes_type", "", "Input should be a valid dictionary")
    for name in ("token_ids", "sampling_params"):
        if name not in body:
            raise _invalid("missing", f".{name}", "Field required")
    ids, sampling = body["token_ids"], body["sampling_params"]
    if not isinstance(ids, list) or not ids:
        raise _invalid("too_short", ".token_ids", "List should have at least 1 item")
    for index, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, int):
            raise _invalid("int_parsing", f".token_ids.{index}", "Input should be an integer")
    if min(ids) < 0:
        raise _invalid("value_error", ".token_ids", "token_ids must not contain negative values")
    for name, kinds in _SAMPLING_TYPES.items():
        if name in sampling and not isinstance(sampling[name], kinds):
            error = _invalid("type", ".sampling_params", f"{name} has a wrong type")
            error.message = error.message.replace("1 validation error", "2 validation errors", 1)
            raise error


def check_sampling(params: Mapping[str, Any], vocabulary_size: int | None) -> None:
    """Refuse values that the sampler does not take.

    Raises:
        Refusal: A 400 that names the parameter.
    """
    temperature = params.get("temperature", 1.0)
    if temperature < 0:
        raise Refusal(f"temperature must be non-negative, got {temperature}. ")
    if temperature > 2:
        raise Refusal(f"temperature must be in [0, 2], got {temperature}. ")
    if not 0 < params.get("top_p", 1.0) <= 1:
        raise Refusal(f"top_p must be in (0, 1], got {params['top_p']}. ")
    limit = params.get("max_tokens")
    if limit is not None and limit < 1:
        raise Refusal(f"max_tokens must be at least 1, got {limit}. ")
    if (params.get("logprobs") or 0) > 20:
        raise Refusal(f"Requested sample logprobs of {params['logprobs']}, which is greater than")
    if params.get("stop") and not params.get("detokenize", True):
        raise Refusal("stop strings are only supported when detokenize is True. ")
    if vocabulary_size is None:
        return
    named = {
        "stop_token_ids": list(params.get("stop_token_ids") or ()),
        "logit_bias": [int(key) for key in params.get("logit_bias") or {}],
    }
    for name, ids in named.items():
        outside = [token for token in ids if not 0 <= token < vocabulary_size]
        if outside:
            raise Refusal(f"token_id(s) {outside} in {name} contain out-of-vocab token ids. ")


def check_length(length: int, context_length: int) -> None:
    """Refuse a prompt that leaves no room for a token.

    Raises:
        Refusal: A 400.
    """
    if length > context_length:
        raise Refusal(
            f"The decoder prompt (length {length}) is longer than the maximum model length of "
            f"{context_length}. "
        )
    if length == context_length:
        raise Refusal(
            f"The decoder prompt (length {length}) plus the number of requested output tokens (at "
            f"least 1) is longer than the maximum model length of {context_length}. "
        )
