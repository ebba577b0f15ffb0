#!/bin/bash
#SBATCH --job-name=thinwire-chain
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --no-requeue
#SBATCH --dependency=singleton
#SBATCH --open-mode=append
#SBATCH --output=%x.out
# A chain of jobs for sites that do not let jobs go back into the queue (JobRequeue=0, scontrol requeue refused).
#   sbatch --job-name=my_run [options] scripts/slurm/chain.sh --config configs/gpt2_124m.json [key=value ...]
# Each job first submits its successor, which waits: --dependency=singleton lets only one job of a name (and user) run at a time,
# so the name stands for the run. Give each run its own. The successor is there even when this job is killed with its node.
# Near the time limit the ranks save and leave, and the successor goes on. When the run is finished or failed for good (told from
# status.json), or came round three times without a new step, the successor is cancelled and the chain ends.
# To end a chain by hand: scancel --name=my_run. Options given to sbatch are not remembered by Slurm; the successor is submitted
# with this job's sizes, GPUs per node, memory, partition, account and QOS. Output of all jobs goes to one file, my_run.out.
# THINWIRE_GPUS=1: the GPU program, one rank per GPU (add --gpus-per-node).
# Launcher, modules, container, site file: as in one_node_cpu.sh and the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${SLURM_SUBMIT_DIR:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

[ -z "${THINWIRE_GPUS:-}" ] || tw_device=cuda
tw_begin slurm_chain scripts/slurm/chain.sh "$@"
tw_run_slurm
