"""Results are bounded before anything is decoded."""

from types import SimpleNamespace
from typing import Any

import pytest

from envkit_mcp import results


def test_images_beyond_the_limit_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []

    def note(data: str, kind: str) -> str:
        decoded.append(data)
        return kind

    monkeypatch.setattr(results, "_image", note)
    picture = SimpleNamespace(type="image", data="x", mime_type="image/png")
    inner = SimpleNamespace(blob="y", mime_type="image/png", uri="file:///y")
    blocks: list[Any] = [picture, SimpleNamespace(type="resource", resource=inner)] * 50
    parts = results.read_result(
        SimpleNamespace(content=blocks, structured_content=None, is_error=False)
    )
    assert decoded == ["x", "y"] * (results.MAX_IMAGES // 2)
    assert parts[-1] == "[92 more images were left out]"
