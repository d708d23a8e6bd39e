#!/usr/bin/env bash
# run.sh on one GPU with Qwen3-VL-2B. Every variable of run.sh can be set here too.
set -euo pipefail
export MODEL="${MODEL:-Qwen/Qwen3-VL-2B-Instruct}" GPUS="${GPUS:-1}" MEMORY="${MEMORY:-0.4}" OFFLOAD="${OFFLOAD:-true}"
export BATCH="${BATCH:-8}" MICRO_BATCH="${MICRO_BATCH:-1}" TASKS="${TASKS:-256}" EVAL_TASKS="${EVAL_TASKS:-64}"
export OUT="${OUT:-$PWD/runs/geo3k-skyrl-small}"
exec bash "$(dirname "$0")/run.sh" "$@"
