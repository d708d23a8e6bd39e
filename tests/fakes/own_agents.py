"""Agents as users write them, over plain HTTP."""

import asyncio
import contextlib
import subprocess
import sys
import threading
from typing import Any

from fakes.agent_clients import ChatClient

from envkit_gateway import AgentTask


def client_of(task: AgentTask) -> ChatClient:
    """Return a client that has the environment's system prompt."""
    system = [str(one["content"]) for one in task.messages if one["role"] == "system"]
    return ChatClient(task.url, task.api_key, system="\n\n".join(system))


async def trivial(task: AgentTask) -> None:
    """Pass every observation to the model and every reply to the environment."""
    client = client_of(task)
    text, image = task.prompt, next(iter(task.images), None)
    while True:
        said = await client.ask(text, image)
        step = await task.step(said.text)
        if step.terminated or step.truncated:
            return
        text, image = step.observation["text"], next(iter(step.observation["images"]), None)


async def answering(task: AgentTask) -> str:
    """Return the model's first reply as the answer."""
    image = next(iter(task.images), None)
    return (await client_of(task).ask(task.prompt, image)).text


async def scoring(task: AgentTask) -> float:
    """Score the episode itself."""
    await client_of(task).ask(task.prompt)
    return 0.25


async def silent(task: AgentTask) -> str:
    """Never ask the model."""
    return task.prompt


async def crashing(task: AgentTask) -> None:
    """Fail after a reply."""
    await client_of(task).ask(task.prompt)
    raise KeyError("lost")


async def refused(task: AgentTask) -> None:
    """Fail because the gateway refuses a second request."""
    client = client_of(task)
    await client.ask(task.prompt)
    status, _ = await client.post({**client.body(), "n": 0})
    assert status == 400
    raise KeyError("no choices")


async def refused_once(task: AgentTask) -> None:
    """Ask otherwise after a refusal, then fail."""
    client = client_of(task)
    client.user(task.prompt, None)
    assert (await client.post({**client.body(), "n": 0}))[0] == 400
    assert (await client.post(client.body()))[0] == 200
    raise KeyError("lost")


async def refused_last(task: AgentTask) -> float:
    """End well although the gateway refuses a last request."""
    client = client_of(task)
    await client.ask(task.prompt)
    assert (await client.post({**client.body(), "n": 0}))[0] == 400
    return 0.5


async def exiting(task: AgentTask) -> None:
    """End the interpreter, or try to."""
    await client_of(task).ask(task.prompt)
    raise SystemExit(3)


hung: list[str] = []
"""Prompts of the agents that hang."""


async def hanging(task: AgentTask) -> None:
    """Ask once, then wait forever."""
    await client_of(task).ask(task.prompt)
    hung.append(task.prompt)
    await asyncio.Event().wait()


released = threading.Event()


async def stubborn(task: AgentTask) -> None:
    """Ask once, then refuse to be cancelled until released."""
    await client_of(task).ask(task.prompt)
    hung.append(task.prompt)
    while not released.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)


async def stuck(task: AgentTask) -> None:
    """Wait for a step that never ends."""
    await client_of(task).ask(task.prompt)
    await task.step("wait")


async def careless(task: AgentTask) -> str:
    """Ignore whatever a step raises."""
    said = await client_of(task).ask(task.prompt)
    with contextlib.suppress(Exception):
        step = await task.step(said.text)
        return step.observation["text"]
    return "gave up"


stragglers: list["asyncio.Task[object]"] = []


async def straggling(task: AgentTask) -> float:
    """Leave a task behind that takes a step later."""
    await client_of(task).ask(task.prompt)

    async def later() -> object:
        await asyncio.sleep(0.2)
        return await task.step("late")

    stragglers.append(asyncio.create_task(later()))
    return 1.0


async def unfinished(task: AgentTask) -> float:
    """Return a reward that no trainer takes."""
    await client_of(task).ask(task.prompt)
    return float("nan")


async def strange(task: AgentTask) -> Any:
    """Return something that is neither an answer nor a reward."""
    await client_of(task).ask(task.prompt)
    return {"reward": 1}


meeting = threading.Barrier(12)


def meeting_others(task: AgentTask) -> str:
    """Wait for eleven other episodes before asking."""
    meeting.wait(120)
    return blocking(task)


def blocking(task: AgentTask) -> str:
    """Ask with a blocking client, on a thread."""
    code = (
        "import json, sys, urllib.request as u\n"
        "url, key, prompt = sys.argv[1:]\n"
        "body = json.dumps({'model': 'm', 'messages': [{'role': 'user', 'content': prompt}]})\n"
        "head = {'authorization': 'Bearer ' + key, 'content-type': 'application/json'}\n"
        "got = u.urlopen(u.Request(url + '/chat/completions', body.encode(), head))\n"
        "print(json.load(got)['choices'][0]['message']['content'], end='')\n"
    )
    command = [sys.executable, "-c", code, task.base_url, task.api_key, task.prompt]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


async def titled(task: AgentTask) -> float:
    """Ask for a title without tools, then hold one conversation with them."""
    await ChatClient(task.url, task.api_key, system="Write a title.").ask(task.prompt)
    client = client_of(task)
    client.tools = True
    await client.ask(task.prompt, next(iter(task.images), None))
    await client.ask("Are you sure?")
    return 0.5


async def delegating(task: AgentTask) -> float:
    """As `titled`, then hand a part to a sub-agent and forget most of what was said."""
    await titled(task)
    image = next(iter(task.images), None)
    child = ChatClient(task.url, task.api_key, system="Search.", tools=True)
    await child.ask("Look closer.", image)
    client = client_of(task)
    client.tools = True
    client.items = [{"role": "assistant", "content": "I have looked."}]
    await client.ask("Sum up.")
    return 0.5


async def praising(task: AgentTask, expert: ChatClient | None = None) -> None:
    """Reward each "good" of three replies, the second one of an expert if there is one."""
    lead = client_of(task)
    lead.tools = True
    for number, client in enumerate((lead, expert or lead, lead)):
        said = await client.ask(f"{task.prompt} {number}")
        task.reward(10.0**number if said.text == "good" else 0)


async def relaying(task: AgentTask) -> None:
    """As `praising`, with a sub-agent as the expert."""
    await praising(task, ChatClient(task.url, task.api_key, system="Solve.", tools=True))
