#!/usr/bin/env bash
# GRPO on search-v0 with SkyRL 0.4.0: Qwen2.5-3B, eight GPUs. As examples/geo3k/skyrl, whose README.md has the install line.
# Set any of these variables in the environment; arguments are further settings of SkyRL or envkit.
set -euo pipefail

: "${MODEL:=Qwen/Qwen2.5-3B-Instruct}"
: "${OUT:=$PWD/runs/search-skyrl}"
: "${NODES:=1}" "${GPUS:=8}" "${MEMORY:=0.6}" "${OFFLOAD:=false}"
: "${STEPS:=1000}" "${BATCH:=64}" "${GROUP:=8}" "${MICRO_BATCH:=4}" "${EVAL_EVERY:=20}" "${SAVE_EVERY:=20}"
: "${PROMPT:=1024}" "${RESPONSE:=4096}" "${TASKS:=2048}" "${EVAL_TASKS:=256}" "${WANDB:=0}"
: "${EPOCHS:=$((STEPS * BATCH / TASKS + 1))}" # SkyRL counts epochs, not steps
: "${MAX_TURNS:=8}" "${CORPUS:=world}" "${PROTOCOL:=tags}"
: "${BACKEND:=}" # address of `envkit serve-search` or another Search-R1 server; empty: search in each worker

mkdir -p "$OUT" && OUT="$(cd "$OUT" && pwd)"
task=("max_turns=$MAX_TURNS" "corpus=$CORPUS" "protocol=$PROTOCOL")
if [[ -n "$BACKEND" ]]; then task+=("backend=$BACKEND"); fi
for split in train test; do
  count="$([[ $split == train ]] && echo "$TASKS" || echo "$EVAL_TASKS")"
  envkit export search-v0 --format skyrl --split "$split" ${count:+--rows "$count"} "${task[@]/#/--env-kwargs=}" \
    --out "$OUT/$split.parquet" --overwrite
done

logger=console
if [[ "$WANDB" == 1 ]]; then logger=wandb; fi
args=(
  envkit.env_id=search-v0 envkit.merge=true
  envkit.limits.max_turns="$MAX_TURNS" envkit.limits.max_response_tokens="$RESPONSE"
  "data.train_data=['$OUT/train.parquet']" "data.val_data=['$OUT/test.parquet']"

  trainer.policy.model.path="$MODEL" trainer.strategy=fsdp trainer.policy.fsdp_config.cpu_offload="$OFFLOAD"
  trainer.placement.colocate_all=true trainer.placement.policy_num_nodes="$NODES"
  trainer.placement.critic_num_nodes="$NODES" trainer.placement.ref_num_nodes="$NODES"
  trainer.placement.policy_num_gpus_per_node="$GPUS" trainer.placement.critic_num_gpus_per_node="$GPUS"
  trainer.placement.ref_num_gpus_per_node="$GPUS"
  generator.inference_engine.num_engines=$((NODES * GPUS)) generator.inference_engine.tensor_parallel_size=1
  generator.inference_engine.backend=vllm generator.inference_engine.run_engines_locally=true
  generator.inference_engine.weight_sync_backend=nccl generator.inference_engine.gpu_memory_utilization="$MEMORY"

  trainer.algorithm.advantage_estimator=grpo trainer.algorithm.use_kl_loss=false
  trainer.algorithm.eps_clip_low=0.2 trainer.algorithm.eps_clip_high=0.28
  trainer.algorithm.loss_reduction=sequence_mean
  trainer.policy.optimizer_config.lr=1e-6 trainer.policy.optimizer_config.weight_decay=0.1
  "trainer.policy.optimizer_config.adam_betas=[0.9,0.98]" trainer.policy.optimizer_config.num_warmup_steps=0
  trainer.train_batch_size="$BATCH" trainer.policy_mini_batch_size="$BATCH" trainer.update_epochs_per_batch=1
  trainer.micro_forward_batch_size_per_gpu="$MICRO_BATCH" trainer.micro_train_batch_size_per_gpu="$MICRO_BATCH"
  trainer.max_prompt_length="$PROMPT" trainer.epochs="$EPOCHS"

  generator.step_wise_trajectories=true generator.batched=false
  generator.n_samples_per_prompt="$GROUP" generator.max_turns="$MAX_TURNS"
  generator.max_input_length=$((PROMPT + RESPONSE)) generator.sampling_params.max_generate_length="$RESPONSE"
  generator.sampling_params.temperature=1.0 generator.sampling_params.top_p=1.0
  generator.eval_n_samples_per_prompt=1 generator.eval_sampling_params.temperature=0.0
  generator.eval_sampling_params.max_generate_length="$RESPONSE"

  trainer.logger="$logger" trainer.project_name=search trainer.run_name=skyrl
  trainer.eval_interval="$EVAL_EVERY" trainer.eval_before_train=true trainer.eval_batch_size=256
  trainer.ckpt_interval="$SAVE_EVERY" trainer.max_ckpts_to_keep=2 trainer.resume_mode=latest
  trainer.ckpt_path="$OUT/checkpoints" trainer.export_path="$OUT/exports" trainer.log_path="$OUT/logs"
)
exec python3 -m envkit_skyrl.main "${args[@]}" "$@"
