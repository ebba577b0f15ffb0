#!/bin/bash
# flux: --job-name=thinwire-gpu
# flux: --nodes=4
# flux: --exclusive
# flux: --time-limit=8h
# flux: --signal=USR1@5m
# flux: --output=thinwire-gpu-{{id}}.out
# Trains on the GPUs of several whole nodes under Flux, one rank per GPU, as often as it takes.
#   flux batch [options] scripts/flux/many_nodes_gpu.sh --config configs/gpt20b.json [key=value ...]
# `flux run --tasks-per-node` fills the nodes with THINWIRE_RANKS_PER_NODE ranks (4 unless said; as many as a node has GPUs). With
# gpu-affinity=off every rank sees all GPUs of its node and takes the one of its local number: with one visible GPU each, the
# direct paths between them stay closed. Cores are bound per rank.
# The program is build-cuda/train and device=cuda is added, unless THINWIRE_TRAIN and a device=... of yours say otherwise.
# Cores only: THINWIRE_TRAIN=./train and device=cpu, with THINWIRE_RANKS_PER_NODE as wanted.
# Signal before the limit, submitting itself again when status.json says so, at most three times without a new step: as in
# one_node_cpu.sh. Modules, container (with --nv), site file: the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-.}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

tw_device=cuda
tw_begin flux "${THINWIRE_SCRIPT:-scripts/flux/many_nodes_gpu.sh}" "$@"
nodes=${THINWIRE_NODES:-$(flux resource list -s up -no '{nnodes}')}
each=${THINWIRE_RANKS_PER_NODE:-4}
tw_check $((nodes * each))
tw_launch flux run --nodes="$nodes" --tasks-per-node="$each" --exclusive -o cpu-affinity=per-task -o gpu-affinity=off
tw_end
