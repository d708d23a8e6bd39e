"""Print the prompts that vLLM's own server would give its engine; runs in vLLM's environment.

Everything between a request's body and the engine is vLLM's code: the models of the three
dialects, their conversion to chat messages, the chat template and the tokenizer.
`scripts/campaigns/prompts.py` starts it.

    python scripts/campaigns/vllm_prompts.py REQUESTS.jsonl MODEL_FOLDER...
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from vllm import AsyncEngineArgs
from vllm.config import VllmConfig
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.renderers import renderer_from_config
from vllm.renderers.online_renderer import OnlineRenderer


class Server:
    """The part of vLLM's server that comes before its engine."""

    def __init__(self, folder: str) -> None:
        """Set it up for a model with `--enable-auto-tool-choice`."""
        options = AsyncEngineArgs(model=folder, dtype="float32", max_model_len=1 << 17)
        config = options.create_model_config()
        self.renderer = OnlineRenderer(
            model_config=config,
            renderer=renderer_from_config(VllmConfig(model_config=config)),
            request_logger=None,
            chat_template=None,
            chat_template_content_format="auto",
            enable_auto_tools=True,
            tool_parser="hermes",
        )
        self.messages: Any = AnthropicServingMessages.__new__(AnthropicServingMessages)
        self.messages.online_renderer, self.messages.model_config = self.renderer, config
        self.merges = AnthropicServingMessages._should_merge_inline_system(self.renderer)

    async def prompt(self, path: str, body: dict[str, Any]) -> list[int]:
        """Return the ids for a request's body."""
        if path == "/v1/responses":
            made: Any = await self.renderer.render_responses(ResponsesRequest(**body))
            if isinstance(made, ErrorResponse):
                raise ValueError(made.error.message)
            return list(made.engine_input["prompt_token_ids"])
        if path == "/v1/messages":
            asked = AnthropicMessagesRequest(**{"max_tokens": 1, **body})
            effort = await self.messages._probe_disabled_thinking_effort()
            request = AnthropicServingMessages.to_chat_completion_request(
                asked, merge_inline_system=self.merges, disabled_thinking_effort=effort
            )
        else:
            request = ChatCompletionRequest(**body)
        made = await self.renderer.render_chat(request)
        if isinstance(made, ErrorResponse):
            raise ValueError(made.error.message)
        return list(made[1][0]["prompt_token_ids"])


async def main(requests: Path, folders: list[Path]) -> None:
    """Write a line for each request beside each folder: its `ids`, or the `error`."""
    lines = requests.read_text(encoding="utf-8").splitlines()
    for folder in folders:
        server = Server(str(folder))
        with folder.with_name(f"{folder.name}.jsonl").open("w", encoding="utf-8") as file:
            for line in lines:
                request = json.loads(line)
                made: dict[str, Any]
                try:
                    made = {"ids": await server.prompt(request["path"], request["body"])}
                except Exception as error:  # noqa: BLE001  # what the server would answer
                    made = {"error": f"{type(error).__name__}: {error}"[:2000]}
                file.write(json.dumps(made) + "\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), [Path(one) for one in sys.argv[2:]]))
