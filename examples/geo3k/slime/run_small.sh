#!/usr/bin/env bash
# run.sh on one GPU. Every variable of run.sh can be set here too.
set -euo pipefail
export GPUS="${GPUS:-1}" TP="${TP:-1}" BATCH="${BATCH:-8}" EVAL_TASKS="${EVAL_TASKS:-64}"
export OUT="${OUT:-$PWD/runs/geo3k-slime-small}"
exec bash "$(dirname "$0")/run.sh" \
  --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer "$@"
