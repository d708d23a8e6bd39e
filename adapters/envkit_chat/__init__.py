"""OpenAI-compatible chat endpoints: models that take messages and return text, without tokens.

Any server of `POST /v1/chat/completions`: OpenAI's, vLLM's, SGLang's, and many others. Such a model
can be evaluated, but not trained: a trajectory that it played has no token ledger.
"""

from envkit_chat.client import ChatClient
from envkit_chat.engine import ChatEngine
from envkit_chat.failure import CallFailure
from envkit_chat.refusals import answer_failure, status_failure
from envkit_chat.wire import wire_message, wire_messages

__all__ = [
    "CallFailure",
    "ChatClient",
    "ChatEngine",
    "answer_failure",
    "status_failure",
    "wire_message",
    "wire_messages",
]
