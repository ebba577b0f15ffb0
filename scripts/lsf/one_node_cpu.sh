#!/bin/bash
#BSUB -J thinwire
#BSUB -n 8
#BSUB -R "span[hosts=1]"
#BSUB -W 4:00
#BSUB -wa USR1
#BSUB -wt 5
#BSUB -Q 99
#BSUB -r
#BSUB -o %J.out
# Trains on slots of one host with mpirun, as often as it takes.
#   THINWIRE_ARGS="--config configs/gpt2_124m.json" bsub [options] < scripts/lsf/one_node_cpu.sh
# bsub reads directives only from a script on its standard input, where no arguments can follow: train's go into THINWIRE_ARGS,
# which the job inherits with the rest of the environment. Options of bsub win over the lines above (-q QUEUE, -P PROJECT, -n).
# Five minutes before the run limit (-wt, in minutes) LSF sends USR1 to the job's processes; mpirun hands it to the ranks, which
# finish their step, save and leave. The script then reads status.json: when the run may go on it exits with 99, and -Q 99 puts the
# job back into the queue under its number; -r does the same when the host fails. It never exits with 99 for another reason, so
# a failed run (a bad configuration, say) stays ended, as does one that came round three times without a new step.
# Hydra (MPICH) knows LSF's list of hosts by itself. Modules, container, site file: the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${LS_SUBCWD:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

tw_begin lsf scripts/lsf/one_node_cpu.sh "$@"
tw_run_lsf "${THINWIRE_RANKS:-$LSB_DJOB_NUMPROC}" -bind-to core
