#!/usr/bin/env python3
"""How much of the communication hides behind compute: data parallelism and ZeRO 1 to 3 in the emulated cluster.

    scripts/check_overlap.py [--hosts 2 4] [--rate 1gbit] [--stages 0 1 2 3] [--steps N] [--shape char] [--out FILE.md] [key=value ...]

For every number of hosts and stage, one rank per host and core, `bench step` runs three ways in the emulated cluster:
  compute   the same ranks at the same time, each alone with its share of the batch, so that they share the machine alike
  waiting   the layout with zero_optimization.overlap_comm=false: every transfer is waited for where it starts
  overlap   the layout as it is meant
communication = what the compute thread stood still for while waiting; cover = the compute that communication can run under: the backward pass for ZeRO-0, whose sums must be whole before the optimizer steps, all of it
otherwise; hideable = min(cover, communication); a perfect step takes max(compute, communication);
hidden = 1 - (exposed - unavoidable) / hideable, where unavoidable = max(0, communication - cover) waits in any
order. Exit code 1 when less than --least (0.7) is hidden somewhere. Needs root (scripts/lab); build/bench (--build DIR).
"""
import os
import statistics
import sys

sys.dont_write_bytecode = True
from measured import ROOT, Parser, emulated, ends, json_lines, need, table as markdown
from sweep_store import write_atomic


def exposed(line):
    """{site: (busy_ms, exposed_ms, megabytes sent by rank 0)} of one result."""
    return {site: (c["busy_ms"], c["exposed_ms"], c["wire_bytes"] / 1e6) for site, c in line.get("comm", {}).items()}


def measure(o, lab, hosts, stage):
    def command(*more):
        return [os.path.join(o.build, "bench"), "step", o.shape, f"train_micro_batch_size_per_gpu={o.micro}", "threads_per_rank=1",
                f"train_iters={o.steps}", *o.keys, *more, "--json"]
    layout = f"zero_optimization.stage={stage}"
    # Alone: without the launcher's variables a rank knows of no other.
    alone = ["env", *(f"-u{v}" for v in ("PMI_SIZE", "PMI_RANK", "PMI_FD")), *command()]
    runs = {"compute": [], "waiting": [], "overlap": []}
    for _ in range(o.rounds):  # in turn, so that a machine whose speed drifts treats all alike
        runs["compute"] += json_lines([*lab.run(hosts), *alone])
        runs["waiting"] += json_lines([*lab.run(hosts), *command(layout, "zero_optimization.overlap_comm=false")])
        runs["overlap"] += json_lines([*lab.run(hosts), *command(layout)])
    compute = statistics.median(r["step_ms"] for r in runs["compute"])

    def total(which, index):
        return statistics.median(sum(site[index] for site in exposed(r).values()) for r in runs[which])
    communication, still = total("waiting", 1), total("overlap", 1)
    # A sum that must be whole before the optimizer steps (ZeRO-0) can hide under the backward pass alone; a gather behind it
    # under the forward pass, too.
    cover = statistics.median(r["time_ms"]["backward"] for r in runs["compute"]) if stage == 0 else compute
    unavoidable = max(0.0, communication - cover)
    hideable = min(cover, communication)
    sites = {}
    for r in runs["overlap"]:
        for site, numbers in exposed(r).items():
            sites.setdefault(site, []).append(numbers)
    return {"hosts": hosts, "stage": stage, "compute": compute, "communication": communication, "exposed": still,
            "step": statistics.median(r["step_ms"] for r in runs["overlap"]), "waiting": statistics.median(r["step_ms"] for r in runs["waiting"]),
            "best": max(compute, communication), "hidden": 1 - max(0.0, still - unavoidable) / hideable if hideable > 0 else 1.0,
            "busy": total("overlap", 0), "sent": total("overlap", 2),
            "sites": {site: [statistics.median(n[i] for n in all_of) for i in range(3)] for site, all_of in sites.items()},
            "command": f"scripts/lab run -n {hosts} --bind -- {' '.join(['build/bench', *command(layout)[1:]])}"}


def gained(r):
    """In percent; a dash where waiting for each transfer costs nothing that could be gained."""
    most = r["waiting"] - r["best"]
    return f"{100 * (r['waiting'] - r['step']) / most:.0f} %" if most > 0 else "-"


def table(results, o):
    head = ["hosts", "ZeRO", "compute ms", "communication ms", "max of both", "step ms", "step / max", "waiting for each", "busy ms", "exposed ms", "core ms", "hidden", "gained", "MB sent"]
    rows = [[r["hosts"], r["stage"], *(f"{v:.0f}" for v in (r["compute"], r["communication"], r["best"], r["step"])), f"{r['step'] / r['best']:.2f}",
             *(f"{v:.0f}" for v in (r["waiting"], r["busy"], r["exposed"], r["step"] - r["compute"] - r["exposed"])), f"{100 * r['hidden']:.0f} %", gained(r), f"{r['sent']:.1f}"] for r in results]
    sites = [[r["hosts"], r["stage"], site, f"{busy:.1f}", f"{still:.1f}", f"{sent:.2f}"] for r in results for site, (busy, still, sent) in sorted(r["sites"].items())]
    lines = [markdown(head, rows), "Sites of the overlapped runs (ms per step and rank 0; MB sent):", "", markdown(["hosts", "ZeRO", "site", "busy ms", "exposed ms", "MB"], sites).rstrip()]
    cores = len(os.sched_getaffinity(0))
    lines += ["", f"`{o.shape}`, micro batch {o.micro}, {o.rate} links, one rank per host, medians of {o.rounds} rounds of {o.steps} steps, {cores} cores.",
              "compute: all ranks at once, alone; communication: what a step stands still for when every transfer is waited for; hidden: 1 - (exposed - what",
              "no order could hide) / min(compute it can run under, communication), which for ZeRO-0 is the backward pass. core: what a step takes beyond compute and",
              "exposed: TCP, sums and polling on the cores that compute, which no order hides; gained: (waiting for each - step) / (waiting for each - max of both),",
              "in which that time, and what ZeRO-0 cannot hide, count as not hidden. With more ranks than cores, ranks share cores, and a rank that waits lends its core to another.",
              "", *(f"- `{r['command']}`" for r in results)]
    return "\n".join(lines)


def main():
    options = Parser(__doc__)
    options.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    options.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    options.add_argument("--rate", default="1gbit")
    options.add_argument("--shape", default="char")
    options.add_argument("--micro", type=int, default=4)
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--least", type=float, default=0.7)
    options.add_argument("--build", default=os.path.join(ROOT, "build"))
    options.add_argument("--out")
    o, o.keys = options.parse_known_args()
    if any("=" not in k or k.startswith("-") for k in o.keys):
        options.error(f"not key=value: {' '.join(o.keys)}")
    o.build = os.path.abspath(o.build)
    need("bench", build=o.build)
    results = []
    with emulated() as lab:
        for hosts in o.hosts:
            lab.be(hosts, o.rate)
            for stage in o.stages:
                results.append(measure(o, lab, hosts, stage))
                r = results[-1]
                print(f"{hosts} hosts, ZeRO {stage}: step {r['step']:.0f} ms, best {r['best']:.0f}, hidden {100 * r['hidden']:.0f} %", file=sys.stderr, flush=True)
    text = table(results, o)
    print(text)
    if o.out:
        write_atomic(o.out, "# Communication behind compute\n\n" + text + "\n")
    least = min(r["hidden"] for r in results)
    print(f"\nleast hidden: {100 * least:.0f} % ({'at least' if least >= o.least else 'BELOW'} {100 * o.least:.0f} %)")
    return 0 if least >= o.least else 1


if __name__ == "__main__":
    ends(main)
