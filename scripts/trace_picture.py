#!/usr/bin/env python3
# Draws the traces of a run as one picture: per rank compute, waiting and each site, over a few steps.
"""scripts/trace_picture.py RUN_DIR --output F.svg [--from MS] [--length MS] [--ranks 0,1]

Reads RUN_DIR/trace.rank<k>.json (key `trace` of a configuration). Without --from, the picture begins with the second step that the trace
shows and lasts for one and a half steps.
"""
import argparse
import json
import re
import sys
from html import escape
from pathlib import Path

COLOURS = {"compute": "#7fb2d9", "waiting": "#d9534f", "steps": "#c8c8c8", "dp.gradient": "#e39c37", "zero.parameter": "#8a6fb8",
           "tp.forward": "#5aa469", "tp.backward": "#3f7f4d", "pp.forward": "#4fb3bf", "pp.backward": "#2f8f9b", "embedding": "#b5838d",
           "control": "#777777"}
WIDTH, LEFT, ROW, GAP = 1500, 190, 18, 10


def read(path):
    """Tracks of one rank: name -> list of (start ms, end ms, label)."""
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir")
    parser.add_argument("--output", required=True)
    parser.add_argument("--from", dest="start", type=float)
    parser.add_argument("--length", type=float)
    parser.add_argument("--ranks", default="")
    a = parser.parse_args()
    files = sorted(Path(a.run_dir).glob("trace.rank*.json"), key=lambda p: int(re.search(r"\d+", p.name).group()))
    if a.ranks:
        wanted = {int(r) for r in a.ranks.split(",")}
        files = [f for f in files if int(re.search(r"\d+", f.name).group()) in wanted]
    if not files:
        sys.exit(f"error: {a.run_dir}: no trace.rank*.json; train with trace=true")
    ranks = []
    for f in files:
        try:
            ranks.append(read(f))
        except (ValueError, KeyError, AttributeError, TypeError) as e:
            sys.exit(f"error: {f}: not a trace, or cut off ({e}); let the run end, or take other ranks with --ranks")
    steps = sorted(ranks[0][1].get("steps", []))
    if not steps:
        sys.exit(f"error: {files[0]}: holds no step; the run ended before one was traced")
    start = a.start if a.start is not None else steps[min(1, len(steps) - 1)][0]
    length = a.length or 1.5 * (steps[min(1, len(steps) - 1)][1] - steps[min(1, len(steps) - 1)][0])
    scale = (WIDTH - LEFT - 10) / length
    body, y = [], 30
    for title, tracks in ranks:
        body.append(f'<text x="8" y="{y + 12}" font-weight="bold">{escape(title)}</text>')
        y += ROW
        for name in sorted(tracks, key=lambda n: (["steps", "compute", "waiting"].index(n) if n in ("steps", "compute", "waiting") else 9, n)):
            site = re.sub(r"[ #].*$", "", name)
            body.append(f'<text x="16" y="{y + 12}">{escape(name)}</text>')
            for begin, end, label in tracks[name]:
                x, w = LEFT + (begin - start) * scale, (end - begin) * scale
                if x + w < LEFT or x > WIDTH - 10:
                    continue
                w, x = min(x + w, WIDTH - 10) - max(x, LEFT), max(x, LEFT)
                body.append(f'<rect x="{x:.1f}" y="{y}" width="{max(w, 0.6):.1f}" height="{ROW - 4}" fill="{COLOURS.get(site, "#999")}" '
                            f'stroke="#fff" stroke-width="0.4"><title>{escape(label)} {end - begin:.2f} ms</title></rect>')
                if w > 8 * len(label) and name in ("compute", "steps"):
                    body.append(f'<text x="{x + 3:.1f}" y="{y + 11}" font-size="10">{escape(label)}</text>')
            y += ROW
        y += GAP
    for i in range(11):
        x = LEFT + (WIDTH - LEFT - 10) * i / 10
        body.append(f'<line x1="{x:.1f}" y1="24" x2="{x:.1f}" y2="{y}" stroke="#ddd"/><text x="{x:.1f}" y="18">{length * i / 10:.1f} ms</text>')
    Path(a.output).write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 8}" font-family="sans-serif" font-size="12">'
                              f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(body) + "\n</svg>\n")


if __name__ == "__main__":
    main()
