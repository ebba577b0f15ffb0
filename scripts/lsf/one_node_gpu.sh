#!/bin/bash
#BSUB -J thinwire-gpu
#BSUB -n 4
#BSUB -R "span[hosts=1] affinity[core(8)]"
#BSUB -gpu "num=4:mode=shared:j_exclusive=yes"
#BSUB -W 4:00
#BSUB -wa USR1
#BSUB -wt 5
#BSUB -Q 99
#BSUB -r
#BSUB -o %J.out
# Trains on the GPUs of one host, one rank per GPU, as often as it takes.
#   THINWIRE_ARGS="--config configs/gpt2_124m.json" bsub [options] < scripts/lsf/one_node_gpu.sh
# -gpu asks for four GPUs of the host that no other job uses (j_exclusive). Their mode stays "shared": in exclusive_process mode a
# second process on a GPU is refused, and NCCL and the ranks open more than one context while they start.
# The program is build-cuda/train and device=cuda is added, unless THINWIRE_TRAIN and a device=... of yours say otherwise.
# Every rank sees the four GPUs and takes the one of its local number. affinity[core(8)] gives each slot eight cores.
# Warning five minutes before the limit, back into the queue by exit code 99 when status.json says so, at most three times without
# a new step: as in one_node_cpu.sh. Modules, container (with --nv), site file: the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${LS_SUBCWD:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

tw_device=cuda
tw_begin lsf scripts/lsf/one_node_gpu.sh "$@"
tw_run_lsf "${THINWIRE_RANKS:-$LSB_DJOB_NUMPROC}"
