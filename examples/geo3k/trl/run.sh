#!/usr/bin/env bash
# GRPO on geo3k-v0 with TRL 1.16.0: Qwen3-VL-2B, eight GPUs. See README.md.
# Set any of these variables in the environment; arguments are further options of train.py.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
# shellcheck source=/dev/null
if [[ -n "${PAPER:-}" ]]; then source "$here/paper.env"; fi

: "${MODEL:=Qwen/Qwen3-VL-2B-Instruct}"
: "${OUT:=$PWD/runs/geo3k-trl}"
: "${GPUS:=8}" "${PER_GPU:=4}" "${LAUNCH:=accelerate launch}" # LAUNCH="accelerate launch --num_machines 2 ..."
: "${STEPS:=3000}" "${BATCH:=64}" "${GROUP:=8}" "${EVAL_EVERY:=20}" "${SAVE_EVERY:=20}"
: "${RESPONSE:=4096}" "${TASKS:=2048}" "${EVAL_TASKS:=256}" "${WANDB:=0}"
: "${MAX_TURNS:=3}" "${ATTEMPTS:=3}" "${ZOOM:=true}" "${FEEDBACK_ROLE:=tool}"
: "${GEO3K:=}" # a folder of Geometry3K; empty: generated problems
export MAX_TURNS ATTEMPTS ZOOM FEEDBACK_ROLE GEO3K

if ((BATCH * GROUP % (GPUS * PER_GPU) != 0)); then
  echo "BATCH * GROUP = $((BATCH * GROUP)) must be a multiple of GPUS * PER_GPU = $((GPUS * PER_GPU))" >&2
  exit 2
fi
args=(
  --envkit "$here/envkit.yaml" --tasks "$TASKS" --eval_tasks "$EVAL_TASKS"
  --model_name_or_path "$MODEL" --dtype bfloat16 --output_dir "$OUT"

  --max_steps "$STEPS" --num_generations "$GROUP" --max_completion_length "$RESPONSE" --temperature 1
  --per_device_train_batch_size "$PER_GPU" --gradient_accumulation_steps $((BATCH * GROUP / (GPUS * PER_GPU)))
  --learning_rate 1e-6 --lr_scheduler_type constant --weight_decay 0.1 --adam_beta1 0.9 --adam_beta2 0.98
  --beta 0 --epsilon 0.2 --epsilon_high 0.28 --loss_type grpo --vllm_importance_sampling_correction false
  --gradient_checkpointing true

  --eval_strategy steps --eval_steps "$EVAL_EVERY" --num_generations_eval 1 --per_device_eval_batch_size 8
  --save_strategy steps --save_steps "$SAVE_EVERY" --save_total_limit 2
  --logging_steps 1 --run_name geo3k-trl
)
if [[ "$WANDB" == 1 ]]; then args+=(--report_to wandb); else args+=(--report_to none); fi
mode=()
if ((GPUS > 1)); then mode=(--multi_gpu); fi
read -ra launch <<<"$LAUNCH"
exec "${launch[@]}" ${mode[@]+"${mode[@]}"} --num_processes "$GPUS" --mixed_precision bf16 "$here/train.py" "${args[@]}" "$@"
