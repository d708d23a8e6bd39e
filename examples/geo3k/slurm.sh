#!/usr/bin/env bash
#SBATCH --job-name=geo3k
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
# Starts a Ray cluster on the job's nodes and one launch file on the first:
#   sbatch slurm.sh verl/run.sh
# TRL needs no Ray: give its run.sh to sbatch directly.
set -euo pipefail
script="$(realpath "${1:?usage: sbatch slurm.sh FOLDER/run.sh [arguments]}")"
export NODES="$SLURM_JOB_NUM_NODES" GPUS="${GPUS:-${SLURM_GPUS_ON_NODE:-8}}" PORT="${PORT:-6379}"
HEAD="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
export HEAD SCRIPT="$script" RAY_ADDRESS="$HEAD:$PORT"
# Ray's workers inherit the environment of `ray start`, so export what they need before sbatch.
# shellcheck disable=SC2016
exec srun --kill-on-bad-exit=1 bash -c '
  if [[ "$(hostname -s)" == "${HEAD%%.*}" ]]; then
    env -u RAY_ADDRESS ray start --head --port="$PORT" --num-gpus="$GPUS" --disable-usage-stats
    count="import ray; ray.init(address=\"auto\", log_to_driver=False); print(sum(n[\"Alive\"] for n in ray.nodes()))"
    until (($(python3 -c "$count" 2>/dev/null || echo 0) >= NODES)); do sleep 2; done
    status=0
    bash "$SCRIPT" "$@" || status=$?
    ray stop
    exit "$status"
  fi
  until ray start --address="$RAY_ADDRESS" --num-gpus="$GPUS" --disable-usage-stats; do sleep 2; done
  while ray status >/dev/null 2>&1; do sleep 10; done
' bash "${@:2}"
