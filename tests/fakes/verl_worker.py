"""verl's real workers on CPU: the composed configuration, V0 and V1, one batch in, rows out."""

# pyright: reportMissingImports=false
# verl is installed only where its contract tests run.

import asyncio
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import verl.trainer
from fakes.models import tiny_model_dir
from fakes.verl_server import FakeTransferQueue, Policy, StrictVllmServer, make_client
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.experimental.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.utils import tensordict_utils
from verl.workers.config import model as verl_model
from verl.workers.rollout.llm_server import LLMServerClient

ROLLOUT = "actor_rollout_ref.rollout"
PROMPT, RESPONSE = 320, 192


@cache
def _base() -> Any:
    """Compose verl's own ppo_trainer.yaml."""
    values = {
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.prompt_length": PROMPT,
        f"{ROLLOUT}.response_length": RESPONSE,
        f"{ROLLOUT}.agent.num_workers": 1,
        f"{ROLLOUT}.calculate_log_probs": True,
    }
    folder = Path(verl.trainer.__file__).parent / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", overrides=[f"{k}={v}" for k, v in values.items()])
    OmegaConf.resolve(config)
    return config


def composed(model: Path | str, loops: Path | None = None, **overrides: Any) -> Any:
    """Return the real ppo_trainer configuration with some keys overridden (`__` for a dot)."""
    config = copy.deepcopy(_base())
    values = {"actor_rollout_ref.model.path": str(model), **overrides}
    if loops is not None:
        values[f"{ROLLOUT}.agent.agent_loop_config_path"] = str(loops)
    for key, value in values.items():
        OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    return config


_loaders = (verl_model.hf_tokenizer, verl_model.hf_processor)
_kept_loaders = tuple(cache(loader) for loader in _loaders)


def _keep_tokenizers(kept: bool) -> None:
    """Load each folder's tokenizer and processor once: they are most of a worker's start.

    False for a worker that gives them another chat template.
    """
    chosen = _kept_loaders if kept else _loaders
    verl_model.hf_tokenizer, verl_model.hf_processor = chosen


@dataclass(kw_only=True)
class Sample:
    """One row of a batch, as `RLHFDataset` and the trainer hand it to a worker."""

    envkit: str | None = None
    uid: str = "u0"
    index: int | None = 0
    extra_info: Mapping[str, Any] | None = None
    agent_name: str = "envkit"

    def columns(self) -> dict[str, Any]:
        extra = dict(self.extra_info or {})
        if self.index is not None:
            extra["index"] = self.index
        found = {
            "raw_prompt": [{"role": "user", "content": "The environment writes the prompt."}],
            "agent_name": self.agent_name,
            "uid": self.uid,
            "index": self.index or 0,
            "data_source": "test",
            "reward_model": {"style": "envkit", "ground_truth": ""},
            "extra_info": extra,
            "tools_kwargs": {},
            "interaction_kwargs": {},
        }
        return found if self.envkit is None else {**found, "envkit": self.envkit}


@dataclass(kw_only=True)
class Run:
    """What a worker made of a batch, one entry for each row it delivered."""

    rows: list[dict[str, Any]]
    """Columns by name, without padding; `extra_fields` as the trainer sees them."""
    server: StrictVllmServer
    worker: Any
    raw: Any
    """DataProto of V0, FakeTransferQueue of V1."""


def _objects(values: Sequence[Any]) -> Any:
    array = np.empty(len(values), dtype=object)
    array[:] = list(values)
    return array


class Bench:
    """A worker of one kind with a fake server behind the real client."""

    def __init__(
        self,
        version: str,
        folder: Path,
        policy: Policy,
        *,
        loop: Mapping[str, Any] | None = None,
        model: str | Path = "llama",
        client_class: type[Any] = LLMServerClient,
        max_model_len: int | None = None,
        config: Any = None,
        **overrides: Any,
    ) -> None:
        """Make the worker.

        Args:
            version: "v0" or "v1".
            folder: For the loop's YAML file.
            policy: What the server answers.
            loop: Keys of the loop's YAML entry.
            model: A tiny model, by name or folder.
            client_class: verl's client.
            max_model_len: Of the server.
            config: A whole configuration, instead of what the arguments would compose.
            overrides: Keys of the configuration, `__` for a dot.
        """
        self.version = version
        entry = {"name": "envkit", "_target_": "envkit_verl.EnvAgentLoop", **(loop or {})}
        path = folder / f"loops-{version}.yaml"
        path.write_text(OmegaConf.to_yaml(OmegaConf.create([entry])))
        place = tiny_model_dir(model) if isinstance(model, str) else model
        if max_model_len is not None:
            overrides[f"{ROLLOUT}.max_model_len"] = max_model_len
        self.config = composed(place, path, **overrides) if config is None else config
        self.queue = FakeTransferQueue()
        self.server = StrictVllmServer(policy, None, max_model_len=max_model_len or 4096)
        self.client = make_client(self.config, self.server, client_class=client_class)
        _keep_tokenizers(not any("custom_chat_template" in key for key in overrides))
        if version == "v0":
            self.worker = AgentLoopWorker(self.config, self.client)
        else:
            agent_loop_tq.tq = self.queue
            worker_class = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
            self.worker = worker_class(self.config, self.client)
        self.server.tokenizer, self.server.processor = self.worker.tokenizer, self.worker.processor

    async def run(self, samples: Sequence[Sample], *, n: int = 1, validate: bool = False) -> Run:
        """Generate for every sample, `n` times, as the trainer asks for it."""
        if self.version == "v0":
            return await self._run_v0(samples, n, validate)
        return await self._run_v1(samples, n, validate)

    async def run_stock(self, samples: Sequence[Sample]) -> Any:
        """Generate with a loop of verl's own in V0, and return its DataProto."""
        return await self.worker.generate_sequences(_batch_v0([s.columns() for s in samples]))

    async def _run_v0(self, samples: Sequence[Sample], n: int, validate: bool) -> Run:
        columns = [sample.columns() for sample in samples for _ in range(n)]
        out = await self.worker.generate_sequences(_batch_v0(columns, validate=validate))
        rows = [self._row_v0(out, number) for number in range(len(out))]
        return Run(rows=rows, server=self.server, worker=self.worker, raw=out)

    def _row_v0(self, out: Any, number: int) -> dict[str, Any]:
        batch, width = out.batch, out.batch["prompts"].shape[1]
        attended = batch["attention_mask"][number].bool()
        prompt, response = attended[:width], attended[width:]
        row = {key: value[number] for key, value in out.non_tensor_batch.items()}
        row |= {
            "prompts": batch["prompts"][number][prompt],
            "input_ids": batch["input_ids"][number][attended],
            "position_ids": batch["position_ids"][number][..., attended],
            **{
                key: batch[key][number][response]
                for key in ("responses", "response_mask", "rollout_log_probs", "rm_scores")
                if key in batch.keys()  # noqa: SIM118  # a TensorDict
            },
            "num_turns": out.non_tensor_batch["__num_turns__"][number],
            "reward_score": float(batch["rm_scores"][number].sum()),
        }
        if "routed_experts" in batch.keys():  # noqa: SIM118  # a TensorDict
            row["routed_experts"] = batch["routed_experts"][number][attended]
        return row

    async def _run_v1(self, samples: Sequence[Sample], n: int, validate: bool) -> Run:
        columns = [sample.columns() for sample in samples]
        batch = tensordict_utils.get_tensordict({
            **{key: _objects([row[key] for row in columns]) for key in columns[0]},
            "dummy_tensor": torch.zeros(len(columns), 1, dtype=torch.uint8),
        })  # fmt: skip
        tensordict_utils.assign_non_tensor_data(batch, "global_steps", 3)
        if validate:
            tensordict_utils.assign_non_tensor_data(batch, "validate", True)
        self.config.actor_rollout_ref.rollout.n = n
        await self.worker.generate_sequences(batch)
        await asyncio.gather(*list(self.worker.background_tasks))
        rows = [row for put in self.queue.puts for row in _rows_v1(*put)]
        return Run(rows=rows, server=self.server, worker=self.worker, raw=self.queue)


def _batch_v0(columns: Sequence[Mapping[str, Any]], *, validate: bool = False) -> Any:
    return DataProto.from_dict(
        tensors={"dummy_tensor": torch.zeros(len(columns), 1, dtype=torch.uint8)},
        non_tensors={key: _objects([row[key] for row in columns]) for key in columns[0]},
        meta_info={"global_steps": 3, "validate": validate},
    )


def _rows_v1(keys: list[str], fields: Any, tags: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, (key, tag) in enumerate(zip(keys, tags, strict=True)):
        row: dict[str, Any] = {"key": key, "tag": tag}
        for name in fields.keys():  # noqa: SIM118  # a TensorDict
            value = fields[name][number]
            row[name] = value if isinstance(value, torch.Tensor) else getattr(value, "data", value)
        extra = row["extra_fields"]
        row |= {**extra, "reward_score": float(row["rm_scores"].sum())}
        rows.append(row)
    return rows
