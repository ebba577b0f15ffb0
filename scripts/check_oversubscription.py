#!/usr/bin/env python3
# CPU time of many ranks on few cores beside one rank that does the same work.
"""What an update costs in CPU time when ranks outnumber cores.

    scripts/check_oversubscription.py [--ranks 16] [--updates 50] [--build DIR] [--out FILE.md] [key=value ...]

For every layout, and for one rank beside it, `mpirun -n RANKS train` runs configs/gpt2_tiny.json twice, with 10 and with 10 + updates updates; the difference of their user and
system time (launcher and all ranks) is the updates' own. One rank that accumulates the same samples is what they are set beside.
Exit code 1 where a layout takes more than 3 times as much. key=value: of the configuration.
"""
import argparse
import os
import resource
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MICRO, SAMPLES, FIRST, ALLOWED = 4, 64, 10, 3.0
# name, pp, tp, other keys
LAYOUTS = (
    ("data parallel", 1, 1, []),
    ("ZeRO-1", 1, 1, ["zero_optimization.stage=1"]),
    ("ZeRO-3", 1, 1, ["zero_optimization.stage=3"]),
    ("pp 4", 4, 1, []),
    ("pp 2, tp 2", 2, 2, []),
    ("tp 4", 1, 4, []),
    ("tp 4, sequence parallel", 1, 4, ["sequence_parallel=true"]),
    ("pp 4, tp 4", 4, 4, []),
)


def cpu_seconds(o, ranks, keys, updates):
    with tempfile.TemporaryDirectory() as folder:
        command = ["mpirun", "-n", str(ranks), os.path.join(o.build, "train"), "--config", "configs/gpt2_tiny.json", f"train_iters={updates}",
                   f"train_batch_size={SAMPLES}", f"train_micro_batch_size_per_gpu={MICRO}", "threads_per_rank=1", "eval_interval=0", "eval_iters=1",
                   "log_interval=1000", *keys, *o.keys, f"run_dir={folder}/run"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"error: check_oversubscription: {' '.join(command)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, " ".join(command[:-1])


def update_ms(o, ranks, pp, tp, keys):
    if ranks % (pp * tp) or SAMPLES % (MICRO * (ranks // (pp * tp))):
        return None, ""
    layout = [f"pipe_parallel_size={pp}", f"model_parallel_size={tp}", *keys]
    short, _ = cpu_seconds(o, ranks, layout, FIRST)
    long, command = cpu_seconds(o, ranks, layout, FIRST + o.updates)
    return (long - short) / o.updates * 1e3, command


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--build", default="build")
    parser.add_argument("--out")
    parser.add_argument("keys", nargs="*")
    o = parser.parse_args()
    if o.ranks < 1 or o.updates < 1:
        parser.error("--ranks and --updates: at least 1")

    cores = len(os.sched_getaffinity(0))
    lines = [f"# {o.ranks} ranks on {cores} cores", "", "| layout | CPU ms per update | one rank | times one rank |", "|---|---|---|---|"]
    commands, missed = [], []
    for name, pp, tp, keys in LAYOUTS:
        ms, command = update_ms(o, o.ranks, pp, tp, keys)
        if ms is None:
            continue
        one, alone = update_ms(o, 1, 1, 1, [])  # beside each: machines drift
        print(f"{name}: {ms:.0f} ms of CPU time per update, {ms / one:.2f} times one rank's {one:.0f}", flush=True)
        lines.append(f"| {name} | {ms:.0f} | {one:.0f} | {ms / one:.2f} |")
        commands += [command] if commands else [alone, command]
        if ms > ALLOWED * one:
            missed.append(name)
    lines += ["", f"User and system time of launcher and ranks, {o.updates} updates of {SAMPLES} samples behind the first {FIRST}, one thread a rank. Tensor parallelism repeats norms and "
              "the residual stream on every rank and multiplies small matrices, whoever waits.", "", "Made by `scripts/check_oversubscription.py`, which runs", ""]
    lines += [f"    {c}" for c in commands]
    if o.out:
        with open(o.out, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
    if missed:
        sys.exit(f"error: check_oversubscription: more than {ALLOWED:g} times one rank's CPU time: {', '.join(missed)}")


if __name__ == "__main__":
    main()
