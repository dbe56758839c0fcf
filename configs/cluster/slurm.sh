#!/bin/bash
# Two nodes with eight GPUs each under Slurm: one task a node, and in it torchrun, which starts a process a GPU.
#
#   sbatch configs/cluster/slurm.sh run.yaml
#
# The working directory has to be on a file system that both nodes see: the run's folder is one, and so are its data and
# the hub's cache. Two minutes before its time is over the job is told to stop; it writes a checkpoint and is queued
# again, and the same command goes on from it.
#SBATCH --job-name=holdfast
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

config=${1:?"expected a configuration: sbatch slurm.sh run.yaml"}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=4

srun torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 8 \
  --rdzv_id "$SLURM_JOB_ID" --rdzv_backend c10d --rdzv_endpoint "$first:29500" \
  -m holdfast train --config "$config"
