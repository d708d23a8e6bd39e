"""The parts of verl that this adapter relies on."""

from typing import Final

from envkit.upstream import Contract

_LOOP: Final = "verl.experimental.agent_loop.agent_loop"

CONTRACT: Final = Contract(
    package="verl",
    tested="0.9.1",
    install="pip install 'envkit-rl[verl]'",
    uses={
        f"{_LOOP}:AgentLoopBase": (
            "run",
            "server_manager",
            "tokenizer",
            "processor",
            "config",
            "data_config",
        ),
        f"{_LOOP}:AgentLoopOutput": (
            "prompt_ids",
            "response_ids",
            "response_mask",
            "response_logprobs",
            "routed_experts",
            "multi_modal_data",
            "reward_score",
            "num_turns",
            "metrics",
            "extra_fields",
        ),
        f"{_LOOP}:AgentLoopMetrics": ("generate_sequences", "tool_calls", "num_preempted"),
        "verl.workers.rollout.replica:TokenOutput": (
            "token_ids",
            "log_probs",
            "routed_experts",
            "stop_reason",
            "num_preempted",
            "extra_fields",
        ),
        "verl.tools.schemas:ToolResponse": ("text", "image"),
        "verl.tools.schemas:OpenAIFunctionToolSchema": ("type", "function"),
    },
)
