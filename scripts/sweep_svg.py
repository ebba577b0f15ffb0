# Charts and pages of sweeps: described here as JSON, drawn by `report --draw` (docs/programs.md); and numbers in few letters, for tables.
import html
import json
import math
import os
import subprocess

from measured import ROOT, build_folder
from sweep_store import StoreError


def esc(text):
    return html.escape(str(text), quote=True)


def number(v, digits=3):
    """1234567 -> 1.23M."""
    if v is None or not math.isfinite(v):
        return "–"
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(v) >= limit * 0.9995:
            return trimmed(v / limit, digits) + unit
    return trimmed(v, digits)


def trimmed(v, digits):
    if v == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(v)) + 1e-12))
    text = f"{v:.{places}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text.replace("-", "−")


def bytes_text(v):
    words = number(v)
    return f"{words[:-1]} {words[-1]}B" if words[-1:] in "kMGT" else words + " B"


def ms_text(v):
    return number(v) + " ms" if v is None or abs(v) < 999.5 else number(v / 1e3) + " s"


def percent_text(v):
    return ("+" if v > 0 else "") + trimmed(v, 2 if abs(v) < 10 else 3) + " %"


def lines(series, title, x_label, names="ends", **more):
    """series: {name, color, dash, shape, points [(x, y)], band [(x, low, high)], ends [(x, y, href, words)]}; None without a point."""
    drawn = []
    for s in series:
        if s["points"]:
            drawn.append({**{k: s[k] for k in ("name", "color", "dash", "shape")}, "x": [p[0] for p in s["points"]], "y": [p[1] for p in s["points"]],
                          "band": [dict(zip(("x", "low", "high"), b)) for b in s.get("band", ())],
                          "ends": [dict(zip(("x", "y", "href", "words"), e)) for e in s["ends"]]})
    return {"chart": "lines", "title": title, "x_label": x_label, "names": names, "x_format": "number", "y_format": "number", "series": drawn, **more} if drawn else None


def rows(title, unit, entries, **more):
    """entries: {label, value (with parts: values), low, high, ...}; None without one."""
    return {"chart": "rows", "title": title, "unit": unit, "rows": entries, **more} if entries else None


def said(value):
    """Without what is not known."""
    if isinstance(value, dict):
        return {k: said(v) for k, v in value.items() if v is not None}
    return [said(v) for v in value] if isinstance(value, (list, tuple)) else value


def draw(document):
    """The page or the chart of a document as text."""
    report = next((p for folder in (build_folder(), os.path.join(ROOT, "build")) if os.access(p := os.path.join(folder, "report"), os.X_OK)), None)
    if not report:
        raise StoreError(f"{ROOT}/build/report draws pages and charts, and is missing: cmake --build build --target report, or name its folder with THINWIRE_BUILD")
    done = subprocess.run([report, "--draw"], input=json.dumps(said(document)), capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        raise StoreError(f"{report} --draw: {(done.stderr or done.stdout).strip()}")
    return done.stdout
