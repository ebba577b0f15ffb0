#!/bin/bash
#SBATCH --job-name=thinwire
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --exclusive
#SBATCH --time=08:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# Trains on the cores of several whole nodes, as often as it takes.
#   sbatch [options] scripts/slurm/many_nodes_cpu.sh --config configs/llama_1b.json [key=value ...]
# Ranks fill one node after the other (--distribution=block:block), so neighbouring ranks share a node: that is where tensor
# parallelism and the inner level of two-level collectives belong. Each rank is bound to --cpus-per-task cores.
# The run directory must lie on a file system that all nodes see. A larger job saves longer: the warning comes five minutes early.
# A node that fails ends the job; --requeue lets Slurm start it again on others, and train goes on from its newest checkpoint.
# A rank that dies takes the step down with it (--kill-on-bad-exit); whether the job goes back into the queue is decided from
# status.json, and ends after three times without a new step. srun or Hydra, modules, container: as in one_node_cpu.sh, and the
# head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${SLURM_SUBMIT_DIR:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

tw_begin slurm scripts/slurm/many_nodes_cpu.sh "$@"
tw_run_slurm
