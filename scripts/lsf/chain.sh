#!/bin/bash
#BSUB -J thinwire_chain
#BSUB -n 8
#BSUB -R "span[hosts=1]"
#BSUB -W 4:00
#BSUB -wa USR1
#BSUB -wt 5
#BSUB -rn
#BSUB -o thinwire_chain.out
# A chain of jobs for sites where a job does not go back into the queue (-Q without effect, brequeue refused).
#   THINWIRE_ARGS="--config configs/gpt2_124m.json" bsub [options] < scripts/lsf/chain.sh
# Each job first submits its successor, which waits until this one has ended in whatever way: -w "ended(JOB)". So it is there even
# when this job is killed with its host; -rn keeps LSF from starting this one again beside it.
# Near the run limit the ranks save and leave, and the successor goes on. When the run is finished or failed for good (told from
# status.json), or came round three times without a new step, the successor is killed and the chain ends.
# To end a chain by hand: bkill the waiting job first. Put sizes, queue and project into a copy of this script: options on the
# command line hold for the first job only (THINWIRE_SCRIPT names the copy). Output of all jobs is added to one file.
# What else can be set (modules, container, site file): the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${LS_SUBCWD:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

tw_begin lsf_chain "${THINWIRE_SCRIPT:-scripts/lsf/chain.sh}" "$@"
tw_run_lsf "${THINWIRE_RANKS:-$LSB_DJOB_NUMPROC}" -bind-to core
