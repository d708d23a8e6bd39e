#!/usr/bin/env bash
# GRPO on geo3k-v0 with miles 31f1ca96: Qwen3-VL-2B, eight GPUs. See README.md.
# Set any of these variables in the environment; arguments are passed on to miles.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
# shellcheck source=/dev/null
if [[ -n "${PAPER:-}" ]]; then source "$here/paper.env"; fi

: "${MILES:=/root/miles}" "${MEGATRON:=/root/Megatron-LM}"       # as in miles' image
: "${BACKEND:=megatron}"                                         # or fsdp, without tensor parallelism
: "${MODEL:=/root/models/Qwen3-VL-2B-Instruct}"                  # a folder
: "${MODEL_ARGS_FILE:=qwen3-1.7B}"                               # the text model: qwen3-8B for Qwen3-VL-8B
: "${OUT:=$PWD/runs/geo3k-miles}"
: "${NODES:=1}" "${GPUS:=8}" "${TP:=4}" "${TOKENS_PER_GPU:=4096}"
: "${STEPS:=3000}" "${BATCH:=64}" "${GROUP:=8}" "${EVAL_EVERY:=20}" "${SAVE_EVERY:=20}"
: "${RESPONSE:=4096}" "${CONTEXT:=}" "${EVAL_TASKS:=256}" "${WANDB:=0}"
: "${MAX_TURNS:=3}" "${ATTEMPTS:=3}" "${ZOOM:=true}" "${FEEDBACK_ROLE:=tool}"
: "${GEO3K:=}"                                                   # a folder of Geometry3K; empty: generated problems
export MAX_TURNS ATTEMPTS ZOOM FEEDBACK_ROLE GEO3K

mkdir -p "$OUT" && OUT="$(cd "$OUT" && pwd)"
python3 -c 'import os, sys; print(os.path.expandvars(sys.stdin.read()))' <"$here/run.yaml" >"$OUT/run.yaml"
task=("max_turns=$MAX_TURNS" "max_scored_attempts=$ATTEMPTS" "zoom=$ZOOM" "feedback_role=$FEEDBACK_ROLE")
count=(-n "$EVAL_TASKS")
if [[ -n "$GEO3K" ]]; then task+=("data=$GEO3K") count=(); fi
envkit export geo3k-v0 --format slime --split test ${count[@]+"${count[@]}"} "${task[@]/#/--env-kwargs=}" \
  --out "$OUT/test.jsonl" --overwrite

load="$MODEL"
if [[ -f "$OUT/checkpoints/latest_checkpointed_iteration.txt" ]]; then load="$OUT/checkpoints"; fi
args=(
  --train-backend "$BACKEND" --hf-checkpoint "$MODEL"
  --save "$OUT/checkpoints" --save-interval "$SAVE_EVERY"

  --custom-config-path "$OUT/run.yaml"
  --custom-generate-function-path envkit_miles.generate
  --data-source-path envkit_miles.DataSource
  --custom-reward-post-process-path envkit_miles.post_process_rewards
  --custom-rollout-log-function-path envkit_miles.log_rollout_data
  --custom-eval-rollout-log-function-path envkit_miles.log_eval_rollout_data
  --num-rollout "$STEPS" --rollout-batch-size "$BATCH" --n-samples-per-prompt "$GROUP"
  --global-batch-size $((BATCH * GROUP)) --rollout-shuffle
  --rollout-max-response-len "$RESPONSE" --rollout-temperature 1

  --eval-interval "$EVAL_EVERY" --eval-prompt-data geo3k "$OUT/test.jsonl"
  --input-key prompt --label-key label --metadata-key metadata
  --n-samples-per-eval-prompt 1 --eval-max-response-len "$RESPONSE" --eval-temperature 0

  --advantage-estimator grpo --kl-loss-coef 0 --kl-loss-type low_var_kl --kl-coef 0
  --entropy-coef 0 --eps-clip 0.2 --eps-clip-high 0.28
  --optimizer adam --lr 1e-6 --lr-decay-style constant
  --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98

  --actor-num-nodes "$NODES" --actor-num-gpus-per-node "$GPUS" --rollout-num-gpus $((NODES * GPUS)) --colocate
  --rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.6
  --use-dynamic-batch-size --max-tokens-per-gpu "$TOKENS_PER_GPU" --log-probs-chunk-size 1024
)
export PYTHONUNBUFFERED=1 PYTHONPATH="$MILES:$MEGATRON${PYTHONPATH:+:$PYTHONPATH}"
if [[ "$BACKEND" == megatron ]]; then
  export CUDA_DEVICE_MAX_CONNECTIONS=1
  export MODEL_ARGS_ROTARY_BASE=5000000 # of Qwen3-VL; the default is that of the text model
  model_line="$(python3 "$MILES/miles/utils/external_utils/model_args_utils.py" "$MODEL_ARGS_FILE")"
  read -ra model_args <<<"$model_line"
  args+=(
    "${model_args[@]}" --load "$load" --megatron-to-hf-mode bridge
    --tensor-model-parallel-size "$TP" --pipeline-model-parallel-size 1 --context-parallel-size 1
    --expert-model-parallel-size 1 --expert-tensor-parallel-size 1
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
    --attention-dropout 0 --hidden-dropout 0 --attention-backend flash
    --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32
  )
  if ((TP > 1)); then args+=(--sequence-parallel); fi
else
  args+=(
    --gradient-checkpointing --attn-implementation flash_attention_3
    --sglang-attention-backend fa3 --update-weight-buffer-size 536870912
  )
  if [[ "$load" != "$MODEL" ]]; then args+=(--load "$load"); fi
fi
if [[ -n "$CONTEXT" ]]; then args+=(--rollout-max-context-len "$CONTEXT" --eval-max-context-len "$CONTEXT"); fi
if [[ "$WANDB" == 1 ]]; then args+=(--use-wandb --wandb-project geo3k --wandb-group miles); fi

cd "$MILES"
exec python3 train.py "${args[@]}" "$@"
