# Charts of sweeps as plain SVG text: lines, horizontal bars, stacked bars, scatter with front. No script, no fonts, no network.
# Every function returns one <svg> that takes its colours from the CSS variables of STYLE; picture() makes a file of its own of it.
import html
import math
import zlib

# Eight colours that stay apart under each of the three common colour-blindnesses (smallest CIE76 distance 11, both schemes); marks and
# dashes differ as well, and names stand beside what they name.
LIGHT = ("--bg:#f6f7f9;--card:#fff;--ink:#1b1f27;--soft:#5c6675;--rule:#dfe3e9;--grid:#eceff3;--axis:#aab2be;"
         "--p0:#1f5fbf;--p1:#d9560b;--p2:#12a180;--p3:#e0a300;--p4:#b0479f;--p5:#56b4e9;--p6:#5c3317;--p7:#7b8494;--bad:#c9302c;--good:#1a7f4b;--warn:#a86500")
DARK = ("--bg:#12151b;--card:#1a1f27;--ink:#e7eaef;--soft:#9aa5b4;--rule:#2c333e;--grid:#262d37;--axis:#566071;"
        "--p0:#6ea3f5;--p1:#ff8a4a;--p2:#3fc9a5;--p3:#f2cf5b;--p4:#d98fd0;--p5:#9bd8ff;--p6:#b9846a;--p7:#a4adb9;--bad:#f2726d;--good:#4ecb8b;--warn:#e3b341")
STYLE = f":root,svg{{color-scheme:light dark;{LIGHT}}}\n@media (prefers-color-scheme:dark){{:root,svg{{{DARK}}}}}\n" + """
svg{font-family:system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,sans-serif}
svg text{fill:var(--soft);font-size:11px;font-variant-numeric:tabular-nums}
svg text.ink{fill:var(--ink)}svg text.bold{fill:var(--ink);font-weight:600}svg text.head{fill:var(--ink);font-weight:600;font-size:13px}
svg a{cursor:pointer}svg a:hover text{text-decoration:underline}
.c0{--c:var(--p0)}.c1{--c:var(--p1)}.c2{--c:var(--p2)}.c3{--c:var(--p3)}.c4{--c:var(--p4)}.c5{--c:var(--p5)}.c6{--c:var(--p6)}.c7{--c:var(--p7)}
.grid{stroke:var(--grid)}.axis{stroke:var(--axis)}.zero{stroke:var(--axis);stroke-dasharray:2 3}
.line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.d1{stroke-dasharray:6 3}.d2{stroke-dasharray:2 3}.d3{stroke-dasharray:8 3 2 3}
.band{fill:var(--c);opacity:.14}.dot{fill:var(--c);stroke:var(--card);stroke-width:1.2}.small{opacity:.5}.fill{fill:var(--c)}
.lead{stroke:var(--axis);stroke-width:.7;fill:none}
.whisker{stroke:var(--ink);stroke-width:1.2;fill:none}.front{fill:none;stroke:var(--axis);stroke-width:1.5;stroke-dasharray:5 3}
svg text.on{fill:var(--ink);paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}
.paper{fill:var(--card)}
"""
WIDTH = 560
LEAST_PERCENT = 0.1  # smaller differences of losses are not worth a decade of their own
LETTER = 6.1  # of 11 px text; a little more than most are, so that what is measured with it fits


def esc(text):
    return html.escape(str(text), quote=True)


def width_of(text):
    return LETTER * len(text)


def cut(text, room):
    letters = max(3, int(room / LETTER))
    return text if len(text) <= letters else text[: letters - 1] + "…"


def number(v, digits=3):
    """1234567 -> 1.23M. For axes and bars."""
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
    return number(v) + " ms" if v is None or abs(v) < 9999.5 else number(v / 1e3) + " s"


def percent_text(v):
    return ("+" if v > 0 else "") + trimmed(v, 2 if abs(v) < 10 else 3) + " %"


def f(v):
    return f"{v:.1f}".removesuffix(".0")


def nice_ticks(low, high, about=5):
    span = high - low
    if span <= 0:
        return [low]
    raw = span / about
    base = 10.0 ** math.floor(math.log10(raw))
    step = min((m * base for m in (1, 2, 2.5, 5, 10)), key=lambda s: abs(s - raw))
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, int(math.floor(high / step + 1e-9)) + 1)]


def log_ticks(low, high):
    """1 2 5 of every decade; whole decades where that would be too many."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    ticks = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
    inside = [t for t in ticks if low * 0.999 <= t <= high * 1.001]
    if len(inside) > 7:
        stride = max(1, (last - first) // 6)
        inside = [t for t in (10.0**e for e in range(first, last + 1, stride)) if low * 0.999 <= t <= high * 1.001]
    return inside


class Scale:
    """Values to positions. log: None means where the range demands it (more than a factor of 20, all positive); "signed": logarithms on both sides of a
    linear middle, where the largest of these percents is more than 15 times the usual one."""

    def __init__(self, values, start, end, zero=False, log=None, pad=0.06):
        values = [v for v in values if v is not None and math.isfinite(v)] or [0.0, 1.0]
        low, high = min(values), max(values)
        self.start, self.end, self.linear = start, end, 0.0
        if log == "signed":
            sizes = sorted(abs(v) for v in values if v)
            usual = max(sizes[(len(sizes) - 1) // 2], LEAST_PERCENT) if sizes else 0.0
            self.linear = usual if usual and sizes[-1] > 15 * usual else 0.0
        self.log = low > 0 and log != "signed" and (log if log is not None else high > 20 * low)
        if self.log:
            room = (high / low) ** pad if high > low * (1 + 1e-12) else 1.5
            self.low, self.high = low / room, high * room
            return
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if self.linear:
            room = pad * (self.bent(high) - self.bent(low))
            self.low, self.high = self.unbent(self.bent(low) - room), self.unbent(self.bent(high) + room)
            return
        span = high - low
        if span <= abs(high) * 1e-12:
            span = abs(high) * 0.2 or 1.0
            pad = max(pad, 0.06)
        grows_down = not zero or low < 0
        self.low, self.high = low - (pad * span if grows_down else 0), high + (pad * span if not zero or high > 0 else 0)
        if min(values) >= 0:
            self.low = max(0.0, self.low)

    def bent(self, v):
        return math.asinh(v / self.linear) if self.linear else v

    def unbent(self, v):
        return math.sinh(v) * self.linear

    def __call__(self, v):
        if self.log:
            t = math.log(v / self.low) / math.log(self.high / self.low)
        else:
            t = (self.bent(v) - self.bent(self.low)) / (self.bent(self.high) - self.bent(self.low))
        return self.start + t * (self.end - self.start)

    def ticks(self, about=5):
        if not self.linear:
            return log_ticks(self.low, self.high) if self.log else nice_ticks(self.low, self.high, about)
        # Zero, then outwards whatever stands clear of the one before.
        top = max(abs(self.low), abs(self.high))
        sizes = [m * 10.0**e for e in range(math.floor(math.log10(self.linear)) - 1, math.ceil(math.log10(top)) + 1) for m in (1, 2, 5)]
        clear, out = abs(self.end - self.start) / 9, [0.0] if self.low <= 0 <= self.high else []
        for sign in (1, -1):
            last = self(0.0)
            for size in sizes:
                v = sign * size
                if self.low <= v <= self.high and abs(self(v) - last) >= clear:
                    out.append(v)
                    last = self(v)
        return sorted(out)


def tick_text(scale, value, say):
    """Ticks that lie close together need more digits than say() prints."""
    if say is percent_text:
        return ("+" if value > 0 else "") + trimmed(value, 4) + " %"
    ticks = scale.ticks()
    texts = [say(t) for t in ticks]
    return say(value) if len(set(texts)) == len(texts) else trimmed(value, 5)


def text(x, y, words, anchor="start", kind=""):
    mark = f' class="{kind}"' if kind else ""
    return f'<text{mark} x="{f(x)}" y="{f(y)}" text-anchor="{anchor}">{esc(words)}</text>'


def line(x1, y1, x2, y2, kind):
    return f'<line class="{kind}" x1="{f(x1)}" y1="{f(y1)}" x2="{f(x2)}" y2="{f(y2)}"/>'


def mark(x, y, shape, color, r=4.5, kind="dot"):
    """One of five shapes of about the same area."""
    c = f'class="{kind} c{color % 8}"'
    shape %= 5
    if shape == 0:
        return f'<circle {c} cx="{f(x)}" cy="{f(y)}" r="{f(r)}"/>'
    if shape == 1:
        a = r * 0.9
        return f'<rect {c} x="{f(x - a)}" y="{f(y - a)}" width="{f(2 * a)}" height="{f(2 * a)}"/>'
    points = {2: [(0, -1.25), (1.15, 0.85), (-1.15, 0.85)], 3: [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)], 4: [(0, 1.25), (1.15, -0.85), (-1.15, -0.85)]}[shape]
    return f'<path {c} d="M' + "L".join(f"{f(x + r * a)} {f(y + r * b)}" for a, b in points) + 'Z"/>'


def box(x, y, width, height, color, title=""):
    inner = f"<title>{esc(title)}</title>" if title else ""
    return f'<rect class="fill c{color % 8}" x="{f(x)}" y="{f(y)}" width="{f(width)}" height="{f(height)}" rx="2">{inner}</rect>'


def linked(inner, href, title):
    inner = (f"<title>{esc(title)}</title>" if title else "") + inner
    return f'<a href="{esc(href)}">{inner}</a>' if href else f"<g>{inner}</g>"


def open_svg(height, title, width=WIDTH):
    return f'<svg viewBox="0 0 {width} {f(height)}" role="img" aria-label="{esc(title)}">'


def spread(wanted, gap, low, high):
    """Positions at least `gap` apart within [low, high], near the wanted ones (which are sorted). Closer than `gap` only where they do not fit."""
    n = len(wanted)
    if n == 0:
        return []
    gap = min(gap, (high - low) / max(1, n - 1)) if n > 1 else gap
    out = []
    for w in wanted:
        out.append(max(w, out[-1] + gap) if out else max(w, low))
    if out[-1] > high:
        out[-1] = high
        for i in range(n - 2, -1, -1):
            out[i] = min(out[i], out[i + 1] - gap)
    return out


def y_axis(scale, left, right, say):
    out = ""
    for t in scale.ticks():
        y = scale(t)
        out += line(left, y, right, y, "grid") + text(left - 6, y + 3.5, tick_text(scale, t, say), "end")
    return out


def x_axis(scale, foot, say, label, height):
    out, taken = line(scale.start, foot, scale.end, foot, "axis"), -1e9
    for t in scale.ticks(6):
        x, words = scale(t), tick_text(scale, t, say)
        if x - width_of(words) / 2 < taken:
            continue
        out += line(x, foot, x, foot + 3, "axis") + text(x, foot + 15, words, "middle")
        taken = x + width_of(words) / 2 + 6
    return out + text((scale.start + scale.end) / 2, height - 3, label + (", log scale" if scale.log or scale.linear else ""), "middle")


def lines(series, title, x_label, x_say=number, y_say=number, log_x=None, y_from=0.0, zero_line=False, on_line=False, log_y=False):
    """series: {name, color, dash, shape, points [(x, y)], band [(x, low, high)], ends [(x, y, href, title)]}. Names stand at the ends of the lines, or
    on them, one below the other (on_line: for curves that are shifted copies of each other).
    y_from: the part of each line (0 to 1) from which on values decide the y range; what leaves it is clipped."""
    drawn = [s for s in series if s["points"]]
    if not drawn:
        return ""
    labels = len(drawn) > 1 or bool(drawn[0]["name"])
    room = min(170, max(width_of(s["name"]) for s in drawn) + 26) if labels and not on_line else 16
    height = max(250, 60 + 12.5 * len(drawn)) if labels else 250
    left, top, foot, right = 52, 12, height - 34, WIDTH - room
    x = Scale([p[0] for s in drawn for p in s["points"] if not (log_x and p[0] <= 0)], left, right, log=log_x, pad=0.0 if not log_x else 0.02)
    seen = [e[1] for s in drawn for e in s.get("ends", ())]
    for s in drawn:
        start = s["points"][0][0] + y_from * (s["points"][-1][0] - s["points"][0][0])
        seen += [p[1] for p in s["points"] if p[0] >= start] + [v for b in s.get("band", ()) if b[0] >= start for v in b[1:]]
    y = Scale(seen, foot, top, log=log_y)
    clip = f"clip{zlib.crc32(repr((title, y.low, y.high, drawn[0]['points'][-1])).encode())}"
    out = open_svg(height, title) + y_axis(y, left, right, y_say) + x_axis(x, foot, x_say, x_label, height)
    out += f'<clipPath id="{clip}"><rect x="{left}" y="{top}" width="{f(right - left + 6)}" height="{f(foot - top)}"/></clipPath><g clip-path="url(#{clip})">'
    if zero_line and y.low < 0 < y.high:
        out += line(left, y(0), right, y(0), "zero")
    for s in drawn:
        shown = [p for p in s["points"] if not (x.log and p[0] <= 0)]
        band = [b for b in s.get("band", ()) if not (x.log and b[0] <= 0)]
        if band:
            edge = [(x(a), y(h)) for a, _, h in band] + [(x(a), y(l)) for a, l, _ in reversed(band)]
            out += f'<path class="band c{s["color"] % 8}" d="M' + "L".join(f"{f(a)} {f(b)}" for a, b in edge) + 'Z"/>'
        path = "L".join(f"{f(x(a))} {f(y(b))}" for a, b in shown)
        out += f'<path class="line d{s.get("dash", 0) % 4} c{s["color"] % 8}" d="M{path}{"h0.1" if len(shown) == 1 else ""}"><title>{esc(s["name"])}</title></path>'
    out += "</g>"
    for s in drawn:
        for a, b, href, words in s.get("ends", ()):
            if y.low <= b <= y.high:
                out += linked(mark(x(a), y(b), s.get("shape", 0), s["color"], 3.6), href, words)
    if labels and on_line:
        inside = [[(x(a), y(b)) for a, b in s["points"] if (a > 0 or not x.log) and y.low <= b <= y.high] for s in drawn]
        order = sorted((k for k in range(len(drawn)) if inside[k]), key=lambda k: inside[k][-1][0])
        for n, k in enumerate(order):
            level = top + 16 + n * (foot - top - 34) / max(1, len(order) - 1)
            a, b = min(inside[k], key=lambda p: abs(p[1] - level))
            words = cut(drawn[k]["name"], 150)
            a = min(max(a, left + width_of(words) / 2 + 2), WIDTH - width_of(words) / 2)
            out += linked(text(a, level + 3.8, words, "middle", "on"), (drawn[k].get("ends") or [(0, 0, None, None)])[0][2], drawn[k]["name"])
    elif labels:
        ends = sorted(((min(max(y(s["points"][-1][1]), top + 4), foot), s) for s in drawn), key=lambda e: e[0])
        for (at, s), place in zip(ends, spread([e[0] for e in ends], 12, top + 4, foot)):
            last = min(x(s["points"][-1][0]), right)
            out += f'<path class="lead" d="M{f(last + 5)} {f(at)}L{f(right + 10)} {f(place)}"/>'
            words = text(right + 21, place + 3.8, cut(s["name"], room - 24), kind="ink")
            ends_of = s.get("ends") or [(0, 0, None, None)]
            out += mark(right + 14, place, s.get("shape", 0), s["color"], 3.4) + linked(words, ends_of[0][2], s["name"])
    return out + "</svg>"


class Rows:
    """What charts of one row per point share: heights, room for labels on the left and for words on the right, the grid, heads above rows."""

    def __init__(self, rows, words, margin, most=WIDTH, above=8):
        self.rows, self.pitch, self.top, self.at = rows, 22 if len(rows) <= 24 else 16, above, above + 4.0
        self.height = above + 4 + self.pitch * len(rows) + 20 * sum(1 for r in rows if r.get("head")) + 34
        self.left, self.foot = min(200, max(width_of(r["label"]) for r in rows) + 14), self.height - 34
        self.right = WIDTH - min(max(width_of(words(r)) for r in rows) + margin, most)

    def open(self, title, x, keys=""):
        return open_svg(self.height, title) + keys + "".join(line(x(t), self.top, x(t), self.foot, "grid") for t in x.ticks(5))

    def head(self, r):
        """The line above a row, if it has one; from then on `at` is the row's top."""
        if not r.get("head"):
            return ""
        y, self.at = self.at + 13, self.at + 20
        return text(self.left - 8, y, r["head"], "end", "bold") if width_of(r["head"]) < self.left - 8 else text(4, y, r["head"], kind="bold")

    def label(self, r, y):
        return text(self.left - 8, y, cut(r["label"], self.left - 12), "end", "ink")

    def close(self, x, say, unit):
        return x_axis(x, self.foot, say, unit, self.height) + "</svg>"


def bars(rows, title, unit, say=number, log=None):
    """rows: {label, value, low, high, color, href, title, note, head}: horizontal bars from zero, the value and the note at their end; low and high: a whisker.
    head: a line of its own above this row."""
    rows = [r for r in rows if r["value"] is not None]
    if not rows:
        return ""
    frame = Rows(rows, lambda r: say(r["value"]) + ("  " + r["note"] if r.get("note") else ""), 14, 190)
    x = Scale([v for r in rows for v in (r["value"], r.get("high")) if v is not None] + [0.0], frame.left, frame.right, zero=True, log=False, pad=0.02)
    out, body = frame.open(title, x), frame.pitch - 6
    for r in rows:
        out += frame.head(r)
        bar = box(min(x(0), x(r["value"])), frame.at + 2, max(1.0, abs(x(r["value"]) - x(0))), body, r["color"])
        end, mid = x(max(0, r["value"])), frame.at + 2 + body / 2
        if r.get("low") is not None and r["high"] > r["low"]:
            bar += f'<path class="whisker" d="M{f(x(r["low"]))} {f(mid)}H{f(x(r["high"]))}M{f(x(r["low"]))} {f(mid - 3)}v6M{f(x(r["high"]))} {f(mid - 3)}v6"/>'
            end = max(end, x(r["high"]))
        words = frame.label(r, mid + 3.8) + text(end + 7, mid + 3.8, say(r["value"]), kind="ink")
        if r.get("note"):
            words += text(end + 7 + width_of(say(r["value"]) + "  "), mid + 3.8, r["note"])
        out += linked(bar + words, r.get("href"), r.get("title") or r["label"])
        frame.at += frame.pitch
    return out + frame.close(x, say, unit)


def dots(rows, title, x_label, say=number, zero_line=False):
    """rows as of bars(): a mark at the value, a whisker from low to high, small marks at `each` [(value, href, title)]. The axis need not start at zero."""
    rows = [r for r in rows if r["value"] is not None]
    if not rows:
        return ""
    frame = Rows(rows, lambda r: say(r["value"]), 22)
    seen = [v for r in rows for v in (r["value"], r.get("low"), r.get("high")) if v is not None]
    x = Scale(seen + ([0.0] if zero_line else []), frame.left + 4, frame.right, log="signed" if zero_line else False)
    out = frame.open(title, x) + (line(x(0), 8, x(0), frame.foot, "axis") if zero_line else "")
    for r in rows:
        out += frame.head(r)
        mid, spot, end = frame.at + frame.pitch / 2 - 1, "", x(r["value"])
        out += line(frame.left, mid, frame.right, mid, "grid")
        if r.get("low") is not None and r["high"] > r["low"]:
            spot += f'<path class="whisker" d="M{f(x(r["low"]))} {f(mid)}H{f(x(r["high"]))}"/>'
            end = max(end, x(r["high"]))
        spot += mark(x(r["value"]), mid, r.get("shape", 0), r["color"], 4.6) + frame.label(r, mid + 3.8) + text(end + 9, mid + 3.8, say(r["value"]), kind="ink")
        out += linked(spot, r.get("href"), r.get("title") or r["label"])
        for value, href, words in r.get("each", ()):
            out += linked(mark(x(value), mid, r.get("shape", 0), r["color"], 2.6, "dot small"), href, words)
        frame.at += frame.pitch
    return out + frame.close(x, say, x_label)


def stacked(rows, parts, title, unit, say=ms_text):
    """rows: {label, values [one per part], href, title, head}; parts: names, which stand in lines above. One horizontal bar each, the sum at its end."""
    rows = [r for r in rows if any(r["values"])]
    if not rows:
        return ""
    keys, used, level = "", 0.0, 0
    for p, part in enumerate(parts):
        if used and used + width_of(part) + 28 > WIDTH - 8:
            used, level = 0.0, level + 1
        keys += box(4 + used, 3 + 16 * level, 10, 10, p) + text(18 + used, 12 + 16 * level, part, kind="ink")
        used += width_of(part) + 28
    frame = Rows(rows, lambda r: say(sum(r["values"])), 12, above=16 * (level + 1) + 6)
    frame.height, frame.foot = frame.height + 4, frame.foot + 4
    x = Scale([sum(r["values"]) for r in rows] + [0.0], frame.left, frame.right, zero=True, log=False, pad=0.02)
    out, body = frame.open(title, x, keys), frame.pitch - 6
    for r in rows:
        out, total, pieces = out + frame.head(r), 0.0, ""
        for p, v in enumerate(r["values"]):
            if v and v > 0:
                a, b = x(total), x(total + v)
                pieces += box(a, frame.at + 2, max(0.5, b - a - (0.8 if b - a > 3 else 0)), body, p, f"{parts[p]} {say(v)}")
                total += v
        mid = frame.at + 2 + body / 2 + 3.8
        out += linked(pieces + frame.label(r, mid) + text(x(total) + 6, mid, say(total), kind="ink"), r.get("href"), r.get("title"))
        frame.at += frame.pitch
    return out + frame.close(x, say, unit)


def hits(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


# Where a name may stand beside its point: offset, and whether it starts there (0), ends there (1) or has its middle there (2).
PLACES = ((9, 3.8, 0), (-9, 3.8, 1), (0, -9, 2), (0, 17, 2), (7, -8, 0), (7, 14, 0), (-7, -8, 1), (-7, 14, 1), (14, -18, 0), (14, 24, 0), (-14, -18, 1), (-14, 24, 1),
          (0, -26, 2), (0, 34, 2), (20, -32, 0), (20, 38, 0), (-20, -32, 1), (-20, 38, 1))


def scatter(points, title, x_label, y_label, x_say=number, y_say=number, better_x=1, front=(), log_x=None, zero_line=False):
    """points: {x, y, name, color, shape, href, title, small, first}. Names stand beside the points as long as there is room (those with `first` first).
    front: indices of points on it, drawn as a step line; better_x: 1 where more is better, -1 where less is. Less of y is better."""
    points = [dict(p, n=i) for i, p in enumerate(points) if p["x"] is not None and p["y"] is not None]
    if not points:
        return ""
    height = 300 if len(points) <= 24 else 380
    left, top, foot, right = 56, 20, height - 36, WIDTH - 16
    x = Scale([p["x"] for p in points], left, right, log=log_x, pad=0.08)
    y = Scale([p["y"] for p in points] + ([0.0] if zero_line else []), foot, top, log="signed" if zero_line else False, pad=0.09)
    out = open_svg(height, title) + y_axis(y, left, right, y_say) + x_axis(x, foot, x_say, x_label, height)
    out += text(4, 10, y_label + (", log scale" if y.log or y.linear else ""))
    if zero_line and y.low < 0 < y.high:
        out += line(left, y(0), right, y(0), "zero")
    corner = "→ better" if better_x > 0 else "better ←"
    out += text(right, 10, corner + " ↓", "end")
    on = sorted((p for p in points if p["n"] in set(front)), key=lambda p: p["x"] * better_x)
    if len(on) > 1:
        path = f'M{f(x(on[0]["x"]))} {f(y(on[0]["y"]))}'
        for p in on[1:]:  # around what the front dominates
            path += f'V{f(y(p["y"]))}H{f(x(p["x"]))}'
        out += f'<path class="front" d="{path}"/>'
    boxes = []
    for p in points:
        r = 3.0 if p.get("small") else 4.8
        boxes.append((x(p["x"]) - r, y(p["y"]) - r, x(p["x"]) + r, y(p["y"]) + r))
        out += linked(mark(x(p["x"]), y(p["y"]), p.get("shape", 0), p["color"], r, "dot small" if p.get("small") else "dot"), p.get("href"), p.get("title"))
    for p in sorted((p for p in points if p.get("name")), key=lambda p: not (p.get("first") or p["n"] in set(front))):
        a, b, w = x(p["x"]), y(p["y"]), width_of(p["name"])
        for dx, dy, anchor in PLACES:
            x0 = a + dx - (w if anchor == 1 else w / 2 if anchor == 2 else 0)
            room = (x0, b + dy - 9.5, x0 + w, b + dy + 2)
            if room[0] < left + 2 or room[2] > WIDTH or room[1] < top - 8 or room[3] > foot - 1 or any(hits(room, o) for o in boxes):
                continue
            boxes.append(room)
            if abs(dy) > 17:
                out += f'<path class="lead" d="M{f(a)} {f(b)}L{f(a + dx)} {f(b + dy - (4 if dy > 0 else 0))}"/>'
            out += linked(text(a + dx, b + dy, p["name"], ("start", "end", "middle")[anchor], "ink"), p.get("href"), p.get("title"))
            break
    return out + "</svg>"


def picture(svg, title, note=""):
    """A chart as a file of its own: with its title, a background and the style inside."""
    if not svg:
        return ""
    size_at = svg.index('viewBox="0 0 ') + len('viewBox="0 0 ')
    width, height = (float(v) for v in svg[size_at : svg.index('"', size_at)].split())
    inner = svg[svg.index(">") + 1 : svg.rindex("</svg>")]
    above = 26 + (15 if note else 0)
    size = f(width + 24), f(height + above + 14)
    full = f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{esc(title)}">'
    full += f'<style>{STYLE}</style><rect class="paper" width="100%" height="100%" rx="8"/>' + text(12, 19, title, kind="head") + (text(12, 34, note) if note else "")
    return full + f'<g transform="translate(12 {above})">{inner}</g></svg>\n'
