#!/usr/bin/env python3
"""Tables of docs/results/codecs.md: runs `build/bench codec` in pieces and prints Markdown.

scripts/codec_tables.py run FILE.jsonl [SECONDS]   measures piece by piece; pieces in the file are not run again, and none is begun
                                                   after so many seconds (a shared machine is borrowed for a minute at a time)
scripts/codec_tables.py print FILE.jsonl           the tables of such a file
scripts/codec_tables.py page FILE.jsonl            puts them behind the marker in docs/results/codecs.md
THINWIRE_BUILD: where `bench` is (default build). Exit code 1 when a proof does not hold. Standard library only.
"""
import contextlib
import io
import json
import os
import subprocess
import sys
import time

# Filters of pieces that take less than a minute each; together all cases. The first ones are what goals are about; a case that two
# pieces have counts as the first measured it.
LARGE = "/67108864"
PIECES = [["low_rank", "1024x1920"], ["zfp(rate=8)/", "6"], ["block_int(bits=8,block=128,scale=fp16)/6"], ["block_int(bits=8,block=32,scale=fp16)/6"],
          ["/snr"], ["/65536"], ["/1048576"], ["identity", LARGE], ["cast", LARGE], ["block_int(bits=8", LARGE], ["block_int(bits=6", LARGE],
          ["block_int(bits=4", LARGE], ["block_int(bits=2", LARGE], ["mx(", LARGE], ["e3m0", LARGE], ["lloyd_max", LARGE], ["ecsq", LARGE], ["one_bit", LARGE],
          ["zfp(rate=16)", LARGE], ["zfp(rate=24)", LARGE], ["mpc", LARGE], ["entropy", LARGE], ["top_k", LARGE],
          ["random_k", LARGE], ["sketch", LARGE]]
PAGE = "docs/results/codecs.md"
MARKER = "<!-- from here on: scripts/codec_tables.py page -->"
SIZES = [(1 << 16, "64 KiB"), (1 << 20, "1 MiB"), (1 << 26, "64 MiB")]
SETS = ["gaussian", "heavy_tail", "outliers", "sine", "zeros", "gradient", "activation", "weight"]


def run(path, seconds):
    began = time.time()
    try:
        with open(path, encoding="utf-8") as f:
            done = {json.loads(line)["piece"] for line in f}
    except FileNotFoundError:
        done = set()
    for piece in PIECES:
        name = " ".join(piece)
        if name in done:
            continue
        if time.time() - began > seconds:
            print(f"{name}: not yet", file=sys.stderr)
            return
        start = time.time()
        out = subprocess.run([os.path.join(os.environ.get("THINWIRE_BUILD", "build"), "bench"), "codec", *piece, "--json"], stdout=subprocess.PIPE, text=True, check=False)
        with open(path, "a", encoding="utf-8") as f:
            for line in out.stdout.splitlines():
                f.write(json.dumps({"piece": name, **json.loads(line)}) + "\n")
        print(f"{name}: {time.time() - start:.0f} s, exit code {out.returncode}", file=sys.stderr)


def pair(case, which):
    return f"{case[which + '_gbytes_per_s']:.1f} ({case[which + '_over_memcpy']:.2f})"


def speed(cases):
    print("| codec | bits | " + " | ".join(f"encode {name} | decode {name}" for _, name in SIZES) + " |")
    print("|---|---|" + "---|---|" * len(SIZES))
    # In the order of the list, which is that of the fidelity cases.
    timed = {c["codec"] for c in cases if "codec" in c}
    codecs = [c["case"].removesuffix("/snr") for c in cases if "snr_db" in c]
    for codec in codecs:
        if codec not in timed or "low_rank" in codec:
            continue
        rows = {c["input_bytes"]: c for c in cases if c.get("codec") == codec}
        cells = [pair(rows[size], which) if size in rows else "-" for size, _ in SIZES for which in ("encode", "decode")]
        print(f"| `{codec}` | {rows[max(rows)]['bits_per_value']:.3f} | " + " | ".join(cells) + " |")
    copies = {size: sorted(c["memcpy_gbytes_per_s"] for c in cases if c.get("input_bytes") == size) for size, _ in SIZES}
    print("\nmemcpy in the same runs, median over codecs: " +
          ", ".join(f"{v[len(v) // 2]:.1f} GB/s at {name}" for (_, name), v in zip(SIZES, copies.values())) + ".")


def peers(cases):
    print("| case | beside | encode GB/s, ours and theirs | ratio | decode GB/s, ours and theirs | ratio | bits, ours and theirs |")
    print("|---|---|---|---|---|---|---|")
    for c in cases:
        if "peer" not in c:
            continue
        p = c["peer"]
        theirs = f"{p['bits_per_value']:.3f}" if "bits_per_value" in p else "-"
        print(f"| `{c['case']}` | {p['name']} | {c['encode_gbytes_per_s']:.2f}, {p['encode_gbytes_per_s']:.2f} | {p['encode_over_peer']:.2f} "
              f"| {c['decode_gbytes_per_s']:.2f}, {p['decode_gbytes_per_s']:.2f} | {p['decode_over_peer']:.2f} "
              f"| {c['bits_per_value']:.3f}, {theirs} |")


def low_rank(cases):
    print("| case | bits | encode GB/s (memcpy) | decode GB/s (memcpy) |")
    print("|---|---|---|---|")
    for c in cases:
        if "low_rank" in c.get("codec", ""):
            print(f"| `{c['case']}` | {c['bits_per_value']:.3f} | {pair(c, 'encode')} | {pair(c, 'decode')} |")


def decibels(value):
    return value if isinstance(value, str) else f"{value:.1f}"


def fidelity(cases):
    print("| codec | bits | " + " | ".join(SETS) + " |")
    print("|---|---|" + "---|" * len(SETS))
    by_value = []
    for c in cases:
        if "snr_db" not in c:
            continue
        bits = c["bits_per_value"]
        codec = c["case"].removesuffix("/snr")
        if all(v == "exact" for v in c["snr_db"].values()) and codec != "identity":
            by_value.append((codec, bits))
            continue
        note = f", sum of {c['messages']} messages" if c["messages"] > 1 else ""
        print(f"| `{codec}`{note} | {bits['gaussian']:.3f} | " + " | ".join(decibels(c["snr_db"][s]) for s in SETS) + " |")
    print("\nLossless ones, bits per value:\n")
    print("| codec | " + " | ".join(SETS) + " |")
    print("|---|" + "---|" * len(SETS))
    for codec, bits in by_value:
        print(f"| `{codec}` | " + " | ".join(f"{bits[s]:.3f}" for s in SETS) + " |")


def goals(cases):
    by_name = {c["case"]: c for c in cases}
    print("| goal | size | encode | decode | |")
    print("|---|---|---|---|---|")

    def row(goal, size, encode, decode, met):
        print(f"| {goal} | {size} | {encode:.2f} | {decode:.2f} | {'met' if met else 'NOT met'} |")

    for block in (32, 128):
        for size, name in SIZES:
            c = by_name[f"block_int(bits=8,block={block},scale=fp16)/{size}"]
            e, d = c["encode_over_memcpy"], c["decode_over_memcpy"]
            row(f"`block_int` 8 / {block}: at least 0.60 of memcpy", name, e, d, min(e, d) >= 0.6)
    for size, name in SIZES:
        p = by_name[f"zfp(rate=8)/{size}"].get("peer")
        if p:
            e, d = p["encode_over_peer"], p["decode_over_peer"]
            row("`zfp` 8: at least 2 times libzfp", name, e, d, min(e, d) >= 2.0)
    for form in ("", " in rounds"):
        p = by_name[f"low_rank(rank=16,sides=2){form}/1024x1920"]["peer"]
        e, d = 1 / p["encode_over_peer"], 1 / p["decode_over_peer"]
        row(f"`low_rank` 16{form}: at most 2 times its products alone", "1024 x 1920", e, d, max(e, d) <= 2.0)


def print_tables(path):
    with open(path, encoding="utf-8") as f:
        by_name = {}
        for line in f:
            case = json.loads(line)
            by_name.setdefault(case["case"], case)
        cases = list(by_name.values())
    for title, table in (("Goals", goals), ("Speed", speed), ("Beside others", peers), ("Low rank", low_rank), ("Fidelity", fidelity)):
        print(f"## {title}\n")
        table(cases)
        print()
    trained = next(c for c in cases if c["case"] == "trained data")
    print(f"Trained data: {trained['parameters']} parameters, {trained['updates']} updates, loss {trained['first_loss']:.2f} to "
          f"{trained['last_loss']:.2f}.")
    proved = [c for c in cases if "ok" in c]
    bad = [c["case"] for c in proved if not c["ok"]]
    print(f"{len(proved)} cases, {len(proved) - len(bad)} proved." + (" NOT proved: " + ", ".join(bad) if bad else ""))
    return 1 if bad else 0


def page(path):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        code = print_tables(path)
    with open(PAGE, encoding="utf-8") as f:
        head = f.read().split(MARKER)[0]
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(head + MARKER + "\n\n" + text.getvalue())
    return code


if __name__ == "__main__":
    if len(sys.argv) >= 3 and sys.argv[1] == "run":
        run(sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 1e9)
    elif len(sys.argv) == 3 and sys.argv[1] in ("print", "page"):
        sys.exit({"print": print_tables, "page": page}[sys.argv[1]](sys.argv[2]))
    else:
        sys.exit(__doc__)
