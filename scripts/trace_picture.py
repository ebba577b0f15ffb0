#!/usr/bin/env python3
# Draws the traces of a run as one picture: per rank compute, waiting and each site, over a few steps.
"""scripts/trace_picture.py RUN_DIR --output F.svg [--from MS] [--length MS] [--ranks 0,1]

Reads RUN_DIR/trace.rank<k>.json (key `trace` of a configuration). Without --from, the picture begins with the second step that the trace
shows and lasts for one and a half steps.
"""
import json
import re
import sys
from pathlib import Path

if sys.version_info < (3, 9):  # before the imports, which an older Python cannot parse; this file it can
    sys.exit("error: %s needs Python 3.9 or newer, python3 is %s" % (sys.argv[0], sys.version.split()[0]))
sys.dont_write_bytecode = True
from measured import Parser
from sweep_store import StoreError
from sweep_svg import draw

FIRST = ["steps", "compute", "waiting"]
# What the colours of `report` mean, in its order, by the first words of a track.
KEYS = ["compute", "dp", "tp", "embedding", "zero", "pp", "waiting", "other"]


def read(path):
    """The title of one rank and its tracks: name -> list of (start ms, end ms, label)."""
    events = json.loads(Path(path).read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    names, tracks, title = {}, {}, path.name
    for e in events:
        if e.get("ph") == "M" and e["name"] == "thread_name":
            names[e.get("tid")] = e["args"]["name"]
        if e.get("ph") == "M" and e["name"] == "process_name":
            title = e["args"]["name"]
    for e in events:
        if e.get("ph") == "X":
            tracks.setdefault(names.get(e["tid"], str(e["tid"])), []).append((e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3, e["name"]))
    return title, tracks


def rows(title, tracks, start, length):
    """The chart's rows of one rank, what lies in the picture."""
    out = []
    for name in sorted(tracks, key=lambda n: (FIRST.index(n) if n in FIRST else len(FIRST), n)):
        kind = re.split(r"[ #.]", name)[0]
        color = KEYS.index(kind if kind in KEYS else "other")
        spans = [{"from": begin - start, "to": end - start, "color": color, "label": label if name in FIRST[:2] else "", "title": f"{label} {end - begin:.2f} ms"}
                 for begin, end, label in tracks[name] if end >= start and begin <= start + length]
        out.append({"label": name, "spans": spans, "head": "" if out else title})
    return out


def numbers(text):
    return {int(word) for word in text.split(",")}


def main():
    parser = Parser(__doc__)
    parser.add_argument("run_dir")
    parser.add_argument("--output", required=True)
    parser.add_argument("--from", dest="start", type=float)
    parser.add_argument("--length", type=float)
    parser.add_argument("--ranks", type=numbers)
    a = parser.parse_args()
    files = sorted(Path(a.run_dir).glob("trace.rank*.json"), key=lambda p: int(re.search(r"\d+", p.name).group()))
    if a.ranks:
        files = [f for f in files if int(re.search(r"\d+", f.name).group()) in a.ranks]
    if not files:
        sys.exit(f"error: {a.run_dir}: no trace.rank*.json" + (f" of rank {min(a.ranks)}" if a.ranks else "; train with trace=true"))
    ranks = []
    for f in files:
        try:
            ranks.append(read(f))
        except (ValueError, KeyError, AttributeError, TypeError) as e:
            sys.exit(f"error: {f}: not a trace, or cut off ({e}); let the run end, or take other ranks with --ranks")
    steps = sorted(ranks[0][1].get("steps", []))
    if not steps:
        sys.exit(f"error: {files[0]}: holds no step; the run ended before one was traced")
    begin, end, _ = steps[min(1, len(steps) - 1)]
    start = a.start if a.start is not None else begin
    length = a.length or 1.5 * (end - begin)
    chart = {"chart": "spans", "title": "trace", "heading": f"{a.run_dir}: {length:.1f} ms of its trace", "width": 1500, "from": 0, "to": length, "keys": KEYS,
             "rows": [row for title, tracks in ranks for row in rows(title, tracks, start, length)]}
    try:
        Path(a.output).write_text(draw(chart), encoding="utf-8")
    except (StoreError, OSError) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    main()
