#!/bin/bash
#PBS -N thinwire-array
#PBS -l select=1:ncpus=4:mpiprocs=4
#PBS -l walltime=01:00:00
#PBS -j oe
#PBS -r y
# Many runs of one size under PBS: element I of the array takes line I + 1 of a list, which holds the arguments of one run per line.
#   qsub -J 0-11 -v THINWIRE_LIST=$PWD/runs.txt [options] scripts/pbs/array.sh
# -J is given on the command line, not here: an element that goes on after its walltime is submitted again as a job of its own,
# with THINWIRE_INDEX in place of PBS_ARRAY_INDEX, and a directive could not be taken back. PBS wants at least two elements.
# Every line needs a run_dir of its own, in its configuration or as run_dir=...: two runs in one directory refuse each other (73).
# `scripts/sweep` writes such a list and submits this script with the sizes of the plan when its launcher is pbs.
# Own clock before the walltime, going on from status.json, at most three times without a new step: as in one_node_cpu.sh.
# What else can be set (modules, container, site file): the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${PBS_O_WORKDIR:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

[ -z "${THINWIRE_GPUS:-}" ] || tw_device=cuda
tw_begin_element pbs "${THINWIRE_SCRIPT:-scripts/pbs/array.sh}" "${THINWIRE_LIST:-}" "${PBS_ARRAY_INDEX:-${THINWIRE_INDEX:-}}" 0
tw_run_pbs "${THINWIRE_RANKS:-$(wc -l <"$PBS_NODEFILE")}"
