#!/usr/bin/env bash
# Training speed beside PyTorch on this machine: the same shapes, dtypes and threads in turn, in one run.
#   scripts/compare_pytorch.sh [--python PYTHON] [--peer pytorch_step.py] [--rounds N] [SHAPE ...]     (default shapes: char 124m)
# PYTHON needs torch. The peer script times an eager or compiled PyTorch GPT-2 step and prints tok/s=...; without --peer
# ../shared/peers/pytorch_step.py is used. Prints a Markdown table; the ratio is ours / the faster of eager and compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
python=python3 peer=../shared/peers/pytorch_step.py rounds=2 shapes=()
while [ $# -gt 0 ]; do
  case "$1" in
    --python) python=$2; shift 2 ;;
    --peer) peer=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    -h | --help) sed -n '2,5p' "$0" | sed 's/^# //'; exit 0 ;;
    -*) echo "error: compare_pytorch: unknown option $1" >&2; exit 64 ;;
    *) shapes+=("$1"); shift ;;
  esac
done
[ ${#shapes[@]} -gt 0 ] || shapes=(char 124m)
[ -x build/bench ] || { echo "error: compare_pytorch: build/bench is missing; run scripts/test.sh or cmake --build build first" >&2; exit 1; }
[ -r "$peer" ] || { echo "error: compare_pytorch: no peer script $peer; name one with --peer" >&2; exit 1; }
"$python" -c 'import torch' 2>/dev/null || { echo "error: compare_pytorch: $python has no torch; give --python of a virtual environment that has" >&2; exit 1; }
threads=$(nproc)

best() { sort -g | tail -n 1; }
ours() { build/bench step "$1" precision="$2" threads_per_rank="$threads" train_iters="$3" --json | sed -n 's/.*"tokens_per_s":\([0-9.]*\).*/\1/p'; }
theirs() { "$python" "$peer" "$1" "$2" "$3" "$4" "$5" "$6" "$threads" | sed -n 's/.*tok\/s=\([0-9.]*\).*/\1/p'; }
products() { build/bench op "matmul" --threads "$threads" --json | grep "\"dtype\":\"$1\"" | sed -n 's/.*"gflops":\([0-9.]*\).*/\1/p' | best; }

echo "| shape | dtype | ours tok/s | torch eager | torch.compile | ours / torch.compile | ours / best | largest product GFLOP/s |"
echo "|---|---|---|---|---|---|---|---|"
for shape in "${shapes[@]}"; do
  case "$shape" in
    char) batch=64 length=256 steps=4 ;;
    124m) batch=1 length=1024 steps=5 ;;
    tiny) batch=16 length=64 steps=40 ;;
    30m) batch=4 length=512 steps=8 ;;
    *) echo "error: compare_pytorch: unknown shape $shape" >&2; exit 64 ;;
  esac
  for dtype in fp32 bf16; do
    precision=fp32
    [ "$dtype" = fp32 ] || precision=bfloat16
    : >/tmp/thinwire-compare.$$
    for _ in $(seq "$rounds"); do # in turn, so that a machine whose speed drifts treats all alike
      echo "ours $(ours "$shape" "$precision" "$steps")"
      echo "eager $(theirs "$shape" "$dtype" 0 "$batch" "$length" "$steps")"
      echo "compiled $(theirs "$shape" "$dtype" 1 "$batch" "$length" "$steps")"
    done >>/tmp/thinwire-compare.$$
    pick() { sed -n "s/^$1 //p" /tmp/thinwire-compare.$$ | best; }
    o=$(pick ours) e=$(pick eager) c=$(pick compiled) p=$(products "$dtype")
    awk -v s="$shape" -v d="$dtype" -v o="$o" -v e="$e" -v c="$c" -v p="$p" 'BEGIN {
      b = e > c ? e : c; printf "| %s | %s | %.0f | %.0f | %.0f | %.2f | %.2f | %.0f |\n", s, d, o, e, c, o / c, o / b, p }'
    rm -f /tmp/thinwire-compare.$$
  done
done
