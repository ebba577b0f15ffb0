#!/usr/bin/env python3
"""Tables of docs/results/codecs.md: runs `build/bench codec` in pieces and prints Markdown.

scripts/codec_tables.py run FILE.jsonl [SECONDS]   measures piece by piece; pieces in the file are not run again, and none is begun
                                                   after so many seconds (a shared machine is borrowed for a minute at a time)
scripts/codec_tables.py print FILE.jsonl           the tables of such a file
scripts/codec_tables.py page FILE.jsonl            puts them behind the marker in docs/results/codecs.md
THINWIRE_BUILD: where `bench` is (default build). Exit code 1 when a proof does not hold. Standard library only.
"""
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from measured import ROOT, add_cell, build_folder, ends, json_lines, put, read_cells, size_name, table

# Filters of pieces that take less than a minute each; together all cases. The first ones are what goals are about; a case that two
# pieces have counts as the first measured it.
LARGE = "/67108864"
PIECES = [["low_rank", "1024x1920"], ["zfp(rate=8)/", "6"], ["block_int(bits=8,block=128,scale=fp16)/6"], ["block_int(bits=8,block=32,scale=fp16)/6"],
          ["/snr"], ["/65536"], ["/1048576"], ["identity", LARGE], ["cast", LARGE], ["block_int(bits=8", LARGE], ["block_int(bits=6", LARGE],
          ["block_int(bits=4", LARGE], ["block_int(bits=2", LARGE], ["mx(", LARGE], ["e3m0", LARGE], ["lloyd_max", LARGE], ["ecsq", LARGE], ["one_bit", LARGE],
          ["zfp(rate=16)", LARGE], ["zfp(rate=24)", LARGE], ["mpc", LARGE], ["entropy", LARGE], ["top_k", LARGE],
          ["random_k", LARGE], ["sketch", LARGE]]
PAGE = os.path.join(ROOT, "docs", "results", "codecs.md")
MARKER = "<!-- from here on: scripts/codec_tables.py page -->"
SIZES = [1 << 16, 1 << 20, 1 << 26]
SETS = ["gaussian", "heavy_tail", "outliers", "sine", "zeros", "gradient", "activation", "weight"]


def run(path, seconds):
    began = time.time()
    done = {case["piece"] for case in read_cells(path)}
    for piece in PIECES:
        name = " ".join(piece)
        if name in done:
            continue
        if time.time() - began > seconds:
            print(f"{name}: not yet", file=sys.stderr)
            return
        start = time.time()
        for case in json_lines([os.path.join(build_folder(), "bench"), "codec", *piece, "--json"], codes=(0, 1)):
            add_cell(path, {"piece": name, **case})
        print(f"{name}: {time.time() - start:.0f} s", file=sys.stderr)


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


def tables(path):
    """(text, exit code)."""
    by_name = {}
    for case in read_cells(path):
        by_name.setdefault(case["case"], case)
    cases = list(by_name.values())
    text = "".join(f"## {title}\n\n{make(cases)}\n" for title, make in (("Goals", goals), ("Speed", speed), ("Beside others", peers), ("Low rank", low_rank), ("Fidelity", fidelity)))
    trained = by_name["trained data"]
    text += f"Trained data: {trained['parameters']} parameters, {trained['updates']} steps, loss {trained['first_loss']:.2f} to {trained['last_loss']:.2f}.\n"
    proved = [c for c in cases if "ok" in c]
    bad = [c["case"] for c in proved if not c["ok"]]
    return text + f"{len(proved)} cases, {len(proved) - len(bad)} proved." + (" NOT proved: " + ", ".join(bad) if bad else "") + "\n", 1 if bad else 0


def main():
    verb, path, *seconds = sys.argv[1:] if len(sys.argv) > 2 else ["help", None]
    if verb == "run":
        return run(path, float(seconds[0]) if seconds else 1e9)
    if verb not in ("print", "page"):
        sys.exit(__doc__)
    made, code = tables(path)
    if verb == "page":
        put(PAGE, MARKER, "\n" + made)
    else:
        print(made, end="")
    return code


if __name__ == "__main__":
    ends(main)
