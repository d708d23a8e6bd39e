"""An agent that only passes messages on records what envkit's own loop records."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from fakes.client_scripts import codec
from fakes.installed import install_metadata
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI

from envkit import make
from envkit.rollout import EpisodeSpec, Player, RolloutConfig, ScriptedEngine
from envkit.trajectory import Trajectory, check_trajectory
from envkit_gateway import AgentTask

Ask = Callable[[str, Any], Awaitable[str]]


async def passing(task: AgentTask, ask: Ask) -> None:
    """Pass each observation to the model and each reply to the environment."""
    text, images = task.prompt, task.images
    while True:
        step = await task.step(await ask(text, images))
        if step.terminated or step.truncated:
            return
        text, images = step.observation["text"], step.observation["images"]


def system_of(task: AgentTask) -> list[str]:
    return [str(one["content"]) for one in task.messages if one["role"] == "system"]


def openai_parts(text: str, images: Any) -> list[Any]:
    urls = [{"type": "image_url", "image_url": {"url": image.data_uri()}} for image in images]
    return [*urls, {"type": "text", "text": text}]


async def by_openai(task: AgentTask) -> None:
    said: list[Any] = [{"role": "system", "content": text} for text in system_of(task)]
    async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:

        async def ask(text: str, images: Any) -> str:
            said.append({"role": "user", "content": openai_parts(text, images)})
            answer = await client.chat.completions.create(model="m", messages=said)
            said.append(answer.choices[0].message)
            return str(said[-1].content)

        await passing(task, ask)


async def by_responses(task: AgentTask) -> None:
    items: list[Any] = []
    async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:

        async def ask(text: str, images: Any) -> str:
            seen = [{"type": "input_image", "image_url": image.data_uri()} for image in images]
            content = [*seen, {"type": "input_text", "text": text}]
            items.append({"role": "user", "content": content})
            about: Any = {"model": "m", "input": items, "instructions": system_of(task)[0]}
            answer = await client.responses.create(**about)
            items.extend(answer.output)
            return str(answer.output_text)

        await passing(task, ask)


async def by_anthropic(task: AgentTask) -> None:
    said: list[Any] = []
    async with AsyncAnthropic(base_url=task.url, api_key=task.api_key) as client:

        async def ask(text: str, images: Any) -> str:
            blocks: list[Any] = [
                {"type": "image", "source": {
                    "type": "base64", "media_type": "image/png",
                    "data": image.data_uri().partition(",")[2]}}
                for image in images
            ]  # fmt: skip
            said.append({"role": "user", "content": [*blocks, {"type": "text", "text": text}]})
            answer: Any = await client.messages.create(
                model="m", max_tokens=500, messages=said, system=system_of(task)[0]
            )
            said.append({"role": "assistant", "content": answer.content})
            return str(answer.content[0].text)

        await passing(task, ask)


async def by_langchain(task: AgentTask) -> None:
    model = ChatOpenAI(model="m", base_url=task.base_url, api_key=task.api_key)  # type: ignore[arg-type]
    said: list[Any] = [SystemMessage(text) for text in system_of(task)]

    async def ask(text: str, images: Any) -> str:
        said.append(HumanMessage(openai_parts(text, images)))
        said.append(await model.ainvoke(said))
        return str(said[-1].text)

    await passing(task, ask)
    await model.root_async_client.close()


async def played(agent: Any) -> Trajectory:
    env: Any = make("canary-v0").unwrapped
    config = RolloutConfig(agent=None if agent is None else {"function": agent})
    player = Player(ScriptedEngine(codec(), env.oracle()), codec(), config)
    try:
        (found,) = await player.play(lambda: make("canary-v0"), EpisodeSpec(seed=3))
    finally:
        await player.aclose()
    assert check_trajectory(found) == ()
    return found


@pytest.mark.parametrize("agent", [by_openai, by_responses, by_anthropic, by_langchain])
async def test_client_records_what_the_loop_records(
    agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(install_metadata(tmp_path)))
    loop, found = await played(None), await played(agent)

    assert len(found.turns) == 3
    for name in ("train_ids", "wire_ids", "loss_mask", "logprobs", "images"):
        assert getattr(loop, name)() == getattr(found, name)(), name
    assert (loop.reward, loop.stop_reason) == (found.reward, found.stop_reason)
