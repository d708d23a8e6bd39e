#!/usr/bin/env bash
# Submits a launch file as a job to a running Ray cluster (RAY_API, by default this machine's):
#   bash ray_job.sh verl/run.sh GPUS=8 NODES=2 OUT=/shared/geo3k
# The settings after the file reach every worker of the job. slime and miles with Megatron also need
# PYTHONPATH and CUDA_DEVICE_MAX_CONNECTIONS=1 there. OUT and MODEL must be visible on all nodes.
set -euo pipefail
script="${1:?usage: bash ray_job.sh FOLDER/run.sh [NAME=VALUE ...]}"
env="$(python3 -c 'import json, sys; print(json.dumps({"env_vars": dict(one.split("=", 1) for one in sys.argv[1:])}))' "${@:2}")"
exec ray job submit --address="${RAY_API:-http://127.0.0.1:8265}" --runtime-env-json="$env" \
  --working-dir="$(dirname "$script")" -- bash "$(basename "$script")"
