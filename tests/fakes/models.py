"""Tiny random model folders for tests, made once and kept in a test cache."""

import os
from functools import cache
from pathlib import Path

from envkit.files import cache_dir
from envkit_transformers.cache import built_folder
from envkit_transformers.tiny import RECIPE_VERSION, TinyKind, make_tiny_model


def model_cache_dir() -> Path:
    """Return the folder that keeps test models: ENVKIT_TEST_CACHE, or one in envkit's cache."""
    named = os.environ.get("ENVKIT_TEST_CACHE")
    return Path(named) if named else cache_dir() / "test-models"


@cache
def tiny_model_dir(kind: TinyKind | str, *, seed: int = 0) -> Path:
    """Return a folder with a tiny random model ("llama", "qwen3", "qwen2_5_vl", "qwen3_vl")."""
    kind = TinyKind(kind)

    def build(folder: Path) -> None:
        make_tiny_model(folder, kind, seed=seed)

    recipe = {"version": RECIPE_VERSION, "kind": kind.value, "seed": seed}
    return built_folder(model_cache_dir() / f"{kind.value}-{seed}", recipe=recipe, build=build)
