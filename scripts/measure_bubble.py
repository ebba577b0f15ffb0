#!/usr/bin/env python3
# Idle share of each pipeline schedule on two ranks that compute, beside its formula and its plan replayed with the measured durations.
"""How idle the stages of a pipeline are with real compute, beside what formula and plan say.

    scripts/measure_bubble.py [--micro-batches 4 8] [--schedules gpipe 1f1b interleaved zb_h1] [--steps N] [--rounds N] [--out FILE.md] [key=value ...]

For every number of micro-batches and every schedule, in turn and several rounds, `mpirun -n 2 train` runs two stages of a model with one thread
each and writes its trace. Of every update but the first two, from the first stage's first forward to the last end of a forward or backward:
  idle      1 - (forwards, backwards, and messages handed over, without the waits inside) / that time, mean of both ranks, median of the updates
  replay    the same of the plan with the durations that every work of that update took, and messages that take nothing
  formula   docs/schedules.md, with the measured durations of forward, input half and weight half, and stages that take equally long
Exit code 1 unless zb_h1 idles less than 1f1b. Needs build/train (--build DIR) and two cores; key=value: of the configuration.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STAGES, CHUNKS, SKIPPED = 2, 2, 2
WORKS = ("F", "B", "I", "W")
MODEL = ["num_layers=8", "hidden_size=128"]


def fail(text):
    sys.exit(f"error: measure_bubble: {text}")


def keys_of(o, schedule, micro_batches):
    chunks = [f"virtual_chunks={CHUNKS}"] if schedule == "interleaved" else []
    return ["--config", "configs/gpt2_tiny.json", *MODEL, f"pipe_parallel_size={STAGES}", f"schedule={schedule}", *chunks,
            f"train_batch_size={4 * micro_batches}", "train_micro_batch_size_per_gpu=4", "threads_per_rank=1", *o.keys]


def call(command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"{' '.join(command)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def read_rank(path):
    """Per update (start, works, waits): works are (kind, micro, chunk, start, end), 'exchange' among them; milliseconds."""
    with open(path, encoding="utf-8") as f:
        events = json.load(f)["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    steps, works, waits = [], [], []
    for e in events:
        if e["ph"] != "X":
            continue
        start, end, track = e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3, tracks[e["tid"]]
        if track == "steps":
            steps.append((start, end))
        elif track == "compute" and (e["name"] == "exchange" or re.match(r"[FBIW]\d", e["name"])):
            kind = "exchange" if e["name"] == "exchange" else e["name"][0]
            works.append((kind, e["args"]["micro"], e["args"]["chunk"], start, end))
        elif track == "waiting":
            waits.append((start, end))

    def inside(step, start):
        return step[0] <= start < step[1]
    return [([w for w in works if inside(s, w[3])], [w for w in waits if inside(s, w[0])]) for s in sorted(steps)]


def busy_ms(work, waits):
    """Duration without the waits inside."""
    return work[4] - work[3] - sum(max(0.0, min(work[4], to) - max(work[3], start)) for start, to in waits)


def replay(orders, cost):
    """Idle share of the plan: every stage does its works (kind, micro, chunk) in order, as soon as what they need is there."""
    end, free, next_work = {}, [0.0] * STAGES, [0] * STAGES
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while next_work[stage] < len(order):
                kind, micro, chunk = order[next_work[stage]]
                place = chunk * STAGES + stage
                last = max(w[2] for w in order) * STAGES + STAGES - 1
                needs = []
                if kind == "F" and place > 0:
                    needs = [("F", micro, place - 1)]
                if kind in "BI" and place < last:
                    needs = [("gradient", micro, place + 1)]
                if any(n not in end for n in needs):
                    break
                begin = max([free[stage], *(end[n] for n in needs)])
                free[stage] = begin + cost[stage, kind, micro, chunk]
                end["F" if kind == "F" else "gradient" if kind in "BI" else "W", micro, place] = free[stage]
                next_work[stage] += 1
                moved = True
    if any(n < len(order) for n, order in zip(next_work, orders)):
        fail("the plan in the trace cannot be executed")
    total = max(free)
    return statistics.mean(1 - sum(cost[s, *work] for work in order) / total for s, order in enumerate(orders))


def formula(schedule, m, forward, inputs, weights):
    """docs/schedules.md, for STAGES stages."""
    p = STAGES
    if schedule == "zb_h1":
        gap = (p - 1) * max(0.0, forward + inputs - weights)
        return gap / (m * (forward + inputs + weights) + gap)
    return (p - 1) / ((CHUNKS if schedule == "interleaved" else 1) * m + p - 1)


def measure(o, schedule, m, directory):
    """One run: idle share of every counted update, and what it took them apart."""
    run = os.path.join(directory, f"{schedule}-{m}")
    subprocess.run(["rm", "-rf", run], check=True)
    call([*o.mpirun.split(), "-n", str(STAGES), os.path.join(o.build, "train"), *keys_of(o, schedule, m), f"train_iters={SKIPPED + o.steps}",
          "eval_interval=0", "eval_iters=1", f"trace_steps={SKIPPED + o.steps}", "trace=true", f"run_dir={run}"])
    ranks = [read_rank(os.path.join(run, f"trace.rank{r}.json")) for r in range(STAGES)]
    if any(len(r) != SKIPPED + o.steps for r in ranks):
        fail(f"{schedule}: the trace holds {len(ranks[0])} updates")
    out = {"idle": [], "replay": [], "exchange": [], "ms": [], "costs": {}, "orders": []}
    for update in range(SKIPPED, SKIPPED + o.steps):
        works = [[w for w in ranks[r][update][0] if w[0] in WORKS] for r in range(STAGES)]
        first, last = min(w[3] for rank in works for w in rank), max(w[4] for rank in works for w in rank)
        computed, handed, cost = 0.0, 0.0, {}
        for r in range(STAGES):
            waits = ranks[r][update][1]
            for w in works[r]:
                took = busy_ms(w, waits)
                computed += took
                cost[r, *w[:3]] = took
                out["costs"].setdefault((r, w[0], w[2]), []).append(took)
            handed += sum(busy_ms(w, waits) for w in ranks[r][update][0] if w[0] == "exchange" and first <= w[3] < last)
        whole = STAGES * (last - first)
        out["idle"].append(1 - (computed + handed) / whole)
        out["exchange"].append(handed / whole)
        out["ms"].append(last - first)
        out["orders"] = [[w[:3] for w in sorted(rank, key=lambda w: w[3])] for rank in works]
        out["replay"].append(replay(out["orders"], cost))
    return out


def dry_run(o, schedule, m):
    text = call([os.path.join(o.build, "train"), *keys_of(o, schedule, m), "--dry-run", "--ranks", str(STAGES)])
    bubble = re.search(r"pipeline bubble: ([\d.]+) % .*?formula, ([\d.]+) % .*?stages, ([\d.]+) %", text)
    activations = re.search(r"activations +([\d.]+) MiB", text)
    if not bubble or not activations:
        fail(f"--dry-run of {schedule} prints no bubble or no activations")
    return [float(x) for x in bubble.groups()], float(activations.group(1))


def combined(runs):
    """All rounds of one case: medians."""
    costs = {}
    for run in runs:
        for key, values in run["costs"].items():
            costs.setdefault(key, []).extend(values)
    spread = sorted(x for run in runs for x in run["idle"])
    return {"idle": statistics.median(spread), "low": spread[len(spread) // 10], "high": spread[-1 - len(spread) // 10],
            "replay": statistics.median(x for run in runs for x in run["replay"]),
            "exchange": statistics.median(x for run in runs for x in run["exchange"]),
            "ms": statistics.median(x for run in runs for x in run["ms"]),
            "cost": {key: statistics.median(values) for key, values in costs.items()}, "orders": runs[0]["orders"]}


def alive(order):
    """Most micro-batches of a stage between their forward and the end of their backward (its weight half where there are two), in stages' worth."""
    now = most = 0
    chunks = max(w[2] for w in order) + 1
    for kind, _, _ in order:
        now += {"F": 1, "B": -1, "I": 0, "W": -1}[kind]
        most = max(most, now)
    return most / chunks


def cores():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else 'an unknown processor'}"


def tables(o, results):
    lines = ["| micro-batches | schedule | formula | replay | idle, measured | 10 % to 90 % of updates | handing messages over | ms per update | F / I / W or B, ms "
             "| most micro-batches alive per stage | dry run: formula / plan / plan with head | dry run: activations MiB |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for (m, schedule), r in results.items():
        def durations(kinds, r=r):
            values = [v for (_, kind, _), v in r["cost"].items() if kind in kinds]
            return " / ".join(f"{v:.1f}" for v in values) if values else "-"
        lines.append(f"| {m} | {schedule} | {100 * r['formula']:.1f} % | {100 * r['replay']:.1f} % | **{100 * r['idle']:.1f} %** "
                     f"| {100 * r['low']:.1f} - {100 * r['high']:.1f} % | {100 * r['exchange']:.1f} % | {r['ms']:.0f} "
                     f"| F {durations('F')}; B {durations('B')}; I {durations('I')}; W {durations('W')} | {', '.join(f'{a:g}' for a in r['alive'])} "
                     f"| {' / '.join(f'{x:.1f} %' for x in r['dry'])} | {r['activations']:.1f} |")
    return lines


def shown_arguments():
    """The command line without what only says where things are."""
    shown, skip = [], False
    for a in sys.argv[1:]:
        if skip:
            skip = False
        elif a in ("--build", "--out", "--mpirun"):
            skip = True
        else:
            shown.append(a)
    return shown


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--micro-batches", type=int, nargs="+", default=[4, 8])
    options.add_argument("--schedules", nargs="+", default=["gpipe", "1f1b", "interleaved", "zb_h1"])
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--build", default=os.path.join(ROOT, "build"))
    options.add_argument("--mpirun", default="mpirun")
    options.add_argument("--out")
    o, o.keys = options.parse_known_args()
    if any("=" not in k or k.startswith("-") for k in o.keys):
        options.error(f"not key=value: {' '.join(o.keys)}")
    o.build = os.path.abspath(o.build)
    if not os.access(os.path.join(o.build, "train"), os.X_OK):
        fail(f"{o.build}/train is missing; cmake --build build first")
    cases = [(m, s) for m in o.micro_batches for s in o.schedules]
    runs = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(o.rounds):  # in turn, so that a machine whose speed drifts treats all alike
            for m, schedule in cases:
                runs[m, schedule].append(measure(o, schedule, m, directory))
    results = {}
    for m, schedule in cases:
        r = results[m, schedule] = combined(runs[m, schedule])
        r["alive"] = [alive(order) for order in r["orders"]]
        r["dry"], r["activations"] = dry_run(o, schedule, m)
    for (m, schedule), r in results.items():
        # Halves apart only exist where the schedule takes them apart; the last stage of zb_h1 does.
        halves = results.get((m, "zb_h1"), r)["cost"]
        last = STAGES - 1
        r["formula"] = formula(schedule, m, halves[last, "F", 0], halves.get((last, "I", 0), 1.0), halves.get((last, "W", 0), 1.0))
    worse = [m for m in o.micro_batches if (m, "zb_h1") in results and (m, "1f1b") in results and results[m, "zb_h1"]["idle"] >= results[m, "1f1b"]["idle"]]
    verdict = "zb_h1 idles less than 1f1b in every case." if not worse else f"zb_h1 does NOT idle less than 1f1b with {worse} micro-batches."
    text = "\n".join([*tables(o, results), "", verdict, "",
                      f"{STAGES} stages, one rank and thread each, {cores()}; medians over {o.rounds} rounds of {o.steps} updates, schedules in turn.", "",
                      "- **formula**: docs/schedules.md with this run's T_F, T_I, T_W (those of the last stage under zb_h1), equal stages, free messages.",
                      "- **replay**: the plan with the duration that every work of an update had (the last stage has the head, and durations vary), free messages.",
                      "- **idle**: share of the time between the first forward and the last end of a backward in which a rank neither computes nor hands a message over.",
                      "- **dry run**: `--dry-run` of the same keys, before anything was measured (a forward and each half of a backward taken as equally long).",
                      "- **alive**: from a micro-batch's forward to the end of its backward, or of its weight half. The largest stage of zb_h1 keeps as many as that of 1f1b; its last",
                      "  stage has one more than under 1f1b, beside the head. Weight halves that wait keep the gradients of their layers' outputs in the place of activations",
                      "  that are done with. **activations**: what `--dry-run` states for the stage that needs most.",
                      "- F, B, I, W: forward, whole backward, its input and weight half, per stage (and chunk), waits taken out.", "",
                      "Made by", "", "    scripts/measure_bubble.py" + "".join(f" {a}" for a in shown_arguments()), "", "which runs", "",
                      *(f"    mpirun -n {STAGES} build/train {' '.join(keys_of(o, s, m))} train_iters={SKIPPED + o.steps} eval_interval=0 eval_iters=1 "
                        f"trace_steps={SKIPPED + o.steps} trace=true run_dir=RUN" for m, s in cases)])
    print(text)
    if o.out:
        with open(o.out, "w", encoding="utf-8") as f:
            f.write("# Idle time of the pipeline with real compute\n\n" + text + "\n")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
