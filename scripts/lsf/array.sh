#!/bin/bash
#BSUB -J "thinwire_array[1-12]%4"
#BSUB -n 4
#BSUB -R "span[hosts=1]"
#BSUB -W 1:00
#BSUB -wa USR1
#BSUB -wt 5
#BSUB -Q 99
#BSUB -r
#BSUB -o %J_%I.out
# Many runs of one size: element I of the array takes line I of a list, which holds the arguments of one run per line.
#   THINWIRE_LIST=runs.txt bsub -J "my_array[1-12]%4" [options] < scripts/lsf/array.sh        (%4: at most four at a time)
# Indices begin at 1. A name of your own with as many indices as the list has lines goes on the command line, as shown.
# Every line needs a run_dir of its own, in its configuration or as run_dir=...: two runs in one directory refuse each other (73).
# `scripts/sweep` writes such a list and submits this script with the sizes of the plan when its launcher is lsf.
# Each element is warned, saves and goes back into the queue for itself (exit code 99, see one_node_cpu.sh). bkill "JOB[3]" ends
# element 3 alone. Submitted again with the same list, finished runs end at once and the others continue.
# What else can be set (modules, container, site file): the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${LS_SUBCWD:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

[ -z "${THINWIRE_GPUS:-}" ] || tw_device=cuda
tw_begin_element lsf scripts/lsf/array.sh "${THINWIRE_LIST:-}" "${LSB_JOBINDEX:-}" 1
tw_run_lsf "${THINWIRE_RANKS:-$LSB_DJOB_NUMPROC}"
