# Table adapt of scripts/compression_tables.py, and its page docs/results/adapt.md: compression.adapt, once settled, beside every fixed way of sending, in turn.
import itertools
import os
import re
import signal
import statistics

import measured
from compression_cells import ACCUMULATION, Stopped, layout_keys, predicted, shown

RATES = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s", "none": "no limit"}
LAYOUTS = ("1x2x1", "1x4x1", "2x2x1", "2x1x2", "4x1x1")
ADAPT, FIXED = "adapt", ("none", "bf16_wire", "thinwire")
# A fixed way that is slower than the best one by this factor before the turns begin takes no turns.
FAR = 1.3
# Steps of a job before it may be timed; a turn holds about so many, between so many seconds.
WARM, STEPS, SHORTEST, LONGEST = 4, 9, 2.5, 12.0
UP_TO_CORES, BEYOND, WIDTH = 1.02, 1.05, 3.0  # a bound each, and how many points wide an interval may be
DECIDED = re.compile(r"plan revision after step \d+: (\S+) [^\n]*")


def decided(log):
    """{site: the line that says how it is sent from now on}."""
    return {m[1]: m[0] for m in DECIDED.finditer(log)}


def in_turn(lab, build, folder, layout, rate, turns, keys):
    """Fields of a cell. Every job runs to where it is measured, then they are stopped and continued in turn: each sees the same minutes of the machine."""
    more, ranks, data = layout_keys(layout, 1)
    lab.be(ranks, rate)
    same = ["--config", "configs/sweeps/speed_10m.json", *more, "train_micro_batch_size_per_gpu=1", f"gradient_accumulation_steps={ACCUMULATION[int(layout[0])]}", "train_iters=100000",
            "watchdog_seconds=0", *keys]
    # thinwire's ramp as a run of 1,000 steps has it on average; with tensor ranks its gradients have no rate.
    ours = ["compression.preset=thinwire", *(["compression.dp.gradient.rate=3.1"] if data > 1 and layout[-1] == "1" else [])]
    ways = {name: ours if name == "thinwire" else [f"compression.preset={name}"] for name in FIXED}
    ways[ADAPT] = [*ours, "compression.adapt=true"]
    coded = {site for site, s in predicted(build, [*same, *ours], ranks).items() if s["codec"]}
    jobs = {}
    try:
        for name, own in ways.items():
            run_dir = os.path.join(folder, "run_" + name)
            job = jobs[name] = Stopped([*lab.run(ranks), os.path.join(build, "train"), *same, *own, "run_dir=" + run_dir], run_dir, [run_dir], WARM)
            if name == ADAPT:
                job.wait_until(lambda: decided(job.log()).keys() >= coded, 900)
            job.wait_until(lambda: len(job.step_times()) >= WARM, 200)
            job.signal(signal.SIGSTOP)
        before = {name: statistics.median(job.step_times()[-WARM:]) for name, job in jobs.items()}
        far = [name for name in FIXED if before[name] > FAR * min(before[n] for n in FIXED)]
        for name in far:
            jobs[name].end()
        left = [name for name in ways if name not in far]
        orders = list(itertools.permutations(left))
        for k in range(turns):
            for name in orders[k % len(orders)]:
                jobs[name].go(min(LONGEST, max(SHORTEST, STEPS * before[name] / 1e3)))
        step_ms = {name: jobs[name].medians() for name in left}
        settled = decided(jobs[ADAPT].log())
    finally:
        for job in jobs.values():
            job.end()
    best, best_ms, ms, (middle, low, high) = beside_best(step_ms)
    return {"step_ms": step_ms, "before_ms": before, "settled": settled,
            "said": f"adapt {ms:.0f} ms beside {best_ms:.0f} of {best}: {middle:.3f} ({low:.3f} to {high:.3f}); " + "; ".join(settled.values()),
            "command": f"scripts/lab up --hosts {ranks} --rate {rate}; " + shown(jobs[ADAPT].command, folder, build)}


WORDS = {"none": "fp32", "bf16_wire": "bf16", "thinwire": "`thinwire`"}
SENT = re.compile(r"plan revision after step \d+: \S+ (\S+)")


def beside_best(step_ms):
    """(best fixed way, its ms, adapt's ms, (ratio, low, high)) of {way: medians of its turns}."""
    best = min((n for n in step_ms if n != ADAPT), key=lambda n: statistics.median(step_ms[n]))
    return best, statistics.median(step_ms[best]), statistics.median(step_ms[ADAPT]), measured.interval([a / b for a, b in zip(step_ms[ADAPT], step_ms[best])])


def page(found):
    """docs/results/adapt.md."""
    cells = sorted((r for r in found if r["table"] == "adapt"), key=lambda r: (LAYOUTS.index(r["layout"]), list(RATES).index(r["rate"])))
    rows, said, wide = [], [], 0
    for r in cells:
        best, best_ms, ms, (middle, low, high) = beside_best(r["step_ms"])
        ranks = layout_keys(r["layout"])[1]
        bound = UP_TO_CORES if ranks <= int(r["machine"].split()[0]) else BEYOND
        said.append(measured.verdict(low, high, most=bound))
        wide += 100 * (high - low) > WIDTH
        others = ", ".join(f"{WORDS[n]} {statistics.median(r['step_ms'].get(n, [r['before_ms'][n]])):.0f}" for n in FIXED if n != best)
        chose = ", ".join(f"{site} {SENT.match(line)[1]}" for site, line in r["settled"].items())
        rows.append([r["layout"], RATES[r["rate"]], f"{ms:.0f}", f"{WORDS[best]} {best_ms:.0f}", others, f"{middle:.3f} ({low:.3f}–{high:.3f})", f"{bound:.2f}", said[-1], chose])
    turns = sorted({len(r["step_ms"][ADAPT]) for r in cells})
    by_machine = {m: [f"{r['layout']} {RATES[r['rate']]}" for r in cells if r["machine"] == m] for m in sorted({r["machine"] for r in cells})}
    most = max(by_machine.values(), key=len)
    machines = "; ".join(m + ("" if names is most else f" ({', '.join(names)})") for m, names in by_machine.items())
    return f"""# `compression.adapt` beside every fixed way

{measured.table(["pp x dp x tp", "link", "adapt, ms", "best fixed way, ms", "others, ms", "adapt / best", "at most", "verdict", "how adapt sends"], rows)}
{len(cells)} of {len(LAYOUTS) * len(RATES)} cells: {said.count("met")} met, {said.count("missed")} missed, {said.count("cannot be told")} cannot be told; intervals wider than {WIDTH:g} points: {wide}.

- A cell's runs stand side by side, each with hosts and links of the [lab](../lab.md), and are stopped and continued in turn, {" or ".join(map(str, turns))} turns each: all see the same minutes of the machine. `adapt` is measured once it has decided on every site; its trials are not in these times.
- *adapt / best*: per turn the median of its steps over that of the fixed way with the shortest steps; then the median over turns and its 95 % interval. *met*: all of it is at most the bound ({UP_TO_CORES:.2f} up to as many ranks as cores, {BEYOND:.2f} beyond); *missed*: none of it. A way that took {FAR:g} times as long as the best one before the turns began took none; what it took then stands under others.
- *how adapt sends*: `coded` as the preset says, `light` by codecs that cost the core less, `bf16`, `plain`.
- 10.8 M parameters, micro batch 1 of 256 tokens (4 and 8 of them with 2 and 4 stages), fp32 compute, ZeRO-1 between replicas, `thinwire` with gradients at 3.1 bits, the mean of its ramp.

{machines}; {min(r["date"] for r in cells)} to {max(r["date"] for r in cells)}. Cells with commands: `compression_adapt_cells.jsonl`. Again:

    scripts/compression_tables.py adapt --out DIR       # needs root; two hours
    scripts/compression_tables.py page --out DIR
"""
