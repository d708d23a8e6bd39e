"""The SGLang engine: token ids and pictures to a server's native `/generate`, and back.

    engine = create_engine(model_dir, base_url="http://127.0.0.1:30000")

Works with servers from 0.5.15 to 0.5.23; needs no SGLang package on this side.
"""

from envkit_sglang.engine import SGLangEngine
from envkit_sglang.factory import create_engine
from envkit_sglang.server_facts import ServerHealth, ServerInfo

__all__ = ["SGLangEngine", "ServerHealth", "ServerInfo", "create_engine"]
