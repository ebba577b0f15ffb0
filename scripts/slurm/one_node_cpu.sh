#!/bin/bash
#SBATCH --job-name=thinwire
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# Trains on the cores of one node, as often as it takes.
#   sbatch [options] scripts/slurm/one_node_cpu.sh --config configs/gpt2_124m.json [key=value ...]
# Submit from the repository (or set THINWIRE_ROOT). Options of sbatch win over the lines above: --partition, --account and sizes
# need no edit. Ranks: --ntasks-per-node, each on --cpus-per-task cores of its own; the configuration says what they form.
# Two minutes before the time limit Slurm sends USR1 to this script alone, which asks the ranks to finish their step, save and
# leave. status.json of the run then says that it may go on, and the job goes back into the queue under its own number, writing on
# in the same output file. A run that failed for good is not queued again, nor one that came round three times without a new step.
# srun starts the ranks by PMI, which Slurm's plugin pmi2 serves for MPICH and its relatives (Open MPI: THINWIRE_PMI=pmix).
# THINWIRE_LAUNCHER=mpirun starts them by Hydra; the warning works there too, but scancel then ends the ranks before they can save.
# What else can be set (modules, container, site file, program): the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${SLURM_SUBMIT_DIR:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

tw_begin slurm scripts/slurm/one_node_cpu.sh "$@"
tw_run_slurm
