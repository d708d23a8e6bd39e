"""The recording of `record_conformance.py` that an agent behind the gateway makes."""

from dataclasses import replace

from fakes.agent_clients import ChatClient
from fakes.playing import play_one

from envkit.env import Env, PolicyContext
from envkit.messages import text_of
from envkit.rollout import ScriptedEngine
from envkit.tokens import ChatCodec
from envkit.trajectory import Trajectory
from envkit_conformance.recordings import ABOUT_KEY, FILLER_KEY, NAME_KEY
from envkit_gateway import AgentTask

_CALL = '<tool_call>\n{"name": "add", "arguments": {"b":  2.0, "a": 1}}\n</tool_call>'
_ABOUT = (
    "an agent behind the gateway: a title with mask 0, a call answered with an image, a branch, a "
    "rejected reply with mask 0, a sub-agent, a rewritten history"
)


def write(context: PolicyContext) -> str:
    """Policy: a call for the first question, a broken call the first time that one is asked for."""
    said = text_of(context.messages[-1])
    if said.startswith("Room"):
        return "A gallery." if context.messages[0]["content"] == "Title." else f"I add.\n{_CALL}"
    if said == "Call again.":
        return "<tool_call>\n{"
    return f"{said.splitlines()[0] if said else 'Seen'}: three areas."


async def _agent(task: AgentTask) -> None:
    """Do what black-box agents do to a history."""

    def client(system: str, *, tools: bool = True) -> ChatClient:
        return ChatClient(task.url, task.api_key, system=system, tools=tools)

    await client("Title.", tools=False).ask(task.prompt, task.images[0])
    main = client("Look.")
    (call,) = (await main.ask(task.prompt, task.images[0])).calls
    step = await task.step("I look around.")
    first, second = step.observation["images"]
    main.result(call, "3", first)
    await main.ask()
    start = list(main.items)
    await client("Search.").ask("Find the red one.", second)
    for question in ("Left?", "Right?"):
        main.items = [*start]
        await main.ask(question)
    main.user("Call again.", None)
    for _ in range(2):
        await main.post(main.body())
    main.items = [start[0], {"role": "assistant", "content": "I looked around."}]
    said = await main.ask("Sum up.")
    await task.step(said.text)


async def record_agent(env: type[Env], engine: ScriptedEngine, codec: ChatCodec) -> Trajectory:
    """Play an episode of the agent."""
    facts = {NAME_KEY: "agent", ABOUT_KEY: _ABOUT, FILLER_KEY: codec.stop_ids[0]}
    made = await play_one(
        env, engine, codec, seed=11, episode_id="agent", metadata=facts, agent={"function": _agent}
    )
    return replace(made, env_id="gallery-v0")
