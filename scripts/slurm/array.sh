#!/bin/bash
#SBATCH --job-name=thinwire-array
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A_%a.out
# Many runs of one size: element I of the array takes line I + 1 of a list, which holds the arguments of one run per line.
#   sbatch --array=0-11%4 [options] scripts/slurm/array.sh LIST        (%4: at most four at a time)
# Every line needs a run_dir of its own, in its configuration or as run_dir=...: two runs in one directory refuse each other (73).
# `scripts/sweep` writes such a list and submits this script with the sizes of the plan when its launcher is slurm.
# Each element is warned, saves and goes back into the queue for itself; its neighbours go on. scancel JOB_3 ends element 3 alone.
# Submitted again with the same list, finished runs end at once and the others continue: nothing is trained twice.
# THINWIRE_GPUS=1: the GPU program, one rank per GPU (add --gpus-per-node). The rest is as in one_node_cpu.sh; what else can be
# set (modules, container, site file, launcher): the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${SLURM_SUBMIT_DIR:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

[ -z "${THINWIRE_GPUS:-}" ] || tw_device=cuda
tw_begin_element slurm scripts/slurm/array.sh "${1:-}" "${SLURM_ARRAY_TASK_ID:-}" 0
tw_run_slurm
