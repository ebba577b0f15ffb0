#!/usr/bin/env bash
# Builds and checks the CUDA backend on a machine with a GPU, by itself, in minutes. Needs CUDA, a C++ compiler, cmake, ninja,
# python3; what else is missing comes from .cache/gpu, which scripts/gpu_pack.sh fills elsewhere: with programs, too, nothing is built here.
#   scripts/gpu_check.sh first    --out DIR    build, ceilings, products, reference check, fused attention, a 1B step with its profile, graphs
#   scripts/gpu_check.sh speed    --out DIR    all ops and codecs timed; Llama 1B and GPT-2 124M beside PyTorch
#   scripts/gpu_check.sh large    --out DIR    Llama 3B and 7B beside PyTorch
#   scripts/gpu_check.sh long     --out DIR    Llama 1B over 65536 tokens and more: whole, in chunks, offloaded, beside PyTorch
#   scripts/gpu_check.sh full     --out DIR    all op tests, CPU against GPU, graphs, resume, layouts, ranks over MPI and NCCL, a stopped peer
#   scripts/gpu_check.sh sanitize --out DIR    memory and race checkers on reduced sizes
# 10 minutes at most each. Options: --build DIR (default build-gpu), --minutes N (stops starting steps then), --only STEP[,STEP],
# --build-limit SECONDS (240), --packs DIR (.cache/gpu).
# DIR gets gpu_check.json and gpu_check.md, written anew after every step. Exit codes: 0 all held, 70 something failed, 64, 78 no GPU.
set -u
cd "$(dirname "$0")/.."
exec python3 -u tests/gpu/gpu_check.py "$@"
