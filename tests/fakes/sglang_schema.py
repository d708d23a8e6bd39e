"""What SGLang 0.5.23 refuses before and after its schema gate, and the bodies it refuses with.

Facts from python/sglang/api/v1/api_types.py, srt/sampling/sampling_params.py and
srt/entrypoints/http_server.py of that release, and from a running server.
"""

import json
from typing import Any

from aiohttp import web

MEDIA_REF_KEYS = frozenset({
    "url", "detail", "max_dynamic_patch", "content_hash", "min_pixels", "max_pixels",
    "total_max_pixels", "fps", "num_frames", "min_frames", "max_frames", "max_tokens_per_frame",
})  # fmt: skip

# Accepted types of each sampling parameter; null is always allowed.
SAMPLING_KEYS: dict[str, str] = {
    "max_new_tokens": "i64", "stop": "strings", "stop_token_ids": "ids", "stop_regex": "strings",
    "temperature": "f64", "top_p": "f64", "top_k": "i64", "min_p": "f64",
    "frequency_penalty": "f64", "presence_penalty": "f64", "repetition_penalty": "f64",
    "min_new_tokens": "i64", "n": "i64", "json_schema": "string", "regex": "string",
    "ebnf": "string", "structural_tag": "string", "ignore_eos": "bool",
    "skip_special_tokens": "bool", "spaces_between_special_tokens": "bool", "no_stop_trim": "bool",
    "stream_interval": "i64", "logit_bias": "biases", "sampling_seed": "i64",
    "custom_params": "any", "watermark": "any", "beam_width": "i64",
}  # fmt: skip
# Unknown keys next to these are ignored.
REQUEST_KEYS: dict[str, str] = {
    "rid": "strings", "text": "strings", "input_ids": "ids", "stream": "bool",
    "return_logprob": "bool", "logprob_start_len": "i64", "top_logprobs_num": "i64",
    "token_ids_logprob": "ids", "image_data": "media", "return_prompt_token_ids": "bool",
    "routed_experts_start_len": "i64", "session_id": "string", "routing_key": "string",
    "priority": "i64", "return_text_in_logprobs": "bool", "sampling_params": "sampling",
}  # fmt: skip


_GATE_KEYS = frozenset({"sampling_params", "image_data"})


class Refusal(Exception):
    """An answer other than 200, carried to the HTTP layer."""

    def __init__(self, response: web.Response, message: str = "") -> None:
        super().__init__(response.status, message)
        self.response = response
        self.message = message


def gate_refusal(message: str) -> Refusal:
    """Shape of the schema gate."""
    return Refusal(web.json_response({"error": message}, status=400), message)


def value_refusal(message: str) -> Refusal:
    """Shape of a ValueError."""
    return Refusal(web.json_response({"error": {"message": message}}, status=400), message)


def http_refusal(status: int, message: str) -> Refusal:
    """Shape of an HTTPException."""
    body = {
        "object": "error",
        "message": message,
        "type": str(status),
        "param": None,
        "code": status,
    }
    return Refusal(web.json_response(body, status=status))


def crash_refusal() -> Refusal:
    """Shape of an exception that nobody expected."""
    return Refusal(web.Response(status=500, text="Internal Server Error"))


def parse_body(raw: bytes) -> dict[str, Any]:
    """Return the request of a body that passes JSON, the dataclass and the schema gate."""
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise http_refusal(400, "1 validation error: JSON decode error") from error
    if not isinstance(body, dict):
        raise http_refusal(400, "1 validation error: Input should be a dictionary")
    for key, kind in REQUEST_KEYS.items():
        if body.get(key) is None:
            continue
        try:
            _check(key, body[key], kind)
        except Refusal as refusal:
            if key in _GATE_KEYS:
                raise
            # FastAPI checks the types of the fields themselves before the gate sees the body.
            raise http_refusal(400, f"1 validation error: {key}: {refusal.message}") from refusal
    return body


def _kind_name(value: object) -> str:
    if isinstance(value, bool):
        return f"boolean `{value}`"
    if isinstance(value, float):
        return f"floating point `{value}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    return f"string {json.dumps(value)}" if isinstance(value, str) else "map or sequence"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _expect(condition: bool, value: object, expected: str) -> None:
    if not condition:
        raise gate_refusal(f"invalid type: {_kind_name(value)}, expected {expected}")


def _check(key: str, value: Any, kind: str) -> None:  # any JSON
    if kind == "i64":
        _expect(_is_int(value), value, "i64")
    elif kind == "f64":
        _expect(_is_int(value) or isinstance(value, float), value, "f64")
    elif kind == "bool":
        _expect(isinstance(value, bool), value, "a boolean")
    elif kind == "string":
        _expect(isinstance(value, str), value, "a string")
    elif kind in _SEQUENCES:
        _SEQUENCES[kind](key, value)


def _check_ids(_key: str, value: Any) -> None:  # any JSON
    _expect(isinstance(value, list), value, "a sequence")
    for item in value:
        _expect(_is_int(item), item, "i64")


def _check_strings(_key: str, value: Any) -> None:  # any JSON
    for item in value if isinstance(value, list) else [value]:
        _expect(isinstance(item, str), item, "a value or an array of values for StringOrList")


def _check_biases(_key: str, value: Any) -> None:  # any JSON
    _expect(isinstance(value, dict), value, "a map")
    for item in value.values():
        _expect(_is_int(item) or isinstance(item, float), item, "f32")


def _check_media(_key: str, value: Any) -> None:  # any JSON
    for item in value if isinstance(value, list) else [value]:
        _expect(isinstance(item, str | dict), item, "one of the MediaItem shapes")
        if isinstance(item, dict):
            for name in item:
                if name not in MEDIA_REF_KEYS:
                    raise gate_refusal(f"unknown field `{name}`, expected one of `url`, `detail`")


def _check_sampling(_key: str, value: Any) -> None:  # any JSON
    _expect(isinstance(value, dict), value, "a map")
    for name, item in value.items():
        if name not in SAMPLING_KEYS:
            known = ", ".join(f"`{entry}`" for entry in SAMPLING_KEYS)
            raise gate_refusal(f"unknown field `{name}`, expected one of {known}")
        if item is not None:
            _check(name, item, SAMPLING_KEYS[name])


_SEQUENCES = {
    "ids": _check_ids,
    "strings": _check_strings,
    "biases": _check_biases,
    "media": _check_media,
    "sampling": _check_sampling,
}


def check_sampling_values(params: dict[str, Any], vocabulary_size: int | None) -> None:
    """Refuse values that parse but mean nothing, as SamplingParams.verify does."""
    temperature = params.get("temperature")
    if temperature is not None and temperature < 0:
        raise value_refusal(
            f"temperature must be a non-negative finite number, got {float(temperature)}."
        )
    top_p = params.get("top_p")
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise value_refusal(f"top_p must be in (0, 1], got {top_p}.")
    top_k = params.get("top_k")
    if top_k is not None and top_k != -1 and top_k < 1:
        raise value_refusal(f"top_k must be -1 (disable) or at least 1, got {top_k}.")
    new_tokens = params.get("max_new_tokens")
    if new_tokens is not None and new_tokens < 0:
        raise value_refusal(f"max_new_tokens must be at least 0, got {new_tokens}.")
    for token in params.get("logit_bias") or {}:
        if vocabulary_size is not None and not 0 <= int(token) < vocabulary_size:
            raise value_refusal(
                f"logit_bias must has keys in [0, {vocabulary_size - 1}], got {token}."
            )
