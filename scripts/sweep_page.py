# Writes docs/results/<name>.md and its pictures: a paper's claims beside what a sweep measured, judged by rules that the page states. No number is typed by hand.
"""A page about a reproduction sweep comes from its results.csv, its plan and the paper's claims (configs/sweeps/papers/<name>.json).

Claims are data: {"claim", "paper": what it says, "metric": column or list of columns that are added, "of": {axis: value}, "over": {...}, "rule", ...}. Rules:
  more, less    A is above (below) B: agrees where it is so for every seed and by at least `noise` percent on average, does not where it is the other way round by
                as much, and cannot be told in between; with `size`, the paper's percent, agrees only from half of it to twice of it
  equal         A is within `tolerance` percent of B: agrees where mean and half the spread over seeds fit in, does not where the mean without half
                the spread does not
  no_worse      the same, where a smaller loss is as good as the same one: the mean may lie below by any amount
  between       the ratio A / B lies in [low, high] (for what is counted, not timed)
  ordered       `points` (each {axis: value}) in this order, each above the one before by `noise` percent: does not where one is below by as much
  not_told      cannot be told here, and `why`
What is timed or learned cannot be told from one seed. The page opens with a picture and lines: `take` (what to do with it), and what the table says of losses and of
a plain bf16 wire (`bf16`: the point that is one; none where no such point ran).
"""

import csv
import json
import os
import statistics

import sweep_collect
import sweep_html
import sweep_json
import sweep_svg as svg
from measured import ROOT, table
from sweep_config import BASE
from sweep_store import StoreError, write_atomic

PAPERS = os.path.join(ROOT, "configs", "sweeps", "papers")
AGREES, OTHER_SIZE, DIFFERS, OPEN = "agrees", "same direction, other size", "does not agree", "cannot be told here"
RULES = {"more": "is above in every seed, and by at least {noise} % on average", "less": "is below in every seed, and by at least {noise} % on average",
         "equal": "is within {tolerance} %, half the spread over seeds included", "no_worse": "is at most {tolerance} % above, half the spread over seeds included",
         "between": "the ratio lies between {low} and {high}", "ordered": "each above the one before by at least {noise} %", "not_told": "–"}


def value_of(text):
    """A cell of the CSV as it was: number, JSON or text."""
    if text == "":
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


class FromCsv(sweep_collect.Sweep):
    """A Sweep whose rows come out of results.csv; it has no curves."""

    def __init__(self, folder):
        self.read(folder)
        try:
            with open(os.path.join(folder, "results.csv"), encoding="utf-8", newline="") as f:
                rows = {r["id"]: {k: r[k] if k in ("id", "baseline", "reason") else value_of(r[k]) for k in r} for r in csv.DictReader(f)}
        except OSError as e:
            raise StoreError(f"{folder}: no results.csv ({e.strerror}); run `scripts/sweep collect` first") from None
        if set(rows) != {p.id for p in self.points}:
            raise StoreError(f"{folder}: results.csv is not of these points; run `scripts/sweep collect` again")
        self.rows = [rows[p.id] for p in self.points]
        self.choose_loss()


# ---- claims


def matching(sweep, wanted):
    """Rows that are finished and have these axis values, by what else they are (seed and the axes not named)."""
    wanted = {"list" if k == "name" else k: v for k, v in wanted.items()}
    unknown = [k for k in wanted if k not in sweep.axes.columns]
    if unknown:
        raise StoreError(f"claims: {unknown[0]} is no axis of the plan (axes: {', '.join(sweep.axes.columns)})")
    found = {}
    for row, values in zip(sweep.rows, sweep.values):
        if all(values.get(k) == v for k, v in wanted.items()) and row["state"] == "finished":
            found.setdefault(row.get("seed"), []).append(row)
    return {seed: rows[0] for seed, rows in found.items() if len(rows) == 1}


def metric_of(row, metric):
    """A column, or the sum of several; None where none of them has a number. A site that is missing sent nothing."""
    columns = metric if isinstance(metric, list) else [metric]
    values = [row.get(c) for c in columns if sweep_collect.finite(row.get(c))]
    return sum(values) if values else None


def ratios(sweep, claim):
    """A / B of every seed that has both."""
    a, b = matching(sweep, claim["of"]), matching(sweep, claim["over"])
    out = []
    for seed in sorted(set(a) & set(b), key=str):
        x, y = metric_of(a[seed], claim["metric"]), metric_of(b[seed], claim["metric"])
        if x is not None and y:
            out.append(x / y)
    return out


def way_of(mean, low, high, seeds, noise):
    """1: above zero in every seed and by noise on average; -1: below; 0: neither, or one seed."""
    if abs(mean) < noise or seeds < 2:
        return 0
    return 1 if low > 0 else -1 if high < 0 else 0


def verdict(claim, mean, low, high, seeds):
    """Of percent; under `between` of a ratio, which is counted and may be of one seed."""
    rule = claim["rule"]
    if rule == "between":
        return AGREES if claim["low"] <= mean <= claim["high"] else DIFFERS
    if rule in ("equal", "no_worse"):
        half, away = (high - low) / 2, abs(mean) if rule == "equal" else mean
        return OPEN if seeds < 2 else AGREES if away + half <= claim["tolerance"] else DIFFERS if away - half > claim["tolerance"] else OPEN
    way = way_of(mean, low, high, seeds, claim["noise"]) * (1 if rule == "more" else -1)
    size = claim.get("size", abs(mean))
    if way == 1 and not size / 2 <= abs(mean) <= size * 2:
        return OTHER_SIZE
    return {1: AGREES, 0: OPEN, -1: DIFFERS}[way]


def spread_text(values, say):
    mean = say(statistics.fmean(values))
    return mean if len(values) == 1 or say(min(values)) == say(max(values)) else f"{mean} ({say(min(values))} to {say(max(values))})"


def judge(sweep, claim):
    """(what was measured, verdict)."""
    rule = claim["rule"]
    if rule == "not_told":
        return claim.get("measured", "–"), OPEN
    if rule == "ordered":
        return judge_order(sweep, claim)
    found = ratios(sweep, claim)
    if not found:
        return "not measured: a run is missing", OPEN
    if rule == "between":
        return spread_text(found, lambda v: svg.trimmed(v, 4)), verdict(claim, statistics.fmean(found), min(found), max(found), len(found))
    percent = [100.0 * (r - 1.0) for r in found]
    return spread_text(percent, svg.percent_text), verdict(claim, statistics.fmean(percent), min(percent), max(percent), len(percent))


def judge_order(sweep, claim):
    words, ways = [], []
    for before, after in zip(claim["points"], claim["points"][1:]):
        found = ratios(sweep, {**claim, "of": after, "over": before})
        if not found:
            return "not measured: a run is missing", OPEN
        percent = [100.0 * (r - 1.0) for r in found]
        words.append(svg.percent_text(statistics.fmean(percent)))
        ways.append(way_of(statistics.fmean(percent), min(percent), max(percent), len(percent), claim["noise"]))
    return " → ".join(words), DIFFERS if -1 in ways else AGREES if all(w == 1 for w in ways) else OPEN


# ---- text


def rule_text(claim):
    return RULES[claim["rule"]].format(**claim) + (f", and is half to twice {claim['size']} %" if "size" in claim else "")


def counted(verdicts):
    """{verdict: claims} in words."""
    words = {AGREES: ("agrees", "agree"), OTHER_SIZE: ("agrees in direction, not in size", "agree in direction, not in size"), DIFFERS: ("does not agree", "do not agree"), OPEN: (OPEN, OPEN)}
    return "; ".join(f"{n} {words[v][n > 1]}" for v in words if (n := verdicts.get(v)))


def first_lines(paper, claims, points, seeds):
    """The lines under the picture. claims: [(claim, verdict)]; points: [(name, is the baseline, loss above it in percent, half its seeds' spread in percent, tokens/s)]."""
    verdicts = {}
    for _, v in claims:
        verdicts[v] = verdicts.get(v, 0) + 1
    against = [c["claim"].rstrip(".") for c, v in claims if v == DIFFERS]
    lines = [paper["take"], f"Of the paper's {len(claims)} claims {counted(verdicts)}." + (f" Not: {'; '.join(against)}." if against else "")]
    wire = next((p for p in points if p[0] == paper.get("bf16")), None)
    others = [p for p in points if wire and p[0] != wire[0] and not p[1]]
    if wire and not wire[4] > 0:
        lines.append("The plain bf16 wire has no speed: whether any of this beats it cannot be told.")
    else:
        lines.append("Speed beside a plain bf16 wire: " + ", ".join(f"`{p[0]}` {p[4] / wire[4]:.2f}" for p in sorted(others, key=lambda p: -p[4])) + "."
                     if wire else paper.get("no_bf16", "No plain bf16 wire was run: whether any of this beats one cannot be told."))
    if seeds > 1:
        kept, lost = ([f"`{p[0]}`" for p in points if not p[1] and (p[2] + p[3] <= 0.5) == keeps] for keeps in (True, False))
        lines.append(f"Loss at most 0.5 % above the baseline, half the seeds' spread included: {', '.join(kept) or 'none'}." + (f" Above, or cannot be told: {', '.join(lost)}." if lost else ""))
    else:
        lines.append("One seed: speeds and losses of single runs, from which no difference can be told.")
    return "".join(f"- {line}\n" for line in [*lines, "The network is emulated, and its rate was set so that it takes the share of a step that the paper's numbers imply: directions are tested, sizes are not."])


def among(values):
    """Distinct values as words, in order."""
    out = list(dict.fromkeys(str(v) for v in values if v is not None))
    return ", ".join(out)


def our_setup(sweep):
    """What ran, out of the configurations of the points."""
    def each(key, default=None):
        return among(p.config.get(key, default) for p in sweep.points)

    launchers = [p.launcher for p in sweep.points]
    rows = [
        ("model", f"GPT, {each('num_layers')} blocks of {each('hidden_size')}, sequences of {each('seq_length')}, {each('tokenizer')} tokens ({each('vocab_size')})"),
        ("layout",
         f"{among(l.get('ranks') for l in launchers)} ranks: pipeline {each('pipe_parallel_size', 1)}, tensor {each('model_parallel_size', 1)}, the rest data; "
         f"{each('train_batch_size')} sequences a step, micro batch {each('train_micro_batch_size_per_gpu')}"),
    ]
    if launchers and launchers[0].get("kind") == "lab":
        rows.append(("network", f"{among(l.get('hosts') for l in launchers)} emulated hosts (`scripts/lab`), {among(l.get('rate') for l in launchers)} each; "
                     "ranks of one host reach each other unhindered"))
    rows += [("length", f"{each('train_iters')} steps, {svg.number(max((r['consumed_tokens'] for r in sweep.rows if r.get('consumed_tokens')), default=0))} tokens; "
              f"seeds {among(v.get('seed') for v in sweep.values)}"),
             ("machine", among(r.get("device") for r in sweep.rows) or "–"),
             ("arithmetic", f"{each('precision')}")]
    return rows


def duration(sweep):
    seconds = sum(r["seconds"] for r in sweep.rows if sweep_collect.finite(r.get("seconds")))
    return f"{svg.trimmed(seconds / 60, 2)} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"


def listed(view):
    """(the panel's name where there are several, group, its finished rows) of all groups."""
    for title, members in view.panels:
        for g in members:
            yield [title] if view.many() else [], g, [r for r in g["rows"] if r["state"] == "finished"]


def results(view):
    """One line per group of points, means over seeds."""
    loss, rows = view.loss, []
    columns = [("mean." + loss, loss.replace("_", " "), lambda v: f"{v:.4f}"), ("mean.gap." + loss, "above baseline", svg.percent_text),
               ("mean.tokens_per_s", "tokens/s", svg.number), ("mean.gap.tokens_per_s", "against baseline", svg.percent_text),
               ("mean.model_tflops_per_rank", "model FLOP/s a rank", lambda v: svg.number(v * 1e12)), ("mean.step_ms", "step", svg.ms_text),
               ("mean.exposed_ms", "waits", svg.ms_text), ("mean.wire_bytes_total", "bytes a step", svg.bytes_text), ("ratio", "ratio", lambda v: f"{v:.2f}"),
               ("mean.memory_peak_bytes", "memory", svg.bytes_text)]
    for first, g, done in listed(view):
        if not done:
            rows.append([*first, g["name"], f"{g['rows'][0]['state']}: {g['rows'][0].get('reason') or ''}", *[""] * (len(columns) - 1)])
            continue
        values = {**done[0], "ratio": done[0].get("compression_ratio")}
        spread = (values.get("high." + loss) or 0) - (values.get("low." + loss) or 0)
        line = [*first, g["name"] + (" (baseline)" if g["base"] else "")]
        for column, _, say in columns:
            v = values.get(column)
            words = say(v) if sweep_collect.finite(v) else "–"
            line.append(words + (f" ± {spread / 2:.4f}" if column == "mean." + loss and len(done) > 1 else ""))
        rows.append(line)
    head = [*(["where"] if view.many() else []), "point", *(c[1] for c in columns)]
    return table(head, rows, right=range(len(head) - len(columns), len(head)))


def site_table(view):
    """Bytes a step of every site, all ranks together."""
    sites = [c[: -len(".wire_bytes_total")] for c in view.sweep.rows[0] if c.endswith(".wire_bytes_total") and not c.startswith(("gap.", "mean.", "low.", "high."))]
    sites = [s for s in sites if any(r.get(s + ".wire_bytes_total") for r in view.sweep.rows)]
    rows = []
    for first, g, done in listed(view):
        if done:
            cells = []
            for s in sites:
                sent, waited = done[0].get(s + ".wire_bytes_total"), done[0].get(s + ".exposed_ms")
                cells.append("–" if not sweep_collect.finite(sent) else svg.bytes_text(sent) + (f", {svg.ms_text(waited)}" if sweep_collect.finite(waited) else ""))
            rows.append([*first, g["name"], *cells])
    head = [*(["where"] if view.many() else []), "point", *sites]
    return table(head, rows, right=range(len(head) - len(sites), len(head))) if sites and rows else ""


def pictures(view, base):
    """Writes the SVG files; returns the markdown of each that there is."""
    out = []

    def keep(what, title, note, chart):
        path = f"{base}_{what}.svg"
        drawn = svg.draw({**chart, "heading": title, "note": note}) if chart else ""
        if drawn:
            write_atomic(path, drawn)
            out.append(f"![{title}]({os.path.basename(path)})")
        elif os.path.exists(path):
            os.unlink(path)

    loss_words = view.loss.replace("_", " ")
    keep("speed", "Tokens per second", "median over the second half of the steps; whisker: seeds", sweep_html.speed_bars(view))
    gapped = any(g["base"] for g in view.groups)
    keep("loss", f"{loss_words.capitalize()} " + ("above the baseline" if gapped else "at the end"), "large: mean over seeds, small: single seeds",
         sweep_html.loss_dots(view, sweep_html.loss_rows(view, view.panels), gapped))
    keep("waiting", "What compute waits for", "exposed time per site and step on rank 0", sweep_html.waiting(view))
    for n, (title, members) in enumerate(view.panels[:4]):
        mark = f"_{n + 1}" if view.many() else ""
        keep("front" + mark, f"{loss_words.capitalize()} against tokens/s" + (f", {title}" if title else ""), "dashed: points that no other beats in both",
             sweep_html.pareto(view, members, "tokens_per_s", "tokens/s", 1))
    return out


def write(folder, output=None, papers=PAPERS):
    """Writes the page and its pictures, and says how many claims got which verdict; papers: the folder of the claims."""
    sweep = FromCsv(folder)
    name = sweep.plan["name"]
    claims_path = os.path.join(papers, name + ".json")
    try:
        paper = sweep_json.read(claims_path, os.path.relpath(claims_path, ROOT))
    except sweep_json.TextError as e:
        raise StoreError(f"{e}; a page needs the paper's claims there (scripts/sweep help claims)") from None
    output = output or os.path.join(BASE, "docs", "results", name + ".md")
    os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
    view = sweep_html.View(sweep)
    judged, rows, reasons = [], [], []
    for claim in paper["claims"]:
        measured, is_so = judge(sweep, claim)
        judged.append((claim, is_so))
        rows.append([claim["claim"], claim["paper"], measured, rule_text(claim), is_so if is_so == OPEN else f"**{is_so}**"])
        why = claim.get({AGREES: "if_agrees", OTHER_SIZE: "if_agrees", DIFFERS: "if_not", OPEN: "if_open"}[is_so]) or claim.get("why")
        if why:
            reasons.append(f"- **{claim['claim'].rstrip('.')}**: {why}")
    plan = f"configs/sweeps/{name}.json"
    drawn, points = pictures(view, os.path.splitext(output)[0]), []
    for first, g, done in listed(view):
        if done:
            v, column = done[0], "gap." + view.loss
            gaps = [x[column] for x in done if sweep_collect.finite(x.get(column))] or [0.0]
            points.append((" ".join([*first, g["name"]]), g["base"], statistics.fmean(gaps), (max(gaps) - min(gaps)) / 2, v.get("mean.tokens_per_s") or 0.0))
    seeds = len({v.get("seed") for v in sweep.values})
    best = [d for d in drawn if "_front.svg" in d] or drawn[:1]
    text = f"# {paper['title']}\n\n" + "".join(f"{d}\n\n" for d in best) + first_lines(paper, judged, points, seeds) + f"\n{paper['about']}\n\n"
    text += "## What the paper claims, and what came out\n\n" + table(["claim", "paper", "here", "agrees where it", "verdict"], rows)
    if reasons:
        text += "\n### Why\n\n" + "\n".join(reasons) + "\n"
    text += "\n## Set-up\n\n**The paper's.** " + paper["setup"] + "\n\n**Ours.** " + paper["ours"] + "\n\n" + table(["", "here"], our_setup(sweep))
    text += "\n## Results\n\n" + results(view) + "\n"
    text += "".join(f"{d}\n\n" for d in drawn if d not in best)
    sites = site_table(view)
    if sites:
        text += "Bytes a step over all ranks, and what compute waits for them on rank 0:\n\n" + sites + "\n"
    text += "## Repeat\n\n    scripts/sweep " + plan + f"\n    scripts/sweep page {plan}\n\nThe runs took {duration(sweep)} together. "
    text += ("This page is written by `scripts/sweep page` out of `results.csv`; its rules are in `scripts/sweep_page.py`, the claims in `"
             + os.path.relpath(claims_path, ROOT) + "`.\n")
    write_atomic(output, text)
    print(f"{output}: {counted({v: sum(x == v for _, x in judged) for v in (AGREES, OTHER_SIZE, DIFFERS, OPEN)})}")
