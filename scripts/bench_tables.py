#!/usr/bin/env python3
"""The tables of docs/results/codecs.md and docs/results/comm.md, from `build/bench codec` and `build/bench comm`.

  scripts/bench_tables.py codec run FILE.jsonl [--seconds S]    measures codecs piece by piece; pieces in the file are not run again
  scripts/bench_tables.py comm run FILE.jsonl [--seconds S] [--where memory lab crowded] [--rounds 5]    messages beside MPI's; the file grows
  scripts/bench_tables.py codec|comm page FILE.jsonl            puts the tables of such a file into the page
  scripts/bench_tables.py codec print FILE.jsonl                prints them

No piece and no round begins after S seconds (a shared machine is borrowed for a minute at a time). memory: 2 ranks on this machine; lab: 2
hosts of scripts/lab at 10 Gbit/s (needs root); crowded: 4 ranks. THINWIRE_BUILD: where `bench` is (default build). Exit code 1 when a proof
does not hold.
"""
import argparse
import collections
import os
import statistics
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from measured import ROOT, add_cell, emulated, ends, json_lines, need, put, read_cells, size_name, table

PAGES = {name: os.path.join(ROOT, "docs", "results", page) for name, page in (("codec", "codecs.md"), ("comm", "comm.md"))}

# ---- codecs

# Filters of pieces that take less than a minute each; together all cases. The first ones are what goals are about; a case that two
# pieces have counts as the first measured it.
LARGE = "/67108864"
PIECES = [["low_rank", "1024x1920"], ["zfp(rate=8)/", "6"], ["block_int(bits=8,block=128,scale=fp16)/6"], ["block_int(bits=8,block=32,scale=fp16)/6"],
          ["/snr"], ["/65536"], ["/1048576"], ["identity", LARGE], ["cast", LARGE], ["block_int(bits=8", LARGE], ["block_int(bits=6", LARGE],
          ["block_int(bits=4", LARGE], ["block_int(bits=2", LARGE], ["mx(", LARGE], ["e3m0", LARGE], ["lloyd_max", LARGE], ["ecsq", LARGE], ["one_bit", LARGE],
          ["zfp(rate=16)", LARGE], ["zfp(rate=24)", LARGE], ["mpc", LARGE], ["entropy", LARGE], ["top_k", LARGE],
          ["random_k", LARGE], ["sketch", LARGE]]
MARKER = "<!-- from here on: scripts/bench_tables.py codec page -->"
SIZES = [1 << 16, 1 << 20, 1 << 26]
SETS = ["gaussian", "heavy_tail", "outliers", "sine", "zeros", "gradient", "activation", "weight"]


def run_codec(o, bench):
    began = time.monotonic()
    done = {case["piece"] for case in read_cells(o.file)}
    for piece in PIECES:
        name, start = " ".join(piece), time.monotonic()
        if name in done:
            continue
        if start - began > o.seconds:
            print(f"{name}: not yet", file=sys.stderr)
            return 0
        for case in json_lines([bench, "codec", *piece, "--json"], codes=(0, 1)):
            add_cell(o.file, {"piece": name, **case})
        print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    return 0


def pair(case, which):
    return f"{case[which + '_gbytes_per_s']:.1f} ({case[which + '_over_memcpy']:.2f})"


def speed(cases):
    # In the order of the list, which is that of the fidelity cases.
    timed = {c["codec"] for c in cases if "codec" in c}
    lines = []
    for codec in (c["case"].removesuffix("/snr") for c in cases if "snr_db" in c):
        if codec in timed and "low_rank" not in codec:
            rows = {c["input_bytes"]: c for c in cases if c.get("codec") == codec}
            cells = [pair(rows[size], which) if size in rows else "-" for size in SIZES for which in ("encode", "decode")]
            lines.append([f"`{codec}`", f"{rows[max(rows)]['bits_per_value']:.3f}", *cells])
    copies = {size: sorted(c["memcpy_gbytes_per_s"] for c in cases if c.get("input_bytes") == size) for size in SIZES}
    return (table(["codec", "bits", *(f"{which} {size_name(size)}" for size in SIZES for which in ("encode", "decode"))], lines) +
            "\nmemcpy in the same runs, median over codecs: " + ", ".join(f"{v[len(v) // 2]:.1f} GB/s at {size_name(size)}" for size, v in copies.items()) + ".\n")


def peers(cases):
    rows = []
    for c in cases:
        if p := c.get("peer"):
            theirs = f"{p['bits_per_value']:.3f}" if "bits_per_value" in p else "-"
            speeds = [v for w in ("encode", "decode") for v in (f"{c[w + '_gbytes_per_s']:.2f}, {p[w + '_gbytes_per_s']:.2f}", f"{p[w + '_over_peer']:.2f}")]
            rows.append([f"`{c['case']}`", p["name"], *speeds, f"{c['bits_per_value']:.3f}, {theirs}"])
    return table(["case", "beside", "encode GB/s, ours and theirs", "ratio", "decode GB/s, ours and theirs", "ratio", "bits, ours and theirs"], rows)


def low_rank(cases):
    rows = [[f"`{c['case']}`", f"{c['bits_per_value']:.3f}", pair(c, "encode"), pair(c, "decode")] for c in cases if "low_rank" in c.get("codec", "")]
    return table(["case", "bits", "encode GB/s (memcpy)", "decode GB/s (memcpy)"], rows)


def fidelity(cases):
    rows, by_value = [], []
    for c in cases:
        if "snr_db" not in c:
            continue
        bits, codec = c["bits_per_value"], c["case"].removesuffix("/snr")
        if all(v == "exact" for v in c["snr_db"].values()) and codec != "identity":
            by_value.append([f"`{codec}`", *(f"{bits[s]:.3f}" for s in SETS)])
            continue
        note = f", sum of {c['messages']} messages" if c["messages"] > 1 else ""
        rows.append([f"`{codec}`{note}", f"{bits['gaussian']:.3f}", *(v if isinstance(v := c["snr_db"][s], str) else f"{v:.1f}" for s in SETS)])
    return table(["codec", "bits", *SETS], rows) + "\nLossless ones, bits per value:\n\n" + table(["codec", *SETS], by_value)


def goals(cases):
    by_name, rows = {c["case"]: c for c in cases}, []

    def row(goal, size, encode, decode, met):
        rows.append([goal, size, f"{encode:.2f}", f"{decode:.2f}", "met" if met else "NOT met"])

    for block in (32, 128):
        for size in SIZES:
            c = by_name[f"block_int(bits=8,block={block},scale=fp16)/{size}"]
            e, d = c["encode_over_memcpy"], c["decode_over_memcpy"]
            row(f"`block_int` 8 / {block}: at least 0.60 of memcpy", size_name(size), e, d, min(e, d) >= 0.6)
    for size in SIZES:
        if p := by_name[f"zfp(rate=8)/{size}"].get("peer"):
            e, d = p["encode_over_peer"], p["decode_over_peer"]
            row("`zfp` 8: at least 2 times libzfp", size_name(size), e, d, min(e, d) >= 2.0)
    for form in ("", " in rounds"):
        p = by_name[f"low_rank(rank=16,sides=2){form}/1024x1920"]["peer"]
        e, d = 1 / p["encode_over_peer"], 1 / p["decode_over_peer"]
        row(f"`low_rank` 16{form}: at most 2 times its products alone", "1024 x 1920", e, d, max(e, d) <= 2.0)
    return table(["goal", "size", "encode", "decode", ""], rows)


def page_codec(o):
    by_name = {}
    for case in read_cells(o.file):
        by_name.setdefault(case["case"], case)
    cases = list(by_name.values())
    text = "".join(f"## {title}\n\n{make(cases)}\n" for title, make in (("Goals", goals), ("Speed", speed), ("Beside others", peers), ("Low rank", low_rank), ("Fidelity", fidelity)))
    trained = by_name["trained data"]
    text += f"Trained data: {trained['parameters']} parameters, {trained['updates']} steps, loss {trained['first_loss']:.2f} to {trained['last_loss']:.2f}.\n"
    proved = [c for c in cases if "ok" in c]
    bad = [c["case"] for c in proved if not c["ok"]]
    text += f"{len(proved)} cases, {len(proved) - len(bad)} proved." + (" NOT proved: " + ", ".join(bad) if bad else "") + "\n"
    if o.verb == "page":
        put(PAGES["codec"], MARKER, "\n" + text)
    else:
        print(text, end="")
    return 1 if bad else 0


# ---- messages and collectives

VERBS = ["ping_pong", "mpi_isend", "message_rate", "all_gather", "all_to_all", "broadcast", "all_reduce", "reduce_scatter", "mpi_iallgather", "mpi_ialltoall", "mpi_ibcast"]
PLACES = {"memory": [8, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26], "lab": [8, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26], "crowded": [8, 1 << 16, 1 << 18, 1 << 20, 1 << 22]}


def run_comm(o, bench):
    begin, ok = time.monotonic(), True
    with emulated() as lab:
        for where in o.where:
            launch = {"memory": ["mpirun", "-n", "2"], "lab": lab.run(2), "crowded": ["mpirun", "-n", "4"]}[where]
            if where == "lab":
                lab.be(2, "10gbit")
            for round_ in range(o.rounds):  # sizes in turn, so that a slow minute does not meet one of them alone
                if time.monotonic() - begin > o.seconds:
                    print(f"{where}: {round_} of {o.rounds} rounds", file=sys.stderr)
                    break
                for size in PLACES[where]:
                    for case in json_lines([*launch, bench, "comm", f"/{size}", "--json"], codes=(0, 1)):
                        add_cell(o.file, {"where": where, "round": round_, **case})
                        ok = ok and case.get("ok", True)
    return 0 if ok else 1


def comm_table(cells, where):
    sizes, rows = PLACES[where], []
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


def page_comm(o):
    cells = collections.defaultdict(list)
    for case in read_cells(o.file):
        if "mpi_us" in case:
            cells[case["where"], case["case"].split("/")[0], case["bytes"]].append(case)
    for where in PLACES:
        rounds = max((len(v) for k, v in cells.items() if k[0] == where), default=0)
        if rounds:
            put(PAGES["comm"], f"<!-- table {where} -->", f"\n{comm_table(cells, where)}\nRounds: {rounds}.\n\n", "<!-- end -->")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=PAGES)
    parser.add_argument("verb", choices=("run", "page", "print"))
    parser.add_argument("file")
    parser.add_argument("--where", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1e9)
    o = parser.parse_args()
    if o.verb == "run":
        return {"codec": run_codec, "comm": run_comm}[o.what](o, need("bench")[0])
    if (o.what, o.verb) == ("comm", "print"):
        parser.error("comm has no print")
    return {"codec": page_codec, "comm": page_comm}[o.what](o)


if __name__ == "__main__":
    ends(main)
