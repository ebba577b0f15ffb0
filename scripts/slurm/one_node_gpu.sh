#!/bin/bash
#SBATCH --job-name=thinwire-gpu
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# Trains on the GPUs of one node, one rank per GPU, as often as it takes.
#   sbatch [options] scripts/slurm/one_node_gpu.sh --config configs/gpt2_124m.json [key=value ...]
# The program is build-cuda/train and device=cuda is added, unless THINWIRE_TRAIN and a device=... of yours say otherwise.
# Every rank sees all GPUs of the node (--gpu-bind=none) and takes the one of its local number: with one visible GPU each, NCCL
# could not open the direct paths between them. Cores are bound per rank, near enough for staging and data.
# Walltime warning, queueing again from status.json, at most three times without a new step: as in one_node_cpu.sh.
# Sites that name GPUs otherwise: sbatch --gres=gpu:a100:4 --gpus-per-node=0 scripts/slurm/one_node_gpu.sh ...
# Modules, container (apptainer gets --nv), site file: the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${SLURM_SUBMIT_DIR:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

tw_device=cuda
tw_begin slurm scripts/slurm/one_node_gpu.sh "$@"
tw_run_slurm
