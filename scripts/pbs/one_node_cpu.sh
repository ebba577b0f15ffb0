#!/bin/bash
#PBS -N thinwire
#PBS -l select=1:ncpus=32:mpiprocs=8:ompthreads=4
#PBS -l place=pack:excl
#PBS -l walltime=04:00:00
#PBS -j oe
#PBS -r y
# Trains on the cores of one node under PBS, as often as it takes.
#   qsub -v THINWIRE_ARGS="--config configs/gpt2_124m.json" [options] scripts/pbs/one_node_cpu.sh
# A PBS script gets no arguments, and only the variables that -v names. -v does not take a value with commas unquoted: put such
# arguments into a file, one per line, and pass THINWIRE_ARGS_FILE=/path instead. Queue and project: -q and -A or -P.
# PBS gives no warning before the walltime, only TERM with seconds to go: the script sets a clock of its own (THINWIRE_WARN
# seconds before the limit, 120 unless said), at which the ranks finish their step, save and leave.
# A user may not put a job back into the queue here (qrerun is for operators): when status.json says that the run may go on, the
# script submits itself again, with the sizes of the lines above; sizes other than these belong into a copy, which
# THINWIRE_SCRIPT names. A run that failed for good stays ended, as does one that came round three times without a new step.
# mpirun (Hydra) reads the hosts from PBS_NODEFILE. Modules, container, site file: the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${PBS_O_WORKDIR:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

tw_begin pbs "${THINWIRE_SCRIPT:-scripts/pbs/one_node_cpu.sh}" "$@"
tw_run_pbs "${THINWIRE_RANKS:-$(wc -l <"$PBS_NODEFILE")}" -bind-to "core:${OMP_NUM_THREADS:-1}"
