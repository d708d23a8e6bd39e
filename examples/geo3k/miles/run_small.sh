#!/usr/bin/env bash
# run.sh on one GPU, with FSDP. Every variable of run.sh can be set here too.
set -euo pipefail
export BACKEND="${BACKEND:-fsdp}" GPUS="${GPUS:-1}" TP="${TP:-1}" BATCH="${BATCH:-8}" EVAL_TASKS="${EVAL_TASKS:-64}"
export OUT="${OUT:-$PWD/runs/geo3k-miles-small}"
exec bash "$(dirname "$0")/run.sh" "$@"
