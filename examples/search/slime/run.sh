#!/usr/bin/env bash
# GRPO on search-v0 with slime 2a60f00d: Qwen3-4B, eight GPUs. As examples/geo3k/slime, whose README.md has the install lines.
# Set any of these variables in the environment; arguments are passed on to slime.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"

: "${SLIME:=/root/slime}" "${MEGATRON:=/root/Megatron-LM}"       # as in slime's image
: "${MODEL:=/root/models/Qwen3-4B}"                  # a folder
: "${MODEL_ARGS_FILE:=qwen3-4B}"                                 # of slime/scripts/models
: "${OUT:=$PWD/runs/search-slime}"
: "${NODES:=1}" "${GPUS:=8}" "${TP:=2}" "${TOKENS_PER_GPU:=9216}"
: "${STEPS:=1000}" "${BATCH:=64}" "${GROUP:=8}" "${EVAL_EVERY:=20}" "${SAVE_EVERY:=20}"
: "${RESPONSE:=4096}" "${CONTEXT:=}" "${EVAL_TASKS:=256}" "${WANDB:=0}"
: "${MAX_TURNS:=8}" "${CORPUS:=world}" "${PROTOCOL:=tags}"
: "${BACKEND:=}"                                                 # address of a Search-R1 server; empty: search in this process
export MAX_TURNS CORPUS PROTOCOL BACKEND

if ! grep -q -- --megatron-to-hf-mode "$SLIME/slime/utils/arguments.py"; then
  echo "$SLIME must be slime 2a60f00d: later commits ignore flags of this file, and read other checkpoints" >&2
  exit 2
fi
mkdir -p "$OUT" && OUT="$(cd "$OUT" && pwd)"
python3 -c 'import os, sys; print(os.path.expandvars(sys.stdin.read()))' <"$here/run.yaml" >"$OUT/run.yaml"
task=("max_turns=$MAX_TURNS" "corpus=$CORPUS" "protocol=$PROTOCOL")
if [[ -n "$BACKEND" ]]; then task+=("backend=$BACKEND"); fi
envkit export search-v0 --format slime --split test --rows "$EVAL_TASKS" "${task[@]/#/--env-kwargs=}" \
  --out "$OUT/test.jsonl" --overwrite

load="$MODEL"
if [[ -f "$OUT/checkpoints/latest_checkpointed_iteration.txt" ]]; then load="$OUT/checkpoints"; fi
args=(
  --train-backend megatron --hf-checkpoint "$MODEL" --load "$load" --megatron-to-hf-mode bridge
  --save "$OUT/checkpoints" --save-interval "$SAVE_EVERY"

  --custom-config-path "$OUT/run.yaml"
  --custom-generate-function-path envkit_slime.generate
  --data-source-path envkit_slime.DataSource
  --custom-reward-post-process-path envkit_slime.post_process_rewards
  --custom-rollout-log-function-path envkit_slime.log_rollout_data
  --custom-eval-rollout-log-function-path envkit_slime.log_eval_rollout_data
  --num-rollout "$STEPS" --rollout-batch-size "$BATCH" --n-samples-per-prompt "$GROUP"
  --global-batch-size $((BATCH * GROUP)) --rollout-shuffle
  --rollout-max-response-len "$RESPONSE" --rollout-temperature 1

  --eval-interval "$EVAL_EVERY" --eval-prompt-data search "$OUT/test.jsonl"
  --input-key prompt --label-key label --metadata-key metadata
  --n-samples-per-eval-prompt 1 --eval-max-response-len "$RESPONSE" --eval-temperature 0

  --advantage-estimator grpo --kl-loss-coef 0 --kl-loss-type low_var_kl --kl-coef 0
  --entropy-coef 0 --eps-clip 0.2 --eps-clip-high 0.28
  --optimizer adam --lr 1e-6 --lr-decay-style constant
  --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98

  --actor-num-nodes "$NODES" --actor-num-gpus-per-node "$GPUS" --rollout-num-gpus $((NODES * GPUS)) --colocate
  --rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.6
  --tensor-model-parallel-size "$TP" --pipeline-model-parallel-size 1 --context-parallel-size 1
  --expert-model-parallel-size 1 --expert-tensor-parallel-size 1
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
  --use-dynamic-batch-size --max-tokens-per-gpu "$TOKENS_PER_GPU" --log-probs-chunk-size 1024
  --attention-dropout 0 --hidden-dropout 0 --attention-backend flash
  --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32
)
if ((TP > 1)); then args+=(--sequence-parallel); fi
if [[ -n "$CONTEXT" ]]; then args+=(--rollout-max-context-len "$CONTEXT" --eval-max-context-len "$CONTEXT"); fi
if [[ "$WANDB" == 1 ]]; then args+=(--use-wandb --wandb-project search --wandb-group slime); fi

export CUDA_DEVICE_MAX_CONNECTIONS=1 PYTHONUNBUFFERED=1
export PYTHONPATH="$SLIME:$MEGATRON${PYTHONPATH:+:$PYTHONPATH}"
MODEL_ARGS=()
# shellcheck source=/dev/null
source "$SLIME/scripts/models/$MODEL_ARGS_FILE.sh"
cd "$SLIME"
exec python3 train.py "${MODEL_ARGS[@]}" "${args[@]}" "$@"
