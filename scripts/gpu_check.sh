#!/usr/bin/env bash
# Builds and checks the CUDA backend on a machine with a GPU, by itself, in minutes. Needs CUDA, a C++ compiler, cmake, ninja,
# python3; what else is missing comes from .cache/gpu, which scripts/gpu_pack.sh fills elsewhere. Nothing is installed or fetched.
#   scripts/gpu_check.sh quick --out DIR    3 min: build, ceilings, op tests, reference check, a short training
#   scripts/gpu_check.sh full  --out DIR    10 min: the same, CPU against GPU, resume, the mesh invariant over ranks, all ops timed, sanitizers
#   scripts/gpu_check.sh speed --out DIR    10 min: the training step beside PyTorch's
# Options: --build DIR (default build-gpu), --minutes N (stops starting steps then), --only STEP[,STEP].
# DIR gets gpu_check.json and gpu_check.md, written anew after every step. Exit codes: 0 all held, 70 something failed, 64, 78 no GPU.
set -u
cd "$(dirname "$0")/.."
exec python3 -u tests/gpu/gpu_check.py "$@"
