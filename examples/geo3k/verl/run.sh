#!/usr/bin/env bash
# GRPO on geo3k-v0 with verl 0.9.1: Qwen3-VL-8B, eight GPUs. See README.md.
# Set any of these variables in the environment; arguments are further overrides of verl's configuration.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
# shellcheck source=/dev/null
if [[ -n "${PAPER:-}" ]]; then source "$here/paper.env"; fi

: "${MODEL:=Qwen/Qwen3-VL-8B-Instruct}"
: "${OUT:=$PWD/runs/geo3k-verl}"
: "${NODES:=1}" "${GPUS:=8}" "${TP:=1}" "${MEMORY:=0.6}" "${OFFLOAD:=False}"
: "${STEPS:=3000}" "${BATCH:=64}" "${GROUP:=8}" "${EVAL_EVERY:=20}" "${SAVE_EVERY:=20}"
: "${PROMPT:=1024}" "${RESPONSE:=4096}" "${TASKS:=2048}" "${EVAL_TASKS:=256}" "${WANDB:=0}"
: "${TOKENS_PER_GPU:=$((PROMPT + RESPONSE > 16384 ? PROMPT + RESPONSE : 16384))}" # at least one whole row
: "${MAX_TURNS:=3}" "${ATTEMPTS:=3}" "${ZOOM:=true}" "${FEEDBACK_ROLE:=tool}"
: "${GEO3K:=}" # a folder of Geometry3K; empty: generated problems
export MAX_TURNS

mkdir -p "$OUT" && OUT="$(cd "$OUT" && pwd)"
python3 -c 'import os, sys; print(os.path.expandvars(sys.stdin.read()))' <"$here/envkit.yaml" >"$OUT/envkit.yaml"
task=("max_turns=$MAX_TURNS" "max_scored_attempts=$ATTEMPTS" "zoom=$ZOOM" "feedback_role=$FEEDBACK_ROLE")
if [[ -n "$GEO3K" ]]; then task+=("data=$GEO3K") TASKS="" EVAL_TASKS=""; fi
for split in train test; do
  count="$([[ $split == train ]] && echo "$TASKS" || echo "$EVAL_TASKS")"
  envkit export geo3k-v0 --format verl --split "$split" ${count:+--rows "$count"} "${task[@]/#/--env-kwargs=}" \
    --out "$OUT/$split.parquet" --overwrite
done

logger=console
if [[ "$WANDB" == 1 ]]; then logger=console,wandb; fi
args=(
  data.train_files="$OUT/train.parquet" data.val_files="$OUT/test.parquet" data.train_batch_size="$BATCH"
  data.max_prompt_length="$PROMPT" data.max_response_length="$RESPONSE"
  data.filter_overlong_prompts=True data.truncation=error

  algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False
  actor_rollout_ref.model.path="$MODEL"
  actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.model.enable_gradient_checkpointing=True

  actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.fsdp_config.param_offload="$OFFLOAD"
  actor_rollout_ref.actor.fsdp_config.optimizer_offload="$OFFLOAD" actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.optim.weight_decay=0.1 "actor_rollout_ref.actor.optim.betas=[0.9,0.98]"
  actor_rollout_ref.actor.ppo_mini_batch_size="$BATCH" actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu="$TOKENS_PER_GPU" actor_rollout_ref.actor.use_kl_loss=False
  actor_rollout_ref.actor.entropy_coeff=0 actor_rollout_ref.actor.clip_ratio_low=0.2
  actor_rollout_ref.actor.clip_ratio_high=0.28 actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean

  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size="$TP"
  actor_rollout_ref.rollout.gpu_memory_utilization="$MEMORY" actor_rollout_ref.rollout.n="$GROUP"
  actor_rollout_ref.rollout.temperature=1.0 actor_rollout_ref.rollout.calculate_log_probs=True
  actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu="$TOKENS_PER_GPU"
  actor_rollout_ref.rollout.multi_turn.enable=True
  actor_rollout_ref.rollout.multi_turn.max_assistant_turns="$MAX_TURNS"
  actor_rollout_ref.rollout.agent.agent_loop_config_path="$OUT/envkit.yaml"
  actor_rollout_ref.rollout.agent.default_agent_loop=envkit

  "trainer.logger=[$logger]" trainer.project_name=geo3k trainer.experiment_name=verl
  trainer.nnodes="$NODES" trainer.n_gpus_per_node="$GPUS"
  trainer.total_training_steps="$STEPS" trainer.total_epochs="$STEPS"
  trainer.test_freq="$EVAL_EVERY" trainer.save_freq="$SAVE_EVERY" trainer.max_actor_ckpt_to_keep=2
  trainer.default_local_dir="$OUT/checkpoints" trainer.resume_mode=auto
)
exec python3 -m verl.trainer.main_ppo "${args[@]}" "$@"
