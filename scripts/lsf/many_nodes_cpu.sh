#!/bin/bash
#BSUB -J thinwire
#BSUB -n 128
#BSUB -R "span[ptile=32]"
#BSUB -x
#BSUB -W 8:00
#BSUB -wa USR1
#BSUB -wt 10
#BSUB -Q 99
#BSUB -r
#BSUB -o %J.out
# Trains on several hosts with mpirun, as often as it takes: -n ranks in all, ptile of them on each host, hosts not shared (-x).
#   THINWIRE_ARGS="--config configs/llama_1b.json" bsub [options] < scripts/lsf/many_nodes_cpu.sh
# Hydra reads LSF's host list and starts its proxies with blaunch, so no ssh between hosts is needed. Ranks fill one host after the
# other: neighbours share a host, which is where tensor parallelism belongs. With other threads per rank: ptile smaller, and
# -R "span[ptile=8] affinity[core(4)]".
# The run directory must lie on a file system that all hosts see.
# Warning ten minutes before the limit, back into the queue by exit code 99 when status.json says so, at most three times
# without a new step: as in one_node_cpu.sh. On machines with jsrun take many_nodes_jsrun.sh instead.
# Modules, container, site file: the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${LS_SUBCWD:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

tw_begin lsf scripts/lsf/many_nodes_cpu.sh "$@"
tw_run_lsf "${THINWIRE_RANKS:-$LSB_DJOB_NUMPROC}" -launcher lsf -bind-to core
