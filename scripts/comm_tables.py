#!/usr/bin/env python3
# The tables of docs/results/comm.md: `build/bench comm` in rounds, and its medians as Markdown.
"""What moving bytes costs beside the MPI library, and with checksums beside without.

    scripts/comm_tables.py run FILE.jsonl [--where memory lab ...] [--rounds 5] [--seconds S]   measure; the file grows
    scripts/comm_tables.py page FILE.jsonl                                                      its tables into docs/results/comm.md

memory: 2 ranks on this machine; lab: 2 hosts of scripts/lab at 10 Gbit/s (needs root); crowded: 4 ranks; checked_memory, checked_lab: the cases
with checksums. No round begins after S seconds.
Exit code 1 when a proof of `bench comm` does not hold.
"""
import argparse
import collections
import os
import statistics
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from compression_cells import CellError, emulated
from measured import ROOT, add_cell, fail, json_lines, put, read_cells, size_name, table

PAGE = os.path.join(ROOT, "docs", "results", "comm.md")
BENCH = os.path.join(os.environ.get("THINWIRE_BUILD", os.path.join(ROOT, "build")), "bench")
VERBS = ["ping_pong", "mpi_isend", "message_rate", "all_gather", "all_to_all", "broadcast", "all_reduce", "reduce_scatter", "mpi_iallgather", "mpi_ialltoall", "mpi_ibcast"]
SIZES = {"memory": [8, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26], "lab": [8, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26], "crowded": [8, 1 << 16, 1 << 18, 1 << 20, 1 << 22]}
CHECKED = ["checked_ping_pong", "checked_all_gather", "checked_all_reduce"]
SIZES |= {where: [1 << 16, 1 << 20, 1 << 24] for where in ("checked_memory", "checked_lab")}


def run(o):
    begin, ok = time.monotonic(), True
    with emulated() as lab:
        for where in o.where:
            launch = lab.run(2) if where.endswith("lab") else ["mpirun", "-n", "4" if where == "crowded" else "2"]
            cases = CHECKED if where.startswith("checked") else [""]
            if where.endswith("lab"):
                lab.be(2, "10gbit")
            for round_ in range(o.rounds):  # sizes in turn, so that a slow minute does not meet one of them alone
                if time.monotonic() - begin > o.seconds:
                    print(f"{where}: {round_} of {o.rounds} rounds", file=sys.stderr)
                    break
                for size in SIZES[where]:
                    for name in cases:
                        for case in json_lines([*launch, BENCH, "comm", f"{name}/{size}", "--json"], codes=(0, 1)):
                            add_cell(o.file, {"where": where, "round": round_, **case})
                            ok = ok and case.get("ok", True)
    return 0 if ok else 1


def table_of(cells, where):
    sizes, rows = SIZES[where], []
    if where.startswith("checked"):
        for verb in CHECKED:
            row = [verb.removeprefix("checked_")]
            for size in sizes:
                ratios = sorted(c["ratio"] for c in cells.get((where, verb, size), []))
                plain = statistics.median(c["plain_us"] for c in cells.get((where, verb, size), [{"plain_us": 0.0}]))
                row.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f}) of {plain:.0f} us" if ratios else "-")
            rows.append(row)
        return table(["", *(size_name(s) for s in sizes)], rows)
    for verb in VERBS:
        row = [verb]
        for size in sizes:
            got = cells.get((where, verb, size))
            if not got:
                row.append("-")
            elif size == 8:
                row.append(f"{statistics.median(c['us'] - c['mpi_us'] for c in got):.2f} of {statistics.median(c['mpi_us'] for c in got):.2f} us")
            else:
                ratios = sorted(c["ratio"] for c in got)
                row.append(f"{statistics.median(ratios):.2f}" + (f" ({ratios[0]:.2f} - {ratios[-1]:.2f})" if len(ratios) > 1 else ""))
        rows.append(row)
    return table(["", "added at 8 B", *(size_name(s) for s in sizes[1:])], rows)


def page(o):
    cells = collections.defaultdict(list)
    for case in read_cells(o.file):
        if "mpi_us" in case or "plain_us" in case:
            cells[case["where"], case["case"].split("/")[0], case["bytes"]].append(case)
    for where in SIZES:
        rounds = max((len(v) for k, v in cells.items() if k[0] == where), default=0)
        if rounds:
            put(PAGE, f"<!-- table {where} -->", f"\n{table_of(cells, where)}\nRounds: {rounds}.\n\n", "<!-- end -->")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    p = verbs.add_parser("run")
    p.set_defaults(function=run)
    p.add_argument("file")
    p.add_argument("--where", nargs="+", choices=list(SIZES), default=list(SIZES))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=1e9)
    p = verbs.add_parser("page")
    p.set_defaults(function=page)
    p.add_argument("file")
    o = parser.parse_args()
    try:
        return o.function(o)
    except CellError as e:
        return fail(e)


if __name__ == "__main__":
    sys.exit(main())
