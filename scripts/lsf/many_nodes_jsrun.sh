#!/bin/bash
#BSUB -J thinwire-jsrun
#BSUB -nnodes 4
#BSUB -alloc_flags "smt1"
#BSUB -W 2:00
#BSUB -wa USR1
#BSUB -wt 10
#BSUB -Q 99
#BSUB -o %J.out
# Trains on whole nodes of a machine of the Summit or Lassen kind (LSF with CSM), ranks started by jsrun in resource sets.
#   THINWIRE_ARGS="--config configs/gpt20b.json" bsub -P PROJECT [options] < scripts/lsf/many_nodes_jsrun.sh
# Defaults are Summit's 42 cores per node and 6 ranks (THINWIRE_RANKS_PER_NODE), without its GPUs: CUDA 13 knows no V100 any more.
# Lassen: THINWIRE_CORES_PER_NODE=40. A machine of this kind with A100 or newer: THINWIRE_GPUS_PER_NODE=6, say, which is its ranks, too.
# A resource set is a part of one node, and each rank has one. With GPUs it is the whole node: -n sets, one per node (-r 1), each with
# all its ranks (-a), cores (-c) and GPUs (-g), so that every rank sees all GPUs of its node and NCCL can open the direct paths between
# them; the rank takes the GPU of its local number. -b packed:C binds it to C cores of its own, -d packed fills one node after the other.
# The script runs on a launch node, which LSF lists first and which holds no rank.
# jsrun is in the job's process group and gets the warning (-wa, -wt minutes early) with it; it hands signals on to the ranks.
# Back into the queue by exit code 99 when status.json says so, three times at most without a new step: as in one_node_cpu.sh;
# where a site refuses -Q use chain.sh. Modules, site file: the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${LS_SUBCWD:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

gpus=${THINWIRE_GPUS_PER_NODE:-0} cores=${THINWIRE_CORES_PER_NODE:-42}
[ "$gpus" -eq 0 ] || tw_device=cuda
tw_begin lsf scripts/lsf/many_nodes_jsrun.sh "$@"
nodes=${THINWIRE_NODES:-$(tw_lsf_nodes)}
each=$gpus
[ "$gpus" -gt 0 ] || each=${THINWIRE_RANKS_PER_NODE:-6}
share=$((cores / each))
tw_check $((nodes * each))
if [ "$gpus" -gt 0 ]; then
  tw_launch jsrun -n "$nodes" -r 1 -a "$each" -c "$cores" -g "$gpus" -b "packed:$share" -d packed -l gpu-cpu
else
  tw_launch jsrun -n $((nodes * each)) -r "$each" -a 1 -c "$share" -g 0 -b "packed:$share" -d packed -l cpu-cpu
fi
tw_end
