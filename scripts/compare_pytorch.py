#!/usr/bin/env python3
"""Training speed beside PyTorch on this machine: the same work in turn, in one run, as a Markdown table.

  scripts/compare_pytorch.py step [--python PYTHON] [--peer FILE] [--rounds 2] [SHAPE ...]
      One process, shapes (default: char 124m) in fp32 and bf16, beside eager and compiled PyTorch. FILE times a
      GPT-2 step and prints tok/s=... (default ../shared/peers/pytorch_step.py). The ratio is ours / the faster of both.
  scripts/compare_pytorch.py ddp [--python PYTHON] [--peer FILE] [--rounds 3] [--out FILE.md] [key=value ...]
      Data parallel beside PyTorch DDP over gloo, on two emulated hosts (scripts/lab, root): model `char`, fp32, one thread and core per rank;
      micro batch 8 at 10gbit, 1gbit and 100mbit, micro batch 1 at 1gbit. key=value is passed to `bench step` (default
      zero_optimization.stage=1, whose all-gather may hide under the next forward). FILE: default ../shared/peers/pytorch_ddp.py.
PYTHON needs torch (and numpy for ddp), such as that of a virtual environment.
"""
import collections
import os
import re
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True
from measured import ROOT, Parser, emulated, ends, fail, json_lines, machine, need, need_torch, output, read_cells, table
from sweep_store import write_atomic

SHAPES = {"char": (64, 256, 4), "124m": (1, 1024, 5), "tiny": (16, 64, 40), "30m": (4, 512, 8)}  # batch, length, steps
SETTINGS = ((8, "10gbit", 8), (8, "1gbit", 8), (8, "100mbit", 4), (1, "1gbit", 24))  # micro batch, link, steps


def step(o):
    bench, threads = need("bench")[0], str(len(os.sched_getaffinity(0)))
    if unknown := [s for s in o.more if s not in SHAPES]:
        fail(f"no shape {unknown[0]}; there are {', '.join(SHAPES)}", 64)
    rows = []
    for shape in o.more or ["char", "124m"]:
        batch, length, steps = (str(n) for n in SHAPES[shape])
        for dtype, precision in (("fp32", "fp32"), ("bf16", "bfloat16")):
            best = collections.defaultdict(float)
            for _ in range(o.rounds):  # in turn, so that a machine whose speed drifts treats all alike
                ours = json_lines([bench, "step", shape, f"precision={precision}", f"threads_per_rank={threads}", f"train_iters={steps}", "--json"])
                best["ours"] = max(best["ours"], ours[-1]["tokens_per_s"])
                for who, compiled in (("eager", "0"), ("compiled", "1")):
                    said = re.search(r"tok/s=([\d.]+)", output([o.python, o.peer, shape, dtype, compiled, batch, length, steps, threads]))
                    best[who] = max(best[who], float(said[1]) if said else 0.0)
            product = max(c["gflops"] for c in json_lines([bench, "op", "matmul", "--threads", threads, "--json"]) if c["dtype"] == dtype)
            ours, theirs = best["ours"], max(best["eager"], best["compiled"])
            rows.append([shape, dtype, *(f"{best[w]:.0f}" for w in ("ours", "eager", "compiled")), *(f"{ours / v:.2f}" if v else "-" for v in (best["compiled"], theirs)), f"{product:.0f}"])
    print(table(["shape", "dtype", "ours tok/s", "torch eager", "torch.compile", "ours / torch.compile", "ours / best", "largest product GFLOP/s"], rows), end="")


def our_command(batch, steps, keys):
    return ["build/bench", "step", "char", f"train_micro_batch_size_per_gpu={batch}", "threads_per_rank=1", f"train_iters={steps}", *keys, "--json"]


def ours(lab, o, batch, steps, _):
    """tokens/s over both ranks, step ms, megabytes sent per rank and step: all that crossed the link, start and end of the run included, over
    the timed steps and the two that warm up."""
    before = lab.sent()
    got = json_lines([*lab.run(2), *our_command(batch, steps, o.keys)])[-1]
    return got["tokens_per_s"], got["step_ms"], (lab.sent() - before) / 2 / 1e6 / (steps + 2)


def ddp_peer(front, python, peer, work, mode, *words):
    """(what the DDP script printed of one communication hook, its command). front: the launcher of two ranks."""
    path = os.path.join(work, "theirs.jsonl")
    # Hooks of several buckets race over gloo.
    command = [*front, "env", "OMP_NUM_THREADS=1", "MASTER_ADDR=h0", "MASTER_PORT=29500", "sh", "-c", 'RANK=$PMI_RANK WORLD_SIZE=$PMI_SIZE exec "$@"', "sh",
               python, peer, "--modes", mode, *(["--one_bucket"] if mode.startswith("psgd") else []), *words, "--out", path]
    output(command)
    return read_cells(path)[-1], command


def theirs(lab, o, batch, steps, work):
    """The same, with the peer's own reading of the counter around its timed steps."""
    got, _ = ddp_peer(lab.run(2), o.python, o.peer, work, "none", "--warm", "2", "--steps", str(steps), "--B", str(batch))
    return got["tok_s"], got["med_ms"], got["MB_sent_per_rank"]


def ddp(o):
    need("bench", build=os.path.join(ROOT, "build"))
    o.keys = o.more or ["zero_optimization.stage=1"]
    rows = []
    with emulated() as lab, tempfile.TemporaryDirectory() as work:
        for batch, rate, steps in SETTINGS:
            lab.be(2, rate)
            got = collections.defaultdict(list)
            for _ in range(o.rounds):  # in turn, so that a machine whose speed drifts treats both alike
                for who, function in (("ours", ours), ("theirs", theirs)):
                    got[who].append(function(lab, o, batch, steps, work))
                    print(batch, rate, who, *got[who][-1], file=sys.stderr)
            middle = {who: [statistics.median(v) for v in zip(*numbers)] for who, numbers in got.items()}
            cells = [f"{middle[w][i]:.{digits}f}" for i, digits in ((0, 0), (1, 0), (2, 1)) for w in ("ours", "theirs")]
            pairs = [a[0] / b[0] for a, b in zip(got["ours"], got["theirs"])]
            ratio = f"{middle['ours'][0] / middle['theirs'][0]:.2f} ({min(pairs):.2f} to {max(pairs):.2f})"
            rows.append([batch, rate, *cells[:2], ratio, *cells[2:]])
    text = table(["micro batch", "link", "ours tok/s", "DDP tok/s", "ours / DDP (per round)", "ours step ms", "DDP step ms", "MB per rank and step: ours", "DDP"], rows) + f"""
Medians over {o.rounds} rounds, ours and theirs in turn; fp32 compute and fp32 on the wire on both sides, one thread and one core per rank, two
hosts of `scripts/lab`; bytes from the counters of eth0 (ours: the whole run over its steps, so start and end are in it; theirs: around
its timed steps). Ours: `scripts/lab run -n 2 --bind -- {' '.join(our_command(8, 8, o.keys))}` (micro batch 8); theirs: the stock DDP hook over gloo,
fused AdamW, started the same way.
"""
    print(text, end="")
    if o.out:
        write_atomic(o.out, f"# Data parallel training beside PyTorch DDP, on two emulated hosts\n\n`scripts/compare_pytorch.py ddp {' '.join(o.keys)}` on {machine()}.\n\n{text}")


def main():
    options = Parser(__doc__)
    options.add_argument("what", choices=("step", "ddp"))
    options.add_argument("more", nargs="*", metavar="SHAPE | key=value")
    for name, default in (("--python", "python3"), ("--peer", None), ("--out", None)):
        options.add_argument(name, default=default)
    options.add_argument("--rounds", type=int)
    o = options.parse_intermixed_args()
    o.rounds = o.rounds or {"step": 2, "ddp": 3}[o.what]
    o.peer = os.path.abspath(o.peer or os.path.join(ROOT, "..", "shared", "peers", f"pytorch_{o.what}.py"))
    if not os.access(o.peer, os.R_OK):
        fail(f"no peer script {o.peer}; name one with --peer")
    o.python = need_torch(o.python)
    return {"step": step, "ddp": ddp}[o.what](o)


if __name__ == "__main__":
    ends(main)
