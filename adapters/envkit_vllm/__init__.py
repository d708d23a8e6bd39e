"""The vLLM engine: token ids and images to a standalone server's `/inference/v1/generate`.

    engine = create_engine(model_dir, base_url="http://127.0.0.1:8000")

Works with servers of release 0.32; the client needs no vLLM package. Start the server with
`--enable-scale-out --logprobs-mode processed_logprobs --enable-prompt-tokens-details`.
"""

from envkit_vllm.engine import VLLMEngine, create_engine

__all__ = ["VLLMEngine", "create_engine"]
