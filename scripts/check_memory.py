#!/usr/bin/env python3
"""Peak resident memory beside what --dry-run promises, and its growth with the sequence length.

    scripts/check_memory.py [--build DIR] [--quick]    prints two Markdown tables; exit code 1 beyond 10 %, or if growth is not linear
"""
import argparse
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def step(build, *arguments):
    command = [os.path.join(build, "bench"), "step", *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: check_memory: {' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--build", default=os.path.join(ROOT, "build"))
    options.add_argument("--quick", action="store_true", help="leave out the two large shapes")
    o = options.parse_args()
    mib = 1 << 20
    good = True
    if not o.quick:
        print("| shape | dtype | peak MiB | dry-run MiB | peak / dry-run |\n|---|---|---|---|---|")
        for shape in ("char", "124m"):
            for precision in ("fp32", "bfloat16"):
                j = step(o.build, shape, f"precision={precision}", "train_iters=1")
                ratio = j["memory_peak_bytes"] / j["memory_plan_bytes"]
                good = good and 0.9 <= ratio <= 1.1
                print(f"| {shape} | {j['dtype']} | {j['memory_peak_bytes'] / mib:.0f} | {j['memory_plan_bytes'] / mib:.0f} | {ratio:.3f} |", flush=True)
        print()
    print("| T (tiny, one sequence) | peak MiB | dry-run MiB | peak growth per token, KiB |\n|---|---|---|---|")
    before = None
    slopes = []
    for length in (1024, 2048, 4096, 8192):
        j = step(o.build, "tiny", f"seq_length={length}", f"max_position_embeddings={length}", "train_micro_batch_size_per_gpu=1", "train_iters=1")
        peak, slope = j["memory_peak_bytes"], ""
        if before:
            slopes.append((peak - before[1]) / (length - before[0]) / 1024)
            slope = f"{slopes[-1]:.2f}"
        before = (length, peak)
        print(f"| {length} | {peak / mib:.0f} | {j['memory_plan_bytes'] / mib:.0f} | {slope} |", flush=True)
    linear = max(slopes) <= 1.25 * min(slopes)
    print(f"\n{'linear' if linear else 'NOT linear'} in T")
    sys.exit(0 if good and linear else 1)


if __name__ == "__main__":
    main()
