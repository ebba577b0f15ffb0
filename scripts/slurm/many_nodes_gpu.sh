#!/bin/bash
#SBATCH --job-name=thinwire-gpu
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
#SBATCH --time=08:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# Trains on all GPUs of several nodes, one rank per GPU, as often as it takes.
#   sbatch [options] scripts/slurm/many_nodes_gpu.sh --config configs/gpt20b.json [key=value ...]
# Ranks fill one node after the other, so tensor-parallel groups and the node level of ZeRO (secondary) stay inside a node.
# Check the fit before queueing: ./train --config configs/gpt20b.json --dry-run --ranks 32 prints memory and bytes per site.
# What is plain or coded on GPUs travels over NCCL (docs/gpu.md), which finds its network by itself; set NCCL_SOCKET_IFNAME or NCCL_IB_HCA
# in THINWIRE_SITE when it picks the wrong one, and NCCL_DEBUG=WARN when it does not start. All else takes MPI's network.
# Groups of ranks share the connections of all ranks, and so have no more channels than these, which follow the network cards: where
# groups inside a node are slow for that, NCCL_COMM_SPLIT_SHARE_RESOURCES=0 gives each its own, for more GPU memory.
# Everything in the environment reaches the ranks.
# Five minutes before the limit: save, leave, back into the queue, decided from status.json; at most three times without a new step.
# Program, device, GPUs seen by a rank: as in one_node_gpu.sh. Modules, container, site file: the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-${SLURM_SUBMIT_DIR:-.}}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

tw_device=cuda
tw_begin slurm scripts/slurm/many_nodes_gpu.sh "$@"
tw_run_slurm
