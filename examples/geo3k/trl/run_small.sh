#!/usr/bin/env bash
# run.sh on one GPU. Every variable of run.sh can be set here too.
set -euo pipefail
export GPUS="${GPUS:-1}" BATCH="${BATCH:-8}" TASKS="${TASKS:-256}" EVAL_TASKS="${EVAL_TASKS:-64}"
export OUT="${OUT:-$PWD/runs/geo3k-trl-small}"
exec bash "$(dirname "$0")/run.sh" "$@"
