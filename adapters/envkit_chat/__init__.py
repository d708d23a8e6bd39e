"""OpenAI-compatible chat endpoints: models that exchange messages and text, not tokens.

Works with any server of `POST /v1/chat/completions`: OpenAI, vLLM, SGLang and many others. Such a
model can be evaluated but not trained, because its trajectories have no token ledger.
"""

from envkit_chat.client import ChatClient, answer_fault, status_fault
from envkit_chat.engine import ChatEngine
from envkit_chat.wire import wire_message, wire_messages

__all__ = [
    "ChatClient",
    "ChatEngine",
    "answer_fault",
    "status_fault",
    "wire_message",
    "wire_messages",
]
