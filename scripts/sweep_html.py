# The page of a sweep (index.html): what ended how, loss against tokens and bytes, speed, Pareto fronts, exposed time per site, every point in a table.
import collections
import math
import statistics

import sweep_svg as svg
from sweep_svg import esc

POINTS_OF_A_CURVE = 110
MOST_PANELS = 6  # more than these are drawn as one

# A step on a loss curve. bytes: on the wire so far, of all ranks; low, high: of the loss over seeds.
Mark = collections.namedtuple("Mark", "step tokens bytes loss low high")
FRONTS = {"tokens_per_s": "pareto.tokens_per_s", "wire_bytes_total": "pareto.run_wire_bytes_total"}  # column of the table -> column that is 1 on the Pareto front


def short_key(key):
    return "point" if key == "list" else key[1:] if key.startswith("@") else key.rsplit(".", 1)[-1]


def shown(value):
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None else str(value)


def label_of(values, axes):
    """The label of a point: its values on these axes, with their keys where a value does not speak for itself."""
    words = []
    for axis in axes:
        for key in axis:
            if key in values:
                bare = key == "list" or key.endswith("preset") or isinstance(values[key], str) and len(axis) == 1
                words.append(shown(values[key]) if bare else f"{short_key(key)} {shown(values[key])}")
    return ", ".join(words)


def panel_name(pairs):
    """The title of a panel: the launcher values that its points share, since the others only follow the machine; these where there are none."""
    launcher = [(k, v) for k, v in pairs if k.startswith("@")]
    return ", ".join(f"{shown(v)} {short_key(k)}" if k in ("@hosts", "@ranks", "@nodes", "@threads") else f"{short_key(k)} {shown(v)}" for k, v in launcher or pairs)


class View:
    """The points of a sweep as pages show them: groups (points that differ by the seed alone) with names, colours and shapes, gathered in panels."""

    def __init__(self, sweep):
        self.sweep, self.loss = sweep, sweep.loss
        axes = [a for a in sweep.axes.names if a != ["seed"]]
        groups = [{"indices": g, "rows": [sweep.rows[i] for i in g], "values": sweep.values[g[0]]} for g in sweep.groups()]
        panels = {}
        for g in groups:
            panels.setdefault(sweep.axes.panel(g["values"]), []).append(g)
        if len(panels) > MOST_PANELS:
            panels = {(): groups}
        self.panels = [(panel_name(key), members) for key, members in panels.items()]
        in_panel = {k for key in panels for k, _ in key}
        # What names the points within a panel: axes that vary and are not in its title.
        varies = [a for a in axes if not set(a) <= in_panel and len({repr(sweep.axes.place(g["values"], a)) for g in groups}) > 1]
        compared = [a for a in varies if sweep.axes.compared(a)]
        kinds = {}  # what is compared with the baseline -> its colour in every panel, where eight colours are enough
        for g in groups:
            g["name"] = label_of(g["values"], varies) or g["rows"][0]["id"]
            g["kind"] = label_of(g["values"], compared) if compared else g["name"]
            kinds.setdefault(g["kind"], len(kinds))
            g["base"] = is_base(g["rows"][0])
        by_kind = 1 < len(kinds) <= 8
        for panel in panels.values():
            uses = collections.Counter()
            for n, g in enumerate(panel):
                color = kinds[g["kind"]] if by_kind else n
                turn = uses[color % 8]
                uses[color % 8] += 1
                g["color"], g["dash"], g["shape"] = color % 8, turn, (color + turn) % 5
                g["gapped"] = any(other["base"] for other in panel)  # its losses are shown as distances from a baseline
        self.groups = groups

    def many(self):
        return len(self.panels) > 1


def is_base(row):
    return row.get("baseline") == row["id"]


def hint(row, loss):
    """The text that shows when the pointer is over a point."""
    words = [row["id"]]
    if isinstance(row.get(loss), (int, float)) and math.isfinite(row[loss]):
        words.append(f"{loss.replace('_', ' ')} {row[loss]:.4f}")
    if row.get("tokens_per_s"):
        words.append(f"{svg.number(row['tokens_per_s'])} tokens/s")
    if row.get("gap." + loss) is not None:
        words.append(f"{svg.percent_text(row['gap.' + loss])} above {row['baseline']}")
    return ", ".join(words)


def smoothed(values, parts=80):
    """The moving average over len(values) / parts values to either side, fewer at the start and the end (as in report.html)."""
    sums = [0.0]
    for v in values:
        sums.append(sums[-1] + v)
    n, reach, out = len(values), len(values) // parts + 1, []
    for i in range(n):
        back, ahead = min(reach, i), min(reach, i, n - 1 - i)
        out.append((sums[i + ahead + 1] - sums[i - back]) / (ahead + back + 1))
    return out


def curve(steps):
    """A Mark with the smoothed loss for each step that has a finite one."""
    sent, kept = 0, []
    bytes_of = steps.sums("wire_bytes_total") or [None] * len(steps)
    for step, tokens, loss, more in zip(*(steps.column((name,)) for name in ("step", "consumed_tokens", "loss")), bytes_of):
        sent += more or 0
        if isinstance(loss, (int, float)) and math.isfinite(loss) and isinstance(tokens, (int, float)):
            kept.append((step, tokens, sent, loss))
    return [Mark(*mark, loss, loss, loss) for (*mark, _), loss in zip(kept, smoothed([k[3] for k in kept]))]


def mean_curve(curves):
    """The mean over seeds at the steps that all of them have, with the smallest and the largest loss."""
    curves = [c for c in curves if c]
    if len(curves) < 2:
        return curves[0] if curves else []
    by_step = [{m.step: m for m in c} for c in curves]
    out = []
    for step in sorted(set.intersection(*map(set, by_step))):
        here = [c[step] for c in by_step]
        tokens, sent, loss = (sum(getattr(m, name) for m in here) / len(here) for name in ("tokens", "bytes", "loss"))
        out.append(Mark(step, tokens, sent, loss, min(m.loss for m in here), max(m.loss for m in here)))
    return out


def thin(points):
    """At most POINTS_OF_A_CURVE of them, evenly; the first and the last stay."""
    if len(points) <= POINTS_OF_A_CURVE:
        return points
    last = len(points) - 1
    return [points[round(i * last / (POINTS_OF_A_CURVE - 1))] for i in range(POINTS_OF_A_CURVE)]


def card(heading, note, chart):
    """A list of one chart under its heading; empty where there is none."""
    return [{**chart, "heading": heading, "note": note}] if chart else []


def loss_charts(view, members):
    """Loss against tokens, against bytes on the wire, and above the baseline's at equal tokens."""
    tokens, sent, above = [], [], []
    curves = {r["id"]: view.sweep.curves[r["id"]] for g in members for r in g["rows"]}
    means = {id(g): mean_curve([curves[r["id"]] for r in g["rows"]]) for g in members}
    base_of = {r["id"]: means[id(g)] for g in members if g["base"] for r in g["rows"]}
    for g in members:
        mean = means[id(g)]
        if not mean:
            continue
        style = {key: g[key] for key in ("name", "color", "dash", "shape")}
        drawn = thin(mean)
        ends = [(curves[r["id"]][-1], r["report"], hint(r, view.loss)) for r in g["rows"] if curves[r["id"]]]
        tokens.append({**style, "points": [(m.tokens, m.loss) for m in drawn], "band": [(m.tokens, m.low, m.high) for m in drawn] if len(ends) > 1 else [],
                       "ends": [(m.tokens, m.loss, *link) for m, *link in ends]})
        sent.append({**style, "points": [(m.bytes, m.loss) for m in drawn if m.bytes > 0],
                     "ends": [(m.bytes, m.loss, *link) for m, *link in ends if m.bytes > 0]})
        base = base_of.get(g["rows"][0]["baseline"])
        base_loss = {m.step: m.loss for m in base} if base and not g["base"] else {}
        points = [(m.tokens, 100.0 * (m.loss / base_loss[m.step] - 1.0)) for m in mean if base_loss.get(m.step)]
        if points:
            points = thin(list(zip((p[0] for p in points), smoothed([p[1] for p in points], 16))))
            above.append({**style, "points": points,
                          "ends": [(*points[-1], g["rows"][0]["report"], f"{g['name']}: {svg.percent_text(points[-1][1])} above the baseline")]})
    sent = [s for s in sent if s["points"]]
    return [*card("Loss against tokens", "training loss, smoothed; bands: over seeds; the first quarter may lie above the picture",
                  svg.lines(tokens, "loss against tokens", "tokens", y_from=0.25)),
            *card("Loss against bytes on the wire", "sent by all ranks up to there",
                  svg.lines(sent, "loss against bytes", "bytes on the wire", x_format="decimal_bytes", y_from=0.1, x_scale="log" if needs_log_scale(sent) else "linear",
                            names="on_lines" if len(sent) <= 12 else "ends")),
            *card("Training loss above the baseline's", "percent at equal tokens, smoothed; below the dotted line: better than the baseline",
                  svg.lines(above, "loss above the baseline", "tokens", y_format="percent", y_from=0.1, y_scale="signed", zero_line=True))]


def needs_log_scale(series):
    """Whether the ends of the lines lie too far apart for a linear x axis."""
    ends = [s["points"][-1][0] for s in series if s["points"]]
    return bool(ends) and max(ends) > 3 * min(ends)


def finished(group, *columns):
    """The runs of a group that ended well and have these columns."""
    return [r for r in group["rows"] if r["state"] == "finished" and all(r.get(c) is not None for c in columns)]


def rows_of(panels, row):
    """row(group) of every group, without None; with several panels, the name of each stands above its first row."""
    out = []
    for title, members in panels:
        rows = [made for g in members if (made := row(g))]
        if rows and len(panels) > 1:
            rows[0]["head"] = title
        out += rows
    return out


def loss_rows(view, panels):
    """Rows of dots: the loss at the end, in percent above the baseline where the panel has one."""
    def row(g):
        column = ("gap." if g["gapped"] else "") + view.loss
        r, done = g["rows"][0], finished(g, column)
        if not done or g["base"]:
            return None
        return {"label": g["name"], "value": r["mean." + column], "low": r["low." + column], "high": r["high." + column], "color": g["color"], "shape": g["shape"],
                "href": done[0]["report"], "title": hint(done[0], view.loss),
                "each": [{"x": x[column], "href": x["report"], "words": hint(x, view.loss)} for x in done] if len(done) > 1 else []}
    return rows_of(panels, row)


def loss_dots(view, rows, gapped):
    words = view.loss.replace("_", " ")
    return svg.rows(words, words + (" above the baseline" if gapped else ""), rows, format="percent" if gapped else "loss", dots=True, zero_line=gapped)


def pareto(view, members, name, x_label, better, x_format="number"):
    """Loss against the column `name`, with the Pareto front; better: 1 where more of it is better, else -1."""
    loss = view.loss
    gapped = any(g["rows"][0].get("mean.gap." + loss) is not None for g in members)
    column = "gap." + loss if gapped else loss
    points = []
    for g in members:
        done = finished(g)
        if not done or done[0].get("mean." + name) is None or done[0].get("mean." + column) is None:
            continue
        many = len(done) > 1
        style = {"color": g["color"], "shape": g["shape"]}
        if many:
            points += [{**style, "x": r.get(name), "y": r.get(column), "href": r["report"], "title": hint(r, loss), "small": True} for r in done]
        points.append({**style, "x": done[0]["mean." + name], "y": done[0]["mean." + column], "name": g["name"], "href": done[0]["report"], "first": g["base"],
                       "title": (f"mean of {len(done)} seeds; " if many else "") + hint(done[0], loss), "front": done[0].get("pareto." + name) == 1})
    what = f"{loss.replace('_', ' ')} above the baseline" if gapped else loss.replace("_", " ")
    return {"chart": "scatter", "title": x_label, "x_label": x_label, "y_label": what, "x_format": x_format, "y_format": "percent" if gapped else "number",
            "more_is_better": better > 0, "zero_line": gapped, "points": [p for p in points if None not in (p["x"], p["y"])]} if points else None


def bar_rows(view, column, note):
    """Rows of a bar chart over all panels; the words note(row, group) stand behind the value."""
    def row(g):
        r = g["rows"][0]
        if r.get("mean." + column) is None:
            return None
        first = finished(g)[0]
        return {"label": g["name"], "value": r["mean." + column], "low": r.get("low." + column), "high": r.get("high." + column), "color": g["color"],
                "href": first["report"], "title": hint(first, view.loss), "note": note(r, g)}
    return rows_of(view.panels, row)


def speed_note(row, group):
    percent = row.get("mean.gap.tokens_per_s")
    return "baseline" if group["base"] else svg.percent_text(percent) if percent is not None else ""


def sites_of(view):
    """Sites with exposed time in any run, the one with most first."""
    totals = collections.Counter()
    for r in view.sweep.rows:
        totals.update({k.removesuffix(".exposed_ms"): v for k, v in r.items()
                       if k.endswith(".exposed_ms") and not k.startswith(("gap.", "mean.", "low.", "high.")) and isinstance(v, (int, float))})
    return [site for site, ms in totals.most_common() if ms > 0]


def exposed_rows(view, sites):
    def row(g):
        done = finished(g, "step_ms")
        values = [statistics.fmean(r.get(f"{s}.exposed_ms") or 0.0 for r in done) if done else 0.0 for s in sites]
        if not any(values):
            return None
        step = statistics.fmean(r["step_ms"] for r in done)
        return {"label": g["name"], "values": values, "href": done[0]["report"], "title": f"{g['name']}: {svg.ms_text(sum(values))} of a step of {svg.ms_text(step)}"}
    return rows_of(view.panels, row)


def tiles(view):
    rows = view.sweep.rows
    out = [("points", str(len(rows)), ", ".join(f"{n} {s}" for s, n in collections.Counter(r["state"] for r in rows).most_common()))]
    for words, column, best, say in ((f"smallest {view.loss.replace('_', ' ')}", view.loss, min, "{:.4f}".format), ("most tokens per second", "tokens_per_s", max, svg.number),
                                     ("fewest bytes per step", "wire_bytes_total", min, svg.bytes_text)):
        known = [g for g in view.groups if g["rows"][0].get("mean." + column)]
        if known:
            group = best(known, key=lambda g, c=column: g["rows"][0]["mean." + c])
            out.append((words, say(group["rows"][0]["mean." + column]), full_name(view, group)))
    return '<div class="tiles">' + "".join(f'<div class="tile"><span>{esc(a)}</span><b>{esc(b)}</b><em>{esc(c)}</em></div>' for a, b, c in out) + "</div>"


def full_name(view, group):
    title = next(t for t, members in view.panels if group in members)
    return f"{group['name']} ({title})" if title else group["name"]


COLUMNS = (("{loss}", "loss", lambda v: f"{v:.4f}"), ("gap.{loss}", "loss gap", svg.percent_text), ("tokens_per_s", "tokens/s", svg.number),
           ("gap.tokens_per_s", "speed gap", svg.percent_text), ("step_ms", "step", svg.ms_text), ("exposed_ms", "exposed", svg.ms_text),
           ("mfu", "MFU", lambda v: svg.trimmed(100 * v, 3) + " %"), ("wire_bytes_total", "wire / step", svg.bytes_text),
           ("compression_ratio", "ratio", lambda v: f"{v:.2f}x"), ("memory_peak_bytes", "memory", svg.bytes_text), ("consumed_tokens", "tokens", svg.number))


def table(view):
    sweep = view.sweep
    keys = [k for k in sweep.axes.columns if len({repr(v.get(k)) for v in sweep.values}) > 1]
    columns = [(c.format(loss=view.loss), view.loss.replace("_", " ") if title == "loss" else title, say) for c, title, say in COLUMNS]
    columns = [c for c in columns if any(isinstance(r.get(c[0]), (int, float)) for r in sweep.rows)]
    columns = [c for c in columns if c[0] != "consumed_tokens" or len({r.get(c[0]) for r in sweep.rows if r["state"] == "finished"}) > 1]
    head = ('<th class="w">run</th>' + "".join(f'<th class="w">{esc(short_key(k))}</th>' for k in keys) + '<th class="w">state</th>'
            + "".join(f"<th>{esc(t)}</th>" for _, t, _ in columns))
    body = ""
    for row, values in zip(sweep.rows, sweep.values):
        name = f'<a href="{esc(row["report"])}">{esc(row["id"])}</a>' if row["report"] else esc(row["id"])
        base = is_base(row)
        cells = f'<td class="w">{name}</td>' + "".join(f'<td class="w">{esc(shown(values.get(k)))}</td>' for k in keys)
        good = row["state"] == "finished"
        style = "good" if good else "" if row["state"] in ("init", "pending", "running") else "bad"
        cells += f'<td class="w {style}">{esc(row["state"])}{" (baseline)" if base else ""}</td>'
        if not good and row.get("reason"):
            cells += f'<td class="reason" colspan="{len(columns)}">{esc(row["reason"])}</td>'
        else:
            for column, _, say in columns:
                v = row.get(column)
                best = row.get(FRONTS.get(column)) == 1
                cells += f'<td{" class=best" if best else ""}>{esc(say(v)) if isinstance(v, (int, float)) and math.isfinite(v) else "–"}</td>'
        body += f'<tr{" class=base" if base else ""}>{cells}</tr>'
    return f'<div class="scroll wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def speed_bars(view):
    return svg.rows("tokens per second", "tokens/s", bar_rows(view, "tokens_per_s", speed_note))


def waiting(view):
    sites = sites_of(view)
    return svg.rows("exposed time", "ms per step", exposed_rows(view, sites), parts=sites, format="time")


def page(sweep):
    """The page as a document of `report --draw`."""
    view = View(sweep)
    title, words = sweep.plan.get("name") or "sweep", view.loss.replace("_", " ")
    parts = [f"<h1>{esc(title)}</h1>" + (f'<p class="sub">{esc(sweep.plan["about"])}</p>' if sweep.plan.get("about") else ""), tiles(view)]

    def section(heading, charts):
        return [f"<h2>{esc(heading)}</h2>" if heading else "", '<div class="charts">', *charts, "</div>"] if charts else []
    for name, members in view.panels:
        gapped = any(g["base"] for g in members)
        parts += section(name if view.many() else "", [
            *loss_charts(view, members),
            *card(f"{words.capitalize()} at the end",
                  "percent above the baseline of the same seed; left of the line: better than it" if gapped else "at the end of the run",
                  loss_dots(view, loss_rows(view, [(name, members)]), gapped)),
            *card("Loss against tokens/s", "dashed: points that no other beats in both; small marks: single seeds",
                  pareto(view, members, "tokens_per_s", "tokens/s", 1)),
            *card("Loss against bytes of the whole run", "sent by all ranks; dashed: points that no other beats in both",
                  pareto(view, members, "run_wire_bytes_total", "bytes of the whole run", -1, "decimal_bytes"))])
    parts += section("Speed", [
        *card("Tokens per second", "median over the second half of the steps; whisker: seeds; percent: against the baseline", speed_bars(view)),
        *card("What compute waits for", "exposed time per site and step on rank 0, medians over the second half", waiting(view))])
    parts += ["<h2>Points</h2>", table(view),
              "<footer>Times, speeds and memory: medians over the second half of the steps. Train loss: mean over the last tenth of the steps, at most 20. "
              "Gaps are in percent of the baseline point with the same remaining axes. Bold: on a Pareto front. Points and lines lead to the page of their run. "
              'All columns: <a href="results.csv">results.csv</a>; what they mean: scripts/sweep help columns.</footer>']
    return {"title": title, "parts": parts}
