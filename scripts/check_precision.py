#!/usr/bin/env python3
"""bf16 and fp16 must learn what fp32 learns: gpt2_tiny on real text, three seeds each, final evaluation losses side by side.

    scripts/check_precision.py [--iters N] [--seeds S] [--build DIR]     prints a Markdown table; exit code 1 if one is off by 1 %
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def final_loss(build, work, precision, seed, iters):
    run_dir = os.path.join(work, f"{precision}-{seed}")
    command = [os.path.join(build, "train"), "--config", "configs/gpt2_tiny.json", f"run_dir={run_dir}", f"precision={precision}", f"seed={seed}",
               f"train_iters={iters}", f"lr_decay_iters={iters}", "eval_interval=0", "eval_iters=12", "log_interval=1000",
               f"data_path={build}/data/tiny_text_document"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: check_precision: {' '.join(command)}: {done.stderr.strip()}")
    lines = [json.loads(line) for line in open(os.path.join(run_dir, "metrics.jsonl"), encoding="utf-8")]
    skipped = sum(1 for line in lines if line.get("skipped"))
    return [line["eval_loss"] for line in lines if "eval_loss" in line and line["split"] == "valid"][-1], skipped


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--iters", type=int, default=1500)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--build", default=os.path.join(ROOT, "build"))
    o = options.parse_args()
    build = os.path.abspath(o.build)
    # The bigram counted on the same token file (it sees the held-out tenth too, which only helps it).
    prefix = os.path.join(build, "data", "tiny_text_document")
    baseline = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "ngram_baseline.py"), prefix, prefix], capture_output=True, text=True)
    print(f"gpt2_tiny, {o.iters} updates; counting models on all of the same text: {baseline.stdout.strip()}\n")
    print("| seed | fp32 | bf16 | fp16 | bf16 / fp32 | fp16 / fp32 | skipped (fp16) |\n|---|---|---|---|---|---|---|")
    good = True
    with tempfile.TemporaryDirectory() as work:
        for seed in range(1, o.seeds + 1):
            (a, _), (b, _), (c, skipped) = (final_loss(build, work, p, seed, o.iters) for p in ("fp32", "bfloat16", "fp16"))
            good = good and abs(b / a - 1) <= 0.01 and abs(c / a - 1) <= 0.01
            print(f"| {seed} | {a:.4f} | {b:.4f} | {c:.4f} | {b / a:.4f} | {c / a:.4f} | {skipped} |", flush=True)
    print(f"\n{'within' if good else 'NOT within'} 1 %")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
