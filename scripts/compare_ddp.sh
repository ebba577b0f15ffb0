#!/usr/bin/env bash
# Data parallel training beside PyTorch DDP over gloo, on two emulated hosts: same model, same fp32 bytes, in turn, in one run.
#   scripts/compare_ddp.sh [--venv DIR] [--peer pytorch_ddp.py] [--rounds N] [--quick] [--only ours|theirs] [--out FILE.md] [key=value ...]
# The model is `char` (6 layers, hidden 384, vocab 256, T 256); one thread per rank, one core per rank; micro batch 8 at 10gbit, 1gbit
# and 100mbit, micro batch 1 at 1gbit. key=value is passed to `bench step` (default zero_optimization.stage=1, whose all-gather may hide
# under the next forward). DIR is a virtual environment with torch and numpy; it is made if missing (default .venv). Needs root
# (scripts/lab). Prints a Markdown table of medians and the commands; --out also writes it to a file.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv peer=../shared/peers/pytorch_ddp.py rounds=3 quick=0 only=both out='' keys=()
while [ $# -gt 0 ]; do
  case "$1" in
    --venv) venv=$2; shift 2 ;;
    --peer) peer=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --quick) quick=1; shift ;;
    --only) only=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    -h | --help) sed -n '2,8p' "$0" | sed 's/^# //'; exit 0 ;;
    -*) echo "error: compare_ddp: unknown option $1" >&2; exit 64 ;;
    *) keys+=("$1"); shift ;;
  esac
done
case "$only" in both | ours | theirs) ;; *) echo "error: compare_ddp: --only $only: ours or theirs" >&2; exit 64 ;; esac
[ ${#keys[@]} -gt 0 ] || keys=(zero_optimization.stage=1)
[ "$only" = theirs ] || [ -x build/bench ] || { echo "error: compare_ddp: build/bench is missing; cmake --build build first" >&2; exit 1; }
if [ "$only" != ours ]; then
  [ -r "$peer" ] || { echo "error: compare_ddp: no peer script $peer; name one with --peer" >&2; exit 1; }
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/python" -c 'import torch, numpy' 2>/dev/null || "$venv/bin/pip" install -q torch numpy
fi

name=ddp-$$
lab() { local verb=$1; shift; scripts/lab "$verb" --name "$name" "$@"; }
work=$(mktemp -d)
trap 'scripts/lab down --name "$name" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
lab up --hosts 2 --rate 1gbit >/dev/null

sent() { lab show --json | python3 -c 'import json, sys; print(sum(h["eth0"]["tx_bytes"] for h in json.load(sys.stdin)["hosts"]) / 2)'; }
ours_command() { echo "build/bench step char train_micro_batch_size_per_gpu=$1 threads_per_rank=1 train_iters=$2 ${keys[*]} --json"; }
# Each prints: tokens/s over both ranks, step ms, megabytes sent per rank and step.
ours() { # micro batch, timed steps
  local before after
  before=$(sent)
  # shellcheck disable=SC2046
  lab run -n 2 --bind -- $(ours_command "$1" "$2") >"$work/ours.out" 2>"$work/ours.err" || { cat "$work"/ours.* >&2; exit 1; }
  after=$(sent)
  # All that crossed the link, over the timed steps and the two that warm up; start and end of the run are in it.
  tail -n 1 "$work/ours.out" | python3 -c 'import json, sys
d = json.loads(sys.stdin.readline()); print(d["tokens_per_s"], d["step_ms"], (float(sys.argv[2]) - float(sys.argv[1])) / 1e6 / (int(sys.argv[3]) + 2))' "$before" "$after" "$2"
}
theirs() { # its own reading of the same counter, around its timed steps
  lab run -n 2 --bind -- env OMP_NUM_THREADS=1 MASTER_ADDR=h0 MASTER_PORT=29500 sh -c 'RANK=$PMI_RANK WORLD_SIZE=$PMI_SIZE exec "$@"' sh \
    "$venv/bin/python" "$peer" --modes none --warm 2 --steps "$2" --B "$1" --out "$work/theirs.jsonl" >"$work/theirs.out" 2>"$work/theirs.err" ||
    { cat "$work"/theirs.{out,err} >&2; exit 1; }
  tail -n 1 "$work/theirs.jsonl" | python3 -c 'import json, sys
d = json.loads(sys.stdin.readline()); print(d["tok_s"], d["med_ms"], d["MB_sent_per_rank"])'
}

for setting in "8 10gbit 8" "8 1gbit 8" "8 100mbit 4" "1 1gbit 24"; do
  read -r batch rate steps <<<"$setting"
  [ "$quick" = 0 ] || steps=$(((steps + 1) / 2))
  lab rate "$rate"
  for _ in $(seq "$rounds"); do # in turn, so that a machine whose speed drifts treats both alike
    [ "$only" = theirs ] || echo "$batch $rate ours $(ours "$batch" "$steps")" | tee -a "$work/all" >&2
    [ "$only" = ours ] || echo "$batch $rate theirs $(theirs "$batch" "$steps")" | tee -a "$work/all" >&2
  done
done

python3 - "$work/all" "$rounds" "$only" "$(ours_command 8 8)" <<'PY' | tee "$work/table.md"
import statistics, sys
runs = {}
for line in open(sys.argv[1], encoding="ascii"):
    batch, rate, who, *numbers = line.split()
    runs.setdefault((batch, rate), {}).setdefault(who, []).append([float(n) for n in numbers])
print("| micro batch | link | ours tok/s | DDP tok/s | ours / DDP (per round) | ours step ms | DDP step ms | MB per rank and step: ours | DDP |")
print("|---|---|---|---|---|---|---|---|---|")
for (batch, rate), who in runs.items():
    def middle(name, i):
        return statistics.median(r[i] for r in who[name]) if name in who else None
    def show(value, digits=0):
        return "-" if value is None else f"{value:.{digits}f}"
    ratio = "-"
    if len(who) == 2:
        pairs = [a[0] / b[0] for a, b in zip(who["ours"], who["theirs"])]
        ratio = f"{middle('ours', 0) / middle('theirs', 0):.2f} ({min(pairs):.2f} to {max(pairs):.2f})"
    print(f"| {batch} | {rate} | {show(middle('ours', 0))} | {show(middle('theirs', 0))} | {ratio} | {show(middle('ours', 1))} | {show(middle('theirs', 1))} "
          f"| {show(middle('ours', 2), 1)} | {show(middle('theirs', 2), 1)} |")
print(f"""
Medians over {sys.argv[2]} rounds, ours and theirs in turn; fp32 compute and fp32 on the wire on both sides, one thread and one core per rank, two
hosts of `scripts/lab`; bytes from the counters of eth0 (ours: the whole run over its steps, so start and end are in it; theirs: around
its timed steps). Ours: `scripts/lab run -n 2 --bind -- {sys.argv[4]}` (micro batch 8); theirs: the stock DDP hook over gloo,
fused AdamW, started the same way.""")
PY
if [ -n "$out" ]; then
  { printf '# Data parallel training beside PyTorch DDP, on two emulated hosts\n\n`scripts/compare_ddp.sh'; printf ' %s' "${keys[@]}"
    printf '` on %s, %s cores.\n\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)"; cat "$work/table.md"; } >"$out"
fi
