"""The SGLang engine: token ids and images to a server's native `/generate`, and back.

    engine = create_engine(model_dir, base_url="http://127.0.0.1:30000")

Works with servers from 0.5.15 to 0.5.23; the client needs no SGLang package.
"""

from envkit_sglang.engine import SGLangEngine, create_engine

__all__ = ["SGLangEngine", "create_engine"]
