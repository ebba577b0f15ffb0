#!/usr/bin/env python3
"""The tables of docs/results/codecs.md and docs/results/comm.md, from `build/bench codec` and `build/bench comm`.

  scripts/bench_tables.py codec run FILE.jsonl                  measures all codecs; replaces FILE
  scripts/bench_tables.py comm run FILE.jsonl [--where memory lab crowded checked_memory checked_lab] [--rounds 5]    messages beside MPI's; appends to FILE
  scripts/bench_tables.py comm page FILE.jsonl                  writes the tables of FILE into comm.md and checksums.md
  scripts/bench_tables.py codec page [FILE.jsonl]               writes codecs.md and its picture from codecs_cells.jsonl; with FILE, makes those cells of it first

memory: 2 ranks on this machine; lab: 2 hosts of scripts/lab at 10 Gbit/s (needs root); crowded: 4 ranks; checked_*: with checksums, beside without.
THINWIRE_BUILD: where `bench` is (default build). Exit code 1 when a proof does not hold.
"""
import collections
import json
import os
import re
import statistics
import sys
import time

sys.dont_write_bytecode = True
import sweep_svg
from sweep_store import write_atomic
from measured import ROOT, Parser, add_cell, emulated, ends, fail, json_lines, machine, need, put, read_cells, size_name, table

PAGES = {name: os.path.join(ROOT, "docs", "results", page) for name, page in (("codec", "codecs.md"), ("comm", "comm.md"))}
CHECKSUMS = os.path.join(ROOT, "docs", "results", "checksums.md")

# ---- codecs

CELLS, PICTURE = (os.path.join(ROOT, "docs", "results", "codecs" + end) for end in ("_cells.jsonl", "_bits.svg"))
MARKER = "<!-- from here on: scripts/bench_tables.py codec page -->"
SIZES = [1 << 16, 1 << 20, 1 << 26]
METHOD = """## Method and caveats

- Measured {when} on {where}. Absolute rates of such a machine are off; ratios are medians of neighbours in time (memcpy, ours, theirs in turn).
- Every case is proved before it is timed: decoded numbers against what the format allows, in float64 (zfp: libzfp's stream and numbers bit for bit; lossless ones: equality;
  `low_rank`: what is lost is orthogonal to what arrives), the payload's length against the byte formula, and no non-finite flag on finite input.
- Speed is of fp32 normal numbers. Slow encoders (below 0.9) come closer to memcpy from main memory (64 MiB): {closer}.

## Repeat

    scripts/bench_tables.py codec run codecs.jsonl && scripts/bench_tables.py codec page codecs.jsonl     # about four minutes
    build/bench codec 'zfp(rate=8)/67108864'                                                  # one case, by its name
    build/bench codec block_int /snr                                                          # cases whose names contain all of these
"""
KINDS = ("gaussian", "heavy_tail", "outliers", "gradient")
SHOWN = ("cast(format=bf16)", "cast(format=e4m3)", "block_int(bits=8,block=32,scale=fp16)", "block_int(bits=8,block=128,scale=bf16)", "block_int(bits=8,block=128,scale=fp16,stochastic)",
         "block_int(bits=4,block=32,scale=fp16)", "block_int(bits=4,block=128,scale=bf16)", "block_int(bits=4,block=2048,scale=fp16)", "block_int(bits=2,block=128,scale=fp16)",
         "hadamard + block_int(bits=4,block=32,scale=fp16)", "mx(format=mxfp8_e4m3)", "mx(format=mxfp4)", "mx(format=nvfp4)", "e3m0(block=128)", "lloyd_max(bits=4,block=64)",
         "lloyd_max(bits=3,block=64)", "lloyd_max(bits=2,block=64)", "ecsq(rate=2,block=64)", "ecsq(rate=2.5,block=64)", "ecsq(rate=3,block=64)", "one_bit(block=1024)", "zfp(rate=8)", "zfp(rate=16)",
         "mpc(dimension=1)", "entropy", "top_k(density=0.01,format=bf16)", "top_k(density=0.2,format=bf16)", "chunked_top_k(keep=64,block=4096,format=2bit)",
         "random_k(density=0.01,block=4096,format=bf16)", "sketch(density=0.2,compact)", "sketch(density=0.01,ratio=2,table)")


def run_codec(o, bench):
    cases = json_lines([bench, "codec", "--json"], codes=(0, 1))
    write_atomic(o.file, "".join(json.dumps(case) + "\n" for case in cases))
    return 0 if all(case.get("ok", True) for case in cases) else 1


def cells(cases):
    """What codecs_cells.jsonl keeps of the cases of `bench codec`. Speeds are pairs: GB/s, and the ratio to memcpy."""
    by_name, out = {c["case"]: c for c in cases}, []
    timed = {c["codec"] for c in cases if "codec" in c}

    def pair(case, which):
        return [round(case[which + "_gbytes_per_s"], 2), round(case[which + "_over_memcpy"], 2)]

    for c in cases:
        name = c["case"].removesuffix("/snr")
        if "snr_db" in c:
            if name in timed and "low_rank" not in name:
                rows = {x["input_bytes"]: x for x in cases if x.get("codec") == name}
                out.append({"table": "speed", "codec": name, "bits": round(rows[max(rows)]["bits_per_value"], 3),
                            **{f"{which} {size_name(size)}": pair(rows[size], which) for size in SIZES if size in rows for which in ("encode", "decode")}})
            lossless = all(v == "exact" for v in c["snr_db"].values()) and name != "identity"
            out.append({"table": "lossless", "codec": name, "bits": {n: round(v, 3) for n, v in c["bits_per_value"].items()}} if lossless else
                       {"table": "fidelity", "codec": name, "messages": c["messages"], "bits": round(c["bits_per_value"]["gaussian"], 3),
                        "snr_db": {n: v if isinstance(v, str) else round(v, 1) for n, v in c["snr_db"].items()}})
        elif "low_rank" in c.get("codec", ""):
            out.append({"table": "low_rank", "case": c["case"], "bits": round(c["bits_per_value"], 3), "encode": pair(c, "encode"), "decode": pair(c, "decode")})
        if p := c.get("peer"):
            out.append({"table": "peer", "case": c["case"], "peer": p["name"], "bits": [round(c["bits_per_value"], 3), round(p["bits_per_value"], 3) if "bits_per_value" in p else "-"],
                        **{f"{w}_gbytes_per_s": [round(c[f"{w}_gbytes_per_s"], 2), round(p[f"{w}_gbytes_per_s"], 2)] for w in ("encode", "decode")},
                        **{f"{w}_over_peer": round(p[f"{w}_over_peer"], 2) for w in ("encode", "decode")}})
    trained, proved = by_name["trained data"], [c["ok"] for c in cases if "ok" in c]
    out.append({"table": "trained", "parameters": trained["parameters"], "steps": trained["updates"], "first_loss": trained["first_loss"], "last_loss": trained["last_loss"],
                "cases": len(proved), "proved": sum(proved)})
    return [{**c, "date": time.strftime("%Y-%m-%d"), "machine": "one core of " + machine()} for c in out]


def goals(found):
    speed, peer = ({c[name]: c for c in found if c["table"] == kind} for kind, name in (("speed", "codec"), ("peer", "case")))
    rows = []

    def row(goal, where, encode, decode, met):
        rows.append([goal, where, f"{encode:.2f}", f"{decode:.2f}", "met" if met else "**missed**"])

    for block in (32, 128):
        for size in map(size_name, SIZES):
            c = speed[f"block_int(bits=8,block={block},scale=fp16)"]
            e, d = c["encode " + size][1], c["decode " + size][1]
            row(f"`block_int` 8 / {block}: at least 0.60 of memcpy", size, e, d, min(e, d) >= 0.6)
    for size in SIZES:
        e, d = (peer[f"zfp(rate=8)/{size}"][f"{w}_over_peer"] for w in ("encode", "decode"))
        row("`zfp` 8: at least 2 times libzfp", size_name(size), e, d, min(e, d) >= 2.0)
    for form in ("", " in rounds"):
        e, d = (1 / peer[f"low_rank(rank=16,sides=2){form}/1024x1920"][f"{w}_over_peer"] for w in ("encode", "decode"))
        row(f"`low_rank` 16{form}: at most 2 times its products alone", "1024 x 1920", e, d, max(e, d) <= 2.0)
    return table(["goal", "size", "encode", "decode", ""], rows)


def codecs(found):
    """Bits, speed at 1 MiB and fidelity of the codecs in SHOWN; those of all are in the cells."""
    snr = {c["codec"]: c["snr_db"] for c in found if c["table"] == "fidelity" and c["messages"] == 1}
    rows = []
    for c in found:
        if c["table"] != "speed" or c["codec"] not in SHOWN:
            continue
        got = snr.get(c["codec"])
        rows.append([f"`{c['codec']}`", f"{c['bits']:.2f}", *(f"{c[w + ' 1 MiB'][1]:.2f}" for w in ("encode", "decode")),
                     *((f"{got[s]:.1f}" if not isinstance(got[s], str) else got[s]) if got else "exact" for s in KINDS)])
    return table(["codec", "bits", "encode / memcpy", "decode / memcpy", *KINDS], rows)


def picture(found):
    """The noise of a trained gradient over bits per value."""
    points = []
    for c in found:
        if c["table"] == "fidelity" and c["messages"] == 1 and c["bits"] <= 9 and not isinstance(c["snr_db"]["gradient"], str):
            shown = c["codec"] in SHOWN
            points.append({"x": c["bits"], "y": -c["snr_db"]["gradient"], "name": re.sub(r"\w+=", "", c["codec"]) if shown else "", "title": c["codec"], "color": 0, "shape": 0, "small": not shown, "first": shown})
    return sweep_svg.draw({"chart": "scatter", "title": "codecs", "x_label": "bits per value", "y_label": "noise beside signal, dB", "x_format": "number", "y_format": "number", "more_is_better": False,
                           "points": points, "heading": "What a codec loses of a trained gradient", "note": "one message, no residual"})


def page_codec(o):
    if o.file:
        kept = cells(read_cells(o.file))
        if not kept:
            fail(f"{o.file}: no measurements in it")
        write_atomic(CELLS, "".join(json.dumps(c) + "\n" for c in kept))
    found = read_cells(CELLS)
    trained = next(c for c in found if c["table"] == "trained")
    slow = [c["encode 64 MiB"][1] > c["encode 1 MiB"][1] for c in found if c["table"] == "speed" and "encode 64 MiB" in c and c["encode 1 MiB"][1] < 0.9]
    put(PAGES["codec"], MARKER, f"\n## Goals\n\n{goals(found)}\n## Codecs\n\n1 MiB, ratio to memcpy of the same bytes (encode: input, decode: output); then the signal to noise ratio in dB of one message on four kinds of data.\n\n{codecs(found)}\n"
        f"Trained data: {trained['parameters']} parameters, {trained['steps']} steps, loss {trained['first_loss']:.2f} to {trained['last_loss']:.2f}. {trained['cases']} cases, {trained['proved']} proved.\n\n"
        "All sizes, all kinds of data, peers and lossless sizes: `codecs_cells.jsonl`.\n\n" + METHOD.format(when=found[0]["date"], where=found[0]["machine"], closer=f"{sum(slow)} of {len(slow)}"))
    write_atomic(PICTURE, picture(found))
    return 0 if trained["proved"] == trained["cases"] else 1


# ---- messages and collectives

VERBS = ["ping_pong", "mpi_isend", "message_rate", "all_gather", "all_to_all", "broadcast", "all_reduce", "reduce_scatter", "mpi_iallgather", "mpi_ialltoall", "mpi_ibcast"]
PLACES = {"memory": [8, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26], "lab": [8, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26], "crowded": [8, 1 << 16, 1 << 18, 1 << 20, 1 << 22]}


CHECKED = ["checked_ping_pong", "checked_all_gather", "checked_all_reduce"]
PLACES |= {where: [1 << 16, 1 << 20, 1 << 24] for where in ("checked_memory", "checked_lab")}


def run_comm(o, bench):
    ok = True
    with emulated() as lab:
        for where in o.where:
            launch = lab.run(2) if where.endswith("lab") else ["mpirun", "-n", "4" if where == "crowded" else "2"]
            names = CHECKED if where.startswith("checked") else [""]
            if where.endswith("lab"):
                lab.be(2, "10gbit")
            for round_ in range(o.rounds):  # sizes in turn, so that a slow minute does not meet one of them alone
                for size in PLACES[where]:
                    for case in (c for name in names for c in json_lines([*launch, bench, "comm", f"{name}/{size}", "--json"], codes=(0, 1))):
                        add_cell(o.file, {"where": where, "round": round_, **case})
                        ok = ok and case.get("ok", True)
    return 0 if ok else 1


def comm_table(by_size, where):
    sizes, rows = PLACES[where], []
    if where.startswith("checked"):
        for verb in CHECKED:
            row = [verb.removeprefix("checked_")]
            for size in sizes:
                got = by_size.get((where, verb, size), [])
                ratios = sorted(c["ratio"] for c in got)
                row.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f}) of {statistics.median(c['plain_us'] for c in got):.0f} us" if got else "-")
            rows.append(row)
        return table(["", *(size_name(s) for s in sizes)], rows)
    for verb in VERBS:
        row = [verb]
        for size in sizes:
            got = by_size.get((where, verb, size))
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
    by_size, found = collections.defaultdict(list), read_cells(o.file)
    if not found:
        fail(f"{o.file}: no measurements in it")
    for case in found:
        if "mpi_us" in case or "plain_us" in case:
            by_size[case["where"], case["case"].split("/")[0], case["bytes"]].append(case)
    for where in PLACES:
        rounds = max((len(v) for k, v in by_size.items() if k[0] == where), default=0)
        if rounds:
            put(CHECKSUMS if where.startswith("checked") else PAGES["comm"], f"<!-- table {where} -->", f"\n{comm_table(by_size, where)}\nRounds: {rounds}.\n\n", "<!-- end -->")
    return 0


def main():
    parser = Parser(__doc__)
    parser.add_argument("what", choices=PAGES)
    parser.add_argument("verb", choices=("run", "page"))
    parser.add_argument("file", nargs="?")
    parser.add_argument("--where", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--rounds", type=int, default=5)
    o = parser.parse_args()
    if not o.file and (o.what, o.verb) != ("codec", "page"):
        parser.error("which FILE.jsonl?")
    if o.verb == "run":
        return {"codec": run_codec, "comm": run_comm}[o.what](o, need("bench")[0])
    return {"codec": page_codec, "comm": page_comm}[o.what](o)


if __name__ == "__main__":
    ends(main)
