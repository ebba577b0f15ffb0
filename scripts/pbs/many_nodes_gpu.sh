#!/bin/bash
#PBS -N thinwire-gpu
#PBS -l select=4:ncpus=32:ngpus=4:mpiprocs=4:ompthreads=8
#PBS -l place=scatter:excl
#PBS -l walltime=08:00:00
#PBS -j oe
#PBS -r y
# Trains on the GPUs of several nodes under PBS, one rank per GPU, as often as it takes.
#   qsub -v THINWIRE_ARGS="--config configs/gpt20b.json" [options] scripts/pbs/many_nodes_gpu.sh
# select asks for four chunks; place=scatter puts each on a node of its own, excl keeps other jobs away. mpiprocs lines per chunk
# go into PBS_NODEFILE, which mpirun (Hydra) reads: ranks fill one node after the other.
# Cores only: a copy with select=4:ncpus=32:mpiprocs=8 and without tw_device=cuda.
# The program is build-cuda/train and device=cuda is added, unless THINWIRE_TRAIN and a device=... of yours say otherwise; every
# rank sees the GPUs of its node and takes the one of its local number.
# Own clock before the walltime, submitting itself again when status.json says so, at most three times without a new step,
# variables and their commas: as in one_node_cpu.sh. Modules, container, site file: the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${PBS_O_WORKDIR:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

tw_device=cuda
tw_begin pbs "${THINWIRE_SCRIPT:-scripts/pbs/many_nodes_gpu.sh}" "$@"
tw_run_pbs "${THINWIRE_RANKS:-$(wc -l <"$PBS_NODEFILE")}"
